"""The whole loss against an independent one in NumPy float64, term by term and gradient by gradient."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from envs.specs import BehaviorSpec
from tests.trainers.rollouts import ACTIONS, BOX, policy_of, spec_of
from trainers.graph import tf
from trainers.networks import policy_layout
from trainers.sac_graph import SACGraph
from trainers.sac_networks import CRITIC, LOG_ALPHA, TARGET, initial_sac_weights
from trainers.settings import SACSettings

ROWS, INPUTS, GAMMA = 6, 3, 0.9
SIGNALS = ("extrinsic", "curiosity")
CASES = [("box", False), ("discrete", False), ("multi_discrete", False), ("hybrid", False), ("box", True), ("hybrid", True)]
Tensors = dict[str, np.ndarray]


@dataclasses.dataclass
class Case:
    """A behavior with random networks and one random batch. Arrays are float64 with the values of float32."""

    spec: BehaviorSpec
    graph: SACGraph
    weights: Tensors
    batch: Tensors
    noise: np.ndarray

    def tensorflow(self) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
        """Arguments of `SACGraph.loss`."""
        tensors = {name: tf.constant(x, tf.float32) for name, x in self.weights.items()}
        packed = np.concatenate([self.batch[name].reshape(ROWS, width) for name, width in self.graph.columns.items()], axis=1)
        named = {name: tensors[name] for name in self.graph.layout}
        target = {name: tensors[name] for name in self.graph.target_layout}
        return named, target, tf.constant(packed, tf.float32), tf.constant(self.noise, tf.float32)


def case_of(kind: str, use_sde: bool, signals: tuple[str, ...] = SIGNALS, seed: int = 0, **changes) -> Case:
    """Two layers of 5 units; weights of the size that trained ones have, so that no term is nearly 0."""
    spec, rng = spec_of(ACTIONS[kind], INPUTS), np.random.default_rng(seed)
    settings = SACSettings.model_validate({
        "hyperparameters": {"use_sde": use_sde, "sde_initial_log_std": -1.0, **changes},
        "network_settings": {"hidden_units": 5, "num_layers": 2, "activation": "tanh"},
    })
    graph = dataclasses.replace(SACGraph.of(spec, settings), signals=signals)
    first = initial_sac_weights(spec, settings, rng, signals)
    weights = {name: (x + 0.4 * rng.standard_normal(x.shape)).astype(np.float32).astype(np.float64) for name, x in first.items()}
    size, branches = spec.action.continuous_size, spec.action.discrete_branches
    batch = {
        "inputs": rng.standard_normal((ROWS, INPUTS)), "next_inputs": rng.standard_normal((ROWS, INPUTS)),
        "continuous": np.tanh(rng.standard_normal((ROWS, size))),
        "discrete": np.stack([rng.integers(0, n, ROWS) for n in branches], axis=1).astype(np.float64) if branches else np.empty((ROWS, 0)),
        "reward": rng.standard_normal((ROWS, len(signals))),
        "bootstrap": np.where(np.arange(ROWS) % 3 == 0, 0.0, GAMMA)[:, None] ** np.arange(1, len(signals) + 1)[None],
    }
    batch = {name: x.astype(np.float32).astype(np.float64) for name, x in batch.items()}
    noise = rng.standard_normal((2, ROWS, size)).astype(np.float32).astype(np.float64)
    return Case(spec, graph, weights, batch, noise)


# -- the reference: one row, one critic, one joint action at a time ---------------------------------------------------


def dense(w: Tensors, layer: str, x: np.ndarray, critic: int | None = None) -> np.ndarray:
    kernel, bias = w[f"{layer}/kernel"], w[f"{layer}/bias"]
    return x @ kernel + bias if critic is None else x @ kernel[critic] + bias[critic]


def policy(case: Case, w: Tensors, x: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, float, list[np.ndarray]]:
    """Of one row: the continuous action, its log-density, and the probabilities of each branch."""
    z = np.tanh(dense(w, "actor/dense_1", np.tanh(dense(w, "actor/dense_0", x))))
    action, log_density = np.empty(0), 0.0
    if case.spec.action.continuous_size:
        mean = dense(w, "actor/mean", z)
        if case.graph.distribution == "gsde":
            std = np.sqrt((z**2) @ np.exp(w["actor/log_std"]) ** 2 + 1e-6)
        else:
            std = np.exp(np.clip(dense(w, "actor/log_std", z), -20.0, 2.0))
        u = mean + std * noise
        action = np.tanh(u)
        density = np.exp(-0.5 * ((u - mean) / std) ** 2) / (std * np.sqrt(2.0 * np.pi)) / (1.0 - action**2)
        log_density = float(np.log(density).sum())
    logits = [dense(w, f"actor/branch_{b}", z) for b in range(len(case.spec.action.discrete_branches))]
    return action, log_density, [np.exp(x) / np.exp(x).sum() for x in logits]


def joint_values(case: Case, w: Tensors, prefix: str, critic: int, x: np.ndarray, action: np.ndarray) -> dict[tuple[int, ...], np.ndarray]:
    """Q of every joint choice of one row, ``[S]`` each: the mean over branches of Q_b(s, a_cont)[a_b]."""
    h = np.concatenate([x, action])
    for i in range(2):
        h = np.tanh(dense(w, f"{prefix}dense_{i}", h, critic))
    branches = case.spec.action.discrete_branches
    out = dense(w, f"{prefix}q", h, critic).reshape(len(case.graph.signals), sum(branches) or 1)
    if not branches:
        return {(): out[:, 0]}
    first = np.cumsum([0, *branches[:-1]])
    return {
        joint: np.mean([out[:, f + a] for f, a in zip(first, joint, strict=True)], axis=0)
        for joint in itertools.product(*map(range, branches))
    }


def soft_value(case: Case, w: Tensors, prefix: str, x: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, float, list[float]]:
    """Of one row: the smaller twin's expected Q ``[S]``, the entropy term Σ −α log π in expectation, and each part's entropy."""
    action, log_density, probabilities = policy(case, w, x, noise)
    alpha = np.exp(w[LOG_ALPHA])
    has_continuous = case.spec.action.continuous_size > 0
    expected, bonus = np.zeros((2, len(case.graph.signals))), 0.0
    for critic in range(2):
        for joint, q in joint_values(case, w, prefix, critic, x, action).items():
            expected[critic] += np.prod([p[a] for p, a in zip(probabilities, joint, strict=True)]) * q
    for joint in itertools.product(*(range(len(p)) for p in probabilities)):
        chosen = [p[a] for p, a in zip(probabilities, joint, strict=True)]
        bonus -= np.prod(chosen) * sum(a * np.log(p) for a, p in zip(alpha[has_continuous:], chosen, strict=True))
    parts = [-float((p * np.log(p)).sum()) for p in probabilities]
    if has_continuous:
        bonus -= alpha[0] * log_density
        parts.insert(0, -log_density)
    return expected[int(expected[1].sum() < expected[0].sum())], bonus, parts


def slow_targets(case: Case, w: Tensors) -> np.ndarray:
    """y ``[M, S]``."""
    targets = []
    for after, reward, bootstrap, noise in zip(*(case.batch[k] for k in ("next_inputs", "reward", "bootstrap")), case.noise[0], strict=True):
        value, bonus, _ = soft_value(case, w, TARGET, after, noise)
        value[0] += bonus
        targets.append(reward + bootstrap * value)
    return np.array(targets)


def slow_critic_losses(case: Case, w: Tensors, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The loss of each critic, and the value estimates ``[S]``."""
    losses, values = [], []
    for x, continuous, discrete, y in zip(*(case.batch[k] for k in ("inputs", "continuous", "discrete")), targets, strict=True):
        q = [joint_values(case, w, CRITIC, i, x, continuous)[tuple(discrete.astype(int))] for i in range(2)]
        losses.append([0.5 * np.mean((q_i - y) ** 2) for q_i in q])
        values.append(np.mean(q, axis=0))
    return np.mean(losses, axis=0), np.mean(values, axis=0)


