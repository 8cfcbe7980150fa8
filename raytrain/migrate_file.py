"""A migrated file from the command line: read, migrated, checked, and written out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raytrain.config import checked, load_config, read_document
from raytrain.errors import ConfigError, Problem
from raytrain.migrate import OURS, Migration, migrate
from raytrain.migrate_notes import Note
from raytrain.migrate_text import commented_yaml
from raytrain.yaml_source import Document

PLACEHOLDER = "my_env:make"
"""``env`` of a configuration whose environment was not named."""


def migrate_file(
    file: str | Path, env: str | None = None, curriculum: str | Path | None = None, sampler: str | Path | None = None, agents: int | None = None,
) -> tuple[str, Migration]:
    """A configuration of ML-Agents as YAML of raytrain, which was checked, and what was done.

    Args:
        file: the configuration.
        env: Gymnasium id or ``module:factory``; without it a placeholder is written.
        curriculum, sampler: files that were given beside it up to 0.16.
        agents: of all environments together, for files that count updates in steps of the environments.

    Raises:
        ConfigError: another kind of file, or what cannot be expressed here, with its place.
    """
    document, problems = read_document(file)
    beside = [_beside(path, problems) for path in (curriculum, sampler)]
    if _is_ready(file, document):
        message = "expected a configuration of ML-Agents, received one of raytrain, which needs no migration: raytrain train takes it as it is"
        raise ConfigError([Problem("", None, None, message, source=Path(file).name)], str(file))
    migration = migrate(document, *beside, agents=agents, with_ours=True)
    data = _with_env(migration.document.data, env)
    notes = list(migration.notes)
    if data["env"] == PLACEHOLDER:
        notes.insert(0, Note("env", "added", "a placeholder: write the Gymnasium id or module:factory of the environment (or migrate with --env)", file=Path(file).name))
    done = Document(document.name, data, migration.document.lines, messages=migration.document.messages)
    checked(done, problems, Path(file).resolve().parent)
    header = [f"From {Path(file).name} of ML-Agents ({migration.era}), by raytrain migrate.",
              "Behaviors have the names of the old file; they must be those of the environment."]
    return commented_yaml(data, notes, header), Migration(migration.era, done, notes)


def _beside(path: str | Path | None, problems: list[Problem]) -> Document | None:
    if path is None:
        return None
    document, found = read_document(path)
    problems += found
    return document


def _is_ready(file: str | Path, document: Document) -> bool:
    """Whether a file needs no migration: it has a key of raytrain's own, and is valid as it is."""
    if not any(key in OURS for key in document.data):
        return False
    try:
        load_config(file)
    except ConfigError:
        return False
    return True


def _with_env(data: Mapping[str, Any], env: str | None) -> dict[str, Any]:
    """`data` with ``env`` on top."""
    named = env if env is not None else data.get("env", PLACEHOLDER)
    return {"env": named, **{key: value for key, value in data.items() if key != "env"}}
