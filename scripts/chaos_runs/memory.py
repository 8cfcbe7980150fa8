"""Memory, open files and spilled bytes over a long run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from chaos_runs.nodes import started
from chaos_runs.processes import kill_all, members, new_token, start_run, title
from chaos_runs.runs import cartpole, progress, status
from chaos_runs.tables import Row

_MOST_GROWTH = 0.05
_OURS = ("driver", "EnvManagerActor", "TrainerActor", "Exchange")


def memory(folder: Path, steps: int, every_s: float, timeout_s: float, say: Callable[[str], None]) -> dict[str, Any]:
    """One run of CartPole over `steps` agent steps, looked at every `every_s` seconds from its first step on."""
    file, token, run = cartpole(folder, steps, max(1, steps // 50), managers=1, num_envs=128), new_token(), folder / "run"
    samples: list[dict[str, Any]] = []
    began = time.monotonic()
    with started(token, head_cpus=2, worker_cpus=0, workers=0) as nodes:
        process = start_run(sys.executable, file, ["--address", nodes.address], token, folder / "run.log")
        try:
            while process.poll() is None and time.monotonic() - began < timeout_s:
                time.sleep(every_s)
                if progress(found := status(run)) > 0 and found.get("state") == "running":
                    samples.append({"agent_steps": found["agent_steps"], "processes": look(token, process.pid)})
                    if len(samples) % 20 == 0:
                        say(f"{found['agent_steps']:,} agent steps, {sum(p['rss'] for p in samples[-1]['processes'].values()) / 2**20:.0f} MiB")
            spilled = spilled_bytes(nodes.address)
        finally:
            kill_all(token, process) if process.poll() is None else None
    text = (folder / "run.log").read_text(errors="replace").splitlines()
    return {"exit_code": process.returncode, "agent_steps": status(run).get("agent_steps", 0), "steps": steps, "spilled_bytes": spilled,
            "samples": samples, "log_tail": text[-25:]}


def look(token: str, driver: int) -> dict[str, dict[str, int]]:
    """Name -> resident memory (bytes) and open files of each kind of process of a run."""
    found: dict[str, dict[str, int]] = {}
    for process in members(token):
        try:
            one = {"rss": process.memory_info().rss, "files": process.num_fds(), "count": 1}
        except psutil.Error:
            continue
        before = found.setdefault(_kind(process, driver), dict.fromkeys(one, 0))
        before.update({key: before[key] + value for key, value in one.items()})
    return found


def _kind(process: psutil.Process, driver: int) -> str:
    words = title(process)
    if process.pid == driver:
        return "driver"
    if words.startswith("ray::"):
        return words.removeprefix("ray::").split(".")[0].split(" ")[0]
    return Path(words.split(" ")[0]).name if words else "ended"


def spilled_bytes(address: str) -> int:
    """Of a whole cluster since it was started."""
    import ray
    from ray._private.internal_api import node_stats

    ray.init(address=address, log_to_driver=False, configure_logging=False, logging_level="ERROR")
    try:
        alive = [node for node in ray.nodes() if node["Alive"]]
        return sum(node_stats(node["NodeManagerAddress"], node["NodeManagerPort"]).store_stats.spilled_bytes_total for node in alive)
    finally:
        ray.shutdown()


def growth(samples: list[dict[str, Any]], name: str | None, key: str) -> tuple[float, float]:
    """Of one kind of process, or of all (None): the median of the fifth after the middle, and that of the last fifth."""
    values = [
        sum(p[key] for p in one["processes"].values()) if name is None else one["processes"].get(name, {}).get(key, 0) for one in samples
    ]
    fifth = max(1, len(values) // 5)
    middle = values[len(values) // 2:][:fifth]
    return (median(middle), median(values[-fifth:])) if values else (0.0, 0.0)


def rows(result: dict[str, Any]) -> list[Row]:
    """What is asked of it, and whether it holds."""
    samples, found = result["samples"], []
    for name in (None, *_OURS):
        for key, unit, size in (("rss", "MiB", 2**20), ("files", "open files", 1)):
            before, after = growth(samples, name, key)
            share = after / before - 1 if before else 0.0
            found.append(Row(f"{name or 'all together'}, {unit}", f"{before / size:,.0f} → {after / size:,.0f} ({share:+.1%})",
                             f"< +{_MOST_GROWTH:.0%} in the second half", share < _MOST_GROWTH and before > 0))
    done = result["exit_code"] == 0 and result["agent_steps"] >= result["steps"]
    return [
        Row("agent steps", f"{result['agent_steps']:,}, exit code {result['exit_code']}", f"{result['steps']:,}", done), *found,
        Row("spilled bytes", f"{result['spilled_bytes']:,}", "0", result["spilled_bytes"] == 0), Row("samples", str(len(samples)), "", None),
    ]
