"""Layout and first weights."""

from __future__ import annotations

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from trainers.networks import (
    action_heads,
    actor_layout,
    check_weights,
    critic_layout,
    initial_actor,
    initial_layers,
    initial_normalizer,
    initial_weights,
    input_size,
    network_inputs,
    orthogonal,
    policy_layout,
)
from trainers.settings import NetworkSettings

SPEC = BehaviorSpec(
    (ObservationSpec("position", (3,)), ObservationSpec("grid", (2, 2), "uint8")),
    ActionSpec("box", continuous_size=2, discrete_branches=(3, 4)),
)
NETWORK = NetworkSettings(hidden_units=16, num_layers=2, normalize=True)


def test_layout_names_every_tensor_of_the_actor_and_the_critic():
    assert actor_layout(SPEC, NETWORK) == {
        "actor/dense_0/kernel": (7, 16), "actor/dense_0/bias": (16,),
        "actor/dense_1/kernel": (16, 16), "actor/dense_1/bias": (16,),
        "actor/mean/kernel": (16, 2), "actor/mean/bias": (2,), "actor/branch_0/kernel": (16, 3), "actor/branch_0/bias": (3,),
        "actor/branch_1/kernel": (16, 4), "actor/branch_1/bias": (4,), "actor/log_std": (2,),
    }
    heads = {"critic/value_extrinsic/kernel": (16, 1), "critic/value_extrinsic/bias": (1,)}
    assert critic_layout(SPEC, NETWORK, shared_critic=True) == heads
    assert critic_layout(SPEC, NETWORK) == {
        "critic/dense_0/kernel": (7, 16), "critic/dense_0/bias": (16,),
        "critic/dense_1/kernel": (16, 16), "critic/dense_1/bias": (16,),
        **heads,
    }
    normalizer = set(policy_layout(SPEC, NETWORK)) - set(actor_layout(SPEC, NETWORK))
    assert normalizer == {f"normalizer/{name}/{part}" for name in ("position", "grid") for part in ("mean", "std")}
    assert policy_layout(SPEC, NETWORK)["normalizer/grid/std"] == (2, 2)


BODY = {
    "actor/dense_0/kernel": (7, 16), "actor/dense_0/bias": (16,), "actor/dense_1/kernel": (16, 16), "actor/dense_1/bias": (16,),
}
MEAN = {"actor/mean/kernel": (16, 2), "actor/mean/bias": (2,)}
BRANCHES = {
    "actor/branch_0/kernel": (16, 3), "actor/branch_0/bias": (3,), "actor/branch_1/kernel": (16, 4), "actor/branch_1/bias": (4,),
}


@pytest.mark.parametrize("distribution, expected", [
    ("gaussian", {**BODY, **MEAN, **BRANCHES, "actor/log_std": (2,)}),
    ("squashed_gaussian", {**BODY, **MEAN, "actor/log_std/kernel": (16, 2), "actor/log_std/bias": (2,), **BRANCHES}),
    ("gsde", {**BODY, **MEAN, **BRANCHES, "actor/log_std": (16, 2)}),
])
def test_layout_of_each_distribution(distribution, expected):
    """Order included: first weights are drawn in it."""
    assert list(actor_layout(SPEC, NETWORK, distribution).items()) == list(expected.items())
    normalizer = {name: shape for name, shape in policy_layout(SPEC, NETWORK).items() if name.startswith("normalizer/")}
    assert policy_layout(SPEC, NETWORK, distribution) == {**expected, **normalizer} and len(normalizer) == 4


@pytest.mark.parametrize("distribution", ["gaussian", "squashed_gaussian", "gsde"])
def test_actor_without_continuous_part_is_the_same_with_every_distribution(distribution):
    spec = BehaviorSpec(SPEC.observations, ActionSpec("multi_discrete", discrete_branches=(3, 4)))
    assert actor_layout(spec, NETWORK, distribution) == {**BODY, **BRANCHES}
    assert [head.name for head in action_heads(spec, NETWORK, distribution)] == ["actor/branch_0", "actor/branch_1"]
    one, two = (initial_actor(spec, NETWORK, np.random.default_rng(5), d) for d in (distribution, "gaussian"))
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])


