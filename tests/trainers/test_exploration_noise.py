"""State-dependent exploration: whose noise an action has, when it is drawn anew, and how it is distributed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from envs.specs import BehaviorSpec
from tests.trainers.policies import ACTIONS, OBS, observe, policy_and_weights, slow_features, slow_heads, slow_log_std
from trainers.exploration_noise import ExplorationNoise, marginal_log_std

U, C = 4, 2
UNIT = np.ones((C, U), np.float32)
FEATURES = np.array([1.0, -0.5, 2.0, 0.25], np.float32)
SPEC = BehaviorSpec(OBS, ACTIONS["box"])


def slots(*agents):
    return np.array(agents, np.int64)


def flags(*values):
    return np.array(values, bool)


def shown(noise, *agents):
    """What the agents' noise does to one and the same features: [n, C]."""
    return noise.displacement(np.tile(FEATURES, (len(agents), 1)), UNIT, slots(*agents))


def same(one, two):
    """Per agent: the noise has stayed."""
    return (one == two).all(axis=1).tolist()


def test_displacement_is_the_product_of_features_noise_and_std():
    noise, rng = ExplorationNoise(U, C, None), np.random.default_rng(0)
    noise.advance(slots(2, 0, 5), None, 3, rng)
    epsilon = np.random.default_rng(0).standard_normal((3, C, U), dtype=np.float32).astype(np.float64)
    z, std = rng.normal(size=(3, U)).astype(np.float32), rng.uniform(0.1, 2, (C, U)).astype(np.float32)
    u = noise.displacement(z, std, slots(2, 0, 5))
    assert u.shape == (3, C) and u.dtype == np.float32 and u.flags.c_contiguous
    for i in range(3):
        for c in range(C):
            assert u[i, c] == pytest.approx(sum(float(z[i, k]) * epsilon[i, c, k] * float(std[c, k]) for k in range(U)), abs=1e-5)
    np.testing.assert_array_equal(noise.displacement(z[[1]], std, slots(0)), u[[1]])
    np.testing.assert_array_equal(noise.displacement(z, std, slots(2, 0, 5)), u)


def test_noise_stays_until_an_episode_begins():
    noise, rng = ExplorationNoise(U, C, None), np.random.default_rng(1)
    agents = (3, 1, 0)
    noise.advance(slots(*agents), flags(1, 1, 1), 3, rng)
    begun = shown(noise, *agents)
    assert len(np.unique(begun)) == 3 * C
    before = rng.bit_generator.state
    for _ in range(50):
        noise.advance(slots(*agents), flags(0, 0, 0), 3, rng)
        noise.advance(slots(*agents), None, 3, rng)
    assert rng.bit_generator.state == before
    np.testing.assert_array_equal(shown(noise, *agents), begun)
    noise.advance(slots(*agents), flags(0, 1, 0), 3, rng)
    assert same(shown(noise, *agents), begun) == [True, False, True]


def test_noise_serves_a_number_of_decisions_of_its_own_agent():
    """Every 3 decisions; agent 1 decides at every second call only, and its episode begins anew at call 4."""
    noise, rng = ExplorationNoise(U, C, 3), np.random.default_rng(2)
    drawn = {0: [], 1: []}
    last = {}
    for call in range(15):
        agents = (0, 1) if call % 2 == 0 else (0,)
        noise.advance(slots(*agents), flags(*(call == 0 or (agent == 1 and call == 4) for agent in agents)), len(agents), rng)
        for agent in agents:
            now = shown(noise, agent)
            if agent not in last or not np.array_equal(last[agent], now):
                drawn[agent].append(call)
            last[agent] = now
    assert drawn == {0: [0, 3, 6, 9, 12], 1: [0, 4, 10]}


def test_first_decision_starts_the_count_anew():
    noise, rng = ExplorationNoise(U, C, 3), np.random.default_rng(3)
    values = []
    for first in (1, 0, 1, 0, 0, 0):
        noise.advance(slots(0), flags(first), 1, rng)
        values.append(float(shown(noise, 0)[0, 0]))
    one, two, three = values[0], values[2], values[5]
    assert values == [one, one, two, two, two, three] and len({one, two, three}) == 3


