"""The referee of a run: takes in finished episodes and games, and says what worlds play next.

It moves the lessons of curricula, and with self-play keeps ratings, says which team learns and draws the opponents. Trainers report
to it in the order in which they take things in, and what it answers travels with their policies (`raytrain.messages.Orders`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from envs.curriculum import Check, Curricula
from raytrain.messages import Game, Orders
from raytrain.stats import ELO, LEARNING_TEAM, LESSON, LESSON_CHECKS, OPPONENT_STEPS, tag_of
from trainers.self_play import INITIAL, rating_change

if TYPE_CHECKING:
    from raytrain.plan import Plan


@dataclass(frozen=True, slots=True)
class ItemReport:
    """What a trainer has taken in with one item.

    Attributes:
        behavior: its name.
        agent_steps: of the trainer, with this item.
        finished: it learns no more.
        returns, lessons: of each episode that ended: return, and number of lesson changes when it began.
        games, opponent_steps: as in the item's header.
        snapshots: numbers of the behavior's snapshots that opponents may be drawn from.
    """

    behavior: str
    agent_steps: int
    finished: bool = False
    returns: tuple[float, ...] = ()
    lessons: tuple[int, ...] = ()
    games: tuple[Game, ...] = ()
    opponent_steps: Mapping[str, int] = field(default_factory=dict)
    snapshots: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ruling:
    """The referee's answer.

    Attributes:
        orders: that hold now.
        values: tag -> value, for the behavior's statistics.
        notices: sentences for the user.
    """

    orders: Orders
    values: dict[str, float] = field(default_factory=dict)
    notices: tuple[str, ...] = ()


class RefereePort(Protocol):
    """A trainer's way to the referee."""

    def report(self, report: ItemReport) -> Ruling:
        """Take in a report; what holds after it."""

    def current(self, behavior: str) -> Ruling:
        """What holds now."""


_RATINGS = 500
"""Ratings that are kept besides those of snapshots in the window."""


class _Side:
    """One behavior of self-play. It has a rating on each of its teams, since a game may favour one of them, as who begins it."""

    def __init__(self, plan: Plan) -> None:
        self.settings, self.max_steps = plan.settings.self_play, plan.settings.max_steps
        self.teams = plan.teams
        self.now = dict.fromkeys(sorted(set(plan.teams)), self.settings.initial_elo)
        self.frozen = {INITIAL: dict(self.now)}  # of snapshots, also of those that left the window: a game may still run
        self.snapshots: tuple[int, ...] = (INITIAL,)
        self.agent_steps = self.began_at = 0
        self.opponent_steps = self.swapped_at = 0
        self.finished = False

    @property
    def rating(self) -> float:
        """Mean over its teams."""
        return sum(self.now.values()) / len(self.now)

    def ratings(self, number: int) -> dict[int, float]:
        """Team -> rating of a snapshot; one that was frozen at a draw is the policy itself."""
        return self.now if number < 0 else self.frozen[number]

    def note(self, snapshots: tuple[int, ...]) -> None:
        """Opponents are drawn from these; new ones are as good as the policy is now."""
        for number in snapshots:
            if number not in self.frozen:
                self.frozen[number] = dict(self.now)
        self.snapshots = snapshots or self.snapshots
        for number in sorted(self.frozen)[: -_RATINGS]:  # a game against an older one ended long ago
            if number not in self.snapshots:
                del self.frozen[number]

    def state(self) -> dict[str, Any]:
        def by_team(ratings: Mapping[int, float]) -> dict[str, float]:
            return {str(team): rating for team, rating in ratings.items()}

        return {"now": by_team(self.now), "frozen": {str(n): by_team(r) for n, r in self.frozen.items()}, "snapshots": list(self.snapshots),
                "agent_steps": self.agent_steps, "began_at": self.began_at, "opponent_steps": self.opponent_steps, "swapped_at": self.swapped_at}

    def load_state(self, state: Mapping[str, Any]) -> None:
        def by_team(ratings: Mapping[str, float]) -> dict[int, float]:
            return {team: ratings.get(str(team), self.settings.initial_elo) for team in self.now}

        self.now, self.frozen = by_team(state["now"]), {int(n): by_team(r) for n, r in state["frozen"].items()}
        self.snapshots = tuple(state["snapshots"])
        for name in ("agent_steps", "began_at", "opponent_steps", "swapped_at"):
            setattr(self, name, state[name])
        self.finished = self.agent_steps >= self.max_steps  # which may be another number than before


