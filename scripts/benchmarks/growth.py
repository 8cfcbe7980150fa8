"""Throughput against environments of an env manager and the width of the network: points, rows, table and picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.row import Row, Run, median, select

ENVS = tuple(2**i for i in range(10))
WIDTHS = tuple(2**i for i in range(5, 11))
WIDTH_OF_ENVS, ENVS_OF_WIDTHS = 64, 128
"""The width while environments become more, and the number of environments while the network becomes wider."""
WIDTHS_BUFFER = 2048
"""Agent steps an update with those networks: with 1,024 units an update of 8,192 would be as long as the window."""
OBSERVED, CHOICES = 4, 2
CLIFF = 0.5


@dataclass(frozen=True)
class Point:
    """One run of the task.

    Attributes:
        native: on the native vector environment, or on Python copies in one process.
        line: what grows: ``envs`` or ``width``.
        envs: of the one env manager.
        width: units of each of two hidden layers.
    """

    native: bool
    line: str
    envs: int
    width: int

    @property
    def contestant(self) -> str:
        return f"{self.line}-{'native' if self.native else 'copies'}-{self.x}"

    @property
    def x(self) -> int:
        """What grows."""
        return self.envs if self.line == "envs" else self.width

    @property
    def multiplications(self) -> int:
        """Of one agent step through the dense layers of actor and critic."""
        return 2 * (OBSERVED * self.width + self.width**2) + self.width * (CHOICES + 1)

    @property
    def settings(self) -> tuple[str, ...]:
        """What the run changes in ``yaml/benchmarks/cartpole-throughput.yaml``."""
        settings = [f"env_settings.num_envs={self.envs}"]
        if self.line == "width":
            settings += [f"behaviors.CartPole.network_settings.hidden_units={self.width}",
                         f"behaviors.CartPole.hyperparameters.buffer_size={WIDTHS_BUFFER}"]
        return tuple(settings if self.native else [*settings, "env_settings.stepping=inline"])


POINTS = tuple(
    point for native in (True, False) for point in (
        *(Point(native, "envs", envs, WIDTH_OF_ENVS) for envs in ENVS),
        *(Point(native, "width", ENVS_OF_WIDTHS, width) for width in WIDTHS),
    )
)
LINES = {
    (native, line): tuple(point for point in POINTS if (point.native, point.line) == (native, line))
    for native in (True, False) for line in ("envs", "width")
}


def title(native: bool, line: str) -> str:
    """A line, for people."""
    return f"{'native vector env' if native else 'Python copies'}, {'environments' if line == 'envs' else 'units a layer'}"


def measured(runs: Sequence[Run], points: Sequence[Point]) -> list[tuple[Point, float]]:
    """Those of `points` that have a figure, with the median of their agent steps a second."""
    found = [(point, median(select(runs, "growth", point.contestant), "steps_per_s")) for point in points]
    return [(point, value) for point, value in found if value is not None]


def rows(runs: Sequence[Run]) -> list[Row]:
    """Of each line the step at which arithmetic a second falls most: agent steps a second × multiplications of an agent step."""
    made = []
    for (native, line), points in LINES.items():
        found = measured(runs, points)
        steps = [(after * b.multiplications / (before * a.multiplications), a, b) for (a, before), (b, after) in pairwise(found) if before]
        worst = min(steps, key=lambda step: step[0], default=None)
        where = "" if worst is None else f": {worst[1].x} to {worst[2].x}"
        value = None if len(found) < len(points) or worst is None else worst[0]
        what = f"CartPole-v1, {title(native, line)}, worst step of {points[0].x} … {points[-1].x}{where}"
        made.append(Row("growth", what, value, "× the arithmetic of the point before", None, "", f"≥ {CLIFF:g} ×", None if value is None else value >= CLIFF))
    return made


def table_lines(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """Environments, units, and the figures of both kinds of environment: lines of the page's table."""
    shapes = dict.fromkeys((point.line, point.envs, point.width) for point in POINTS)
    figures = {(point.native, point.line, point.x): value for point, value in measured(runs, POINTS)}

    def cell(value: float | None, times: int = 1) -> str:
        return "–" if value is None else f"{value * times:,.0f}" if times == 1 else f"{value * times / 1e9:.2f}"

    lines = []
    for line, envs, width in shapes:
        point = Point(True, line, envs, width)
        native, copies = (figures.get((kind, line, point.x)) for kind in (True, False))
        lines.append((str(envs), str(width), cell(native), cell(copies), cell(native, point.multiplications), cell(copies, point.multiplications)))
    return lines


HEADINGS = ("environments", "units a layer", "native, agent steps/s", "copies, agent steps/s", "native, 10⁹ multiplications/s",
            "copies, 10⁹ multiplications/s")


def draw(runs: Sequence[Run], path: Path) -> Path | None:
    """The picture of the page at `path`, which is returned; None where nothing of it was measured. Needs matplotlib."""
    if not measured(runs, POINTS):
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = dict(zip(("envs", "width"), figure.subplots(1, 2), strict=True))
    for (native, line), points in LINES.items():
        found = measured(runs, points)
        axes[line].plot([point.x for point, _ in found], [value for _, value in found], "o-" if native else "s--",
                        label="native vector env" if native else "Python copies")
    for line, label in (("envs", f"environments ({WIDTH_OF_ENVS} units a layer)"), ("width", f"units a layer ({ENVS_OF_WIDTHS} environments)")):
        axes[line].set_xscale("log", base=2)
        axes[line].set_yscale("log")
        axes[line].set_xlabel(label)
        axes[line].set_ylabel("agent steps/s")
        axes[line].grid(visible=True, alpha=0.3)
        axes[line].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(str(path))
    return path
