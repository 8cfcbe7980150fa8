"""Sweeps by Ray Tune: each scheduler on tiny runs, and going on after an end."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import yaml

from raytrain.cli import main
from raytrain.run_folder import has_checkpoint
from raytrain.run_list import states_of
from raytrain.sweep_file import load_sweep
from raytrain.sweep_folder import SweepFolder
from raytrain.sweep_record import Trial

ROOT = Path(__file__).resolve().parents[2]
RATE = "behaviors.CartPole.hyperparameters.learning_rate"


def write_sweep(tmp_path, max_steps=3000, summary_freq=500, **sweep) -> Path:
    """A sweep over the learning rate of a tiny CartPole; two trials fit two CPUs at once."""
    behavior = {
        "hyperparameters": {"buffer_size": 256, "batch_size": 64, "num_epoch": 1}, "network_settings": {"hidden_units": 8, "num_layers": 1}, "max_steps": max_steps,
        "summary_freq": summary_freq, "checkpoint_interval": 1000, "time_horizon": 32,
    }
    run = {
        "env": "CartPole-v1", "behaviors": {"CartPole": behavior}, "env_settings": {"num_envs": 4},
        "distributed": {"env_manager_cpus": 0.25, "trainer_cpus": 0.25},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump({"config": "run.yaml", "seed": 1, **sweep}))
    return file


def tune(tmp_path, *words) -> int:
    return main(["tune", *map(str, words), "--results-dir", str(tmp_path / "results")])


def steps_of(run: Path) -> list[int]:
    return [int(row["step"]) for row in csv.DictReader((run / "CartPole" / "metrics.csv").open())]


def test_a_grid_runs_each_value_once_and_leaves_runs_as_any_other(private_ray, tmp_path, capsys):
    file = write_sweep(tmp_path, parameters={RATE: {"grid": [1e-3, 1e-4]}})
    assert tune(tmp_path, file, "--sweep-id", "grid", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [trial["state"] for trial in said["trials"]] == ["finished", "finished"]
    assert [trial["parameters"] for trial in said["trials"]] == [{RATE: 1e-3}, {RATE: 1e-4}]
    folder = tmp_path / "results" / "grid"
    assert {state.run: state.state for state in states_of(folder)} == {"trial-0001": "finished", "trial-0002": "finished"}
    for name, rate in (("trial-0001", 1e-3), ("trial-0002", 1e-4)):
        saved = yaml.safe_load((folder / name / "configuration.yaml").read_text())
        assert saved["behaviors"]["CartPole"]["hyperparameters"]["learning_rate"] == rate
    rows = list(csv.DictReader((folder / "results.csv").open()))
    best = max(rows, key=lambda row: float(row["metric"]))
    assert said["best"]["trial"] == best["trial"]
    assert yaml.safe_load((folder / "best.yaml").read_text())["behaviors"]["CartPole"]["hyperparameters"]["learning_rate"] == float(best[RATE])
    assert not (folder / ".tune").exists()

    # All have ended: nothing is run again.
    before = {path: path.stat().st_mtime_ns for path in folder.glob("trial-*/**/*")}
    assert tune(tmp_path, "--resume", folder) == 0
    assert {path: path.stat().st_mtime_ns for path in folder.glob("trial-*/**/*")} == before


def test_asha_stops_a_bad_trial_and_it_saves(private_ray, tmp_path):
    """The learning rate of the second is far too small; one after the other, so that there is something to compare with."""
    file = write_sweep(
        tmp_path, max_steps=12_000, max_concurrent_trials=1, parameters={RATE: {"grid": [3e-3, 1e-9]}}, metric="Policy/Entropy", mode="min",
        scheduler={"type": "asha", "grace_period": 6000, "max_t": 12_000, "reduction_factor": 2})
    assert tune(tmp_path, file, "--sweep-id", "asha") == 0
    first, second = SweepFolder.load(tmp_path / "results" / "asha").trials
    assert (first.state, second.state) == ("finished", "stopped early")
    assert 6000 <= second.agent_steps < 12_000
    status = json.loads((tmp_path / "results" / "asha" / "trial-0002" / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("finished", "asked to stop")
    newest = max((tmp_path / "results" / "asha" / "trial-0002" / "checkpoints").iterdir())
    assert json.loads((newest / "run.json").read_text())["run"]["agent_steps"] == status["agent_steps"] >= 6000


SLOW = """
import time
import gymnasium as gym

