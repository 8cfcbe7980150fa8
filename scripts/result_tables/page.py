"""docs/results.md: made of the results, the published figures and the list of cells; nothing in it is written by hand but `note` in the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import machine

from result_tables import published
from result_tables.cells import CELLS, STEPS, TIERS, Cell, expected_s, goal, missing, runs_of, settings, window
from result_tables.intervals import RESAMPLES, Estimate, iqm, share
from result_tables.runs import EVALUATION_EPISODES, EVALUATION_SEED, RANDOM_EPISODES

TARGET = 0.95
"""Share of the lock-step return that asynchronous runs are to reach."""
HEAD = """\
# Results of the ready-made configurations

Made by `python scripts/results.py` ({days}): {where}. The script needs `pip install "raytrain[results]"`; each file needs what it says at its top.

- [Final returns](#final-returns) after a fixed number of agent steps, with intervals
- [Beside published figures](#beside-published-figures)
- [Asynchronous and lock-step](#asynchronous-and-lock-step)
- [Steps to the goal](#steps-to-the-goal) of each file
- [What has been run](#what-has-been-run) and what has not
"""
FINAL = """\
## Final returns

```bash
python scripts/results.py --steps --files ppo/CartPole sac/Pendulum   # as in the table below; --steps N for another number
```

Each run has the steps of its row and no other end: `stop.reward` is left out and `max_steps` is that number, so linear schedules end there. The last policy update takes all the rows there are, so a run
may have up to a buffer more.

- **In training** (exploration on): mean return of the last `stop.episodes` training episodes when the run ends: 100{windows}.
- **By evaluation**: mean return of {episodes} episodes of the last checkpoint with the most likely actions, by
  `raytrain evaluate RUN --checkpoint latest --episodes {episodes} --deterministic --seed {seed}`: the same episodes for all runs, of seeds that no training has.
- Of the seeds, the **interquartile mean** and in brackets its 95 % interval by a percentile bootstrap, as [rliable](https://arxiv.org/abs/2108.13264) has it
  ({resamples:,} resamples, SciPy). A quarter of the runs, rounded down, is left out at either end: of 5 seeds the best and the worst, of 3 none.
"""
PUBLISHED = """\
## Beside published figures

Ours are those above, in training or by evaluation as the source has it. **raytrain is** `inside its 95 % interval` where the published figure lies within ours,
`above` or `below` where our whole interval is; the figure itself is taken for exact. Returns of two versions of a MuJoCo task are not compared, nor is a run of more steps with one of fewer.
{same}
"""
LOCKSTEP = """\
## Asynchronous and lock-step

```bash
python scripts/results.py --lockstep --files ppo/CartPole             # the same steps with threaded: false
```

What bounded [policy lag](architecture.md#credit-bounded-policy-lag-without-dropping) costs in return at equal agent steps. **Share** is (asynchronous − random) / (lock-step − random) of the final
returns in training, since a bare ratio of negative returns says nothing; random is the mean return of {episodes} episodes of uniformly random actions. Its interval is a bootstrap stratified by task and way. **Lag** is
`Policy/Policy Lag Mean` of the asynchronous runs, averaged over their summaries, and in brackets the largest `Policy/Policy Lag Max`; in lock-step it is 0. Target: at least {target:g}; met or missed where the whole interval says so.
"""
GOAL = """\
## Steps to the goal

```bash
python scripts/results.py --files ppo/CartPole                        # as the file stands
```

Each run ends at the file's `stop.reward`, or at its `max_steps`. So the mean return (of the last `stop.episodes` training episodes) is at the goal by choice: compare files by their steps, and returns above.
Wall time is from process start to end, Ray and compilation included. Medians of the seeds, with all of them in brackets.
"""
TODO = """\
## What has been run

```bash
python scripts/results.py --queue                                     # what is missing, one run at a time
```

The queue goes through the table from above, and within a group takes one seed of every row before the next seed of any. Each result is on disk before the next run starts. Ctrl-C ends
it; the run that was going is lost, and the same command goes on with that. A run that fails is told and left for the next time. Hours to go are those of the row's own runs, else (≈) of the file's other runs by steps; – where it has none.
"""


def page(data: dict[str, Any], known: published.Published) -> str:
    """All of it, from the results and the published figures."""
    every = [run for section in ("runs", "final") for runs in data.get(section, {}).values() for run in runs]
    days, where = machine.made(data, (run["date"] for run in every if "date" in run))
    parts = [HEAD.format(days=days, where=where), *_final(data), *_published(data, known), *_lockstep(data), *_goals(data), *_todo(data)]
    return "\n".join(parts)


# -- tables ------------------------------------------------------------------------------------------------------------------


def _final(data: dict[str, Any]) -> list[str]:
    others: dict[int, list[str]] = {}
    for file in STEPS:
        if window(file) != 100:
            others.setdefault(window(file), []).append(file)
    windows = "".join(f" ({n} for {', '.join(files)})" for n, files in others.items())
    text = FINAL.format(windows=windows, episodes=EVALUATION_EPISODES, seed=EVALUATION_SEED, resamples=RESAMPLES)
    rows = []
    for cell in _cells(data):
        runs = runs_of(data, cell)
        if runs and not cell.lockstep:
            wall = f"{median(run['wall_s'] for run in runs):,.0f}"
            rows.append((_name(cell), settings(cell.file)["env"], f"{cell.steps:,}", str(len(runs)), _show(training(runs)), _show(evaluation(runs)), wall))
    table = _table(("file", "environment", "agent steps", "seeds", "in training", "by evaluation", "wall s (median)"), rows)
    return [text, *(table if rows else ["No cell has been run yet.", ""]), "![Training returns of all runs over agent steps](images/results.png)", ""]


def _published(data: dict[str, Any], known: published.Published) -> list[str]:
    rows, used = [], {}
    for file, steps in STEPS.items():
        cell = Cell(file, steps)
        env, runs = settings(file)["env"], runs_of(data, cell)
        for figure in known.beside(cell):
            source = used.setdefault(figure.source, known.sources[figure.source])
            ours = (training if known.kind(figure) == "training" else evaluation)(runs)
            mean = f"~{figure.mean:,.0f}" if source.kind == "graph" else f"{figure.mean:,.1f}" + ("" if figure.std is None else f" ± {figure.std:,.1f}")
            rows.append((_name(cell), f"{_show(ours)} ({env}, {steps:,} steps)", mean, source.name, figure.env, f"{figure.steps:,}", str(source.seeds),
                         known.verdict(figure, env, steps, ours)))
    headings = ("file", "raytrain", "published", "by", "environment", "steps", "seeds", "raytrain is")
    lines = [PUBLISHED.format(same=" ".join(f"{reason}." for reason in known.reasons)), *_table(headings, rows), "What the published figures are:", ""]
    lines += [f"- [{source.name}]({source.where}): {source.statistic}." for source in used.values()]
    return [*lines, "", "Looked for and not found, so left out:", "", *(f"- {text}" for text in known.not_found), ""]


def _lockstep(data: dict[str, Any]) -> list[str]:
    rows, tasks = [], []
    for cell in _cells(data):
        asynchronous, lockstep = runs_of(data, replace(cell, lockstep=False)), runs_of(data, cell)
        floor = data.get("random", {}).get(settings(cell.file)["env"])
        ours, reference = _returns(asynchronous), _returns(lockstep)
        if not cell.lockstep or not ours or not reference or floor is None:
            continue
        tasks.append((ours, reference, floor))
        rows.append((_name(cell), f"{cell.steps:,}", f"{_show(training(asynchronous))} ({len(ours)})", f"{_show(training(lockstep))} ({len(reference)})",
                     f"{floor:,.1f}", *_share([tasks[-1]]), _lag(asynchronous)))
    if len(tasks) > 1:
        rows.append(("all of these", "", "", "", "", *_share(tasks), ""))
    headings = ("file", "agent steps", "asynchronous (seeds)", "lock-step (seeds)", "random", "share", f"≥ {TARGET:g}", "lag")
    none = ["No file has been run in both ways yet.", ""]
    return [LOCKSTEP.format(episodes=RANDOM_EPISODES, target=TARGET), *(_table(headings, rows) if rows else none)]


def _goals(data: dict[str, Any]) -> list[str]:
    rows = []
    for key, runs in data["runs"].items():
        file, _, label = key.partition(" ")
        aim = goal(file)
        reached = "–" if aim is None else f"{sum(run['goal_reached'] for run in runs)} of {len(runs)} seeds"
        columns = (_spread([run[column] for run in runs], decimals) for column, decimals in (("agent_steps", 0), ("wall_s", 0), ("mean_return", 1)))
        rows.append((_name(Cell(file, label=label)), "–" if aim is None else f"{aim:g}", reached, *columns, _show(evaluation(runs))))
    headings = ("file", "goal (`stop.reward`)", "reached", "agent steps", "wall s", "mean return", "by evaluation")
    return [GOAL, *([data["note"], ""] if data.get("note") else []), *_table(headings, rows)]


def _todo(data: dict[str, Any]) -> list[str]:
    lines, done, wanted, hours, unknown = [TODO], 0, 0, 0.0, 0
    rows = []
    for tier, cells in TIERS.items():
        for cell in cells:
            runs, left, each = runs_of(data, cell), missing(data, cell), expected_s(data, cell)
            seeds = ", ".join(str(run["seed"]) for run in runs) or "–"
            done, wanted = done + cell.seeds - len(left), wanted + cell.seeds
            hours, unknown = hours + (each or 0.0) * len(left) / 3600, unknown + (each is None and bool(left))
            to_go = "" if not left else "–" if each is None else f"{'' if runs else '≈ '}{each * len(left) / 3600:.1f}"
            rows.append((tier, _name(cell) + (" in lock-step" if cell.lockstep else ""), "to its goal" if cell.steps is None else f"{cell.steps:,}", seeds,
                         ", ".join(map(str, left)) or "all done", f"{sum(run['wall_s'] for run in runs) / 3600:.1f}", to_go))
    lines += _table(("group", "file", "agent steps", "seeds run", "seeds missing", "hours so far", "hours to go"), rows)
    rest = f", and {unknown} rows without an estimate" if unknown else ""
    return [*lines, f"{done} of {wanted} runs are done; about {hours:,.0f} hours to go on this machine{rest}.", ""]


# -- figures -----------------------------------------------------------------------------------------------------------------


def training(runs: Sequence[dict[str, Any]]) -> Estimate | None:
    """Of the mean returns at the end; None where no run has one."""
    values = _returns(runs)
    return iqm(values) if values else None


def evaluation(runs: Sequence[dict[str, Any]]) -> Estimate | None:
    """Of the evaluations afterwards; None where no run has one, as those made before there were any."""
    values = [run["evaluation"]["mean"] for run in runs if run.get("evaluation")]
    return iqm(values) if values else None


def _returns(runs: Sequence[dict[str, Any]]) -> list[float]:
    return [run["mean_return"] for run in runs if run["mean_return"] is not None]


def _share(tasks: list[tuple[list[float], list[float], float]]) -> tuple[str, str]:
    """The share and whether it is what it should be."""
    try:
        found = share(tasks)
    except ValueError:  # lock-step has learnt nothing
        return "–", "–"
    if found.low is None:
        return found.show(2), "undecided"
    return found.show(2), "met" if found.low >= TARGET else "missed" if found.high < TARGET else "undecided"


def _lag(runs: Sequence[dict[str, Any]]) -> str:
    lags = [run["policy_lag"] for run in runs if run.get("policy_lag")]
    return f"{sum(lag['mean'] for lag in lags) / len(lags):.2f} ({max(lag['max'] for lag in lags):.0f})" if lags else "–"


def _cells(data: dict[str, Any]) -> list[Cell]:
    """Cells of fixed steps that have runs: those of the list, then those of hand-made labels and steps."""
    listed = {cell.key: cell for cell in CELLS if cell.steps is not None}
    for key in data.get("final", {}):
        if key not in listed:
            file, steps, *rest = key.split(" ")
            lockstep = rest[:1] == ["lock-step"]
            listed[key] = Cell(file, int(steps), lockstep, " ".join(rest[lockstep:]))
    return list(listed.values())


def _name(cell: Cell) -> str:
    return f"[{cell.file}](../yaml/{cell.file}.yaml){' ' + cell.label if cell.label else ''}"


def _show(estimate: Estimate | None) -> str:
    return "–" if estimate is None else estimate.show(1)


def _spread(values: Sequence[float | None], decimals: int) -> str:
    shown = [f"{value:,.{decimals}f}" for value in values if value is not None]
    return f"{median(value for value in values if value is not None):,.{decimals}f} ({', '.join(shown)})" if shown else "–"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(headings) + " |", "| " + " | ".join("---" for _ in headings) + " |", *("| " + " | ".join(row) + " |" for row in rows), ""]
