"""A PettingZoo ``AECEnv``: one agent acts at a time."""

from __future__ import annotations

from typing import Any

from envs.agent_world import AgentWorld, WorldOutcome
from envs.factories import EnvFactory
from envs.specs import EnvAction


class AecWorld(AgentWorld):
    """See `AgentWorld`.

    The agent that the world selects sees what ``last()`` says: its observation, and the reward since its own last action. One that has
    ended is taken out by a step with None, as PettingZoo wants it; its end arrives with that turn, so that nothing it was
    given until then is lost.
    """

    def __init__(self, factory: EnvFactory, world: Any) -> None:
        super().__init__(factory, world)
        self._present: list[Any] | None = None  # `agents` as read since the last call of reset or step

    def _reset(self, arguments: dict[str, Any], outcome: WorldOutcome) -> None:
        self._present = None
        self._call("reset()", self.world.reset, **arguments)

    def _step(self, actions: dict[Any, EnvAction], outcome: WorldOutcome) -> None:
        (action,) = actions.values()
        self._present = None
        self._call("step()", self.world.step, action)
        self._stepped(outcome)
        if self.groups:
            self.groups.pay(self._call("infos", getattr, self.world, "infos"), set(self._members()))

    def _go_on(self, outcome: WorldOutcome) -> None:
        agent = self._agent(self._call("agent_selection", getattr, self.world, "agent_selection"))
        value, reward, terminated, truncated, info = self._call("last()", self.world.last)
        agent.earn(reward)
        terminated, truncated = agent.ended(terminated, truncated)
        if not terminated and not truncated:
            outcome.decisions.append(agent.decide(value, info))
            return
        if (end := agent.end(value, info, terminated, truncated)) is not None:
            if self.groups:
                end.group_ended = self.groups.note_end(end.agent, self._going_on())
            outcome.ends.append(end)
        self._present = None
        self._call("step(None) of a dead agent", self.world.step, None)
        if self.groups:
            outcome.group_ends += self.groups.close(set(self._members()))

    def _load_own_state(self, state: None) -> None:
        self._present = None  # read anew

    def _going_on(self) -> set[Any]:
        """Ids of the agents that have not ended, whose turn to be taken out may come later."""
        flags = [self._call(name, getattr, self.world, name) for name in ("terminations", "truncations")]
        return {agent_id for agent_id in self._members() if not any(flag.get(agent_id, False) for flag in flags)}

    def _is_over(self) -> bool:
        members = self._members()
        for agent_id, agent in self.agents.items():
            if agent.running and agent_id not in members:
                raise agent.left()
        return not members

    def _members(self) -> list[Any]:
        # PettingZoo's wrappers hand attributes on from one to the next, which takes microseconds: read once for each call of the world.
        if self._present is None:
            self._present = super()._members()
        return self._present
