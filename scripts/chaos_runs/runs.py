"""The run that is disturbed: its configuration, how far it is, and what it has left in its folder."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from chaos_runs.processes import ROOT
from raytrain.checkpoint import CheckpointError, CheckpointStore

NO_LIMITS = {"max_lifetime_restarts": -1, "restarts_rate_limit_n": -1}


def cartpole(folder: Path, max_steps: int, checkpoint_interval: int, managers: int, num_envs: int, **distributed: Any) -> Path:
    """Write a configuration of CartPole that runs to `max_steps`, without limits of restarts; its path."""
    data = yaml.safe_load((ROOT / "yaml" / "ppo" / "CartPole.yaml").read_text())
    data["behaviors"]["CartPole"] |= {
        "max_steps": max_steps, "checkpoint_interval": checkpoint_interval, "summary_freq": 10_000, "keep_checkpoints": 100_000,
    }
    # A run that goes on long after its goal keeps its policy only with a rate that goes down.
    data["behaviors"]["CartPole"]["hyperparameters"]["learning_rate_schedule"] = "linear"
    data |= {
        "env_settings": {"num_envs": num_envs, "seed": 1, **NO_LIMITS}, "distributed": {"num_env_managers": managers, **distributed},
        "checkpoint_settings": {"results_dir": str(folder), "run_id": "run"}, "stop": {},
    }
    file = folder / "chaos.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def status(run: Path) -> dict[str, Any]:
    """``status.json`` of a run; empty while there is none, or while it is being written."""
    try:
        return json.loads((run / "status.json").read_text())
    except (OSError, ValueError):
        return {}


def progress(found: dict[str, Any]) -> int:
    """Agent steps taken in, those that trainers took in vain among them: they never fall."""
    return found.get("agent_steps", 0) + found.get("rolled_back_steps", 0)


def complete_checkpoints(run: Path) -> list[Path]:
    """Numbered checkpoints with a manifest, oldest first."""
    return sorted(path.parent for path in (run / "checkpoints").glob("[0-9]*/manifest.json"))


def saved_steps(run: Path) -> int:
    """Agent steps of the newest checkpoint; -1 without one."""
    found = complete_checkpoints(run)
    return json.loads((found[-1] / "run.json").read_text())["run"]["agent_steps"] if found else -1


def unreadable_checkpoints(run: Path) -> list[str]:
    """Each checkpoint that does not load, with its reason."""
    problems = []
    for path in complete_checkpoints(run):
        try:
            CheckpointStore.load(path)
        except CheckpointError as error:
            problems.append(f"{path.name}: {error}")
    return problems


def metrics(run: Path, column: str, behavior: str = "CartPole") -> list[float]:
    """A column of ``metrics.csv`` without its empty cells; empty without the file."""
    path = run / behavior / "metrics.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [float(row[column]) for row in csv.DictReader(file) if row.get(column)]


def evaluate_cartpole(run: Path, episodes: int = 20) -> float:
    """Mean return of the newest policy, its most likely actions, over so many episodes."""
    import gymnasium

    import raytrain

    policy, returns = raytrain.load_policy(run, which="latest"), []
    env = gymnasium.make("CartPole-v1")
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return mean(returns)
