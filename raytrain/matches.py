"""What the worlds of an env manager play under self-play: who learns in each, against whom, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.specs import DecisionSteps, TerminalSteps
from raytrain.messages import Game, Orders

_NOBODY = 0


@dataclass(slots=True)
class _Cast:
    """The agents of one behavior, by slot."""

    agents: int  # in one world
    teams: tuple[int, ...]  # each once, in order
    team: np.ndarray  # int64
    world: np.ndarray  # int64
    learns: np.ndarray  # bool, in the running episode of its world
    snapshot: np.ndarray  # int64, that acts for it where it does not learn


class Matches:
    """A role is given to every agent when an episode of its world begins, and kept until that ends: no trajectory has two roles.

    Args:
        teams: behavior -> team of each of its agents in one world, in the order of their slots; behaviors of self-play only.
        num_worlds: copies of the world.

    Attributes:
        games: that have ended and were not taken yet.
        opponent_steps: behavior -> steps of agents that do not learn, not taken yet.
    """

    def __init__(self, teams: Mapping[str, tuple[int, ...]], num_worlds: int) -> None:
        self._cast = {}
        for behavior, own in teams.items():
            slots = num_worlds * len(own)
            self._cast[behavior] = _Cast(
                len(own), tuple(sorted(set(own))), np.tile(np.array(own, np.int64), num_worlds), np.repeat(np.arange(num_worlds), len(own)), np.zeros(slots, bool),
                np.full(slots, _NOBODY, np.int64))
        self._episode = np.full(num_worlds, -1, np.int64)
        self._played: list[Orders | None] = [None] * num_worlds
        self._final = np.zeros(num_worlds)
        self._has_ended = np.zeros(num_worlds, bool)  # an agent that learns
        self.games: list[Game] = []
        self.opponent_steps = dict.fromkeys(teams, 0)

    def state(self) -> dict[str, Any]:
        """Roles and results so far, for `envs.packing`."""
        played = [None if one is None else {"team": one.team, "opponents": {b: [[team, n] for team, n in o.items()] for b, o in one.opponents.items()}}
                  for one in self._played]
        return {
            "cast": {behavior: {"learns": cast.learns.copy(), "snapshot": cast.snapshot.copy()} for behavior, cast in self._cast.items()},
            "episode": self._episode.copy(), "final": self._final.copy(), "has_ended": self._has_ended.copy(), "played": played,
            "games": [[game.team, game.score, [list(one) for one in game.opponents]] for game in self.games],
            "opponent_steps": dict(self.opponent_steps)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        for behavior, columns in state["cast"].items():
            cast = self._cast[behavior]
            cast.learns[:], cast.snapshot[:] = columns["learns"], columns["snapshot"]
        self._episode[:], self._final[:], self._has_ended[:] = state["episode"], state["final"], state["has_ended"]
        self._played = [None if one is None else Orders(team=one["team"], opponents={b: dict(o) for b, o in one["opponents"].items()})
                        for one in state["played"]]
        self.games = [Game(team, score, tuple(tuple(one) for one in opponents)) for team, score, opponents in state["games"]]
        self.opponent_steps = dict(state["opponent_steps"])

    @property
    def behaviors(self) -> Iterable[str]:
        """Of self-play."""
        return self._cast

    def teams(self, behavior: str) -> tuple[int, ...]:
        """On which its agents are."""
        return self._cast[behavior].teams

    def void(self, behavior: str, lost: np.ndarray | None) -> np.ndarray | None:
        """The worlds of these agents (int64 ``[k]``) died: what was played there has no result. Those of them that learn; to be called before
        `end`."""
        if lost is None:
            return None
        cast = self._cast[behavior]
        for world in set(cast.world[lost].tolist()):
            self._played[world] = None
            self._final[world], self._has_ended[world] = 0.0, False
        return lost[cast.learns[lost]]

    def end(self, behavior: str, steps: TerminalSteps) -> TerminalSteps:
        """The ends of those that learn; they count for the result of their worlds. To be called before `begin`."""
        if not len(steps) and steps.group_return is None:
            return steps
        cast = self._cast[behavior]
        learns = cast.learns[steps.agent_id]
        worlds = cast.world[steps.agent_id[learns]]
        np.add.at(self._final, worlds, steps.total_reward[learns])
        self._has_ended[worlds] = True
        return steps.where(learns)

    def begin(self, episodes: np.ndarray, orders: Orders) -> None:
        """Give roles in the worlds that have begun a new episode, by `orders`; what was played there before has ended.

        Args:
            episodes: int64 ``[worlds]``, number of the running episode of each.
        """
        for world in np.flatnonzero((episodes != self._episode) & (episodes >= 0)):
            if self._played[world] is not None and self._has_ended[world]:  # without its learning team there was no game
                self.games.append(self._result(self._played[world], float(self._final[world])))
            self._played[world] = orders
            self._final[world], self._has_ended[world] = 0.0, False
            for behavior, cast in self._cast.items():
                own = slice(world * cast.agents, (world + 1) * cast.agents)
                cast.learns[own] = cast.team[own] == orders.team
                cast.snapshot[own] = [orders.opponents[behavior][team] for team in cast.team[own].tolist()]
        self._episode[:] = np.where(episodes >= 0, episodes, self._episode)

    def forget(self) -> None:
        """Every world begins anew; what runs has no result."""
        self._played[:] = [None] * len(self._played)
        self._episode[:] = -1
        self._final[:], self._has_ended[:] = 0.0, False

    def split(self, behavior: str, steps: DecisionSteps) -> tuple[DecisionSteps, list[tuple[int, DecisionSteps]]]:
        """The decisions of agents that learn, and those of the others by the snapshot that acts for them."""
        cast = self._cast[behavior]
        learns = cast.learns[steps.agent_id]
        if learns.all():
            return steps, []
        snapshot = cast.snapshot[steps.agent_id]
        self.opponent_steps[behavior] += int((~learns).sum())
        others = [(int(number), steps.where(~learns & (snapshot == number))) for number in np.unique(snapshot[~learns])]
        return steps.where(learns), others

    def played(self, behavior: str) -> set[int]:
        """Numbers of the behavior's snapshots that act in some world."""
        cast = self._cast[behavior]
        return set(cast.snapshot[~cast.learns].tolist())

    def take(self) -> tuple[tuple[Game, ...], dict[str, int]]:
        """Games and steps of opponents since the last call."""
        games, steps = tuple(self.games), {b: n for b, n in self.opponent_steps.items() if n}
        self.games, self.opponent_steps = [], dict.fromkeys(self.opponent_steps, 0)
        return games, steps

    def _result(self, orders: Orders, final: float) -> Game:
        """Won, drawn or lost by the sign of what the learning team was paid with its members' last steps, for themselves and as a group."""
        score = 1.0 if final > 0 else 0.0 if final < 0 else 0.5
        opponents = tuple(
            (behavior, team, orders.opponents[behavior][team]) for behavior, cast in self._cast.items()
            for team in cast.teams if team != orders.team)
        return Game(orders.team, score, opponents)
