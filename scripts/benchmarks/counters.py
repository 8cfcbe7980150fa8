"""Reads, from outside, what metered environments write: step counts, gradient updates and finished episodes."""

from __future__ import annotations

import bisect
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Count(NamedTuple):
    """Sum over the processes of a run: how many, and when the first was counted (s since the epoch; None before it)."""

    total: int
    first_s: float | None


class Episode(NamedTuple):
    """One finished episode: when it ended (s since the epoch), its undiscounted return, its length (env steps)."""

    ended_s: float
    episode_return: float
    length: int


class CounterReader:
    """Follows the files that one run writes into `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._positions: dict[Path, int] = {}
        self.episodes: list[Episode] = []
        """Every episode read so far, in the order of their end (over all processes, up to one `read_episodes`)."""

    def count(self, kind: str) -> Count:
        """Current total of the counters of `kind` (``env``, ``upd``, ``row``)."""
        total, first_ns = 0, 0
        for path in self._folder.glob(f"{kind}-*.cnt"):
            data = path.read_bytes()
            if len(data) == 16:  # shorter: made, but not sized yet
                n, began_ns = struct.unpack("qq", data)
                total += n
                if began_ns and (not first_ns or began_ns < first_ns):
                    first_ns = began_ns
        return Count(total, first_ns / 1e9 if first_ns else None)

    def counting_processes(self, kind: str) -> list[int]:
        """Process ids that count `kind`: for ``env`` the processes that step environments."""
        return sorted({int(path.name.split("-")[1]) for path in self._folder.glob(f"{kind}-*.cnt")})

    def read_episodes(self) -> int:
        """Append the episodes finished since the last call to `episodes`; returns how many. A half-written line waits."""
        new = []
        for path in self._folder.glob("ep-*.txt"):
            with path.open("rb") as file:
                file.seek(self._positions.get(path, 0))
                data = file.read()
            end = data.rfind(b"\n") + 1
            self._positions[path] = self._positions.get(path, 0) + end
            for line in data[:end].splitlines():
                ended_ns, episode_return, length = line.split()
                new.append(Episode(int(ended_ns) / 1e9, float(episode_return), int(length)))
        self.episodes += sorted(new)
        return len(new)


@dataclass(frozen=True)
class Sample:
    """What the harness saw at one moment.

    Attributes:
        time_s: seconds since the epoch.
        env_steps, updates, rows: counter totals.
        own_cpu_s: CPU seconds of the run's processes.
        busy_cpu_s: CPU seconds of the whole machine.
    """

    time_s: float
    env_steps: float = 0
    updates: float = 0
    rows: float = 0
    own_cpu_s: float = 0
    busy_cpu_s: float = 0


def value_at(samples: Sequence[Sample], time_s: float, name: str) -> float:
    """Attribute `name` at `time_s`, linear between two samples and held outside them.

    Raises:
        ValueError: no samples.
    """
    if not samples:
        raise ValueError("value_at() needs at least one sample, received none.")
    before = samples[0]
    for sample in samples:
        if sample.time_s >= time_s:
            if sample.time_s == before.time_s:
                return getattr(sample, name)
            share = (time_s - before.time_s) / (sample.time_s - before.time_s)
            return getattr(before, name) + (getattr(sample, name) - getattr(before, name)) * share
        before = sample
    return getattr(samples[-1], name)


def rate(samples: Sequence[Sample], start_s: float, end_s: float, name: str) -> float:
    """Growth of `name` a second between two moments."""
    return (value_at(samples, end_s, name) - value_at(samples, start_s, name)) / (end_s - start_s)


def first_reached(episodes: Sequence[Episode], window: int, threshold: float, begin: int = 0) -> int | None:
    """Index of the first episode at which the mean return of the last `window` episodes reaches `threshold`.

    Args:
        episodes: in the order of their end.
        window: episodes in the mean; fewer never count.
        threshold: return.
        begin: index of the first episode that was not looked at before.
    """
    for i in range(max(begin, window - 1), len(episodes)):
        if sum(e.episode_return for e in episodes[i + 1 - window : i + 1]) / window >= threshold:
            return i
    return None


def final_return(episodes: Sequence[Episode], steps: int, window: int = 10) -> float | None:
    """Mean return of the last `window` episodes that ended within the first `steps` env steps; None when there are fewer.

    The env steps at an episode's end are the lengths of all episodes that ended by then. With several environments those still
    running have made steps too, so the last episodes counted may end up to (environments - 1) x (length of an episode) later.

    Args:
        episodes: in the order of their end.
    """
    ends = list(itertools.accumulate(episode.length for episode in episodes))
    within = episodes[: bisect.bisect_right(ends, steps)]
    return round(sum(e.episode_return for e in within[-window:]) / window, 2) if len(within) >= window else None
