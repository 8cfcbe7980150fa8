"""Which Ray a run uses, whether the run fits it, and the run's actors on it."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
from ray._private.services import canonicalize_bootstrap_address
from ray._private.state import available_resources_per_node
from ray._private.state import state as ray_state
from ray._private.utils import read_ray_address
from ray._raylet import AuthenticationTokenLoader, Config
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from envs.factories import EnvFactory
from envs.restarts import RestartLimits
from raytrain.actors import CALL_TIMEOUT_S, EnvManagerActor, EvaluatorActor, Exchange, ReplayWriterActor, Report, TrainerActor
from raytrain.backends import News, trainer_name
from raytrain.errors import ClusterError, RunFault
from raytrain.evaluation import EVALUATOR, Evaluator, Played
from raytrain.intake import ManagerChange
from raytrain.messages import CheckpointDue, ManagerStatus, Orders, TrainerStatus
from raytrain.node_check import compare_versions, import_problem, installed_versions, report
from raytrain.placement import (
    Node,
    demands_of,
    env_manager_needs,
    missing,
    plan_rows,
    refusal,
    shortage,
    trainer_needs,
    trainer_nodes,
)
from raytrain.plan import Plan, Start, manager_name
from raytrain.referee import Referee
from raytrain.replay_chunks import ChunkWriter
from raytrain.settings import DistributedSettings
from raytrain.shipping import Shipment, job_runtime_env
from raytrain.supervisor import SILENT_S, Supervisor

_PROBE_S = 2.0
_AUTH_MODE = "RAY_AUTH_MODE"
_REPORT_S = 25.0  # longest wait for nodes to say what they have: so that a wrong module is told within 30 s
_ASK_EVERY_S = 10.0  # how often Ray is asked what actors wait for
_ANSWER_S = 2.0  # longest wait for an actor's answer to a question of the controller
_LATE_S = 20.0  # after which a run that can go on without an env manager does so
_FAR = 10**6  # messages that a trainer cannot have published more than it made versions
_MANAGERS_STOP_S = 4.0  # longest wait for env managers to stop; a hung env must not cost the trainer its last checkpoint
# Ray gives workers niceness 15, so they would lose to anything else on the machine; and OpenBLAS would start a thread per core in each.
_PRIVATE_ENVIRONMENT = {
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
_OPEN = (
    "this cluster asks for no token: whoever reaches its ports can run code on it. Make one before 'ray start' on every node "
    "('ray get-auth-token --generate', docs/cluster.md)"
)


@dataclass(frozen=True)
class Connection:
    """The Ray that is used.

    Attributes:
        description: for people.
        owned: started by this run, and ended with it.
        is_here: this machine alone, started for this process: its workers have what it has.
        shipped: the folder of the user's that went to the other nodes; None where none did.
        messages: what the user should know of it.
        warnings: what the user should do something about.
        auth_before: how this process used Ray's tokens before.
    """

    description: str
    owned: bool
    is_here: bool = False
    shipped: Path | None = None
    messages: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    auth_before: str | None = None


def connect(address: str | None, shipment: Shipment | None = None) -> Connection:
    """Use, in this order: a Ray that this process has already, `address`, ``RAY_ADDRESS``, a live cluster that ``ray start`` made on
    this machine and that runs the same Ray version, a private one of this run.

    Args:
        shipment: what other nodes need of this one's files; nothing but raytrain by default.

    Raises:
        ClusterError: the given address does not answer, or runs another Ray version, or the files are too many.
    """
    shipment = shipment or Shipment()
    if ray.is_initialized():
        return Connection("the Ray this process is connected to (left running)", owned=False, is_here=is_one_machine())
    given = address or os.environ.get("RAY_ADDRESS")
    if given:
        where = "--address" if address else "ray job submit" if job_runtime_env() is not None else "RAY_ADDRESS"
        joined = _join(given, where, shipment)
        return replace(joined, description=f"cluster {ray.get_runtime_context().gcs_address} ({where}){_nodes_text()}")
    found = read_ray_address()
    note = ""
    if found:
        problem = _probe(found)
        if not problem:
            joined = _join(found, "the cluster that 'ray start' made on this machine", shipment)
            return replace(joined, description=f"cluster {found} on this machine{_nodes_text()}")
        note = f"; cluster {found} in /tmp/ray/ray_current_cluster is ignored: {problem}"
    # A private Ray is guarded by a token of its own; that this is so needs no warning at each start.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    chosen = {k: os.environ.get(k, v) for k, v in _PRIVATE_ENVIRONMENT.items()}  # the user's own settings win
    with _environment({**chosen, **_python_path()}):
        ray.init(address="local", include_dashboard=False, log_to_driver=False, configure_logging=False, logging_level="ERROR")
    cpus = _amount(ray.cluster_resources().get("CPU", 0))
    return Connection(f"a private one on this machine, {cpus} CPUs{note}", owned=True, is_here=True)


def disconnect(connection: Connection) -> None:
    """Leave the Ray that `connect` brought; a private one ends."""
    if connection.owned and ray.is_initialized():
        ray.shutdown()
        if not connection.is_here:
            _set_auth_mode(connection.auth_before)


def check_resources(plans: Sequence[Plan], settings: DistributedSettings) -> list[str]:
    """Refuse a run that the cluster can never hold.

    Returns:
        Warnings: what a cluster that may still grow lacks now.

    Raises:
        ClusterError: names what is needed and what there is.
    """
    demands, nodes = demands_of(plans, settings), live_nodes()
    waits = settings.wait_for_resources or _has_autoscaler()
    problem = refusal(demands, nodes, waits, ray_state.get_max_resources_from_cluster_config())
    if problem:
        raise ClusterError(problem)
    lack = shortage(demands, nodes) if waits else ""
    return [f"{lack}; the run waits for nodes"] if lack else []


def check_nodes(plans: Sequence[Plan], settings: DistributedSettings) -> list[str]:
    """Ask every node for its versions, and those that may hold env managers to import the environment.

    Returns:
        Warnings: differences with which the run can go on, nodes that did not answer.

    Raises:
        ClusterError: a node cannot import the environment, or has other versions with which nothing works.
    """
    plan, needs = plans[0], env_manager_needs(settings)
    factory = EnvFactory(plan.env, plan.env_kwargs, plan.import_dirs, plan.env_options)
    own, calls = ray.get_runtime_context().get_node_id(), {}
    for node in live_nodes():
        if node.id == own and not node.holds(needs):  # this process is there, with the versions that it compares with
            continue
        here = NodeAffinitySchedulingStrategy(node.id, soft=False)
        task = ray.remote(report).options(num_cpus=0, max_retries=0, scheduling_strategy=here)
        calls[node.name] = task.remote(factory if node.holds(needs) else None)
    done, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=_REPORT_S)
    reports, warnings = {}, []
    for name, call in calls.items():
        if call not in done:
            warnings.append(f"{name} did not answer within {_REPORT_S:.0f} s: whether it can import {plan.env} is not known")
            continue
        try:
            reports[name] = ray.get(call)
        except ray.exceptions.RayError as error:
            raise ClusterError(f"{name} cannot run raytrain: {_last_line(error)}\n{_shipping_hint()}") from error
    different, refused = compare_versions(installed_versions(), {name: found.versions for name, found in reports.items()})
    if refused:
        raise ClusterError("\n".join(refused))
    for name, found in reports.items():
        if found.problem:
            raise ClusterError(import_problem(plan.env, name, found, _shipping_hint()))
    return warnings + different


def fitting(trainers: int, settings: DistributedSettings) -> int:
    """How many env managers the cluster has room for beside the trainers."""
    free = ray.cluster_resources().get("CPU", 0.0) - trainers * settings.trainer_cpus
    return int(free / settings.env_manager_cpus + 1e-9) if settings.env_manager_cpus else 1


def is_one_machine() -> bool:
    """Whether the Ray that is used is this machine alone."""
    return [n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]] == [ray.util.get_node_ip_address()]


def live_nodes() -> list[Node]:
    """The nodes of the cluster, the head first."""
    free = available_resources_per_node()
    nodes = [
        Node(n["NodeID"], n["NodeManagerAddress"], n["Resources"], free.get(n["NodeID"], {}), "node:__internal_head__" in n["Resources"])
        for n in ray.nodes() if n["Alive"]
    ]
    return sorted(nodes, key=lambda node: (not node.is_head, node.address, node.id))


class Placement:
    """Where the actors of a run should go, as options of ``ray.remote``, and where they went.

    Trainers go to nodes chosen by `raytrain.placement.trainer_nodes`, each with its exchange beside it; env managers are spread. A node that
    is chosen is asked for, not insisted on: an actor that is started again after it has died goes elsewhere.
    """

    def __init__(self, plans: Sequence[Plan], settings: DistributedSettings) -> None:
        self._settings = settings
        self._demands = {demand.name: demand for demand in demands_of(plans, settings)}
        nodes = live_nodes()
        self._is_spread = len(nodes) > 1
        self._chosen = trainer_nodes(list(self._demands.values()), nodes) if self._is_spread else {}
        self._has_gpus = any(node.resources.get("GPU") for node in nodes)
        self._asked_s, self._text = time.monotonic(), ""  # the first moments are no wait

    def exchange(self, behavior: str) -> dict[str, Any]:
        """Options of a behavior's exchange: on its trainer's node, since all that is collected passes through it to there."""
        return {"num_cpus": 0, **self._on(trainer_name(behavior))}

    def trainer(self, behavior: str) -> dict[str, Any]:
        """Options of a behavior's trainer."""
        return {**_claims(trainer_needs(self._settings)), **self._gpus(self._settings.trainer_gpus), **self._on(trainer_name(behavior))}

    def env_manager(self) -> dict[str, Any]:
        """Options of every env manager."""
        needs = env_manager_needs(self._settings)
        spread = {"scheduling_strategy": "SPREAD"} if self._is_spread else {}
        return {**_claims(needs), **self._gpus(needs.get("GPU", 0.0)), **spread}

    def _on(self, trainer: str) -> dict[str, Any]:
        node = self._chosen.get(trainer)
        return {} if node is None else {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True)}

    def _gpus(self, claimed: float) -> dict[str, Any]:
        """Ray leaves every GPU visible to an actor that claims none."""
        hides = self._has_gpus and not claimed
        return {"runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}} if hides else {}

    def rows(self, actors: Mapping[str, Any]) -> list[tuple[str, str]]:
        """(node, actors on it) by where they are now; empty on a single node.

        Args:
            actors: name -> handle.
        """
        nodes = live_nodes()
        return plan_rows({name: _table(actor)["Address"]["NodeID"] for name, actor in actors.items()}, nodes) if len(nodes) > 1 else []

    def missing(self, actors: Mapping[str, Any]) -> str:
        """What those of `actors` that Ray has not placed wait for; looked up every few seconds only."""
        if time.monotonic() - self._asked_s >= _ASK_EVERY_S:
            nodes = live_nodes()
            pending = [self._demands[name] for name, actor in actors.items() if name in self._demands and _is_pending(actor)]
            # One that has its place is pending, too, while its process starts; but then that is not for want of anything.
            waiting = [demand for demand in pending if not any(node.holds(demand.needs, node.free) for node in nodes)]
            self._text = missing(waiting, nodes) if waiting else ""
            self._asked_s = time.monotonic()
        return self._text


def _claims(needs: Mapping[str, float]) -> dict[str, Any]:
    """A claim as options of ``ray.remote``."""
    others = {name: amount for name, amount in needs.items() if name not in ("CPU", "GPU")}
    return {"num_cpus": needs.get("CPU", 0.0), "num_gpus": needs.get("GPU", 0.0), **({"resources": others} if others else {})}


def _table(actor: Any) -> dict[str, Any]:
    return ray_state.actor_table(actor._actor_id.hex())


def _is_pending(actor: Any) -> bool:
    """Whether it has no process yet."""
    return _table(actor).get("State") in ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING")


class RayBackend:
    """Env managers and trainers as Ray actors, one exchange of each behavior between them; what dies is started anew.

    Args:
        starts: behavior -> where its trainer starts.
        manager_states: of the env managers, where a checkpoint has them.
        referee_state: of the checkpoint.
        limits: how often each env manager and each trainer may be started anew.
    """

    def __init__(
        self, plans: Sequence[Plan], starts: Mapping[str, Start], settings: DistributedSettings, manager_states: list[dict] | None = None,
        referee_state: dict[str, Any] | None = None, replay_writers: Mapping[str, ChunkWriter] = MappingProxyType({}),
        limits: RestartLimits | None = None,
    ) -> None:
        self._plans, self._settings, self._states = {plan.behavior: plan for plan in plans}, settings, manager_states
        self._starts = dict(starts)
        self._replay_writers = replay_writers
        self._managers = list(plans[0].managers)
        self._wanted = len(self._managers)
        self._joined = set(self._managers)  # that trainers count on
        self._leaving: dict[str, tuple[Any, ray.ObjectRef]] = {}  # name -> actor, and the call that ends it
        self._can_do_without = not plans[0].lock_step
        self._trainers = {trainer_name(plan.behavior): plan.behavior for plan in plans}
        self._supervisor = Supervisor(limits or RestartLimits(0, 0))
        self._token = uuid.uuid4().hex
        self._actors: dict[str, Any] = {}
        self._pending: dict[str, tuple[ray.ObjectRef, float]] = {}  # name -> poll under way, and since when
        self._seen: dict[str, Any] = {}
        self._exchanges: dict[str, Any] = {}
        self._referee, self._referee_state = None, referee_state
        self._orders = next(iter(starts.values())).orders
        self._stopped = False
        self._lost: dict[str, RunFault] = {}  # trainers that wait for `restart_trainers`
        self._marks = dict.fromkeys(self._plans, (0, 0))  # serial and version of the first message of each trainer
        self._rolled_back = dict.fromkeys(self._plans, 0)
        self._placement: Placement | None = None
        self._is_placed = False  # and so said
        self._last_states: dict[str, dict] = {}
        self._left_over: list[Any] = []  # events that came together with a fault

    # -- starting ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        _keep_deaths_to_ourselves()
        self._placement = Placement(list(self._plans.values()), self._settings)
        if self._orders is not None:
            self._start_referee()
        for behavior, plan in self._plans.items():
            # Each env manager keeps two calls open, the trainer two; room for as many again.
            make = ray.remote(Exchange).options(
                **self._placement.exchange(behavior), max_concurrency=16 + 4 * len(self._managers), max_restarts=-1
            )
            self._exchanges[behavior] = make.remote()
            self._exchanges[behavior].publish.remote(plan.first_message(self._starts[behavior]))
        for behavior in self._plans:  # before the env managers, which would take the place that was chosen for it
            self._start_trainer(behavior)
        for index, name in enumerate(self._managers):
            self._start_manager(name, self._states[index] if self._states else None)

    def _start_referee(self) -> None:
        self._referee = ray.remote(Referee).options(num_cpus=0).remote(list(self._plans.values()), self._referee_state)

    def _start_manager(self, name: str, state: dict | None) -> None:
        incarnation = self._supervisor.started(name)
        make = ray.remote(EnvManagerActor).options(**self._placement.env_manager(), max_concurrency=4)
        self._actors[name] = make.remote(
            list(self._plans.values()), int(name.rsplit("-", 1)[1]), self._exchanges, state, self._orders, incarnation, self._epochs, self._token,
        )
        self._actors[name].start.remote()

    def _start_trainer(self, behavior: str) -> None:
        name = trainer_name(behavior)
        self._supervisor.started(name)
        trainer = ray.remote(TrainerActor).options(**self._placement.trainer(behavior), max_concurrency=4)
        # What is started from may hold a replay buffer, so it is let go.
        start = self._starts.pop(behavior)
        writer = self._replay_writers.get(behavior)
        if writer is not None:  # on this machine, where the results are, whatever node the trainer is on
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            writer = ray.remote(ReplayWriterActor).options(num_cpus=0, scheduling_strategy=here).remote(writer)
        self._actors[name] = trainer.remote(self._plans[behavior], start, self._exchanges[behavior], self._referee, writer)
        self._actors[name].start.remote()

    @property
    def _epochs(self) -> dict[str, int]:
        lives = self._supervisor.lives(self._trainers)
        return {behavior: lives.get(name, 0) for name, behavior in self._trainers.items()}

    # -- while it runs -----------------------------------------------------------------------------------------------

    def request_save(self, behaviors: Iterable[str]) -> None:
        for behavior in behaviors:
            self._actors[trainer_name(behavior)].save.remote()

    def interrupt(self) -> None:
        """Nothing: the actors go on until `stop`, and `poll` never waits for them."""

    def poll(self, timeout_s: float) -> News:
        deadline = time.monotonic() + timeout_s
        for name, actor in self._actors.items():
            if name not in self._pending and self._trainers.get(name) not in self._lost:
                self._pending[name] = actor.poll.remote(), time.monotonic()
        calls = [call for call, _ in self._pending.values()]
        ray.wait(calls, num_returns=len(calls), timeout=timeout_s) if calls else None
        time.sleep(max(0.0, deadline - time.monotonic()))
        return self._gather()

    def _gather(self) -> News:
        """Take in every answer that is there, then see to the faults among them: no event is lost to a fault beside it."""
        done, _ = ray.wait([call for call, _ in self._pending.values()], num_returns=len(self._pending), timeout=0) if self._pending else ([], [])
        news, faults = News(), {}
        for name in [n for n, (call, _) in self._pending.items() if call in done]:
            try:
                report = _answer(name, self._pending.pop(name)[0])
            except RunFault as fault:
                faults[name] = fault
                continue
            self._take_in(name, report, news)
            if report.fault is not None:
                faults[name] = report.fault
        faults |= {name: fault for name, fault in self._silent().items() if name not in faults}
        try:
            for name, fault in faults.items():
                self._restart(name, fault, news)
        except RunFault:
            self._left_over = news.events
            raise
        self._see_to_late_ones(news)
        self._see_to_leaving_ones(news)
        self._approach_wanted(news)
        return self._described(news)

    def _silent(self) -> dict[str, RunFault]:
        """Env managers that do not answer, or whose environments have been in one step for too long."""
        now, found, limit_s = time.monotonic(), {}, next(iter(self._plans.values())).step_timeout_s
        for name in self._managers:
            since, status = self._pending.get(name, (None, now))[1], self._seen.get(name)
            if self._supervisor.parts[name].seen and now - since > SILENT_S:
                found[name] = _dead(f"{name} has not answered for {now - since:.0f} s")
            elif limit_s is not None and status is not None and status.phase == "stepping" and status.idle_s > limit_s:
                found[name] = _dead(f"{name}: a step has been going on for {status.idle_s:.1f} s; the limit is {limit_s:g} s (env_settings.step_timeout_s)")
        return found

    def _restart(self, name: str, fault: RunFault, news: News) -> None:
        news.notices.append(self._supervisor.check(name, fault))
        self._pending.pop(name, None)
        ray.kill(self._actors[name])
        if name in self._trainers:
            self._lost[self._trainers[name]] = fault
            return
        last = self._seen.pop(name, None)
        produced = {behavior: last.produced.get(behavior, 0) if last is not None else 0 for behavior in self._plans}
        self._supervisor.ended.append((name, self._supervisor.parts[name].life, produced))
        self._orders = self._current_orders()
        self._start_manager(name, {"rng": None, "env": last.envs} if last is not None else self._state_of(name))
        self._tell_trainers("restarted", name, produced)

    def _tell_trainers(self, kind: str, name: str, produced: Mapping[str, int] | None = None) -> None:
        for behavior, plan in self._plans.items():
            change = ManagerChange(kind, name, self._supervisor.parts[name].life, (produced or {}).get(behavior, 0), plan.agents)
            if behavior not in self._lost:
                self._actors[trainer_name(behavior)].change.remote(change)

    # -- fewer and more env managers ---------------------------------------------------------------------------------

    def scale(self, count: int) -> None:
        self._wanted = count

    def _approach_wanted(self, news: News) -> None:
        """Let env managers go, or start more, until there are as many as wanted."""
        while len(self._managers) > self._wanted:
            name = self._managers.pop()
            actor = self._actors.pop(name)
            self._pending.pop(name, None)
            if self._supervisor.parts[name].seen:
                self._leaving[name] = actor, actor.stop.remote(_MANAGERS_STOP_S)
            else:  # it may never have found a place
                self._gone(name, actor, None, news)
        while len(self._managers) < self._wanted:
            name = manager_name(len(self._managers))
            if name in self._leaving:  # it has to be gone before it can come back
                return
            self._orders = self._current_orders()
            self._managers.append(name)
            self._start_manager(name, self._state_of(name))

    def room(self) -> int | None:
        free = ray.available_resources().get("CPU", 0.0)
        each = self._settings.env_manager_cpus
        waiting = sum(name not in self._seen for name in self._managers)
        return None if not each or self._leaving else max(1, len(self._managers) - waiting + int(free / each + 1e-9))

    def _state_of(self, name: str) -> dict | None:
        """Where the seed streams of an env manager that had ended go on."""
        index = int(name.rsplit("-", 1)[1])
        if name in self._last_states:
            return {"rng": None, "env": self._last_states[name]["env"]}
        return {**self._states[index], "running": None} if self._states and index < len(self._states) else None

    def _see_to_late_ones(self, news: News) -> None:
        """The run goes on without env managers that find no place, until they do."""
        here = [name for name in self._managers if self._supervisor.parts[name].seen]
        for name in here:
            if name not in self._joined:
                self._joined.add(name)
                self._tell_trainers("added", name)
                news.notices.append(f"{name} has joined")
        if not here or not self._can_do_without:
            return
        for name in set(self._managers) & self._joined - set(here):
            if time.monotonic() - self._supervisor.parts[name].started_s > _LATE_S:
                self._joined.remove(name)
                self._tell_trainers("late", name)
                news.notices.append(f"{name} has not started within {_LATE_S:.0f} s; the run goes on without it until it does")

    def _see_to_leaving_ones(self, news: News) -> None:
        for name, (actor, call) in list(self._leaving.items()):
            if not ray.wait([call], timeout=0)[0]:
                continue
            del self._leaving[name]
            last = self._seen.get(name)
            with suppress(RunFault):  # it died on its way out
                last = _answer(name, call).status or last
            self._gone(name, actor, last, news)

    def _gone(self, name: str, actor: Any, last: ManagerStatus | None, news: News) -> None:
        ray.kill(actor)
        self._seen.pop(name, None)
        produced = dict(last.produced) if last is not None else {}
        if last is not None:
            self._last_states[name] = {"rng": None, "env": last.envs}
        self._supervisor.ended.append((name, self._supervisor.parts[name].life, {b: produced.get(b, 0) for b in self._plans}))
        self._joined.discard(name)
        self._tell_trainers("removed", name, produced)
        news.notices.append(f"{name} has left")

    def _current_orders(self) -> Orders | None:
        """What worlds are to play now."""
        if self._referee is None:
            return None
        try:
            return ray.get(self._referee.current.remote(next(iter(self._plans))), timeout=_ANSWER_S).orders
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            return self._orders

    def restart_trainers(self, starts: Mapping[str, Start], referee_state: dict[str, Any] | None) -> None:
        for behavior, start in starts.items():
            name = trainer_name(behavior)
            self._pending.pop(name, None)
            ray.kill(self._actors[name])
            before = self._seen.pop(name, None)
            serial, version = self._mark(behavior, before)
            at = start.state.scalars["agent_steps"] if start.state is not None else 0
            self._rolled_back[behavior] += max(0, before.agent_steps - at) if before is not None else 0
            self._marks[behavior] = serial + 1, version + 1
            self._starts[behavior] = replace(
                start, serial=serial + 1, version=version + 1, epoch=self._supervisor.parts[name].life + 1,
                incarnations=self._supervisor.lives(m for m in self._managers if m in self._joined), rolled_back=self._rolled_back[behavior],
                ended=tuple((manager, life, produced[behavior]) for manager, life, produced in self._supervisor.ended),
            )
            self._lost.pop(behavior, None)
        if self._referee is not None:
            ray.kill(self._referee)
            self._referee_state = referee_state
            self._orders = next(iter(starts.values())).orders
            self._start_referee()
        for behavior in starts:
            self._exchanges[behavior].publish.remote(self._plans[behavior].first_message(self._starts[behavior]))
            self._start_trainer(behavior)

    def _mark(self, behavior: str, before: TrainerStatus | None) -> tuple[int, int]:
        """Highest serial and version that anybody may have seen."""
        try:
            serial, version = ray.get(self._exchanges[behavior].mark.remote(), timeout=CALL_TIMEOUT_S)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):  # it died, too: go far past what it can have had
            serial, version = -1, -1
        known, first = [s.policy_version.get(behavior, 0) for s in self._seen.values() if isinstance(s, ManagerStatus)], self._marks[behavior]
        versions = [version, first[1], *known, *([before.version] if before is not None else [])]
        if serial < 0:
            return max(first[0], before.version if before is not None else 0) + _FAR, max(versions) + 1
        return max(serial, first[0]), max(versions)

    def _described(self, news: News) -> News:
        news.trainers = {behavior: self._seen[name] for name, behavior in self._trainers.items() if name in self._seen}
        news.managers = [self._seen[m] for m in self._managers if m in self._seen]
        news.starting = [n for n in self._actors if n not in self._seen]
        news.lost = dict(self._lost)
        news.restarts = self._supervisor.restarts
        if news.starting:
            news.waiting_for = self._placement.missing({n: self._actors[n] for n in news.starting})
        elif not self._is_placed:
            self._is_placed = True
            news.placement = self._placement.rows(self._actors)
        return news

    def _take_in(self, name: str, report: Report, news: News) -> None:
        news.events += report.events
        if report.status is not None:
            self._seen[name] = report.status
            self._supervisor.parts[name].seen = True

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
            done, _ = ray.wait([call := self._referee.state.remote()], timeout=_ANSWER_S)
            with suppress(ray.exceptions.RayActorError):  # it died
                self._referee_state = ray.get(call) if done else self._referee_state

    def _ask(self, names: Iterable[str], method: str) -> dict[str, Any]:
        """The answer of each actor that gives one in time; a dead one's fault comes up in `poll`."""
        references = {n: getattr(self._actors[n], method).remote() for n in names}
        done, _ = ray.wait(list(references.values()), num_returns=len(references), timeout=_ANSWER_S) if references else ([], [])
        answers = {}
        for name, reference in references.items():
            if reference in done:
                try:
                    answers[name] = ray.get(reference)
                except ray.exceptions.RayActorError:
                    continue
        return answers

    def timers(self) -> dict[str, dict]:
        return {n: t for n, t in self._ask([n for n in self._actors if n in self._seen], "timers").items() if t}

    # -- the end -----------------------------------------------------------------------------------------------------

    def stop(self, keep_waiting: Callable[[], bool]) -> News:
        self.manager_states()  # for the last checkpoint, when the actors are gone
        self._stopped = True
        news = News(events=self._left_over)
        try:
            self._collect({name: call for name, (call, _) in self._pending.items()}, 1.0, news)  # a poll that is under way carries events, too
            stops = {n: self._actors[n].stop.remote(_MANAGERS_STOP_S) for n in self._managers if n in self._actors}
            self._collect(stops, _MANAGERS_STOP_S, news)
            self._last_states.update({n: s for n, s in self._ask(stops, "state").items() if s is not None})  # no manager is further ahead now
            self._stop_trainers([name for name in self._trainers if name in self._seen], keep_waiting, news)
            self._ask_referee()  # after the last reports
        finally:
            for actor in [*self._actors.values(), *self._exchanges.values(), *([self._referee] if self._referee else [])]:
                ray.kill(actor)
        return self._described(news)

    def _stop_trainers(self, names: list[str], keep_waiting: Callable[[], bool], news: News) -> None:
        """Each with its last checkpoint. One call at a time to each: a large state takes its time to come, and asking again would make
        another copy of it."""
        shipped = {
            behavior: {(m.manager, m.incarnation): m.produced[behavior] - m.unshipped[behavior] - m.abandoned.get(behavior, 0)
                       for m in (self._seen[name] for name in self._managers if name in self._seen)}
            for behavior in self._plans
        }
        calls = {name: self._actors[name].stop.remote(1.0, shipped[self._trainers[name]]) for name in names}
        while calls:
            done, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=1.0)
            for name in [name for name, call in calls.items() if call in done]:
                before = len(news.events)
                self._collect({name: calls.pop(name)}, 0.0, news)
                saved = any(isinstance(event, CheckpointDue) for event in news.events[before:])
                if not saved and news.fault is None:
                    calls[name] = self._actors[name].stop.remote(1.0, shipped[self._trainers[name]])
            if news.fault is not None or not keep_waiting():
                break

    def _collect(self, calls: dict[str, ray.ObjectRef], timeout_s: float, news: News) -> None:
        """Take in what these calls answer in time; the trainer's fault is kept, an env manager's no longer matters."""
        done, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=timeout_s) if calls else ([], [])
        for name, reference in calls.items():
            if reference not in done:
                continue
            try:
                report = _answer(name, reference)
            except RunFault as fault:
                news.fault = fault if name in self._trainers else news.fault
                continue
            self._take_in(name, report, news)
            if name in self._trainers and report.fault is not None:
                news.fault = report.fault


