"""Runs with ``evaluation:``: what it leaves, what it decides, and what it leaves alone. In this process."""

from __future__ import annotations

import csv
import importlib.util
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import raytrain
from envs.base import EnvFault
from raytrain.checkpoint import CheckpointError, CheckpointStore
from raytrain.config import load_config
from raytrain.errors import ConfigError, RunFault
from raytrain.evaluation import Evaluator, Played
from raytrain.judge import Judge
from raytrain.stats import EVALUATION_LENGTH, EVALUATION_RETURN, EVALUATION_STD
from tests.raytrain.test_checkpoint import make_snapshot
from tests.raytrain.test_curve_files import read_curves

NAME = "CartPole"


def config(evaluation=None, env="CartPole-v1", **behavior) -> dict:
    settings = {
        "hyperparameters": {"buffer_size": 128, "batch_size": 64, "num_epoch": 2, "learning_rate": 3e-3},
        "network_settings": {"hidden_units": 8, "num_layers": 1, "normalize": True},
        "max_steps": 512, "summary_freq": 128, "checkpoint_interval": 256, "time_horizon": 32, **behavior,
    }
    data = {"env": env, "behaviors": {NAME: settings}, "env_settings": {"num_envs": 4, "seed": 3}}
    return data if evaluation is None else {**data, "evaluation": evaluation}


def train(tmp_path, data, run_id="run", **options):
    return raytrain.train(data, results_dir=tmp_path, run_id=run_id, local=True, **options)


def rows(run, name=NAME) -> dict[int, dict[str, str]]:
    with open(run.path / name / "metrics.csv", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [int(row["step"]) for row in found] == sorted({int(row["step"]) for row in found}), "one row for each step, in order"
    return {int(row["step"]): row for row in found}


def returns(run) -> dict[int, float]:
    return {step: float(row[EVALUATION_RETURN]) for step, row in rows(run).items() if row.get(EVALUATION_RETURN)}


def trainer_tensors(run) -> dict[str, np.ndarray]:
    return load_file(max((run.path / "checkpoints").iterdir()) / NAME / "trainer.safetensors")


@pytest.fixture
def scripted(monkeypatch):
    """Evaluations with these returns, one after the other; lengths are 1."""
    left = []

    def play(self, weights, versions, parameters, go_on=lambda: True):
        value = left.pop(0)
        if isinstance(value, Exception):
            raise value
        return Played({b: np.array([value]) for b in weights}, {b: np.ones(1, np.int64) for b in weights}, 1)

    monkeypatch.setattr(Evaluator, "play", play)
    return left


@pytest.mark.slow
def test_training_is_the_same_to_the_byte_with_and_without(tmp_path):
    with_it = train(tmp_path, config({"interval": 100, "episodes": 3, "deterministic": False}), "with")
    without = train(tmp_path, config(), "without")
    a, b = trainer_tensors(with_it), trainer_tensors(without)
    assert len(returns(with_it)) >= 4 and a.keys() == b.keys()
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert with_it.results["agent_steps"] == without.results["agent_steps"]


@pytest.mark.slow
def test_what_an_evaluation_leaves(tmp_path, capsys):
    """C84: mode, statistics, seeds; the figures at the steps of their checkpoints, everywhere the same."""
    run = train(tmp_path, config({"interval": 250, "episodes": 5, "seed": 7}, checkpoint_interval=10_000, max_steps=640))
    found, end = returns(run), run.results["agent_steps"]
    assert list(found) == [250, 500, end], "with one of the last policy"
    curves = read_curves(run.path / NAME)
    for tag in (EVALUATION_RETURN, EVALUATION_STD, EVALUATION_LENGTH):
        assert [step for step, _ in curves[tag]] == list(found)
        assert [value for _, value in curves[tag]] == [pytest.approx(float(rows(run)[step][tag]), rel=1e-6) for step in found]
    last, best = run.results["evaluation"]["last"], run.results["evaluation"]["best"]
    assert (last["behaviors"][NAME]["step"], last["reward"], last["seed"], last["deterministic"]) == (end, found[end], 7, True)
    assert last["behaviors"][NAME]["episodes"] == 5 and best["reward"] == max(found.values())
    status = json.loads((run.path / "status.json").read_text())
    assert status["evaluation"] == run.results["evaluation"] and status["best_reward"] == best["reward"]
    assert json.loads((run.path / "best" / "evaluation.json").read_text()) == best
    saved = CheckpointStore.load(run.path / "best")
    assert saved.behaviors[NAME].agent_steps == CheckpointStore.load(run.path / "checkpoints" / best["checkpoint"]).behaviors[NAME].agent_steps
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("evaluation at")]
    assert len(shown) == 3
    assert all("(5 episodes); deterministic actions, statistics frozen, seeds of 7" in line for line in shown)
    assert shown[0].endswith("; the best so far")


