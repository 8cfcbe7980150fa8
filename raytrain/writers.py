"""Summaries on disk: TensorBoard event files and ``metrics.csv``, in the folder of their behavior."""

from __future__ import annotations

import csv
import io
import math
import os
import socket
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raytrain.files import replace_file
from raytrain.stats import Summary

CSV_NAME = "metrics.csv"
_FIXED_COLUMNS = ("step", "elapsed_s", "episodes", "reward_std", "longest_episode")
_EVENT_FILES = "events.out.tfevents.*"
_FLUSH_S = 1.0


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


class _StepOrder:
    """Refuses what would make a curve run backwards or hold a gap: each summary is later than the one before, all finite."""

    def __init__(self, folder: Path, resume_step: int | None) -> None:
        self._folder = folder
        self.last = -1 if resume_step is None else resume_step

    def take(self, step: int, values: Mapping[str, float]) -> None:
        if step <= self.last:
            raise ValueError(
                f"Expected a summary after step {self.last} in {self._folder}, got step {step}. "
                "Call rewind(step) first when the behavior goes back to a checkpoint."
            )
        for tag, value in values.items():
            if not math.isfinite(value):
                raise ValueError(f"Expected finite numbers in the summary at step {step}, got {tag!r} = {value}.")
        self.last = step


def _refuse_leftovers(folder: Path, pattern: str) -> None:
    found = sorted(folder.glob(pattern))
    if found:
        raise FileExistsError(
            f"Expected no {pattern} of another run in {folder}, found {found[0].name}. Resume that run or remove its folder."
        )


def _cut_events(path: Path, step: int) -> None:
    """Take events after `step` out of an event file, and what a killed run left half written. An evaluation may come after later summaries."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    size = path.stat().st_size
    with path.open("r+b") as file:
        kept = 0  # bytes from the start, where events that stay are moved to
        while True:
            start = file.tell()
            # A record: length uint64, its checksum uint32, the event, its checksum uint32.
            head = file.read(12)
            length = int.from_bytes(head[:8], "little")
            if len(head) < 12 or masked_crc32c(head[:8]) != int.from_bytes(head[8:], "little") or start + length + 16 > size:
                break
            record = head + file.read(length + 4)
            if Event.FromString(record[12:-4]).step > step:
                continue
            if kept < start:
                file.seek(kept)
                file.write(record)
                file.seek(start + len(record))
            kept += len(record)
        file.truncate(kept)


def _write_all(file: io.FileIO, data: bytes) -> None:
    """A disk that has room for a part takes that part and says so; only the next attempt is an error."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


