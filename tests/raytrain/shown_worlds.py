"""Worlds of several agents that draw themselves. They need PettingZoo."""

from __future__ import annotations

from typing import Any

import numpy as np
from pettingzoo.utils.env import AECEnv

from envs.toy_agents import CountingAgents


class Shown(CountingAgents):
    """Agents of which the last lives for 6 steps; frames are as bright as time has passed."""

    metadata = {"name": "shown_v0", "render_modes": ["human", "rgb_array"], "render_fps": 10}  # noqa: RUF012 - as PettingZoo has it

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(deaths=(2, 4, 6))
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((32, 48, 3), 10 * self.time, np.uint8)


class FramesOnly(Shown):
    metadata = {"name": "frames_v0", "render_modes": ["rgb_array"]}  # noqa: RUF012


class NoFrames(Shown):
    def render(self) -> Any:
        return None


class Turns(AECEnv):
    """Two agents in turn, three actions each, that are paid what they do: 0 or 1; the second may only do 1."""

    metadata = {"name": "turns_v0", "render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        from gymnasium import spaces

        super().__init__()
        self.render_mode = render_mode
        self.possible_agents = ["first", "second"]
        self._sees = spaces.Dict({"observation": spaces.Box(0.0, 9.0, (1,), np.float32), "action_mask": spaces.Box(0, 1, (2,), np.int8)})
        self._acts = spaces.Discrete(2)

    def observation_space(self, agent: str) -> Any:
        return self._sees

    def action_space(self, agent: str) -> Any:
        return self._acts

    def observe(self, agent: str) -> Any:
        return {"observation": np.array([self.time], np.float32), "action_mask": np.array([agent == "first", 1], np.int8)}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents, self.time = list(self.possible_agents), 0
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = "first"

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        assert agent == "first" or action == 1
        self.time += 1
        self._cumulative_rewards[agent] = 0.0
        self.rewards = {name: float(action) if name == agent else 0.0 for name in self.agents}
        if self.time == 6:
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        self.agent_selection = "second" if agent == "first" else "first"

    def render(self) -> Any:
        return np.full((32, 48, 3), 10 * self.time, np.uint8)

    def close(self) -> None:
        pass
