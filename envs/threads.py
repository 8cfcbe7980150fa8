"""Copies with a thread each: for environments that wait (sleep, sockets, native code that releases the interpreter lock)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from envs.base import EnvFault
from envs.factories import EnvFactory
from envs.faults import env_fault
from envs.opened import open_env
from envs.single_env import Command, Outcome
from envs.specs import BehaviorSpec
from envs.step_record import Place, StepRecord

CLOSE_TIMEOUT_S = 2.0


class ThreadWorkers:
    """`envs.copies.Workers` with one thread per copy; `collect` returns whichever are done.

    Each environment is made, stepped and closed in its own thread, as simulators with thread affinity need it. A thread whose
    step never returns cannot be ended; it is left behind (it dies with the process).
    """

    stepping = "threads"

    def __init__(self, factory: EnvFactory, num_envs: int, first_env_index: int, record: StepRecord | None = None) -> None:
        self._commands: list[SimpleQueue] = [SimpleQueue() for _ in range(num_envs)]
        self._outcomes: SimpleQueue = SimpleQueue()
        made: SimpleQueue = SimpleQueue()
        self._threads = [
            threading.Thread(target=_work, args=(factory, slot, commands, self._outcomes, made.put, record), daemon=True,
                             name=f"env-{first_env_index + slot}")
            for slot, commands in enumerate(self._commands)
        ]
        for thread in self._threads:
            thread.start()
        answers = sorted((made.get() for _ in self._threads), key=lambda answer: answer[0])
        for slot, answer in answers:
            if isinstance(answer, BaseException):
                self.close()
                raise answer.located(first_env_index + slot, None, None, None).final() if isinstance(answer, EnvFault) else answer
        self.name, self.spec = answers[0][1]

    def request(self, slot: int, epoch: int, command: Command, place: Place) -> None:
        """Queue the command of copy `slot`."""
        self._commands[slot].put((epoch, command, place))

    def collect(self, timeout_s: float) -> list[tuple[int, int, Outcome | EnvFault]]:
        """See `Workers.collect`; waits without using the processor."""
        outcomes = []
        try:
            outcomes.append(self._outcomes.get(timeout=timeout_s))
            while True:
                outcomes.append(self._outcomes.get_nowait())
        except Empty:
            return outcomes

    def close(self) -> None:
        """Let every thread close its environment; waits `CLOSE_TIMEOUT_S` in total for those that are in a step."""
        for commands in self._commands:
            commands.put(None)
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _work(
    factory: EnvFactory, slot: int, commands: SimpleQueue, outcomes: SimpleQueue,
    made: Callable[[tuple[int, tuple[str, BehaviorSpec] | BaseException]], None], record: StepRecord | None,
) -> None:
    try:
        env = open_env(factory)
    except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that waits for this one
        made((slot, error))
        return
    made((slot, (env.name, env.spec)))
    while (request := commands.get()) is not None:
        epoch, command, place = request
        if record is not None:
            record.note(slot, *place)
        try:
            outcome = env.run(command)
        except BaseException as error:  # noqa: BLE001 - a thread that ends without an answer would let its caller wait for ever
            outcome = env_fault(error, "in the environment's thread")
        if record is not None:
            record.clear(slot)
        outcomes.put((slot, epoch, outcome))
    env.close()
