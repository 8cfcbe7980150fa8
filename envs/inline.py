"""Copies that are stepped one after another in the calling thread: the least overhead, for fast environments."""

from __future__ import annotations

from typing import Any

from envs.base import EnvFault
from envs.factories import EnvFactory
from envs.opened import open_env
from envs.single_env import Command, Outcome
from envs.step_record import Place, StepRecord


class InlineWorkers:
    """`envs.copies.Workers` without any concurrency: `collect` steps everything that was requested.

    A step that blocks, blocks the caller: no step timeout can be enforced here.
    """

    stepping = "inline"

    def __init__(self, factory: EnvFactory, num_envs: int, first_env_index: int, record: StepRecord | None = None) -> None:
        self._record = record
        self._envs: list[Any] = []
        for slot in range(num_envs):
            try:
                self._envs.append(open_env(factory))
            except EnvFault as fault:
                raise fault.located(first_env_index + slot, None, None, None).final() from fault
        self.name, self.spec = self._envs[0].name, self._envs[0].spec
        self._requests: dict[int, tuple[int, Command, Place]] = {}

    def request(self, slot: int, epoch: int, command: Command, place: Place) -> None:
        """Remember the command; a reset replaces a step that was not done yet."""
        self._requests[slot] = (epoch, command, place)

    def collect(self, timeout_s: float) -> list[tuple[int, int, Outcome | EnvFault]]:
        """Do every remembered command; `timeout_s` has no effect."""
        requests, self._requests = self._requests, {}
        if self._record is None:
            return [(slot, epoch, self._envs[slot].run(command)) for slot, (epoch, command, _) in requests.items()]
        outcomes = []
        for slot, (epoch, command, place) in requests.items():
            self._record.note(slot, *place)
            outcomes.append((slot, epoch, self._envs[slot].run(command)))
            self._record.clear(slot)
        return outcomes

    def close(self) -> None:
        """Close every copy."""
        for env in self._envs:
            env.close()
