"""Self-play: ratings after games (Elo), and the pool of frozen policies that opponents are drawn from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from trainers.trainer import TrainerState, Weights

INITIAL = 0
"""Number of the snapshot that is there before anything is learnt."""


def expected_score(rating: float, opponent: float) -> float:
    """Share of the points that a player of `rating` is expected to win of one of rating `opponent` (Elo 1978).

    Equals 10^(R/400) / (10^(R/400) + 10^(R'/400)), in the form that does not overflow.
    """
    return 1.0 / (1.0 + 10.0 ** ((opponent - rating) / 400.0))


def rating_change(rating: float, opponent: float, score: float, k: float) -> float:
    """What a game adds to the rating of a player and takes from that of the opponent: K·(S − E).

    Args:
        score: 1 for a win, 0.5 for a draw, 0 for a loss.
        k: K, the most that one game changes.
    """
    return k * (score - expected_score(rating, opponent))


@dataclass(frozen=True)
class FrozenPolicy:
    """A frozen policy: what acting needs, and the agent steps it was made after."""

    weights: Weights
    agent_steps: int


class SnapshotPool:
    """Frozen policies of one behavior: the newest `window` ones, and those that are played now.

    Numbers count up from `INITIAL`. A policy that was frozen as it was at the moment of a draw has a negative number, which the
    one who draws chooses; it belongs to no window.
    """

    def __init__(self, window: int, first: Weights) -> None:
        self._window = window
        self._next = INITIAL
        self._all: dict[int, FrozenPolicy] = {}
        self._ids: list[int] = []
        self.last_agent_steps = 0
        """Of the newest snapshot."""
        self.add(first, 0)

    @property
    def ids(self) -> tuple[int, ...]:
        """Numbers that opponents are drawn from, oldest first."""
        return tuple(self._ids)

    def add(self, weights: Weights, agent_steps: int) -> int:
        """Freeze a policy; its number. The oldest one leaves the window when that is full."""
        number = self._next
        self._next += 1
        self._all[number] = FrozenPolicy(weights, agent_steps)
        self._ids = [*self._ids, number][-self._window :]
        self.last_agent_steps = agent_steps
        return number

    def keep(self, played: Collection[int], now: FrozenPolicy) -> bool:
        """Forget what is neither in the window nor in `played`; freeze `now` for each negative number that is not there yet.

        Returns:
            Whether one was frozen.
        """
        new = [number for number in played if number < 0 and number not in self._all]
        self._all = {number: s for number, s in self._all.items() if number in self._ids or number in played} | dict.fromkeys(new, now)
        return bool(new)

    def weights(self, number: int) -> Weights:
        """Of a snapshot in the window, or of one that is played."""
        return self._all[number].weights

    def state(self) -> TrainerState:
        """All of it; tensors are named ``number/tensor``."""
        tensors = {f"{number}/{name}": tensor for number, one in self._all.items() for name, tensor in one.weights.items()}
        steps = {str(number): one.agent_steps for number, one in self._all.items()}
        return TrainerState(
            tensors, {"next": self._next, "ids": list(self._ids), "last_agent_steps": self.last_agent_steps, "agent_steps": steps})

    def load_state(self, state: TrainerState) -> None:
        """Continue from `state`; with a smaller window than then, the newest are kept."""
        self._all = snapshots_in(state)
        self._ids = list(state.scalars["ids"])[-self._window :]
        self._next, self.last_agent_steps = state.scalars["next"], state.scalars["last_agent_steps"]


def snapshots_in(state: TrainerState) -> dict[int, FrozenPolicy]:
    """Number -> snapshot, of what `SnapshotPool.state` gave, oldest first."""
    weights: dict[int, Weights] = {}
    for name, tensor in state.tensors.items():
        number, _, tensor_name = name.partition("/")
        weights.setdefault(int(number), {})[tensor_name] = tensor
    steps = state.scalars["agent_steps"]
    return {number: FrozenPolicy(weights[number], steps[str(number)]) for number in sorted(weights)}
