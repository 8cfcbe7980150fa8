"""Which agents of a PettingZoo world share a behavior: patterns over their names, and the spec that all of them have.

PettingZoo is an extra and never imported here: a world is recognised by the classes of PettingZoo that its own module has loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gymnasium import spaces

from envs.agent_groups import NO_GROUPS, Groups, assign_groups
from envs.agent_names import check_patterns, fits
from envs.faults import env_fault
from envs.frame_stack import FrameStacker
from envs.masks import mask_in
from envs.spaces import behavior_spec, observation_specs
from envs.specs import ActionSpec, BehaviorSpec

SHOWN = 200
"""Characters of a space shown in a message."""


@dataclass(frozen=True)
class WorldSpec(BehaviorSpec):
    """What a world says of its agents; it has no observations and actions of its own.

    Attributes:
        behaviors: behavior name -> spec, in the order of the patterns.
        agents: behavior name -> names of its agents in one world, in the order of ``possible_agents``.
        groups: name of an agent -> its group; none for an agent without one.
    """

    observations: tuple[()] = ()
    action: ActionSpec = field(default_factory=lambda: ActionSpec("none"))
    behaviors: dict[str, BehaviorSpec] = field(default_factory=dict)
    agents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)


def is_parallel_world(made: Any) -> bool:
    """Whether `made` is a PettingZoo ``ParallelEnv``, wrapped or not."""
    return _is_a(made, "ParallelEnv")


def is_agent_world(made: Any) -> bool:
    """Whether `made` is a world of PettingZoo, a ``ParallelEnv`` or an ``AECEnv``, wrapped or not."""
    return _is_a(made, "ParallelEnv") or _is_a(made, "AECEnv")


def _is_a(made: Any, name: str) -> bool:
    # Who has an object of these classes has loaded their module.
    kind = getattr(sys.modules.get("pettingzoo.utils.env"), name, None)
    return kind is not None and isinstance(made, kind)


def possible_agents(world: Any, env: str) -> dict[str, Any]:
    """Name -> PettingZoo's id (most often the name itself) of every agent that may appear in `world`, in its order.

    Raises:
        ValueError: the world does not say it, or two agents have the same name.
    """
    agents = getattr(world, "possible_agents", None)
    if not agents:
        raise ValueError(f"{env}: expected the world to list every agent that may appear in possible_agents, received "
                         f"{'none' if agents is None else list(agents)}; the number of agents has to be known before the first reset. Set it "
                         "in the constructor of the world.")
    names = {str(agent): agent for agent in agents}
    if len(names) != len(agents):
        raise ValueError(f"{env}: expected possible_agents with different names, received {list(map(str, agents))}.")
    return names


def assign_agents(names: Sequence[str], patterns: Mapping[str, Sequence[str]], default: str) -> dict[str, tuple[str, ...]]:
    """Behavior -> its agents.

    Args:
        names: the agents of one world.
        patterns: behavior -> patterns of names (`fnmatch`, upper and lower case differ). Without any, all are one behavior.
        default: its name.

    Raises:
        ValueError: an agent that no pattern or more than one behavior matches; a pattern that no agent matches.
    """
    if not patterns:
        return {default: tuple(names)}
    for behavior, own in patterns.items():
        check_patterns(f"behaviors.{behavior}.agents", own, names, "world")
    assigned: dict[str, list[str]] = {behavior: [] for behavior in patterns}
    for name in names:
        matching = [behavior for behavior, own in patterns.items() if fits(name, own)]
        if not matching:
            known = "; ".join(f"{behavior}: {', '.join(own)}" for behavior, own in patterns.items())
            raise ValueError(f"behaviors: no behavior has the agent {name!r}. The patterns of the key agents are: {known}. Add one that "
                             f"matches it, or a behavior of its own.")
        if len(matching) > 1:
            raise ValueError(f"behaviors: expected one behavior for the agent {name!r}, received {len(matching)}: {', '.join(matching)}. "
                             "Make the patterns of their key agents exclude each other.")
        assigned[matching[0]].append(name)
    return {behavior: tuple(own) for behavior, own in assigned.items()}


def world_spec(
    world: Any, env: str, name: str, patterns: Mapping[str, Sequence[str]], masked: bool | Collection[str] = False,
    groups: Groups = NO_GROUPS, frame_stack: int = 1,
) -> WorldSpec:
    """Behaviors of `world`.

    Args:
        env: what the configuration calls it, for messages.
        name: of the behavior, where there are no `patterns`.
        patterns: see `assign_agents`.
        masked: behaviors whose masks come in ``info``; True means all of them. A key of an observation space is noticed here.
        groups: see `envs.agent_groups.assign_groups`.
        frame_stack: observations that are shown together.

    Raises:
        ValueError: as `assign_agents`, `assign_groups` and `possible_agents`; a space is not supported; agents of one behavior differ.
        EnvFault: the world's own code raised.
    """
    ids = possible_agents(world, env)
    assigned = assign_agents(list(ids), patterns, name)
    group_of = assign_groups(assigned, groups)
    behaviors = {}
    for behavior, own in assigned.items():
        in_info = masked if isinstance(masked, bool) else behavior in masked
        specs = [_agent_spec(world, ids[agent], f"{env}, agent {agent!r}", in_info, frame_stack) for agent in own]
        for agent, spec in zip(own, specs, strict=True):
            if spec != specs[0]:
                raise ValueError(_difference(world, env, behavior, own[0], agent, ids, specs[0], spec))
        behaviors[behavior] = replace(specs[0], grouped=any(agent in group_of for agent in own))
    return WorldSpec(behaviors=behaviors, agents=assigned, groups=group_of)


def _agent_spec(world: Any, agent: Any, place: str, masked: bool, frame_stack: int) -> BehaviorSpec:
    observation_space, action_space = agent_spaces(world, agent)
    spec = behavior_spec(observation_space, action_space, place, masked)
    if frame_stack == 1:
        return spec
    return replace(spec, observations=observation_specs(FrameStacker(observation_space, frame_stack, name=place).space, place))


def agent_spaces(world: Any, agent: Any) -> tuple[spaces.Space, spaces.Space]:
    """Observation and action space of an agent of PettingZoo's id `agent`.

    Raises:
        EnvFault: the world's own code raised.
    """
    try:
        return world.observation_space(agent), world.action_space(agent)
    except (Exception, SystemExit) as error:
        raise env_fault(error, f"asked for the spaces of agent {str(agent)!r}", restartable=False) from error


def masked_in_info(world: Any, spec: WorldSpec, env: str) -> tuple[str, ...]:
    """Behaviors of `spec` that a reset of `world` shows to be masked in ``info`` only; it is reset where only that can tell.

    Raises:
        EnvFault: the world's own code raised.
    """
    unknown = [name for name, behavior in spec.behaviors.items() if behavior.action.discrete_branches and not behavior.action.masked]
    if not unknown:
        return ()
    ids = possible_agents(world, env)
    try:
        result = world.reset()
        infos = result[1] if is_parallel_world(world) else world.infos
        return tuple(name for name in unknown if any(mask_in(infos.get(ids[agent])) is not None for agent in spec.agents[name]))
    except (Exception, SystemExit) as error:
        raise env_fault(error, "in reset()", restartable=False) from error


def _difference(
    world: Any, env: str, behavior: str, one: str, other: str, ids: Mapping[str, Any], first: BehaviorSpec, second: BehaviorSpec
) -> str:
    which = 0 if (first.observations, first.left_out) != (second.observations, second.left_out) else 1
    shown = [str(agent_spaces(world, ids[agent])[which]) for agent in (one, other)]
    shown = [text if len(text) <= SHOWN else f"{text[:SHOWN]}…" for text in shown]
    return (f"{env}: expected the same spaces for all agents of the behavior {behavior}, but the {('observation', 'action')[which]} space "
            f"of {one} is {shown[0]} and that of {other} is {shown[1]}. Give each kind of agent a behavior of its own, with the key "
            f"agents: behaviors.NAME.agents: \"{other}\".")
