"""Where statistics go: the protocol of writers, and the only place from which they are called. docs/trackers.md is for people.

TensorBoard's event files, ``metrics.csv`` and the gauges of ``timers.json`` are writers of this protocol themselves.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from raytrain.errors import RunFolderError, WriterError
from raytrain.stats import Summary

Status = Literal["finished", "interrupted", "failed"]

_ROOM = 10_000  # calls that may wait for a writer; it is far behind then, and what comes is counted as lost
_LAST_S = {"finished": 30.0, "interrupted": 8.0, "failed": 8.0}
"""How long the end of a run waits for a writer; a run that was told to stop has 15 s for everything."""

_OURS = (__name__, "raytrain.writer_registry")  # whose frames a user need not read


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


@dataclass(frozen=True)
class RunInfo:
    """What a writer is told of the run.

    Attributes:
        run_id: name of the run.
        folder: of the run, on this machine; a writer may keep things in it, below ``writers/``.
        behaviors: behavior -> its folder, in the order of the run.
        settings: plain values with every default, as ``configuration.yaml`` has them.
        resume_steps: behavior -> agent steps of the checkpoint that the run goes on from; None for a new run.
    """

    run_id: str
    folder: Path
    behaviors: dict[str, Path]
    settings: dict[str, Any]
    resume_steps: dict[str, int] | None = None

    def resume_step(self, behavior: str) -> int | None:
        """Agent steps from which a behavior goes on; None for a new run."""
        return None if self.resume_steps is None else self.resume_steps.get(behavior)


class Writer:
    """Takes the statistics of one run somewhere. Subclass it; only `write` has to be there.

    A new object is made for each run. Its arguments are the options in the YAML file; the constructor only keeps and checks them, and `open`
    makes what there is to make. An exception from either refuses the run (exit code 2). Of what is raised later the first exception is shown
    with its traceback, and training goes on.

    Attributes:
        waits: calls may take long (they wait for a network), so they are made from a thread of the writer's own, one after another.
        place: where a person finds what was written (an address); shown at the start, after `open`.
    """

    waits = True
    place = ""

    def open(self, run: RunInfo) -> None:
        """The run has its folder and is about to start. Called once, first, in the thread of the run."""

    def write(self, behavior: str, step: int, values: Mapping[str, float]) -> None:
        """One point of every tag in `values`.

        Args:
            behavior: its name.
            step: agent steps of the behavior. Rises from one summary to the next, but see `rewind`; so do those of evaluations, which may be smaller
                than that of the last summary.
            values: tag (docs/metrics.md) -> finite number. A tag without data is absent.
        """
        raise NotImplementedError

    def summary(self, summary: Summary) -> None:
        """A summary, with what it has besides its values; by default `write`."""
        self.write(summary.behavior, summary.step, summary.values)

    def evaluation(self, behavior: str, step: int, values: Mapping[str, float]) -> None:
        """An evaluation of the checkpoint at `step`, whose tags no summary has; by default `write`."""
        self.write(behavior, step, values)

    def rewind(self, behavior: str, step: int) -> None:
        """The behavior goes back to its checkpoint at `step`, since its trainer died: take back what came after it, which comes again."""

    def status(self, status: Mapping[str, Any]) -> None:
        """How the run is doing, about every 5 s: what ``status.json`` holds."""

    def close(self, status: Status) -> None:
        """The run is over, whatever way; the last call. Not made where `open` has raised."""


@contextmanager
def writing_metrics(warn: Callable[[str], None]) -> Iterator[None]:
    """A disk that refuses is no reason to stop learning: writers keep what they were given and bring it to the disk with a later one.

    Args:
        warn: told what is wrong, each time.
    """
    try:
        yield
    except OSError as error:
        warn(f"cannot write metrics: {error}. Training goes on; they are kept in memory and written once there is space and the folder is writable")


class _Guard:
    """Calls a writer and keeps what it raises.

    Attributes:
        problem: what is to be told of the first failure; None before, and once it was told.
    """

    def __init__(self, name: str, writer: Writer) -> None:
        self.name, self.writer = name, writer
        self.problem: str | None = None
        self._calls = self._failed = 0

    def call(self, method: str, *arguments: Any) -> None:
        """Never raises."""
        if method != "status" or type(self.writer).status is not Writer.status:
            self._run(method, arguments)

    def _run(self, method: str, arguments: tuple[Any, ...]) -> None:
        self._calls += 1
        try:
            getattr(self.writer, method)(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever a writer does, learning goes on
            self._failed += 1
            if self._failed == 1:
                self.problem = (
                    f"the writer {self.name} failed in {method}: {type(error).__name__}: {error}. Training goes on, and so do calls of the writer; further "
                    f"failures are counted and told at the end.\n{users_traceback(error).rstrip()}")

    def finish(self, status: Status, keep_waiting: Callable[[], bool]) -> str:
        """Close the writer; what is to be told of it, empty where nothing is."""
        self._run("close", (status,))
        return self._told_at_the_end()

    def _told_at_the_end(self) -> str:
        return f"the writer {self.name} failed in {self._failed:,} of {self._calls:,} calls; what it was given then may be missing" if self._failed > 1 else ""


class _ThreadGuard(_Guard):
    """The same from a thread, so that nobody waits for a network."""

    def __init__(self, name: str, writer: Writer) -> None:
        super().__init__(name, writer)
        self._waiting: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(_ROOM)
        self._lost, self._given_up = 0, False
        self._thread = threading.Thread(target=self._work, name=f"writer {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            self._waiting.put_nowait((method, arguments))
        except queue.Full:
            self._lost += 1

    def _work(self) -> None:
        method = ""
        while method != "close":
            try:
                method, arguments = self._waiting.get(timeout=1.0)
            except queue.Empty:
                if self._given_up:
                    return
                continue
            super()._run(method, arguments)

    def finish(self, status: Status, keep_waiting: Callable[[], bool]) -> str:
        """As `_Guard.finish`; waits as long as `keep_waiting` says."""
        while self._thread.is_alive():  # until there is room for it
            try:
                self._waiting.put(("close", (status,)), timeout=0.1)
                break
            except queue.Full:
                if not keep_waiting():
                    self._given_up = True  # it ends when it has come through what waits
                    break
        while self._thread.is_alive() and keep_waiting():
            self._thread.join(0.1)
        if self._thread.is_alive():
            return f"the writer {self.name} does not come to an end; {self._lost + self._waiting.qsize():,} calls of it are given up"
        lost = f"the writer {self.name} was too slow: {self._lost:,} calls of it were left out" if self._lost else ""
        return "; ".join(text for text in (self._told_at_the_end(), lost) if text)


def users_traceback(error: BaseException) -> str:
    """The traceback from the writer's own code on, as Python prints it."""
    # Our own frames come first and say nothing; a call with wrong arguments has no others.
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_globals.get("__name__") in _OURS:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


