"""The compiled update against a slow one written from the papers; chunks, padding and capacity must not show in the result."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from envs.specs import BehaviorSpec, ObservationSpec
from tests.trainers import replay_check
from tests.trainers.rollouts import (
    BOX,
    DISCRETE,
    MASKED_HYBRID,
    MULTI_DISCRETE,
    network_of,
    policy_of,
    random_observations,
    rollout,
    spec_of,
)
from trainers.architecture import architecture
from trainers.initial_weights import initial_weights
from trainers.inputs import NetworkInputs
from trainers.networks import policy_layout
from trainers.ppo_graph import STATISTICS
from trainers.ppo_update import Coefficients, PPOProgram, PPORows, _tensors, tf
from trainers.settings import NetworkSettings, PPOHyperparameters

NETWORK = NetworkSettings(hidden_units=8, num_layers=1, activation="tanh")
NOW = Coefficients(learning_rate=0.01, clip_ratio=0.2, entropy_coef=0.02)


def program_of(action=DISCRETE, max_rows=100, network=NETWORK, **hyper) -> PPOProgram:
    """A program with small networks; equal settings and capacity share the compiled code with earlier ones."""
    spec = spec_of(action)
    settings = PPOHyperparameters(**{"batch_size": 16, "buffer_size": 64, "num_epoch": 3, **hyper})
    arch = architecture(spec, network)
    return PPOProgram(arch, settings, ["extrinsic"], max_rows, initial_weights(arch, np.random.default_rng(5)))


def rows_of(program: PPOProgram, n: int, action=DISCRETE, seed=0) -> PPORows:
    """Rows that the program's own policy collected, with made-up advantages and targets."""
    spec, rng = spec_of(action), np.random.default_rng(seed)
    acting = {name: program.weights()[name] for name in policy_layout(architecture(spec, NETWORK))}
    batch = rollout(policy_of(spec, NETWORK, acting), rng, [n])
    x = NetworkInputs(batch.obs["obs"])
    advantage, target = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
    return PPORows(x, batch.continuous, batch.discrete, batch.log_prob, advantage, 2.0 * target[:, None], program.values(x))


def slow_update(program: PPOProgram, rows: PPORows, rng: np.random.Generator, batch_size: int, epochs: int):
    """One epoch and minibatch after the other with Python loops, eager gradients and Adam in float64. One discrete branch."""
    theta = {name: w.astype(np.float64) for name, w in program.weights().items()}
    m, v, sums, t = {k: 0.0 for k in theta}, {k: 0.0 for k in theta}, np.zeros(len(STATISTICS)), 0
    for order in [rng.permutation(len(rows)) for _ in range(epochs)]:
        for index in np.array_split(order, -(-len(rows) // batch_size)):
            tensors = {k: tf.constant(w, tf.float32) for k, w in theta.items()}
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                logits, value = (
                    tf.tanh(rows.inputs.vector[index] @ tensors[f"{scope}/dense_0/kernel"] + tensors[f"{scope}/dense_0/bias"])
                    @ tensors[f"{scope}/{head}/kernel"] + tensors[f"{scope}/{head}/bias"]
                    for scope, head in (("actor", "branch_0"), ("critic", "value_extrinsic"))
                )
                log_p = tf.nn.log_softmax(logits)
                r = tf.exp(tf.gather(log_p, rows.discrete[index], axis=1, batch_dims=1)[:, 0] - rows.log_prob[index])
                a = rows.advantage[index]
                policy = -tf.reduce_mean(tf.minimum(r * a, tf.clip_by_value(r, 0.8, 1.2) * a))
                old, target = rows.old_value[index], rows.target[index]
                near = old + tf.clip_by_value(value - old, -0.2, 0.2)
                critic = tf.reduce_mean(tf.maximum((value - target) ** 2, (near - target) ** 2))
                entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(log_p) * log_p, axis=1))
                total = policy + 0.5 * critic - NOW.entropy_coef * entropy
            g = {k: np.asarray(x, np.float64) for k, x in tape.gradient(total, tensors).items()}
            norm = np.sqrt(sum((x**2).sum() for x in g.values()))
            kl, clipped = np.mean(r - 1.0 - np.log(r)), np.mean(np.abs(r - 1.0) > 0.2)
            sums += [float(policy), float(critic), float(entropy), kl, clipped, norm]
            t += 1
            for k, w in theta.items():
                scaled = g[k] * min(1.0, 0.5 / norm)
                m[k], v[k] = 0.9 * m[k] + 0.1 * scaled, 0.999 * v[k] + 0.001 * scaled**2
                theta[k] = w - NOW.learning_rate * (m[k] / (1 - 0.9**t)) / (np.sqrt(v[k] / (1 - 0.999**t)) + 1e-5)
    return theta, sums / t, t