class RemoteEvaluator:
    """An evaluator as a Ray actor, which begins with the first request; see `raytrain.evaluation.EvaluatorHandle`."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._actor: Any = None
        self._calls: list[ray.ObjectRef] = []

    def request(self, weights: Mapping[str, Any], versions: Mapping[str, int], parameters: Mapping[str, Any]) -> None:
        if self._actor is None:
            self._actor = ray.remote(EvaluatorActor).options(num_cpus=0).remote(self._evaluator)
        self._calls.append(self._actor.play.remote(ray.put(dict(weights)), dict(versions), dict(parameters)))

    def poll(self, timeout_s: float) -> list[Played]:
        played = []
        while self._calls and ray.wait(self._calls[:1], timeout=0 if played else timeout_s)[0]:
            answer = _answer(EVALUATOR, self._calls.pop(0))
            if isinstance(answer, RunFault):
                raise answer
            played.append(answer)
        return played

    def interrupt(self) -> None:
        """Nothing: nobody waits for it then."""

    def close(self) -> None:
        if self._actor is not None:
            ray.kill(self._actor)
            self._actor, self._calls = None, []


def _answer(name: str, reference: ray.ObjectRef) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayActorError as error:
        raise _dead(f"{name} died: its process ended without an error of its own ({_cause(error)})", str(error)) from error


def _dead(message: str, details: str = "") -> RunFault:
    fault = RunFault(message, "", details)
    fault.restartable = True
    return fault


def _cause(error: Exception) -> str:
    """What Ray knows of an actor's death, in a few words."""
    fields = dict(line.strip().split(": ", 1) for line in str(error).splitlines() if ": " in line)
    where = ", ".join(f"{key} {fields[key]}" for key in ("pid", "ip") if key in fields)
    told = re.search(r"because (.*?)[.\n]", str(error), re.DOTALL)
    return "; ".join(text for text in (where, told.group(1) if told else "") if text) or type(error).__name__


