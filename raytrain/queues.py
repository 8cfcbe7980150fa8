"""The wires between env managers and a trainer, as protocols, and their form inside one process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from raytrain.messages import QUEUE_CAPACITY, Header, PolicyMessage
from trainers.trajectory import TrajectoryBatch

Item = tuple[Header, TrajectoryBatch | None]
"""A header and its arrays; None in place of arrays that died with the process that made them."""


class PolicySource(Protocol):
    """An env manager's end of a policy mailbox."""

    def newest(self) -> PolicyMessage | None:
        """The newest message that has arrived, weights as arrays; costs nothing."""

    def wait_newer(self, serial: int, timeout_s: float) -> PolicyMessage | None:
        """Wait for a message with a serial above `serial`; None when none came in time."""


class TrajectorySink(Protocol):
    """An env manager's end of a trajectory queue."""

    def put(self, header: Header, batch: TrajectoryBatch, timeout_s: float) -> bool:
        """Hand over one item; False when the queue stayed full for `timeout_s` (nothing was taken)."""


class TrajectorySource(Protocol):
    """A trainer's end of a trajectory queue."""

    def waiting(self) -> int:
        """Items that wait now."""

    def take(self) -> Item | None:
        """The oldest item, or None."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until an item is there; False when none came in time."""


class PolicySink(Protocol):
    """A trainer's end of a policy mailbox."""

    def publish(self, message: PolicyMessage) -> None:
        """Make `message` the newest; older ones are forgotten."""


class LocalExchange:
    """Trajectory queue and policy mailbox of one behavior within this process; safe between threads.

    Args:
        capacity: items the queue holds at most.
    """

    def __init__(self, capacity: int = QUEUE_CAPACITY) -> None:
        self._capacity = capacity
        self._items: deque[Item] = deque()
        self._message: PolicyMessage | None = None
        self._changed = threading.Condition()

    def put(self, header: Header, batch: TrajectoryBatch, timeout_s: float) -> bool:
        with self._changed:
            if not self._wait_for(lambda: len(self._items) < self._capacity, timeout_s):
                return False
            self._items.append((header, batch))
            self._changed.notify_all()
            return True

    def waiting(self) -> int:
        return len(self._items)

    def take(self) -> Item | None:
        with self._changed:
            if not self._items:
                return None
            self._changed.notify_all()
            return self._items.popleft()

    def wait(self, timeout_s: float) -> bool:
        with self._changed:
            return self._wait_for(lambda: bool(self._items), timeout_s)

    def publish(self, message: PolicyMessage) -> None:
        with self._changed:
            if self._message is None or message.serial > self._message.serial:
                self._message = message
                self._changed.notify_all()

    def newest(self) -> PolicyMessage | None:
        return self._message

    def wait_newer(self, serial: int, timeout_s: float) -> PolicyMessage | None:
        def newer() -> bool:
            return self._message is not None and self._message.serial > serial

        with self._changed:
            return self._message if self._wait_for(newer, timeout_s) else None

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        return condition() if timeout_s <= 0 else self._changed.wait_for(condition, timeout_s)
