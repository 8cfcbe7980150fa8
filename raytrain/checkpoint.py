"""The checkpoints of a run: numbered folders that appear whole or not at all, the best one, and the policies in them.

    checkpoints/.replay-… replay buffers on their way into a checkpoint (`raytrain.replay_chunks`)
    checkpoints/000012/   written as ``.tmp-000012-…``, every file synced, then renamed; deleted by way of ``.trash-000012``
    best/                 a complete checkpoint of its own (hard links to the numbered one where the disk can, copies elsewhere);
                          evaluation.json in it is what it is the best by, if not the training return
    latest                text: path of the newest checkpoint inside the run folder, for people and shell scripts
                          (symbolic links need rights on Windows). Nothing here reads it: the folders themselves decide.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from envs.specs import BehaviorSpec
from raytrain.files import link_folder, link_or_copy, portable_name, remove_folder, replace_file, sync_folder, write_synced
from raytrain.remote import is_uri
from raytrain.replay_chunks import ChunkWriter
from raytrain.run_folder import runs_near
from raytrain.snapshot import (
    MANIFEST,
    BehaviorSnapshot,
    CheckpointError,
    Snapshot,
    encode,
    find_problems,
    load_policy_part,
    load_snapshot,
    replay_files,
)
from trainers.networks import Distribution
from trainers.settings import NetworkSettings
from trainers.trainer import Weights

__all__ = [
    "BehaviorSnapshot", "CheckpointError", "CheckpointStore", "CheckpointWriteError", "PolicyFiles", "Snapshot",
    "find_checkpoint", "load_policy_files",
]
_FOLDER = "checkpoints"
_EVALUATION = "evaluation.json"
_NUMBER = re.compile("[0-9]{6,}")
_TRAINING = re.compile("/(trainer[.]|replay-)|^env_managers/")


class CheckpointWriteError(OSError):
    """A checkpoint that could not be written (full disk, read-only folder). Earlier checkpoints are intact.

    Attributes:
        reason: what could not be written and why, a sentence.
        newest: name of the newest checkpoint there is; empty without one.
    """

    reason = newest = ""

    def __str__(self) -> str:
        return self.strerror


class CheckpointStore:
    """Writes and finds the checkpoints of one run. Belongs to the process that holds the run's lock.

    Args:
        run_path: the run's folder.
        keep: how many numbered checkpoints stay, at least 1; the best one is kept besides.

    Attributes:
        messages: what the user should read (an old checkpoint that could not be deleted), oldest first.
        held: checkpoints that stay although there are `keep` newer ones, until `release`.
        unsaved: why the last `try_save` failed; None when it did not.
    """

    def __init__(self, run_path: str | Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"Expected keep of at least 1 checkpoint, received {keep}.")
        self.run_path = Path(run_path)
        self.keep = keep
        self.messages: list[str] = []
        self.held: set[Path] = set()
        self.unsaved: CheckpointWriteError | None = None
        self._folder = self.run_path / _FOLDER
        self._session = uuid.uuid4().hex[:8]
        self._best = self.run_path / "best"

    def paths(self) -> list[Path]:
        """Numbered checkpoints, oldest first. One without a manifest does not exist."""
        return [p for p in _numbered(self._folder) if (p / MANIFEST).is_file()]

    def save(self, snapshot: Snapshot) -> Path:
        """Write the next checkpoint and delete those beyond `keep`. When it returns, the disk has it.

        Returns:
            Folder of the new checkpoint; its number is one more than any there is, 0 in a new run.

        Raises:
            ValueError, TypeError: something in `snapshot` has no form on disk; nothing was written.
            CheckpointWriteError: the disk refuses; earlier checkpoints are intact and nothing half-written is left.
        """
        files, chunks = encode(snapshot), replay_files(snapshot)
        numbers = [int(p.name) for p in _numbered(self._folder)]
        path = self._folder / f"{max(numbers, default=-1) + 1:06d}"
        temporary = self._temporary(path.name)
        try:
            refused = [one.replay.error for one in snapshot.behaviors.values() if one.replay is not None and one.replay.error]
            if refused:
                raise OSError(errno.EIO, refused[0])
            self._clean_up()
            _write_files(temporary, files, {target: (self._folder / source.folder / file.name, source.kept) for target, (source, file) in chunks.items()})
            os.replace(temporary, path)
            sync_folder(self._folder)
        except OSError as error:
            raise self._write_error(path, error, sum(map(len, files.values())) + sum(file.size for _, file in chunks.values())) from error
        finally:
            self.drop_replay(snapshot.behaviors.values())
            shutil.rmtree(temporary, ignore_errors=True)  # gone after a success; what stays after a failure goes with the next save
        self._tidy(path)
        return path

    def replay_writer(self, behavior: str) -> ChunkWriter:
        """Where the trainer of a behavior brings its replay buffer; may be sent to another process of this machine."""
        return ChunkWriter(self._folder.absolute(), f".replay-{self._session}-{portable_name(behavior)}-")

    def drop_replay(self, behaviors: Iterable[BehaviorSnapshot]) -> None:
        """Delete what was written of replay buffers for snapshots that are saved now, or will not be, and for older ones of the same behaviors."""
        names = [one.replay.folder for one in behaviors if one.replay is not None and not one.replay.kept]
        for path in self._folder.glob(f".replay-{self._session}-*"):
            if any(path.name.rpartition("-")[0] == name.rpartition("-")[0] and path.name <= name for name in names):
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """After the trainers have ended: delete replay buffers that no checkpoint has taken."""
        for path in self._folder.glob(f".replay-{self._session}-*"):
            shutil.rmtree(path, ignore_errors=True)

    def try_save(self, snapshot: Snapshot) -> Path | None:
        """`save` for a run that goes on if the disk refuses: its state is well in memory, and the next checkpoint has more of it anyway.

        Returns:
            As `save`; None if the disk refuses, which is among the `messages` then, and in `unsaved` until a later one is written.

        Raises:
            ValueError, TypeError: as `save`.
            CheckpointWriteError: the disk refuses and there is no checkpoint at all, so that nothing is lost by ending at once.
        """
        try:
            path = self.save(snapshot)
        except CheckpointWriteError as error:
            if not error.newest:
                raise
            self.unsaved = error
            self.messages.append(
                f"{error.reason} Training goes on and the next checkpoint tries again; until then the newest is {error.newest}. "
                "Free some space or make the folder writable."
            )
            return None
        if self.unsaved is not None:
            self.messages.append(f"Checkpoint {path.name} is written: the disk takes checkpoints again.")
        self.unsaved = None
        return path

    def raise_unsaved(self) -> None:
        """At the end of a run: raise if the last checkpoint could not be written.

        Raises:
            CheckpointWriteError: of the last `try_save`.
        """
        if self.unsaved is not None:
            raise self.unsaved

    def load_latest(self) -> tuple[Snapshot, Path, list[str]]:
        """The newest checkpoint whose files are what its manifest says.

        Returns:
            Snapshot; its folder; what is wrong with newer ones, a line for each file (empty when the newest is sound).

        Raises:
            CheckpointError: there is none; each one found is named with the reason.
        """
        problems: list[str] = []
        for path in reversed(_numbered(self._folder)):
            found = find_problems(path)
            if not found:
                try:
                    return load_snapshot(path), path, problems
                except CheckpointError as error:
                    found = [str(error)]
            problems += [f"checkpoint {path.name}: {problem}" for problem in found]
        raise CheckpointError(f"No checkpoint to load in {self._folder}: {'; '.join(problems) or 'there is none'}.")

    @staticmethod
    def load(path: str | Path) -> Snapshot:
        """The snapshot in checkpoint folder `path` (a numbered one or ``best``).

        Raises:
            CheckpointError: not a complete checkpoint, or corrupt; each file is named with the reason.
        """
        return load_snapshot(Path(path))

    def mark_best(self, path: Path, evaluation: bytes | None = None) -> None:
        """Make ``best/`` the checkpoint at `path`; it stays when the numbered folder is deleted.

        Args:
            evaluation: what it is the best by, if that is an evaluation; see `best_evaluation`.

        Raises:
            CheckpointError: `path` is not a complete checkpoint.
            CheckpointWriteError: the disk refuses; the former best is intact.
        """
        if not (path / MANIFEST).is_file():
            raise CheckpointError(f"Expected a complete checkpoint to mark as best, found no {MANIFEST} in {path}.")
        temporary, former = self._temporary("best"), self._folder / ".trash-best"
        try:
            self._clean_up()
            link_folder(path, temporary)
            if evaluation is not None:
                write_synced(temporary / _EVALUATION, evaluation)
            if self._best.exists():
                os.replace(self._best, former)
            os.replace(temporary, self._best)
            sync_folder(self.run_path)
        except OSError as error:
            raise self._write_error(self._best, error) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            self._restore_best()
        if former.exists():
            self._delete(former, shutil.rmtree)

    def try_mark_best(self, path: Path, evaluation: bytes | None = None) -> bool:
        """`mark_best` for a run that goes on if the disk refuses; whether it did not. The reason is among the `messages` then."""
        try:
            self.mark_best(path, evaluation)
        except CheckpointWriteError as error:
            self.messages.append(f"{error.reason} Training goes on; the former best checkpoint stays until there is a better one.")
            return False
        return True

    def best_evaluation(self) -> bytes | None:
        """What `mark_best` was given with the checkpoint that is the best now; None without one, or if that was nothing."""
        self._restore_best()
        file = self._best / _EVALUATION
        return file.read_bytes() if file.is_file() else None

    def release(self, path: Path) -> None:
        """A held checkpoint may go, and does so at once if there are `keep` newer ones."""
        self.held.discard(path)
        self._delete_old()

    def _temporary(self, name: str) -> Path:
        """A name that is new each time, so that a leftover which cannot be deleted is in nobody's way."""
        return self._folder / f".tmp-{name}-{uuid.uuid4().hex[:8]}"

    def _clean_up(self) -> None:
        """Before each write: remove what a dead writer or a failure left. The run's lock says that no other writer lives."""
        self._folder.mkdir(exist_ok=True)
        sync_folder(self.run_path)
        self._restore_best()
        of_others = [path for path in self._folder.glob(".replay-*") if not path.name.startswith(f".replay-{self._session}-")]
        for path in [*self._folder.glob(".tmp-*"), *self._folder.glob(".trash-*"), *of_others]:
            self._delete(path, shutil.rmtree)

    def _restore_best(self) -> None:
        """A folder cannot be swapped in one step: whoever died or failed between the two leaves the former best here."""
        former = self._folder / ".trash-best"
        if not self._best.exists() and (former / MANIFEST).is_file():
            os.replace(former, self._best)

    def _tidy(self, newest: Path) -> None:
        """After a save: delete what is older than the newest `keep` and name the newest. The save stands even if this fails."""
        self._delete_old()
        try:
            replace_file(self.run_path / "latest", f"{newest.relative_to(self.run_path).as_posix()}\n".encode())
        except OSError as error:
            self.messages.append(f"Checkpoint {newest.name} is complete, but {self.run_path / 'latest'} could not be written: {error}")

    def _delete_old(self) -> None:
        kept = self.paths()[-self.keep:]
        for path in _numbered(self._folder):
            if int(path.name) < int(kept[0].name) and path not in self.held:
                self._delete(path, remove_folder)

    def _delete(self, path: Path, how: Callable[[Path], None]) -> None:
        try:
            how(path)
        except OSError as error:
            self.messages.append(f"Could not delete {path}, which is not needed any more: {error}. The next save tries again.")

    def _write_error(self, path: Path, error: OSError, size: int | None = None) -> CheckpointWriteError:
        there = self.run_path if self.run_path.exists() else Path(self.run_path.anchor or ".")
        good = self.paths()
        reason = (
            f"Cannot write checkpoint {path}: {error.strerror or error}. "
            f"{f'It needs {_readable(size)}; ' if size is not None else ''}{_readable(shutil.disk_usage(there).free)} are free there."
        )
        after = f", then go on with --resume: checkpoint {good[-1].name} is intact." if good else "; there is no earlier checkpoint."
        refused = CheckpointWriteError(error.errno, f"{reason} Free some space or make the folder writable{after}")
        refused.reason, refused.newest = reason, good[-1].name if good else ""
        return refused


