"""What looking at an environment brings: findings, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One line of the table; JSON-able.

    Attributes:
        check: what was looked at.
        level: ``error``: it cannot be trained; ``warning``: it can, but what is learnt may not be what is meant; ``note``: good to know.
        message: what was seen.
        fix: what to do; empty where there is nothing.
    """

    check: str
    level: Level
    message: str
    fix: str = ""


@dataclass
class Findings:
    """A list that is added to, check by check."""

    found: list[Finding] = field(default_factory=list)

    def add(self, check: str, level: Level, message: str, fix: str = "") -> None:
        """One more; messages of several lines (a traceback) are cut after the place in the user's file."""
        self.found.append(Finding(check, level, _short(message), fix))

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.found)

    def count(self, level: Level) -> int:
        """How many there are of a level."""
        return sum(finding.level == level for finding in self.found)

    def to_json(self) -> list[dict[str, Any]]:
        """Plain values."""
        return [vars(finding) for finding in self.found]


def _short(message: str) -> str:
    lines = []
    for line in message.splitlines():
        if line.startswith("Traceback"):
            break
        lines.append(line.strip())
    return "; ".join(line for line in lines if line)