class Writers:
    """All writers of a run.

    Args:
        own: raytrain's: a disk that refuses is a warning, what else they raise is a defect and ends the run.
        others: name -> a writer that the user asked for.
        warn: told what goes wrong.
        warn_once: the same, for what may go wrong again and again.
    """

    def __init__(self, own: Sequence[Writer], others: Mapping[str, Writer], warn: Callable[[str], None], warn_once: Callable[[str], None]) -> None:
        self._own, self._others = list(own), [(_ThreadGuard if writer.waits else _Guard)(name, writer) for name, writer in others.items()]
        self._warn, self._warn_once = warn, warn_once

    def open(self, run: RunInfo) -> list[str]:
        """Open all of them; a sentence on each that says where it writes.

        Raises:
            RunFolderError: the files of the run cannot be gone on with.
            WriterError: another one's `Writer.open` raised. Those that were open are closed.
        """
        opened: list[Writer] = []
        try:
            for writer in self._own:
                try:
                    writer.open(run)
                except (OSError, ValueError) as error:
                    raise RunFolderError(f"Cannot go on with the curves in {run.folder}: {error}") from error
                opened.append(writer)
            for guard in self._others:
                try:
                    guard.writer.open(run)
                except Exception as error:
                    raise WriterError.of(guard.name, "cannot be opened", error, users_traceback(error)) from error
                opened.append(guard.writer)
        except (RunFolderError, WriterError):
            self._close_at_once(opened)
            raise
        for guard in self._others:
            if isinstance(guard, _ThreadGuard):
                guard.start()
        return [f"{guard.name}: {guard.writer.place}" for guard in self._others if guard.writer.place]

    def _close_at_once(self, opened: Sequence[Writer]) -> None:
        for writer in opened:
            try:
                writer.close("failed")
            except Exception as error:  # noqa: BLE001 - must not hide why the run cannot start
                self._warn(f"a writer could not be closed: {error}")

    def summary(self, summary: Summary) -> None:
        """Hand on a summary."""
        self._call("summary", summary)

    def evaluation(self, behavior: str, step: int, values: Mapping[str, float]) -> None:
        """Hand on what came of an evaluation."""
        self._call("evaluation", behavior, step, values)

    def rewind(self, behavior: str, step: int) -> None:
        """A behavior goes back to its checkpoint at `step`."""
        self._call("rewind", behavior, step)

    def status(self, status: Mapping[str, Any]) -> None:
        """Hand on how the run is doing; and tell what went wrong meanwhile."""
        self._call("status", status)

    def _call(self, method: str, *arguments: Any) -> None:
        for writer in self._own:
            with writing_metrics(self._warn_once):
                getattr(writer, method)(*arguments)
        for guard in self._others:
            guard.call(method, *arguments)
        self._tell()

    def _tell(self) -> None:
        for guard in self._others:
            if guard.problem is not None:
                problem, guard.problem = guard.problem, None
                self._warn(problem)

    def close(self, status: Status, waiting: Callable[[str], None]) -> None:
        """Close all of them. Never raises: it must not hide how the run ended.

        Args:
            waiting: told what is waited for, on every turn.
        """
        for writer in self._own:
            try:
                writer.close(status)
            except OSError as error:
                self._warn(f"the last metrics could not be written and are lost: {error}")
        deadline = time.monotonic() + _LAST_S[status]
        for guard in self._others:

            def keep_waiting(name: str = guard.name) -> bool:
                waiting(f"the writer {name}")
                return time.monotonic() < deadline

            told = guard.finish(status, keep_waiting)
            self._tell()
            if told:
                self._warn(told)
