"""The NumPy policy against a loop over single agents in float64."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from tests.trainers.policies import ACTIONS, ACTIVATIONS, MIXED_OBS, OBS, TWO_OBS, observe, policy_and_weights, slow_heads
from trainers.architecture import architecture
from trainers.initial_weights import initial_weights
from trainers.networks import policy_layout
from trainers.normalizer import NormalizerHistory
from trainers.policy import Policy
from trainers.settings import NetworkSettings


def slow_log_prob_and_entropy(spec, mean, branches, weights, continuous, discrete):
    log_prob = entropy = 0.0
    for c in range(spec.action.continuous_size):
        log_std = float(weights["actor/log_std"][c])
        log_prob += -0.5 * ((continuous[c] - mean[c]) / math.exp(log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
        entropy += 0.5 * math.log(2 * math.pi * math.e) + log_std
    for logits, choice in zip(branches, discrete, strict=True):
        p = np.exp(logits) / np.exp(logits).sum()
        log_prob += math.log(p[choice])
        entropy -= sum(q * math.log(q) for q in p)
    return log_prob, entropy


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("observations", [OBS, TWO_OBS, MIXED_OBS], ids=["one", "two", "mixed"])
def test_log_prob_and_entropy_of_sampled_actions(action, normalize, observations):
    """C56 and C58: the joint log-prob belongs to the action that is returned, unclipped."""
    spec = BehaviorSpec(observations, ACTIONS[action])
    policy, weights = policy_and_weights(spec, normalize=normalize)
    obs = observe(spec, np.random.default_rng(1), 6)
    out = policy.act(obs, np.random.default_rng(2))
    assert out.actions.continuous.shape == (6, spec.action.continuous_size) and out.actions.continuous.dtype == np.float32
    assert out.actions.discrete.shape == (6, len(spec.action.discrete_branches)) and out.actions.discrete.dtype == np.int32
    assert out.log_prob.dtype == out.entropy.dtype == np.float32
    for i in range(6):
        heads = slow_heads(policy.architecture, weights, obs, i)
        expected = slow_log_prob_and_entropy(spec, *heads, weights, out.actions.continuous[i], out.actions.discrete[i])
        assert (out.log_prob[i], out.entropy[i]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_deterministic_action_is_the_mean_and_the_most_likely_choice(activation, num_layers):
    spec = BehaviorSpec(OBS, ACTIONS["hybrid"])
    policy, weights = policy_and_weights(spec, activation=activation, num_layers=num_layers)
    obs = observe(spec, np.random.default_rng(3), 5)
    out = policy.act(obs, np.random.default_rng(4), deterministic=True)
    for i in range(5):
        mean, branches = slow_heads(policy.architecture, weights, obs, i)
        np.testing.assert_allclose(out.actions.continuous[i], mean, atol=2e-6)
        assert out.actions.discrete[i, 0] == np.argmax(branches[0])


@pytest.mark.parametrize("layers", [(), (5,), (8, 3, 8)])
@pytest.mark.parametrize("observations", [OBS, TWO_OBS], ids=["one", "two"])
def test_layers_of_any_widths_and_number(layers, observations):
    """Without any layer the heads stand on the observation itself, which stays as it is."""
    spec = BehaviorSpec(observations, ACTIONS["hybrid"])
    policy, weights = policy_and_weights(spec, layers=layers)
    obs = observe(spec, np.random.default_rng(3), 5)
    seen = {name: x.copy() for name, x in obs.items()}
    out = policy.act(obs, np.random.default_rng(4), deterministic=True)
    for i in range(5):
        mean, branches = slow_heads(policy.architecture, weights, obs, i)
        np.testing.assert_allclose(out.actions.continuous[i], mean, rtol=1e-5, atol=1e-5)
        assert out.actions.discrete[i, 0] == np.argmax(branches[0])
    for name, x in obs.items():
        np.testing.assert_array_equal(x, seen[name])


def test_numbers_are_normalised_one_by_one_as_asked():
    """Choices and flags are not; one observation is left out by name."""
    spec = BehaviorSpec((*MIXED_OBS, ObservationSpec("raw", (2,))), ACTIONS["box"])
    policy, weights = policy_and_weights(spec, normalize=True, observations={"raw": {"normalize": False}})
    assert [name for name in weights if name.startswith("normalizer/")] == ["normalizer/speed/mean", "normalizer/speed/std"]
    weights["normalizer/speed/mean"][:] = 1e3
    policy.set_weights(weights, 1)
    obs = observe(spec, np.random.default_rng(3), 5)
    obs["speed"] += np.float32(1e3)
    out = policy.act(obs, np.random.default_rng(4), deterministic=True)
    for i in range(5):
        np.testing.assert_allclose(out.actions.continuous[i], slow_heads(policy.architecture, weights, obs, i)[0], atol=1e-4)


def test_choice_out_of_range_is_refused_by_name():
    spec = BehaviorSpec(MIXED_OBS, ACTIONS["box"])
    policy, _ = policy_and_weights(spec)
    obs = observe(spec, np.random.default_rng(3), 2)
    obs["kind"][1, 1] = 1
    with pytest.raises(ValueError, match=r"Expected observation 'kind' element 1 from -1 to 0, received 1 in row 1"):
        policy.act(obs, np.random.default_rng(0))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.filterwarnings("error")
def test_activations_far_from_0_neither_warn_nor_overflow(activation):
    spec = BehaviorSpec((ObservationSpec("obs", (1,)),), ActionSpec("box", continuous_size=1))
    network = NetworkSettings(hidden_units=1, num_layers=1, activation=activation)
    weights = {name: np.zeros(shape, np.float32) for name, shape in policy_layout(architecture(spec, network)).items()}
    weights["actor/dense_0/kernel"][:] = weights["actor/mean/kernel"][:] = 1
    policy = Policy(spec, network)
    policy.set_weights(weights, 0)
    x = np.array([[-3e4], [-90.0], [-1e-3], [0.0], [1e-3], [90.0], [3e4]], np.float32)
    result = policy.act({"obs": x}, np.random.default_rng(0), deterministic=True).actions.continuous[:, 0]
    expected = [ACTIVATIONS[activation](max(float(v), -700.0)) for v in x[:, 0]]
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("observations", [TWO_OBS, MIXED_OBS], ids=["two", "mixed"])
def test_one_observation_acts_as_it_does_in_a_batch(action, normalize, observations):
    """C91: 100 observations, one by one and together, also in batches of changing size."""
    spec = BehaviorSpec(observations, ACTIONS[action])
    policy, _ = policy_and_weights(spec, normalize=normalize)
    obs, rng = observe(spec, np.random.default_rng(5), 100), np.random.default_rng(6)
    single = [policy.act({k: v[i : i + 1] for k, v in obs.items()}, rng, deterministic=True) for i in range(100)]
    for sizes in ([100], [1, 99], [33, 7, 60], [2] * 50):
        first = 0
        for size in sizes:
            out = policy.act({k: v[first : first + size] for k, v in obs.items()}, rng, deterministic=True)
            for i in range(size):
                alone = single[first + i]
                np.testing.assert_allclose(out.actions.continuous[i], alone.actions.continuous[0], rtol=1e-6, atol=1e-6)
                np.testing.assert_array_equal(out.actions.discrete[i], alone.actions.discrete[0])
                np.testing.assert_allclose(out.entropy[i], alone.entropy[0], rtol=1e-6, atol=1e-6)
            first += size


def test_outputs_stay_as_they_are_when_the_policy_acts_again():
    spec = BehaviorSpec(OBS, ACTIONS["hybrid"])
    policy, _ = policy_and_weights(spec, normalize=True)
    rng = np.random.default_rng(7)
    obs = observe(spec, rng, 9)
    seen = obs["obs"].copy()
    for deterministic in (False, True):
        out = policy.act(obs, rng, deterministic)
        parts = (out.actions.continuous, out.actions.discrete, out.log_prob, out.entropy)
        copies = [p.copy() for p in parts]
        policy.act(observe(spec, rng, 9), rng, deterministic)
        policy.act(observe(spec, rng, 4), rng, deterministic)
        for part, copy in zip(parts, copies, strict=True):
            np.testing.assert_array_equal(part, copy)
            assert part.flags.c_contiguous
    np.testing.assert_array_equal(obs["obs"], seen)


def test_same_generator_gives_the_same_actions_and_another_gives_others():
    spec = BehaviorSpec(OBS, ACTIONS["hybrid"])
    policy, _ = policy_and_weights(spec)
    obs = observe(spec, np.random.default_rng(8), 50)
    one, two, other = (policy.act(obs, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.actions.continuous, two.actions.continuous)
    np.testing.assert_array_equal(one.actions.discrete, two.actions.discrete)
    assert not np.array_equal(one.actions.continuous, other.actions.continuous)
    assert not np.array_equal(one.actions.discrete, other.actions.discrete)


def test_gaussian_policy_acts_as_it_did_before_there_was_a_second_distribution():
    """Recorded; to 1e-5, since another processor may round otherwise. Choices and the next number of the generator are exact."""
    policy, _ = policy_and_weights(BehaviorSpec(OBS, ACTIONS["hybrid"]))
    rng = np.random.default_rng(12)
    out = policy.act({"obs": np.array([[1, 0, -1], [0.5, 2, 0.25], [-3, 0, 1]], np.float32)}, rng)
    continuous = [0.96523046, 0.88774633, 5.698493, -0.53009367, -0.46506706, 0.78281629]
    np.testing.assert_allclose(out.actions.continuous.ravel(), continuous, atol=1e-5)
    np.testing.assert_array_equal(out.actions.discrete.ravel(), [0, 0, 1])
    np.testing.assert_allclose(out.log_prob, [-3.8910718, -6.8879299, -2.716769], atol=1e-5)
    np.testing.assert_allclose(out.entropy, [4.4667988, 4.3813725, 3.8362322], atol=1e-5)
    assert rng.random() == 0.23054124658990593


def test_slots_of_agents_change_nothing_in_a_gaussian_policy():
    spec = BehaviorSpec(OBS, ACTIONS["hybrid"])
    policy, _ = policy_and_weights(spec)
    obs = observe(spec, np.random.default_rng(0), 4)
    with_slots = policy.act(obs, np.random.default_rng(1), agent_id=np.array([5, 0, 2, 3]), first=np.ones(4, bool))
    without = policy.act(obs, np.random.default_rng(1))
    np.testing.assert_array_equal(with_slots.actions.continuous, without.actions.continuous)
    np.testing.assert_array_equal(with_slots.actions.discrete, without.actions.discrete)


def test_nobody_to_act_for():
    spec = BehaviorSpec(TWO_OBS, ACTIONS["hybrid"])
    policy, _ = policy_and_weights(spec)
    out = policy.act(observe(spec, np.random.default_rng(0), 0), np.random.default_rng(0))
    assert out.actions.continuous.shape == (0, 2) and out.actions.discrete.shape == (0, 1) and out.log_prob.shape == (0,)


def test_masked_actions_are_never_taken():
    """C63: sampled and deterministic; the log-prob is that of the distribution over what is allowed."""
    spec = BehaviorSpec(OBS, ACTIONS["multi_discrete"])
    policy, weights = policy_and_weights(spec)
    rng = np.random.default_rng(9)
    n = 500
    obs = observe(spec, rng, n)
    mask = [rng.random((n, size)) < 0.5 for size in (2, 4, 1)]
    for m in mask:
        m[np.arange(n), rng.integers(0, m.shape[1], n)] = True
    for deterministic in (False, True):
        out = policy.act(obs, rng, deterministic, np.concatenate(mask, axis=1))
        for b, m in enumerate(mask):
            assert m[np.arange(n), out.actions.discrete[:, b]].all()
    for i in range(20):
        _, branches = slow_heads(policy.architecture, weights, obs, i)
        allowed = [np.where(m[i], logits, -np.inf) for m, logits in zip(mask, branches, strict=True)]
        p = [np.exp(x) / np.exp(x).sum() for x in allowed]
        taken = [q[c] for q, c in zip(p, out.actions.discrete[i], strict=True)]
        assert out.log_prob[i] == pytest.approx(math.log(math.prod(taken)), abs=1e-5)
        assert out.entropy[i] == pytest.approx(-sum(x * math.log(x) for q in p for x in q if x > 0), abs=1e-5)


def test_masks_that_do_not_fit_are_refused():
    """C63: also a row without an allowed action."""
    spec = BehaviorSpec(OBS, ACTIONS["multi_discrete"])
    policy, _ = policy_and_weights(spec)
    obs = observe(spec, np.random.default_rng(0), 2)
    for mask in (np.ones((2, 6), bool), np.ones((1, 7), bool), np.ones(7, bool), np.ones((2, 7), np.int8)):
        with pytest.raises(ValueError, match=r"Expected action_mask bool \[2, 7\], .*received (bool|int8) \["):
            policy.act(obs, np.random.default_rng(0), action_mask=mask)
    mask = np.ones((2, 7), bool)
    mask[1, 2:6] = False
    with pytest.raises(ValueError, match=r"at least one allowed action .* branch 1, .*1 of 2 rows \(first rows: \[1\]\)"):
        policy.act(obs, np.random.default_rng(0), action_mask=mask)


def test_a_policy_without_branches_takes_no_mask():
    policy, _ = policy_and_weights(BehaviorSpec(OBS, ACTIONS["box"]))
    with pytest.raises(ValueError, match=r"Expected action_mask bool \[1, 0\]"):
        policy.act({"obs": np.zeros((1, 3), np.float32)}, np.random.default_rng(0), action_mask=np.ones((1, 2), bool))


def test_observation_of_another_shape_is_refused():
    """C91."""
    policy, _ = policy_and_weights(BehaviorSpec(OBS, ACTIONS["box"]))
    with pytest.raises(ValueError, match=r"Expected observation 'obs' of shape \[n, 3\].*received \[2, 4\]"):
        policy.act({"obs": np.zeros((2, 4), np.float32)}, np.random.default_rng(0))


def test_new_weights_and_version_take_effect_together():
    spec = BehaviorSpec(OBS, ACTIONS["box"])
    policy, weights = policy_and_weights(spec, version=3)
    obs, rng = observe(spec, np.random.default_rng(0), 2), np.random.default_rng(0)
    old = policy.act(obs, rng, deterministic=True)
    for tensor in weights.values():
        tensor += 1
    again = policy.act(obs, rng, deterministic=True)  # the policy has copies
    np.testing.assert_array_equal(again.actions.continuous, old.actions.continuous)
    np.testing.assert_array_equal(again.log_prob, old.log_prob)
    policy.set_weights(weights, 4)
    assert policy.version == 4
    expected = [slow_heads(policy.architecture, weights, obs, i)[0] for i in range(2)]
    np.testing.assert_allclose(policy.act(obs, rng, deterministic=True).actions.continuous, expected, rtol=1e-6)


def test_weights_that_do_not_fit_leave_the_old_ones_in_use():
    spec = BehaviorSpec(OBS, ACTIONS["box"])
    policy, weights = policy_and_weights(spec, version=3)
    obs, rng = observe(spec, np.random.default_rng(0), 2), np.random.default_rng(0)
    old = policy.act(obs, rng, deterministic=True).actions.continuous
    for change in ({"critic/value_extrinsic/bias": np.zeros(1, np.float32)}, {"actor/log_std": np.full(2, np.nan, np.float32)}):
        with pytest.raises(ValueError, match=r"do not fit the policy \(version 4\)"):
            policy.set_weights({**weights, **change}, 4)
    assert policy.version == 3
    np.testing.assert_array_equal(policy.act(obs, rng, deterministic=True).actions.continuous, old)


def test_acting_without_weights_is_an_error():
    spec = BehaviorSpec(OBS, ACTIONS["box"])
    policy = Policy(spec, NetworkSettings())
    assert policy.version == -1
    with pytest.raises(RuntimeError, match="set_weights"):
        policy.act({"obs": np.zeros((1, 3), np.float32)}, np.random.default_rng(0))


def test_initial_weights_make_an_almost_uniform_policy():
    spec = BehaviorSpec(OBS, ACTIONS["hybrid"])
    network = NetworkSettings(normalize=True)
    weights = initial_weights(architecture(spec, network), np.random.default_rng(0), initial_std=0.5)
    policy = Policy(spec, network)
    policy.set_weights({name: weights[name] for name in policy_layout(policy.architecture)}, 0)
    out = policy.act(observe(spec, np.random.default_rng(1), 50), np.random.default_rng(2), deterministic=True)
    expected = 2 * (0.5 * math.log(2 * math.pi * math.e) + math.log(0.5)) + math.log(3)
    np.testing.assert_allclose(out.entropy, expected, atol=1e-2)
    assert (np.abs(out.actions.continuous) < 0.1).all()


def test_policy_sees_exactly_what_the_trainer_normalises():
    """C51 and C53: a policy with published statistics acts as one without a normaliser does on the trainer's inputs."""
    spec = BehaviorSpec(OBS, ACTIONS["box"])
    rng = np.random.default_rng(10)
    history = NormalizerHistory(architecture(spec, NetworkSettings(normalize=True)))
    history.update({"obs": rng.normal(size=(200, 3)).astype(np.float32) * [1000, 1, 1e-3] + [0, 5, 1800]})
    statistics = history.publish(0)
    policy, weights = policy_and_weights(spec, normalize=True)
    policy.set_weights({**weights, **statistics}, 0)
    plain = Policy(spec, NetworkSettings(hidden_units=8, activation="tanh"))
    plain.set_weights({name: w for name, w in weights.items() if not name.startswith("normalizer/")}, 0)
    obs = {"obs": (rng.normal(size=(40, 3)) * [1000, 1, 1e-3] + [0, 5, 1800]).astype(np.float32)}
    inputs = {"obs": history.normalize(obs, np.zeros(40, np.int64)).vector}
    one, two = (p.act(o, np.random.default_rng(0), deterministic=True) for p, o in ((policy, obs), (plain, inputs)))
    np.testing.assert_array_equal(one.actions.continuous, two.actions.continuous)


def test_acting_loads_neither_tensorflow_nor_ray():
    code = (
        "import sys, trainers.policy, trainers.returns, trainers.schedules, trainers.reward_scaling; "
        "print([m for m in ('tensorflow', 'ray', 'raytrain', 'keras') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
