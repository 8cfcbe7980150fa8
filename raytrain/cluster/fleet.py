"""Env managers that come late, leave and join."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import ray

from raytrain.backends import News
from raytrain.cluster.answers import answer_of
from raytrain.cluster.cast import Cast
from raytrain.cluster.placing import is_pending
from raytrain.errors import RunFault
from raytrain.messages import ManagerStatus
from raytrain.plan import manager_name

_LATE_S = 20.0  # after which a run that can go on without an env manager does so
_LEAVE_S = 30.0  # longest wait for an env manager that leaves
MANAGERS_STOP_S = 4.0  # longest wait for env managers to stop; a hung env must not cost the trainer its last checkpoint


class ChangingCast(Cast):
    """A cast whose env managers may become more and fewer."""

    def scale(self, count: int) -> None:
        self._wanted = count

    def room(self) -> int | None:
        free = ray.available_resources().get("CPU", 0.0)
        each = self._settings.env_manager_cpus
        waiting = sum(is_pending(self._actors[name]) for name in self._managers if name not in self._seen)
        return None if not each or self._leaving else max(1, len(self._managers) - waiting + int(free / each + 1e-9))

    def _approach_wanted(self, news: News) -> None:
        """Let env managers go, or start more, until there are as many as wanted."""
        while len(self._managers) > self._wanted:
            name = self._managers.pop()
            actor = self._actors.pop(name)
            self._pending.pop(name, None)
            if self._supervisor.parts[name].seen:
                self._leaving[name] = actor, actor.stop.remote(MANAGERS_STOP_S), time.monotonic() + _LEAVE_S
            else:  # it may never have found a place
                self._gone(name, actor, None, news)
        while len(self._managers) < self._wanted:
            name = manager_name(len(self._managers))
            if name in self._leaving:  # it has to be gone before it can come back
                return
            self._orders = self._current_orders()
            self._managers.append(name)
            self._start_manager(name, self._state_of(name))

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
            if time.monotonic() - self._supervisor.parts[name].started_s > _LATE_S and is_pending(self._actors[name]):
                self._joined.remove(name)
                self._tell_trainers("late", name)
                # As another life: what this one was granted is given to others, and it may just be starting.
                self._pending.pop(name, None)
                ray.kill(self._actors[name])
                self._start_manager(name, self._state_of(name))
                news.warnings.append(f"{name} has not started within {_LATE_S:.0f} s; the run goes on without it until it does")

    def _see_to_leaving_ones(self, news: News, at_once: bool = False) -> None:
        for name, (actor, call, until) in list(self._leaving.items()):
            is_done = bool(ray.wait([call], timeout=0)[0])
            if not is_done and time.monotonic() < until and not at_once:
                continue
            del self._leaving[name]
            last = self._seen.get(name)
            with suppress(RunFault):  # it died on its way out
                last = (answer_of(name, call).status if is_done else None) or last
            self._gone(name, actor, last, news)

    def _gone(self, name: str, actor: Any, last: ManagerStatus | None, news: News) -> None:
        ray.kill(actor)
        self._seen.pop(name, None)
        produced = self._note_end(name, last)
        if last is not None:
            self._last_states[name] = {"rng": None, "env": last.envs}
        self._joined.discard(name)
        self._tell_trainers("removed", name, produced)
        news.notices.append(f"{name} has left")
