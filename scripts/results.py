#!/usr/bin/env python
"""Train the ready-made configurations with several seeds and write what they reach: ``python scripts/results.py``.

Every run is the product's own command line. Results go to docs/results.json after each run; docs/results.md and the curves in
docs/images (with matplotlib installed) are made from it.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import machine
import yaml

ROOT = Path(__file__).resolve().parent.parent
FILES = (
    "ppo/CartPole", "ppo/Acrobot", "ppo/Pendulum", "ppo/MountainCarContinuous", "ppo/LunarLander", "ppo/LunarLanderContinuous",
    "sac/Pendulum", "sac/CartPole", "sac/MountainCarContinuous", "sac/LunarLanderContinuous",
    "ppo/Pole-Curriculum",
)
POINTS = 60  # of a curve that is kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", nargs="+", default=FILES, metavar="NAME", help="names in yaml/, such as sac/Pendulum (default: all)")
    parser.add_argument("--set", action="append", default=[], metavar="a.b.c=VALUE", help="as that of raytrain train; with --label")
    parser.add_argument("--label", help="what --set makes of the one file of --files, such as 'without curiosity': a row of its own")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=ROOT / "docs" / "results.json")
    parser.add_argument("--from-json", action="store_true", help="run nothing: the page and the curves from the JSON file")
    parser.add_argument("--from-run", type=Path, metavar="FOLDER", help="run nothing: add the finished run in FOLDER to the one file of --files")
    options = parser.parse_args()
    if (options.from_run is not None or options.label) and len(options.files) != 1:
        parser.error("--from-run and --label need --files with one name")
    if bool(options.set) != bool(options.label):
        parser.error("--set and --label go together")
    data = json.loads(options.json.read_text()) if options.json.exists() else {"runs": {}}
    if not options.from_json:
        data |= machine.describe()
        for name in options.files:
            if options.from_run is None:
                run_all(name, options.set, options.label, options.seeds, data, options.json)
            else:
                add(name, options.from_run, data)
    write(data, options.json, options.files)
    return 0


def run_all(name: str, sets: list[str], label: str | None, seeds: int, data: dict[str, Any], path: Path) -> None:
    """All seeds of one file; results are on disk after each."""
    runs, key = [], f"{name} {label}" if label else name
    for seed in range(1, seeds + 1):
        run = train(name, seed, sets)
        runs.append(run)
        print(json.dumps({"file": key, **{k: v for k, v in run.items() if k != "curve"}}), flush=True)
        data["runs"][key] = runs
        write(data, path, (name,))


def train(name: str, seed: int, sets: list[str]) -> dict[str, Any]:
    """One run of ``yaml/<name>.yaml`` with `sets`: what its status says, its curve, and the wall time from process start to end."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, str(ROOT / "scripts" / "train.py"), str(ROOT / "yaml" / f"{name}.yaml")]
        words += [word for item in sets for word in ("--set", item)]
        started = time.monotonic()
        done = subprocess.run([*words, "--seed", str(seed), "--results-dir", folder, "--run-id", "run"], capture_output=True, text=True, check=False)
        wall_s = time.monotonic() - started
        if done.returncode:
            raise SystemExit(f"{name}, seed {seed}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return summary(Path(folder) / "run", seed, wall_s)


def add(name: str, folder: Path, data: dict[str, Any]) -> None:
    """Take a run in that was made by hand, in place of one with its seed; its wall time is that of its last summary."""
    seed = yaml.safe_load((folder / "configuration.yaml").read_text())["env_settings"]["seed"]
    with next(folder.glob("*/metrics.csv")).open() as file:
        wall_s = float(list(csv.DictReader(file))[-1]["elapsed_s"])
    runs = [run for run in data["runs"].get(name, []) if run["seed"] != seed]
    data["runs"][name] = sorted([*runs, summary(folder, seed, wall_s)], key=lambda run: run["seed"])


def summary(folder: Path, seed: int, wall_s: float) -> dict[str, Any]:
    """What a run's folder says of it."""
    status = json.loads((folder / "status.json").read_text())
    return {
        "seed": seed, "reason": status["reason"], "mean_return": status["mean_return"], "agent_steps": status["agent_steps"],
        "wall_s": round(wall_s, 1), "goal_reached": "stop.reward" in status["reason"], "date": machine.today(),
        "curve": read_curve(next(folder.glob("*/metrics.csv"))),
    }


def read_curve(path: Path) -> list[tuple[int, float]]:
    """(agent steps, mean training return) of the summaries with finished episodes, at most `POINTS` of them."""
    with path.open(newline="") as file:
        rows = [(int(r["step"]), float(r["Environment/Cumulative Reward"])) for r in csv.DictReader(file) if r["Environment/Cumulative Reward"]]
    every = -(-len(rows) // POINTS) or 1
    return rows[::-every][::-1]


def write(data: dict[str, Any], path: Path, names: tuple[str, ...]) -> None:
    """The JSON file, the page beside it, and the curves of `names`."""
    path.write_text(json.dumps(data) + "\n")
    path.with_suffix(".md").write_text(page(data), encoding="utf-8")
    if find_spec("matplotlib"):
        for name in names:
            curves = [
                (f"{key.partition(' ')[2]} seed {run['seed']}".strip(), run["curve"])
                for key, runs in data["runs"].items() if key.partition(" ")[0] == name for run in runs if run.get("curve")
            ]
            if curves:
                draw(name, curves, path.parent / "images" / f"{name.replace('/', '-').lower()}.png")


def draw(name: str, curves: list[tuple[str, list[tuple[int, float]]]], path: Path) -> None:
    """Training returns of all seeds over agent steps; variants of a file (with a label) are dotted."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import EngFormatter

    figure, axes = pyplot.subplots(figsize=(7.2, 3.4), dpi=110, layout="constrained")
    for label, curve in curves:
        axes.plot(*zip(*curve, strict=True), linewidth=1.8, linestyle="-" if label.startswith("seed") else ":", label=label)
    goal = settings(name).get("stop", {}).get("reward")
    if goal is not None:
        axes.axhline(goal, color="0.4", linewidth=1.0, linestyle="--", label=f"stop.reward {goal:g}")
    axes.set(title=f"yaml/{name}.yaml", xlabel="agent steps", ylabel="training return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize="small")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


def page(data: dict[str, Any]) -> str:
    """The page for people."""
    days, where = machine.made(data, (run["date"] for runs in data["runs"].values() for run in runs if "date" in run))
    lines = [
        "# Results of the ready-made configurations",
        "",
        f"Made by `python scripts/results.py` ({days}): {where}.",
        "",
        "Mean return is the training return (exploration on) of the last `stop.episodes` episodes (100 unless the file says otherwise) when "
        + "the run ended: at the file's `stop.reward` or at its `max_steps`. Wall time is from process start to end, Ray and compilation "
        + "included. Medians of the seeds, with all of them in brackets.",
        "",
        *([data["note"], ""] if data.get("note") else []),
        "| file | goal (`stop.reward`) | reached | agent steps | wall s | mean return |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, runs in data["runs"].items():
        steps, wall, value = ([r[k] for r in runs] for k in ("agent_steps", "wall_s", "mean_return"))
        name, _, label = name.partition(" ")
        goal = settings(name).get("stop", {}).get("reward")
        reached = "–" if goal is None else f"{sum(r['goal_reached'] for r in runs)} of {len(runs)} seeds"
        lines.append(
            f"| [{name}](../yaml/{name}.yaml){' ' + label if label else ''} | {'–' if goal is None else goal} "
            f"| {reached} | {_spread(steps, 0)} | {_spread(wall, 0)} | {_spread(value, 1)} |"
        )
    return "\n".join(lines) + "\n"


def settings(name: str) -> dict[str, Any]:
    """The configuration file of that name."""
    return yaml.safe_load((ROOT / "yaml" / f"{name}.yaml").read_text())


def _spread(values: list[float], decimals: int) -> str:
    shown = [f"{v:,.{decimals}f}" for v in values]
    return f"{median(values):,.{decimals}f} ({', '.join(shown)})"


if __name__ == "__main__":
    raise SystemExit(main())
