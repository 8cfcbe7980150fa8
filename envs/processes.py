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
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

from envs.base import EnvFault
from envs.factories import EnvFactory
from envs.faults import env_fault
from envs.opened import open_env
from envs.single_env import Command, Outcome
from envs.step_record import Place

CLOSE_TIMEOUT_S = 2.0
EXIT_CODE_TIMEOUT_S = 5.0
_hiding = threading.Lock()


@dataclass(slots=True)
class _Ending:
    """A process that has to end before the next one of its copy starts.

    Attributes:
        theirs: the next one's end of the pipe; commands wait in the pipe meanwhile.
        deadline: when patience ends (monotonic seconds): with its closing, then, once `killed`, with its death.
    """

    theirs: Connection
    deadline: float
    killed: bool


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
        self._context, self._factory, self._first_env_index = context, factory, first_env_index
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._epochs = [0] * num_envs
        self._busy: dict[int, int] = {}  # slot -> commands without an answer
        self._ending: dict[int, _Ending] = {}  # slot -> its old process, which is still in `_processes`
        self._starting: set[int] = set()  # slots whose new process has not made its environment yet
        try:
            for slot in range(num_envs):
                ours, theirs = context.Pipe()
                self._pipes.append(ours)
                self._processes.append(self._started(slot, theirs))
            answers = [self._receive(slot) for slot in range(num_envs)]
            for slot, answer in enumerate(answers):
                if isinstance(answer, EnvFault):
                    raise answer.located(first_env_index + slot, None, None, None).final()
                if isinstance(answer, BaseException):
                    raise answer
        except BaseException:
            self.close()
            raise
        self.name, self.spec = answers[0]

    def _started(self, slot: int, theirs: Connection) -> Any:
        """A new process of copy `slot`, which makes its environment and listens to `theirs`."""
        try:
            process = self._context.Process(
                target=_work, args=(theirs, self._factory), daemon=True, name=f"env-{self._first_env_index + slot}")
            with _main_module_hidden():
                process.start()
        finally:
            theirs.close()
        return process

    def request(self, slot: int, epoch: int, command: Command, place: Place) -> None:
        """Send the command to copy `slot`; a dead one is reported by `collect`. Its place is no use here: this process survives."""
        self._epochs[slot] = epoch
        self._busy[slot] = self._busy.get(slot, 0) + 1
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._pipes[slot].send((epoch, command))

    def restart(self, slot: int) -> None:
        """End the process of copy `slot`, and forget what it was told; a new one gets the next `request`. Nothing is waited for here.

        A process that has answered closes its environment and has `CLOSE_TIMEOUT_S` for it, so that nothing of it (a port, a simulator)
        is in the way of the next; one that is in a step is killed. What the new one brings, or that it cannot be made, comes by `collect`.
        """
        hangs = self._busy.pop(slot, 0) > 0
        if hangs:
            self._processes[slot].kill()
        else:
            with contextlib.suppress(OSError):
                self._pipes[slot].send(None)
        self._pipes[slot].close()
        self._starting.discard(slot)
        self._pipes[slot], theirs = self._context.Pipe()
        self._ending[slot] = _Ending(theirs, time.monotonic() + CLOSE_TIMEOUT_S, killed=hangs)

    def collect(self, timeout_s: float) -> list[tuple[int, int, Outcome | EnvFault]]:
        """See `Workers.collect`; the death of a process is noticed at once. Returns earlier, with nothing, when a copy is started anew."""
        # The sentinels too: a grandchild that inherited the pipe would keep it open after the death of the environment.
        waited: dict[Any, int] = {}
        for slot in self._busy:
            if slot not in self._ending:
                waited[self._pipes[slot]] = slot
            waited[self._processes[slot].sentinel] = slot
        if self._ending:
            first = min(ending.deadline for ending in self._ending.values())
            timeout_s = max(0.0, min(timeout_s, first - time.monotonic()))
        ready = {waited[item] for item in connection.wait(list(waited), timeout_s)}
        faults = self._renew(ready) if self._ending else []
        answers = [(slot, *answer) for slot in sorted(ready) if (answer := self._answer(slot)) is not None]
        return answers + faults

    def _renew(self, ready: set[int]) -> list[tuple[int, int, EnvFault]]:
        """Start the new process of each copy whose old one has ended, and take it out of `ready`; returns those that cannot be started."""
        faults, now = [], time.monotonic()
        for slot, ending in list(self._ending.items()):
            has_ended = slot in ready
            ready.discard(slot)
            if not has_ended and now < ending.deadline:
                continue
            old = self._processes[slot]
            if not has_ended and not ending.killed:
                old.kill()
                self._ending[slot] = _Ending(ending.theirs, now + CLOSE_TIMEOUT_S, killed=True)
                continue
            if has_ended:
                old.join(EXIT_CODE_TIMEOUT_S)
            del self._ending[slot]
            try:
                self._processes[slot] = self._started(slot, ending.theirs)
            except (OSError, EOFError) as error:  # no memory or no file left, or the fork server has just been killed
                faults.append((slot, self._epochs[slot], EnvFault(f"its process cannot be started anew: {error}", restartable=True)))
                del self._busy[slot]
                continue
            self._starting.add(slot)
            with contextlib.suppress(ValueError):  # killed, and still not dead: left to the system
                old.close()
        return faults

    def _answer(self, slot: int) -> tuple[int, Outcome | EnvFault] | None:
        """What copy `slot` says; None for the first word of a new process, after which it does what it was told."""
        answer = self._receive(slot)
        if slot in self._starting:
            self._starting.discard(slot)
            if answer == (self.name, self.spec):
                return None
            answer = _not_made(answer)
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
        except (EOFError, OSError):  # also in the middle of an answer
            pass
        process.join(EXIT_CODE_TIMEOUT_S)
        return EnvFault(f"the process of the environment (pid {process.pid}) died: {_how(process.exitcode)}", restartable=True)

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
        for ending in self._ending.values():
            ending.theirs.close()
        self._ending.clear()


def _not_made(answer: Any) -> EnvFault:
    """Why a new process has no environment, from its first word: what could be made once may be made another time."""
    if isinstance(answer, EnvFault):
        answer.restartable = True
        return answer
    if isinstance(answer, Exception):
        return EnvFault(f"the environment cannot be made anew: {answer}")
    return EnvFault(f"the environment that was started anew has other spaces than the one before: expected the same, received {answer[1]}. Let "
                    "the spaces depend on env_kwargs alone")


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
