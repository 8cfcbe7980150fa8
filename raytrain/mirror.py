"""Copies what a run writes on this machine to the URI of its results, from a thread: training never waits for it."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from raytrain.errors import UploadError
from raytrain.files import link_folder, replace_file, to_json
from raytrain.remote import RemoteError, RemoteFolder
from raytrain.remote_lock import LOCK
from raytrain.snapshot import MANIFEST

CHECKPOINTS = "checkpoints"
BEST = "best"
_INTERVAL_S = 5.0
_LAST_TRIES_S = (0.0, 1.0, 3.0)
"""Waits before each attempt at the end; a run that was told to stop has 15 s."""


def digest_of(manifest: bytes | None) -> str | None:
    """SHA-256 of a manifest, by which two checkpoints are told apart; None without one."""
    return None if manifest is None else hashlib.sha256(manifest).hexdigest()


class Mirror:
    """Brings a run's folder to its URI, again and again.

    A checkpoint's files come before its manifest, so that half of one does not exist; old ones are deleted once a newer one is there.
    Everything else is copied whole when it has changed. What fails is tried again in the next round.

    Args:
        run_path: the folder on this machine. Only read.
        remote: the run's folder at the URI.
        scratch: folder on the same disk for links to what is being uploaded, as the run may delete a checkpoint meanwhile.
        record: file that says which checkpoints have been uploaded: number -> SHA-256 of the manifest.
        keep: how many numbered checkpoints stay at the URI besides those that are here.
        refusal: why nothing may be written there any more (the lock is lost); None or empty while it may.

    Attributes:
        error: why the last round failed; None when it did not.
    """

    def __init__(
        self, run_path: Path, remote: RemoteFolder, scratch: Path, record: Path, keep: int, refusal: Callable[[], str | None] = lambda: None
    ) -> None:
        self._refusal = refusal
        self._path, self._remote, self._scratch, self._record, self._keep = run_path, remote, scratch, record, keep
        self.error: str | None = None
        self._uploaded: dict[str, str | None] | None = None  # folder at the URI -> its manifest's digest
        self._seen: dict[str, tuple[int, int]] = {}  # file -> size and time of change when it was uploaded
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def start(self) -> None:
        """Begin to upload."""
        self._thread.start()

    def finish(self) -> None:
        """Upload the rest, and stop.

        Raises:
            UploadError: not everything could be; says where it is on this machine.
        """
        self._stop.set()
        self._thread.join()
        for wait_s in _LAST_TRIES_S:
            time.sleep(wait_s)
            if self._try():
                return
        raise UploadError(
            f"The results could not be uploaded: {self.error}. Everything is in {self._path}; the same command with --resume on this machine "
            "goes on from there and uploads it."
        )

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            self._try()

    def _try(self) -> bool:
        try:
            self.sync()
        except OSError as error:  # RemoteError is one
            self.error = str(error)
            return False
        self.error = None
        return True

    def sync(self) -> None:
        """One round.

        Raises:
            RemoteError: the place refuses; what has been done is done.
            OSError: this machine's disk refuses.
        """
        problem = self._refusal()
        if problem:
            raise RemoteError(problem)
        if self._uploaded is None:
            self._uploaded = {name: digest_of(self._remote.read(f"{name}/{MANIFEST}")) for name in [*self._at_uri(), BEST]}
        here = [f"{CHECKPOINTS}/{p.name}" for p in _numbered(self._path / CHECKPOINTS)]
        for name in [*reversed(here), BEST]:
            self._upload_checkpoint(name)
        self._upload_files()
        self._delete_old(set(here))

    def _at_uri(self) -> list[str]:
        return [f"{CHECKPOINTS}/{name}" for name in self._remote.names(CHECKPOINTS) if name.isdecimal()]

    def _upload_checkpoint(self, name: str) -> None:
        copy = self._scratch / name.replace("/", "-")
        shutil.rmtree(copy, ignore_errors=True)
        try:
            digest = digest_of((self._path / name / MANIFEST).read_bytes())
            if self._uploaded.get(name) == digest:
                return
            copy.parent.mkdir(parents=True, exist_ok=True)
            link_folder(self._path / name, copy)
        except FileNotFoundError:
            return  # none, unfinished, or deleted just now
        files = sorted(p.relative_to(copy).as_posix() for p in copy.rglob("*") if p.is_file())
        if self._uploaded.get(name) is not None:  # another best, which must not be read half
            self._remote.remove(f"{name}/{MANIFEST}")
        self._uploaded[name] = None
        for file in sorted(files, key=lambda file: file == MANIFEST):
            self._remote.put(copy / file, f"{name}/{file}")
        self._uploaded[name] = digest
        shutil.rmtree(copy, ignore_errors=True)
        replace_file(self._record, to_json({k: v for k, v in self._uploaded.items() if v is not None}, "uploaded"))

    def _upload_files(self) -> None:
        """Everything but checkpoints. A file that grows while it is read is copied again in the next round."""
        for file in sorted(self._path.rglob("*")):
            path = file.relative_to(self._path)
            if path.parts[0] in (CHECKPOINTS, BEST, LOCK, f"{LOCK}.takeover") or any(part.startswith(".") for part in path.parts):
                continue
            try:
                if not file.is_file():
                    continue
                state = (file.stat().st_size, file.stat().st_mtime_ns)
                if self._seen.get(path.as_posix()) != state:
                    self._remote.put(file, path.as_posix())
                    self._seen[path.as_posix()] = state
            except FileNotFoundError:
                continue  # replaced just now

    def _delete_old(self, here: set[str]) -> None:
        """At the URI: beyond the newest `keep`, and unfinished ones of a dead writer; never what is here, and nothing while that is not there."""
        if any(self._uploaded.get(name) is None for name in here if (self._path / name / MANIFEST).is_file()):
            return
        complete = [name for name in sorted(self._uploaded, key=_number) if name != BEST and self._uploaded[name] is not None]
        stay = {*complete[-self._keep :], *here}
        for name in [name for name in self._uploaded if name != BEST and name not in stay]:
            self._remote.remove(f"{name}/{MANIFEST}")
            self._remote.remove(name)
            del self._uploaded[name]


def read_record(record: Path) -> dict[str, str]:
    """What `Mirror` has uploaded from this machine: folder -> SHA-256 of its manifest; empty if nothing is known."""
    try:
        found = json.loads(record.read_bytes())
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def _numbered(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if p.name.isdecimal() and (p / MANIFEST).is_file()), key=lambda p: int(p.name))


def _number(name: str) -> int:
    number = name.rpartition("/")[2]
    return int(number) if number.isdecimal() else -1
