"""The TensorFlow networks against the NumPy policy and against formulas: one network, written twice."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from envs.specs import ActionPart, hybrid_action
from tests.trainers.rollouts import ACTIONS, BOX, DISCRETE, MULTI_DISCRETE, network_of, policy_of, rollout, spec_of
from trainers import graph
from trainers.architecture import Architecture, architecture
from trainers.initial_weights import initial_weights
from trainers.inputs import network_inputs
from trainers.networks import policy_layout
from trainers.quiet_tensorflow import tf
from trainers.settings import NetworkSettings


def weights_of(arch: Architecture, seed=0, **options):
    """Initial weights, moved off their special values: no zero biases, no uniform policy."""
    rng = np.random.default_rng(seed)
    weights = initial_weights(arch, rng, **options)
    return {name: w + rng.normal(0.0, 0.3, w.shape).astype(np.float32) for name, w in weights.items()}


def log_prob_and_entropy(arch, weights, batch, entropy_reduction="sum"):
    features = graph.features(weights, tf.constant(network_inputs(arch, batch.obs).vector), [], arch, "actor")
    continuous, discrete = tf.constant(batch.continuous), tf.constant(batch.discrete)
    return graph.log_prob_and_entropy(weights, features, arch, continuous, discrete, entropy_reduction)


@pytest.mark.parametrize("activation", ["swish", "tanh", "relu", "elu"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_stored_log_probs_come_out_of_the_graph(kind, activation):
    """C10, C58: the actions of the NumPy policy have the log-probs in the training graph that were stored with them, to 1e-5."""
    spec, network = spec_of(ACTIONS[kind]), NetworkSettings(hidden_units=16, num_layers=2, activation=activation)
    arch = architecture(spec, network)
    weights = weights_of(arch)
    policy = policy_of(spec, network, {name: weights[name] for name in policy_layout(arch)})
    rng = np.random.default_rng(1)
    batch = rollout(policy, rng, [40, 24])
    log_prob, entropy = log_prob_and_entropy(arch, weights, batch)
    np.testing.assert_allclose(log_prob, batch.log_prob, atol=1e-5)
    np.testing.assert_allclose(entropy, policy.act(batch.obs, rng).entropy, atol=1e-5)


def test_entropy_reductions():
    """C56: the joint entropy is the sum over branches; uniform branches of 2 and 4 have ln 2 + ln 4, their mean is half of it."""
    spec, network = spec_of(MULTI_DISCRETE), NetworkSettings(hidden_units=8, num_layers=1)
    arch = architecture(spec, network)
    weights = {name: np.zeros_like(w) for name, w in initial_weights(arch, np.random.default_rng(0)).items()}
    policy = policy_of(spec, network, {name: weights[name] for name in policy_layout(arch)})
    batch = rollout(policy, np.random.default_rng(1), [5])
    for reduction, expected in (("sum", np.log(2) + np.log(4)), ("mean", (np.log(2) + np.log(4)) / 2)):
        log_prob, entropy = log_prob_and_entropy(arch, weights, batch, reduction)
        np.testing.assert_allclose(entropy, expected, atol=1e-6)
        np.testing.assert_allclose(log_prob, -np.log(2) - np.log(4), atol=1e-6)  # a joint log-prob is a sum always


def heads_only(action, mean=0.0, std=1.0, logits=()):
    """An architecture on one number, and weights whose heads give the same mean and logits whatever it is."""
    arch = architecture(spec_of(action, size=1), NetworkSettings(hidden_units=1, num_layers=0))
    weights = {name: np.zeros_like(w) for name, w in initial_weights(arch, np.random.default_rng(0)).items()}
    if action.continuous_size:
        weights["actor/mean/bias"][:], weights["actor/log_std"][:] = mean, np.log(std)
    for b, values in enumerate(logits):
        weights[f"actor/branch_{b}/bias"][:] = values
    return arch, weights


def log_prob_of(arch, weights, continuous, discrete, mask=None):
    features, mask = tf.zeros([1, 1]), None if mask is None else tf.constant([mask], tf.bool)
    actions = tf.constant([continuous], tf.float32), tf.constant([discrete], tf.int32)
    return [float(x[0]) for x in graph.log_prob_and_entropy(weights, features, arch, *actions, action_mask=mask)]


def test_joint_log_prob_of_branches():
    """C56: the old policy gives the branches' choices 0.5 and 0.25, so -2.07944; the new one 0.6 and 0.2: ratio 0.96."""
    old = heads_only(MULTI_DISCRETE, logits=[np.log([0.5, 0.5]), np.log([0.25, 0.25, 0.25, 0.25])])
    new = heads_only(MULTI_DISCRETE, logits=[np.log([0.6, 0.4]), np.log([0.2, 0.3, 0.3, 0.2])])
    before, after = (log_prob_of(*policy, [], [0, 0])[0] for policy in (old, new))
    assert before == pytest.approx(-2.07944, abs=1e-5)
    assert np.exp(after - before) == pytest.approx(0.96, abs=1e-6)
    entropy = log_prob_of(*new, [], [0, 0])[1]
    assert entropy == pytest.approx(-sum(p * np.log(p) for p in (0.6, 0.4, 0.2, 0.3, 0.3, 0.2)), abs=1e-6)


