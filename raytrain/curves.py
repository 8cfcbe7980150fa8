"""The curves that runs leave in ``metrics.csv``: read, smoothed and found by tag."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raytrain.curve_files import CSV_NAME
from raytrain.errors import RunFolderError
from raytrain.files import portable_name
from raytrain.remote import RemoteError
from raytrain.run_files import RunFiles, check_holds_run, files_of, unreachable


@dataclass(frozen=True)
class Curve:
    """One tag of one behavior of a run.

    Attributes:
        run, behavior: where it is from.
        steps: int64 ``[P]``, agent steps, rising.
        values: float64 ``[P]``.
        elapsed_s: of the run at its last summary.
    """

    run: str
    behavior: str
    steps: np.ndarray
    values: np.ndarray
    elapsed_s: float


def read_curves(run: str | Path, tag: str) -> list[Curve]:
    """The curve of each behavior of a run that has the tag.

    Args:
        run: its folder or URI.

    Raises:
        RunFolderError: it is no run, nothing was written yet, a file cannot be read, or no behavior has the tag.
    """
    check_holds_run(run)
    files = files_of(run)
    found, known = [], dict[str, None]()
    for behavior in _behaviors(files):
        try:
            text = (files.read(f"{behavior}/{CSV_NAME}") or b"").decode()
            rows = list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1])))  # half a line is no row yet
            known.update(dict.fromkeys(rows[0] if rows else ()))
            points = [(int(row["step"]), float(row[tag])) for row in rows if row.get(tag)]
            elapsed_s = max((float(row["elapsed_s"]) for row in rows if row.get("elapsed_s")), default=0.0)
        except RemoteError as error:
            raise unreachable(error) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"Cannot read the curves in {files.where}/{behavior}/{CSV_NAME} ({type(error).__name__}: {error}).") from error
        if points:
            steps, values = (np.array(column) for column in zip(*points, strict=True))
            found.append(Curve(files.name, behavior, steps, values.astype(np.float64), elapsed_s))
    if not found:
        raise RunFolderError(_nothing(run, tag, list(known)))
    return found


def _behaviors(files: RunFiles) -> list[str]:
    try:
        return files.folders_with(CSV_NAME)
    except RemoteError as error:
        raise unreachable(error) from error


def curve_of(run: Path, tag: str, behavior: str) -> Curve | None:
    """That of one behavior; None while there is none."""
    try:
        return next((curve for curve in read_curves(run, tag) if curve.behavior == portable_name(behavior)), None)
    except RunFolderError:
        return None


def _nothing(run: str | Path, tag: str, known: Sequence[str]) -> str:
    if not known:
        return f"{run} has no summary in {CSV_NAME} yet; the first comes after summary_freq agent steps."
    if tag in known:
        return f"{run} has no value of {tag} yet: no episode has ended."
    tags = [name for name in known if "/" in name]
    near = difflib.get_close_matches(tag, tags, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"Expected --tag of {run}, received {tag!r}.{hint} There are: {', '.join(tags)}."


def smoothed(values: np.ndarray, weight: float) -> np.ndarray:
    """Exponential mean of what was there so far, as TensorBoard draws it: without the bias towards 0 at the beginning.

    s_t = Σ_{i ≤ t} w^{t-i} x_i / Σ_{i ≤ t} w^{t-i}

    Args:
        values: float64 ``[P]``.
        weight: w in [0, 1); 0 changes nothing.

    Returns:
        float64 ``[P]``.
    """
    total, weights, found = 0.0, 0.0, np.empty(len(values))
    for t, value in enumerate(values):
        total, weights = weight * total + value, weight * weights + 1.0
        found[t] = total / weights
    return found
