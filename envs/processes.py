"""Copies with a process each: for slow Python environments, and for those whose crash must not take the others with it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

from envs.base import EnvFault
from envs.factories import EnvFactory
from envs.faults import env_fault
from envs.opened import open_env
from envs.single_env import Command, Outcome

CLOSE_TIMEOUT_S = 2.0
EXIT_CODE_TIMEOUT_S = 5.0
_hiding = threading.Lock()


class ProcessWorkers:
    """`envs.copies.Workers` with one process per copy; `collect` returns whichever are done.

    The start method is ``forkserver`` where the platform has it, else ``spawn``; the caller's main module is not imported in
    the children, so it needs no main guard. Children leave Ctrl-C to the parent and end when it dies.
    """

    stepping = "processes"

    def __init__(self, factory: EnvFactory, num_envs: int, first_env_index: int, start_method: str | None = None) -> None:
        if start_method is None:
            start_method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context = multiprocessing.get_context(start_method)
        if start_method == "forkserver":
            context.set_forkserver_preload(["numpy", "gymnasium"])
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._epochs = [0] * num_envs
        self._busy: dict[int, int] = {}  # slot -> commands without an answer
        try:
            with _main_module_hidden():
                for slot in range(num_envs):
                    self._start(context, factory, f"env-{first_env_index + slot}")
            answers = [self._receive(slot) for slot in range(num_envs)]
            for slot, answer in enumerate(answers):
                if isinstance(answer, EnvFault):
                    raise answer.located(first_env_index + slot, None, None, None)
                if isinstance(answer, BaseException):
                    raise answer
        except BaseException:
            self.close()
            raise
        self.name, self.spec = answers[0]

    def _start(self, context: Any, factory: EnvFactory, name: str) -> None:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, factory), daemon=True, name=name)
        process.start()
        theirs.close()
        self._pipes.append(ours)
        self._processes.append(process)

    def request(self, slot: int, epoch: int, command: Command) -> None:
        """Send the command to copy `slot`; a dead one is reported by `collect`."""
        self._epochs[slot] = epoch
        self._busy[slot] = self._busy.get(slot, 0) + 1
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._pipes[slot].send((epoch, command))

    def collect(self, timeout_s: float) -> list[tuple[int, int, Outcome | EnvFault]]:
        """See `Workers.collect`; the death of a process is noticed at once."""
        # The sentinels too: a grandchild that inherited the pipe would keep it open after the death of the environment.
        waited: dict[Any, int] = {}
        for slot in self._busy:
            waited[self._pipes[slot]] = slot
            waited[self._processes[slot].sentinel] = slot
        ready = {waited[item] for item in connection.wait(list(waited), timeout_s)}
        return [(slot, *self._answer(slot)) for slot in sorted(ready)]

    def _answer(self, slot: int) -> tuple[int, Outcome | EnvFault]:
        answer = self._receive(slot)
        if isinstance(answer, EnvFault):
            del self._busy[slot]
            return self._epochs[slot], answer
        self._busy[slot] -= 1
        if not self._busy[slot]:
            del self._busy[slot]
        return answer

    def _receive(self, slot: int) -> Any:
        """The next answer of copy `slot`, or a fault that says how its process ended."""
        pipe, process = self._pipes[slot], self._processes[slot]
        try:
            connection.wait([pipe, process.sentinel])
            if pipe.poll():
                return pipe.recv()
        except (EOFError, ConnectionResetError):
            pass
        process.join(EXIT_CODE_TIMEOUT_S)
        return EnvFault(f"the process of the environment (pid {process.pid}) died: {_how(process.exitcode)}")

    def close(self) -> None:
        """Let every process close its environment; those that are still in a step after `CLOSE_TIMEOUT_S` are killed."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join(CLOSE_TIMEOUT_S)
        for pipe in self._pipes:
            pipe.close()


def _how(exit_code: int | None) -> str:
    if exit_code is None:
        return "its pipe was closed while it still runs"
    if exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name} (signal {-exit_code})"
    return f"exit code {exit_code}"


@contextlib.contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Children import nothing of the caller's ``__main__``: it would run a script without a main guard again, or import Ray."""
    main = sys.modules["__main__"]
    with _hiding:
        hidden = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
        for name in hidden:
            setattr(main, name, None)
        try:
            yield
        finally:
            for name, value in hidden.items():
                setattr(main, name, value)


def _work(pipe: Connection, factory: EnvFactory) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        env = open_env(factory)
    except (EnvFault, ValueError) as error:
        pipe.send(error)
        return
    except Exception as error:  # noqa: BLE001 - reported in words instead of as the death of a process
        pipe.send(env_fault(error, f"while making {factory.env}"))
        return
    pipe.send((env.name, env.spec))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        while (request := pipe.recv()) is not None:
            epoch, command = request
            try:
                outcome = env.run(command)
            except Exception as error:  # noqa: BLE001 - as above
                outcome = env_fault(error, "in the environment's process")
            pipe.send((epoch, outcome))
    env.close()


def _end_with_parent() -> None:
    connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)
