"""Summaries as TensorBoard's event files, in the folder of their behavior."""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from raytrain.curve_files import EVENT_FILES, CurveFiles, StepOrder, refuse_leftovers, write_all
from raytrain.stats import Summary
from raytrain.writers import RunInfo, flat

_FLUSH_S = 1.0


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


class _EventFile:
    """One event file. What the disk refused stays in memory and comes first the next time.

    Args:
        folder: exists.
        number: goes into the name: files of one second must not replace each other.
    """

    def __init__(self, folder: Path, number: int) -> None:
        from tensorboardX.proto.event_pb2 import Event

        name = f"{EVENT_FILES[:-1]}{int(time.time()):010d}.{socket.gethostname()}.{number:04d}"
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
        write_all(self._file, bytes(self._waiting))
        os.fsync(self._file.fileno())
        self._size += len(self._waiting)
        self._waiting.clear()

    def close(self) -> None:
        """After a last `flush`, also if that fails."""
        try:
            self.flush()
        finally:
            self._file.close()


class TensorBoardFiles:
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
            refuse_leftovers(self._folder, EVENT_FILES)
        self._open(resume_step)

    def _open(self, resume_step: int | None) -> None:
        # Not SummaryWriter: its thread dies of a full disk, after which it blocks the run for ever. Nor EventsWriter, of which nobody
        # knows how much has reached the disk when that refuses.
        from tensorboardX.proto.event_pb2 import SessionLog

        self._order, self._evaluations = StepOrder(self._folder, resume_step), StepOrder(self._folder, resume_step)
        self._folder.mkdir(parents=True, exist_ok=True)
        files = sorted(self._folder.glob(EVENT_FILES))
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


class TensorBoardWriter(CurveFiles):
    """`TensorBoardFiles` of every behavior, with the behavior's settings as text."""

    def make(self, folder: Path, resume_step: int | None) -> TensorBoardFiles:
        """See `CurveFiles.make`."""
        return TensorBoardFiles(folder, resume_step)

    def open(self, run: RunInfo) -> None:
        """See `Writer.open`."""
        super().open(run)
        if run.resume_steps is None:
            for behavior, files in self._files.items():
                with suppress(OSError):  # kept; the next point tries again, and says what is wrong
                    files.hyperparameters(flat(run.settings["behaviors"][behavior]))
