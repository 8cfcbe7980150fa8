"""A PettingZoo ``ParallelEnv``: all agents that see something act at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.agent_world import AgentWorld, WorldOutcome
from envs.base import EnvFault
from envs.factories import EnvFactory
from envs.held_actions import HeldActions
from envs.running_episodes import held_state, load_held
from envs.specs import EnvAction

_MAPPINGS = (dict, Mapping)
"""The plain class first: an instance check of an abstract one takes several times as long."""
PARTS = ("observations", "rewards", "terminations", "truncations", "infos")


class ParallelWorld(AgentWorld):
    """See `AgentWorld`.

    An agent of ``agents`` without an observation (missing or None) pauses: it is given no action, and its rewards add up. Where all
    pause, the world is stepped without an action. An agent that ends and stays in ``agents`` counts as gone until a later step shows
    it without an end; the world's episode is over when nobody else is left.

    With ``action_repeat`` an agent that needs an action is asked only when it has done its last one so often (see `HeldActions`); what
    it sees before is nobody's, and its rewards add up.
    """

    def __init__(self, factory: EnvFactory, world: Any) -> None:
        super().__init__(factory, world)
        self._live: set[Any] = set()  # in `agents` after the last step or reset, and not ended by it
        self._held = HeldActions(factory.options.action_repeat) if factory.options.action_repeat > 1 else None

    def _reset(self, arguments: dict[str, Any], outcome: WorldOutcome) -> None:
        if self._held is not None:
            self._held.clear()
        result = self._call("reset()", self.world.reset, **arguments)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], _MAPPINGS):
            raise EnvFault(f"reset(): expected (observations, infos), two dicts of agents, received {_described(result)}")
        observations, infos = result
        infos = infos if isinstance(infos, _MAPPINGS) else {}
        self._live = set(self._members())
        for agent_id, agent in self.agents.items():
            if agent_id in self._live and (value := observations.get(agent_id)) is not None:
                outcome.decisions.append(agent.decide(value, infos.get(agent_id)))

    def _step(self, actions: dict[Any, EnvAction], outcome: WorldOutcome) -> None:
        if self._held is not None:
            actions = self._held.next_step(actions)
        result = self._call("step()", self.world.step, actions)
        if not isinstance(result, tuple) or len(result) != 5 or not all(isinstance(part, _MAPPINGS) for part in result[:4]):
            raise EnvFault(f"step(): expected ({', '.join(PARTS)}), five dicts of agents, received {_described(result)}")
        self._stepped(outcome)
        observations, rewards, terminations, truncations, infos = result
        before, now = self._live, set(self._members())
        for agent_id in observations:
            if agent_id not in now:
                self._agent(agent_id)
        if self.groups:
            self.groups.pay(infos, before | now)
        infos = infos if isinstance(infos, _MAPPINGS) else {}
        ended, earlier_ends = set(), len(outcome.ends)
        for agent_id, agent in self.agents.items():
            if agent_id not in before and agent_id not in now:
                continue
            if agent_id in rewards:
                agent.earn(rewards[agent_id])
            terminated, truncated = agent.ended(terminations.get(agent_id, False), truncations.get(agent_id, False))
            value, info = observations.get(agent_id), infos.get(agent_id)
            if terminated or truncated:
                ended.add(agent_id)
                if self._held is not None:
                    self._held.drop(agent_id)
                if (end := agent.end(value, info, terminated, truncated)) is not None:
                    outcome.ends.append(end)
            elif agent_id not in now:
                raise agent.left()
            elif value is not None and (self._held is None or self._held.decides(agent_id)):
                outcome.decisions.append(agent.decide(value, info))
        self._live = now - ended
        if self.groups:
            for end in outcome.ends[earlier_ends:]:
                end.group_ended = self.groups.note_end(end.agent, self._live)
            outcome.group_ends += self.groups.close(self._live)

    def _own_state(self) -> dict[str, Any]:
        names = {agent_id: agent.name for agent_id, agent in self.agents.items()}
        return {"live": [name for agent_id, name in names.items() if agent_id in self._live], "held": held_state(self._held, names)}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        self._live = {self._ids[name] for name in state["live"]}
        load_held(self._held, state["held"], self._ids)

    def _go_on(self, outcome: WorldOutcome) -> None:
        self._step({}, outcome)

    def _is_over(self) -> bool:
        return not self._live


def _described(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {len(result)}: {', '.join(type(part).__name__ for part in result)}"
    return type(result).__name__
