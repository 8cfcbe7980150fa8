"""The folder of a sweep: what was drawn for each trial, how far each is, and what came of it. JSON, CSV and YAML only, so that anything can go on with it.

    results/<sweep_id>/
      sweep.json          settings, the run's file as it was, the trials
      trial-0001/ …       runs as any other
      results.csv  best.yaml  logs/trial-0001.txt
      .tune/              what Ray Tune needs while it is going; gone at the end
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from raytrain.config_text import to_yaml
from raytrain.errors import RunFolderError
from raytrain.files import replace_file, to_json
from raytrain.run_folder import has_checkpoint
from raytrain.run_lock import RunLock
from raytrain.sweep_file import Sweep, saved_sweep
from raytrain.sweep_record import ENDED, LOCK, RECORD, Trial, best_of, list_sweeps

RESULTS, BEST, LOGS, TUNE, STOP = "results.csv", "best.yaml", "logs", ".tune", ".stop"
"""Names in the folder; STOP is there while the trials are asked to save and end."""
_FORMAT = 1


class SweepFolder:
    """What is on the disk of a sweep. For one process at a time, which holds its lock.

    Attributes:
        path: absolute.
        sweep: its settings and the run's.
        seed: of the draws.
        trials: in the order in which they were drawn.
    """

    def __init__(self, path: Path, sweep: Sweep, seed: int, trials: list[Trial]) -> None:
        self.path, self.sweep, self.seed, self.trials = path, sweep, seed, trials
        self._lock = RunLock(path / LOCK)

    @classmethod
    def check(cls, results_dir: Path, sweep_id: str) -> Path:
        """The folder that a new sweep would have.

        Raises:
            RunFolderError: there is something already.
        """
        path = results_dir.expanduser().absolute() / sweep_id
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunFolderError(f"Sweep id '{sweep_id}' exists in {path.parent}; go on with it by raytrain tune --resume {path}, or use another --sweep-id.")
        return path

    @classmethod
    def load(cls, path: Path) -> SweepFolder:
        """The sweep in a folder.

        Raises:
            RunFolderError: there is none, or its record cannot be read.
        """
        try:
            record = json.loads((path / RECORD).read_text(encoding="utf-8"))
            if record["format"] != _FORMAT:
                raise RunFolderError(f"Expected a sweep of format {_FORMAT} in {path / RECORD}, received {record['format']!r}, of another raytrain.")
            trials = [Trial(**trial) for trial in record["trials"]]
            return cls(path.absolute(), saved_sweep(record["settings"], record["run"]), int(record["seed"]), trials)
        except FileNotFoundError:
            there = ", ".join(list_sweeps(path.absolute().parent)) or "none"
            raise RunFolderError(f"Nothing to resume: there is no {RECORD} in {path.absolute()}. Sweeps in {path.absolute().parent}: {there}.") from None
        except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise RunFolderError(f"Cannot read {path / RECORD} ({type(error).__name__}: {error}).") from error

    def __enter__(self) -> Self:
        """Make the folder if it is new, and keep others out of it.

        Raises:
            RunFolderError: a live sweep holds it, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            self._lock.start_heartbeat()
            (self.path / LOGS).mkdir(exist_ok=True)
            (self.path / STOP).unlink(missing_ok=True)
        except OSError as error:
            raise RunFolderError(f"Cannot use {self.path} as folder of the sweep: {error}. Choose another --results-dir or --sweep-id.") from error
        return self

    def __exit__(self, *_: object) -> None:
        (self.path / STOP).unlink(missing_ok=True)
        self._lock.release()

    def trial(self, name: str) -> Trial:
        """The trial of that name."""
        return next(trial for trial in self.trials if trial.name == name)

    def to_run(self) -> list[Trial]:
        """Trials that have not ended, also those that failed; what was said to be running is not any more."""
        return [trial for trial in self.trials if trial.state not in ENDED]

    def settings_of(self, trial: Trial) -> dict[str, Any]:
        """What a trial's run has besides the parameters: dotted path -> value."""
        resume = has_checkpoint(self.path / trial.name)
        given = {"checkpoint_settings.run_id": trial.name, "checkpoint_settings.results_dir": str(self.path), "checkpoint_settings.resume": resume}
        return given | ({} if trial.seed is None else {"env_settings.seed": trial.seed})

    def ask_to_stop(self) -> None:
        """Let every trial save and end."""
        (self.path / STOP).touch()

    def save(self) -> None:
        """Write down how far the trials are."""
        sweep = self.sweep
        record = {"format": _FORMAT, "settings": sweep.settings.model_dump(), "run": sweep.run, "seed": self.seed, "trials": [asdict(trial) for trial in self.trials]}
        replace_file(self.path / RECORD, to_json(record, "sweep"))

    def write_results(self) -> None:
        """``results.csv``, and ``best.yaml``: a run's file with the best parameters."""
        replace_file(self.path / RESULTS, results_csv(self.trials).encode())
        best = best_of(self.trials, self.sweep.settings.mode)
        if best is not None:
            config = self.sweep.config_of(best.parameters)
            header = {"parameters of": best.name, "sweep": self.path, "metric": f"{self.sweep.settings.metric} {best.metric:g} at {best.agent_steps:,} agent steps"}
            replace_file(self.path / BEST, to_yaml(config.placed(), header).encode())


def append_log(sweep: Path, trial: str, text: str, apart: bool = False) -> None:
    """Write `text` at the end of a trial's log, `apart` from what is there. A disk that refuses it is no reason to end anything: it is for people."""
    try:
        with (sweep / LOGS / f"{trial}.txt").open("a", encoding="utf-8") as file:
            file.write(("\n" if apart and file.tell() else "") + text)
    except OSError:
        return


def results_csv(trials: Sequence[Trial]) -> str:
    """A row for each trial: name, state, agent steps, metric, then its parameters by their dotted paths."""
    paths = list(dict.fromkeys(path for trial in trials for path in trial.parameters))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "state", "agent_steps", "metric", *paths])
    for trial in trials:
        metric = "" if trial.metric is None else repr(trial.metric)
        writer.writerow([trial.name, trial.state, trial.agent_steps, metric, *(_plain(trial.parameters.get(path, "")) for path in paths)])
    return text.getvalue()


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else json.dumps(value)


def report(folder: SweepFolder) -> Mapping[str, Any]:
    """What ``--json`` prints."""
    best = best_of(folder.trials, folder.sweep.settings.mode)
    return {
        "sweep": str(folder.path), "metric": folder.sweep.settings.metric, "mode": folder.sweep.settings.mode, "seed": folder.seed,
        "best": None if best is None else {"trial": best.name, "run": str(folder.path / best.name), "metric": best.metric, "parameters": best.parameters},
        "trials": [asdict(trial) for trial in folder.trials],
    }
