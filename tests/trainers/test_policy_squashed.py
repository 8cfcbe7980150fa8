"""Policies whose continuous part is squashed (squashed Gaussian and gSDE without slots) against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from envs.specs import BehaviorSpec
from tests.trainers.policies import ACTIONS, OBS, TWO_OBS, observe, policy_and_weights, slow_heads, slow_log_std
from trainers.initial_weights import initial_actor
from trainers.policy import Policy
from trainers.settings import NetworkSettings

SQUASHED = ["squashed_gaussian", "gsde"]


def slow_log_density(u, mean, log_std):
    """Of tanh(u), the sum over the dimensions."""
    total = 0.0
    for x, m, s in zip(u, mean, log_std, strict=True):
        total += -0.5 * ((x - m) / math.exp(s)) ** 2 - s - 0.5 * math.log(2 * math.pi)
        total -= 2 * (math.log(2) - abs(x) - math.log1p(math.exp(-2 * abs(x))))
    return total


@pytest.mark.parametrize("distribution", SQUASHED)
@pytest.mark.parametrize("action", ["box", "hybrid"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("observations", [OBS, TWO_OBS])
def test_actions_log_prob_and_entropy(distribution, action, normalize, observations):
    """C44 and C56: u from the same generator, in float64; the branches' log-probs and exact entropies are added."""
    spec = BehaviorSpec(observations, ACTIONS[action])
    policy, weights = policy_and_weights(spec, distribution=distribution, normalize=normalize)
    obs = observe(spec, np.random.default_rng(1), 6)
    out = policy.act(obs, np.random.default_rng(2))
    noise = np.random.default_rng(2).standard_normal((6, 2), dtype=np.float32).astype(np.float64)
    assert out.actions.continuous.shape == (6, 2) and out.actions.continuous.dtype == np.float32
    assert out.log_prob.shape == out.entropy.shape == (6,) and out.log_prob.dtype == out.entropy.dtype == np.float32
    for i in range(6):
        mean, branches = slow_heads(policy.architecture, weights, obs, i)
        log_std = slow_log_std(policy.architecture, weights, obs, i, distribution)
        u = np.array(mean) + np.exp(log_std) * noise[i]
        np.testing.assert_allclose(out.actions.continuous[i], np.tanh(u), atol=2e-6)
        log_prob = slow_log_density(u, mean, log_std)
        entropy = -log_prob
        for b, logits in enumerate(branches):
            p = np.exp(logits) / np.exp(logits).sum()
            log_prob += math.log(p[out.actions.discrete[i, b]])
            entropy -= float((p * np.log(p)).sum())
        assert (out.log_prob[i], out.entropy[i]) == pytest.approx((log_prob, entropy), abs=3e-5)
    lean = policy.act(obs, np.random.default_rng(2), with_entropy=False)
    assert lean.entropy is None
    np.testing.assert_array_equal(lean.log_prob, out.log_prob)
    np.testing.assert_array_equal(lean.actions.continuous, out.actions.continuous)


@pytest.mark.parametrize("distribution", SQUASHED)
def test_deterministic_action_is_the_tanh_of_the_mean_and_the_most_likely_choice(distribution):
    spec = BehaviorSpec(OBS, ACTIONS["hybrid"])
    policy, weights = policy_and_weights(spec, distribution=distribution)
    obs, rng = observe(spec, np.random.default_rng(3), 5), np.random.default_rng(4)
    before = rng.bit_generator.state
    out = policy.act(obs, rng, deterministic=True)
    assert rng.bit_generator.state == before
    for i in range(5):
        mean, branches = slow_heads(policy.architecture, weights, obs, i)
        np.testing.assert_allclose(out.actions.continuous[i], np.tanh(mean), atol=2e-6)
        assert out.actions.discrete[i, 0] == np.argmax(branches[0])
        p = np.exp(branches[0]) / np.exp(branches[0]).sum()
        log_std = slow_log_std(policy.architecture, weights, obs, i, distribution)
        assert out.log_prob[i] == pytest.approx(slow_log_density(mean, mean, log_std) + math.log(p.max()), abs=3e-5)


