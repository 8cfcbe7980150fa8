"""When a run ends before ``max_steps``: the conditions of the ``stop:`` section."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from raytrain.stats import CUMULATIVE_REWARD, Summary

GOAL_REACHED = "reached stop.reward"
"""In the reason of a run that ended so: its mean return is that of the moment, while its last checkpoint has seen some more episodes."""


class StopRules(Protocol):
    """The ``stop:`` section. A condition that is None never ends the run.

    Attributes:
        reward: mean return of the last `episodes` episodes that is enough.
        episodes: how many episodes that mean is taken over.
        plateau_summaries: summaries in a row without a rise of the mean return that end the run.
        plateau_delta: how much the mean return has to rise above the best so far to count as a rise.
        wall_time_s: seconds.
    """

    reward: float | None
    episodes: int
    plateau_summaries: int | None
    plateau_delta: float
    wall_time_s: float | None


class StopConditions:
    """Watches one behavior. The first condition that is met stays the reason."""

    def __init__(self, settings: StopRules) -> None:
        self._settings = settings
        self._returns: deque[float] = deque(maxlen=settings.episodes)
        self._best: float | None = None
        self._best_step = 0
        self._flat_summaries = 0
        self._reason: str | None = None
        self._in_last_lesson = True

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last `episodes` episodes; None before that many have finished."""
        return float(np.mean(self._returns)) if len(self._returns) == self._settings.episodes else None

    def episodes(self, returns: np.ndarray, in_last_lesson: bool = True) -> None:
        """Take in the returns of finished episodes (float ``[E]``) in the order in which they were consumed.

        Every episode is judged, so the outcome does not depend on how many arrive at once. Those after the one that ended the run
        are left out: its mean return is the one that reached the goal.

        Args:
            in_last_lesson: no curriculum has a lesson left. Before, an easy lesson would end the run, so nothing is judged; and
                what was returned then does not count in the last one.
        """
        if self._reason:
            return
        if not in_last_lesson:
            self._in_last_lesson = False
            self._returns.extend(returns.tolist())
            return
        if not self._in_last_lesson:
            self._in_last_lesson = True
            self._returns.clear()
        window, goal = self._settings.episodes, self._settings.reward
        before = np.array(self._returns, np.float64)[max(0, len(self._returns) + 1 - window) :]
        history = np.concatenate([before, returns])
        if goal is not None and len(history) >= window:
            means = np.lib.stride_tricks.sliding_window_view(history, window).mean(axis=1)
            reached = np.flatnonzero(means >= goal)
            if len(reached):
                history = history[: int(reached[0]) + window]
                self._reason = self._goal_reached(float(means[reached[0]]))
        self._returns.extend(history[len(before) :].tolist())

    def _goal_reached(self, mean: float) -> str:
        return f"mean return {mean:,.4g} of the last {self._settings.episodes} episodes {GOAL_REACHED}={self._settings.reward:g}"

    def summary(self, summary: Summary) -> None:
        """Judge the mean return of a summary against the best one before. A summary without an episode counts neither way."""
        patience, delta = self._settings.plateau_summaries, self._settings.plateau_delta
        mean = summary.values.get(CUMULATIVE_REWARD)
        if patience is None or mean is None or not self._in_last_lesson:
            return
        if self._best is None or mean > self._best + delta:
            self._best, self._best_step, self._flat_summaries = mean, summary.step, 0
            return
        self._flat_summaries += 1
        if self._flat_summaries >= patience and not self._reason:
            self._reason = (
                f"mean return has not risen by more than stop.plateau_delta={delta:g} above {self._best:,.1f} (step {self._best_step:,}) "
                f"in {self._flat_summaries} summaries (stop.plateau_summaries={patience})"
            )

    def reason(self, elapsed_s: float) -> str | None:
        """Why the run should end now, as a sentence without a full stop; None to go on.

        Args:
            elapsed_s: seconds that count towards ``stop.wall_time_s``.
        """
        limit = self._settings.wall_time_s
        if self._reason is None and limit is not None and elapsed_s >= limit:
            self._reason = f"{elapsed_s:,.0f} s of training reached stop.wall_time_s={limit:g}"
        return self._reason

    def state(self) -> dict[str, Any]:
        """JSON-able: the last returns and the plateau, for the checkpoint. A reason is not part of it: a resumed run is judged anew, by them and its own settings."""
        return {"returns": list(self._returns), "best": self._best, "best_step": self._best_step, "flat_summaries": self._flat_summaries,
                "in_last_lesson": self._in_last_lesson}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave. With a smaller ``stop.episodes`` than then, the newest returns are kept."""
        self._returns = deque(state["returns"], maxlen=self._settings.episodes)
        self._best, self._best_step, self._flat_summaries = state["best"], state["best_step"], state["flat_summaries"]
        self._in_last_lesson = state.get("in_last_lesson", True)
        goal, mean = self._settings.reward, self.mean_return
        if self._in_last_lesson and goal is not None and mean is not None and mean >= goal:
            self._reason = self._goal_reached(mean)


class RunStop:
    """The stop conditions of a whole run: each behavior has its own, and the run ends once all of them say so.

    Args:
        behaviors: their names.
    """

    def __init__(self, settings: StopRules, behaviors: Iterable[str]) -> None:
        self._settings = settings
        self._conditions = {behavior: StopConditions(settings) for behavior in behaviors}

    def mean_return(self, behavior: str) -> float | None:
        """As `StopConditions.mean_return`."""
        return self._conditions[behavior].mean_return

    def episodes(self, behavior: str, returns: np.ndarray, in_last_lesson: bool = True) -> None:
        """As `StopConditions.episodes`."""
        self._conditions[behavior].episodes(returns, in_last_lesson)

    def summary(self, summary: Summary) -> None:
        """As `StopConditions.summary`."""
        self._conditions[summary.behavior].summary(summary)

    def reason(self, elapsed_s: float) -> str | None:
        """Why the run should end now; None to go on."""
        reasons = {behavior: condition.reason(elapsed_s) for behavior, condition in self._conditions.items()}
        if not all(reasons.values()):
            return None
        different = dict.fromkeys(reasons.values())
        return next(iter(different)) if len(different) == 1 else "; ".join(f"{behavior}: {reason}" for behavior, reason in reasons.items())

    def state(self) -> dict[str, Any]:
        """JSON-able, by behavior."""
        return {behavior: condition.state() for behavior, condition in self._conditions.items()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave; behaviors that are not in it begin anew."""
        for behavior, condition in self._conditions.items():
            if behavior in state:
                condition.load_state(state[behavior])

    def go_back(self, state: dict[str, dict[str, Any] | None]) -> None:
        """These behaviors continue from what `state` gave at a checkpoint; None: from the beginning."""
        for behavior, one in state.items():
            self._conditions[behavior] = StopConditions(self._settings)
            if one is not None:
                self._conditions[behavior].load_state(one)
