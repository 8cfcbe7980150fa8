"""``raytrain compare``: curves of several runs in one picture, in the terminal, and what each came to."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from raytrain.console import Console
from raytrain.curves import Curve, read_curves, smoothed
from raytrain.pictures import check_picture, figure_of, save_figure
from raytrain.summary_line import format_number, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LAST = 0.1
"""Share of a curve's summaries that "at the end" is the mean of; one summary alone says little."""
_FIGURE = (9.0, 4.5)


def labels(curves: Sequence[Curve]) -> list[str]:
    """A name for each curve: the run, and the behavior where that is needed to tell them apart."""
    behaviors = {curve.behavior for curve in curves}
    several = len({curve.run for curve in curves}) < len(curves) or len(behaviors) > 1
    return [f"{curve.run} {curve.behavior}" if several else curve.run for curve in curves]


def final_rows(curves: Sequence[Curve]) -> list[tuple[str, ...]]:
    """The table of what each curve came to, with `COLUMNS`."""
    rows = []
    for curve in curves:
        last = curve.values[-max(1, round(_LAST * len(curve.values))) :]
        best = int(np.argmax(curve.values))
        numbers = (format_number(float(v)) for v in (curve.values[-1], last.mean(), curve.values[best]))
        rows.append((curve.run, curve.behavior, f"{curve.steps[-1]:,}", *numbers, f"{curve.steps[best]:,}", format_seconds(curve.elapsed_s)))
    return rows


COLUMNS = ("run", "behavior", "agent steps", "last", "last tenth", "highest", "at step", "time")
NUMBERS = COLUMNS[2:]


def draw_curves(curves: Sequence[Curve], tag: str, weight: float = 0.0) -> Figure:
    """The picture; where it is smoothed, what it was before is pale behind.

    Raises:
        ValueError: matplotlib is missing.
    """
    figure = figure_of(*_FIGURE)
    from matplotlib.ticker import EngFormatter

    axes = figure.subplots()
    for label, curve in zip(labels(curves), curves, strict=True):
        (line,) = axes.plot(curve.steps, smoothed(curve.values, weight), linewidth=1.8, label=label, marker="o" if len(curve.steps) == 1 else None)
        if weight:
            axes.plot(curve.steps, curve.values, linewidth=0.8, alpha=0.3, color=line.get_color())
    axes.set(xlabel="agent steps", ylabel=tag)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    if curves:
        axes.legend(frameon=False, fontsize="small")
    return figure


def text_plot(curves: Sequence[Curve], tag: str, weight: float, width: int, height: int, colour: bool) -> str | None:
    """The curves as characters, by plotext; None where that is not installed."""
    try:
        import plotext
    except ImportError:
        return None
    plotext.clear_figure()
    plotext.plot_size(width, height)
    plotext.theme("pro" if colour else "clear")
    for label, curve in zip(labels(curves), curves, strict=True):
        plotext.plot(curve.steps.tolist(), smoothed(curve.values, weight).tolist(), label=label, marker="braille")
    plotext.xlabel("agent steps")
    plotext.title(tag)
    text = plotext.build()
    return text if colour else plotext.uncolorize(text)


def run_command(options: argparse.Namespace) -> int:
    """The command with its parsed arguments; returns the exit code."""
    console = Console()
    try:
        if not 0.0 <= options.smooth < 1.0:
            raise ValueError(f"Expected --smooth from 0 (not at all) to below 1, received {options.smooth:g}.")
        out = None if options.out is None else check_picture(Path(options.out), "--out")
        curves = [curve for run in options.runs for curve in read_curves(run, options.tag)]
        if out is not None:
            save_figure(draw_curves(curves, options.tag, options.smooth), out)
    except ValueError as error:
        console.error(str(error))
        return 2
    width, height = console.size
    text = text_plot(curves, options.tag, options.smooth, min(width, 120), min(max(12, height - len(curves) - 6), 24), not console.is_plain)
    if text is not None and console.is_plain:
        console.message(text)
    elif text is not None:
        print(text)  # with plotext's own colours
    console.message(f"{options.tag}" + (f", curves smoothed by {options.smooth:g}" if options.smooth else ""))
    console.columns(COLUMNS, final_rows(curves), NUMBERS)
    if text is None:
        console.message("For curves here in the terminal: pip install 'raytrain[plots]'." + ("" if out else " As a picture: --out curves.png."))
    if out is not None:
        console.message(f"picture in {out}")
    return 0
