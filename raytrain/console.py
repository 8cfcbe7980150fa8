"""What the user sees: start-up tables, one line per summary, a progress bar, waits and errors.

On a terminal there is some colour and a bar at the bottom. Otherwise (a file, a pipe, a notebook, ``NO_COLOR``,
``TERM=dumb``, an encoding other than UTF) there are plain lines without escape codes and no bar.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.columns import Columns
from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from raytrain.stats import Summary
from raytrain.summary_line import SummaryLines, format_number, format_seconds

Rows = Sequence[tuple[str, Any]]

_SUMMARY_EVERY_S = 0.5
_BAR_EVERY_S = 0.25
_PLAIN_WIDTH = 1000
_BUSY_S = 5.0
ENDING_SILENCE_S = 10.0
"""Longest silence while a run ends, for `Console.waiting`."""


class SilenceGuard:
    """Says when something should be printed because nothing was for too long.

    Args:
        clock: seconds, monotonic.
        early_s: how long after construction silence is broken often.
        early_every_s, later_every_s: the longest silence before and after that.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, early_s: float = 120.0, early_every_s: float = 10.0, later_every_s: float = 60.0,
    ) -> None:
        self._clock = clock
        self._started = self._last = clock()
        self._early_s, self._early_every_s, self._later_every_s = early_s, early_every_s, later_every_s

    def spoke(self) -> None:
        """Something was printed now."""
        self._last = self._clock()

    def due(self, at_most_s: float = float("inf")) -> bool:
        """Whether it has been silent for too long, in any case `at_most_s`. Stays true until something is printed."""
        now = self._clock()
        limit = self._early_every_s if now - self._started < self._early_s else self._later_every_s
        return now - self._last >= min(limit, at_most_s)


