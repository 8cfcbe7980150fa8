"""First weights: what is drawn, in which order, and how it is distributed."""

from __future__ import annotations

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from tests.trainers.policies import DICT_NETWORK, DICT_OBS, MEMORY
from trainers.architecture import architecture
from trainers.initial_weights import (
    initial_actor,
    initial_encoders,
    initial_layers,
    initial_normalizer,
    initial_weights,
    orthogonal,
)
from trainers.networks import action_heads, actor_layout, check_weights, critic_layout, policy_layout
from trainers.numpy_encoders import ImageEncoder
from trainers.settings import NetworkSettings

SPEC = BehaviorSpec(
    (ObservationSpec("position", (3,)), ObservationSpec("grid", (2, 2), "uint8")),
    ActionSpec("box", continuous_size=2, discrete_branches=(3, 4)),
)
ARCH = architecture(SPEC, NetworkSettings(hidden_units=16, normalize=True))
DICT_ARCH = architecture(BehaviorSpec(DICT_OBS, SPEC.action), NetworkSettings(hidden_units=16, **DICT_NETWORK, **MEMORY))


@pytest.mark.parametrize("distribution, log_std", [("gaussian", -3.0), ("gsde", -3.0), ("gsde", -1.5)])
def test_free_log_std_of_a_new_actor_has_one_value(distribution, log_std):
    options = {} if log_std == -3.0 else {"initial_log_std": log_std}
    weights = initial_actor(ARCH, np.random.default_rng(0), distribution, **options)
    check_weights(weights, actor_layout(ARCH, distribution), "the test")
    np.testing.assert_array_equal(weights["actor/log_std"], np.full_like(weights["actor/log_std"], log_std))


def test_log_std_head_of_a_new_actor_is_almost_0():
    """Gain 0.01 and bias 0, so the first σ is about 1 whatever is observed; `initial_log_std` has nothing to fill."""
    weights = initial_actor(ARCH, np.random.default_rng(0), "squashed_gaussian", initial_log_std=7.0)
    check_weights(weights, actor_layout(ARCH, "squashed_gaussian"), "the test")
    kernel = weights["actor/log_std/kernel"].astype(np.float64)
    np.testing.assert_allclose(kernel.T @ kernel, 1e-4 * np.eye(2), atol=1e-9)
    np.testing.assert_array_equal(weights["actor/log_std/bias"], [0, 0])


def test_initial_weights_are_drawn_layer_by_layer_actor_first():
    """Bit for bit: body, mean, branches, critic body, value heads, and nothing else is taken from the generator."""
    rng, again = np.random.default_rng(11), np.random.default_rng(11)
    weights = initial_weights(ARCH, rng, 0.6, ("extrinsic", "rnd"))
    root = np.sqrt(2.0)
    expected = {f"{name}/kernel": orthogonal(inputs, outputs, gain, again) for name, inputs, outputs, gain in (
        ("actor/dense_0", 7, 16, root), ("actor/dense_1", 16, 16, root), ("actor/mean", 16, 2, 0.01), ("actor/branch_0", 16, 3, 0.01),
        ("actor/branch_1", 16, 4, 0.01), ("critic/dense_0", 7, 16, root), ("critic/dense_1", 16, 16, root),
        ("critic/value_extrinsic", 16, 1, 1.0), ("critic/value_rnd", 16, 1, 1.0),
    )}
    for name, kernel in expected.items():
        np.testing.assert_array_equal(weights.pop(name), kernel)
    np.testing.assert_array_equal(weights.pop("actor/log_std"), np.full(2, np.log(0.6), np.float32))
    assert not any(w.any() for name, w in weights.items() if not name.endswith("/std"))
    assert rng.bit_generator.state == again.bit_generator.state


