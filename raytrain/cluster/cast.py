"""The actors of a run: how they are made, and what they are asked."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import ray

from envs.restarts import RestartLimits
from raytrain.actors import EnvManagerActor, Report, TrainerActor, own_node, start_disk
from raytrain.backends import News, trainer_name
from raytrain.cluster.answers import ANSWER_S, answer_of
from raytrain.cluster.placing import Placement
from raytrain.errors import RunFault
from raytrain.intake import ManagerChange
from raytrain.messages import ManagerStatus, Orders
from raytrain.plan import Plan, Start, manager_index
from raytrain.referee import Referee
from raytrain.replay_chunks import ChunkWriter
from raytrain.settings import DistributedSettings
from raytrain.supervisor import Supervisor


class Cast:
    """Env managers and trainers as Ray actors, one exchange of each behavior between them.

    Args:
        starts: behavior -> where its trainer starts.
        manager_states: of the env managers, where a checkpoint has them.
        referee_state: of the checkpoint.
        limits: how often each env manager and each trainer may be started anew.
        evaluates: there will be an evaluator, too, which is no part of the cast but has its place in the plan.
    """

    def __init__(
        self, plans: Sequence[Plan], starts: Mapping[str, Start], settings: DistributedSettings, manager_states: list[dict] | None = None,
        referee_state: dict[str, Any] | None = None, replay_writers: Mapping[str, ChunkWriter] = MappingProxyType({}),
        limits: RestartLimits | None = None, evaluates: bool = False,
    ) -> None:
        self._plans, self._settings, self._states = {plan.behavior: plan for plan in plans}, settings, manager_states
        self._starts = dict(starts)
        self._replay_writers = replay_writers
        self._managers = list(plans[0].managers)
        self._wanted = len(self._managers)
        self._joined = set(self._managers)  # that trainers count on
        self._leaving: dict[str, tuple[Any, ray.ObjectRef, float]] = {}  # name -> actor, the call that ends it, until when it may take
        self._can_do_without = not plans[0].lock_step
        self._trainers = {trainer_name(plan.behavior): plan.behavior for plan in plans}
        self._supervisor = Supervisor(limits or RestartLimits(0, 0))
        self._token = uuid.uuid4().hex
        self._actors: dict[str, Any] = {}
        self._pending: dict[str, tuple[ray.ObjectRef, float]] = {}  # name -> poll under way, and since when
        self._asked_s: dict[str, float] = {}  # name -> when the last one began
        self._seen: dict[str, Any] = {}
        self._exchanges: dict[str, Any] = {}
        self._referee, self._referee_state = None, referee_state
        self._orders = next(iter(starts.values())).orders
        self._stopped = False
        self._lost: dict[str, RunFault] = {}  # trainers that wait for `restart_trainers`
        self._marks = dict.fromkeys(self._plans, (0, 0))  # serial and version of the first message of each trainer
        self._rolled_back = dict.fromkeys(self._plans, 0)
        self._placement: Placement | None = None
        self._evaluates = evaluates
        self._is_placed = False  # and so said
        self._said_waiting: list[str] = []  # for whose places the user knows that the run waits
        self._last_states: dict[str, dict] = {}
        self._left_over: list[Any] = []  # events that came together with a fault

    def evaluator_place(self) -> dict[str, Any]:
        """Options of the evaluator's actor, once there is a cast."""
        return self._placement.evaluator()

    def _start_referee(self) -> None:
        self._referee = ray.remote(Referee).options(num_cpus=0).remote(list(self._plans.values()), self._referee_state)

    def _start_manager(self, name: str, state: dict | None) -> None:
        incarnation = self._supervisor.started(name)
        make = ray.remote(EnvManagerActor).options(**self._placement.env_manager(), max_concurrency=4)
        self._actors[name] = make.remote(
            list(self._plans.values()), manager_index(name), self._exchanges, state, self._orders, incarnation, self._epochs, self._token,
        )
        self._actors[name].start.remote()

    def _start_trainer(self, behavior: str) -> None:
        name = trainer_name(behavior)
        self._supervisor.started(name)
        trainer = ray.remote(TrainerActor).options(**self._placement.trainer(behavior), max_concurrency=4)
        start, writer = self._starts.pop(behavior), self._replay_writers.get(behavior)
        here = own_node()  # where the results are, whatever node the trainer is on
        if writer is not None:
            writer = start_disk(writer.of_life(self._supervisor.parts[name].life), here)
        self._actors[name] = trainer.remote(self._plans[behavior], start, self._exchanges[behavior], self._referee, writer, here)
        self._actors[name].start.remote()

    @property
    def _epochs(self) -> dict[str, int]:
        lives = self._supervisor.lives(self._trainers)
        return {behavior: lives.get(name, 0) for name, behavior in self._trainers.items()}

    def _tell_trainers(self, kind: str, name: str, produced: Mapping[str, int] | None = None) -> None:
        for behavior, plan in self._plans.items():
            change = ManagerChange(kind, name, self._supervisor.parts[name].life, (produced or {}).get(behavior, 0), plan.agents)
            if behavior not in self._lost:
                self._actors[trainer_name(behavior)].change.remote(change)

    def _current_orders(self) -> Orders | None:
        """What worlds are to play now."""
        if self._referee is None:
            return None
        try:
            return ray.get(self._referee.current.remote(next(iter(self._plans))), timeout=ANSWER_S).orders
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            return self._orders

    def _note_end(self, name: str, last: ManagerStatus | None) -> dict[str, int]:
        """A life of an env manager is over; by behavior, the agent steps that it produced as far as its `last` status tells."""
        produced = {behavior: last.produced.get(behavior, 0) if last is not None else 0 for behavior in self._plans}
        self._supervisor.ended.append((name, self._supervisor.parts[name].life, produced))
        return produced

    def _state_of(self, name: str) -> dict | None:
        """Where the seed streams of an env manager that had ended go on."""
        index = manager_index(name)
        if name in self._last_states:
            return {"rng": None, "env": self._last_states[name]["env"]}
        return {**self._states[index], "running": None} if self._states and index < len(self._states) else None

    def _take_in(self, name: str, report: Report, news: News) -> None:
        news.events += report.events
        if report.status is not None:
            self._seen[name] = report.status
            self._supervisor.parts[name].seen = True

    def _described(self, news: News) -> News:
        news.trainers = {behavior: self._seen[name] for name, behavior in self._trainers.items() if name in self._seen}
        news.managers = [self._seen[m] for m in self._managers if m in self._seen]
        news.starting = [n for n in self._actors if n not in self._seen]
        news.lost = dict(self._lost)
        news.restarts = self._supervisor.restarts
        if news.starting:
            news.waiting_for = self._placement.missing({n: self._actors[n] for n in news.starting})
            self._say_who_waits(news)
        elif not self._is_placed:
            self._is_placed = True
            news.placement = self._placement.rows(self._actors, self._evaluates)
        return news

    def _say_who_waits(self, news: News) -> None:
        """Once, of a run that goes on meanwhile: the console explains a silence, and there is none."""
        goes_on = bool(news.managers) and len(news.trainers) == len(self._trainers)
        if news.waiting_for and goes_on and news.starting != self._said_waiting:
            self._said_waiting = news.starting
            news.notices.append(f"waiting for room: {news.waiting_for}")

    def request_save(self, behaviors: Iterable[str]) -> None:
        for behavior in behaviors:
            self._actors[trainer_name(behavior)].save.remote()

    def interrupt(self) -> None:
        """Nothing: the actors go on until `stop`, and `poll` never waits for them."""

    def manager_states(self) -> dict[str, dict]:
        if not self._stopped:
            states = self._ask([m for m in self._managers if m in self._seen], "state")
            self._last_states.update({n: s for n, s in states.items() if s is not None})
        return dict(self._last_states)

    def referee_state(self) -> dict[str, Any] | None:
        if not self._stopped:
            self._ask_referee()
        return self._referee_state

    def _ask_referee(self) -> None:
        """Take in the state that it has now; the last known one stays when it gives no answer."""
        if self._referee is not None:
            done, _ = ray.wait([call := self._referee.state.remote()], timeout=ANSWER_S)
            with suppress(RunFault):  # it died
                self._referee_state = answer_of("referee", call) if done else self._referee_state

    def _ask(self, names: Iterable[str], method: str) -> dict[str, Any]:
        """The answer of each actor that gives one in time; a dead one's fault comes up in `poll`."""
        references = {n: getattr(self._actors[n], method).remote() for n in names}
        done, _ = ray.wait(list(references.values()), num_returns=len(references), timeout=ANSWER_S) if references else ([], [])
        answers = {}
        for name, reference in references.items():
            if reference in done:
                with suppress(RunFault):  # which comes up in `poll`
                    answers[name] = answer_of(name, reference)
        return answers

    def timers(self) -> dict[str, dict]:
        return {n: t for n, t in self._ask([n for n in self._actors if n in self._seen], "timers").items() if t}