class PolicyFiles(NamedTuple):
    """What acting needs, from a checkpoint."""

    spec: BehaviorSpec
    network: NetworkSettings
    weights: Weights
    version: int
    agent_steps: int
    distribution: Distribution = "gaussian"


def find_checkpoint(path: str | Path, which: Literal["best", "latest"] = "best", policy_only: bool = False) -> Path:
    """The checkpoint folder that `path` means.

    Args:
        path: a checkpoint folder, which is returned as it is, or a run folder. Of a URI, what is needed of it is downloaded.
        which: of a run folder, the best checkpoint (the newest in a run that has not marked one yet), or the newest.
        policy_only: what trainers go on from is not needed.

    Raises:
        CheckpointError: there is none.
    """
    if which not in ("best", "latest"):
        raise ValueError(f"Expected which to be 'best' or 'latest', received {which!r}.")
    if is_uri(path):
        from raytrain.staging import fetch_checkpoint

        return fetch_checkpoint(path, which, (lambda file: not _TRAINING.search(file)) if policy_only else (lambda file: True))
    path = Path(path).expanduser()
    candidates = [path, path / "best"] if which == "best" else [path]
    for candidate in candidates:
        if (candidate / MANIFEST).is_file():
            return candidate
    complete = [p for p in _numbered(path / _FOLDER) if (p / MANIFEST).is_file()]
    if complete:
        return complete[-1]
    if path.is_dir():
        raise CheckpointError(f"No complete checkpoint in {path}: expected a run folder or a checkpoint folder (with {MANIFEST}). {runs_near(path)}")
    raise CheckpointError(f"No folder {path.absolute()}. {runs_near(path)}")


