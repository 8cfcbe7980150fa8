"""``raytrain tune FILE``."""

from __future__ import annotations

import argparse

HELP = "search parameters: many runs of one file on one Ray cluster"
DESCRIPTION = "Search the parameters of a run with Ray Tune: many trials share one cluster, bad ones are stopped early, the best is named."


def add_arguments(tune: argparse.ArgumentParser) -> None:
    """What the command takes."""
    tune.add_argument("file", nargs="?", metavar="SWEEP.yaml", help="sweep file, for example yaml/tune/CartPole.yaml")
    tune.add_argument("--sweep-id", metavar="ID", help="name of the sweep and its folder (default: made from the file and the time)")
    tune.add_argument("--results-dir", metavar="DIR", help="folder of all runs and sweeps (default: that of the run's file)")
    tune.add_argument("--resume", metavar="SWEEP", help="go on with a sweep: its id or folder; trials that have ended are not run again")
    tune.add_argument("--address", metavar="A", help="Ray cluster to join, host:port or auto")
    tune.add_argument("--json", action="store_true", help="print JSON at the end, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Search; the exit code."""
    from raytrain.tune import run_command

    return run_command(options)
