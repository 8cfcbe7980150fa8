"""The trials of a sweep on a Ray cluster, by Ray Tune: its draws, its schedulers, its placing.

Of Ray Tune's own files nothing is ever read again: they are pickled. What is needed to go on stands in the sweep's record and in the trials' run folders.
"""

from __future__ import annotations

import logging
import math
import os
import random
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search.variant_generator import generate_variants

from raytrain.curves import curve_of
from raytrain.errors import RunFault
from raytrain.run_folder import user_of
from raytrain.sweep_folder import TUNE, SweepFolder, append_log
from raytrain.sweep_record import ENDED, Trial
from raytrain.sweep_settings import DrawSettings, PbtSettings, SweepSettings
from raytrain.sweep_trial import TrialRun

TIME, METRIC = "agent_steps", "metric"
_HERE = 0.001  # of a node's own resource: enough to be on it
_SETTLE_S = 60.0
_SAVE_EVERY_S = 5.0
_ENVIRONMENT = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths of a run are of where the sweep was started
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # a run writes its own curves
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # ours saves
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that failed has none
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000",  # which nobody reads
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def draw_parameters(settings: SweepSettings, seed: int) -> list[dict[str, Any]]:
    """Dotted path -> value for each trial: all combinations of grids, the rest drawn, ``num_samples`` times."""
    generator = np.random.default_rng(seed)
    spec = {path: _drawn_by_tune(drawn) for path, drawn in settings.parameters.items()}
    return [
        {path: _plain(value) for path, value in found.items()} for _ in range(settings.num_samples)
        for _, found in generate_variants(dict(spec), random_state=generator)
    ]


def _drawn_by_tune(drawn: DrawSettings) -> Any:
    value = getattr(drawn, drawn.way)
    return tune.grid_search(list(value)) if drawn.way == "grid" else tune.choice(list(value)) if drawn.way == "choice" else getattr(tune, drawn.way)(*value)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


# -- one trial, as Ray Tune sees it ------------------------------------------------------------------------------------


class Trainable(tune.Trainable):
    """A run of raytrain in an actor of its own, on the machine of the sweep; its env managers and trainers are in the same placement group."""

    def setup(self, config: dict[str, Any]) -> None:
        sweep, trial = config["sweep"], config["trial"]
        self._run = TrialRun(
            Path(sweep["folder"]), self.trial_name, sweep["run"], {**trial["parameters"], **trial["settings"][self.trial_name], **sweep["settings"]}, sweep["metric"],
            sweep["behavior"], sweep["save_every"])

    def step(self) -> dict[str, Any]:
        return self._run.next_report()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        self._run.give(Path(checkpoint_dir))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self._run.take(Path(checkpoint_dir))

    def cleanup(self) -> None:
        self._run.stop()


# -- schedulers --------------------------------------------------------------------------------------------------------


