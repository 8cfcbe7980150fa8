"""Checkpoints: whole or not there, exact, pruned, and honest about damage."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from envs.specs import ActionPart, ActionSpec, BehaviorSpec, ObservationSpec, hybrid_action
from raytrain.checkpoint import (
    BehaviorSnapshot,
    CheckpointError,
    CheckpointStore,
    CheckpointWriteError,
    Snapshot,
    find_checkpoint,
    load_policy_files,
)
from raytrain.snapshot import _manifest, encode, find_problems
from trainers.settings import MemorySettings, NetworkSettings, ObservationSettings
from trainers.trainer import TrainerState

SPEC = BehaviorSpec(
    observations=(
        ObservationSpec("obs", (4,)), ObservationSpec("camera", (8, 8, 3), "uint8", "image", ("camera",), is_uint8_image=True),
        ObservationSpec("arm/1", (2,), "int64", "categorical", ("arm", 1), choices=(3, 4), starts=(0, -1)),
    ),
    action=replace(hybrid_action((
        ActionPart(("go",), ActionSpec("box", continuous_size=2, low=(-1.0, 0.1), high=(1.0, 0.3), shape=(2,), dtype="float32")),
        ActionPart(("say", 0), ActionSpec("discrete", discrete_branches=(5,), starts=(2,))),
    )), masked=True),
    left_out=("mission",),
)
NETWORK = NetworkSettings(
    hidden_units=8, layers=(8, 4), activation="tanh", normalize=True, memory=MemorySettings(memory_size=6), model="my_model:make",
    observations={"camera": ObservationSettings(encoder="resnet", channels="first")}, model_kwargs={"width": [1, 2], "name": None},
)


def make_behavior(steps: int = 0, reward: float | None = None) -> BehaviorSnapshot:
    rng = np.random.Generator(np.random.PCG64(steps))
    tensors = {
        "actor/dense_0/kernel": rng.standard_normal((4, 8)).astype(np.float32),
        "optimizer/step": np.array(steps, np.int64),
        "normalizer/obs/mean": rng.standard_normal(4),
        "normalizer/obs/count": np.array(steps + 0.25),
        "rows/terminated": rng.random(5) < 0.5,
        "rows/none": np.zeros((0, 3), np.uint8),
    }
    scalars = {"agent_steps": steps, "updates": steps // 2, "rng": rng.bit_generator.state, "kl": 0.1 + steps / 3}
    return BehaviorSnapshot(
        trainer=TrainerState(tensors, scalars),
        policy={"actor/dense_0/kernel": tensors["actor/dense_0/kernel"]},
        policy_version=steps // 2,
        agent_steps=steps,
        spec=SPEC,
        network=NETWORK,
        reward=reward,
    )


def make_snapshot(steps: int = 0, names: tuple[str, ...] = ("Walker",)) -> Snapshot:
    return Snapshot({name: make_behavior(steps) for name in names}, run={"elapsed_s": 1.5, "seeds": [1, 2**127 + 1]})


def save_many(store: CheckpointStore, steps: range) -> list[Path]:
    return [store.save(make_snapshot(step)) for step in steps]


def assert_same_behavior(found: BehaviorSnapshot, expected: BehaviorSnapshot) -> None:
    for left, right in ((found.trainer.tensors, expected.trainer.tensors), (found.policy, expected.policy)):
        assert left.keys() == right.keys()
        for name, array in right.items():
            assert left[name].dtype == array.dtype and left[name].shape == array.shape
            assert left[name].tobytes() == array.tobytes(), name
    assert found.trainer.scalars == expected.trainer.scalars
    for field in ("policy_version", "agent_steps", "spec", "network", "reward"):
        assert getattr(found, field) == getattr(expected, field)


def names_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power cut happens in here; one test looks at what is synced and when."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "results" / "a run"
    path.mkdir(parents=True)
    return path


# What goes in comes out


def test_a_snapshot_comes_back_bit_for_bit(run: Path) -> None:
    """C22, C25: weights, optimizer slots, statistics with their count, random-number state, counters."""
    snapshot = Snapshot({"Walker": make_behavior(12, reward=-3.25), "Crawler": make_behavior(7)}, run={"ledger": {"produced": 19}})
    found = CheckpointStore(run, keep=1).load(CheckpointStore(run, keep=1).save(snapshot))
    assert list(found.behaviors) == ["Walker", "Crawler"]
    for name, behavior in snapshot.behaviors.items():
        assert_same_behavior(found.behaviors[name], behavior)
    assert found.run == {"ledger": {"produced": 19}}


def test_random_numbers_go_on_where_they_were(run: Path) -> None:
    """C22: the 128-bit state of PCG64 survives JSON."""
    rng = np.random.default_rng(5)
    rng.random(3)
    store = CheckpointStore(run, keep=1)
    store.save(Snapshot({}, run={"rng": rng.bit_generator.state}))
    restored = np.random.default_rng()
    restored.bit_generator.state = store.load_latest()[0].run["rng"]
    np.testing.assert_array_equal(restored.random(10), rng.random(10))


def test_numpy_scalars_become_numbers_and_whole_ones_stay_whole(run: Path) -> None:
    """C21: a step counter is the same whole number after a resume."""
    values = {"steps": np.int64(2**53 + 1), "on": np.bool_(True), "lr": np.float32(0.1), "count": 3, "mean": 3.0, "none": None}
    store = CheckpointStore(run, keep=1)
    store.save(Snapshot({}, run=values))
    found = store.load_latest()[0].run
    assert found == {"steps": 2**53 + 1, "on": True, "lr": float(np.float32(0.1)), "count": 3, "mean": 3.0, "none": None}
    assert [type(v) for v in found.values()] == [int, bool, float, int, float, type(None)]


def test_a_transposed_tensor_survives(run: Path) -> None:
    kernel = np.arange(6.0, dtype=np.float32).reshape(2, 3).T
    behavior = make_behavior()
    behavior.policy["kernel"] = kernel
    store = CheckpointStore(run, keep=1)
    store.save(Snapshot({"Walker": behavior}))
    np.testing.assert_array_equal(store.load_latest()[0].behaviors["Walker"].policy["kernel"], kernel)


def test_loaded_arrays_belong_to_the_caller(run: Path) -> None:
    store = CheckpointStore(run, keep=1)
    path = store.save(make_snapshot(1))
    store.load(path).behaviors["Walker"].policy["actor/dense_0/kernel"][:] = 0.0
    assert_same_behavior(store.load(path).behaviors["Walker"], make_behavior(1))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("-inf")])
def test_a_number_json_has_no_form_for_is_refused_by_its_path(run: Path, value: float) -> None:
    snapshot = Snapshot({}, run={"controller": {"rewards": [1.0, value]}})
    with pytest.raises(ValueError, match=r"run\.run\.controller\.rewards\[1\]"):
        CheckpointStore(run, keep=1).save(snapshot)
    assert names_in(run) == []


@pytest.mark.parametrize("value", [np.zeros(2), {1: "a"}, object(), b"bytes", {1, 2}])
def test_a_scalar_that_is_not_json_is_refused_by_its_path(run: Path, value: object) -> None:
    with pytest.raises(TypeError, match=r"run\.run\.odd"):
        CheckpointStore(run, keep=1).save(Snapshot({}, run={"odd": value}))
    assert names_in(run) == []


def test_a_tensor_of_objects_is_refused_by_its_name(run: Path) -> None:
    """Nothing on disk could run code: an object array is not quietly pickled."""
    behavior = make_behavior()
    behavior.trainer.tensors["odd"] = np.array([{}, None], dtype=object)
    with pytest.raises(TypeError, match=r"trainer state of Walker.*'odd': 'object'"):
        CheckpointStore(run, keep=1).save(Snapshot({"Walker": behavior}))
    assert names_in(run) == []


def test_equal_snapshots_give_equal_bytes(run: Path, tmp_path: Path) -> None:
    """Two lock-step runs of one seed can be compared file by file."""
    (tmp_path / "other").mkdir()
    first, second = CheckpointStore(run, keep=1).save(make_snapshot(3)), CheckpointStore(tmp_path / "other", keep=1).save(make_snapshot(3))
    files = [p.relative_to(first) for p in first.rglob("*") if p.is_file()]
    assert len(files) == 6
    assert all((first / f).read_bytes() == (second / f).read_bytes() for f in files)


def test_a_later_checkpoint_differs_from_the_restored_one(run: Path) -> None:
    """C29: what is saved after a resume is the state of now."""
    CheckpointStore(run, keep=5).save(make_snapshot(3))
    store = CheckpointStore(run, keep=5)
    snapshot, path, _ = store.load_latest()
    snapshot.behaviors["Walker"].policy["actor/dense_0/kernel"][:] += 1.0
    newer = store.save(snapshot)
    weights = Path("Walker", "policy.safetensors")
    assert (path / weights).read_bytes() != (newer / weights).read_bytes()
    assert_same_behavior(store.load_latest()[0].behaviors["Walker"], snapshot.behaviors["Walker"])


def test_snapshots_cross_process_borders_without_ray_and_tensorflow(tmp_path: Path) -> None:
    """C95: a snapshot unpickles where neither can be imported, and neither is loaded by this module."""
    message = tmp_path / "snapshot"
    message.write_bytes(pickle.dumps(make_snapshot(3)))
    script = (
        "import sys; sys.modules['ray'] = sys.modules['tensorflow'] = None\n"
        "import pickle, raytrain.checkpoint\n"
        f"snapshot = pickle.load(open({str(message)!r}, 'rb'))\n"
        f"raytrain.checkpoint.CheckpointStore({str(tmp_path)!r}, 1).save(snapshot)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])
    assert_same_behavior(CheckpointStore(tmp_path, 1).load_latest()[0].behaviors["Walker"], make_behavior(3))


# Names and numbers


def test_behavior_names_become_portable_folders(run: Path) -> None:
    """C100: no file name contains any of the characters that some system refuses; the names themselves come back."""
    names = ("a/b", "a:b", 'w\\?*"<>|', "Walker?team=0", "..", "con", "run.json", "Läufer 1", "x" * 300, "50%", "tab\t", " end.")
    path = CheckpointStore(run, keep=1).save(make_snapshot(1, names))
    found = [p.relative_to(run).as_posix() for p in run.rglob("*")]
    assert not [p for p in found if set(p) & set('\\:*?"<>|\t')]
    assert all(len(part.encode()) < 200 and not part.endswith((" ", ".")) for p in found for part in p.split("/"))
    folders = json.loads((path / "run.json").read_bytes())["behaviors"]
    assert list(folders) == list(names) and len({f.casefold() for f in folders.values()}) == len(names)
    assert folders["Läufer 1"] == "Läufer 1" and folders["Walker?team=0"] == "Walker%3Fteam=0"
    assert list(CheckpointStore.load(path).behaviors) == list(names)
    assert load_policy_files(path, "a:b").agent_steps == 1


def test_behaviors_that_differ_in_case_only_are_refused(run: Path) -> None:
    """C100: on a disk that ignores case one would overwrite the other."""
    with pytest.raises(ValueError, match="'Walker' and 'WALKER'"):
        CheckpointStore(run, keep=1).save(make_snapshot(1, ("Walker", "WALKER")))


def test_numbers_count_up_from_zero_and_go_on_after_a_resume(run: Path) -> None:
    """C32: one folder for each save."""
    assert [p.name for p in save_many(CheckpointStore(run, keep=2), range(3))] == ["000000", "000001", "000002"]
    assert CheckpointStore(run, keep=2).save(make_snapshot(9)).name == "000003"


def test_keep_leaves_exactly_that_many_numbered_folders(run: Path) -> None:
    """C16: keep_checkpoints 3, 20 saves -> 3 numbered folders, and the best one besides."""
    store = CheckpointStore(run, keep=3)
    for step in range(20):
        path = store.save(make_snapshot(step))
        if step == 4:
            store.mark_best(path)
    assert names_in(run / "checkpoints") == ["000017", "000018", "000019"]
    assert names_in(run) == ["best", "checkpoints", "latest"]
    assert store.load(run / "best").behaviors["Walker"].agent_steps == 4
    assert (run / "latest").read_text() == "checkpoints/000019\n"
    assert store.messages == []


def test_keep_below_one_is_refused(run: Path) -> None:
    with pytest.raises(ValueError, match="received 0"):
        CheckpointStore(run, keep=0)


def test_a_lower_keep_takes_effect_after_a_resume(run: Path) -> None:
    save_many(CheckpointStore(run, keep=5), range(5))
    CheckpointStore(run, keep=1).save(make_snapshot(5))
    assert names_in(run / "checkpoints") == ["000005"]


def test_numbers_grow_past_six_digits(run: Path) -> None:
    store = CheckpointStore(run, keep=2)
    store.save(make_snapshot(1)).rename(run / "checkpoints" / "999999")
    assert store.save(make_snapshot(2)).name == "1000000"
    assert store.load_latest()[1].name == "1000000"


# Damage


def corrupt(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


DAMAGE: list[tuple[str, Callable[[Path], None], str]] = [
    ("Walker/policy.safetensors", corrupt, "expected SHA-256"),
    ("Walker/trainer.safetensors", cut, "bytes, found"),
    ("Walker/trainer.json", Path.unlink, "No such file"),
    ("run.json", corrupt, "expected SHA-256"),
    ("manifest.json", cut, "not readable"),
    ("manifest.json", Path.unlink, "never finished"),
    ("manifest.json", lambda p: p.write_text("[]"), "not readable"),
    ("manifest.json", lambda p: p.write_text('{"format": 2, "files": {}}'), "changed since it was written"),
    ("manifest.json", lambda p: p.write_bytes(p.read_bytes()[:-1]), "changed since it was written"),
    ("manifest.json", lambda p: p.write_text('{"format": 3}'), "format 3"),
    ("manifest.json", lambda p: p.write_text(p.read_text().replace("Walker/", "../../x/")), "paths inside the checkpoint, found '../../x/"),
    ("manifest.json", lambda p: p.write_text(re.sub(r'"size": (\d+)', r'"size": "\1"', p.read_text())), "whole number"),
    ("manifest.json", lambda p: p.write_text("[" * 100_000), "not readable"),
]


@pytest.mark.parametrize(("file", "damage", "reason"), DAMAGE)
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(
    run: Path, file: str, damage: Callable[[Path], None], reason: str
) -> None:
    store = CheckpointStore(run, keep=3)
    paths = save_many(store, range(3))
    damage(paths[2] / file)
    snapshot, path, problems = store.load_latest()
    assert path == paths[1]
    assert_same_behavior(snapshot.behaviors["Walker"], make_behavior(1))
    assert any("checkpoint 000002" in p and file in p and reason in p for p in problems), problems
    with pytest.raises(CheckpointError, match=reason):
        store.load(paths[2])
    assert store.save(make_snapshot(9)).name == "000003", "its number is not used again"


def test_a_sound_newest_checkpoint_has_no_problems(run: Path) -> None:
    store = CheckpointStore(run, keep=3)
    paths = save_many(store, range(2))
    corrupt(paths[0] / "run.json")
    assert store.load_latest()[1:] == (paths[1], [])


def test_when_none_is_sound_each_is_listed_with_its_reason(run: Path) -> None:
    store = CheckpointStore(run, keep=3)
    paths = save_many(store, range(2))
    corrupt(paths[0] / "run.json")
    (paths[1] / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"000001: manifest.json: missing.*000000: run.json: expected SHA-256"):
        store.load_latest()


def test_no_checkpoint_at_all_is_an_error_that_says_where(run: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a run.checkpoints: there is none"):
        CheckpointStore(run, keep=3).load_latest()


def test_one_without_a_manifest_is_neither_counted_nor_kept_for_ever(run: Path) -> None:
    store = CheckpointStore(run, keep=2)
    paths = save_many(store, range(2))
    (paths[1] / "manifest.json").unlink()
    assert store.paths() == [paths[0]]
    save_many(store, range(2, 4))
    assert names_in(run / "checkpoints") == ["000002", "000003"]


# Death and refusal at every step

CHANGES = ("replace", "mkdir", "fsync", "unlink", "rmdir", "link")


class Killed(BaseException):
    """The process is gone: from here on nothing of it touches the disk."""


def break_at(patch: pytest.MonkeyPatch, n: int, error: BaseException, for_ever: bool) -> list[int]:
    """Let the n-th change of the disk fail with `error`, and all later ones too if `for_ever`.

    Returns:
        A list that gets the steps that failed.
    """
    steps = itertools.count()
    broken_steps: list[int] = []

    def broken(change: Callable) -> Callable:
        def call(*args: object, **kwargs: object) -> object:
            step = next(steps)
            if step == n or (for_ever and step > n):
                broken_steps.append(step)
                raise error
            return change(*args, **kwargs)

        return call

    for name in CHANGES:
        patch.setattr(os, name, broken(getattr(os, name)))
    return broken_steps


@pytest.fixture
def prepared(run: Path) -> Path:
    """A run with checkpoints 0 to 2, of which the first is the best, and what a dead writer left."""
    store = CheckpointStore(run, keep=3)
    paths = save_many(store, range(3))
    store.mark_best(paths[0])
    shutil.copytree(paths[2], run / "checkpoints" / ".tmp-000003")
    return run


def save_next(store: CheckpointStore) -> None:
    store.save(make_snapshot(3))


def mark_newest(store: CheckpointStore) -> None:
    store.mark_best(store.paths()[-1])


@pytest.mark.parametrize("action", [save_next, mark_newest])
def test_a_process_killed_at_any_step_leaves_whole_checkpoints_only(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Callable[[CheckpointStore], None]
) -> None:
    for step in itertools.count():
        run = Path(shutil.copytree(prepared, tmp_path / str(step)))
        killed = False
        with monkeypatch.context() as patch:
            break_at(patch, step, Killed(), True)
            try:
                action(CheckpointStore(run, keep=3))
            except Killed:
                killed = True
        heir = CheckpointStore(run, keep=3)
        snapshot, path, problems = heir.load_latest()
        assert problems == [] and path.name in ("000002", "000003"), step
        assert_same_behavior(snapshot.behaviors["Walker"], make_behavior(int(path.name)))
        assert all(find_problems(p) == [] for p in heir.paths()), step
        assert load_policy_files(run).agent_steps in (0, 2, 3), step
        heir.save(make_snapshot(9))
        assert len(names_in(run / "checkpoints")) == 3, "no leftovers"
        assert heir.load(run / "best").behaviors["Walker"].agent_steps in (0, 2), step
        if not killed:
            break
    assert step > 15, "the simulation reached the steps"


@pytest.mark.parametrize("action", [save_next, mark_newest])
def test_a_disk_that_refuses_any_step_leaves_what_was_there(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Callable[[CheckpointStore], None]
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    refused = 0
    for step in itertools.count():
        run = Path(shutil.copytree(prepared, tmp_path / str(step)))
        store = CheckpointStore(run, keep=3)
        with monkeypatch.context() as patch:
            broken_steps = break_at(patch, step, full, False)
            try:
                action(store)
            except CheckpointWriteError as error:
                refused += 1
                assert error.errno == errno.ENOSPC
                assert str(run) in str(error) and "No space left" in str(error) and "B are free" in str(error)
                assert "checkpoint 00000" in str(error) and "is intact" in str(error)
        _, path, problems = store.load_latest()
        assert problems == [] and path.name in ("000002", "000003"), step
        assert store.load(run / "best").behaviors["Walker"].agent_steps in (0, 2), step
        action(store)
        assert len(names_in(run / "checkpoints")) == 3, "no leftovers"
        if not broken_steps:
            break
    assert refused > 5, "the simulation reached the steps"


def test_everything_is_on_the_disk_before_the_name_appears(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut right after the rename must not find empty files behind a valid name; the manifest is the last file."""
    synced: list[int] = []
    before: list[int] = []
    replace = os.replace

    def record(source: Path, target: Path) -> None:
        if Path(target).name == "000000":
            before.extend(synced)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    monkeypatch.setattr(os, "replace", record)
    path = CheckpointStore(run, keep=1).save(make_snapshot(1))
    folders = {p.stat().st_ino for p in (path, path / "Walker")}
    files = {p.stat().st_ino for p in path.rglob("*") if p.is_file()}
    assert folders | files <= set(before)
    assert [i for i in before if i in files][-1] == (path / "manifest.json").stat().st_ino
    assert path.parent.stat().st_ino in synced[len(before):]


