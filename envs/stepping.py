"""Which way of stepping suits an environment, found out by stepping a copy of it for a moment."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

try:
    from resource import RUSAGE_THREAD, getrusage
except ImportError:  # Windows; macOS has no RUSAGE_THREAD
    getrusage = None

from envs.agent_world import AgentWorld
from envs.base import EnvFault
from envs.copies import Workers
from envs.factories import EnvFactory
from envs.inline import InlineWorkers
from envs.processes import ProcessWorkers
from envs.seeding import env_seeds
from envs.single_env import Reset, SingleEnv
from envs.step_record import StepRecord
from envs.threads import ThreadWorkers

MEASURE_S = 0.3
"""Longest measurement; two steps are taken however long they last."""
MEASURE_STEPS = 200
WAITING_SHARE = 0.25
"""An environment waits when its thread is on the processor for less than this share of a step."""
WORTH_A_THREAD_S = 0.5e-3
"""Handing a step to a thread and back costs about a tenth of this."""
WORTH_A_PROCESS_S = 1e-3
"""Processor time of a step above which pickling and two pipe messages (about 0.1 ms) pay off."""


@dataclass(frozen=True)
class StepCost:
    """What one step costs.

    Attributes:
        wall_s, cpu_s: median seconds by the clock, and on the processor.
        waits: the thread gave the processor up by itself in most steps, so that a short `cpu_s` is not because others took it away;
            True where the system does not tell.
    """

    wall_s: float
    cpu_s: float
    waits: bool = True

    def best_stepping(self) -> str:
        """``"threads"`` for what waits, ``"processes"`` for slow Python, ``"inline"`` for the rest."""
        if self.waits and self.wall_s >= WORTH_A_THREAD_S and self.cpu_s < WAITING_SHARE * self.wall_s:
            return "threads"
        return "processes" if self.cpu_s >= WORTH_A_PROCESS_S else "inline"


def measure(copy: SingleEnv | AgentWorld, seed: np.random.SeedSequence) -> StepCost:
    """Step `copy` with random actions for at most `MEASURE_S` seconds; it has to be thrown away afterwards.

    A failure ends the measurement early: the copies that are used will report theirs with its place.
    """
    walls, cpus, waits = [0.0], [0.0], [0]
    outcome = copy.run(Reset(env_seeds(seed, 0, 0)))
    deadline = time.perf_counter() + MEASURE_S
    while not isinstance(outcome, EnvFault) and len(walls) <= MEASURE_STEPS and (len(walls) < 3 or time.perf_counter() < deadline):
        action = copy.random_command(outcome) if isinstance(copy, AgentWorld) else copy.env.action_space.sample()
        wall, cpu, given_up = time.perf_counter(), time.thread_time(), _times_given_up()
        outcome = copy.run(action)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.thread_time() - cpu)
        waits.append(_times_given_up() - given_up)
    # The first step may compile, load or cache something; the median leaves it out, and resets too.
    return StepCost(statistics.median(walls), statistics.median(cpus), getrusage is None or statistics.median(waits) > 0)


def _times_given_up() -> int:
    """How often this thread has given the processor up by itself, to sleep or to wait."""
    return 0 if getrusage is None else getrusage(RUSAGE_THREAD).ru_nvcsw


def make_workers(
    factory: EnvFactory, num_envs: int, stepping: str, first_env_index: int, record_path: Path | None = None,
) -> Workers:
    """`num_envs` copies of the environment, stepped ``"inline"``, in ``"threads"`` or in ``"processes"``.

    Args:
        record_path: where a `StepRecord` is kept, but for processes.
    """
    if stepping == "processes":
        return ProcessWorkers(factory, num_envs, first_env_index)
    record = None if record_path is None else StepRecord(record_path, num_envs)
    return (ThreadWorkers if stepping == "threads" else InlineWorkers)(factory, num_envs, first_env_index, record)
