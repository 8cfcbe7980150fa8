"""``raytrain tune``: many runs of one file with other parameters, and the best of them."""

from __future__ import annotations

import argparse
import json
import re
import secrets
import shlex
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from envs.specs import EnvProbe
from raytrain.checks import check_name_early, probe
from raytrain.command_train import UsageError, program_words
from raytrain.config import check_behaviors
from raytrain.console import Console
from raytrain.errors import ClusterError, ConfigError, RunFault, RunFolderError
from raytrain.interrupts import Interrupts, quit_at_once
from raytrain.own_trainers import with_own_trainers
from raytrain.placement import demands_of
from raytrain.remote import is_uri
from raytrain.run import plans_of
from raytrain.settings import RunConfig
from raytrain.shipping import shipment_of
from raytrain.summary_line import format_number
from raytrain.sweep_file import Sweep, check_trials, load_sweep
from raytrain.sweep_folder import SweepFolder, report
from raytrain.sweep_record import RECORD, Trial, best_of, early_best
from raytrain.sweep_table import SweepTable, columns_of, rows_of

_INSTALL = "Expected Ray Tune, which is not installed ({error}); pip install 'raytrain[tune]'."


def run_command(options: argparse.Namespace) -> int:
    """The command with its parsed arguments; returns the exit code."""
    console = Console(quiet=options.json)
    try:
        folder = _resumed(options) if options.resume is not None else _new(options)
        return _run(folder, options, console)
    except OSError as error:  # the record cannot be written: what the trials' own folders have is intact
        console.error(f"The sweep has ended: {error}. Free some space or make the folder writable, then go on with --resume.")
        return 1
    except (ConfigError, RunFolderError, ClusterError, UsageError) as error:
        console.error(str(error))
        return 2
    except RunFault as fault:
        console.error(str(fault), fault.user_traceback)
        return 1


def _tuning() -> Any:
    try:
        from raytrain.cluster import tuning
    except ImportError as error:
        raise UsageError(_INSTALL.format(error=error)) from None
    return tuning


def _new(options: argparse.Namespace) -> SweepFolder:
    if options.file is None:
        raise UsageError("Expected a sweep file, such as yaml/tune/CartPole.yaml, or --resume with a sweep's folder; received neither.")
    sweep = load_sweep(options.file)
    tuning = _tuning()
    results = options.results_dir or sweep.config.checkpoint_settings.results_dir
    if is_uri(results):
        raise UsageError(f"Expected a folder on this machine for --results-dir, received {results}.")
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", Path(options.file).stem).lstrip(".-") or "sweep"
    path = SweepFolder.check(Path(results), options.sweep_id or f"tune-{name[:80]}-{datetime.now():%Y%m%d-%H%M%S}")
    seed = sweep.settings.seed if sweep.settings.seed >= 0 else secrets.randbelow(10_000)
    drawn = tuning.draw_parameters(sweep.settings, seed)
    width = max(4, len(str(len(drawn))))
    seeds = [int(np.random.SeedSequence(seed, spawn_key=(index,)).generate_state(1)[0] % 10_000) for index in range(len(drawn))]
    is_open = sweep.config.env_settings.seed < 0 and "env_settings.seed" not in sweep.settings.parameters
    trials = [Trial(f"trial-{index + 1:0{width}d}", parameters, seeds[index] if is_open else None) for index, parameters in enumerate(drawn)]
    check_trials(sweep, {trial.name: trial.parameters for trial in trials})
    return SweepFolder(path, sweep, seed, trials)


def _resumed(options: argparse.Namespace) -> SweepFolder:
    if options.file is not None and options.resume:
        raise UsageError(f"Expected a sweep file or --resume, received {options.file} and --resume {options.resume}; a sweep goes on with the file it began with.")
    if options.sweep_id is not None:
        raise UsageError(f"Expected --sweep-id or --resume, received --sweep-id {options.sweep_id} and --resume {options.resume}; a sweep keeps its name.")
    given = Path(options.resume).expanduser()
    folder = given if (given / RECORD).is_file() or len(given.parts) > 1 else Path(options.results_dir or "results").expanduser() / given
    return SweepFolder.load(folder)