class CartPole(gym.Wrapper):
    def step(self, action):
        time.sleep(0.002)
        return self.env.step(action)

def make():
    return CartPole(gym.make("CartPole-v1"))
"""


@pytest.mark.parametrize(("synch", "max_steps"), [(True, 6000), (False, 12_000)], ids=["waiting", "alone"])
def test_a_population_copies_checkpoints_and_changes_parameters(private_ray, tmp_path, synch, max_steps):
    """The one with the higher entropy, which learns nothing, goes on from the other's checkpoint. Steps are slow, so that no run has ended before it is
    compared."""
    rate, lambd = (f"behaviors.CartPole.hyperparameters.{name}" for name in ("learning_rate", "lambd"))
    file = write_sweep(
        tmp_path, max_steps=max_steps, summary_freq=1000, parameters={rate: {"grid": [3e-3, 1e-9]}, lambd: {"uniform": [0.9, 1.0]}}, metric="Policy/Entropy", mode="min",
        seed=2, scheduler={"type": "pbt", "perturbation_interval": 2000, "quantile_fraction": 0.5, "synch": synch})
    run = yaml.safe_load((tmp_path / "run.yaml").read_text())
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**run, "env": "slow_pole:make"}))
    (tmp_path / "slow_pole.py").write_text(SLOW)
    assert tune(tmp_path, file, "--sweep-id", "pbt") == 0
    folder = tmp_path / "results" / "pbt"
    first, second = SweepFolder.load(folder).trials
    assert (first.state, second.state) == ("finished", "finished")
    last = second.changes[-1]
    assert last["from"] == "trial-0001" and last["agent_steps"] >= 2000
    saved = yaml.safe_load((folder / second.name / "configuration.yaml").read_text())["behaviors"]["CartPole"]["hyperparameters"]
    assert {rate: saved["learning_rate"], lambd: saved["lambd"]} == second.parameters == last["parameters"]
    assert 0.9 <= saved["lambd"] <= 1.0
    log = (folder / "logs" / f"{second.name}.txt").read_text()
    assert "resuming at" in log and "behaviors.CartPole.hyperparameters.lambd:" in log  # the setting before and now
    steps = steps_of(folder / second.name)
    assert steps == sorted(set(steps))


def with_plans(tmp_path, *plans) -> tuple[subprocess.Popen, Path]:
    """A population whose trials wait for each other each 2,000 agent steps, of trials that train nothing; and its folder."""
    file = write_sweep(tmp_path, max_steps=100_000, parameters={RATE: {"choice": [1e-3, 1e-4]}}, num_samples=len(plans), scheduler={"type": "pbt", "perturbation_interval": 2000, "synch": True})
    (tmp_path / "plan.json").write_text(json.dumps({f"trial-{index + 1:04d}": plan for index, plan in enumerate(plans)}))
    words = [sys.executable, "-m", "tests.cluster.fake_trials", str(file), "--sweep-id", "s", "--results-dir", str(tmp_path / "results")]
    process = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return process, tmp_path / "results" / "s"


def ended(process: subprocess.Popen) -> str:
    """What it has printed; it must end by itself."""
    try:
        return process.communicate(timeout=300)[0]
    finally:
        process.kill()


def test_a_population_does_not_wait_for_trials_that_have_ended(tmp_path):
    """The third cannot take over the first one's checkpoint and fails; the second ends while the first one waits to be compared with it."""
    process, folder = with_plans(
        tmp_path, {"pace": 1000, "end": 7000, "metric": 3.0}, {"pace": 1000, "end": 5000, "metric": 2.0, "waits": "trial-0001.left-6000"},
        {"pace": 1000, "end": 7000, "metric": 1.0, "refuses": True})
    text = ended(process)
    assert process.returncode == 1, text
    first, second, third = SweepFolder.load(folder).trials
    assert [(trial.state, trial.agent_steps) for trial in (first, second)] == [("finished", 7000), ("finished", 5000)]
    assert [change["agent_steps"] for change in second.changes] == [4000]  # when the third had failed already
    assert third.state == "failed" and third.reason.endswith("RunFolderError: no place here")
    assert f"trial-0003 failed: {third.reason} (logs/trial-0003.txt)" in text
    assert "in load_checkpoint" in (folder / "logs" / "trial-0003.txt").read_text()
    # What it says of the third is of the weights that it was to have.
    assert (third.changes[-1]["from"], third.changes[-1]["agent_steps"], third.agent_steps, third.metric) == ("trial-0001", 2000, 2000, 3.0)


