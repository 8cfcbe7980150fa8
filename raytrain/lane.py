"""One behavior within an env manager: its policy and collector, its credit, and what it is on its way to ship."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from envs.specs import BehaviorSpec, DecisionSteps
from raytrain.collector import Collector
from raytrain.messages import Credit
from raytrain.queues import PolicySource, TrajectorySink
from trainers.policy import Policy
from trainers.trajectory import row_bytes

MAX_ITEM_ROWS = 32_768
"""An item is shipped at the latest when it holds this many agent steps, or `MAX_ITEM_BYTES`."""
MAX_ITEM_BYTES = 64 * 2**20
"""So that the 20 items of a full queue of images hold little more than a gigabyte."""
NO_CREDIT = Credit(0, ())
"""Nothing may be collected."""


@dataclass(slots=True)
class Lane:
    """One behavior within the manager."""

    behavior: str
    policy: Policy
    collector: Collector
    source: PolicySource
    sink: TrajectorySink
    closing: np.ndarray  # bool [slots]: agents whose running trajectory belongs to the round that is being closed
    item_rows: int  # an item is shipped at the latest when it holds so many
    lessons: Callable[[], np.ndarray] | None = None  # of the running episodes; None where there are none
    serial: int = -1
    credit: Credit = NO_CREDIT
    round: int = 0  # the round that actions count for now
    round_rows: int = 0  # actions given in it
    rounds_done: int = 0  # rounds whose rows have all been shipped
    is_closing: bool = False
    held: list[DecisionSteps] = field(default_factory=list)
    sequence: int = 0
    has_shipped_part: bool = False  # of the rounds that are not complete
    shipped: int = 0
    abandoned: int = 0  # agent steps given up, by a reset of everything or the death of an environment
    died: int = 0  # of those, given up since their environment died
    epoch: int = 0  # of the trainer that the rows are collected for
    next_epoch: int | None = None  # of a newer one: nothing is collected for it before everything for the old one is shipped
    oldest_finished_s: float = 0.0
    env_steps_before: int = 0  # of the run that is gone on with, which no item has told of
    env_steps_told: int = 0  # with the newest item, those included

    @property
    def has_credit(self) -> bool:
        return self.next_epoch is None and self.credit.first_round <= self.round < self.credit.end

    def standing_state(self, env_steps: int, alone: bool) -> dict[str, Any] | None:
        """What a later lane goes on from; None where that cannot be.

        Args:
            env_steps: of the manager.
            alone: there is no other lane: every round that was begun is delivered then, and nothing of another one collected. With others a
                lane may be within a round, of which nothing may have been shipped.
        """
        if self.next_epoch is not None:
            return None
        within = {"round_rows": self.round_rows, "begun": self.round - self.rounds_done, "is_closing": self.is_closing, "closing": self.closing}
        collected = self.collector.standing_state()
        if collected is None or self.round != self.rounds_done or self.round_rows or self.is_closing:
            collected = None if alone or self.has_shipped_part else self.collector.running_state()
            if collected is None:
                return None
            collected["within"] = within
        held = [{f.name: getattr(decision, f.name) for f in fields(decision)} for decision in self.held]
        return {"collector": collected, "held": held, "agents": self.policy.agents_state(), "env_steps_untold": env_steps + self.env_steps_before - self.env_steps_told}

    def load_standing_state(self, state: dict[str, Any]) -> None:
        """Go on from `standing_state`; nothing has been collected here before."""
        within = state["collector"].get("within")
        if within is None:
            self.collector.load_standing_state(state["collector"])
        else:
            self.collector.load_running_state(state["collector"])
            self.round_rows, self.is_closing = within["round_rows"], within["is_closing"]
            self.round = self.rounds_done + within["begun"]
            self.closing[:] = within["closing"]
        self.policy.load_agents_state(state["agents"])
        self.held = [DecisionSteps(**columns) for columns in state["held"]]
        self.env_steps_before = state["env_steps_untold"]

    @property
    def is_stuck(self) -> bool:
        """Agents of the closing round wait for what held ones do, and no credit can come before that round is delivered."""
        return self.is_closing and bool(self.held) and self.rounds_done <= self.credit.first_round


def item_rows(spec: BehaviorSpec, memory_size: int) -> int:
    """Agent steps at which an item is shipped at the latest."""
    return min(MAX_ITEM_ROWS, max(1, MAX_ITEM_BYTES // row_bytes(spec, memory_size)))


def copied(decision: DecisionSteps) -> DecisionSteps:
    """The same in arrays of its own: those of an environment are valid until its next poll."""
    optional = {name: getattr(decision, name) for name in ("action_mask", "group_id", "group_reward", "env_step", "world_episode")}
    return DecisionSteps(
        agent_id=decision.agent_id.copy(), obs={k: v.copy() for k, v in decision.obs.items()},
        reward=decision.reward, first=decision.first.copy(),
        **{name: array.copy() for name, array in optional.items() if array is not None},
    )
