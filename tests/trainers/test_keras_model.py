"""A Keras model of the user's own: what it sees, how it acts, and how a factory that cannot be used is refused."""

from __future__ import annotations

import os
import random
import textwrap

import numpy as np
import pytest

from envs.specs import BehaviorSpec, ObservationSpec
from tests.trainers.policies import (
    ACTIONS,
    DICT_OBS,
    MEMORY,
    OBS,
    fill,
    observe,
    policy_and_weights,
    slow_dense,
    slow_lstm,
    slow_pixels,
    slow_vector,
)
from trainers.architecture import ArchitectureError, architecture
from trainers.initial_weights import initial_weights
from trainers.networks import action_heads, body_layers, critic_layout, encoder_layout, policy_layout
from trainers.policy import Policy
from trainers.settings import NetworkSettings

FACTORIES = '''
import keras

CALLS = []
TRACES = []


class Counted(keras.layers.Layer):
    """Changes nothing; counts how often Python runs it."""

    def call(self, x):
        TRACES.append(x.shape)
        return x


def make(inputs, width=4):
    """Numbers and the mean of each channel of the images through one dense layer."""
    CALLS.append({name: tuple(x.shape) for name, x in inputs.items()})
    parts = [keras.layers.GlobalAveragePooling2D()(x) if len(x.shape) == 4 else x for x in inputs.values()]
    joined = keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    return keras.layers.Dense(width, activation="tanh", name="mix")(Counted()(joined))


def convolutional(inputs):
    x = keras.layers.Conv2D(3, 5, strides=2, activation="relu")(inputs["image"])
    return keras.layers.LayerNormalization()(keras.layers.Dense(5)(keras.layers.Flatten()(x)))


def only_one(inputs):
    return keras.layers.Dense(3)(inputs["speed"])


def identity(inputs):
    return inputs["obs"]


def raises(inputs):
    return inputs["wheels"]


def normed(inputs):
    return keras.layers.BatchNormalization()(keras.layers.Dense(3)(inputs["obs"]))


def dropped(inputs):
    return keras.layers.Dropout(0.5)(keras.layers.Dense(3)(inputs["obs"]))


def frozen(inputs):
    return keras.layers.Dense(3, trainable=False)(inputs["obs"])


def whole_model(inputs):
    return keras.Model(list(inputs.values()), keras.layers.Dense(3)(inputs["obs"]))


def two_outputs(inputs):
    return [keras.layers.Dense(3)(inputs["obs"])] * 2


def three_axes(inputs):
    return keras.layers.Reshape((3, 1))(inputs["obs"])


def half(inputs):
    return keras.layers.Dense(3, dtype="float16")(inputs["obs"])


def elsewhere(inputs):
    return keras.layers.Dense(3)(keras.Input((2,)))


NUMBER = 3
'''


