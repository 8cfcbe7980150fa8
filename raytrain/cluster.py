"""Which Ray a run uses, whether the run fits it, and the run's actors on it."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray._private.utils import read_ray_address

from envs.restarts import RestartLimits
from raytrain.actors import CALL_TIMEOUT_S, EnvManagerActor, EvaluatorActor, Exchange, Report, TrainerActor
from raytrain.backends import News, trainer_name
from raytrain.errors import ClusterError, RunFault
from raytrain.evaluation import EVALUATOR, Evaluator, Played
from raytrain.intake import ManagerChange
from raytrain.messages import CheckpointDue, ManagerStatus, Orders, TrainerStatus
from raytrain.plan import Plan, Start
from raytrain.referee import Referee
from raytrain.settings import DistributedSettings
from raytrain.supervisor import SILENT_S, Supervisor

_PROBE_S = 2.0
_ANSWER_S = 2.0  # longest wait for an actor's answer to a question of the controller
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


@dataclass(frozen=True)
class Connection:
    """The Ray that is used.

    Attributes:
        description: for people.
        owned: started by this run, and ended with it.
    """

    description: str
    owned: bool


def connect(address: str | None) -> Connection:
    """Use, in this order: a Ray that this process has already, `address`, ``RAY_ADDRESS``, a live cluster that ``ray start`` made on
    this machine and that runs the same Ray version, a private one of this run.

    Raises:
        ClusterError: the given address does not answer, or runs another Ray version.
    """
    if ray.is_initialized():
        return Connection("the Ray this process is connected to (left running)", owned=False)
    given = address or os.environ.get("RAY_ADDRESS")
    if given:
        where = "--address" if address else "RAY_ADDRESS"
        _join(given, where)
        return Connection(f"cluster {ray.get_runtime_context().gcs_address} ({where})", owned=True)
    found = read_ray_address()
    note = ""
    if found:
        problem = _probe(found)
        if not problem:
            _join(found, "the cluster that 'ray start' made on this machine")
            return Connection(f"cluster {found} on this machine", owned=True)
        note = f"; cluster {found} in /tmp/ray/ray_current_cluster is ignored: {problem}"
    # A private Ray is guarded by a token of its own; that this is so needs no warning at each start.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    chosen = {k: os.environ.get(k, v) for k, v in _PRIVATE_ENVIRONMENT.items()}  # the user's own settings win
    with _environment({**chosen, **_python_path()}):
        ray.init(address="local", include_dashboard=False, log_to_driver=False, configure_logging=False, logging_level="ERROR")
    return Connection(f"a private one on this machine, {_amount(ray.cluster_resources().get('CPU', 0))} CPUs{note}", owned=True)


def disconnect(connection: Connection) -> None:
    """Leave the Ray that `connect` brought; a private one ends."""
    if connection.owned and ray.is_initialized():
        ray.shutdown()


def check_resources(plans: Sequence[Plan], settings: DistributedSettings) -> None:
    """Refuse a run that the cluster can never hold.

    Raises:
        ClusterError: names what is needed and what there is.
    """
    managers, trainers = len(plans[0].managers), len(plans)
    cpus, gpus = managers * settings.env_manager_cpus + trainers * settings.trainer_cpus, trainers * settings.trainer_gpus
    trainer_text = "trainer" if trainers == 1 else f"{trainers} trainers ×"
    total = ray.cluster_resources()
    have_cpus, have_gpus = total.get("CPU", 0.0), total.get("GPU", 0.0)
    if cpus > have_cpus:
        raise ClusterError(
            f"This run needs {_amount(cpus)} CPUs ({managers} env manager{'s' * (managers > 1)} × {_amount(settings.env_manager_cpus)} + "
            f"{trainer_text} {_amount(settings.trainer_cpus)}), and the Ray cluster has {_amount(have_cpus)}. Lower "
            "distributed.num_env_managers, distributed.env_manager_cpus or distributed.trainer_cpus (half a CPU is fine for simulators that mostly "
            "wait, and for trainers that learn in turn), or use a larger cluster."
        )
    if gpus > have_gpus:
        raise ClusterError(
            f"This run needs {_amount(gpus)} GPUs ({trainer_text} {_amount(settings.trainer_gpus)}), and the Ray cluster has {_amount(have_gpus)}. "
            "Set distributed.trainer_gpus to 0 to train on CPUs."
        )
    nodes = [n["Resources"] for n in ray.nodes() if n["Alive"]]
    for what, one in (("an env manager", settings.env_manager_cpus), ("the trainer", settings.trainer_cpus)):
        largest = max((n.get("CPU", 0.0) for n in nodes), default=0.0)
        if one > largest:
            raise ClusterError(f"{what.capitalize()} needs {_amount(one)} CPUs on one node, and the largest node has {_amount(largest)}.")


def is_one_machine() -> bool:
    """Whether the Ray that is used is this machine alone."""
    return [n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]] == [ray.util.get_node_ip_address()]


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
        referee_state: dict[str, Any] | None = None, limits: RestartLimits | None = None,
    ) -> None:
        self._plans, self._settings, self._states = {plan.behavior: plan for plan in plans}, settings, manager_states
        self._starts = dict(starts)
        self._managers = list(plans[0].managers)
        self._trainers = {trainer_name(plan.behavior): plan.behavior for plan in plans}
        self._supervisor = Supervisor(limits or RestartLimits(0, 0))
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
        self._last_states: dict[str, dict] = {}
        self._left_over: list[Any] = []  # events that came together with a fault

    # -- starting ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        _keep_deaths_to_ourselves()
        if self._orders is not None:
            self._start_referee()
        for behavior, plan in self._plans.items():
            # Each env manager keeps two calls open, the trainer two; room for as many again.
            make = ray.remote(Exchange).options(num_cpus=0, max_concurrency=16 + 4 * len(self._managers), max_restarts=-1)
            self._exchanges[behavior] = make.remote()
            self._exchanges[behavior].publish.remote(plan.first_message(self._starts[behavior]))
        for index, name in enumerate(self._managers):
            self._start_manager(name, self._states[index] if self._states else None)
        for behavior in self._plans:
            self._start_trainer(behavior)

    def _start_referee(self) -> None:
        self._referee = ray.remote(Referee).options(num_cpus=0).remote(list(self._plans.values()), self._referee_state)

    def _start_manager(self, name: str, state: dict | None) -> None:
        incarnation = self._supervisor.started(name)
        make = ray.remote(EnvManagerActor).options(num_cpus=self._settings.env_manager_cpus, max_concurrency=4)
        self._actors[name] = make.remote(
            list(self._plans.values()), self._managers.index(name), self._exchanges, state, self._orders, incarnation, self._epochs,
        )
        self._actors[name].start.remote()

    def _start_trainer(self, behavior: str) -> None:
        name = trainer_name(behavior)
        self._supervisor.started(name)
        trainer = ray.remote(TrainerActor).options(
            num_cpus=self._settings.trainer_cpus, num_gpus=self._settings.trainer_gpus, max_concurrency=4
        )
        # What is started from may hold a replay buffer, so it is let go.
        start = self._starts.pop(behavior)
        self._actors[name] = trainer.remote(self._plans[behavior], start, self._exchanges[behavior], self._referee)
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
        self._start_manager(name, {"rng": None, "env": last.envs} if last is not None else None)
        for behavior in self._plans:
            change = ManagerChange("restarted", name, self._supervisor.parts[name].life, produced[behavior])
            if behavior not in self._lost:
                self._actors[trainer_name(behavior)].change.remote(change)

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
            epoch = self._supervisor.parts[name].life + 1
            serial, version = self._mark(behavior, before, epoch)
            at = start.state.scalars["agent_steps"] if start.state is not None else 0
            self._rolled_back[behavior] += max(0, before.agent_steps - at) if before is not None else 0
            self._marks[behavior] = serial + 1, version + 1
            self._starts[behavior] = replace(
                start, serial=serial + 1, version=version + 1, epoch=epoch,
                incarnations=self._supervisor.lives(self._managers), rolled_back=self._rolled_back[behavior],
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

    def _mark(self, behavior: str, before: TrainerStatus | None, epoch: int) -> tuple[int, int]:
        """Highest serial and version that anybody may have seen, or will before the trainer's next life, which is its `epoch`."""
        try:
            serial, version = ray.get(self._exchanges[behavior].mark.remote(epoch), timeout=CALL_TIMEOUT_S)
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
        deaths = ("A worker died", "Raylet is terminated")  # the second one with hundreds of lines of the daemon's own log
        is_death = data.get("pid") == "raylet" and any(line.startswith(deaths) for line in data.get("lines", []))
        return None if is_death else printed(data, *arguments)

    print_others.is_filtered = True
    ray._private.worker.print_worker_logs = print_others


