"""Patterns over the names of a world's agents, as a configuration has them: shell patterns in which upper and lower case differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal


def fits(name: str, patterns: Iterable[str]) -> bool:
    """Whether any of `patterns` fits an agent's name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_patterns(key: str, patterns: Sequence[str], names: Sequence[str], whose: Literal["world", "behavior"]) -> None:
    """Refuse patterns that say nothing.

    Args:
        key: where they stand, to begin the message with.
        names: the agents that there are.
        whose: agents these are.

    Raises:
        ValueError: there is none, or one that fits no name.
    """
    if not patterns:
        raise ValueError(f"{key}: expected at least one pattern of agent names, received none; the {whose} has the agents {', '.join(names)}.")
    agent, owner = {"world": ("agent", "the world"), "behavior": ("agent of the behavior", "it")}[whose]
    for pattern in patterns:
        if not any(fits(name, (pattern,)) for name in names):
            raise ValueError(f"{key}: no {agent} is called {pattern!r}; {owner} has the agents {', '.join(names)}. Correct the pattern, or take "
                             "it out.")
