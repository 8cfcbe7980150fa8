"""Which runs the tasks need, in which order."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import Job, adapter
from benchmarks.peers import PEERS, interpreter

ROOT = Path(__file__).resolve().parents[2]

NEEDS: dict[str, tuple[str, ...]] = {
    "cartpole-throughput": ("throughput", "throughput-peers"),
    "cartpole-throughput-python": ("throughput-python", "throughput-peers"),
    "cartpole-solve": ("solve", "solve-peers"),
    "startup": ("startup",),
    "slow-envs": ("slow-envs", "slow-envs-peers"),
    "memory": ("throughput",),
    "queue": ("throughput",),
    "overlap": ("throughput", "alone"),
    "sac-updates": ("sac-updates", "sac-updates-peers"),
    "sac-updates-pendulum": ("sac-updates-pendulum", "sac-updates-pendulum-peers"),
    "pendulum-solve": ("pendulum-solve", "pendulum-solve-peers"),
    "replay": ("replay",),
    "halfcheetah-200k": ("halfcheetah-200k", "halfcheetah-200k-peers"),
    "pong-throughput": ("pong", "pong-peers", "conv-bound"),
    "lstm-throughput": ("lstm",),
    "curiosity-throughput": ("curiosity",),
}
"""Task -> the measurements it is computed from. Tasks share runs."""

LONG_TASKS = ("halfcheetah-200k",)
"""Tasks of an hour and more: only when they are asked for by name."""

LONG_STEPS = 200_000
"""Env steps of ``halfcheetah-200k``."""

PEER_CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    "throughput-peers": ("sb3", "sbx", "sample-factory", "rllib-ppo", "rllib-appo"),
    "solve-peers": ("sb3", "sbx", "sample-factory", "rllib-ppo"),
    "slow-envs-peers": ("sb3-subproc", "sbx-subproc", "sample-factory", "rllib-ppo-async"),
    "sac-updates-peers": ("sb3", "sbx"),
    "sac-updates-pendulum-peers": ("sb3", "sbx"),
    "pendulum-solve-peers": ("sb3", "sbx"),
    "halfcheetah-200k-peers": ("sb3",),
    "pong-peers": ("sb3-subproc-2-threads", "sample-factory-sync"),
}
"""For each measurement the configurations that suit it best of each library (dummy or subprocess vector envs, …)."""

SEEDED = ("solve", "pendulum-solve")
"""Measurements with a round for each seed."""
ROUNDS = {"startup": 3, "halfcheetah-200k": 2}
"""Rounds of the other measurements, where they are not 1."""

SHAPES: dict[str, dict[str, Any]] = {
    "solve": {"until": "solved"},
    "slow-envs": {"case": "slow-envs", "warm_s": 10.0, "window_s": 30.0},
    "sac-updates": {"case": "halfcheetah", "window_s": 30.0},
    "sac-updates-pendulum": {"case": "pendulum", "window_s": 30.0},
    "pendulum-solve": {"case": "pendulum", "until": "solved", "cap_s": 300.0},
    "halfcheetah-200k": {"case": "halfcheetah", "until": "steps", "steps": LONG_STEPS, "cap_s": 4 * 3600.0},
    "pong": {"case": "pong", "warm_s": 30.0, "window_s": 60.0},
    "conv-bound": {"case": "pong"},
    "lstm": {"warm_s": 30.0, "window_s": 30.0},
    "curiosity": {"warm_s": 30.0, "window_s": 30.0},
}
"""Measurement -> what is the same in the jobs of all contestants."""
PEER_OPTIONS: dict[str, dict[str, Any]] = {
    "sac-updates": {"learning_starts": 1_000},  # random steps say nothing of updates
    "halfcheetah-200k": {"total_steps": LONG_STEPS},
}
"""Measurement -> options of the peers' adapters."""


CURIOSITY = "behaviors.CartPole.reward_signals.curiosity.strength=0.02"
ONE_PASS = "reward_signals.curiosity.num_epoch=1"
"""The signal's models learn from a buffer in one pass; the policy in as many as before."""

LSTM_COMMON = ("env_settings.num_envs=64",)
LSTM = ("behaviors.CartPole.network_settings.memory.sequence_length=16", "behaviors.CartPole.network_settings.memory.memory_size=128")
"""64 environments; the recurrent run has a layer of 64 units and sequences of 16."""


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


