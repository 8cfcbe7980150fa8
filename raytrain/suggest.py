"""The nearest valid key for one that is not known, read from the settings models and from what other systems call it."""

from __future__ import annotations

import types
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from envs.own_code import TRAINER, installed_names
from raytrain.other_names import (
    COUNTERPARTS,
    NO_COUNTERPART,
    NOT_AVAILABLE,
    OTHER_NAMES,
    OTHER_NAMES_UNDER,
    OTHER_VALUES,
    converted,
    recurrent,
)
from raytrain.settings import RunConfig
from raytrain.yaml_source import KeyPath
from trainers.settings import DEFAULT_TRAINER, SETTINGS_BY_TRAINER, is_own_trainer, settings_by_trainer

ANY_NAME = "*"
"""Stands for the name of any behavior in a path."""


def trainer_type_at(path: KeyPath, data: Mapping[str, Any]) -> str:
    """The algorithm that holds at `path` of a configuration: a behavior's own, or that of ``default_settings``.

    One that is misspelt is taken for the nearest. Outside of behaviors it is that of the first.

    Args:
        path: where in the configuration.
        data: the configuration as it is written, with whatever is wrong in it.
    """
    defaults, behaviors = data.get("default_settings"), data.get("behaviors")
    behaviors = behaviors if isinstance(behaviors, dict) else {}
    name = path[1] if path[:1] == ("behaviors",) and len(path) > 1 else next(iter(behaviors), None)
    own = None if path[:1] == ("default_settings",) else behaviors.get(name)
    for section in (own, defaults):
        if isinstance(section, dict) and "trainer_type" in section:
            return known_trainer_type(section["trainer_type"]) or DEFAULT_TRAINER
    return DEFAULT_TRAINER


def known_trainer_type(value: Any) -> str:
    """`value` if it names an algorithm, else the nearest name, else ``""``."""
    if not isinstance(value, str):
        return ""
    if value in SETTINGS_BY_TRAINER or is_own_trainer(value):
        return value
    return nearest(value, [*SETTINGS_BY_TRAINER, *installed_names(TRAINER)])


def annotation_at(path: KeyPath, trainer_type: str = DEFAULT_TRAINER) -> Any:
    """The declared type at `path` (without ``None``), or ``None`` where nothing is declared.

    Args:
        path: where in the configuration.
        trainer_type: the algorithm whose settings behaviors have.
    """
    current: Any = RunConfig
    for key in path:
        if isinstance(current, type) and issubclass(current, BaseModel):
            known = current.model_fields.get(key)
            current = _declared(known.annotation, trainer_type) if known else None
        elif get_origin(current) is dict:
            current = _declared(get_args(current)[1], trainer_type)
        elif get_origin(current) is tuple:
            current = _declared(get_args(current)[0], trainer_type)
        else:
            return None
    return current


def keys_at(path: KeyPath, trainer_type: str = DEFAULT_TRAINER) -> list[str]:
    """The keys that are valid directly below `path`."""
    section = annotation_at(path, trainer_type)
    return list(section.model_fields) if isinstance(section, type) and issubclass(section, BaseModel) else []


def explain_unknown_key(path: KeyPath, value: Any, data: Mapping[str, Any]) -> tuple[str, str]:
    """What to do about an unknown key.

    Args:
        path: where it was found.
        value: what it holds.
        data: the whole configuration as it is written.

    Returns:
        The end of a sentence that begins with "unknown key", and the nearest valid key (empty if there is none).
    """
    *parent, key = path
    trainer = trainer_type_at(path, data)
    if not parent and isinstance(value, dict) and set(value) & set(keys_at(("behaviors", ANY_NAME))):
        return f"a behavior belongs at behaviors.{key}", f"behaviors.{key}"
    here = keys_at(tuple(parent), trainer)
    name = _name_here(key, trainer)
    if name in here:
        return _with_value(f"it is called {name} here", name, value), name
    paths = _all_paths(trainer)
    elsewhere = [_concrete(other, path, data) for other in paths if other[-1] == name]
    if elsewhere:
        return f"it belongs at {' or '.join(elsewhere[:2])}", elsewhere[0]
    if key in NOT_AVAILABLE:
        return f"known from ML-Agents: {NOT_AVAILABLE[key]}", ""
    if key in NO_COUNTERPART:
        return NO_COUNTERPART[key], ""
    if (memory := recurrent(key, value, _nearby(path, data))) is not None:
        advice, replacement = memory
        place = next((_concrete(other, path, data) for other in paths if other[-1] == replacement), "")
        return advice.format(place=place), place
    if (conversion := converted(key, value, _nearby(path, data))) is not None:
        advice, replacement = conversion
        if trainer != "sac":
            behavior = _behavior_of(path, data)
            advice = f"it belongs to sac, and {behavior} is trained by {trainer}: remove it, or write trainer_type: sac; {advice}"
        return advice, replacement if trainer == "sac" else ""
    if belongs := _to_other_trainer(key, path, trainer, data):
        return belongs
    if near := nearest(key, here):
        return f"did you mean {near}?", near
    if near := nearest(key, [other[-1] for other in paths], cutoff=0.8):
        place = next(_concrete(other, path, data) for other in paths if other[-1] == near)
        return f"did you mean {place}?", place
    if near := nearest(key, here, cutoff=0.4):
        return f"did you mean {near}?", near
    return f"valid here: {', '.join(here)}", ""


