"""Results at a URI: uploaded whole, refused as on disk, resumed on a machine that has never seen the run."""

from __future__ import annotations

import inspect
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

fsspec = pytest.importorskip("fsspec", reason="needs the extra remote")

import raytrain
from raytrain import mirror, staging
from raytrain.checkpoint import CheckpointError, CheckpointStore, find_checkpoint
from raytrain.console import Console
from raytrain.errors import RunFolderError, UploadError
from raytrain.remote import RemoteError, RemoteFolder, is_uri
from raytrain.replay_chunks import ChunkReader
from raytrain.run_folder import RunFolder
from raytrain.run_lock import Holder
from tests.raytrain import sac_runs
from tests.raytrain.test_checkpoint import make_snapshot
from tests.raytrain.test_run import config


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The cache of this machine; after `new_machine` that of another one."""
    caches = [tmp_path / "cache 0"]
    monkeypatch.setattr(staging, "_cache", lambda: caches[-1])
    monkeypatch.setattr(mirror, "_LAST_TRIES_S", (0.0,))
    yield caches
    from fsspec.implementations.memory import MemoryFileSystem

    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def new_machine(caches: list[Path]) -> None:
    caches.append(caches[0].with_name(f"cache {len(caches)}"))


@pytest.fixture(params=["memory", "file"])
def results(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://bucket/my results" if request.param == "memory" else f"file://{tmp_path}/my results"


def begin(results: str, keep: int = 5, **flags: bool) -> tuple[RunFolder, CheckpointStore]:
    folder = RunFolder.create(results, "run", **flags)
    folder.write_configuration("env: CartPole-v1\n")
    return folder, CheckpointStore(folder.path, keep)


def finish(folder: RunFolder, keep: int = 5) -> None:
    folder.begin_upload(keep, lambda text: None)
    folder.finish_upload()
    folder.unlock()


def save(results: str, steps: range, **flags: bool) -> None:
    folder, store = begin(results, **flags)
    for step in steps:
        path = store.save(make_snapshot(step))
    store.mark_best(path)
    (folder.behavior_path("Walker") / "metrics.csv").write_text(f"step\n{step}\n")
    finish(folder)


def damage(results: str, path: str) -> None:
    run = RemoteFolder(f"{results}/run")
    run.write(path, run.read(path)[:-3])


def test_what_is_a_uri() -> None:
    assert is_uri("s3://a/b") and is_uri("file:///a") and not is_uri("results") and not is_uri("C:\\results") and not is_uri(Path("s3://a"))


@pytest.mark.slow
def test_a_saved_replay_buffer_is_read_by_the_trainer_from_what_was_downloaded(results: str, machine: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """In its chunks, by what makes the trainer, and by nobody else on the way there."""
    data = sac_runs.config(hyperparameters={"save_replay_buffer": True})
    first = raytrain.train(data, results_dir=results, run_id="run", local=True, console=Console(io.StringIO()))
    saved = sac_runs.replays(sac_runs.checkpoints(first)[-1])["Target"]
    new_machine(machine)
    readers, read, told = [], ChunkReader.read, io.StringIO()

    def noted(reader: ChunkReader, number: int) -> dict[str, np.ndarray]:
        readers.append(inspect.stack()[2].function)
        return read(reader, number)

    monkeypatch.setattr(ChunkReader, "read", noted)
    data["behaviors"]["Target"]["max_steps"] += 100
    more = raytrain.train(data, results_dir=results, run_id="run", local=True, resume=True, console=Console(told))
    assert set(readers) == {"_with_replay"} and "no replay buffer" not in told.getvalue()
    loaded = sac_runs.replays(sorted((more.path / "checkpoints").iterdir())[1])["Target"]  # the first is the one that was downloaded
    assert more.path != first.path and saved.keys() == loaded.keys() and all(np.array_equal(saved[name], loaded[name]) for name in saved)


@pytest.mark.slow
def test_a_run_is_at_its_uri_and_goes_on_from_there_on_another_machine(results: str, machine: list[Path]) -> None:
    """Checkpoints, best, curves and configuration; the resumed run ends as one that was resumed on disk."""
    run = raytrain.train(config(), results_dir=results, run_id="run", local=True, console=Console(io.StringIO()))
    at_uri = RemoteFolder(f"{results}/run")
    here = {p.relative_to(run.path).as_posix(): p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    assert set(at_uri.files()) == set(here) and all(at_uri.read(path) == data for path, data in here.items())
    assert json.loads(at_uri.read("status.json"))["state"] == "finished" and "timers.json" in here
    shutil.copytree(run.path, machine[0].parent / "on disk" / "run")
    new_machine(machine)
    out = io.StringIO()
    more = raytrain.train(config(max_steps=1024), results_dir=results, run_id="run", local=True, resume=True, console=Console(out))
    assert more.path != run.path and more.results["agent_steps"] >= 1024 and f"{results}/run" in " ".join(out.getvalue().split())
    on_disk = raytrain.train(config(max_steps=1024), results_dir=machine[0].parent / "on disk", run_id="run", local=True, resume=True)
    newest = [CheckpointStore(path, 1).load_latest()[0].behaviors["CartPole"].policy for path in (more.path, on_disk.path)]
    assert all(np.array_equal(newest[0][name], tensor) for name, tensor in newest[1].items())
    rows = at_uri.read("CartPole/metrics.csv").decode().splitlines()
    assert [row.split(",")[0] for row in rows] == ["step", *(str(step) for step in range(128, 1025, 128))]
    new_machine(machine)
    policy = raytrain.load_policy(f"{results}/run", which="latest")
    assert policy.agent_steps == more.results["agent_steps"]
    assert not list(machine[-1].rglob("trainer.safetensors")), "acting does not need it"


def test_the_newest_sound_checkpoint_comes_back_and_damaged_ones_are_named(results: str, machine: list[Path]) -> None:
    save(results, range(4))
    damage(results, "checkpoints/000003/Walker/trainer.safetensors")
    damage(results, "checkpoints/000002/manifest.json")
    new_machine(machine)
    folder, store = begin(results, resume=True)
    snapshot, path, problems = store.load_latest()
    assert path.name == "000001" and snapshot.behaviors["Walker"].agent_steps == 1
    assert [p.split(":")[0] for p in problems] == ["checkpoint 000003", "checkpoint 000002"]
    assert (folder.path / "Walker" / "metrics.csv").read_text() == "step\n3\n"
    assert store.save(make_snapshot(9)).name == "000004"
    finish(folder)
    assert RemoteFolder(f"{results}/run/checkpoints").names()[-1] == "000004"


def test_old_checkpoints_leave_the_uri_once_newer_ones_are_there(results: str, machine: list[Path]) -> None:
    save(results, range(4))
    new_machine(machine)
    folder, store = begin(results, keep=2, resume=True)
    store.save(make_snapshot(9))
    finish(folder, keep=2)
    assert RemoteFolder(f"{results}/run/checkpoints").names() == ["000003", "000004"]
    assert find_checkpoint(f"{results}/run", "best") != find_checkpoint(f"{results}/run", "latest")


def test_an_upload_that_was_cut_off_is_no_checkpoint(results: str, machine: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Files first, manifest last; the run goes on, says so at its end and uploads the rest when it is resumed."""
    save(results, range(2))
    folder, store = begin(results, resume=True)
    store.save(make_snapshot(2))
    put = RemoteFolder.put

    def cut_off(self: RemoteFolder, source: Path, path: str) -> None:
        if path == "checkpoints/000002/manifest.json":
            raise RemoteError("the network is gone")
        put(self, source, path)

    with monkeypatch.context() as patch:
        patch.setattr(RemoteFolder, "put", cut_off)
        folder.begin_upload(5, lambda text: None)
        with pytest.raises(UploadError, match="the network is gone.*Everything is in .*--resume"):
            folder.finish_upload()
    folder.unlock()
    assert find_checkpoint(f"{results}/run", "latest").is_dir()
    assert CheckpointStore.load(find_checkpoint(f"{results}/run", "latest")).behaviors["Walker"].agent_steps == 1
    folder, store = begin(results, resume=True)
    assert store.load_latest()[1].name == "000002", "this machine has more than the URI"
    finish(folder)
    assert CheckpointStore.load(find_checkpoint(f"{results}/run", "latest")).behaviors["Walker"].agent_steps == 2


