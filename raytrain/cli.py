"""The command line: ``raytrain COMMAND …``. Exit codes: 0 done or stopped by Ctrl-C, 1 a fault while running, 2 bad input, 130 quit at once.

Each command has a module of its own, ``command_NAME.py``, with ``HELP`` and ``DESCRIPTION``, ``add_arguments(parser)`` and ``run(options) -> exit code``. They
import little at the top: all of them are loaded for ``--help``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = (
    "train", "resume", "evaluate", "play", "list", "compare", "tune", "export", "check-env", "record", "migrate", "scale", "schema", "completion")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = make_parser().parse_args(given)
    try:
        return options.run(options)
    except KeyboardInterrupt:  # before the run took over, or after it had saved and ended
        print("\ninterrupted", file=sys.stderr)
        return 130


def make_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = argparse.ArgumentParser(prog="raytrain", description="Train agents with reinforcement learning on Ray, from one YAML file.")
    from raytrain import __version__

    parser.add_argument("--version", action="version", version=f"raytrain {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = import_module(f"raytrain.command_{name.replace('-', '_')}")
        one = commands.add_parser(name, help=module.HELP, description=module.DESCRIPTION)
        module.add_arguments(one)
        one.set_defaults(run=module.run)
    return parser
