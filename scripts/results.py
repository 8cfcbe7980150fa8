#!/usr/bin/env python
"""Train the ready-made configurations with several seeds and write what they reach: ``python scripts/results.py``.

As they stand to their own goal, with ``--steps`` for a fixed number of agent steps, with ``--lockstep`` without asynchrony; ``--queue`` does
whatever is missing. Every run is the product's own command line, and so is its evaluation. Results go to docs/results.json after each run;
docs/results.md and the curves in docs/images (with matplotlib installed) are made from it and docs/published.json.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]
if find_spec("scipy") is None:
    print('error: expected SciPy, which makes the intervals, found none: pip install "raytrain[results]"', file=sys.stderr)
    raise SystemExit(2)

import machine
import yaml
from result_tables import cells, published
from result_tables.cells import Cell
from result_tables.page import page
from result_tables.runs import RunFailed, evaluate, random_return, rows, summary, train

from raytrain.files import replace_file


def make_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", nargs="+", metavar="NAME", help="names in yaml/, such as sac/Pendulum (default: all of the kind that is asked for)")
    parser.add_argument("--seeds", type=int, metavar="N", help=f"seeds 1 to N of each (default: {cells.GOAL_SEEDS}, with fixed steps {cells.SEEDS})")
    parser.add_argument("--steps", nargs="?", type=int, const=0, metavar="N", help="run each to N agent steps and not to its goal (default: those of the page)")
    parser.add_argument("--lockstep", action="store_true", help="with threaded: false; a fixed number of steps, as with --steps")
    parser.add_argument("--set", action="append", default=[], metavar="a.b.c=VALUE", help="as that of raytrain train; with --label")
    parser.add_argument("--label", help="what --set makes of the one file of --files, such as 'without curiosity': a row of its own")
    parser.add_argument("--queue", action="store_true", help="run what the page has as missing (of --files only, where they are given), one at a time")
    parser.add_argument("--json", type=Path, default=ROOT / "docs" / "results.json", metavar="FILE", help="page and pictures lie beside it")
    parser.add_argument("--from-json", action="store_true", help="run nothing: the page and the curves from the JSON file")
    parser.add_argument("--from-run", type=Path, metavar="FOLDER", help="run nothing: add the finished run in FOLDER to the one file of --files")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 where a run failed, 2 for bad input, 130 where Ctrl-C or SIGTERM ended it."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    check(parser, options)
    signal.signal(signal.SIGTERM, _interrupt)
    with ExitStack() as stack:
        try:
            stack.enter_context(only_one(options.json.absolute().parent))
            data = read(options.json)
        except (ValueError, OSError) as error:
            parser.error(str(error))
        try:
            return run(options, data)
        except RunFailed as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("stopped: runs that were finished are saved, --queue goes on with the one that was going", file=sys.stderr)
            return 130


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End with code 2 where options do not go together or name what is not there."""
    known = sorted(f"{path.parent.name}/{path.stem}" for path in (ROOT / "yaml").glob("*/*.yaml"))
    for name in options.files or ():
        if name not in known:
            near = get_close_matches(name, known, 1)
            parser.error(f"--files: expected names of files in yaml/, such as sac/Pendulum, received {name}{f'; did you mean {near[0]}?' if near else ''}")
    if options.seeds is not None and options.seeds < 1:
        parser.error(f"--seeds: expected at least 1, received {options.seeds}")
    if options.steps is not None and options.steps < 0:
        parser.error(f"--steps: expected at least 1, received {options.steps}")
    if (options.from_run is not None or options.label) and len(options.files or ()) != 1:
        parser.error("--from-run and --label need --files with one name")
    if bool(options.set) != bool(options.label):
        parser.error("--set and --label go together")
    if options.queue and (options.steps is not None or options.lockstep or options.label or options.from_run or options.from_json):
        parser.error("--queue chooses its runs by itself: expected at most --files, --seeds and --json beside it")
    if options.from_run is not None and not (options.from_run / "status.json").is_file():
        parser.error(f"--from-run: expected the folder of a finished run, found no status.json in {options.from_run}")
    if not options.queue and options.from_run is None and not options.from_json and is_fixed(options) and not options.steps:
        for name in options.files or ():
            if name not in cells.STEPS:
                parser.error(f"--steps: expected a number for {name}, which is not on the page with one (there are {', '.join(cells.STEPS)})")


