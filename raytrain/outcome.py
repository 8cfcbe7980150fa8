"""How a run ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class BehaviorOutcome:
    """How one behavior of a run ended.

    Attributes:
        mean_return: mean of the last episodes (``stop.episodes``, 100 by default), None before that many.
        balance: agent steps that the ledger cannot explain; 0 unless a process died.
    """

    agent_steps: int
    updates: int
    policy_updates: int
    mean_return: float | None
    ledger: dict[str, int]
    balance: int


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        reason: sentence without a full stop.
        interrupted: by Ctrl-C or SIGTERM.
        env_steps: of all environments, as far as trainers know.
        behaviors: behavior -> what became of it.
    """

    reason: str
    interrupted: bool
    env_steps: int
    elapsed_s: float
    behaviors: dict[str, BehaviorOutcome]

    def results(self) -> dict[str, Any]:
        """Plain values. Counters and the ledger are summed up over behaviors; the mean return is that of the only behavior, else None."""
        each = list(self.behaviors.values())
        ledger: Counter[str] = Counter()
        for one in each:
            ledger.update(one.ledger)
        total = {key: sum(getattr(one, key) for one in each) for key in ("agent_steps", "updates", "policy_updates")}
        return {
            "reason": self.reason, "interrupted": self.interrupted, "env_steps": self.env_steps, "elapsed_s": self.elapsed_s, **total,
            "mean_return": each[0].mean_return if len(each) == 1 else None, "ledger": dict(ledger),
            "behaviors": {name: {k: v for k, v in asdict(one).items() if k != "balance"} for name, one in self.behaviors.items()},
        }
