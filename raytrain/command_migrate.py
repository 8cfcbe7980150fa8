"""``raytrain migrate FILE``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

HELP = "turn a file of ML-Agents into one of raytrain"
DESCRIPTION = "Turn a configuration of ML-Agents, of any release, into one of raytrain, with a comment at each line that changed."


def add_arguments(migrate: argparse.ArgumentParser) -> None:
    """What the command takes."""
    migrate.add_argument("file", metavar="FILE", help="configuration of ML-Agents, such as trainer_config.yaml")
    migrate.add_argument("--env", metavar="ENV", help="Gymnasium id or module:factory, which such files do not name (default: a placeholder)")
    migrate.add_argument("--curriculum", metavar="FILE", help="curriculum file that was given beside it (up to 0.16)")
    migrate.add_argument("--sampler", metavar="FILE", help="sampler file that was given beside it (up to 0.16)")
    migrate.add_argument("--agents", type=int, metavar="N", help="agents of all environments together, for files with train_interval and num_update")
    migrate.add_argument("--out", metavar="FILE", help="a new file to write (default: print)")
    migrate.add_argument("--json", action="store_true", help="print the notes as JSON instead of the configuration")


def run(options: argparse.Namespace) -> int:
    """Migrate; the exit code."""
    from raytrain.console import Console
    from raytrain.errors import ConfigError
    from raytrain.migrate_file import migrate_file
    from raytrain.migrate_text import counts

    try:
        if options.agents is not None and options.agents < 1:
            raise _UsageError(f"Expected --agents of at least 1, received {options.agents}.")
        text, migration = migrate_file(options.file, options.env, options.curriculum, options.sampler, options.agents)
        if options.out is not None:
            _write(Path(options.out), text)
    except (ConfigError, _UsageError) as error:
        Console().error(str(error))
        return 2
    if options.json:
        print(json.dumps([{**asdict(note), "place": note.place} for note in migration.notes], indent=2, ensure_ascii=False))
    elif options.out is None:
        print(text, end="")
    where = f"wrote {options.out}; " if options.out else ""
    # Beside the configuration, which may go into a file or pipe.
    print(f"{where}{options.file} ({migration.era}): {counts(migration.notes)}", file=sys.stderr)
    return 0


class _UsageError(ValueError):
    """A command line that makes no sense."""


def _write(path: Path, text: str) -> None:
    """Write a file that is not there yet."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise _UsageError(f"Expected --out to name a new file, received {path}, which exists; remove it or choose another name.") from None
    except OSError as error:
        raise _UsageError(f"Expected --out to name a file that can be written, received {path}: {error.strerror}.") from None