def test_initial_weights_as_they_were_before_there_was_a_second_distribution():
    """Recorded; to 1e-6, since another LAPACK may round otherwise. The last number is the next one of the generator: exact."""
    spec = BehaviorSpec((ObservationSpec("obs", (2,)),), ActionSpec("box", continuous_size=1, discrete_branches=(2,)))
    rng = np.random.default_rng(2024)
    weights = initial_weights(architecture(spec, NetworkSettings(hidden_units=3, num_layers=1)), rng, 0.5)
    recorded = {
        "actor/dense_0/kernel": [0.70058346, 0.78084016, -0.94840473, 1.1394509, -0.8210972, 0.16568334],
        "actor/mean/kernel": [0.0041643092, 0.0024617275, 0.0087520527],
        "actor/branch_0/kernel": [0.0041319686, 0.0031794738, -0.0040245429, -0.0077683139, 0.0081688361, -0.0054354621],
        "critic/dense_0/kernel": [0.95286465, -0.51237452, -0.91078061, -0.52595669, -1.3002071, 0.18119344],
        "critic/value_extrinsic/kernel": [-0.93561572, -0.33750638, 0.10350202],
        "actor/log_std": [-0.69314718],
    }
    assert weights.keys() == recorded.keys() | {
        "actor/dense_0/bias", "actor/mean/bias", "actor/branch_0/bias", "critic/dense_0/bias", "critic/value_extrinsic/bias",
    }
    for name, values in recorded.items():
        np.testing.assert_allclose(weights[name].ravel(), values, rtol=1e-6, atol=1e-8)
    assert rng.random() == 0.8071819864678583


def test_parts_of_the_initial_weights():
    layers = action_heads(ARCH, "squashed_gaussian")
    assert [d.name for d in layers] == ["actor/mean", "actor/log_std", "actor/branch_0", "actor/branch_1"]
    weights = initial_layers(layers, np.random.default_rng(3))
    assert list(weights) == [name for d in layers for name in (d.kernel, d.bias)]
    normalizer = initial_normalizer(ARCH)
    assert {name: w.shape for name, w in normalizer.items()} == {
        "normalizer/position/mean": (3,), "normalizer/position/std": (3,), "normalizer/grid/mean": (2, 2), "normalizer/grid/std": (2, 2),
    }
    assert all((w == name.endswith("/std")).all() and w.dtype == np.float32 for name, w in normalizer.items())
    assert initial_normalizer(architecture(SPEC, NetworkSettings())) == {}


@pytest.mark.parametrize("shared_critic", [False, True])
def test_initial_weights_fit_the_layouts(shared_critic):
    signals = ("extrinsic", "curiosity")
    weights = initial_weights(ARCH, np.random.default_rng(0), 0.5, signals, shared_critic)
    check_weights(weights, {**policy_layout(ARCH), **critic_layout(ARCH, signals, shared_critic)}, "the test")
    np.testing.assert_allclose(weights["actor/log_std"], np.log([0.5, 0.5]), rtol=1e-6)
    assert all((weights[name] == 0).all() for name in weights if name.endswith(("/bias", "/mean")) and "kernel" not in name)
    np.testing.assert_array_equal(weights["normalizer/position/std"], [1, 1, 1])


def test_same_seed_gives_the_same_actor_whatever_the_critic():
    one = initial_weights(ARCH, np.random.default_rng(7), value_signals=("extrinsic",))
    two = initial_weights(ARCH, np.random.default_rng(7), value_signals=("extrinsic", "rnd"), shared_critic=True)
    other = initial_weights(ARCH, np.random.default_rng(8))
    for name in policy_layout(ARCH):
        np.testing.assert_array_equal(one[name], two[name])
    assert not np.array_equal(one["actor/dense_0/kernel"], other["actor/dense_0/kernel"])


@pytest.mark.parametrize("name, gain", [
    ("actor/dense_0", np.sqrt(2)), ("critic/dense_1", np.sqrt(2)), ("actor/mean", 0.01), ("actor/branch_1", 0.01),
    ("critic/value_extrinsic", 1),
])
def test_kernels_are_orthogonal_with_the_gain_of_their_layer(name, gain):
    kernel = initial_weights(ARCH, np.random.default_rng(1))[f"{name}/kernel"].astype(np.float64)
    gram = kernel.T @ kernel if kernel.shape[0] >= kernel.shape[1] else kernel @ kernel.T
    np.testing.assert_allclose(gram, gain**2 * np.eye(len(gram)), atol=1e-5 * gain**2)


def test_orthogonal_kernels_are_uniformly_distributed():
    """Without the sign correction, LAPACK's Q has a first column whose first element is never positive."""
    rng = np.random.default_rng(2)
    first = np.array([orthogonal(3, 3, 1.0, rng)[0, 0] for _ in range(2_000)])
    assert abs(first.mean()) < 0.05
    assert first.var() == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize("distribution", ["gaussian", "squashed_gaussian", "gsde"])