def test_ctrl_c_while_one_of_a_population_waits_for_the_other(tmp_path):
    process, folder = with_plans(tmp_path, {"pace": 1000, "end": 9000, "metric": 2.0}, {"pace": 1, "end": 10**9, "metric": 1.0})
    while process.poll() is None and not (
            (folder / "trial-0001.left-2000").exists() and [trial.state for trial in SweepFolder.load(folder).trials] == ["running", "running"]):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    text = ended(process)
    assert process.returncode == 0 and "interrupted (SIGINT)" in text, text
    assert [trial.state for trial in SweepFolder.load(folder).trials] == ["interrupted", "interrupted"]


@pytest.mark.parametrize(("parameters", "donor"), [({RATE: 1e-3}, "b"), ({RATE: 1e-4}, "b"), ({RATE: 1e-4}, "a")], ids=["same parameters", "other parameters", "own"])
def test_what_is_said_of_a_trial_with_anothers_weights_is_the_others(tmp_path, parameters, donor):
    from raytrain.cluster.tuning import METRIC, TIME, _Watch

    folder = SweepFolder(tmp_path / "s", load_sweep(write_sweep(tmp_path, parameters={RATE: {"grid": [1e-3, 1e-4]}})), 1, [
        Trial("a", {RATE: 1e-3}, state="running", metric=-5.0, agent_steps=2500)])
    started = MagicMock(config={"trial": {"name": donor, "parameters": parameters}}, latest_checkpoint_result=MagicMock(metrics={TIME: 2000, METRIC: 9.0}))
    started.__str__.return_value = "a"
    with folder:
        _Watch(folder, str, lambda: None).on_trial_start(1, [started], started)
        (one,) = SweepFolder.load(folder.path).trials
    assert (one.agent_steps, one.metric, one.parameters) == (2000, 9.0, parameters)
    assert one.changes == [{"from": donor, "agent_steps": 2000, "parameters": parameters}]


@pytest.mark.parametrize("error", ["tune.TuneError('lost its way')", "ray.exceptions.RayError('lost its way')", "OSError(28, 'lost its way')"])
def test_a_sweep_that_breaks_says_why(private_ray, tmp_path, monkeypatch, capsys, error):
    from raytrain.cluster import tuning

    def fit(_self):
        monkeypatch.setattr(SweepFolder, "save", MagicMock(side_effect=OSError(28, "No space left on device")))
        raise eval(error, vars(tuning))

    monkeypatch.setattr(tuning.tune.Tuner, "fit", fit)
    file = write_sweep(tmp_path, parameters={RATE: {"grid": [1e-3]}})
    assert tune(tmp_path, file, "--sweep-id", "s") == 1
    said = capsys.readouterr().err
    assert "lost its way" in said.splitlines()[-1] and "error: " in said.splitlines()[-1]


