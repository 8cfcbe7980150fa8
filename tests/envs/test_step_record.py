"""What each environment was doing, as read after a crash and while it hangs (C06, C17)."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.gymnasium_env import make_batched_env
from envs.specs import Actions
from envs.step_record import Running, StepRecord, last_episodes, read_record
from tests.envs.contract import POLL_S, Auditor, poll
from tests.envs.fragile_worlds import Gate

ROOT = Path(__file__).parents[2]


def places(path: Path) -> list[tuple[int, int, int, Any]]:
    """What `read_record` says but for the time."""
    return [(one.slot, one.episode, one.step, one.last_action) for one in read_record(path)]


@pytest.mark.parametrize(("action", "shown"), [
    (None, None),
    (np.int64(3), 3),
    (np.array(-2, np.int32), -2),
    (np.array(0.5, np.float32), 0.5),
    (np.uint64(2**63), 2.0**63),
    (np.array([True, False]), [1, 0]),
    ((np.int64(2), np.array(0.5), np.int64(1)), [2.0, 0.5, 1.0]),
    (np.array([0.25, -1.0], np.float32), [0.25, -1.0]),
    (np.array([[1, 2], [3, 4]], np.int8), [1, 2, 3, 4]),
    (np.arange(8), [0, 1, 2, 3, 4, 5, 6, 7]),
    (np.arange(9.0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, "…"]),
    ((np.int64(2), np.array([0.5, 0.25])), [2.0, 0.5, 0.25]),
    ({"a": np.int64(1), "b": (np.array([1, 0], np.int8), np.arange(9))}, [1, 1, 0, 0, 1, 2, 3, 4, "…"]),
])
def test_actions(tmp_path: Path, action: Any, shown: Any) -> None:
    """Whole numbers stay whole; what is too long is cut, and says so."""
    path = tmp_path / "record"
    record = StepRecord(path, 3)
    record.note(1, 4, 17, action)
    assert places(path) == [(1, 4, 17, shown)]
    record.note(1, 4, 18, np.int64(0))
    assert places(path) == [(1, 4, 18, 0)]


def test_only_what_runs_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "record"
    record = StepRecord(path, 3)
    assert read_record(path) == []
    for slot in (2, 0):
        record.note(slot, 0, 5, np.int64(slot))
    assert [one.slot for one in read_record(path)] == [0, 2]
    record.clear(0)
    (running,) = read_record(path)
    assert (running.slot, running.last_action) == (2, 2)
    assert running.seconds >= 0.0
    record.note_all(np.array([1, 2, 3]), np.array([4, 0, 6]), np.array([[0.5], [1.5], [2.5]], np.float32))
    assert places(path) == [(0, 1, 4, [0.5]), (1, 2, 0, [1.5]), (2, 3, 6, [2.5])]
    record.note_all(np.zeros(3, int), np.zeros(3, int), None)
    assert places(path) == [(slot, 0, 0, None) for slot in range(3)]
    record.note_all(np.zeros(3, int), np.ones(3, int), np.array([7, 8, 9], np.int64))
    assert places(path) == [(slot, 0, 1, 7 + slot) for slot in range(3)]
    record.clear_all()
    assert read_record(path) == []


def test_seconds_since_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = StepRecord(tmp_path / "record", 1)
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    record.note(0, 0, 1, None)
    monkeypatch.setattr(time, "time", lambda: 1012.5)
    assert read_record(tmp_path / "record") == [Running(0, 0, 1, None, 12.5)]


def test_no_file_and_another_file(tmp_path: Path) -> None:
    assert read_record(tmp_path / "none") == []
    StepRecord(tmp_path / "cut", 2)
    (tmp_path / "cut").write_bytes((tmp_path / "cut").read_bytes()[:-1])
    (tmp_path / "text").write_text("hello")
    for name in ("cut", "text"):
        with pytest.raises(ValueError, match=rf"{name}: expected the record of .* environments' steps, received another file of \d+ bytes"):
            read_record(tmp_path / name)


def test_a_new_record_leaves_the_old_one_to_who_still_has_it(tmp_path: Path) -> None:
    """A process that hangs keeps its map when the next one begins."""
    path = tmp_path / "record"
    old = StepRecord(path, 5000)
    new = StepRecord(path, 1)
    old.note(4999, 0, 1, np.int64(1))
    new.note(0, 7, 1, np.int64(1))
    assert places(path) == [(0, 7, 1, 1)]
    assert [file.name for file in tmp_path.iterdir()] == ["record"]


DIES = '''
import sys
import numpy as np
from pathlib import Path
from envs.gymnasium_env import make_batched_env
from envs.specs import Actions
env = make_batched_env("tests.envs.fragile_worlds:{world}", {{}}, 3, "{stepping}", np.random.SeedSequence(1), record_path=Path(sys.argv[1]))
env.reset()
(name,) = env.behaviors
while True:
    for steps in env.poll(60.0).values():
        n = len(steps.decision)
        env.act(name, steps.decision.agent_id, Actions(np.empty((n, 0), np.float32), np.ones((n, 1), np.int32)))
'''


@pytest.mark.parametrize(("stepping", "world", "expected"), [
    ("inline", "Second", [(1, 0, 2, 1)]), ("auto", "killed_vector", [(slot, 0, 2, 1) for slot in range(3)])])
def test_what_ran_when_the_process_was_killed(tmp_path: Path, stepping: str, world: str, expected: list) -> None:
    """The environment within a step, and no other; all of a vector environment."""
    path = tmp_path / "record"
    done = subprocess.run([sys.executable, "-c", DIES.format(stepping=stepping, world=world), str(path)], cwd=ROOT, capture_output=True, text=True,
                          check=False, timeout=POLL_S)
    assert done.returncode == -9, done.stderr
    assert places(path) == expected


def test_what_hangs_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reset is noted as well; what is done is not listed any more, whether it was collected or not."""
    path = tmp_path / "record"
    env = make_batched_env("tests.envs.fragile_worlds:Gate", {}, 2, "threads", np.random.SeedSequence(1), first_env_index=4, record_path=path,
                           wait_for_all=True)
    monkeypatch.setattr(Gate, "gate", threading.Event())
    try:
        env.reset()
        poll(env)
        assert read_record(path) == []
        env.act("Gate", np.arange(2), Actions(np.empty((2, 0), np.float32), np.array([[0], [1]], np.int32)))
        assert env.poll(0.0) == {}
        deadline = time.monotonic() + POLL_S
        while places(path) != [(1, 0, 1, 1)]:  # only the one with action 1 waits
            assert time.monotonic() < deadline
            time.sleep(0.001)
        Gate.gate.set()
        poll(env)
        assert read_record(path) == []
    finally:
        Gate.gate.set()
        env.close()


