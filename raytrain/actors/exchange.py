"""The trajectory queue and the policy mailbox of a behavior, in one Ray actor."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from dataclasses import replace
from typing import Any

import ray
from ray.util.queue import Full, _QueueActor

from raytrain.messages import QUEUE_CAPACITY, Header, PolicyMessage


class Exchange(_QueueActor):
    """Ray's queue actor with receipts, and the policy mailbox of the same behavior: one process for both.

    An item that was handed out stays here until the consumer's next call acknowledges it, so a consumer that dies inside a call
    loses nothing: the next consumer gets the item again (and sequence numbers tell duplicates). Producers keep what was not
    acknowledged, and the trainer its newest message; so when Ray has started this actor anew they put everything back.
    """

    def __init__(self, capacity: int = QUEUE_CAPACITY) -> None:
        super().__init__(capacity)
        self._life = uuid.uuid4().hex
        self._arrived = asyncio.Event()
        self._handed_out: deque[tuple[int, Any]] = deque()
        self._number = 0
        self._consumer = ""
        self._acknowledged: dict[str, int] = {}
        self._message: PolicyMessage | None = None
        self._published = asyncio.Event()
        self._epoch = 0  # of the newest trainer that is known here

    async def offer(self, producer: str, life: str, item: Any, timeout_s: float) -> tuple[bool, str, int]:
        """Put `item`, unless the queue stays full, or the caller knows an earlier life: then what was lost with that has to come first.

        Returns:
            Whether it is in; which life of this actor answers; the sequence number up to which the producer's items were acknowledged.
        """
        try:
            if life and life != self._life:
                raise Full
            await self.put(item, timeout_s)
        except Full:
            return False, *self.acknowledged(producer)
        self._arrived.set()
        return True, *self.acknowledged(producer)

    def acknowledged(self, producer: str) -> tuple[str, int]:
        """Which life answers, and the sequence number up to which the producer's items were acknowledged."""
        return self._life, self._acknowledged.get(producer, -1)

    async def take(self, consumer: str, life: str, received: int, limit: int, timeout_s: float) -> tuple[str, list[tuple[int, Any]], int]:
        """Up to `limit` numbered items, waiting for the first one.

        Args:
            life: which the caller's numbers are from.
            received: what the consumer has received up to this number is forgotten here.

        Returns:
            Which life answers; the items; how many still wait.
        """
        while life == self._life and self._handed_out and self._handed_out[0][0] <= received:
            _, (_, header) = self._handed_out.popleft()
            self._acknowledged[producer_of(header)] = header.sequence
        is_new, self._consumer = consumer != self._consumer, consumer
        if is_new and self._handed_out:
            return self._life, list(self._handed_out), self.qsize()
        if self.empty():
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), timeout_s)
            except TimeoutError:
                return self._life, [], 0
            if consumer != self._consumer:  # another one took over during the wait: the items are its own
                return self._life, [], self.qsize()
        fresh = []
        while len(fresh) < limit and not self.empty():
            self._number += 1
            fresh.append((self._number, self.get_nowait()))
        self._handed_out.extend(fresh)
        return self._life, fresh, self.qsize()

    async def publish(self, message: PolicyMessage) -> bool:
        """Make `message` the newest. The weights are stored from here, so that they outlive the trainer; each snapshot once.

        Returns:
            False when it leaves out a snapshot that is not here.
        """
        if message.epoch < self._epoch:  # the last word of a trainer whose place is taken: its serial would hide that of the new one
            return True
        self._epoch = message.epoch
        if self._message is None or message.serial > self._message.serial:
            there = self._message.snapshots if self._message is not None else {}
            if any(weights is None and number not in there for number, weights in message.snapshots.items()):
                return False
            snapshots = {number: there[number] if weights is None else ray.put(weights) for number, weights in message.snapshots.items()}
            self._message = replace(message, weights=ray.put(message.weights), snapshots=snapshots)
            self._published.set()
            self._published = asyncio.Event()
        return True

    async def newer_than(self, serial: int, timeout_s: float) -> PolicyMessage | None:
        """The newest message once its serial is above `serial`; None when none came in time."""
        if self._message is None or self._message.serial <= serial:
            try:
                await asyncio.wait_for(self._published.wait(), timeout_s)
            except TimeoutError:
                return None
        return self._message

    def mark(self, epoch: int) -> tuple[int, int]:
        """Highest serial and version published; from now on nothing is of a trainer that was started less than `epoch` times before."""
        self._epoch = max(self._epoch, epoch)
        return (self._message.serial, self._message.version) if self._message is not None else (-1, -1)


def producer_of(header: Header) -> str:
    return f"{header.manager}/{header.incarnation}"
