"""``raytrain evaluate RUN``."""

from __future__ import annotations

import argparse

HELP = "play episodes with a trained policy and say what they return"
DESCRIPTION = (
    "Play whole episodes with a trained policy, in environments that nothing is learnt from: as training acts (stochastic), and with the most likely actions "
    "(deterministic). The same seed plays the same episodes.")


def add_arguments(evaluate: argparse.ArgumentParser) -> None:
    """What the command takes."""
    evaluate.add_argument("run_folder", metavar="RUN", help="run folder or checkpoint, such as results/cartpole; also its URI")
    evaluate.add_argument("--episodes", type=int, default=100, metavar="N", help="of each mode (default: 100)")
    how = evaluate.add_mutually_exclusive_group()
    how.add_argument("--stochastic", action="store_false", dest="deterministic", default=None, help="only as training acts: actions drawn from the policy")
    how.add_argument("--deterministic", action="store_true", default=None, help="only with the most likely actions (default: one after the other)")
    evaluate.add_argument("--checkpoint", default="best", metavar="WHICH", help="best, latest or a number (default: best)")
    evaluate.add_argument("--seed", type=int, metavar="N", help="of the episodes (default: that of the run)")
    evaluate.add_argument("--env", metavar="ENV", help="another environment than the run's")
    evaluate.add_argument("--import-dir", action="append", default=[], metavar="DIR", help="folder with modules of your own; may be repeated")
    evaluate.add_argument("--json", action="store_true", help="print JSON, with every return and length")
    evaluate.add_argument("--plot", metavar="FILE.png", help="histograms of returns and lengths")


def run(options: argparse.Namespace) -> int:
    """Evaluate; the exit code."""
    from raytrain.evaluate_run import run_command

    return run_command(options)
