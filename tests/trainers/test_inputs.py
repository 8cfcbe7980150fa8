"""What the networks see."""

from __future__ import annotations

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from tests.trainers.policies import DICT_OBS, MIXED_OBS, OBS, observe
from trainers.architecture import architecture
from trainers.inputs import NetworkInputs, check_observations, join_inputs, join_vector, network_inputs
from trainers.settings import NetworkSettings

ACTION = ActionSpec("box", continuous_size=2)
OBSERVATIONS = (ObservationSpec("position", (3,)), ObservationSpec("grid", (2, 2), "uint8"))


def arch_of(parts, **network):
    return architecture(BehaviorSpec(tuple(parts), ACTION), NetworkSettings(**network))


ARCH = arch_of(OBSERVATIONS)


def test_vector_joins_flattened_observations_in_the_order_of_the_spec():
    grid = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    position = np.array([[10.0, 11, 12], [20, 21, 22]])
    inputs = network_inputs(ARCH, {"grid": grid, "position": position})
    assert inputs.vector.dtype == np.float32 and inputs.images == () and len(inputs) == 2
    np.testing.assert_array_equal(inputs.vector, [[10, 11, 12, 0, 1, 2, 3], [20, 21, 22, 4, 5, 6, 7]])


def test_vector_is_written_to_a_buffer_of_at_least_as_many_rows():
    obs = {"grid": np.ones((2, 2, 2), np.uint8), "position": np.zeros((2, 3), np.float32)}
    out = np.full((5, 7), -1, np.float32)
    vector = join_vector(ARCH, obs, 2, out)
    assert np.shares_memory(vector, out) and vector.shape == (2, 7)
    np.testing.assert_array_equal(out[:2], [[0, 0, 0, 1, 1, 1, 1]] * 2)
    assert (out[2:] == -1).all()
    exact = np.empty((2, 7), np.float32)
    assert join_vector(ARCH, obs, 2, exact) is exact


def test_normalised_observations_come_first():
    """Speed before choices and flags; without normalising in the order of the spec."""
    obs = observe(BehaviorSpec(MIXED_OBS, ACTION), np.random.default_rng(0), 3)
    normalized, plain = arch_of(MIXED_OBS, normalize=True), arch_of(MIXED_OBS)
    assert [part.name for part in normalized.vectors] == ["speed", "kind", "flags"]
    assert [part.name for part in plain.vectors] == ["kind", "speed", "flags"]
    np.testing.assert_array_equal(network_inputs(normalized, obs).vector[:, :2], obs["speed"])
    np.testing.assert_array_equal(network_inputs(plain, obs).vector[:, 5:7], obs["speed"])


def test_choices_are_one_hot_from_their_first_value():
    """Three choices from 0 and two from -1, as MultiDiscrete gives them; alone, too, and as any integer type."""
    categorical = MIXED_OBS[0]
    arch = arch_of([categorical])
    for dtype in (np.int64, np.int8, np.float32):
        inputs = network_inputs(arch, {"kind": np.array([[0, -1], [2, 0], [1, -1]], dtype)})
        np.testing.assert_array_equal(inputs.vector, [[1, 0, 0, 1, 0], [0, 0, 1, 0, 1], [0, 1, 0, 1, 0]])
        assert inputs.vector.dtype == np.float32


def test_choices_of_several_axes_are_one_hot_in_c_order():
    spec = ObservationSpec("kind", (2, 2), "int64", "categorical", choices=(2, 3, 2, 2), starts=(0, 1, 0, 5))
    inputs = network_inputs(arch_of([spec]), {"kind": np.array([[[1, 3], [0, 6]]])})
    np.testing.assert_array_equal(inputs.vector, [[0, 1, 0, 0, 1, 1, 0, 0, 1]])


