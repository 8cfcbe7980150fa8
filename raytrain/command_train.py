"""``raytrain train FILE``, or ``raytrain train --env ENV`` without one."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raytrain.settings import RunConfig

HELP = "train from a YAML file, or an environment as it is"
RUN_ID = "{run_id}"  # that of raytrain.run, which is not loaded for --help
DESCRIPTION = (
    "Train from a YAML file, or --env without one: then settings are chosen by what the environment observes and does, and printed as a file to go on with. "
    "The command line wins over the file.")
_KEYS = {
    "run_id": "checkpoint_settings.run_id", "results_dir": "checkpoint_settings.results_dir", "seed": "env_settings.seed",
    "resume": "checkpoint_settings.resume", "force": "checkpoint_settings.force", "initialize_from": "checkpoint_settings.initialize_from",
    "num_env_managers": "distributed.num_env_managers", "num_envs": "env_settings.num_envs", "address": "distributed.address",
}


def add_arguments(train: argparse.ArgumentParser) -> None:
    """What the command takes."""
    train.add_argument("file", nargs="?", metavar="FILE", help="configuration, for example yaml/ppo/CartPole.yaml")
    train.add_argument("--env", metavar="ENV", help="instead of a file: a Gymnasium id or module:factory")
    train.add_argument("--trainer", choices=("ppo", "sac"), help="with --env: the algorithm (default: ppo)")
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


def run(options: argparse.Namespace) -> int:
    """Train; the exit code."""

    def load() -> RunConfig:
        from raytrain.config import load_config

        _check_source(options)
        overrides = {path: getattr(options, name) for name, path in _KEYS.items() if getattr(options, name) is not None}
        overrides = {**settings_of(options.set), **overrides}
        if options.env is None:
            return load_config(options.file, overrides)
        from raytrain.console import Console
        from raytrain.default_run import as_file, default_config

        console = Console()
        with console.busy(f"making {options.env} once, to see what it observes and does"):
            config = default_config(options.env, options.trainer or "ppo", overrides)
        console.message(as_file(config, options.env))
        return config

    return train(load, options.local, _command(options))


def train(load: Callable[[], RunConfig], local: bool, command: str) -> int:
    """Train as the configuration says that `load` gives; the exit code.

    Args:
        command: see `raytrain.run.execute`.
    """
    from raytrain.callbacks import CallbackError, Callbacks
    from raytrain.checkpoint import CheckpointWriteError
    from raytrain.console import Console
    from raytrain.errors import ClusterError, ConfigError, RunFault, RunFolderError, UploadError, WriterError
    from raytrain.run import execute
    from raytrain.run_folder import has_checkpoint

    console, debug = Console(), False
    try:
        config = load()
        debug = config.debug
        trained, outcome = execute(config, local, Callbacks(), console, command)
    except (ConfigError, RunFolderError, ClusterError, UsageError) as error:
        console.error(str(error))
        return 2
    except WriterError as error:
        console.error(str(error), error.user_traceback)
        return 2
    except RunFault as fault:
        console.error(str(fault), fault.full_traceback if debug else fault.user_traceback, fault.log_file)
        return 1
    except (CheckpointWriteError, UploadError, CallbackError) as error:
        console.error(str(error), getattr(error, "user_traceback", ""))
        return 1
    return 130 if outcome.interrupted and not has_checkpoint(trained.path) else 0


def _check_source(options: argparse.Namespace) -> None:
    """Refuse a command line that says twice what is trained, or not at all."""
    if options.file is None and options.env is None:
        raise UsageError("Expected a configuration file, such as yaml/ppo/CartPole.yaml, or --env with an environment; received neither.")
    if options.file is not None and options.env is not None:
        raise UsageError(f"Expected a file or --env, received {options.file} and --env {options.env}; another environment for the file is --set env={options.env}.")
    if options.env is None and options.trainer is not None:
        raise UsageError(f"Expected --trainer with --env, received it with {options.file}, whose trainer_type says it.")
    if options.env is not None and options.env.endswith((".yaml", ".yml")):
        raise UsageError(f"Expected --env with a Gymnasium id or module:factory, received the file {options.env}; train it without --env.")


class UsageError(ValueError):
    """A command line that makes no sense."""


def settings_of(pairs: Sequence[str]) -> dict[str, Any]:
    """Dotted path -> value, of every ``--set``.

    Raises:
        UsageError: one is not of the form path=value.
    """
    settings = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals or not path:
            raise UsageError(f"Expected --set path.to.key=value, received --set {pair}.")
        settings[path.strip()] = value.strip()
    return settings


def _command(options: argparse.Namespace) -> str:
    """The command line that goes on with the run: this one without the flags that are about the run's id and whether it is new."""
    words = [*program_words("train"), *([options.file] if options.file is not None else [])]
    for name in ("env", "trainer", "results_dir", "seed", "num_env_managers", "num_envs", "address"):
        if getattr(options, name) is not None:
            words += ["--" + name.replace("_", "-"), str(getattr(options, name))]
    words += ["--local"] if options.local else []
    for pair in options.set:
        words += ["--set", pair]
    return f"{shlex.join(words)} --run-id {RUN_ID} --resume"


def program_words(command: str) -> list[str]:
    """How this program was called, up to the name of a command."""
    program = sys.argv[0]
    if Path(program).name == "__main__.py":
        return [_typed(sys.executable), "-m", "raytrain", command]
    if Path(program).suffix == ".py":  # scripts/train.py, which is that command
        return [_typed(sys.executable), program]
    return [_typed(program), command]


def _typed(program: str) -> str:
    """A program's bare name where the shell would find this very file by it, otherwise its path."""
    found = shutil.which(Path(program).name)
    return Path(program).name if found and Path(found).absolute() == Path(program).absolute() else program
