"""Layout and first weights."""

from __future__ import annotations

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from trainers.networks import (
    actor_layout,
    check_weights,
    critic_layout,
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
