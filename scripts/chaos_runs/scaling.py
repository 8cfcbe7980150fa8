"""Slow environments in more and more env managers: agent steps per second beside a straight line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

from chaos_runs.nodes import started
from chaos_runs.processes import actors, kill_all, new_token, start_run
from chaos_runs.runs import NO_LIMITS, status
from chaos_runs.tables import Row

_FULL = 90.0  # percent of the machine's processors from which on they, and not raytrain, are the limit
_LINEAR = 0.9
_SETTLE_S = 10.0


def scaling(
    folder: Path, managers: Sequence[int], num_envs: int, step_s: float, seconds: float, timeout_s: float, say: Callable[[str], None],
) -> dict[str, Any]:
    """A run for each number of env managers, one after the other, on a cluster of one node."""
    measured = []
    for count in managers:
        token = new_token()
        with started(token, head_cpus=2, worker_cpus=0, workers=0) as nodes:
            one = _measure(folder / f"{count}", count, num_envs, step_s, seconds, timeout_s, token, nodes.address)
        measured.append(one)
        say(f"{count} env managers: {one['steps_per_s']:,.0f} steps/s, processors {one['cpu_percent']:.0f} %")
    return {"num_envs": num_envs, "step_s": step_s, "runs": measured}


def _measure(folder: Path, count: int, num_envs: int, step_s: float, seconds: float, timeout_s: float, token: str, address: str) -> dict[str, Any]:
    folder.mkdir(parents=True)
    file, run = _configuration(folder, count, num_envs, step_s), folder / "run"
    process = start_run(sys.executable, file, ["--address", address], token, folder / "run.log")
    try:
        deadline = time.monotonic() + timeout_s
        _until(lambda: status(run).get("agent_steps", 0) > 0 and len(actors(token, "env manager")) == count, process, deadline)
        time.sleep(_SETTLE_S)
        psutil.cpu_percent()
        first = status(run)
        _until(lambda: status(run).get("elapsed_s", 0.0) - first["elapsed_s"] >= seconds, process, deadline)
        last, cpu = status(run), psutil.cpu_percent()
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60.0)
    finally:
        kill_all(token, process) if process.poll() is None else None
    took = last["elapsed_s"] - first["elapsed_s"]
    counts = _counts(json.loads((run / "timers.json").read_text())) if (run / "timers.json").exists() else {}
    whole = status(run).get("elapsed_s", 0.0) or took
    return {
        "managers": count, "steps_per_s": (last["agent_steps"] - first["agent_steps"]) / took, "cpu_percent": cpu,
        "policy_updates_per_s": (last["policy_updates"] - first["policy_updates"]) / took, "exit_code": process.returncode,
        "puts_per_s": counts.get("ship", 0) / whole, "takes_per_s": counts.get("take", 0) / whole, "pushes_per_s": counts.get("publish", 0) / whole,
    }


def _configuration(folder: Path, count: int, num_envs: int, step_s: float) -> Path:
    rows = max(2048, 64 * num_envs * count)  # 64 steps of each environment
    hyper = {"buffer_size": rows, "batch_size": min(4096, rows // 4), "num_epoch": 1}
    behavior = {
        "hyperparameters": hyper, "network_settings": {"hidden_units": 32, "num_layers": 2}, "max_steps": 1_000_000_000, "summary_freq": 10 * rows,
        "checkpoint_interval": 1_000_000_000, "time_horizon": 64,
    }
    data = {
        "env": "envs.toy:SlowStep", "env_kwargs": {"sleep_s": step_s}, "behaviors": {"SlowStep": behavior},
        "env_settings": {"num_envs": num_envs, "stepping": "threads", "seed": 1, **NO_LIMITS},
        "distributed": {"num_env_managers": count, "env_manager_cpus": 0.02, "trainer_cpus": 0.5},
        "checkpoint_settings": {"results_dir": str(folder), "run_id": "run"},
    }
    file = folder / "scaling.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def _until(comes: Callable[[], bool], process: subprocess.Popen, deadline: float) -> None:
    while not comes():
        if process.poll() is not None:
            raise RuntimeError(f"The run ended by itself with exit code {process.returncode}; see run.log in its folder.")
        if time.monotonic() > deadline:
            raise RuntimeError("The run did not come so far in time; see run.log in its folder.")
        time.sleep(0.5)


def _counts(tree: dict[str, Any]) -> dict[str, int]:
    """Name of a timer -> how often it ran, wherever it is in the tree."""
    found: dict[str, int] = {}
    for name, child in tree.get("children", {}).items():
        found[name] = found.get(name, 0) + child.get("count", 0)
        for inner, count in _counts(child).items():
            found[inner] = found.get(inner, 0) + count
    return found


def rows(result: dict[str, Any]) -> list[Row]:
    """Each run beside the one with the fewest env managers, as long as processors are left."""
    found, first = [], result["runs"][0]
    each = first["steps_per_s"] / first["managers"]
    for one in result["runs"]:
        share = one["steps_per_s"] / (each * one["managers"])
        is_full = one["cpu_percent"] >= _FULL
        ideal = result["num_envs"] * one["managers"] / result["step_s"]
        text = (f"{one['steps_per_s']:,.0f} steps/s, {share:.0%} of linear, {one['steps_per_s'] / ideal:.0%} of what the environments give; "
                f"{one['puts_per_s']:.1f} puts, {one['takes_per_s']:.1f} takes, {one['pushes_per_s']:.1f} pushes per s; processors {one['cpu_percent']:.0f} %")
        found.append(Row(f"{one['managers']} env managers", text, f"≥ {_LINEAR:.0%} of linear", None if is_full else share >= _LINEAR))
    return found
