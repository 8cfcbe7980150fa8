"""Several recurrent layers in one loop against one after another, each a loop of its own."""

from __future__ import annotations

import numpy as np
import pytest

from trainers import graph
from trainers.graph import tf
from trainers.recurrence import lstms

SEQUENCES, LENGTH, UNITS = 3, 6, 5
WIDTHS = (4, 4, 2)  # of the inputs of three layers


def random(rng: np.random.Generator, *shape: int) -> tf.Tensor:
    return tf.constant(rng.standard_normal(shape), tf.float32)


def layers(rng: np.random.Generator) -> tuple[list[tf.Tensor], ...]:
    """Kernels, recurrent kernels, biases and inputs."""
    return (
        [random(rng, width, 4 * UNITS) for width in WIDTHS], [random(rng, UNITS, 4 * UNITS) for _ in WIDTHS],
        [random(rng, 4 * UNITS) for _ in WIDTHS], [random(rng, SEQUENCES, LENGTH, width) for width in WIDTHS],
    )


@pytest.mark.parametrize("trained", [None, 2])
@pytest.mark.parametrize("cut", [0, 2])
def test_agrees_with_one_layer_after_another(cut, trained):
    """Outputs and every gradient; those that stop at a step, and layers that get none."""
    rng = np.random.default_rng(0)
    tensors, memory, of_output = layers(rng), random(rng, 3, SEQUENCES, 2 * UNITS), random(rng, 3, SEQUENCES, LENGTH, UNITS)
    keeps = tf.constant([True, False, True])
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        outputs = lstms(*tensors, memory, keeps, cut, trained)
        total = tf.reduce_sum(outputs * of_output)
    found = tape.gradient(total, tensors)
    assert outputs.shape == (3, SEQUENCES, LENGTH, UNITS)

    with tf.GradientTape() as tape:
        tape.watch(tensors)
        total, expected = 0.0, []
        for layer, (kernel, recurrent, bias, x) in enumerate(zip(*tensors, strict=True)):
            first, memories = graph.lstm(kernel, recurrent, bias, x[:, :cut], memory[layer]) if cut else (x[:, :0, :0], memory[layer][:, None])
            before = tf.where(keeps[:, None], memories[:, -1], tf.stop_gradient(memories[:, -1]))
            rest, _ = graph.lstm(kernel, recurrent, bias, x[:, cut:], before)
            expected.append(tf.concat([first, rest], axis=1) if cut else rest)
            if layer < (trained or 3):
                total += tf.reduce_sum(expected[-1] * of_output[layer])
    wanted = tape.gradient(total, tensors, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    np.testing.assert_allclose(outputs, tf.stack(expected), atol=1e-6)
    for ours, theirs in zip(found, wanted, strict=True):
        for layer in range(3):
            np.testing.assert_allclose(ours[layer], theirs[layer], atol=5e-6)


def test_the_memory_gets_no_gradient():
    rng = np.random.default_rng(0)
    memory = random(rng, 3, SEQUENCES, 2 * UNITS)
    with tf.GradientTape() as tape:
        tape.watch(memory)
        total = tf.reduce_sum(lstms(*layers(rng), memory, tf.ones(SEQUENCES, tf.bool)))
    assert tape.gradient(total, memory) is None


def test_what_comes_later_does_not_reach_back():
    """C67: numbers of 1e6 behind the third step."""
    rng = np.random.default_rng(0)
    (*weights, x), memory, keeps = layers(rng), random(rng, 3, SEQUENCES, 2 * UNITS), tf.ones(SEQUENCES, tf.bool)
    late = [tf.concat([part[:, :3], 1e6 * tf.ones_like(part[:, 3:])], axis=1) for part in x]
    plain, padded = (lstms(*weights, inputs, memory, keeps, 2) for inputs in (x, late))
    np.testing.assert_array_equal(plain[:, :, :3], padded[:, :, :3])
    assert np.abs(plain[:, :, 3:] - padded[:, :, 3:]).max() > 0.1
