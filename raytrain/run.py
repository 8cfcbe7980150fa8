"""One run from a configuration to its results: what the command line and a notebook call."""

from __future__ import annotations

import re
import secrets
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from envs.restarts import RestartLimits
from envs.specs import EnvProbe
from raytrain.backends import Backend, LocalBackend, trainer_name
from raytrain.callbacks import Callbacks
from raytrain.checkpoint import CheckpointStore
from raytrain.checks import check_memory, check_name_early, check_networks, env_options, probe, small_shared_memory
from raytrain.config import check_behaviors, load_config
from raytrain.config_text import summary_rows, to_yaml
from raytrain.console import ENDING_SILENCE_S, Console
from raytrain.controller import Controller, Fleet
from raytrain.csv_writer import CsvWriter
from raytrain.curve_files import remove_leftovers
from raytrain.errors import RunFault, RunFolderError
from raytrain.judge import make_judge
from raytrain.outcome import Outcome
from raytrain.own_trainers import with_own_trainers
from raytrain.parameter_settings import made_parameters
from raytrain.plan import Plan, Start, manager_name
from raytrain.recovery import Recovery
from raytrain.replay_chunks import ChunkWriter
from raytrain.resume import changed_settings, initial_snapshot, starts_of
from raytrain.run_folder import RunFolder, has_checkpoint
from raytrain.settings import RunConfig
from raytrain.shipping import kept_results, shipment_of, worker_import_dirs
from raytrain.signal_checks import check_signals, with_demo_paths
from raytrain.snapshot import Snapshot
from raytrain.standing import why_not
from raytrain.startup import startup_rows
from raytrain.stop import GOAL_REACHED, RunStop
from raytrain.teams import teams_of
from raytrain.tensorboard_writer import TensorBoardWriter
from raytrain.timers import Gauges, merge, timers_metadata, write_timers
from raytrain.writer_registry import made_writers
from raytrain.writers import RunInfo, Writer, Writers

