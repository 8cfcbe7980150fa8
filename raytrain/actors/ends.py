"""The ends of the wires: what env managers and trainers hold of the other actors."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ray

from raytrain.actors.exchange import producer_of
from raytrain.messages import Header, PolicyMessage
from raytrain.queues import Item
from raytrain.referee import ItemReport, Ruling
from trainers.trajectory import TrajectoryBatch

CALL_TIMEOUT_S = 30.0
"""An actor that does not answer a control call for this long is taken for dead."""
_SLICE_S = 1.0  # longest wait inside one remote call: a waiter that dies leaves nothing behind for longer
_NEWS_SLICE_S = 5.0  # the same of the many that wait for a policy: a thousand of them would keep the exchange busy by asking alone
_AGAIN_S = 0.1  # between two calls of an exchange that is being started anew
_PREFETCH = 2  # items fetched ahead of the trainer, so that the next update never waits for the network


def ask(method: Callable[..., ray.ObjectRef], *arguments: Any) -> Any:
    """The answer of an exchange, which may be started anew meanwhile: then it is asked again.

    Raises:
        RayActorError: it stayed away for `CALL_TIMEOUT_S`.
    """
    deadline = time.monotonic() + CALL_TIMEOUT_S
    while True:
        try:
            return ray.get(method.remote(*arguments), timeout=CALL_TIMEOUT_S)
        except ray.exceptions.RayActorError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)


class _Worker(threading.Thread):
    """A daemon thread that keeps what it died of, for the next one who asks.

    Args:
        body: called until the thread is closed; it returns within a few times `_SLICE_S`.
    """

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._body = body
        self._closing = threading.Event()
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self._closing.is_set():
                self._body()
        except BaseException as error:  # noqa: BLE001 - kept, and raised again by `check`
            self.error = error

    def close(self) -> None:
        """Before this process leaves Ray and goes on: Ray ends a process, with exit code 1, of which a thread calls it afterwards."""
        self._closing.set()
        self.join(CALL_TIMEOUT_S)

    def check(self) -> None:
        if self.error is not None:
            raise self.error


class _End:
    """An end with a thread of its own, ``_worker``."""

    _worker: _Worker

    def close(self) -> None:
        """Its thread ends: nothing more is shipped, fetched or listened to."""
        self._worker.close()


class RemoteSink(_End):
    """An env manager's end of a trajectory queue: a thread ships while the manager goes on stepping; one item waits at most."""

    def __init__(self, exchange: ray.actor.ActorHandle, stopping: threading.Event) -> None:
        self._exchange = exchange
        self._stopping = stopping
        self._handoff: queue.Queue[Item] = queue.Queue(maxsize=1)
        self._kept: deque[tuple[ray.ObjectRef, Header]] = deque()  # shipped, not known to have arrived
        self._life = ""
        self.sent = 0
        """Agent steps that are in the queue or were taken from it."""
        self._worker = _Worker("ship", self._ship)

    def put(self, header: Header, batch: TrajectoryBatch, timeout_s: float) -> bool:
        self._worker.check()
        try:
            self._handoff.put((header, batch), timeout=timeout_s)
        except queue.Full:
            return False
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything handed over is in the queue."""
        deadline = time.monotonic() + timeout_s
        while self._handoff.unfinished_tasks and time.monotonic() < deadline and self._worker.error is None:
            time.sleep(0.01)
        return not self._handoff.unfinished_tasks

    def _ship(self) -> None:
        try:
            header, batch = self._handoff.get(timeout=_SLICE_S)
        except queue.Empty:
            if self._kept:  # what has arrived must not stay in the object store, nor what is lost be missing for ever
                producer = producer_of(self._kept[0][1])
                self._settle(*ask(self._exchange.acknowledged, producer))
            return
        if self._offer((ray.put(batch), header)):
            self.sent = header.agent_steps
            self._handoff.task_done()

    def _offer(self, item: tuple[ray.ObjectRef, Header]) -> bool:
        """False when the manager stops before there is room."""
        self._kept.append(item)
        while True:
            is_in, life, acknowledged = ask(self._exchange.offer, producer_of(item[1]), self._life, item, _SLICE_S)
            if self._settle(life, acknowledged) or is_in:
                return True
            if self._stopping.is_set():
                return False

    def _settle(self, life: str, acknowledged: int) -> bool:
        """Forget what has arrived. A new life of the exchange gets everything else again, in order; whether that was so."""
        while self._kept and self._kept[0][1].sequence <= acknowledged:
            self._kept.popleft()
        before, self._life = self._life, life
        if not before or before == life:
            return False
        again, self._kept = self._kept, deque()
        for item in again:
            self._offer(item)
        return True


class RemoteSource(_End):
    """A trainer's end of a trajectory queue: a thread fetches the next items while the trainer learns.

    Args:
        in_new_life: called with the first answer and whenever the exchange has been started anew: that may also have been while the
            trainer was still starting, and what was published before went with it.
    """

    def __init__(self, exchange: ray.actor.ActorHandle, consumer: str, in_new_life: Callable[[], None]) -> None:
        self._exchange = exchange
        self._consumer = consumer
        self._in_new_life = in_new_life
        self.deaths = 0
        """How often the exchange was started anew, as far as this end has noticed."""
        self._life, self._received = "", 0
        self._items: deque[Item] = deque()
        self._queued = 0
        self._changed = threading.Condition()
        self._worker = _Worker("fetch", self._fetch)

    def waiting(self) -> int:
        return len(self._items) + self._queued

    def take(self) -> Item | None:
        self._worker.check()
        with self._changed:
            if not self._items:
                return None
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def wait(self, timeout_s: float) -> bool:
        self._worker.check()
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._items), timeout_s)

    def _fetch(self) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._items) < _PREFETCH, _SLICE_S):
                return
        before = self._life
        self._life, items, queued = ask(self._exchange.take, self._consumer, self._life, self._received, _PREFETCH, _SLICE_S)
        if before != self._life:
            self.deaths += bool(before)
            self._in_new_life()
        for number, (reference, header) in items:
            try:
                batch = ray.get(reference, timeout=CALL_TIMEOUT_S)
            except (ray.exceptions.ObjectLostError, ray.exceptions.GetTimeoutError):
                batch = None  # its manager died after it had shipped the reference: a counted drop
            self._received = number
            with self._changed:
                self._items.append((header, batch))
                self._changed.notify_all()
        self._queued = queued


class RemotePolicySource(_End):
    """An env manager's end of a policy mailbox: a thread waits for news, so that looking costs nothing."""

    def __init__(self, exchange: ray.actor.ActorHandle) -> None:
        self._exchange = exchange
        self._newest: PolicyMessage | None = None
        self._serial, self._snapshots = -1, {}  # of the newest one
        self._changed = threading.Condition()
        self._worker = _Worker("mailbox", self._listen)

    def newest(self) -> PolicyMessage | None:
        return self._newest

    def wait_newer(self, serial: int, timeout_s: float) -> PolicyMessage | None:
        self._worker.check()
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None and self._newest.serial > serial, timeout_s)
        return self._newest if self._newest is not None and self._newest.serial > serial else None

    def _listen(self) -> None:
        message = ask(self._exchange.newer_than, self._serial, _NEWS_SLICE_S)
        if message is None or message.serial <= self._serial:
            return
        try:
            weights = ray.get(message.weights, timeout=CALL_TIMEOUT_S)
            held = self._snapshots
            self._snapshots = {n: held[n] if n in held else ray.get(one, timeout=CALL_TIMEOUT_S) for n, one in message.snapshots.items()}
        except ray.exceptions.ObjectLostError:  # the exchange died, and gets them from the trainer again
            time.sleep(_AGAIN_S)
            return
        self._serial = message.serial
        with self._changed:
            self._newest = replace(message, weights=weights, snapshots=self._snapshots)
            self._changed.notify_all()


