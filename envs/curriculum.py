"""When a curriculum goes on to its next lesson: a state machine without a clock, checked once for each finished episode."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envs.randomization import Sampler, Samplers

MEASURES = ("reward", "progress", "elo")
SMOOTHING = 0.75
"""Weight of the newest measured value; the smoothed one begins at 0 with each lesson."""


@dataclass(frozen=True)
class Criteria:
    """When a lesson is over.

    Attributes:
        behavior: whose episodes count.
        measure: ``"reward"``: mean return of the last `min_lesson_length` episodes of the lesson; ``"progress"``: agent steps /
            ``max_steps``; ``"elo"``: the rating in self-play.
        threshold: the lesson is over when the measure is above it.
        min_lesson_length: episodes, begun in this lesson, that have to be finished first.
        signal_smoothing: compare a smoothed return. Progress and rating are smooth as they are.
        require_reset: every environment begins a new episode at once when the lesson is over, else each at its next reset.
    """

    behavior: str
    measure: str = "reward"
    threshold: float = 0.0
    min_lesson_length: int = 0
    signal_smoothing: bool = True
    require_reset: bool = False

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            raise ValueError(f"measure: expected one of {', '.join(MEASURES)}, received {self.measure!r}.")


@dataclass(frozen=True)
class Lesson:
    """One stage: how the parameter is drawn, and when it is over (None: never)."""

    name: str
    value: Sampler
    criteria: Criteria | None = None


@dataclass(frozen=True)
class Check:
    """What one check saw, to be logged: why a lesson changed, or did not yet.

    Attributes:
        lesson: number of the lesson that was checked, from 0.
        measured: value of the measure now; NaN where the episode brought none.
        compared: what stands against the threshold: the smoothed value, or `measured` without smoothing.
        episodes: finished in this lesson so far.
        min_episodes: as many are needed.
        advanced: whether the next lesson begins.
        require_reset: whether it begins with a reset of every environment.
    """

    lesson: int
    measured: float
    compared: float
    threshold: float
    episodes: int
    min_episodes: int
    advanced: bool
    require_reset: bool = False


class Curriculum:
    """The lessons of one parameter. `lesson` is the number of the current one, from 0."""

    def __init__(self, lessons: tuple[Lesson, ...]) -> None:
        if not lessons:
            raise ValueError("curriculum: expected at least one lesson, received none.")
        for lesson in lessons[:-1]:
            if lesson.criteria is None:
                raise ValueError(f"curriculum: expected criteria of lesson {lesson.name!r}, received none; only the last lesson never ends.")
        self.lessons = lessons
        self.lesson = 0
        self._begin()

    @property
    def current(self) -> Lesson:
        """The lesson that new episodes begin in."""
        return self.lessons[self.lesson]

    @property
    def criteria(self) -> Criteria | None:
        """When the current lesson is over; None in the last one."""
        return self.current.criteria if self.lesson + 1 < len(self.lessons) else None

    def episode(
        self, behavior: str, began_in: int, episode_return: float, progress: float = math.nan, elo: float = math.nan,
    ) -> Check | None:
        """Take in a finished episode and check once; at most one lesson ends. To be called in the order in which episodes are learnt from.

        Args:
            behavior: that the agent belongs to.
            began_in: number of the lesson in which the episode began; one of another lesson does not count.
            episode_return: sum of the environment's rewards.
            progress: agent steps of the behavior / its ``max_steps``.
            elo: its rating.

        Returns:
            What the check saw; None when the episode does not count, or no lesson is left.
        """
        criteria = self.criteria
        if criteria is None or behavior != criteria.behavior or began_in != self.lesson:
            return None
        self._episodes += 1
        self._returns.append(float(episode_return))
        mean = math.fsum(self._returns) / len(self._returns)
        measured = {"reward": mean, "progress": float(progress), "elo": float(elo)}[criteria.measure]
        enough = self._episodes >= criteria.min_lesson_length
        compared = measured
        if criteria.measure == "reward" and criteria.signal_smoothing:
            if enough:
                self._smoothed = (1.0 - SMOOTHING) * self._smoothed + SMOOTHING * measured
            compared = self._smoothed
        advanced = enough and compared > criteria.threshold
        check = Check(
            self.lesson, measured, compared, criteria.threshold, self._episodes, criteria.min_lesson_length, advanced,
            advanced and criteria.require_reset)
        if advanced:
            self.lesson += 1
            self._begin()
        return check

    def state(self) -> dict[str, Any]:
        """JSON-able: lesson, smoothed value, episodes and returns since it began."""
        return {"lesson": self.lesson, "smoothed": self._smoothed, "episodes": self._episodes, "returns": list(self._returns)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; a lesson number past the last one (the file has fewer now) is the last one."""
        self.lesson = min(int(state["lesson"]), len(self.lessons) - 1)
        self._begin()
        if self.lesson == state["lesson"]:
            self._smoothed, self._episodes = float(state["smoothed"]), int(state["episodes"])
            self._returns.extend(state["returns"])

    def _begin(self) -> None:
        """Nothing of the lesson before counts in this one."""
        criteria = self.criteria
        self._returns: deque[float] = deque(maxlen=max(1, criteria.min_lesson_length) if criteria is not None else 1)
        self._smoothed = 0.0
        self._episodes = 0


