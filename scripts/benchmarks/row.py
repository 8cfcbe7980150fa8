"""A line of the table, and what it is made of: medians over runs, the best peer, comparisons with a target."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.peers import LIBRARIES, PEERS

Run = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One requirement and what was measured.

    Attributes:
        task: task it belongs to.
        what: what is compared.
        value: our figure; None when it could not be measured.
        unit: of `value` and `reference`.
        reference: the figure it is compared with; None where the target is absolute (or nothing was measured).
        reference_name: whose figure that is.
        target: the requirement, for people.
        passed: None when a figure is missing.
    """

    task: str
    what: str
    value: float | None
    unit: str
    reference: float | None
    reference_name: str
    target: str
    passed: bool | None

    @property
    def ratio(self) -> float | None:
        """`value` / `reference`."""
        return self.value / self.reference if self.value is not None and self.reference else None

    def to_json(self) -> dict[str, Any]:
        """For the JSON file, with the ratio."""
        return {**asdict(self), "ratio": self.ratio}


def select(runs: Iterable[Run], measurement: str, contestant: str | None = None) -> list[Run]:
    """Runs that count: of this measurement (and contestant), no warm-up, no error."""
    return [
        run for run in runs
        if run["measurement"] == measurement and not run.get("warm_up") and not run.get("error")
        and contestant in (None, run["contestant"])
    ]


def median(runs: Iterable[Run], key: str) -> float | None:
    """Median of `key` over the runs that have it; None without any."""
    values = [run[key] for run in runs if run.get(key) is not None]
    return statistics.median(values) if values else None


def best_peer(
    runs: Sequence[Run], measurement: str, key: str, lowest: bool = False, libraries: Collection[str] = LIBRARIES,
) -> tuple[float | None, str]:
    """Best median among the peers of `libraries`, and whose it is; (None, "no peer") without any. One that failed half of its runs is out."""
    found: list[tuple[float, str]] = []
    for name in dict.fromkeys(run["contestant"] for run in runs):
        mine = [run for run in select(runs, measurement, name) if run.get(key) is not None]
        attempts = [r for r in runs if (r["measurement"], r["contestant"]) == (measurement, name) and not r.get("warm_up")]
        if name not in PEERS or PEERS[name].library not in libraries or len(mine) * 2 <= len(attempts):
            continue
        found.append((statistics.median(run[key] for run in mine), name))
    return (min(found) if lowest else max(found)) if found else (None, "no peer")


def compare(
    task: str, what: str, value: float | None, unit: str, reference: tuple[float | None, str], limit: float,
    at_least: bool = True,
) -> Row:
    """A row whose target is `limit` × the reference: at least that, or at most."""
    number, name = reference
    ratio = value / number if value is not None and number else None
    passed = None if ratio is None else ratio >= limit if at_least else ratio <= limit
    return Row(task, what, value, unit, number, name, f"{'≥' if at_least else '≤'} {limit:g} ×", passed)


def absolute(task: str, what: str, value: float | None, unit: str, limit: float, at_least: bool = True) -> Row:
    """A row whose target is a figure."""
    passed = None if value is None else value >= limit if at_least else value <= limit
    return Row(task, what, value, unit, None, "", f"{'≥' if at_least else '≤'} {limit:,g} {unit}", passed)
