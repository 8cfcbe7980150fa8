"""The runs of raytrain and of its parts: which command, which file, which settings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.growth import POINTS
from benchmarks.harness import Job, adapter

ROOT = Path(__file__).resolve().parents[2]

THROUGHPUT = "benchmarks/cartpole-throughput.yaml"
HALFCHEETAH_PPO = "benchmarks/halfcheetah-ppo-throughput.yaml"
LOCKSTEP = "benchmarks/async-lockstep.yaml"
SLOW_ENVS = "benchmarks/slow-envs.yaml"

TRAIN: dict[str, Any] = {"grace_s": 20.0}
ALONE: dict[str, Any] = {"warm_s": 5.0, "window_s": 20.0}

CURIOSITY = "behaviors.CartPole.reward_signals.curiosity.strength=0.02"
ONE_PASS = "reward_signals.curiosity.num_epoch=1"
"""The signal's models learn from a buffer in one pass; the policy in as many as before."""

LSTM_COMMON = ("env_settings.num_envs=64",)
LSTM = ("behaviors.CartPole.network_settings.memory.sequence_length=16", "behaviors.CartPole.network_settings.memory.memory_size=128")
"""64 environments; the recurrent run has a layer of 64 units and sequences of 16."""

HALFCHEETAH_LAYOUTS: dict[str, tuple[str, ...]] = {
    "raytrain-two-managers": (),
    "raytrain-processes": ("distributed.num_env_managers=1", "env_settings.num_envs=8", "env_settings.stepping=processes"),
    "raytrain-inline": ("distributed.num_env_managers=1", "env_settings.num_envs=8"),
}
"""Ways to spread the 8 environments over two cores; the fastest one stands in the table."""

PROBE_S = 1e-3
"""Sleep with which stepping is measured before the real one is known (s)."""


def ours(config: str, env: str, *settings: str) -> tuple[str, ...]:
    """The product's own command line on `config`, its env replaced by the metered one."""
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), str(ROOT / "yaml" / config)]
    command += ["--results-dir", "{dir}/results", "--run-id", "bench", "--seed", "{seed}"]
    for setting in (f"env=metered:{env}", *settings):
        command += ["--set", setting]
    return tuple(command)


def as_the_peers(behavior: str) -> list[str]:
    """Settings that make the updates of a ready-made SAC file those that the peers make, without an end, often summarised."""
    settings = {
        "hyperparameters.batch_size": 256, "hyperparameters.steps_per_update": 1, "hyperparameters.n_step": 1,
        "network_settings.hidden_units": 256, "network_settings.num_layers": 2, "summary_freq": 500, "max_steps": 10**9,
    }
    return [*(f"behaviors.{behavior}.{key}={value}" for key, value in settings.items()), "stop.reward=null"]


