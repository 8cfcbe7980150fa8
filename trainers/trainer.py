"""What the system asks of an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from trainers.trajectory import TrajectoryBatch

Weights = dict[str, np.ndarray]
"""Tensor name -> array. Immutable once published."""


@dataclass(frozen=True)
class TrainerState:
    """Everything a trainer needs to go on exactly where it was.

    Attributes:
        tensors: weights, optimizer slots, statistics; stored as safetensors.
        scalars: counters and random-number state; JSON-able.
    """

    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)

    def joined(self, *parts: TrainerState) -> TrainerState:
        """This state and those of `parts` in one; their names differ."""
        states = (self, *parts)
        return TrainerState({k: v for s in states for k, v in s.tensors.items()}, {k: v for s in states for k, v in s.scalars.items()})

    def expect(self, scalar: str, part: object | None, key: str) -> None:
        """Refuse a state that lacks what a part of a trainer, if there is one, goes on from.

        Raises:
            ValueError: names the setting `key` that the state was saved without.
        """
        if part is not None and scalar not in self.scalars:
            raise ValueError(f"Expected a state saved with {key}: true, received one without. Set {key}: false, or begin a new run.")


class Trainer(Protocol):
    """One algorithm for one behavior. Single-threaded: only the trainer loop calls it.

    Attributes:
        agent_steps: rows taken in by `process` so far.
        updates: optimizer steps so far.
        policy_updates: learning calls so far.
        notices: what the user should read, oldest first; whoever reads them empties the list.
    """

    notices: list[str]
    agent_steps: int
    updates: int
    policy_updates: int

    def process(self, batch: TrajectoryBatch, manager: str = "") -> dict[str, float]:
        """Take trajectories in; `manager` names who collected them (agent and episode ids are unique within it). Returns statistics by tag."""

    def is_ready(self) -> bool:
        """Whether `update` has enough rows to learn from."""

    @property
    def rows_held(self) -> int:
        """Rows taken in that an update is owed for."""

    @property
    def rows_wanted(self) -> int:
        """Rows that must still come before off-policy learning can begin; 0 once it can, and on-policy."""

    def update(self, between_chunks: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Learn from every row held (on-policy) or make some of the updates owed. `between_chunks` is called about every second.

        Returns statistics by tag.
        """

    def compile(self) -> None:
        """Get ready to learn (compile), leaving the state bit for bit as it is."""

    def published(self, version: int) -> None:
        """What `policy_weights` gives from now on goes out as `version`; rows acted with it will come."""

    def policy_weights(self) -> Weights:
        """What a policy needs to act: network weights and normaliser, fresh arrays that nobody changes later."""

    def state(self) -> TrainerState:
        """Exact state, between two updates (rows that an on-policy update waits for are not part of it)."""

    def load_state(self, state: TrainerState) -> None:
        """Continue from `state`; settings stay those given to the constructor."""

    def load_weights(self, state: TrainerState) -> None:
        """Begin with the networks (and normaliser) of `state`; counters, optimizer and random numbers stay new."""
