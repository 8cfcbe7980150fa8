"""YAML text → plain data that remembers where each key stands.

PyYAML reads YAML 1.1, where ``3e-4`` is text and a repeated key silently wins; here the first is a number and the second a problem.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from raytrain.errors import ConfigError, Problem

KeyPath = tuple[str, ...]
"""Keys from the top of the file; list items by their index."""


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2 floats, and without dates (a run called 2024-05-01 has a name, not a birthday)."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$", re.ASCII),
    list("-+.0123456789"),
)


@dataclass
class Document:
    """What a file, a dict and the command line say together.

    Attributes:
        name: the file as the user named it, or what stands in for it.
        data: plain values.
        lines: line of each key, counted from 1; empty for a dict.
        overridden: paths that the command line set.
        messages: what was done to the file while it was read; there are some for a file of ML-Agents only.
    """

    name: str
    data: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    overridden: set[KeyPath] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)

    def problem(self, path: KeyPath, value: Any, message: str, suggestion: str = "") -> Problem:
        """A problem at `path`, placed at the nearest key above it that has a place."""
        ancestors = [path[:length] for length in range(len(path), 0, -1)]
        if any(ancestor in self.overridden for ancestor in ancestors):
            return Problem(".".join(path), None, value, message, suggestion, "command line")
        line = next((self.lines[ancestor] for ancestor in ancestors if ancestor in self.lines), None)
        source = Path(self.name).name if self.lines else ""
        return Problem(".".join(path), line, value, message, suggestion, source)


def parse_yaml(text: str, name: str = "the configuration") -> tuple[Document, list[Problem]]:
    """Read YAML, keeping the line of every key.

    Args:
        text: the whole file.
        name: the file's name, for messages.

    Returns:
        The document, and a problem for each key that stands twice in one mapping.

    Raises:
        ConfigError: text that is not YAML: a tab as indentation, a syntax error, a tag that plain data does not need.
    """
    document, problems = Document(name, None), []
    try:
        node = _without_python_tags(yaml.compose(text, _Loader))
        if node is not None:
            _index(node, (), document, problems, ())
            document.data = unshared(_Loader("").construct_document(node))
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a scalar such as 0x_ that only looks like a number.
        raise ConfigError([_syntax_problem(error, text, Path(name).name)], name) from error
    return document, problems


def parse_value(text: str) -> Any:
    """One value as YAML has it: ``"3e-4"`` → 0.0003, ``"[64, 64]"`` → list.

    Raises:
        ConfigError: text that is not YAML.
    """
    document, problems = parse_yaml(text, "command line")
    if problems:
        raise ConfigError(problems, "command line")
    return document.data


def unshared(value: Any) -> Any:
    """A copy in which no two places hold the same mapping or list, as they do behind a YAML alias; other values are kept as they are."""
    if isinstance(value, Mapping):
        return {key: unshared(item) for key, item in value.items()}
    return [unshared(item) for item in value] if isinstance(value, list) else value


def _without_python_tags(node: yaml.Node | None) -> yaml.Node | None:
    """The file with sections at the top that some releases of ML-Agents save as Python objects of theirs (``results/*/configuration.yaml``) as plain
    YAML. Nothing is constructed: the items of such an object are a mapping below ``dictitems``.
    """
    if isinstance(node, yaml.MappingNode):
        node.value = [(key, _items_of_object(value)) for key, value in node.value]
    return node


def _items_of_object(node: yaml.Node) -> yaml.Node:
    if not isinstance(node, yaml.MappingNode) or not node.tag.startswith("tag:yaml.org,2002:python/object/apply:mlagents."):
        return node
    return next((value for key, value in node.value if key.value == "dictitems"), node)


def _index(node: yaml.Node, path: KeyPath, document: Document, problems: list[Problem], above: tuple[yaml.Node, ...]) -> None:
    """Write the line of every key below `node` into `document.lines`; a key that stands twice is a problem."""
    if node in above:
        line = node.start_mark.line + 1
        message = "expected plain nested values, received an alias (*) that contains itself; write the value out"
        raise ConfigError([Problem(".".join(path), line, None, message, source=Path(document.name).name)], document.name)
    above = (*above, node)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            document.lines[(*path, str(index))] = item.start_mark.line + 1
            _index(item, (*path, str(index)), document, problems, above)
    if not isinstance(node, yaml.MappingNode):
        return
    first_lines: dict[str, int] = {}
    # Merged keys (<<) first, because a mapping's own keys win over them.
    for key, value in sorted(node.value, key=lambda pair: pair[0].tag != "tag:yaml.org,2002:merge"):
        if key.tag == "tag:yaml.org,2002:merge":
            for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                _index(merged, path, document, problems, above)
        elif isinstance(key, yaml.ScalarNode):
            line = key.start_mark.line + 1
            document.lines[(*path, key.value)] = line
            if key.tag != "tag:yaml.org,2002:str":  # `on:` is the key True once constructed.
                document.lines[(*path, str(_Loader("").construct_object(key)))] = line
            if key.value in first_lines:
                message = f"expected each key once, received it on line {first_lines[key.value]} and on line {line}; remove one"
                problems.append(document.problem((*path, key.value), _scalar(value), message))
            first_lines.setdefault(key.value, line)
            _index(value, (*path, key.value), document, problems, above)


def _scalar(node: yaml.Node) -> str | None:
    return node.value if isinstance(node, yaml.ScalarNode) else None


def _syntax_problem(error: Exception, text: str, source: str) -> Problem:
    """What PyYAML says, with its line; a tab as indentation is named as such."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line + 1 if mark else None
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
    indented = [number for number, content in enumerate(text.splitlines(), 1) if re.match(r" *\t\s*[^\s#]", content)]
    if line is not None and indented and indented[0] <= line:
        more = f" (also on line {', '.join(map(str, indented[1:5]))})" if indented[1:] else ""
        message = f"expected spaces as indentation, received a tab{more}; replace it by spaces"
        return Problem("", indented[0], "\t", message, source=source)
    if r"'\t'" in (getattr(error, "problem", None) or ""):
        return Problem("", line, "\t", "expected spaces, received a tab; replace it by spaces", source=source)
    if isinstance(error, yaml.MarkedYAMLError):
        context = f" {error.context}" if error.context else ""
        return Problem("", line, None, f"expected YAML, but{context}: {error.problem}", source=source)
    return Problem("", line, None, f"expected YAML, but: {error}", source=source)
