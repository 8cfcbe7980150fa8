"""The controller: owns one run in the driver, from the first policy message to the last checkpoint."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from raytrain.backends import Backend, News
from raytrain.callbacks import Callbacks
from raytrain.checkpoint import CheckpointStore
from raytrain.console import Console
from raytrain.errors import RunFault, RunFolderError
from raytrain.messages import Episodes, Notice
from raytrain.plan import Plan
from raytrain.run_folder import RunFolder
from raytrain.snapshot import BehaviorSnapshot, Snapshot
from raytrain.stats import Summary
from raytrain.stop import StopConditions
from raytrain.trainer_loop import CheckpointDue, TrainerStatus

_POLL_S = 0.2
_STOP_S = 12.0  # so that a stop takes at most 15 s with everything around it
_LEFT_S = 5.0  # how long a fault may be held back for a last checkpoint
_STATUS_S = 5.0


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        reason: sentence without a full stop.
        interrupted: by Ctrl-C or SIGTERM.
        mean_return: mean of the last episodes (``stop.episodes``, 100 by default), None before that many.
        balance: agent steps that the ledger cannot explain; 0 unless a process died.
    """

    reason: str
    interrupted: bool
    agent_steps: int
    env_steps: int
    updates: int
    policy_updates: int
    mean_return: float | None
    elapsed_s: float
    ledger: dict[str, int]
    balance: int


