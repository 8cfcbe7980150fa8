"""What agents remember, and a step of the recurrent layer against loops and against TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest

from tests.trainers.policies import fill, slow_lstm
from trainers.agent_memory import AgentMemory, LstmStep
from trainers.networks import Lstm

LAYER = Lstm("actor/lstm", 3, 4)


def slots(*agents):
    return np.array(agents, np.int64)


def test_memory_is_that_of_the_slot():
    memory = AgentMemory(2)
    assert not memory.recall(slots(4, 1), None, 2).any(), "of agents that were never seen"
    memory.store(slots(4, 1), np.array([[1, 2], [3, 4]], np.float32))
    np.testing.assert_array_equal(memory.recall(slots(1, 0, 4), None, 3), [[3, 4], [0, 0], [1, 2]])
    memory.store(slots(1), np.array([[5, 6]], np.float32))
    np.testing.assert_array_equal(memory.recall(slots(9, 4, 1), None, 3), [[0, 0], [1, 2], [5, 6]])


def test_memory_is_zero_at_the_first_step_of_an_episode():
    """C70: for the agent whose episode begins, and only for it; nothing changes before the step is stored."""
    memory = AgentMemory(2)
    memory.recall(slots(0, 1), None, 2)
    memory.store(slots(0, 1), np.array([[1, 2], [3, 4]], np.float32))
    np.testing.assert_array_equal(memory.recall(slots(0, 1), np.array([False, True]), 2), [[1, 2], [0, 0]])
    np.testing.assert_array_equal(memory.recall(slots(0, 1), None, 2), [[1, 2], [3, 4]])


def test_what_is_recalled_belongs_to_the_caller():
    memory = AgentMemory(2)
    one = memory.recall(slots(0), None, 1)
    one[:] = 7
    assert not memory.recall(slots(0), None, 1).any()
    memory.store(slots(0), one)
    one[:] = 8
    np.testing.assert_array_equal(memory.recall(slots(0), None, 1), [[7, 7]])
    assert memory.recall(np.empty(0, np.int64), None, 0).shape == (0, 2)


def test_slots_are_checked():
    with pytest.raises(ValueError, match="at least 0, received -1"):
        AgentMemory(2).recall(slots(-1), None, 1)


@pytest.mark.parametrize("layer", [LAYER, Lstm("actor/lstm", 5, 1), Lstm("actor/lstm", 1, 64)])
def test_steps_agree_with_loops(layer):
    rng, weights = np.random.default_rng(0), fill(layer.layout)
    lstm = LstmStep(layer)
    prepared = lstm.prepare(weights)
    memory, expected = np.zeros((3, 2 * layer.units), np.float32), [[0.0] * 2 * layer.units] * 3
    for _ in range(5):
        x = rng.normal(size=(3, layer.inputs)).astype(np.float32)
        memory = lstm.step(prepared, x, memory.copy())
        expected = [slow_lstm(weights, [float(v) for v in x[i]], expected[i]) for i in range(3)]
        assert memory.dtype == np.float32
        np.testing.assert_allclose(memory, expected, atol=2e-6)


def test_sequences_agree_with_tensorflow():
    """To 1e-6 after each of 20 steps: memory and outputs."""
    from trainers.graph import lstm
    from trainers.quiet_tensorflow import tf

    layer = Lstm("actor/lstm", 16, 32)
    rng, weights = np.random.default_rng(1), fill(layer.layout, scale=0.2)
    x = rng.normal(size=(6, 20, 16)).astype(np.float32)
    start = rng.normal(size=(6, 64)).astype(np.float32)
    outputs, memories = lstm(*(tf.constant(weights[name]) for name in layer.layout), tf.constant(x), tf.constant(start))
    step = LstmStep(layer)
    prepared, memory = step.prepare(weights), start
    for t in range(20):
        memory = step.step(prepared, x[:, t], memory.copy())
        np.testing.assert_allclose(memory, memories[:, t], atol=1e-6)
        np.testing.assert_allclose(memory[:, :32], outputs[:, t], atol=1e-6)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [30.0, 1e4])
def test_saturated_gates_neither_warn_nor_leak(size):
    """Forget gate open, input gate shut: the cell stays to the last bit. The other way round: it is overwritten."""
    weights = {name: np.zeros(shape, np.float32) for name, shape in LAYER.layout.items()}
    step, memory = LstmStep(LAYER), np.random.default_rng(2).normal(size=(2, 8)).astype(np.float32)
    x = np.zeros((2, 3), np.float32)
    weights[LAYER.bias][:4], weights[LAYER.bias][4:8] = -size, size
    np.testing.assert_array_equal(step.step(step.prepare(weights), x, memory)[:, 4:], memory[:, 4:])
    weights[LAYER.bias][:] = np.repeat([size, -size, size, size], 4)
    np.testing.assert_allclose(step.step(step.prepare(weights), x, memory), [[np.tanh(1)] * 4 + [1.0] * 4] * 2, rtol=1e-6)


def test_rows_and_batches_of_any_size_are_alike():
    weights, rng = fill(LAYER.layout), np.random.default_rng(3)
    step = LstmStep(LAYER)
    prepared = step.prepare(weights)
    x, memory = rng.normal(size=(40, 3)).astype(np.float32), rng.normal(size=(40, 8)).astype(np.float32)
    alone = np.concatenate([step.step(prepared, x[i : i + 1], memory[i : i + 1]).copy() for i in range(40)])
    for n in (40, 1, 7, 40):
        np.testing.assert_allclose(step.step(prepared, x[:n], memory[:n]), alone[:n], atol=1e-6)
    assert step.step(prepared, x[:0], memory[:0]).shape == (0, 8)


def test_weights_are_copied():
    weights = fill(LAYER.layout)
    step, memory, x = LstmStep(LAYER), np.ones((1, 8), np.float32), np.ones((1, 3), np.float32)
    before = {name: w.copy() for name, w in weights.items()}
    prepared = step.prepare(weights)
    for name, w in weights.items():
        np.testing.assert_array_equal(w, before[name])
    old = step.step(prepared, x, memory).copy()
    for w in weights.values():
        w += 1
    np.testing.assert_array_equal(step.step(prepared, x, memory), old)
