"""The lock of a run at a URI: an object with host, process and a sign of life. Best effort, since object stores have no exclusive create."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from raytrain.errors import RunFolderError
from raytrain.remote import RemoteError, RemoteFolder
from raytrain.run_lock import HEARTBEAT_S, STALE_S, Holder

LOCK = "lock"
_BEAT_S = 3 * HEARTBEAT_S
"""Seconds between two signs of life, of which several fit into `STALE_S`."""


class RemoteLock:
    """Held by one run at a time, unless two begin within the same moment: then the one that wrote last has it and the other notices at
    its next sign of life.

    Attributes:
        lost: why this process no longer holds the lock it took; None while all is well.
        error: why the last sign of life could not be written; None when it could.
    """

    def __init__(self, run: RemoteFolder) -> None:
        self._run = run
        self.lost: str | None = None
        self.error: str | None = None
        self._mine: Holder | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def refuse_if_taken(self) -> Holder | None:
        """The dead holder whose lock is there; None without one.

        Raises:
            RunFolderError: a live run holds it.
            RemoteError: the place does not answer.
        """
        holder = self._holder()
        if holder is not None and not holder.is_dead():
            raise RunFolderError(
                f"Run {self._run.uri} is in use by {holder.who}; stop it first, or use another --run-id. "
                f"A dead run's lock is freed by itself, after {STALE_S:.0f} s of silence if it ran on another machine."
            )
        return holder

    def acquire(self) -> str | None:
        """Take the lock, also from a dead holder, and keep it fresh; who had left it behind, None if it was free.

        Raises:
            RunFolderError, RemoteError: as `refuse_if_taken`.
        """
        dead = self.refuse_if_taken()
        self._mine = Holder.this_process()
        self._run.write(LOCK, self._mine.to_bytes())
        self._thread = threading.Thread(target=self._beat_until_released, name="remote-lock", daemon=True)
        self._thread.start()
        return None if dead is None else f"Took over the lock at {self._run.uri} that {dead.who}, left behind."

    def beat(self) -> None:
        """Write one sign of life, unless the lock is lost."""
        try:
            holder = self._holder()
            if holder is not None and holder.token != self._mine.token:
                self.lost = f"The lock at {self._run.uri} was taken over by {holder.who}."
                return
            # One that is gone is written again: a place that was unreachable, or a run's files that somebody moved, are no other run.
            self._run.write(LOCK, replace(self._mine, heartbeat=time.time()).to_bytes())
            self.error = None
        except RemoteError as error:
            self.error = f"No sign of life could be written to {error}"

    def release(self) -> None:
        """Stop the signs of life and remove the lock if it is still this object's. Never raises: it is found dead later."""
        if self._mine is None:
            return
        self._stop.set()
        self._thread.join(HEARTBEAT_S)
        try:
            holder = self._holder()
            if holder is not None and holder.token == self._mine.token:
                self._run.remove(LOCK)
        except RemoteError as error:
            self.error = str(error)
        self._mine = None

    def _holder(self) -> Holder | None:
        data = self._run.read(LOCK)
        try:
            return Holder.from_bytes(data) if data is not None else None
        except ValueError:
            return None  # half-written, or not ours

    def _beat_until_released(self) -> None:
        while self.lost is None and not self._stop.wait(_BEAT_S):
            self.beat()
