"""A disk that refuses: training goes on, nothing that was there is lost, and the user is told.

Root may write into read-only folders and a container may not mount small disks, so the refusals are made: by the limit on the size of
a file, which the kernel enforces on root as well, or in the function that writes checkpoints.
"""

from __future__ import annotations

import csv
import errno
import io
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

import raytrain
from raytrain import checkpoint
from raytrain.checkpoint import CheckpointStore, CheckpointWriteError
from raytrain.cli import main
from raytrain.console import Console
from raytrain.csv_writer import CsvFile
from raytrain.stats import CUMULATIVE_REWARD
from raytrain.tensorboard_writer import TensorBoardFiles
from raytrain.writers import writing_metrics
from tests.raytrain.test_curve_files import read_curves, summary
from tests.raytrain.test_run import config


class Disk:
    """Takes checkpoints while it has space."""

    def __init__(self) -> None:
        self.is_full = False

    def write(self, path: Path, data: bytes) -> None:
        if self.is_full and path.name == "trainer.json":
            path.write_bytes(data[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.write_bytes(data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(checkpoint, "write_synced", disk.write)
    return disk


def train(results: Path, disk: Disk, full_after: int, free_after: int, **options) -> tuple[raytrain.Run | None, str, CheckpointWriteError | None]:
    """A run of 512 agent steps with checkpoints at 0, 256 and 512, whose disk is full between two summaries."""
    out = io.StringIO()

    def on_summary(summary) -> None:
        disk.is_full = full_after <= summary.step < free_after

    try:
        run = raytrain.train(config(), results_dir=results, run_id="run", local=True, console=Console(out), on_summary=on_summary, **options)
    except CheckpointWriteError as error:
        return None, " ".join(out.getvalue().split()), error
    return run, " ".join(out.getvalue().split()), None


def test_training_goes_on_and_the_next_checkpoint_has_its_state(tmp_path: Path, disk: Disk) -> None:
    run, text, error = train(tmp_path, disk, 128, 384)
    assert error is None and run.results["agent_steps"] >= 512
    assert text.count("No space left on device") == 1 and "the newest is 000000" in text and "the disk takes checkpoints again" in text
    snapshot, path, problems = CheckpointStore(run.path, 1).load_latest()
    assert problems == [] and snapshot.behaviors["CartPole"].agent_steps == run.results["agent_steps"]
    assert sorted(p.name for p in path.parent.iterdir()) == ["000000", "000001"], "nothing half-written"


def test_a_last_checkpoint_that_cannot_be_written_is_an_error_that_names_the_newest_good_one(tmp_path: Path, disk: Disk) -> None:
    run, text, error = train(tmp_path, disk, 384, 10_000)
    assert run is None and "No space left on device" in str(error) and "checkpoint 000001 is intact" in str(error)
    assert "stopping: max_steps=512 reached" in text, "it trained to its end all the same"
    snapshot, _, problems = CheckpointStore(tmp_path / "run", 1).load_latest()
    assert problems == [] and 256 <= snapshot.behaviors["CartPole"].agent_steps < 512
    disk.is_full = False
    resumed = raytrain.train(config(), results_dir=tmp_path, run_id="run", local=True, resume=True)
    assert resumed.results["agent_steps"] >= 512


def test_a_run_that_cannot_save_anything_ends_before_it_learns(tmp_path: Path, disk: Disk) -> None:
    disk.is_full = True
    run, _, error = train(tmp_path, disk, 0, 10_000)
    assert run is None and "there is no earlier checkpoint" in str(error)


def test_the_command_ends_with_code_1_and_the_sentence(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({**config(), "checkpoint_settings": {"results_dir": str(tmp_path), "run_id": "run"}}))
    save = CheckpointStore.save

    def save_the_first(store: CheckpointStore, snapshot):
        path = save(store, snapshot)
        disk.is_full = True
        return path

    monkeypatch.setattr(CheckpointStore, "save", save_the_first)
    assert main(["train", str(file), "--local"]) == 1
    printed = capsys.readouterr()
    assert "Cannot write checkpoint" in printed.err and "000000 is intact" in printed.err and "Traceback" not in printed.err + printed.out


def test_a_best_checkpoint_that_cannot_be_marked_is_a_warning(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "link_folder", refuse)
    store = CheckpointStore(tmp_path, keep=1)
    (tmp_path / "checkpoints" / "000000").mkdir(parents=True)
    (tmp_path / "checkpoints" / "000000" / "manifest.json").touch()
    assert not store.try_mark_best(tmp_path / "checkpoints" / "000000")
    assert len(store.messages) == 1 and "No space left" in store.messages[0]


@contextmanager
def full(path: Path, room: int) -> Iterator[None]:
    """No file grows beyond the size of `path` and `room` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 7, 40])
def test_metrics_that_the_disk_refused_are_written_later(tmp_path: Path, room: int) -> None:
    """Also where half a record or row got through, and with an evaluation and a new tag among what is held back."""
    events, table = TensorBoardFiles(tmp_path, clock=iter(range(0, 100, 2)).__next__), CsvFile(tmp_path)
    warnings: list[str] = []
    for writer, pattern in ((events, "events.*"), (table, "metrics.csv")):
        writer.write(summary(100))
        [path] = tmp_path.glob(pattern)
        with full(path, room):
            for step in (200, 300):
                with writing_metrics(warnings.append):
                    writer.write(summary(step))
            with writing_metrics(warnings.append):
                writer.evaluation(200, {"Evaluation/Return": 1.0})
        writer.write(summary(400))
        writer.close()
    assert len(warnings) >= 4 and all("too large" in text for text in warnings)
    assert [step for step, _ in read_curves(tmp_path)[CUMULATIVE_REWARD]] == [100, 200, 300, 400]
    assert read_curves(tmp_path)["Evaluation/Return"] == [(200, 1.0)]
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    assert [row["step"] for row in rows] == ["100", "200", "300", "400"] and [row["Evaluation/Return"] for row in rows] == ["", "1.0", "", ""]


def test_a_run_whose_metrics_cannot_be_written_learns_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "metrics.csv")

    monkeypatch.setattr(CsvFile, "_rewrite", refuse)
    out = io.StringIO()
    run = raytrain.train(config(), results_dir=tmp_path, run_id="run", local=True, console=Console(out))
    text = " ".join(out.getvalue().split())
    assert run.results["agent_steps"] >= 512 and text.count("cannot write metrics") == 1 and "are lost" in text
    assert len(read_curves(run.path / "CartPole")[CUMULATIVE_REWARD]) == 4, "the other file has all of it"
