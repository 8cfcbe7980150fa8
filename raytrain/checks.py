"""What is checked before a run starts anything: the environment, and whether memory is enough."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

from envs.specs import BehaviorSpec
from raytrain.config import check_behaviors
from raytrain.errors import ConfigError, RunFault
from raytrain.plan import Plan
from raytrain.settings import RunConfig


def check_name_early(config: RunConfig) -> None:
    """Where the env's id alone says how its behavior is called, a wrong name is refused before anything starts."""
    if ":" not in config.env:
        from envs.factories import behavior_name

        check_behaviors(config, [behavior_name(config.env)])


def probe(config: RunConfig, import_dirs: tuple[str, ...]) -> dict[str, BehaviorSpec]:
    """What the environment says of itself, before Ray starts.

    Raises:
        ConfigError: the environment cannot be made from what the file says, or has a space that is not supported.
        RunFault: its own code raised.
    """
    from envs.base import EnvFault
    from envs.gymnasium_env import probe_spec

    try:
        return probe_spec(config.env, config.env_kwargs, import_dirs)
    except EnvFault as fault:
        raise RunFault.of(config.env, fault) from fault
    except ValueError as error:
        raise ConfigError([config.document.problem(("env",), config.env, str(error))], config.document.name) from error


def check_replay(config: RunConfig, plan: Plan, here: bool) -> list[str]:
    """Refuse a replay buffer that there is no memory for, or that the running trajectories of all agents would fill.

    Args:
        here: the trainer will be on this machine; otherwise its memory is not known, and a warning is all there can be.

    Returns:
        The warning, if there is one.

    Raises:
        ConfigError: with both figures, and the ``buffer_size`` that fits.
    """
    need, free = plan.replay_bytes(), psutil.virtual_memory().available
    if not need:
        return []
    hyper, agents = plan.settings.hyperparameters, len(plan.managers) * plan.agents
    need *= 4 if hyper.save_replay_buffer else 1  # the copy that is saved, its encoding, and the one that travels
    size, message = hyper.buffer_size, ""
    if size < 2 * agents:
        message = f"expected room for two frames of each of the {agents:,} agents, received buffer_size={size:,}; raise it to {2 * agents:,} or far more"
    elif need > free:
        saving = " (four times its own size, with save_replay_buffer)" if hyper.save_replay_buffer else ""
        message = (
            f"expected a replay buffer that fits into memory, received one of {size:,} frames, which takes {need / 1e9:,.1f} GB{saving} where "
            f"{free / 1e9:,.1f} GB are free; about {int(size * 0.8 * free / need):,} frames fit"
        )
        if not here:
            return [f"{plan.behavior}: a replay buffer of {size:,} frames takes {need / 1e9:,.1f} GB on the trainer's machine; this one has {free / 1e9:,.1f} GB free"]
    if message:
        path = ("behaviors", plan.behavior, "hyperparameters", "buffer_size")
        raise ConfigError([config.document.problem(path, size, message)], config.document.name)
    return []


def small_shared_memory() -> list[str]:
    """A warning where Ray's object store has too little shared memory to work in, as in a container with Docker's default."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shutil.disk_usage(shared).total >= 512 * 2**20:
        return []
    size = shutil.disk_usage(shared).total // 2**20
    return [f"/dev/shm has {size} MB, so Ray's object store works on disk and is slow; in a container, start it with --shm-size=2g"]
