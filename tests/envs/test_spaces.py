"""Spaces as specs, and the casts and checks of what environments return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from envs.spaces import ObservationReader, action_spec, behavior_spec, observation_spec, read_flag, read_reward
from envs.specs import ActionSpec


def reader(space: spaces.Box) -> ObservationReader:
    return ObservationReader(space, observation_spec(space, "vec", "env"))


def read(space: spaces.Box, value: Any) -> np.ndarray:
    spec = observation_spec(space, "vec", "env")
    out = np.zeros(spec.shape, spec.dtype)
    reader(space).read(value, out)
    return out


UNIT = spaces.Box(0.0, 1.0, (3,), np.float32)


@pytest.mark.parametrize(("space", "shape", "dtype"), [
    (UNIT, (3,), "float32"),
    (spaces.Box(-np.inf, np.inf, (3,), np.float64), (3,), "float32"),
    (spaces.Box(-1, 1, (2,), np.float16), (2,), "float16"),
    (spaces.Box(0, 255, (2,), np.uint8), (2,), "uint8"),
    (spaces.Box(-5, 5, (2,), np.int64), (2,), "int64"),
    (spaces.Box(-1, 1, (), np.float32), (1,), "float32"),
])
def test_vector_observations(space: spaces.Box, shape: tuple[int, ...], dtype: str) -> None:
    """The space's dtype is kept, but float64 is stored as float32; a scalar is a vector of one."""
    spec = observation_spec(space, "obs", "env")
    assert (spec.name, spec.shape, spec.dtype) == ("obs", shape, dtype)


@pytest.mark.parametrize("space", [
    spaces.Box(0, 255, (84, 84, 3), np.uint8), spaces.Discrete(3), spaces.Dict({"vec": UNIT}), spaces.Tuple((UNIT,)),
    spaces.MultiBinary(4), spaces.Text(5), spaces.Box(0, 1, (2,), np.bool_),
], ids=lambda space: type(space).__name__)
def test_other_observations_are_refused_by_name(space: spaces.Space) -> None:
    with pytest.raises(ValueError, match=r"(?s)MyEnv: observation 'obs' has the space .*supported are: Box of rank 0 or 1") as error:
        observation_spec(space, "obs", "MyEnv")
    assert str(space) in str(error.value)


@pytest.mark.parametrize("space", [
    spaces.Sequence(UNIT), spaces.OneOf((UNIT, spaces.Discrete(3))), spaces.Text(3), spaces.Box(0, 1, (2,), np.bool_),
], ids=lambda space: type(space).__name__)
def test_other_actions_are_refused_by_name(space: spaces.Space) -> None:
    supported = r"supported are: Box with finite bounds, Discrete, MultiDiscrete, MultiBinary, and Tuple and Dict of these\."
    with pytest.raises(ValueError, match=rf"(?s)^MyEnv: the action space is .*{supported}$") as error:
        action_spec(space, "MyEnv")
    assert str(space) in str(error.value)
    inside = spaces.Tuple((UNIT, spaces.Dict({"arm": space})))
    with pytest.raises(ValueError, match=rf"(?s)^MyEnv: the action space at \[1\]\['arm'\] is .*{supported}$"):
        action_spec(inside, "MyEnv")


def test_multi_binary_is_branches_of_two() -> None:
    assert action_spec(spaces.MultiBinary((2, 3)), "MyEnv") == ActionSpec(
        "multi_binary", discrete_branches=(2,) * 6, starts=(0,) * 6, shape=(2, 3), dtype="int8")


def test_tuple_and_dict_are_flattened_in_their_own_order() -> None:
    space = spaces.Tuple((
        spaces.MultiDiscrete([2, 4], start=[0, -1]), spaces.Dict({"b": spaces.Box(-2, 5, (), np.int16), "a": spaces.Discrete(3, start=7)}),
        spaces.Box(0.0, 1.0, (2, 1), np.float32),
    ))
    spec = action_spec(space, "MyEnv")
    assert (spec.kind, spec.continuous_size, spec.discrete_branches) == ("hybrid", 3, (2, 4, 3))
    assert (spec.low, spec.high, spec.starts, spec.shape) == ((-2, 0, 0), (5, 1, 1), (0, -1, 7), ())
    assert [part.path for part in spec.parts] == [(0,), (1, "a"), (1, "b"), (2,)]
    assert [part.action for part in spec.parts] == [
        action_spec(s, "MyEnv") for s in (space[0], space[1]["a"], space[1]["b"], space[2])]


