"""SAC's losses against slow float64 references written from the papers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from trainers import graph, sac_losses
from trainers.distributions import SquashedGaussian
from trainers.optimizer import AdamState, adam
from trainers.quiet_tensorflow import tf


def f32(values) -> tf.Tensor:
    return tf.constant(np.asarray(values, np.float32))


def squash_of(u, mean=None, log_std=None):
    """`squash` of given u, mean and log σ (0 where None)."""
    u = np.asarray(u, np.float64)
    mean, log_std = (np.zeros_like(u) if x is None else np.asarray(x, np.float64) for x in (mean, log_std))
    return sac_losses.squash(f32(u), f32((u - mean) / np.exp(log_std)), f32(log_std))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


# -- the squashed Gaussian --------------------------------------------------------------------------------------------


def test_log_density_of_a_squashed_gaussian():
    """C44: μ 0, σ 1: u 0 → −0.91894; u 0.5 → a = 0.46212 and −0.80371; as a density over [-2, 2] the latter is −1.49686."""
    action, log_prob = squash_of([[0.0], [0.5]])
    np.testing.assert_allclose(action[:, 0], [0.0, 0.46212], atol=5e-6)
    np.testing.assert_allclose(log_prob, [-0.91894, -0.80371], atol=5e-6)
    assert float(log_prob[1]) - math.log(2.0) == pytest.approx(-1.49686, abs=5e-6)


def test_dimensions_are_summed_never_broadcast():
    """C46: a two-dimensional unit Gaussian at 0 → −1.83788; 128 rows of 6 dimensions → ``[128]``, never ``[128, 6]``."""
    assert float(squash_of([[0.0, 0.0]])[1][0]) == pytest.approx(-1.83788, abs=5e-6)
    action, log_prob = squash_of(np.random.default_rng(0).standard_normal((128, 6)))
    assert action.shape == (128, 6)
    assert log_prob.shape == (128,)


def test_agrees_with_the_plain_formula():
    """log N(u; μ, σ²) − Σ log(1 − tanh²u), in float64."""
    rng = np.random.default_rng(1)
    mean, log_std = rng.standard_normal((50, 3)), 0.5 * rng.standard_normal((50, 3)) - 0.5
    u = mean + np.exp(log_std) * rng.standard_normal((50, 3))
    density = np.exp(-0.5 * ((u - mean) / np.exp(log_std)) ** 2) / np.sqrt(2.0 * np.pi * np.exp(2.0 * log_std))
    expected = (np.log(density) - np.log(1.0 - np.tanh(u) ** 2)).sum(axis=1)
    action, log_prob = squash_of(u, mean, log_std)
    np.testing.assert_allclose(log_prob, expected, atol=2e-5)
    np.testing.assert_allclose(action, np.tanh(u), atol=1e-6)
    ours = SquashedGaussian(mean.astype(np.float32), log_std.astype(np.float32)).log_prob(u.astype(np.float32))
    np.testing.assert_allclose(log_prob, ours, atol=2e-5)


@pytest.mark.parametrize("u", [-50.0, 50.0])
def test_saturated_action_has_a_finite_log_density_and_gradient(u):
    """1 − tanh² is 0 in float32 there; the log-density is log N − 2(ln 2 − |u|), and grows by 2 for each unit of |u|."""
    mean, log_std = f32([[u]]), f32([[0.0]])
    with tf.GradientTape() as tape:
        tape.watch([mean, log_std])
        action, log_prob = sac_losses.squash(mean + tf.exp(log_std) * 0.5, f32([[0.5]]), log_std)
        total = tf.reduce_sum(log_prob) + tf.reduce_sum(action)
    at = u + 0.5
    assert float(action[0, 0]) == math.copysign(1.0, u)
    assert float(log_prob[0]) == pytest.approx(-0.125 - 0.5 * math.log(2 * math.pi) - 2.0 * (math.log(2.0) - abs(at)), abs=1e-4)
    of_mean, of_log_std = (float(g[0, 0]) for g in tape.gradient(total, [mean, log_std]))
    assert of_mean == pytest.approx(math.copysign(2.0, u), abs=1e-5)
    assert of_log_std == pytest.approx(-1.0 + math.copysign(2.0, u) * 0.5, abs=1e-5)


# -- branches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("branches", [(3,), (2, 4), (3, 2, 2)])
def test_expectations_are_those_of_all_joint_actions(branches):
    """Q(s, a) = mean over branches of Q_b[a_b]: its expectation and the joint entropy, by enumeration; neither is sampled."""
    rng, rows, signals = np.random.default_rng(2), 5, 2
    q = [rng.standard_normal((2, rows, signals, n)) for n in branches]
    log_p = [log_softmax(rng.standard_normal((rows, n))) for n in branches]
    value, entropy = np.zeros((2, rows, signals)), np.zeros(rows)
    for joint in itertools.product(*map(range, branches)):
        log_joint = sum(branch[:, a] for branch, a in zip(log_p, joint, strict=True))
        of_joint = np.mean([q_b[..., a] for q_b, a in zip(q, joint, strict=True)], axis=0)
        value += np.exp(log_joint)[None, :, None] * of_joint
        entropy -= np.exp(log_joint) * log_joint
        one_hot = [np.tile(np.eye(n)[a], (rows, 1)) for n, a in zip(branches, joint, strict=True)]
        taken = sac_losses.taken_value([f32(x) for x in q], [f32(x) for x in one_hot])
        np.testing.assert_allclose(taken, of_joint, atol=1e-5)
    expected = sac_losses.expected_value([f32(x) for x in q], [f32(x) for x in log_p])
    assert expected.shape == (2, rows, signals)
    np.testing.assert_allclose(expected, value, atol=1e-5)
    parts = sac_losses.entropies([f32(x) for x in log_p])
    assert [part.shape for part in parts] == [(rows,)] * len(branches)
    np.testing.assert_allclose(np.sum(parts, axis=0), entropy, atol=1e-5)


def test_choice_without_probability_adds_no_entropy():
    """p → 0 gives 0, not NaN, in the value and in its gradient."""
    logits = f32([[200.0, 0.0, -200.0]])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        entropy = sac_losses.entropies([tf.nn.log_softmax(logits)])[0]
    assert float(entropy[0]) == pytest.approx(0.0, abs=1e-6)
    assert np.isfinite(tape.gradient(entropy, logits)).all()


@pytest.mark.parametrize("branches", [(3,), (2, 4), (3, 2, 2)])
def test_expectations_are_those_of_all_joint_actions_that_are_allowed(branches):
    """C63: the distribution is that of the allowed choices alone, by enumeration; nothing else has a part in value or entropy."""
    rng, rows = np.random.default_rng(4), 6
    q, logits = ([rng.standard_normal((*shape, n)) for n in branches] for shape in ((2, rows, 1), (rows,)))
    allowed = [rng.random((rows, n)) < 0.6 for n in branches]
    for mask in allowed:
        mask[np.arange(rows), rng.integers(0, mask.shape[1], rows)] = True
    log_p = [graph.masked_log_softmax(f32(x), tf.constant(mask)) for x, mask in zip(logits, allowed, strict=True)]
    value, entropy = sac_losses.expected_value([f32(x) for x in q], log_p), sac_losses.entropies(log_p)
    for row in range(rows):
        joints = list(itertools.product(*(np.flatnonzero(mask[row]) for mask in allowed)))
        weight = np.exp([sum(x[row, a] for x, a in zip(logits, joint, strict=True)) for joint in joints])
        p = weight / weight.sum()
        for twin in range(2):
            of_joint = [np.mean([x[twin, row, 0, a] for x, a in zip(q, joint, strict=True)]) for joint in joints]
            assert float(value[twin, row, 0]) == pytest.approx(p @ of_joint, abs=1e-5)
        assert sum(float(part[row]) for part in entropy) == pytest.approx(-(p * np.log(p)).sum(), abs=1e-5)


def test_c63_numbers():
    """Logits (1, 2, 3) under the mask (1, 0, 1): entropy 0.36533, and the value that of p = (0.11920, 0, 0.88080)."""
    log_p = graph.masked_log_softmax(f32([[1.0, 2.0, 3.0]]), tf.constant([[True, False, True]]))
    np.testing.assert_allclose(tf.exp(log_p), [[0.11920, 0.0, 0.88080]], atol=6e-6)
    assert float(sac_losses.entropies([log_p])[0][0]) == pytest.approx(0.36533, abs=6e-6)
    q = f32(np.broadcast_to([10.0, 1e9, 20.0], (2, 1, 1, 3)))
    np.testing.assert_allclose(sac_losses.expected_value([q], [log_p]), np.full((2, 1, 1), 18.8080), rtol=1e-5)


def test_masked_choices_have_no_gradient():
    """C63: neither their logits nor their values, through entropy and expectation, also where only one choice is left."""
    logits, mask = f32([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), tf.constant([[True, False, True], [False, True, False]])
    q = f32(np.random.default_rng(0).standard_normal((2, 2, 1, 3)))
    with tf.GradientTape() as tape:
        tape.watch([logits, q])
        log_p = graph.masked_log_softmax(logits, mask)
        total = tf.reduce_sum(sac_losses.entropies([log_p])[0]) + tf.reduce_sum(sac_losses.expected_value([q], [log_p]))
    of_logits, of_q = (g.numpy() for g in tape.gradient(total, [logits, q]))
    np.testing.assert_array_equal(of_logits == 0.0, [[False, True, False], [True, True, True]])
    np.testing.assert_array_equal(of_q == 0.0, np.broadcast_to(~mask.numpy()[None, :, None], q.shape))
    assert np.isfinite(of_logits).all()


# -- targets ----------------------------------------------------------------------------------------------------------


def test_twin_minimum_is_that_of_the_sum_over_signals():
    """Row 0: sums 4 and 3; row 1: 1 and 2. Each row has all its signals from one critic: never (1, 0), the smallest of each."""
    values = f32([[[1.0, 3.0], [0.0, 1.0]], [[3.0, 0.0], [1.0, 1.0]]])
    np.testing.assert_array_equal(sac_losses.smaller_twin(values), [[3.0, 0.0], [0.0, 1.0]])


def test_target_bootstraps_by_its_own_factor_and_has_no_gradient():
    """r + γ^k·V: bootstrap 0 at an end, 0.81 after two steps with γ = 0.9."""
    soft_value = f32([[2.0], [2.0], [2.0]])
    with tf.GradientTape() as tape:
        tape.watch(soft_value)
        y = sac_losses.value_target(f32([[1.0], [1.0], [1.0]]), f32([[0.9], [0.0], [0.81]]), soft_value)
    np.testing.assert_allclose(y, [[2.8], [1.0], [2.62]], atol=1e-6)
    assert tape.gradient(y, soft_value) is None


def test_critic_loss_is_half_the_mean_square_of_each_critic():
    rng = np.random.default_rng(3)
    q, y = rng.standard_normal((2, 7, 2)), rng.standard_normal((7, 2))
    loss = sac_losses.critic_loss(f32(q), f32(y))
    assert loss.shape == (2,)
    np.testing.assert_allclose(loss, [0.5 * np.mean((q[i] - y) ** 2) for i in range(2)], rtol=1e-5)
    assert float(sac_losses.critic_loss(f32([[[2.0]], [[0.0]]]), f32([[0.0]]))[0]) == 2.0


def test_means_over_the_rows_that_count():
    """C67: what does not count may be anything; nothing counting gives 0, not NaN."""
    x = f32([[1.0, 10.0], [1e6, -1e6], [3.0, 30.0]])
    np.testing.assert_array_equal(sac_losses.mean(x, f32([1.0, 0.0, 1.0])), [2.0, 20.0])
    np.testing.assert_array_equal(sac_losses.mean(x[:, 0], f32([0.0, 0.0, 1.0])), 3.0)
    np.testing.assert_array_equal(sac_losses.mean(x, f32([0.0, 0.0, 0.0])), [0.0, 0.0])
    np.testing.assert_array_equal(sac_losses.mean(x[:1], None), x[0])


def test_critic_loss_of_the_rows_that_count():
    rng = np.random.default_rng(5)
    q, y = rng.standard_normal((2, 7, 2)), rng.standard_normal((7, 2))
    counts = [0, 2, 3, 6]
    weight = np.isin(np.arange(7), counts).astype(np.float32)
    loss = sac_losses.critic_loss(f32(q), f32(y), f32(weight))
    np.testing.assert_allclose(loss, [0.5 * np.mean((q[i] - y)[counts] ** 2) for i in range(2)], rtol=1e-5)


# -- the entropy coefficient ------------------------------------------------------------------------------------------


def alpha_step(log_alpha: tf.Tensor, entropy, target, state: AdamState, rate: float) -> tuple[tf.Tensor, AdamState]:
    with tf.GradientTape() as tape:
        tape.watch(log_alpha)
        loss = sac_losses.entropy_coef_loss(log_alpha, f32(entropy), f32(target))
    return adam(log_alpha, tape.gradient(loss, log_alpha), state, tf.constant(rate), 1e-8)


def test_entropy_above_its_target_lowers_alpha_and_below_it_raises_alpha():
    """C47: log α = 0, mean log π = −3, target −1: the entropy, 3, is above, and log α falls. Each part has its own."""
    zeros = AdamState(tf.zeros(3), tf.zeros(3), tf.constant(0, tf.int64))
    after, _ = alpha_step(tf.zeros(3), [3.0, -3.0, 0.5], [-1.0, -1.0, 0.5], zeros, 0.1)
    np.testing.assert_allclose(after, [-0.1, 0.1, 0.0], atol=1e-6)


def test_the_loss_of_alpha_moves_nothing_but_alpha():
    """Σ log α · (H − H_target), with the gradient H − H_target; none reaches the policy through H."""
    log_alpha, entropy, target = f32([0.5, -1.0]), f32([3.0, 0.2]), f32([-1.0, 0.7])
    with tf.GradientTape() as tape:
        tape.watch([log_alpha, entropy])
        loss = sac_losses.entropy_coef_loss(log_alpha, entropy, target)
    assert float(loss) == pytest.approx(0.5 * 4.0 + -1.0 * -0.5, abs=1e-6)
    of_alpha, of_entropy = tape.gradient(loss, [log_alpha, entropy])
    np.testing.assert_allclose(of_alpha, [4.0, -0.5], atol=1e-6)
    assert of_entropy is None
