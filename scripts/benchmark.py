#!/usr/bin/env python
"""Measure raytrain beside the libraries a user would pick instead: one table, a JSON file, docs/benchmarks.md."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shlex
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from benchmarks import growth
from benchmarks.finished import episodes_folder, read_finished
from benchmarks.harness import Job, measure
from benchmarks.peers import LIBRARIES, MARKER, PEERS, PeerError, default_venvs, ensure
from benchmarks.plan import LONG_TASKS, NEEDS, SEEDED, plan
from benchmarks.report import markdown_page, rich_table
from benchmarks.row import Run
from benchmarks.rows import rows
from benchmarks.run_folder import read_run_folder
from rich.console import Console

PACKAGES = ("ray", "tensorflow", "numpy", "gymnasium")
OPTIONAL_PACKAGES = ("mujoco",)
QUIET_CORES = 0.35
PEER_PACKAGES = ("stable-baselines3", "sbx-rl", "sample-factory", "ray", "tianshou", "torch", "jax")
PICTURES = "images"
"""Folder of pictures beside the page."""


def choice(text: str, allowed: tuple[str, ...], by_name_only: tuple[str, ...] = ()) -> tuple[str, ...]:
    """``all`` (but for those that must be named), ``none`` or names separated by commas."""
    if text == "all":
        return tuple(name for name in allowed if name not in by_name_only)
    names = () if text == "none" else tuple(text.split(","))
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise argparse.ArgumentTypeError(f"expected all, none or some of {', '.join(allowed)}; received {', '.join(unknown)}")
    return names


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=lambda s: choice(s, tuple(NEEDS), LONG_TASKS), default="all",
                        help=f"all, or of {','.join(NEEDS)} (default: all, but {','.join(LONG_TASKS)} only by name)")
    parser.add_argument("--peers", type=lambda s: choice(s, LIBRARIES), default=("sb3", "sbx", "sample-factory"),
                        help=f"all, none, or of {','.join(LIBRARIES)} (default: sb3,sbx,sample-factory)")
    parser.add_argument("--seeds", type=int, default=3, help=f"seeds of {', '.join(SEEDED)} (default: 3)")
    parser.add_argument("--repeats", type=int, help="rounds of the other measurements, each of all contestants in turn; the "
                        "figures are then medians, with their ranges (default: 3 for startup, 2 for halfcheetah-200k, 1 for the rest)")
    parser.add_argument("--episodes-dir", type=Path, help="folder of the counters and episode logs of halfcheetah-200k, one "
                        "subfolder CASE-CONTESTANT-SEED a run: those that are there are read instead of run, others are kept there")
    parser.add_argument("--json", type=Path, default=Path("results/benchmark.json"), help="where every raw run goes")
    parser.add_argument("--docs", type=Path, help="page to write, e.g. docs/benchmarks.md")
    parser.add_argument("--from-json", action="store_true", help="run nothing: the table and the page from the JSON file")
    parser.add_argument("--venvs", type=Path, default=default_venvs(), help="folder of the peers' virtual envs")
    return parser.parse_args(arguments)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(), "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30), "system": platform.platform(terse=True),
        "load1": round(os.getloadavg()[0], 2),
    }


def own_versions() -> dict[str, str]:
    """Versions of what raytrain runs on here."""
    found = {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}}
    for name in OPTIONAL_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def peer_versions(venvs: Path, names: set[str]) -> dict[str, str]:
    """Versions of the libraries in the virtual envs `names`."""
    found = {}
    for name in names:
        for package in json.loads((venvs / name / MARKER).read_text())["packages"]:
            package, _, version = package.partition("==")
            if package.lower().replace("_", "-") in PEER_PACKAGES:
                found[package.lower().replace("_", "-")] = version
    return found


def wait_until_quiet(timeout_s: float = 30.0) -> None:
    """Give what still runs on the machine (the end of the last contestant, first of all) time to end."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and psutil.cpu_percent(interval=1.0) / 100 * psutil.cpu_count() > QUIET_CORES:
        continue


