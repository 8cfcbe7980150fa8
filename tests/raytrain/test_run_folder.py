"""Run folders: nothing is overwritten unasked, and two live runs never share one."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from raytrain import run_lock
from raytrain.errors import RunFolderError
from raytrain.files import portable_name
from raytrain.run_folder import REPLACED, RunFolder, list_runs
from raytrain.run_lock import STALE_S, Holder, RunLock, read_holder

ROOT = Path(__file__).parents[2]
FLAGS = [{}, {"resume": True}, {"force": True}]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results folder that does not exist yet, in a path with a space."""
    return tmp_path / "my results"


def finish_run(results: Path, run_id: str = "a") -> Path:
    with RunFolder.create(results, run_id) as run:
        run.write_configuration("env: CartPole-v1\n")
        (run.path / "checkpoints" / "000000").mkdir(parents=True)
        (run.behavior_path("CartPole") / "metrics.csv").write_text("1,2\n")
    return run.path


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and time of change of everything in `folder`."""
    return {
        p.relative_to(folder).as_posix(): (p.read_bytes() if p.is_file() else b"", p.stat().st_mtime_ns)
        for p in [folder, *folder.rglob("*")]
    }


def write_lock(folder: Path, **changes: object) -> Holder:
    """A lock in `folder` of this process but for `changes`."""
    holder = replace(Holder.this_process(), **changes)
    (folder / "lock").write_bytes(holder.to_bytes())
    return holder


@contextmanager
def live_run(results: Path, run_id: str, **flags: bool) -> Iterator[subprocess.Popen]:
    """Another process that holds the run's folder until it is told to end."""
    script = (
        "import sys\nfrom raytrain.run_folder import RunFolder\n"
        f"with RunFolder.create({str(results)!r}, {run_id!r}, **{flags!r}) as run:\n"
        "    run.write_configuration('env: CartPole-v1')\n    (run.path / 'checkpoints' / '0').mkdir(parents=True, exist_ok=True)\n"
        "    print('locked', flush=True)\n    sys.stdin.readline()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "locked\n"
        yield process
    finally:
        process.communicate("end\n") if process.poll() is None else process.communicate()


# Run ids and flags


def test_a_new_run_gets_a_folder_and_a_lock(results: Path) -> None:
    with RunFolder.create(results, "first run") as run:
        assert run.path == results / "first run" and run.path.is_absolute()
        assert json.loads((run.path / "lock").read_text())["pid"] == os.getpid()
        assert run.messages == []
    assert list(run.path.iterdir()) == []


def test_the_path_outlives_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with RunFolder.create("results", "a") as run:
        monkeypatch.chdir("/")
        run.write_configuration("x")
    assert (tmp_path / "results" / "a" / "configuration.yaml").read_text() == "x"


def test_an_existing_run_id_is_refused_and_no_byte_changes(results: Path) -> None:
    """C87: without a flag the second run is refused and the first stays as it is."""
    path = finish_run(results)
    before = content(results)
    with pytest.raises(RunFolderError, match=r"Run id 'a' exists in .*my results; use --resume, --force or another --run-id"):
        RunFolder.create(results, "a")
    assert content(results) == before and path.exists()


def test_resume_continues_in_the_same_folder(results: Path) -> None:
    """C87: --resume keeps what is there."""
    finish_run(results)
    with RunFolder.create(results, "a", resume=True) as run:
        assert (run.path / "configuration.yaml").read_text() == "env: CartPole-v1\n"
        assert (run.path / "CartPole" / "metrics.csv").exists() and run.messages == []


def test_resume_of_a_missing_run_lists_those_there_are(results: Path) -> None:
    """C87"""
    finish_run(results, "a")
    finish_run(results, "b")
    (results / "not a run").mkdir()
    with pytest.raises(RunFolderError, match=r"no run 'c' in .*Runs there: a, b\."):
        RunFolder.create(results, "c", resume=True)
    with pytest.raises(RunFolderError, match=r"Runs there: none\."):
        RunFolder.create(results / "elsewhere", "a", resume=True)
    assert sorted(p.name for p in results.iterdir()) == ["a", "b", "not a run"], "a refused resume makes no folder"


def test_a_check_refuses_what_create_would_and_touches_nothing(results: Path) -> None:
    """C87: a mistake shows before anything is started."""
    RunFolder.check(results, "a")
    assert not results.exists()
    finish_run(results)
    before = content(results)
    RunFolder.check(results, "a", force=True)
    RunFolder.check(results, "a", resume=True)
    for run_id, flags in (("a", {}), ("a", {"resume": True, "force": True}), ("b", {"resume": True}), ("a/b", {})):
        with pytest.raises(RunFolderError):
            RunFolder.check(results, run_id, **flags)
    assert content(results) == before


def test_both_flags_are_refused(results: Path) -> None:
    """C87"""
    finish_run(results)
    before = content(results)
    with pytest.raises(RunFolderError, match="received both"):
        RunFolder.create(results, "a", resume=True, force=True)
    assert content(results) == before


def test_force_moves_only_that_run_aside(results: Path) -> None:
    """C87: --force begins at step 0; the old run can still be had, the neighbours are untouched."""
    finish_run(results, "a")
    finish_run(results, "b")
    neighbour = content(results / "b")
    for count in (1, 2):
        with RunFolder.create(results, "a", force=True) as run:
            assert [p.name for p in run.path.iterdir()] == ["lock"]
            assert len(run.messages) == 1 and REPLACED in run.messages[0]
            run.write_configuration("again")
        assert len(list((results / REPLACED).glob("a-*"))) == count
    first = min((results / REPLACED).iterdir())
    assert sorted(p.name for p in first.iterdir()) == ["CartPole", "checkpoints", "configuration.yaml"], "and no lock"
    assert content(results / "b") == neighbour
    assert list_runs(results) == ["a", "b"]


def test_force_of_a_new_run_id_is_a_new_run(results: Path) -> None:
    with RunFolder.create(results, "a", force=True) as run:
        assert run.messages == [] and not (results / REPLACED).exists()


def test_a_run_that_cannot_be_moved_stays(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = finish_run(results)

    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EACCES, "a file in it is open", str(source))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(RunFolderError, match="a file in it is open"):
        RunFolder.create(results, "a", force=True)
    assert sorted(p.name for p in path.iterdir()) == ["CartPole", "checkpoints", "configuration.yaml"]


@pytest.mark.parametrize("flags", FLAGS)
def test_a_folder_that_is_no_run_is_left_alone(results: Path, flags: dict[str, bool]) -> None:
    """C87: ``--results-dir . --run-id src --force`` must not move a user's code."""
    (results / "src").mkdir(parents=True)
    (results / "src" / "my_env.py").write_text("")
    (results / "file").write_text("")
    before = content(results)
    with pytest.raises(RunFolderError, match=r"not the folder of a run.*'my_env\.py'"):
        RunFolder.create(results, "src", **flags)
    with pytest.raises(RunFolderError, match="found a file"):
        RunFolder.create(results, "file", **flags)
    assert content(results) == before


def test_an_empty_folder_is_a_new_run(results: Path) -> None:
    """A run that died before it wrote anything does not use up its id."""
    (results / "a").mkdir(parents=True)
    write_lock(results / "a", pid=2**22 + 7)
    with RunFolder.create(results, "a") as run:
        assert "Took over" in run.messages[0]


@pytest.mark.parametrize(
    "run_id", ["", ".", "..", "a/b", "a\\b", "/tmp", "a:b", "a*", "why?", 'a"', "<a>", "a|b", ".a", "a.", " a", "a ", "a\n", "nul", "COM1.x", "é" * 99]
)
def test_a_run_id_that_is_no_portable_name_is_refused(results: Path, run_id: str) -> None:
    """C100: run names contain none of \\ / : * ? " < > |"""
    with pytest.raises(RunFolderError, match="Expected a run id"):
        RunFolder.create(results, run_id)
    assert not results.exists()


@pytest.mark.parametrize("run_id", ["a", "CartPole-2024_01.b", "run 7", "Läufer", "0", "console"])
def test_usual_run_ids_work(results: Path, run_id: str) -> None:
    with RunFolder.create(results, run_id) as run:
        assert run.path.name == run_id


def test_a_results_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"Cannot use .*file.results.a as run folder.*--results-dir"):
        RunFolder.create(tmp_path / "file" / "results", "a")


