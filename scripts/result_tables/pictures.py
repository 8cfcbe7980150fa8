"""Training returns over agent steps: one picture of all files, and those of single files that other pages show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from result_tables.cells import goal

ALONE = ("ppo/MountainCar", "sac/Pendulum")
"""Shown in docs/reward-signals.md and docs/sac.md."""
COLUMNS = 4
WAYS = {"as the file stands": ("C0", "-"), "fixed steps": ("C2", "-"), "fixed steps, lock-step": ("C3", "--"), "another setting": ("C1", ":")}
"""What the runs of a line have in common → colour and style."""


def draw_all(data: dict[str, Any], folder: Path) -> None:
    """``results.png`` with a panel for each file that has curves, and the pictures of `ALONE`."""
    curves = collect(data)
    folder.mkdir(exist_ok=True)
    for file in ALONE:
        if file in curves:
            figure, axes = pyplot.subplots(figsize=(7.2, 3.4), dpi=110, layout="constrained")
            _panel(axes, file, curves[file], named=True)
            axes.set(title=f"yaml/{file}.yaml", xlabel="agent steps", ylabel="training return")
            axes.legend(frameon=False, fontsize="small")
            _save(figure, folder / f"{file.replace('/', '-').lower()}.png")
    if not curves:
        return
    rows = -(-len(curves) // COLUMNS)
    figure, grid = pyplot.subplots(rows, COLUMNS, figsize=(11.0, 2.15 * rows + 0.5), dpi=110, layout="constrained", squeeze=False)
    for axes in grid.flat[len(curves):]:
        axes.set_axis_off()
    for axes, (file, lines) in zip(grid.flat, curves.items(), strict=False):
        _panel(axes, file, lines, named=False)
        axes.set_title(file, fontsize="medium")
        axes.tick_params(labelsize="small")
        axes.xaxis.set_major_locator(MaxNLocator(4))
    figure.supxlabel("agent steps", fontsize="medium")
    figure.supylabel("training return, one line for each seed", fontsize="medium")
    used = [way for way in WAYS if any(way == line[0] for lines in curves.values() for line in lines)]
    handles = [pyplot.Line2D([], [], color=WAYS[way][0], linestyle=WAYS[way][1], label=way) for way in used]
    handles.append(pyplot.Line2D([], [], color="0.4", linewidth=1.0, linestyle="--", label="stop.reward"))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    _save(figure, folder / "results.png")


def collect(data: dict[str, Any]) -> dict[str, list[tuple[str, str, list[tuple[int, float]]]]]:
    """File → (way, name, curve) of each run that has a curve, files in alphabetical order."""
    found: dict[str, list[tuple[str, str, list[tuple[int, float]]]]] = {}
    for section in ("runs", "final"):
        for key, runs in data.get(section, {}).items():
            file, *words = key.split(" ")
            lockstep = section == "final" and words[1:2] == ["lock-step"]
            label = " ".join(words[1 + lockstep:] if section == "final" else words)
            way = "another setting" if label else "as the file stands" if section == "runs" else "fixed steps, lock-step" if lockstep else "fixed steps"
            name = " ".join(words)
            found.setdefault(file, []).extend((way, f"{name} seed {run['seed']}".strip(), run["curve"]) for run in runs if run.get("curve"))
    return {file: lines for file, lines in sorted(found.items()) if lines}


def _panel(axes: Axes, file: str, lines: list[tuple[str, str, list[tuple[int, float]]]], named: bool) -> None:
    """The runs of one file, each with its name and colour of its own, or in the colours of `WAYS`."""
    for way, name, curve in lines:
        style = {"linestyle": WAYS[way][1]} if named else {"color": WAYS[way][0], "linestyle": WAYS[way][1]}
        axes.plot(*zip(*curve, strict=True), linewidth=1.8 if named else 1.2, label=name, **style)
    if goal(file) is not None:
        axes.axhline(goal(file), color="0.4", linewidth=1.0, linestyle="--", label=f"stop.reward {goal(file):g}")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def _save(figure: pyplot.Figure, path: Path) -> None:
    figure.savefig(path)
    pyplot.close(figure)