@pytest.mark.parametrize(("rows", "minibatches"), [(64, 4), (65, 5), (50, 4), (3, 1)])
def test_agrees_with_a_slow_update(rows, minibatches):
    """C43, C88: ceil(N / batch_size) minibatches of nearly equal size, every row once an epoch: 65 rows make 5 · 13."""
    program = program_of()
    batch = rows_of(program, rows)
    expected, means, steps = slow_update(program, batch, np.random.default_rng(9), 16, epochs=3)
    result = program.update(batch, NOW, np.random.default_rng(9))
    assert result.minibatches == steps == 3 * minibatches
    np.testing.assert_allclose([result.means[name] for name in STATISTICS], means, atol=2e-5)
    for name, w in program.weights().items():
        np.testing.assert_allclose(w, expected[name], atol=2e-5, err_msg=name)
    assert result.first_ratio_error < 1e-5


def everything_program() -> PPOProgram:
    """Images through convolutions, which XLA does not compile, masks and sequences."""
    spec, network = spec_of(MASKED_HYBRID, observations="dict"), network_of(memory=True, vis_encode_type="match3")
    arch = architecture(spec, network)
    settings = PPOHyperparameters(batch_size=16, buffer_size=64, num_epoch=3)
    weights = initial_weights(arch, np.random.default_rng(5))
    program = PPOProgram(arch, settings, ["extrinsic"], 70, {k: v for k, v in weights.items() if not k.startswith("normalizer")})
    program.policy = policy_of(spec, network, {name: weights[name] for name in policy_layout(arch)})
    return program


def everything_rows(program: PPOProgram) -> PPORows:
    batch = rollout(program.policy, np.random.default_rng(2), [23, 9, 1, 4, 17, 10], horizon=8)
    return replay_check.rows_of(program, program.policy.architecture, batch)


