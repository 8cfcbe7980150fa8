"""A run that learns from demonstrations alone (``trainer_type: bc``): no env managers, no Ray, everything in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from envs.demonstrations import MINARI_PREFIX, DemonstrationError, Demonstrations, read_demonstrations
from envs.specs import EnvProbe
from raytrain.callbacks import Callbacks
from raytrain.checkpoint import CheckpointStore
from raytrain.checks import behavior_problem, check_name_early, check_networks, probe
from raytrain.config import check_behaviors
from raytrain.config_text import summary_rows, to_yaml
from raytrain.console import Console
from raytrain.errors import ConfigError
from raytrain.outcome import Outcome
from raytrain.plan import Plan, seed_branch
from raytrain.resume import changed_settings, initial_snapshot, starts_of
from raytrain.run import PACKAGES, Run, _control, _version, _with_seed, plans_of
from raytrain.run_folder import RunFolder
from raytrain.settings import RunConfig
from raytrain.startup import startup_rows
from raytrain.writers import Writer
from trainers.bc_data import held_out_episodes, hold_out, run_length

_PLACE = "not started: demonstrations are learnt from in this process"


def execute_offline(
    config: RunConfig, writers: dict[str, Writer], unused: list[str], callbacks: Callbacks, console: Console, command: str, started_at: float,
) -> tuple[Run, Outcome]:
    """`raytrain.run.execute` for a run whose behavior is cloned; `config` has its run id.

    Args:
        writers: those asked for, by name.
        unused: sentences on settings without an effect.

    Raises:
        ConfigError: the demonstrations or settings are not usable; nothing was written.
        RunFault: as `raytrain.run.train`.
    """
    saved = config.checkpoint_settings
    config, demonstrations = _with_demonstrations(config)
    (behavior,) = config.behaviors
    (fits,) = plans_of(config, _probed(behavior, demonstrations), (str(config.source_dir),))
    unused = [*unused, *check_networks(config, fits)]
    source = initial_snapshot(config) if saved.initialize_from and not saved.resume else None
    if source is not None:
        starts_of([fits], None, source)  # one that does not fit is refused before a folder is made, or an old run moved aside
    with RunFolder.create(saved.results_dir, config.checkpoint_settings.run_id, saved.resume, saved.force) as folder:
        store = CheckpointStore(folder.path, config.behaviors[behavior].keep_checkpoints)
        snapshot, _, problems = store.load_latest() if saved.resume else (None, None, [])
        config = _with_seed(config, snapshot)
        plan, learnt, held_out = _parts(config, behavior, demonstrations, fits.import_dirs)
        start = starts_of([plan], snapshot, source)[0][behavior]
        versions = {p: _version(p) for p in PACKAGES}
        changes = changed_settings(folder, config) if snapshot else []
        folder.write_configuration(to_yaml(config.placed(), versions))
        folder.begin_upload(store.keep, console.warning)
        console.header(f"raytrain {versions['raytrain']}", [("Ray", _PLACE), ("run", folder.address), ("seed", str(plan.seed))])
        console.config_table([("configuration", summary_rows(config))])
        console.startup_table(behavior, [("demonstrations", _counts(learnt, held_out)), *startup_rows(plan)])
        for text in [*config.warnings(), *unused, *folder.messages, *problems]:
            console.warning(text)
        resumed = snapshot.run if snapshot else None
        if resumed:
            console.message(f"resuming at {resumed['agent_steps']:,} agent steps, policy version {start.version}")
            for text in changes:
                console.message(text)
        if plan.env:  # a mean return is that of one policy
            config = config.model_copy(update={"stop": config.stop.model_copy(update={"episodes": plan.settings.evaluation_episodes})})
        from raytrain.offline_backend import OfflineBackend, OfflineController

        backend = OfflineBackend(plan, start, learnt, held_out, evaluates=bool(plan.env))
        return _control([plan], backend, resumed, config, folder, store, writers, callbacks, console, command, versions, started_at, True, OfflineController)


def _with_demonstrations(config: RunConfig) -> tuple[RunConfig, Demonstrations]:
    """The configuration with its one behavior, and what that learns from.

    Raises:
        ConfigError: several behaviors, or demonstrations that cannot be used.
    """
    spec = None
    if config.env is not None:
        check_name_early(config)
        found = probe(config, (str(config.source_dir),))
        specs = found.behaviors
        if many := [agent for own in found.agents.values() for agent in own]:
            message = f"expected an environment of one agent, in which what was cloned is judged, received a world of {', '.join(many)}; leave env out"
            raise ConfigError([config.document.problem(("env",), config.env, message)], config.document.name)
        config = config.with_behaviors(check_behaviors(config, specs))
        spec = next(iter(specs.values()))
    elif len(config.behaviors) != 1:
        message = f"expected one behavior, since a run clones one without env, received {', '.join(config.behaviors)}; write a file for each"
        raise ConfigError([config.document.problem(("behaviors",), list(config.behaviors), message)], config.document.name)
    ((behavior, settings),) = config.behaviors.items()
    path = _placed(settings.demo_path, config.source_dir)
    try:
        demonstrations = read_demonstrations(path, spec)
    except DemonstrationError as error:
        raise _refused(config, behavior, "demo_path", path, str(error)) from error
    try:
        held_out_episodes(demonstrations.episodes, settings.validation_share)
    except ValueError as error:
        raise _refused(config, behavior, "demo_path", path, f"{path}: {error}") from error
    return config.with_behaviors({behavior: settings.model_copy(update={"demo_path": path})}), demonstrations


def _placed(demo_path: str, folder: Path) -> str:
    """An absolute path; it is written relative to the folder of the file."""
    return demo_path if demo_path.startswith(MINARI_PREFIX) else str(folder / Path(demo_path).expanduser())


def _refused(config: RunConfig, behavior: str, key: str, value: Any, message: str) -> ConfigError:
    return ConfigError([behavior_problem(config, behavior, (key,), value, message)], config.document.name)


def _parts(
    config: RunConfig, behavior: str, demonstrations: Demonstrations, import_dirs: tuple[str, ...]
) -> tuple[Plan, Demonstrations, Demonstrations | None]:
    """The plan with the length of the run, and the episodes to learn from and to be judged by, the same ones whenever it is resumed."""
    settings = config.behaviors[behavior]
    rng = np.random.default_rng(seed_branch(config.env_settings.seed, "trainer", 1))
    learnt, held_out = hold_out(demonstrations, settings.validation_share, rng)
    settings = settings.model_copy(update={"max_steps": run_length(settings, learnt.rows)})
    (plan,) = plans_of(config.with_behaviors({behavior: settings}), _probed(behavior, demonstrations), import_dirs)
    return plan, learnt, held_out


def _probed(behavior: str, demonstrations: Demonstrations) -> EnvProbe:
    """What an environment would say of itself in which they were made."""
    return EnvProbe({behavior: demonstrations.spec}, {behavior: ()})


def _counts(learnt: Demonstrations, held_out: Demonstrations | None) -> str:
    """Episodes and rows, and the expert's return where the demonstrations know one."""
    parts = [f"{learnt.episodes:,} episodes of {learnt.rows:,} rows to learn from"]
    if held_out is not None:
        parts.append(f"{held_out.episodes:,} of {held_out.rows:,} held out")
    if learnt.reward.any():
        parts.append(f"mean return {learnt.episode_return.mean():,.6g}")
    return ", ".join(parts)
