"""PPO's graph against what was stored when its rows were acted, and padding of sequences."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from envs.specs import BehaviorSpec, ObservationSpec
from tests.trainers.replay_check import check_replay, program_of, replayed, rows_of
from tests.trainers.rollouts import (
    BOX,
    DISCRETE,
    HYBRID,
    MASKED_HYBRID,
    MASKED_MULTI_DISCRETE,
    OBSERVATIONS,
    network_of,
    policy_of,
    rollout,
    spec_of,
)
from trainers.architecture import architecture
from trainers.initial_weights import initial_weights
from trainers.inputs import network_inputs
from trainers.networks import policy_layout
from trainers.ppo_graph import tf
from trainers.ppo_memory import cut_into_sequences
from trainers.ppo_update import Coefficients

ACTIONS = {
    "box": BOX, "discrete": DISCRETE, "masked multi_discrete": MASKED_MULTI_DISCRETE, "hybrid": HYBRID, "masked hybrid": MASKED_HYBRID,
}


def acted(action, observations="vector", memory=False, lengths=(5, 1, 9, 13, 4)):
    """`acted_by` on spaces of `rollouts`."""
    return acted_by(spec_of(action, observations=observations), network_of(memory), lengths)


def acted_by(spec, network, lengths, horizon=6):
    """Architecture, weights of ordinary size, and trajectories of the policy that has them."""
    arch, rng = architecture(spec, network), np.random.default_rng(0)
    weights = {}
    for name, w in initial_weights(arch, rng).items():
        # Kernels of images smaller: residual layers add up, and tanh would say 1 to every image.
        weights[name] = 0.5 * w if w.ndim == 4 else w + rng.normal(0.0, 0.2, w.shape).astype(np.float32)
    policy = policy_of(spec, network, {name: weights[name] for name in policy_layout(arch)})
    return arch, weights, rollout(policy, rng, lengths, horizon=horizon)


@pytest.mark.parametrize("memory", [False, True], ids=["feed-forward", "lstm"])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("observations", OBSERVATIONS)
def test_stored_log_probs_and_memories_come_out_of_the_graph(observations, action, memory):
    """C10, C56, C58, C63, C66, C67: every kind of observation, action and network; some sequences are shorter than 4 rows."""
    check_replay(*acted(ACTIONS[action], observations, memory))


@pytest.mark.slow
@pytest.mark.parametrize("memory", [False, True], ids=["feed-forward", "lstm"])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("observations", OBSERVATIONS)
def test_compiled_graph_agrees_too(observations, action, memory):
    check_replay(*acted(ACTIONS[action], observations, memory), compiled=True)


ENCODERS = {
    "nature_cnn": (ObservationSpec("obs", (4, 36, 36), "uint8", "image", is_uint8_image=True), "nature_cnn"),
    "simple": (ObservationSpec("obs", (20, 21, 3), "uint8", "image", is_uint8_image=True), "simple"),
    "resnet, one colour": (ObservationSpec("obs", (15, 16), "uint8", "image", is_uint8_image=True), "resnet"),
    "match3, floats": (ObservationSpec("obs", (6, 5, 2), "float32", "image"), "match3"),
    "match3, a stack of frames": (ObservationSpec("obs", (3, 6, 7, 2), "uint8", "image", is_uint8_image=True), "match3"),
}


@pytest.mark.parametrize("kind", ENCODERS)
def test_every_encoder_and_order_of_axes(kind):
    """C60: acting and learning scale and turn images the same way, and convolve alike."""
    observation, encoder = ENCODERS[kind]
    spec, network = BehaviorSpec((observation,), DISCRETE), network_of(vis_encode_type=encoder)
    arch, weights, batch = acted_by(spec, network, (3, 2))
    check_replay(arch, weights, batch)
    other = replace(batch, obs={"obs": batch.obs["obs"][:, ::-1].copy()})
    assert np.abs(replayed(arch, weights, other)[0] - batch.log_prob).max() > 1e-4, "what is seen makes no difference here"


def own_model(inputs):
    """Of all observations of a Dict, with a convolution."""
    import keras

    x = keras.layers.Conv2D(4, 3, activation="relu")(inputs["eye"])
    parts = [keras.layers.Flatten()(x), *(x for name, x in inputs.items() if name != "eye")]
    return keras.layers.Dense(7, activation="tanh")(keras.layers.Concatenate()(parts))


@pytest.mark.parametrize("memory", [False, True], ids=["feed-forward", "lstm"])
def test_a_model_of_the_users(memory):
    """It acts and learns as other networks do: the replay check, and an update that moves each of its tensors."""
    network = network_of(memory, model=f"{__name__}:own_model")
    arch, weights, batch = acted_by(spec_of(MASKED_HYBRID, observations="dict"), network, (7, 9))
    check_replay(arch, weights, batch)
    program = program_of(arch, weights, batch.rows, batch_size=8, buffer_size=8)
    rows = rows_of(program, arch, batch)
    signal = np.random.default_rng(0).standard_normal((batch.rows, 1)).astype(np.float32)
    rows = replace(rows, advantage=signal[:, 0], target=signal)
    program.update(rows, Coefficients(0.01, 0.2, 0.01), np.random.default_rng(0))
    moved = {name for name, w in program.weights().items() if (w != weights[name]).any()}
    assert moved == program.weights().keys()
    assert {f"{scope}/model/{i}" for scope in ("actor", "critic") for i in range(4)} <= {name.rpartition("/")[0] for name in moved}


@pytest.mark.parametrize("wrong", ["after", "zeros", "inputs", "mask"])
def test_replay_check_notices(wrong):
    """Negative controls: memory after the step or none, another row's observation, a forgotten mask."""
    arch, weights, batch = acted(MASKED_MULTI_DISCRETE, memory=True)
    if wrong == "after":
        batch.memory[:-1] = batch.memory[1:].copy()
    elif wrong == "zeros":
        batch.memory[:] = 0.0
    elif wrong == "inputs":
        batch.obs["obs"] = np.roll(batch.obs["obs"], 1, axis=0)
    else:
        batch.action_mask[:] = True
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_replay(arch, weights, batch)