class RemotePolicySink:
    """A trainer's end of a policy mailbox. Publishing returns at once; a failure shows at the next publish.

    Args:
        newest: what is in the mailbox now.
    """

    def __init__(self, exchange: ray.actor.ActorHandle, newest: PolicyMessage) -> None:
        self._exchange = exchange
        self._last: ray.ObjectRef | None = None
        self._newest = newest
        self._sent: set[int] = set()
        self._lock = threading.Lock()

    def publish(self, message: PolicyMessage) -> None:
        with self._lock:
            self._newest = message
            try:
                if self._last is not None and not ray.get(self._last, timeout=CALL_TIMEOUT_S):
                    self._sent.clear()
            except ray.exceptions.RayActorError:  # it is started anew, and does not know the snapshots any more
                self._sent.clear()
            self._send()

    def publish_again(self) -> None:
        """For an exchange that has been started anew."""
        with self._lock:
            self._sent.clear()
            self._send()

    def _send(self) -> None:
        message = self._newest
        snapshots = {number: None if number in self._sent else weights for number, weights in message.snapshots.items()}
        self._last = self._exchange.publish.remote(replace(message, snapshots=snapshots))
        self._sent = set(snapshots)


class RemoteReferee:
    """A trainer's way to the referee, which as an actor takes one call at a time, in the order in which they come."""

    def __init__(self, referee: ray.actor.ActorHandle) -> None:
        self._referee = referee

    def report(self, report: ItemReport) -> Ruling:
        return ray.get(self._referee.report.remote(report), timeout=CALL_TIMEOUT_S)

    def current(self, behavior: str) -> Ruling:
        return ray.get(self._referee.current.remote(behavior), timeout=CALL_TIMEOUT_S)