def test_joint_log_prob_of_a_hybrid_action():
    """C56: Tuple(Box(2), Discrete(3)): densities of both dimensions and the choice's probability multiply, entropies add."""
    action = hybrid_action([ActionPart((0,), BOX), ActionPart((1,), DISCRETE)])
    arch, weights = heads_only(action, mean=[0.5, -1.0], std=[1.0, 2.0], logits=[np.log([0.5, 0.25, 0.25])])
    density = [math.exp(-0.5 * z * z) / (std * math.sqrt(2 * math.pi)) for z, std in ((0.3, 1.0), (0.8, 2.0))]
    log_prob, entropy = log_prob_of(arch, weights, [0.8, 0.6], [1])
    assert log_prob == pytest.approx(math.log(density[0] * density[1] * 0.25), abs=1e-5)
    gaussians = sum(0.5 * math.log(2 * math.pi * math.e * std * std) for std in (1.0, 2.0))
    assert entropy == pytest.approx(gaussians + 1.5 * math.log(2), abs=1e-5)


def test_masked_choices_have_probability_and_gradient_0():
    """C63: logits (1, 2, 3), mask (1, 0, 1) -> p (0.11920, 0, 0.88080), entropy 0.36533; the masked logit has gradient 0."""
    logits, allowed = tf.constant([[1.0, 2.0, 3.0]]), tf.constant([[True, False, True]])
    p = tf.exp(graph.masked_log_softmax(logits, allowed)).numpy()[0]
    np.testing.assert_allclose(p, [0.11920, 0.0, 0.88080], atol=5e-6)
    assert p[1] == 0.0
    arch, weights = heads_only(DISCRETE, logits=[[1.0, 2.0, 3.0]])
    log_prob, entropy = log_prob_of(arch, weights, [], [2], [True, False, True])
    assert (log_prob, entropy) == (pytest.approx(math.log(0.88080), abs=1e-5), pytest.approx(0.36533, abs=1e-5))
    with tf.GradientTape() as tape:
        tape.watch(logits)
        log_p = graph.masked_log_softmax(logits, allowed)
        total = log_p[0, 2] - 0.1 * tf.reduce_sum(tf.exp(log_p) * log_p)
    gradient = tape.gradient(total, logits).numpy()[0]
    assert gradient[1] == 0.0
    assert gradient[0] == pytest.approx(-gradient[2], abs=1e-6) and abs(gradient[0]) > 0.05


