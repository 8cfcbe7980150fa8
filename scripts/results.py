#!/usr/bin/env python
"""Train the ready-made configurations with several seeds and write what they reach: ``python scripts/results.py``.

Every run is the product's own command line. Results go to docs/results.json after each run, docs/results.md is made from it.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
FILES = ("CartPole", "Acrobot", "Pendulum", "MountainCarContinuous", "LunarLander", "LunarLanderContinuous")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", nargs="+", default=FILES, metavar="NAME", help="names in yaml/ppo (default: all)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=ROOT / "docs" / "results.json")
    options = parser.parse_args()
    data = json.loads(options.json.read_text()) if options.json.exists() else {"runs": {}}
    data["machine"] = f"{platform.processor() or platform.machine()}, {_cores()} cores, {platform.system()}"
    data["versions"] = {p: version(p) for p in ("ray", "tensorflow", "numpy", "gymnasium")} | {"python": platform.python_version()}
    for name in options.files:
        data["runs"][name] = []
        for seed in range(1, options.seeds + 1):
            run = train(name, seed)
            data["runs"][name].append(run)
            print(json.dumps({"file": name, **run}), flush=True)
            data["date"] = time.strftime("%Y-%m-%d")
            options.json.write_text(json.dumps(data, indent=1) + "\n")
            options.json.with_suffix(".md").write_text(page(data), encoding="utf-8")
    return 0


def train(name: str, seed: int) -> dict:
    """One run of ``yaml/ppo/<name>.yaml``; what its status says, and the wall time from process start to end."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, str(ROOT / "scripts" / "train.py"), str(ROOT / "yaml" / "ppo" / f"{name}.yaml")]
        started = time.monotonic()
        done = subprocess.run([*words, "--seed", str(seed), "--results-dir", folder, "--run-id", "run"], capture_output=True, text=True, check=False)
        wall_s = time.monotonic() - started
        if done.returncode:
            raise SystemExit(f"{name}, seed {seed}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        status = json.loads((Path(folder) / "run" / "status.json").read_text())
    return {
        "seed": seed, "reason": status["reason"], "mean_return": status["mean_return"], "agent_steps": status["agent_steps"],
        "wall_s": round(wall_s, 1), "goal_reached": "stop.reward" in status["reason"],
    }


def page(data: dict) -> str:
    """The page for people."""
    versions = ", ".join(f"{k} {v}" for k, v in data["versions"].items())
    lines = [
        "# Results of the ready-made configurations",
        "",
        f"Made by `python scripts/results.py` on {data.get('date')}: {data['machine']}, {versions}.",
        "",
        "Mean return is the training return (exploration on) of the last 100 episodes, when the run ended: at the `stop.reward` of the file or at its "
        "`max_steps`. Wall time is from process start to end, Ray and compilation included. Medians of the seeds, with all of them in brackets.",
        "",
        *([data["note"], ""] if data.get("note") else []),
        "| file | goal (`stop.reward`) | reached | agent steps | wall s | mean return |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, runs in data["runs"].items():
        goal = _goal(name)
        steps, wall, value = ([r[k] for r in runs] for k in ("agent_steps", "wall_s", "mean_return"))
        lines.append(
            f"| [{name}](../yaml/ppo/{name}.yaml) | {goal} | {sum(r['goal_reached'] for r in runs)} of {len(runs)} seeds | {_spread(steps, 0)} "
            f"| {_spread(wall, 0)} | {_spread(value, 1)} |"
        )
    return "\n".join(lines) + "\n"


def _spread(values: list[float], decimals: int) -> str:
    shown = [f"{v:,.{decimals}f}" for v in values]
    return f"{median(values):,.{decimals}f} ({', '.join(shown)})"


def _goal(name: str) -> str:
    import yaml

    return str(yaml.safe_load((ROOT / "yaml" / "ppo" / f"{name}.yaml").read_text())["stop"]["reward"])


def _cores() -> int:
    import os

    return os.cpu_count() or 0


if __name__ == "__main__":
    raise SystemExit(main())