@pytest.mark.parametrize(("env", "kwargs", "stepping"), [
    ("envs.toy:CountObs", {"length": 3}, "inline"), ("envs.toy:CountObs", {"length": 3}, "processes"),
    ("envs.toy:count_vector", {"autoreset_mode": "NextStep", "length": 3}, "auto"),
    ("envs.toy:count_vector", {"autoreset_mode": "Disabled", "length": 3}, "auto"),
])
def test_places_are_those_of_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str, kwargs: dict, stepping: str) -> None:
    """Episode and step count as in a message, across resets; processes have no record, because this one survives their end."""
    noted: list[tuple[int, int, int]] = []
    note, note_all = StepRecord.note, StepRecord.note_all

    def noting(self: StepRecord, slot: int, episode: int, step: int, action: Any) -> None:
        assert (action is None) == (step == 0)
        noted.append((slot, episode, step))
        note(self, slot, episode, step, action)

    def noting_all(self: StepRecord, episodes: np.ndarray, steps: np.ndarray, actions: Any) -> None:
        noted.extend(zip(range(2), episodes.tolist(), steps.tolist(), strict=True))
        note_all(self, episodes, steps, actions)

    monkeypatch.setattr(StepRecord, "note", noting)
    monkeypatch.setattr(StepRecord, "note_all", noting_all)
    batched = make_batched_env(env, kwargs, 2, stepping, np.random.SeedSequence(1), wait_for_all=True, record_path=tmp_path / "record")
    try:
        batched.reset()
        auditor = Auditor(batched)
        auditor.run(14, np.random.default_rng(0))
    finally:
        batched.close()
    if stepping == "processes":
        assert noted == []
        assert not (tmp_path / "record").exists()
        return
    expected = [(episode, step) for episode in range(3) for step in range(4) if not (stepping == "inline" and episode and not step)]
    for slot in range(2):
        own = [(episode, step) for one, episode, step in noted if one == slot]
        assert own == expected[: len(own)]
        assert len(own) >= 8
    assert read_record(tmp_path / "record") == []


def test_the_last_episode_of_everyone_is_known(tmp_path: Path) -> None:
    """Also of environments that were not within a step: seed streams go on after it, and one that never began has none."""
    record = StepRecord(tmp_path / "steps", 3)
    record.note(0, 4, 10, np.int64(1))
    record.clear(0)
    record.note(2, 7, 0, None)
    assert last_episodes(tmp_path / "steps") == {0: 4, 2: 7}
    assert [one.slot for one in read_record(tmp_path / "steps")] == [2]
    assert last_episodes(tmp_path / "none") == {}
