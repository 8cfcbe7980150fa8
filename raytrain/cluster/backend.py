"""A run on Ray: what is asked, what dies and is started anew, and the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ray

from raytrain.actors import CALL_TIMEOUT_S, Exchange
from raytrain.backends import News, trainer_name
from raytrain.cluster.answers import answer_of, dead, keep_deaths_to_ourselves
from raytrain.cluster.fleet import MANAGERS_STOP_S, ChangingCast
from raytrain.cluster.placing import Placement
from raytrain.errors import RunFault
from raytrain.messages import CheckpointDue, ManagerStatus, TrainerStatus
from raytrain.plan import Start
from raytrain.supervisor import SILENT_S

_POLLED = 100  # env managers that are asked in one turn of the controller: those that have waited longest
_FAR = 10**6  # messages that a trainer cannot have published more than it made versions
_BLOCKING = ("inline", "native")
"""Ways of stepping in which a step that hangs holds up its env manager; with the others the environments tell it themselves."""


class RayBackend(ChangingCast):
    """See `raytrain.backends.Backend`; what dies is started anew."""

    def start(self) -> None:
        keep_deaths_to_ourselves()
        self._placement = Placement(list(self._plans.values()), self._settings)
        if self._orders is not None:
            self._start_referee()
        for behavior, plan in self._plans.items():
            # Each env manager keeps two calls open, the trainer two; room for as many again.
            make = ray.remote(Exchange).options(
                **self._placement.exchange(behavior), max_concurrency=16 + 4 * max(len(self._managers), plan.most_managers), max_restarts=-1
            )
            self._exchanges[behavior] = make.remote()
            self._exchanges[behavior].publish.remote(plan.first_message(self._starts[behavior]))
        for behavior in self._plans:  # before the env managers, which would take the place that was chosen for it
            self._start_trainer(behavior)
        for index, name in enumerate(self._managers):
            self._start_manager(name, self._states[index] if self._states else None)

    def poll(self, timeout_s: float) -> News:
        deadline = time.monotonic() + timeout_s
        due = [name for name in self._actors if name not in self._pending and self._trainers.get(name) not in self._lost]
        managers = sorted((name for name in due if name not in self._trainers), key=lambda name: self._asked_s.get(name, 0.0))
        for name in [*(name for name in due if name in self._trainers), *managers[:_POLLED]]:
            self._asked_s[name] = time.monotonic()
            self._pending[name] = self._actors[name].poll.remote(), self._asked_s[name]
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
                report = answer_of(name, self._pending.pop(name)[0])
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
                found[name] = dead(f"{name} has not answered for {now - since:.0f} s")
            elif limit_s is None or status is None or status.stepping not in _BLOCKING:
                continue
            elif status.phase == "stepping" and status.idle_s > limit_s:
                found[name] = dead(f"{name}: a step has been going on for {status.idle_s:.1f} s; the limit is {limit_s:g} s (env_settings.step_timeout_s)")
        return found

    def _restart(self, name: str, fault: RunFault, news: News) -> None:
        news.warnings.append(self._supervisor.check(name, fault))
        self._pending.pop(name, None)
        ray.kill(self._actors[name])
        if name in self._trainers:
            self._lost[self._trainers[name]] = fault
            return
        last = self._seen.pop(name, None)
        produced = self._note_end(name, last)
        self._orders = self._current_orders()
        self._start_manager(name, {"rng": None, "env": last.envs} if last is not None else self._state_of(name))
        self._tell_trainers("restarted", name, produced)

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

    # -- the end -----------------------------------------------------------------------------------------------------

    def stop(self, keep_waiting: Callable[[], bool]) -> News:
        self.manager_states()  # for the last checkpoint, when the actors are gone
        self._stopped = True
        news = News(events=self._left_over)
        try:
            self._collect({name: call for name, (call, _) in self._pending.items()}, 1.0, news)  # a poll that is under way carries events, too
            stops = {n: self._actors[n].stop.remote(MANAGERS_STOP_S) for n in self._managers if n in self._actors}
            self._collect(stops, MANAGERS_STOP_S, news)
            self._last_states.update({n: s for n, s in self._ask(stops, "state").items() if s is not None})  # no manager is further ahead now
            for _, call, _ in self._leaving.values():
                ray.wait([call], timeout=MANAGERS_STOP_S)
            self._see_to_leaving_ones(news, at_once=True)
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
                died = self._collect({name: calls.pop(name)}, 0.0, news)
                saved = any(isinstance(event, CheckpointDue) for event in news.events[before:])
                if not saved and not died and news.fault is None:
                    calls[name] = self._actors[name].stop.remote(1.0, shipped[self._trainers[name]])
            if news.fault is not None or not keep_waiting():
                break

    def _collect(self, calls: dict[str, ray.ObjectRef], timeout_s: float, news: News) -> set[str]:
        """Take in what these calls answer in time; the trainer's fault is kept, an env manager's no longer matters. Returns who has died."""
        died = set()
        done, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=timeout_s) if calls else ([], [])
        for name, reference in calls.items():
            if reference not in done:
                continue
            try:
                report = answer_of(name, reference)
            except RunFault as fault:  # a trainer that dies now leaves its newest checkpoint behind
                died.add(name)
                if name in self._trainers:
                    news.warnings.append(fault.message)
                continue
            self._take_in(name, report, news)
            if name in self._trainers and report.fault is not None:
                news.fault = report.fault
        return died
