"""The TensorFlow networks against the NumPy policy: one network, written twice."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests.trainers.rollouts import ACTIONS, MULTI_DISCRETE, policy_of, rollout, spec_of
from trainers import graph
from trainers.graph import tf
from trainers.networks import body_layers, initial_weights, network_inputs, policy_layout
from trainers.settings import NetworkSettings


def weights_of(spec, network, seed=0, **options):
    """Initial weights, moved off their special values: no zero biases, no uniform policy."""
    rng = np.random.default_rng(seed)
    weights = initial_weights(spec, network, rng, **options)
    return {name: w + rng.normal(0.0, 0.3, w.shape).astype(np.float32) for name, w in weights.items()}


def graph_log_prob(spec, network, weights, batch, entropy_reduction="sum"):
    features = graph.body(weights, tf.constant(network_inputs(spec, batch.obs)), body_layers(spec, network), network.activation)
    continuous, discrete = tf.constant(batch.continuous), tf.constant(batch.discrete)
    return graph.log_prob_and_entropy(weights, features, spec, network, continuous, discrete, entropy_reduction)


@pytest.mark.parametrize("activation", ["swish", "tanh", "relu", "elu"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_stored_log_probs_come_out_of_the_graph(kind, activation):
    """C10, C58: the actions of the NumPy policy have the log-probs in the training graph that were stored with them, to 1e-5."""
    spec, network = spec_of(ACTIONS[kind]), NetworkSettings(hidden_units=16, num_layers=2, activation=activation)
    weights = weights_of(spec, network)
    acting = {name: weights[name] for name in policy_layout(spec, network)}
    policy, rng = policy_of(spec, network, acting), np.random.default_rng(1)
    batch = rollout(policy, rng, [40, 24])
    log_prob, entropy = graph_log_prob(spec, network, weights, batch)
    np.testing.assert_allclose(log_prob, batch.log_prob, atol=1e-5)
    np.testing.assert_allclose(entropy, policy.act(batch.obs, rng).entropy, atol=1e-5)


def test_entropy_reductions():
    """C56: the joint entropy is the sum over branches; uniform branches of 2 and 4 have ln 2 + ln 4, their mean is half of it."""
    spec, network = spec_of(MULTI_DISCRETE), NetworkSettings(hidden_units=8, num_layers=1)
    weights = {name: np.zeros_like(w) for name, w in initial_weights(spec, network, np.random.default_rng(0)).items()}
    acting = {name: weights[name] for name in policy_layout(spec, network)}
    batch = rollout(policy_of(spec, network, acting), np.random.default_rng(1), [5])
    for reduction, expected in (("sum", np.log(2) + np.log(4)), ("mean", (np.log(2) + np.log(4)) / 2)):
        log_prob, entropy = graph_log_prob(spec, network, weights, batch, reduction)
        np.testing.assert_allclose(entropy, expected, atol=1e-6)
        np.testing.assert_allclose(log_prob, -np.log(2) - np.log(4), atol=1e-6)  # a joint log-prob is a sum always


@pytest.mark.parametrize("shared_critic", [False, True])
def test_values_agree_with_numpy(shared_critic):
    """Two signals: ``[M, 2]``; a shared critic sits on the actor's body."""
    spec, network = spec_of(MULTI_DISCRETE), NetworkSettings(hidden_units=16, num_layers=2, activation="tanh")
    signals = ("extrinsic", "curiosity")
    weights = weights_of(spec, network, value_signals=signals, shared_critic=shared_critic)
    x = np.random.default_rng(3).standard_normal((9, 3)).astype(np.float32)
    scope, hidden = "actor" if shared_critic else "critic", x
    for i in range(2):
        hidden = np.tanh(hidden @ weights[f"{scope}/dense_{i}/kernel"] + weights[f"{scope}/dense_{i}/bias"])
    heads = [hidden @ weights[f"critic/value_{s}/kernel"] + weights[f"critic/value_{s}/bias"] for s in signals]
    value = graph.values(weights, tf.constant(x), spec, network, signals, shared_critic)
    assert value.shape == (9, 2)
    np.testing.assert_allclose(value, np.concatenate(heads, axis=1), atol=1e-5)
    features = graph.body(weights, tf.constant(x), body_layers(spec, network, "actor"), "tanh")
    again = graph.values(weights, tf.constant(x), spec, network, signals, shared_critic, features)
    np.testing.assert_array_equal(again, value)


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


def test_trainers_load_neither_ray_nor_the_system():
    """The layers of the design: learning knows nothing of what runs it."""
    code = "import sys, trainers.ppo; print([m for m in ('ray', 'raytrain') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
