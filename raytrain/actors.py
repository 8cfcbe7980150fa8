"""The plain classes as Ray actors: the exchange of a behavior, env managers, trainers, and the ends of their wires.

Nothing here learns or steps: an actor runs a component's loop in a thread of its own, and its methods only read or leave requests.
"""

from __future__ import annotations

import asyncio
import errno
import getpass
import os
import queue
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.util.queue import Full, _QueueActor

from envs.step_record import last_episodes, read_record
from raytrain.backends import trainer_name
from raytrain.errors import RunFault
from raytrain.evaluation import EVALUATOR, Evaluator, Played
from raytrain.intake import ManagerChange
from raytrain.messages import QUEUE_CAPACITY, Header, ManagerStatus, Notice, Orders, PolicyMessage, TrainerStatus
from raytrain.plan import Plan, Start, build_env_manager, build_trainer_loop, manager_name
from raytrain.queues import Item
from raytrain.referee import ItemReport, Ruling
from raytrain.replay_chunks import ChunkFile, ChunkWriter
from trainers.trajectory import TrajectoryBatch

CALL_TIMEOUT_S = 30.0
"""An actor that does not answer a control call for this long is taken for dead."""
_CHUNK_TIMEOUT_S = 120.0  # to bring 64 MiB over a slow network to a slow disk
_SLICE_S = 1.0  # longest wait inside one remote call: a waiter that dies leaves nothing behind for longer
_EVALUATOR_NICENESS = 10
_FEW = 4
_AGAIN_S = 0.1  # between two calls of an exchange that is being started anew
_PREFETCH = 2  # items fetched ahead of the trainer, so that the next update never waits for the network


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
            self._acknowledged[_producer(header)] = header.sequence
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


def _producer(header: Header) -> str:
    return f"{header.manager}/{header.incarnation}"


def _ask(method: Callable[..., ray.ObjectRef], *arguments: Any) -> Any:
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
    """A daemon thread that keeps what it died of, for the next one who asks."""

    def __init__(self, name: str, body) -> None:
        super().__init__(name=name, daemon=True)
        self._body = body
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._body()
        except BaseException as error:  # noqa: BLE001 - kept, and raised again by `check`
            self.error = error

    def check(self) -> None:
        if self.error is not None:
            raise self.error


class RemoteSink:
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
        while True:
            try:
                header, batch = self._handoff.get(timeout=_SLICE_S if self._kept else None)
            except queue.Empty:  # what has arrived must not stay in the object store, nor what is lost be missing for ever
                producer = _producer(self._kept[0][1])
                self._settle(*_ask(self._exchange.acknowledged, producer))
                continue
            if not self._offer((ray.put(batch), header)):
                return
            self.sent = header.agent_steps
            self._handoff.task_done()

    def _offer(self, item: tuple[ray.ObjectRef, Header]) -> bool:
        """False when the manager stops before there is room."""
        self._kept.append(item)
        while True:
            is_in, life, acknowledged = _ask(self._exchange.offer, _producer(item[1]), self._life, item, _SLICE_S)
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


class RemoteSource:
    """A trainer's end of a trajectory queue: a thread fetches the next items while the trainer learns.

    Args:
        in_new_life: called with the first answer and whenever the exchange has been started anew: that may also have been while the
            trainer was still starting, and what was published before went with it.
    """

    def __init__(self, exchange: ray.actor.ActorHandle, consumer: str, in_new_life: Callable[[], None]) -> None:
        self._exchange = exchange
        self._consumer = consumer
        self._in_new_life = in_new_life
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
        life, received = "", 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: len(self._items) < _PREFETCH)
            before = life
            life, items, queued = _ask(self._exchange.take, self._consumer, life, received, _PREFETCH, _SLICE_S)
            if before != life:
                self._in_new_life()
            for number, (reference, header) in items:
                try:
                    batch = ray.get(reference, timeout=CALL_TIMEOUT_S)
                except (ray.exceptions.ObjectLostError, ray.exceptions.GetTimeoutError):
                    batch = None  # its manager died after it had shipped the reference: a counted drop
                received = number
                with self._changed:
                    self._items.append((header, batch))
                    self._changed.notify_all()
            self._queued = queued


class RemotePolicySource:
    """An env manager's end of a policy mailbox: a thread waits for news, so that looking costs nothing."""

    def __init__(self, exchange: ray.actor.ActorHandle) -> None:
        self._exchange = exchange
        self._newest: PolicyMessage | None = None
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
        serial, snapshots = -1, {}
        while True:
            message = _ask(self._exchange.newer_than, serial, _SLICE_S)
            if message is None or message.serial <= serial:
                continue
            try:
                weights = ray.get(message.weights, timeout=CALL_TIMEOUT_S)
                snapshots = {n: snapshots[n] if n in snapshots else ray.get(one, timeout=CALL_TIMEOUT_S) for n, one in message.snapshots.items()}
            except ray.exceptions.ObjectLostError:  # the exchange died, and gets them from the trainer again
                time.sleep(_AGAIN_S)
                continue
            serial = message.serial
            with self._changed:
                self._newest = replace(message, weights=weights, snapshots=snapshots)
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


