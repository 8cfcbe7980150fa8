"""Action repeat in a world whose agents act at once: each agent does its action several times at its own steps."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from envs.specs import EnvAction


class HeldActions:
    """What each agent of a world does and how often it will do it yet.

    An agent's count is its own: one that joins or comes back while others are in the middle of theirs decides at once. While an agent
    pauses it does nothing, and nothing is counted.

    Args:
        times: that an action is done, at least 2.

    Attributes:
        action, left: agent -> what it does, and how often it will yet.
        again: agents whose actions the next step repeats.
    """

    def __init__(self, times: int) -> None:
        self._times = times
        self.action: dict[Any, EnvAction] = {}
        self.left: dict[Any, int] = {}
        self.again: list[Any] = []

    def clear(self) -> None:
        """A new episode of the world."""
        self.left.clear()
        self.again.clear()

    def drop(self, agent_id: Any) -> None:
        """The agent's episode is over."""
        self.left.pop(agent_id, None)

    def decides(self, agent_id: Any) -> bool:
        """Whether an agent that needs an action has to decide; otherwise it does its last one in the next step, too."""
        if not self.left.get(agent_id):
            return True
        self.again.append(agent_id)
        return False

    def next_step(self, actions: dict[Any, EnvAction]) -> dict[Any, EnvAction]:
        """The actions of the next step: those that were just decided, and those that are repeated."""
        self.action.update(actions)
        self.left.update(dict.fromkeys(actions, self._times))
        given = {}
        for agent_id in (*self.again, *actions):
            self.left[agent_id] -= 1
            # The world may write into its action.
            given[agent_id] = deepcopy(self.action[agent_id]) if self.left[agent_id] else self.action[agent_id]
        self.again.clear()
        return given