def test_a_trial_that_was_killed_while_it_began_begins_again(tmp_path):
    file = write_sweep(tmp_path, max_steps=1000, parameters={RATE: {"grid": [1e-3]}})
    run = tmp_path / "results" / "s" / "trial-0001"
    words = [sys.executable, "-m", "raytrain", "tune", str(file), "--sweep-id", "s", "--results-dir", str(tmp_path / "results")]
    process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (run / "configuration.yaml").is_file():
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not has_checkpoint(run)
    assert main(["tune", "--resume", str(run.parent)]) == 0
    (trial,) = SweepFolder.load(run.parent).trials
    assert (trial.state, trial.agent_steps) == ("finished", 1000)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_a_sweep_that_was_ended_goes_on_without_what_had_ended(tmp_path, number):
    file = write_sweep(tmp_path, max_steps=10_000_000, max_concurrent_trials=1, parameters={
        RATE: {"grid": [1e-3]}, "behaviors.CartPole.max_steps": {"grid": [2000, 10_000_000]}})
    folder = tmp_path / "results" / "s"
    words = [sys.executable, "-m", "raytrain", "tune", str(file), "--sweep-id", "s", "--results-dir", str(tmp_path / "results")]
    process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    metrics = folder / "trial-0002" / "CartPole" / "metrics.csv"
    while process.poll() is None and not (metrics.is_file() and len(steps_of(metrics.parents[1])) > 3):
        time.sleep(0.2)
    process.send_signal(number)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == (0 if number == signal.SIGINT else -signal.SIGKILL), text
    first, second = SweepFolder.load(folder).trials
    assert (first.state, second.state) == ("finished", "interrupted" if number == signal.SIGINT else "running")
    if number == signal.SIGINT:
        assert "--resume" in text and "interrupted (SIGINT)" in text
        status = json.loads((folder / "trial-0002" / "status.json").read_text())
        newest = max((folder / "trial-0002" / "checkpoints").iterdir())
        assert json.loads((newest / "run.json").read_text())["run"]["agent_steps"] == status["agent_steps"]
    reached = max(int(p.name) for p in (folder / "trial-0002" / "checkpoints").iterdir() if p.name.isdecimal())
    untouched = (folder / "trial-0001" / "status.json").stat().st_mtime_ns

    # It goes on to where it is told to end, and the first trial is left alone.
    record = json.loads((folder / "sweep.json").read_text())
    newest = max(p for p in (folder / "trial-0002" / "checkpoints").iterdir() if p.name.isdecimal())  # status.json may be some seconds older
    steps = json.loads((newest / "run.json").read_text())["run"]["agent_steps"]
    record["trials"][1]["parameters"]["behaviors.CartPole.max_steps"] = steps + 5000
    (folder / "sweep.json").write_text(json.dumps(record))
    assert main(["tune", "--resume", str(folder)]) == 0
    first, second = SweepFolder.load(folder).trials
    assert (first.state, second.state) == ("finished", "finished")
    assert (folder / "trial-0001" / "status.json").stat().st_mtime_ns == untouched
    assert "resuming at" in (folder / "logs" / "trial-0002.txt").read_text()
    assert max(int(p.name) for p in (folder / "trial-0002" / "checkpoints").iterdir() if p.name.isdecimal()) > reached


@pytest.mark.parametrize("kind", ["asha", "median"])
def test_trials_that_had_ended_are_compared_with_after_a_resume(tmp_path, kind):
    """Two that reached 10 and 20 at 1,000 agent steps: one that comes later goes on with 30 and is stopped with 1."""
    from ray.tune.schedulers import TrialScheduler

    from raytrain.cluster.tuning import METRIC, TIME, _Ended, _scheduler

    more = {"reduction_factor": 2, "max_t": 4000} if kind == "asha" else {"min_samples_required": 2}
    file = write_sweep(tmp_path, parameters={RATE: {"grid": [1e-3, 1e-4, 1e-5]}}, scheduler={"type": kind, "grace_period": 1000, **more})
    folder = SweepFolder(tmp_path / "s", load_sweep(file), 1, [Trial("a", {}, state="finished"), Trial("b", {}, state="stopped early"), Trial("c", {})])
    for name, value in (("a", 10.0), ("b", 20.0), ("c", 99.0)):
        (folder.path / name / "CartPole").mkdir(parents=True)
        (folder.path / name / "configuration.yaml").touch()
        (folder.path / name / "CartPole" / "metrics.csv").write_text(f"step,elapsed_s,Environment/Cumulative Reward\n1000,1.0,{value}\n")
    for value, expected in ((30.0, TrialScheduler.CONTINUE), (1.0, TrialScheduler.STOP)):
        scheduler, late = _scheduler(folder, "CartPole", 4000, 500), _Ended("late")
        scheduler.on_trial_add(None, late)
        assert scheduler.on_trial_result(None, late, {TIME: 1000, METRIC: value}) == expected


def test_a_population_copies_nothing_to_or_from_a_trial_that_has_all_its_steps(tmp_path, monkeypatch):
    """It would cost a start, train nothing, and put one trial's parameters beside another's curve."""
    from ray.tune.schedulers import PopulationBasedTraining

    from raytrain.cluster.tuning import METRIC, TIME, _scheduler

    compared = []
    monkeypatch.setattr(PopulationBasedTraining, "on_trial_result", lambda self, controller, trial, result: compared.append(result[TIME]))
    file = write_sweep(tmp_path, parameters={RATE: {"uniform": [1e-4, 1e-3]}}, num_samples=2, scheduler={"type": "pbt", "perturbation_interval": 1000})
    scheduler = _scheduler(SweepFolder(tmp_path / "s", load_sweep(file), 1, [Trial("a", {}), Trial("b", {})]), "CartPole", 4000, 500)
    for steps in (1000, 3500, 4000, 4500):
        scheduler.on_trial_result(None, None, {TIME: steps, METRIC: 1.0})
    assert compared == [1000, 3500]
