"""The results for people: a table on the console and docs/benchmarks.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

from benchmarks.rows import Row, Run

KEPT_BEGIN, KEPT_END = "<!-- kept when this page is generated again -->", "<!-- end of the kept part -->"
NOTHING_YET = "Nothing written yet."
HEADINGS = ("task", "what", "raytrain", "compared with", "ratio", "target", "result")
DETAILS: tuple[tuple[str, str], ...] = (
    ("steps/s", "steps_per_s"), ("updates/s", "updates_per_s"), ("s to solve", "solve_s"), ("env steps to solve", "solve_steps"),
    ("final return", "final_return"), ("start-up s", "startup_s"), ("peak RSS MiB", "rss_peak_mib"), ("PSS MiB", "pss_mib"), ("own cores", "own_cores"),
    ("other cores", "other_cores"),
)
"""Column of the table of all contestants -> key of a run."""

MEASURED = """\
Every contestant runs in a process of its own, one at a time, and one harness watches it from outside: the environments count
their own steps and log their own returns, so nothing here is a library's own report. raytrain runs as a user runs it,
`python scripts/train.py FILE`, with its environment replaced by the counting one.

- **steps/s**: env steps over the window (60 s after 15 s of warm-up; slow environments 30 s after 10 s; rollouts and updates
  alone 20 s after 5 s; SAC as below), learning on. A call that only resets an environment of a vector is no step.
  **updates/s**: optimizer steps over the same window, where the adapter can count them.
- **updates/s of SAC** (sac-updates, sac-updates-pendulum): one update an env step, on 256 rows drawn from replay, 2 hidden
  layers of 256 units; the environment steps in the same run. The peers' window is 30 s and begins 5 s after their first
  update. raytrain's figure is the growth of `System/Updates` in its `metrics.csv` from 5 s after the first update to the end
  of the run; the updates an env step hold it against the steps that the metered environments counted in the 30 s that begin
  25 s after the first env step.
- **s to solve**: from starting the interpreter until the mean of the last 100 training episodes, in order of their end over
  all environments, reaches 475 (Pendulum-v1: of the last 20, -200). Exploration on. raytrain's compilation cache is warm: one
  run before the first counts for nothing.
- **final return** (halfcheetah-200k): mean return of the last 10 training episodes that ended within the first 200,000 env
  steps, exploration on; the table has the mean over the seeds. The noise is the larger range over the seeds, ours or theirs.
- **start-up s**: from starting the interpreter to the first env step in any process (imports, Ray, workers included). A bare
  `ray.init` is the call alone, without the import.
- **overlap**: rollouts alone are the env manager with a fixed policy, updates alone the trainer on one buffer again and
  again, each in one process without Ray, with the configuration of the throughput run.
- **replay**: inserting a row from each of 32 environments and sampling 32 batches of 256 from a full buffer (17 numbers seen,
  6 acted), beside taking in and learning from the same, 32 updates, in one process without Ray.
- **peak RSS**: summed over the process tree (shared pages counted once a process). **PSS**: at the end of the window, shared
  pages divided. **USS**: pages that nobody shares, of the processes that step environments.
- **own cores, other cores**: CPU time a second of the contestant's tree, and of everything else on the machine; above about
  0.3 the run was disturbed.
- **queue operations**: time that the env manager spends shipping and the trainer taking and publishing (`timers.json`), as a
  share of the run; the larger of the two.

The peers' settings are those of their own tuned examples: rl-zoo's for Stable-Baselines3 and SBX (but for 1,000 instead of
10,000 random steps on HalfCheetah where updates/s are measured), RLlib's tuned CartPole example, Sample Factory's documented
CartPole command with two workers. Of several configurations of a library (one process, worker processes) the one that suits
the task runs. The exact values are in each run's `info` in the JSON."""


def number(value: float | None) -> str:
    """Three or more figures, thousands separated; a dash for a figure that is missing."""
    if value is None:
        return "–"
    if abs(value) >= 100 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def spread(values: Sequence[float]) -> str:
    """The median, with the range of several values."""
    if not values:
        return "–"
    middle = number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({number(min(values))}–{number(max(values))})"


def verdict(passed: bool | None) -> str:
    """What a row's result is called."""
    return {True: "pass", False: "short", None: "not measured"}[passed]


def cells(row: Row) -> tuple[str, ...]:
    """One row as text, in the order of `HEADINGS`."""
    reference = f"{number(row.reference)} ({row.reference_name})" if row.reference_name else ""
    ours = f"{number(row.value)} {row.unit}" if row.value is not None else "–"
    ratio = "" if not row.reference_name else number(row.ratio)
    return row.task, row.what, ours, reference, ratio, row.target, verdict(row.passed)


def rich_table(rows: Iterable[Row]) -> Table:
    """The table for the console."""
    table = Table(title="raytrain beside its peers", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in ("raytrain", "ratio") else "left")
    colours = {"pass": "green", "short": "red", "not measured": "yellow"}
    for row in rows:
        *text, result = cells(row)
        table.add_row(*text, f"[{colours[result]}]{result}[/]")
    return table


def markdown_table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; a bar inside a cell is escaped."""
    def line(values: Sequence[str]) -> str:
        return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"

    return "\n".join([line(headings), "|" + " --- |" * len(headings), *map(line, lines)])


def contestants_table(runs: Sequence[Run]) -> str:
    """Every contestant of every measurement: medians and ranges of its runs, and what failed."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if not run.get("warm_up"):
            groups.setdefault((run["measurement"], run["contestant"]), []).append(run)
    lines = []
    for (measurement, contestant), members in sorted(groups.items()):
        good = [run for run in members if not run.get("error")]
        errors = [run["error"] for run in members if run.get("error")]
        failed = f"{len(errors)} failed: {errors[0]}" if errors else ""
        figures = [spread([run[key] for run in good if run.get(key)]) for _, key in DETAILS]
        lines.append((measurement, contestant, str(len(members)), *figures, failed))
    return markdown_table(("measurement", "contestant", "runs", *(title for title, _ in DETAILS), "failed"), lines)


def kept_part(page: str) -> str:
    """What stands between the markers of an existing page; a first sentence where nothing does."""
    if KEPT_BEGIN not in page or KEPT_END not in page:
        return NOTHING_YET
    return page.split(KEPT_BEGIN, 1)[1].split(KEPT_END, 1)[0].strip() or NOTHING_YET


def markdown_page(record: dict[str, Any], rows: Iterable[Row], existing: str = "") -> str:
    """docs/benchmarks.md.

    Args:
        record: what the JSON file holds.
        rows: the table.
        existing: the page as it is now; its kept part stays.
    """
    machine = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(record["versions"].items()))
    peers = ", ".join(f"{name} {version}" for name, version in sorted(record["peer_versions"].items())) or "none"
    return f"""# Benchmarks

This page is written by `scripts/benchmark.py --docs`; only the part "What falls short, and why" is written by hand and kept.

- **Machine**: {machine["cpu"]}, {machine["cores"]} cores, {machine["memory_gib"]} GiB, {machine["system"]}
- **Load average at the start**: {machine["load1"]}
- **Date**: {record["date"]}
- **Command**: `{record["command"]}`
- **Versions**: {versions}
- **Peers**: {peers}

Ratios compare figures of one run of the command; times and speeds of another machine will differ.

## Results

{markdown_table(HEADINGS, map(cells, rows))}

## What falls short, and why

{KEPT_BEGIN}
{kept_part(existing)}
{KEPT_END}

## Every contestant

Medians, with the range where there are several runs.

{contestants_table(record["runs"])}

## How it is measured

{MEASURED}
"""
