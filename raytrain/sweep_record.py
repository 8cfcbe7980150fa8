"""What the record of a sweep says of its trials, for whoever only looks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from raytrain.run_lock import live_holder

RECORD, LOCK = "sweep.json", "lock"

State = Literal["waiting", "running", "finished", "stopped early", "interrupted", "failed"]
ENDED = ("finished", "stopped early")
"""States of trials that are not run again."""


@dataclass
class Trial:
    """One trial of a sweep.

    Attributes:
        name: of its run.
        parameters: dotted path -> value, as they are now.
        seed: root of its run's random streams; None where the run's file or a parameter says it.
        state: ``stopped early`` by the scheduler; ``interrupted`` with the sweep.
        metric: the last that it reported.
        agent_steps: at that moment.
        reason: why it failed.
        changes: of population-based training: from whose checkpoint it went on, at how many agent steps, with which parameters.
    """

    name: str
    parameters: dict[str, Any]
    seed: int | None = None
    state: State = "waiting"
    metric: float | None = None
    agent_steps: int = 0
    reason: str = ""
    changes: list[dict[str, Any]] = field(default_factory=list)


def best_of(trials: Sequence[Trial], mode: str) -> Trial | None:
    """The trial with the best last metric; None where none has one. Of equals the first."""
    known = [trial for trial in trials if trial.metric is not None and trial.state != "failed"]
    return (max if mode == "max" else min)(known, key=lambda trial: trial.metric, default=None)


def early_best(trials: Sequence[Trial], mode: str) -> str:
    """A sentence where the best trial of a sweep that has not ended was measured before others were; empty otherwise."""
    best = best_of(trials, mode)
    if best is None or all(trial.state in (*ENDED, "failed") for trial in trials):
        return ""
    ahead = max((trial for trial in trials if trial.metric is not None and trial.state != "failed"), key=lambda trial: trial.agent_steps)
    if best.agent_steps >= ahead.agent_steps:
        return ""
    return (f"{best.name} is the best at {best.agent_steps:,} agent steps and {ahead.name} has {ahead.agent_steps:,}: measured at different places, so not "
            "settled before the sweep has gone on")


@dataclass(frozen=True)
class SweepRecord:
    """What is known of a sweep without its lock.

    Attributes:
        trials: as it last wrote them down.
        mode: ``max`` or ``min`` of its metric.
        is_live: it is going.
    """

    trials: list[Trial]
    mode: str
    is_live: bool

    def hint(self) -> str:
        """What whoever reads the numbers of one that was interrupted should know; empty without."""
        text = "" if self.is_live else early_best(self.trials, self.mode)
        return text and f"{text}: raytrain tune --resume."


def read_record(folder: Path) -> SweepRecord | None:
    """The record of the sweep in a folder; None without one, or where it cannot be read."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return SweepRecord([Trial(**trial) for trial in record["trials"]], record["settings"]["mode"], live_holder(folder / LOCK) is not None)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def list_sweeps(results_dir: Path) -> list[str]:
    """Names of the sweeps in a folder, sorted."""
    return sorted(path.parent.name for path in results_dir.glob(f"*/{RECORD}"))
