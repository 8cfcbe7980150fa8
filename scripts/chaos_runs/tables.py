"""What a chaos run is asked for, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes:
        passed: None where nothing is asked of it.
    """

    what: str
    found: str
    target: str
    passed: bool | None


def table(title: str, rows: Sequence[Row]) -> Table:
    """For the console."""
    made = Table("what", "found", "target", "", title=title, title_justify="left")
    for row in rows:
        made.add_row(row.what, row.found, row.target, "" if row.passed is None else "yes" if row.passed else "NO")
    return made
