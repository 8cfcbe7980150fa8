"""``raytrain list [RESULTS_DIR]``."""

from __future__ import annotations

import argparse

HELP = "list the runs of a results folder"
DESCRIPTION = "List runs and how each is doing, the one that changed last first."


def add_arguments(listing: argparse.ArgumentParser) -> None:
    """What the command takes."""
    listing.add_argument("results_dir", nargs="?", default="results", metavar="RESULTS_DIR", help="folder of all runs, or of a sweep (default: results); also its URI")
    listing.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """List; the exit code."""
    from raytrain.run_list import show_list

    return show_list(options.results_dir, options.json)
