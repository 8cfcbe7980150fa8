"""One configuration from a file, a dict and the command line; every problem in it at once.

The settings models decide what is valid. This module reads, merges, and says where and how to mend what they refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from raytrain.config_problems import (
    clashing,
    contains,
    describe,
    did_you_mean,
    joined,
    location,
    origin,
    translate,
    unknown_trainer_type,
)
from raytrain.config_text import json_schema, summary_rows, to_yaml
from raytrain.errors import ConfigError, Problem
from raytrain.migrate import era_of, migrate
from raytrain.settings import CheckpointSettings, DistributedSettings, EnvSettings, RunConfig, StopSettings
from raytrain.suggest import annotation_at, known_trainer_type, nearest, trainer_type_at
from raytrain.yaml_source import Document, KeyPath, parse_value, parse_yaml, unshared
from trainers.settings import SETTINGS_BY_TRAINER, AnyBehaviorSettings, BehaviorSettings, is_own_trainer

__all__ = [
    "BehaviorSettings",
    "CheckpointSettings",
    "ConfigError",
    "DistributedSettings",
    "EnvSettings",
    "Problem",
    "RunConfig",
    "StopSettings",
    "check_behaviors",
    "json_schema",
    "load_config",
    "summary_rows",
    "to_yaml",
]


def load_config(source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Read, merge and check a configuration.

    Args:
        source: a YAML file, or the same structure as a dict. A file of ML-Agents is migrated first (`raytrain.migrate`); what that did is in
            ``config.document.messages``.
        overrides: dotted path → value, only what was explicitly asked for; they win over the file, and a mapping replaces a whole
            section. Text is read as YAML unless the key wants text.

    Raises:
        ConfigError: with every problem found, in the order of the file.
    """
    document, problems = read_document(source)
    if not isinstance(source, Mapping) and era_of(document.data):
        document = migrate(document).document
    if {"config", "parameters"} <= set(document.data) and "behaviors" not in document.data:
        message = f"expected the file of a run, with env and behaviors, received a sweep; raytrain tune {document.name} runs it"
        raise ConfigError([document.problem((), None, message)], document.name)
    problems += _apply_overrides(document, overrides or {})
    return checked(document, problems, Path.cwd() if isinstance(source, Mapping) else Path(source).resolve().parent)


def checked(document: Document, problems: list[Problem], source_dir: Path) -> RunConfig:
    """The configuration in `document`.

    Args:
        document: what was read, with whatever stands above it.
        problems: those found so far.
        source_dir: folder that modules and demonstrations are looked for in.

    Raises:
        ConfigError: `problems`, and every other one.
    """
    config, refused = _validate(document)
    problems = problems + refused
    if config is None or problems:
        raise ConfigError(sorted(problems, key=lambda problem: problem.line or 0), document.name)
    config._source_dir = source_dir
    config._document = document
    return config


def check_behaviors(config: RunConfig, names_in_env: Iterable[str]) -> dict[str, AnyBehaviorSettings]:
    """The settings of each behavior that the environment has.

    A behavior that the file does not name takes ``default_settings``, if the file has them. A file of ML-Agents may name behaviors that the
    environment does not have: it was written for many.

    Raises:
        ConfigError: the file names a behavior that the environment does not have, or the other way round.
    """
    names = list(names_in_env)
    in_env, in_file = ", ".join(names), ", ".join(config.behaviors) or "none"
    problems = []
    is_for_many = bool(config.document.messages) and (config.default_settings is not None or not set(names).isdisjoint(config.behaviors))
    for name in config.behaviors:
        if name not in names and not is_for_many:
            near = nearest(name, names)
            message = f"expected a behavior of {config.env}, received {name}; behaviors in the environment: {in_env}; in the file: {in_file}"
            problems.append(config.document.problem(("behaviors", name), name, message + did_you_mean(near), near))
    problems += _unknown_in_criteria(config, names)
    missing = [name for name in names if name not in config.behaviors]
    if missing and config.default_settings is None and not problems:
        message = (
            f"expected settings for every behavior of {config.env}, received none for {', '.join(missing)}; behaviors in the "
            f"environment: {in_env}; in the file: {in_file}; add the missing ones or default_settings"
        )
        problems.append(config.document.problem(("behaviors",), list(config.behaviors), message))
    if problems:
        raise ConfigError(problems, config.document.name)
    return {name: config.behaviors.get(name) or config.default_settings for name in names}


