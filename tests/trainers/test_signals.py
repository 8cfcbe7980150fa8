"""The models of reward signals: ML-Agents' component tests, and rewards by their formulas, in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from trainers.architecture import architecture
from trainers.curiosity import Curiosity
from trainers.gail import BETA, Gail
from trainers.inputs import NetworkInputs
from trainers.quiet_tensorflow import tf
from trainers.random_network_distillation import RandomNetworkDistillation
from trainers.settings import NetworkSettings, PPOSettings
from trainers.signal_graph import Inputs, Seen
from trainers.signal_inputs import SignalInputs
from trainers.signal_program import Room, SignalProgram, first_signal_weights
from trainers.signal_set import SignalSet, signal_architecture
from trainers.signal_settings import SignalNetwork
from trainers.signals import Transitions

ACTIONS = {
    "box": ActionSpec("box", continuous_size=2),
    "discrete": ActionSpec("discrete", discrete_branches=(3,)),
    "multi_discrete": ActionSpec("multi_discrete", discrete_branches=(3, 2)),
    "hybrid": ActionSpec("hybrid", continuous_size=2, discrete_branches=(3,)),
}
NETWORK = SignalNetwork(hidden_units=16)


def spec_of(action: str, image: bool = False) -> BehaviorSpec:
    observations = [ObservationSpec("obs", (4,))]
    if image:
        observations.append(ObservationSpec("camera", (6, 5, 2), "uint8", "image", is_uint8_image=True))
    return BehaviorSpec(tuple(observations), ACTIONS[action])


def arch_of(action: str, image: bool = False):
    spec, network = spec_of(action, image), NetworkSettings(vis_encode_type="match3")
    return signal_architecture(architecture(spec, network), network, NETWORK.model_copy(update={"vis_encode_type": "match3"}))


def transitions(spec: BehaviorSpec, n: int, seed: int = 0, shift: float = 0.0) -> Transitions:
    """What follows depends on what is seen and done."""
    rng, action = np.random.default_rng(seed), spec.action
    now = rng.standard_normal((n, 4)).astype(np.float32) + np.float32(shift)
    continuous = rng.uniform(-1, 1, (n, action.continuous_size)).astype(np.float32)
    discrete = np.stack([rng.integers(0, k, n) for k in action.discrete_branches], axis=1).astype(np.int32) \
        if action.discrete_branches else np.zeros((n, 0), np.int32)
    after = now.copy()
    after[:, : continuous.shape[1]] += continuous
    after[:, 2 : 2 + discrete.shape[1]] += discrete
    images = [tuple(rng.integers(0, 256, (n, *o.shape)).astype(np.uint8) for o in spec.observations if o.kind == "image") for _ in range(2)]
    return Transitions(NetworkInputs(now, images[0]), NetworkInputs(after, images[1]), continuous, discrete, rng.random(n) < 0.1)


def program(kind: str, action: str = "hybrid", experts: Transitions | None = None, image: bool = False, seed: int = 0, **options) -> SignalProgram:
    arch, rate = arch_of(action, image), options.pop("learning_rate", 0.01)
    if kind == "curiosity":
        model = Curiosity(arch, rate, np.inf)
    elif kind == "rnd":
        model = RandomNetworkDistillation(arch, rate)
    else:
        model = Gail(arch, rate, 0.99, **options)
    signal = SignalProgram(
        kind, model, Room(64, 512, 1), SignalInputs(arch, kind == "rnd", kind == "gail"), first_signal_weights(model, np.random.default_rng(seed)), experts,
        zero_at_first=kind == "curiosity",
    )
    signal.observe(experts if experts is not None else transitions(spec_of(action, image), 500))
    return signal


@pytest.mark.parametrize("kind", ["curiosity", "rnd"])
@pytest.mark.slow
def test_rewards_fall_on_what_was_learnt(kind):
    """ML-Agents' test: on a fixed buffer. And stay high on what was not."""
    signal, rng, t = program(kind), np.random.default_rng(0), transitions(spec_of("hybrid"), 256)
    signal.learn(t, 1, rng)
    first = signal.rewards(t).mean()
    for _ in range(10):
        signal.learn(t, 5, rng)
    assert signal.rewards(t).mean() < 0.5 * first
    elsewhere = transitions(spec_of("hybrid"), 256, 1, shift=3.0)
    assert signal.rewards(elsewhere).mean() > 2.0 * signal.rewards(t).mean()