def test_without_an_interval_every_checkpoint_is_evaluated_but_the_first(tmp_path):
    run = train(tmp_path, config({"episodes": 2}))
    assert list(returns(run)) == [256, 512]


def test_the_parameters_of_the_episodes_are_told(tmp_path, capsys):
    data = config({"episodes": 2}, env="envs.toy_parameters:pole", max_steps=128, checkpoint_interval=128)
    data["behaviors"] = {"pole": data["behaviors"][NAME]}
    run = train(tmp_path, {**data, "environment_parameters": {"pole_length": 0.7}})
    assert run.results["evaluation"]["last"]["parameters"] == {"pole_length": "0.7"}
    assert "statistics frozen, seeds of 3, pole_length: 0.7" in capsys.readouterr().out


def test_the_best_checkpoint_is_that_of_the_best_evaluation_also_after_a_resume(tmp_path, scripted):
    """Not that of the highest training return, nor the newest of equals; worse ones after a resume leave it, better ones take its place."""
    scripted += [1.0, 5.0, 5.0, 2.0]
    run = train(tmp_path, config({"interval": 128}))
    best = raytrain.load_policy(run.path)
    assert 256 <= best.agent_steps < 300 and run.results["evaluation"]["best"]["behaviors"][NAME]["step"] == 256 and not scripted
    newest = CheckpointStore(run.path, 5).load_latest()[0].run
    assert (newest["best_reward"], newest["best_by"]) == (5.0, "evaluation")
    scripted += [4.0, 4.5]
    again = train(tmp_path, config({"interval": 128}, max_steps=768), resume=True)
    assert list(returns(again).values()) == [1.0, 5.0, 5.0, 2.0, 4.0, 4.5] and not scripted
    assert raytrain.load_policy(run.path).agent_steps == best.agent_steps
    assert (again.results["evaluation"]["best"]["reward"], again.results["evaluation"]["last"]["reward"]) == (5.0, 4.5)
    scripted += [5.5]
    third = train(tmp_path, config({"interval": 128}, max_steps=896), resume=True)
    assert 896 <= raytrain.load_policy(run.path).agent_steps < 940 and third.results["evaluation"]["best"]["reward"] == 5.5


@pytest.mark.slow
def test_a_run_without_evaluations_before_begins_with_its_first_and_the_other_way_round(tmp_path, scripted):
    """Returns of training and of evaluations are not compared with one another."""
    long = {"env_kwargs": {"length": 2}}
    data = config(env="envs.toy:ConstReward", max_steps=384)
    data["behaviors"] = {"ConstReward": data["behaviors"][NAME]}
    train(tmp_path, {**data, **long})
    assert json.loads((tmp_path / "run" / "status.json").read_text())["best_reward"] == 2.0
    scripted += [-7.0]
    data["behaviors"]["ConstReward"]["max_steps"] = 512
    run = train(tmp_path, {**data, **long, "evaluation": {}}, resume=True)
    assert json.loads((run.path / "status.json").read_text())["best_reward"] == -7.0
    assert raytrain.load_policy(run.path).agent_steps >= 512
    data["behaviors"]["ConstReward"]["max_steps"] = 768
    train(tmp_path, {**data, **long}, resume=True)
    assert json.loads((tmp_path / "run" / "status.json").read_text())["best_reward"] == 2.0
    assert not (run.path / "best" / "evaluation.json").exists()


def test_stop_reward_is_of_training(tmp_path, scripted):
    scripted += [1e9] * 10
    run = train(tmp_path, {**config({"interval": 128}), "stop": {"reward": 400, "episodes": 1}})
    assert "max_steps" in run.results["reason"]