class Referee:
    """See the module. Deterministic: the same reports in the same order give the same orders.

    Args:
        plans: of all behaviors.
        state: of a checkpoint, to continue from.
    """

    def __init__(self, plans: Sequence[Plan], state: Mapping[str, Any] | None = None) -> None:
        self._curricula = Curricula(plans[0].parameters)
        self._max_steps = {plan.behavior: plan.settings.max_steps for plan in plans}
        self._sides = {plan.behavior: _Side(plan) for plan in plans if plan.teams}
        self._rng = np.random.Generator(np.random.PCG64(plans[0].referee_seed()))
        self._draws = 0
        teams = sorted({team for side in self._sides.values() for team in side.teams})
        self._teams = teams
        opponents = {behavior: dict.fromkeys(sorted(set(side.teams)), INITIAL) for behavior, side in self._sides.items()}
        self.orders = Orders(0, self._curricula.samplers(), is_last=self._curricula.are_over, team=teams[0] if teams else None, opponents=opponents)
        if state is not None:
            self._load_state(state)

    @staticmethod
    def is_needed(plans: Sequence[Plan]) -> bool:
        """Whether anything may change during the run."""
        return any(plan.teams for plan in plans) or any(isinstance(given, tuple) for given in plans[0].parameters.values())

    # -- reports -----------------------------------------------------------------------------------------------------

    def report(self, report: ItemReport) -> Ruling:
        """Take in a report; what holds after it."""
        before, values, notices = self.orders, {}, []
        side = self._sides.get(report.behavior)
        if side is not None:
            side.note(report.snapshots)
            side.agent_steps, side.finished = report.agent_steps, report.finished
        for behavior, steps in report.opponent_steps.items():
            self._sides[behavior].opponent_steps += steps
        for game in report.games:
            self._rate(game)
        self._check_lessons(report, values, notices)
        if self._sides:
            self._cast()
        if self.orders is not before:
            self.orders = replace(self.orders, number=before.number + 1)
        values |= {LEARNING_TEAM: float(before.team)} if side is not None else {}  # of what the item was collected for
        return Ruling(self.orders, self._values(report.behavior) | values, tuple(notices))

    def current(self, behavior: str) -> Ruling:
        """What holds now."""
        return Ruling(self.orders, self._values(behavior))

    def _values(self, behavior: str) -> dict[str, float]:
        values = {tag_of(LESSON, name): float(lesson) for name, lesson in self._curricula.lessons().items()}
        if behavior in self._sides:
            side = self._sides[behavior]
            values |= {ELO: side.rating, LEARNING_TEAM: float(self.orders.team), OPPONENT_STEPS: float(side.opponent_steps)}
        return values

    # -- lessons -----------------------------------------------------------------------------------------------------

    def _check_lessons(self, report: ItemReport, values: dict[str, float], notices: list[str]) -> None:
        behavior = report.behavior
        progress = report.agent_steps / self._max_steps[behavior]
        rating = self._sides[behavior].rating if behavior in self._sides else math.nan
        for episode_return, lesson in zip(report.returns, report.lessons, strict=True):
            checks = self._curricula.episode(behavior, lesson, episode_return, progress, rating)
            for name, check in checks.items():
                values |= _check_values(name, check)
                if check.advanced:
                    notices.append(self._lesson_notice(name, check))
                    self.orders = replace(
                        self.orders, parameters=self._curricula.samplers(), lesson=self._curricula.changes,
                        is_last=self._curricula.are_over, resets=self.orders.resets + check.require_reset)

    def _lesson_notice(self, name: str, check: Check) -> str:
        curriculum = self._curricula.curricula[name]
        place = f"lesson {curriculum.lesson + 1} of {len(curriculum.lessons)} of {name} begins: {curriculum.current.name}"
        return f"{place} ({check.compared:,.4g} is above {check.threshold:,.4g} after {check.episodes:,} episodes)"

    # -- self-play ---------------------------------------------------------------------------------------------------

    def _rate(self, game: Game) -> None:
        """Each pairing of the learning side with an opponent is a game of its own; K is spread over them, so the sum of ratings stays."""
        learners = [side.now for side in self._sides.values() if game.team in side.now]
        k = next(side.settings.elo_k for side in self._sides.values() if game.team in side.now) / len(game.opponents)
        own = sum(ratings[game.team] for ratings in learners) / len(learners)
        for behavior, team, number in game.opponents:
            opponent = self._sides[behavior].ratings(number)
            change = rating_change(own, opponent[team], game.score, k)
            opponent[team] -= change
            for ratings in learners:
                ratings[game.team] += change / len(learners)

    def _cast(self) -> None:
        """Another team learns, or other opponents are drawn, when it is time for it."""
        team = self._next_team()
        if team != self.orders.team:
            self.orders = replace(self.orders, team=team)
            for side in self._sides.values():
                side.began_at = side.agent_steps
            self._draw(self._sides)
        else:
            self._draw([behavior for behavior, side in self._sides.items() if self._is_swap_due(side)])

    def _next_team(self) -> int:
        now = self.orders.team
        learners = [side for side in self._sides.values() if now in side.teams]
        over = all(side.finished for side in learners)
        if not over and not any(_crossed(side.began_at, side.agent_steps, side.settings.steps_per_team(side.max_steps)) for side in learners):
            return now
        place = self._teams.index(now)
        following = [*self._teams[place + 1 :], *self._teams[:place]]
        return next((team for team in following if any(team in s.teams and not s.finished for s in self._sides.values())), now)

    def _is_swap_due(self, side: _Side) -> bool:
        team = self.orders.team
        agents = sum(own != team for own in side.teams)
        opponents = sum(one == team for other in self._sides.values() for one in other.teams)
        return agents > 0 and _crossed(side.swapped_at, side.opponent_steps, side.settings.steps_per_swap(side.max_steps, agents, opponents))

    def _draw(self, behaviors: Sequence[str] | Mapping[str, _Side]) -> None:
        """Opponents anew for these behaviors' teams that do not learn."""
        if not behaviors:
            return
        opponents = {behavior: dict(given) for behavior, given in self.orders.opponents.items()}
        for behavior in behaviors:
            side = self._sides[behavior]
            side.swapped_at = side.opponent_steps
            for team in opponents[behavior]:
                if team != self.orders.team:
                    opponents[behavior][team] = self._drawn(side)
        self.orders = replace(self.orders, opponents=opponents)

    def _drawn(self, side: _Side) -> int:
        if self._rng.random() < side.settings.play_against_latest_model_ratio:
            self._draws += 1
            return -self._draws
        return side.snapshots[int(self._rng.integers(len(side.snapshots)))]

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """JSON-able: lessons, ratings, teams and counters."""
        orders = self.orders
        opponents = {behavior: {str(team): number for team, number in given.items()} for behavior, given in orders.opponents.items()}
        return {"curricula": self._curricula.state(), "sides": {behavior: side.state() for behavior, side in self._sides.items()},
                "rng": self._rng.bit_generator.state, "draws": self._draws, "number": orders.number, "team": orders.team, "opponents": opponents}

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self._curricula.load_state(state["curricula"])
        for behavior, side in self._sides.items():
            if behavior in state["sides"]:
                side.load_state(state["sides"][behavior])
        self._rng.bit_generator.state, self._draws = state["rng"], state["draws"]
        opponents = {}
        for behavior, side in self._sides.items():
            saved = state["opponents"].get(behavior, {})
            # A team that is new is played by the oldest snapshot there is.
            opponents[behavior] = {team: saved.get(str(team), side.snapshots[0]) for team in side.now}
        team = state["team"] if state["team"] in self._teams else self.orders.team
        self.orders = Orders(state["number"], self._curricula.samplers(), self._curricula.changes, self._curricula.are_over, 0, team, opponents)


def _crossed(before: int, now: int, every: float) -> bool:
    """Whether a multiple of `every` lies in (before, now]: counting from the last change would add up what each one came late."""
    return now // every > before // every


def _check_values(name: str, check: Check) -> dict[str, float]:
    """Why a lesson changed, or did not yet."""
    seen = (check.measured, check.compared, check.threshold, float(check.episodes), float(check.min_episodes))
    values = {tag_of(tag, name): value for tag, value in zip(LESSON_CHECKS, seen, strict=True)}
    return {tag: value for tag, value in values.items() if math.isfinite(value)}