def test_masks_of_branches_do_not_touch_each_other():
    """Branches of 2 and 4 choices: each is renormalised over its own allowed ones."""
    arch, weights = heads_only(MULTI_DISCRETE, logits=[[0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    mask = [True, False, True, False, True, True]
    assert log_prob_of(arch, weights, [], [0, 3], mask)[0] == pytest.approx(-math.log(3), abs=1e-6)
    assert log_prob_of(arch, weights, [], [0, 3])[0] == pytest.approx(-math.log(8), abs=1e-6)


def test_thousands_of_masked_choices_stay_finite():
    """One allowed choice of 5,000 has probability 1, entropy 0 and finite gradients, whatever the other logits."""
    rng = np.random.default_rng(0)
    logits = tf.constant(rng.normal(0.0, 100.0, (2, 5_000)), tf.float32)
    allowed = np.zeros((2, 5_000), bool)
    allowed[0, 7], allowed[1, [3, 4_000]] = True, True
    with tf.GradientTape() as tape:
        tape.watch(logits)
        log_p = graph.masked_log_softmax(logits, tf.constant(allowed))
        entropy = -tf.reduce_sum(tf.exp(log_p) * log_p, axis=1)
    assert float(log_p[0, 7]) == 0.0
    assert float(entropy[0]) == 0.0
    assert np.isfinite(tape.gradient(entropy, logits)).all()
    np.testing.assert_array_equal(tf.exp(log_p).numpy()[~allowed], 0.0)


@pytest.mark.parametrize("shared_critic", [False, True])
def test_values_agree_with_numpy(shared_critic):
    """Two signals: ``[M, 2]``; a shared critic sits on the actor's body."""
    arch = architecture(spec_of(MULTI_DISCRETE), NetworkSettings(hidden_units=16, num_layers=2, activation="tanh"))
    signals = ("extrinsic", "curiosity")
    weights = weights_of(arch, value_signals=signals, shared_critic=shared_critic)
    x = np.random.default_rng(3).standard_normal((9, 3)).astype(np.float32)
    scope, hidden = "actor" if shared_critic else "critic", x
    for i in range(2):
        hidden = np.tanh(hidden @ weights[f"{scope}/dense_{i}/kernel"] + weights[f"{scope}/dense_{i}/bias"])
    heads = [hidden @ weights[f"critic/value_{s}/kernel"] + weights[f"critic/value_{s}/bias"] for s in signals]
    value = graph.values(weights, graph.features(weights, tf.constant(x), [], arch, scope), arch, signals)
    assert value.shape == (9, 2)
    np.testing.assert_allclose(value, np.concatenate(heads, axis=1), atol=1e-5)


# -- the recurrent layer ----------------------------------------------------------------------------------------------


def lstm_tensors(lead=(), sequences=3, length=5, inputs=4, units=2, seed=0):
    """Kernel, recurrent kernel, bias, inputs and memories."""
    rng = np.random.default_rng(seed)
    shapes = ((inputs, 4 * units), (units, 4 * units), (4 * units,), (sequences, length, inputs), (sequences, 2 * units))
    return [tf.constant(rng.standard_normal((*lead, *shape)), tf.float32) for shape in shapes]


def slow_lstm(kernel, recurrent_kernel, bias, x, memory):
    """Step by step with ordinary operations, whose gradients TensorFlow knows."""
    h, c = tf.split(memory, 2, axis=1)
    outputs, memories = [], []
    for t in range(x.shape[1]):
        i, f, g, o = tf.split(x[:, t] @ kernel + h @ recurrent_kernel + bias, 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        outputs.append(h)
        memories.append(tf.concat([h, c], axis=1))
    return tf.stack(outputs, axis=1), tf.stack(memories, axis=1)


@pytest.mark.parametrize("what", ["outputs", "memories"])
def test_lstm_and_its_gradient(what):
    """Against one written with ordinary operations, also where a loss stands on the memories."""
    tensors, results = lstm_tensors(), []
    for function in (graph.lstm, slow_lstm):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs, memories = function(*tensors)
            y = outputs if what == "outputs" else memories
            loss = tf.reduce_sum(tf.sin(3.0 * y) * np.random.default_rng(1).random(y.shape))
        results.append([outputs, memories, *tape.gradient(loss, tensors)])
    for ours, expected in zip(*results, strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_lstm_layers_side_by_side():
    """With an axis in front, two layers give what each gives alone, gradients included."""
    tensors, alone = lstm_tensors((2,)), []
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        together = graph.lstm(*tensors)[0]
    gradients = tape.gradient(together, tensors)
    for k in range(2):
        one = [x[k] for x in tensors]
        with tf.GradientTape() as tape:
            tape.watch(one)
            alone = graph.lstm(*one)[0]
        np.testing.assert_allclose(together[k], alone, atol=1e-6)
        for both, single in zip(gradients, tape.gradient(alone, one), strict=True):
            np.testing.assert_allclose(both[k], single, atol=1e-5)


def test_padding_at_the_end_changes_nothing_before_it():
    """C67, C68: 3 of 5 steps, then 1e6: outputs and memories of the real steps equal an unpadded run to 1e-6, gradients too."""
    kernel, recurrent, bias, x, memory = lstm_tensors()
    padded = tf.concat([x[:, :3], tf.fill([3, 2, 4], 1e6)], axis=1)
    results = []
    for inputs in (x[:, :3], padded):
        with tf.GradientTape() as tape:
            tape.watch([kernel, recurrent, bias, memory])
            outputs, memories = graph.lstm(kernel, recurrent, bias, inputs, memory)
            loss = tf.reduce_sum(tf.square(outputs[:, :3]))
        results.append([outputs[:, :3], memories[:, :3], *tape.gradient(loss, [kernel, recurrent, bias, memory])])
    for alone, with_padding in zip(*results, strict=True):
        np.testing.assert_allclose(with_padding, alone, atol=1e-6)


# -- dense layers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 3, 8, 9])
def test_narrow_heads_have_the_gradient_of_a_matrix_product(outputs):
    """The hand-written gradient of narrow layers, and the ordinary one of wider layers, in float32."""
    rng = np.random.default_rng(outputs)
    shapes = ((20, 6), (6, outputs), (outputs,), (20, outputs))
    x, kernel, bias, seed = (tf.constant(rng.standard_normal(shape), tf.float32) for shape in shapes)
    layer = graph.Dense("head", 6, outputs, 1.0)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, kernel, bias])
        ours = tf.reduce_sum(seed * graph.head({"head/kernel": kernel, "head/bias": bias}, x, layer))
        plain = tf.reduce_sum(seed * (tf.matmul(x, kernel) + bias))
    assert float(ours) == pytest.approx(float(plain), rel=1e-6)
    for a, b in zip(tape.gradient(ours, [x, kernel, bias]), tape.gradient(plain, [x, kernel, bias]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_trainers_load_neither_ray_nor_the_system():
    """The layers of the design: learning knows nothing of what runs it."""
    code = "import sys, trainers.ppo; print([m for m in ('ray', 'raytrain') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("network", "expected"), [
    ({"vis_encode_type": "match3"}, False), ({"vis_encode_type": "fully_connected"}, True), ({"model": "a.module:factory"}, False),
], ids=["convolutions", "dense layers", "a model of the user's"])
def test_what_xla_compiles(network, expected):
    assert graph.compile_with_xla(architecture(spec_of(DISCRETE, observations="dict"), network_of(**network))) == expected

