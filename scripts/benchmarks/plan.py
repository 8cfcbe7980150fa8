"""Which runs the tasks need, in which order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import Job, adapter
from benchmarks.own_jobs import calibration, own_jobs
from benchmarks.peers import PEERS, interpreter

NEEDS: dict[str, tuple[str, ...]] = {
    "cartpole-throughput": ("throughput", "throughput-peers"),
    "cartpole-throughput-python": ("throughput-python", "throughput-peers"),
    "cartpole-solve": ("solve", "solve-peers"),
    "startup": ("startup", "startup-peers"),
    "slow-envs": ("slow-envs", "slow-envs-peers"),
    "memory": ("throughput", "throughput-peers"),
    "queue": ("throughput",),
    "overlap": ("throughput", "alone"),
    "halfcheetah-ppo": ("halfcheetah-ppo", "halfcheetah-ppo-peers"),
    "async-lockstep": ("async-lockstep",),
    "sac-updates": ("sac-updates", "sac-updates-peers"),
    "sac-updates-pendulum": ("sac-updates-pendulum", "sac-updates-pendulum-peers"),
    "pendulum-solve": ("pendulum-solve", "pendulum-solve-peers"),
    "lunarlander-solve": ("lunarlander-solve", "lunarlander-solve-peers"),
    "replay": ("replay",),
    "halfcheetah-200k": ("halfcheetah-200k", "halfcheetah-200k-peers"),
    "pong-throughput": ("pong", "pong-peers", "conv-bound"),
    "lstm-throughput": ("lstm",),
    "curiosity-throughput": ("curiosity",),
    "growth": ("growth",),
}
"""Task -> the measurements it is computed from. Tasks share runs."""

LONG_TASKS = ("halfcheetah-200k", "lunarlander-solve", "growth")
"""Tasks of half an hour and more: only when they are asked for by name."""

LONG_STEPS = 200_000
"""Env steps of ``halfcheetah-200k``."""
LOCKSTEP_STEPS = 40_000
"""Env steps at which ``async-lockstep`` compares returns."""

PEER_CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    "throughput-peers": ("sb3", "sbx", "sample-factory", "rllib-ppo", "rllib-appo", "tianshou"),
    "solve-peers": ("sb3", "sbx", "sample-factory", "rllib-ppo", "tianshou"),
    "startup-peers": ("sample-factory", "rllib-ppo"),
    "slow-envs-peers": ("sb3-subproc", "sbx-subproc", "sample-factory", "rllib-ppo-async"),
    "sac-updates-peers": ("sb3", "sbx"),
    "sac-updates-pendulum-peers": ("sb3", "sbx", "tianshou"),
    "pendulum-solve-peers": ("sb3", "sbx", "tianshou"),
    "lunarlander-solve-peers": ("sb3", "sbx"),
    "halfcheetah-ppo-peers": ("sb3", "sb3-subproc", "sbx", "sbx-subproc", "sample-factory", "sample-factory-sync", "rllib-ppo"),
    "halfcheetah-200k-peers": ("sb3",),
    "pong-peers": ("sb3-subproc-2-threads", "sample-factory-sync"),
}
"""For each measurement the configurations that suit it best of each library (dummy or subprocess vector envs, …)."""

SEEDED = ("solve", "pendulum-solve", "lunarlander-solve", "async-lockstep")
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
    "startup": {"cap_s": 120.0},
    "halfcheetah-ppo": {"case": "halfcheetah-ppo"},
    "lunarlander-solve": {"case": "lunarlander", "until": "solved", "cap_s": 1500.0},
    "async-lockstep": {"case": "lockstep", "warm_s": 15.0, "window_s": 45.0, "steps": LOCKSTEP_STEPS, "cap_s": 300.0},
    "growth": {"warm_s": 12.0, "window_s": 16.0},
}
"""Measurement -> what is the same in the jobs of all contestants."""
PEER_OPTIONS: dict[str, dict[str, Any]] = {
    "sac-updates": {"learning_starts": 1_000},  # random steps say nothing of updates
    "halfcheetah-200k": {"total_steps": LONG_STEPS},
}
"""Measurement -> options of the peers' adapters."""


def _own_jobs(measurement: str, repeat: int) -> list[Job]:
    return [replace(job, seed=repeat, **SHAPES.get(measurement, {})) for job in own_jobs(measurement)]


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
        if kind == "startup":
            job = replace(job, until="first-step")
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
        if kind == "async-lockstep":
            jobs.append(calibration())
        elif kind in (*SEEDED, "startup"):  # ours is compared with a warm compilation cache: this run fills it
            filler = _own_jobs(kind, 0)[-1]
            jobs.append(replace(filler, seed=1000, until="window", warm_s=0.0, window_s=15.0, warm_up=True))
        for repeat in range(seeds if kind in SEEDED else repeats or ROUNDS.get(kind, 1)):
            for name in members:
                jobs += _peer_jobs(name, libraries, venvs, repeat) if name.endswith("-peers") else _own_jobs(name, repeat)
    return jobs