def _keep_deaths_to_ourselves() -> None:
    """Ray's daemon prints a paragraph for each worker that dies; the run says so itself, with what it does about it."""
    printed = ray._private.worker.print_worker_logs
    if getattr(printed, "is_filtered", False):
        return

    def print_others(data: dict[str, Any], *arguments: Any) -> Any:
        is_death = data.get("pid") == "raylet" and any(line.startswith("A worker died") for line in data.get("lines", []))
        return None if is_death else printed(data, *arguments)

    print_others.is_filtered = True
    ray._private.worker.print_worker_logs = print_others


def _last_line(error: Exception) -> str:
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


def _join(address: str, where: str, shipment: Shipment) -> Connection:
    if address.startswith("ray://"):
        raise ClusterError(
            f"{where} names the Ray client address {address}, which would carry every trajectory through one proxy. Run on the cluster "
            "instead: 'ray submit' or 'ray job submit', or --address auto on one of its machines."
        )
    try:
        resolved = address if address == "local" else canonicalize_bootstrap_address(address) or address
    except ConnectionError as error:
        raise ClusterError(f"The Ray cluster {address} ({where}) cannot be joined: {error}") from error
    before = os.environ.get(_AUTH_MODE)
    if resolved not in ("auto", "local"):
        problem = _probe(resolved)
        if problem:
            raise ClusterError(f"The Ray cluster {address} ({where}) cannot be used: {problem}.")
    runtime_env: dict[str, Any] | None = {"env_vars": _python_path()}
    messages, shipped = [], None
    if job_runtime_env() is not None:
        runtime_env = None  # the job has its own, and Ray refuses two
    elif resolved not in ("auto", "local") and _may_have_other_nodes(resolved):
        runtime_env, shipped = shipment.runtime_env(), shipment.folder
        messages.append(f"shipping {shipment.text()} to the nodes of the cluster")
    try:
        ray.init(address=resolved, log_to_driver=False, configure_logging=False, logging_level="ERROR", runtime_env=runtime_env)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ClusterError(f"The Ray cluster {address} ({where}) cannot be joined: {error}") from error
    return Connection("", owned=True, shipped=shipped, messages=tuple(messages), warnings=() if _asks_for_token() else (_OPEN,), auth_before=before)


