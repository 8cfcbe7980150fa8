"""`envs.toy_teams.TwoTeams` that remembers how its agents ended, for runs within one process; and games that can be gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.toy_teams import Chase, Duel, TwoTeams

FINAL: dict[str, list[float]] = {}
"""Agent -> last reward of each of its episodes, in order; to be cleared by who reads it."""


class LoggedTeams(TwoTeams):
    """A real world cannot be asked afterwards what a team got that did not learn."""

    def _move(self, actions: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, bool]]:
        rewards, over = super()._move(actions)
        for agent, ended in over.items():
            if ended:
                FINAL.setdefault(agent, []).append(rewards[agent])
        return rewards, over


class _Kept:
    """All that decides what comes next, the world's own generator included."""

    PARTS = ("agents", "time", "_places", "_score", "_flag")

    def get_state(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state, **{name: getattr(self, name) for name in self.PARTS if hasattr(self, name)}}

    def set_state(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        for name in self.PARTS:
            if name in state:
                setattr(self, name, state[name])


class KeptDuel(_Kept, Duel):
    """One policy in two teams."""


class KeptChase(_Kept, Chase):
    """Two policies."""