def _join(address: str, where: str) -> None:
    if address.startswith("ray://"):
        raise ClusterError(
            f"{where} names the Ray client address {address}, which would carry every trajectory through one proxy. Run on the cluster "
            "instead: 'ray submit' or 'ray job submit', or --address auto on one of its machines."
        )
    if address not in ("auto", "local"):
        problem = _probe(address)
        if problem:
            raise ClusterError(f"The Ray cluster {address} ({where}) cannot be used: {problem}.")
    try:
        ray.init(
            address=address, log_to_driver=False, configure_logging=False, logging_level="ERROR",
            runtime_env={"env_vars": _python_path()},
        )
    except (ConnectionError, RuntimeError) as error:
        raise ClusterError(f"The Ray cluster {address} ({where}) cannot be joined: {error}") from error


def _probe(address: str) -> str:
    """Why the cluster at `address` cannot be used; empty when it can."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_PROBE_S):
            pass
    except (OSError, ValueError) as error:
        return f"it does not answer within {_PROBE_S:.0f} s ({error})"
    try:
        raw = ray._raylet.GcsClient(address=address).internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=_PROBE_S)
    except Exception as error:  # noqa: BLE001 - whatever answers there, it is no Ray
        return f"it does not answer like Ray ({type(error).__name__})"
    version = json.loads(raw).get("ray_version") if raw else None
    return "" if version == ray.__version__ else f"it runs Ray {version}, this is Ray {ray.__version__}"


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
