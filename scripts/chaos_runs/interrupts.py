"""SIGKILL to a whole run at random moments, each time resumed."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chaos_runs.processes import kill_all, new_token, private_ray, start_run
from chaos_runs.runs import cartpole, complete_checkpoints, metrics, saved_steps, status, unreadable_checkpoints
from chaos_runs.tables import Row

_ENDLESS = 1_000_000_000
_START_S = 240.0  # longest that a run may take to its first step


@dataclass(slots=True)
class Life:
    """A run from a start to its end.

    Attributes:
        after_s: it was killed so long after it was started.
        saved_before: agent steps of the newest checkpoint when it began; -1 without one.
        resumed_at: what it said it goes on from; None if it did not come so far, or began anew.
        known: agent steps that it told of before its end; None if it did not come so far.
        saved: agent steps of the newest checkpoint afterwards; -1 without one.
        problem: why it could not go on; empty.
    """

    after_s: float
    saved_before: int
    resumed_at: int | None = None
    known: int | None = None
    saved: int = -1
    problem: str = ""

    @property
    def lost(self) -> int:
        """Agent steps that it told of and that no checkpoint has."""
        return max(0, (self.known or 0) - max(0, self.saved))


def interrupts(
    folder: Path, times: int, longest_s: float, checkpoint_interval: int, seed: int, say: Callable[[str], None],
) -> dict[str, Any]:
    """A run of CartPole, killed `times` times; after the last one it is resumed once more and ended by Ctrl-C.

    Args:
        folder: empty; the run, its log and its configuration go there.
        longest_s: a life is drawn up to so long, its start included.
    """
    file = cartpole(folder, _ENDLESS, checkpoint_interval, managers=1, num_envs=32, env_manager_cpus=0.5, trainer_cpus=0.5)
    rng, lives = random.Random(seed), []
    with private_ray() as environment:
        for number in range(times):
            life = _live(folder, file, rng.uniform(0.5, longest_s), environment)
            lives.append(life)
            say(f"life {number + 1}: killed after {life.after_s:.1f} s; told {life.known}, saved {life.saved}, lost {life.lost} {life.problem}")
            if life.problem:
                break
        last = _last_life(folder, file, environment)
    text = (folder / "run.log").read_text(errors="replace").splitlines()
    return {
        "times": times, "checkpoint_interval": checkpoint_interval, "lives": [{**asdict(life), "lost": life.lost} for life in lives],
        "last": last, "checkpoints": len(complete_checkpoints(folder / "run")), "unreadable": unreadable_checkpoints(folder / "run"), "log_tail": text[-25:],
    }


def _start(folder: Path, file: Path, token: str, environment: Mapping[str, str]) -> tuple[subprocess.Popen, int]:
    """The run begun or resumed, and where its log began."""
    log = folder / "run.log"
    log.touch()
    resume = ["--resume"] if complete_checkpoints(folder / "run") else []
    return start_run(sys.executable, file, resume, token, log, environment), log.stat().st_size


def _live(folder: Path, file: Path, after_s: float, environment: Mapping[str, str]) -> Life:
    run, token = folder / "run", new_token()
    life, began = Life(round(after_s, 2), saved_steps(run)), time.time()
    process, at = _start(folder, file, token, environment)
    deadline = time.monotonic() + after_s
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(min(0.05, max(0.0, deadline - time.monotonic())))
    if process.poll() is not None:
        life.problem = f"ended by itself with exit code {process.returncode}"
    life.known = _known(run, began)
    kill_all(token, process)
    life.saved = saved_steps(run)
    said = re.findall(r"resuming at ([\d,]+) agent steps", (folder / "run.log").read_text(errors="replace")[at:])
    life.resumed_at = int(said[-1].replace(",", "")) if said else None
    if life.resumed_at is not None and life.resumed_at != life.saved_before:
        life.problem = f"resumed at {life.resumed_at:,}, the newest checkpoint was at {life.saved_before:,}"
    if life.saved < life.saved_before:
        life.problem = f"the newest checkpoint is now at {life.saved:,}, it was at {life.saved_before:,}"
    return life


def _known(run: Path, since_s: float) -> int | None:
    """Agent steps that a life which began at `since_s` has told of in its files."""
    told = []
    if _is_newer(run / "status.json", since_s):
        told.append(status(run).get("agent_steps", 0))
    if _is_newer(run / "CartPole" / "metrics.csv", since_s):
        told += [int(step) for step in metrics(run, "step")[-1:]]
    return max(told, default=None)


def _is_newer(path: Path, since_s: float) -> bool:
    return path.exists() and path.stat().st_mtime > since_s


def _last_life(folder: Path, file: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Resumed once more until it has learnt, and ended in order."""
    run, token = folder / "run", new_token()
    before, began = saved_steps(run), time.time()
    process, _ = _start(folder, file, token, environment)
    try:
        deadline = time.monotonic() + _START_S
        while (_known(run, began) or 0) <= max(0, before) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60.0)
    except subprocess.TimeoutExpired:
        pass
    finally:
        kill_all(token, process)
    return {"exit_code": process.returncode, "before": before, "after": saved_steps(run)}


def rows(result: dict[str, Any]) -> list[Row]:
    """What is asked of it, and whether it holds."""
    lives, last, every = result["lives"], result["last"], result["checkpoint_interval"]
    problems = [life["problem"] for life in lives if life["problem"]]
    most, begun = max((life["lost"] for life in lives), default=0), sum(life["known"] is not None for life in lives)
    goes_on = last["exit_code"] == 0 and last["after"] > last["before"]
    return [
        Row("kills of the whole run", f"{len(lives)}, {begun} of them after its first step", str(result["times"]), len(lives) == result["times"]),
        Row("runs that could not resume", "; ".join(problems) or "0", "0", not problems),
        Row("resumed at the end", f"{last['before']:,} → {last['after']:,} agent steps, exit code {last['exit_code']}", "goes on, exit code 0", goes_on),
        Row("most work lost, agent steps", f"{most:,}", f"≤ {every:,}, one checkpoint_interval", most <= every),
        Row("checkpoints that do not load", f"{len(result['unreadable'])} of {result['checkpoints']}", "0", not result["unreadable"]),
    ]