def _asks_for_token() -> bool:
    """Whether the cluster that was joined asks for a token: `_probe` found out."""
    return os.environ.get(_AUTH_MODE, "disabled").lower() == "token"


def _set_auth_mode(mode: str | None) -> None:
    """Whether this process gives Ray's token and asks for it; None takes the setting away. It must be as the cluster does: with a token
    on one side only, Ray drops actors as soon as they are made."""
    if mode is None:
        os.environ.pop(_AUTH_MODE, None)
    else:
        os.environ[_AUTH_MODE] = mode
    Config.initialize("")  # Ray keeps what it has read


def _metadata(address: str) -> bytes | None:
    """What the cluster says of itself. Ray's own line on a token that is missing is not shown: the caller tells it better."""
    with _silenced():
        return ray._raylet.GcsClient(address=address).internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=_PROBE_S)


@contextmanager
def _silenced() -> Iterator[None]:
    """Without what C++ code writes to standard error."""
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # no standard error
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _may_have_other_nodes(address: str) -> bool:
    """Whether the cluster at `address`, which answers, has other nodes than one, or may get some."""
    client = ray._raylet.GcsClient(address=address)
    try:
        alive = [node for node in client.get_all_node_info(timeout=_PROBE_S).values() if node.state == 0]
    except Exception:  # noqa: BLE001 - what cannot be asked is taken for large: shipping once too often costs a second
        return True
    return len(alive) != 1 or any(node.node_type_name for node in alive)


