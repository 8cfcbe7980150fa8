"""``raytrain completion SHELL``."""

from __future__ import annotations

import argparse

HELP = "print what makes a shell complete raytrain's commands"
DESCRIPTION = "Print a script that makes a shell complete commands, options, files and runs; docs/commands.md says where it goes."
SHELLS = ("bash", "zsh", "fish")


def add_arguments(completion: argparse.ArgumentParser) -> None:
    """What the command takes."""
    completion.add_argument("shell", choices=SHELLS, help="the shell that you use")


def run(options: argparse.Namespace) -> int:
    """Print the script; the exit code."""
    from raytrain.completion import script

    print(script(options.shell))
    return 0