def _unknown_in_criteria(config: RunConfig, names: list[str]) -> list[Problem]:
    """Lessons that wait for episodes of a behavior which the environment does not have."""
    problems = []
    for parameter, settings in config.environment_parameters.items():
        for index, lesson in enumerate(settings.curriculum or ()):
            criteria = lesson.completion_criteria
            path = ("environment_parameters", parameter, "curriculum", str(index), "completion_criteria")
            known = config.behaviors.get(criteria.behavior, config.default_settings) if criteria is not None else None
            if criteria is not None and criteria.measure == "elo" and getattr(known, "self_play", None) is None:
                message = f"expected reward or progress, received elo, and {criteria.behavior} has no self_play, so no rating: the lesson would never end"
                problems.append(config.document.problem((*path, "measure"), criteria.measure, message))
            if criteria is not None and criteria.behavior not in names:
                path = (*path, "behavior")
                near = nearest(criteria.behavior, names)
                message = f"expected a behavior of {config.env} ({', '.join(names)}), received {criteria.behavior}{did_you_mean(near)}"
                problems.append(config.document.problem(path, criteria.behavior, message, near))
    return problems


def read_document(source: str | Path | Mapping[str, Any], such_as: str = "env and behaviors") -> tuple[Document, list[Problem]]:
    """The document of a file or dict, and what is wrong with its text.

    Args:
        such_as: keys that such a file has, for messages.
    """
    if isinstance(source, Mapping):
        return Document("the configuration", unshared(source)), []
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        near = nearest(path.name, [file.name for file in path.parent.glob("*.y*ml")])
        suggestion = str(path.parent / near) if near else ""
        message = f"expected a configuration file, received {path}, which does not exist in {path.parent.resolve()}"
        raise ConfigError([Problem("", None, str(path), message, suggestion)], str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([Problem("", None, str(path), f"expected a readable UTF-8 file: {error}")], str(path)) from error
    document, problems = parse_yaml(text, str(path))
    if not isinstance(document.data, dict):
        what = "an empty file" if document.data is None else describe(document.data)
        message = f"expected keys such as {such_as}, received {what}"
        raise ConfigError([Problem("", None, document.data, message, source=path.name)], str(path))
    return document, problems


def _apply_overrides(document: Document, overrides: Mapping[str, Any]) -> list[Problem]:
    """Write the command line's values into `document`; returns what cannot be written."""
    problems = []
    for dotted, value in overrides.items():
        path = _split(dotted, document.data)
        problem = _unknown_behavior(path, value, document)
        if isinstance(value, str) and problem is None:
            try:
                value = _by_declared_type(path, value)
            except ConfigError as error:
                problem = Problem(dotted, None, value, error.problems[0].message, source="command line")
        if problem is not None:
            problems.append(problem)
            continue
        section = document.data
        for depth, key in enumerate(path[:-1], 1):
            if not isinstance(section.get(key), dict):
                section[key] = {}
                document.overridden.add(path[:depth])
            section = section[key]
        section[path[-1]] = unshared(value)
        document.overridden.add(path)
    _let_command_line_settle_resume(document)
    return problems


def _split(dotted: str, data: dict[str, Any]) -> KeyPath:
    """Keys of a dotted path; the name of a behavior may itself contain dots, the longest one in the file wins."""
    behaviors = data.get("behaviors")
    if dotted.startswith("behaviors.") and isinstance(behaviors, dict):
        rest = dotted.removeprefix("behaviors.")
        names = [str(name) for name in behaviors if f"{rest}.".startswith(f"{name}.")]
        if names:
            name = max(names, key=len)
            below = rest[len(name) + 1 :]
            return ("behaviors", name, *(below.split(".") if below else ()))
    return tuple(dotted.split("."))


def _unknown_behavior(path: KeyPath, value: Any, document: Document) -> Problem | None:
    """An override for a behavior that the file does not have; without this check it would make one up."""
    behaviors = document.data.get("behaviors")
    if path[0] != "behaviors" or len(path) < 2 or not isinstance(behaviors, dict) or not behaviors:
        return None
    if path[1] in behaviors or "default_settings" in document.data:
        return None
    names = [str(name) for name in behaviors]
    near = nearest(path[1], names)
    message = f"expected a behavior of the file ({', '.join(names)}), received {path[1]}{did_you_mean(near)}"
    return Problem(".".join(path), None, value, message, near, "command line")


def _by_declared_type(path: KeyPath, text: str) -> Any:
    """Text from the command line as the key wants it: as it stands where text is wanted, otherwise read as YAML."""
    if annotation_at(path) is str:
        return None if text in ("null", "~") else text
    return parse_value(text)


def _let_command_line_settle_resume(document: Document) -> None:
    """``--force`` beats ``resume: true`` in the file, and the other way round; only both at once are a contradiction."""
    section = document.data.get("checkpoint_settings")
    said = {path[1] for path in document.overridden if path[0] == "checkpoint_settings" and len(path) == 2}
    for asked, other in (("resume", "force"), ("force", "resume")):
        if (
            isinstance(section, dict)
            and asked in said
            and other not in said
            and section[asked] is True
            and section.get(other) is True
        ):
            section[other] = False


def _validate(document: Document) -> tuple[RunConfig | None, list[Problem]]:
    """The validated run, or all problems.

    Rules between fields are only checked where the fields themselves are valid. So that they are reported in the same go, what was
    refused is taken out and the rest checked again.
    """
    settled, unknown = _settle_trainer_types(document)
    data = _merge_default_settings(settled)
    problems: dict[tuple[str, str], Problem] = {(problem.path, problem.message): problem for problem in unknown}
    refused: set[KeyPath] = set()
    while True:
        try:
            config = RunConfig.model_validate(data)
            return (None if refused else config), list(problems.values())
        except ValidationError as error:
            errors = joined(error.errors(include_url=False))
        # From the second time on, only rules between fields are news, and only those between fields that were not taken out.
        first, taken_out = not refused, set(refused)
        removed = False
        for found in errors:
            path = location(found)
            clash = clashing(path, found)
            fields = set(clash or [path])
            if first or (clash and not any(gone[: len(field)] == field for gone in taken_out for field in fields)):
                problem = translate(found, origin(path, found, document.data), document)
                problems.setdefault((problem.path, problem.message), problem)
            for field in fields:
                refused.add(field)
                removed |= _remove(data, field)
        if not removed:
            return None, list(problems.values())


def _settle_trainer_types(document: Document) -> tuple[dict[str, Any], list[Problem]]:
    """A copy of the document's data in which every ``trainer_type`` is known, and what had to be changed for that.

    The algorithm says what the rest of a behavior is checked by: the nearest one where it is misspelt; where nothing is near, the
    hyperparameters are left out of the check.
    """
    data, problems = unshared(document.data), []
    sections = {("default_settings",): data.get("default_settings")}
    if isinstance(data.get("behaviors"), dict):
        sections |= {("behaviors", name): section for name, section in data["behaviors"].items()}
    for path, section in sections.items():
        if not isinstance(section, dict) or "trainer_type" not in section:
            continue
        value = section["trainer_type"]
        if isinstance(value, str) and (value in SETTINGS_BY_TRAINER or is_own_trainer(value)):
            continue
        problems.append(unknown_trainer_type((*map(str, path), "trainer_type"), value, document))
        if near := known_trainer_type(value):
            section["trainer_type"] = near
        else:
            del section["trainer_type"]
            section.pop("hyperparameters", None)
    return data, problems


def _merge_default_settings(data: dict[str, Any]) -> dict[str, Any]:
    """A copy of `data` in which each behavior has ``default_settings`` below its own keys.

    ``hyperparameters`` only where both have the same algorithm: those of another one mean something else.
    """
    data = unshared(data)
    defaults, behaviors = data.get("default_settings"), data.get("behaviors")
    if isinstance(defaults, dict) and isinstance(behaviors, dict):
        for name, own in behaviors.items():
            below = unshared(defaults)
            if trainer_type_at(("behaviors", name), data) != trainer_type_at(("default_settings",), data):
                below.pop("hyperparameters", None)
            behaviors[name] = _merged(below, own)
    return data


def _merged(defaults: Any, own: Any) -> Any:
    """`own` over `defaults`, section by section."""
    if not (isinstance(defaults, dict) and isinstance(own, dict)):
        return own
    return defaults | {key: _merged(defaults.get(key), value) for key, value in own.items()}


def _remove(data: Any, path: KeyPath) -> bool:
    """Take the value at `path` out of `data`; returns whether it was there."""
    if not path or not contains(data, path):
        return False
    for key in path[:-1]:
        data = data[key]
    del data[path[-1]]
    return True
