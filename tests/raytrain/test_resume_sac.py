"""A SAC run that goes on, with and without its replay buffer, and one that begins with another's weights."""

from __future__ import annotations

import numpy as np
import pytest

from envs.specs import to_env_actions
from raytrain.checkpoint import CheckpointStore, load_policy_files
from raytrain.errors import RunFolderError
from tests.raytrain.sac_runs import Target, checkpoints, config, files_of, ppo_config, tensors, train
from trainers.policy import Policy

MISSING = "the checkpoint has no replay buffer"


def acted(checkpoint, rng_state: dict | None = None) -> tuple[np.ndarray, np.ndarray]:
    """What the policy of a checkpoint gives for the observations in `Target.log`, and what was given; ``[n]`` each.

    Args:
        rng_state: of the samples; the most likely action without.
    """
    files = load_policy_files(checkpoint)
    policy = Policy(files.spec, files.network, files.distribution)
    policy.set_weights(files.weights, files.version)
    rng = np.random.default_rng()
    if rng_state is not None:
        rng.bit_generator.state = rng_state
    outputs = [policy.act({"obs": obs[None]}, rng, deterministic=rng_state is None, with_entropy=False) for obs, _ in Target.log]
    expected = np.concatenate([to_env_actions(files.spec.action, o.actions)[:, 0] for o in outputs])
    return expected, np.array([action[0] for _, action in Target.log])


@pytest.mark.slow
def test_with_its_replay_buffer_a_run_goes_on_as_if_it_had_not_ended(tmp_path, capsys):
    """Counters, state and buffer are those of the checkpoint, bit for bit; not a word of it, no burst of updates, no wait for a warm-up."""
    hyper = {"save_replay_buffer": True}
    first = train(tmp_path, config(hyperparameters=hyper))
    before, last = first.results, checkpoints(first)[-1]
    saved = tensors(last)
    assert len(saved["replay/next"]) >= before["agent_steps"]
    capsys.readouterr()
    summaries = []
    again = train(tmp_path, config(hyperparameters=hyper, max_steps=400), resume=True, on_summary=summaries.append)
    assert "replay buffer" not in capsys.readouterr().out.split("environments are stepped")[1]
    loaded = tensors(sorted((again.path / "checkpoints").iterdir())[checkpoints(again).index(last) + 1])
    assert saved.keys() == loaded.keys() and all(np.array_equal(saved[k], loaded[k]) for k in saved)
    steps, updates = (again.results[k] - before[k] for k in ("agent_steps", "updates"))
    assert steps >= 90 and updates == steps, "one for each step, from the first on"
    assert [s.step for s in summaries] == [250, 300, 350, 400]
    assert len(tensors(checkpoints(again)[-1])["replay/next"]) >= again.results["agent_steps"]


@pytest.mark.slow
def test_without_its_replay_buffer_a_run_says_so_and_acts_with_what_it_has_learnt(tmp_path, capsys):
    """C30: the loaded policy fills the new buffer, not a uniform one: every action is the sample that the checkpoint's policy gives."""
    first = train(tmp_path, config(max_steps=400))
    last, before = checkpoints(first)[-1], first.results
    state = CheckpointStore.load(last).run["managers"]["env-manager-0"]["rng"]
    capsys.readouterr()
    again = train(tmp_path, config(max_steps=500), resume=True)
    out = capsys.readouterr().out
    assert out.count(MISSING) == 1 and "Target: the checkpoint has no replay buffer" in out and "the first 40 agent steps" in out
    steps, updates = (again.results[k] - before[k] for k in ("agent_steps", "updates"))
    assert 0 < steps - 40 - updates <= 1, "40 to fill the buffer, then one for each step: nothing is made up for"
    del Target.log[40:]
    expected, given = acted(last, state)
    np.testing.assert_array_equal(given, expected)
    target = np.array([20.0 + 10.0 * obs[0] for obs, _ in Target.log])
    assert np.corrcoef(given, target)[0, 1] > 0.5, "and it has learnt something"


