"""``raytrain resume RUN``."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytrain.command_train import program_words, settings_of, train

if TYPE_CHECKING:
    from raytrain.settings import RunConfig

HELP = "go on with a run"
DESCRIPTION = "Go on with a run from its newest checkpoint, as the configuration says that was saved with it."
_CONFIGURATION = "configuration.yaml"


def add_arguments(resume: argparse.ArgumentParser) -> None:
    """What the command takes."""
    resume.add_argument("run_folder", metavar="RUN", help="run folder, such as results/cartpole; also its URI")
    resume.add_argument("--set", action="append", default=[], metavar="a.b.c=value", help="set any key of the configuration; may be repeated")
    where = resume.add_argument_group("where it runs")
    where.add_argument("--local", action="store_true", help="without Ray: one process, lock-step")
    where.add_argument("--num-env-managers", type=int, metavar="N", help="processes that step environments")
    where.add_argument("--address", metavar="A", help="Ray cluster to join, host:port or auto")


def run(options: argparse.Namespace) -> int:
    """Go on; the exit code."""

    def load() -> RunConfig:
        given = {"distributed.num_env_managers": options.num_env_managers, "distributed.address": options.address}
        return config_to_resume(options.run_folder, {**settings_of(options.set), **{k: v for k, v in given.items() if v is not None}})

    words = [*program_words("resume"), options.run_folder, *(["--local"] if options.local else [])]
    # Other settings are saved with the run by then.
    return train(load, options.local, shlex.join(words))


def config_to_resume(run_folder: str, overrides: dict[str, Any]) -> RunConfig:
    """The configuration saved with a run, told to go on with it where it lies now.

    Args:
        run_folder: its folder or URI.
        overrides: dotted path -> value.

    Raises:
        RunFolderError: there is no run.
        ConfigError: its configuration, or what was set, is not valid.
    """
    import yaml

    from raytrain.config import load_config
    from raytrain.errors import RunFolderError
    from raytrain.remote import RemoteError, RemoteFolder, is_uri
    from raytrain.run_folder import runs_near

    if is_uri(run_folder):
        results, _, name = run_folder.rstrip("/").rpartition("/")
        try:
            data = RemoteFolder(run_folder).read(_CONFIGURATION)
        except RemoteError as error:
            raise RunFolderError(f"Cannot read {error}. Check the URI, the credentials and the network.") from error
        if data is None:
            raise RunFolderError(f"Nothing to resume: there is no {_CONFIGURATION} in {run_folder}.")
        source: Any = yaml.safe_load(data)
    else:
        folder = Path(run_folder).expanduser().absolute()
        source, results, name = folder / _CONFIGURATION, str(folder.parent), folder.name
        if not source.is_file():
            raise RunFolderError(f"Nothing to resume: there is no {_CONFIGURATION} in {folder}. {runs_near(folder)}")
    place = {"results_dir": results, "run_id": name, "resume": True, "force": False}
    return load_config(source, {**overrides, **{f"checkpoint_settings.{key}": value for key, value in place.items()}})
