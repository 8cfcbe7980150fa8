"""Figures that others published (docs/published.json), and what may be said of ours beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from result_tables.cells import ROOT, Cell, settings
from result_tables.intervals import Estimate

PATH = ROOT / "docs" / "published.json"
FEWEST_SEEDS = 3
"""Of ours; an interval of fewer says nothing."""
CLOSE = 1.05
"""Ratio of steps that count as equal: runs end with the policy update that crosses their limit."""
UNLIKE = {
    "best": "it is the best of training, not its end",
    "graph": "it was read off a graph",
    "unclear": "its page does not say which episodes it is of",
}
"""Kind of statistic that neither of ours is → why."""


@dataclass(frozen=True)
class Source:
    """Where figures stand and what they are.

    Attributes:
        where: the page or file, with its commit where it is known.
        seeds: runs behind each figure.
        kind: ``training`` (episodes that were learnt from), ``evaluation`` (most likely actions), or one of `UNLIKE`.
    """

    name: str
    where: str
    seeds: int
    kind: str
    statistic: str


@dataclass(frozen=True)
class Figure:
    """A mean return at the end of `steps` steps; `std` is None where none is given."""

    algorithm: str
    env: str
    source: str
    mean: float
    std: float | None
    steps: int


@dataclass(frozen=True)
class Published:
    """The whole file: sources by name, figures, version of a task that has the same returns → ours, and what was looked for in vain."""

    sources: Mapping[str, Source]
    figures: tuple[Figure, ...]
    same: Mapping[str, str]
    reasons: tuple[str, ...]
    not_found: tuple[str, ...]

    def beside(self, cell: Cell) -> list[Figure]:
        """Those of its algorithm and task, whatever the version."""
        algorithm, env = cell.file.partition("/")[0], settings(cell.file)["env"]
        return [figure for figure in self.figures if figure.algorithm == algorithm and _task(figure.env) == _task(env)]

    def kind(self, figure: Figure) -> str:
        """That of its source."""
        return self.sources[figure.source].kind

    def verdict(self, figure: Figure, env: str, steps: int, ours: Estimate | None) -> str:
        """Where it lies: ``inside`` our interval, or ours is ``above`` or ``below`` it; or why they do not compare.

        Args:
            env, steps: of our runs.
            ours: our interquartile mean of the same kind; None without any.
        """
        why = None
        if self.same.get(figure.env, figure.env) != env:
            why = f"{figure.env} is another version of the task"
        elif self.kind(figure) in UNLIKE:
            why = UNLIKE[self.kind(figure)]
        elif steps > CLOSE * figure.steps:
            why = f"ours had {steps:,} steps, it {figure.steps:,}"
        if why is not None:
            return f"not comparable because {why}"
        if ours is None:
            return "not run yet"
        if ours.low is None or ours.count < FEWEST_SEEDS:
            return f"not comparable because ours has {ours.count} of at least {FEWEST_SEEDS} seeds"
        word = "above" if ours.low > figure.mean else "below" if ours.high < figure.mean else "inside its 95 % interval"
        return f"{word} (with fewer steps)" if CLOSE * steps < figure.steps else word


def load(path: Path = PATH) -> Published:
    """Read the file.

    Raises:
        TypeError, KeyError, ValueError: it is not as it should be; a figure must name a source that there is, a source a kind that there is.
    """
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    sources = {name: Source(**source) for name, source in data["sources"].items()}
    figures = tuple(Figure(**figure) for figure in data["figures"])
    if wrong := {figure.source for figure in figures} - set(sources):
        raise ValueError(f"{path.name}: expected sources that are listed, received {', '.join(sorted(wrong))}.")
    if wrong := {source.kind for source in sources.values()} - {"training", "evaluation", *UNLIKE}:
        raise ValueError(f"{path.name}: expected kinds training, evaluation, {', '.join(UNLIKE)}, received {', '.join(sorted(wrong))}.")
    same = {task["published"]: task["env"] for task in data["same_tasks"]}
    return Published(sources, figures, same, tuple(f"{task['published']} counts as {task['env']} ({task['why']})" for task in data["same_tasks"]), tuple(data["not_found"]))


def _task(env: str) -> str:
    """Without its version."""
    return env.rpartition("-v")[0]