class Curricula:
    """All parameters of a run: those with lessons, each with a lesson of its own, and those without.

    Attributes:
        changes: lesson changes so far, over all parameters: the number with which environments tag their episodes.
    """

    def __init__(self, parameters: Mapping[str, Sampler | tuple[Lesson, ...]]) -> None:
        """`parameters`: name -> how it is drawn, or its lessons."""
        self._parameters = dict(parameters)
        self.curricula = {name: Curriculum(lessons) for name, lessons in parameters.items() if isinstance(lessons, tuple)}
        self.changes = 0
        self._changed_at = dict.fromkeys(self.curricula, 0)  # `changes` when the current lesson of a parameter began

    @property
    def are_over(self) -> bool:
        """No parameter has a lesson left."""
        return all(curriculum.criteria is None for curriculum in self.curricula.values())

    def samplers(self) -> Samplers:
        """Name -> how each parameter is drawn now."""
        return {name: self.curricula[name].current.value if name in self.curricula else given for name, given in self._parameters.items()}

    def lessons(self) -> dict[str, int]:
        """Name -> number of the current lesson, of every parameter that has lessons."""
        return {name: curriculum.lesson for name, curriculum in self.curricula.items()}

    def episode(
        self, behavior: str, tag: int, episode_return: float, progress: float = math.nan, elo: float = math.nan,
    ) -> dict[str, Check]:
        """Take in an episode that began when there had been `tag` changes; see `Curriculum.episode`.

        Returns:
            Name -> what its check saw, of every parameter for which the episode counts.
        """
        checks, changes = {}, self.changes
        for name, curriculum in self.curricula.items():
            began_in = curriculum.lesson if tag >= self._changed_at[name] else -1
            check = curriculum.episode(behavior, began_in, episode_return, progress, elo)
            if check is not None:
                checks[name] = check
                changes += check.advanced
        for name, check in checks.items():
            if check.advanced:
                self._changed_at[name] = changes
        self.changes = changes
        return checks

    def state(self) -> dict[str, Any]:
        """JSON-able; see `Curriculum.state`."""
        return {"changes": self.changes, "changed_at": dict(self._changed_at),
                "curricula": {name: curriculum.state() for name, curriculum in self.curricula.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; parameters that are not in it begin with their first lesson, now."""
        self.changes = int(state["changes"])
        for name, curriculum in self.curricula.items():
            self._changed_at[name] = int(state["changed_at"].get(name, self.changes))
            if name in state["curricula"]:
                curriculum.load_state(state["curricula"][name])
