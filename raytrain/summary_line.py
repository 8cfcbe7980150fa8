"""A summary as one line of text, aligned with the lines before it."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from raytrain.messages import QUEUE_CAPACITY
from raytrain.stats import (
    CUMULATIVE_REWARD,
    ELO,
    EPISODE_LENGTH,
    POLICY_LAG_MEAN,
    PRETRAINING_LOSS,
    QUEUE_FILL,
    STEPS_PER_SECOND,
    UPDATES_PER_SECOND,
    VALIDATION_ACCURACY,
    VALIDATION_LOSS,
    Summary,
)

_Part = tuple[int, Text]
"""Rank and text. Rank 0 is always shown; of the others, the higher, the sooner left out on a narrow terminal."""


class SummaryLines:
    """Summaries as lines whose columns stay in place from line to line."""

    def __init__(self, plus_minus: str = "±") -> None:
        self._plus_minus = plus_minus
        self._name_width = 0
        self._step_width = len("100,000")
        self._had_episode: set[str] = set()

    def know(self, behavior: str, max_steps: int = 0) -> None:
        """Leave room for this behavior and its largest step."""
        self._name_width = max(self._name_width, len(behavior))
        self._step_width = max(self._step_width, len(f"{max_steps:,}"))

    def line(self, summary: Summary, width: int) -> Text:
        """`summary` in at most `width` characters where possible: what matters least is left out."""
        self.know(summary.behavior, summary.step)
        parts = [
            (0, Text(f"{summary.behavior:<{self._name_width}}", style="bold cyan")),
            (0, _labelled("step", f"{summary.step:>{self._step_width},}")),
            (3, Text(f"{format_seconds(summary.elapsed_s):>8}")),
            *self._episode_parts(summary),
            *_system_parts(summary.values),
        ]
        left = width + 2
        shown = []
        for position, (rank, part) in sorted(enumerate(parts), key=lambda item: item[1][0]):
            if rank == 0 or len(part) + 2 <= left:
                shown.append(position)
                left -= len(part) + 2
        line = Text("  ").join(parts[position][1] for position in sorted(shown))
        line.rstrip()
        return line

    def _episode_parts(self, summary: Summary) -> list[_Part]:
        values, known = summary.values, summary.behavior in self._had_episode
        if QUEUE_FILL not in values and PRETRAINING_LOSS in values:  # learnt from demonstrations alone
            return [*self._returns(summary), *_losses(values)]
        if CUMULATIVE_REWARD not in values:
            text = f"no {'new ' if known else ''}episode finished{'' if known else ' yet'}; longest running: {summary.longest_episode:,} steps"
            # As wide as the three parts below, so that what follows stays in place.
            return [(0, Text(f"{text:<{56 + len(self._plus_minus)}}", style="yellow"))]
        return self._returns(summary)

    def _returns(self, summary: Summary) -> list[_Part]:
        """Of the episodes that ended; nothing without any."""
        values = summary.values
        if CUMULATIVE_REWARD not in values:
            return []
        self._had_episode.add(summary.behavior)
        spread = "" if summary.reward_std is None else f" {self._plus_minus} {format_number(summary.reward_std):<7}"
        rating = [(0, _labelled("ELO", f"{values[ELO]:>7,.0f}"))] if ELO in values else []
        return [
            *rating,
            (0, Text.assemble(("return ", "dim"), (f"{format_number(values[CUMULATIVE_REWARD]):>8}", "bold green"), spread)),
            (2, Text(f"({summary.episodes:,} episode{'s' if summary.episodes != 1 else ''})".ljust(16))),
            (4, _labelled("length", f"{format_number(values[EPISODE_LENGTH], decimals=0):>5}")),
        ]


def _losses(values: Mapping[str, float]) -> list[_Part]:
    """How well demonstrations are imitated: those learnt from, and those held out."""
    parts = [(0, _labelled("loss", f"{format_number(values[PRETRAINING_LOSS]):>6}"))]
    if VALIDATION_LOSS in values:
        parts.append((0, _labelled("held out", f"{format_number(values[VALIDATION_LOSS]):>6}")))
    if VALIDATION_ACCURACY in values:
        parts.append((1, _labelled("right", f"{values[VALIDATION_ACCURACY]:>6.1%}")))
    return parts


def _system_parts(values: Mapping[str, float]) -> list[_Part]:
    parts = []
    if STEPS_PER_SECOND in values:
        parts.append((1, Text.assemble(f"{format_number(values[STEPS_PER_SECOND], decimals=0):>7}", (" steps/s", "dim"))))
    if POLICY_LAG_MEAN in values:
        parts.append((5, _labelled("lag", f"{values[POLICY_LAG_MEAN]:>3.1f}")))
    if UPDATES_PER_SECOND in values:
        parts.append((6, Text.assemble(f"{format_number(values[UPDATES_PER_SECOND], decimals=0):>5}", (" updates/s", "dim"))))
    if QUEUE_FILL in values:
        parts.append((6, _labelled("queue", f"{values[QUEUE_FILL]:>4.1f}/{QUEUE_CAPACITY}")))
    return parts


def _labelled(label: str, value: str) -> Text:
    return Text.assemble((f"{label} ", "dim"), value)


def format_number(value: float, decimals: int | None = None) -> str:
    """Three to four figures that matter (0.123, 9.53, 145.2, 12,345), or a fixed number of decimals."""
    if decimals is None:
        size = abs(value)
        decimals = 3 if size < 1 else 2 if size < 100 else 1 if size < 10_000 else 0
    return f"{value:,.{decimals}f}"


def format_seconds(seconds: float) -> str:
    """12.3 s, 4m 03s, 1h 02m."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"
