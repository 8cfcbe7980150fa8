"""The results for people: a table on the console and docs/benchmarks.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

from benchmarks import growth
from benchmarks.row import Row, Run

KEPT_BEGIN, KEPT_END = "<!-- kept when this page is generated again -->", "<!-- end of the kept part -->"
NOTHING_YET = "Nothing written yet."
HEADINGS = ("task", "what", "raytrain", "compared with", "ratio", "target", "result")
DETAILS: tuple[tuple[str, str], ...] = (
    ("steps/s", "steps_per_s"), ("updates/s", "updates_per_s"), ("s to solve", "solve_s"), ("env steps to solve", "solve_steps"),
    ("final return", "final_return"), ("start-up s", "startup_s"), ("peak RSS MiB", "rss_peak_mib"), ("PSS MiB", "pss_mib"),
    ("peak PSS MiB", "pss_peak_mib"), ("own cores", "own_cores"),
    ("other cores", "other_cores"),
)
"""Column of the table of all contestants -> key of a run."""

MEASURED = """\
Every contestant runs in a process of its own, one at a time, and one harness watches it from outside: the environments count
their own steps and log their own returns, so nothing here is a library's own report. raytrain runs as a user runs it,
`python scripts/train.py FILE`, with its environment replaced by the counting one.

- **steps/s**: env steps over the window (60 s after 15 s of warm-up; slow environments 30 s after 10 s; HalfCheetah with PPO 60 s
  after 15 s, raytrain's after 20 s; stepping, rollouts and updates alone 20 s after 5 s; growth 16 s after 12 s; SAC as below), learning on. A call that only resets an environment of a vector is no step.
  **updates/s**: optimizer steps over the same window, where the adapter can count them.
- **updates/s of SAC** (sac-updates, sac-updates-pendulum): one update an env step, on 256 rows drawn from replay, 2 hidden
  layers of 256 units; the environment steps in the same run. The peers' window is 30 s and begins 5 s after their first
  update. raytrain's figure is the growth of `System/Updates` in its `metrics.csv` from 5 s after the first update to the end
  of the run; the updates an env step hold it against the steps that the metered environments counted in the 30 s that begin
  25 s after the first env step.
- **s to solve**: from starting the interpreter until the mean of the last 100 training episodes, in order of their end over
  all environments, reaches 475 (LunarLander-v3: 200; Pendulum-v1: of the last 20, -200). Exploration on. raytrain's compilation cache is warm: one
  run before the first counts for nothing.
- **final return** (halfcheetah-200k): mean return of the last 10 training episodes that ended within the first 200,000 env
  steps, exploration on; the table has the mean over the seeds. The noise is the larger range over the seeds, ours or theirs.
- **start-up s**: from starting the interpreter to the first env step in any process (imports, Ray, workers included). A bare
  `ray.init` is the call alone, without the import. Start-up and the memory of all processes are also compared with the peers that
  step and learn in processes of their own as raytrain does: Sample Factory and RLlib.
- **overlap**: the slower half of the throughput run by itself, in the processes of a run: the same actors, placed by the same
  code, with the same configuration. Rollouts alone have a trainer whose updates take no time (it takes what comes and
  publishes at once), updates alone an env manager that ships the rows of its first round again and again; transport is part of both.
- **halfcheetah-ppo**: all contestants make updates of 2,048 agent steps in minibatches of 64, 10 epochs, 2 x 64 units, with 8
  environments (Sample Factory steps Gymnasium's HalfCheetah-v4, since its Gymnasium has no v5, and cuts trajectories at 64 steps, since
  its minibatches are whole trajectories). raytrain's 8 environments are in two
  env managers, in one with a process each, or in one; the fastest stands in the table. The limit is computed: with s steps/s of one core
  that only steps (random actions, no network) and u agent steps/s of one core that only learns (one buffer again and again),
  an agent step costs 1/s + 1/u of a core, so two cores allow 2 / (1/s + 1/u). Acting is left out, so the limit cannot be reached.
- **async-lockstep**: CartPole whose every step sleeps. How long, a calibration measures once before the first round: an agent step's share of
  an update less what a step takes without the sleep, so that collecting a buffer takes as long as learning from it. The same file then runs
  as it is (`max_policy_lag` 1) and in lock-step (`threaded: false`), with the same seeds: steps/s over 45 s after 15 s, and returns by
  40,000 env steps. Twofold would be perfect.
- **growth**: `yaml/benchmarks/cartpole-throughput.yaml` with 1 to 512 environments in the one env manager (64 units a layer), and with 32 to 1,024
  units (128 environments, 2,048 agent steps an update), on the native vector environment and on Python copies. No point may be a cliff: agent steps/s
  times the multiplications of one agent step through actor and critic must be at least half of what it is at the point before. So
  environments may never halve the throughput, and a wider network may cost its arithmetic, and twice that at the very most.
- **replay**: inserting a row from each of 32 environments and sampling 32 batches of 256 from a full buffer (17 numbers seen,
  6 acted), beside taking in and learning from the same, 32 updates, in one process without Ray.
- **peak RSS**: summed over the process tree, twice a second (shared pages counted once a process). **PSS**: at the end of the window,
  shared pages divided; its peak is that or the largest of the warm-up, read every 3 s between the first env step and the window. **USS**: pages that nobody shares, of the processes that step environments.
- **own cores, other cores**: CPU time a second of the contestant's tree, and of everything else on the machine; above about
  0.3 the run was disturbed.
- **queue operations**: time that the env manager spends shipping and the trainer taking and publishing (`timers.json`), as a
  share of the run; the larger of the two.

The peers' settings are those of their own tuned examples: rl-zoo's for Stable-Baselines3 and SBX (but for 1,000 instead of
10,000 random steps on HalfCheetah where updates/s are measured), RLlib's tuned CartPole example, Sample Factory's documented
CartPole command with two workers, Tianshou's PPO test on CartPole and its MuJoCo example of SAC (with a learnt entropy coefficient and 100 random
steps). Of several configurations of a library (one process, worker processes) the one that suits
the task runs. The exact values are in each run's `info` in the JSON. With `--repeats N` there are N rounds, in each of which every
contestant runs once, one after another; figures are then medians, with their ranges in the table of every contestant. A library
that cannot be installed stands there as failed, with the reason."""


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
        if not run.get("warm_up") and (run["measurement"] != "growth" or run.get("error")):  # which has a table of its own
            groups.setdefault((run["measurement"], run["contestant"]), []).append(run)
    lines = []
    for (measurement, contestant), members in sorted(groups.items()):
        good = [run for run in members if not run.get("error")]
        errors = [run["error"] for run in members if run.get("error")]
        failed = f"{len(errors)} failed: {errors[0]}" if errors else ""
        figures = [spread([run[key] for run in good if run.get(key)]) for _, key in DETAILS]
        lines.append((measurement, contestant, str(len(members)), *figures, failed))
    return markdown_table(("measurement", "contestant", "runs", *(title for title, _ in DETAILS), "failed"), lines)


def growth_part(runs: Sequence[Run]) -> str:
    """Table and picture of the task ``growth``; empty where it was not measured."""
    if not growth.measured(runs, growth.POINTS):
        return ""
    return f"""
## Growth

One env manager, CartPole-v1, PPO, two hidden layers: agent steps/s, learning on, and the multiplications that they stand for.

![Agent steps a second against environments and against units a layer](images/growth.png)

{markdown_table(growth.HEADINGS, growth.table_lines(runs))}
"""


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
{growth_part(record["runs"])}
## How it is measured

{MEASURED}
"""