@pytest.mark.parametrize("bias, log_std", [(1e4, 2.0), (2.5, 2.0), (1.5, 1.5), (-19.0, -19.0), (-21.0, -20.0), (-1e4, -20.0)])
def test_log_std_head_is_clipped(bias, log_std):
    spec = BehaviorSpec(OBS, ACTIONS["box"])
    policy, weights = policy_and_weights(spec, distribution="squashed_gaussian")
    weights["actor/log_std/kernel"][:] = weights["actor/mean/kernel"][:] = weights["actor/mean/bias"][:] = 0
    weights["actor/log_std/bias"][:] = bias
    policy.set_weights(weights, 1)
    out = policy.act(observe(spec, np.random.default_rng(0), 3), np.random.default_rng(1))
    u = np.random.default_rng(1).standard_normal((3, 2), dtype=np.float32) * math.exp(log_std)
    np.testing.assert_allclose(out.actions.continuous, np.tanh(u), rtol=1e-5)
    np.testing.assert_allclose(out.log_prob, [slow_log_density(x, [0, 0], [log_std] * 2) for x in u.tolist()], rtol=1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("distribution", SQUASHED)
@pytest.mark.parametrize("mean", [50.0, -50.0, 9.0, 1e4])
def test_saturated_policy_stays_finite_and_within_bounds(distribution, mean):
    spec = BehaviorSpec(OBS, ACTIONS["hybrid"])
    policy, weights = policy_and_weights(spec, distribution=distribution)
    weights["actor/mean/bias"][:] = mean
    policy.set_weights(weights, 1)
    obs = observe(spec, np.random.default_rng(0), 200)
    for deterministic in (False, True):
        out = policy.act(obs, np.random.default_rng(1), deterministic)
        assert (np.abs(out.actions.continuous) <= 1.0).all()
        assert np.isfinite(out.log_prob).all() and np.isfinite(out.entropy).all()
        if abs(mean) >= 50:
            np.testing.assert_array_equal(out.actions.continuous, np.full((200, 2), np.sign(mean)))


def test_every_tanh_lies_within_bounds():
    """In float32, with and without vector instructions, whose results may differ: batches of many sizes."""
    spec = BehaviorSpec(OBS, ACTIONS["box"])
    policy, weights = policy_and_weights(spec, distribution="squashed_gaussian")
    weights["actor/log_std/kernel"][:] = 0
    weights["actor/log_std/bias"][:] = 2
    policy.set_weights(weights, 1)
    rng = np.random.default_rng(0)
    for n in [*range(1, 20), 1_000]:
        a = policy.act(observe(spec, rng, n), rng).actions.continuous
        assert a.min() >= -1.0 and a.max() <= 1.0
    assert (a == 1.0).any() and (a == -1.0).any() and (np.abs(a) < 0.9).any()


@pytest.mark.parametrize("distribution", SQUASHED)
def test_rows_do_not_depend_on_other_rows(distribution):
    """C91: one by one and together, in batches of changing size."""
    spec = BehaviorSpec(TWO_OBS, ACTIONS["hybrid"])
    policy, _ = policy_and_weights(spec, distribution=distribution)
    obs, rng = observe(spec, np.random.default_rng(5), 60), np.random.default_rng(6)
    single = [policy.act({k: v[i : i + 1] for k, v in obs.items()}, rng, deterministic=True) for i in range(60)]
    for sizes in ([60], [1, 59], [33, 7, 20], [2] * 30):
        start = 0
        for size in sizes:
            out = policy.act({k: v[start : start + size] for k, v in obs.items()}, rng, deterministic=True)
            for i, alone in enumerate(single[start : start + size]):
                np.testing.assert_allclose(out.actions.continuous[i], alone.actions.continuous[0], rtol=1e-6, atol=1e-6)
                np.testing.assert_array_equal(out.actions.discrete[i], alone.actions.discrete[0])
                np.testing.assert_allclose(out.log_prob[i], alone.log_prob[0], rtol=1e-5, atol=1e-5)
                np.testing.assert_allclose(out.entropy[i], alone.entropy[0], rtol=1e-5, atol=1e-5)
            start += size


@pytest.mark.parametrize("distribution", SQUASHED)
def test_outputs_stay_as_they_are_when_the_policy_acts_again(distribution):
    spec = BehaviorSpec(OBS, ACTIONS["box"])
    policy, _ = policy_and_weights(spec, distribution=distribution)
    rng, slots = np.random.default_rng(7), np.arange(9)
    for options in ({}, {"deterministic": True}, {"agent_id": slots, "first": np.ones(9, bool)}):
        out = policy.act(observe(spec, rng, 9), rng, **options)
        parts = (out.actions.continuous, out.log_prob, out.entropy)
        copies = [p.copy() for p in parts]
        policy.act(observe(spec, rng, 9), rng, **options)
        policy.act(observe(spec, rng, 4), rng)
        for part, copy in zip(parts, copies, strict=True):
            np.testing.assert_array_equal(part, copy)
            assert part.flags.c_contiguous


@pytest.mark.parametrize("distribution", SQUASHED)
@pytest.mark.parametrize("action", ["discrete", "multi_discrete"])
def test_without_a_continuous_part_the_distribution_makes_no_difference(distribution, action):
    spec = BehaviorSpec(OBS, ACTIONS[action])
    obs = observe(spec, np.random.default_rng(0), 7)
    slots = {"agent_id": np.arange(7), "first": np.ones(7, bool)}
    one, two = (policy_and_weights(spec, distribution=d)[0].act(obs, np.random.default_rng(1), **slots) for d in (distribution, "gaussian"))
    np.testing.assert_array_equal(one.actions.discrete, two.actions.discrete)
    np.testing.assert_array_equal(one.log_prob, two.log_prob)
    np.testing.assert_array_equal(one.entropy, two.entropy)
    assert one.actions.continuous.shape == (7, 0)


@pytest.mark.parametrize("distribution", SQUASHED)
def test_nobody_to_act_for(distribution):
    spec = BehaviorSpec(TWO_OBS, ACTIONS["hybrid"])
    policy, _ = policy_and_weights(spec, distribution=distribution)
    for slots in ({}, {"agent_id": np.empty(0, np.int64), "first": np.empty(0, bool)}):
        out = policy.act(observe(spec, np.random.default_rng(0), 0), np.random.default_rng(0), **slots)
        assert out.actions.continuous.shape == (0, 2) and out.actions.discrete.shape == (0, 1) and out.log_prob.shape == (0,)


def test_weights_of_another_distribution_are_refused():
    spec = BehaviorSpec(OBS, ACTIONS["box"])
    made = {d: policy_and_weights(spec, distribution=d) for d in ("gaussian", *SQUASHED)}
    for d, (policy, _) in made.items():
        for other, (_, weights) in made.items():
            if d != other:
                with pytest.raises(ValueError, match="actor/log_std"):
                    policy.set_weights(weights, 1)


def test_new_squashed_policy_hardly_depends_on_the_observation():
    """Mean about 0 and sigma about 1, so sampled actions are spread over the whole range."""
    spec, network = BehaviorSpec(OBS, ACTIONS["box"]), NetworkSettings()
    policy = Policy(spec, network, "squashed_gaussian")
    policy.set_weights(initial_actor(policy.architecture, np.random.default_rng(0), "squashed_gaussian"), 0)
    obs = observe(spec, np.random.default_rng(1), 4_000)
    assert (np.abs(policy.act(obs, np.random.default_rng(2), deterministic=True).actions.continuous) < 0.1).all()
    u = np.arctanh(policy.act(obs, np.random.default_rng(2)).actions.continuous.astype(np.float64))
    np.testing.assert_allclose(u.std(axis=0), 1.0, atol=0.05)