def slow_policy_loss(case: Case, w: Tensors) -> tuple[float, np.ndarray]:
    """The policy's loss, and the mean entropy of each part."""
    losses, parts = [], []
    for x, noise in zip(case.batch["inputs"], case.noise[1], strict=True):
        value, bonus, entropies = soft_value(case, w, CRITIC, x, noise)
        losses.append(-value.sum() - bonus)
        parts.append(entropies)
    return float(np.mean(losses)), np.mean(parts, axis=0)


def alpha_loss(case: Case, w: Tensors, entropies: np.ndarray) -> float:
    return float((w[LOG_ALPHA] * (entropies - np.array(case.graph.target_entropy))).sum())


# -- the comparison ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signals", [SIGNALS, SIGNALS[:1]], ids=len)
@pytest.mark.parametrize(("kind", "use_sde"), CASES)
def test_every_term_agrees(kind, use_sde, signals):
    """C46, C51, C56: Q losses, policy loss, entropy, value estimates, and their sum with the loss of log α."""
    case = case_of(kind, use_sde, signals)
    critic_losses, value_estimates = slow_critic_losses(case, case.weights, slow_targets(case, case.weights))
    policy, entropies = slow_policy_loss(case, case.weights)
    loss, ((q1, q2, policy_loss, entropy), values) = case.graph.loss(*case.tensorflow())
    assert loss.shape == q1.shape == policy_loss.shape == ()
    np.testing.assert_allclose([q1, q2, policy_loss], [*critic_losses, policy], rtol=2e-5, atol=2e-5)
    assert float(entropy) == pytest.approx(entropies.sum(), abs=2e-5)
    np.testing.assert_allclose(values, value_estimates, atol=2e-5)
    total = critic_losses.sum() + policy + alpha_loss(case, case.weights, entropies)
    assert float(loss) == pytest.approx(total, rel=2e-5, abs=5e-5)


