"""Which runs the tasks need, in which order."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

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
}
"""Task -> the measurements it is computed from. Tasks share runs."""

PEER_CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    "throughput-peers": ("sb3", "sbx", "sample-factory", "rllib-ppo", "rllib-appo"),
    "solve-peers": ("sb3", "sbx", "sample-factory", "rllib-ppo"),
    "slow-envs-peers": ("sb3-subproc", "sbx-subproc", "sample-factory", "rllib-ppo-async"),
}
"""For each measurement the configurations that suit it best of each library (dummy or subprocess vector envs, …)."""


def ours(config: str, env: str, *settings: str) -> tuple[str, ...]:
    """The product's own command line on `config`, its env replaced by the metered one."""
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), str(ROOT / "yaml" / config)]
    command += ["--results-dir", "{dir}/results", "--run-id", "bench", "--seed", "{seed}"]
    for setting in (f"env=metered:{env}", *settings):
        command += ["--set", setting]
    return tuple(command)


def _own_jobs(measurement: str, repeat: int) -> list[Job]:
    throughput = "benchmarks/cartpole-throughput.yaml"
    slow = {"case": "slow-envs", "warm_s": 10.0, "window_s": 30.0}
    train = {"seed": repeat, "grace_s": 20.0}
    alone = {"warm_s": 5.0, "window_s": 20.0, "seed": repeat}
    return {
        "throughput": [Job("throughput", "raytrain", ours(throughput, "make_vec_env"), **train)],
        "throughput-python": [
            Job("throughput-python", "raytrain-python", ours(throughput, "make_env", "env_settings.stepping=inline"), **train)
        ],
        # Without its own stop: the harness says when it is solved, from the same episodes as for the peers.
        "solve": [
            Job("solve", "raytrain", ours("ppo/CartPole.yaml", "make_vec_env", "stop.reward=null"), until="solved", **train)
        ],
        "startup": [
            Job("startup", "ray.init", adapter("ray_init"), until="exit", seed=repeat),
            Job("startup", "raytrain", ours(throughput, "make_vec_env"), until="first-step", **train),
        ],
        "slow-envs": [
            Job("slow-envs", "random-actions", adapter("random_actions"), seed=repeat, **slow),
            Job("slow-envs", "raytrain", ours("benchmarks/slow-envs.yaml", "make_env"), **slow, **train),
        ],
        "alone": [
            Job("alone", "rollouts-alone", adapter("rollouts_alone"), **alone),
            Job("alone", "updates-alone", adapter("updates_alone"), counts="row", **alone),
        ],
    }[measurement]


def _peer_jobs(measurement: str, libraries: Iterable[str], venvs: Path, repeat: int) -> list[Job]:
    jobs = []
    for name in PEER_CONFIGURATIONS[measurement]:
        peer = PEERS[name]
        if peer.library not in libraries:
            continue
        kind = measurement.removesuffix("-peers")
        job = Job(kind, name, adapter(peer.adapter, interpreter(venvs, peer.venv)), options=peer.options, seed=repeat)
        if kind == "solve":
            job = replace(job, until="solved")
        elif kind == "slow-envs":
            job = replace(job, case="slow-envs", warm_s=10.0, window_s=30.0)
        jobs.append(job)
    return jobs


def plan(tasks: Iterable[str], libraries: Iterable[str], venvs: Path, seeds: int, repeats: int | None) -> list[Job]:
    """Every run of `tasks`, one round after another; within a round each contestant runs once.

    Args:
        tasks: keys of `NEEDS`.
        libraries: peers to run beside ours.
        venvs: folder of the peers' virtual envs.
        seeds: rounds of ``solve``.
        repeats: rounds of the other measurements; None is 3 for ``startup`` and 1 for the rest.
    """
    libraries = tuple(libraries)
    wanted = dict.fromkeys(need for task in tasks for need in NEEDS[task])  # a set that keeps the order
    kinds = dict.fromkeys(name.removesuffix("-peers").removesuffix("-python") for name in wanted)
    jobs = []
    for kind in kinds:
        members = [name for name in wanted if name.removesuffix("-peers").removesuffix("-python") == kind]
        if kind in ("solve", "startup"):  # ours is compared with a warm compilation cache: this run fills it
            filler = _own_jobs(kind, 0)[-1]
            jobs.append(replace(filler, seed=1000, until="window", warm_s=0.0, window_s=15.0, warm_up=True))
        for repeat in range(seeds if kind == "solve" else repeats or (3 if kind == "startup" else 1)):
            for name in members:
                jobs += _peer_jobs(name, libraries, venvs, repeat) if name.endswith("-peers") else _own_jobs(name, repeat)
    return jobs
