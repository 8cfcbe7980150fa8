"""Small games between teams: two that are known by heart, for the bookkeeping of self-play, and two to get better at.

They need PettingZoo (the extra ``pettingzoo``). Scripted players stand beside the games that are played in earnest; they see what
the agents see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo.utils.env import ParallelEnv

from envs.toy import SimpleEnvironment

MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))
"""What an action does to a place (row, column) of a grid; the first five are for those that cannot go diagonally."""
STRAIGHT = 5

Place = tuple[int, int]

Step = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]
"""Observations, rewards, terminations, truncations, infos."""


class _Game(ParallelEnv):
    """Agents that act at once; `reset` with a seed makes the world's numbers, one without goes on with them."""

    def __init__(self, observation_spaces: Mapping[str, spaces.Space], action_spaces: Mapping[str, spaces.Space]) -> None:
        self.observation_spaces, self.action_spaces = dict(observation_spaces), dict(action_spaces)
        self.possible_agents = list(self.observation_spaces)
        self.agents: list[str] = []
        self.time = 0
        self._rng = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Space:
        """Of an agent."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space:
        """Of an agent."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everyone is in the game."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self.time = list(self.possible_agents), 0
        self._begin()
        return {agent: self._see(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Step:
        """Everyone who is in the game moves."""
        if set(actions) != set(self.agents):
            raise ValueError(f"expected an action of each of {', '.join(self.agents)}, received some of {', '.join(actions) or 'nobody'}")
        self.time += 1
        acted = self.agents
        rewards, over = self._move(actions)
        self.agents = [agent for agent in acted if not over[agent]]
        return ({agent: self._see(agent) for agent in acted}, rewards, over, dict.fromkeys(acted, False),
                {agent: {} for agent in acted})

    def _begin(self) -> None:
        """A new episode."""

    def _move(self, actions: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, bool]]:
        """Rewards of the agents that act, and whether their task has ended."""
        raise NotImplementedError

    def _see(self, agent: str) -> Any:
        raise NotImplementedError


class TwoTeams(_Game):
    """`envs.toy.SimpleEnvironment` for agents of different teams in one world, each with a hidden goal and rewards of its own.

    They have nothing to do with each other: what one gets tells of its own policy alone, and so shows which policy played it.
    Agents end one by one, each when it has arrived; the world is over when all have. Perfect play gets about 1 for each, the way to
    the wrong side about -1, and the sign of the last reward says which it was.

    Args:
        names: the agents.
        continuous: one move in ±`step_size` instead of the choice between the two.
        step_size: largest move of one step; the goals are 1 away.
        options: other arguments of `envs.toy.SimpleEnvironment`: ``dimensions``, ``num_vector``, ``num_visual``, ….
    """

    metadata: dict[str, Any] = {"name": "two_teams_v0"}  # noqa: RUF012 - as PettingZoo has it

    def __init__(self, names: Sequence[str] = ("a_0", "b_0"), continuous: bool = False, step_size: float = 0.2, **options: Any) -> None:
        action = "continuous" if continuous else "discrete"
        self._worlds = {name: SimpleEnvironment(action=action, step_size=step_size, **options) for name in names}
        super().__init__({name: world.observation_space for name, world in self._worlds.items()},
                         {name: world.action_space for name, world in self._worlds.items()})
        self._seen: dict[str, Any] = {}

    def _begin(self) -> None:
        # Seeds of their own from the one stream of the world, or all agents would have the same goal.
        seeds = self._rng.integers(2**31, size=len(self._worlds)).tolist()
        self._seen = {name: world.reset(seed=seed)[0] for (name, world), seed in zip(self._worlds.items(), seeds, strict=True)}

    def _move(self, actions: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, bool]]:
        rewards, over = {}, {}
        for name, action in actions.items():
            self._seen[name], rewards[name], over[name], _, _ = self._worlds[name].step(action)
        return rewards, over

    def _see(self, agent: str) -> Any:
        return self._seen[agent]