@pytest.mark.slow
def test_with_a_learning_rate_of_0_no_reward_falls():
    """Negative control."""
    for kind in ("curiosity", "rnd"):
        signal, rng, t = program(kind, learning_rate=0.0), np.random.default_rng(0), transitions(spec_of("hybrid"), 256)
        signal.learn(t, 1, rng)
        first = signal.rewards(t)
        signal.learn(t, 5, rng)
        np.testing.assert_array_equal(signal.rewards(t), first)


def test_curiosity_is_0_before_it_has_learnt():
    signal, t = program("curiosity"), transitions(spec_of("hybrid"), 100)
    assert not signal.rewards(t).any()
    signal.learn(t, 1, np.random.default_rng(0))
    assert (signal.rewards(t) > 0).all()


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.slow
def test_inverse_model_tells_the_action(action):
    """ML-Agents' test, with C103's action spaces: what was done can be told from what was seen; from shuffled actions it cannot."""
    t = transitions(spec_of(action), 512)
    losses = []
    for shuffled in (False, True):
        signal, rng = program("curiosity", action), np.random.default_rng(0)
        order = rng.permutation(len(t)) if shuffled else np.arange(len(t))
        data = Transitions(t.now, t.after, t.continuous[order], t.discrete[order], t.terminated)
        for _ in range(12):
            stats = signal.learn(data, 5, rng)
        losses.append(stats["Losses/Curiosity Inverse Loss"])
        assert np.isfinite(signal.rewards(data)).all()
    assert losses[0] < 0.25 * losses[1]


def test_curiosity_is_the_forward_error_times_one_half():
    """C103: by hand, in NumPy."""
    signal, t = program("curiosity"), transitions(spec_of("hybrid"), 7)
    signal.learn(t, 1, np.random.default_rng(0))
    w, swish = signal.weights(), lambda x: x / (1.0 + np.exp(-x))

    def dense(x, name):
        return x @ w[f"{name}/kernel"].astype(np.float64) + w[f"{name}/bias"]

    mean, std = signal._inputs._vector.float32()
    phi = [swish(dense(swish(dense(np.clip((x.vector - mean) / std, -5, 5), "curiosity/dense_0")), "curiosity/dense_1")) for x in (t.now, t.after)]
    action = np.concatenate([t.continuous, np.eye(3)[t.discrete[:, 0]]], axis=1)
    told = dense(swish(dense(np.concatenate([phi[0], action], axis=1), "curiosity/forward_0")), "curiosity/forward_1")
    np.testing.assert_allclose(signal.rewards(t), 0.5 * ((told - phi[1]) ** 2).sum(axis=1), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {}, *(pytest.param(options, marks=pytest.mark.slow) for options in ({"use_actions": True}, {"use_vail": True}, {"end_aware": True, "use_actions": True})),
], ids=str)
def test_gail_tells_experts_from_others(options):
    """ML-Agents' test: the expert's reward rises above the policy's."""
    experts, others = transitions(spec_of("hybrid"), 200), transitions(spec_of("hybrid"), 200, 1, shift=1.5)
    signal, rng = program("gail", experts=experts, **options), np.random.default_rng(0)
    before = signal.rewards(experts).mean() - signal.rewards(others).mean()
    for _ in range(10):
        stats = signal.learn(others, 5, rng)
    after = signal.rewards(experts).mean() - signal.rewards(others).mean()
    assert after > before + 0.5
    assert stats["Policy/GAIL Expert Estimate"] > 0.6 and stats["Policy/GAIL Policy Estimate"] < 0.4
    assert all(np.isfinite(x) for x in stats.values())


