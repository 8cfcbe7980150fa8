"""The whole loss against an independent one in NumPy float64, term by term and gradient by gradient."""

from __future__ import annotations

import numpy as np
import pytest

from tests.trainers import sac_cases
from tests.trainers.rollouts import BOX, policy_of, spec_of
from tests.trainers.sac_cases import BURN_IN, INPUTS, LENGTH, ROWS, SEQUENCES, SIGNALS, case_of
from trainers.networks import policy_layout
from trainers.quiet_tensorflow import tf
from trainers.sac_features import encode, transitions_seen
from trainers.sac_graph import SACGraph
from trainers.sac_networks import CRITIC, LOG_ALPHA
from trainers.settings import SACSettings

FEED_FORWARD = [
    ("box", {}), ("discrete", {}), ("multi_discrete", {}), ("hybrid", {}), ("box", {"use_sde": True}), ("hybrid", {"use_sde": True}),
    ("discrete", {"masked": True}), ("multi_discrete", {"masked": True}), ("hybrid", {"masked": True}),
    ("hybrid", {"masked": True, "observations": "dict"}), ("box", {"observations": "image"}),
    ("hybrid", {"network": {"num_layers": 0}}),
]
RECURRENT = [
    ("box", {}), ("discrete", {}), ("multi_discrete", {"masked": True}), ("hybrid", {"masked": True, "observations": "dict"}),
    ("hybrid", {"use_sde": True}), ("box", {"observations": "image"}),
]
CASES = [*FEED_FORWARD, *((kind, {**how, "memory": True}) for kind, how in RECURRENT)]


def case_id(value) -> str | None:
    return "-".join(key if flag is True else str(flag) for key, flag in value.items()) or "plain" if isinstance(value, dict) else None


every_case = pytest.mark.parametrize(("kind", "how"), CASES, ids=case_id)


@pytest.mark.parametrize("signals", [SIGNALS, SIGNALS[:1]], ids=len)
@every_case
def test_every_term_agrees(kind, how, signals):
    """C46, C51, C56, C63: Q losses, policy loss, entropy, value estimates, and their sum with the loss of log α."""
    case = case_of(kind, signals=signals, **how)
    critic_losses, value_estimates = sac_cases.critic_losses(case, case.weights, sac_cases.targets(case, case.weights))
    policy, entropies = sac_cases.policy_loss(case, case.weights)
    loss, ((q1, q2, policy_loss, entropy), values) = case.graph.loss(*case.tensorflow())
    assert loss.shape == q1.shape == policy_loss.shape == ()
    np.testing.assert_allclose([q1, q2, policy_loss], [*critic_losses, policy], rtol=2e-5, atol=2e-5)
    assert float(entropy) == pytest.approx(entropies.sum(), abs=2e-5)
    np.testing.assert_allclose(values, value_estimates, atol=2e-5)
    total = critic_losses.sum() + policy + sac_cases.alpha_loss(case, case.weights, entropies)
    assert float(loss) == pytest.approx(total, rel=2e-5, abs=5e-5)


@every_case
def test_every_gradient_is_that_of_its_own_loss(kind, how):
    """Finite differences of the reference: the actor's gradient is that of the policy loss alone, the critics' that of the Q losses
    at fixed targets, and log α's that of its loss at fixed entropies. Any gradient that leaks from one to another shows, into
    encoders too; and one that comes through a burn-in."""
    case, rng, h = case_of(kind, seed=1, **how), np.random.default_rng(2), 1e-5
    named, *rest = case.tensorflow()
    with tf.GradientTape() as tape:
        tape.watch(named)
        loss, _ = case.graph.loss(named, *rest)
    gradients = tape.gradient(loss, named)
    targets, (_, entropies) = sac_cases.targets(case, case.weights), sac_cases.policy_loss(case, case.weights)

    def own_loss(name: str, w: sac_cases.Tensors) -> float:
        if name == LOG_ALPHA:
            return sac_cases.alpha_loss(case, w, entropies)
        if name.startswith("actor/"):
            return sac_cases.policy_loss(case, w, case.weights)[0]
        return sac_cases.critic_losses(case, w, targets, case.weights)[0].sum()

    for name, tensor in gradients.items():
        for flat in rng.choice(case.weights[name].size, 1 if case.graph.arch.memory else 2, replace=case.weights[name].size < 2):
            at, sides = np.unravel_index(flat, case.weights[name].shape), []
            for sign in (1.0, -1.0):
                moved = {**case.weights, name: case.weights[name].copy()}
                moved[name][at] += sign * h
                sides.append(own_loss(name, moved))
            assert float(tensor.numpy()[at]) == pytest.approx((sides[0] - sides[1]) / (2.0 * h), rel=1e-3, abs=3e-5), (name, at)


