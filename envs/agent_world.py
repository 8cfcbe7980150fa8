"""One PettingZoo world behind the checks of the boundary: what is the same for agents that act at once and in turns.

What an agent's episode and its rewards are, is said in `envs.agent_episode`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from envs.agent_behaviors import agent_spaces, possible_agents, world_spec
from envs.agent_episode import Agent, AgentDecision, AgentEnd, AgentSpaces, WorldClock
from envs.agent_groups import GroupAccounts
from envs.base import EnvFault
from envs.factories import EnvFactory, behavior_name
from envs.faults import env_fault
from envs.frame_stack import FrameStacker
from envs.packing import copied
from envs.randomization import EnvParameters
from envs.running_episodes import EpisodeKeeper, LoadEpisode, SavedEpisode, SaveEpisode, space_generators
from envs.seeding import EnvSeeds
from envs.single_env import Reset, WithParameters, no_way_on
from envs.specs import EnvAction

MAX_IDLE_STEPS = 10_000
"""A world in which no agent needs an action for so many steps is broken."""


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
        stack = factory.options.frame_stack
        self.spec = world_spec(world, factory.env, self.name, factory.agents, factory.masked, factory.groups, stack)
        behavior_of = {agent: behavior for behavior, own in self.spec.agents.items() for agent in own}
        self.clock = WorldClock()
        self.agents: dict[Any, Agent] = {}
        for name, agent_id in possible_agents(world, factory.env).items():
            observation_space, action_space = agent_spaces(world, agent_id)
            stacker = FrameStacker(observation_space, stack, name=name) if stack > 1 else None
            spaces = AgentSpaces(observation_space if stacker is None else stacker.space, action_space)
            self.agents[agent_id] = Agent(
                name, agent_id, spaces, self.spec.behaviors[behavior_of[name]], self.clock, name in self.spec.groups, stacker)
        members: dict[str, list[Agent]] = {}
        for agent in self.agents.values():
            if agent.name in self.spec.groups:
                members.setdefault(self.spec.groups[agent.name], []).append(agent)
        self.groups = GroupAccounts(members)
        self._ids = {agent.name: agent_id for agent_id, agent in self.agents.items()}
        self._parameters = EnvParameters(world, factory.env)
        self._known: list[Any] = []
        self._keeper = EpisodeKeeper(world, is_world=True)

    def run(self, command: Reset | WithParameters | SaveEpisode | LoadEpisode | dict[str, EnvAction]) -> WorldOutcome | SavedEpisode | EnvFault:
        """Do one command and go on to the next decision; or save or load the running episode. A failure is returned, not raised.

        Args:
            command: `Reset`, or the environment-space action of every agent of the last outcome's decisions, with or without parameters.
        """
        outcome = WorldOutcome()
        try:
            if isinstance(command, WithParameters):
                self._parameters.values, command = command.parameters, command.command
            if isinstance(command, (SaveEpisode, LoadEpisode)):
                return self._keep(command)
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

    def _keep(self, command: SaveEpisode | LoadEpisode) -> SavedEpisode:
        """See `envs.running_episodes`."""
        if isinstance(command, SaveEpisode):
            if not self._keeper.can:
                return SavedEpisode()
            generators = [[name, rng.bit_generator.state] for name, rng in self._space_generators()]
            return SavedEpisode({
                "kept": self._keeper.state(), "parameters": self._parameters.state(), "clock": [self.clock.episode, self.clock.env_step],
                "groups": self.groups.state(), "agents": {agent.name: agent.state() for agent in self.agents.values()},
                "generators": copied(generators), "own": copied(self._own_state()),
            })
        if not self._keeper.can:
            raise no_way_on()
        state, parameters = command.state, self._parameters
        parameters.values = state["parameters"]["given"]
        self._begin_episode(command.seeds, WorldOutcome())
        parameters.values = state["parameters"]["values"]
        self._keeper.load(state["kept"])
        there = dict(self._space_generators())
        for name, bits in state["generators"]:
            there[name].bit_generator.state = bits
        for agent in self.agents.values():
            agent.load_state(state["agents"][agent.name])
        self.groups.load_state(state["groups"])
        self.clock.episode, self.clock.env_step = state["clock"]
        self._known = []
        self._load_own_state(state["own"])
        return SavedEpisode()

    def _space_generators(self) -> Iterator[tuple[str, np.random.Generator]]:
        for agent in self.agents.values():
            yield from space_generators(agent.spaces.action_space, agent.name)

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
        if members != self._known:  # most often those of the step before
            for agent_id in members:
                self._agent(agent_id)
            self._known = members
        return members

    def _agent(self, agent_id: Any) -> Agent:
        try:
            return self.agents[agent_id]
        except (KeyError, TypeError):
            raise EnvFault(f"agent {str(agent_id)!r} is not one of possible_agents: {', '.join(self._ids)}. List every agent that may "
                           "appear there") from None

    def _own_state(self) -> Any:
        """What a kind of world remembers besides, for `envs.packing`."""
        return None

    def _load_own_state(self, state: Any) -> None:
        """Go on from `_own_state`."""

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
        """Whether the world has no agent left; asked before every `_go_on`."""
        raise NotImplementedError