def load_policy_files(path: str | Path, behavior: str | None = None, which: Literal["best", "latest"] = "best") -> PolicyFiles:
    """Spec, network settings and weights of a trained policy.

    Args:
        path: a run folder or a checkpoint folder.
        behavior: may be left out when there is one.
        which: as in `find_checkpoint`.

    Raises:
        CheckpointError: nothing there, several behaviors and none named, or a corrupt file (never replaced by another checkpoint's).
    """
    fields, weights = load_policy_part(find_checkpoint(path, which, policy_only=True), behavior)
    return PolicyFiles(fields["spec"], fields["network"], weights, fields["policy_version"], fields["agent_steps"], fields["distribution"])


def _numbered(folder: Path) -> list[Path]:
    """Numbered folders, complete or not, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _NUMBER.fullmatch(p.name)), key=lambda p: int(p.name))


def _write_files(folder: Path, files: dict[str, bytes], others: dict[str, tuple[Path, bool]]) -> None:
    """Make `folder` with new files and those that lie elsewhere: on the same disk, synced already, to be moved; or kept there."""
    folder.mkdir()
    for name, (source, is_kept) in others.items():
        (folder / name).parent.mkdir(exist_ok=True)
        if is_kept:
            link_or_copy(source, folder / name)
        else:
            os.replace(source, folder / name)
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_synced(folder / name, data)
    for subfolder in {(folder / name).parent for name in files}:
        sync_folder(subfolder)


def _readable(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"
