"""The writers that a configuration asks for: found by name, by entry point or as a class of the user's, and made."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from envs.base import EnvFault
from envs.own_code import WRITER, OwnCodeError, installed_names, is_module_reference, load
from raytrain.config_problems import did_you_mean
from raytrain.errors import ConfigError, WriterError
from raytrain.settings import RunConfig
from raytrain.suggest import nearest
from raytrain.writer_settings import WriterSettings
from raytrain.writers import Writer, users_traceback

BUILT_IN = {
    "mlflow": "raytrain.mlflow_writer:MlflowWriter",
    "wandb": "raytrain.wandb_writer:WandbWriter",
    "prometheus": "raytrain.cluster.prometheus:PrometheusWriter",
}
_ALWAYS = ("tensorboard", "csv")
_ON_RAY = "prometheus"


def made_writers(config: RunConfig, uses_ray: bool) -> tuple[dict[str, Writer], list[str]]:
    """The writers of `config`, by their names, of which each has another one; and a sentence for each that is not used.

    Args:
        uses_ray: the run is on Ray; without, a writer that goes through Ray is left out.

    Raises:
        ConfigError: a name, or options, that cannot be used; all such problems at once.
        WriterError: the user's own code raised while it was imported or the writer made.
    """
    found, unused, problems = {}, [], []
    for index, settings in enumerate(config.writers):
        if settings.type == _ON_RAY and not uses_ray:
            unused.append(f"writers.{index}: prometheus is not used: this run is not on Ray, which shows its metrics.")
            continue
        try:
            writer = _made(settings, config)
        except _RefusedError as error:
            path = ("writers", str(index), *((error.key,) if error.key else ()))
            problems.append(config.document.problem(path, None, str(error)))
            continue
        name = settings.type
        found[name if name not in found else f"{name} {sum(one == name or one.startswith(f'{name} ') for one in found) + 1}"] = writer
    if problems:
        raise ConfigError(problems, config.document.name)
    return found, unused


class _RefusedError(ValueError):
    """What the file asks for cannot be had; `key` is the option that is wrong, empty for the writer itself."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


def _made(settings: WriterSettings, config: RunConfig) -> Writer:
    name, options = settings.type, settings.options
    own = _class(name, config)
    if not (isinstance(own, type) and issubclass(own, Writer)):
        raise _RefusedError(f"expected a subclass of raytrain.Writer, received {name}, which is {own!r:.80}")
    if own.write is Writer.write and own.summary is Writer.summary:
        raise _RefusedError(f"expected a writer with a method write(behavior, step, values), received {name} without one")
    _check_options(own, name, options)
    try:
        return own(**options)
    except Exception as error:
        if name in BUILT_IN and isinstance(error, ValueError):
            raise _RefusedError(str(error)) from error
        raise WriterError.of(name, "cannot be made", error, users_traceback(error)) from error


def _class(name: str, config: RunConfig) -> Any:
    if name in _ALWAYS:
        raise _RefusedError(f"expected a writer besides the files of the run, received {name}, which is always on; remove it")
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return getattr(import_module(module), attribute)
    if not is_module_reference(name) and name not in (offered := installed_names(WRITER)):
        known = [*BUILT_IN, *offered]
        raise _RefusedError(f"expected {', '.join(known)}, or a class of your own as module:Class, received {name}{did_you_mean(nearest(name, known))}")
    try:
        return load(WRITER, name, (str(config.source_dir),))
    except EnvFault as fault:
        raise WriterError.of(name, "cannot be imported", fault.__cause__ or fault, fault.user_traceback) from fault
    except OwnCodeError as error:
        raise _RefusedError(str(error).removeprefix(f"{WRITER.key}: ")) from error


def _check_options(own: type[Writer], name: str, options: dict[str, Any]) -> None:
    """Options are arguments of the constructor, by name."""
    parameters = inspect.signature(own).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    known = [key for key, parameter in parameters.items() if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)]
    for key in options:
        if key not in known:
            offered = f"it has {', '.join(known)}" if known else "it has none"
            raise _RefusedError(f"unknown option of {name}; {offered}{did_you_mean(nearest(key, known))}", key)
    for key in known:
        if parameters[key].default is inspect.Parameter.empty and key not in options:
            raise _RefusedError(f"expected the option {key}, which {name} needs, received none")