@pytest.mark.parametrize("distribution, log_std", [("gaussian", -3.0), ("gsde", -3.0), ("gsde", -1.5)])
def test_free_log_std_of_a_new_actor_has_one_value(distribution, log_std):
    options = {} if log_std == -3.0 else {"initial_log_std": log_std}
    weights = initial_actor(SPEC, NETWORK, np.random.default_rng(0), distribution, **options)
    check_weights(weights, actor_layout(SPEC, NETWORK, distribution), "the test")
    np.testing.assert_array_equal(weights["actor/log_std"], np.full_like(weights["actor/log_std"], log_std))


def test_log_std_head_of_a_new_actor_is_almost_0():
    """Gain 0.01 and bias 0, so the first σ is about 1 whatever is observed; `initial_log_std` has nothing to fill."""
    weights = initial_actor(SPEC, NETWORK, np.random.default_rng(0), "squashed_gaussian", initial_log_std=7.0)
    check_weights(weights, actor_layout(SPEC, NETWORK, "squashed_gaussian"), "the test")
    kernel = weights["actor/log_std/kernel"].astype(np.float64)
    np.testing.assert_allclose(kernel.T @ kernel, 1e-4 * np.eye(2), atol=1e-9)
    np.testing.assert_array_equal(weights["actor/log_std/bias"], [0, 0])


def test_initial_weights_are_drawn_layer_by_layer_actor_first():
    """Bit for bit: body, mean, branches, critic body, value heads, and nothing else is taken from the generator."""
    rng, again = np.random.default_rng(11), np.random.default_rng(11)
    weights = initial_weights(SPEC, NETWORK, rng, 0.6, ("extrinsic", "rnd"))
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
    weights = initial_weights(spec, NetworkSettings(hidden_units=3, num_layers=1), rng, 0.5)
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
    layers = action_heads(SPEC, NETWORK, "squashed_gaussian")
    assert [d.name for d in layers] == ["actor/mean", "actor/log_std", "actor/branch_0", "actor/branch_1"]
    weights = initial_layers(layers, np.random.default_rng(3))
    assert list(weights) == [name for d in layers for name in (d.kernel, d.bias)]
    normalizer = initial_normalizer(SPEC, NETWORK)
    assert {name: w.shape for name, w in normalizer.items()} == {
        "normalizer/position/mean": (3,), "normalizer/position/std": (3,), "normalizer/grid/mean": (2, 2), "normalizer/grid/std": (2, 2),
    }
    assert all((w == name.endswith("/std")).all() and w.dtype == np.float32 for name, w in normalizer.items())
    assert initial_normalizer(SPEC, NetworkSettings()) == {}


@pytest.mark.parametrize("shared_critic", [False, True])
def test_initial_weights_fit_the_layouts(shared_critic):
    signals = ("extrinsic", "curiosity")
    weights = initial_weights(SPEC, NETWORK, np.random.default_rng(0), 0.5, signals, shared_critic)
    check_weights(weights, {**policy_layout(SPEC, NETWORK), **critic_layout(SPEC, NETWORK, signals, shared_critic)}, "the test")
    np.testing.assert_allclose(weights["actor/log_std"], np.log([0.5, 0.5]), rtol=1e-6)
    assert all((weights[name] == 0).all() for name in weights if name.endswith(("/bias", "/mean")) and "kernel" not in name)
    np.testing.assert_array_equal(weights["normalizer/position/std"], [1, 1, 1])


def test_same_seed_gives_the_same_actor_whatever_the_critic():
    one = initial_weights(SPEC, NETWORK, np.random.default_rng(7), value_signals=("extrinsic",))
    two = initial_weights(SPEC, NETWORK, np.random.default_rng(7), value_signals=("extrinsic", "rnd"), shared_critic=True)
    other = initial_weights(SPEC, NETWORK, np.random.default_rng(8))
    for name in policy_layout(SPEC, NETWORK):
        np.testing.assert_array_equal(one[name], two[name])
    assert not np.array_equal(one["actor/dense_0/kernel"], other["actor/dense_0/kernel"])


