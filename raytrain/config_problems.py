"""What pydantic refuses, said in the words of the file: where, what was expected, what was received, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from envs.own_code import TRAINER, installed_names
from raytrain.errors import ConfigError, Problem
from raytrain.other_names import NOT_AVAILABLE
from raytrain.suggest import explain_unknown_key, explain_value, known_trainer_type, nearest
from raytrain.yaml_source import Document, KeyPath, parse_value
from trainers.settings import SETTINGS_BY_TRAINER, TAGS

_EXPECTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "letters, digits, _, - and . only, the first a letter, digit or _",
    "dict_type": "a section of keys",
    "tuple_type": "a list",
    "parameter_type": "a number or a section of keys",
    "model_type": "a section of keys",
    "greater_than": "a number > {gt:g}",
    "greater_than_equal": "a number ≥ {ge:g}",
    "less_than": "a number < {lt:g}",
    "less_than_equal": "a number ≤ {le:g}",
    "multiple_of": "a multiple of {multiple_of:g}",
    "literal_error": "{expected}",
}
"""pydantic's error types → what was expected, in our words."""

_MISSING = {"env": "; write env: with a Gymnasium id (CartPole-v1) or module:factory"}


def location(found: Mapping[str, Any]) -> KeyPath:
    """pydantic's location as keys of the file, which has no key for the algorithm whose settings a behavior has."""
    keys = [key for key in found["loc"] if key != "[key]"]
    tag_at = {"default_settings": 1, "behaviors": 2}.get(keys[0]) if keys else None
    if tag_at is not None and len(keys) > tag_at and keys[tag_at] in TAGS:
        del keys[tag_at]
    if found["type"] == "invalid_key":
        keys[-1] = found["input"]
    return tuple(keys)


def joined(errors: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """pydantic's errors, with those of a value that may be of several kinds as one: it tells one for each kind, below a key that no file has."""
    found: dict[Any, list[Mapping[str, Any]]] = {}
    for number, error in enumerate(errors):
        is_kind = error["type"] in _EXPECTED and isinstance(error["loc"][-1], str) and "[" in error["loc"][-1] and error["loc"][-1] != "[key]"
        found.setdefault(error["loc"][:-1] if is_kind else number, []).append(error)
    return [
        {**parts[0], "type": "literal_error", "loc": place, "ctx": {"expected": " or ".join(_EXPECTED[one["type"]].format(**one.get("ctx", {})) for one in parts)}}
        if isinstance(place, tuple) else parts[0]
        for place, parts in found.items()
    ]


def clashing(path: KeyPath, found: Mapping[str, Any]) -> list[KeyPath]:
    """The two keys of a clash, that which is reported first; empty for any other error."""
    if found["type"] != "contradiction":
        return []
    below = [found["ctx"][which].split(".") for which in ("field", "other")]
    return [(*path, *(int(key) if key.isdigit() else key for key in keys)) for keys in below]


def origin(path: KeyPath, found: Mapping[str, Any], data: dict[str, Any]) -> KeyPath:
    """Where the refused value was written: in the behavior itself or in ``default_settings``; of a clash, the key that was written."""
    written = clashing(path, found) or [path]
    inherited = [("default_settings", *keys[2:]) for keys in written if keys[:1] == ("behaviors",) and len(keys) > 2]
    return next((keys for keys in [*written, *inherited] if contains(data, keys)), written[0])


def contains(data: Any, path: KeyPath) -> bool:
    """Whether nested `data` has a value at `path`."""
    for key in path:
        if not (isinstance(data, list) and isinstance(key, int) and key < len(data)) and not (isinstance(data, dict) and key in data):
            return False
        data = data[key]
    return True


def _value_at(data: Any, path: KeyPath) -> Any:
    """What nested `data` has at `path`, ``None`` where it has nothing."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def unknown_trainer_type(path: KeyPath, value: Any, document: Document) -> Problem:
    """The problem of a ``trainer_type`` at `path` that names no algorithm."""
    near = known_trainer_type(value)
    known = ", ".join([*SETTINGS_BY_TRAINER, *installed_names(TRAINER)])
    message = f"expected {known} or module:Class, received {describe(value)}"
    reason = f"; {NOT_AVAILABLE[value]}" if isinstance(value, str) and value in NOT_AVAILABLE else ""
    if not (near or reason) and isinstance(value, str):
        reason = "; no installed package gives that name"
    return document.problem(path, value, message + reason + did_you_mean(near), near)


def translate(found: Mapping[str, Any], path: KeyPath, document: Document) -> Problem:
    """One of pydantic's errors as a problem with place, expectation and suggestion."""
    kind, value = found["type"], found["input"]
    keys = tuple(str(key) for key in path)
    if kind == "extra_forbidden":
        advice, suggestion = explain_unknown_key(keys, value, document.data)
        received = "" if isinstance(value, dict | list) else f" (received {describe(value)})"
        return document.problem(keys, value, f"unknown key{received}; {advice}", suggestion)
    if kind == "missing":
        unnamed = "; files of ML-Agents do not name it: add --set env=…" if document.messages and keys == ("env",) else ""
        return document.problem(keys, None, "required key is missing" + _MISSING.get(".".join(keys), "") + unnamed)
    if kind == "invalid_key" or found["loc"][-1:] == ("[key]",):
        message = f"expected text as a key, received {describe(value)}; put the key in quotes"
        return document.problem(keys, value, message)
    if kind == "contradiction":
        return document.problem(keys, _value_at(document.data, path), found["msg"])
    if kind not in _EXPECTED:
        return document.problem(keys, value, found["msg"])
    if value is None and kind in ("model_type", "dict_type"):
        braces = f", or write {keys[-1]}: {{}} to take every default" if keys[:-1] == ("behaviors",) else ""
        return document.problem(keys, None, f"expected keys, received an empty section; fill it or remove it{braces}")
    expected = _EXPECTED[kind].format(**found.get("ctx", {}))
    advice = _advice(kind, keys[-1], value)
    message = f"expected {expected}, received {describe(value)}{advice}"
    choices = found.get("ctx", {}).get("expected", "") if kind == "literal_error" and not advice else ""
    near = nearest(str(value), [choice.strip("' ") for choice in choices.replace(" or ", ",").split(",")])
    return document.problem(keys, value, message + did_you_mean(near), near)


def _advice(kind: str, key: str, value: Any) -> str:
    """What to do about a value of the wrong type, where the slip is a common one."""
    if instead := explain_value(key, value):
        return f"; {instead}"
    if kind in ("int_type", "float_type", "bool_type") and isinstance(value, str):
        try:
            plain = parse_value(value)
        except ConfigError:
            return ""
        return "; remove the quotes" if not isinstance(plain, str) and plain is not None else ""
    if kind == "string_type" and value is not None and not isinstance(value, dict | list):
        return "; put it in quotes"
    return ""


def did_you_mean(suggestion: str) -> str:
    """The end of a message, empty without a suggestion."""
    return f"; did you mean {suggestion}?" if suggestion else ""


def describe(value: Any) -> str:
    """A value in a message, by its YAML kind."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"text {_shortened(value)}"
    if isinstance(value, dict):
        return f"a section with {', '.join(map(str, list(value)[:4]))}" if value else "an empty section {}"
    if isinstance(value, list):
        return f"a list {_shortened(value)}"
    return _shortened(value)


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