@dataclass(frozen=True, slots=True)
class Report:
    """An actor's answer to `poll`: its status, the trainer's events, and what its loop died of."""

    status: ManagerStatus | TrainerStatus | None
    events: list[Any]
    fault: RunFault | None


class _LoopActor:
    """Runs a component's loop in a thread; the actor's own methods stay free for control calls."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stopping = threading.Event()
        self._fault: RunFault | None = None
        self._thread: threading.Thread | None = None
        self._component: Any = None

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop()
        except Exception as error:  # noqa: BLE001 - reported by the next poll
            fault = RunFault.of(self._name, error)
            if isinstance(error, ray.exceptions.RayError):  # something else died or stayed away: no mistake of the user's
                fault.restartable, fault.user_traceback = True, ""
            self._fault = fault

    def _join(self, timeout_s: float) -> bool:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def timers(self) -> dict:
        """The component's timer tree."""
        return self._component.timers.tree() if self._component is not None else {}


def records_folder() -> Path:
    """Where env managers of this user note what their environments are doing."""
    return Path(tempfile.gettempdir()) / f"raytrain-steps-{getpass.getuser()}"


class EnvManagerActor(_LoopActor):
    """An env manager on Ray."""

    def __init__(
        self, plans: list[Plan], index: int, exchanges: dict[str, ray.actor.ActorHandle], state: dict | None, orders: Orders | None,
        incarnation: int = 0, epochs: dict[str, int] | None = None, record: str = "run",
    ) -> None:
        super().__init__(manager_name(index))
        self._plans, self._index, self._exchanges, self._state, self._orders = plans, index, exchanges, state, orders
        self._incarnation, self._epochs = incarnation, epochs
        self._record: Path | None = records_folder() / f"{record}-{index}"
        self._early: list[Notice] = []

    def _loop(self) -> None:
        from threadpoolctl import threadpool_limits

        threadpool_limits(1)  # a core per env manager: BLAS threads would fight the trainer for its own
        sources = {behavior: RemotePolicySource(exchange) for behavior, exchange in self._exchanges.items()}
        self._sinks = {behavior: RemoteSink(exchange, self._stopping) for behavior, exchange in self._exchanges.items()}
        self._look_at_record()
        manager = build_env_manager(
            self._plans, self._index, sources, self._sinks, self._state, self._stopping.is_set, self._orders, self._incarnation, self._epochs,
            self._record,
        )
        self._component = manager
        manager.start()
        try:
            while not self._stopping.is_set():
                manager.advance(0.25)
        finally:
            manager.close()

    def _look_at_record(self) -> None:
        """What the environments were doing when the one before this died, if it was on this machine; their seed streams go on after it."""
        try:
            self._record.parent.mkdir(mode=0o700, exist_ok=True)
        except OSError:  # it only helps to find out why something died
            self._record = None
        if not self._incarnation or self._record is None or not self._record.exists():
            return
        first = self._index * self._plans[0].num_envs
        running = read_record(self._record)
        if self._state is not None:
            begun = self._state["env"].get("episodes_begun", {})
            for slot, episode in last_episodes(self._record).items():
                begun[str(first + slot)] = max(begun.get(str(first + slot), 0), episode + 1)
        if 0 < len(running) <= _FEW:  # where all of them step at once, none of them is to blame
            places = "; ".join(f"env {first + r.slot}, episode {r.episode}, step {r.step}, last action {r.last_action}" for r in running)
            self._early.append(Notice(self._name, f"in a step when it died: {places}"))

    def poll(self) -> Report:
        """Status and fault; quick."""
        manager, (early, self._early) = self._component, (self._early, [])
        return Report(manager.status() if manager else None, [*early, *(manager.drain_events() if manager else [])], self._fault)

    def state(self) -> dict | None:
        """Random-number state for a checkpoint; None before the environments exist."""
        return self._component.state() if self._component else None

    def stop(self, timeout_s: float) -> Report:
        """End the loop, close the environments, and put what was shipped into the queue."""
        self._join(timeout_s)
        if self._component is None:
            return self.poll()
        if self._record is not None:
            self._record.unlink(missing_ok=True)
        for sink in self._sinks.values():
            sink.flush(1.0)
        report = self.poll()
        unshipped = {b: n - self._sinks[b].sent - report.status.abandoned.get(b, 0) for b, n in report.status.produced.items()}
        return replace(report, status=replace(report.status, unshipped=unshipped))