# The lock


@pytest.mark.parametrize("flags", FLAGS)
def test_a_live_run_is_refused_whatever_the_flags(results: Path, flags: dict[str, bool]) -> None:
    """C87: two processes; the message names process, host and age, and nothing is changed."""
    with live_run(results, "a") as other:
        before = content(results / "a")
        before.pop("lock")
        with pytest.raises(RunFolderError) as refusal:
            RunFolder.create(results, "a", **flags)
        after = content(results / "a")
        after.pop("lock")
        assert after == before and not (results / REPLACED).exists()
        assert f"in use by process {other.pid} on host " in str(refusal.value) and "last sign of life 0:00:" in str(refusal.value)
    assert not (results / "a" / "lock").exists(), "it unlocked at its end"
    with RunFolder.create(results, "a", resume=True) as run:
        assert run.messages == []


@pytest.mark.parametrize("flags", [{"resume": True}, {"force": True}])
def test_a_killed_run_is_succeeded_at_once(results: Path, flags: dict[str, bool]) -> None:
    """Its lock is there, its process is not."""
    with live_run(results, "a") as other:
        other.kill()
        other.wait()
        with RunFolder.create(results, "a", **flags) as run:
            assert f"Took over the lock that process {other.pid} on host" in run.messages[0]
            assert read_holder(run.path / "lock").pid == os.getpid()


