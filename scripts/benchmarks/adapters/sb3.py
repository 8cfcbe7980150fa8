"""Stable-Baselines3 and SBX (options: lib=sb3|sbx, vec=dummy|subproc, threads, n_envs and any argument of PPO)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import metered

TOTAL_STEPS = 10**8  # never reached
N_ENVS = {"cartpole": 8, "slow-envs": 16}
# rl-zoo's values for CartPole-v1; its schedules fall linearly over its own 100,000 steps.
PPO_ARGUMENTS = {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0}
LEARNING_RATE, CLIP_RANGE, SCHEDULE_STEPS = 0.001, 0.2, 100_000


def linear(start: float, floor: float = 0.05) -> Callable[[float], float]:
    """rl-zoo's schedule over its own number of steps, held at 5 % after them."""
    return lambda remaining: start * max(floor, 1.0 - (1.0 - remaining) * TOTAL_STEPS / SCHEDULE_STEPS)


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

    n_envs = options.pop("n_envs", N_ENVS[metered.case()])
    arguments: dict[str, Any] = {**PPO_ARGUMENTS, **options}
    metered.info(lib=lib, version=library.__version__, vec=vec, threads=threads, n_envs=n_envs, arguments=arguments,
                 learning_rate=f"linear from {LEARNING_RATE}", clip_range=f"from {CLIP_RANGE}")
    env = (SubprocVecEnv if vec == "subproc" else DummyVecEnv)([metered.make_env] * n_envs)
    minibatches = -(-arguments["n_steps"] * n_envs // arguments["batch_size"])

    class CountUpdates(BaseCallback):
        seen = 0

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            done = self.model._n_updates * minibatches  # PPO counts epochs
            if done > self.seen:
                metered.updates.add(done - self.seen)
                self.seen = done

    model = library.PPO(
        "MlpPolicy", env, seed=metered.seed(), device="cpu" if lib == "sb3" else "auto", learning_rate=linear(LEARNING_RATE),
        clip_range=linear(CLIP_RANGE) if lib == "sb3" else CLIP_RANGE,  # SBX takes a constant
        **arguments,
    )
    model.learn(TOTAL_STEPS, callback=CountUpdates())


if __name__ == "__main__":
    main()