class RiggedDuel(_Game):
    """A game whose result is drawn, whatever the agents do: for ratings and counters.

    After `length` steps ``team_0`` gets +1 and each of the others -1 with probability `p_win`, all get 0 with probability `p_draw`, and
    otherwise it is the other way round. All other rewards are 0. Everyone sees the part of the game that is over.

    Args:
        p_win, p_draw: probabilities.
        length: steps of a game.
        teams: agents ``team_0``, ``team_1``, …, one in each team.
    """

    metadata: dict[str, Any] = {"name": "rigged_duel_v0"}  # noqa: RUF012 - as PettingZoo has it

    def __init__(self, p_win: float = 0.5, length: int = 10, teams: int = 2, p_draw: float = 0.0) -> None:
        if min(p_win, p_draw) < 0.0 or p_win + p_draw > 1.0:
            raise ValueError(f"expected probabilities p_win and p_draw whose sum is at most 1, received p_win={p_win} and p_draw={p_draw}")
        if length < 1 or teams < 2:
            raise ValueError(f"expected a length of at least 1 and at least 2 teams, received length={length} and teams={teams}")
        names = [f"team_{i}" for i in range(teams)]
        super().__init__({name: spaces.Box(0.0, 1.0, (1,), np.float32) for name in names}, {name: spaces.Discrete(2) for name in names})
        self._p_win, self._p_draw, self._length = p_win, p_draw, length

    def _move(self, actions: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, bool]]:
        over, result = self.time == self._length, 0.0
        if over:
            drawn = self._rng.random()
            result = 1.0 if drawn < self._p_win else 0.0 if drawn < self._p_win + self._p_draw else -1.0
        return {agent: result if agent == "team_0" else -result for agent in actions}, dict.fromkeys(actions, over)

    def _see(self, agent: str) -> np.ndarray:
        return np.array([self.time / self._length], np.float32)


