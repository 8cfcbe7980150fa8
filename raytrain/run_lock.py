"""The lock that keeps two live runs out of one run folder, also from two machines that share a disk."""

from __future__ import annotations

import atexit
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

import psutil

from raytrain.errors import RunFolderError

HEARTBEAT_S = 5.0
"""Seconds between two signs of life."""
STALE_S = 60.0
"""Seconds of silence after which a holder that cannot be looked at (another machine) counts as dead."""
_SIZE = 1024  # bytes; a constant size lets a heartbeat overwrite in place, which works on a full disk too


@dataclass(frozen=True)
class Holder:
    """Who holds a lock.

    Attributes:
        host: name of the machine.
        process_space: the process-number space of the system (containers on one machine have several); empty where unknown.
        pid: process number.
        process_start: when the process started (s since 1970): tells it from a later one with the same number.
        since: when it took the lock (s since 1970).
        heartbeat: its last sign of life (s since 1970).
        token: unique for each time a lock is taken.
    """

    host: str
    process_space: str
    pid: int
    process_start: float
    since: float
    heartbeat: float
    token: str

    @classmethod
    def this_process(cls) -> Holder:
        """This process, now, with a new token."""
        now = time.time()
        start = psutil.Process().create_time()
        return cls(socket.gethostname(), _process_space(), os.getpid(), start, now, now, uuid.uuid4().hex)

    @property
    def who(self) -> str:
        """Process, host, and how long ago it took the lock and was last seen."""
        ages = [timedelta(seconds=max(0, round(time.time() - t))) for t in (self.since, self.heartbeat)]
        return f"process {self.pid} on host {self.host}, started {ages[0]} ago, last sign of life {ages[1]} ago"

    def is_dead(self) -> bool:
        """Whether the holder is gone for certain (same machine), or silent for `STALE_S` (another machine; clocks agree to seconds)."""
        silence_s = time.time() - self.heartbeat
        if (self.host, self.process_space) != (socket.gethostname(), _process_space()):
            return silence_s > STALE_S
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
            start = process.create_time()
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False  # it lives, under another user
        # Start times are computed from the wall clock, which may be set while the holder lives: it must also have fallen silent.
        return abs(start - self.process_start) > 2.0 and silence_s > 3 * HEARTBEAT_S

    def to_bytes(self) -> bytes:
        """The content of a lock file."""
        return json.dumps(asdict(self)).encode().ljust(_SIZE - 1) + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> Holder:
        """The holder that `to_bytes` wrote.

        Raises:
            ValueError: `data` is not a lock file's.
        """
        try:
            return cls(**json.loads(data))
        except (TypeError, ValueError) as error:
            raise ValueError(f"Expected the content of a lock file, received {data[:80]!r}.") from error


def _process_space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""  # no Linux: one space per machine


def read_holder(path: Path) -> Holder | None:
    """Who holds the lock at `path`; None when nobody does.

    A file that says nothing readable is held by somebody unknown, last seen when the file was written.
    """
    try:
        data = path.read_bytes()
        written = path.stat().st_mtime
    except FileNotFoundError:
        return None
    try:
        return Holder.from_bytes(data)
    except ValueError:
        return Holder("unknown", "unreadable lock file", 0, 0.0, written, written, "")


def live_holder(path: Path) -> Holder | None:
    """Who holds the lock at `path` and is not dead; None when nobody does."""
    holder = read_holder(path)
    return None if holder is None or holder.is_dead() else holder