@pytest.mark.parametrize("make", [
    pytest.param((program_of, lambda program: rows_of(program, 64)), id="feed-forward"),
    pytest.param((everything_program, everything_rows), id="everything"),
])
@pytest.mark.slow
def test_size_of_chunks_changes_nothing(make):
    """Weights, optimizer state and statistics are the same to the bit, whether an update runs in one call or in twelve."""
    outcomes = []
    for chunk in (1, 5, 1_000):
        program = make[0]()
        program._chunk = lambda chunk=chunk: chunk
        calls = []
        result = program.update(make[1](program), NOW, np.random.default_rng(1), lambda calls=calls: calls.append(1))
        outcomes.append((result, program.weights(), program.adam_state(), len(calls)))
    steps = outcomes[0][0].minibatches
    assert [calls for *_, calls in outcomes] == [steps - 1, -(-steps // 5) - 1, 0]
    for result, weights, (m, v, step), _ in outcomes[1:]:
        assert result == outcomes[0][0]
        assert step == steps > 10
        for ours, first in ((weights, outcomes[0][1]), (m, outcomes[0][2][0]), (v, outcomes[0][2][1])):
            for name in first:
                np.testing.assert_array_equal(ours[name], first[name], err_msg=name)


def test_padding_of_the_buffer_changes_nothing():
    """C67: rows beyond the real ones may hold anything, NaN included."""
    clean, dirty = program_of(), program_of()
    dirty._rows["packed"][:] = np.nan
    dirty._order[:] = 7
    dirty._blocks["vector"][:] = np.nan
    rows = rows_of(clean, 33)
    np.testing.assert_array_equal(rows_of(dirty, 33).old_value, rows.old_value)
    first, second = (p.update(rows, NOW, np.random.default_rng(1)) for p in (clean, dirty))
    assert first == second
    for name, w in clean.weights().items():
        np.testing.assert_array_equal(dirty.weights()[name], w)


def test_one_trace_per_program():
    """C14: numbers of rows, coefficients and step counts are run-time values."""
    program_of(max_rows=100).compile()  # values are of blocks, whatever the capacity: traced here if by no other test
    program = program_of(max_rows=101)  # a capacity of its own, so that traces of other tests do not count
    before = program.traces
    program.compile()
    rng = np.random.default_rng(0)
    for update in range(20):
        rows = rows_of(program, int(rng.integers(1, 102)), seed=update)
        program.update(rows, Coefficients(0.01 / (update + 1), 0.2 - 0.005 * update, 0.01), rng)
    assert {name: count - before[name] for name, count in program.traces.items()} == {"learn": 1, "values": 0}


@pytest.mark.parametrize("network", [NETWORK, network_of(memory=True)], ids=["feed-forward", "lstm"])
def test_no_input_is_a_constant_of_the_compiled_program(network):
    """C14: XLA takes inputs of some operations for constants and compiles anew for each of their values, without a trace."""
    program = program_of(network=network)
    minibatches = program._minibatches(30, NOW)
    for compiled, inputs in (
        (program._compiled.learn, (program._start(), minibatches, tf.constant(3))),
        (program._compiled.values, (program._parameters, _tensors(program._blocks), tf.constant(1))),
    ):
        text = compiled.experimental_get_compiler_ir(*inputs)(stage="hlo")
        parameters = text[text.index("\nENTRY ") :].count(" parameter(")
        assert parameters == len(tf.nest.flatten(inputs))


@pytest.mark.slow
def test_images_are_turned_once():
    """Rows of several batches land in the buffer of the update with their channels last, whatever axes they are stored with."""
    for shape, turn in (((2, 6, 7), lambda x: x.transpose(0, 2, 3, 1)), ((6, 7, 2), lambda x: x), ((6, 7), lambda x: x[..., None]),
                        ((3, 2, 6, 7), lambda x: x.transpose(0, 3, 4, 1, 2).reshape(-1, 6, 7, 6))):
        spec = BehaviorSpec((ObservationSpec("obs", shape, "uint8", "image", is_uint8_image=True),), DISCRETE)
        arch = architecture(spec, network_of())
        settings = PPOHyperparameters(batch_size=4, buffer_size=8)
        program = PPOProgram(arch, settings, ["extrinsic"], 8, initial_weights(arch, np.random.default_rng(0)))
        stored = [random_observations(spec, np.random.default_rng(n), n)["obs"] for n in (3, 5)]
        parts = [NetworkInputs(np.empty((len(x), 0), np.float32), (x,)) for x in stored]
        staged = program.staged(parts)
        expected = turn(np.concatenate([part.images[0] for part in parts]))
        np.testing.assert_array_equal(staged.images[0], expected)
        assert np.shares_memory(staged.images[0], program._rows["image_0"])
        alone = program.channels_last(parts[1])
        np.testing.assert_array_equal(alone.images[0], expected[3:])
        np.testing.assert_array_equal(program.values(alone), program.values(staged)[3:])


@pytest.mark.slow
def test_larger_buffer_grows_the_capacity_once(caplog):
    """One log line and one more trace; the values of any number of inputs need none."""
    program = program_of(max_rows=63)
    program.compile()
    before = program.traces
    with caplog.at_level(logging.INFO):
        for n in (90, 112, 70):
            program.update(rows_of(program, n), NOW, np.random.default_rng(0))
    assert [record.getMessage() for record in caplog.records] == ["An update holds 90 rows, capacity was 63: compiling for 112."]
    assert program.traces["learn"] == before["learn"] + 1
    x = NetworkInputs(np.random.default_rng(0).standard_normal((9_500, 3)).astype(np.float32))
    np.testing.assert_array_equal(program.values(x)[9_400:], program.values(x.take(slice(9_400, None))))
    assert program.traces["values"] == before["values"]


def test_compiling_touches_no_state():
    program = program_of()
    program.update(rows_of(program, 40), NOW, np.random.default_rng(0))
    weights, (m, v, step) = program.weights(), program.adam_state()
    program.compile()
    for before, after in ((weights, program.weights()), (m, program.adam_state()[0]), (v, program.adam_state()[1])):
        for name in before:
            np.testing.assert_array_equal(before[name], after[name])
    assert program.adam_state()[2] == step == 9


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_target_kl_ends_the_update_after_a_whole_epoch(chunk):
    """The first epoch whose mean KL is above the limit is the last one, wherever chunks end."""
    fast = Coefficients(0.05, 0.2, 0.0)
    free, seen = program_of(), []
    free._chunk = lambda: 4  # an epoch
    learn = free._compiled.learn
    free._compiled = free._compiled._replace(learn=lambda *inputs: seen.append(learn(*inputs)) or seen[-1])
    free.update(rows_of(free, 64), fast, np.random.default_rng(2))
    sums = [float(progress.sums[STATISTICS.index("kl")]) for progress in seen]
    kl = np.diff([0.0, *sums]) / 4
    assert kl[0] < kl[1], f"the epochs' KL {kl} do not suit this test"
    for limit, epochs in ((kl[0] * 0.99, 1), ((kl[0] + kl[1]) / 2, 2), (1.0, 3)):
        program = program_of(target_kl=limit)
        program._chunk = lambda: chunk
        assert program.update(rows_of(program, 64), fast, np.random.default_rng(2)).minibatches == epochs * 4


def test_minibatches_of_one_row_run():
    """C43: no statistic divides by the spread of a minibatch."""
    program = program_of(batch_size=1)
    result = program.update(rows_of(program, 9), NOW, np.random.default_rng(0))
    assert result.minibatches == 27
    assert all(np.isfinite(value) for value in result.means.values())


def test_learning_rate_0_changes_no_weight():
    """C23."""
    program = program_of()
    before = program.weights()
    program.update(rows_of(program, 64), Coefficients(0.0, 0.2, 0.02), np.random.default_rng(0))
    for name, w in program.weights().items():
        np.testing.assert_array_equal(w, before[name])


@pytest.mark.parametrize("action", [BOX, MULTI_DISCRETE])
@pytest.mark.slow
def test_every_tensor_of_every_action_space_moves(action):
    """C56: no dimension, branch or bias is left out of the loss."""
    program = program_of(action)
    before = program.weights()
    program.update(rows_of(program, 64, action), NOW, np.random.default_rng(0))
    for name, w in program.weights().items():
        assert (w != before[name]).all(), name


def test_not_finite_update_is_refused_and_changes_nothing():
    """C54: the message has the losses and tensors that broke and the extremes of the rows."""
    program = program_of()
    rows = rows_of(program, 32)
    rows.target[3] = 1e30
    before = program.weights()
    with pytest.raises(FloatingPointError, match=r"(?s)value loss.*target -?\d.* … 1e\+30"):
        program.update(rows, NOW, np.random.default_rng(0))
    assert program.adam_state()[2] == 0
    for name, w in program.weights().items():
        np.testing.assert_array_equal(w, before[name])
