"""A trial without Ray: what it reports, how it is stopped, and going on from another's checkpoint."""

import json
import shutil

import pytest
import yaml

from raytrain.errors import RunFolderError
from raytrain.run_lock import RunLock
from raytrain.sweep_folder import LOGS, STOP
from raytrain.sweep_trial import TrialRun

pytestmark = pytest.mark.slow
RATE = "behaviors.CartPole.hyperparameters.learning_rate"
RETURN = "Environment/Cumulative Reward"


def trial(sweep, name, metric=RETURN, **settings) -> TrialRun:
    (sweep / LOGS).mkdir(exist_ok=True)
    behavior = {
        "hyperparameters": {"buffer_size": 128, "batch_size": 64, "num_epoch": 1}, "network_settings": {"hidden_units": 8, "num_layers": 1}, "max_steps": 1000,
        "summary_freq": 250, "checkpoint_interval": 500, "time_horizon": 32,
    }
    run = {"env": "CartPole-v1", "behaviors": {"CartPole": behavior}, "env_settings": {"num_envs": 4, "seed": 1}}
    given = {"checkpoint_settings.run_id": name, "checkpoint_settings.results_dir": str(sweep), "checkpoint_settings.resume": False}
    return TrialRun(sweep, name, run, {**given, **settings}, metric, "CartPole", 500, local=True)


def reports(run: TrialRun) -> list[dict]:
    found = [run.next_report()]
    while not found[-1].get("done"):
        found.append(run.next_report())
    return found


def newest(sweep, name) -> dict:
    return json.loads((max((sweep / name / "checkpoints").iterdir()) / "run.json").read_text())["run"]


def test_a_trial_goes_on_from_anothers_checkpoint_with_its_own_parameters(tmp_path):
    donor, other = trial(tmp_path, "donor", **{"behaviors.CartPole.max_steps": 1500}), trial(tmp_path, "other")
    told = reports(donor)
    assert [one["agent_steps"] for one in told] == [250, 500, 750, 1000, 1250, 1500, 1500]
    assert told[-1]["ended"] == "finished" and told[-1]["metric"] == told[-2]["metric"]
    reports(other)
    (tmp_path / "given").mkdir()
    donor.give(tmp_path / "given")
    given = newest(tmp_path, "donor")["agent_steps"]

    again = trial(tmp_path, "other", **{RATE: 0.5, "behaviors.CartPole.max_steps": 2000})
    again.take(tmp_path / "given")
    assert newest(tmp_path, "other")["agent_steps"] == given
    told = reports(again)
    assert told[-1]["ended"] == "finished", told
    assert told[0]["agent_steps"] == 1750
    assert f"resuming at {given:,} agent steps" in (tmp_path / LOGS / "other.txt").read_text()
    saved = yaml.safe_load((tmp_path / "other" / "configuration.yaml").read_text())
    assert saved["behaviors"]["CartPole"]["hyperparameters"]["learning_rate"] == 0.5
    steps = [int(line.split(",")[0]) for line in (tmp_path / "other" / "CartPole" / "metrics.csv").read_text().splitlines()[1:]]
    assert steps == [250, 500, 750, 1000, 1750, 2000]


def test_what_is_given_is_what_was_reported_though_the_run_has_gone_on(tmp_path):
    donor = trial(tmp_path, "donor", **{"behaviors.CartPole.max_steps": 1500})
    assert [donor.next_report()["agent_steps"] for _ in range(2)] == [250, 500]
    reported = dict(donor._last)
    donor._run.wait()
    (tmp_path / "given").mkdir()
    donor.give(tmp_path / "given")
    assert json.loads((tmp_path / "given" / "checkpoint" / "run.json").read_text())["run"]["label"] == 500

    # What is said of the other from then on is of these weights, also if nothing is left to do.
    other = trial(tmp_path, "other", metric="Policy/Entropy")
    reports(other)
    other = trial(tmp_path, "other", metric="Policy/Entropy", **{"behaviors.CartPole.max_steps": 500})
    other.take(tmp_path / "given")
    assert reports(other) == [{**reported, "done": True, "ended": "finished", "reason": ""}]


def test_a_checkpoint_that_is_deleted_while_it_is_copied(tmp_path, monkeypatch):
    donor = trial(tmp_path, "donor", **{"behaviors.CartPole.max_steps": 500})
    reports(donor)
    copy, failures = shutil.copytree, [shutil.Error([("a", "b", "No such file")]), FileNotFoundError("a")]

    def copytree(source, target, *more):
        if failures:
            target.mkdir()
            raise failures.pop()
        return copy(source, target, *more)

    monkeypatch.setattr(shutil, "copytree", copytree)
    (tmp_path / "given").mkdir()
    donor.give(tmp_path / "given")
    assert (tmp_path / "given" / "checkpoint" / "run.json").is_file() and not failures

    shutil.rmtree(tmp_path / "given" / "checkpoint")
    failures[:] = [shutil.Error([("a", "b", "No such file")])] * 9  # it never works: that is told, and not tried for ever
    with pytest.raises(shutil.Error):
        donor.give(tmp_path / "given")


def test_a_life_before_that_does_not_end(tmp_path, monkeypatch):
    monkeypatch.setattr("raytrain.sweep_trial._LOCKED_S", 0.0)
    donor = trial(tmp_path, "donor", **{"behaviors.CartPole.max_steps": 500})
    reports(donor)
    (tmp_path / "given").mkdir()
    donor.give(tmp_path / "given")
    (tmp_path / "other").mkdir()
    RunLock(tmp_path / "other" / "lock").acquire()
    with pytest.raises(RunFolderError, match="Trial other cannot go on"):
        trial(tmp_path, "other").take(tmp_path / "given")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["lock"]


def test_a_trial_that_is_asked_to_stop_saves(tmp_path):
    run = trial(tmp_path, "long", **{"behaviors.CartPole.max_steps": 10_000_000})
    first = run.next_report()
    (tmp_path / STOP).touch()
    last = reports(run)[-1]
    assert last["ended"] == "interrupted" and last["agent_steps"] >= first["agent_steps"]
    status = json.loads((tmp_path / "long" / "status.json").read_text())
    assert newest(tmp_path, "long")["agent_steps"] == status["agent_steps"] >= last["agent_steps"]
    assert trial(tmp_path, "late").next_report() == {"done": True, "ended": "waiting", "reason": ""}
    assert not (tmp_path / "late").exists()


def test_a_trial_that_cannot_run_is_a_report_with_the_reason(tmp_path):
    last = reports(trial(tmp_path, "bad", env="NoSuchWorld-v0"))[-1]
    assert last["ended"] == "failed" and "NoSuchWorld" in last["reason"]
    last = reports(trial(tmp_path, "typo", metric="Environment/Cumulative Rewrd", **{"behaviors.CartPole.max_steps": 10_000_000}))[-1]
    assert last["ended"] == "failed" and "did you mean Environment/Cumulative Reward?" in last["reason"]