def _own_jobs(measurement: str, repeat: int) -> list[Job]:
    throughput = "benchmarks/cartpole-throughput.yaml"
    train: dict[str, Any] = {"grace_s": 20.0}
    alone: dict[str, Any] = {"warm_s": 5.0, "window_s": 20.0}
    # The harness does not see the first update here, only the first env step, some seconds (compilation) before it.
    updates = {**train, "warm_s": 25.0}
    jobs = {
        "throughput": [Job("throughput", "raytrain", ours(throughput, "make_vec_env"), **train)],
        "throughput-python": [
            Job("throughput-python", "raytrain-python", ours(throughput, "make_env", "env_settings.stepping=inline"), **train)
        ],
        # Without its own stop: the harness says when it is solved, from the same episodes as for the peers.
        "solve": [Job("solve", "raytrain", ours("ppo/CartPole.yaml", "make_vec_env", "stop.reward=null"), **train)],
        "startup": [
            Job("startup", "ray.init", adapter("ray_init"), until="exit"),
            Job("startup", "raytrain", ours(throughput, "make_vec_env"), until="first-step", **train),
        ],
        "slow-envs": [
            Job("slow-envs", "random-actions", adapter("random_actions")),
            Job("slow-envs", "raytrain", ours("benchmarks/slow-envs.yaml", "make_env"), **train),
        ],
        "alone": [
            Job("alone", "rollouts-alone", adapter("rollouts_alone"), **alone),
            Job("alone", "updates-alone", adapter("updates_alone"), counts="row", **alone),
        ],
        "sac-updates": [
            Job("sac-updates", "raytrain", ours(
                "benchmarks/halfcheetah-sac-throughput.yaml", "make_env", "behaviors.HalfCheetah.summary_freq=500"), **updates),
        ],
        "sac-updates-pendulum": [
            Job("sac-updates-pendulum", "raytrain", ours("sac/Pendulum.yaml", "make_env", *as_the_peers("Pendulum")), **updates),
        ],
        "pendulum-solve": [
            Job("pendulum-solve", "raytrain", ours("sac/Pendulum.yaml", "make_env", "stop.reward=null"), **train),
        ],
        "replay": [Job("replay", "replay-alone", adapter("replay_alone"), until="exit")],
        "pong": [Job("pong", "raytrain", ours("ppo/Pong.yaml", "make_vec_env", "stop.reward=null"), **train)],
        "conv-bound": [Job("conv-bound", "conv-alone", adapter("conv_alone"), until="exit")],
        "curiosity": [
            Job("curiosity", "raytrain-without", ours(throughput, "make_vec_env"), **train),
            Job("curiosity", "raytrain-curiosity", ours(throughput, "make_vec_env", CURIOSITY), **train),
            Job("curiosity", "raytrain-curiosity-one-pass", ours(
                throughput, "make_vec_env", CURIOSITY, f"behaviors.CartPole.{ONE_PASS}"), **train),
            *(Job("curiosity", f"raytrain-mountaincar-{kind}", ours(
                "ppo/MountainCar.yaml", "make_env", "stop.reward=null", *settings), case="mountaincar", **train)
              for kind, settings in (
                ("without", ("behaviors.MountainCar.reward_signals.curiosity=null",)),
                ("curiosity", ()),
                ("curiosity-one-pass", (f"behaviors.MountainCar.{ONE_PASS}",)))),
        ],
        "lstm": [
            Job("lstm", "raytrain-dense", ours(throughput, "make_vec_env", *LSTM_COMMON), **train),
            Job("lstm", "raytrain-lstm", ours(throughput, "make_vec_env", *LSTM_COMMON, *LSTM), **train),
        ],
        "halfcheetah-200k": [
            Job("halfcheetah-200k", "raytrain", ours("sac/HalfCheetah.yaml", "make_env", "stop.reward=null"), **train),
        ],
    }[measurement]
    return [replace(job, seed=repeat, **SHAPES.get(measurement, {})) for job in jobs]


def _peer_jobs(measurement: str, libraries: Iterable[str], venvs: Path, repeat: int) -> list[Job]:
    jobs = []
    for name in PEER_CONFIGURATIONS[measurement]:
        peer = PEERS[name]
        if peer.library not in libraries:
            continue
        kind = measurement.removesuffix("-peers")
        job = Job(
            kind, name, adapter(peer.adapter, interpreter(venvs, peer.venv)), seed=repeat,
            options={**peer.options, **PEER_OPTIONS.get(kind, {})}, **SHAPES.get(kind, {}),
        )
        if kind.startswith("sac-updates"):
            job = replace(job, counts="upd", warm_s=5.0)  # from the first update on, which their adapter counts
        jobs.append(job)
    return jobs


def plan(tasks: Iterable[str], libraries: Iterable[str], venvs: Path, seeds: int, repeats: int | None) -> list[Job]:
    """Every run of `tasks`, one round after another; within a round each contestant runs once.

    Args:
        tasks: keys of `NEEDS`.
        libraries: peers to run beside ours.
        venvs: folder of the peers' virtual envs.
        seeds: rounds of `SEEDED`.
        repeats: rounds of the other measurements; None is `ROUNDS`, and 1 for the rest.
    """
    libraries = tuple(libraries)
    wanted = dict.fromkeys(need for task in tasks for need in NEEDS[task])  # a set that keeps the order
    kinds = dict.fromkeys(name.removesuffix("-peers").removesuffix("-python") for name in wanted)
    jobs = []
    for kind in kinds:
        members = [name for name in wanted if name.removesuffix("-peers").removesuffix("-python") == kind]
        if kind in (*SEEDED, "startup"):  # ours is compared with a warm compilation cache: this run fills it
            filler = _own_jobs(kind, 0)[-1]
            jobs.append(replace(filler, seed=1000, until="window", warm_s=0.0, window_s=15.0, warm_up=True))
        for repeat in range(seeds if kind in SEEDED else repeats or ROUNDS.get(kind, 1)):
            for name in members:
                jobs += _peer_jobs(name, libraries, venvs, repeat) if name.endswith("-peers") else _own_jobs(name, repeat)
    return jobs