RUN_ID = "{run_id}"
PACKAGES = ("raytrain", "ray", "tensorflow", "numpy", "gymnasium")


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        path: its folder.
        results: how it ended: ``reason``, ``agent_steps``, ``env_steps``, ``updates``, ``policy_updates``, ``mean_return``
            (of the last 100 episodes, or ``stop.episodes``; None before that many, and with several behaviors), ``elapsed_s``,
            ``interrupted``, ``ledger``, ``evaluation`` (``last`` and ``best``, see `raytrain.judge.Evaluation`; None without the section),
            and ``behaviors``: name -> those of them that each behavior has of its own.
    """

    path: Path
    results: dict[str, Any]


def train(
    config: str | Path | Mapping[str, Any], *, local: bool = False, overrides: Mapping[str, Any] | None = None,
    seed: int | None = None, run_id: str | None = None, results_dir: str | Path | None = None, resume: bool | None = None,
    force: bool | None = None, initialize_from: str | None = None, num_env_managers: int | None = None,
    num_envs: int | None = None, address: str | None = None, callbacks: Callbacks | None = None, console: Console | None = None,
    **events: Any,
) -> Run:
    """Train as a configuration says, and wait for the end.

    Args:
        config: a YAML file or a dict of the same form.
        local: without Ray, everything in this process, in lock-step.
        overrides: dotted path -> value, over the configuration (``{"behaviors.CartPole.max_steps": 10_000}``).
        seed, run_id, results_dir, resume, force, initialize_from, num_env_managers, num_envs, address: as on the command line.
        callbacks: called in this process; or give ``on_episode``, ``on_summary``, ``on_checkpoint`` as keywords.
        console: where to print.

    Raises:
        ConfigError, RunFolderError, ClusterError, WriterError: the input is not usable; nothing was started or written.
        RunFault: something broke while running; the last checkpoint is intact.
        CheckpointWriteError: the disk refused the first checkpoint or the last one; those before are intact.
        KeyboardInterrupt: interrupted; after a checkpoint has been saved, but for a trainer that was still starting.
    """
    named = {
        "env_settings.seed": seed, "env_settings.num_envs": num_envs, "distributed.num_env_managers": num_env_managers,
        "distributed.address": address, "checkpoint_settings.run_id": run_id,
        "checkpoint_settings.results_dir": None if results_dir is None else str(results_dir), "checkpoint_settings.resume": resume,
        "checkpoint_settings.force": force, "checkpoint_settings.initialize_from": initialize_from,
    }
    given = {**(overrides or {}), **{k: v for k, v in named.items() if v is not None}}
    run, outcome = execute(load_config(config, given), local, callbacks or Callbacks(**events), console or Console())
    if outcome.interrupted:
        raise KeyboardInterrupt(f"{outcome.reason}; {'saved in' if has_checkpoint(run.path) else 'nothing was saved yet in'} {run.path}")
    return run


def execute(config: RunConfig, local: bool, callbacks: Callbacks, console: Console, command: str = "") -> tuple[Run, Outcome]:
    """Train as the resolved `config` says.

    Args:
        command: the command line that goes on with the run, in which `RUN_ID` stands for its id; empty from Python.
    """
    started_at = time.time()
    saved = config.checkpoint_settings
    config = _with_run_id(config)
    config, moved = _with_kept_results(config)
    saved = config.checkpoint_settings
    for text in [*config.document.messages, *([moved] if moved else [])]:
        console.message(text)
    RunFolder.check(saved.results_dir, config.checkpoint_settings.run_id, saved.resume, saved.force)
    writers, unused = made_writers(config, uses_ray=not local and not config.is_offline)
    if config.is_offline:
        from raytrain.offline import execute_offline

        return execute_offline(config, writers, unused, callbacks, console, command, started_at)
    import_dirs = (str(config.source_dir),)
    check_name_early(config)
    with console.busy(f"making {config.env} once, to see what it observes and does"):
        found = probe(config, import_dirs)
    if config.document.messages and (passed_over := [name for name in config.behaviors if name not in found.behaviors]):
        console.message(f"  not in the environment and passed over, as ML-Agents does: {', '.join(passed_over)}")
    config = with_demo_paths(with_own_trainers(config.with_behaviors(check_behaviors(config, found.behaviors)), import_dirs))
    if local:  # which is lock-step, and the saved configuration should say so
        config = config.with_behaviors({n: b.model_copy(update={"threaded": False}) for n, b in config.behaviors.items()})
    fits = plans_of(config, found, import_dirs)
    with console.busy("making the networks once"):
        unused += [text for plan in fits for text in check_networks(config, plan)]
    for plan in fits:
        check_signals(config, plan, plan.architecture)
    if local:
        connection, place = None, "this process only (--local), lock-step"
    else:
        console.message("starting Ray …")
        from raytrain import cluster

        connection = cluster.connect(config.distributed.address, shipment_of(config.source_dir))
        place = connection.description
        for text in connection.messages:
            console.message(text)
        unused += connection.warnings
        if config.distributed.follows_cluster:
            config = config.model_copy(update={"distributed": config.distributed.fitted(cluster.fitting(len(fits), config.distributed))})
            fits = plans_of(config, found, import_dirs)
    try:
        elsewhere = None if local else _as_seen_by_workers(config, fits, connection.shipped)
        if connection is not None:
            with console.busy("asking the nodes of the cluster for their versions, and to import the environment"):
                unused += cluster.check_resources(fits, config.distributed)
                unused += [] if connection.is_here else cluster.check_nodes(elsewhere, config.distributed)
        return _run(config, local, fits, elsewhere or fits, place, writers, callbacks, console, command, started_at, unused)
    finally:
        if connection is not None:
            with console.busy("stopping Ray"):
                cluster.disconnect(connection)


def _run(config, local, fits, elsewhere, place, writers, callbacks, console, command, started_at, unused) -> tuple[Run, Outcome]:
    saved = config.checkpoint_settings
    here = local
    if not local:
        from raytrain import cluster

        here = cluster.is_one_machine()
    memory = check_memory(config, fits, here)
    source = initial_snapshot(config) if saved.initialize_from and not saved.resume else None
    if source is not None:
        starts_of(fits, None, source)  # one that does not fit is refused before a folder is made, or an old run moved aside
    with console.busy(f"opening the run's folder in {saved.results_dir}"):
        opened = RunFolder.create(saved.results_dir, saved.run_id, saved.resume, saved.force)
    with opened as folder:
        store = CheckpointStore(folder.path, max(config.behaviors[plan.behavior].keep_checkpoints for plan in fits))
        with console.busy("loading the newest checkpoint"):
            snapshot, _, problems = store.load_latest() if saved.resume else (None, None, [])
        config = _with_seed(config, snapshot)
        plans = [replace(plan, seed=config.env_settings.seed) for plan in fits]
        starts, states = starts_of(plans, snapshot, source)
        versions = {p: _version(p) for p in PACKAGES}
        changes = changed_settings(folder, config) if snapshot else []
        folder.write_configuration(to_yaml(config.placed(), versions))
        folder.begin_upload(store.keep, console.warning)
        callbacks.start(folder.path)
        console.header(f"raytrain {versions['raytrain']}", [("Ray", place), ("run", folder.address), ("seed", str(plans[0].seed))])
        rows = summary_rows(config, {plan.behavior: plan.agents_learning for plan in plans})
        console.config_table([("configuration", [row for row in rows if not (local and row[0] == "resources")])])
        for plan in plans:
            console.startup_table(plan.behavior, startup_rows(plan))
        for text in [*memory, *config.warnings(), *unused, *folder.messages, *problems, *([] if local else small_shared_memory())]:
            console.warning(text)
        resumed = snapshot.run if snapshot else None
        if resumed:
            versions_text = " and ".join(f"{starts[b].version} of {b}" if len(plans) > 1 else str(starts[b].version) for b in starts)
            console.message(f"resuming at {resumed['agent_steps']:,} agent steps, policy version {versions_text}")
            reason = why_not(plans, snapshot)
            if plans[0].lock_step:
                console.message(f"environments begin new episodes: {reason}" if reason else "environments go on in the middle of their episodes")
            for text in changes:
                console.message(text)
        if local:
            console.message("compiling …")  # which nothing else can be done beside here
        plans = [replace(plan, import_dirs=one.import_dirs, parameters=one.parameters) for plan, one in zip(plans, elsewhere, strict=True)]
        backend = _backend(plans, starts, states, resumed.get("referee") if resumed else None, local, config, _replay_writers(plans, store))
        del snapshot, source, starts  # states of trainers, which have them now
        return _control(plans, backend, resumed, config, folder, store, writers, callbacks, console, command, versions, started_at, local)


def _control(plans, backend, resumed, config, folder, store, asked_for, callbacks, console, command, versions, started_at, local, controlled_by=Controller):
    gauges = Gauges()
    writers = _open_writers(plans, folder, config, resumed, [TensorBoardWriter(), CsvWriter(), gauges], asked_for, console)
    ended = "failed"
    try:
        stop = RunStop(config.stop, [plan.behavior for plan in plans])
        if resumed:
            stop.load_state(resumed["stop"])
        judge = make_judge(config.evaluation, plans, store, console, writers, None if local else backend.evaluator_place)
        recovery = None if local else Recovery(plans, store, writers, stop, partial(_beginning, config, plans))
        spread = config.distributed
        fleet = None if plans[0].lock_step else Fleet(spread.count, max(spread.most, spread.count), spread.follows_cluster)
        controller = controlled_by(plans, backend, folder, store, console, callbacks, writers, stop, resumed, judge, recovery, config.checkpoint_settings.interval_s, fleet)
        outcome, trees = controller.run()
        ended = "interrupted" if outcome.interrupted else "finished"
    except RunFault as fault:
        fault.log_file = _write_log(folder, fault)
        raise
    finally:
        store.close()
        writers.close(ended, partial(console.waiting, at_most_s=ENDING_SILENCE_S))
        console.close()
    try:
        _write_timers(folder, [trainer_name(plan.behavior) for plan in plans], trees, gauges, versions, started_at)
    except OSError as error:
        console.warning(f"cannot write timers.json: {error}")
    with console.busy(f"uploading what is left to {folder.address}"):
        folder.finish_upload()
    _say_end(console, plans, folder, store, outcome, command)
    return Run(folder.path, outcome.results()), outcome


# -- before the start -------------------------------------------------------------------------------------------------


def _with_seed(config: RunConfig, snapshot: Snapshot | None) -> RunConfig:
    """The configuration with a seed where it left that open: the run's own when it is resumed, otherwise a new one."""
    if config.env_settings.seed >= 0:
        return config
    return config.with_seed(snapshot.run["seed"] if snapshot else secrets.randbelow(10_000))


