"""PPO's losses against slow loops written from the papers, and what must not count in them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainers import losses
from trainers.quiet_tensorflow import tf

EPSILON = tf.constant(0.2)


def f32(*values) -> tf.Tensor:
    return tf.constant(np.array(values, np.float32))


def mean_of(rows: int) -> tf.Tensor:
    return tf.fill([rows], tf.constant(1.0 / rows))


def surrogate_by_hand(log_prob, old_log_prob, advantage, epsilon):
    total = 0.0
    for new, old, a in zip(log_prob, old_log_prob, advantage, strict=True):
        r = math.exp(new - old)
        total += min(r * a, min(max(r, 1.0 - epsilon), 1.0 + epsilon) * a)
    return -total / len(log_prob)


def value_loss_by_hand(value, old, target, epsilon):
    means = []
    for s in range(value.shape[1]):
        errors = []
        for v, o, r in zip(value[:, s], old[:, s], target[:, s], strict=True):
            clipped = o + min(max(v - o, -epsilon), epsilon)
            errors.append(max((v - r) ** 2, (clipped - r) ** 2))
        means.append(sum(errors) / len(errors))
    return sum(means) / len(means)


def test_one_ratio_per_joint_action():
    """C56: probabilities (0.5, 0.25) of two branches become (0.6, 0.2): the joint ratio is 0.96, not two ratios 1.2 and 0.8."""
    old, new = math.log(0.5) + math.log(0.25), math.log(0.6) + math.log(0.2)
    assert old == pytest.approx(-2.07944, abs=1e-5)
    log_ratio = losses.log_importance_ratio(f32(new), f32(old), f32(1.0))
    assert float(tf.exp(log_ratio)[0]) == pytest.approx(0.96, abs=1e-6)


def test_surrogate_takes_the_pessimistic_side():
    """Eq. 7 by hand: a ratio of 1.5 counts 1.2 for A > 0 and 1.5 for A < 0; of 0.5, 0.5 for A > 0 and 0.8 for A < 0."""
    for ratio, advantage, expected in ((1.5, 1.0, -1.2), (1.5, -1.0, 1.5), (0.5, 1.0, -0.5), (0.5, -1.0, 0.8), (1.1, 2.0, -2.2)):
        loss = losses.clipped_surrogate_loss(f32(ratio), f32(advantage), EPSILON, f32(1.0))
        assert float(loss) == pytest.approx(expected, abs=1e-6), (ratio, advantage)


def test_surrogate_has_no_gradient_beyond_the_clip_range():
    """Schulman et al. 2017, figure 1: no incentive to move r past 1 + ε for A > 0 or past 1 − ε for A < 0."""
    log_ratio, advantage = tf.math.log(f32(1.5, 1.5, 0.5, 0.5)), f32(1.0, -1.0, 1.0, -1.0)
    with tf.GradientTape() as tape:
        tape.watch(log_ratio)
        loss = losses.clipped_surrogate_loss(tf.exp(log_ratio), advantage, EPSILON, mean_of(4))
    np.testing.assert_allclose(tape.gradient(loss, log_ratio), [0.0, 1.5 / 4, -0.5 / 4, 0.0], atol=1e-6)


def test_losses_agree_with_loops():
    """All losses on random rows of two signals."""
    rng = np.random.default_rng(0)
    new, old, advantage = (rng.standard_normal(50) * scale for scale in (0.3, 0.3, 2.0))
    value, old_value, target = (rng.standard_normal((50, 2)) for _ in range(3))
    weight = mean_of(50)
    log_ratio = losses.log_importance_ratio(f32(*new), f32(*old), weight)
    ratio = tf.exp(log_ratio)
    surrogate = losses.clipped_surrogate_loss(ratio, f32(*advantage), EPSILON, weight)
    assert float(surrogate) == pytest.approx(surrogate_by_hand(new, old, advantage, 0.2), abs=1e-5)
    loss = losses.value_loss(f32(*value), f32(*old_value), f32(*target), EPSILON, weight)
    assert float(loss) == pytest.approx(value_loss_by_hand(value, old_value, target, 0.2), abs=1e-5)
    plain = losses.value_loss(f32(*value), f32(*old_value), f32(*target), None, weight)
    assert float(plain) == pytest.approx(np.mean((value - target) ** 2), abs=1e-5)
    kl = np.mean(np.exp(new - old) - 1.0 - (new - old))
    assert float(losses.approximate_kl(log_ratio, weight)) == pytest.approx(kl, abs=1e-5)
    clipped = np.mean(np.abs(np.exp(new - old) - 1.0) > 0.2)
    assert float(losses.clip_fraction(ratio, EPSILON, weight)) == pytest.approx(clipped, abs=1e-6)


def test_value_is_clipped_around_the_old_estimate():
    """V_old 0, V 1, R 2, ε 0.2: V_clip is 0.2 and the loss (0.2 − 2)² = 3.24; around R it would be (1 − 2)² = 1."""
    loss = losses.value_loss(f32([1.0]), f32([0.0]), f32([2.0]), EPSILON, f32(1.0))
    assert float(loss) == pytest.approx(3.24, abs=1e-5)


def test_kl_estimate_is_never_negative_and_0_for_equal_policies():
    rng = np.random.default_rng(1)
    log_ratio = f32(*rng.standard_normal(200))
    each = [float(losses.approximate_kl(log_ratio[i : i + 1], f32(1.0))) for i in range(200)]
    assert min(each) >= 0.0
    assert float(losses.approximate_kl(tf.zeros(5), mean_of(5))) == 0.0


@pytest.mark.parametrize("padding", [0.0, 1e6, -1e6])
def test_padding_counts_nothing_in_losses_and_gradients(padding):
    """C43, C67: whatever sits in rows of weight 0, losses are the same to the bit and gradients there are 0."""
    rng = np.random.default_rng(2)
    names = ("new", "old", "advantage", "value", "old_value", "target")
    columns = {name: rng.standard_normal(8).astype(np.float32) for name in names}

    def run(x: dict[str, np.ndarray], weight: np.ndarray):
        t = {name: tf.constant(column) for name, column in x.items()}
        w = tf.constant(weight)
        with tf.GradientTape() as tape:
            tape.watch(t)
            log_ratio = losses.log_importance_ratio(t["new"], t["old"], w)
            ratio = tf.exp(log_ratio)
            parts = [
                losses.clipped_surrogate_loss(ratio, t["advantage"], EPSILON, w),
                losses.value_loss(t["value"][:, None], t["old_value"][:, None], t["target"][:, None], EPSILON, w),
                losses.approximate_kl(log_ratio, w), losses.clip_fraction(ratio, EPSILON, w),
            ]
            total = tf.add_n(parts)
        gradients = tape.gradient(total, [t["new"], t["value"]])
        return [float(part) for part in parts], [g.numpy() for g in gradients]

    weight = np.concatenate([np.full(5, 0.2, np.float32), np.zeros(3, np.float32)])
    reference, reference_gradients = run(columns, weight)
    padded = {name: np.concatenate([column[:5], np.full(3, padding, np.float32)]) for name, column in columns.items()}
    padded["old"][5:] = -padding  # differences of 2e6: the exponential of a real row would be infinite
    values, gradients = run(padded, weight)
    assert values == reference
    for gradient, expected in zip(gradients, reference_gradients, strict=True):
        np.testing.assert_array_equal(gradient[:5], expected[:5])
        np.testing.assert_array_equal(gradient[5:], 0.0)
    short, _ = run({name: column[:5] for name, column in columns.items()}, weight[:5])
    np.testing.assert_allclose(values, short, atol=1e-6)
