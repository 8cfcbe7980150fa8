"""scripts/chaos.py: its figures from samples that are known, and the commands in small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS)]

import chaos
from chaos_runs import interrupts, kills, memory, scaling
from chaos_runs.interrupts import Life
from chaos_runs.processes import TOKEN, kill_all, members, new_token


def samples(*rss: int) -> list[dict]:
    return [{"processes": {"driver": {"rss": value, "files": 10, "count": 1}, "gcs_server": {"rss": 5, "files": 1, "count": 1}}} for value in rss]


def test_growth_is_that_of_the_second_half() -> None:
    """Start-up does not count: 100 → 105 after the middle."""
    found = samples(10, 40, 70, 90, 95, 100, 101, 103, 104, 105)
    assert memory.growth(found, "driver", "rss") == (100.5, 104.5)
    assert memory.growth(found, None, "files") == (11, 11) and memory.growth([], None, "rss") == (0.0, 0.0)
    assert memory.growth(found, "TrainerActor", "rss") == (0, 0), "and a process that was never there does not pass for a flat one"
    rows = memory.rows({"samples": found, "exit_code": 0, "agent_steps": 10, "steps": 10, "spilled_bytes": 1})
    passed = {row.what: row.passed for row in rows}
    assert passed["driver, MiB"] and not passed["TrainerActor, MiB"] and not passed["spilled bytes"]


def test_work_that_was_lost_is_what_was_told_and_not_saved() -> None:
    assert Life(1.0, -1, None, None, -1).lost == 0 and Life(1.0, -1, None, 300, -1).lost == 300
    assert Life(1.0, 100, 100, 350, 200).lost == 150 and Life(1.0, 100, 100, 150, 200).lost == 0
    result = {"times": 1, "checkpoint_interval": 100, "lives": [{"lost": 101, "known": 301, "problem": ""}],
              "last": {"exit_code": 0, "before": 200, "after": 300}, "checkpoints": 3, "unreadable": []}
    assert [row.what for row in interrupts.rows(result) if not row.passed] == ["most work lost, agent steps"]


def test_a_run_that_was_disturbed_is_judged_by_every_target() -> None:
    good = {"killed": {"trainer": 2}, "kills_asked": 2, "exit_code": 0, "state": "finished", "reason": "max_steps=9 reached", "ledger_exact": True,
            "fallen": 0, "polls": 5, "unreadable": [], "final_return": 480.0, "restarts": 2, "rolled_back_steps": 3, "elapsed_s": 9.0}
    assert all(row.passed is not False for row in kills.rows(good))
    for bad in ({"kills_asked": 3}, {"exit_code": 1}, {"ledger_exact": False}, {"fallen": 1}, {"unreadable": ["000001"]}, {"final_return": 474.0},
                {"final_return": None}):
        assert any(row.passed is False for row in kills.rows({**good, **bad})), bad


def test_scaling_is_judged_only_while_processors_are_left() -> None:
    one = {"puts_per_s": 1.0, "takes_per_s": 1.0, "pushes_per_s": 1.0}
    runs = [{"managers": n, "steps_per_s": s, "cpu_percent": c, **one} for n, s, c in ((1, 1600, 20), (2, 2900, 40), (4, 5000, 60), (8, 5100, 99))]
    assert [row.passed for row in scaling.rows({"runs": runs, "num_envs": 16, "step_s": 0.01})] == [True, True, False, None]


def test_only_processes_with_the_token_are_ended() -> None:
    """A child of its own that ignores nothing; this process, which started it, stays."""
    token, other = new_token(), new_token()
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    mine, others = (subprocess.Popen(words, env={TOKEN: one}) for one in (token, other))
    try:
        assert [p.pid for p in members(token)] == [mine.pid]
        assert kill_all(token, mine) == 1 and mine.returncode == -9 and others.poll() is None
    finally:
        for process in (mine, others):
            process.kill()
            process.wait()


def test_figures_of_one_command_leave_those_of_another(tmp_path: Path) -> None:
    path = tmp_path / "reliability.json"
    for command, value in (("kills", 1), ("memory", 2), ("kills", 3)):
        chaos.write(path, command, {"value": value, "log_tail": ["…"]}, [])
    data = json.loads(path.read_text())
    assert {name: one["result"] for name, one in data.items()} == {"kills": {"value": 3}, "memory": {"value": 2}}


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    assert chaos.main(["kills", "--folder", str(tmp_path)]) == 2


SMALL = {
    "kills": ["--kills", "10", "--steps-between", "100000", "--tail-steps", "400000", "--checkpoint-interval", "50000"],
    "interrupts": ["--times", "3", "--checkpoint-interval", "50000"],
}


@pytest.mark.cluster
@pytest.mark.parametrize("command", SMALL)
def test_nothing_is_lost(command: str, tmp_path: Path) -> None:
    """The large ones in small: each ends by itself, and every target holds."""
    words = [sys.executable, str(SCRIPTS / "chaos.py"), command, *SMALL[command], "--folder", str(tmp_path / "runs"), "--timeout-s", "900"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=1200, check=False)
    assert found.returncode == 0, found.stdout[-5000:] + found.stderr[-3000:]
