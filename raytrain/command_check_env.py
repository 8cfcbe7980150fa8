"""``raytrain check-env ENV_OR_FILE``."""

from __future__ import annotations

import argparse

HELP = "find what is wrong with an environment"
DESCRIPTION = "Look an environment over before it is trained: a table of findings and what to do, in seconds. Exit codes: 0 no errors, 1 errors found, 2 bad input."


def add_arguments(check: argparse.ArgumentParser) -> None:
    """What the command takes."""
    check.add_argument("env", metavar="ENV_OR_FILE", help="Gymnasium id, module:factory, or a configuration file")
    check.add_argument("--steps", type=int, default=1_000, metavar="N", help="with random actions, at most (default: 1000; fewer where steps are slow)")
    check.add_argument("--env-kwargs", metavar="JSON", help="""arguments of the environment, such as '{"size": 5}'""")
    check.add_argument("--import-dir", action="append", default=[], metavar="DIR", help="folder with modules of your own; may be repeated")
    check.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Check; the exit code."""
    from raytrain.env_check import run_command

    return run_command(options)