def _run(folder: SweepFolder, options: argparse.Namespace, console: Console) -> int:
    sweep, waiting = folder.sweep, folder.to_run()
    command = shlex.join([*program_words("tune"), "--resume", _shown(folder.path)])
    if not waiting:
        console.message(f"all {len(folder.trials)} trials of {_shown(folder.path)} have ended")
        return _end(folder, console, options.json, "", command)
    tuning = _tuning()
    from raytrain import cluster

    check_name_early(sweep.config)
    with console.busy(f"making {sweep.config.env} once, to see what it observes and does"):
        found = probe(sweep.config, (str(sweep.config.source_dir),))
    behavior = _behavior(sweep, found)
    configs = {trial.name: _checked(sweep, trial, found) for trial in waiting}
    console.message("starting Ray …")
    connection = cluster.connect(options.address or sweep.config.distributed.address, shipment_of(sweep.config.source_dir))
    try:
        for text in connection.messages:
            console.message(text)
        needs = {}
        for name, config in configs.items():
            plans = plans_of(config, found, (str(config.source_dir),))
            cluster.check_resources(plans, config.distributed)
            needs[name] = [demand.needs for demand in demands_of(plans, config.distributed)]
        settings = [config.behaviors[behavior] for config in configs.values()]
        with folder:
            folder.save()
            console.header(f"sweep of {sweep.settings.config}", [
                ("Ray", connection.description), ("folder", _shown(folder.path)), ("seed", str(folder.seed)), ("scheduler", sweep.settings.scheduler.type),
                ("metric", f"{sweep.settings.metric} of {behavior}, {sweep.settings.mode}"),
                ("trials", f"{len(folder.trials)}" + (f", {len(folder.trials) - len(waiting)} of them have ended before" if len(waiting) < len(folder.trials) else "")),
            ])
            for text in connection.warnings:
                console.warning(text)
            table = SweepTable(console, folder.trials, options.json)
            with Interrupts(lambda: None, quit_at_once).handled() as interrupts:
                ending = _ending(interrupts, sweep.settings.time_budget_s)
                try:
                    tuning.run_trials(folder, behavior, needs, max(one.max_steps for one in settings), min(one.summary_freq for one in settings), ending, table.update)
                finally:
                    table.close()
            return _end(folder, console, options.json, ending(), command)
    finally:
        cluster.disconnect(connection)


def _ending(interrupts: Interrupts, budget_s: float | None) -> Callable[[], str]:
    """Why the sweep should end now; empty to go on."""
    started = time.monotonic()

    def ending() -> str:
        if interrupts.name:
            return f"interrupted ({interrupts.name})"
        return f"time_budget_s={budget_s:g} is over" if budget_s is not None and time.monotonic() - started >= budget_s else ""

    return ending


def _behavior(sweep: Sweep, found: EnvProbe) -> str:
    """The behavior whose metric counts."""
    behaviors = list(check_behaviors(sweep.config, found.behaviors))
    named = sweep.settings.behavior
    if named in behaviors or (named is None and len(behaviors) == 1):
        return named or behaviors[0]
    message = f"expected the behavior whose metric counts, one of {', '.join(behaviors)}, received {named or 'none'}"
    raise ConfigError([sweep.settings._document.problem(("behavior",), named, message)], sweep.settings._document.name)


def _checked(sweep: Sweep, trial: Trial, found: EnvProbe) -> RunConfig:
    config = sweep.config_of(trial.parameters)
    return with_own_trainers(config.with_behaviors(check_behaviors(config, found.behaviors)), (str(config.source_dir),))


def _end(folder: SweepFolder, console: Console, as_json: bool, reason: str, command: str) -> int:
    """What came of it; the exit code."""
    folder.write_results()
    best = best_of(folder.trials, folder.sweep.settings.mode)
    failed = [trial for trial in folder.trials if trial.state == "failed"]
    open_trials = folder.to_run()
    if as_json:
        print(json.dumps(report(folder), indent=2, ensure_ascii=False))
    else:
        console.columns(columns_of(folder.trials), rows_of(folder.trials, best), ("agent steps",))
        for trial in failed:
            console.warning(f"{trial.name} failed: {trial.reason} (logs/{trial.name}.txt)")
        rows: list[tuple[str, Any]] = [("results", _shown(folder.path / "results.csv"))]
        if best is None:
            rows.insert(0, ("best", f"none: no trial has reported {folder.sweep.settings.metric}"))
        else:
            run = _shown(folder.path / best.name)
            rows = [
                ("best", f"{best.name}, {format_number(best.metric)} at {best.agent_steps:,} agent steps"), ("evaluate", shlex.join([*program_words("evaluate"), run])),
                ("train with it", shlex.join([*program_words("train"), _shown(folder.path / "best.yaml")])), *rows]
        if hint := early_best(folder.trials, folder.sweep.settings.mode):
            rows.insert(1, ("note", hint))
        console.ended(reason or ("all trials have ended" if not open_trials else "no trial is left that could run"), command if open_trials else None, rows)
    return 1 if failed else 0


def _shown(path: Path) -> str:
    """A path as the shell may take it: relative where that is shorter."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