@pytest.mark.parametrize(("kind", "use_sde"), CASES)
def test_every_gradient_is_that_of_its_own_loss(kind, use_sde):
    """Finite differences of the reference: the actor's gradient is that of the policy loss alone, the critics' that of the Q losses
    at fixed targets, and log α's that of its loss at fixed entropies. Any gradient that leaks from one to another shows."""
    case, rng, h = case_of(kind, use_sde, seed=1), np.random.default_rng(2), 1e-5
    named, *rest = case.tensorflow()
    with tf.GradientTape() as tape:
        tape.watch(named)
        loss, _ = case.graph.loss(named, *rest)
    gradients = tape.gradient(loss, named)
    targets, (_, entropies) = slow_targets(case, case.weights), slow_policy_loss(case, case.weights)

    def own_loss(name: str, w: Tensors) -> float:
        if name == LOG_ALPHA:
            return alpha_loss(case, w, entropies)
        return slow_policy_loss(case, w)[0] if name.startswith("actor/") else slow_critic_losses(case, w, targets)[0].sum()

    for name, tensor in gradients.items():
        for flat in rng.choice(case.weights[name].size, min(2, case.weights[name].size), replace=False):
            at, sides = np.unravel_index(flat, case.weights[name].shape), []
            for sign in (1.0, -1.0):
                moved = {**case.weights, name: case.weights[name].copy()}
                moved[name][at] += sign * h
                sides.append(own_loss(name, moved))
            assert float(tensor.numpy()[at]) == pytest.approx((sides[0] - sides[1]) / (2.0 * h), rel=1e-3, abs=3e-5), (name, at)


def test_each_part_has_its_own_coefficient():
    """Raising log α of one part moves the policy loss by −α_part · H_part of that part alone."""
    case = case_of("hybrid", False)
    _, entropies = slow_policy_loss(case, case.weights)
    named, *rest = case.tensorflow()
    _, (before, _) = case.graph.loss(named, *rest)
    for part in range(3):
        moved = case.weights[LOG_ALPHA].copy()
        moved[part] += np.log(2.0)
        _, (after, _) = case.graph.loss({**named, LOG_ALPHA: tf.constant(moved, tf.float32)}, *rest)
        assert float(after[2] - before[2]) == pytest.approx(-np.exp(case.weights[LOG_ALPHA][part]) * entropies[part], abs=1e-4)


