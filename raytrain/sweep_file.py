"""A sweep file: read, checked against the run that it is about, all mistakes at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from raytrain.config import load_config, read_document
from raytrain.config_problems import clashing, did_you_mean, translate
from raytrain.errors import ConfigError, Problem
from raytrain.migrate import era_of
from raytrain.remote import is_uri, run_address
from raytrain.settings import RunConfig
from raytrain.suggest import nearest
from raytrain.sweep_settings import SCHEDULERS, DrawSettings, SweepSettings
from raytrain.yaml_source import Document, KeyPath, unshared

_OURS = {
    "checkpoint_settings.run_id": "each trial has a name of its own", "checkpoint_settings.results_dir": "trials lie in the folder of the sweep",
    "checkpoint_settings.resume": "raytrain tune --resume goes on with a sweep", "checkpoint_settings.force": "each trial is a new run",
    "distributed.address": "all trials share one cluster; --address names it", "distributed.max_env_managers": "a trial keeps the place that it was given",
    "import_from": "it is where the run's modules are",
}
_FIXED_IN_PBT = ("network_settings", "trainer_type", "shared_critic", "reward_signals", "env", "env_kwargs", "env_settings", "distributed", "memory")
"""Keys that a checkpoint of another trial would not fit any more, or that cannot change while a run goes on."""


@dataclass(frozen=True)
class Sweep:
    """A sweep file and the run that it is about.

    Attributes:
        settings: of the sweep.
        run: the run's own settings as they were written, which a trial's parameters are set in.
        config: the same, resolved.
    """

    settings: SweepSettings
    run: dict[str, Any]
    config: RunConfig

    def config_of(self, parameters: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> RunConfig:
        """The run with these parameters (dotted path -> value) and whatever else is set.

        Raises:
            ConfigError: its settings refuse them.
        """
        return load_config(self.run, {**parameters, **(more or {})})


def load_sweep(path: str | Path) -> Sweep:
    """Read and check a sweep file: its own keys, the run's file, and each value that a parameter may have against the run's settings.

    Raises:
        ConfigError: with every problem found in both files.
    """
    document, problems = read_document(path, "config and parameters")
    if "parameters" not in document.data and {"behaviors", "default_settings", "env"} & set(document.data):
        message = f"expected a sweep, with config and parameters, received the file of a run; raytrain train trains it, and a sweep names it: config: {document.name}"
        raise ConfigError([document.problem((), None, message)], document.name)
    settings, refused, sound = _validate(document)
    file, missing = _run_file(document, Path(path).resolve().parent)
    config, run, of_run = _run_in(file) if file is not None else (None, None, [])
    problems = [*problems, *refused, *missing]
    if sound is not None and run is not None:
        problems += _refused_parameters(sound, run, document, {(problem.path, problem.message) for problem in of_run})
    if sound is not None and config is not None:
        problems += _refused_schedule(sound, config, document)
    if problems or of_run:
        names = ([document.name] if problems else []) + ([str(file)] if of_run else [])
        raise ConfigError([*sorted(problems, key=lambda problem: problem.line or 0), *of_run], " and ".join(names))
    return Sweep(settings, run, config)


def _run_file(document: Document, folder: Path) -> tuple[Path | None, list[Problem]]:
    """The run's file that a sweep in `folder` names; None where there is none, and what is said of that."""
    given = document.data.get("config")
    if not isinstance(given, str) or not given:
        return None, []  # said already
    file = folder / Path(given).expanduser()
    if file.is_file():
        return file, []
    near = nearest(file.name, [other.name for other in file.parent.glob("*.y*ml")])
    message = f"expected a run's YAML file, received {given}, which is not in {file.parent}; it is taken from the folder of this file"
    return None, [document.problem(("config",), given, message + did_you_mean(near), near)]


