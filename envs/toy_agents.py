"""Tiny worlds of many agents whose transitions can be written down by hand. They need PettingZoo (the extra ``pettingzoo``)."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo.utils.env import AECEnv, ParallelEnv

DEATHS = (25, 50, 75, 100)
"""Ages at which the agents of `CountingAgents` die."""
DYING_TEAMS_STEPS = 20
"""Steps of an episode of `DyingTeams`, counted from 0."""


class _Spaces:
    """The same spaces for every agent: observation (episode, step, number of the agent), two actions."""

    possible_agents: list[str]

    def __init__(self) -> None:
        self._observation_space = spaces.Box(0.0, 10_000.0, (3,), np.float32)
        self._action_spaces = {agent: spaces.Discrete(2) for agent in self.possible_agents}
        self.agents: list[str] = []
        self.episode, self.time = -1, 0

    def observation_space(self, agent: str) -> spaces.Space:
        """Of an agent."""
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space:
        """Of an agent."""
        return self._action_spaces[agent]

    def _see(self, agent: str) -> np.ndarray:
        return np.array([self.episode, self.time, self.possible_agents.index(agent)], np.float32)


class CountingAgents(_Spaces, ParallelEnv):
    """Agents that live for a fixed number of steps each, all paid 1 a step until they die.

    Args:
        deaths: age at which each dies, in steps.
        end: ``"terminated"`` or ``"truncated"``.
        last_observation: whether an agent that dies sees something.
    """

    metadata: dict[str, Any] = {"name": "counting_agents_v0"}  # noqa: RUF012 - as PettingZoo has it

    def __init__(self, deaths: tuple[int, ...] = DEATHS, end: str = "terminated", last_observation: bool = True) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(len(deaths))]
        super().__init__()
        self._deaths, self._end, self._last_observation = dict(zip(self.possible_agents, deaths, strict=True)), end, last_observation

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everyone is born."""
        self.agents, self.time = list(self.possible_agents), 0
        self.episode += 1
        return {agent: self._see(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Wants an action of every agent that lives, and of no other."""
        if set(actions) != set(self.agents):
            raise ValueError(f"expected actions of {self.agents}, received some of {list(actions)}")
        self.time += 1
        acted = list(self.agents)
        dead = {agent: self._deaths[agent] <= self.time for agent in acted}
        self.agents = [agent for agent in acted if not dead[agent]]
        none = dict.fromkeys(acted, False)
        return (
            {agent: self._see(agent) for agent in acted if self._last_observation or not dead[agent]}, dict.fromkeys(acted, 1.0),
            dead if self._end == "terminated" else none, dead if self._end == "truncated" else none, {agent: {} for agent in acted},
        )


class DyingTeams(_Spaces, ParallelEnv):
    """A script of 20 steps in which agents take turns, wait, die, come back, and die at once.

    At time t (steps made so far) agent number t mod 3 sees something and acts, the others pause. Every agent of the world is
    paid its number + 1 each step, whoever acts. ``a_2`` has 1 on top at every step that is not the one after its own turn, dies
    (terminated) with step 7 and is in the world again from step 12 on. ``a_3`` is in the world after no step: it is born and
    terminated in step 5. With step 20 the others are truncated.
    """

    metadata: dict[str, Any] = {"name": "dying_teams_v0"}  # noqa: RUF012 - as PettingZoo has it

    def __init__(self) -> None:
        self.possible_agents = ["a_0", "a_1", "a_2", "a_3"]
        super().__init__()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """The first is ``a_0``'s turn."""
        self.agents, self.time = ["a_0", "a_1", "a_2"], 0
        self.episode += 1
        return self._turn(), {}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Wants the action of the agent whose turn it is, where that one lives."""
        if list(actions) != list(self._turn()):
            raise ValueError(f"expected an action of {list(self._turn())}, received {list(actions)}")
        self.time += 1
        rewards = {agent: self.reward(agent, self.time) for agent in self.agents}
        terminated, truncated = {}, {}
        if self.time == 5:
            terminated["a_3"], rewards["a_3"] = True, 100.0
        if self.time == 7:
            terminated["a_2"] = True
            self.agents = ["a_0", "a_1"]
        if self.time == 12:
            self.agents = ["a_0", "a_1", "a_2"]
        if self.time == DYING_TEAMS_STEPS:
            truncated = dict.fromkeys(self.agents, True)
            self.agents = []
        observations = self._turn() | {agent: self._see(agent) for agent in [*terminated, *truncated]}
        return observations, rewards, terminated, truncated, {}

    @staticmethod
    def reward(agent: str, time: int) -> float:
        """What an agent of the world is paid in step number `time`, counted from 1."""
        number = int(agent[-1])
        return number + 1.0 + (1.0 if number == 2 and (time - 1) % 3 != 2 else 0.0)

    def _turn(self) -> dict[str, np.ndarray]:
        agent = f"a_{self.time % 3}"
        return {agent: self._see(agent)} if agent in self.agents else {}


class TurnTeams(_Spaces, AECEnv):
    """Agents in turns: each acts `turns` times and is then terminated; every action pays 1 to all that are in the world.

    An agent is paid while others act: before its first turn, between two, and between its last turn and its removal.

    Args:
        turns: how often each agent acts.
    """

    metadata: dict[str, Any] = {"name": "turn_teams_v0", "is_parallelizable": False}  # noqa: RUF012 - as PettingZoo has it

    def __init__(self, turns: tuple[int, ...] = (2, 3)) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(len(turns))]
        super().__init__()
        self._turns = dict(zip(self.possible_agents, turns, strict=True))

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """The first agent begins. One without a turn is dead from the start."""
        self.agents, self.time = list(self.possible_agents), 0
        self.episode += 1
        self._left = dict(self._turns)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = {agent: not self._left[agent] for agent in self.agents}
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]

    def observe(self, agent: str) -> np.ndarray:
        """What an agent sees now."""
        return self._see(agent)

    def step(self, action: Any) -> None:
        """The selected agent acts, or is taken out."""
        agent = self.agent_selection
        order = self.agents.index(agent) + 1
        if self.terminations[agent]:
            after = [*self.agents[order:], *self.agents[: order - 1]]
            self._was_dead_step(action)
            self._skip_agent_selection = None
        else:
            self.time += 1
            self._cumulative_rewards[agent] = 0.0
            self.rewards = dict.fromkeys(self.agents, 1.0)
            self._accumulate_rewards()
            self._left[agent] -= 1
            self.terminations[agent] = self._left[agent] == 0
            after = [*self.agents[order:], *self.agents[:order]]
        if after:
            self.agent_selection = after[0]


class MaskedAgents(CountingAgents):
    """Agents that may choose only 0 at even and only 1 at odd times, told in ``info``; another choice is a ValueError."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everyone is born."""
        observations, infos = super().reset(seed, options)
        return observations, {agent: self._info() for agent in infos}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Insists on the masks."""
        wrong = [agent for agent, action in actions.items() if action != self.time % 2]
        if wrong:
            raise ValueError(f"an action of {wrong} was not allowed at time {self.time}")
        *parts, infos = super().step(actions)
        return (*parts, {agent: self._info() for agent in infos})

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.arange(2) == self.time % 2}
