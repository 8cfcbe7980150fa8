"""What is measured between two summaries, reduced to one number per tag.

Tags are ML-Agents' (``category/name``); ``docs/metrics.md`` lists them all with unit and meaning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Reduction = Literal["mean", "latest", "max"]

CUMULATIVE_REWARD = "Environment/Cumulative Reward"
GROUP_REWARD = "Environment/Group Cumulative Reward"
EPISODE_LENGTH = "Environment/Episode Length"
STEPS_PER_SECOND = "System/Steps per Second"
UPDATES_PER_SECOND = "System/Updates per Second"
QUEUE_FILL = "System/Queue Fill"
POLICY_LAG_MEAN = "Policy/Policy Lag Mean"
POLICY_LAG_MAX = "Policy/Policy Lag Max"
EVALUATION_RETURN = "Evaluation/Return Mean"
EVALUATION_STD = "Evaluation/Return Std"
EVALUATION_LENGTH = "Evaluation/Episode Length"
PRODUCED = "System/Agent Steps Produced"
RESTARTS = "System/Restarts"
PRETRAINING_LOSS = "Losses/Pretraining Loss"
VALIDATION_LOSS = "Losses/Validation Loss"
VALIDATION_ACCURACY = "Policy/Validation Accuracy"

ELO = "Self-play/ELO"
LEARNING_TEAM = "Self-play/Learning Team"
OPPONENT_STEPS = "Self-play/Opponent Steps"
SCORE = "Self-play/Score"
LESSON = "Environment/Lesson Number/<parameter>"
LESSON_CHECKS = tuple(f"Curriculum/<parameter>/{what}" for what in ("Measure", "Smoothed", "Threshold", "Episodes", "Min Episodes"))

REDUCTIONS: dict[str, Reduction] = {
    VALIDATION_LOSS: "latest",
    VALIDATION_ACCURACY: "latest",
    "Policy/Learning Rate": "latest",
    "Policy/Epsilon": "latest",
    "Policy/Beta": "latest",
    "Policy/Steps Per Update": "latest",
    "Policy/Replay Rows": "latest",
    "Policy/Continuous Entropy Coeff": "latest",
    "Policy/Discrete Entropy Coeff": "latest",
    POLICY_LAG_MAX: "max",
    STEPS_PER_SECOND: "latest",
    UPDATES_PER_SECOND: "latest",
    ELO: "latest",
    LEARNING_TEAM: "latest",
    OPPONENT_STEPS: "latest",
    **dict.fromkeys([LESSON, *LESSON_CHECKS], "latest"),
    "System/Env Steps": "latest",
    "System/Updates": "latest",
    "System/Policy Updates": "latest",
    PRODUCED: "latest",
    RESTARTS: "latest",
    "System/Agent Steps Consumed": "latest",
    "System/Agent Steps Dropped": "latest",
}
"""How the values of a tag between two summaries become one; a tag that is not named here is averaged."""


def tag_of(tag: str, parameter: str) -> str:
    """The tag of one parameter of the environment."""
    return tag.replace("<parameter>", parameter)


@dataclass(frozen=True)
class Summary:
    """One behavior between two summaries: what the console, TensorBoard and the CSV file show. Picklable.

    Attributes:
        behavior: name of the behavior.
        step: agent steps of the behavior: the multiple of ``summary_freq`` that was crossed. The x-axis of every tag.
        values: tag -> finite number; a tag without data is absent.
        episodes: episodes that ended since the summary before.
        longest_episode: length of the longest episode still running (agent steps), 0 when unknown.
        elapsed_s: seconds of training so far, as the caller counts them.
        reward_std: population standard deviation of the returns of those episodes; None without an episode.
    """

    behavior: str
    step: int
    values: dict[str, float]
    episodes: int
    longest_episode: int
    elapsed_s: float
    reward_std: float | None = None


class StatsBuffer:
    """Collects values of one behavior until the next summary. For one thread: the trainer loop's."""

    def __init__(self) -> None:
        self._reductions: dict[str, Reduction] = {}
        self._totals: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._returns: list[np.ndarray] = []

    def add(self, tag: str, value: float, weight: float = 1.0) -> None:
        """Average `value` with the others of this tag, by `weight` (for example the rows it stands for, > 0).

        Raises:
            ValueError: `value` is not finite, or the tag was reduced differently before.
        """
        if not weight > 0:
            raise ValueError(f"Expected a weight above 0 for {tag!r}, got {weight}. Leave the value out instead.")
        value = self._accept(tag, value, "mean")
        self._totals[tag] = self._totals.get(tag, 0.0) + value * weight
        self._weights[tag] = self._weights.get(tag, 0.0) + weight

    def put(self, tag: str, value: float) -> None:
        """Keep only the most recent value of this tag. Raises as `add` does."""
        self._totals[tag] = self._accept(tag, value, "latest")

    def add_max(self, tag: str, value: float) -> None:
        """Keep the largest value of this tag since the last summary. Raises as `add` does."""
        value = self._accept(tag, value, "max")
        self._totals[tag] = max(value, self._totals.get(tag, value))

    def add_all(self, values: Mapping[str, float]) -> None:
        """Take each value in as `REDUCTIONS` says for its tag, otherwise averaged. Raises as `add` does."""
        take_in = {"mean": self.add, "latest": self.put, "max": self.add_max}
        for tag, value in values.items():
            take_in[REDUCTIONS.get(tag, "mean")](tag, value)

    def add_episodes(
        self, returns: Sequence[float] | np.ndarray, lengths: Sequence[int] | np.ndarray,
        signals: Mapping[str, Sequence[float] | np.ndarray] | None = None,
    ) -> None:
        """Finished episodes, each with the same weight.

        Args:
            returns: float ``[E]``, undiscounted sum of environment rewards.
            lengths: int ``[E]``, agent steps of each episode: its number of actions.
            signals: tag -> float ``[E]``, episode sums per reward signal (``"Policy/Extrinsic Reward"``), strength included.

        Raises:
            ValueError: arrays of different lengths, or a value that is not finite.
        """
        columns = {CUMULATIVE_REWARD: returns, EPISODE_LENGTH: lengths, **(signals or {})}
        arrays = {tag: np.asarray(column, np.float64) for tag, column in columns.items()}
        episodes = len(arrays[CUMULATIVE_REWARD])
        for tag, array in arrays.items():
            if array.shape != (episodes,):
                raise ValueError(f"Expected {episodes} values for {tag!r}, one per return, got an array of shape {array.shape}.")
        if episodes == 0:
            return
        for tag, array in arrays.items():
            self.add(tag, float(array.mean()), weight=episodes)
        self._returns.append(arrays[CUMULATIVE_REWARD])

    def summarize(self, behavior: str, step: int, longest_episode: int, elapsed_s: float) -> Summary:
        """Everything since the last call as one `Summary` (arguments: its attributes); the buffer is empty afterwards."""
        values = {tag: total / self._weights.get(tag, 1.0) for tag, total in self._totals.items()}
        returns = np.concatenate(self._returns) if self._returns else np.empty(0)
        summary = Summary(
            behavior=behavior, step=int(step), values=values, episodes=len(returns), longest_episode=int(longest_episode),
            elapsed_s=float(elapsed_s), reward_std=float(returns.std()) if len(returns) else None,
        )
        for store in (self._reductions, self._totals, self._weights, self._returns):
            store.clear()
        return summary

    def state(self) -> dict[str, Any]:
        """JSON-able: what was added since the last summary."""
        return {"reductions": dict(self._reductions), "totals": dict(self._totals), "weights": dict(self._weights),
                "returns": [returns.tolist() for returns in self._returns]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self._reductions, self._totals, self._weights = (dict(state[name]) for name in ("reductions", "totals", "weights"))
        self._returns = [np.array(returns, np.float64) for returns in state["returns"]]

    def _accept(self, tag: str, value: float, reduction: Reduction) -> float:
        value = float(value)
        if not math.isfinite(value):
            raise ValueError(
                f"Expected a finite number for {tag!r}, got {value}. Nothing that is not a number is logged: "
                "leave a tag without data out, and look for a diverged loss or a non-finite reward otherwise."
            )
        if self._reductions.setdefault(tag, reduction) != reduction:
            raise ValueError(f"Expected one reduction per tag; {tag!r} was {self._reductions[tag]!r} and is now {reduction!r}.")
        return value
