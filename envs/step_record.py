"""What each environment of a process is doing, in a small file that says so after the process crashed or while it hangs.

A memory map belongs to the system, not to the process: what was written stays when the process dies, with no call for it and no
flush (a machine that loses its power loses it). The file: a header of 16 bytes, then one row of `SLOT` for each environment.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Place = tuple[int, int, Any]
"""Episode, step (0: its reset) and environment-space action (None: a reset) of what an environment is asked to do."""

MAX_VALUES = 8
"""Numbers of an action that are kept: 64 bytes."""
SLOT = np.dtype([("active", "u1"), ("kind", "u1"), ("count", "<u2"), ("unused", "<u4"), ("episode", "<i8"), ("step", "<i8"), ("began", "<f8"),
                 ("values", "<i8", MAX_VALUES)])
NO_ACTION, ONE_INTEGER, ONE_FLOAT, INTEGERS, FLOATS = range(5)
"""``kind``; ``count`` is how many numbers the action has: one more than are kept where there are more."""

_MAGIC = b"rt-steps"
_HEADER = struct.Struct("<8sII")  # magic, size of a slot, number of slots
_BEGAN = struct.Struct("<BBHIqqd")  # of a slot, without its values
_PACK_INTEGERS = [struct.Struct(f"<{n}q") for n in range(MAX_VALUES + 1)]
_PACK_FLOATS = [struct.Struct(f"<{n}d") for n in range(MAX_VALUES + 1)]


@dataclass(frozen=True)
class Running:
    """An environment that was within a step or reset.

    Attributes:
        slot: its index among those of the process.
        episode, step: see `envs.base.EnvFault`; step 0 is a reset.
        last_action: the environment-space action as plain numbers, flat, at most `MAX_VALUES` of them and then ``"…"``; None at a reset.
        seconds: since it began, by the wall clock.
    """

    slot: int
    episode: int
    step: int
    last_action: Any
    seconds: float


class StepRecord:
    """The writing side; the file stays when the object goes. Different slots may be written by different threads.

    Args:
        path: replaced if it is there.
        num_envs: number of slots.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, num_envs: int) -> None:
        # Written in full, so that a full disk is an error here and not a SIGBUS in a step; and beside it, because an old process that
        # still hangs may have the old file in its memory.
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            new.write_bytes(_HEADER.pack(_MAGIC, SLOT.itemsize, num_envs) + bytes(SLOT.itemsize * num_envs))
            with new.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), 0)
            new.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        self._offsets = [_HEADER.size + SLOT.itemsize * slot for slot in range(num_envs)]
        self._slots = np.ndarray(num_envs, SLOT, self._map, _HEADER.size)
        self._integers = self._slots["values"]
        self._floats = self._integers.view("<f8")
        self._active, self._began = self._slots["active"], self._slots["began"]

    def note(self, slot: int, episode: int, step: int, action: Any) -> None:
        """Environment `slot` is about to do `action`, an environment-space one of any kind, or to reset (None)."""
        kind, count = self._keep(slot, action)
        _BEGAN.pack_into(self._map, self._offsets[slot], 1, kind, count, 0, episode, step, time.time())

    def clear(self, slot: int) -> None:
        """Environment `slot` has done it."""
        self._map[self._offsets[slot]] = 0

    def note_all(self, episodes: np.ndarray, steps: np.ndarray, actions: np.ndarray | list[Any] | None) -> None:
        """Every environment is about to do its row of `actions` (``[n, …]``), or to reset (None); `episodes` and `steps` are int64 ``[n]``."""
        self._slots["episode"], self._slots["step"] = episodes, steps
        self._began[:] = time.time()
        if actions is None:
            self._slots["kind"] = NO_ACTION
        elif isinstance(actions, list):
            for slot, action in enumerate(actions):
                self._slots["kind"][slot], self._slots["count"][slot] = self._keep(slot, action)
        else:
            rows = actions.reshape(len(actions), -1)
            kept, is_float = min(rows.shape[1], MAX_VALUES), actions.dtype.kind == "f"
            (self._floats if is_float else self._integers)[:, :kept] = rows[:, :kept]
            self._slots["kind"] = (FLOATS if is_float else INTEGERS) if actions.ndim > 1 else (ONE_FLOAT if is_float else ONE_INTEGER)
            self._slots["count"] = min(rows.shape[1], MAX_VALUES + 1)
        self._active[:] = 1

    def clear_all(self) -> None:
        """Every environment has done it."""
        self._active[:] = 0

    def _keep(self, slot: int, action: Any) -> tuple[int, int]:
        """Write the numbers of `action`; returns its kind and how many it has."""
        if action is None:
            return NO_ACTION, 0
        if isinstance(action, np.int64):  # of a Discrete space: the most common one, in a third of the time
            _PACK_INTEGERS[1].pack_into(self._map, self._offsets[slot] + _BEGAN.size, action)
            return ONE_INTEGER, 1
        numbers: list[float] = []
        _flatten(action, numbers)
        kept, is_one = numbers[:MAX_VALUES], getattr(action, "ndim", 1) == 0
        offset = self._offsets[slot] + _BEGAN.size
        if not kept or type(kept[0]) is not float:
            try:
                _PACK_INTEGERS[len(kept)].pack_into(self._map, offset, *kept)
                return (ONE_INTEGER if is_one else INTEGERS), len(numbers)
            except struct.error:
                pass  # a later number is not whole, or one is beyond 63 bits
        _PACK_FLOATS[len(kept)].pack_into(self._map, offset, *kept)
        return (ONE_FLOAT if is_one else FLOATS), len(numbers)


