"""Env managers, trainers and what helps them as Ray actors.

Nothing here learns or steps: an actor runs a component's loop in a thread of its own, and its methods only read or leave requests.
"""

from __future__ import annotations

import getpass
import os
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray

from envs.step_record import last_episodes, read_record
from raytrain.actors.ends import RemotePolicySink, RemotePolicySource, RemoteReferee, RemoteSink, RemoteSource
from raytrain.actors.replay import OtherNodesReplay, RemoteReplayWriter
from raytrain.backends import trainer_name
from raytrain.errors import RunFault
from raytrain.evaluation import EVALUATOR, Evaluator, Played
from raytrain.intake import ManagerChange
from raytrain.messages import ManagerStatus, Notice, Orders, TrainerStatus
from raytrain.plan import Plan, Start, build_env_manager, build_trainer_loop, manager_name

_EVALUATOR_NICENESS = 10
_FEW = 4


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
        thread = threading.Thread(target=self._run, name="loop", daemon=True)
        thread.start()
        self._thread = thread  # only now: `stop` may come from another thread at any moment

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


def _records_folder() -> Path:
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
        self._record: Path | None = _records_folder() / f"{record}-{index}"
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


class TrainerActor(_LoopActor):
    """A trainer on Ray.

    Args:
        results_node: id of the node whose disk has the results.
    """

    def __init__(
        self, plan: Plan, start: Start, exchange: ray.actor.ActorHandle, referee: ray.actor.ActorHandle | None,
        replay_writer: ray.actor.ActorHandle | None = None, results_node: str = "",
    ) -> None:
        super().__init__(trainer_name(plan.behavior))
        self._results_node = results_node
        self._replay_writer = None if replay_writer is None else RemoteReplayWriter(replay_writer)
        self._plan, self._begin, self._exchange = plan, start, exchange
        self._changes: deque[ManagerChange] = deque()
        self._source: RemoteSource | None = None
        self._known_deaths = 0
        self._save_asked = False
        self._lock = threading.Lock()
        self._referee = None if referee is None else RemoteReferee(referee)

    def _loop(self) -> None:
        sink = RemotePolicySink(self._exchange, self._plan.first_message(self._begin))
        self._source = source = RemoteSource(self._exchange, f"{self._plan.behavior}-{os.getpid()}-{time.time_ns()}", sink.publish_again)
        reader = partial(OtherNodesReplay, node=self._results_node)
        loop = build_trainer_loop(self._plan, self._begin, source, sink, self._referee, self._replay_writer, reader)
        if self._begin.epoch == 0:  # otherwise it is that from which it goes on
            loop.request_save()
        self._begin = None  # the trainer has its state now
        self._component = loop
        self._pass_on()
        while not self._stopping.is_set():
            loop.advance(0.25)

    def poll(self) -> Report:
        """Status, events since the last call, and fault; quick."""
        loop = self._component
        return Report(loop.status() if loop else None, [*self._deaths(), *(loop.drain_events() if loop else [])], self._fault)

    def _deaths(self) -> list[Notice]:
        """Of the exchange, since the last call."""
        known, self._known_deaths = self._known_deaths, self._source.deaths if self._source is not None else 0
        text = "its trajectory queue and policy mailbox died and were started anew; nothing is lost"
        return [Notice(self._plan.behavior, text, is_restart=True) for _ in range(self._known_deaths - known)]

    def change(self, change: ManagerChange) -> None:
        """Tell of an env manager that died, came back or joined."""
        self._changes.append(change)
        self._pass_on()

    def _pass_on(self) -> None:
        with self._lock:
            while self._changes and self._component is not None:
                self._component.request_change(self._changes.popleft())
            if self._save_asked and self._component is not None:
                self._save_asked = False
                self._component.request_save()

    def save(self) -> None:
        """Ask for a checkpoint, which comes among the events."""
        self._save_asked = True
        self._pass_on()

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