def _with_run_id(config: RunConfig) -> RunConfig:
    """The configuration with a run id where it left that open."""
    saved = config.checkpoint_settings
    if saved.run_id is None:
        # A file of ML-Agents may begin with a behavior that the environment does not have.
        first = Path(config.document.name).stem if config.document.messages else next(iter(config.behaviors), "run")
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", first).lstrip(".-") or "run"
        run_id = f"{name[:80]}-{datetime.now():%Y%m%d-%H%M%S}"
        config = config.model_copy(update={"checkpoint_settings": saved.model_copy(update={"run_id": run_id})})
    return config


def _with_kept_results(config: RunConfig) -> tuple[RunConfig, str]:
    """The configuration with a results folder that outlives a job, and a sentence if that is another one."""
    saved = config.checkpoint_settings
    kept, text = kept_results(saved.results_dir)
    return config.model_copy(update={"checkpoint_settings": saved.model_copy(update={"results_dir": kept})}), text


def _as_seen_by_workers(config: RunConfig, plans: list[Plan], shipped: Path | None) -> list[Plan]:
    """The plans with the user's folder where processes on other nodes find it."""
    import_dirs = worker_import_dirs(config.source_dir, shipped)
    if import_dirs is None:
        return plans
    parameters = made_parameters(config.environment_parameters, import_dirs)
    return [replace(plan, import_dirs=import_dirs, parameters=parameters) for plan in plans]


