"""How a run is driven: the controller asks a backend for news and tells it what to do. The one here is this process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from threadpoolctl import threadpool_limits

from raytrain.env_manager import EnvManager
from raytrain.errors import RunFault
from raytrain.messages import CheckpointDue, ManagerStatus, TrainerStatus
from raytrain.plan import Plan, Start, build_env_manager, build_trainer_loop
from raytrain.queues import LocalExchange
from raytrain.referee import Referee
from raytrain.replay_chunks import ReplayWriter
from raytrain.trainer_loop import TrainerLoop


@dataclass(slots=True)
class News:
    """What happened since the last call.

    Attributes:
        events: summaries, finished episodes and checkpoints, in order.
        trainers: behavior -> its trainer's status, once it has started.
        managers: status of the env managers that have one.
        starting: what is still starting, for people.
        waiting_for: what those that have no place yet wait for, for people.
        placement: (node, actors on it) rows, once, when everything has started on a cluster of several nodes.
        fault: what a trainer died of while everything was being stopped.
        lost: behavior -> what its trainer died of, until `Backend.restart_trainers`.
        notices: sentences about env managers that came and went.
        warnings: sentences about what died and was started anew, or is late.
        restarts: of env managers and trainers, so far.
    """

    events: list[Any] = field(default_factory=list)
    trainers: dict[str, TrainerStatus] = field(default_factory=dict)
    managers: list[ManagerStatus] = field(default_factory=list)
    starting: list[str] = field(default_factory=list)
    waiting_for: str = ""
    placement: list[tuple[str, str]] = field(default_factory=list)
    fault: RunFault | None = None
    lost: dict[str, RunFault] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    restarts: int = 0


class Backend(Protocol):
    """Where env managers and trainers live. Faults of theirs are raised by `poll`, unless a restart mends them."""

    def start(self) -> None:
        """Make everything and set it going; may return before it goes."""

    def poll(self, timeout_s: float) -> News:
        """News, waiting up to `timeout_s` for some."""

    def restart_trainers(self, starts: Mapping[str, Start], referee_state: dict[str, Any] | None) -> None:
        """Start these trainers again, and the referee where there is one.

        Args:
            starts: behavior -> its state in the newest checkpoint; versions and the like are put right here.
        """

    def scale(self, count: int) -> None:
        """Have this many env managers from now on; those that come join when they are there, those that go finish what they were in."""

    def room(self) -> int | None:
        """How many env managers the cluster has room for now; None where it does not change."""

    def interrupt(self) -> None:
        """A signal has come (called from its handler): leave off what can be left off, so that the next `poll` returns soon."""

    def request_save(self, behaviors: Iterable[str]) -> None:
        """Ask these trainers for a checkpoint, which comes as an event of one of the next polls."""

    def manager_states(self) -> dict[str, dict]:
        """Random-number state of each env manager by name, for a checkpoint; the last known one of those that do not answer."""

    def referee_state(self) -> dict[str, Any] | None:
        """Lessons, ratings and teams, for a checkpoint; None without a referee."""

    def timers(self) -> dict[str, dict]:
        """Timer trees by component: of the trainers (`trainer_name`) and the env managers."""

    def stop(self, keep_waiting: Callable[[], bool]) -> News:
        """Stop env managers, then the trainers with a last checkpoint each; the last news. Ends everything it started.

        Args:
            keep_waiting: asked about every second while a trainer is in its last update; False gives up on it.
        """


def trainer_name(behavior: str) -> str:
    """What the trainer of a behavior is called in timers and messages."""
    return f"trainer of {behavior}"


class LocalBackend:
    """Everything in this process and one thread, in lock-step: rounds of the managers, then the trainers, and so on."""

    def __init__(
        self, plans: Sequence[Plan], starts: Mapping[str, Start], manager_states: list[dict] | None = None,
        referee_state: dict[str, Any] | None = None, replay_writers: Mapping[str, ReplayWriter] = MappingProxyType({}),
    ) -> None:
        self._plans, self._starts, self._states = list(plans), dict(starts), manager_states
        self._replay_writers = replay_writers
        self._referee = Referee(plans, referee_state) if Referee.is_needed(plans) else None
        self._loops: dict[str, TrainerLoop] = {}
        self._managers: list[EnvManager] = []
        self._blas: threadpool_limits | None = None
        self._is_made = self._is_interrupted = False
        self._saved: list[Any] = []  # checkpoints that were asked for, not delivered yet

    def start(self) -> None:
        self._blas = threadpool_limits(1)  # as in an env manager's own process: small products are faster and the same bytes
        with self._faults():
            self._make()

    def _make(self) -> None:
        exchanges = {p.behavior: LocalExchange(capacity=sys.maxsize) for p in self._plans}  # one thread: a full queue could never be emptied
        for plan in self._plans:
            exchange = exchanges[plan.behavior]
            self._loops[plan.behavior] = build_trainer_loop(plan, self._starts[plan.behavior], exchange, exchange, self._referee, self._replay_writers.get(plan.behavior))
        for i in range(len(self._plans[0].managers)):
            state = self._states[i] if self._states else None
            orders = None if self._referee is None else self._referee.orders
            self._managers.append(build_env_manager(self._plans, i, exchanges, exchanges, state, orders=orders))
        for plan in self._plans:
            exchanges[plan.behavior].publish(plan.first_message(self._starts.pop(plan.behavior)))
        if len(self._loops) > 1:  # in a run that is resumed one behavior may be within a round that off-policy credit, not asked for yet, is for
            for loop in self._loops.values():
                loop.grant_more()
        self.request_save(self._loops)
        for manager in self._managers:
            manager.start()
        self._is_made = True

    def poll(self, timeout_s: float) -> News:
        if self._saved:  # taken in before anything moves on, as what the controller adds has to be of the same moment
            return self._news()
        with self._faults():
            deadline = time.monotonic() + timeout_s
            for manager in self._managers:
                while manager.advance(0.0):
                    if time.monotonic() > deadline:  # a slow env: the rest of the round next time, nothing else depends on it
                        return self._news()
            if self._is_interrupted and len(self._loops) > 1:
                return self._news()
            for loop in self._loops.values():
                loop.advance(0.0)
            if len(self._loops) > 1:  # what one has reported holds for the others in this turn, too, as it does after a resume
                for loop in self._loops.values():
                    loop.look()
                    loop.publish_orders()
        return self._news()

    def interrupt(self) -> None:
        self._is_interrupted = True
        if len(self._loops) == 1:  # of several, either all have learnt what has come, or none: that is a moment from which a run can go on
            for loop in self._loops.values():
                loop.request_stop()  # it may owe updates for minutes, all in one turn

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise RunFault.of("local run", error) from error

    def restart_trainers(self, starts: Mapping[str, Start], referee_state: dict[str, Any] | None) -> None:
        """Never called: one process lives or dies as a whole."""

    def scale(self, count: int) -> None:
        """Never called: lock-step depends on how many there are."""

    def room(self) -> int | None:
        return None

    def request_save(self, behaviors: Iterable[str]) -> None:
        for behavior in behaviors:
            self._loops[behavior].save()
            self._saved += self._loops[behavior].drain_events()

    def manager_states(self) -> dict[str, dict]:
        return {m.name: m.state() for m in self._managers}

    def referee_state(self) -> dict[str, Any] | None:
        return None if self._referee is None else self._referee.state()

    def timers(self) -> dict[str, dict]:
        return {**{trainer_name(b): loop.timers.tree() for b, loop in self._loops.items()}, **{m.name: m.timers.tree() for m in self._managers}}

    def stop(self, keep_waiting: Callable[[], bool]) -> News:
        if self._is_made:  # otherwise it never got going
            for loop in self._loops.values():
                loop.finish()
        with self._faults():
            for manager in self._managers:
                manager.close()
        if self._blas is not None:
            self._blas.restore_original_limits()
        return self._news() if self._is_made else News()

    def _news(self) -> News:
        events = [event for part in (*self._loops.values(), *self._managers) for event in part.drain_events()]
        labels = {event.behavior: event.label for event in events if isinstance(event, CheckpointDue)}
        if labels and len(self._loops) > 1:  # all at the same moment, so that a run that is resumed is the same one
            events = [event for event in events if not isinstance(event, CheckpointDue)]
            for loop in self._loops.values():
                loop.look()
            for behavior, loop in self._loops.items():
                loop.save(labels.get(behavior))
                events += loop.drain_events()
        events, self._saved = [*self._saved, *events], []
        return News(events, {b: loop.status() for b, loop in self._loops.items()}, [m.status() for m in self._managers])
