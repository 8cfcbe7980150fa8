"""Stable-Baselines3 and SBX: PPO or SAC, as the case asks.

Options: lib=sb3|sbx, vec=dummy|subproc, threads, n_envs, total_steps (the run ends by itself after these) and any argument of
the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any

import metered

ENDLESS = 10**8  # never reached
N_ENVS = {"cartpole": 8, "slow-envs": 16, "pendulum": 1, "halfcheetah": 1, "pong": 8, "halfcheetah-ppo": 8, "lunarlander": 16}
# rl-zoo's values for CartPole-v1; its schedules fall linearly over its own 100,000 steps.
CARTPOLE = {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0}
LEARNING_RATE, CLIP_RANGE, SCHEDULE_STEPS = 0.001, 0.2, 100_000
SCHEDULED = ("cartpole", "slow-envs")
PPO_ARGUMENTS: dict[str, dict[str, Any]] = {
    "cartpole": CARTPOLE, "slow-envs": CARTPOLE,
    # rl-zoo's values for LunarLander; the rest it leaves to the libraries' defaults.
    "lunarlander": {"n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01},
    # rl-zoo's values for Atari, without their schedules over 10 million steps.
    "pong": {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "learning_rate": 2.5e-4, "clip_range": 0.1, "vf_coef": 0.5, "ent_coef": 0.01},
    # Those of yaml/benchmarks/halfcheetah-ppo-throughput.yaml: the same arithmetic for all.
    "halfcheetah-ppo": {"n_steps": 256, "batch_size": 64, "n_epochs": 10, "learning_rate": 3e-4, "gae_lambda": 0.95, "gamma": 0.99, "ent_coef": 0.0,
                        "policy_kwargs": {"net_arch": [64, 64]}},
}
# rl-zoo's values for Pendulum-v1 and HalfCheetah; what it leaves to the libraries' defaults is written out.
SAC_COMMON = {
    "batch_size": 256, "train_freq": 1, "gradient_steps": 1, "tau": 0.005, "gamma": 0.99, "buffer_size": 1_000_000,
    "policy_kwargs": {"net_arch": [256, 256]},
}
SAC_ARGUMENTS: dict[str, dict[str, Any]] = {
    "pendulum": {**SAC_COMMON, "learning_rate": 1e-3, "learning_starts": 100},
    "halfcheetah": {**SAC_COMMON, "learning_rate": 3e-4, "learning_starts": 10_000},
}


def linear(start: float, total_steps: int, floor: float = 0.05) -> Callable[[float], float]:
    """rl-zoo's schedule over its own number of steps, held at 5 % after them."""
    return lambda remaining: start * max(floor, 1.0 - (1.0 - remaining) * total_steps / SCHEDULE_STEPS)


def main() -> None:
    import torch

    options = metered.options()
    lib, vec, threads = options.pop("lib"), options.pop("vec"), options.pop("threads", 1)
    torch.set_num_threads(threads)
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    if lib == "sb3":
        import stable_baselines3 as library
    else:
        import sbx as library

    n_envs, total_steps = options.pop("n_envs", N_ENVS[metered.case()]), options.pop("total_steps", ENDLESS)
    sac = metered.case() in SAC_ARGUMENTS
    arguments: dict[str, Any] = {**(SAC_ARGUMENTS if sac else PPO_ARGUMENTS)[metered.case()], **options}
    facts = {"lib": lib, "version": library.__version__, "vec": vec, "threads": threads, "n_envs": n_envs, "arguments": arguments}
    schedules: dict[str, Any] = {}
    if metered.case() in SCHEDULED:
        facts.update(learning_rate=f"linear from {LEARNING_RATE}", clip_range=f"from {CLIP_RANGE}")
        schedules = {
            "learning_rate": linear(LEARNING_RATE, total_steps),
            "clip_range": linear(CLIP_RANGE, total_steps) if lib == "sb3" else CLIP_RANGE,  # SBX takes a constant
        }
    if sac:
        facts.update(algorithm="SAC", total_steps=total_steps)
    if metered.case().startswith("halfcheetah"):
        facts.update(mujoco=metadata.version("mujoco"))
    metered.info(**facts)
    steps_a_count = 1 if sac else -(-arguments["n_steps"] * n_envs // arguments["batch_size"])  # PPO counts epochs
    env = (SubprocVecEnv if vec == "subproc" else DummyVecEnv)([metered.make_env] * n_envs)

    class CountUpdates(BaseCallback):
        seen = 0

        def _tell(self) -> None:
            done = self.model._n_updates * steps_a_count
            if done > self.seen:
                metered.updates.add(done - self.seen)
                self.seen = done

        def _on_step(self) -> bool:
            if sac:  # it learns between two steps; PPO between two rollouts
                self._tell()
            return True

        def _on_rollout_start(self) -> None:
            self._tell()

    model = (library.SAC if sac else library.PPO)(
        "CnnPolicy" if metered.case() == "pong" else "MlpPolicy", env, seed=metered.seed(), device="cpu" if lib == "sb3" else "auto", **schedules, **arguments,
    )
    model.learn(total_steps, callback=CountUpdates())


if __name__ == "__main__":
    main()