def plans_of(config: RunConfig, found: EnvProbe, import_dirs: tuple[str, ...]) -> list[Plan]:
    """What is built for each behavior of the environment, as the resolved `config` says."""
    spread, env = config.distributed, config.env_settings
    parameters, teams = made_parameters(config.environment_parameters, import_dirs), teams_of(config, found)
    return [
        Plan(
            run_id=config.checkpoint_settings.run_id, behavior=behavior, spec=spec, settings=config.behaviors[behavior], env=config.env or "",
            env_kwargs=config.env_kwargs, env_options=env_options(config), num_envs=env.num_envs, stepping=env.stepping,
            step_timeout_s=env.step_timeout_s, import_dirs=import_dirs, seed=env.seed,
            managers=tuple(map(manager_name, range(spread.count))), agents=env.num_envs * (len(found.agents[behavior]) or 1),
            max_policy_lag=config.policy_lag, lock_step=config.lock_step, trainer_threads=max(1, int(spread.trainer_cpus)),
            place=place, behaviors=len(found.behaviors), parameters=parameters, teams=teams.get(behavior, ()),
            evaluation_interval=config.evaluation.interval if config.evaluation else None, most_managers=spread.most,
            restart_limits=restart_limits(config),
        )
        for place, (behavior, spec) in enumerate(found.behaviors.items())
    ]


def _backend(
    plans: list[Plan], starts: dict[str, Start], states: list[dict] | None, referee: dict[str, Any] | None, local: bool, config: RunConfig,
    writers: dict[str, ChunkWriter],
) -> Backend:
    if local:
        return LocalBackend(plans, starts, states, referee, writers)
    from raytrain.cluster import RayBackend

    return RayBackend(plans, starts, config.distributed, states, referee, writers, restart_limits(config), config.evaluation is not None)


def restart_limits(config: RunConfig) -> RestartLimits:
    """How often each part of the run may be started anew."""
    env = config.env_settings
    return RestartLimits(env.max_lifetime_restarts, env.restarts_rate_limit_n, env.restarts_rate_limit_period_s)


def _beginning(config: RunConfig, plans: list[Plan]) -> dict[str, Start]:
    """Where the trainers of a new run start."""
    return starts_of(plans, None, initial_snapshot(config) if config.checkpoint_settings.initialize_from else None)[0]


def _replay_writers(plans: list[Plan], store: CheckpointStore) -> dict[str, ChunkWriter]:
    """Of the behaviors whose replay buffer is saved."""
    return {plan.behavior: store.replay_writer(plan.behavior) for plan in plans if getattr(plan.settings.hyperparameters, "save_replay_buffer", False)}