@pytest.mark.parametrize("name, gain", [
    ("actor/dense_0", np.sqrt(2)), ("critic/dense_1", np.sqrt(2)), ("actor/mean", 0.01), ("actor/branch_1", 0.01),
    ("critic/value_extrinsic", 1),
])
def test_kernels_are_orthogonal_with_the_gain_of_their_layer(name, gain):
    kernel = initial_weights(SPEC, NETWORK, np.random.default_rng(1))[f"{name}/kernel"].astype(np.float64)
    gram = kernel.T @ kernel if kernel.shape[0] >= kernel.shape[1] else kernel @ kernel.T
    np.testing.assert_allclose(gram, gain**2 * np.eye(len(gram)), atol=1e-5 * gain**2)


def test_orthogonal_kernels_are_uniformly_distributed():
    """Without the sign correction, LAPACK's Q has a first column whose first element is never positive."""
    rng = np.random.default_rng(2)
    first = np.array([orthogonal(3, 3, 1.0, rng)[0, 0] for _ in range(2_000)])
    assert abs(first.mean()) < 0.05
    assert first.var() == pytest.approx(1 / 3, abs=0.03)


def test_network_input_joins_flattened_observations_in_the_order_of_the_spec():
    grid = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    position = np.array([[10.0, 11, 12], [20, 21, 22]])
    inputs = network_inputs(SPEC, {"grid": grid, "position": position})
    assert inputs.dtype == np.float32 and inputs.shape == (2, input_size(SPEC))
    np.testing.assert_array_equal(inputs, [[10, 11, 12, 0, 1, 2, 3], [20, 21, 22, 4, 5, 6, 7]])
    out = np.full((5, 7), -1, np.float32)
    assert np.shares_memory(network_inputs(SPEC, {"grid": grid, "position": position}, out), out)
    np.testing.assert_array_equal(out[:2], inputs)
    assert (out[2:] == -1).all()


def test_single_float32_observation_is_not_copied():
    spec = BehaviorSpec((ObservationSpec("obs", (2, 2)),), SPEC.action)
    obs = np.zeros((3, 2, 2), np.float32)
    assert np.shares_memory(network_inputs(spec, {"obs": obs}), obs)
    assert network_inputs(spec, {"obs": np.zeros((0, 2, 2), np.float32)}).shape == (0, 4)


@pytest.mark.parametrize("obs, message", [
    ({"position": np.zeros((2, 3))}, r"Expected the observations \['position', 'grid'\], received \['position'\]"),
    ({"position": np.zeros((2, 3)), "grid": np.zeros((2, 4))}, r"'grid' of shape \[n, 2, 2\].*received \[2, 4\]"),
    ({"position": np.zeros((2, 3)), "grid": np.zeros((3, 2, 2))}, r"'grid' of shape \[n, 2, 2\].*same n.*received \[3, 2, 2\]"),
    ({"position": np.zeros(3), "grid": np.zeros((3, 2, 2))}, r"'position' of shape \[n, 3\].*received \[3\]. .* obs\[None\]"),
    ({"position": np.float32(1), "grid": np.zeros((1, 2, 2))}, r"'position' of shape \[n, 3\].*received \[\]"),
])
def test_observations_of_another_shape_are_refused_with_key_expected_and_received(obs, message):
    """C91."""
    with pytest.raises(ValueError, match=message):
        network_inputs(SPEC, obs)


def test_weights_that_do_not_fit_are_refused_with_every_difference():
    layout = actor_layout(SPEC, NETWORK)
    weights = {name: np.zeros(shape, np.float32) for name, shape in layout.items()}
    del weights["actor/mean/bias"]
    weights["actor/extra"] = np.zeros(1, np.float32)
    weights["actor/log_std"] = np.zeros(3, np.float32)
    weights["actor/dense_0/bias"] = np.zeros(16)
    weights["actor/dense_1/bias"] = np.full(16, np.nan, np.float32)
    with pytest.raises(ValueError) as error:
        check_weights(weights, layout, "the test")
    for part in (
        "actor/mean/bias is missing (expected [2])", "actor/extra is not part",
        "actor/log_std: expected float32 [2], received float32 [3]",
        "actor/dense_0/bias: expected float32 [16], received float64 [16]",
        "16 of 16 that are NaN or infinite", "do not fit the test",
    ):
        assert part in str(error.value)