def test_a_fault_in_an_evaluation_is_the_evaluators(tmp_path, scripted):
    """The checkpoint that was evaluated is there, and the run goes on from it."""
    scripted.append(EnvFault("ValueError: boom-42", env_index=0, episode=1, step=2, user_traceback="Traceback: theirs"))
    with pytest.raises(RunFault, match=r"(?s)^evaluator: ValueError: boom-42\nenv 0, episode 1, step 2") as caught:
        train(tmp_path, config({"interval": 128}))
    assert caught.value.user_traceback == "Traceback: theirs"
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "failed"
    snapshot, path, _ = CheckpointStore(tmp_path / "run", 5).load_latest()
    assert path.name >= "000001" and snapshot.run["label"] >= 128


@pytest.mark.slow
def test_worlds_of_two_behaviors_are_judged_by_the_mean_of_both(tmp_path, capsys):
    if importlib.util.find_spec("pettingzoo") is None:
        pytest.skip("the extra pettingzoo is not installed")
    settings = config(max_steps=400)["behaviors"][NAME]
    run = train(tmp_path, {
        "env": "envs.toy_agents:CountingAgents", "env_kwargs": {"deaths": [10, 20, 30, 40]}, "env_settings": {"num_envs": 2, "seed": 3},
        "behaviors": {"early": {**settings, "agents": ["agent_0", "agent_1"]}, "late": {**settings, "agents": "agent_[23]"}},
        "evaluation": {"interval": 150, "episodes": 3}})
    last = run.results["evaluation"]["last"]
    assert {b: (one["return_mean"], one["return_std"], one["episode_length"], one["episodes"]) for b, one in last["behaviors"].items()} == {
        "early": (15.0, 5.0, 15.0, 6), "late": (35.0, 5.0, 35.0, 6)}
    assert last["reward"] == 25.0 and run.results["evaluation"]["best"]["reward"] == 25.0
    for name in ("early", "late"):
        assert [float(row[EVALUATION_RETURN]) for row in rows(run, name).values() if row.get(EVALUATION_RETURN)] != []
    assert "evaluation early at " in (shown := capsys.readouterr().out) and "; late at " in shown


def test_a_checkpoint_that_is_being_evaluated_is_not_deleted(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    first = store.save(make_snapshot(1))
    store.held.add(first)
    store.save(make_snapshot(2))
    newest = store.save(make_snapshot(3))
    assert store.paths() == [first, newest]
    store.mark_best(first, b"{}")
    store.release(first)
    assert store.paths() == [newest] and store.best_evaluation() == b"{}"
    store.mark_best(newest)
    assert store.best_evaluation() is None


def test_a_broken_record_of_the_best_is_named(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    store.mark_best(store.save(make_snapshot(1)), b'{"reward": 1}')
    with pytest.raises(CheckpointError, match=r"best/evaluation\.json, received something else .*Remove that file"):
        Judge(None, None, 3, None, store, None, {})


@pytest.mark.parametrize(("evaluation", "words"), [
    ({"episodes": 0}, r"evaluation\.episodes.*received 0"),
    ({"interval": 0}, r"evaluation\.interval.*received 0"),
    ({"intervall": 5}, r"evaluation\.intervall.*did you mean (evaluation\.)?interval"),
    ({"deterministic": "yes"}, r"evaluation\.deterministic"),
    ({"seed": -1}, r"evaluation\.seed"),
])
def test_bad_input_is_named(evaluation, words):
    with pytest.raises(ConfigError, match=words) as refused:
        load_config(config(evaluation))
    assert len(refused.value.problems) == 1


def test_cloning_has_a_key_of_its_own():
    data = {"behaviors": {"A": {"trainer_type": "bc", "demo_path": "x"}}, "evaluation": {}}
    with pytest.raises(ConfigError, match=r"evaluation .*trainer_type: bc.*evaluation_episodes"):
        load_config(data)


def test_an_interval_that_is_never_reached_is_a_warning():
    assert load_config(config({"interval": 513})).warnings() == [
        "evaluation.interval=513 is larger than max_steps=512: only the last policy is evaluated."]
    assert load_config(config({"interval": 512})).warnings() == load_config(config({})).warnings() == []