@pytest.mark.parametrize("memory", [False, True], ids=["feed-forward", "recurrent"])
def test_each_part_has_its_own_coefficient(memory):
    """Raising log α of one part moves the policy loss by −α_part · H_part of that part alone."""
    case = case_of("hybrid", memory=memory, masked=memory)
    _, entropies = sac_cases.policy_loss(case, case.weights)
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
    case = case_of(kind)
    named, target, batch, noise = case.tensorflow()
    _, after = transitions_seen(named, encode(named, target, batch, case.graph.arch), batch, case.graph.arch)
    alpha = np.exp(case.weights[LOG_ALPHA])
    plain, raised = (
        case.graph._target(named, target, after, noise[0], batch, tf.unstack(tf.constant(factor * alpha, tf.float32))).numpy()
        for factor in (0.0, 1.0)
    )
    assert plain.shape == (ROWS, 2)
    rows = sac_cases.seen(case, case.weights)[1]
    bonus = np.array([sac_cases.soft_value(case, case.weights, "target_critic", row, case.noise[0, i])[1] for i, row in enumerate(rows)])
    np.testing.assert_allclose(raised[:, 0] - plain[:, 0], case.batch["bootstrap"][:, 0] * bonus, atol=2e-5)
    np.testing.assert_array_equal(raised[:, 1], plain[:, 1])
    np.testing.assert_allclose(raised, sac_cases.targets(case, case.weights), atol=2e-5)


# -- masks -------------------------------------------------------------------------------------------------------------


def test_masked_choices_move_nothing():
    """C63: what the critics say of a choice that is not allowed, and its logit, change neither policy loss nor target."""
    case = case_of("discrete", masked=True)
    for name in ("action_mask", "next_action_mask"):
        case.batch[name] = np.tile([True, False, True], (ROWS, 1))
    case.batch["discrete"][:] = 0.0
    named, target, batch, noise = case.tensorflow()
    _, (before, _) = case.graph.loss(named, target, batch, noise)
    for tensors, name in ((named, "actor/branch_0/bias"), (named, f"{CRITIC}/q/bias"), (target, "target_critic/q/bias")):
        columns = tensors[name].numpy()
        columns[..., 1::3] += 100.0
        tensors[name] = tf.constant(columns)
    _, (after, _) = case.graph.loss(named, target, batch, noise)
    np.testing.assert_array_equal(before, after)


def test_target_entropy_is_that_of_the_allowed_choices():
    """c · ln n of each row's own n: 0.7 · (ln 3 + ln 2 + ln 1) / 3. The loss of log α moves it by H minus that."""
    case = case_of("discrete", masked=True)
    case.batch["action_mask"] = np.tile([[True, True, True], [True, False, True], [False, True, False]], (2, 1))
    wanted = 0.7 * (np.log(3) + np.log(2)) / 3
    np.testing.assert_allclose(sac_cases.wanted_entropies(case), [wanted])
    named, *rest = case.tensorflow()
    with tf.GradientTape() as tape:
        tape.watch(named)
        loss, ((*_, entropy), _) = case.graph.loss(named, *rest)
    assert float(tape.gradient(loss, named)[LOG_ALPHA][0]) == pytest.approx(float(entropy) - wanted, abs=1e-6)


def test_thousands_of_choices_of_which_one_is_allowed():
    """Probability 1, entropy 0, and no NaN in any gradient."""
    case = case_of("multi_discrete", masked=True)
    for name in ("action_mask", "next_action_mask"):
        case.batch[name] = np.tile([False, True, False, False, False, True], (ROWS, 1))
    named, *rest = case.tensorflow()
    with tf.GradientTape() as tape:
        tape.watch(named)
        loss, ((*_, entropy), _) = case.graph.loss(named, *rest)
    assert float(entropy) == 0.0
    gradients = tape.gradient(loss, named)
    assert all(np.isfinite(g).all() for g in gradients.values())
    assert not any(np.any(g) for name, g in gradients.items() if name.startswith("actor/"))


# -- sequences ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "observations"), [("box", "vector"), ("hybrid", "dict")])
def test_padding_changes_nothing(kind, observations):
    """C67: values of 1e6 (255 in images, nothing allowed) in every padded row: losses and gradients are the same to the bit."""
    outcomes = []
    for padded in (False, True):
        case = case_of(kind, memory=True, observations=observations, masked=kind == "hybrid")
        for q, length in enumerate(case.lengths.tolist() if padded else []):
            for name, x in case.batch.items():
                if name in ("memory", "begins", "weight", "steps"):
                    continue
                first = length + 1 if name in ("vector", "action_mask") or name.startswith("image") else length
                x[q, first:] = {"uint8": 255, "bool": False}.get(x.dtype.name, 1.0 if name == "discrete" else 1e6)
        named, *rest = case.tensorflow()
        with tf.GradientTape() as tape:
            tape.watch(named)
            loss, ((*means, entropy), values) = case.graph.loss(named, *rest)
        outcomes.append([loss, *means, entropy, values, *tape.gradient(loss, named).values()])
    for plain, padded in zip(*outcomes, strict=True):
        np.testing.assert_array_equal(plain, padded)


