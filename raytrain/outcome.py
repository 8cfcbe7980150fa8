"""How a run ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raytrain.messages import ManagerStatus, TrainerStatus

_COUNTERS = ("agent_steps", "updates", "policy_updates")


@dataclass(frozen=True)
class BehaviorOutcome:
    """How one behavior of a run ended.

    Attributes:
        mean_return: mean of the last episodes (``stop.episodes``, 100 by default), None before that many.
        rating: under self-play; None without.
        balance: agent steps that the ledger cannot explain; 0 unless it could not be settled at the end.
        rolled_back: agent steps that were consumed in vain by trainers that died: `agent_steps` and these together never fall.
    """

    agent_steps: int
    updates: int
    policy_updates: int
    mean_return: float | None
    rating: float | None
    ledger: dict[str, int]
    balance: int
    rolled_back: int = 0


def behavior_outcome(
    behavior: str, trainer: TrainerStatus | None, is_gone: bool, managers: Sequence[ManagerStatus], mean_return: float | None
) -> BehaviorOutcome:
    """The outcome by the last status of the behavior's trainer, None if it never had one, and of all env managers.

    Args:
        is_gone: the trainer has died and had not started again when the run ended: what it has not told of is lost.
    """
    ledger = dict(trainer.ledger) if trainer else {}
    produced = sum(m.produced[behavior] for m in managers) + ledger.pop("dead_produced", 0)
    unshipped = sum(m.unshipped[behavior] for m in managers)
    ledger["produced"] = produced
    abandoned = sum(m.abandoned.get(behavior, 0) for m in managers)
    died = sum(m.died.get(behavior, 0) for m in managers)
    for reason, rows in (("dropped_stale_epoch", abandoned - died), ("dropped_env_died", died)):
        if rows:
            ledger[reason] = ledger.get(reason, 0) + rows
    ledger["dropped_shutdown"] = ledger.get("dropped_shutdown", 0) + unshipped
    explained = ledger.get("consumed", 0) + sum(v for k, v in ledger.items() if k.startswith("dropped_"))
    if is_gone:
        ledger["dropped_consumer_died"] = ledger.get("dropped_consumer_died", 0) + produced - explained
        explained = produced
    return BehaviorOutcome(**_counters(trainer), mean_return=mean_return, rating=_rating(trainer), ledger=ledger, balance=produced - explained,
                           rolled_back=trainer.rolled_back if trainer else 0)


def _counters(trainer: TrainerStatus | None) -> dict[str, int]:
    return {key: getattr(trainer, key) if trainer else 0 for key in _COUNTERS}


def _rating(trainer: TrainerStatus | None) -> float | None:
    return trainer.rating if trainer else None


def behavior_status(trainer: TrainerStatus | None, max_steps: int, mean_return: float | None) -> dict[str, Any]:
    """What ``status.json`` says of a behavior."""
    dropped = sum(rows for reason, rows in trainer.ledger.items() if reason.startswith("dropped_")) if trainer else 0
    return {**_counters(trainer), "rolled_back_steps": trainer.rolled_back if trainer else 0, "dropped_steps": dropped, "queued": trainer.queued if trainer else 0,
            "max_steps": max_steps, "mean_return": mean_return, "rating": _rating(trainer)}


def whole_status(each: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What it says of all of them (behavior -> `behavior_status`): sums; a name and a mean return where there is one behavior."""
    if len(each) == 1:
        ((behavior, status),) = each.items()
        return {"behavior": behavior, **status}
    return {"behavior": None, **{k: sum(status[k] for status in each.values()) for k in (*_COUNTERS, "rolled_back_steps", "max_steps")}, "mean_return": None, "rating": None}


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        reason: sentence without a full stop.
        interrupted: by Ctrl-C or SIGTERM.
        env_steps: of all environments, as far as trainers know.
        behaviors: behavior -> what became of it.
        evaluation: the ``last`` and the ``best`` `raytrain.judge.Evaluation` as plain values; None without an ``evaluation:`` section.
        best_reward: what ``best/`` is the best by; None without one.
    """

    reason: str
    interrupted: bool
    env_steps: int
    elapsed_s: float
    behaviors: dict[str, BehaviorOutcome]
    evaluation: dict[str, Any] | None = None
    best_reward: float | None = None

    def results(self) -> dict[str, Any]:
        """Plain values. Counters and the ledger are summed up over behaviors; the mean return is that of the only behavior, else None."""
        each = list(self.behaviors.values())
        ledger: Counter[str] = Counter()
        for one in each:
            ledger.update(one.ledger)
        total = {key: sum(getattr(one, key) for one in each) for key in _COUNTERS}
        return {
            "reason": self.reason, "interrupted": self.interrupted, "env_steps": self.env_steps, "elapsed_s": self.elapsed_s, **total,
            "mean_return": each[0].mean_return if len(each) == 1 else None, "ledger": dict(ledger),
            "evaluation": self.evaluation,
            "behaviors": {name: {k: v for k, v in asdict(one).items() if k != "balance"} for name, one in self.behaviors.items()},
        }