def _scheduler(folder: SweepFolder, behavior: str, max_steps: int, summary_freq: int) -> TrialScheduler:
    """Ray Tune's own, told of the trials that had ended before."""
    settings = folder.sweep.settings
    of = settings.scheduler
    common = {"time_attr": TIME, "metric": METRIC, "mode": settings.mode}
    if of.type == "asha":
        most = of.max_t or max_steps
        first = of.grace_period or max(1, most // 10)
        made = AsyncHyperBandScheduler(**common, max_t=most, grace_period=min(first, most), reduction_factor=of.reduction_factor, brackets=of.brackets,
                                       stop_last_trials=False)  # a run ends by itself
    elif of.type == "median":
        made = MedianStoppingRule(**common, grace_period=of.grace_period or max_steps // 10, min_samples_required=of.min_samples_required,
                                 min_time_slice=math.inf)  # taking turns would cost a start for each summary
    elif of.type == "pbt":
        return _population(settings, of, max_steps, summary_freq)
    else:
        return FIFOScheduler()
    for trial in folder.trials:
        if trial.state in ENDED:
            _tell_again(made, folder, trial, behavior)
    return made


def perturbation_interval(settings: PbtSettings, max_steps: int, summary_freq: int) -> int:
    """Agent steps between two comparisons: whole summaries, so that there is a checkpoint of the very moment."""
    wanted = settings.perturbation_interval or max_steps // 10
    return max(1, -(-wanted // summary_freq)) * summary_freq


def _population(settings: SweepSettings, of: PbtSettings, max_steps: int, summary_freq: int) -> TrialScheduler:
    drawn = settings.parameters
    mutations = {path: list(one.values) if one.way in ("grid", "choice") else _drawn_by_tune(one) for path, one in drawn.items() if len(one.values) > 1}

    def within_ranges(config: dict[str, Any]) -> dict[str, Any]:
        given = config["trial"]["parameters"]
        given.update({path: _plain(drawn[path].nearest_allowed(_plain(given[path]))) for path in mutations})
        return config

    made = _Population(
        time_attr=TIME, metric=METRIC, mode=settings.mode, perturbation_interval=perturbation_interval(of, max_steps, summary_freq),
        burn_in_period=of.burn_in_period, hyperparam_mutations={"trial": {"parameters": mutations}}, quantile_fraction=of.quantile_fraction,
        resample_probability=of.resample_probability, perturbation_factors=tuple(of.perturbation_factors), custom_explore_fn=within_ranges, log_config=False,
        require_attrs=False, synch=of.synch)
    made.max_steps = max_steps
    return made


class _Population(PopulationBasedTraining):
    """Where trials wait for each other, they wait for none that has ended: Ray Tune compares only when another result comes.

    Attributes:
        max_steps: agent steps of a trial.
    """

    max_steps: int

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if result[TIME] >= self.max_steps:  # what it would take over could not be trained any more, nor what another takes from it
            return self.CONTINUE
        return super().on_trial_result(tune_controller, trial, result)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        chosen = super().choose_trial_to_run(tune_controller)
        left = [trial for trial in tune_controller.get_trials() if not trial.is_finished()]
        if chosen is not None or not left or any(trial.status != "PAUSED" for trial in left):
            return chosen
        if (last := self._trial_state[left[0]].last_result) is not None:
            self.on_trial_result(tune_controller, left[0], last)  # as if it had come only now: they are compared
        while (chosen := super().choose_trial_to_run(tune_controller)) is None:
            self._next_perturbation_sync += self._perturbation_interval
        return chosen

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_error(tune_controller, trial)
        tune_controller.get_live_trials().discard(trial)  # as Ray Tune does with those that end well; else no comparison comes any more


def _tell_again(scheduler: TrialScheduler, folder: SweepFolder, trial: Trial, behavior: str) -> None:
    """What a trial of an earlier start had reached, by its curve: so that later ones are compared with it, too."""
    curve = curve_of(folder.path / trial.name, folder.sweep.settings.metric, behavior)
    if curve is None:
        return
    then = _Ended(f"before-{trial.name}")
    scheduler.on_trial_add(None, then)
    results = [{TIME: step, METRIC: value} for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True)]
    for result in results:
        scheduler.on_trial_result(None, then, result)
    scheduler.on_trial_complete(None, then, results[-1])


@dataclass(frozen=True, eq=False)
class _Ended:
    """A trial of an earlier start, as far as a scheduler looks at it."""

    trial_id: str


# -- all of them -------------------------------------------------------------------------------------------------------


class _Watch(tune.Callback, tune.Stopper):
    """Writes down how far trials are, and ends the sweep when it is asked to, after all that are going have saved.

    Args:
        ending: asked often; why the sweep should end, empty to go on.
        changed: called often.
    """

    def __init__(self, folder: SweepFolder, ending: Callable[[], str], changed: Callable[[], None]) -> None:
        self._folder, self._ending, self._changed = folder, ending, changed
        self._is_ending = False
        self._trials: list[Any] = []
        self._saved_s = time.monotonic()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return tune.Callback, ()  # Ray Tune writes everything down to go on from; this here belongs to this process alone

    def __deepcopy__(self, memo: dict[int, Any]) -> _Watch:
        return self

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        if not self._is_ending and self._ending():
            self._is_ending = True
            self._folder.ask_to_stop()
        return self._is_ending and not any(trial.status == "RUNNING" for trial in self._trials)  # one that is paused saves as its actor ends

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._trials = trials

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._changed()
        if time.monotonic() - self._saved_s >= _SAVE_EVERY_S:
            self._save()
        if trials and all(trial.is_finished() for trial in trials):
            self._let_save()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        name = str(trial)
        one = self._folder.trial(name)
        one.state, one.reason = "running", ""
        now = {path: _plain(value) for path, value in trial.config["trial"]["parameters"].items()}
        if trial.config["trial"]["name"] != name or now != one.parameters:
            donor = trial.latest_checkpoint_result
            there = (donor.metrics or {}) if donor is not None else {}
            one.agent_steps, one.metric = there.get(TIME, one.agent_steps), there.get(METRIC, one.metric)  # what was measured is of weights left behind
            one.changes.append({"from": trial.config["trial"]["name"], "agent_steps": one.agent_steps, "parameters": now})
            one.parameters = now
        trial.config["trial"]["name"] = name  # whom others will have it from
        self._save()

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        one = self._folder.trial(str(trial))
        one.agent_steps, one.metric = result.get(TIME, one.agent_steps), result.get(METRIC, one.metric)
        if result.get("done"):
            one.state = result.get("ended") or "stopped early"
            one.reason = result.get("reason", "")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._gone()

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        one = self._folder.trial(str(trial))
        text = _error_of(trial)
        append_log(self._folder.path, one.name, f"{text or 'its process died'}\n", apart=True)
        lines = text.splitlines()
        one.state, one.reason = "failed", lines[-1].strip() if lines else "its process died"
        self._gone()

    def _gone(self) -> None:
        self._save()
        self._folder.write_results()

    def _save(self) -> None:
        self._saved_s = time.monotonic()
        self._folder.save()

    def _let_save(self) -> None:
        """Ray Tune ends what is left after 5 s: runs that were stopped early may need longer for their last checkpoint."""
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline and any(user_of(self._folder.path / trial.name) for trial in self._folder.trials):
            self._changed()
            time.sleep(0.2)


def _error_of(trial: Any) -> str:
    """What an actor died of; empty where that is unknown. Not `Trial.get_error`, which looks where Ray Tune copies such files to at some time."""
    try:
        return Path(trial.error_file or "").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def run_trials(
    folder: SweepFolder, behavior: str, needs: Mapping[str, Sequence[Mapping[str, float]]], max_steps: int, summary_freq: int, ending: Callable[[], str],
    changed: Callable[[], None],
) -> None:
    """Run the trials that have not ended, until all have or the sweep is to end. The folder's trials tell how each ended.

    Args:
        needs: trial -> what each of its actors claims.
        behavior, max_steps, summary_freq: whose metric counts, and what its settings say.
        ending: asked often; why the sweep should end, empty to go on.
        changed: called often.

    Raises:
        RunFault: Ray fails.
        OSError: the record cannot be written.
    """
    sweep, trials = folder.sweep, folder.to_run()
    settings, save_every = sweep.settings, None
    os.environ.update(_ENVIRONMENT)
    for name in ("ray.tune", "ray.train", "ray.air"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    random.seed(folder.seed)  # Ray Tune's schedulers draw from these two
    np.random.seed(folder.seed % 2**32)
    more: dict[str, Any] = {}
    if settings.scheduler.type == "pbt":
        save_every = perturbation_interval(settings.scheduler, max_steps, summary_freq)
        more = {f"{place}.checkpoint_interval": save_every for place in _behaviors(sweep.run)}
    given = {"folder": str(folder.path), "run": sweep.run, "settings": more, "metric": settings.metric, "behavior": behavior, "save_every": save_every}
    each = {trial.name: folder.settings_of(trial) for trial in trials}  # by name, since population-based training copies what stands beside parameters
    points = [{"name": trial.name, "parameters": trial.parameters, "settings": each, "needs": [dict(one) for one in needs[trial.name]]} for trial in trials]
    watch, place = _Watch(folder, ending, changed), folder.path / TUNE
    shutil.rmtree(place, ignore_errors=True)
    here = _this_node()
    tuner = tune.Tuner(
        tune.with_resources(Trainable, lambda config: _place(here, config["trial"]["needs"])),
        param_space={"sweep": given, "trial": tune.grid_search(points)},
        tune_config=tune.TuneConfig(
            scheduler=_scheduler(folder, behavior, max_steps, summary_freq), max_concurrent_trials=settings.max_concurrent_trials,
            trial_name_creator=_name_of, trial_dirname_creator=_name_of),
        run_config=tune.RunConfig(
            name="trials", storage_path=str(place), stop=watch, callbacks=[watch], verbose=0, checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False)),
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice for those who write trainables
            tuner.fit()
    except (tune.TuneError, ray.exceptions.RayError) as error:
        raise RunFault.of("the sweep", error) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
        for trial in trials:
            if trial.state == "running":
                trial.state = "interrupted"
        with suppress(OSError):  # then the results cannot be written either, which is told
            folder.save()


def _name_of(trial: Any) -> str:
    return trial.config["trial"]["name"]


def _behaviors(run: Mapping[str, Any]) -> list[str]:
    """Paths of the sections that behaviors have their settings from."""
    named = [f"behaviors.{name}" for name in run.get("behaviors") or ()]
    return named or ["default_settings"]


def _this_node() -> str:
    """The resource that only the node of this process has: run folders are written here."""
    own = ray.get_runtime_context().get_node_id()
    node = next(node for node in ray.nodes() if node["NodeID"] == own)
    return next(name for name in node["Resources"] if name.startswith("node:") and name != "node:__internal_head__")


def _place(here: str, needs: Sequence[Mapping[str, float]]) -> tune.PlacementGroupFactory:
    """All of a trial or nothing: two that are half placed would wait for each other for ever."""
    return tune.PlacementGroupFactory([{here: _HERE}, *(dict(one) for one in needs if one)])
