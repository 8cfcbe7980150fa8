"""One run of a cell: the product's own commands, and what its folder says afterwards."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import machine
import numpy as np

from raytrain.stats import CUMULATIVE_REWARD, POLICY_LAG_MAX, POLICY_LAG_MEAN
from result_tables.cells import ROOT, Cell

EVALUATION_EPISODES, EVALUATION_SEED = 20, 1_000_000
RANDOM_EPISODES = 100
POINTS = 60
"""Of a curve that is kept."""
STOP_S = 60.0
"""Seconds that a run which is ended has for it."""


class RunFailed(Exception):
    """A command of the product did not end as it should; the message has the end of what it printed."""


def train(cell: Cell, seed: int) -> dict[str, Any]:
    """One run and its evaluation (None, and told, if that fails); the wall time is that of training alone, from process start to end.

    Raises:
        RunFailed: training failed, or was interrupted by somebody else.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = [str(ROOT / "scripts" / "train.py"), str(ROOT / "yaml" / f"{cell.file}.yaml")]
        words += [word for item in cell.overrides for word in ("--set", item)]
        started = time.monotonic()
        command(*words, "--seed", str(seed), "--results-dir", folder, "--run-id", "run")
        found = summary(Path(folder) / "run", seed, time.monotonic() - started)
        if found["reason"].startswith("interrupted"):
            raise RunFailed(f"{cell.key}, seed {seed}: {found['reason']}")
        try:
            found["evaluation"] = evaluate(Path(folder) / "run")
        except RunFailed as error:  # hours of training are not thrown away for it
            print(f"error: {cell.key}, seed {seed} has no evaluation: {error}", file=sys.stderr, flush=True)
    return found


def summary(folder: Path, seed: int, wall_s: float) -> dict[str, Any]:
    """What a run's folder says of it; without an evaluation, which takes episodes."""
    status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    return {
        "seed": seed, "reason": status["reason"], "mean_return": status["mean_return"], "agent_steps": status["agent_steps"],
        "wall_s": round(wall_s, 1), "goal_reached": "stop.reward" in status["reason"], "date": machine.today(),
        "evaluation": None, "policy_lag": policy_lag(rows(folder)), "curve": read_curve(rows(folder)),
    }


def evaluate(folder: Path) -> dict[str, Any] | None:
    """Return of the last checkpoint with the most likely actions; None for worlds of several behaviors."""
    answer = json.loads(command("-m", "raytrain", "evaluate", str(folder.absolute()), "--checkpoint", "latest", "--episodes", str(EVALUATION_EPISODES),
                                "--deterministic", "--seed", str(EVALUATION_SEED), "--json"))
    found = list(answer["modes"]["deterministic"].items())
    if len(found) != 1:
        return None
    (name, one), = found
    return {"mean": one["return_mean"], "std": one["return_std"], "episodes": one["episodes"], "agent_steps": answer["behaviors"][name]["agent_steps"]}


def rows(folder: Path) -> list[dict[str, str]]:
    """The summaries of a run's first behavior."""
    with next(folder.glob("*/metrics.csv")).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def policy_lag(found: Sequence[dict[str, str]]) -> dict[str, float] | None:
    """Mean over summaries of the mean lag, and the largest; None where no update was made."""
    means, largest = ([float(row[column]) for row in found if row.get(column)] for column in (POLICY_LAG_MEAN, POLICY_LAG_MAX))
    return {"mean": round(sum(means) / len(means), 4), "max": max(largest)} if means and largest else None


def read_curve(found: Sequence[dict[str, str]]) -> list[tuple[int, float]]:
    """(agent steps, mean training return) of the summaries with finished episodes, at most `POINTS` of them."""
    points = [(int(row["step"]), float(row[CUMULATIVE_REWARD])) for row in found if row.get(CUMULATIVE_REWARD)]
    every = -(-len(points) // POINTS) or 1
    return points[::-every][::-1]


def random_return(env_id: str) -> float:
    """Mean return of uniformly random actions."""
    env, returns = gymnasium.make(env_id), []
    env.action_space.seed(EVALUATION_SEED)
    for episode in range(RANDOM_EPISODES):
        env.reset(seed=EVALUATION_SEED + episode)
        total, is_over = 0.0, False
        while not is_over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, is_over = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return round(float(np.mean(returns)), 3)


def command(*words: str) -> str:
    """What Python prints with `words`. It is in a session of its own, so Ctrl-C ends it once and through us: it saves, and takes its Ray along.

    Raises:
        RunFailed: it did not succeed.
    """
    child = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        printed, errors = child.communicate()
    except KeyboardInterrupt:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=STOP_S)
        raise
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if child.returncode:
        raise RunFailed(f"{' '.join(words)}: exit code {child.returncode}\n{printed[-2000:]}{errors[-2000:]}")
    return printed
