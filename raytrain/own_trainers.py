"""What is checked of trainers of the user's own before a run starts anything."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError

from envs.base import EnvFault
from envs.own_code import TRAINER, OwnCodeError, check_name, load
from raytrain.checks import behavior_problem
from raytrain.config_problems import describe, did_you_mean, origin, translate
from raytrain.errors import ConfigError, Problem, RunFault
from raytrain.settings import RunConfig
from raytrain.suggest import nearest
from trainers.own_settings import OwnHyperparameters
from trainers.own_trainer import hyperparameters_of
from trainers.settings import OwnTrainerSettings


def with_own_trainers(config: RunConfig, import_dirs: tuple[str, ...]) -> RunConfig:
    """The configuration with every hyperparameter of trainers of the user's own, as their classes declare them.

    Raises:
        ConfigError: a class is not there or lacks a method, hyperparameters do not fit it, or a package gives the name of a built-in trainer.
        RunFault: its module's own code raised.
    """
    behaviors = dict(config.behaviors)
    for name, settings in config.behaviors.items():
        key, given = ("trainer_type",), settings.trainer_type
        try:
            if isinstance(settings, OwnTrainerSettings):
                behaviors[name] = _resolved(config, name, settings, import_dirs)
            else:
                check_name(TRAINER, given)
        except OwnCodeError as error:
            raise ConfigError([behavior_problem(config, name, key, given, str(error).removeprefix(f"{TRAINER.key}: "))], config.document.name) from error
        except EnvFault as fault:
            raise RunFault.of(f"trainer_type {given}", fault) from fault
    return config.with_behaviors(behaviors)


def _resolved(config: RunConfig, behavior: str, settings: OwnTrainerSettings, import_dirs: tuple[str, ...]) -> OwnTrainerSettings:
    own = load(TRAINER, settings.trainer_type, import_dirs)
    try:
        # Plain values: an object of the user's class would need its module wherever a plan is unpickled.
        values = OwnHyperparameters(**hyperparameters_of(own, settings).model_dump(mode="json"))
    except ValidationError as error:
        problems = [_problem(config, behavior, found, own.Hyperparameters) for found in error.errors(include_url=False)]
        raise ConfigError(problems, config.document.name) from None
    return settings.model_copy(update={"hyperparameters": values})


def _problem(config: RunConfig, behavior: str, found: dict, model: type[BaseModel]) -> Problem:
    path = ("behaviors", behavior, "hyperparameters", *found["loc"])
    path = tuple(map(str, origin(path, found, config.document.data)))
    if found["type"] != "extra_forbidden":
        return translate({**found, "loc": path}, path, config.document)
    known = list(model.model_fields)
    near = nearest(path[-1], known, cutoff=0.4)
    advice = did_you_mean(near) or f"; {model.__qualname__} has {', '.join(known)}"
    return config.document.problem(path, found["input"], f"unknown key (received {describe(found['input'])}){advice}", near)