class Interrupts:
    """SIGINT and SIGTERM as a request to save and end; a second SIGINT ends the process at once with code 130.

    Args:
        first: called at the first signal, from its handler.
        force_quit: called at a second SIGINT.
    """

    def __init__(self, first: Callable[[], None], force_quit: Callable[[], None]) -> None:
        self._first, self._force_quit = first, force_quit
        self.name = ""

    @contextmanager
    def handled(self) -> Iterator[Interrupts]:
        """Install the handlers for the block; nothing to do outside the main thread, where signals never arrive."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: Any) -> None:
        if self.name and number == signal.SIGINT:
            self._force_quit()
        self.name = signal.Signals(number).name
        self._first()


class Controller:
    """Drives a backend until something ends the run; writes summaries and checkpoints, tells the user.

    Args:
        writers: objects with ``write(summary)`` and ``close()``.
        resumed: counters of the checkpoint that the run continues from.
    """

    def __init__(
        self, plan: Plan, backend: Backend, folder: RunFolder, store: CheckpointStore, console: Console, callbacks: Callbacks,
        writers: list[Any], stop: StopConditions, resumed: dict[str, Any] | None = None,
    ) -> None:
        self._plan, self._backend, self._folder, self._store = plan, backend, folder, store
        self._console, self._callbacks, self._writers, self._stop = console, callbacks, writers, stop
        self._elapsed_before_s = (resumed or {}).get("elapsed_s", 0.0)
        self._agent_steps_before = (resumed or {}).get("agent_steps", 0)
        self._best_reward: float | None = (resumed or {}).get("best_reward")
        self._started_s = time.monotonic()
        self._status_s = 0.0
        self._said_stepping = False
        self._warned: set[str] = set()
        self._stopped = False
        self._trainer: TrainerStatus | None = None
        self._managers: list[Any] = []
        self._saved: tuple[int, int] | None = None

    def run(self) -> tuple[Outcome, dict[str, dict]]:
        """Start the backend and stay until the end; the outcome, and the timer trees by component.

        The backend is stopped whatever happens; a fault of it is raised after the last checkpoint that can still be had.
        """
        with Interrupts(self._backend.interrupt, _quit_at_once).handled() as interrupts:
            try:
                self._backend.start()
                reason = self._watch(interrupts)
                self._console.message(f"stopping: {reason}")
                timers = self._end(interrupts)
            except BaseException as error:
                self._save_what_is_left()
                self._write_status("failed", str(error).splitlines()[0] if str(error) else type(error).__name__)
                raise
        outcome = self._outcome(reason, bool(interrupts.name))
        self._write_status("interrupted" if outcome.interrupted else "finished", outcome.reason)
        return outcome, timers

    def _watch(self, interrupts: Interrupts) -> str:
        while True:
            news = self._backend.poll(_POLL_S)
            self._handle(news)
            self._tell(news)
            if interrupts.name:
                return f"interrupted ({interrupts.name})"
            if self._trainer is not None and self._trainer.finished:
                return self._finished_reason()
            reason = self._stop.reason(self._elapsed_s)
            if reason:
                return reason
            self._check_lock()

    def _finished_reason(self) -> str:
        """Why the trainer is finished."""
        return f"max_steps={self._plan.settings.max_steps:,} reached"

    def _is_best(self, event: CheckpointDue) -> bool:
        """Whether a checkpoint is better than all before it; noted."""
        reward = event.snapshot.reward
        if reward is None or (self._best_reward is not None and reward <= self._best_reward):
            return False
        self._best_reward = reward
        return True

    def _check_lock(self) -> None:
        try:
            self._folder.check_lock()
        except RunFolderError as error:  # while running it is a fault, not bad input
            raise RunFault(str(error)) from error

    def _end(self, interrupts: Interrupts) -> dict[str, dict]:
        """Stop the backend and take in its last news; the timer trees. An interrupted run gives up on a long update, another one waits."""
        started = time.monotonic()

        def keep_waiting() -> bool:
            self._console.waiting("the trainer's last update and checkpoint")
            return not interrupts.name or time.monotonic() - started < _STOP_S

        timers = self._backend.timers()
        news = self._backend.stop(keep_waiting)
        self._stopped = True
        self._handle(news)
        if news.fault is not None:
            raise news.fault
        if news.trainer is not None and not any(isinstance(event, CheckpointDue) for event in news.events):
            newest = [path.name for path in self._store.paths()][-1:]
            self._console.warning(f"the trainer did not finish in time, so there is no last checkpoint; the newest is {newest or 'none'}")
        return timers

    def _save_what_is_left(self) -> None:
        """After a fault: stop everything and keep the checkpoint of a trainer that is still well. Never hides the fault."""
        if self._stopped:
            return
        self._stopped = True
        deadline = time.monotonic() + _LEFT_S
        try:
            news = self._backend.stop(lambda: time.monotonic() < deadline)
            self._trainer = news.trainer or self._trainer
            for event in news.events:
                if isinstance(event, CheckpointDue):
                    self._on_checkpoint(event)
        except Exception as error:  # noqa: BLE001 - the fault that ended the run is raised after this
            self._console.warning(f"no checkpoint could be saved after the fault: {error}")

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _handle(self, news: News) -> None:
        self._trainer = news.trainer or self._trainer
        self._managers = news.managers or self._managers
        for event in news.events:
            if isinstance(event, Episodes):
                self._stop.episodes(event.returns)
                self._callbacks.episodes(event.behavior, event.returns, event.lengths, event.step)
            elif isinstance(event, Summary):
                self._on_summary(event)
            elif isinstance(event, CheckpointDue):
                self._on_checkpoint(event)
            elif isinstance(event, Notice):
                self._console.message(f"{event.behavior}: {event.text}")

    def _on_summary(self, summary: Summary) -> None:
        produced = sum(m.produced[self._plan.behavior] for m in self._managers)  # as of the last poll
        if produced:
            total = float(self._agent_steps_before + produced)
            summary = replace(summary, values={**summary.values, "System/Agent Steps Produced": total})
        for writer in self._writers:
            try:
                writer.write(summary)
            except OSError as error:
                raise RunFault(f"Cannot write metrics: {error}. Free some space or make the run folder writable, then --resume.") from error
        self._stop.summary(summary)
        self._console.summary(summary)
        self._callbacks.summary(summary)

    def _on_checkpoint(self, event: CheckpointDue) -> None:
        one = event.snapshot
        key = (one.agent_steps, one.policy_version)
        if key == self._saved:  # asked for twice at the same place
            return
        self._saved = key
        better = self._is_best(event)
        self._check_lock()
        path = self._store.save(Snapshot({self._plan.behavior: one}, self._run_state(one, event.label, event.env_steps)))
        if better:
            self._store.mark_best(path)
        while self._store.messages:
            self._console.warning(self._store.messages.pop(0))
        self._callbacks.checkpoint(path, event.label, one.reward)

    def _run_state(self, one: BehaviorSnapshot, label: int, env_steps: int) -> dict[str, Any]:
        trainer = self._trainer
        return {
            "label": label,
            "seed": self._plan.seed,
            "agent_steps": one.agent_steps,
            "env_steps": env_steps,
            "elapsed_s": self._elapsed_before_s + self._elapsed_s,
            "best_reward": self._best_reward,
            "managers": self._backend.manager_states(),
            "stop": self._stop.state(),
            "ledger": trainer.ledger if trainer else {},
        }

    def _tell(self, news: News) -> None:
        now = time.monotonic()
        if not self._said_stepping and len(self._managers) == len(self._plan.managers):
            self._said_stepping = True
            self._console.message(f"environments are stepped: {self._managers[0].stepping}")
        if now - self._status_s >= _STATUS_S:
            self._status_s = now
            self._write_status("running", "")
        trainer = self._trainer
        if trainer is not None and trainer.agent_steps:
            self._console.progress(trainer.agent_steps, self._plan.settings.max_steps, self._stop.mean_return, self._plan.behavior)
        if news.starting:
            self._console.waiting(", ".join(news.starting) + " to start")
        elif trainer is not None:
            phase = trainer.phase.removeprefix("waiting for ")
            self._console.waiting(f"the next summary (at {trainer.agent_steps:,} agent steps: {phase})")

    def _write_status(self, state: str, reason: str) -> None:
        t = self._trainer
        self._put_status({
            "state": state, "reason": reason, "behavior": self._plan.behavior, "agent_steps": t.agent_steps if t else 0,
            "env_steps": t.env_steps if t else 0, "updates": t.updates if t else 0, "policy_updates": t.policy_updates if t else 0,
            "max_steps": self._plan.settings.max_steps, "mean_return": self._stop.mean_return, "best_reward": self._best_reward,
            "elapsed_s": round(self._elapsed_before_s + self._elapsed_s, 3), "seed": self._plan.seed,
        })

    def _put_status(self, status: dict[str, Any]) -> None:
        """The status is for people and may fail; the run goes on."""
        try:
            self._folder.write_status(status)
        except OSError as error:
            self._warn_once(f"cannot write status.json: {error}")
        if self._folder.heartbeat_error:
            self._warn_once(f"the run's lock cannot be kept fresh: {self._folder.heartbeat_error}")

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._console.warning(text)

    def _outcome(self, reason: str, interrupted: bool) -> Outcome:
        t = self._trainer
        ledger = dict(t.ledger) if t else {}
        b = self._plan.behavior
        produced = sum(m.produced[b] for m in self._managers)
        unshipped = sum(m.unshipped[b] for m in self._managers)
        ledger["produced"] = produced
        ledger["dropped_shutdown"] = ledger.get("dropped_shutdown", 0) + unshipped
        explained = ledger.get("consumed", 0) + sum(v for k, v in ledger.items() if k.startswith("dropped_"))
        return Outcome(
            reason=reason, interrupted=interrupted, agent_steps=t.agent_steps if t else 0, env_steps=t.env_steps if t else 0,
            updates=t.updates if t else 0, policy_updates=t.policy_updates if t else 0, mean_return=self._stop.mean_return,
            elapsed_s=self._elapsed_s, ledger=ledger, balance=produced - explained,
        )


def _quit_at_once() -> None:
    import os

    sys.stderr.write("\nended at once; the newest checkpoint is the last one that was written\n")
    sys.stderr.flush()
    os._exit(130)  # Ray's own processes share this one's fate