@pytest.mark.slow
def test_gail_cannot_tell_experts_from_experts():
    """Negative control: estimates stay near one half."""
    experts = transitions(spec_of("hybrid"), 400)
    signal, rng = program("gail", experts=experts), np.random.default_rng(0)
    for _ in range(10):
        stats = signal.learn(experts, 5, rng)
    assert abs(stats["Policy/GAIL Expert Estimate"] - stats["Policy/GAIL Policy Estimate"]) < 0.1


@pytest.mark.slow
def test_gail_judges_how_episodes_end():
    """Experts' episodes end and others' do not: the end pays more than going on for ever; the other way round it pays nothing."""
    t, n = transitions(spec_of("discrete"), 300), 300
    ends = Transitions(t.now, t.after, t.continuous, t.discrete, np.arange(n) % 10 == 9)
    goes_on = Transitions(t.now, t.after, t.continuous, t.discrete, np.zeros(n, bool))
    worth = []
    for experts, others in ((ends, goes_on), (goes_on, ends)):
        signal, rng = program("gail", "discrete", experts, end_aware=True), np.random.default_rng(0)
        for _ in range(10):
            signal.learn(others, 25, rng)
        end = signal.rewards(ends)
        for_ever = signal.rewards(goes_on).mean() / (1 - 0.99)
        worth.append(end[ends.terminated].mean() / for_ever)
    assert worth[0] > 1.2 and worth[1] < 0.05, worth


@pytest.mark.slow
def test_gail_pays_for_an_end_by_how_often_experts_and_others_end():
    """D of the absorbing state is e/(e + p), where experts end in e of their steps and others in p."""
    t, n = transitions(spec_of("discrete"), 300), 300
    experts, others = (Transitions(t.now, t.after, t.continuous, t.discrete, np.arange(n) % every == every - 1) for every in (30, 10))
    signal, rng = program("gail", "discrete", experts, end_aware=True), np.random.default_rng(0)
    for _ in range(10):
        stats = signal.learn(others, 25, rng)
    assert abs(stats["Policy/GAIL End Estimate"] - 0.25) < 0.08, stats


@pytest.mark.slow
def test_vail_holds_the_information():
    """Its price rises from 0 while more comes through than 0.5, and never is negative."""
    experts, others = transitions(spec_of("box"), 200), transitions(spec_of("box"), 200, 1, shift=2.0)
    signal, rng = program("gail", "box", experts, use_vail=True), np.random.default_rng(0)
    for _ in range(60):
        stats = signal.learn(others, 5, rng)
    assert signal.weights()[BETA][0] > 0 and 0.2 < stats["Losses/GAIL KL Loss"] < 1.5


def test_gradient_penalty_is_that_of_finite_differences():
    """Over all inputs: vector, action and image (divided by 255 in the network)."""
    spec = spec_of("box", image=True)
    arch = arch_of("box", image=True)
    model = Gail(arch, 0.01, 0.99, use_actions=True)
    weights = first_signal_weights(model, np.random.default_rng(3))
    named = {name: tf.constant(w) for name, w in weights.items()}

    def seen(seed):
        t = transitions(spec, 1, seed)
        now, after = (Inputs(tf.constant(x.vector), tuple(tf.constant(i) for i in x.images)) for x in (t.now, t.after))
        return Seen(now, after, tf.constant(t.continuous), tf.constant(t.discrete), tf.zeros([1]))

    x, expert, seed, weight = seen(1), seen(2), tf.constant([3, 4]), tf.ones([1])
    penalty = float(model._penalty(named, x, weight, expert, seed))
    share = float(tf.random.stateless_uniform([1], seed + tf.constant([1 << 20, 0]))[0])

    def flat(s):
        return np.concatenate([s.now.vector.numpy().ravel(), s.continuous.numpy().ravel(), s.now.images[0].numpy().ravel() / 255.0])

    point = share * flat(expert) + (1 - share) * flat(x)

    def logit(p):
        p = np.float32(p)
        inputs = Inputs(tf.constant(p[None, :4]), (tf.constant(255.0 * p[6:].reshape(1, 6, 5, 2)),))
        return float(model._logits(named, model._inside(named, inputs, tf.constant(p[None, 4:6])))[0])

    h = 1e-2
    gradient = np.array([(logit(point + h * e) - logit(point - h * e)) / (2 * h) for e in np.eye(len(point))])
    assert penalty == pytest.approx((np.linalg.norm(gradient) - 1.0) ** 2, rel=0.05)