def _run_in(file: Path) -> tuple[RunConfig | None, dict[str, Any] | None, list[Problem]]:
    """A run's configuration (None if it has problems), its settings as they were written (None if even that cannot be had), and its problems."""
    try:
        config = load_config(file)
    except ConfigError as error:
        try:
            data = read_document(file)[0].data
        except ConfigError:
            return None, None, error.problems
        return None, None if era_of(data) else data, error.problems
    return config, _run_of(config), []


def saved_sweep(settings: Mapping[str, Any], run: Mapping[str, Any]) -> Sweep:
    """The sweep that was saved with its folder.

    Raises:
        ConfigError: it is not one any more.
    """
    document = Document("the saved sweep", unshared(settings))
    found, problems, _ = _validate(document)
    if found is None:
        raise ConfigError(problems, document.name)
    return Sweep(found, unshared(run), load_config(run))


def check_trials(sweep: Sweep, trials: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise if the run's settings refuse what was drawn for a trial: each value alone may be well, and not all together.

    Args:
        trials: name -> parameters.

    Raises:
        ConfigError: the first such trial's problems.
    """
    for parameters in trials.values():
        try:
            sweep.config_of(parameters)
        except ConfigError as error:
            together = ", ".join(f"{path}={value}" for path, value in parameters.items())
            document = sweep.settings._document
            texts = [f"{problem.path}: {problem.text}, with {together}" for problem in error.problems]
            raise ConfigError([document.problem(("parameters",), dict(parameters), text) for text in texts], document.name) from error


def _run_of(config: RunConfig) -> dict[str, Any]:
    """The run's settings as they were written, so that they can be read from anywhere."""
    data = unshared(config.document.data)
    saved = dict(data.get("checkpoint_settings") or {})
    source = saved.get("initialize_from")
    if source and not is_uri(source):
        place = Path(source) if Path(source).is_dir() else run_address(config.checkpoint_settings.results_dir, source)
        saved["initialize_from"] = str(place if is_uri(place) else Path(place).absolute())
    saved = {key: value for key, value in saved.items() if key not in ("run_id", "results_dir", "resume", "force")}
    spread = {key: value for key, value in (data.get("distributed") or {}).items() if key not in ("address", "max_env_managers")}
    return {**data, "checkpoint_settings": saved, "distributed": spread, "import_from": str(config.source_dir.resolve())}


# -- its own keys ------------------------------------------------------------------------------------------------------


def _validate(document: Document) -> tuple[SweepSettings | None, list[Problem], SweepSettings | None]:
    """The settings, None where something is refused; what that is; and the settings without it, so that the rest is checked in the same go."""
    try:
        settings = SweepSettings.model_validate(unshared(document.data))
    except ValidationError as error:
        refused = error.errors(include_url=False)
    else:
        settings._document = document
        return settings, [], settings
    data = unshared(document.data)
    for found in refused:
        keys = _keys_of(found)
        if keys[:1] == ("parameters",) and len(keys) > 1 and isinstance(data.get("parameters"), dict):
            data["parameters"].pop(keys[1], None)
        elif keys:
            data.pop(keys[0], None)
    try:
        sound = SweepSettings.model_validate({"config": "-", **data})
    except ValidationError:
        sound = None
    return None, [_problem(found, document) for found in refused], sound


def _keys_of(found: Mapping[str, Any]) -> KeyPath:
    """pydantic's location as keys of the file."""
    keys = tuple(str(key) for key in found["loc"] if key != "[key]")
    return (keys[0], *keys[2:]) if keys[:1] == ("scheduler",) and len(keys) > 1 and keys[1] in SCHEDULERS else keys


def _problem(found: Mapping[str, Any], document: Document) -> Problem:
    keys = _keys_of(found)
    if found["type"] == "scheduler_type":
        given = found["input"].get("type") if isinstance(found["input"], dict) else found["input"]
        near = nearest(str(given), list(SCHEDULERS))
        return document.problem((*keys, "type"), given, f"expected type: {', '.join(SCHEDULERS)} below scheduler, received {given!r}{did_you_mean(near)}", near)
    if found["type"] == "extra_forbidden":
        here = _keys_at(keys[:-1], document.data)
        near = nearest(keys[-1], here)
        return document.problem(keys, found["input"], "unknown key; " + (f"did you mean {near}?" if near else f"valid here: {', '.join(here)}"), near)
    if found["type"] == "model_type" and keys[:1] == ("parameters",):
        message = f"expected how it is drawn, such as {{grid: [1, 2]}} or {{loguniform: [1e-4, 1e-2]}}, received {found['input']!r}"
        return document.problem(keys, found["input"], message)
    return translate(found, (clashing(keys, found) or [keys])[0], document)


def _keys_at(path: KeyPath, data: Any) -> list[str]:
    """The keys that are valid directly below `path` of a sweep file."""
    current: Any = SweepSettings
    for key in path:
        if key == "scheduler":
            given = data["scheduler"].get("type", "fifo")
            current = SCHEDULERS[given]
        elif isinstance(current, type) and issubclass(current, BaseModel):
            current = current.model_fields[key].annotation
        else:
            current = get_args(current)[1] if get_origin(current) is dict else DrawSettings
    return list(current.model_fields)


# -- what it says of the run -------------------------------------------------------------------------------------------


def _refused_parameters(settings: SweepSettings, run: Mapping[str, Any], document: Document, said: Collection[tuple[str, str]]) -> list[Problem]:
    """Parameters that the run does not take.

    Args:
        said: path and message of the problems that the run has without them.
    """
    problems = []
    for path, drawn in settings.parameters.items():
        if (ours := next((key for key in _OURS if path == key or path.startswith(f"{key}.")), None)) is not None:
            problems.append(document.problem(("parameters", path), None, f"expected a parameter of the run, received {path}: {_OURS[ours]}"))
            continue
        if settings.scheduler.type == "pbt" and len(drawn.values) > 1 and set(path.split(".")) & set(_FIXED_IN_PBT):
            message = f"expected a parameter that can change while a run goes on, received {path}; scheduler pbt copies checkpoints between trials"
            problems.append(document.problem(("parameters", path), None, message))
            continue
        problems += _refused_values(run, path, drawn, document, said)
    return problems


def _refused_values(run: Mapping[str, Any], path: str, drawn: DrawSettings, document: Document, said: Collection[tuple[str, str]]) -> list[Problem]:
    """Each value that it may have (of a range, its corners), tried in the run as it is written."""
    for value in drawn.values:
        try:
            load_config(run, {path: value})
        except ConfigError as error:
            problem = next((problem for problem in error.problems if (problem.path, problem.message) not in said), None)
            if problem is None:
                continue
            # A rule between two keys may be told at the other one.
            text = problem.text if problem.path in (path, "") else f"{problem.path}: {problem.text}, with {value!r} here"
            return [document.problem(("parameters", path), value, text, problem.suggestion)]
    return []


def _refused_schedule(settings: SweepSettings, config: RunConfig, document: Document) -> list[Problem]:
    problems = []
    if config.is_offline:
        problems.append(document.problem(("config",), settings.config, "expected a run in an environment, received one of bc, which learns from files alone"))
    if config.distributed.follows_cluster:
        problems.append(document.problem(("config",), settings.config, (
            "expected a number in distributed.num_env_managers, received auto, with which each trial would take the whole cluster")))
    if is_uri(config.checkpoint_settings.results_dir):
        problems.append(document.problem(("config",), config.checkpoint_settings.results_dir, (
            f"expected a results folder on this machine for a sweep, received {config.checkpoint_settings.results_dir}; --results-dir names one")))
    named, behavior = list(config.behaviors), settings.behavior
    if behavior is None and len(named) > 1:
        problems.append(document.problem(("behavior",), None, f"expected the behavior whose metric counts, since the run has several: {', '.join(named)}"))
    if behavior is not None and named and behavior not in named and config.default_settings is None:
        near = nearest(behavior, named)
        problems.append(document.problem(("behavior",), behavior, f"expected a behavior of the run ({', '.join(named)}), received {behavior}{did_you_mean(near)}", near))
    return problems