def test_a_full_disk_leaves_the_last_good_checkpoint(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C16: the error has path, need and free space; the folder looks as before."""
    store = CheckpointStore(run, keep=3)
    store.save(make_snapshot(1))
    before = names_in(run / "checkpoints")

    def write_half(path: Path, data: bytes) -> None:
        path.write_bytes(data[: len(data) // 2])
        if path.name == "policy.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("raytrain.checkpoint.write_synced", write_half)
        with pytest.raises(OSError, match=r"000001: No space left on device\. It needs .* kB; .* MB are free there.*000000 is intact"):
            store.save(make_snapshot(2))
    assert names_in(run / "checkpoints") == before
    assert store.load_latest()[1].name == "000000"
    assert store.save(make_snapshot(2)).name == "000001", "goes on once there is space"


def test_a_place_that_cannot_be_written_is_named(run: Path) -> None:
    (run / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(CheckpointWriteError, match=r"checkpoints.000000.*there is no earlier checkpoint"):
        CheckpointStore(run, keep=3).save(make_snapshot(1))


def test_an_old_checkpoint_that_cannot_be_deleted_does_not_fail_the_save(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(run, keep=1)
    store.save(make_snapshot(1))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path, ignore_errors=False: None if ignore_errors else os.rmdir(path))
        assert store.save(make_snapshot(2)).name == "000001"
    assert store.load_latest()[1].name == "000001"
    assert len(store.messages) == 1 and "000000" in store.messages[0]
    CheckpointStore(run, keep=1).save(make_snapshot(3))
    assert names_in(run / "checkpoints") == ["000002"]


# Best, and policies


def test_best_is_complete_and_its_own(run: Path) -> None:
    store = CheckpointStore(run, keep=1)
    for step in (1, 2):
        store.mark_best(store.save(make_snapshot(step)))
    store.save(make_snapshot(3))
    assert find_problems(run / "best") == []
    assert store.load(run / "best").behaviors["Walker"].agent_steps == 2
    assert names_in(run / "checkpoints") == ["000002"]


def test_best_without_hard_links_is_a_copy(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(run, keep=1)
    path = store.save(make_snapshot(1))

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "link", refuse)
    store.mark_best(path)
    assert find_problems(run / "best") == []


def test_only_a_complete_checkpoint_can_be_best(run: Path) -> None:
    store = CheckpointStore(run, keep=1)
    path = store.save(make_snapshot(1))
    (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"no manifest\.json"):
        store.mark_best(path)


def test_a_policy_is_found_by_run_folder_or_checkpoint_folder(run: Path) -> None:
    """D9: the run folder is enough; best by default, the newest where none is marked yet or when asked for."""
    store = CheckpointStore(run, keep=5)
    paths = save_many(store, range(2, 8, 2))
    assert find_checkpoint(run) == paths[-1]
    store.mark_best(paths[1])
    spec, network, weights, version, agent_steps, distribution = load_policy_files(run)
    assert (spec, network, version, agent_steps, distribution) == (SPEC, NETWORK, 2, 4, "gaussian")
    expected = make_behavior(4).policy["actor/dense_0/kernel"]
    np.testing.assert_array_equal(weights["actor/dense_0/kernel"], expected)
    assert load_policy_files(run, which="latest").agent_steps == 6
    assert load_policy_files(str(paths[0]), "Walker").agent_steps == 2


def test_several_behaviors_must_be_told_apart(run: Path) -> None:
    CheckpointStore(run, keep=1).save(make_snapshot(1, ("Walker", "Crawler")))
    with pytest.raises(CheckpointError, match=r"behavior=NAME.*'Walker', 'Crawler'"):
        load_policy_files(run)
    with pytest.raises(CheckpointError, match=r"received 'Runner'.*'Walker', 'Crawler'"):
        load_policy_files(run, "Runner")
    assert load_policy_files(run, "Crawler").agent_steps == 1


def test_a_corrupt_policy_is_refused_not_replaced(run: Path) -> None:
    """D9: a policy never comes from another checkpoint than the one asked for."""
    paths = save_many(CheckpointStore(run, keep=3), range(2))
    corrupt(paths[1] / "Walker" / "policy.safetensors")
    with pytest.raises(CheckpointError, match=r"000001: Walker/policy\.safetensors: expected SHA-256"):
        load_policy_files(run)
    assert load_policy_files(paths[0]).agent_steps == 0


def test_nothing_to_load_says_what_there_is(run: Path) -> None:
    CheckpointStore(run, keep=1).save(make_snapshot(1))
    with pytest.raises(CheckpointError, match="Runs in .*: a run"):
        load_policy_files(run.parent / "other")
    with pytest.raises(CheckpointError, match="No complete checkpoint in"):
        load_policy_files(run.parent)
    with pytest.raises(ValueError, match="'best' or 'latest', received 'newest'"):
        load_policy_files(run, which="newest")  # type: ignore[arg-type]


def test_reading_leaves_a_live_writers_files_alone(run: Path) -> None:
    """A notebook may load from a run that is just saving."""
    store = CheckpointStore(run, keep=3)
    path = store.save(make_snapshot(1))
    (run / "checkpoints" / ".tmp-000001").mkdir()
    CheckpointStore(run, keep=3).load_latest()
    load_policy_files(run)
    CheckpointStore.load(path)
    assert names_in(run / "checkpoints") == [".tmp-000001", "000000"]


# Which algorithm


def test_the_algorithm_is_part_of_a_checkpoint(run: Path) -> None:
    """So that it can be refused by another one, and its policy acts as it did."""
    behavior = replace(make_behavior(3), trainer_type="sac", distribution="gsde")
    path = CheckpointStore(run, keep=1).save(Snapshot({"Walker": behavior}))
    loaded = CheckpointStore.load(path).behaviors["Walker"]
    assert (loaded.trainer_type, loaded.distribution) == ("sac", "gsde")
    assert load_policy_files(path).distribution == "gsde"


def test_a_manifest_that_fits_what_is_no_checkpoint_is_no_traceback(run: Path) -> None:
    """Made by another program: the checksums are right, the content is not."""
    store = CheckpointStore(run, keep=3)
    paths = save_many(store, range(2))
    files = encode(make_snapshot(3))
    files["Walker/policy.json"] = files["Walker/policy.json"].replace(b'"hidden_units"', b'"hidden_unit"')
    entries = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items() if name != "manifest.json"}
    files["manifest.json"] = _manifest(entries)
    for name, data in files.items():
        (paths[1] / name).write_bytes(data)
    _, path, problems = store.load_latest()
    assert path == paths[0] and len(problems) == 1 and "hidden_unit" in problems[0]
    with pytest.raises(CheckpointError, match="not what this raytrain writes"):
        load_policy_files(paths[1])
