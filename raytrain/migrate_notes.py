"""What a migration did, key by key: where each came from, and a note for every change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from raytrain.errors import ConfigError
from raytrain.yaml_source import Document, KeyPath

Kind = Literal["moved", "changed", "added", "left out", "meaning"]
"""moved: same value at another place or under another name; changed: another value; added: ML-Agents had it by default; left out: nothing here
has its place; meaning: the same line, which does something else here."""


@dataclass(frozen=True)
class Note:
    """One thing that a reader of the old file has to know.

    Attributes:
        path: dotted path in the new configuration, or where a key that was left out would stand.
        kind: see `Kind`.
        text: what is different and why, without the path.
        was: dotted path in the old file, empty for what it did not have.
        line: line in the old file, counted from 1; ``None`` where there is none.
        file: name of that file.
    """

    path: str
    kind: Kind
    text: str
    was: str = ""
    line: int | None = None
    file: str = ""

    @property
    def place(self) -> str:
        """``"trainer_config.yaml:12"``, or the file alone."""
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass
class Notes:
    """Notes under way, and the origin of every key that does not stand where it stood.

    Attributes:
        document: the file that is migrated.
        found: the notes so far.
        origins: path in the new configuration → the file it came from and its path there; what lies below follows.
    """

    document: Document
    found: list[Note] = field(default_factory=list)
    origins: dict[KeyPath, tuple[Document, KeyPath]] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)

    def origin(self, path: KeyPath) -> tuple[Document, KeyPath]:
        """The file and the path there that `path` of the new configuration came from."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                document, old = self.origins[path[:length]]
                return document, (*old, *path[length:])
        return self.document, path

    def add(self, kind: Kind, path: KeyPath, text: str, old: KeyPath | None = None) -> None:
        """A note about `path`; `old` where it stood, if `origins` does not say so."""
        document, was = self.origin(path) if old is None else (self.document, old)
        if path[:1] == ("behaviors",) and was[:1] == ("default",):
            return  # inherited, and said there
        near = next((was[:n] for n in range(len(was), 0, -1) if was[:n] in document.lines), None)
        shown = "" if kind == "added" else ".".join(was)
        name = Path(document.name).name
        self.found.append(Note(".".join(path), kind, text, shown, document.lines.get(near) if near and kind != "added" else None, name))

    def once(self, path: KeyPath, text: str) -> None:
        """A note of kind ``meaning``, for the first of all lines that it holds for."""
        if text not in self._said:
            self._said.add(text)
            self.add("meaning", path, text)

    def refuse(self, path: KeyPath, value: Any, message: str) -> ConfigError:
        """The error of a value that cannot be migrated, at its place in the old file."""
        document, old = self.origin(path)
        return ConfigError([document.problem(old, value, message)], document.name)

    def lines(self, data: Any) -> dict[KeyPath, int]:
        """Line in the old file of each path of the new `data` that came from it."""
        found = {}
        for path in paths_of(data):
            document, old = self.origin(path)
            if document is self.document and old in document.lines:
                found[path] = document.lines[old]
        return found


def paths_of(data: Any, above: KeyPath = ()) -> Iterator[KeyPath]:
    """Every path of nested mappings and lists, outer ones first; list items by their index."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*above, str(key))
        yield from paths_of(value, (*above, str(key)))


def whole(value: Any) -> Any:
    """``5.0e5`` as the integer that it is; anything else unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def shown(key: str, value: Any) -> str:
    """A key with its value as YAML has it; of a section or a list the key alone."""
    if isinstance(value, dict | list):
        return key
    return f"{key}: {'null' if value is None else str(value).lower() if isinstance(value, bool) else value}"


def section_of(value: Any) -> dict[str, Any]:
    """`value` if it is a section, an empty one for anything else, which the check of the new configuration refuses."""
    return value if isinstance(value, dict) else {}
