"""One PettingZoo world behind the checks of the boundary: what is the same for agents that act at once and in turns.

An agent's *episode* runs from its first decision to its own end. It may begin after the world's (an agent that joins), end before it
(one that dies), and the same name may begin another one in the same world. The rules for rewards:

- Everything an agent is given between two of its decisions, while it pauses or others act, is summed (float64) into the transition
  between them; what comes after its last decision goes into its terminal step.
- What it is given in the world before its first decision goes into its first transition, because a first decision has no reward.
- An agent that ends without a decision of its own has no transition: it makes no sample, and its rewards are nobody's. Nor are
  those of an agent that the world does not list in ``agents``.
- What its group is given reaches it in the same way, in a sum of its own; see `envs.agent_groups`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from envs.agent_behaviors import agent_spaces, possible_agents, world_spec
from envs.agent_groups import GroupAccounts, gives_group_reward, without_group
from envs.agent_reader import AgentReader
from envs.base import EnvFault
from envs.boundary import BOUNDS_CHECK_STEPS, read_flag, read_reward
from envs.factories import EnvFactory, behavior_name
from envs.faults import env_fault
from envs.randomization import EnvParameters
from envs.seeding import EnvSeeds
from envs.single_env import Reset, WithParameters
from envs.specs import BehaviorSpec, EnvAction, Observations

MAX_IDLE_STEPS = 10_000
"""A world in which no agent needs an action for so many steps is broken."""


@dataclass(slots=True)
class AgentDecision:
    """An agent needs an action; the fields are those of `envs.specs.DecisionSteps` without the first axis."""

    agent: str
    obs: Observations
    reward: float
    first: bool
    action_mask: np.ndarray | None
    group_reward: float
    env_step: int
    world_episode: int


@dataclass(slots=True)
class AgentEnd:
    """The episode of an agent that had acted has ended; the fields are those of `envs.specs.TerminalSteps` without the first axis."""

    agent: str
    obs: Observations
    reward: float
    terminated: bool
    truncated: bool
    action_mask: np.ndarray | None
    group_reward: float
    env_step: int
    world_episode: int
    group_ended: bool = False


@dataclass(slots=True)
class WorldOutcome:
    """What one command brought.

    Attributes:
        decisions: agents that need an action now, at least one, in the order of ``possible_agents``.
        ends: episodes that ended; those come before the decisions. An agent is in it once at most.
        group_ends: (name, return) of groups that ended.
        steps: calls of the world's ``step``, without those that only take a dead agent out of an AEC world.
        first: the world has begun a new episode.
    """

    decisions: list[AgentDecision] = field(default_factory=list)
    ends: list[AgentEnd] = field(default_factory=list)
    group_ends: list[tuple[str, float]] = field(default_factory=list)
    steps: int = 0
    first: bool = False


@dataclass(slots=True)
class AgentSpaces:
    """What `envs.agent_reader.AgentReader` wants to know of an agent."""

    observation_space: gym.Space
    action_space: gym.Space


@dataclass(slots=True)
class WorldClock:
    """Where a world is: its episode, counted from 0, and the steps made in it."""

    episode: int = -1
    env_step: int = 0


class Agent:
    """Copies and checks what one agent of a world sees, and keeps its account.

    Args:
        clock: of the world.
        has_group: it shares a reward with others.

    Attributes:
        name, id: as text, and as PettingZoo knows it.
        running: it has had a first decision and no end since.
    """

    def __init__(self, name: str, agent_id: Any, spaces: AgentSpaces, spec: BehaviorSpec, clock: WorldClock, has_group: bool) -> None:
        self.name, self.id = name, agent_id
        self.spaces = spaces
        self.running = False
        self._reader = AgentReader(spaces, spec)
        self._last_obs: Observations | None = None
        self._clock, self._has_group = clock, has_group
        self._owed = self._group_owed = 0.0
        self._reads = 0

    def forget(self) -> None:
        """Begin a new episode of the world."""
        self.running, self._owed, self._group_owed, self._last_obs = False, 0.0, 0.0, None

    def earn(self, reward: Any) -> None:
        """Add to what the agent gets with its next decision or its end."""
        try:
            value = read_reward(reward)
        except ValueError as error:
            raise self._fault(str(error)) from None
        if not math.isfinite(value):
            raise self._fault(f"non-finite reward {value}")
        self._owed += value

    def share(self, reward: float) -> None:
        """Add to what reaches the agent, as one of its group, with its next decision or its end."""
        self._group_owed += reward

    def decide(self, value: Any, info: Any) -> AgentDecision:
        """The agent sees `value` and has to act."""
        first, reward, group_reward = not self.running, 0.0, 0.0
        if not first:
            reward, group_reward = self._owed, self._group_owed
            self._owed = self._group_owed = 0.0
        obs = self._last_obs = self._read(value)
        self.running = True
        mask = self._named(self._reader.mask, value, info)
        self._refuse_group_reward(info)
        return AgentDecision(self.name, obs, reward, first, mask, group_reward, self._clock.env_step, self._clock.episode)

    def end(self, value: Any, info: Any, terminated: bool, truncated: bool) -> AgentEnd | None:
        """The agent's episode is over; None where it never had a decision.

        Without an observation (None) the one that it acted on stands for it after a termination, where nothing is bootstrapped from
        it; after a truncation that is a fault.
        """
        reward, group_reward, was_running = self._owed, self._group_owed, self.running
        last_obs = self._last_obs
        self.forget()
        if not was_running:
            return None
        if value is None and not terminated:
            raise self._fault("it was truncated without a last observation, which is needed to estimate what would have followed. Return "
                              "its observation with the step that ends it")
        obs = last_obs if value is None else self._read(value)
        mask = self._named(self._reader.final_mask, value, info, terminated)
        self._refuse_group_reward(info)
        flags = terminated, truncated and not terminated
        return AgentEnd(self.name, obs, reward, *flags, mask, group_reward, self._clock.env_step, self._clock.episode)

    def ended(self, terminated: Any, truncated: Any) -> tuple[bool, bool]:
        """The two flags, checked."""
        try:
            return read_flag(terminated, "terminated"), read_flag(truncated, "truncated")
        except ValueError as error:
            raise self._fault(str(error)) from None

    def left(self) -> EnvFault:
        """It is not among ``agents`` any more, and nothing said that it ended."""
        return self._fault("it left the world's agents without terminated or truncated. Set one of the two, with its last observation, "
                           "in the step that takes it out")

    def _refuse_group_reward(self, info: Any) -> None:
        if not self._has_group and gives_group_reward(info):
            raise without_group(self.name)

    def _read(self, value: Any) -> Observations:
        self._reads += 1
        return self._named(self._reader.obs, value, self._reads <= BOUNDS_CHECK_STEPS)

    def _named(self, read: Callable[..., Any], *args: Any) -> Any:
        """What `read` brings; a fault says whose it is."""
        try:
            return read(*args)
        except EnvFault as fault:
            raise self._fault(fault.message) from None

    def _fault(self, message: str) -> EnvFault:
        return EnvFault(f"agent {self.name!r}: {message}")


class AgentWorld:
    """A PettingZoo world that begins a new episode by itself when it has no agent left.

    Attributes:
        name: of the world.
        spec: its behaviors and their agents.
        agents: PettingZoo's id -> agent, in the order of ``possible_agents``.
        groups: what they share.
        clock: where the world is.
    """

    def __init__(self, factory: EnvFactory, world: Any) -> None:
        self.world = world
        self.name = behavior_name(factory.env, world)
        self.spec = world_spec(world, factory.env, self.name, factory.agents, factory.masked, factory.groups)
        behavior_of = {agent: behavior for behavior, own in self.spec.agents.items() for agent in own}
        self.clock = WorldClock()
        self.agents = {
            agent_id: Agent(name, agent_id, AgentSpaces(*agent_spaces(world, agent_id)), self.spec.behaviors[behavior_of[name]], self.clock,
                            name in self.spec.groups)
            for name, agent_id in possible_agents(world, factory.env).items()
        }
        members: dict[str, list[Agent]] = {}
        for agent in self.agents.values():
            if agent.name in self.spec.groups:
                members.setdefault(self.spec.groups[agent.name], []).append(agent)
        self.groups = GroupAccounts(members)
        self._ids = {agent.name: agent_id for agent_id, agent in self.agents.items()}
        self._parameters = EnvParameters(world, factory.env)

    def run(self, command: Reset | WithParameters | dict[str, EnvAction]) -> WorldOutcome | EnvFault:
        """Do one command and go on to the next decision. A failure is returned, not raised.

        Args:
            command: `Reset`, or the environment-space action of every agent of the last outcome's decisions, with or without parameters.
        """
        outcome = WorldOutcome()
        try:
            if isinstance(command, WithParameters):
                self._parameters.values, command = command.parameters, command.command
            if isinstance(command, Reset):
                self._begin_episode(command.seeds, outcome)
            else:
                self._step({self._ids[name]: action for name, action in command.items()}, outcome)
            for _ in range(MAX_IDLE_STEPS):
                if outcome.decisions:
                    return outcome
                if self._is_over():
                    self._begin_episode(None, outcome)
                else:
                    self._go_on(outcome)
            raise EnvFault(f"no agent needed an action in {MAX_IDLE_STEPS} steps of the world")
        except EnvFault as fault:
            if outcome.first:
                fault.step = 0
            return fault

    def random_command(self, outcome: WorldOutcome) -> dict[str, EnvAction]:
        """Actions from the spaces of the agents that need one; allowed ones where the space is a Discrete."""
        command = {}
        for decision in outcome.decisions:
            space, mask = self.agents[self._ids[decision.agent]].spaces.action_space, decision.action_mask
            is_masked = mask is not None and isinstance(space, gym.spaces.Discrete)
            command[decision.agent] = space.sample(mask.astype(np.int8)) if is_masked else space.sample()
        return command

    def close(self) -> None:
        """Close the world."""
        self.world.close()

    def _begin_episode(self, seeds: EnvSeeds | None, outcome: WorldOutcome) -> None:
        outcome.first = True
        self.clock.episode += 1
        self.clock.env_step = 0
        self.groups.forget()
        for agent in self.agents.values():
            agent.forget()
        if seeds is not None:
            streams = np.random.SeedSequence(seeds.action_space).generate_state(len(self.agents))
            for agent, stream in zip(self.agents.values(), streams, strict=True):
                agent.spaces.action_space.seed(int(stream) >> 1)
        self._reset({"seed": None if seeds is None else seeds.reset, **self._parameters.give()}, outcome)
        if not self._members():
            raise EnvFault("the world has no agents after reset(): nobody would ever act")

    def _stepped(self, outcome: WorldOutcome) -> None:
        """The world has made a step with its agents' actions."""
        outcome.steps += 1
        self.clock.env_step += 1

    def _call(self, doing: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the user's code returns; what it raises is a fault."""
        try:
            return function(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise env_fault(error, f"in {doing}") from error

    def _members(self) -> list[Any]:
        """The ids in ``agents``, all of them known."""
        members = list(self._call("agents", getattr, self.world, "agents"))
        for agent_id in members:
            self._agent(agent_id)
        return members

    def _agent(self, agent_id: Any) -> Agent:
        try:
            return self.agents[agent_id]
        except (KeyError, TypeError):
            raise EnvFault(f"agent {str(agent_id)!r} is not one of possible_agents: {', '.join(self._ids)}. List every agent that may "
                           "appear there") from None

    def _reset(self, arguments: dict[str, Any], outcome: WorldOutcome) -> None:
        """Begin an episode of the world, whose reset takes `arguments`; decisions may be added to `outcome`."""
        raise NotImplementedError

    def _step(self, actions: dict[Any, EnvAction], outcome: WorldOutcome) -> None:
        """Let the world step with the actions of the agents that decided."""
        raise NotImplementedError

    def _go_on(self, outcome: WorldOutcome) -> None:
        """Nobody needs an action yet."""
        raise NotImplementedError

    def _is_over(self) -> bool:
        """Whether the world has no agent left."""
        raise NotImplementedError
