#!/usr/bin/env python
"""Train experts, record ten episodes of each, learn from them alone, and write what that reaches: ``python scripts/imitation.py``.

Every step is the product's own command: ``raytrain train``, ``raytrain record``, ``raytrain train``. Afterwards each policy acts in
100 new episodes. Figures go to docs/imitation.json after each run, and the table in docs/imitation.md is made from it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import gymnasium
import machine
import numpy as np
import yaml

from envs.demonstrations import read_demonstrations
from raytrain import load_policy

BEGIN, END = "<!-- table of scripts/imitation.py -->", "<!-- end of the table -->"
EPISODES = 100
"""Of each policy afterwards; their seeds are far from those of training."""


@dataclass(frozen=True)
class Task:
    """An expert's file, and the files that learn from its demonstrations, with the part of its return that each is to reach."""

    env: str
    expert: str
    imitators: dict[str, float | None]


TASKS = {
    "CartPole": Task("CartPole-v1", "ppo/CartPole", {"bc/CartPole": 0.9, "ppo/CartPole-GAIL": 0.9}),
    "LunarLander": Task("LunarLander-v3", "ppo/LunarLander", {"bc/LunarLander": 0.9, "ppo/LunarLander-GAIL": None}),
    "Hopper": Task("Hopper-v5", "ppo/Hopper", {"bc/Hopper": None, "ppo/Hopper-GAIL": 0.8}),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--ways", nargs="+", default=["bc", "ppo"], choices=["bc", "ppo"], help="offline cloning, GAIL (default: both)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--demonstrations", type=int, default=10, metavar="N", help="episodes (default: 10)")
    parser.add_argument("--folder", type=Path, help="keep experts and demonstrations here, and use those that are there (default: a new one)")
    parser.add_argument("--json", type=Path, default=ROOT / "docs" / "imitation.json")
    parser.add_argument("--from-json", action="store_true", help="run nothing: the table from the JSON file")
    options = parser.parse_args()
    data = json.loads(options.json.read_text()) if options.json.exists() else {"tasks": {}}
    if not options.from_json:
        data |= machine.describe()
        with tempfile.TemporaryDirectory() as folder:
            for name in options.tasks:
                run_task(name, options, options.folder or Path(folder), data)
    write(data, options.json)
    return 0


def run_task(name: str, options: argparse.Namespace, folder: Path, data: dict[str, Any]) -> None:
    """Expert, demonstrations, and every imitator with every seed; figures are on disk after each."""
    task = TASKS[name]
    run, demo = folder / f"{name}-expert", folder / f"{name}.safetensors"
    if not demo.exists():
        train(task.expert, 1, folder, run.name)
        raytrain("record", run, "--episodes", options.demonstrations, "--seed", 1, "--out", demo)
    facts = data["tasks"].setdefault(name, {"imitators": {}})
    facts |= {"expert": evaluate(run, task.env, "best"), "demonstrations": demonstrated(demo)}
    for file in task.imitators:
        if file.partition("/")[0] not in options.ways:
            continue
        runs = facts["imitators"][file] = []
        for seed in range(1, options.seeds + 1):
            with tempfile.TemporaryDirectory() as results:
                started = time.monotonic()
                path = train(file, seed, Path(results), "run", demo)
                wall_s = round(time.monotonic() - started, 1)
                status = json.loads((path / "status.json").read_text())
                # The last policy: the best one of a run was chosen by the environment's return, which GAIL must not see.
                runs.append({"seed": seed, "wall_s": wall_s, "agent_steps": status["agent_steps"], "date": machine.today()}
                            | evaluate(path, task.env, "latest"))
            print(json.dumps({"file": file, **runs[-1]}), flush=True)
            write(data, options.json)


def train(file: str, seed: int, results: Path, run_id: str, demo: Path | None = None) -> Path:
    """One run of ``yaml/<file>.yaml``; its folder."""
    words = ["train", ROOT / "yaml" / f"{file}.yaml", "--seed", seed, "--results-dir", results, "--run-id", run_id, "--force"]
    if demo is not None:
        ((behavior, settings),) = yaml.safe_load((ROOT / "yaml" / f"{file}.yaml").read_text(encoding="utf-8"))["behaviors"].items()
        for section in ("", *(name for name in ("reward_signals.gail.", "behavioral_cloning.") if name.partition(".")[0] in settings)):
            if section or "demo_path" in settings:
                words += ["--set", f"behaviors.{behavior}.{section}demo_path={demo.resolve()}"]
    raytrain(*words)
    return results / run_id


def raytrain(*words: Any) -> None:
    """The command, which must succeed."""
    done = subprocess.run([sys.executable, "-m", "raytrain", *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"raytrain {' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def evaluate(path: Path, env_id: str, which: str) -> dict[str, float]:
    """Mean and standard deviation of the returns of `EPISODES` episodes, most likely actions."""
    policy, env, returns = load_policy(path, which=which), gymnasium.make(env_id), []
    for episode in range(EPISODES):
        obs, over, total = env.reset(seed=1_000_000 + episode)[0], False, 0.0
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return {"mean": round(mean(returns), 1), "std": round(stdev(returns), 1)}


def demonstrated(path: Path) -> dict[str, Any]:
    """What the demonstrations hold."""
    found = read_demonstrations(path)
    return {"episodes": found.episodes, "rows": found.rows, "mean": round(float(np.mean(found.episode_return)), 1)}


def write(data: dict[str, Any], path: Path) -> None:
    """The JSON file, and the table in the page beside it."""
    path.write_text(json.dumps(data) + "\n", encoding="utf-8")
    page = path.with_suffix(".md")
    if page.exists():
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        page.write_text(f"{before}{BEGIN}\n{table(data)}{END}{rest.partition(END)[2]}", encoding="utf-8")


def table(data: dict[str, Any]) -> str:
    """Expert and imitators, mean return of new episodes; the part of the expert's by seed."""
    dates = (run["date"] for facts in data["tasks"].values() for runs in facts["imitators"].values() for run in runs)
    lines = [
        "| task | learns by | from | expert | return by seed | part of the expert's: mean (least) | target | agent steps | wall s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, facts in data["tasks"].items():
        demos, expert = facts["demonstrations"], facts["expert"]["mean"]
        for file, runs in facts["imitators"].items():
            target = TASKS[name].imitators[file]
            returns = [run["mean"] for run in runs]
            lines.append(
                f"| {TASKS[name].env} | [{file}](../yaml/{file}.yaml) | {demos['episodes']} episodes, {demos['rows']:,} rows | {expert:,.0f} "
                f"| {', '.join(f'{value:,.0f}' for value in returns)} | {mean(returns) / expert:.2f} ({min(returns) / expert:.2f}) "
                f"| {'–' if target is None else f'{target:g}'} | {max(run['agent_steps'] for run in runs):,} | {max(run['wall_s'] for run in runs):,.0f} |"
            )
    return "\n".join([f"Made by `python scripts/imitation.py` ({': '.join(machine.made(data, dates))}).", "", *lines, "", ""])


if __name__ == "__main__":
    raise SystemExit(main())
