"""What is checked before a run starts anything: the environment, the networks, and whether memory is enough."""

from __future__ import annotations

import shutil
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from envs.curriculum import Lesson
from envs.factories import EnvOptions
from envs.randomization import ParameterError, Sampler, draw
from envs.specs import EnvProbe
from raytrain.config import check_behaviors
from raytrain.config_problems import contains
from raytrain.errors import ConfigError, Problem, RunFault
from raytrain.parameter_settings import made_parameters
from raytrain.plan import ROW_COPIES, Plan
from raytrain.settings import RunConfig
from trainers.architecture import Architecture, ArchitectureError
from trainers.networks import body_width
from trainers.settings import AnyBehaviorSettings, NetworkSettings, SACSettings


def check_name_early(config: RunConfig) -> None:
    """Where the env's id alone says how its behavior is called, a wrong name is refused before anything starts."""
    if ":" not in config.env:
        from envs.factories import behavior_name

        check_behaviors(config, [behavior_name(config.env)])


def env_options(config: RunConfig) -> EnvOptions:
    """What the file puts around each environment."""
    env = config.env_settings
    return EnvOptions(frame_stack=env.frame_stack, action_repeat=env.action_repeat, atari_preprocessing=env.atari_preprocessing)


def probe(config: RunConfig, import_dirs: tuple[str, ...]) -> EnvProbe:
    """What the environment says of itself, before Ray starts.

    Raises:
        ConfigError: the environment cannot be made from what the file says, or has a space that is not supported.
        RunFault: its own code raised.
    """
    from envs.base import EnvFault
    from envs.gymnasium_env import probe_env

    _check_agents(config)
    parameters = made_parameters(config.environment_parameters, import_dirs)
    try:
        _try_samplers(parameters)
        return probe_env(
            config.env, config.env_kwargs, import_dirs, env_options(config), config.env_settings.stepping, parameters=tuple(parameters),
            agents=agent_patterns(config.behaviors), groups=group_patterns(config.behaviors))
    except EnvFault as fault:
        raise RunFault.of(config.env, fault) from fault
    except ParameterError as error:
        problem = config.document.problem(("environment_parameters",), list(parameters), str(error))
        raise ConfigError([problem], config.document.name) from error
    except ValueError as error:
        raise ConfigError([_placed(config, str(error))], config.document.name) from error


def _placed(config: RunConfig, message: str) -> Problem:
    """What the environments refuse: at the key that the message begins with, else at ``env``."""
    for behavior in config.behaviors:
        for key in ("agents", "groups"):
            place = f"behaviors.{behavior}.{key}"
            if message.startswith((f"{place}:", f"{place}.")):
                path, _, rest = message.removeprefix(f"behaviors.{behavior}.").partition(": ")
                keys = tuple(path.split(".", 1))
                return behavior_problem(config, behavior, keys, None, rest)
    return config.document.problem(("env",), config.env, message)


def agent_patterns(behaviors: Mapping[str, AnyBehaviorSettings]) -> dict[str, tuple[str, ...]]:
    """Behavior -> the patterns of its agents' names; those that have some."""
    return {name: settings.agents for name, settings in behaviors.items() if getattr(settings, "agents", ())}


