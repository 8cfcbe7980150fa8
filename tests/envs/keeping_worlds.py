"""Worlds of PettingZoo, and environments of Gymnasium, whose episodes can be gone on with or only seem so."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from envs.toy_agents import CountingAgents, DyingTeams, TurnTeams
from tests.raytrain.exact_worlds import Windy

AEC_PARTS = ("rewards", "_cumulative_rewards", "terminations", "truncations", "_left")


class KeptCounting(CountingAgents):
    """Agents that die one after another."""

    def __init__(self) -> None:
        super().__init__((3, 5, 7))

    def get_state(self) -> dict[str, Any]:
        return {"agents": self.agents, "time": self.time, "episode": self.episode}

    def set_state(self, state: dict[str, Any]) -> None:
        self.agents, self.time, self.episode = list(state["agents"]), state["time"], state["episode"]


class KeptTeams(DyingTeams):
    """Agents that pause, die and come back."""

    get_state, set_state = KeptCounting.get_state, KeptCounting.set_state


class KeptTurns(TurnTeams):
    """Agents in turn."""

    def get_state(self) -> dict[str, Any]:
        return {"agents": self.agents, "time": self.time, "episode": self.episode, "next": self.agent_selection,
                "after": getattr(self, "_skip_agent_selection", None), **{name: getattr(self, name) for name in AEC_PARTS}}

    def set_state(self, state: dict[str, Any]) -> None:
        self.agents, self.time, self.episode = list(state["agents"]), state["time"], state["episode"]
        self.agent_selection, self._skip_agent_selection = state["next"], state["after"]
        self.infos = {agent: {} for agent in self.agents}
        for name in AEC_PARTS:
            setattr(self, name, dict(state[name]))


def turns_in_order() -> Any:
    """With PettingZoo's usual wrapper around it."""
    return OrderEnforcingWrapper(KeptTurns())


class Paid(Windy):
    """Paid by a parameter, which is no part of its own state."""

    def set_parameters(self, parameters: dict[str, float]) -> None:
        self._pay = parameters["pay"]

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, self._pay, *rest


class Remembers(gym.ObservationWrapper):
    """A wrapper of the user's: what it remembers nobody knows."""

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation


def wrapped() -> gym.Env:
    return Remembers(Windy())


class Faulty(Windy):
    """Something is wrong with its state."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def get_state(self) -> Any:
        if self._kind == "raises":
            raise RuntimeError("no state today")
        return {"inner": [{1, 2}]} if self._kind == "set" else {"by id": {7: 1.0}} if self._kind == "key" else super().get_state()

    def set_state(self, state: Any) -> None:
        if self._kind == "refuses":
            raise KeyError("plce")
        super().set_state(state)


class OtherMeaning(Windy):
    """Methods of these names that are about something else, as MuJoCo has them."""

    def set_state(self, place: float, speed: float) -> None:
        raise AssertionError("not meant")