def is_fixed(options: argparse.Namespace) -> bool:
    """Whether runs end after a fixed number of steps."""
    return options.lockstep or options.steps is not None


def cell_of(name: str, options: argparse.Namespace) -> Cell:
    """What the options make of a file."""
    steps = (options.steps or cells.STEPS[name]) if is_fixed(options) else None
    return Cell(name, steps, options.lockstep, options.label or "", tuple(options.set))


def run(options: argparse.Namespace, data: dict[str, Any]) -> int:
    """Do what is asked for, and write it; the exit code."""
    if options.from_json:
        write(data, options.json)
        return 0
    if options.from_run is not None:
        add(cell_of(options.files[0], options), options.from_run, data)
        write(data, options.json)
        return 0
    if options.queue:
        tiers = [[cell for cell in tier if options.files is None or cell.file in options.files] for tier in cells.TIERS.values()]
        return run_all(list(cells.queue(data, tiers, options.seeds)), data, options.json, go_on=True)
    files = options.files or ((cells.SMALL if options.lockstep else cells.STEPS) if is_fixed(options) else cells.GOALS)
    wanted = [cell_of(name, options) for name in files]
    return run_all([(cell, seed) for cell in wanted for seed in range(1, (options.seeds or cell.seeds) + 1)], data, options.json, go_on=False)


def run_all(todo: list[tuple[Cell, int]], data: dict[str, Any], path: Path, go_on: bool) -> int:
    """One after another; results are on disk after each. With `go_on` a run that fails is told and the next one begins."""
    failed = 0
    for number, (cell, seed) in enumerate(todo, 1):
        print(f"{number} of {len(todo)}: {cell.key}, seed {seed}", file=sys.stderr, flush=True)
        try:
            found = train(cell, seed)
            if cell.lockstep:
                env = cells.settings(cell.file)["env"]
                data.setdefault("random", {}).setdefault(env, random_return(env))
        except RunFailed as error:
            if not go_on:
                raise
            failed += 1
            print(f"error: {error}", file=sys.stderr, flush=True)
            continue
        keep(cell, found, data)
        data |= machine.describe()
        print(json.dumps({"cell": cell.key, **{k: v for k, v in found.items() if k != "curve"}}), flush=True)
        write(data, path)
    return 1 if failed else 0


def add(cell: Cell, folder: Path, data: dict[str, Any]) -> None:
    """Take a run in that was made by hand, in place of one with its seed; its wall time is that of its last summary."""
    seed = yaml.safe_load((folder / "configuration.yaml").read_text(encoding="utf-8"))["env_settings"]["seed"]
    wall_s = float(rows(folder)[-1]["elapsed_s"])
    if "versions" not in data:
        data |= machine.describe()
    keep(cell, summary(folder, seed, wall_s) | {"evaluation": evaluate(folder)}, data)


def keep(cell: Cell, found: dict[str, Any], data: dict[str, Any]) -> None:
    """Among the runs of its cell, in place of one with its seed."""
    section = data.setdefault(cell.section, {})
    section[cell.key] = sorted([*(run for run in section.get(cell.key, []) if run["seed"] != found["seed"]), found], key=lambda run: run["seed"])


def read(path: Path) -> dict[str, Any]:
    """The results there are.

    Raises:
        ValueError: the file is none of ours.
    """
    if not path.exists():
        return {"runs": {}}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected results as JSON, received {error}. Take it from the repository again, or name another file by --json") from None
    if not isinstance(data, dict) or not isinstance(data.get("runs"), dict):
        raise ValueError(f"{path}: expected results with a mapping 'runs', received something else; name another file by --json")  # noqa: TRY004 - of a file
    return data


def write(data: dict[str, Any], path: Path) -> None:
    """The JSON file, whole or not at all, then the page and the pictures beside it."""
    replace_file(path.absolute(), (json.dumps(data) + "\n").encode())
    if "versions" not in data:
        return  # nothing was run yet
    path.with_suffix(".md").write_text(page(data, published.load()), encoding="utf-8")
    if find_spec("matplotlib"):
        from result_tables.pictures import draw_all

        draw_all(data, path.parent / "images")


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Nobody else writes results into `folder` meanwhile.

    Raises:
        ValueError: somebody does.
        OSError: there is no such folder.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"expected to be the only one to write results into {folder}, and another scripts/results.py is; wait for it, or name another folder by --json") from None
    else:
        yield
    finally:
        os.close(handle)


def _interrupt(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())
