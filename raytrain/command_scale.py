"""``raytrain scale RUN --env-managers N``."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "change the number of env managers of a run"
DESCRIPTION = "Change the number of env managers of a run that is going."


def add_arguments(scale: argparse.ArgumentParser) -> None:
    """What the command takes."""
    scale.add_argument("folder", metavar="RUN", help="run folder, such as results/CartPole-20260101-120000")
    scale.add_argument("--env-managers", type=int, required=True, metavar="N", help="how many there are to be from now on")


def run(options: argparse.Namespace) -> int:
    """Leave the request; the exit code."""
    from raytrain.console import Console
    from raytrain.errors import RunFolderError
    from raytrain.run_folder import ask_for_managers

    console = Console()
    try:
        most = ask_for_managers(Path(options.folder), options.env_managers)
    except RunFolderError as error:
        console.error(str(error))
        return 2
    console.message(f"asked {options.folder} to go on with {options.env_managers} of at most {most} env managers; it says when it does")
    return 0
