"""N copies of a PettingZoo world, of many agents each, as one `BatchedEnv`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from envs.agent_behaviors import WorldSpec
from envs.agent_episode import AgentDecision, AgentEnd
from envs.agent_world import WorldOutcome
from envs.copies import CopiesEnv, Workers, gather
from envs.packing import copied
from envs.restarts import RestartLimits
from envs.specs import (
    Actions,
    BehaviorSpec,
    DecisionSteps,
    EnvAction,
    Steps,
    TerminalSteps,
    env_action_rows,
    no_terminal_steps,
    to_env_actions,
)


class _Lane:
    """One behavior: its slots, and the arrays of its messages, which the next `poll` writes again.

    Attributes:
        waiting: bool ``[slots]``: a decision was delivered and not answered yet.
        running: bool ``[slots]``: an episode's first decision was delivered, and no end since.
        episodes_before: int64 ``[copies]``: episodes that earlier worlds of a copy that was started anew have counted, which come on top of
            those of its present one.
        group_id: int64 ``[slots]``, see `envs.specs.DecisionSteps`; None without groups.
    """

    def __init__(
        self, spec: BehaviorSpec, agents: Sequence[str], num_envs: int, groups: Mapping[str, str], episodes_before: np.ndarray
    ) -> None:
        self.spec = spec
        self.agents = tuple(agents)
        self.num_slots = num_envs * len(agents)
        self.group_id = _group_ids(agents, num_envs, groups) if spec.grouped else None
        self.waiting = np.zeros(self.num_slots, bool)
        self.running = np.zeros(self.num_slots, bool)
        self.episodes_before = episodes_before
        self._obs = {o.name: np.empty((self.num_slots, *o.shape), o.dtype) for o in spec.observations}
        self._no_terminal = no_terminal_steps(spec)

    def steps(
        self, decisions: list[tuple[int, AgentDecision]], ends: list[tuple[int, AgentEnd]], env_steps: int,
        group_returns: list[tuple[int, float]], lost: np.ndarray | None,
    ) -> Steps:
        """The message of agents, given as (slot, what it sees), of groups that ended, as (id, return), and of agents that are lost."""
        slots, seen = np.array([slot for slot, _ in decisions], np.int64), [decision for _, decision in decisions]
        n = len(seen)
        if ends:
            self.running[[slot for slot, _ in ends]] = False
        self.waiting[slots] = self.running[slots] = True
        obs = {name: gather([d.obs[name] for d in seen], array[:n]) if seen else array[:0] for name, array in self._obs.items()}
        decision_steps = DecisionSteps(
            slots, obs, np.array([d.reward for d in seen], np.float32),
            np.array([d.first for d in seen], bool), self._masks(seen), **self._groups(slots, seen))
        terminal = self._terminal(ends) if ends else self._no_terminal
        if group_returns:
            terminal = replace(
                terminal, group_return=np.array([total for _, total in group_returns]), group_return_id=np.array([one for one, _ in group_returns], np.int64))
        return Steps(decision_steps, terminal, env_steps, lost)

    def give_up(self, copy: int) -> list[int]:
        """Forget the agents of a copy; returns the slots of those that were in an episode."""
        own = slice(copy * len(self.agents), (copy + 1) * len(self.agents))
        lost = own.start + np.flatnonzero(self.running[own])
        self.waiting[own] = self.running[own] = False
        return lost.tolist()

    def _terminal(self, ends: list[tuple[int, AgentEnd]]) -> TerminalSteps:
        slots, seen = np.array([slot for slot, _ in ends], np.int64), [end for _, end in ends]
        groups = self._groups(slots, seen)
        if groups:
            groups |= {"group_ended": np.array([e.group_ended for e in seen]), "group_return": self._no_terminal.group_return,
                       "group_return_id": self._no_terminal.group_return_id}
        return TerminalSteps(
            agent_id=slots, obs={name: np.stack([e.obs[name] for e in seen]) for name in self._obs},
            reward=np.array([e.reward for e in seen], np.float32), terminated=np.array([e.terminated for e in seen]),
            truncated=np.array([e.truncated for e in seen]), action_mask=self._masks(seen), **groups,
        )

    def _groups(self, slots: np.ndarray, seen: Sequence[AgentDecision | AgentEnd]) -> dict[str, np.ndarray]:
        """The columns that decisions and ends have in common."""
        if self.group_id is None:
            return {}
        episodes = np.array([s.world_episode for s in seen], np.int64) + self.episodes_before[slots // len(self.agents)]
        return {
            "group_id": self.group_id[slots], "group_reward": np.array([s.group_reward for s in seen], np.float32),
            "env_step": np.array([s.env_step for s in seen], np.int64), "world_episode": episodes,
        }

    def _masks(self, seen: Sequence[AgentDecision | AgentEnd]) -> np.ndarray | None:
        if not self.spec.action.masked:
            return None
        masks = np.empty((len(seen), self.spec.action.choices), bool)
        return gather([step.action_mask for step in seen], masks) if seen else masks


class PettingZooEnv(CopiesEnv):
    """N copies of one world; a behavior's slot is ``copy · agents + index``, with its agents in the order of ``possible_agents``.

    A copy steps when all its agents that need an action, of all behaviors, have one: every agent that sees something in a
    ``ParallelEnv``, the selected one in an ``AECEnv``. What an agent's episode and its rewards are, is said in `envs.agent_episode`.
    Seeds, workers, timeouts and `wait_for_all` are those of `CopiesEnv`; episodes there are the world's.

    ``env_steps`` counts calls of the world's ``step`` (in an ``AECEnv`` each one with an action), in one behavior of each message.
    `in_flight` counts the agents whose world steps now: while it waits for the actions of others, nothing of it is in flight.

    Attributes:
        agents: behavior -> names of its agents in one world.
        episodes: int64 ``[copies]``, number of the episode that runs in each world as of the last `poll`; -1 before the first.
    """

    def __init__(
        self,
        workers: Workers,
        num_envs: int,
        seed: np.random.SeedSequence,
        first_env_index: int = 0,
        wait_for_all: bool = False,
        step_timeout_s: float | None = None,
        restart_limits: RestartLimits | None = None,
    ) -> None:
        super().__init__(workers, num_envs, seed, first_env_index, wait_for_all, step_timeout_s, restart_limits)
        spec: WorldSpec = workers.spec
        self.behaviors, self.agents = dict(spec.behaviors), dict(spec.agents)
        self._episodes_before = np.zeros(num_envs, np.int64)
        self._lanes = {name: _Lane(behavior, spec.agents[name], num_envs, spec.groups, self._episodes_before)
                       for name, behavior in spec.behaviors.items()}
        self._groups = list(dict.fromkeys(spec.groups.values()))
        self._sharing = {  # group -> behaviors with agents of it
            group: [name for name, own in spec.agents.items() if any(spec.groups.get(agent) == group for agent in own)]
            for group in set(spec.groups.values())
        }
        self.num_slots = {name: lane.num_slots for name, lane in self._lanes.items()}
        self._place = {  # agent -> its behavior, its index in it, how many agents the behavior has in a world
            agent: (name, index, len(lane.agents)) for name, lane in self._lanes.items() for index, agent in enumerate(lane.agents)}
        self.episodes = np.full(num_envs, -1, np.int64)
        self._world_episode = [-1] * num_envs  # the newest one that each copy's present world has counted
        self._needed = [0] * num_envs  # actions that the copy waits for
        self._answers: list[dict[str, EnvAction]] = [{} for _ in range(num_envs)]
        self._stepping: dict[int, int] = {}  # copy -> agents whose actions it does now

    def reset(self) -> None:
        """Begin a new episode in every world. Copies that are busy reset when their step is done."""
        self._stepping.clear()
        self._needed[:] = [0] * len(self._needed)
        for given in self._answers:
            given.clear()
        for lane in self._lanes.values():
            lane.waiting[:] = lane.running[:] = False
        self.episodes[:] = -1
        super().reset()

    def poll(self, timeout_s: float) -> dict[str, Steps]:
        """See `BatchedEnv.poll`."""
        message = super().poll(timeout_s)
        return message[self._name] if message else {}  # by `_message`, which brings all behaviors at once

    def act(self, behavior: str, agent_id: np.ndarray, actions: Actions) -> None:
        """See `BatchedEnv.act`."""
        lane, slots = self._lanes[behavior], agent_id.tolist()
        if not lane.waiting[agent_id].all() or len(set(slots)) != len(slots):
            raise ValueError(f"act: expected each agent of {behavior} once and only agents that wait for a decision, received {slots}; "
                             f"{np.flatnonzero(lane.waiting).tolist()} wait.")
        env_actions = env_action_rows(lane.spec.action, to_env_actions(lane.spec.action, actions))
        lane.waiting[agent_id] = False
        for slot, action in zip(slots, env_actions, strict=True):
            copy, index = divmod(slot, len(lane.agents))
            given = self._answers[copy]
            given[lane.agents[index]] = action
            if len(given) == self._needed[copy]:
                self._stepping[copy] = len(given)
                self._answers[copy] = {}
                self._begin(copy, given)

    @property
    def in_flight(self) -> int:
        """Agents whose actions are being done; see the class."""
        return sum(self._stepping.values())

    def running_state(self) -> dict[str, Any] | None:
        """See `BatchedEnv.running_state`."""
        state = None if self._stepping else super().running_state()
        if state is None:
            return None
        lanes = {name: {"waiting": lane.waiting.copy(), "running": lane.running.copy()} for name, lane in self._lanes.items()}
        return {**state, "lanes": lanes, "episodes": self.episodes.copy(), "episodes_before": self._episodes_before.copy(),
                "world_episode": list(self._world_episode), "needed": list(self._needed), "answers": copied(self._answers)}

    def load_running_state(self, state: dict[str, Any]) -> None:
        """See `BatchedEnv.load_running_state`."""
        super().load_running_state(state)
        for name, lane in self._lanes.items():
            lane.waiting[:], lane.running[:] = state["lanes"][name]["waiting"], state["lanes"][name]["running"]
        self.episodes[:], self._episodes_before[:] = state["episodes"], state["episodes_before"]
        self._world_episode, self._needed, self._answers = list(state["world_episode"]), list(state["needed"]), list(state["answers"])

    def lesson_of(self, behavior: str) -> np.ndarray:
        """See `BatchedEnv.lesson_of`; agents have that of their world."""
        return np.repeat(super().lesson_of(behavior), len(self.agents[behavior]))

    def _give_up(self, slot: int) -> None:
        for name, lane in self._lanes.items():
            if lost := lane.give_up(slot):
                self._lost.setdefault(name, []).extend(lost)
        self._stepping.pop(slot, None)
        self._needed[slot] = 0
        self._answers[slot] = {}
        # Episodes of team-mates are told apart by this number, so that it goes on where the new world begins at 0.
        self._episodes_before[slot] += self._world_episode[slot] + 1
        self._world_episode[slot] = -1

    def _message(self, slots: np.ndarray, outcomes: list[WorldOutcome]) -> dict[str, Steps]:
        first = np.array([outcome.first for outcome in outcomes])
        self._note_lessons(slots, first)
        self.episodes[slots[first]] = self._episodes_begun[slots[first]] - 1
        decisions: dict[str, list[tuple[int, AgentDecision]]] = {name: [] for name in self._lanes}
        ends: dict[str, list[tuple[int, AgentEnd]]] = {name: [] for name in self._lanes}
        for copy, outcome in zip(slots.tolist(), outcomes, strict=True):
            self._stepping.pop(copy, None)
            self._needed[copy] = len(outcome.decisions)
            self._world_episode[copy] = outcome.decisions[0].world_episode
            for steps, lists in ((outcome.decisions, decisions), (outcome.ends, ends)):
                for step in steps:
                    name, index, width = self._place[step.agent]
                    lists[name].append((copy * width + index, step))
        group_returns: dict[str, list[tuple[int, float]]] = {name: [] for name in self._lanes}
        for copy, outcome in zip(slots.tolist(), outcomes, strict=True) if self._groups else ():
            for group, total in outcome.group_ends:
                for name in self._sharing[group]:
                    group_returns[name].append((copy * len(self._groups) + self._groups.index(group), total))
        env_steps = sum(outcome.steps for outcome in outcomes)
        message = {}
        for name, lane in self._lanes.items():
            lost = self._take_lost(name)
            if decisions[name] or ends[name] or group_returns[name] or lost is not None:
                message[name] = lane.steps(decisions[name], ends[name], 0 if message else env_steps, group_returns[name], lost)
        return message


def _group_ids(agents: Sequence[str], num_envs: int, groups: Mapping[str, str]) -> np.ndarray:
    """int64 ``[slots]``: ``copy · groups + index`` of each slot's group, -1 where its agent has none."""
    names = list(dict.fromkeys(groups.values()))
    index = np.array([names.index(groups[agent]) if agent in groups else -1 for agent in agents], np.int64)
    return np.where(index < 0, -1, np.arange(num_envs, dtype=np.int64)[:, None] * len(names) + index).ravel()
