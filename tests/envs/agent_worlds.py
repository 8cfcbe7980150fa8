"""Worlds of many agents with one peculiarity each; they need PettingZoo."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.toy_agents import CountingAgents, DyingTeams, TurnTeams
from tests.envs.fragile_worlds import begin_life


class SameArrays(CountingAgents):
    """Shows the same array every time, changed in place."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._shown = {agent: np.zeros(3, np.float32) for agent in self.possible_agents}

    def _see(self, agent: str) -> np.ndarray:
        self._shown[agent][:] = super()._see(agent)
        return self._shown[agent]


class Noise(CountingAgents):
    """Episodes of two steps that show random numbers first."""

    def __init__(self) -> None:
        super().__init__((2, 2))
        self._rng: np.random.Generator | None = None

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        return super().reset(seed, options)

    def _see(self, agent: str) -> np.ndarray:
        return np.array([self._rng.random(), self.time, 0.0], np.float32)


class Faulty(CountingAgents):
    """Does the wrong thing in its second step, or in its reset."""

    def __init__(self, kind: str) -> None:
        super().__init__((3, 5))
        self._kind = kind

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if self._kind == "reset_raises":
            raise RuntimeError("no reset")
        result = super().reset(seed, options)
        if self._kind == "empty":
            self.agents = []
        if self._kind == "idle":
            return {}, {}
        return result

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        if self._kind == "idle":
            return {}, {}, {}, {}, {}
        obs, reward, terminated, truncated, info = super().step(actions)
        if self.time == 2:
            match self._kind:
                case "leaves":
                    self.agents.remove("agent_0")
                case "truncated_blind":
                    self.agents.remove("agent_0")
                    del obs["agent_0"]
                    truncated = {"agent_0": True}
                case "nan":
                    obs["agent_1"][0] = np.nan
                case "nan_reward":
                    reward["agent_1"] = np.nan
                case "stranger":
                    self.agents.append("nobody")
                case "raises":
                    raise RuntimeError("boom")
                case "four":
                    return obs, reward, terminated, info
        return obs, reward, terminated, truncated, info


class LeavesInTurns(TurnTeams):
    """Takes an agent out without a word."""

    def step(self, action: Any) -> None:
        super().step(action)
        if self.time == 3:
            self.agents.remove("agent_0")
            self.agent_selection = "agent_1"


class TwoKinds(CountingAgents):
    """Its second agent sees less."""

    def __init__(self) -> None:
        super().__init__((3, 5))

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0.0, 1.0, (2,), np.float32) if agent == "agent_1" else super().observation_space(agent)


class Blocking(CountingAgents):
    """Hangs in its second step."""

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        if self.time == 1:
            time.sleep(1.5)
        return super().step(actions)


class _Pays:
    """Gives group rewards in ``info``, besides what the world does.

    Args:
        each_step: given in every step to every agent that is in the world before or after it.
        pays: (step, agent in whose info it is, anything); in that step instead.
    """

    def __init__(self, each_step: float = 0.0, pays: Any = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._each_step, self._pays = each_step, [tuple(one) for one in pays]

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        before = list(self.agents)
        *parts, _ = super().step(actions)
        return (*parts, self._infos([*before, *self.agents]))

    def _infos(self, agents: list[str]) -> dict[str, dict[str, Any]]:
        special = {agent: {"group_reward": amount} for time, agent, amount in self._pays if time == self.time}
        if special or not self._each_step:
            return special
        return {agent: {"group_reward": self._each_step} for agent in agents}


class FragileAgents(_Pays, CountingAgents):
    """Its process exits in step `n` of its first `times` lives, which are counted in `folder`."""

    def __init__(self, folder: str, n: int, times: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._steps_left = n if begin_life(folder) < times else -1

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self._steps_left -= 1
        if self._steps_left == 0:
            os._exit(3)
        return super().step(actions)


class FragileTurns(TurnTeams):
    """Agents in turn, of which step `n` fails in its first life."""

    def __init__(self, folder: str, n: int) -> None:
        super().__init__()
        self._steps_left = n if begin_life(folder) == 0 else -1

    def step(self, action: Any) -> None:
        self._steps_left -= action is not None
        if self._steps_left == 0:
            raise RuntimeError("boom-42")
        super().step(action)


class PayingAgents(_Pays, CountingAgents):
    """Agents that die at different ages."""


class PayingTeams(_Pays, DyingTeams):
    """Agents that wait, die and come back."""


class PayingTurns(_Pays, TurnTeams):
    """Agents in turn.

    Args:
        together: all end with the first.
    """

    def __init__(self, together: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._together = together

    def step(self, action: Any) -> None:
        was_dead = self.terminations[self.agent_selection]
        TurnTeams.step(self, action)
        if not was_dead:
            self.infos = {agent: {} for agent in self.agents} | self._infos(self.agents)
            if self._together and any(self.terminations.values()):
                self.terminations = dict.fromkeys(self.agents, True)


def unnamed() -> CountingAgents:
    """Does not say who may appear."""
    world = CountingAgents()
    del world.possible_agents
    return world
