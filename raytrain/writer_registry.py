"""The writers that a configuration asks for: found by name, by entry point or as a class of the user's, and made."""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from raytrain.config_problems import did_you_mean
from raytrain.errors import ConfigError, WriterError
from raytrain.settings import RunConfig
from raytrain.suggest import nearest
from raytrain.writer_settings import WriterSettings
from raytrain.writers import Writer, users_traceback

GROUP = "raytrain.writers"
"""Entry points by which a package offers writers."""
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
    offered = {point.name: point for point in entry_points(group=GROUP)}
    if name in offered:
        return _loaded(name, offered[name])
    if ":" in name:
        return _users_class(name, config)
    known = [*BUILT_IN, *offered]
    raise _RefusedError(f"expected {', '.join(known)}, or a class of your own as module:Class, received {name}{did_you_mean(nearest(name, known))}")


def _loaded(name: str, point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise WriterError.of(name, f"({point.value}) cannot be imported", error, users_traceback(error)) from error


def _users_class(reference: str, config: RunConfig) -> Any:
    from envs.base import EnvFault
    from envs.factories import import_module as import_users_module

    module_name, _, name = reference.rpartition(":")
    try:
        module = import_users_module(module_name, (str(config.source_dir),), reference)
    except EnvFault as fault:
        raise WriterError.of(reference, "cannot be imported", fault.__cause__ or fault, fault.user_traceback) from fault
    except ValueError as error:
        raise _RefusedError(str(error).replace(f"env: {reference!r}: ", "").removeprefix("env: ")) from error
    if not hasattr(module, name):
        near = nearest(name, [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, Writer)])
        raise _RefusedError(f"expected a class of {module.__file__}, received {name}, which it does not have{did_you_mean(near)}")
    return getattr(module, name)


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
