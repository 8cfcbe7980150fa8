#!/usr/bin/env python
"""Disturb runs and count what is lost: ``python scripts/chaos.py kills --kills 10``.

``kills``       SIGKILL to random env managers, trainer, exchanges and nodes of one CartPole run on a cluster of three nodes
``interrupts``  SIGKILL to a whole run, driver and all, at random moments, and resume
``memory``      memory, open files and spilled bytes over a long CartPole run
``corrupt``     damaged copies of the checkpoints of a finished run: each must be noticed, fallen back from and told
``scaling``     slow environments in more and more env managers
``simulate``    the queue and mailbox of a trainer under up to a thousand env managers of which only the calls are real

Each makes its own Ray and ends only processes that it started. Figures gather in the JSON file under the name of the command.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

import machine
from chaos_runs import corrupt, fakes, interrupts, kills, memory, scaling
from chaos_runs.tables import Row, table
from rich.console import Console

console = Console()


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    kill = commands.add_parser("kills")
    kill.add_argument("--kills", type=int, default=100, metavar="N", help="(default: %(default)s)")
    kill.add_argument("--steps-between", type=int, default=300_000, metavar="N", help="agent steps between two of them (default: %(default)s)")
    kill.add_argument("--tail-steps", type=int, default=500_000, metavar="N", help="agent steps after the last one (default: %(default)s)")
    kill.add_argument("--checkpoint-interval", type=int, default=100_000, metavar="N", help="agent steps (default: %(default)s)")
    interrupt = commands.add_parser("interrupts")
    interrupt.add_argument("--times", type=int, default=50, metavar="N", help="(default: %(default)s)")
    interrupt.add_argument("--longest-s", type=float, default=40.0, metavar="S", help="a run is killed within so long (default: %(default)s)")
    interrupt.add_argument("--checkpoint-interval", type=int, default=100_000, metavar="N", help="agent steps (default: %(default)s)")
    long = commands.add_parser("memory")
    long.add_argument("--steps", type=int, default=10_000_000, metavar="N", help="agent steps (default: %(default)s)")
    long.add_argument("--every-s", type=float, default=5.0, metavar="S", help="between two looks (default: %(default)s)")
    scale = commands.add_parser("scaling")
    scale.add_argument("--managers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], metavar="N", help="(default: 1, 2, 4, … 64)")
    scale.add_argument("--num-envs", type=int, default=16, metavar="N", help="of each env manager (default: %(default)s)")
    scale.add_argument("--step-s", type=float, default=0.01, metavar="S", help="of an environment (default: %(default)s)")
    scale.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of each run, its start left out (default: %(default)s)")
    simulate = commands.add_parser("simulate")
    simulate.add_argument("--managers", type=int, nargs="+", default=[10, 100, 300, 1000], metavar="N", help="(default: 10, 100, 300, 1000)")
    simulate.add_argument("--rows", type=int, default=1024, metavar="N", help="agent steps of an item (default: %(default)s)")
    simulate.add_argument("--period-s", type=float, default=10.0, metavar="S", help="between two items of an env manager (default: %(default)s)")
    simulate.add_argument("--seconds", type=float, default=30.0, metavar="S", help="of each measurement (default: %(default)s)")
    damage = commands.add_parser("corrupt")
    damage.add_argument("run", type=Path, help="folder of a finished run with at least two checkpoints")
    damage.add_argument("--variants", type=int, default=200, metavar="N", help="(default: %(default)s)")
    for command in (kill, interrupt, long, scale, simulate, damage):
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--timeout-s", type=float, default=6 * 3600.0, metavar="S", help="a run is given up after (default: %(default)s)")
        command.add_argument("--folder", type=Path, help="where runs go; new (default: a temporary one, kept)")
        command.add_argument("--json", type=Path, metavar="FILE", help="add the figures to this file")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 0: everything that is asked for holds; 1: something does not; 2: the input is not usable."""
    options = parse(words)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="raytrain-chaos-"))
    if folder.exists() and any(folder.iterdir()):
        console.print(f"Expected --folder to be new or empty, received {folder}, which has files. Choose another one.", markup=False)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    console.print(f"runs in {folder}", highlight=False, markup=False)
    result, found = COMMANDS[options.command](options, folder.resolve())
    console.print(table(options.command, found))
    failed = any(row.passed is False for row in found)
    if failed:
        console.print("\n".join(result.get("log_tail", [])), highlight=False, markup=False)
    if options.json is not None:
        write(options.json, options.command, result, found)
    return int(failed)


def run_kills(options: argparse.Namespace, folder: Path) -> tuple[dict, list[Row]]:
    result = kills.kills(
        folder, options.kills, options.steps_between, options.tail_steps, options.checkpoint_interval, options.seed, options.timeout_s, console.print)
    return result, kills.rows(result)


def run_interrupts(options: argparse.Namespace, folder: Path) -> tuple[dict, list[Row]]:
    result = interrupts.interrupts(folder, options.times, options.longest_s, options.checkpoint_interval, options.seed, console.print)
    return result, interrupts.rows(result)


def run_memory(options: argparse.Namespace, folder: Path) -> tuple[dict, list[Row]]:
    result = memory.memory(folder, options.steps, options.every_s, options.timeout_s, console.print)
    return result, memory.rows(result)


def run_scaling(options: argparse.Namespace, folder: Path) -> tuple[dict, list[Row]]:
    result = scaling.scaling(folder, options.managers, options.num_envs, options.step_s, options.seconds, options.timeout_s, console.print)
    return result, scaling.rows(result)


def run_simulate(options: argparse.Namespace, folder: Path) -> tuple[dict, list[Row]]:
    result = fakes.simulate(options.managers, options.rows, options.period_s, options.seconds, console.print)
    return result, fakes.rows(result)


def run_corrupt(options: argparse.Namespace, folder: Path) -> tuple[dict, list[Row]]:
    result = corrupt.corrupt(options.run, options.variants, options.seed)
    return result, corrupt.rows(result)


COMMANDS = {"kills": run_kills, "interrupts": run_interrupts, "corrupt": run_corrupt, "memory": run_memory, "scaling": run_scaling, "simulate": run_simulate}


def write(path: Path, command: str, result: dict, found: Sequence[Row]) -> None:
    """Put the figures of one command in place of what it had before."""
    data = json.loads(path.read_text()) if path.exists() else {}
    shown = [{"what": row.what, "found": row.found, "target": row.target, "passed": row.passed} for row in found]
    result = {k: v for k, v in result.items() if k != "log_tail"}
    data[command] = {"date": machine.today(), **machine.describe(), "rows": shown, "result": result}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