def own_jobs(measurement: str) -> list[Job]:
    """One round of `measurement`, as it is with seed 0 and without what `plan.SHAPES` says of it."""
    # The harness does not see the first update here, only the first env step, some seconds (compilation) before it.
    updates = {**TRAIN, "warm_s": 25.0}
    return {
        "throughput": [Job("throughput", "raytrain", ours(THROUGHPUT, "make_vec_env"), **TRAIN)],
        "throughput-python": [
            Job("throughput-python", "raytrain-python", ours(THROUGHPUT, "make_env", "env_settings.stepping=inline"), **TRAIN)
        ],
        # Without its own stop: the harness says when it is solved, from the same episodes as for the peers.
        "solve": [Job("solve", "raytrain", ours("ppo/CartPole.yaml", "make_vec_env", "stop.reward=null"), **TRAIN)],
        "lunarlander-solve": [Job("lunarlander-solve", "raytrain", ours("ppo/LunarLander.yaml", "make_env", "stop.reward=null"), **TRAIN)],
        "startup": [
            Job("startup", "ray.init", adapter("ray_init"), until="exit"),
            Job("startup", "raytrain", ours(THROUGHPUT, "make_vec_env"), until="first-step", **TRAIN),
        ],
        "slow-envs": [
            Job("slow-envs", "random-actions", adapter("random_actions"), options={"file": SLOW_ENVS}),
            Job("slow-envs", "raytrain", ours(SLOW_ENVS, "make_env"), **TRAIN),
        ],
        "alone": [
            Job("alone", "rollouts-alone", adapter("halves"), options={"part": "rollouts"}, **ALONE),
            Job("alone", "updates-alone", adapter("halves"), options={"part": "updates"}, counts="row", **ALONE),
        ],
        "halfcheetah-ppo": [
            *(Job("halfcheetah-ppo", name, ours(HALFCHEETAH_PPO, "make_env", *settings), warm_s=20.0, **TRAIN)
              for name, settings in HALFCHEETAH_LAYOUTS.items()),
            Job("halfcheetah-ppo", "stepping-alone", adapter("random_actions"), options={"file": HALFCHEETAH_PPO, "one_core": True}, **ALONE),
            Job("halfcheetah-ppo", "updates-alone", adapter("updates_alone"), options={"file": HALFCHEETAH_PPO}, counts="row", **ALONE),
        ],
        "async-lockstep": [
            Job("async-lockstep", name, ours(LOCKSTEP, "make_env", *settings), sleeps_as="calibration", **TRAIN)
            for name, settings in (("raytrain-asynchronous", ()), ("raytrain-lock-step", ("behaviors.CartPole.threaded=false",)))
        ],
        "growth": [
            Job("growth", point.contestant, ours(THROUGHPUT, "make_vec_env" if point.native else "make_env", *point.settings), **TRAIN)
            for point in POINTS
        ],
        "sac-updates": [
            Job("sac-updates", "raytrain", ours(
                "benchmarks/halfcheetah-sac-throughput.yaml", "make_env", "behaviors.HalfCheetah.summary_freq=500"), **updates),
        ],
        "sac-updates-pendulum": [
            Job("sac-updates-pendulum", "raytrain", ours("sac/Pendulum.yaml", "make_env", *as_the_peers("Pendulum")), **updates),
        ],
        "pendulum-solve": [
            Job("pendulum-solve", "raytrain", ours("sac/Pendulum.yaml", "make_env", "stop.reward=null"), **TRAIN),
        ],
        "replay": [Job("replay", "replay-alone", adapter("replay_alone"), until="exit")],
        "pong": [Job("pong", "raytrain", ours("ppo/Pong.yaml", "make_vec_env", "stop.reward=null"), **TRAIN)],
        "conv-bound": [Job("conv-bound", "conv-alone", adapter("conv_alone"), until="exit")],
        "curiosity": [
            Job("curiosity", "raytrain-without", ours(THROUGHPUT, "make_vec_env"), **TRAIN),
            Job("curiosity", "raytrain-curiosity", ours(THROUGHPUT, "make_vec_env", CURIOSITY), **TRAIN),
            Job("curiosity", "raytrain-curiosity-one-pass", ours(
                THROUGHPUT, "make_vec_env", CURIOSITY, f"behaviors.CartPole.{ONE_PASS}"), **TRAIN),
            *(Job("curiosity", f"raytrain-mountaincar-{kind}", ours(
                "ppo/MountainCar.yaml", "make_env", "stop.reward=null", *settings), case="mountaincar", **TRAIN)
              for kind, settings in (
                ("without", ("behaviors.MountainCar.reward_signals.curiosity=null",)),
                ("curiosity", ()),
                ("curiosity-one-pass", (f"behaviors.MountainCar.{ONE_PASS}",)))),
        ],
        "lstm": [
            Job("lstm", "raytrain-dense", ours(THROUGHPUT, "make_vec_env", *LSTM_COMMON), **TRAIN),
            Job("lstm", "raytrain-lstm", ours(THROUGHPUT, "make_vec_env", *LSTM_COMMON, *LSTM), **TRAIN),
        ],
        "halfcheetah-200k": [
            Job("halfcheetah-200k", "raytrain", ours("sac/HalfCheetah.yaml", "make_env", "stop.reward=null"), **TRAIN),
        ],
    }[measurement]


def calibration() -> Job:
    """Measures how long the environments of ``async-lockstep`` sleep; runs once, before all of its rounds."""
    options = {"file": LOCKSTEP, "sleep_s": PROBE_S}
    return Job("async-lockstep", "calibration", adapter("calibrate"), case="lockstep", options=options, until="exit")