def test_inputs_of_rnd_are_standardised_and_clipped():
    signal = program("rnd")
    far = transitions(spec_of("hybrid"), 10, shift=1e6)
    assert signal._inputs.vector(far.now).max() == 5.0
    assert abs(signal._inputs.vector(transitions(spec_of("hybrid"), 500).now).mean()) < 0.1


@pytest.mark.parametrize("kind", ["curiosity", "rnd", "gail"])
def test_state_goes_on_bit_for_bit(kind):
    """Models, optimizers and statistics: saved, loaded into another one and gone on with."""
    t, image = transitions(spec_of("hybrid", image=True), 100), True
    experts = transitions(spec_of("hybrid", image=True), 50, 5) if kind == "gail" else None
    one, other = (program(kind, experts=experts, image=image, seed=seed) for seed in (0, 1))
    one.learn(t, 2, np.random.default_rng(0))
    other.load_state(one.state())
    for signal in (one, other):
        signal.learn(t, 2, np.random.default_rng(1))
    a, b = one.state(), other.state()
    assert a.tensors.keys() == b.tensors.keys() and all(np.array_equal(a.tensors[k], b.tensors[k]) for k in a.tensors)
    assert a.scalars == b.scalars
    np.testing.assert_array_equal(one.rewards(t), other.rewards(t))


def test_a_state_without_the_signal_is_refused():
    signal = program("rnd")
    from trainers.trainer import TrainerState

    with pytest.raises(ValueError, match=r"reward_signals\.rnd"):
        signal.load_state(TrainerState())


def test_a_model_that_breaks_keeps_its_weights():
    signal, t = program("rnd"), transitions(spec_of("hybrid"), 100)
    before = signal.weights()
    broken = Transitions(t.now, NetworkInputs(np.full_like(t.after.vector, np.nan)), t.continuous, t.discrete, t.terminated)
    with pytest.raises(FloatingPointError, match=r"rnd.*learning_rate"):
        signal.learn(broken, 1, np.random.default_rng(0))
    assert all(np.array_equal(before[name], w) for name, w in signal.weights().items())


@pytest.mark.slow
def test_a_signal_may_make_fewer_passes_than_the_policy():
    """Its num_epoch holds where the trainer asks for it: on-policy."""
    spec = spec_of("discrete")

    def learnt(num_epoch, epochs, own_epochs):
        settings = PPOSettings(reward_signals={"curiosity": {"num_epoch": num_epoch, "learning_rate": 0.01}})
        signals = SignalSet(architecture(spec, settings.network_settings), settings, 64, 256, 3, np.random.SeedSequence(0))
        signals.learn(transitions(spec, 200), epochs, np.random.default_rng(1), own_epochs)
        return signals.state().tensors

    once, thrice, own, off_policy = learnt(None, 1, True), learnt(None, 3, True), learnt(1, 3, True), learnt(1, 3, False)
    assert all(np.array_equal(own[k], once[k]) for k in once) and all(np.array_equal(off_policy[k], thrice[k]) for k in once)
    assert not all(np.array_equal(once[k], thrice[k]) for k in once)