@pytest.mark.parametrize(("space", "message"), [
    (spaces.Tuple(()), r"the action space is an empty Tuple"),
    (spaces.Dict({}), r"the action space is an empty Dict"),
    (spaces.Dict({"a": UNIT, "b": spaces.Tuple(())}), r"the action space at \['b'\] is an empty Tuple; give it a space, or leave it out"),
    (spaces.Dict({1: UNIT}), r"the action space is a Dict with the key 1; expected text as keys"),
])
def test_refused_tuples_and_dicts(space: spaces.Space, message: str) -> None:
    with pytest.raises(ValueError, match=f"^MyEnv: {message}"):
        action_spec(space, "MyEnv")


def test_infinite_box_inside_is_named_by_its_place() -> None:
    """C57: which of the spaces, which bound, and what to do."""
    bad = spaces.Box(np.array([-1, -np.inf]), np.array([1, 1]), dtype=np.float32)
    with pytest.raises(ValueError, match=r"(?s)^MyEnv: the action space at \[1\] is Box.*at index \[1\] are low=-inf, .*Give the Box finite"):
        action_spec(spaces.Tuple((spaces.Discrete(2), bad)), "MyEnv")
    with pytest.raises(ValueError, match=r"(?s)^MyEnv: the action space at \['arm'\]\[0\] is Box.*at index \[1\] are low=-inf"):
        action_spec(spaces.Dict({"arm": spaces.Tuple((bad,)), "eye": UNIT}), "MyEnv")


@pytest.mark.parametrize(("space", "index"), [
    (spaces.Box(np.array([-1, -np.inf]), np.array([1, 1]), dtype=np.float32), r"\[1\]"),
    (spaces.Box(-1, np.inf, (2, 2), np.float32), r"\[0, 0\]"),
    (spaces.Box(-np.inf, np.inf, (1,), np.int32), r"\[0\]"),
    (spaces.Box(-1.7e308, 1.7e308, (1,), np.float64), r"\[0\]"),
    (spaces.Box(0, 2**62, (1,), np.int64), r"\[0\]"),
])
def test_action_box_needs_finite_bounds(space: spaces.Box, index: str) -> None:
    """C57: a Box with an infinite side (or a range that float64 cannot span exactly) is refused with the index and what to do."""
    with pytest.raises(ValueError, match=f"index {index} are low=.*Give the Box finite bounds"):
        action_spec(space, "MyEnv")


def test_missing_space_is_named() -> None:
    with pytest.raises(ValueError, match="MyEnv: the environment has no action_space; set it"):
        behavior_spec(UNIT, None, "MyEnv")


@pytest.mark.parametrize("value", [
    np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.5, 1.0], np.float16), [0.0, 0.5, 1.0], (0, np.float64(0.5), np.int64(1)),
], ids=["float64", "float16", "list", "mixed"])
def test_casts(value: Any) -> None:
    """C62: other number types are cast."""
    out = read(UNIT, value)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, [0.0, 0.5, 1.0])


@pytest.mark.parametrize("value", [0.25, [0.25], np.float64(0.25), np.array(0.25), np.array([[0.25]])])
def test_one_element_of_any_rank(value: Any) -> None:
    """C62: a scalar, or an array of one element."""
    np.testing.assert_array_equal(read(spaces.Box(0, 1, (), np.float32), value), [0.25])
    np.testing.assert_array_equal(read(spaces.Box(0, 1, (1,), np.float32), value), [0.25])