def read_record(path: Path) -> list[Running]:
    """The environments that were within a step or reset when `path` was written last, in the order of their slots; none without a file.

    Raises:
        ValueError: the file is no record.
    """
    now = time.time()
    return [
        Running(slot, int(row["episode"]), int(row["step"]), _action(row), max(0.0, now - float(row["began"])))
        for slot, row in enumerate(_rows(path)) if row["active"]
    ]


def last_episodes(path: Path) -> dict[int, int]:
    """The episode that each environment (slot) was in last, by the record at `path`; of those that have begun one. Errors as `read_record`."""
    return {slot: int(row["episode"]) for slot, row in enumerate(_rows(path)) if row["began"] > 0.0}


def _rows(path: Path) -> np.ndarray:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return np.empty(0, SLOT)
    magic, size, num_envs = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (b"", 0, 0)
    if (magic, size, len(data)) != (_MAGIC, SLOT.itemsize, _HEADER.size + SLOT.itemsize * num_envs):
        raise ValueError(f"{path}: expected the record of {num_envs} environments' steps, received another file of {len(data)} bytes. Delete it.")
    return np.frombuffer(data, SLOT, num_envs, _HEADER.size)


def _action(row: np.void) -> Any:
    kind, count = int(row["kind"]), int(row["count"])
    if kind == NO_ACTION:
        return None
    values = row["values"] if kind in (ONE_INTEGER, INTEGERS) else row["values"].view("<f8")
    if kind in (ONE_INTEGER, ONE_FLOAT):
        return values[0].item()
    return values[: min(count, MAX_VALUES)].tolist() + (["…"] if count > MAX_VALUES else [])


def _flatten(action: Any, numbers: list[float]) -> None:
    """Append the numbers of an action, which may be nested in dicts and tuples: those that are kept, and one more where there are more."""
    if isinstance(action, np.generic):
        numbers.append(action.item())
    elif isinstance(action, np.ndarray):
        numbers += action.ravel()[: MAX_VALUES + 1].tolist()
    else:
        for part in action.values() if isinstance(action, dict) else action:
            if len(numbers) > MAX_VALUES:
                return
            _flatten(part, numbers)