class _EventFile:
    """One event file. What the disk refused stays in memory and comes first the next time.

    Args:
        folder: exists.
        number: goes into the name: files of one second must not replace each other.
    """

    def __init__(self, folder: Path, number: int) -> None:
        from tensorboardX.proto.event_pb2 import Event

        name = f"{_EVENT_FILES[:-1]}{int(time.time()):010d}.{socket.gethostname()}.{number:04d}"
        # Without a buffer of Python's, which would write what is left of it behind our back when it is closed.
        self._file = io.FileIO(folder / name, "x")
        self._waiting = bytearray()
        self._size = 0  # bytes up to which the file is whole
        self.add(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def add(self, event: Any) -> None:
        """Take an event; `flush` brings it to the disk."""
        from tensorboardX.record_writer import masked_crc32c

        data = event.SerializeToString()
        head = len(data).to_bytes(8, "little")
        self._waiting += head + masked_crc32c(head).to_bytes(4, "little") + data + masked_crc32c(data).to_bytes(4, "little")

    def flush(self) -> None:
        """Write and sync what waits.

        Raises:
            OSError: the disk refuses; what waits is kept.
        """
        self._file.truncate(self._size)  # half of what was tried before
        self._file.seek(self._size)
        _write_all(self._file, bytes(self._waiting))
        os.fsync(self._file.fileno())
        self._size += len(self._waiting)
        self._waiting.clear()

    def close(self) -> None:
        """After a last `flush`, also if that fails."""
        try:
            self.flush()
        finally:
            self._file.close()


class TensorBoardWriter:
    """Event files of one behavior, for ``tensorboard --logdir``.

    They are brought to the disk at most once a second. A resumed run writes a new file; points after the checkpoint vanish, so
    that the steps of every tag are strictly increasing.

    Args:
        folder: ``results/<run_id>/<behavior>``.
        resume_step: agent steps of the checkpoint that the run goes on from; None for a new run.
        clock: seconds, monotonic.

    Raises:
        FileExistsError: a new run, and the folder holds event files.
        OSError: the disk refuses. All methods raise it, too; what they were given is kept and written by a later one, once that is possible.
    """

    def __init__(
        self, folder: str | os.PathLike[str], resume_step: int | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = Path(folder)
        self._clock = clock
        if resume_step is None:
            _refuse_leftovers(self._folder, _EVENT_FILES)
        self._open(resume_step)

    def _open(self, resume_step: int | None) -> None:
        # Not SummaryWriter: its thread dies of a full disk, after which it blocks the run for ever. Nor EventsWriter, of which nobody
        # knows how much has reached the disk when that refuses.
        from tensorboardX.proto.event_pb2 import SessionLog

        self._order, self._evaluations = _StepOrder(self._folder, resume_step), _StepOrder(self._folder, resume_step)
        self._folder.mkdir(parents=True, exist_ok=True)
        files = sorted(self._folder.glob(_EVENT_FILES))
        if resume_step is not None:
            # The purge mark below is for a TensorBoard that has read the lost points already. Its default reader forgets them
            # only where the same tag comes again at their step, so they must leave the files too.
            for path in files:
                _cut_events(path, resume_step)
        self._events: _EventFile | None = _EventFile(self._folder, len(files))
        self._flushed_at = -float("inf")
        if resume_step is not None:
            self._add(resume_step + 1, session_log=SessionLog(status=SessionLog.START))

    def write(self, summary: Summary) -> None:
        """One event at ``summary.step`` with every tag.

        Raises:
            ValueError: a step that is not after the last one, or a value that is not finite.
        """
        self._order.take(summary.step, summary.values)
        self._add_scalars(summary.step, summary.values)

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """One event with the tags of an evaluation, which none of the summaries has; `step` may lie before the last summary.

        Raises:
            ValueError: as `write`, with the steps of evaluations.
        """
        self._evaluations.take(step, values)
        self._add_scalars(step, values)

    def hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Show settings (dotted name -> value) under TensorBoard's tab "Text", as "Hyperparameters". Call before `write`."""
        from tensorboardX.summary import text

        rows = "".join(f"| {name} | {value} |\n" for name, value in values.items())
        self._add(self._order.last + 1, summary=text("Hyperparameters", f"| setting | value |\n|---|---|\n{rows}"))

    def rewind(self, step: int) -> None:
        """The behavior goes back to its checkpoint at `step`: points after it are purged."""
        evaluated = self._evaluations.last
        self.close()
        self._open(step)
        self._evaluations.last = min(evaluated, step)  # that of the checkpoint itself may still come

    def close(self) -> None:
        """Everything is on disk afterwards. May be called twice.

        Raises:
            OSError: the disk refuses, and what it has not taken is lost.
        """
        events, self._events = self._events, None
        if events is not None:
            events.close()

    def _add_scalars(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboardX.proto.summary_pb2 import Summary as SummaryProto

        # tensorboardX.summary.scalar would turn the spaces of a tag into underscores.
        scalars = [SummaryProto.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(step, summary=SummaryProto(value=scalars))

    def _add(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._events.add(Event(wall_time=time.time(), step=step, **content))
        if self._clock() - self._flushed_at >= _FLUSH_S:
            self._events.flush()
            self._flushed_at = self._clock()


class CsvWriter:
    """``metrics.csv`` of one behavior: a row per summary, a column per tag, ``step`` first. A tag without data is an empty cell.

    A tag that appears later gets a column at the end: the file is written anew, atomically, with empty cells above.

    Args:
        folder: ``results/<run_id>/<behavior>``.
        resume_step: agent steps of the checkpoint that the run goes on from: later rows are dropped; None for a new run.

    Raises:
        FileExistsError: a new run, and the folder holds a ``metrics.csv``.
        ValueError: the file to go on with is not one that this class wrote.
    """

    def __init__(self, folder: str | os.PathLike[str], resume_step: int | None = None) -> None:
        self._path = Path(folder) / CSV_NAME
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._columns: list[str] = []
        self._file: io.FileIO | None = None
        self._waiting: list[dict[str, Any]] = []  # rows that the disk has not taken yet, in the order in which they came
        self._order, self._evaluations = _StepOrder(self._path, resume_step), _StepOrder(self._path, resume_step)
        if resume_step is None:
            _refuse_leftovers(self._path.parent, CSV_NAME)
        elif self._path.exists():
            self._drop_after(resume_step)

    def write(self, summary: Summary) -> None:
        """Append a row; readers see it at once.

        Raises:
            ValueError: a step that is not after the last one, or a value that is not finite.
        """
        self._order.take(summary.step, summary.values)
        row = {name: getattr(summary, name) for name in _FIXED_COLUMNS} | summary.values
        can_append = not self._waiting and all(name in self._columns for name in row)
        self._waiting.append(row)
        if can_append:
            self._append()
        else:
            self._write_anew()

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Put the tags of an evaluation into the row of its step, or into a new one between those of summaries; the file is written anew.

        Raises:
            ValueError: as `write`, with the steps of evaluations.
        """
        self._evaluations.take(step, values)
        self._waiting.append({"step": step, **values})
        self._write_anew()

    def rewind(self, step: int) -> None:
        """The behavior goes back to its checkpoint at `step`: rows after it are dropped."""
        self._order = _StepOrder(self._path, step)
        self._evaluations.last = min(self._evaluations.last, step)  # that of the checkpoint itself may still come
        self._waiting = [row for row in self._waiting if row["step"] <= step]
        if self._path.exists():
            self._drop_after(step)

    def close(self) -> None:
        """May be called twice.

        Raises:
            OSError: the disk refuses, and what it has not taken is lost.
        """
        if self._waiting:
            self._write_anew()
        self._let_go()

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self) -> None:
        """The rows that wait, where the file has all their columns."""
        text = io.StringIO()
        csv.DictWriter(text, self._columns, lineterminator="\n").writerows(self._waiting)
        if self._file is None:
            self._file = io.FileIO(self._path, "a")
        _write_all(self._file, text.getvalue().encode())
        self._waiting.clear()

    def _write_anew(self) -> None:
        """The rows on disk and those that wait, each at its step; half a row at the end, which a disk that refused has left, goes."""
        rows = self._read() if self._columns and self._path.exists() else []
        for waiting in self._waiting:
            place = bisect_left(rows, waiting["step"], key=lambda row: int(row["step"]))
            if place == len(rows) or int(rows[place]["step"]) != waiting["step"]:
                rows.insert(place, {})
            rows[place].update(waiting)
        self._columns += [name for name in dict.fromkeys([*_FIXED_COLUMNS, *(n for row in self._waiting for n in row)]) if name not in self._columns]
        self._rewrite(rows)
        self._waiting.clear()

    def _drop_after(self, step: int) -> None:
        kept = [row for row in self._read() if int(row["step"]) <= step]
        self._rewrite(kept)

    def _read(self) -> list[dict[str, str]]:
        """Rows on disk; sets the columns. A run that was killed may leave half a row at the end: it is no row."""
        text = self._path.read_text(encoding="utf-8")
        reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
        self._columns = list(reader.fieldnames or [])
        if self._columns and self._columns[0] != "step":
            raise ValueError(f"Expected the first column of {self._path} to be 'step', got {self._columns[0]!r}. Move the file away.")
        rows = []
        for row in reader:
            if None in row or None in row.values() or not row["step"].isdecimal():
                raise ValueError(
                    f"Expected {len(self._columns)} cells and a step in line {reader.line_num} of {self._path}, got {list(row.values())}. "
                    "Mend the line or move the file away."
                )
            rows.append(row)
        return rows

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        self._let_go()
        text = io.StringIO()
        table = csv.DictWriter(text, self._columns, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        replace_file(self._path, text.getvalue().encode())