def _open_writers(
    plans: list[Plan], folder: RunFolder, config: RunConfig, resumed: dict[str, Any] | None, own: list[Writer], asked_for: dict[str, Writer],
    console: Console,
) -> Writers:
    """Everything that statistics go to, open."""
    writers = Writers(own, asked_for, console.warning, console.warn_once)
    try:
        folders = {plan.behavior: folder.behavior_path(plan.behavior) for plan in plans}
        if resumed is None:
            for path in folders.values():
                remove_leftovers(path)
    except OSError as error:
        raise RunFolderError(f"Cannot use {folder.path} as run folder: {error}. Choose another --results-dir or --run-id.") from error
    settings = yaml.safe_load(to_yaml(config.placed()))
    if any(writer.waits for writer in asked_for.values()):
        console.message(f"opening {', '.join(asked_for)} …")  # a server that does not answer is given its time
    for text in writers.open(RunInfo(plans[0].run_id, folder.path, folders, settings, resumed["behaviors"] if resumed else None)):
        console.message(text)
    return writers


# -- after the end ----------------------------------------------------------------------------------------------------


def _write_timers(
    folder: RunFolder, trainers: list[str], trees: dict[str, dict], gauges: Gauges, versions: dict[str, str], started_at: float
) -> None:
    now = time.time()
    total = now - started_at
    root = {"name": "root", "total": total, "count": 1, "self": total}
    parts = {"trainer": [trees[name] for name in trainers if name in trees], "env_managers": [t for n, t in trees.items() if n not in trainers]}
    write_timers(folder.path / "timers.json", merge(root, parts), gauges.to_json(), timers_metadata(started_at, now, versions, shlex.join(sys.argv)))


def _write_log(folder: RunFolder, fault: RunFault) -> Path | None:
    """None where the disk refuses: the fault itself matters more."""
    path = folder.path / "logs" / "fault.log"
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{fault}\n\n{fault.full_traceback}\n", encoding="utf-8")
    except OSError:
        return None
    return path


def _say_end(console: Console, plans: list[Plan], folder: RunFolder, store: CheckpointStore, outcome: Outcome, command: str) -> None:
    rows, own = [], len(plans) == 1
    when = " when the goal was reached" if GOAL_REACHED in outcome.reason else ""
    for behavior, one in outcome.behaviors.items():
        mean = "" if one.mean_return is None else f"{one.mean_return:,.2f}{when}"
        rating = "" if one.rating is None else f"{one.rating:,.0f}"
        if own:
            rows += [("agent steps", f"{one.agent_steps:,}"), ("time", _time(outcome))]
            rows += [(name, text) for name, text in (("ELO", rating), ("mean return", mean)) if text]
        else:
            rows.append((behavior, f"{one.agent_steps:,} agent steps" + (f", ELO {rating}" if rating else "") + (f", mean return {mean}" if mean else "")))
    if outcome.best_reward is not None:  # what evaluate and play take, and compare with
        of = "in its evaluation" if outcome.evaluation else "of ELO" if any(one.rating is not None for one in outcome.behaviors.values()) else "in the 100 episodes before it"
        rows.append(("best checkpoint", f"{outcome.best_reward:,.2f} {of}"))
    rows += ([] if own else [("time", _time(outcome))]) + [("run", folder.address), ("curves", f"tensorboard --logdir {folder.results_address}")]
    if not store.paths():
        rows.append(("saved", "nothing, since the trainer was still starting; the same command starts the run again"))
    else:
        rows += [
            ("ledger", f"{one.balance:,} agent steps{'' if own else f' of {behavior}'} are not accounted for: {one.ledger}")
            for behavior, one in outcome.behaviors.items() if one.balance
        ]
    go_on = any(outcome.behaviors[plan.behavior].agent_steps < plan.settings.max_steps for plan in plans) and store.paths()
    again = command.replace(RUN_ID, plans[0].run_id)
    if GOAL_REACHED in outcome.reason:  # or it would end at once
        again += " --set stop.reward=null"
    console.ended(outcome.reason, again if command and go_on else None, rows)


def _time(outcome: Outcome) -> str:
    return f"{outcome.elapsed_s:,.1f} s, starting and stopping included"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a clone without an installation
        return "source"
