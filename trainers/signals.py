"""Reward signals: rewards that are made of what was seen and done, beside the one that the environment pays.

A signal judges transitions and learns from them. The trainers ask for the rewards of the transitions of an update before it, so the
rewards of one update are all of one model, and let the signal learn from the same transitions after it. What is shared here: the
transitions as signals see them, and what a trainer asks of a signal.

Letters: ``N`` transitions, ``C``, ``B`` as in `trainers.graph`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from trainers.inputs import NetworkInputs
from trainers.trainer import TrainerState

EXTRINSIC = "extrinsic"
"""The signal that the environment pays; it has no model."""


@dataclass(frozen=True, slots=True)
class Transitions:
    """What signals judge and learn from.

    Attributes:
        now: inputs acted on, N rows, not normalised, images as they are stored.
        after: the same of what followed; at the end of an episode its true last observation.
        continuous: float32 ``[N, C]``, in policy space, clipped to [-1, 1].
        discrete: int32 ``[N, B]``.
        terminated: bool ``[N]``, the task ended with this transition.
    """

    now: NetworkInputs
    after: NetworkInputs
    continuous: np.ndarray
    discrete: np.ndarray
    terminated: np.ndarray

    def __len__(self) -> int:
        return len(self.now)

    def take(self, rows: np.ndarray | slice) -> Transitions:
        """Some of them."""
        return Transitions(self.now.take(rows), self.after.take(rows), self.continuous[rows], self.discrete[rows], self.terminated[rows])


class Signal(Protocol):
    """One reward signal of one behavior.

    Attributes:
        ends_matter: whether an episode's end ends its rewards too; if not, values bootstrap across it.
    """

    ends_matter: bool

    def observe(self, transitions: Transitions) -> None:
        """See transitions once, when they are new: for statistics that inputs are normalised with."""

    def rewards(self, transitions: Transitions) -> np.ndarray:
        """The reward of each transition as the models are now, before ``strength``: float32 ``[N]``, finite."""

    def learn(self, transitions: Transitions, epochs: int, rng: np.random.Generator) -> dict[str, float]:
        """Learn from transitions in minibatches, `epochs` times; statistics by tag.

        Raises:
            FloatingPointError: a loss or a weight would be NaN or infinite; the weights from before it are kept.
        """

    def state(self) -> TrainerState:
        """Exact state for a checkpoint; names begin with ``signals/{name}/``."""

    def load_state(self, state: TrainerState) -> None:
        """Go on from `state`, which may hold entries of others too."""

    def compile(self) -> None:
        """Get ready, leaving the state bit for bit as it is."""