def _has_autoscaler() -> bool:
    """Whether the cluster starts and ends nodes by itself: those that an autoscaler started carry the name of their type."""
    return any((node.get("Labels") or {}).get("ray.io/node-group") for node in ray.nodes() if node["Alive"])


def _nodes_text() -> str:
    nodes = len(live_nodes())
    return f", {nodes} nodes" if nodes > 1 else ""


def _shipping_hint() -> str:
    if job_runtime_env() is not None:
        return "A job has what --working-dir names: submit it from the folder that holds the module, or install the package on every node."
    return "Keep the module in the folder of the configuration (import_from names another), which is shipped; or install its package on every node."


def _probe(address: str) -> str:
    """Why the cluster at `address` cannot be used; empty when it can, and then this process gives a token if the cluster asks for one."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_PROBE_S):
            pass
    except (OSError, ValueError) as error:
        return f"it does not answer within {_PROBE_S:.0f} s ({error})"
    before = os.environ.get(_AUTH_MODE)
    _set_auth_mode("disabled")
    try:
        try:
            raw = _metadata(address)
        except ray.exceptions.AuthenticationError:
            if not AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):  # with which Ray's C++ would end the process
                raise
            _set_auth_mode("token")
            raw = _metadata(address)
    except ray.exceptions.AuthenticationError:
        _set_auth_mode(before)
        return ("it asks for a token, and there is none here or another one; copy ~/.ray/auth_token of its head to the same place here, or name the "
                "file by RAY_AUTH_TOKEN_PATH")
    except Exception as error:  # noqa: BLE001 - whatever answers there, it is no Ray
        _set_auth_mode(before)
        return f"it does not answer like Ray ({type(error).__name__})"
    version = json.loads(raw).get("ray_version") if raw else None
    if version != ray.__version__:
        _set_auth_mode(before)
        return f"it runs Ray {version}, this is Ray {ray.__version__}"
    return ""


def _python_path() -> dict[str, str]:
    """So that workers find this raytrain when it runs from a clone, without an installation."""
    here = str(Path(__file__).resolve().parent.parent)
    return {"PYTHONPATH": os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH")) if p)}


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables that processes started within inherit; what was there before is there again afterwards."""
    before = {k: os.environ.get(k) for k in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def _amount(number: float) -> str:
    return f"{number:g}"
