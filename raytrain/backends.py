"""How a run is driven: the controller asks a backend for news and tells it what to do. The one here is this process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from threadpoolctl import threadpool_limits

from raytrain.env_manager import EnvManager
from raytrain.errors import RunFault
from raytrain.messages import ManagerStatus
from raytrain.plan import Plan, Start, build_env_manager, build_trainer_loop
from raytrain.queues import LocalExchange
from raytrain.trainer_loop import TrainerLoop, TrainerStatus


@dataclass(slots=True)
class News:
    """What happened since the last call.

    Attributes:
        events: summaries, finished episodes and checkpoints, in order.
        trainer: the trainer's status; None while it starts.
        managers: status of the env managers that have one.
        starting: what is still starting, for people.
        fault: what the trainer died of while everything was being stopped.
    """

    events: list[Any] = field(default_factory=list)
    trainer: TrainerStatus | None = None
    managers: list[ManagerStatus] = field(default_factory=list)
    starting: list[str] = field(default_factory=list)
    fault: RunFault | None = None


class Backend(Protocol):
    """Where env managers and the trainer live. Faults of theirs are raised by `poll`."""

    def start(self) -> None:
        """Make everything and set it going; may return before it goes."""

    def poll(self, timeout_s: float) -> News:
        """News, waiting up to `timeout_s` for some."""

    def interrupt(self) -> None:
        """A signal has come (called from its handler): leave off what can be left off, so that the next `poll` returns soon."""

    def manager_states(self) -> dict[str, dict]:
        """Random-number state of each env manager by name, for a checkpoint; the last known one of those that do not answer."""

    def timers(self) -> dict[str, dict]:
        """Timer trees by component."""

    def stop(self, keep_waiting: Callable[[], bool]) -> News:
        """Stop env managers, then the trainer with a last checkpoint; the last news. Ends everything it started.

        Args:
            keep_waiting: asked about every second while the trainer is in its last update; False gives up on it.
        """


class LocalBackend:
    """Everything in this process and one thread, in lock-step: rounds of the managers, then the trainer, and so on."""

    def __init__(self, plan: Plan, start: Start, manager_states: list[dict] | None = None) -> None:
        self._plan, self._start, self._states = plan, start, manager_states
        self._loop: TrainerLoop | None = None
        self._managers: list[EnvManager] = []
        self._blas: threadpool_limits | None = None

    def start(self) -> None:
        self._blas = threadpool_limits(1)  # as in an env manager's own process: small products are faster and the same bytes
        with self._faults():
            self._make()

    def _make(self) -> None:
        exchange = LocalExchange(capacity=sys.maxsize)  # one thread: a full queue could never be emptied
        self._loop = build_trainer_loop(self._plan, self._start, exchange, exchange)
        for i in range(len(self._plan.managers)):
            state = self._states[i] if self._states else None
            self._managers.append(build_env_manager(self._plan, i, exchange, exchange, state))
        exchange.publish(self._plan.first_message(self._start))
        self._start = None  # a loaded replay buffer may be part of it
        self._loop.request_save()
        for manager in self._managers:
            manager.start()

    def poll(self, timeout_s: float) -> News:
        with self._faults():
            deadline = time.monotonic() + timeout_s
            for manager in self._managers:
                while manager.advance(0.0):
                    if time.monotonic() > deadline:  # a slow env: the rest of the round next time, nothing else depends on it
                        return self._news()
            self._loop.advance(0.0)
        return self._news()

    def interrupt(self) -> None:
        if self._loop is not None:
            self._loop.request_stop()  # it may owe updates for minutes, all in one turn

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise RunFault.of("local run", error) from error

    def manager_states(self) -> dict[str, dict]:
        return {m.name: m.state() for m in self._managers}

    def timers(self) -> dict[str, dict]:
        return {"trainer": self._loop.timers.tree(), **{m.name: m.timers.tree() for m in self._managers}}

    def stop(self, keep_waiting: Callable[[], bool]) -> News:
        if self._loop is not None:  # otherwise it never got going
            self._loop.finish()
        with self._faults():
            for manager in self._managers:
                manager.close()
        if self._blas is not None:
            self._blas.restore_original_limits()
        return self._news() if self._loop is not None else News()

    def _news(self) -> News:
        return News(self._loop.drain_events(), self._loop.status(), [m.status() for m in self._managers])
