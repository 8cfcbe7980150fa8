#!/usr/bin/env python
"""Where the time of a run goes: ``python scripts/profile_run.py yaml/ppo/CartPole.yaml``.

Each file is trained as a user trains it, until it has run for the seconds asked for, and stopped in order. Printed are the cores that each kind of
process used from then on when everything ran (the operating system's account), and the share of the trainers' and env managers' time
that each section of `timers.json` took.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machine
import psutil
from benchmarks.processes import ProcessTree
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
KINDS = {"ray::Trainer": "trainer", "ray::EnvManager": "env manager", "ray::Exchange": "exchange", "ray::Evaluator": "evaluator",
         "ray::Referee": "referee", "ray::": "other Ray workers", "raylet": "raylet", "gcs_server": "Ray's head"}
STARTS_WITHIN_S, STOPS_WITHIN_S = 180.0, 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each is looked at (default: 30)")
    parser.add_argument("--set", action="append", default=[], metavar="a.b.c=VALUE", help="as that of raytrain train")
    options = parser.parse_args()
    console = Console()
    for path in options.files:
        cores, timers, steps_per_s = profile(path.resolve(), options.set, options.seconds)
        table = Table(title=f"{path.parent.name}/{path.name}: {steps_per_s:,.0f} agent steps/s", title_justify="left")
        for column in ("process", "cores", "section", "share"):
            table.add_column(column, justify="right" if column in ("cores", "share") else "left")
        for kind, used in cores.most_common():
            parts = list(sections(timers, kind))
            for row, (section, share) in enumerate(parts or [("", None)]):
                figures = (kind, f"{used:.2f}") if row == 0 else ("", "")
                table.add_row(*figures, section, "" if share is None else f"{100 * share:.0f} %")
        console.print(table)
    facts = machine.describe()
    console.print(facts["machine"], facts["versions"], machine.today())
    return 0


def profile(path: Path, sets: list[str], seconds: float) -> tuple[Counter[str], dict[str, Any], float]:
    """Kind of process -> cores used; the tree of timers; agent steps a second."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, str(ROOT / "scripts" / "train.py"), str(path), "--results-dir", folder, "--run-id", "run"]
        words += [word for item in (*sets, "stop.reward=null") for word in ("--set", item)]
        with (Path(folder) / "log").open("w+") as log:
            run = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
            tree = ProcessTree(run.pid)
            try:
                status = Path(folder) / "run" / "status.json"
                wait_for_updates(run, status, log)
                before, steps, began = cpu_s(tree), agent_steps(status), time.monotonic()
                time.sleep(seconds)
                after, spent = cpu_s(tree), time.monotonic() - began
                speed = (agent_steps(status) - steps) / spent
            finally:
                tree.end(run, STOPS_WITHIN_S)
        used = Counter({kind: round((after[kind] - before[kind]) / spent, 2) for kind in after if after[kind] - before[kind] >= 0.005 * spent})
        return used, json.loads((Path(folder) / "run" / "timers.json").read_text()), speed


def wait_for_updates(run: subprocess.Popen, status: Path, log) -> None:
    """Until the first updates are done, and compiled."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    while run.poll() is None and time.monotonic() < deadline:
        if status.exists() and json.loads(status.read_text())["policy_updates"] >= 3:
            return
        time.sleep(0.5)
    log.seek(0)
    raise SystemExit(f"no update within {STARTS_WITHIN_S:.0f} s\n{log.read()[-2000:]}")


def agent_steps(status: Path) -> int:
    """Learnt from up to now."""
    return json.loads(status.read_text())["agent_steps"]


def cpu_s(tree: ProcessTree) -> Counter[str]:
    """Kind of process -> CPU seconds up to now."""
    spent: Counter[str] = Counter()
    for index, process in enumerate(tree.processes()):
        try:
            title, times = " ".join(process.cmdline()[:1]), process.cpu_times()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        name = "driver" if index == 0 else next((kind for prefix, kind in KINDS.items() if prefix in title), "other")
        spent[name] += times.user + times.system
    return spent


def sections(timers: dict[str, Any], kind: str) -> Iterator[tuple[str, float]]:
    """Section -> share of the time of all processes of `kind`, the largest first; what is below 1 % is left out."""
    for name, node in timers["children"].items():
        if name.rstrip("s").replace("_", " ") != kind:
            continue
        flat = Counter({"the rest": node["self"]})
        flatten(node, flat)
        yield from ((section, total / node["total"]) for section, total in flat.most_common() if total >= 0.01 * node["total"])


def flatten(node: dict[str, Any], into: Counter[str]) -> None:
    """Each section by what it took itself, without those inside."""
    for name, child in (node.get("children") or {}).items():
        into[name] += child["self"]
        flatten(child, into)


if __name__ == "__main__":
    sys.exit(main())
