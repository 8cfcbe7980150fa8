"""A replay buffer on its way into a checkpoint and back: in files of at most 64 MiB, written where the results are while the trainer waits for
one of them at a time, and read by the trainer itself. It never passes through the driver.

    checkpoints/.replay-<session>-<behavior>-000003/replay-00000.safetensors, …     until `raytrain.checkpoint` moves them into a checkpoint
"""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import safetensors.numpy
from safetensors import safe_open

from raytrain.files import sync_folder, write_synced
from trainers.trainer import TrainerState

CHUNK_BYTES = 64 * 2**20
REPLAY = "replay/"
"""What the names of a replay buffer's tensors begin with; all have a row for each frame."""


@dataclass(frozen=True)
class ChunkFile:
    """A file of a replay buffer: name, size (bytes), SHA-256."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class ReplayFiles:
    """A replay buffer that has been written.

    Attributes:
        folder: name, beside the numbered checkpoints; the whole path of one that is `kept`.
        files: in the order of the rows.
        error: why it could not be written; empty if it was.
        kept: it is part of a checkpoint and stays there.
    """

    folder: str
    files: tuple[ChunkFile, ...] = ()
    error: str = ""
    kept: bool = False


class ReplayWriter(Protocol):
    """Where a trainer brings its replay buffer."""

    def begin(self) -> str:
        """A new empty folder for one replay buffer; its name.

        Raises:
            OSError: the disk refuses; also in `write`.
        """

    def write(self, folder: str, number: int, tensors: dict[str, np.ndarray]) -> ChunkFile:
        """Write a chunk; when it returns, the disk has it."""

    def remove(self, folder: str) -> None:
        """Delete what was written to `folder`, as far as that is possible."""


class ChunkWriter:
    """Writes into the checkpoints folder of a run, in the process that is on its machine.

    Args:
        checkpoints: the folder of the numbered checkpoints; made if missing.
        prefix: of the folders' names; unique for a behavior and a start of its run.
    """

    def __init__(self, checkpoints: Path, prefix: str) -> None:
        self._checkpoints, self._prefix, self._count = checkpoints, prefix, 0

    def of_life(self, life: int) -> ChunkWriter:
        """One for a trainer that was started `life` times before: its folders have other names."""
        return ChunkWriter(self._checkpoints, f"{self._prefix}{life}-")

    def begin(self) -> str:
        """See `ReplayWriter`."""
        self._count += 1
        folder = f"{self._prefix}{self._count:06d}"
        (self._checkpoints / folder).mkdir(parents=True)
        return folder

    def write(self, folder: str, number: int, tensors: dict[str, np.ndarray]) -> ChunkFile:
        """See `ReplayWriter`."""
        data = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in tensors.items()})
        name = f"replay-{number:05d}.safetensors"
        write_synced(self._checkpoints / folder / name, data)
        sync_folder(self._checkpoints / folder)
        return ChunkFile(name, len(data), hashlib.sha256(data).hexdigest())

    def remove(self, folder: str) -> None:
        """See `ReplayWriter`."""
        shutil.rmtree(self._checkpoints / folder, ignore_errors=True)


def write_replay(state: TrainerState, writer: ReplayWriter, chunk_bytes: int = CHUNK_BYTES) -> tuple[TrainerState, ReplayFiles | None]:
    """Bring the replay buffer in `state` to the disk, a chunk at a time.

    Returns:
        The state without it; the files, with `ReplayFiles.error` where the disk refused. None if the state has no replay buffer.
    """
    replay = {name: array for name, array in state.tensors.items() if name.startswith(REPLAY)}
    rest = TrainerState({name: array for name, array in state.tensors.items() if name not in replay}, state.scalars)
    if not replay:
        return rest, None
    folder, files = "", []
    try:
        folder = writer.begin()
        for number, (start, stop) in enumerate(_row_ranges(replay, chunk_bytes)):
            files.append(writer.write(folder, number, {name: array[start:stop] for name, array in replay.items()}))
    except OSError as error:  # the run goes on and the next checkpoint tries again
        if folder:
            writer.remove(folder)
        return rest, ReplayFiles(folder, error=f"the replay buffer could not be written: {error.strerror or error}")
    return rest, ReplayFiles(folder, tuple(files))


class ReplayReader(Protocol):
    """Where a trainer has its replay buffer from; its chunks are numbered from 0."""

    @property
    def chunks(self) -> int:
        """How many there are."""

    def shapes(self, number: int) -> dict[str, tuple[int, ...]]:
        """Name -> shape of the tensors in a chunk.

        Raises:
            OSError: its file is gone, or is not the one that the checkpoint lists; also in `read`.
        """

    def read(self, number: int) -> dict[str, np.ndarray]:
        """The tensors of a chunk; they may be read only."""


class ChunkReader:
    """Reads chunks in a process that sees the disk of a checkpoint."""

    def __init__(self, replay: ReplayFiles) -> None:
        self._folder, self._files = Path(replay.folder), replay.files

    @property
    def chunks(self) -> int:
        """See `ReplayReader`."""
        return len(self._files)

    def shapes(self, number: int) -> dict[str, tuple[int, ...]]:
        """See `ReplayReader`."""
        path, listed = self._folder / self._files[number].name, self._files[number]
        if path.stat().st_size != listed.size:
            raise _changed(path, "size")
        with safe_open(path, "numpy") as chunk:
            return {name: tuple(chunk.get_slice(name).get_shape()) for name in chunk.keys()}  # noqa: SIM118 - no mapping

    def read(self, number: int) -> dict[str, np.ndarray]:
        """See `ReplayReader`."""
        path, listed = self._folder / self._files[number].name, self._files[number]
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != listed.sha256:
            raise _changed(path, "SHA-256")
        return safetensors.numpy.load(data)


def _changed(path: Path, what: str) -> OSError:
    return OSError(errno.EIO, f"expected the {what} that the checkpoint lists, found another one", str(path))


def read_replay(source: ReplayReader) -> dict[str, np.ndarray]:
    """Tensors of a replay buffer from its chunks, in the order of the rows: into arrays made beforehand, a chunk at a time.

    Raises:
        OSError, ValueError, KeyError, SafetensorError: a file is gone or is not a chunk that fits the others.
    """
    shapes = [source.shapes(number) for number in range(source.chunks)]
    tensors: dict[str, np.ndarray] = {}
    start = 0
    for number, shape in enumerate(shapes):
        rows = next(iter(shape.values()))[0]
        for name, array in source.read(number).items():
            if name not in tensors:
                tensors[name] = np.empty((sum(one[name][0] for one in shapes), *array.shape[1:]), array.dtype)
            tensors[name][start : start + rows] = array
        start += rows
    return tensors


def _row_ranges(replay: dict[str, np.ndarray], chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """First row and the one after the last of each chunk; one of no rows for an empty buffer, which keeps names and dtypes."""
    rows = len(next(iter(replay.values())))
    row_bytes = sum(array.nbytes for array in replay.values()) // max(1, rows)
    every = max(1, (chunk_bytes - 64 * 1024) // max(1, row_bytes))  # with room for the header
    for start in range(0, max(1, rows), every):
        yield start, min(start + every, rows)
