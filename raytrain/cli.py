"""The command line: ``raytrain train FILE …``. Exit codes: 0 done or stopped by Ctrl-C, 1 a fault while running, 2 bad input, 130 quit at once."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    try:
        return options.run(options)
    except KeyboardInterrupt:  # before the run took over, or after it had saved and ended
        print("\ninterrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="raytrain", description="Train agents with reinforcement learning on Ray, from one YAML file.")
    from raytrain import __version__

    parser.add_argument("--version", action="version", version=f"raytrain {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_train(commands.add_parser("train", help="train from a YAML file", description="Train from a YAML file. The command line wins over the file."))
    _add_record(commands.add_parser("record", help="record demonstrations", description="Record demonstrations of a trained policy, or of a person at the keyboard."))
    scale = commands.add_parser("scale", help="change the number of env managers of a run", description="Change the number of env managers of a run that is going.")
    scale.add_argument("folder", metavar="RUN", help="run folder, such as results/CartPole-20260101-120000")
    scale.add_argument("--env-managers", type=int, required=True, metavar="N", help="how many there are to be from now on")
    scale.set_defaults(run=_scale)
    schema = commands.add_parser("schema", help="print the JSON Schema of configuration files", description="Print the JSON Schema that editors complete configuration files from.")
    schema.set_defaults(run=_schema)
    return parser


def _add_train(train: argparse.ArgumentParser) -> None:
    train.add_argument("file", metavar="FILE", help="configuration, for example yaml/ppo/CartPole.yaml")
    run = train.add_argument_group("the run")
    run.add_argument("--run-id", metavar="ID", help="name of the run and its folder (default: made from behavior and time)")
    run.add_argument("--results-dir", metavar="DIR", help="folder of all runs (default: results)")
    run.add_argument("--seed", type=int, metavar="N", help="root of every random stream; -1 draws one")
    again = run.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", default=None, help="continue the run of this id from its newest checkpoint")
    again.add_argument("--force", action="store_true", default=None, help="begin anew; the run of this id is moved to DIR/.replaced")
    run.add_argument("--initialize-from", metavar="RUN", help="start with the weights of another run, at step 0")
    where = train.add_argument_group("where it runs")
    where.add_argument("--local", action="store_true", help="without Ray: one process, lock-step (debugger, tests, tiny machines)")
    where.add_argument("--num-env-managers", type=int, metavar="N", help="processes that step environments")
    where.add_argument("--num-envs", type=int, metavar="N", help="environments per env manager")
    where.add_argument("--address", metavar="A", help="Ray cluster to join, host:port or auto")
    train.add_argument("--set", action="append", default=[], metavar="a.b.c=value", help="set any key of the file; may be repeated")
    train.set_defaults(run=_train)


def _add_record(record: argparse.ArgumentParser) -> None:
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
    record.set_defaults(run=_record)


def _record(options: argparse.Namespace) -> int:
    from raytrain.record import run_command

    return run_command(options)


def _scale(options: argparse.Namespace) -> int:
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


_KEYS = {
    "run_id": "checkpoint_settings.run_id", "results_dir": "checkpoint_settings.results_dir", "seed": "env_settings.seed",
    "resume": "checkpoint_settings.resume", "force": "checkpoint_settings.force", "initialize_from": "checkpoint_settings.initialize_from",
    "num_env_managers": "distributed.num_env_managers", "num_envs": "env_settings.num_envs", "address": "distributed.address",
}


def _train(options: argparse.Namespace) -> int:
    from raytrain.callbacks import CallbackError, Callbacks
    from raytrain.checkpoint import CheckpointWriteError
    from raytrain.config import load_config
    from raytrain.console import Console
    from raytrain.errors import ClusterError, ConfigError, RunFault, RunFolderError, UploadError
    from raytrain.run import execute
    from raytrain.run_folder import has_checkpoint

    console, debug = Console(), False
    try:
        overrides = {path: getattr(options, name) for name, path in _KEYS.items() if getattr(options, name) is not None}
        overrides = {**_settings(options.set), **overrides}
        config = load_config(options.file, overrides)
        debug = config.debug
        run, outcome = execute(config, options.local, Callbacks(), console, _command(options))
    except (ConfigError, RunFolderError, ClusterError, _UsageError) as error:
        console.error(str(error))
        return 2
    except RunFault as fault:
        console.error(str(fault), fault.full_traceback if debug else fault.user_traceback, fault.log_file)
        return 1
    except (CheckpointWriteError, UploadError, CallbackError) as error:
        console.error(str(error), getattr(error, "user_traceback", ""))
        return 1
    return 130 if outcome.interrupted and not has_checkpoint(run.path) else 0


class _UsageError(ValueError):
    """A command line that makes no sense."""


def _settings(pairs: Sequence[str]) -> dict[str, Any]:
    settings = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals or not path:
            raise _UsageError(f"Expected --set path.to.key=value, received --set {pair}.")
        settings[path.strip()] = value.strip()
    return settings


def _command(options: argparse.Namespace) -> str:
    """This command line without the flags that are about the run's id and whether it is new: to go on with ``--run-id … --resume``."""
    program = sys.argv[0]
    if Path(program).name == "__main__.py":
        words = [_typed(sys.executable), "-m", "raytrain", "train"]
    elif Path(program).suffix == ".py":
        words = [_typed(sys.executable), program]
    else:
        words = [_typed(program), "train"]
    words.append(options.file)
    for name in ("results_dir", "seed", "num_env_managers", "num_envs", "address"):
        if getattr(options, name) is not None:
            words += ["--" + name.replace("_", "-"), str(getattr(options, name))]
    words += ["--local"] if options.local else []
    for pair in options.set:
        words += ["--set", pair]
    return shlex.join(words)


def _typed(program: str) -> str:
    """A program's bare name where the shell would find this very file by it, otherwise its path."""
    found = shutil.which(Path(program).name)
    return Path(program).name if found and Path(found).absolute() == Path(program).absolute() else program


def _schema(_options: argparse.Namespace) -> int:
    import json

    from raytrain.config_text import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return 0