def test_integers_are_cast_only_without_loss() -> None:
    """C62: 7 and 7.0 are 7; 7.5 and 300 are not a uint8."""
    space = spaces.Box(0, 255, (2,), np.uint8)
    assert read(space, [7, 8.0]).tolist() == [7, 8]
    assert read(space, np.array([7, 8], np.int64)).dtype == np.uint8
    for bad in ([7.5, 8], np.array([300, 8]), np.array([-1, 8])):
        with pytest.raises(ValueError, match=r"'vec'.*expected uint8 values"):
            read(space, bad)


@pytest.mark.parametrize(("value", "received"), [
    (np.zeros(4), r"shape \(4,\)"), (np.zeros((1, 3)), r"shape \(1, 3\)"), (0.5, r"shape \(\)"), ([], r"shape \(0,\)"),
    ([[0.0], [0.0, 1.0]], "inhomogeneous"), ("abc", "abc"), (None, r"shape \(\)"), ({"a": 1}, "'a': 1"),
])
def test_wrong_shapes(value: Any, received: str) -> None:
    """C62: the message has key, expected and received; nothing is broadcast."""
    with pytest.raises(ValueError, match=rf"'vec'.*expected.*shape \(3,\).*{received}"):
        read(UNIT, value)


def test_what_is_read_is_a_copy() -> None:
    """C20."""
    value = np.zeros(3, np.float32)
    out = read(UNIT, value)
    value[:] = 9.0
    assert out.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_is_found_with_row_key_index(value: float) -> None:
    """C54."""
    batch = np.zeros((4, 3), np.float32)
    batch[2, 1] = value
    for check_bounds in (True, False):
        assert reader(UNIT).problem(batch, check_bounds) == (2, f"non-finite observation 'vec'[1] = {value}")
    assert reader(UNIT).problem(np.zeros((4, 3), np.float32), True) is None


def test_a_value_that_float32_cannot_hold_is_not_finite() -> None:
    """A float64 of 1e39 becomes infinite in the stored float32, which is a fault, not a silent inf."""
    space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    with np.errstate(over="ignore"):
        out = read(space, np.array([1e39]))
    assert reader(space).problem(out[None], False) == (0, "non-finite observation 'vec'[0] = inf")


def test_large_finite_values_pass() -> None:
    space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    assert reader(space).problem(np.full((2, 3), 3e38, np.float32), True) is None


def test_out_of_bounds_has_key_index_value_bound() -> None:
    """C62: 1.2 in Box(0, 1)."""
    batch = np.full((4, 3), 0.5, np.float32)
    batch[3, 2] = 1.2
    row, text = reader(UNIT).problem(batch, True)
    assert row == 3
    assert "'vec'[2] = 1.2" in text
    assert "high bound 1.0" in text
    batch[3, 2] = -0.5
    assert "low bound 0.0" in reader(UNIT).problem(batch, True)[1]
    assert reader(UNIT).problem(batch, False) is None


def test_rounding_is_not_out_of_bounds() -> None:
    batch = np.array([[1.000001, 0.0, -0.000001]], np.float32)
    assert reader(UNIT).problem(batch, True) is None


def test_integer_bounds_are_exact() -> None:
    space = spaces.Box(0, 10, (1,), np.int64)
    assert reader(space).problem(np.array([[10]]), True) is None
    assert reader(space).problem(np.array([[11]]), True)[0] == 0


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), np.array([2.0]), np.array(2), np.array([[2]]), True + 1])
def test_rewards(value: Any) -> None:
    """C62: any single number."""
    reward = read_reward(value)
    assert type(reward) is float
    assert reward == 2.0


@pytest.mark.parametrize("value", [None, "good", np.zeros(2), [1.0, 2.0], {}])
def test_not_a_reward(value: Any) -> None:
    with pytest.raises(ValueError, match="reward: expected one number"):
        read_reward(value)


def test_flags() -> None:
    """C62: NumPy bools, 0 and 1."""
    for value in (True, np.True_, 1, np.array([True]), np.array(True)):
        assert read_flag(value, "terminated") is True
    for value in (False, np.False_, 0, np.array([False])):
        assert read_flag(value, "terminated") is False
    for value in (None, "no", {}, np.array([True, False])):
        with pytest.raises(ValueError, match="truncated: expected a bool"):
            read_flag(value, "truncated")
