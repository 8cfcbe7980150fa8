"""A migrated configuration as YAML, with every note as a comment at its line; and the notes in a few lines for the console."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, get_args

import yaml

from raytrain.migrate_notes import Kind, Note, paths_of

_AT_THE_END = 60
_WIDTH = 116


def commented_yaml(data: dict[str, Any], notes: Sequence[Note], header: Sequence[str] = ()) -> str:
    """YAML of `data` with comments: short ones at the end of their line, long ones above it; those about what is not there below its section.

    Args:
        data: a configuration.
        notes: about paths in it.
        header: comments at the top.
    """
    present = {".".join(path) for path in paths_of(data)}
    comments: dict[str, list[str]] = {}
    for note in notes:
        names = note.path.split(".")
        if note.path in present:
            comments.setdefault(note.path, []).append(note.text)
            continue
        above = (".".join(names[:length]) for length in range(len(names) - 1, 0, -1))
        place = next((path for path in above if path in present), "")
        comments.setdefault(f"{place}/", []).append(f"left out (line {note.line}): {note.text}" if note.line else f"left out: {note.text}")
    lines = [line for text in (*header, *comments.get("/", ())) for line in _comment(text, "")]
    return "\n".join([*lines, *_mapping(data, (), comments, "")]) + "\n"


def _mapping(data: dict[str, Any], path: tuple[str, ...], comments: dict[str, list[str]], pad: str) -> list[str]:
    lines: list[str] = []
    for key, value in data.items():
        here = (*path, str(key))
        name = ".".join(here)
        said, below = comments.get(name, []), [line for text in comments.get(f"{name}/", []) for line in _comment(text, f"{pad}  ")]
        is_section = isinstance(value, dict) and value
        is_list = isinstance(value, list) and any(isinstance(item, dict) for item in value)
        line = f"{pad}{_scalar(str(key))}:" + ("" if is_section or is_list else f" {_scalar(value)}")
        if len(said) == 1 and len(said[0]) <= _AT_THE_END:
            lines.append(f"{line}  # {said[0]}")
        else:
            lines += [*(part for text in said for part in _comment(text, pad)), line]
        lines += below
        if is_section:
            lines += _mapping(value, here, comments, f"{pad}  ")
        elif is_list:
            lines += [part for index, item in enumerate(value) for part in _item(item, (*here, str(index)), comments, f"{pad}  ")]
    return lines


def _item(item: Any, path: tuple[str, ...], comments: dict[str, list[str]], pad: str) -> list[str]:
    """One item of a list, with its comments above it."""
    said = [line for text in comments.get(".".join(path), []) for line in _comment(text, pad)]
    if not isinstance(item, dict) or not item:
        return [*said, f"{pad}- {_scalar(item)}"]
    lines = _mapping(item, path, comments, f"{pad}  ")
    first = next(index for index, line in enumerate(lines) if not line.lstrip().startswith("#"))
    lines[first] = f"{pad}- {lines[first].lstrip()}"
    return [*said, *lines]


def _comment(text: str, pad: str) -> list[str]:
    return [f"{pad}# {line}" for line in textwrap.wrap(text, max(40, _WIDTH - 2 - len(pad)), break_on_hyphens=False, break_long_words=False)]


def _scalar(value: Any) -> str:
    """One value on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False).removesuffix("\n...\n").removesuffix("\n")


def summary_lines(era: str, notes: Sequence[Note]) -> list[str]:
    """What was read, in a few lines: keys that only moved are counted, equal notes stand in one line."""
    lines, texts = [f"read as a file of ML-Agents ({era}): {counts(notes)}"], {}
    for note in notes:
        if note.kind != "moved":
            texts.setdefault((note.kind, note.text), []).append(note)
    for (kind, text), found in texts.items():
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        place = f"{found[0].place} " if found[0].line else ""
        lines.append(f"  {place}{found[0].path}{more}, {kind}: {text}")
    return lines


def counts(notes: Sequence[Note]) -> str:
    """How many notes there are of which kind: ``"13 moved, 2 left out"``."""
    numbers = {kind: sum(note.kind == kind for note in notes) for kind in get_args(Kind)}
    return ", ".join(f"{number} {'of another meaning' if kind == 'meaning' else kind}" for kind, number in numbers.items() if number) or "nothing changes"