@pytest.mark.slow
def test_an_untrained_policy_explores_at_random(tmp_path):
    """The control: in the warm-up of a new run actions follow the first weights, and know nothing of the target."""
    run = train(tmp_path, config(max_steps=40, hyperparameters={"init_entcoef": 1.0}))
    expected, given = acted(checkpoints(run)[0])
    assert np.ptp(given) > 10.0 > np.ptp(expected), "samples all over the interval around a mean that hardly moves"
    target = np.array([20.0 + 10.0 * obs[0] for obs, _ in Target.log])
    assert abs(np.corrcoef(given, target)[0, 1]) < 0.5


def test_another_ratio_begins_to_count_where_the_run_goes_on(tmp_path, capsys):
    """Steps that were learnt from at the old ratio owe nothing at the new one, and the user is told."""
    first = train(tmp_path, config(hyperparameters={"save_replay_buffer": True, "steps_per_update": 4.0}))
    again = train(
        tmp_path, config(hyperparameters={"save_replay_buffer": True, "steps_per_update": 0.5}, max_steps=300), resume=True
    )
    assert "steps_per_update 4 (before) → " in capsys.readouterr().out
    steps, updates = (again.results[k] - first.results[k] for k in ("agent_steps", "updates"))
    assert 0 < steps - 0.5 * updates <= 0.5


def test_a_run_that_begins_with_the_weights_of_another(tmp_path, capsys):
    """`initialize_from`: from step 0, a new warm-up, which the given policy acts in; no notice, since nothing is missing."""
    first = train(tmp_path, config(max_steps=400), "first")
    source = tensors(checkpoints(first)[-1])
    capsys.readouterr()
    run = train(tmp_path, config(hyperparameters={"learning_rate": 0.0}), "second", initialize_from="first")
    assert MISSING not in capsys.readouterr().out
    assert run.results["agent_steps"] < 300 and 0 < run.results["agent_steps"] - 40 - run.results["updates"] <= 1
    begun, ended = tensors(checkpoints(run)[0]), tensors(checkpoints(run)[-1])
    for name in source:
        if name.startswith(("actor/", "critic/", "entropy_coef/")):
            assert np.array_equal(source[name], begun[name]) and np.array_equal(source[name], ended[name])
        if name.startswith("target_critic/"):
            assert np.array_equal(source[name], begun[name])
    expected, given = acted(checkpoints(first)[-1])
    assert np.corrcoef(expected, given)[0, 1] > 0.5


@pytest.mark.parametrize("way", ["resume", "initialize_from"])
@pytest.mark.slow
def test_a_checkpoint_of_another_algorithm_is_refused(tmp_path, way):
    """Both are named, in both directions, and not a byte is written."""
    for saved, wanted, words in (
        (ppo_config(), config(), "trainer_type: ppo in the checkpoint, sac here"),
        (config(), ppo_config(), "trainer_type: sac in the checkpoint, ppo here"),
    ):
        old = saved["behaviors"]["Target"]["trainer_type"]
        train(tmp_path, saved, old)
        before = files_of(tmp_path)
        options = {"run_id": old, "resume": True} if way == "resume" else {"run_id": "new", "initialize_from": old}
        with pytest.raises(RunFolderError, match=words):
            train(tmp_path, wanted, **options)
        assert files_of(tmp_path) == before and not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_run_is_not_moved_aside_for_weights_that_do_not_fit(tmp_path):
    """`force` begins anew, but only a run that can begin."""
    train(tmp_path, ppo_config(), "ppo")
    train(tmp_path, config(max_steps=50), "run")
    before = files_of(tmp_path)
    with pytest.raises(RunFolderError, match="trainer_type: ppo in the checkpoint, sac here"):
        train(tmp_path, config(), "run", force=True, initialize_from="ppo")
    assert files_of(tmp_path) == before


def test_state_dependent_noise_and_none_are_two_distributions(tmp_path):
    """Their tensors differ, so that is refused with its name."""
    train(tmp_path, config(max_steps=50))
    with pytest.raises(RunFolderError, match="distribution: squashed_gaussian in the checkpoint, gsde here"):
        train(tmp_path, config(max_steps=50, hyperparameters={"use_sde": True}), resume=True)
