"""Hyperparameters that move with the agent steps of a behavior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from trainers.settings import PPOHyperparameters, SACHyperparameters
from trainers.settings import Schedule as ScheduleKind

LEARNING_RATE_FLOOR = 1e-10
EPSILON_FLOOR = 0.1
BETA_FLOOR = 1e-5


@dataclass(frozen=True)
class Schedule:
    """v(t) = floor + (v_0 − floor)·(1 − min(t/T, 1)), or v_0 throughout.

    A function of the agent steps alone, so a resumed run continues on the same line. A floor above v_0 has no effect: a value
    never rises.

    Attributes:
        kind: ``"linear"`` or ``"constant"``.
        initial: v_0.
        floor: value from t = T on.
        steps: T (agent steps).
    """

    kind: ScheduleKind
    initial: float
    floor: float
    steps: int

    def value(self, agent_steps: int) -> float:
        """v(t) at t = `agent_steps`, a Python int of any size."""
        if self.kind == "constant":
            return self.initial
        floor = min(self.floor, self.initial)
        return floor + (self.initial - floor) * (1.0 - min(agent_steps / self.steps, 1.0))


class PPOSchedules(NamedTuple):
    """The three hyperparameters of PPO that move."""

    learning_rate: Schedule
    epsilon: Schedule
    beta: Schedule


def ppo_schedules(hyperparameters: PPOHyperparameters, max_steps: int) -> PPOSchedules:
    """Schedules over ``schedule_steps``, else `max_steps`; epsilon and beta are of the learning rate's kind unless told."""
    h = hyperparameters
    steps = h.schedule_steps or max_steps
    return PPOSchedules(
        learning_rate=Schedule(h.learning_rate_schedule, h.learning_rate, LEARNING_RATE_FLOOR, steps),
        epsilon=Schedule(h.epsilon_schedule or h.learning_rate_schedule, h.epsilon, EPSILON_FLOOR, steps),
        beta=Schedule(h.beta_schedule or h.learning_rate_schedule, h.beta, BETA_FLOOR, steps),
    )


def sac_schedules(hyperparameters: SACHyperparameters, max_steps: int) -> Schedule:
    """Schedule of the learning rate, the one hyperparameter of SAC that moves, over ``schedule_steps``, else `max_steps`."""
    h = hyperparameters
    return Schedule(h.learning_rate_schedule, h.learning_rate, LEARNING_RATE_FLOOR, h.schedule_steps or max_steps)
