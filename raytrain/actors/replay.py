"""Replay buffers between a trainer and the disk with the results, which may be another node's: a chunk at a time, past the driver."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raytrain.replay_chunks import ChunkFile, ChunkReader, ChunkWriter, ReplayFiles

_CHUNK_TIMEOUT_S = 120.0  # to bring 64 MiB over a slow network to or from a slow disk


class ReplayDiskActor:
    """A `ChunkWriter` or `ChunkReader` on the driver's node. What the disk refuses is returned: Ray would wrap an error."""

    def __init__(self, disk: ChunkWriter | ChunkReader) -> None:
        self._disk = disk

    def call(self, name: str, *arguments: Any) -> Any:
        """A method of it; its result, or the `OSError`."""
        try:
            return getattr(self._disk, name)(*arguments)
        except OSError as error:
            return OSError(error.errno, error.strerror or str(error))


def own_node() -> str:
    """Id of the node that this process is on."""
    return ray.get_runtime_context().get_node_id()


def start_disk(disk: ChunkWriter | ChunkReader, node: str) -> ray.actor.ActorHandle:
    """A `ReplayDiskActor` on the node with this id."""
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(ReplayDiskActor).options(num_cpus=0, scheduling_strategy=here).remote(disk)


def _answer(actor: ray.actor.ActorHandle, *arguments: Any) -> Any:
    """Of a `ReplayDiskActor`.

    Raises:
        OSError: the disk refuses, or the actor does not answer.
    """
    try:
        answer = ray.get(actor.call.remote(*arguments), timeout=_CHUNK_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        raise OSError(errno.EIO, f"the process on the driver's machine that has its disk did not answer ({type(error).__name__})") from error
    if isinstance(answer, OSError):
        raise answer
    return answer


class RemoteReplayWriter:
    """A `ReplayWriter` whose disk is on another node: one chunk is on its way at a time, straight from this process to that one."""

    def __init__(self, actor: ray.actor.ActorHandle) -> None:
        self._actor = actor

    def begin(self) -> str:
        """See `ReplayWriter`."""
        return _answer(self._actor, "begin")

    def write(self, folder: str, number: int, tensors: dict[str, np.ndarray]) -> ChunkFile:
        """See `ReplayWriter`."""
        return _answer(self._actor, "write", folder, number, tensors)

    def remove(self, folder: str) -> None:
        """See `ReplayWriter`."""
        with suppress(OSError):
            _answer(self._actor, "remove", folder)


class OtherNodesReplay:
    """A `ReplayReader` that reads the files itself where it sees them (the same node, a disk that nodes share), and otherwise has them read on
    the node that has them.

    Args:
        node: id of that node. A process is started there only when it is needed, and ends with this reader.
    """

    def __init__(self, replay: ReplayFiles, node: str) -> None:
        self._replay, self._node = replay, node
        self._own = ChunkReader(replay)
        self._actor: ray.actor.ActorHandle | None = None

    @property
    def chunks(self) -> int:
        """See `ReplayReader`."""
        return self._own.chunks

    def shapes(self, number: int) -> dict[str, tuple[int, ...]]:
        """See `ReplayReader`."""
        return self._call("shapes", number)

    def read(self, number: int) -> dict[str, np.ndarray]:
        """See `ReplayReader`."""
        return self._call("read", number)

    def _call(self, name: str, number: int) -> Any:
        if self._actor is None:
            try:
                return getattr(self._own, name)(number)
            except OSError:
                if self._node == own_node():
                    raise
            self._actor = start_disk(self._own, self._node)
        return _answer(self._actor, name, number)
