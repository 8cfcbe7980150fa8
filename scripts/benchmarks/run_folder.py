"""What raytrain's own run folder adds to the figures taken from outside: where the time went, and policy lag."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

QUEUE_SECTIONS = ("ship", "take", "publish")
"""Timed sections that put, take or publish: ``ship`` in an env manager (packing the rows and waiting for room included), the
others in a trainer (``publish`` includes the copy of the weights)."""

SETTLE_S = 5.0
"""Seconds after the first update that do not count towards the rate of updates."""


def queue_shares(tree: dict[str, Any]) -> list[float]:
    """For the main thread of a timer tree and each component that ran beside it: part of its time in queue operations."""
    own, parallel = 0.0, []
    stack = list(tree.get("children", {}).items())
    while stack:
        name, node = stack.pop()
        if node.get("is_parallel"):
            parallel += queue_shares(node)
        elif name in QUEUE_SECTIONS:
            own += node["total"]
        else:
            stack += node.get("children", {}).items()
    return ([own / tree["total"]] if tree["total"] else []) + parallel


def column(rows: list[dict[str, str]], tag: str) -> Iterator[float]:
    """The values of `tag` in the rows of a ``metrics.csv``, those that are there."""
    return (float(row[tag]) for row in rows if row.get(tag))


def settled_update_rate(rows: list[dict[str, str]]) -> float | None:
    """Updates a second from `SETTLE_S` after the first one to the last row of a ``metrics.csv``; None when the run was too short."""
    points = [(float(r["elapsed_s"]), float(r["System/Updates"])) for r in rows if r.get("elapsed_s") and r.get("System/Updates")]
    began_s = next((elapsed_s for elapsed_s, updates in points if updates > 0), None)
    if began_s is None:
        return None
    settled = [point for point in points if point[0] >= began_s + SETTLE_S]
    if len(settled) < 2:
        return None
    (start_s, before), (end_s, after) = settled[0], settled[-1]
    return (after - before) / (end_s - start_s)


def read_run_folder(folder: Path) -> dict[str, Any]:
    """Figures from the run ``bench`` below `folder`; those of files that are not there are left out."""
    out: dict[str, Any] = {}
    run = folder / "results" / "bench"
    timers = run / "timers.json"
    if timers.exists():
        out["queue_percent"] = round(100 * max(queue_shares(json.loads(timers.read_text())), default=0.0), 3)
    for metrics in run.glob("*/metrics.csv"):
        with metrics.open(newline="") as file:
            rows = list(csv.DictReader(file))
        lags, means = list(column(rows, "Policy/Policy Lag Max")), list(column(rows, "Policy/Policy Lag Mean"))
        updates = list(column(rows, "System/Updates per Second"))
        if lags and means:
            out.update(policy_lag_max=max(lags), policy_lag_mean=round(statistics.mean(means), 3))
        settled = settled_update_rate(rows)
        if settled is not None:
            out["updates_per_s"] = round(settled, 1)
        elif updates:
            out["updates_per_s"] = round(statistics.median(updates), 1)
    return out