def test_one_decision_per_draw():
    noise, rng = ExplorationNoise(U, C, 1), np.random.default_rng(4)
    values = set()
    for _ in range(10):
        noise.advance(slots(0), flags(0), 1, rng)
        values.add(float(shown(noise, 0)[0, 0]))
    assert len(values) == 10


def test_table_grows_with_the_largest_slot_and_keeps_what_it_has():
    noise, rng = ExplorationNoise(U, C, None), np.random.default_rng(5)
    noise.advance(slots(1), None, 1, rng)
    begun = shown(noise, 1)
    for slot in (2, 3, 40, 7, 1_000):
        noise.advance(slots(slot), None, 1, rng)
        assert shown(noise, slot).all()
    np.testing.assert_array_equal(shown(noise, 1), begun)
    values = shown(noise, 1, 2, 3, 7, 40, 1_000)
    assert len(np.unique(values)) == values.size


@pytest.mark.parametrize("agent_id, first, message", [
    (slots(0, 1, 2), None, r"agent_id int64 \[2\], received int64 \[3\]"),
    (np.zeros(2), None, r"agent_id int64 \[2\], received float64 \[2\]"),
    (slots(0, -1), None, r"slots of at least 0, received -1"),
    (slots(0, 1), flags(1), r"first bool \[2\], received bool \[1\]"),
    (slots(0, 1), np.ones(2), r"first bool \[2\], received float64 \[2\]"),
])
def test_slots_that_do_not_fit_are_refused(agent_id, first, message):
    with pytest.raises(ValueError, match=message):
        ExplorationNoise(U, C, None).advance(agent_id, first, 2, np.random.default_rng(0))


@pytest.mark.parametrize("steps", [0, -3])
def test_noise_that_serves_no_decision_is_refused(steps):
    with pytest.raises(ValueError, match=f"noise_steps to be at least 1 .* received {steps}"):
        policy_and_weights(SPEC, distribution="gsde", noise_steps=steps)


def test_marginal_log_std():
    """By hand: z (1, 2), sigma (3, 0.5) -> variance 9 + 1; features of 0 leave the floor."""
    variance = np.array([[9.0, 0.25]], np.float32)
    log_std = marginal_log_std(np.array([[1, 2], [0, 0]], np.float32), variance)
    assert log_std.shape == (2, 1) and log_std.dtype == np.float32
    np.testing.assert_allclose(log_std[:, 0], [0.5 * math.log(10), 0.5 * math.log(1e-6)], rtol=1e-6)


# -- within the policy ------------------------------------------------------------------------------------------------


def gsde_policy(noise_steps=None):
    """Small enough weights that actions do not saturate and u can be read off them."""
    return policy_and_weights(SPEC, distribution="gsde", noise_steps=noise_steps, scale=0.4)


def acted_u(policy, obs, rng, agent_id, first=None):
    return np.arctanh(policy.act(obs, rng, agent_id=agent_id, first=first).actions.continuous.astype(np.float64))