class Duel(_Game):
    """Two on a square grid run for a flag that moves to another cell when it is reached; who has `points` of them first wins.

    Both move at once, one cell or none, and may stand on the same cell. Whoever alone reaches the flag has a point; when both do, nobody
    has, and both go back to their own sides. After `max_steps` the one with more points wins. The winner's last reward is +1, the
    loser's -1, that of a draw 0, and all others are 0. Perfect play gets 0 on the mean against itself and nearly 1 against random moves.

    Observation, seen from the agent itself, float32 ``[8]`` within ±1: where the flag is from here (2, in sides of the grid), where the
    other is (2), where the middle is (2), points ahead (in `points`), time left (in `max_steps`).
    Actions: stay, up, down, left, right (`MOVES`).

    Args:
        size: cells of a side, odd.
        points: that win the game.
        max_steps: longest game.
    """

    metadata: dict[str, Any] = {"name": "duel_v0"}  # noqa: RUF012 - as PettingZoo has it

    def __init__(self, size: int = 5, points: int = 3, max_steps: int = 50) -> None:
        if size < 3 or size % 2 == 0 or points < 1 or max_steps < 1:
            raise ValueError("expected an odd size of at least 3, and at least 1 of points and max_steps, received "
                             f"size={size}, points={points}, max_steps={max_steps}")
        names = ("player_0", "player_1")
        super().__init__({name: spaces.Box(-1.0, 1.0, (8,), np.float32) for name in names},
                         {name: spaces.Discrete(STRAIGHT) for name in names})
        self._size, self._points, self._max_steps = size, points, max_steps
        self._sides: list[Place] = [(0, size // 2), (size - 1, size // 2)]
        self._places, self._score, self._flag = list(self._sides), [0, 0], (0, 0)

    def _begin(self) -> None:
        self._places, self._score = list(self._sides), [0, 0]
        self._place_flag()

    def _place_flag(self) -> None:
        free = [cell for cell in range(self._size**2) if divmod(cell, self._size) not in self._places]
        self._flag = divmod(free[self._rng.integers(len(free))], self._size)

    def _move(self, actions: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, bool]]:
        self._places = [_moved(place, actions[agent], self._size) for agent, place in zip(self.possible_agents, self._places, strict=True)]
        if self._flag in self._places:
            if self._places[0] == self._places[1]:
                self._places = list(self._sides)
            else:
                self._score[self._places.index(self._flag)] += 1
            self._place_flag()
        over = max(self._score) == self._points or self.time == self._max_steps
        ahead = self._score[0] - self._score[1]
        result = float((ahead > 0) - (ahead < 0)) if over else 0.0
        return dict(zip(self.possible_agents, (result, -result), strict=True)), dict.fromkeys(actions, over)

    def _see(self, agent: str) -> np.ndarray:
        i = self.possible_agents.index(agent)
        seen = _from(self._places[i], (self._flag, self._places[1 - i], (self._size // 2, self._size // 2)), self._size)
        ahead, left = (self._score[i] - self._score[1 - i]) / self._points, 1.0 - self.time / self._max_steps
        return np.array([*seen, ahead, left], np.float32)


def scripted_duel(obs: np.ndarray) -> np.ndarray:
    """A player of `Duel` that goes straight for the flag, which is hard to beat; observations float32 ``[n, 8]`` → actions int64 ``[n]``."""
    return _towards(obs[:, 0:2])


class Chase(_Game):
    """Two hunters and a runner on a square grid: two policies of different spaces, in teams of different sizes.

    All move at once. The runner is caught when a hunter stands on its cell, or has changed places with it: then each hunter gets +0.5
    and the runner -1. After `max_steps` it has escaped: -0.5 and +1. All other rewards are 0; those of the three always sum to 0.
    Hunters that go straight for it catch a runner that does not look nearly always, random ones in about two games of five.

    Observation, seen from the agent itself, float32 within ±1. ``hunter_*`` ``[7]``: where the runner is (2), the other hunter (2), the middle
    (2), time left. ``runner`` ``[9]``: where the hunters are (4), the middle (2), time left, and its steps to each hunter (2, in twice a side).
    Actions: stay, up, down, left, right (`MOVES`); a `quick` runner goes diagonally, too.

    Args:
        size: cells of a side, odd.
        max_steps: longest game.
        quick: whether the runner has nine moves instead of five.
    """

    metadata: dict[str, Any] = {"name": "chase_v0"}  # noqa: RUF012 - as PettingZoo has it

    def __init__(self, size: int = 7, max_steps: int = 25, quick: bool = False) -> None:
        if size < 3 or size % 2 == 0 or max_steps < 1:
            raise ValueError(f"expected an odd size of at least 3 and max_steps of at least 1, received size={size}, max_steps={max_steps}")
        hunter, runner = (spaces.Box(-1.0, 1.0, (length,), np.float32) for length in (7, 9))
        straight = spaces.Discrete(STRAIGHT)
        super().__init__({"hunter_0": hunter, "hunter_1": hunter, "runner": runner},
                         {"hunter_0": straight, "hunter_1": straight, "runner": spaces.Discrete(len(MOVES)) if quick else straight})
        self._size, self._max_steps = size, max_steps
        self._places: list[Place] = [(0, 0)] * 3

    def _begin(self) -> None:
        row, column = self._rng.integers((1, 0), self._size).tolist()  # anywhere but in the hunters' row
        self._places = [(0, 0), (0, self._size - 1), (row, column)]

    def _move(self, actions: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, bool]]:
        before = self._places
        now = self._places = [_moved(place, actions[agent], self._size) for agent, place in zip(self.possible_agents, before, strict=True)]
        caught = any(now[i] == now[2] or (now[i] == before[2] and before[i] == now[2]) for i in (0, 1))
        over = caught or self.time == self._max_steps
        result = (1.0 if caught else -1.0) if over else 0.0
        return {"hunter_0": result / 2, "hunter_1": result / 2, "runner": -result}, dict.fromkeys(actions, over)

    def _see(self, agent: str) -> np.ndarray:
        i = self.possible_agents.index(agent)
        others = (self._places[2], self._places[1 - i]) if i < 2 else (self._places[0], self._places[1])
        seen = _from(self._places[i], (*others, (self._size // 2, self._size // 2)), self._size)
        steps = [(abs(seen[k]) + abs(seen[k + 1])) / 2 for k in (0, 2)] if i == 2 else []
        return np.array([*seen, 1.0 - self.time / self._max_steps, *steps], np.float32)


def scripted_hunter(obs: np.ndarray) -> np.ndarray:
    """A hunter of `Chase` that goes straight for the runner; observations float32 ``[n, 7]`` → actions int64 ``[n]``."""
    return _towards(obs[:, 0:2])


def _moved(place: Place, action: Any, size: int) -> Place:
    """Where an action leads; walls stop."""
    row, column = MOVES[int(action)]
    return min(max(place[0] + row, 0), size - 1), min(max(place[1] + column, 0), size - 1)


def _from(here: Place, others: Sequence[Place], size: int) -> list[float]:
    """Where `others` are, seen from `here`: rows and columns in sides of the grid."""
    return [(there - own) / (size - 1) for other in others for there, own in zip(other, here, strict=True)]


def _towards(difference: np.ndarray) -> np.ndarray:
    """The action that makes the larger part of differences ``[n, 2]`` smaller, in their order where they are equal."""
    rows = np.arange(len(difference))
    axis = np.argmax(np.abs(difference), axis=1)
    along = difference[rows, axis]
    return np.where(along == 0.0, 0, 1 + 2 * axis + (along > 0.0))
