"""Cloning: the loss by its formula, and actors that come to do what was done."""

from __future__ import annotations

import numpy as np
import pytest

from envs.demonstrations import Demonstrations
from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from trainers.architecture import architecture
from trainers.behavioral_cloning import BehavioralCloning, CloningGraph
from trainers.initial_weights import initial_actor
from trainers.inputs import network_inputs
from trainers.policy import Policy
from trainers.quiet_tensorflow import tf
from trainers.settings import NetworkSettings

ACTIONS = {
    "box": ActionSpec("box", continuous_size=2),
    "discrete": ActionSpec("discrete", discrete_branches=(3,)),
    "hybrid": ActionSpec("hybrid", continuous_size=1, discrete_branches=(3,)),
}
NETWORK = NetworkSettings(hidden_units=32, num_layers=1, activation="tanh")


def demonstrations(action: str, n: int = 400, masked: bool = False, seed: int = 0) -> Demonstrations:
    """What is done is a function of what is seen."""
    spec = BehaviorSpec((ObservationSpec("obs", (3,)),), ACTIONS[action])
    rng = np.random.default_rng(seed)
    obs = rng.uniform(-1, 1, (n, 3)).astype(np.float32)
    discrete = obs.argmax(axis=1)[:, None].astype(np.int32) if spec.action.discrete_branches else np.zeros((n, 0), np.int32)
    continuous = np.sin(obs[:, : spec.action.continuous_size]).astype(np.float32)
    length = np.full(n // 20, 20, np.int32)
    return Demonstrations(
        spec=spec, obs={"obs": obs}, continuous=continuous, discrete=discrete, reward=np.zeros(n, np.float32), length=length,
        terminated=np.ones(len(length), bool), next_obs={"obs": obs[: len(length)]}, action_mask=None)


def cloned(d: Demonstrations, distribution: str, minibatches: int, learning_rate: float = 0.01, network=NETWORK):
    """Weights of an actor after so many minibatches, and the losses of the first and the last call."""
    arch = architecture(d.spec, network)
    actor, losses = initial_actor(arch, np.random.default_rng(1), distribution), []
    cloning = BehavioralCloning(arch, distribution, d, 64, 1, 20, lambda obs: network_inputs(arch, obs))
    for _ in range(minibatches // 20):
        actor, loss = cloning.teach(actor, 20, learning_rate, np.random.default_rng(2))
        losses.append(loss)
    return actor, losses


@pytest.mark.parametrize("distribution", ["gaussian", "squashed_gaussian"])
@pytest.mark.parametrize("action", ACTIONS)
def test_an_actor_comes_to_do_what_was_done(action, distribution):
    """On observations that it has not seen; with a learning rate of 0 it does not."""
    d, unseen = demonstrations(action), demonstrations(action, seed=9)
    wrong = {}
    for rate in (0.01, 0.0):
        actor, _ = cloned(d, distribution, 400, rate)
        policy = Policy(d.spec, NETWORK, distribution)
        policy.set_weights(actor, 0)
        out = policy.act(unseen.obs, np.random.default_rng(0), deterministic=True)
        wrong[rate] = 0.0
        if d.spec.action.continuous_size:
            wrong[rate] += float(np.abs(out.actions.continuous - unseen.continuous).mean())
        if d.spec.action.discrete_branches:
            wrong[rate] += float((out.actions.discrete != unseen.discrete).mean())
    assert wrong[0.01] < 0.15 and wrong[0.0] > 0.35, wrong


@pytest.mark.parametrize(("action", "distribution"), [("hybrid", "gaussian"), ("hybrid", "squashed_gaussian")])
def test_loss_is_that_of_the_formula(action, distribution):
    """Squared error of the mean (through tanh where squashed), summed over dimensions, and cross entropy."""
    d = demonstrations(action, 40)
    arch = architecture(d.spec, NETWORK)
    actor = initial_actor(arch, np.random.default_rng(1), distribution)
    actor["actor/mean/kernel"] *= 100
    w = {name: x.astype(np.float64) for name, x in actor.items()}
    x = np.tanh(d.obs["obs"] @ w["actor/dense_0/kernel"] + w["actor/dense_0/bias"])
    mean, logits = (x @ w[f"actor/{head}/kernel"] + w[f"actor/{head}/bias"] for head in ("mean", "branch_0"))
    mean = np.tanh(mean) if distribution == "squashed_gaussian" else mean
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = ((mean - d.continuous) ** 2).sum(axis=1) - log_p[np.arange(40), d.discrete[:, 0]]
    rows = {"vector": d.obs["obs"], "continuous": d.continuous, "discrete": d.discrete}
    ours = CloningGraph(arch, distribution, 40).errors({k: tf.constant(v) for k, v in actor.items()}, {k: tf.constant(v) for k, v in rows.items()})
    np.testing.assert_allclose(ours, expected, rtol=1e-4)


def test_what_was_not_allowed_is_left_out_of_the_loss():
    d = demonstrations("discrete", 40)
    arch = architecture(d.spec, NETWORK)
    actor = {k: tf.constant(v) for k, v in initial_actor(arch, np.random.default_rng(1), "gaussian").items()}
    rows = {"vector": tf.constant(d.obs["obs"]), "continuous": tf.constant(d.continuous), "discrete": tf.constant(d.discrete)}
    only = tf.constant(np.eye(3, dtype=bool)[d.discrete[:, 0]])
    cloning = CloningGraph(arch, "gaussian", 40)
    np.testing.assert_allclose(cloning.errors(actor, {**rows, "action_mask": only}), np.zeros(40), atol=1e-6)
    assert (cloning.errors(actor, rows).numpy() > 0.5).all()


def test_sequences_begin_with_an_empty_memory_and_never_cross_episodes():
    """A memory network learns the same task, whose rows need none; short episodes leave padding, which does not count."""
    network = NetworkSettings(hidden_units=16, num_layers=1, memory={"sequence_length": 8, "memory_size": 16})
    _, losses = cloned(demonstrations("discrete"), "gaussian", 400, network=network)
    assert losses[-1] < 0.6 * losses[0]


def test_state_goes_on_bit_for_bit():
    d = demonstrations("hybrid")
    arch = architecture(d.spec, NETWORK)
    one, other = (BehavioralCloning(arch, "gaussian", d, 64, 1, 5, lambda obs: network_inputs(arch, obs)) for _ in range(2))
    actor, _ = one.teach(initial_actor(arch, np.random.default_rng(1), "gaussian"), 5, 0.01, np.random.default_rng(2))
    other.load_state(one.state())
    a, b = (c.teach(actor, 5, 0.01, np.random.default_rng(3))[0] for c in (one, other))
    assert all(np.array_equal(a[name], b[name]) for name in a)


def test_weights_that_break_are_not_taken():
    d = demonstrations("box")
    arch = architecture(d.spec, NETWORK)
    cloning = BehavioralCloning(arch, "gaussian", d, 64, 1, 5, lambda obs: network_inputs(arch, {"obs": np.full_like(obs["obs"], np.nan)}))
    with pytest.raises(FloatingPointError, match=r"behavioral_cloning\.strength"):
        cloning.teach(initial_actor(arch, np.random.default_rng(1), "gaussian"), 5, 0.01, np.random.default_rng(2))
