"""Random SIGKILLs of env managers, trainer, exchange and nodes during one run on a cluster of three nodes."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from chaos_runs.nodes import Nodes, started
from chaos_runs.processes import actors, kill_all, new_token, start_run
from chaos_runs.runs import cartpole, evaluate_cartpole, progress, status, unreadable_checkpoints
from chaos_runs.tables import Row

KINDS = ("env manager", "trainer", "exchange", "node")
_NODE_AWAY_S = 5.0  # a node comes back after this long
_RETURN = 475.0


def kills(
    folder: Path, count: int, steps_between: int, tail_steps: int, checkpoint_interval: int, seed: int, timeout_s: float, say: Callable[[str], None],
) -> dict[str, Any]:
    """One run of CartPole that is killed at `count` random moments; what became of it.

    Args:
        folder: empty; the run, its log and its configuration go there.
        steps_between: agent steps between two kills, on average.
        tail_steps: after the last one.
        timeout_s: after which the run is given up.
    """
    max_steps = count * steps_between + tail_steps
    file = cartpole(folder, max_steps, checkpoint_interval, managers=2, num_envs=32, env_manager_cpus=0.5, trainer_cpus=0.5)
    token, rng, run = new_token(), random.Random(seed), folder / "run"
    marks = [int((i + rng.random()) * steps_between) for i in range(count)]
    with started(token, head_cpus=1, worker_cpus=1, workers=2) as nodes:
        process = start_run(sys.executable, file, ["--address", nodes.address], token, folder / "run.log")
        try:
            watch = _Watch(process, run, token, nodes, rng, say)
            watch.follow(marks, timeout_s)
        finally:
            kill_all(token, process) if process.poll() is None else None
    return {**watch.result(), "kills_asked": count, "final_return": _final_return(run), "unreadable": unreadable_checkpoints(run), "max_steps": max_steps}


def _final_return(run: Path) -> float | None:
    return evaluate_cartpole(run) if (run / "checkpoints").exists() else None


class _Watch:
    """One run while it lasts."""

    def __init__(self, process: subprocess.Popen, run: Path, token: str, nodes: Nodes, rng: random.Random, say: Callable[[str], None]) -> None:
        self._process, self._run, self._token, self._nodes, self._rng, self._say = process, run, token, nodes, rng, say
        self._killed: Counter[str] = Counter()
        self._polls: list[int] = []
        self._away: dict[int, float] = {}  # node -> since when
        self._started_s = time.monotonic()

    def follow(self, marks: list[int], timeout_s: float) -> None:
        """Kill something each time the run's progress passes a mark, until it ends."""
        left = list(marks)
        while self._process.poll() is None and time.monotonic() - self._started_s < timeout_s:
            time.sleep(0.25)
            found = status(self._run)
            if found and (not self._polls or progress(found) != self._polls[-1]):
                self._polls.append(progress(found))
            for index in [i for i, since in self._away.items() if time.monotonic() - since > _NODE_AWAY_S]:
                del self._away[index]
                self._nodes.replace(index)
            if left and self._polls and self._polls[-1] > max(0, left[0]) and self._kill():
                left.pop(0)
                time.sleep(self._rng.uniform(0.0, 3.0))  # progress is told every five seconds: the moment within them is drawn

    def _kill(self) -> bool:
        """One thing drawn at random; False when it is not there just now."""
        kind = self._rng.choice(KINDS)
        if kind == "node":
            there = [i for i in range(len(self._nodes.workers)) if i not in self._away]
            if not there:
                return False
            index = self._rng.choice(there)
            pid = self._nodes.kill(index)
            self._away[index] = time.monotonic()
        else:
            found = actors(self._token, kind)
            if not found:
                return False
            process = self._rng.choice(found)
            pid = process.pid
            try:
                process.kill()
            except psutil.NoSuchProcess:
                return False
        self._killed[kind] += 1
        self._say(f"kill {sum(self._killed.values())}: {kind} (pid {pid}) at {self._polls[-1]:,} agent steps, {time.monotonic() - self._started_s:.0f} s")
        return True

    def result(self) -> dict[str, Any]:
        found = status(self._run)
        behavior = found.get("behaviors", {}).get("CartPole", {})
        log = self._run.parent / "run.log"
        text = log.read_text(errors="replace") if log.exists() else ""
        return {
            "exit_code": self._process.returncode, "killed": dict(self._killed), "elapsed_s": round(time.monotonic() - self._started_s, 1),
            "state": found.get("state"), "reason": found.get("reason"), "agent_steps": found.get("agent_steps"),
            "rolled_back_steps": behavior.get("rolled_back_steps"), "restarts": found.get("restarts"),
            "fallen": sum(later < before for before, later in zip(self._polls, self._polls[1:])), "polls": len(self._polls),
            "ledger_exact": "are not accounted for" not in text, "log_tail": text.splitlines()[-25:],
        }


def rows(result: dict[str, Any]) -> list[Row]:
    """What is asked of it, and whether it holds."""
    killed = sum(result["killed"].values())
    ended = result["exit_code"] == 0 and result["state"] == "finished"
    final = result["final_return"]
    return [
        Row("kills", f"{killed} ({', '.join(f'{n} {k}' for k, n in sorted(result['killed'].items()))})", str(result["kills_asked"]), killed == result["kills_asked"]),
        Row("run ends by itself", f"exit code {result['exit_code']}, {result['reason']}", "exit code 0, finished", ended),
        Row("ledger at the end", "exact" if ended and result["ledger_exact"] else "not exact", "exact", ended and result["ledger_exact"]),
        Row("consumed + rolled back", f"fell {result['fallen']} times in {result['polls']} polls", "never falls", result["fallen"] == 0 and result["polls"] > 1),
        Row("checkpoints that do not load", str(len(result["unreadable"])), "0", not result["unreadable"]),
        Row("final return", "none" if final is None else f"{final:.1f}", f"≥ {_RETURN:g}", final is not None and final >= _RETURN),
        Row("restarts", str(result["restarts"]), "", None),
        Row("rolled back, agent steps", f"{result['rolled_back_steps'] or 0:,}", "", None),
        Row("time, s", f"{result['elapsed_s']:.0f}", "", None),
    ]