def test_actor_without_continuous_part_is_drawn_alike_with_every_distribution(distribution):
    arch = architecture(BehaviorSpec(SPEC.observations, ActionSpec("discrete", discrete_branches=(3,))), NetworkSettings(hidden_units=16))
    one, two = (initial_actor(arch, np.random.default_rng(5), d) for d in (distribution, "gaussian"))
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])


def test_encoders_and_recurrent_layers_fit_the_layouts():
    weights = initial_weights(DICT_ARCH, np.random.default_rng(0))
    check_weights(weights, {**policy_layout(DICT_ARCH), **critic_layout(DICT_ARCH)}, "the test")
    for name in policy_layout(DICT_ARCH):
        if name.startswith("actor/encoder") and name.endswith("kernel"):
            assert not np.array_equal(weights[name], weights[name.replace("actor", "critic")]), "the critic has its own"


@pytest.mark.parametrize("scope", ["actor", "critic"])
def test_convolutions_keep_the_size_of_what_they_see(scope):
    """Each filter, or each place of a window where those are fewer, is orthogonal to the others, of length √2."""
    weights = initial_weights(DICT_ARCH, np.random.default_rng(1))
    for name in (f"{scope}/encoder_0/conv_1/kernel", f"{scope}/encoder_1/conv_0/kernel", f"{scope}/encoder_0/conv_0/kernel"):
        flat = weights[name].reshape(-1, weights[name].shape[-1]).astype(np.float64)
        gram = flat.T @ flat if flat.shape[0] >= flat.shape[1] else flat @ flat.T
        np.testing.assert_allclose(gram, 2 * np.eye(len(gram)), atol=1e-5)
        assert not weights[name.replace("kernel", "bias")].any()
    dense = weights[f"{scope}/encoder_0/dense/kernel"].astype(np.float64)
    np.testing.assert_allclose(dense.T @ dense, 2 * np.eye(16), atol=1e-5)


def test_residual_blocks_begin_small():
    """Features are of the size of those of the other encoders: with the full gain they would be 15 to 25 times as large."""
    rng, size = np.random.default_rng(3), {}
    x = rng.integers(0, 256, (4, 84, 84, 3)).astype(np.uint8)
    for encoder in ("simple", "nature_cnn", "resnet"):
        spec = BehaviorSpec((ObservationSpec("image", (84, 84, 3), "uint8", "image", is_uint8_image=True),), ActionSpec("discrete", discrete_branches=(2,)))
        arch = architecture(spec, NetworkSettings(hidden_units=64, vis_encode_type=encoder))
        weights, image = initial_encoders(arch, np.random.default_rng(0), "actor"), ImageEncoder(arch, arch.images[0])
        size[encoder] = np.sqrt(np.mean(image.encode(image.prepare(weights), x) ** 2))
    assert 0.3 * size["simple"] < size["resnet"] < 6 * size["simple"], size
    assert 0.3 * size["nature_cnn"] < size["resnet"] < 6 * size["nature_cnn"], size


def test_each_gate_of_a_recurrent_layer_is_orthogonal_and_the_forget_gates_begin_open():
    weights = initial_weights(DICT_ARCH, np.random.default_rng(2))
    for part, inputs in (("kernel", 16), ("recurrent_kernel", 5)):
        kernel = weights[f"actor/lstm/{part}"].astype(np.float64)
        assert kernel.shape == (inputs, 20)
        for gate in range(4):
            columns = kernel[:, 5 * gate : 5 * (gate + 1)]
            np.testing.assert_allclose(columns.T @ columns, np.eye(5), atol=1e-6)
        assert not np.allclose(kernel[:, :5], kernel[:, 5:10])
    np.testing.assert_array_equal(weights["actor/lstm/bias"], [0] * 5 + [1] * 5 + [0] * 10)


def test_same_seed_gives_the_same_actor_with_encoders_and_memory_whatever_the_critic():
    one = initial_weights(DICT_ARCH, np.random.default_rng(7))
    two = initial_weights(DICT_ARCH, np.random.default_rng(7), value_signals=("rnd",), shared_critic=True)
    for name in policy_layout(DICT_ARCH):
        np.testing.assert_array_equal(one[name], two[name])