def with_sleep(job: Job, runs: list[Run]) -> Job:
    """`job` with the sleep that the contestant which it names has found out; without one where that failed, which is then its own failure."""
    found = [r["info"].get("sleep_s") for r in runs if (r["measurement"], r["contestant"]) == (job.measurement, job.sleeps_as) and not r.get("error")]
    return replace(job, options={**job.options, "sleep_s": found[-1]}) if found else job


def not_run(job: Job, why: str) -> Run:
    """What stands in place of a run that cannot be made."""
    return {"measurement": job.measurement, "contestant": job.contestant, "seed": job.seed, "warm_up": job.warm_up, "info": {}, "error": why}


def run(job: Job, logs: Path, console: Console, episodes_dir: Path | None = None) -> Run:
    """One run, or the reading of one that was made before, with a line before and one after it."""
    kept = episodes_folder(episodes_dir.resolve(), job) if episodes_dir and job.until == "steps" else None
    there = kept is not None and kept.exists()
    if not there:
        wait_until_quiet()
    title = f"{job.measurement}: {job.contestant}, seed {job.seed}" + (" (fills caches only)" if job.warm_up else "")
    console.print(f"[bold]{time.strftime('%H:%M:%S')}[/] {title} …")
    if there:
        result = read_finished(job, kept)
    else:
        result = measure(job, logs, read_run_folder if job.contestant.startswith("raytrain") else None, kept)
    shown = ("startup_s", "ray_init_s", "steps_per_s", "updates_per_s", "rows_per_s", "solve_s", "solve_steps", "final_return",
             "replay_percent", "other_cores", "exit_code")
    found = {**result["info"], **result}
    figures = ", ".join(f"{key} {found[key]}" for key in shown if found.get(key))
    console.print(f"         {figures}", highlight=False, markup=False)
    if result.get("error"):
        console.print(f"         {result['error']}\n{result.get('log_tail', '')}", highlight=False, markup=False)
    return result


def execute(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Make the virtual envs, run everything; the JSON file is written anew after every run.

    A peer whose virtual env cannot be made is left out, and the record says why.
    """
    jobs = plan(args.tasks, args.peers, args.venvs, args.seeds, args.repeats)
    venvs = {peer.venv for job in jobs if (peer := PEERS.get(job.contestant)) is not None}
    missing: dict[str, str] = {}
    for name in sorted(venvs):
        try:
            ensure(args.venvs, name, console.print)
        except PeerError as error:
            console.print(str(error), highlight=False, markup=False)
            missing[name] = f"not installed: {error.reason}"
    record: dict[str, Any] = {
        "machine": machine(), "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": shlex.join(["python", "scripts/benchmark.py", *sys.argv[1:]]), "tasks": list(args.tasks),
        "versions": own_versions(), "peer_versions": peer_versions(args.venvs, venvs - set(missing)), "runs": [],
    }
    logs = args.json.parent / f"{args.json.stem}-logs"
    logs.mkdir(parents=True, exist_ok=True)
    console.print(f"{len(jobs)} runs, one at a time; logs in {logs}")
    for job in jobs:
        peer = PEERS.get(job.contestant)
        if peer is not None and peer.venv in missing:
            record["runs"].append(not_run(job, missing[peer.venv]))
        elif job.sleeps_as and "sleep_s" not in (job := with_sleep(job, record["runs"])).options:
            record["runs"].append(not_run(job, f"{job.sleeps_as} failed, so nobody knows how long a step is to sleep"))
        else:
            record["runs"].append(run(job, logs, console, args.episodes_dir))
        record["rows"] = [row.to_json() for row in rows(args.tasks, record["runs"])]
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return record


def main() -> int:
    """Exit code 0: everything measured, whatever the verdicts; 1: a figure is missing."""
    args, console = parse(), Console()
    record = json.loads(args.json.read_text()) if args.from_json else execute(args, console)
    table = rows(record["tasks"], record["runs"])
    console.print(rich_table(table))
    if args.docs:
        existing = args.docs.read_text() if args.docs.exists() else ""
        picture = growth.draw(record["runs"], args.docs.parent / PICTURES / "growth.png")
        args.docs.write_text(markdown_page(record, table, existing))
        console.print(f"Wrote {args.docs}" + (f" and {picture}" if picture else ""))
    return int(any(row.passed is None for row in table))


if __name__ == "__main__":
    sys.exit(main())