class EvaluatorActor:
    """An evaluator on Ray. It claims no CPU and is the first to wait: what collects and what learns goes before."""

    def __init__(self, evaluator: Evaluator) -> None:
        if hasattr(os, "nice"):
            os.nice(_EVALUATOR_NICENESS)
        self._evaluator = evaluator

    def play(self, weights: dict[str, Any], versions: dict[str, int], parameters: dict[str, Any]) -> Played | RunFault:
        """See `Evaluator.play`; a failure is returned, with the user's own traceback."""
        try:
            return self._evaluator.play(weights, versions, parameters)
        except Exception as error:  # noqa: BLE001 - raised in the driver
            return RunFault.of(EVALUATOR, error)


class ReplayWriterActor:
    """A `ChunkWriter` on the driver's node. What the disk refuses is returned: Ray would wrap an error."""

    def __init__(self, writer: ChunkWriter) -> None:
        self._writer = writer

    def call(self, name: str, *arguments: Any) -> Any:
        """A method of the writer; its result, or the `OSError`."""
        try:
            return getattr(self._writer, name)(*arguments)
        except OSError as error:
            return OSError(error.errno, error.strerror or str(error))


class RemoteReplayWriter:
    """A `ReplayWriter` whose disk is on another node: one chunk is on its way at a time, straight from this process to that one."""

    def __init__(self, actor: ray.actor.ActorHandle) -> None:
        self._actor = actor

    def begin(self) -> str:
        """See `ReplayWriter`."""
        return self._call("begin")

    def write(self, folder: str, number: int, tensors: dict[str, np.ndarray]) -> ChunkFile:
        """See `ReplayWriter`."""
        return self._call("write", folder, number, tensors)

    def remove(self, folder: str) -> None:
        """See `ReplayWriter`."""
        with suppress(OSError):
            self._call("remove", folder)

    def _call(self, *arguments: Any) -> Any:
        try:
            answer = ray.get(self._actor.call.remote(*arguments), timeout=_CHUNK_TIMEOUT_S)
        except ray.exceptions.RayError as error:
            raise OSError(errno.EIO, f"the process on the driver's machine that writes it did not answer ({type(error).__name__})") from error
        if isinstance(answer, OSError):
            raise answer
        return answer


class TrainerActor(_LoopActor):
    """A trainer on Ray."""

    def __init__(
        self, plan: Plan, start: Start, exchange: ray.actor.ActorHandle, referee: ray.actor.ActorHandle | None,
        replay_writer: ray.actor.ActorHandle | None = None,
    ) -> None:
        super().__init__(trainer_name(plan.behavior))
        self._replay_writer = None if replay_writer is None else RemoteReplayWriter(replay_writer)
        self._plan, self._begin, self._exchange = plan, start, exchange
        self._changes: deque[ManagerChange] = deque()
        self._lock = threading.Lock()
        self._referee = None if referee is None else RemoteReferee(referee)

    def _loop(self) -> None:
        sink = RemotePolicySink(self._exchange, self._plan.first_message(self._begin))
        source = RemoteSource(self._exchange, f"{self._plan.behavior}-{os.getpid()}-{time.time_ns()}", sink.publish_again)
        loop = build_trainer_loop(self._plan, self._begin, source, sink, self._referee, self._replay_writer)
        if self._begin.epoch == 0:  # otherwise it is that from which it goes on
            loop.request_save()
        self._begin = None  # a loaded replay buffer may be part of it
        self._component = loop
        self._pass_on()
        while not self._stopping.is_set():
            loop.advance(0.25)

    def poll(self) -> Report:
        """Status, events since the last call, and fault; quick."""
        loop = self._component
        return Report(loop.status() if loop else None, loop.drain_events() if loop else [], self._fault)

    def change(self, change: ManagerChange) -> None:
        """Tell of an env manager that died, came back or joined."""
        self._changes.append(change)
        self._pass_on()

    def _pass_on(self) -> None:
        with self._lock:
            while self._changes and self._component is not None:
                self._component.request_change(self._changes.popleft())

    def save(self) -> None:
        """Ask for a checkpoint, which comes among the events."""
        if self._component is not None:
            self._component.request_save()

    def stop(self, timeout_s: float, shipped: dict[tuple[str, int], int]) -> Report:
        """End the loop after the update it is in, with a last checkpoint among the events.

        Without an end within `timeout_s` the report has no checkpoint; ask again.

        Args:
            shipped: see `TrainerLoop.finish`.
        """
        if self._component is not None:
            self._component.request_stop()
        if self._join(timeout_s) and self._fault is None and self._component is not None:
            self._component.finish(shipped)
        return self.poll()
