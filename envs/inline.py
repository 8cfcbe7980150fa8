"""Copies that are stepped one after another in the calling thread: the least overhead, for fast environments."""

from __future__ import annotations

from typing import Any

from envs.base import EnvFault
from envs.factories import EnvFactory
from envs.opened import open_env
from envs.single_env import Command, Outcome


class InlineWorkers:
    """`envs.copies.Workers` without any concurrency: `collect` steps everything that was requested.

    A step that blocks, blocks the caller: no step timeout can be enforced here.
    """

    stepping = "inline"

    def __init__(self, factory: EnvFactory, num_envs: int, first_env_index: int) -> None:
        self._envs: list[Any] = []
        for slot in range(num_envs):
            try:
                self._envs.append(open_env(factory))
            except EnvFault as fault:
                raise fault.located(first_env_index + slot, None, None, None) from fault
        self.name, self.spec = self._envs[0].name, self._envs[0].spec
        self._requests: dict[int, tuple[int, Command]] = {}

    def request(self, slot: int, epoch: int, command: Command) -> None:
        """Remember the command; a reset replaces a step that was not done yet."""
        self._requests[slot] = (epoch, command)

    def collect(self, timeout_s: float) -> list[tuple[int, int, Outcome | EnvFault]]:
        """Do every remembered command; `timeout_s` has no effect."""
        requests, self._requests = self._requests, {}
        return [(slot, epoch, self._envs[slot].run(command)) for slot, (epoch, command) in requests.items()]

    def close(self) -> None:
        """Close every copy."""
        for env in self._envs:
            env.close()
