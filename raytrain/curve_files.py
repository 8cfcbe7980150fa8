"""What TensorBoard's event files and ``metrics.csv`` have in common: files of one behavior each, whose steps only rise."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raytrain.stats import Summary
from raytrain.writers import RunInfo, Writer

EVENT_FILES = "events.out.tfevents.*"
CSV_NAME = "metrics.csv"


class StepOrder:
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


def refuse_leftovers(folder: Path, pattern: str) -> None:
    found = sorted(folder.glob(pattern))
    if found:
        raise FileExistsError(
            f"Expected no {pattern} of another run in {folder}, found {found[0].name}. Resume that run or remove its folder."
        )


def remove_leftovers(folder: Path) -> None:
    """Clear away what a run has left that ended before it saved anything; the run that takes its id begins anew."""
    for path in [*folder.glob(EVENT_FILES), *folder.glob(CSV_NAME)]:
        path.unlink()


def write_all(file: io.FileIO, data: bytes) -> None:
    """A disk that has room for a part takes that part and says so; only the next attempt is an error."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


class CurveFiles(Writer):
    """A writer with files of their own for each behavior; they hold exactly the points up to the checkpoint that a run goes on from.

    What a full disk refuses (`OSError`) is kept by the file and written by a later call. Anything else that is raised ends the run.
    """

    waits = False

    def __init__(self) -> None:
        self._files: dict[str, Any] = {}

    def make(self, folder: Path, resume_step: int | None) -> Any:
        """The files of one behavior: an object with ``write(summary)``, ``evaluation(step, values)``, ``rewind(step)`` and ``close()``."""
        raise NotImplementedError

    def open(self, run: RunInfo) -> None:
        """See `Writer.open`."""
        self._files = {behavior: self.make(folder, run.resume_step(behavior)) for behavior, folder in run.behaviors.items()}

    def summary(self, summary: Summary) -> None:
        """See `Writer.summary`."""
        self._files[summary.behavior].write(summary)

    def evaluation(self, behavior: str, step: int, values: Mapping[str, float]) -> None:
        """See `Writer.evaluation`."""
        self._files[behavior].evaluation(step, values)

    def rewind(self, behavior: str, step: int) -> None:
        """See `Writer.rewind`."""
        self._files[behavior].rewind(step)

    def close(self, status: str) -> None:
        """See `Writer.close`. All files are closed, also where one of them raises."""
        errors = []
        for file in self._files.values():
            try:
                file.close()
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]
