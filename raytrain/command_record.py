"""``raytrain record RUN``."""

from __future__ import annotations

import argparse

HELP = "record demonstrations"
DESCRIPTION = "Record demonstrations of a trained policy, or of a person at the keyboard."


def add_arguments(record: argparse.ArgumentParser) -> None:
    """What the command takes."""
    record.add_argument("source", metavar="RUN_OR_POLICY", help="run folder or checkpoint; with --keyboard an environment or configuration file")
    record.add_argument("--episodes", type=int, metavar="N", help="whole episodes to record (default: 10; --keyboard: until Esc)")
    record.add_argument("--out", metavar="FILE", help="a new .safetensors file (default: demos/ENV-TIME.safetensors)")
    record.add_argument("--seed", type=int, metavar="N", help="of environment and actions (default: drawn, and said)")
    record.add_argument("--env", metavar="ENV", help="environment of the policy (default: that of its run)")
    record.add_argument("--import-dir", action="append", default=[], metavar="DIR", help="folder with modules of your own; may be repeated")
    how = record.add_mutually_exclusive_group()
    how.add_argument("--deterministic", action="store_true", default=True, help="the most likely action (default)")
    how.add_argument("--stochastic", action="store_false", dest="deterministic", help="actions drawn from the policy")
    person = record.add_argument_group("a person")
    person.add_argument("--keyboard", action="store_true", help="you act, in a window")
    person.add_argument("--keys", metavar="JSON", help="""keys and actions, or a file of them: '{"left": 0, "right": 1, "noop": 0}'""")
    person.add_argument("--fps", type=int, metavar="N", help="steps per second")


def run(options: argparse.Namespace) -> int:
    """Record; the exit code."""
    from raytrain.record import run_command

    return run_command(options)
