"""The controller: owns one run in the driver, from the first policy message to the last checkpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raytrain.backends import Backend, News
from raytrain.callbacks import Callbacks
from raytrain.checkpoint import CheckpointStore
from raytrain.console import ENDING_SILENCE_S, Console
from raytrain.errors import RunFault, RunFolderError
from raytrain.interrupts import Interrupts, quit_at_once
from raytrain.judge import Judge
from raytrain.messages import CheckpointDue, Episodes, Notice, TrainerStatus
from raytrain.outcome import Outcome, behavior_outcome, behavior_status, whole_status
from raytrain.plan import Plan
from raytrain.recovery import Recovery
from raytrain.run_folder import RunFolder
from raytrain.snapshot import Snapshot
from raytrain.standing import at_checkpoint
from raytrain.stats import PRODUCED, RESTARTS, Summary
from raytrain.stop import RunStop
from raytrain.writers import Writers

_POLL_S = 0.2
_STOP_S = 12.0  # so that a stop takes at most 15 s with everything around it
_LEFT_S = 5.0  # how long a fault may be held back for a last checkpoint
_STATUS_S = 5.0
_SCALE_S = 2.0
_EXPLAIN_S = 30.0  # longest silence while actors wait for a place


@dataclass(slots=True)
class Fleet:
    """The env managers of a run that may grow and shrink.

    Attributes:
        count: how many there are to be now.
        most: how many there may be.
        follows_cluster: as many as there is room for.
    """

    count: int
    most: int
    follows_cluster: bool


class Controller:
    """Drives a backend until something ends the run; writes summaries and checkpoints, tells the user.

    Args:
        plans: of all behaviors.
        resumed: counters of the checkpoint that the run continues from.
        judge: of checkpoints; without one the best is that of the highest training return.
        recovery: for trainers that die; without one nothing is started anew.
        save_every_s: seconds between checkpoints, besides those that trainers make; None for no others.
        fleet: where there may be more or fewer env managers later on.
    """

    def __init__(
        self, plans: Sequence[Plan], backend: Backend, folder: RunFolder, store: CheckpointStore, console: Console, callbacks: Callbacks,
        writers: Writers, stop: RunStop, resumed: dict[str, Any] | None = None, judge: Judge | None = None,
        recovery: Recovery | None = None, save_every_s: float | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        self._plans, self._backend, self._folder, self._store = {p.behavior: p for p in plans}, backend, folder, store
        self._console, self._callbacks, self._writers, self._stop = console, callbacks, writers, stop
        self._resumed = resumed or {}
        self._elapsed_before_s = self._resumed.get("elapsed_s", 0.0)
        self._agent_steps_before = dict(self._resumed.get("behaviors", {}))
        self._judge, self._recovery, self._restarts = judge, recovery, 0
        self._env_restarts = 0
        self._best_training: float | None = None if self._resumed.get("best_by") == "evaluation" else self._resumed.get("best_reward")
        self._started_s = self._summary_s = time.monotonic()
        self._status_s = 0.0
        self._said_stepping = False
        self._stopped = False
        self._trainers: dict[str, TrainerStatus] = {}
        self._managers: list[Any] = []
        self._gone_back = {  # where trainers that have not started again yet will go on from
            behavior: TrainerStatus(behavior, "starting", False, steps, self._resumed.get("env_steps", 0), 0, 0, 0, 0, 0)
            for behavior, steps in self._agent_steps_before.items() if behavior in self._plans
        }
        self._due: dict[str, CheckpointDue] = {}  # parts of the next checkpoint
        self._asked: set[str] = set()  # behaviors that were asked for theirs
        self._fleet, self._scaled_s = fleet, time.monotonic()
        self._save_every_s, self._saved_s = save_every_s, time.monotonic()
        self._saved: tuple[tuple[int, int], ...] | None = None

    def run(self) -> tuple[Outcome, dict[str, dict]]:
        """Start the backend and stay until the end; the outcome, and the timer trees by component.

        The backend is stopped whatever happens; a fault of it is raised after the last checkpoint that can still be had.
        """
        with Interrupts(self._interrupt, quit_at_once).handled() as interrupts:
            try:
                self._backend.start()
                reason = self._watch(interrupts)
                self._console.message(f"stopping: {reason}")
                timers = self._end(interrupts)
            except BaseException as error:
                self._save_what_is_left()
                self._write_status("failed", str(error).splitlines()[0] if str(error) else type(error).__name__)
                raise
            finally:
                if self._judge is not None:
                    self._judge.close()
        outcome = self._outcome(reason, bool(interrupts.name))
        self._write_status("interrupted" if outcome.interrupted else "finished", outcome.reason)
        return outcome, timers

    def _interrupt(self) -> None:
        self._backend.interrupt()
        if self._judge is not None:
            self._judge.interrupt()

    def _watch(self, interrupts: Interrupts) -> str:
        while True:
            news = self._backend.poll(_POLL_S)
            self._handle(news)
            if news.lost:
                self._go_back(news.lost)
            if self._judge is not None:
                self._judge.poll(self._check_lock)
            self._tell(news)
            if interrupts.name:
                return f"interrupted ({interrupts.name})"
            if self._callbacks.want_an_end:
                return "asked to stop"
            if len(self._trainers) == len(self._plans) and all(trainer.finished for trainer in self._trainers.values()):
                return self._finished_reason()
            reason = self._stop.reason(self._elapsed_s)
            if reason:
                return reason
            self._save_by_time()
            self._scale()
            self._check_lock()

    def _go_back(self, lost: Mapping[str, RunFault]) -> None:
        """Trainers have died: they, and those that cannot go on without them, start again from the newest checkpoint."""
        if self._recovery is None:
            raise next(iter(lost.values()))
        behaviors = self._recovery.affected(lost)
        way = self._recovery.way_back(behaviors, self._elapsed_before_s + self._elapsed_s)
        for text in way.sentences:
            self._console.warning(text)
        for behavior in behaviors:
            before = self._trainers.pop(behavior, None)
            if before is not None:
                lost_steps = max(0, before.agent_steps - way.steps[behavior])
                self._gone_back[behavior] = replace(
                    before, agent_steps=way.steps[behavior], rolled_back=before.rolled_back + lost_steps, finished=False,
                )
            self._due.pop(behavior, None)
            self._asked.discard(behavior)
        self._saved = None
        self._backend.restart_trainers(way.starts, way.referee)

    def _finished_reason(self) -> str:
        """Why the trainers are finished."""
        return f"max_steps={' and '.join(dict.fromkeys(f'{plan.settings.max_steps:,}' for plan in self._plans.values()))} reached"

    def _is_best(self, parts: dict[str, CheckpointDue]) -> bool:
        """Whether a checkpoint is better than all before it by the training return, the mean over behaviors; noted."""
        rewards = [event.snapshot.reward for event in parts.values()]
        reward = None if None in rewards else sum(rewards) / len(rewards)
        if reward is None or (self._best_training is not None and reward <= self._best_training):
            return False
        self._best_training = reward
        return True

    @property
    def _best_reward(self) -> float | None:
        """What ``best/`` is the best by."""
        return self._best_training if self._judge is None else self._judge.best_reward

    def _check_lock(self) -> None:
        try:
            self._folder.check_lock()
        except RunFolderError as error:  # while running it is a fault, not bad input
            raise RunFault(str(error)) from error

    def _end(self, interrupts: Interrupts) -> dict[str, dict]:
        """Stop the backend and take in its last news; the timer trees. An interrupted run gives up on a long update, another one waits."""
        started = time.monotonic()
        ending = "the trainer's last update and checkpoint" if len(self._plans) == 1 else "the trainers' last updates and checkpoints"

        def keep_waiting() -> bool:
            self._console.waiting(ending, at_most_s=ENDING_SILENCE_S)
            return not interrupts.name or time.monotonic() - started < _STOP_S

        timers = self._backend.timers()
        with self._console.busy(f"waiting for {ending}"):
            news = self._backend.stop(keep_waiting)
            self._stopped = True
            self._handle(news)
        if news.fault is not None:
            raise news.fault
        last = {event.behavior for event in news.events if isinstance(event, CheckpointDue)}
        late = [behavior for behavior in self._plans if behavior not in last and (behavior in news.trainers or behavior in self._gone_back)]
        if late:
            newest = "".join(path.name for path in self._store.paths()[-1:])
            who = "the trainer" if len(self._plans) == 1 else f"the trainer of {', '.join(late)}"
            self._console.warning(f"{who} did not finish in time, so there is no last checkpoint; the newest is {newest or 'none'}")
        if self._judge is not None and not interrupts.name:
            self._judge.finish(self._check_lock, lambda: not interrupts.name)
        self._store.raise_unsaved()
        return timers

    def _save_what_is_left(self) -> None:
        """After a fault: stop everything and keep the checkpoint of a trainer that is still well. Never hides the fault."""
        if self._stopped:
            return
        self._stopped = True
        deadline = time.monotonic() + _LEFT_S
        try:
            with self._console.busy("saving what can still be had"):
                news = self._backend.stop(lambda: time.monotonic() < deadline)
            self._trainers.update(news.trainers)
            events, last = self._with_last_parts_apart(news.events)
            for event in events:
                if isinstance(event, CheckpointDue):
                    self._on_checkpoint(event)
            self._take_last_parts(last)
        except Exception as error:  # noqa: BLE001 - the fault that ended the run is raised after this
            self._console.warning(f"no checkpoint could be saved after the fault: {error}")

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _handle(self, news: News) -> None:
        self._trainers.update(news.trainers)
        self._managers = news.managers
        self._restarts = news.restarts + self._env_restarts
        for text in news.notices:
            self._console.message(text)
        for text in news.warnings:
            self._console.warning(text)
        events, last = self._with_last_parts_apart(news.events)
        for event in events:
            if isinstance(event, Episodes):
                self._count_towards_stop(event)
                self._callbacks.episodes(event.behavior, event.returns, event.lengths, event.step)
            elif isinstance(event, Summary):
                self._on_summary(event)
            elif isinstance(event, CheckpointDue):
                self._on_checkpoint(event)
            elif isinstance(event, Notice):
                self._env_restarts += event.is_restart
                (self._console.warning if event.is_restart else self._console.message)(f"{event.behavior}: {event.text}")
        self._take_last_parts(last)
        self._ask_for_parts()

    def _with_last_parts_apart(self, events: Sequence[Any]) -> tuple[list[Any], list[CheckpointDue]]:
        """At the end, and if every behavior has given one: its last part of a checkpoint apart from the rest."""
        last = {event.behavior: event for event in events if isinstance(event, CheckpointDue)} if self._stopped else {}
        if last.keys() != self._plans.keys():
            last = {}
        return [event for event in events if not any(event is one for one in last.values())], list(last.values())

    def _take_last_parts(self, last: Sequence[CheckpointDue]) -> None:
        """They are one checkpoint. A part that one of them gave before, when it was asked for another one, is of another moment."""
        if last:
            self._due = {}
        for event in last:
            self._on_checkpoint(event)

    def _count_towards_stop(self, event: Episodes) -> None:
        last = event.in_last_lesson
        if last is None or last.all():
            self._stop.episodes(event.behavior, event.returns)
        else:  # stragglers of the lesson before are left out of the last one
            self._stop.episodes(event.behavior, event.returns[last] if last.any() else event.returns, bool(last.any()))

    def _on_summary(self, summary: Summary) -> None:
        produced = sum(m.produced[summary.behavior] for m in self._managers)  # as of the last poll
        if produced:
            dead = self._trainers[summary.behavior].ledger.get("dead_produced", 0) if summary.behavior in self._trainers else 0
            total = float(self._agent_steps_before.get(summary.behavior, 0) + produced + dead)
            summary = replace(summary, values={**summary.values, PRODUCED: total, RESTARTS: float(self._restarts)})
        self._writers.summary(summary)
        self._summary_s = time.monotonic()
        self._stop.summary(summary)
        self._console.summary(summary)
        self._callbacks.summary(summary)

    def _on_checkpoint(self, event: CheckpointDue) -> None:
        """Save once every behavior has given its part."""
        self._due[event.behavior] = event
        self._asked.discard(event.behavior)
        if len(self._due) == len(self._plans):
            parts, self._due = {behavior: self._due[behavior] for behavior in self._plans}, {}
            self._save(parts, event.label)

    def _scale(self) -> None:
        """Follow what `raytrain scale` asks for, and with ``num_env_managers: auto`` the size of the cluster."""
        if self._fleet is None or time.monotonic() - self._scaled_s < _SCALE_S:
            return
        self._scaled_s = time.monotonic()
        asked = self._folder.take_request()
        if asked is not None:
            self._fleet.follows_cluster = False
        elif self._fleet.follows_cluster:
            asked = self._backend.room()
        count = None if asked is None else max(1, min(asked, self._fleet.most))
        if count is not None and count != self._fleet.count:
            self._fleet.count = count
            self._console.message(f"going on with {count} env manager{'s' * (count > 1)}")
            self._backend.scale(count)

    def _save_by_time(self) -> None:
        if self._save_every_s is None or self._due or self._asked or time.monotonic() - self._saved_s < self._save_every_s:
            return
        if len(self._trainers) == len(self._plans):  # one that is starting could not answer
            self._saved_s = time.monotonic()
            self._asked.update(self._plans)
            self._backend.request_save(self._plans)

    def _ask_for_parts(self) -> None:
        """Of the checkpoint that one behavior has begun, from those that did not give theirs by themselves."""
        ask = [b for b in self._trainers if b not in self._due and b not in self._asked] if self._due and not self._stopped else []
        if ask:
            self._asked.update(ask)
            self._backend.request_save(ask)

    def _save(self, parts: dict[str, CheckpointDue], label: int) -> None:
        snapshots = {behavior: event.snapshot for behavior, event in parts.items()}
        self._saved_s = time.monotonic()
        key = tuple((event.snapshot.agent_steps, event.snapshot.policy_version, event.env_steps) for event in parts.values())
        if key == self._saved:  # asked for twice at the same place
            self._store.drop_replay(snapshots.values())
            return
        best_before = self._best_training
        better = self._judge is None and self._is_best(parts)
        self._check_lock()
        streams, running = at_checkpoint(self._backend.manager_states(), parts.values())
        state = self._run_state(parts, label, streams)
        path = self._store.try_save(Snapshot(snapshots, state, running))
        self._saved = key if path is not None else None  # what the disk refused is tried again, also at the same place
        if path is not None and self._recovery is not None:
            self._recovery.saved(path, parts)
        if better and (path is None or not self._store.try_mark_best(path)):
            self._best_training = best_before
        if path is not None and self._judge is not None:
            self._judge.saved(path, parts, state["referee"] and state["referee"]["curricula"])
        while self._store.messages:
            self._console.warning(self._store.messages.pop(0))
        if path is None:
            return
        rewards = [one.reward for one in snapshots.values()]
        self._callbacks.checkpoint(path, label, rewards[0] if len(rewards) == 1 else None)

    def _run_state(self, parts: dict[str, CheckpointDue], label: int, managers: dict[str, dict]) -> dict[str, Any]:
        steps = {behavior: event.snapshot.agent_steps for behavior, event in parts.items()}
        return {
            "label": label,
            "seed": self._seed,
            "agent_steps": sum(steps.values()),
            "behaviors": steps,
            "env_steps": max(event.env_steps for event in parts.values()),
            "elapsed_s": self._elapsed_before_s + self._elapsed_s,
            "best_reward": self._best_reward,
            "best_by": "training return" if self._judge is None else "evaluation",
            "managers": managers,
            "loops": {behavior: event.loop for behavior, event in parts.items()},
            "referee": self._backend.referee_state(),
            "stop": self._stop.state(),
            "ledger": {behavior: trainer.ledger for behavior, trainer in self._trainers.items()},
        }

    @property
    def _seed(self) -> int:
        return next(iter(self._plans.values())).seed

    def _tell(self, news: News) -> None:
        now = time.monotonic()
        if not self._said_stepping and self._managers:
            self._said_stepping = True
            self._console.message(f"environments are stepped: {self._managers[0].stepping}")
        if now - self._status_s >= _STATUS_S:
            self._status_s = now
            self._write_status("running", "")
        for behavior, trainer in self._trainers.items():
            if trainer.agent_steps:
                max_steps = self._plans[behavior].settings.max_steps
                self._console.progress(trainer.agent_steps, max_steps, self._stop.mean_return(behavior), behavior)
        if news.placement:
            self._console.table("placement", news.placement)
        if news.waiting_for:  # nothing else is printed meanwhile, and numbers in it change
            self._console.waiting(news.waiting_for, at_most_s=_EXPLAIN_S)
        elif news.starting:
            self._console.waiting(", ".join(news.starting) + " to start")
        elif self._trainers:
            own = len(self._plans) == 1
            phases = [
                f"{'' if own else b + ' '}at {t.agent_steps:,} agent steps: {t.phase.removeprefix('waiting for ')}" for b, t in self._trainers.items()
            ]
            self._console.waiting(f"the next summary ({'; '.join(phases)})", time.monotonic() - self._summary_s)

    def _write_status(self, state: str, reason: str) -> None:
        trainers = self._known
        each = {
            b: behavior_status(trainers.get(b), plan.settings.max_steps, self._stop.mean_return(b)) for b, plan in self._plans.items()
        }
        self._put_status({
            "state": state, "reason": reason, **whole_status(each), "env_steps": self._env_steps,
            "best_reward": self._best_reward, "evaluation": self._evaluations, "restarts": self._restarts,
            "env_managers": len(self._managers), "most_env_managers": self._fleet.most if self._fleet is not None else None, "elapsed_s": round(self._elapsed_before_s + self._elapsed_s, 3), "seed": self._seed,
            "behaviors": each,
        })

    @property
    def _evaluations(self) -> dict[str, Any] | None:
        return None if self._judge is None else self._judge.to_json()

    @property
    def _known(self) -> dict[str, TrainerStatus]:
        """Where each trainer is; one that starts (again), where it will go on from."""
        return {**self._gone_back, **self._trainers}

    @property
    def _env_steps(self) -> int:
        """As far as the trainer that has heard last knows."""
        return max((trainer.env_steps for trainer in self._known.values()), default=0)

    def _put_status(self, status: dict[str, Any]) -> None:
        """The status is for people and may fail; the run goes on."""
        self._writers.status(status)
        try:
            self._folder.write_status(status)
        except OSError as error:
            self._console.warn_once(f"cannot write status.json: {error}")
        if self._folder.upload_error:
            self._console.warn_once(f"results cannot be uploaded, which is tried again: {self._folder.upload_error}")
        if self._folder.heartbeat_error:
            self._console.warn_once(f"the run's lock cannot be kept fresh: {self._folder.heartbeat_error}")

    def _outcome(self, reason: str, interrupted: bool) -> Outcome:
        known = self._known
        behaviors = {
            b: behavior_outcome(b, known.get(b), b in known and b not in self._trainers, self._managers, self._stop.mean_return(b))
            for b in self._plans
        }
        return Outcome(reason, interrupted, self._env_steps, self._elapsed_s, behaviors, self._evaluations, self._best_reward)
