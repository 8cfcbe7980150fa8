"""Replay buffers in files: bounded, exact, listed in the manifest, and nothing left of those that nobody took."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raytrain import replay_chunks
from raytrain.checkpoint import CheckpointStore, CheckpointWriteError, Snapshot
from raytrain.replay_chunks import ChunkReader, ChunkWriter, read_replay, write_replay
from raytrain.snapshot import find_problems
from tests.raytrain.test_checkpoint import make_behavior
from trainers.trainer import TrainerState

BOUND = 70_000


def make_state(rows: int) -> TrainerState:
    rng = np.random.default_rng(rows)
    replay = {
        "replay/obs/camera": rng.integers(0, 255, (rows, 8, 8, 3), np.uint8), "replay/next": rng.integers(0, 9, rows),
        "replay/terminated": rng.random(rows) < 0.5, "replay/reward": rng.standard_normal(rows).astype(np.float32),
    }
    return TrainerState({**make_behavior(3).trainer.tensors, **replay}, {"replay/frames": rows, "agent_steps": 3})


def save(store: CheckpointStore, rows: int) -> Path:
    state, replay = write_replay(make_state(rows), store.replay_writer("Walker"), BOUND)
    return store.save(Snapshot({"Walker": replace(make_behavior(3), trainer=state, replay=replay)}, {}))


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize("rows", [0, 1, 20, 1000])
def test_rows_come_back_bit_for_bit_from_bounded_files(tmp_path: Path, rows: int) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    path = save(store, rows)
    files = sorted(path.glob("Walker/replay-*"))
    assert len(files) == max(1, -(-rows // 21)) and all(file.stat().st_size <= BOUND for file in files)
    one, expected = store.load(path).behaviors["Walker"], make_state(rows)
    assert not any(name.startswith("replay/") for name in one.trainer.tensors) and one.trainer.scalars == expected.scalars
    found = {**one.trainer.tensors, **read_replay(ChunkReader(one.replay))}
    assert found.keys() == expected.tensors.keys()
    for name, array in expected.tensors.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array), name
    assert [p.name for p in path.parent.iterdir()] == ["000000"]


def test_a_chunk_that_is_gone_or_damaged_is_noticed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    before, path = save(store, 100), save(store, 100)
    first, second, *_ = sorted(path.glob("Walker/replay-*"))
    first.write_bytes(first.read_bytes()[:-1])
    second.unlink()
    assert [problem.split(":")[0] for problem in find_problems(path)] == ["Walker/replay-00000.safetensors", "Walker/replay-00001.safetensors"]
    assert store.load_latest()[1] == before


def test_what_nobody_took_is_deleted(tmp_path: Path) -> None:
    """A dead run's files, and those of a checkpoint that was asked for and not saved; those of another behavior may still be needed."""
    store = CheckpointStore(tmp_path, keep=2)
    write_replay(make_state(5), CheckpointStore(tmp_path, keep=2).replay_writer("Walker"), BOUND)
    writer = store.replay_writer("Walker")
    write_replay(make_state(5), writer, BOUND)
    write_replay(make_state(5), store.replay_writer("Crawler"), BOUND)
    state, replay = write_replay(make_state(6), writer, BOUND)
    store.save(Snapshot({"Walker": replace(make_behavior(3), trainer=state, replay=replay)}, {}))
    left = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert len(left) == 2 and left[0].startswith(".replay-") and "Crawler" in left[0] and left[1] == "000000"
    store.close()
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["000000"]


def test_a_disk_that_refuses_a_chunk_is_a_checkpoint_that_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 20)
    write_synced = replay_chunks.write_synced

    def refuse(path: Path, data: bytes) -> None:
        if path.name == "replay-00002.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_synced(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(replay_chunks, "write_synced", refuse)
        with pytest.raises(CheckpointWriteError, match="000001: the replay buffer could not be written: No space left.*000000 is intact"):
            save(store, 100)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["000000"]
    assert save(store, 100).name == "000001"


def test_one_chunk_at_a_time_is_held(tmp_path: Path) -> None:
    held: list[int] = []

    class Watched(ChunkWriter):
        def write(self, folder, number, tensors):
            held.append(sum(array.nbytes for array in tensors.values()))
            assert all(array.base is not None for array in tensors.values()), "a view, not a copy"
            return super().write(folder, number, tensors)

    _, replay = write_replay(make_state(500), Watched(tmp_path, ".replay-x-"), BOUND)
    assert max(held) <= BOUND and len(held) == len(replay.files) == 24
    reader = ChunkReader(replace(replay, folder=str(tmp_path / replay.folder)))
    assert len(read_replay(reader)["replay/next"]) == 500


def test_a_loaded_snapshot_may_be_saved_elsewhere_and_takes_nothing_away(tmp_path: Path) -> None:
    """As a trial of a population does with another's checkpoint."""
    given, other = CheckpointStore(tmp_path / "a", keep=2), CheckpointStore(tmp_path / "b", keep=2)
    (tmp_path / "b").mkdir()
    path = save(given, 100)
    copy = other.save(given.load(path))
    assert find_problems(path) == find_problems(copy) == []
    expected, found = (read_replay(ChunkReader(store.load(p).behaviors["Walker"].replay)) for store, p in ((given, path), (other, copy)))
    assert expected.keys() == found.keys() and all(np.array_equal(expected[name], found[name]) for name in expected)


def test_a_file_that_changed_after_it_was_checked_is_not_learnt_from(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    replay = store.load(save(store, 100)).behaviors["Walker"].replay
    file = Path(replay.folder) / replay.files[1].name
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(OSError, match="expected the SHA-256 that the checkpoint lists, found another one"):
        read_replay(ChunkReader(replay))
    file.write_bytes(b"x")
    with pytest.raises(OSError, match="expected the size that the checkpoint lists"):
        read_replay(ChunkReader(replay))
