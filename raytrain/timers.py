"""Where the time goes: nested timers and gauges, written as ML-Agents' ``timers.json``."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raytrain.files import replace_file, to_json
from raytrain.writers import Writer

Tree = dict[str, Any]
"""``{name (root only), total (s), count, self (s), is_parallel?, children?}``."""

FORMAT_VERSION = "0.1.0"


class Section:
    """One timed place in the nesting; a context manager. Made by `Timers.section`, once per place, and used again and again."""

    __slots__ = ("_clock", "_parent", "_started", "_timers", "children", "count", "total")

    def __init__(self, timers: Timers, parent: Section | None) -> None:
        self.total = 0.0
        self.count = 0
        self.children: dict[str, Section] = {}
        self._timers = timers
        self._parent = parent
        self._clock = timers.clock
        self._started = 0.0

    def __enter__(self) -> None:
        self._timers.current = self
        self._started = self._clock()

    def __exit__(self, *_exc: object) -> None:
        self.total += self._clock() - self._started
        self.count += 1
        self._timers.current = self._parent


class Timers:
    """Nested timers of one thread; a section costs well under a microsecond. Every thread has its own object.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._started = clock()
        self._root = Section(self, None)
        self.current = self._root

    def section(self, name: str) -> Section:
        """Time a block, below the section that is open now: ``with timers.section("env_step"): …``. Ask for it anew each time."""
        children = self.current.children
        section = children.get(name)
        if section is None:
            section = children[name] = Section(self, self.current)
        return section

    def add(self, name: str, seconds: float, count: int = 1) -> None:
        """Count time that was measured elsewhere as a section below the open one."""
        section = self.section(name)
        section.total += seconds
        section.count += count

    def tree(self) -> Tree:
        """All finished sections so far, JSON-able; the root's total is the time since construction. Any thread may ask."""
        return {"name": "root", **_node(self._root, self.clock() - self._started, 1)}


def _node(section: Section, total: float, count: int) -> Tree:
    # list() copies at once, so that the owning thread may add children meanwhile.
    children = {name: _node(child, child.total, child.count) for name, child in list(section.children.items())}
    return _with_children({"total": total, "count": count, "self": 0.0}, children)


def _with_children(node: Tree, children: dict[str, Tree]) -> Tree:
    # What ran beside this thread took none of its time.
    inside = sum(child["total"] for child in children.values() if not child.get("is_parallel"))
    node["self"] = max(0.0, node["total"] - inside)
    return {**node, "children": children} if children else node


def merge(tree: Tree, parallel: Mapping[str, Sequence[Tree]]) -> Tree:
    """`tree` with one more child per name: the sum of the trees of threads or processes that ran beside it.

    Args:
        tree: what `Timers.tree` gave for the main thread.
        parallel: name of the child (``"env_managers"``) -> trees of its members. Children marked ``is_parallel`` do
            not count towards the time of their parent; a name that `tree` has already is an error.

    Raises:
        ValueError: a name is taken.
    """
    children = dict(tree.get("children", {}))
    for name, trees in parallel.items():
        if name in children:
            raise ValueError(f"Expected a new name for parallel timers, got {name!r}, which {sorted(children)} has already.")
        if trees:
            children[name] = {**_sum(trees), "is_parallel": True}
    return _with_children({key: value for key, value in tree.items() if key != "children"}, children)


def _sum(trees: Sequence[Tree]) -> Tree:
    names = dict.fromkeys(name for tree in trees for name in tree.get("children", {}))
    children = {name: _sum([tree["children"][name] for tree in trees if name in tree.get("children", {})]) for name in names}
    node = {key: sum(tree[key] for tree in trees) for key in ("total", "count", "self")}
    if any(tree.get("is_parallel") for tree in trees):
        node["is_parallel"] = True
    return {**node, "children": children} if children else node


class Gauges(Writer):
    """Numbers beside the timers: newest value, extremes, how often set."""

    waits = False

    def __init__(self) -> None:
        self._gauges: dict[str, dict[str, float]] = {}

    def set(self, name: str, value: float) -> None:
        """Record `value`.

        Raises:
            ValueError: `value` is not finite.
        """
        if not math.isfinite(value):
            raise ValueError(f"Expected a finite number for the gauge {name!r}, got {value}.")
        gauge = self._gauges.setdefault(name, {"value": value, "min": value, "max": value, "count": 0})
        gauge.update(value=value, min=min(gauge["min"], value), max=max(gauge["max"], value), count=gauge["count"] + 1)

    def write(self, behavior: str, step: int, values: Mapping[str, float]) -> None:
        """Record every tag as ``{behavior}.{tag}.mean``, slashes as dots and without spaces, as ML-Agents does."""
        for tag, value in values.items():
            self.set(f"{behavior}.{tag}.mean".replace("/", ".").replace(" ", ""), value)

    def to_json(self) -> dict[str, dict[str, float]]:
        """Name -> ``{value, min, max, count}``."""
        return {name: dict(gauge) for name, gauge in self._gauges.items()}


def timers_metadata(started_at: float, ended_at: float, versions: Mapping[str, str], command_line: str) -> dict[str, str]:
    """The ``metadata`` of ``timers.json``: strings only.

    Args:
        started_at, ended_at: Unix time (s).
        versions: package -> version (``"raytrain"``, ``"ray"``, ``"numpy"``, ``"tensorflow"``).
        command_line: how the run was started.
    """
    return {
        "timer_format_version": FORMAT_VERSION,
        "start_time_seconds": str(int(started_at)),
        "end_time_seconds": str(int(ended_at)),
        "python_version": platform.python_version(),
        "command_line_arguments": command_line,
        **{f"{package}_version": version for package, version in versions.items()},
    }


def write_timers(path: str | os.PathLike[str], tree: Tree, gauges: Mapping[str, Mapping[str, float]], metadata: Mapping[str, str]) -> None:
    """Write ``timers.json``: the tree, with gauges and metadata at its root. A reader sees the old file or the new one, whole."""
    replace_file(Path(path), to_json({**tree, "gauges": gauges, "metadata": metadata}, "timers"))
