"""The casts and checks of what environments return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from envs.boundary import ObservationReader, read_flag, read_reward
from envs.spaces import behavior_spec, observation_specs
from envs.specs import Observations, observation_part
from envs.toy_audit import ECHO_SPACES, PIXEL_SPACES, echo_observation


def reader(space: spaces.Space) -> ObservationReader:
    return ObservationReader(space, observation_specs(space, "env"))


def read_all(space: spaces.Space, value: Any, n: int | None = None) -> Observations:
    r = reader(space)
    out = r.empty(n)
    for array in out.values():
        array.fill(1)
    r.read(value, out)
    return out


def read(space: spaces.Space, value: Any, n: int | None = None) -> np.ndarray:
    """The only observation of a space that is neither Dict nor Tuple."""
    return read_all(space, value, n)["obs"]


def problem(space: spaces.Space, batch: np.ndarray, check_bounds: bool = True) -> tuple[int, str] | None:
    return reader(space).problem({"obs": batch}, check_bounds)


UNIT = spaces.Box(0.0, 1.0, (3,), np.float32)
ECHO = spaces.Dict(ECHO_SPACES)


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
        with pytest.raises(ValueError, match=r"'obs'.*expected uint8 values"):
            read(space, bad)


@pytest.mark.parametrize(("value", "received"), [
    (np.zeros(4), r"shape \(4,\)"), (np.zeros((1, 3)), r"shape \(1, 3\)"), (0.5, r"shape \(\)"), ([], r"shape \(0,\)"),
    ([[0.0], [0.0, 1.0]], "inhomogeneous"), ("abc", "abc"), (None, r"shape \(\)"), ({"a": 1}, "'a': 1"),
])
def test_wrong_shapes(value: Any, received: str) -> None:
    """C62: the message has key, expected and received; nothing is broadcast."""
    with pytest.raises(ValueError, match=rf"'obs'.*expected.*shape \(3,\).*{received}"):
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
        assert problem(UNIT, batch, check_bounds) == (2, f"non-finite observation 'obs'[1] = {value}")
    assert problem(UNIT, np.zeros((4, 3), np.float32)) is None


def test_a_value_that_float32_cannot_hold_is_not_finite() -> None:
    """A float64 of 1e39 becomes infinite in the stored float32, which is a fault, not a silent inf."""
    space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    with np.errstate(over="ignore"):
        out = read(space, np.array([1e39]))
    assert problem(space, out[None], False) == (0, "non-finite observation 'obs'[0] = inf")


def test_large_finite_values_pass() -> None:
    space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    assert problem(space, np.full((2, 3), 3e38, np.float32)) is None


def test_out_of_bounds_has_key_index_value_bound() -> None:
    """C62: 1.2 in Box(0, 1)."""
    batch = np.full((4, 3), 0.5, np.float32)
    batch[3, 2] = 1.2
    row, text = problem(UNIT, batch)
    assert row == 3
    assert "'obs'[2] = 1.2" in text
    assert "high bound 1.0" in text
    batch[3, 2] = -0.5
    assert "low bound 0.0" in problem(UNIT, batch)[1]
    assert problem(UNIT, batch, False) is None


def test_rounding_is_not_out_of_bounds() -> None:
    batch = np.array([[1.000001, 0.0, -0.000001]], np.float32)
    assert problem(UNIT, batch) is None


def test_integer_bounds_are_exact() -> None:
    space = spaces.Box(0, 10, (1,), np.int64)
    assert problem(space, np.array([[10]])) is None
    assert problem(space, np.array([[11]]))[0] == 0


def test_one_observation_is_checked_as_a_batch_is() -> None:
    """Row 0, the same words."""
    assert problem(UNIT, np.array([0.5, np.nan, 0.5], np.float32)) == (0, "non-finite observation 'obs'[1] = nan")
    assert problem(UNIT, np.array([0.5, 0.5, 2.0], np.float32))[0] == 0
    assert "'obs'[2] = 2.0 is outside of its space: high bound 1.0" in problem(UNIT, np.array([0.5, 0.5, 2.0], np.float32))[1]


# -- choices, flags, images ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1, np.int64(1), np.int32(1), 1.0, np.array(1), np.array([1]), [1], np.float64(1.0)])
def test_a_choice_of_any_type(value: Any) -> None:
    """C62, C59: stored as it is given, the start of the space included."""
    out = read(spaces.Discrete(3, start=-1), value)
    assert out.tolist() == [1]
    assert out.dtype == np.int64
    assert read(spaces.Discrete(3, dtype=np.int8), value).dtype == np.int8


@pytest.mark.parametrize("value", [1.5, "1", None, [1, 2], np.array([1, 2]), 10**30, {"a": 1}])
def test_not_a_choice(value: Any) -> None:
    with pytest.raises(ValueError, match="^observation 'obs': expected "):
        read(spaces.Discrete(3), value)


@pytest.mark.parametrize(("space", "values", "where"), [
    (spaces.Discrete(3), [[0], [3]], r"'obs'[0] = 3 is outside of its space: high bound 2"),
    (spaces.Discrete(3, start=-1), [[-1], [-2]], r"'obs'[0] = -2 is outside of its space: low bound -1"),
    (spaces.MultiDiscrete([2, 11], start=[0, 25]), [[1, 35], [1, 24]], r"'obs'[1] = 24 is outside of its space: low bound 25"),
    (spaces.MultiDiscrete([[2, 3], [4, 5]]), [[[1, 2], [3, 4]], [[1, 2], [3, 5]]], r"'obs'[1, 1] = 5 is outside of its space: high bound 4"),
], ids=str)
def test_a_choice_out_of_range_is_named_at_every_step(space: spaces.Space, values: list, where: str) -> None:
    """Also after the first steps: it has no column in the networks."""
    batch = np.array(values)
    assert problem(space, batch[:1]) is None
    for check_bounds in (True, False):
        row, text = problem(space, batch, check_bounds)
        assert row == 1
        assert where in text


def test_flags_are_0_and_1() -> None:
    space = spaces.MultiBinary(3)
    assert read(space, [True, 0, 1.0]).tolist() == [1, 0, 1]
    assert "'obs'[2] = 2 is outside of its space: high bound 1" in problem(space, np.array([[1, 0, 2]], np.int8))[1]
    assert read(spaces.Box(0, 1, (2,), np.bool_), [1, 0]).tolist() == [True, False]
    assert read(spaces.Box(0, 1, (), np.bool_), True).tolist() == [True]
    for space, value in ((spaces.Box(0, 1, (2,), np.bool_), [2, 0]), (spaces.Box(0, 1, (), np.bool_), 2)):
        with pytest.raises(ValueError, match="'obs': expected bool values, received"):
            read(space, value)


@pytest.mark.parametrize("key", PIXEL_SPACES)
def test_images_are_kept_as_they_are(key: str) -> None:
    """C60: dtype, shape and values; nothing is scaled or turned here."""
    space = PIXEL_SPACES[key]
    value = space.sample()
    out = read(space, value)
    assert (out.dtype, out.shape) == (space.dtype, space.shape)
    np.testing.assert_array_equal(out, value)
    assert problem(space, out) is None


def test_an_image_of_floats_is_checked_by_pixel() -> None:
    batch = np.zeros((2, 84, 84, 1), np.float32)
    batch[1, 2, 3, 0] = 128.0
    assert problem(PIXEL_SPACES["unit"], batch)[1].startswith("observation 'obs'[2, 3, 0] = 128.0 is outside of its space: high bound 1.0")
    with pytest.raises(ValueError, match="'obs': expected uint8 values, received"):
        read(PIXEL_SPACES["rgb"], np.full((84, 84, 3), 0.5))


# -- dict and tuple --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [ECHO, spaces.Tuple(ECHO_SPACES.values())], ids=["dict", "tuple"])
def test_every_part_is_found(space: spaces.Space) -> None:
    value: Any = echo_observation(3, 5)
    value = value if isinstance(space, spaces.Dict) else tuple(value.values())
    out = read_all(space, value)
    for spec in observation_specs(space, "env"):
        assert (out[spec.name].dtype, out[spec.name].shape) == (np.dtype(spec.dtype), spec.shape)
        np.testing.assert_array_equal(out[spec.name], np.reshape(observation_part(spec, value), spec.shape))
    assert reader(space).problem(out, True) is None


SIMPLE_SPACES = [UNIT, spaces.Box(-1, 1, ()), spaces.Discrete(5, start=2), spaces.MultiDiscrete([[2, 3], [4, 5]]), spaces.MultiBinary(3)]


@pytest.mark.parametrize("space", [ECHO, *SIMPLE_SPACES], ids=lambda space: type(space).__name__)
@pytest.mark.parametrize("n", [1, 4])
def test_a_batch_as_gymnasium_makes_it(space: spaces.Space, n: int) -> None:
    """Every row equals the observation that it was made of."""
    space.seed(1)
    values = [space.sample() for _ in range(n)]
    r = reader(space)
    out, one = r.empty(n), r.empty(None)
    r.read(concatenate(space, values, create_empty_array(space, n)), out)
    for row, value in enumerate(values):
        r.read(value, one)
        for name, array in one.items():
            np.testing.assert_array_equal(out[name][row], array)
    sampled = batch_space(space, n).sample()
    r.read(sampled, out)
    assert r.problem(out, True) is None


def test_other_types_inside() -> None:
    """C62: float64, lists and plain numbers in a Dict and a Tuple."""
    space = spaces.Dict({"vec": UNIT, "pair": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2)))})
    out = read_all(space, {"vec": [0.0, 1, np.float64(0.5)], "pair": [2, (True, False)]})
    assert {name: array.tolist() for name, array in out.items()} == {"vec": [0.0, 1.0, 0.5], "pair/0": [2], "pair/1": [1, 0]}
    assert out["vec"].dtype == np.float32


def test_nothing_of_what_was_read_is_kept() -> None:
    """C20: parts that are changed in place later, at every depth."""
    value = echo_observation(1, 2)
    out = read_all(ECHO, value)
    before = {name: array.copy() for name, array in out.items()}
    value["body"][0][:] = 77
    value["body"][1]["lights"][:] = 0
    for key in ("camera", "clock", "codes", "depth", "flags", "grid"):
        value[key][...] = 0
    for name, array in out.items():
        np.testing.assert_array_equal(array, before[name])


def broken(**changes: Any) -> dict[str, Any]:
    """An observation with other parts; None leaves one out."""
    return {key: value for key, value in {**echo_observation(0, 0), **changes}.items() if value is not None}


BODY, GEARS = echo_observation(0, 0)["body"]


@pytest.mark.parametrize(("value", "message"), [
    (broken(depth=None), r"observation: expected a dict with the keys \['body', .*\], received one with \['depth'\] missing"),
    (broken(extra=1), r"observation: expected a dict .* received one with \['extra'\] not in the observation space"),
    (broken(depth=None, dept=1), r"received one with \['depth'\] missing and \['dept'\] not in the observation space"),
    (np.zeros(3), r"observation: expected a dict with the keys .* received a ndarray: array\("),
    (broken(body=(BODY,)), r"observation 'body': expected a tuple of 2, as the observation space has it, received a tuple of 1"),
    (broken(body=BODY), r"observation 'body': expected a tuple of 2.*received a ndarray"),
    (broken(body=(BODY, {"gear": 0})), r"observation 'body/1': expected a dict with the keys \['gear', 'lights'\], received one with \['lights'\]"),
    (broken(body=(BODY, None)), r"observation 'body/1': expected a dict with the keys .* received a NoneType: None"),
    (broken(body=(BODY, {**GEARS, "lights": [1, 0]})), r"observation 'body/1/lights': expected shape \(3,\), received shape \(2,\)"),
    (broken(camera=np.zeros((5, 4, 3), np.uint8)), r"observation 'camera': expected shape \(4, 5, 3\), received shape \(5, 4, 3\)"),
    (broken(camera=np.full((4, 5, 3), 256)), r"observation 'camera': expected uint8 values"),
    (broken(grid="abc"), r"observation 'grid': expected numbers of shape \(3, 2\), received 'abc'"),
    (broken(clock=0.5), r"observation 'clock': expected int64 values, received 0.5"),
])
def test_another_structure_is_named(value: Any, message: str) -> None:
    """C62: the part by its path, what was expected and what was received."""
    with pytest.raises(ValueError, match=f"(?s)^{message}" if message.startswith("obs") else f"(?s){message}"):
        read_all(ECHO, value)


def test_wrong_values_inside_are_named() -> None:
    """C54, C62: by the path of the part."""
    r = reader(ECHO)
    out = r.empty(2)
    value = concatenate(ECHO, [echo_observation(0, 0), echo_observation(0, 1)], create_empty_array(ECHO, 2))
    r.read(value, out)
    out["body/1/gear"][1] = 4
    row, text = r.problem(out, False)
    assert row == 1
    assert text.startswith("observation 'body/1/gear'[0] = 4 is outside of its space: high bound 3. Correct the bounds")
    out["body/0"][0, 1] = np.inf
    assert r.problem(out, False) == (0, "non-finite observation 'body/0'[1] = inf")


def test_a_mask_is_passed_over() -> None:
    """At the top of a Dict only, also where it is missing."""
    space = spaces.Dict({"vec": UNIT, "action_mask": spaces.MultiBinary(2)})
    for value in ({"vec": np.zeros(3), "action_mask": "anything"}, {"vec": np.zeros(3)}):
        assert list(read_all(space, value)) == ["vec"]
    for value in ({"action_mask": [1, 1]}, {"vec": np.zeros(3), "other": 1}, {"vec": np.zeros(3), "action_mask": 1, "other": 1}):
        with pytest.raises(ValueError, match="expected a dict"):
            read_all(space, value)
    with pytest.raises(ValueError, match=r"\['action_mask'\] not in the observation space"):
        read_all(spaces.Dict({"vec": UNIT}), {"vec": np.zeros(3), "action_mask": [1, 1]})


# -- rewards and flags -----------------------------------------------------------------------------------------------


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


def test_text_is_left_out():
    """Instructions in words, as MiniGrid's mission is: named as left out, passed over when reading, alone refused."""
    text = spaces.Text(5)
    space = spaces.Dict({"mission": text, "inner": spaces.Tuple((text, spaces.Discrete(3)))})
    spec = behavior_spec(space, spaces.Discrete(2), "world")
    assert [o.name for o in spec.observations] == ["inner/1"] and spec.left_out == ("inner/0", "mission")
    reader = ObservationReader(space, spec.observations)
    out = reader.empty(None)
    reader.read({"mission": "go", "inner": ("there", 2)}, out)
    assert out["inner/1"].tolist() == [2]
    with pytest.raises(ValueError, match="missing"):
        reader.read({"inner": ("there", 2)}, out)
    with pytest.raises(ValueError, match="nothing but text"):
        behavior_spec(spaces.Dict({"mission": text}), spaces.Discrete(2), "world")
    with pytest.raises(ValueError, match="supported are"):
        behavior_spec(text, spaces.Discrete(2), "world")