def group_patterns(behaviors: Mapping[str, AnyBehaviorSettings]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Behavior -> group -> the patterns of its agents' names; those that have some."""
    return {name: settings.groups for name, settings in behaviors.items() if getattr(settings, "groups", {})}


def _check_agents(config: RunConfig) -> None:
    """Where one behavior says which agents it has, all have to; groups belong to a behavior that is named."""
    if not config.behaviors and getattr(config.default_settings, "groups", {}):
        message = "expected groups in a behavior, whose agents they are of, received some for behaviors without a name; write behaviors: with " \
                  "the name of the world's behavior, and groups below it"
        problem = config.document.problem(("default_settings", "groups"), config.default_settings.groups, message)
        raise ConfigError([problem], config.document.name)
    patterns = agent_patterns(config.behaviors)
    missing = [name for name in config.behaviors if name not in patterns]
    if patterns and missing:
        message = f"expected agents for every behavior, since {', '.join(patterns)} has some; received none for {', '.join(missing)}"
        raise ConfigError([config.document.problem(("behaviors", missing[0]), missing[0], message)], config.document.name)


def _try_samplers(parameters: Mapping[str, Sampler | tuple[Lesson, ...]]) -> None:
    """Draw from every sampler once, so that a class of the user's that cannot be used is named before anything starts."""
    for name, given in parameters.items():
        for sampler in [lesson.value for lesson in given] if isinstance(given, tuple) else [given]:
            draw({name: sampler}, np.random.SeedSequence(0), env_index=0, episode=0)


def check_networks(config: RunConfig, plan: Plan) -> list[str]:
    """Refuse network settings that do not suit the observations. A Keras model of the user's is made once.

    Returns:
        A sentence for each setting that has no effect on these observations.

    Raises:
        ConfigError: with the path of the setting.
        RunFault: the user's own code, which makes the model, raised.
    """
    plan.prepare(plan.trainer_threads)
    try:
        arch = plan.architecture
        body_width(arch)  # of a model of the user's, its outputs
    except ArchitectureError as error:
        model = f"network_settings.model {plan.settings.network_settings.model}"
        if (fault := users_fault(model, error.__cause__)) is not None:
            raise fault from error
        problem = behavior_problem(config, plan.behavior, ("network_settings", *error.key), error.value, str(error))
        raise ConfigError([problem], config.document.name) from error
    return [f"{plan.behavior}: {sentence}" for sentence in _unused(plan, arch)]


def users_fault(what: str, error: BaseException | None) -> RunFault | None:
    """What the user's own code raised, with their file and line; None where it was not their code.

    Args:
        what: the setting that named it.
    """
    here = Path(__file__).parents[1]
    packages = [str(here / name) for name in ("envs", "trainers", "raytrain")]
    others = (*packages, *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")), "<frozen")
    tb = error.__traceback__ if error is not None else None
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(others):
        tb = tb.tb_next
    if tb is None:
        return None
    frame = [f for f in traceback.extract_tb(tb) if not f.filename.startswith(others)][-1]
    text = f"{what}: {type(error).__name__}: {error}"
    users = "".join(traceback.format_exception(type(error), error, tb))
    return RunFault(f"{text}\n  at {frame.filename}:{frame.lineno} ({frame.name})", users, "".join(traceback.format_exception(error)))


def behavior_problem(config: RunConfig, behavior: str, keys: Sequence[str], value: Any, message: str) -> Problem:
    """A problem of a setting of `behavior`, placed where most of its path is written: in the behavior itself or ``default_settings``."""
    roots, data = (("behaviors", behavior), ("default_settings",)), config.document.data
    written = [max(n for n in range(-1, len(keys) + 1) if n < 0 or contains(data, (*root, *keys[:n]))) for root in roots]
    root = roots[1] if written[1] > written[0] else roots[0]
    return config.document.problem((*root, *keys), value, message)


def _unused(plan: Plan, arch: Architecture) -> list[str]:
    """One sentence for each network setting that nothing reads, given what is observed."""
    network, found = plan.settings.network_settings, []
    own_model, critics = network.model is not None, isinstance(plan.settings, SACSettings)

    def say(key: str, why: str) -> None:
        value = getattr(network, key)
        if value != NetworkSettings.model_fields[key].default:
            shown = list(value) if isinstance(value, tuple) else value
            found.append(f"network_settings.{key}={shown} is not used: {why}.")

    encoders = {name for name, settings in network.observations.items() if settings.encoder}
    if not arch.images:
        say("vis_encode_type", "no observation is an image")
    elif own_model:
        say("vis_encode_type", f"the model {network.model} takes the images in")
        for name in sorted(encoders):
            found.append(f"network_settings.observations.{name}.encoder is not used: the model {network.model} takes the images in.")
    elif encoders.issuperset(image.name for image in arch.images):
        say("vis_encode_type", "every image has an encoder of its own in network_settings.observations")
    if own_model and not critics:
        for key in ("hidden_units", "num_layers", "layers", "activation"):
            say(key, f"the model {network.model} stands in place of the dense layers")
    elif network.layers is not None and not arch.images and not (critics and network.memory is not None):
        say("hidden_units", "network_settings.layers has the widths")
    if network.normalize and not arch.normalized:
        say("normalize", "no observation is a vector that could be normalised")
    return found


def check_memory(config: RunConfig, plans: Sequence[Plan], here: bool) -> list[str]:
    """Refuse a buffer that there is no memory for, or a replay buffer that the running trajectories of all agents would fill.

    Args:
        plans: of all behaviors.
        here: the trainer and all env managers will be on this machine; otherwise their memory is not known, and a warning is all
            there can be.

    Returns:
        The warnings, if there are any.

    Raises:
        ConfigError: with both figures, and the ``buffer_size`` that fits.
    """
    takes = {plan.behavior: plan.buffer_bytes() + len(plan.managers) * plan.collecting_bytes() for plan in plans}
    free = psutil.virtual_memory().available
    return [text for plan in plans for text in _check_memory(config, plan, here, free - sum(takes.values()) + takes[plan.behavior])]


def _check_memory(config: RunConfig, plan: Plan, here: bool, free: int) -> list[str]:
    """As `check_memory`, for one behavior, with what others leave free (bytes)."""
    size, agents = plan.settings.hyperparameters.buffer_size, len(plan.managers) * plan.agents
    off_policy = isinstance(plan.settings, SACSettings)
    if off_policy and size < 2 * agents:
        room = f"expected room for two frames of each of the {agents:,} agents, received buffer_size={size:,}"
        raise _buffer_error(config, plan, f"{room}; raise it to {2 * agents:,} or far more")
    need = plan.buffer_bytes()
    collecting = len(plan.managers) * plan.collecting_bytes()
    if need + collecting <= free:
        return []
    what = f"a replay buffer of {size:,} frames" if off_policy else f"a buffer of {size:,} agent steps"
    takes = f"takes {_gigabytes(need)}{_why(plan)}"
    beside = f", and collecting takes {_gigabytes(collecting)}" if collecting > need / 10 else ""
    if not here:
        return [f"{plan.behavior}: {what} {takes} on the trainer's machine{beside}; this one has {_gigabytes(free)} free"]
    if collecting >= 0.8 * free:
        fits = "lower env_settings.num_envs, distributed.num_env_managers or time_horizon"
    else:
        fits = f"about {int(size * (0.8 * free - collecting) / need):,} {'frames' if off_policy else 'agent steps'} fit"
    received = f"expected {what} to fit into memory, received one that {takes}{beside}"
    raise _buffer_error(config, plan, f"{received}, where {_gigabytes(free)} are free; {fits}")


def _buffer_error(config: RunConfig, plan: Plan, message: str) -> ConfigError:
    path, size = ("hyperparameters", "buffer_size"), plan.settings.hyperparameters.buffer_size
    return ConfigError([behavior_problem(config, plan.behavior, path, size, message)], config.document.name)


def _why(plan: Plan) -> str:
    """What makes the memory of a buffer more than its rows."""
    if not isinstance(plan.settings, SACSettings):
        return f" ({plan.max_rows():,} agent steps with those that may come while it learns, each held {ROW_COPIES} times then)"
    return " (twice its own size, with save_replay_buffer)" if plan.settings.hyperparameters.save_replay_buffer else ""


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"


def small_shared_memory() -> list[str]:
    """A warning where Ray's object store has too little shared memory to work in, as in a container with Docker's default."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shutil.disk_usage(shared).total >= 512 * 2**20:
        return []
    size = shutil.disk_usage(shared).total // 2**20
    return [f"/dev/shm has {size} MB, so Ray's object store works on disk and is slow; in a container, start it with --shm-size=2g"]