def test_a_burn_in_counts_for_nothing_but_what_is_remembered():
    """Rewards, actions and bootstraps of rows that only warm up: another loss only through nothing; their observations matter."""
    case = case_of("hybrid", memory=True)
    before = case.graph.loss(*case.tensorflow())[0]
    late = np.flatnonzero(~case.batch["begins"])
    assert late.tolist() == [2, 3]
    for name in ("reward", "continuous", "bootstrap"):
        case.batch[name][late, :BURN_IN] = 0.123
    assert float(case.graph.loss(*case.tensorflow())[0]) == float(before)
    case.batch["vector"][late, 0] += 1.0
    assert abs(float(case.graph.loss(*case.tensorflow())[0]) - float(before)) > 1e-4


def test_the_actor_begins_with_the_stored_memory_and_critics_with_none():
    """C66: another stored memory moves the policy's entropy, and the value estimates (of stored actions) not at all."""
    case = case_of("discrete", memory=True)
    _, ((*_, entropy), values) = case.graph.loss(*case.tensorflow())
    case.batch["memory"] += 1.0
    _, ((*_, other), same) = case.graph.loss(*case.tensorflow())
    assert abs(float(entropy - other)) > 1e-3
    np.testing.assert_array_equal(values, same)


def test_means_are_over_the_rows_that_count():
    """A batch in which no row counts has losses of 0, not NaN."""
    case = case_of("hybrid", memory=True, masked=True)
    case.batch["weight"][:] = 0.0
    named, *rest = case.tensorflow()
    with tf.GradientTape() as tape:
        tape.watch(named)
        loss, (means, _) = case.graph.loss(named, *rest)
    np.testing.assert_array_equal([loss, *means], 0.0)
    assert not any(np.any(g) for g in tape.gradient(loss, named).values())
    assert case.rows == SEQUENCES * (LENGTH + BURN_IN)


# -- the policy --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "how"), [(kind, how) for kind, how in FEED_FORWARD if "observations" not in how], ids=case_id)
def test_acts_as_the_numpy_policy_does(kind, how):
    """C58: one set of weights, two implementations: actions, log-densities and entropies of the most likely action agree."""
    case = case_of(kind, signals=SIGNALS[:1], **how)
    network = SACSettings.model_validate({"network_settings": {
        "hidden_units": 5, "num_layers": len(case.graph.arch.layers), "activation": "tanh"}}).network_settings
    acting = {name: case.weights[name].astype(np.float32) for name in policy_layout(case.graph.arch, case.graph.distribution)}
    obs, mask = case.batch["vector"].astype(np.float32), case.batch.get("action_mask")
    policy = policy_of(case.spec, network, acting, distribution=case.graph.distribution)
    out = policy.act({"obs": obs}, np.random.default_rng(0), deterministic=True, action_mask=mask)
    named, target, batch, _ = case.tensorflow()
    now, _ = transitions_seen(named, encode(named, target, batch, case.graph.arch), batch, case.graph.arch)
    acted = case.graph._act(named, now, tf.zeros([ROWS, case.spec.action.continuous_size]))
    np.testing.assert_allclose(acted.continuous, out.actions.continuous, atol=1e-6)
    log_prob = np.zeros(ROWS) if not case.spec.action.continuous_size else -acted.entropies[0].numpy()
    for b, log_p in enumerate(acted.log_p):
        log_prob = log_prob + np.take_along_axis(log_p.numpy(), out.actions.discrete[:, b : b + 1], axis=1)[:, 0]
    np.testing.assert_allclose(log_prob, out.log_prob, atol=2e-5)
    np.testing.assert_allclose(np.sum([part.numpy() for part in acted.entropies], axis=0), out.entropy, atol=2e-5)


def test_log_std_is_clipped_as_in_the_numpy_policy():
    """Beyond [-20, 2] the density stays finite and no gradient reaches the head."""
    case = case_of("box")
    named, *rest = case.tensorflow()
    named["actor/log_std/bias"] = tf.constant([30.0, -60.0])
    with tf.GradientTape() as tape:
        tape.watch(named)
        loss, _ = case.graph.loss(named, *rest)
    gradients = tape.gradient(loss, named)
    assert all(np.isfinite(g).all() for g in gradients.values())
    np.testing.assert_array_equal(gradients["actor/log_std/bias"], [0.0, 0.0])
    now, _ = transitions_seen(named, encode(named, *rest[:2], case.graph.arch), rest[1], case.graph.arch)
    assert np.isfinite(case.graph._act(named, now, tf.zeros([ROWS, 2])).entropies[0]).all()
    assert INPUTS == case.graph.arch.vector_width


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
