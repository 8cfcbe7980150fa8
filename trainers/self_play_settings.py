"""Settings of self-play: when the sides of a game are frozen, exchanged and drawn."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from trainers.setting_types import Number, PositiveFloat, PositiveInt, Settings, contradiction

TEAM_CHANGE_SAVES = 5
"""Without ``team_change`` a team learns for so many ``save_steps``."""


class SelfPlaySettings(Settings):
    """Learn against frozen earlier policies (snapshots); one team learns at a time."""

    save_steps: PositiveInt = 20_000
    """Agent steps learnt from between two snapshots."""
    team_change: PositiveInt | None = None
    """Agent steps learnt from before the next team learns, ``max_steps`` at most; ``null`` is 5 × ``save_steps`` or ``max_steps``, whichever is less."""
    swap_steps: PositiveInt | None = None
    """Agent steps of opponents between two draws of them; ``null`` is 20,000, or follows ``swaps_per_team_change``."""
    swaps_per_team_change: PositiveFloat | None = None
    """Draws of opponents while a team learns, in place of ``swap_steps``, which follows from the sizes of the teams."""
    play_against_latest_model_ratio: Annotated[Number, Field(ge=0.0, le=1.0)] = 0.5
    """Share of the draws that takes the policy as it is at that moment; the others take one of the snapshots."""
    window: PositiveInt = 10
    """Newest snapshots that opponents are drawn from."""
    initial_elo: Number = 1200.0
    """Rating at the start."""
    elo_k: PositiveFloat = 1.0
    """K of Elo: the most that one game changes a rating by."""

    @model_validator(mode="after")
    def _one_way_to_swap(self) -> SelfPlaySettings:
        if self.swap_steps is not None and self.swaps_per_team_change is not None:
            raise contradiction("swap_steps", "swaps_per_team_change", (
                f"expected swap_steps or swaps_per_team_change, received swap_steps={self.swap_steps} and swaps_per_team_change="
                f"{self.swaps_per_team_change:g}; the second works the first one out: remove one of them"))
        return self

    def steps_per_team(self, max_steps: int) -> int:
        """``team_change`` that holds (agent steps)."""
        return min(TEAM_CHANGE_SAVES * self.save_steps, max_steps) if self.team_change is None else self.team_change

    def steps_per_swap(self, max_steps: int, agents: int, opponents: int) -> float:
        """``swap_steps`` that hold, in steps of agents that are not learning.

        While the others' team change is reached by `opponents` learning agents, `agents` frozen ones make ``agents / opponents`` as many steps.

        Args:
            agents: of the behavior in one world that do not learn.
            opponents: that learn.
        """
        if self.swaps_per_team_change is None:
            return self.swap_steps if self.swap_steps is not None else 20_000
        return agents / opponents * self.steps_per_team(max_steps) / self.swaps_per_team_change
