"""What travels between env managers, trainers and the controller. NumPy and plain values only: everything here pickles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envs.randomization import Samplers
from raytrain.snapshot import BehaviorSnapshot

QUEUE_CAPACITY = 20
"""Items a trajectory queue holds at most; a full queue blocks the producer."""
ENDLESS = 2**62
"""Size of a round that never ends (agent steps)."""


@dataclass(frozen=True, slots=True)
class Game:
    """How an episode of a world with teams ended, for the team that learnt in it.

    Attributes:
        team: which learnt.
        score: 1 won, 0.5 drawn, 0 lost.
        opponents: (behavior, team, number of the snapshot that acted) of each behavior on each other team.
    """

    team: int
    score: float
    opponents: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Orders:
    """What worlds are to play, each from its next episode on.

    Attributes:
        number: grows with every change.
        parameters: of the environment: name -> how it is drawn.
        lesson: tag of the episodes that begin with these parameters (`envs.curriculum.Curricula.changes`).
        is_last: no lesson comes after these.
        resets: a manager that has begun anew everywhere less often than this does so at once.
        team: which learns; None without self-play.
        opponents: behavior -> team -> number of the snapshot that acts for the behavior's agents of that team, where it does not learn.
    """

    number: int = 0
    parameters: Samplers = field(default_factory=dict)
    lesson: int = 0
    is_last: bool = True
    resets: int = 0
    team: int | None = None
    opponents: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def snapshots_of(self, behavior: str) -> set[int]:
        """Numbers of a behavior's snapshots that act for it somewhere."""
        return set(self.opponents[behavior].values())


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
        games: that ended since the manager's last item.
        opponent_steps: steps of agents that did not learn since then, by behavior.
        epoch: how often the behavior's trainer had been started before, as far as the manager knew when it collected these rows.
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
    games: tuple[Game, ...] = ()
    opponent_steps: Mapping[str, int] = field(default_factory=dict)
    epoch: int = 0


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
        orders: what worlds are to play; None where nothing ever changes.
        snapshots: number -> weights of each snapshot of the behavior that the orders name; on Ray, the reference to them.
        epoch: how often the trainer was started before. What is collected for an earlier one must not be mixed with what is for this one.
        is_saved: a checkpoint is made with it, to which belongs where the env managers stand now.
    """

    serial: int
    version: int
    weights: Any
    credit: dict[str, Credit]
    orders: Orders | None = None
    snapshots: Mapping[int, Any] = field(default_factory=dict)
    epoch: int = 0
    is_saved: bool = False


@dataclass(frozen=True, slots=True)
class ManagerStatus:
    """What an env manager says of itself.

    Attributes:
        phase: what it is doing now, for people ("stepping", "waiting for policy version 3").
        stepping: how its envs step.
        produced: agent steps completed, by behavior (shipped or not).
        unshipped: of those, not shipped yet.
        abandoned: of those, given up when every environment began anew or one of them died.
        died: of these, since one died.
        env_steps: env steps.
        policy_version: newest version applied, by behavior.
        incarnation: how often it was started before.
        idle_s: seconds since its loop last made a turn.
        envs: position of the seed streams, as `envs.base.BatchedEnv.state`.
    """

    manager: str
    phase: str
    stepping: str
    produced: dict[str, int]
    unshipped: dict[str, int]
    env_steps: int
    policy_version: dict[str, int]
    abandoned: dict[str, int] = field(default_factory=dict)
    incarnation: int = 0
    died: dict[str, int] = field(default_factory=dict)
    idle_s: float = 0.0
    envs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes that ended, in the order the trainer took them in, and its agent steps then.

    Attributes:
        in_last_lesson: bool ``[E]``, begun when no curriculum had a lesson left; None where all are.
    """

    behavior: str
    returns: np.ndarray
    lengths: np.ndarray
    step: int
    in_last_lesson: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence for the user from a trainer or an env manager.

    Attributes:
        behavior: of the trainer, or the env manager's name.
        is_restart: an environment was started anew.
    """

    behavior: str
    text: str
    is_restart: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointDue:
    """The exact state of a trainer when it crossed a multiple of ``checkpoint_interval``, or was asked to save.

    Attributes:
        behavior: its name.
        label: the multiple, or the agent steps when asked.
        env_steps: of the run so far, as far as the trainer knows.
        ledger: `Ledger.state` at this moment, for a trainer that goes on from here in the same run.
        loop: JSON-able, `TrainerLoop.state`.
        rounds: env manager -> number of its rounds that have been taken in; in lock-step only.
    """

    behavior: str
    snapshot: BehaviorSnapshot
    label: int
    env_steps: int = 0
    ledger: dict[str, Any] = field(default_factory=dict)
    loop: dict[str, Any] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainerStatus:
    """What a trainer says of itself.

    Attributes:
        phase: what it is doing now, for people.
        finished: ``max_steps`` are reached.
        agent_steps, updates, policy_updates, version: counters.
        queued: items that wait.
        ledger: `Ledger.report`.
        rating: under self-play, mean over the behavior's teams.
        epoch: how often it was started before.
        rolled_back: agent steps that were consumed after the checkpoints from which it was started again. Together with `agent_steps`
            they never fall.
    """

    behavior: str
    phase: str
    finished: bool
    agent_steps: int
    env_steps: int
    updates: int
    policy_updates: int
    version: int
    rows_held: int
    queued: int
    ledger: dict[str, int] = field(default_factory=dict)
    rating: float | None = None
    epoch: int = 0
    rolled_back: int = 0
