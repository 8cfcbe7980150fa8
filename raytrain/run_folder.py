"""The folder of one run: who may write into it, and where things are in it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from raytrain.errors import RunFolderError, UploadError
from raytrain.files import FORBIDDEN, portable_name, replace_file, to_json
from raytrain.remote import is_uri
from raytrain.run_lock import Holder, RunLock, live_holder

if TYPE_CHECKING:
    from raytrain.staging import RemoteRun

REPLACED = ".replaced"
"""Folder inside the results folder that keeps what ``--force`` moved aside. Nothing in it is ever read; delete it at will."""
_CONFIGURATION = "configuration.yaml"
_CHECKPOINTS = "checkpoints"
_SCALE = "scale.txt"
_LOCK = "lock"
_STATUS = "status.json"
_TAKEN_NAMES = {_CONFIGURATION, _CHECKPOINTS, "best", "latest", "logs", _LOCK, "lock.takeover", _SCALE, _STATUS, "timers.json", "writers", "wandb"}


def holds_run(path: Path) -> bool:
    """Whether `path` is the folder of a run: it has a configuration or checkpoints."""
    return (path / _CONFIGURATION).is_file() or (path / _CHECKPOINTS).is_dir()


def has_checkpoint(path: Path) -> bool:
    """Whether the run in `path` has saved anything; one that ended while it was still starting has not."""
    folder = path / _CHECKPOINTS
    return folder.is_dir() and any(not entry.name.startswith(".") for entry in folder.iterdir())


def list_runs(results_dir: Path) -> list[str]:
    """Ids of the runs in `results_dir`, sorted; empty when the folder does not exist."""
    if not results_dir.is_dir():
        return []
    return sorted(p.name for p in results_dir.iterdir() if not p.name.startswith(".") and holds_run(p))


def runs_near(path: Path) -> str:
    """A sentence on the runs there are, for whoever took `path` for one: in it, beside it or in the default folder."""
    path = path.absolute()
    for folder in (path, path.parent, Path("results").absolute()):
        if there := list_runs(folder):
            return f"Runs in {folder}: {', '.join(there)}."
    return f"Runs in {path.parent}: none."


def user_of(run: Path) -> Holder | None:
    """The process that the run is going in; None where it is not going."""
    return live_holder(run / _LOCK)


def check_is_run(path: Path) -> None:
    """Raise if `path` is not the folder of a run.

    Raises:
        RunFolderError: with the runs there are.
    """
    if not holds_run(path):
        raise RunFolderError(f"Expected the folder of a run, found none at {path}. {runs_near(path)}")


def ask_for_managers(path: Path, count: int) -> int:
    """Leave a request for this many env managers, which a run that is going takes up within seconds.

    Returns:
        How many there may be at most.

    Raises:
        RunFolderError: no such run, it is not going, or it cannot have so many.
    """
    check_is_run(path)
    if user_of(path) is None:
        raise RunFolderError(f"Expected a run that is going, and {path} is not. Set distributed.num_env_managers when it is resumed.")
    status = json.loads((path / _STATUS).read_text(encoding="utf-8"))
    most = status["most_env_managers"]
    if most is None:
        raise RunFolderError(f"{path} runs in lock-step, where what is learnt depends on the number of env managers: it cannot change while it goes.")
    if not 1 <= count <= most:
        raise RunFolderError(
            f"Expected 1 to {most} env managers for {path}, received {count}. The most is set at the start, by distributed.max_env_managers: to have "
            "more, interrupt the run (it saves) and resume it with that key."
        )
    replace_file(path / _SCALE, f"{count}\n".encode())
    return most


class RunFolder:
    """The folder of one run, locked by this process.

    Of a run at a URI it is the folder on this machine whose content is uploaded (`raytrain.staging`), and both places are locked.

    Use `create`; as a context manager it is unlocked at the end. Only the process that holds the lock writes into it.

    Attributes:
        path: absolute path; stays right when the working directory changes.
        address, results_address: where the run and all runs are for people: the path, or the URI.
        messages: what the user should read (a lock taken over, a run moved aside), oldest first.
    """

    def __init__(self, path: Path, remote: RemoteRun | None = None) -> None:
        self.path = path
        self.address = str(path) if remote is None else remote.uri
        self.results_address = str(path.parent) if remote is None else remote.results_uri
        self._remote = remote
        self._warn: Callable[[str], None] = self._keep_message
        self.messages: list[str] = []
        self._lock = RunLock(path / _LOCK)

    @classmethod
    def check(cls, results_dir: str | Path, run_id: str, resume: bool = False, force: bool = False) -> RunFolder:
        """Refuse what `create` would refuse, without touching anything; so that a mistake shows before anything is started.

        Raises:
            RunFolderError: as `create`.
        """
        if resume and force:
            raise RunFolderError("Expected --resume or --force, received both. --resume continues the run, --force begins it anew.")
        _check_run_id(run_id)
        if is_uri(results_dir):
            from raytrain.staging import RemoteRun

            remote = RemoteRun(results_dir, run_id)
            remote.check(resume, force)
            return cls(remote.path, remote)
        results = Path(results_dir).expanduser().absolute()
        run = cls(results / run_id)
        try:
            run._refuse_unusable_folder()
            exists = has_checkpoint(run.path)
            if resume and not exists:
                there = ", ".join(list_runs(results)) or "none"
                why = f"no run '{run_id}' in {results}. Runs there: {there}."
                if holds_run(run.path):
                    why = f"run '{run_id}' in {results} ended before it saved anything. Start it again without --resume."
                raise RunFolderError(f"Nothing to resume: {why}")
            if exists and not resume and not force:
                raise RunFolderError(f"Run id '{run_id}' exists in {results}; use --resume, --force or another --run-id.")
        except OSError as error:
            raise RunFolderError(f"Cannot use {run.path} as run folder: {error}. Choose another --results-dir or --run-id.") from error
        return run

    @classmethod
    def create(cls, results_dir: str | Path, run_id: str, resume: bool = False, force: bool = False) -> RunFolder:
        """Make the folder of a new run, or take that of an old one, and lock it. A run that never saved anything is begun anew.

        Nothing in an existing folder is touched before its lock is taken, and nothing at all when the answer is no.

        Args:
            results_dir: folder of all runs, or its URI; made if missing.
            run_id: name of the run's folder.
            resume: continue the run that is there.
            force: begin anew; the run that is there is moved to ``<results_dir>/.replaced/<run_id>-<time>``.

        Raises:
            RunFolderError: the run id is not portable, the run is there and neither flag says what to do with it, there is
                nothing to resume, both flags are given, a live run holds the folder, or the folder cannot be written.
        """
        run = cls.check(results_dir, run_id, resume, force)
        try:
            if run._remote is not None:
                run._remote.prepare(resume, force)
                run.messages += run._remote.messages
            elif force and holds_run(run.path):
                run._move_aside()
            run.path.mkdir(parents=True, exist_ok=True)
            run.lock()
        except BaseException as error:
            if run._remote is not None:
                run._remote.lock.release()
            if not isinstance(error, OSError):
                raise
            raise RunFolderError(f"Cannot use {run.path} as run folder: {error}. Choose another --results-dir or --run-id.") from error
        return run

    def begin_upload(self, keep: int, warn: Callable[[str], None]) -> None:
        """Of a run at a URI, upload from now on what is written here. Otherwise nothing.

        Args:
            keep: numbered checkpoints that stay at the URI.
            warn: told what could not be uploaded when a run that broke is left.
        """
        self._warn = warn
        if self._remote is not None:
            self._remote.begin(keep)

    def finish_upload(self) -> None:
        """At the end of a run: wait until everything is at its URI. Otherwise nothing.

        Raises:
            UploadError: it cannot be; says where it is on this machine.
        """
        if self._remote is not None and self._remote.mirror is not None:
            mirror, self._remote.mirror = self._remote.mirror, None
            mirror.finish()

    def _keep_message(self, text: str) -> None:
        self.messages.append(text)

    def lock(self) -> None:
        """Take the lock, unless this object holds it, and keep it fresh.

        Raises:
            RunFolderError: a live run holds it.
            OSError: the lock file cannot be written.
        """
        if self._lock.held:
            return
        message = self._lock.acquire()
        if message is not None:
            self.messages.append(message)
        self._lock.start_heartbeat()

    def unlock(self) -> None:
        """Give the lock back; happens by itself when the process ends in order. What a run that broke has left is uploaded first."""
        try:
            self.finish_upload()
        except UploadError as error:  # must not hide what the run broke of
            self._warn(str(error))
        self._lock.release()
        if self._remote is not None:
            self._remote.lock.release()

    def check_lock(self) -> None:
        """Make sure that the folder is still this run's. To be called before each write of consequence.

        Raises:
            RunFolderError: another run took the lock over, or somebody deleted it.
        """
        lost = self._lock.lost or (self._remote.lock.lost if self._remote is not None else None)
        if lost is not None:
            raise RunFolderError(f"{lost} This run no longer owns {self.address} and must not write into it.")

    @property
    def heartbeat_error(self) -> str | None:
        """Why the last sign of life could not be written; None when it could."""
        return self._lock.heartbeat_error or (self._remote.lock.error if self._remote is not None else None)

    @property
    def upload_error(self) -> str | None:
        """Why the last upload failed; None when it did not, or when nothing is to be uploaded."""
        mirror = self._remote.mirror if self._remote is not None else None
        return mirror.error if mirror is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.unlock()

    def write_configuration(self, text: str) -> None:
        """Store the resolved configuration. From here on the folder counts as a run, so this comes first.

        Raises:
            OSError: the disk refuses; the former file is untouched.
        """
        replace_file(self.path / _CONFIGURATION, text.encode())

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Store how the run is doing; cheap enough for every second. Readers see whole files only.

        Raises:
            ValueError, TypeError: `status` is not JSON (NaN included).
            OSError: the disk refuses; the former file is untouched.
        """
        replace_file(self.path / _STATUS, to_json(status, "status"), synced=False)

    def take_request(self) -> int | None:
        """How many env managers were asked for since the last call (`ask_for_managers`)."""
        path = self.path / _SCALE
        try:
            count = int(path.read_text(encoding="utf-8"))
            path.unlink()
        except (OSError, ValueError):
            return None
        return count

    def behavior_path(self, name: str) -> Path:
        """Folder for what a behavior leaves (event files, metrics); made if missing. Its name is portable."""
        path = self.path / portable_name(name, reserved=_TAKEN_NAMES)
        path.mkdir(exist_ok=True)
        return path

    def _refuse_unusable_folder(self) -> None:
        """Raise if a live run holds the folder, or if it is not a run's to lock, fill or move: ``--results-dir . --run-id src --force``."""
        if self.path.is_file():
            raise RunFolderError(f"Expected {self.path} to be a run folder, found a file. Use another --run-id.")
        self._lock.refuse_if_taken()
        if not self.path.exists() or holds_run(self.path):
            return
        foreign = sorted({p.name for p in self.path.iterdir()} - {_LOCK, "lock.takeover"})
        if foreign:
            raise RunFolderError(
                f"{self.path} is not the folder of a run: it has no {_CONFIGURATION} and no {_CHECKPOINTS}, but {foreign[0]!r}"
                f"{f' and {len(foreign) - 1} more' if len(foreign) > 1 else ''}. Use another --run-id or delete it yourself."
            )

    def _move_aside(self) -> None:
        """Lock the old run, then move its folder away, lock and all."""
        old = RunLock(self.path / _LOCK)
        message = old.acquire()
        aside = self.path.parent / REPLACED / f"{self.path.name}-{datetime.now():%Y%m%dT%H%M%S.%f}"
        try:
            aside.parent.mkdir(exist_ok=True)
            os.replace(self.path, aside)
        except BaseException:
            old.release()
            raise
        old.path = aside / _LOCK
        old.release()
        self.messages += [] if message is None else [message]
        self.messages.append(f"The former run is now in {aside}; delete it if you do not need it.")


def _check_run_id(run_id: str) -> None:
    if not run_id:
        raise RunFolderError("Expected a run id of at least one character, received an empty one. Use --run-id NAME.")
    if portable_name(run_id) != run_id:
        better = "".join("_" if c in FORBIDDEN or not c.isprintable() else c for c in run_id).strip(" .")[:100] or "run"
        raise RunFolderError(
            f"Expected a run id that is a folder name on every system, received {run_id!r}: none of {' '.join(FORBIDDEN)}, "
            f"no space or dot at either end, no device name of Windows, at most 150 bytes. For example {better!r}."
        )
