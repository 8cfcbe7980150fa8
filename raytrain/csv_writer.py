"""Summaries as ``metrics.csv``, in the folder of their behavior."""

from __future__ import annotations

import csv
import io
import os
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raytrain.curve_files import CSV_NAME, CurveFiles, StepOrder, refuse_leftovers, write_all
from raytrain.files import replace_file
from raytrain.stats import Summary

_FIXED_COLUMNS = ("step", "elapsed_s", "episodes", "reward_std", "longest_episode")


class CsvFile:
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
        self._order, self._evaluations = StepOrder(self._path, resume_step), StepOrder(self._path, resume_step)
        if resume_step is None:
            refuse_leftovers(self._path.parent, CSV_NAME)
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
        self._order = StepOrder(self._path, step)
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
        write_all(self._file, text.getvalue().encode())
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


class CsvWriter(CurveFiles):
    """`CsvFile` of every behavior."""

    def make(self, folder: Path, resume_step: int | None) -> CsvFile:
        """See `CurveFiles.make`."""
        return CsvFile(folder, resume_step)