def test_what_another_machine_has_added_replaces_what_is_here(results: str, machine: list[Path]) -> None:
    save(results, range(2))
    new_machine(machine)
    folder, store = begin(results, resume=True)
    store.save(make_snapshot(7))
    finish(folder)
    machine.append(machine[0])
    folder, store = begin(results, resume=True)
    assert store.load_latest()[0].behaviors["Walker"].agent_steps == 7
    folder.unlock()


def test_a_run_id_that_exists_is_refused_and_force_moves_it_aside(results: str, machine: list[Path]) -> None:
    save(results, range(2))
    for _ in range(2):  # also where this machine has never seen it
        with pytest.raises(RunFolderError, match="Run id 'run' exists in .*my results; use --resume"):
            RunFolder.create(results, "run")
        new_machine(machine)
    with pytest.raises(RunFolderError, match=r"no run 'walk' in .*Runs there: run\."):
        RunFolder.create(results, "walk", resume=True)
    save(results, range(5, 6), force=True)
    [aside] = RemoteFolder(f"{results}/.replaced").names()
    assert CheckpointStore.load(find_checkpoint(f"{results}/.replaced/{aside}")).behaviors["Walker"].agent_steps == 1
    assert RemoteFolder(f"{results}/run/checkpoints").names() == ["000000"]
    assert "lock" not in RemoteFolder(f"{results}/.replaced/{aside}").names()