def test_a_zombie_is_dead(results: Path) -> None:
    with live_run(results, "a") as other:
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        with RunFolder.create(results, "a", resume=True) as run:
            assert len(run.messages) == 1


def test_this_process_cannot_hold_a_run_twice(results: Path) -> None:
    """C98: a notebook cell that runs again says what to do."""
    with RunFolder.create(results, "a") as run:
        run.write_configuration("x")
        (run.path / "checkpoints" / "000000").mkdir(parents=True)
        run.lock()
        with pytest.raises(RunFolderError, match="this very process.*restart the kernel"):
            RunFolder.create(results, "a", resume=True)
    run.unlock()
    with RunFolder.create(results, "a", resume=True):
        pass


def test_another_hosts_run_is_dead_after_a_minute_of_silence(results: Path) -> None:
    path = finish_run(results)
    write_lock(path, host="elsewhere", heartbeat=time.time() - STALE_S / 2)
    with pytest.raises(RunFolderError, match="on host elsewhere.*60 s of silence"):
        RunFolder.create(results, "a", resume=True)
    write_lock(path, host="elsewhere", heartbeat=time.time() - STALE_S - 1)
    with RunFolder.create(results, "a", resume=True) as run:
        assert "host elsewhere" in run.messages[0]


def test_a_container_on_the_same_host_is_judged_by_its_heartbeat(results: Path) -> None:
    """Its process numbers are not ours: that we see no such process says nothing."""
    path = finish_run(results)
    write_lock(path, process_space="pid:[1]", pid=2**22 + 7)
    with pytest.raises(RunFolderError, match="in use"):
        RunFolder.create(results, "a", resume=True)


def test_a_process_number_used_again_is_not_the_holder(results: Path) -> None:
    path = finish_run(results)
    holder = write_lock(path)
    write_lock(path, process_start=holder.process_start - 100, heartbeat=time.time() - 30)
    with RunFolder.create(results, "a", resume=True) as run:
        assert len(run.messages) == 1


def test_a_clock_that_was_set_does_not_kill_a_live_holder(results: Path) -> None:
    """Start times come from the wall clock: a fresh heartbeat counts for more."""
    path = finish_run(results)
    write_lock(path, process_start=1.0)
    with pytest.raises(RunFolderError, match="in use"):
        RunFolder.create(results, "a", resume=True)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"pid": 1}', b"\xff"])
def test_an_unreadable_lock_is_judged_by_the_age_of_its_file(results: Path, data: bytes) -> None:
    """Another run may be just about to write it."""
    lock = finish_run(results) / "lock"
    lock.write_bytes(data)
    with pytest.raises(RunFolderError, match="on host unknown"):
        RunFolder.create(results, "a", resume=True)
    os.utime(lock, (time.time() - STALE_S - 1,) * 2)
    with RunFolder.create(results, "a", resume=True) as run:
        assert len(run.messages) == 1


