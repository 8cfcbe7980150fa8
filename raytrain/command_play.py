"""``raytrain play RUN``."""

from __future__ import annotations

import argparse

HELP = "watch a trained policy"
DESCRIPTION = "Watch a trained policy act, in a window or as a video."


def add_arguments(play: argparse.ArgumentParser) -> None:
    """What the command takes."""
    play.add_argument("run_folder", metavar="RUN", help="run folder or checkpoint, such as results/cartpole; also its URI")
    play.add_argument("--episodes", type=int, default=1, metavar="N", help="(default: 1)")
    play.add_argument("--video", metavar="FILE.mp4", help="record instead of opening a window; of several episodes FILE-1.mp4, FILE-2.mp4, …")
    how = play.add_mutually_exclusive_group()
    how.add_argument("--deterministic", action="store_true", default=True, help="the most likely action (default)")
    how.add_argument("--stochastic", action="store_false", dest="deterministic", help="actions drawn from the policy, as in training")
    play.add_argument("--checkpoint", default="best", metavar="WHICH", help="best, latest or a number (default: best)")
    play.add_argument("--seed", type=int, metavar="N", help="of environment and actions (default: that of the run)")
    play.add_argument("--env", metavar="ENV", help="another environment than the run's")
    play.add_argument("--import-dir", action="append", default=[], metavar="DIR", help="folder with modules of your own; may be repeated")


def run(options: argparse.Namespace) -> int:
    """Play; the exit code."""
    from raytrain.play import run_command

    return run_command(options)
