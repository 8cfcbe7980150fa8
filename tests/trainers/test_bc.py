"""Cloning from demonstrations alone: what is held out, what is learnt, and that neither chunks nor a resume change it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.trainers.test_behavioral_cloning import demonstrations
from trainers.bc import BCTrainer
from trainers.bc_data import episodes_of, held_out_episodes, hold_out, run_length
from trainers.policy import Policy
from trainers.registry import first_weights
from trainers.settings import BCSettings

MEMORY = {"sequence_length": 8, "memory_size": 16}


def settings(memory=None, **values) -> BCSettings:
    hyper = {"batch_size": 64, "num_epoch": 20, "learning_rate": 0.01, **values.pop("hyperparameters", {})}
    network = {"hidden_units": 32, "num_layers": 1, "activation": "tanh", "normalize": True, "memory": memory}
    return BCSettings(demo_path="unused", hyperparameters=hyper, network_settings=network, **values)


def trainer(d, s: BCSettings, seed: int = 0) -> BCTrainer:
    learnt, held_out = hold_out(d, s.validation_share, np.random.default_rng(seed))
    return BCTrainer(learnt, held_out, s, np.random.SeedSequence(seed), first_weights(d.spec, s, np.random.default_rng(seed)))


def finish(t: BCTrainer, chunk: int) -> None:
    while not t.finished:
        t.learn(chunk, 10**9)


def test_whole_episodes_are_held_out():
    d = demonstrations("hybrid")
    learnt, held_out = hold_out(d, 0.1, np.random.default_rng(0))
    assert (learnt.episodes, held_out.episodes, learnt.rows + held_out.rows) == (18, 2, d.rows)
    rows = np.concatenate([learnt.obs["obs"], held_out.obs["obs"]])
    assert sorted(rows.tolist()) == sorted(d.obs["obs"].tolist())
    whole = {tuple(x.ravel()) for x in d.obs["obs"].reshape(20, -1)}
    assert {tuple(x.ravel()) for x in held_out.obs["obs"].reshape(2, -1)} <= whole


def test_too_few_episodes_are_refused():
    assert [held_out_episodes(n, 0.1) for n in (2, 10, 14, 16, 100)] == [1, 1, 1, 2, 10]
    assert held_out_episodes(1, 0.0) == 0
    with pytest.raises(ValueError, match="received 1 episode in all.*set validation_share: 0"):
        held_out_episodes(1, 0.1)
    with pytest.raises(ValueError, match="received 3 episodes"):
        held_out_episodes(3, 0.9)


def test_run_ends_at_passes_or_steps():
    assert run_length(settings(), 100) == 2000
    assert run_length(settings(max_steps=150), 100) == 150
    assert run_length(settings(max_steps=10_000), 100) == 2000


@pytest.mark.parametrize("memory", [None, MEMORY], ids=["rows", "sequences"])
@pytest.mark.parametrize("action", ["box", "discrete", "hybrid"])
@pytest.mark.slow
def test_the_loss_on_episodes_held_out_falls(action, memory):
    t = trainer(demonstrations(action), settings(memory))
    before = t.validate()
    t.compile()
    assert t.validate() == before and t.agent_steps == 0
    finish(t, 100)
    after = t.validate()
    assert after.loss < 0.3 * before.loss
    assert after.accuracy is None if action == "box" else after.accuracy > 0.9 > before.accuracy
    assert (t.agent_steps, t.policy_updates) == (20 * 360, 20)
    policy = Policy(demonstrations(action).spec, settings(memory).network_settings)
    policy.set_weights(t.policy_weights(), 1)  # with the statistics of the demonstrations


def test_validation_is_what_the_policy_does():
    d, s = demonstrations("discrete"), settings()
    t = trainer(d, s)
    t.learn(20, 10**9)
    held_out = hold_out(d, 0.1, np.random.default_rng(0))[1]
    policy = Policy(d.spec, s.network_settings)
    policy.set_weights(t.policy_weights(), 1)
    chosen = policy.act(held_out.obs, np.random.default_rng(0), deterministic=True).actions.discrete
    assert t.validate().accuracy == pytest.approx(float((chosen == held_out.discrete).mean()))


def test_statistics_are_those_of_what_is_learnt_from():
    d = demonstrations("discrete")
    t = trainer(d, settings())
    learnt = hold_out(d, 0.1, np.random.default_rng(0))[0]
    np.testing.assert_allclose(t.policy_weights()["normalizer/obs/mean"], learnt.obs["obs"].mean(axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [None, MEMORY], ids=["rows", "sequences"])
def test_neither_chunks_nor_a_resume_change_what_is_learnt(memory):
    """Stopped in the middle of a pass; the learning rate moves."""
    d, s = demonstrations("hybrid"), settings(memory, hyperparameters={"num_epoch": 4, "learning_rate_schedule": "linear"})
    whole, parts = trainer(d, s), trainer(d, s)
    finish(whole, 1000)
    for _ in range(8):
        parts.learn(1, 10**9)
    resumed = trainer(d, s)
    resumed.load_state(parts.state())
    assert not resumed.notices and resumed.agent_steps == parts.agent_steps
    finish(resumed, 3)
    expected = whole.state()
    found = resumed.state()
    assert found.scalars == expected.scalars
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], tensor, err_msg=name)


def test_stops_where_it_is_told():
    t = trainer(demonstrations("discrete"), settings(max_steps=500))
    t.learn(1000, 100)
    assert t.agent_steps == 120  # minibatches of 60 rows
    t.learn(1000, 10**9)
    assert t.agent_steps == 360  # the end of the pass
    t.learn(1000, 10**9)
    assert t.finished and t.agent_steps == 540


def test_other_demonstrations_begin_a_new_pass():
    d, s = demonstrations("discrete"), settings()
    t = trainer(d, s)
    t.learn(2, 10**9)
    other = trainer(episodes_of(d, np.arange(d.episodes) < 12), s)
    other.load_state(t.state())
    assert "new pass" in other.notices[0] and other.agent_steps == 120


def test_a_broken_loss_changes_nothing():
    t = trainer(demonstrations("box"), settings(hyperparameters={"learning_rate": 1e38}))
    before = t.policy_weights()
    with pytest.raises(FloatingPointError, match="Lower hyperparameters.learning_rate"):
        finish(t, 6)
    assert t.updates == 0
    for name, tensor in before.items():
        np.testing.assert_array_equal(t.policy_weights()[name], tensor)