def test_of_many_successors_one_gets_the_lock(tmp_path: Path) -> None:
    for _ in range(20):
        write_lock(tmp_path, host="elsewhere", heartbeat=0.0)
        locks = [RunLock(tmp_path / "lock") for _ in range(8)]
        start = threading.Barrier(len(locks))
        refusals: list[RunFolderError] = []

        def take(lock: RunLock, start: threading.Barrier = start, refusals: list = refusals) -> None:
            start.wait()
            try:
                lock.acquire()
            except RunFolderError as refusal:
                refusals.append(refusal)

        threads = [threading.Thread(target=take, args=(lock,)) for lock in locks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = [lock for lock in locks if lock.held]
        assert len(refusals) == 7
        winner.release()
        assert list(tmp_path.iterdir()) == []


def test_a_successor_that_died_half_way_blocks_for_a_minute_only(results: Path) -> None:
    path = finish_run(results)
    write_lock(path, host="elsewhere", heartbeat=0.0)
    guard = path / "lock.takeover"
    guard.touch()
    with pytest.raises(RunFolderError, match="about to take over"):
        RunFolder.create(results, "a", resume=True)
    os.utime(guard, (time.time() - STALE_S - 1,) * 2)
    with RunFolder.create(results, "a", resume=True):
        assert not guard.exists()


def test_the_heartbeat_is_refreshed_by_itself(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "HEARTBEAT_S", 0.001)
    beats = threading.Semaphore(0)
    beat = RunLock.beat

    def counted(lock: RunLock) -> None:
        beat(lock)
        beats.release()

    monkeypatch.setattr(RunLock, "beat", counted)
    with RunFolder.create(results, "a") as run:
        first = read_holder(run.path / "lock")
        while beats.acquire(blocking=False):  # those before the look
            pass
        assert all(beats.acquire(timeout=30) for _ in range(3))
        later = read_holder(run.path / "lock")
        assert later.heartbeat > first.heartbeat and replace(later, heartbeat=0.0) == replace(first, heartbeat=0.0)
        run.check_lock()


@pytest.mark.parametrize(
    ("change", "reason"),
    [(lambda lock: write_lock(lock.parent, host="elsewhere"), "taken over by .* host elsewhere"), (Path.unlink, "was deleted")],
)
def test_a_lost_lock_is_noticed_and_not_taken_back(tmp_path: Path, change: Callable[[Path], None], reason: str) -> None:
    """After a long silence another run may own the folder; this one must neither write nor unlock."""
    run = RunFolder(tmp_path)
    run.lock()
    change(tmp_path / "lock")
    before = content(tmp_path)
    run._lock.beat()
    with pytest.raises(RunFolderError, match=f"{reason}.*must not write"):
        run.check_lock()
    run.unlock()
    assert content(tmp_path) == before


def test_a_heartbeat_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.lock()
    lock = tmp_path / "lock"
    data = lock.read_bytes()
    lock.write_bytes(b"")
    run._lock.beat()
    assert "No sign of life" in run.heartbeat_error
    run.check_lock()
    lock.write_bytes(data)
    run._lock.beat()
    assert run.heartbeat_error is None
    run.unlock()


def test_an_orderly_end_unlocks(results: Path) -> None:
    """Also without a context manager."""
    script = f"from raytrain.run_folder import RunFolder; run = RunFolder.create({str(results)!r}, 'a'); run.write_configuration('x')"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
    assert [p.name for p in (results / "a").iterdir()] == ["configuration.yaml"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_does_not_unlock(tmp_path: Path) -> None:
    """Environments may fork; the child inherits the exit handlers of its parent."""
    script = (
        "import os, sys, warnings; from pathlib import Path; from raytrain.run_lock import RunLock\n"
        f"lock = RunLock(Path({str(tmp_path / 'lock')!r})); lock.acquire()\n"
        "pid = os.fork()\n"
        "if pid == 0: sys.exit()\n"
        "os.waitpid(pid, 0); print(lock.path.exists())\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, stdout=subprocess.PIPE).stdout == b"True\n"


# What is written


def test_status_is_replaced_whole(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder.create(results, "a") as run:
        run.write_status({"agent_steps": 1})
        with pytest.raises(ValueError, match=r"status\.reward"):
            run.write_status({"agent_steps": 2, "reward": float("nan")})

        def refuse(source: Path, target: Path) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", refuse)
            with pytest.raises(OSError, match="No space"):
                run.write_status({"agent_steps": 2})
            with pytest.raises(OSError, match="No space"):
                run.write_configuration("x")
        assert json.loads((run.path / "status.json").read_bytes()) == {"agent_steps": 1}
        assert sorted(p.name for p in run.path.iterdir()) == ["lock", "status.json"]


def test_behavior_folders_are_portable_and_never_the_runs_own(results: Path) -> None:
    """C100: a behavior may be called "best" or "a/b"."""
    names = ["CartPole", "a/b", "a:b", "a%2Fb", "best", "BEST", "checkpoints", "lock", "status.json", "..", "nul"]
    with RunFolder.create(results, "a") as run:
        paths = [run.behavior_path(name) for name in names]
        assert all(p.is_dir() and p.parent == run.path for p in paths)
        assert paths[0].name == "CartPole" and len(set(paths)) == len(names)
        assert not {p.name.casefold() for p in paths} & {"best", "checkpoints", "lock", "status.json"}
        assert run.behavior_path("a/b") == paths[1]


def test_an_empty_name_has_no_portable_form() -> None:
    with pytest.raises(ValueError, match="at least one character"):
        portable_name("")


def test_a_run_that_saved_nothing_is_begun_anew(results: Path) -> None:
    """Ended while it was still starting: its id is free again, and there is nothing to resume."""
    with RunFolder.create(results, "a") as run:
        run.write_configuration("env: CartPole-v1\n")
    with pytest.raises(RunFolderError, match="ended before it saved anything. Start it again without --resume"):
        RunFolder.create(results, "a", resume=True)
    with RunFolder.create(results, "a") as run:
        assert run.path == results.absolute() / "a" and not run.messages
