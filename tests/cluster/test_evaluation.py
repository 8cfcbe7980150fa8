"""Evaluations over Ray: an actor of their own plays them."""

from __future__ import annotations

import pytest

import raytrain
import raytrain.judge
from envs.base import EnvFault
from raytrain.errors import RunFault
from raytrain.evaluation import Evaluator
from tests.raytrain.test_evaluation_runs import config, returns, trainer_tensors


class Broken(Evaluator):
    """Whatever it plays in fails."""

    def play(self, *arguments, **options):
        """At once."""
        raise EnvFault("ValueError: boom-42", env_index=0, episode=1, step=2, user_traceback="Traceback: theirs")


def over_ray(data: dict, threaded: bool) -> dict:
    data["behaviors"]["CartPole"]["threaded"] = threaded
    return {**data, "distributed": {"env_manager_cpus": 0.25, "trainer_cpus": 0.5}}


def test_in_lock_step_evaluations_are_those_of_a_local_run(private_ray, tmp_path):
    """C83, C84: to the last digit, in both modes; so is the best checkpoint."""
    data = over_ray(config({"interval": 128, "episodes": 5, "deterministic": False}), threaded=False)
    runs = [raytrain.train(data, results_dir=tmp_path, run_id=name, local=name == "local") for name in ("ray", "local")]
    assert returns(runs[0]) == returns(runs[1]) and list(returns(runs[0])) == [128, 256, 384, 512]
    assert runs[0].results["evaluation"] == runs[1].results["evaluation"]
    a, b = (trainer_tensors(run) for run in runs)
    assert all((a[name] == b[name]).all() for name in a)


def test_beside_training_every_checkpoint_that_is_due_is_evaluated_before_the_run_ends(private_ray, tmp_path):
    """Also with a single checkpoint kept, and more training than evaluating could keep up with."""
    run = raytrain.train(over_ray(config({"interval": 200, "episodes": 8}, keep_checkpoints=1, max_steps=1500), threaded=True), results_dir=tmp_path, run_id="run")
    assert len(returns(run)) >= 7 and max(returns(run)) >= 1400
    assert run.results["evaluation"]["best"]["reward"] == max(returns(run).values())
    assert len(list((run.path / "checkpoints").iterdir())) == 1


def test_a_fault_in_an_evaluation_reaches_the_user(private_ray, tmp_path, monkeypatch):
    monkeypatch.setattr(raytrain.judge, "Evaluator", Broken)
    with pytest.raises(RunFault, match=r"(?s)^evaluator: ValueError: boom-42\nenv 0, episode 1, step 2") as caught:
        raytrain.train(over_ray(config({"interval": 128}), threaded=True), results_dir=tmp_path, run_id="run")
    assert caught.value.user_traceback == "Traceback: theirs"
