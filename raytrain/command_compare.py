"""``raytrain compare RUN …``."""

from __future__ import annotations

import argparse

HELP = "compare the curves of runs"
DESCRIPTION = "Compare runs: their curves in the terminal (with plotext) and as a picture, and what each came to."


def add_arguments(compare: argparse.ArgumentParser) -> None:
    """What the command takes."""
    compare.add_argument("runs", nargs="+", metavar="RUN", help="run folders, such as results/a results/b; also their URIs")
    compare.add_argument("--tag", default="Environment/Cumulative Reward", metavar="TAG", help="column of metrics.csv (default: Environment/Cumulative Reward)")
    compare.add_argument("--out", metavar="FILE.png", help="picture of the curves")
    compare.add_argument("--smooth", type=float, default=0.0, metavar="W", help="weight of the past, 0 to below 1, as in TensorBoard (default: 0)")


def run(options: argparse.Namespace) -> int:
    """Compare; the exit code."""
    from raytrain.compare import run_command

    return run_command(options)
