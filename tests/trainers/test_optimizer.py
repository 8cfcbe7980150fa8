"""Adam against the paper and against Keras, and gradient clipping."""

from __future__ import annotations

import numpy as np
import pytest

from trainers.optimizer import AdamState, adam, clip_by_global_norm, global_norm
from trainers.quiet_tensorflow import tf


def gradients(steps: int, size: int = 7) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.standard_normal((steps, size)) * np.logspace(-4, 1, size)).astype(np.float32)


def run(parameters: np.ndarray, steps: np.ndarray, learning_rate: float, epsilon: float) -> tuple[np.ndarray, AdamState]:
    theta = tf.constant(parameters)
    state = AdamState(tf.zeros_like(theta), tf.zeros_like(theta), tf.constant(0, tf.int64))
    for g in steps:
        theta, state = adam(theta, tf.constant(g), state, tf.constant(learning_rate), epsilon)
    return theta.numpy(), state


@pytest.mark.parametrize("epsilon", [1e-8, 1e-5, 1e-1])
def test_agrees_with_algorithm_1_in_float64(epsilon):
    """Kingma & Ba 2015, algorithm 1, line by line; a large ε shows where it stands."""
    steps = gradients(60)
    theta, m, v = np.linspace(-1, 1, 7), np.zeros(7), np.zeros(7)
    for t, g in enumerate(steps.astype(np.float64), start=1):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        theta = theta - 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + epsilon)
    ours, state = run(np.linspace(-1, 1, 7).astype(np.float32), steps, 0.01, epsilon)
    np.testing.assert_allclose(ours, theta, atol=2e-6)
    assert int(state.step) == 60


def test_agrees_with_keras():
    """Keras adds ε before the bias correction of the root, so the two agree where ε does not matter."""
    import keras

    steps = gradients(30)
    variable = keras.Variable(np.linspace(-1, 1, 7).astype(np.float32))
    theirs = keras.optimizers.Adam(learning_rate=0.01, epsilon=1e-12)
    theirs.build([variable])
    for g in steps:
        theirs.apply([tf.constant(g)])
    ours, _ = run(np.linspace(-1, 1, 7).astype(np.float32), steps, 0.01, 1e-12)
    np.testing.assert_allclose(ours, variable.numpy(), atol=5e-6)


def test_first_step_is_the_learning_rate_in_the_direction_of_the_sign():
    """With both corrections the first step is α·g/(|g| + ε), whatever the size of g."""
    ours, _ = run(np.zeros(3, np.float32), np.array([[1e-4, -3.0, 50.0]], np.float32), 0.01, 1e-12)
    np.testing.assert_allclose(ours, [-0.01, 0.01, -0.01], rtol=1e-5)


def test_learning_rate_0_leaves_parameters_to_the_bit():
    """C23: moments move, parameters do not."""
    start = np.linspace(-1, 1, 7).astype(np.float32)
    ours, state = run(start, gradients(5), 0.0, 1e-5)
    np.testing.assert_array_equal(ours, start)
    assert np.abs(state.m).max() > 0.0


def test_steps_beyond_int32_stay_finite():
    """C55: the step count is int64 and both corrections are 1 there."""
    theta = tf.constant(np.ones(3, np.float32))
    state = AdamState(tf.zeros(3), tf.zeros(3), tf.constant(2_147_483_646, tf.int64))
    for _ in range(3):
        theta, state = adam(theta, tf.ones(3), state, tf.constant(0.01), 1e-5)
    assert int(state.step) == 2_147_483_649
    assert np.isfinite(theta).all()
    assert (theta.numpy() < 1.0).all()


def test_gradient_above_the_limit_is_scaled_to_it():
    """Pascanu et al. 2013: (3, 4) has norm 5; clipped to 0.5 it is (0.3, 0.4)."""
    gradient = tf.constant([3.0, 4.0])
    norm = global_norm(gradient)
    assert float(norm) == pytest.approx(5.0)
    np.testing.assert_allclose(clip_by_global_norm(gradient, norm, 0.5), [0.3, 0.4], rtol=1e-6)


def test_gradient_below_the_limit_is_left_alone():
    gradient = tf.constant([0.03, 0.04, 0.0])
    np.testing.assert_array_equal(clip_by_global_norm(gradient, global_norm(gradient), 0.5), gradient)
    zero = tf.zeros(3)
    np.testing.assert_array_equal(clip_by_global_norm(zero, global_norm(zero), 0.5), zero)