class RunLock:
    """A lock file, made by one process at a time and kept fresh by a thread of it.

    Attributes:
        path: the lock file.
        lost: why this process no longer holds the lock it took (somebody deleted it, or took it over after a long silence);
            None while all is well. Whoever writes into the folder looks here first.
        heartbeat_error: why the last sign of life could not be written; None when it could. The next one is tried all the same.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost: str | None = None
        self.heartbeat_error: str | None = None
        self._mine: Holder | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def held(self) -> bool:
        """Whether this object took the lock and has not released it."""
        return self._mine is not None

    def refuse_if_taken(self) -> None:
        """Raise if a live run holds the lock. Changes nothing.

        Raises:
            RunFolderError: names the holder.
        """
        holder = live_holder(self.path)
        if holder is not None:
            raise self._taken(holder)

    def acquire(self) -> str | None:
        """Take the lock, also from a dead holder.

        Returns:
            Who had left it behind; None if it was free.

        Raises:
            RunFolderError: a live run holds it.
            OSError: the file cannot be written.
        """
        mine = Holder.this_process()
        dead = None
        if not self._create(mine):
            with self._sole_successor():
                # Looked at only now: another successor may have been here since `_create`.
                dead = read_holder(self.path)
                if dead is not None:
                    if not dead.is_dead():
                        raise self._taken(dead)
                    self.path.unlink()
                if not self._create(mine):
                    raise RunFolderError(f"Another run has taken {self.path} at this very moment. Use another --run-id.")
        self._mine, self.lost = mine, None
        atexit.register(self.release)
        return None if dead is None else f"Took over the lock that {dead.who}, left behind."

    def start_heartbeat(self) -> None:
        """Write a sign of life every `HEARTBEAT_S` from a daemon thread, until `release`."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._beat_until_released, name="run-lock", daemon=True)
        self._thread.start()

    def beat(self) -> None:
        """Write one sign of life, unless the lock is lost."""
        assert self._mine is not None, "beat() before acquire()"
        try:
            # Through one open file: if somebody takes over meanwhile, this writes into the file they have put away.
            with open(self.path, "r+b", buffering=0) as file:
                holder = Holder.from_bytes(file.read())
                if holder.token != self._mine.token:
                    self.lost = f"The lock {self.path} was taken over by {holder.who}."
                    return
                file.seek(0)
                file.write(replace(self._mine, heartbeat=time.time()).to_bytes())
            self.heartbeat_error = None
        except FileNotFoundError:
            self.lost = f"The lock {self.path} was deleted."
        except (OSError, ValueError) as error:
            self.heartbeat_error = f"No sign of life could be written to {self.path}: {error}"

    def release(self) -> None:
        """Stop the heartbeat and remove the lock if it is still this object's. Does nothing when not held or in a forked child."""
        if self._mine is None or self._mine.pid != os.getpid():
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join(HEARTBEAT_S)  # a network drive that hangs must not hold up the end of the run
            self._thread = None
        holder = read_holder(self.path)
        if holder is not None and holder.token == self._mine.token:
            self.path.unlink()
        self._mine = None
        atexit.unregister(self.release)

    def _beat_until_released(self) -> None:
        while self.lost is None and not self._stop.wait(HEARTBEAT_S):
            self.beat()

    def _create(self, mine: Holder) -> bool:
        try:
            descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        try:
            with open(descriptor, "wb") as file:
                file.write(mine.to_bytes())
        except BaseException:
            self.path.unlink()
            raise
        return True

    @contextmanager
    def _sole_successor(self) -> Iterator[None]:
        """One process at a time decides over a dead holder's lock: of two, the later would remove the earlier one's new lock."""
        guard = self.path.with_name(f"{self.path.name}.takeover")
        try:
            if time.time() - guard.stat().st_mtime > STALE_S:
                guard.unlink()  # of a process that died inside the few lines below
        except FileNotFoundError:
            pass
        try:
            open(guard, "xb").close()
        except FileExistsError:
            raise RunFolderError(
                f"Another run is about to take over {self.path}. Use another --run-id, or try again in {STALE_S:.0f} s."
            ) from None
        try:
            yield
        finally:
            guard.unlink()

    def _taken(self, holder: Holder) -> RunFolderError:
        ours = holder.pid == os.getpid() and holder.host == socket.gethostname()
        what = "this very process: end that run first (in a notebook, restart the kernel)" if ours else "stop it first"
        return RunFolderError(
            f"Run '{self.path.parent.name}' is in use by {holder.who}; {what}, or use another --run-id. "
            f"A dead run's lock is freed by itself, after {STALE_S:.0f} s of silence if it ran on another machine ({self.path})."
        )
