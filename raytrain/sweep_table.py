"""What is shown of a sweep: a table of its trials, drawn anew while it goes on where there is a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.live import Live
from rich.table import Table
from rich.text import Text

from raytrain.console import Console
from raytrain.summary_line import format_number
from raytrain.sweep_record import Trial

_DRAW_EVERY_S = 0.25
_ROWS = 20  # of a live table, which must not be longer than a screen


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Dotted path -> as much of its end as tells it from the others."""
    names = {}
    for path in paths:
        keys = path.split(".")
        ends = [".".join(keys[-count:]) for count in range(1, len(keys) + 1)]
        names[path] = next(end for end in ends if sum(f".{other}".endswith(f".{end}") for other in paths) == 1 or end == path)
    return names


def columns_of(trials: Sequence[Trial]) -> list[str]:
    """The headings."""
    return ["trial", "state", *short_names(_paths(trials)).values(), "agent steps", "metric"]


def rows_of(trials: Sequence[Trial], best: Trial | None = None) -> list[tuple[str, ...]]:
    """A row for each trial, with the headings of `columns_of`; the best one has a star."""
    rows = []
    for trial in trials:
        values = [_value(trial.parameters.get(path)) for path in _paths(trials)]
        metric = "" if trial.metric is None else format_number(trial.metric) + (" *" if trial is best else "")
        rows.append((trial.name, trial.state, *values, f"{trial.agent_steps:,}" if trial.agent_steps else "", metric))
    return rows


def _paths(trials: Sequence[Trial]) -> list[str]:
    """Those that trials differ in; all where they differ in none."""
    paths = list(dict.fromkeys(path for trial in trials for path in trial.parameters))
    differ = [path for path in paths if any(trial.parameters.get(path) != trials[0].parameters.get(path) for trial in trials)]
    return differ or paths


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


class SweepTable:
    """The table while a sweep goes on; without a terminal a line for each trial that begins or ends.

    Args:
        quiet: show nothing, since the end is printed for a program.
    """

    def __init__(self, console: Console, trials: Sequence[Trial], quiet: bool = False) -> None:
        self._console, self._trials, self._quiet = console, trials, quiet
        self._live: Live | None = None
        self._drawn_s = 0.0
        self._said = {trial.name: (trial.state, len(trial.changes)) for trial in trials}

    def update(self) -> None:
        """Show what has changed; call it often."""
        if self._quiet:
            return
        if self._console.is_plain:
            self._say()
        elif time.monotonic() - self._drawn_s >= _DRAW_EVERY_S:
            self._drawn_s = time.monotonic()
            if self._live is None:
                self._live = self._console.live()
                self._live.start()
            self._live.update(self._table(), refresh=True)

    def close(self) -> None:
        """Take it away: the result follows."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _say(self) -> None:
        for trial in self._trials:
            if self._said[trial.name] == (now := (trial.state, len(trial.changes))):
                continue
            _, before = self._said[trial.name]
            self._said[trial.name] = now
            if len(trial.changes) > before:
                last = trial.changes[-1]
                self._console.message(f"{trial.name} goes on from {last['from']}'s checkpoint at {last['agent_steps']:,} agent steps: {self._parameters(trial)}")
            elif trial.state == "running":
                self._console.message(f"{trial.name} runs: {self._parameters(trial)}")
            elif trial.state != "waiting":
                metric = "no metric" if trial.metric is None else format_number(trial.metric)
                self._console.message(f"{trial.name} {trial.state} at {trial.agent_steps:,} agent steps: {metric}" + (f" ({trial.reason})" if trial.reason else ""))
        going = [f"{trial.name} at {trial.agent_steps:,}" for trial in self._trials if trial.state == "running"]
        self._console.waiting(f"trials ({', '.join(going) or 'none has begun'})")

    def _parameters(self, trial: Trial) -> str:
        names = short_names(_paths(self._trials))
        return ", ".join(f"{name} {_value(trial.parameters.get(path))}" for path, name in names.items())

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
        for name in columns_of(self._trials):
            table.add_column(name, overflow="fold")
        # Those that are going first, then the newest that ended.
        order = sorted(self._trials, key=lambda trial: (trial.state != "running", trial.state == "waiting"))
        for trial, row in zip(order[:_ROWS], rows_of(order)[:_ROWS], strict=True):
            table.add_row(*map(Text, row), style="cyan" if trial.state == "running" else "dim" if trial.state == "waiting" else "")
        if len(order) > _ROWS:
            table.caption = f"and {len(order) - _ROWS} more"
        return table
