"""A trial while it is going: a run beside whoever asks for its metrics, one summary after the other."""

from __future__ import annotations

import json
import queue
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raytrain.checkpoint import CheckpointStore
from raytrain.curves import curve_of
from raytrain.errors import ConfigError, RunFolderError
from raytrain.live import LiveRun, start
from raytrain.run_folder import has_checkpoint, user_of
from raytrain.stats import CUMULATIVE_REWARD, Summary
from raytrain.suggest import nearest
from raytrain.sweep_folder import STOP, append_log

_TURN_S = 0.5
_LOCKED_S = 60.0  # how long the life before, which is saving, is waited for
_SAVE_S = 10.0  # how long a checkpoint of the newest summary is waited for
_PATIENCE = 5  # summaries with an episode, and without the metric
_TRIES = 5  # of copying a checkpoint while older ones are deleted
_DONOR = "trial.json"


class TrialRun:
    """The run of one trial. For one thread.

    Args:
        sweep: the sweep's folder.
        name: of the trial.
        run: settings of the run, see `raytrain.sweep_file.Sweep.run`.
        settings: dotted path -> value over them: the parameters, and where the run is saved.
        metric, behavior: what is reported, and whose.
        save_every: agent steps between two checkpoints that others may go on from; None where nobody will.
        local: without Ray, in this process.
    """

    def __init__(
        self, sweep: Path, name: str, run: Mapping[str, Any], settings: Mapping[str, Any], metric: str, behavior: str,
        save_every: int | None = None, local: bool = False,
    ) -> None:
        self.path, self._sweep, self._name, self._data, self._settings = sweep / name, sweep, name, run, dict(settings)
        self._metric, self._behavior, self._save_every = metric, behavior, save_every
        self._local = local
        self._summaries: queue.SimpleQueue[Summary] = queue.SimpleQueue()
        self._run: LiveRun | None = None
        self._last: dict[str, Any] = {}
        self._saved_step = 0
        self._without: list[str] = []  # summaries that had episodes, and not the metric
        self._logged = 0  # characters of what the run has printed

    def next_report(self) -> dict[str, Any]:
        """What the next summary says: ``agent_steps`` and ``metric``. At the end the last of them again, with ``done``, and in ``ended`` the
        trial's state (see `raytrain.sweep_folder.Trial`) and ``reason``."""
        if self._is_asked_to_stop and self._run is None:
            return {"done": True, "ended": "interrupted" if has_checkpoint(self.path) else "waiting", "reason": ""}
        try:
            if self._run is None:
                self._begin()
            return self._next()
        except Exception as error:  # noqa: BLE001 - one trial that fails is a row of the table; what it was stands in its log
            text = str(error).strip() or type(error).__name__
            self._log(f"{text}\n")
            reason = error.problems[0].text if isinstance(error, ConfigError) else text.splitlines()[-1 if text.startswith("Traceback") else 0]
            return self._end("failed", reason)

    def _begin(self) -> None:
        self._wait_for_lock()
        self._run = start(dict(self._data), local=self._local, beside=True, overrides=self._settings, on_summary=self._summaries.put, on_checkpoint=self._note_checkpoint)

    def _next(self) -> dict[str, Any]:
        while True:
            if self._is_asked_to_stop:
                self._run.stop(_LOCKED_S)
                return self._end("interrupted")
            going = self._run.is_running  # before the queue is looked at: what came before the end is not missed
            try:
                summary = self._summaries.get(timeout=_TURN_S)
            except queue.Empty:
                if going:
                    continue
                self._run.wait()  # raises what it died of
                return self._end("finished")
            self._log()
            if (found := self._report_of(summary)) is not None:
                return found

    def _report_of(self, summary: Summary) -> dict[str, Any] | None:
        if summary.behavior != self._behavior:
            return None
        value = summary.values.get(self._metric)
        if value is None and self._metric.startswith("Evaluation/"):  # played beside training, so it is in no summary
            value = self._last_on_disk().get("metric")
        if value is None:
            value = self._last.get("metric")
        if value is None:
            self._check_metric(summary)
            return None
        self._last = {"agent_steps": summary.step, "metric": float(value)}
        return dict(self._last)

    def _last_on_disk(self) -> dict[str, Any]:
        """The last value of the metric that the run has written; empty without one."""
        curve = curve_of(self.path, self._metric, self._behavior)
        return {} if curve is None else {"agent_steps": int(curve.steps[-1]), "metric": float(curve.values[-1])}

    def _check_metric(self, summary: Summary) -> None:
        """A metric that does not exist would be waited for until the end."""
        if CUMULATIVE_REWARD not in summary.values or self._metric.startswith("Evaluation/"):
            return
        self._without.append(self._metric)
        if len(self._without) >= _PATIENCE:
            near = nearest(self._metric, list(summary.values))
            self._run.stop(_LOCKED_S)
            raise ValueError(f"expected a metric of {summary.behavior}, received {self._metric}" + (f"; did you mean {near}?" if near else
                             f"; there are {', '.join(sorted(summary.values))}"))

    def _end(self, state: str, reason: str = "") -> dict[str, Any]:
        self._log()
        if not self._last:  # it had got there before the sweep was ended
            self._last = self._last_on_disk()
        return {**self._last, "done": True, "ended": state, "reason": reason}

    @property
    def _is_asked_to_stop(self) -> bool:
        return (self._sweep / STOP).exists()

    def stop(self) -> None:
        """End it as Ctrl-C does, with a last checkpoint."""
        if self._run is not None and self._run.is_running:
            self._run.stop(_LOCKED_S)
            self._log()

    # -- checkpoints of one trial that another goes on from ----------------------------------------------------------

    def _note_checkpoint(self, _path: Path, step: int, _reward: float | None) -> None:
        self._saved_step = step

    def give(self, folder: Path) -> None:
        """Put a checkpoint into an empty folder: of the summary that was reported last, by which this trial was chosen, also if the run has gone on
        since; without one the nearest."""
        step, deadline = self._last.get("agent_steps", 0), time.monotonic() + _SAVE_S
        wanted = step // self._save_every * self._save_every if self._save_every else 0
        while self._saved_step < wanted and self._run is not None and self._run.is_running and time.monotonic() < deadline:
            time.sleep(0.05)
        for left in reversed(range(_TRIES)):
            try:
                shutil.copytree(self._checkpoint_at(step), folder / "checkpoint")
                break
            except (FileNotFoundError, shutil.Error):  # deleted meanwhile, as there are newer ones
                shutil.rmtree(folder / "checkpoint", ignore_errors=True)
                if not left:
                    raise
        (folder / _DONOR).write_text(json.dumps({"trial": self._name, "last": self._last}), encoding="utf-8")

    def _checkpoint_at(self, step: int) -> Path:
        """The newest that was due by `step`; where all are of later, the oldest."""
        paths = CheckpointStore(self.path, 1).paths()
        labels = ((path, json.loads((path / "run.json").read_text(encoding="utf-8"))["run"]["label"]) for path in reversed(paths))
        return next((path for path, label in labels if label <= step), paths[0])

    def take(self, folder: Path) -> None:
        """Go on from what `give` of another trial has put there; from its own, which its folder has, it goes on anyway.

        What was learnt before is left behind, with the best checkpoint of it: counters, curves, the last report and the best are the donor's from
        here on.

        Raises:
            RunFolderError: the life before is still saving.
        """
        self._settings["checkpoint_settings.resume"] = True
        given = json.loads((folder / _DONOR).read_text(encoding="utf-8"))
        if given["trial"] == self._name:
            return
        self._wait_for_lock()
        self._last = given["last"]
        snapshot = CheckpointStore.load(folder / "checkpoint")
        rewards = [one.reward for one in snapshot.behaviors.values()]
        reward = None if None in rewards else sum(rewards) / len(rewards)
        snapshot.run["best_reward"] = reward if snapshot.run.get("best_by") == "training return" else None
        store = CheckpointStore(self.path, 1)  # those of before would be gone back to if this one were damaged
        path = store.save(snapshot)
        store.mark_best(path)

    def _wait_for_lock(self) -> None:
        """Ray Tune may begin a trial's next life while the one before is still saving."""
        deadline = time.monotonic() + _LOCKED_S
        while True:
            holder = user_of(self.path)
            if holder is None:
                return
            if time.monotonic() >= deadline:
                raise RunFolderError(f"Trial {self._name} cannot go on: its run is still in use by {holder.who}. Resume the sweep when that has ended.")
            time.sleep(0.2)

    def _log(self, more: str = "") -> None:
        """What the run has printed since, then `more`."""
        printed = "" if self._run is None else self._run.log
        if text := printed[self._logged:] + more:
            append_log(self._sweep, self._name, text, apart=not self._logged)
        self._logged = len(printed)