def test_samples_have_the_variance_of_the_marginal_that_log_prob_uses():
    """Over many draws of the noise for one observation; without slots every row is such a draw."""
    n = 40_000
    policy, weights = gsde_policy()
    obs = {"obs": np.tile(np.array([[0.5, -1.0, 2.0]], np.float32), (n, 1))}
    mean, _ = slow_heads(policy.architecture, weights, obs, 0)
    log_std = np.array(slow_log_std(policy.architecture, weights, obs, 0, "gsde"))
    for options in ({"agent_id": np.arange(n), "first": np.ones(n, bool)}, {}):
        out = policy.act(obs, np.random.default_rng(6), **options)
        u = np.arctanh(out.actions.continuous.astype(np.float64))
        np.testing.assert_allclose(u.mean(axis=0), mean, atol=5 * np.exp(log_std).max() / math.sqrt(n))
        np.testing.assert_allclose(u.var(axis=0), np.exp(2 * log_std), rtol=0.04)
        assert abs(np.corrcoef(u.T)[0, 1]) < 0.03
        expected = -0.5 * ((u - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi) + 2 * np.log(np.cosh(u))
        np.testing.assert_allclose(out.log_prob, expected.sum(axis=1), atol=2e-3)
        np.testing.assert_array_equal(out.entropy, -out.log_prob)


def test_equal_features_have_equal_noise_within_an_episode():
    policy, _ = gsde_policy()
    rng = np.random.default_rng(7)
    obs = {"obs": np.tile(np.array([[0.5, -1.0, 2.0]], np.float32), (3, 1))}
    others = observe(SPEC, rng, 3)
    begun = acted_u(policy, obs, rng, slots(4, 0, 9), flags(1, 1, 1))
    assert len(np.unique(begun)) == begun.size  # the same observation, but noise of their own
    acted_u(policy, others, rng, slots(4, 0, 9), flags(0, 0, 0))
    np.testing.assert_array_equal(acted_u(policy, obs, rng, slots(4, 0, 9), flags(0, 0, 0)), begun)
    np.testing.assert_allclose(acted_u(policy, obs, rng, slots(9, 4, 0)), begun[[2, 0, 1]], atol=1e-6)
    alone = {"obs": obs["obs"][:1]}
    np.testing.assert_allclose(acted_u(policy, alone, rng, slots(0)), begun[[1]], atol=1e-6)
    assert same(acted_u(policy, obs, rng, slots(4, 0, 9), flags(0, 1, 0)), begun) == [True, False, True]


def test_every_agent_has_the_displacement_of_its_features_and_its_noise():
    policy, weights = gsde_policy()
    obs = observe(SPEC, np.random.default_rng(8), 5)
    u = acted_u(policy, obs, np.random.default_rng(9), np.arange(5), np.ones(5, bool))
    epsilon = np.random.default_rng(9).standard_normal((5, 2, 8), dtype=np.float32).astype(np.float64)
    std = np.exp(weights["actor/log_std"].astype(np.float64)).T
    for i in range(5):
        mean, _ = slow_heads(policy.architecture, weights, obs, i)
        z = np.array(slow_features(policy.architecture, weights, obs, i))
        np.testing.assert_allclose(np.tanh(u[i]), np.tanh(mean + (epsilon[i] * std) @ z), atol=3e-6)


def test_new_weights_scale_the_noise_that_agents_have():
    policy, weights = gsde_policy()
    rng, agents = np.random.default_rng(10), np.arange(6)
    obs = observe(SPEC, rng, 6)
    mean = np.arctanh(policy.act(obs, rng, deterministic=True).actions.continuous.astype(np.float64))
    weights["actor/log_std"] -= np.float32(1.5)
    policy.set_weights(weights, 1)
    small = acted_u(policy, obs, rng, agents, np.ones(6, bool)) - mean
    weights["actor/log_std"] += np.float32(math.log(2))
    policy.set_weights(weights, 2)
    np.testing.assert_allclose(acted_u(policy, obs, rng, agents) - mean, 2 * small, atol=2e-5)
    assert np.abs(small).min() > 1e-3


@pytest.mark.parametrize("options", [{"deterministic": True, "agent_id": slots(0, 1), "first": flags(1, 1)}, {}])
def test_calls_without_slots_or_samples_leave_the_noise_as_it_is(options):
    policy, _ = gsde_policy(noise_steps=2)
    rng = np.random.default_rng(11)
    obs = observe(SPEC, rng, 2)
    begun = acted_u(policy, obs, rng, slots(0, 1), flags(1, 1))
    for _ in range(3):
        policy.act(obs, rng, **options)
    np.testing.assert_array_equal(acted_u(policy, obs, rng, slots(0, 1)), begun)
    assert same(acted_u(policy, obs, rng, slots(0, 1)), begun) == [False, False]


def test_without_slots_every_call_draws_anew():
    policy, _ = gsde_policy()
    rng = np.random.default_rng(12)
    obs = observe(SPEC, rng, 3)
    assert not any(same(*(policy.act(obs, rng).actions.continuous for _ in range(2))))


def test_same_generator_gives_the_same_noise():
    obs = observe(SPEC, np.random.default_rng(13), 4)
    one, two, other = (acted_u(gsde_policy()[0], obs, np.random.default_rng(seed), np.arange(4), np.ones(4, bool)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert not any(same(one, other))