@pytest.mark.parametrize("value, message", [
    ([3, -1], r"'kind' element 0 from 0 to 2, received 3 in row 1"), ([0, 1], r"'kind' element 1 from -1 to 0, received 1 in row 1"),
    ([-1, 0], r"'kind' element 0 from 0 to 2, received -1 in row 1"),
])
def test_choice_out_of_range_is_refused_with_key_index_value_and_bounds(value, message):
    """C62."""
    with pytest.raises(ValueError, match=message):
        network_inputs(arch_of(MIXED_OBS[:1]), {"kind": np.array([[0, 0], value])})


def test_flags_are_0_and_1():
    inputs = network_inputs(arch_of(MIXED_OBS[2:]), {"flags": np.array([[[0, 1], [1, 1]]], np.int8)})
    np.testing.assert_array_equal(inputs.vector, [[0, 1, 1, 1]])


def test_images_stay_as_they_are_stored():
    """C60: memory dtype, layout and numbers unchanged; not copied."""
    arch = arch_of(DICT_OBS, observations={"grid": {"encoder": "match3"}})
    obs = observe(arch.spec, np.random.default_rng(1), 4)
    inputs = network_inputs(arch, obs)
    assert [image.name for image in arch.images] == ["grid", "image"]
    assert inputs.images[0] is obs["grid"] and inputs.images[1] is obs["image"]
    assert inputs.vector.shape == (4, 11)


def test_images_alone_have_a_vector_of_no_columns():
    arch = arch_of(DICT_OBS[-1:])
    inputs = network_inputs(arch, observe(arch.spec, np.random.default_rng(1), 4))
    assert inputs.vector.shape == (4, 0) and len(inputs) == 4


def test_rows_are_taken_and_joined():
    arch = arch_of(DICT_OBS, observations={"grid": {"encoder": "match3"}})
    inputs = network_inputs(arch, observe(arch.spec, np.random.default_rng(2), 5))
    for rows in (np.array([3, 0]), slice(1, 4)):
        part = inputs.take(rows)
        np.testing.assert_array_equal(part.vector, inputs.vector[rows])
        for one, two in zip(part.images, inputs.images, strict=True):
            np.testing.assert_array_equal(one, two[rows])
            assert one.dtype == two.dtype
    joined = join_inputs([inputs.take(slice(0, 2)), inputs.take(slice(2, 5))])
    np.testing.assert_array_equal(joined.vector, inputs.vector)
    for one, two in zip(joined.images, inputs.images, strict=True):
        np.testing.assert_array_equal(one, two)
    assert join_inputs([NetworkInputs(inputs.vector)]).images == ()


def test_single_float32_observation_is_not_copied():
    arch = arch_of([ObservationSpec("obs", (2, 2))])
    obs = np.zeros((3, 2, 2), np.float32)
    assert np.shares_memory(network_inputs(arch, {"obs": obs}).vector, obs)
    assert network_inputs(arch, {"obs": np.zeros((0, 2, 2), np.float32)}).vector.shape == (0, 4)
    assert network_inputs(arch_of(OBS), {"obs": np.zeros((2, 3))}).vector.dtype == np.float32


@pytest.mark.parametrize("obs, message", [
    ({"position": np.zeros((2, 3))}, r"Expected the observations \['position', 'grid'\], received \['position'\]"),
    ({"position": np.zeros((2, 3)), "grid": np.zeros((2, 4))}, r"'grid' of shape \[n, 2, 2\].*received \[2, 4\]"),
    ({"position": np.zeros((2, 3)), "grid": np.zeros((3, 2, 2))}, r"'grid' of shape \[n, 2, 2\].*same n.*received \[3, 2, 2\]"),
    ({"position": np.zeros(3), "grid": np.zeros((3, 2, 2))}, r"'position' of shape \[n, 3\].*received \[3\]. .* obs\[None\]"),
    ({"position": np.float32(1), "grid": np.zeros((1, 2, 2))}, r"'position' of shape \[n, 3\].*received \[\]"),
])
def test_observations_of_another_shape_are_refused_with_key_expected_and_received(obs, message):
    """C91."""
    for check in (network_inputs, lambda arch, obs: check_observations(arch.spec, obs)):
        with pytest.raises(ValueError, match=message):
            check(ARCH, obs)
