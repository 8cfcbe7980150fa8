"""What travels between env managers, trainers and the controller. NumPy and plain values only: everything here pickles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

QUEUE_CAPACITY = 20
"""Items a trajectory queue holds at most; a full queue blocks the producer."""
ENDLESS = 2**62
"""Size of a round that never ends (agent steps)."""


@dataclass(frozen=True, slots=True)
class Header:
    """Travels beside the reference to a `TrajectoryBatch`, so that nobody opens the arrays to account for them.

    Attributes:
        behavior: name of the behavior.
        manager: env manager's name, e.g. ``"env-manager-0"``.
        incarnation: how often that manager was started before.
        sequence: 0, 1, 2, … per (manager, incarnation, behavior).
        rows: agent steps in the batch.
        agent_steps: rows shipped by this incarnation, this item included.
        env_steps: env steps taken by this incarnation so far.
        rounds_done: credit rounds that are complete with this item.
        oldest_version, newest_version: policy versions in the rows; -1 without rows.
        longest_episode: longest running episode (agent steps) when the item was shipped.
        busy_s: seconds this incarnation has spent collecting, waits for credit not counted.
    """

    behavior: str
    manager: str
    incarnation: int
    sequence: int
    rows: int
    agent_steps: int
    env_steps: int
    rounds_done: int
    oldest_version: int
    newest_version: int
    longest_episode: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class Credit:
    """Rounds that a manager may still collect: round ``first_round + i`` takes at least ``sizes[i]`` agent steps."""

    first_round: int
    sizes: tuple[int, ...]

    @property
    def end(self) -> int:
        """The first round that is not granted."""
        return self.first_round + len(self.sizes)

    def size(self, index: int) -> int:
        """Agent steps of round `index`."""
        return self.sizes[index - self.first_round]


@dataclass(frozen=True, slots=True)
class PolicyMessage:
    """The newest policy and the credit to collect with it.

    Attributes:
        serial: grows with every message (credit may change while the version stays).
        version: policy version.
        weights: tensor name -> array; in a mailbox on Ray, the reference to that dict.
        credit: manager name -> credit.
    """

    serial: int
    version: int
    weights: Any
    credit: dict[str, Credit]


@dataclass(frozen=True, slots=True)
class ManagerStatus:
    """What an env manager says of itself.

    Attributes:
        phase: what it is doing now, for people ("stepping", "waiting for policy version 3").
        stepping: how its envs step.
        produced: agent steps completed, by behavior (shipped or not).
        unshipped: of those, not shipped yet.
        env_steps: env steps.
        policy_version: newest version applied, by behavior.
    """

    manager: str
    phase: str
    stepping: str
    produced: dict[str, int]
    unshipped: dict[str, int]
    env_steps: int
    policy_version: dict[str, int]


@dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes that ended, in the order the trainer took them in, and its agent steps then."""

    behavior: str
    returns: np.ndarray
    lengths: np.ndarray
    step: int


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence for the user from a trainer."""

    behavior: str
    text: str