# -- minibatches of sequences -----------------------------------------------------------------------------------------


def minibatches_of(program, rows, order):
    program._pack(rows)
    program._order[:, : len(order)] = order
    return program._minibatches(len(rows.sequences), Coefficients(0.01, 0.2, 0.02))


def test_every_row_is_learnt_from_once_an_epoch():
    """Sequences of 4 rows, minibatches of 2 sequences: lengths differ, weights of each minibatch add up to 1 over its real rows."""
    arch, weights, batch = acted(DISCRETE, memory=True)
    program = program_of(arch, weights, batch.rows, batch_size=11)
    batch.reward[:] = np.arange(batch.rows)
    rows = replace(rows_of(program, arch, batch), advantage=batch.reward)
    assert program._graph.items == 2
    minibatches = minibatches_of(program, rows, np.random.default_rng(0).permutation(len(rows.sequences)))
    seen = []
    for number in range(int(minibatches.count)):
        minibatch = program._graph.minibatch(tf.constant(number), minibatches)
        weight = minibatch.weight.numpy()
        real = program._graph.columns_of(minibatch)["advantage"].numpy()[weight > 0, 0]
        np.testing.assert_allclose(weight[weight > 0], 1 / len(real), rtol=1e-6)
        seen += real.astype(int).tolist()
    assert sorted(seen) == list(range(batch.rows))
    assert int(minibatches.count) == -(-len(rows.sequences) // 2)


def test_what_pads_sequences_and_buffers_never_matters():
    """C67: with 1e6 or NaN wherever there is no real row, loss, statistics and gradients are the same to the bit."""
    arch, weights, batch = acted(MASKED_HYBRID, memory=True)
    outcomes = []
    for filler in (0.0, 1e6, np.nan):
        program = program_of(arch, weights, batch.rows + 10)
        for array in (program._rows["packed"], program._sequences["actor"], program._sequences["critic"]):
            array[:] = filler
        minibatches = minibatches_of(program, rows_of(program, arch, batch), np.arange(len(cut_into_sequences(batch.length, 4))))
        ours = program._graph
        with tf.GradientTape() as tape:
            tape.watch(program._parameters)
            named = ours.named(ours.tensors(program._parameters))
            loss, means, _ = ours.loss(named, ours.minibatch(tf.constant(0), minibatches), tf.constant(0.2), tf.constant(0.01))
        outcomes.append([loss.numpy(), np.array(means), tape.gradient(loss, program._parameters).numpy()])
    for other in outcomes[1:]:
        for x, expected in zip(other, outcomes[0], strict=True):
            np.testing.assert_array_equal(x, expected)


def test_a_short_sequence_counts_like_a_run_of_its_own():
    """C67: 3 rows of a sequence of 5: losses and statistics equal those of a graph whose sequences are 3 long."""
    outcomes = []
    for length in (5, 3):
        memory = {"sequence_length": length, "memory_size": 6}
        arch, weights, batch = acted_by(spec_of(DISCRETE), network_of(memory=memory), (3,), horizon=None)
        program = program_of(arch, weights, 3)
        rows = replace(rows_of(program, arch, batch), advantage=np.array([1.0, -1.0, 2.0], np.float32))
        named = program._graph.named(program._graph.tensors(program._parameters))
        minibatch = program._graph.minibatch(tf.constant(0), minibatches_of(program, rows, [0]))
        loss, means, _ = program._graph.loss(named, minibatch, tf.constant(0.2), tf.constant(0.01))
        outcomes.append([float(loss), *map(float, means)])
    np.testing.assert_allclose(outcomes[0], outcomes[1], atol=1e-6)


# -- values of a critic with a memory ---------------------------------------------------------------------------------


def slow_values(arch, weights, x, memory):
    """Value estimates of one trajectory's observations ``[T, 3]``, row by row, and the memories after each."""
    values, memories, units = [], [], arch.memory.units
    h, c = memory[:units].astype(np.float64), memory[units:].astype(np.float64)
    for row in x.astype(np.float64):
        hidden = np.tanh(row @ weights["critic/dense_0/kernel"] + weights["critic/dense_0/bias"])
        z = hidden @ weights["critic/lstm/kernel"] + h @ weights["critic/lstm/recurrent_kernel"] + weights["critic/lstm/bias"]
        i, f, g, o = np.split(z, 4)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        values.append(h @ weights["critic/value_extrinsic/kernel"] + weights["critic/value_extrinsic/bias"])
        memories.append(np.concatenate([h, c]))
    return np.array(values), np.array(memories)


def test_values_follow_trajectories():
    """C66, C68: waves of sequences, from a memory of their own on; the bootstrap is one more step; memories at each own length."""
    arch, weights, batch = acted(DISCRETE, memory=True, lengths=(6, 2, 5, 4, 1))  # lengths of sequences: 4, 2 | 2 | 4, 1 | 4 | 1
    program = program_of(arch, weights, batch.rows)
    inputs, after = (network_inputs(arch, obs) for obs in (batch.obs, batch.next_obs))
    sequences = cut_into_sequences(batch.length, 4)
    assert sequences.length.tolist() == [4, 2, 2, 4, 1, 4, 1]
    begin = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    value, bootstrap = np.full((batch.rows, 1), np.nan, np.float32), np.full((5, 1), np.nan, np.float32)
    run = functools.partial(program.sequence_values, inputs, after, sequences, value=value, bootstrap=bootstrap)
    first, second = np.array([0, 2, 3, 5, 6]), np.array([1, 4])
    memory = run(first, begin)
    memory_2 = run(second, memory[[0, 2]])
    for k, (start, length) in enumerate(zip(batch.starts, batch.length, strict=True)):
        x = np.concatenate([batch.obs["obs"][start : start + length], batch.next_obs["obs"][k : k + 1]])
        expected, memories = slow_values(arch, weights, x, begin[k])
        np.testing.assert_allclose(value[start : start + length], expected[:-1], atol=1e-5)
        np.testing.assert_allclose(bootstrap[k], expected[-1], atol=1e-5)
        np.testing.assert_allclose(memory[k], memories[min(length, 4) - 1], atol=1e-5)
        if length > 4:
            np.testing.assert_allclose(memory_2[[0, None, 1][k]], memories[length - 1], atol=1e-5)
