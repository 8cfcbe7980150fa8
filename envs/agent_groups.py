"""Groups of agents of one world that share a reward: who is in which, and what each has received.

A world gives a group's reward in ``info["group_reward"]`` of any agent of the group, or of several (the same number then), for the step
just made: in the infos that ``step`` of a ``ParallelEnv`` returns, in ``infos`` of an ``AECEnv`` after a step with an action. The rules:

- It reaches every agent of the group that is in the world, and like its own rewards it is summed (float64) between two decisions.
- The group's return counts it once, whoever of the group was there to receive it.
- A group ends when none of its agents is in the world; one that comes back begins it anew. Only groups of which somebody had a
  decision have a return.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from envs.agent_names import check_patterns, fits
from envs.base import EnvFault
from envs.boundary import read_reward

GROUP_REWARD = "group_reward"
"""Key of an agent's ``info``."""
Groups = Mapping[str, Mapping[str, Sequence[str]]]
"""Behavior -> group -> patterns of the names of its agents. A group may have agents of several behaviors."""
NO_GROUPS: Groups = MappingProxyType({})


class Member(Protocol):
    """What a group needs of an agent; `envs.agent_episode.Agent` is one."""

    name: str
    id: Any

    def share(self, reward: float) -> None:
        """Add to what reaches the agent with its next decision or its end."""


def assign_groups(agents: Mapping[str, Sequence[str]], groups: Groups) -> dict[str, str]:
    """Agent -> its group; agents without one are not in it.

    Args:
        agents: behavior -> the names of its agents in one world.

    Raises:
        ValueError: a behavior that is not there, a group without a pattern, a pattern that no agent of the behavior has, or an agent of
            two groups.
    """
    assigned: dict[str, str] = {}
    for behavior, own in groups.items():
        key = f"behaviors.{behavior}.groups"
        if behavior not in agents:
            raise ValueError(f"{key}: expected groups of a behavior of this environment, which has {', '.join(agents)}. Correct the name.")
        names = agents[behavior]
        for group, patterns in own.items():
            check_patterns(f"{key}.{group}", patterns, names, "behavior")
        for name in names:
            matching = [group for group, patterns in own.items() if fits(name, patterns)]
            if len(matching) > 1:
                raise ValueError(f"{key}: expected one group for the agent {name!r}, received {len(matching)}: {', '.join(matching)}. Make "
                                 "their patterns exclude each other.")
            if matching:
                assigned[name] = matching[0]
    return assigned


def gives_group_reward(info: Any) -> bool:
    """Whether an agent's ``info`` has a reward for its group."""
    # Asked for every agent and step; an instance check of an abstract class takes several times as long.
    return GROUP_REWARD in info if type(info) is dict else isinstance(info, Mapping) and GROUP_REWARD in info


def without_group(agent: str) -> EnvFault:
    """A world gives a group reward to an agent that has no group; left alone it would be lost without a word."""
    return EnvFault(f"agent {agent!r}: info[{GROUP_REWARD!r}] is given, but it is in no group. Name its group: behaviors.NAME.groups: "
                    f"{{GROUP: \"{agent}\"}}, with the patterns of all who share that reward")


class GroupAccounts:
    """What the groups of one world have received in its present episode.

    Args:
        groups: name -> its agents.
    """

    def __init__(self, groups: Mapping[str, Sequence[Member]]) -> None:
        self._groups = {name: tuple(members) for name, members in groups.items()}
        self._group_of = {member.name: name for name, members in groups.items() for member in members}
        self._members = {member.id: member for members in groups.values() for member in members}
        self._return = dict.fromkeys(groups, 0.0)
        self._took_part = dict.fromkeys(groups, False)

    def __bool__(self) -> bool:
        """Whether there are groups."""
        return bool(self._groups)

    def forget(self) -> None:
        """Begin a new episode of the world."""
        self._return = dict.fromkeys(self._groups, 0.0)
        self._took_part = dict.fromkeys(self._groups, False)

    def state(self) -> dict[str, Any]:
        """What has been received in the running episode."""
        return {"return": dict(self._return), "took_part": dict(self._took_part)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self._return, self._took_part = dict(state["return"]), dict(state["took_part"])

    def pay(self, infos: Any, present: Container[Any]) -> None:
        """Take in what a step of the world brought.

        Args:
            infos: PettingZoo's id -> ``info``.
            present: ids of the agents that receive something.

        Raises:
            EnvFault: not a finite number, two for one group, or one for an agent without a group.
        """
        if not isinstance(infos, Mapping):
            return
        given: dict[str, tuple[Member, float]] = {}
        for agent_id, info in infos.items():
            if not gives_group_reward(info):
                continue
            member = self._members.get(agent_id)
            if member is None:
                raise without_group(str(agent_id))
            reward, group = _read(member, info[GROUP_REWARD]), self._group_of[member.name]
            first, agreed = given.setdefault(group, (member, reward))
            if reward != agreed:
                raise EnvFault(f"group {group!r}: expected one {GROUP_REWARD} in a step, received {agreed} in the info of {first.name!r} "
                               f"and {reward} in that of {member.name!r}. Give the same to all of the group, or to one of it only")
        for group, (_, reward) in given.items():
            there = [member for member in self._groups[group] if member.id in present]
            self._return[group] += reward if there else 0.0
            for member in there:
                member.share(reward)

    def note_end(self, agent: str, remaining: Container[Any]) -> bool:
        """An agent that had acted ends while `remaining` (ids) go on in the world; returns whether its group ends with it."""
        group = self._group_of.get(agent)
        if group is None:
            return False
        self._took_part[group] = True
        return self._is_gone(group, remaining)

    def close(self, present: Container[Any]) -> list[tuple[str, float]]:
        """Groups that have ended, none of their agents being among `present` (ids), with their returns; once for each end."""
        closed = []
        for group in self._groups:
            if (self._took_part[group] or self._return[group]) and self._is_gone(group, present):
                if self._took_part[group]:
                    closed.append((group, self._return[group]))
                self._return[group], self._took_part[group] = 0.0, False
        return closed

    def _is_gone(self, group: str, present: Container[Any]) -> bool:
        return not any(member.id in present for member in self._groups[group])


def _read(member: Member, value: Any) -> float:
    try:
        reward = read_reward(value)
    except ValueError as error:
        raise EnvFault(f"agent {member.name!r}: info[{GROUP_REWARD!r}]: {error}") from None
    if not math.isfinite(reward):
        raise EnvFault(f"agent {member.name!r}: non-finite info[{GROUP_REWARD!r}] {reward}")
    return reward