@pytest.mark.parametrize("kind", ["box", "multi_discrete"])
def test_entropy_counts_in_the_first_signal_only(kind):
    """Both signals' targets change with α as one does: by the bonus in the first, by nothing in the second."""
    case = case_of(kind, False)
    named, target, _, noise = case.tensorflow()
    after, reward, bootstrap = (tf.constant(case.batch[k], tf.float32) for k in ("next_inputs", "reward", "bootstrap"))
    alpha = np.exp(case.weights[LOG_ALPHA])
    plain, raised = (
        case.graph._target(named, target, after, noise[0], reward, bootstrap, tf.unstack(tf.constant(factor * alpha, tf.float32))).numpy()
        for factor in (0.0, 1.0)
    )
    assert plain.shape == (ROWS, 2)
    bonus = np.array([soft_value(case, case.weights, TARGET, case.batch["next_inputs"][i], case.noise[0, i])[1] for i in range(ROWS)])
    np.testing.assert_allclose(raised[:, 0] - plain[:, 0], case.batch["bootstrap"][:, 0] * bonus, atol=2e-5)
    np.testing.assert_array_equal(raised[:, 1], plain[:, 1])
    np.testing.assert_allclose(raised, slow_targets(case, case.weights), atol=2e-5)


@pytest.mark.parametrize(("kind", "use_sde"), CASES)
def test_acts_as_the_numpy_policy_does(kind, use_sde):
    """C58: one set of weights, two implementations: actions, log-densities and entropies of the most likely action agree."""
    case = case_of(kind, use_sde, SIGNALS[:1])
    network, distribution = case.graph.network, case.graph.distribution
    acting = {name: case.weights[name].astype(np.float32) for name in policy_layout(case.spec, network, distribution)}
    obs = case.batch["inputs"].astype(np.float32)
    out = policy_of(case.spec, network, acting, distribution=distribution).act({"obs": obs}, np.random.default_rng(0), deterministic=True)
    acted = case.graph._act(case.tensorflow()[0], tf.constant(obs), tf.zeros([ROWS, case.spec.action.continuous_size]))
    np.testing.assert_allclose(acted.continuous, out.actions.continuous, atol=1e-6)
    log_prob = np.zeros(ROWS) if not case.spec.action.continuous_size else -acted.entropies[0].numpy()
    for b, log_p in enumerate(acted.log_p):
        log_prob = log_prob + np.take_along_axis(log_p.numpy(), out.actions.discrete[:, b : b + 1], axis=1)[:, 0]
    np.testing.assert_allclose(log_prob, out.log_prob, atol=2e-5)
    np.testing.assert_allclose(np.sum([part.numpy() for part in acted.entropies], axis=0), out.entropy, atol=2e-5)


def test_log_std_is_clipped_as_in_the_numpy_policy():
    """Beyond [-20, 2] the density stays finite and no gradient reaches the head."""
    case = case_of("box", False)
    named, *rest = case.tensorflow()
    named["actor/log_std/bias"] = tf.constant([30.0, -60.0])
    with tf.GradientTape() as tape:
        tape.watch(named)
        loss, _ = case.graph.loss(named, *rest)
    gradients = tape.gradient(loss, named)
    assert all(np.isfinite(g).all() for g in gradients.values())
    np.testing.assert_array_equal(gradients["actor/log_std/bias"], [0.0, 0.0])
    log_std = case.graph._act(named, tf.zeros([1, INPUTS]), tf.zeros([1, 2])).entropies
    assert np.isfinite(log_std[0]).all()


def test_graphs_of_equal_settings_are_equal():
    """They share what is compiled; whether inputs come normalised makes no difference, an entropy target does."""
    spec = spec_of(BOX)
    plain, same, normalized, other = (
        SACGraph.of(spec, SACSettings.model_validate({"network_settings": {"normalize": n}, "hyperparameters": hyper}))
        for n, hyper in ((False, {}), (False, {"learning_rate": 0.1}), (True, {}), (False, {"target_entropy": -1.0}))
    )
    assert plain == same == normalized
    assert hash(plain) == hash(normalized)
    assert plain != other
    assert other.target_entropy == (-1.0,)
