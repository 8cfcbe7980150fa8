"""What is checked of reward signals and demonstrations before a run starts anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envs.base import EnvFault
from envs.demonstrations import MINARI_PREFIX, DemonstrationError, read_demonstrations
from envs.own_code import OwnCodeError
from raytrain.checks import behavior_problem, users_fault
from raytrain.errors import ConfigError, RunFault
from raytrain.plan import Plan
from raytrain.settings import RunConfig
from trainers.architecture import Architecture, ArchitectureError
from trainers.own_signal import OwnSignal
from trainers.settings import BehaviorSettings, SACSettings
from trainers.signal_set import signal_architecture
from trainers.signal_settings import ModelSignalSettings, OwnSignalSettings
from trainers.signals import EXTRINSIC

_DEMO_PATHS = (("behavioral_cloning", "demo_path"), ("reward_signals", "gail", "demo_path"))


def with_demo_paths(config: RunConfig) -> RunConfig:
    """The configuration with absolute paths of demonstrations; they are written relative to the folder of the file."""
    behaviors = {}
    for name, settings in config.behaviors.items():
        data = settings.model_dump()
        for keys in _DEMO_PATHS:
            section = _section(data, keys)
            if section is not None and not section["demo_path"].startswith(MINARI_PREFIX):
                path = Path(section["demo_path"]).expanduser()
                section["demo_path"] = str(path if path.is_absolute() else config.source_dir / path)
        behaviors[name] = type(settings).model_validate(data)
    return config.with_behaviors(behaviors)


def check_signals(config: RunConfig, plan: Plan, arch: Architecture) -> None:
    """Refuse signals and demonstrations that do not suit the behavior.

    Args:
        arch: of its networks.

    Raises:
        ConfigError: with the path of the setting.
        RunFault: the user's own signal raised when it was made.
    """
    for keys, value, message in _problems(plan, arch):
        raise ConfigError([behavior_problem(config, plan.behavior, keys, value, message)], config.document.name)


def _problems(plan: Plan, arch: Architecture) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    settings: BehaviorSettings = plan.settings
    data = settings.model_dump()
    for keys in _DEMO_PATHS:
        section = _section(data, keys)
        if section is not None:
            try:
                read_demonstrations(section["demo_path"], plan.spec)
            except DemonstrationError as error:
                yield keys, section["demo_path"], str(error)
    signals = {name: signal for name, signal in settings.reward_signals.active().items() if name != EXTRINSIC}
    for name, signal in signals.items():
        if isinstance(signal, OwnSignalSettings):
            plan.prepare_imports()
            try:
                OwnSignal(name, signal, plan.spec).state()  # or it would come up with the first checkpoint
            except OwnCodeError as error:
                yield ("reward_signals", "own", name, "signal"), signal.signal, str(error)
            except EnvFault as fault:
                raise RunFault.of(f"reward_signals.own.{name} {signal.signal}", fault) from fault
            except Exception as error:
                if (fault := users_fault(f"reward_signals.own.{name} {signal.signal}", error)) is not None:
                    raise fault from error
                yield ("reward_signals", "own", name, "kwargs"), signal.kwargs, f"{signal.signal} cannot be made: {error}"
        elif isinstance(signal, ModelSignalSettings):
            try:
                signal_architecture(arch, settings.network_settings, signal.network_settings)
            except ArchitectureError as error:
                yield ("reward_signals", name, "network_settings", *error.key), error.value, str(error)
    if isinstance(settings, SACSettings) and signals and settings.hyperparameters.n_step > 1:
        n_step, names = settings.hyperparameters.n_step, ", ".join(signals)
        yield ("hyperparameters", "n_step"), n_step, (
            f"expected n_step: 1 with the reward signals {names}, received {n_step}; their rewards are made for single transitions that "
            "are drawn from replay: set n_step: 1, or remove the signals")


def _section(data: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any] | None:
    """The mapping that holds the last of `keys`; None where it is not there."""
    for key in keys[:-1]:
        data = data.get(key) or {}
    return data or None
