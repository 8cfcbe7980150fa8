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
    """

    def __init__(self, times: int) -> None:
        self._times = times
        self._action: dict[Any, EnvAction] = {}
        self._left: dict[Any, int] = {}
        self._again: list[Any] = []  # agents whose actions the next step repeats

    def clear(self) -> None:
        """A new episode of the world."""
        self._left.clear()
        self._again.clear()

    def drop(self, agent_id: Any) -> None:
        """The agent's episode is over."""
        self._left.pop(agent_id, None)

    def decides(self, agent_id: Any) -> bool:
        """Whether an agent that needs an action has to decide; otherwise it does its last one in the next step, too."""
        if not self._left.get(agent_id):
            return True
        self._again.append(agent_id)
        return False

    def next_step(self, actions: dict[Any, EnvAction]) -> dict[Any, EnvAction]:
        """The actions of the next step: those that were just decided, and those that are repeated."""
        self._action.update(actions)
        self._left.update(dict.fromkeys(actions, self._times))
        given = {}
        for agent_id in (*self._again, *actions):
            self._left[agent_id] -= 1
            # The world may write into its action.
            given[agent_id] = deepcopy(self._action[agent_id]) if self._left[agent_id] else self._action[agent_id]
        self._again.clear()
        return given
