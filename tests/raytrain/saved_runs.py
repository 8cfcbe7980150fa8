"""Runs as they lie in a results folder, made without training."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from raytrain.checkpoint import BehaviorSnapshot, CheckpointStore, Snapshot
from raytrain.checks import probe
from raytrain.config import check_behaviors, load_config, to_yaml
from raytrain.run import plans_of
from trainers.trainer import TrainerState

SMALL = {"network_settings": {"hidden_units": 8, "num_layers": 1}}


def save_run(path: Path, env: str, reward: float | None = None, run: dict[str, Any] | None = None, **data: Any) -> Path:
    """A run with one checkpoint, which has the first weights of its seed 3.

    Args:
        reward: mean return in training.
        run: what the checkpoint has besides behaviors.
    """
    data = {"env": env, "default_settings": SMALL, "env_settings": {"num_envs": 2, "seed": 3}, **data}
    config = load_config(data)
    found = probe(config, ())
    plans = plans_of(config.with_behaviors(check_behaviors(config, found.behaviors)), found, ())
    path.mkdir()
    CheckpointStore(path, keep=1).save(Snapshot({
        plan.behavior: BehaviorSnapshot(TrainerState({}, {}), plan.first_policy(), 3, 100, plan.spec, plan.settings.network_settings, reward)
        for plan in plans}, run or {}))
    (path / "configuration.yaml").write_text(to_yaml(config.placed()))
    return path


def status(state: str = "finished", **changed: Any) -> dict[str, Any]:
    """What ``status.json`` says of a run of one behavior."""
    return {
        "state": state, "reason": "reached max_steps", "behavior": "CartPole", "agent_steps": 500, "max_steps": 1_000, "mean_return": 21.5,
        "best_reward": 30.0, "evaluation": None, "elapsed_s": 65.0, "behaviors": {"CartPole": {}}, **changed}


def state_run(results: Path, name: str, said: dict[str, Any] | str | None, changed_s: float = 0.0) -> Path:
    """A run folder with a configuration, and a ``status.json`` unless `said` is None, both written at `changed_s` (s since 1970)."""
    run = results / name
    run.mkdir(parents=True)
    files = {"configuration.yaml": "env: CartPole-v1\nbehaviors: {CartPole: {}}\n"}
    if said is not None:
        files["status.json"] = said if isinstance(said, str) else json.dumps(said)
    for file, text in files.items():
        (run / file).write_text(text)
        os.utime(run / file, (changed_s, changed_s))
    return run


def curve_run(results: Path, name: str, rows: list[tuple[int, float]], behavior: str = "CartPole", tag: str = "Environment/Cumulative Reward") -> Path:
    """A run folder with a ``metrics.csv``."""
    run = results / name
    (run / behavior).mkdir(parents=True)
    (run / "configuration.yaml").write_text("env: CartPole-v1\n")
    lines = [f"step,elapsed_s,{tag}", *(f"{step},{step / 100},{value}" for step, value in rows), f"{rows[-1][0] + 1 if rows else 1},9.5,"]
    (run / behavior / "metrics.csv").write_text("\n".join(lines) + "\n")
    return run