class Console:
    """Prints for one run. For one thread.

    Args:
        file: where to print; None is whatever ``sys.stdout`` is at the time.
        error_file: where `error` prints; None is ``sys.stderr``.
        clock: seconds, monotonic.
        environ: where ``NO_COLOR`` and ``TERM`` are looked up.
        quiet: print errors only, since standard output belongs to a program.

    Attributes:
        silence: when `waiting` speaks; whatever is printed or drawn here counts as output, and so should what others print.
        is_plain: no colour, no bar.
    """

    def __init__(
        self, file: TextIO | None = None, error_file: TextIO | None = None, clock: Callable[[], float] = time.monotonic,
        environ: Mapping[str, str] = os.environ, quiet: bool = False,
    ) -> None:
        stream = file or sys.stdout
        self._quiet = quiet
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        is_utf = self._encoding.lower().startswith("utf")
        self.is_plain = not (stream.isatty() and is_utf) or bool(environ.get("NO_COLOR")) or environ.get("TERM") in ("dumb", "unknown")
        if self.is_plain:
            self._out = RichConsole(file=file, force_terminal=False, force_jupyter=False, color_system=None, width=_PLAIN_WIDTH)
        else:
            self._out = RichConsole(file=file, force_terminal=True, force_jupyter=False)
        self._error_file = error_file
        self._clock = clock
        self.silence = SilenceGuard(clock)
        self._lines = SummaryLines(plus_minus="±" if is_utf else "+/-")
        self._pending: dict[str, Summary] = {}
        self._printed_at = self._drawn_at = -float("inf")
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._steps: dict[str, int] = {}
        self._moved = False
        self._waiting_for, self._waiting_since = "", clock()
        self._warned: set[str] = set()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines of the terminal; of what is none, as a page."""
        return (100, 30) if self.is_plain else (self._out.width, self._out.height)

    def header(self, title: str, rows: Rows) -> None:
        """The first lines of a run: what and where (Ray, run folder, seed, versions)."""
        self._say(Text(title, style="bold"))
        self._say(_grid(rows))

    def config_table(self, sections: Sequence[tuple[str, Rows]]) -> None:
        """The resolved configuration: sections of (key, value), side by side where the terminal is wide enough."""
        blocks = [Group(Text(title, style="bold"), _grid(rows), "") for title, rows in sections if rows]
        self._say("")
        self._say(Group(*blocks) if self.is_plain else Columns(blocks, padding=(0, 3)))

    def startup_table(self, behavior: str, rows: Rows) -> None:
        """What one behavior observes and does and how it is run: a line per item (space, distribution, mapping, dtype, …)."""
        self._lines.know(behavior)
        self._say(Text.assemble(("behavior ", "dim"), (behavior, "bold cyan")))
        self._say(_grid(rows))
        self._say("")

    def message(self, text: str) -> None:
        """One line of news."""
        self._say(Text(text))

    def warning(self, text: str) -> None:
        """Something that is not as the user may expect, and what to do."""
        self._say(Text.assemble(("warning: ", "bold yellow"), text))

    def warn_once(self, text: str) -> None:
        """`warning`, unless the same was said before."""
        if text not in self._warned:
            self._warned.add(text)
            self.warning(text)

    def table(self, title: str, rows: Rows) -> None:
        """A small table under a title."""
        self._say(Text(title, style="bold"))
        self._say(_grid(rows))

    def columns(self, names: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> None:
        """A table with a heading for each column; those of `numbers` are aligned to the right."""
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
        for name in names:
            table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        self._say(table)

    def live(self) -> Live:
        """Something that is drawn anew at the bottom, and taken away at the end; not for a plain console."""
        return Live(console=self._out, transient=True, auto_refresh=False)

    def waiting(self, what: str, since_s: float | None = None, at_most_s: float = float("inf")) -> None:
        """Say what is waited for and for how long, when it was silent for too long. Call it on every turn.

        Args:
            what: goes on "waiting for …".
            since_s: seconds; None counts from the first call that named this `what`, with no other named since.
            at_most_s: longest silence (seconds), where it should be shorter than otherwise.
        """
        if what != self._waiting_for:
            self._waiting_for, self._waiting_since = what, self._clock()
        if self.silence.due(at_most_s):
            waited_s = self._clock() - self._waiting_since if since_s is None else since_s
            self._say(Text(f"waiting for {what}, {waited_s:.0f} s", style="dim"))

    @contextmanager
    def busy(self, what: str, after_s: float = _BUSY_S) -> Iterator[None]:
        """While something goes on that cannot be asked how far it is: say `what` once, if it takes longer than `after_s` (seconds)."""
        timer = threading.Timer(after_s, lambda: self.message(f"{what} …"))
        timer.daemon = True  # a second Ctrl-C ends the process at once
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def summary(self, summary: Summary) -> None:
        """One line; of summaries that follow within half a second of the last printed one, only the newest of each behavior."""
        self._pending[summary.behavior] = summary
        self._print_summaries()

    def progress(self, agent_steps: int, max_steps: int, mean_return: float | None = None, behavior: str = "") -> None:
        """Draw the bar of one behavior anew, at most four times a second; on a plain console nothing is drawn. Call it on every turn."""
        self._lines.know(behavior, max_steps)
        self._print_summaries()
        if self.is_plain:
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}", style="bold cyan"), BarColumn(complete_style="cyan", finished_style="green"), _ProgressText(Column(no_wrap=True)),
                console=self._out, transient=True, auto_refresh=False, get_time=self._clock,
            )
            self._bar.start()
            # A second Ctrl-C ends the process at once: nothing could bring a hidden cursor back.
            self._out.show_cursor(True)
        if behavior not in self._tasks:
            # The steps of a resumed run are no progress of this one: they must not count towards the rate.
            self._tasks[behavior] = self._bar.add_task(behavior, total=max_steps, completed=agent_steps, mean_return=mean_return)
        self._moved |= agent_steps != self._steps.get(behavior)
        self._steps[behavior] = agent_steps
        self._bar.update(self._tasks[behavior], completed=agent_steps, total=max_steps, mean_return=mean_return)
        if self._clock() - self._drawn_at >= _BAR_EVERY_S:
            self._bar.refresh()
            self._drawn_at = self._clock()
            if self._moved:  # a bar that stands still is silence
                self.silence.spoke()
            self._moved = False

    def error(self, text: str, user_traceback: str = "", log_file: str | os.PathLike[str] | None = None) -> None:
        """A plain block on stderr, the user's traceback first, so that the last lines on the screen hold what went wrong and where.

        Args:
            text: expected, got, where, what to do. A traceback that is in it already is not repeated.
            user_traceback: as Python prints it.
            log_file: where the full chain of causes is.
        """
        self.close()
        label = "" if text.lstrip().startswith("Traceback") else "error: "
        parts = [user_traceback.rstrip() if user_traceback.strip() not in text else "", label + text.strip()]
        if log_file is not None:
            parts.append(f"Full log: {os.fspath(log_file)}")
        print("\n" + "\n\n".join(part for part in parts if part), file=self._error_file or sys.stderr, flush=True)
        self.silence.spoke()

    def ended(self, reason: str, resume_command: str | None = None, rows: Rows = ()) -> None:
        """The last lines: why the run ended, what it left (rows), and how to go on, ready to copy."""
        self._print_summaries(now=True)
        self._stop_bar()
        self._say("")
        self._say(Text.assemble(("ended: ", "bold"), reason))
        if rows:
            self._say(_grid(rows))
        if resume_command:
            self._say(Text("to go on:", style="dim"))
            self._say(Text(f"  {resume_command}"), copyable=True)

    def close(self) -> None:
        """Print the summary held back, take the bar away. May be called twice; printing goes on to work."""
        self._print_summaries(now=True)
        self._stop_bar()

    def _print_summaries(self, now: bool = False) -> None:
        if not self._pending or (not now and self._clock() - self._printed_at < _SUMMARY_EVERY_S):
            return
        for summary in self._pending.values():
            self._say(self._lines.line(summary, self._out.width))
        self._pending.clear()
        self._printed_at = self._clock()

    def _say(self, what: RenderableType, copyable: bool = False) -> None:
        """Print; `copyable` leaves wrapping to the terminal, so that a long command is copied in one piece."""
        if self._quiet:
            return
        if self.is_plain:
            with self._out.capture() as captured:
                self._out.print(what, markup=False, highlight=False)
            # Tables pad every line to their full width. A stream that cannot encode a character must not end the run.
            text = "\n".join(line.rstrip() for line in captured.get().splitlines())
            what = Text(text.encode(self._encoding, "replace").decode(self._encoding))
        self._out.print(what, soft_wrap=copyable or self.is_plain, markup=False, highlight=False)
        self.silence.spoke()

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            self._tasks.clear()


class _ProgressText(ProgressColumn):
    """What stands beside the bar: steps, rate, time left, mean return."""

    def render(self, task: Task) -> Text:
        parts = [f"{task.completed:,.0f}/{task.total:,.0f} steps"]
        if task.speed:
            parts += [f"{task.speed:,.0f}/s", f"{format_seconds(task.remaining / task.speed)} left"]
        if task.fields["mean_return"] is not None:
            parts.append(f"return {format_number(task.fields['mean_return'])}")
        return Text("  ".join(parts))


def _grid(rows: Rows) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in rows:
        table.add_row(Text(key), Text(str(value)))
    return Padding(table, (0, 0, 0, 2))
