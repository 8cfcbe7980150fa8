"""`envs.toy_teams.TwoTeams` that remembers how its agents ended, for runs within one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.toy_teams import TwoTeams

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