def explain_value(key: str, value: Any) -> str:
    """What to write for a value that other libraries give `key`, empty where nothing is known."""
    return OTHER_VALUES.get((key, value), "") if isinstance(value, str | int) else ""


def nearest(word: str, known: list[str], cutoff: float = 0.6) -> str:
    """The word of `known` that looks most like `word` in either case, or ``""``."""
    by_lower = {name.lower(): name for name in known}
    return next((by_lower[match] for match in get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)), "")


def _name_here(key: str, trainer_type: str) -> str:
    """`key` by its name under this algorithm, should another system call it differently."""
    return OTHER_NAMES_UNDER.get(trainer_type, {}).get(key) or OTHER_NAMES.get(key, key)


def _with_value(advice: str, name: str, value: Any) -> str:
    """`advice` about a name, and about the value that comes with it."""
    about_value = explain_value(name, value)
    if name == "init_entcoef" and isinstance(value, int | float) and not isinstance(value, bool):
        about_value = f"write learn_entcoef: false beside it if it is to stay {value:g}"
    return f"{advice}; {about_value}" if about_value else advice


def _to_other_trainer(key: str, path: KeyPath, trainer: str, data: Mapping[str, Any]) -> tuple[str, str] | None:
    """What to do about a key, possibly misspelt, that only another algorithm has."""
    ours = [other[-1] for other in _all_paths(trainer)]
    for other in SETTINGS_BY_TRAINER:
        theirs = [keys[-1] for keys in _all_paths(other) if keys[-1] not in ours]
        # Nearer to a key of theirs than to any of ours: sure enough only when almost the same.
        name = nearest(_name_here(key, other), theirs, cutoff=0.85)
        if other == trainer or not name or nearest(key, ours, cutoff=0.85):
            continue
        called = "it" if name == key else name
        counterpart = COUNTERPARTS.get(trainer, {}).get(name, "")
        instead = f"use {counterpart}" if counterpart else "remove it"
        where = f"belongs to {other}, and {_behavior_of(path, data)} is trained by {trainer}"
        return f"{called} {where}: {instead}, or write trainer_type: {other}", counterpart
    return None


def _behavior_of(path: KeyPath, data: Mapping[str, Any]) -> str:
    """The behavior that `path` is in, or what it says of all behaviors."""
    if path[0] == "default_settings":
        return "default_settings"
    return _concrete(("behaviors", ANY_NAME), path, data).removeprefix("behaviors.")


def _nearby(path: KeyPath, data: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of the behavior that `path` is in, whatever their section; its own win over those of ``default_settings``."""
    behaviors = data.get("behaviors")
    sections = [data.get("default_settings")]
    if path[0] == "behaviors" and len(path) > 1 and isinstance(behaviors, dict):
        sections.append(behaviors.get(path[1]))
    found: dict[str, Any] = {}
    for section in sections:
        if isinstance(section, dict):
            found |= section
            for below in section.values():
                found |= below if isinstance(below, dict) else {}
    return found


@cache
def _all_paths(trainer_type: str) -> tuple[KeyPath, ...]:
    """Every key of the settings, the ones of a behavior below `ANY_NAME`, shallow ones first."""
    found: list[KeyPath] = []
    level: list[KeyPath] = [()]
    while level:
        level = [(*path, key) for path in level for key in keys_at(path, trainer_type) if key != "default_settings"]
        found += level
        level = [(*path, ANY_NAME) if get_origin(annotation_at(path, trainer_type)) is dict else path for path in level]
    return tuple(found)


def _concrete(other: KeyPath, path: KeyPath, data: Mapping[str, Any]) -> str:
    """`other` as text, with `ANY_NAME` replaced by the behavior that `path` is in, or the only one of the file."""
    if ANY_NAME not in other:
        return ".".join(other)
    if other[0] == "environment_parameters":
        return ".".join((other[0], path[1] if path[0] == other[0] and len(path) > 2 else "<parameter>", *other[2:]))
    below = ["<observation>" if key == ANY_NAME else key for key in other[2:]]
    if path[0] == "default_settings":
        return ".".join((path[0], *below))
    behaviors = data.get("behaviors")
    names = [str(name) for name in behaviors] if isinstance(behaviors, dict) else []
    inside = path[1] if path[0] == "behaviors" and len(path) > 2 else None
    name = inside or (names[0] if len(names) == 1 else "<behavior>")
    return ".".join((other[0], name, *below))


def _declared(annotation: Any, trainer_type: str) -> Any:
    """The type of an optional field itself; of a behavior, the settings of `trainer_type`."""
    if get_origin(annotation) is Annotated:
        return _declared(get_args(annotation)[0], trainer_type)
    if get_origin(annotation) in (Union, types.UnionType):
        members = [_declared(member, trainer_type) for member in get_args(annotation) if member is not type(None)]
        settings = settings_by_trainer(trainer_type)
        return settings if settings in members else members[0]
    return annotation