def test_a_live_run_elsewhere_is_refused_and_a_silent_one_is_taken_over(results: str) -> None:
    save(results, range(2))
    run, holder = RemoteFolder(f"{results}/run"), replace(Holder.this_process(), host="elsewhere")
    run.write("lock", holder.to_bytes())
    with pytest.raises(RunFolderError, match="in use by process .* on host elsewhere"):
        RunFolder.create(results, "run", resume=True)
    run.write("lock", replace(holder, heartbeat=holder.heartbeat - 3600).to_bytes())
    folder = RunFolder.create(results, "run", resume=True)
    assert "Took over the lock" in " ".join(folder.messages)
    run.write("lock", holder.to_bytes())
    folder._remote.lock.beat()
    with pytest.raises(RunFolderError, match="taken over by .*elsewhere"):
        folder.check_lock()
    folder.unlock()
    assert Holder.from_bytes(run.read("lock")).host == "elsewhere", "it is not ours to remove"


@pytest.mark.slow
def test_a_run_goes_on_while_its_uri_is_out_of_reach(results: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1 with where the results are, and everything is uploaded when it is resumed."""
    monkeypatch.setattr(mirror, "_INTERVAL_S", 0.05)
    out = io.StringIO()

    def refuse(self: RemoteFolder, source: Path, path: str) -> None:
        raise RemoteError(f"{self.uri}/{path}: no route to host")

    with monkeypatch.context() as patch:
        patch.setattr(RemoteFolder, "put", refuse)
        with pytest.raises(UploadError, match="no route to host"):
            raytrain.train(config(), results_dir=results, run_id="run", local=True, console=Console(out))
    assert "stopping: max_steps=512 reached" in out.getvalue()
    with pytest.raises(RunFolderError, match="it was never uploaded"):
        RunFolder.create(results, "run")
    raytrain.train(config(max_steps=600), results_dir=results, run_id="run", local=True, resume=True, console=Console(out))
    assert raytrain.load_policy(f"{results}/run", which="latest").agent_steps >= 600


@pytest.mark.slow
def test_weights_of_a_run_at_a_uri_begin_another(results: str, machine: list[Path], tmp_path: Path) -> None:
    first = raytrain.train(config(), results_dir=results, run_id="run", local=True)
    new_machine(machine)
    data = config(max_steps=128, hyperparameters={"learning_rate": 0.0})
    for number, named in enumerate((f"{results}/run", "run")):  # a URI, or a run id among the results
        second = raytrain.train(data, results_dir=results, run_id=f"second{number}", local=True, initialize_from=named)
        before, after = (
            CheckpointStore.load(find_checkpoint(path)).behaviors["CartPole"].policy["actor/dense_0/kernel"] for path in (first.path, second.path))
        np.testing.assert_array_equal(before, after)


def test_nothing_at_a_uri_and_kinds_that_nobody_knows(results: str) -> None:
    with pytest.raises(CheckpointError, match="No complete checkpoint in"):
        raytrain.load_policy(f"{results}/run")
    with pytest.raises(RunFolderError, match="nonsense"):
        RunFolder.create("nonsense://a/b", "run")


def test_a_damaged_policy_at_a_uri_is_refused(results: str, machine: list[Path]) -> None:
    save(results, range(1))
    damage(results, "best/Walker/policy.safetensors")
    with pytest.raises(CheckpointError, match="policy.safetensors: expected"):
        raytrain.load_policy(f"{results}/run")


@pytest.mark.slow
def test_a_bucket_of_an_s3_server(machine: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same against the protocol of a real object store, on the loopback address."""
    pytest.importorskip("s3fs", reason="needs s3fs")
    server_of = pytest.importorskip("moto.server", reason="needs moto[server], an S3 server for tests").ThreadedMotoServer
    server = server_of(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {"ENDPOINT_URL": f"http://{host}:{port}", "ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x", "DEFAULT_REGION": "us-east-1"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        fsspec.filesystem("s3").mkdir("bucket")
        results = "s3://bucket/my results"
        raytrain.train(config(), results_dir=results, run_id="run", local=True, console=Console(io.StringIO()))
        new_machine(machine)
        with pytest.raises(RunFolderError, match="use --resume"):
            RunFolder.create(results, "run")
        more = raytrain.train(config(max_steps=1024), results_dir=results, run_id="run", local=True, resume=True, console=Console(io.StringIO()))
        new_machine(machine)
        assert raytrain.load_policy(f"{results}/run", which="latest").agent_steps == more.results["agent_steps"]
        save(results, range(2), force=True)
        assert RemoteFolder(f"{results}/run/checkpoints").names() == ["000000", "000001"] and len(RemoteFolder(f"{results}/.replaced").names()) == 1
    finally:
        server.stop()
