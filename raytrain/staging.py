"""Runs whose results are at a URI: the folder on this machine that they are written to first, and how one comes back from the URI.

    <cache>/staging/<digest of the results' URI>/<run id>/      as on disk, written as any other run
                                        /.uploads/<run id>/     what is being uploaded
                                        /.uploaded-<run id>.json   which checkpoints have been
    <cache>/downloads/<digest of the URI and manifest>/         checkpoints for `load_policy` and ``initialize_from``

The cache is the user's (platformdirs); it may be deleted when no run writes and nothing failed to be uploaded.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from platformdirs import user_cache_path

from raytrain.errors import RunFolderError
from raytrain.files import replace_file, to_json
from raytrain.mirror import BEST, CHECKPOINTS, Mirror, digest_of, read_record
from raytrain.remote import RemoteError, RemoteFolder, join
from raytrain.remote_lock import LOCK, RemoteLock
from raytrain.run_lock import RunLock
from raytrain.snapshot import MANIFEST, CheckpointError, find_problems, is_inside, listed_files

_CONFIGURATION = "configuration.yaml"
_REPLACED = ".replaced"


def staging_folder(results_uri: str) -> Path:
    """The results folder on this machine that stands for the one at a URI."""
    return _cache() / "staging" / _digest(results_uri.rstrip("/"))


class RemoteRun:
    """One run at a URI, and its folder on this machine.

    Attributes:
        uri, results_uri: of the run and of the folder of all runs.
        messages: what the user should read.
        lock: at the URI.
        mirror: that uploads; None before `begin`.
    """

    def __init__(self, results_uri: str, run_id: str) -> None:
        self._results, self._run_id = RemoteFolder(results_uri), run_id
        self.results_uri, self.uri = self._results.uri, join(results_uri, run_id)
        self._remote = RemoteFolder(self.uri)
        self.staging = staging_folder(results_uri)
        self.path = self.staging / run_id
        self._record = self.staging / f".uploaded-{run_id}.json"
        self.messages: list[str] = []
        self.lock = RemoteLock(self._remote)
        self.mirror: Mirror | None = None

    def check(self, resume: bool, force: bool) -> None:
        """Refuse what `prepare` would refuse, without touching anything.

        Raises:
            RunFolderError: the run is there and neither flag says what to do with it, there is nothing to resume, a live run is using
                it, or the place does not answer.
        """
        try:
            self.lock.refuse_if_taken()
            exists = bool(self._checkpoints()) or self._is_here_only()
            if resume and not exists:
                there = ", ".join(list_remote_runs(self._results)) or "none"
                raise RunFolderError(f"Nothing to resume: no run '{self._run_id}' in {self._results.uri}. Runs there: {there}.")
            if exists and not resume and not force:
                kept = f" (on this machine, in {self.path}; it was never uploaded)" if self._is_here_only() else ""
                raise RunFolderError(f"Run id '{self._run_id}' exists in {self._results.uri}{kept}; use --resume, --force or another --run-id.")
        except RemoteError as error:
            raise RunFolderError(f"Cannot use {error}. Check the URI, the credentials and the network, or choose another --results-dir.") from error

    def prepare(self, resume: bool, force: bool) -> None:
        """Take the lock at the URI and make the folder on this machine what the run goes on with: for `resume`, what is here if the URI's
        newest checkpoint came from it (a last upload may have failed), otherwise the newest sound checkpoint there.

        Raises:
            RunFolderError: as `check`.
        """
        RunLock(self.path / LOCK).refuse_if_taken()
        try:
            message = self.lock.acquire()
            self.messages += [] if message is None else [message]
            if force and (self._checkpoints() or self._remote.read(_CONFIGURATION) is not None):
                self._move_aside()
            if not resume or not self._is_ahead():
                if self.path.exists():
                    self._put_away()
                self._record.unlink(missing_ok=True)
                if resume:
                    self._download()
        except RemoteError as error:
            self.lock.release()
            raise RunFolderError(f"Cannot use {error}. Check the URI, the credentials and the network, or choose another --results-dir.") from error
        except BaseException:
            self.lock.release()
            raise

    def begin(self, keep: int) -> None:
        """Upload from now on what the run writes.

        Args:
            keep: numbered checkpoints that stay.
        """
        self.mirror = Mirror(self.path, self._remote, self.staging / ".uploads" / self._run_id, self._record, keep, lambda: self.lock.lost)
        self.mirror.start()

    def _checkpoints(self) -> list[str]:
        """Numbers of those at the URI that have a manifest, oldest first."""
        names = sorted((name for name in self._remote.names(CHECKPOINTS) if name.isdecimal()), key=int)
        return [name for name in names if MANIFEST in self._remote.names(f"{CHECKPOINTS}/{name}")]

    def _is_here_only(self) -> bool:
        """Whether this machine has checkpoints of which none has ever been uploaded."""
        return any(self.path.glob(f"{CHECKPOINTS}/*/{MANIFEST}")) and not read_record(self._record) and not self._checkpoints()

    def _is_ahead(self) -> bool:
        """Whether what is here has all that is at the URI, and maybe more."""
        if not any(self.path.glob(f"{CHECKPOINTS}/*/{MANIFEST}")):
            return False
        there = self._checkpoints()
        if not there:
            return self._is_here_only()
        newest = f"{CHECKPOINTS}/{there[-1]}"
        return read_record(self._record).get(newest) == digest_of(self._remote.read(f"{newest}/{MANIFEST}"))

    def _move_aside(self) -> None:
        aside = f"{_REPLACED}/{self._run_id}-{datetime.now():%Y%m%dT%H%M%S.%f}"
        self._results.move(self._run_id, aside)
        self.lock.beat()  # whose object went with the rest
        self._results.remove(f"{aside}/{LOCK}")
        self.messages.append(f"The former run is now in {join(self._results.uri, aside)}; delete it if you do not need it.")

    def _put_away(self) -> None:
        aside = self.staging / _REPLACED / f"{self._run_id}-{datetime.now():%Y%m%dT%H%M%S.%f}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.path, aside)
        self.messages.append(f"What this machine had of a run {self.uri} is now in {aside}; delete it if you do not need it.")

    def _download(self) -> None:
        """Everything but the older checkpoints; damaged newer ones too, so that they are named and their numbers are not used again."""
        for file in self._remote.files():
            if not is_inside(file):
                raise RemoteError(f"Expected names of files inside the run at {self.uri}, found {file!r}. Nothing was downloaded over others.")
            if file.partition("/")[0] not in (CHECKPOINTS, LOCK):
                self._remote.get(file, self.path / file)
        for number in reversed(self._checkpoints()):
            name = f"{CHECKPOINTS}/{number}"
            for file in filter(is_inside, self._remote.files(name)):
                self._remote.get(f"{name}/{file}", self.path / name / file)
            if not find_problems(self.path / name):
                digest = digest_of((self.path / name / MANIFEST).read_bytes())
                replace_file(self._record, to_json({name: digest}, "uploaded"))
                break


def list_remote_runs(results: RemoteFolder) -> list[str]:
    """Ids of the runs at a URI, sorted."""
    names = [name for name in results.names() if not name.startswith(".")]
    return [name for name in names if _holds_run(results.names(name))]


def _holds_run(names: list[str]) -> bool:
    return not {_CONFIGURATION, CHECKPOINTS}.isdisjoint(names)


def is_remote_run(run: RemoteFolder) -> bool:
    """Whether there is a run at a URI: one look, however many others lie beside it."""
    return _holds_run(run.names())


def fetch_checkpoint(uri: str, which: str, is_wanted: Callable[[str], bool] = lambda path: True) -> Path:
    """A folder on this machine with the checkpoint that `uri` means; downloaded once.

    Args:
        uri: a checkpoint folder or a run folder.
        which: of a run folder, ``"best"`` (the newest in a run that has not marked one yet) or ``"latest"``.
        is_wanted: of a path inside the checkpoint, whether that file is needed.

    Raises:
        CheckpointError: there is none, or the place does not answer.
    """
    try:
        at_uri = RemoteFolder(uri)
        numbers = sorted((n for n in at_uri.names(CHECKPOINTS) if n.isdecimal()), key=int)
        candidates = ["", *([BEST] if which == "best" else []), *(f"{CHECKPOINTS}/{n}" for n in reversed(numbers))]
        for candidate in candidates:
            checkpoint = RemoteFolder(join(uri, candidate) if candidate else uri)
            manifest = checkpoint.read(MANIFEST)
            if manifest is not None:
                return _downloaded(checkpoint, manifest, is_wanted)
        parent, _, name = at_uri.uri.rpartition("/")
        there = ", ".join(list_remote_runs(RemoteFolder(parent))) or "none"
    except RemoteError as error:
        raise CheckpointError(f"Cannot read {error}. Check the URI, the credentials and the network.") from error
    raise CheckpointError(f"No complete checkpoint in {uri}: expected a run folder or a checkpoint folder (with {MANIFEST}). Runs beside {name}: {there}.")


def _downloaded(checkpoint: RemoteFolder, manifest: bytes, is_wanted: Callable[[str], bool]) -> Path:
    folder = _cache() / "downloads" / _digest(f"{checkpoint.uri} {digest_of(manifest)}")
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / MANIFEST, manifest, synced=False)
    for path, size in listed_files(folder).items():  # nothing outside of the folder among them
        file = folder / path
        if not is_wanted(path) or (file.is_file() and file.stat().st_size == size and not find_problems(folder, [path])):
            continue
        temporary = folder / f".tmp-{uuid.uuid4().hex[:8]}"  # two processes may load the same policy
        try:
            checkpoint.get(path, temporary)
            file.parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary, file)
        except (FileNotFoundError, RemoteError) as error:
            raise CheckpointError(f"Cannot load checkpoint {checkpoint.uri}: {path}: {error}. Use another checkpoint.") from error
        finally:
            temporary.unlink(missing_ok=True)
    return folder


def _cache() -> Path:
    return user_cache_path("raytrain")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