@pytest.fixture
def factories(tmp_path, monkeypatch):
    """Name of a module with factories, on ``sys.path`` for this test."""
    name = f"own_networks_{random.Random(str(tmp_path)).randrange(10**9)}"
    (tmp_path / f"{name}.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def module(name):
    return __import__(name)


def settings(model, **options):
    return NetworkSettings(activation="tanh", model=model, **options)


def slow_mix(arch, weights, obs, i, scope="actor"):
    """Output of `make` for agent `i`."""
    x = slow_vector(arch, weights, obs, i)
    for image in arch.images:
        x += slow_pixels(image, obs[image.name][i]).mean(axis=(0, 1)).tolist()
    kernel, bias = (weights[f"{scope}/model/{j}/{name}"] for j, name in ((0, "kernel"), (1, "bias")))
    return [np.tanh(v) for v in slow_dense({"d/kernel": kernel, "d/bias": bias}, "d", x)]


def test_model_stands_in_place_of_encoders_and_dense_layers(factories):
    arch = architecture(BehaviorSpec(DICT_OBS, ACTIONS["hybrid"]), settings(f"{factories}:make", model_kwargs={"width": 6}))
    # Numbers: choices 5, speed 2, flags 4; channels: grid 3, image 3.
    model = {"actor/model/0/kernel": (17, 6), "actor/model/1/bias": (6,)}
    assert encoder_layout(arch) == model and body_layers(arch) == ()
    assert [(d.name, d.inputs) for d in action_heads(arch)] == [("actor/mean", 6), ("actor/branch_0", 6)]
    assert list(policy_layout(arch))[:2] == list(model)
    assert list(critic_layout(arch)) == [
        "critic/model/0/kernel", "critic/model/1/bias", "critic/value_extrinsic/kernel", "critic/value_extrinsic/bias"]
    assert module(factories).CALLS[0] == {
        "kind": (None, 5), "speed": (None, 2), "flags": (None, 4), "grid": (None, 7, 8, 3), "image": (None, 21, 24, 3)}


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("observations", [OBS, DICT_OBS], ids=["one", "dict"])
def test_policy_acts_by_the_model(factories, normalize, observations):
    """C60: it sees normalised numbers, one-hot choices, and images scaled once with their channels last."""
    spec = BehaviorSpec(observations, ACTIONS["hybrid"])
    policy, weights = policy_and_weights(spec, normalize=normalize, model=f"{factories}:make")
    assert policy.engine == "TensorFlow"
    for n in (3, 1, 0, 5):
        obs = observe(spec, np.random.default_rng(n), n)
        out = policy.act(obs, np.random.default_rng(0), deterministic=True)
        for i in range(n):
            x = slow_mix(policy.architecture, weights, obs, i)
            np.testing.assert_allclose(out.actions.continuous[i], slow_dense(weights, "actor/mean", x), atol=1e-5)
            assert out.actions.discrete[i, 0] == np.argmax(slow_dense(weights, "actor/branch_0", x))


def test_policy_with_a_model_remembers(factories):
    spec = BehaviorSpec(OBS, ACTIONS["box"])
    policy, weights = policy_and_weights(spec, model=f"{factories}:make", **MEMORY)
    before = [0.0] * 10
    for step in range(3):
        obs = observe(spec, np.random.default_rng(step), 1)
        out = policy.act(obs, np.random.default_rng(0), True, agent_id=np.array([2]), first=np.array([step == 0]))
        np.testing.assert_allclose(out.memory[0], before, atol=2e-6)
        before = slow_lstm(weights, slow_mix(policy.architecture, weights, obs, 0), before)
        np.testing.assert_allclose(out.actions.continuous[0], slow_dense(weights, "actor/mean", before[:5]), atol=1e-5)


@pytest.mark.parametrize("name, observations", [("make", DICT_OBS), ("convolutional", DICT_OBS), ("only_one", DICT_OBS), ("identity", OBS)])
def test_training_graph_agrees_with_acting(factories, name, observations):
    """Compiled too, with the gradient of every variable; also a model that leaves observations out."""
    from trainers.graph import encode
    from trainers.quiet_tensorflow import tf

    spec = BehaviorSpec(observations, ACTIONS["box"])
    policy, weights = policy_and_weights(spec, model=f"{factories}:{name}")
    arch, obs = policy.architecture, observe(spec, np.random.default_rng(1), 6)
    vector = np.array([slow_vector(arch, weights, obs, i) for i in range(6)], np.float32)
    parameters = {key: tf.constant(w) for key, w in weights.items()}

    @tf.function(jit_compile=True)
    def run(parameters, vector, images):
        with tf.GradientTape() as tape:
            tape.watch(parameters)
            features = encode(parameters, vector, images, arch, "actor")
            loss = tf.reduce_sum(features**2)
        return features, tape.gradient(loss, {key: p for key, p in parameters.items() if "/model/" in key})

    features, gradients = run(parameters, tf.constant(vector), [tf.constant(obs[image.name]) for image in arch.images])
    expected = [slow_dense(weights, "actor/mean", x) for x in features.numpy()]
    acted = policy.act(obs, np.random.default_rng(0), deterministic=True).actions.continuous
    np.testing.assert_allclose(acted, expected, atol=1e-5)
    assert all(g is not None and np.isfinite(g).all() for g in gradients.values())
    assert name == "identity" or len(gradients) >= 2


def test_first_weights_are_the_models_own_and_follow_the_seed(factories):
    arch = architecture(BehaviorSpec(OBS, ACTIONS["box"]), settings(f"{factories}:make", model_kwargs={"width": 64}))
    np.random.seed(3)
    random.seed(3)
    before = np.random.get_state()[1].copy(), random.getstate()
    one, again, other = (initial_weights(arch, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(np.random.get_state()[1], before[0])
    assert random.getstate() == before[1], "the user's own generators go on as if nothing had happened"
    kernel = "actor/model/0/kernel"
    np.testing.assert_array_equal(one[kernel], again[kernel])
    assert not np.array_equal(one[kernel], other[kernel])
    assert not np.array_equal(one[kernel], one["critic/model/0/kernel"]), "actor and critic do not begin alike"
    limit = np.sqrt(6 / (3 + 64))  # Glorot's, the default of a dense layer
    assert 0.9 * limit < np.abs(one[kernel]).max() <= limit and one[kernel].dtype == np.float32
    np.testing.assert_array_equal(one["actor/model/1/bias"], np.zeros(64))


def test_weights_are_copied_and_two_policies_do_not_share_them(factories):
    spec = BehaviorSpec(OBS, ACTIONS["box"])
    one, weights = policy_and_weights(spec, model=f"{factories}:make")
    obs, rng = observe(spec, np.random.default_rng(0), 2), np.random.default_rng(0)
    old = one.act(obs, rng, deterministic=True).actions.continuous
    other = Policy(spec, one.network)
    other.set_weights({name: w * np.float32(0.5) for name, w in weights.items()}, 0)
    for w in weights.values():
        w += 1
    np.testing.assert_array_equal(one.act(obs, rng, deterministic=True).actions.continuous, old)
    assert not np.allclose(other.act(obs, rng, deterministic=True).actions.continuous, old)


@pytest.mark.slow
def test_five_thousand_calls_trace_once_and_take_no_more_memory(factories):
    """C14: batch sizes 1 to 8 in turn, new weights in between."""
    spec = BehaviorSpec(OBS, ACTIONS["box"])
    policy, weights = policy_and_weights(spec, model=f"{factories}:make")
    rng, traces = np.random.default_rng(0), module(factories).TRACES
    obs = [observe(spec, rng, n) for n in range(1, 9)]
    built = len(traces)
    for call in range(5_000):
        if call % 250 == 0:
            policy.set_weights(weights, call)
        if call == 500:
            resident = resident_bytes()
        policy.act(obs[call % 8], rng)
    assert len(traces) - built <= 2
    assert resident_bytes() - resident < 20e6


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_names_with_slashes_reach_the_factory_as_they_are(factories):
    spec = BehaviorSpec((ObservationSpec("a/b", (2,)), ObservationSpec("a.b.0", (3,)), ObservationSpec("a/b.0", (1,))), ACTIONS["box"])
    policy, _ = policy_and_weights(spec, model=f"{factories}:make")
    assert module(factories).CALLS[0] == {"a/b": (None, 2), "a.b.0": (None, 3), "a/b.0": (None, 1)}
    assert np.isfinite(policy.act(observe(spec, np.random.default_rng(0), 2), np.random.default_rng(0)).log_prob).all()


@pytest.mark.parametrize("model, kwargs, message", [
    ("nowhere_to_be_found:make", {}, r"there is no module 'nowhere_to_be_found'.* Searched:\n"),
    ("{}:maker", {}, r"has no function or class 'maker'; it has: make"),
    ("{}:NUMBER", {}, "has no function or class 'NUMBER'"),
    ("{}:make", {"widht": 3}, r"expected the arguments of .*called as make\(inputs, widht=3\) and takes \(inputs, width=4\): .*'widht'"),
    ("{}:raises", {}, r"raises\(inputs\) raised KeyError: 'wheels'"),
    ("{}:normed", {}, r"expected trainable variables only, received .*moving_mean, .*moving_variance.*LayerNormalization"),
    ("{}:dropped", {}, r"expected trainable variables only, received .*seed_generator_state"),
    ("{}:frozen", {}, r"expected trainable variables only, received .*kernel, .*bias"),
    ("{}:whole_model", {}, r"one output tensor \[None, U\] of float32, received Functional \(return its output"),
    ("{}:two_outputs", {}, r"one output tensor \[None, U\] of float32, received list"),
    ("{}:three_axes", {}, r"received float32 \[None, 3, 1\]; flatten or pool"),
    ("{}:half", {}, r"received float16 \[None, 3\]"),
    ("{}:elsewhere", {}, "expected an output computed from the inputs alone"),
])
def test_factories_that_cannot_be_used_are_refused(factories, model, kwargs, message):
    network = settings(model.format(factories), model_kwargs=kwargs)
    with pytest.raises(ArchitectureError, match=message) as error:
        Policy(BehaviorSpec(OBS, ACTIONS["box"]), network)
    assert error.value.key == (("model_kwargs",) if kwargs else ("model",))
    assert error.value.value == (kwargs or network.model)


@pytest.mark.parametrize("name, kind", [("raises", KeyError), ("broken", ZeroDivisionError), ("lacking", ModuleNotFoundError)])
def test_the_users_own_traceback_is_kept(factories, tmp_path, name, kind):
    """An exception in the factory, in its module, and a module that its module wants."""
    (tmp_path / "broken.py").write_text("x = 1 / 0\n")
    (tmp_path / "lacking.py").write_text(textwrap.dedent("""
        import something_that_is_not_installed
    """))
    model = f"{factories}:raises" if name == "raises" else f"{name}:make"
    with pytest.raises(ArchitectureError, match=f"raised {kind.__name__}") as error:
        Policy(BehaviorSpec(OBS, ACTIONS["box"]), settings(model))
    assert isinstance(error.value.__cause__, kind)
    frames, last = [], error.value.__cause__.__traceback__
    while last:
        frames.append(last.tb_frame.f_code.co_filename)
        last = last.tb_next
    assert any(str(tmp_path) in frame for frame in frames)


def test_weights_of_a_model_are_checked_by_name_and_shape(factories):
    spec = BehaviorSpec(OBS, ACTIONS["box"])
    policy, _ = policy_and_weights(spec, model=f"{factories}:make")
    narrow = architecture(spec, settings(f"{factories}:make", model_kwargs={"width": 2}))
    with pytest.raises(ValueError, match=r"actor/model/0/kernel: expected float32 \[3, 4\], received float32 \[3, 2\]"):
        policy.set_weights(fill(policy_layout(narrow)), 1)
