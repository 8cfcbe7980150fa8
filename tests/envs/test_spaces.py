"""Spaces as specs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from envs.spaces import action_spec, behavior_spec, observation_specs
from envs.specs import ActionSpec, ObservationSpec

UNIT = spaces.Box(0.0, 1.0, (3,), np.float32)


def the_spec(space: spaces.Space) -> ObservationSpec:
    """Spec of a space that is neither Dict nor Tuple."""
    (spec,) = observation_specs(space, "env")
    return spec


@pytest.mark.parametrize(("space", "shape", "dtype"), [
    (UNIT, (3,), "float32"),
    (spaces.Box(-np.inf, np.inf, (3,), np.float64), (3,), "float32"),
    (spaces.Box(-1, 1, (2,), np.longdouble), (2,), "float32"),
    (spaces.Box(-1, 1, (2,), np.float16), (2,), "float16"),
    (spaces.Box(0, 255, (2,), np.uint8), (2,), "uint8"),
    (spaces.Box(-5, 5, (2,), np.int64), (2,), "int64"),
    (spaces.Box(-1, 1, (), np.float32), (1,), "float32"),
    (spaces.Box(-1, 1, (2, 3), np.float64), (2, 3), "float32"),
    (spaces.Box(-1, 1, (2, 3, 4, 5, 6), np.int16), (2, 3, 4, 5, 6), "int16"),
])
def test_vectors(space: spaces.Box, shape: tuple[int, ...], dtype: str) -> None:
    """The space's dtype and shape are kept, but wide floats are stored as float32, and a scalar is a vector of one."""
    assert the_spec(space) == ObservationSpec("obs", shape, dtype, "vector")


@pytest.mark.parametrize(("space", "spec"), [
    (spaces.Discrete(3), ObservationSpec("obs", (1,), "int64", "categorical", (), (3,), (0,))),
    (spaces.Discrete(3, start=-1), ObservationSpec("obs", (1,), "int64", "categorical", (), (3,), (-1,))),
    (spaces.Discrete(200, dtype=np.uint8), ObservationSpec("obs", (1,), "uint8", "categorical", (), (200,), (0,))),
    (spaces.MultiDiscrete([2, 11], start=[0, 25]), ObservationSpec("obs", (2,), "int64", "categorical", (), (2, 11), (0, 25))),
    (spaces.MultiDiscrete([[2, 3], [4, 5]]), ObservationSpec("obs", (2, 2), "int64", "categorical", (), (2, 3, 4, 5), (0,) * 4)),
    (spaces.MultiBinary(4), ObservationSpec("obs", (4,), "int8", "binary")),
    (spaces.MultiBinary((2, 3)), ObservationSpec("obs", (2, 3), "int8", "binary")),
    (spaces.Box(0, 1, (20, 20, 3), np.bool_), ObservationSpec("obs", (20, 20, 3), "bool", "binary")),
], ids=str)
def test_choices_and_flags(space: spaces.Space, spec: ObservationSpec) -> None:
    """C59: the first value of each choice is kept."""
    assert the_spec(space) == spec


@pytest.mark.parametrize(("shape", "low", "high", "dtype", "kind", "is_uint8_image"), [
    # uint8 from 0 to 255: three or four axes of any size, two axes of 15 and more
    ((84, 84, 3), 0, 255, np.uint8, "image", True),
    ((3, 84, 84), 0, 255, np.uint8, "image", True),
    ((4, 84, 84), 0, 255, np.uint8, "image", True),
    ((7, 7, 3), 0, 255, np.uint8, "image", True),
    ((4, 84, 84, 3), 0, 255, np.uint8, "image", True),
    ((2, 2, 2, 2), 0, 255, np.uint8, "image", True),
    ((84, 84), 0, 255, np.uint8, "image", True),
    ((15, 15), 0, 255, np.uint8, "image", True),
    ((14, 84), 0, 255, np.uint8, "vector", False),
    ((84, 14), 0, 255, np.uint8, "vector", False),
    ((84,), 0, 255, np.uint8, "vector", False),
    ((2, 2, 2, 2, 2), 0, 255, np.uint8, "vector", False),
    # anything else: three axes with two sides of 15 and more; the shorter of the first and the last holds the channels
    ((84, 84, 1), 0.0, 1.0, np.float32, "image", False),
    ((1, 84, 84), 0.0, 1.0, np.float64, "image", False),
    ((20, 20, 3), -np.inf, np.inf, np.float32, "image", False),
    ((15, 15, 15), 0.0, 1.0, np.float32, "image", False),
    ((20, 20, 3), 0, 254, np.uint8, "image", False),
    ((20, 20, 3), 1, 255, np.uint8, "image", False),
    ((20, 20, 3), 0, 255, np.int32, "image", False),
    ((7, 7, 3), 0, 10, np.uint8, "vector", False),
    ((14, 20, 3), 0.0, 1.0, np.float32, "vector", False),
    ((3, 14, 20), 0.0, 1.0, np.float32, "vector", False),
    ((20, 14, 20), 0.0, 1.0, np.float32, "vector", False),
    ((14, 15, 15), 0.0, 1.0, np.float32, "image", False),
    ((5, 5, 5), -1.0, 1.0, np.float32, "vector", False),
    ((84, 84), 0.0, 1.0, np.float32, "vector", False),
    ((4, 84, 84, 3), 0.0, 1.0, np.float32, "vector", False),
])
def test_image_rule(shape: tuple[int, ...], low: Any, high: Any, dtype: type, kind: str, is_uint8_image: bool) -> None:
    """C60: by shape, dtype and bounds only, as the module's docstring says."""
    spec = the_spec(spaces.Box(low, high, shape, dtype))
    assert (spec.kind, spec.is_uint8_image, spec.shape) == (kind, is_uint8_image, shape)


def test_one_other_bound_is_no_picture() -> None:
    """C60: the bounds are 0 and 255 everywhere, or the numbers are not scaled by 255."""
    high = np.full((20, 20, 3), 255, np.uint8)
    high[3, 4, 1] = 254
    assert not the_spec(spaces.Box(np.zeros_like(high), high, dtype=np.uint8)).is_uint8_image


def test_dict_and_tuple_become_one_observation_for_each_part() -> None:
    """In the order of the space (Gymnasium sorts the keys of a Dict), named by keys and positions."""
    space = spaces.Dict({
        "zoom": spaces.Box(0, 1, ()), "arm": spaces.Tuple((UNIT, spaces.Dict({"eye": spaces.Box(0, 255, (84, 84, 3), np.uint8),
                                                                                "aim": spaces.Discrete(3, start=5)}))),
    })
    assert observation_specs(space, "env") == (
        ObservationSpec("arm/0", (3,), "float32", "vector", ("arm", 0)),
        ObservationSpec("arm/1/aim", (1,), "int64", "categorical", ("arm", 1, "aim"), (3,), (5,)),
        ObservationSpec("arm/1/eye", (84, 84, 3), "uint8", "image", ("arm", 1, "eye"), is_uint8_image=True),
        ObservationSpec("zoom", (1,), "float32", "vector", ("zoom",)),
    )
    assert [spec.name for spec in observation_specs(spaces.Tuple((UNIT, spaces.Tuple((UNIT, UNIT)))), "env")] == ["0", "1/0", "1/1"]
    assert [spec.name for spec in observation_specs(spaces.Dict({"only": UNIT}), "env")] == ["only"]


def test_mask_in_the_observation_is_none() -> None:
    """Only at the top of a Dict; it makes the behavior masked if there is a choice to mask."""
    mask = spaces.MultiBinary(2)
    space = spaces.Dict({"action_mask": mask, "vec": UNIT, "unit": spaces.Dict({"action_mask": mask})})
    assert [spec.name for spec in observation_specs(space, "env")] == ["unit/action_mask", "vec"]
    assert behavior_spec(space, spaces.Discrete(2), "env").action.masked
    assert not behavior_spec(space, UNIT, "env").action.masked
    assert not behavior_spec(spaces.Dict({"unit": space}), spaces.Discrete(2), "env").action.masked
    with pytest.raises(ValueError, match="MyEnv: the observation space has nothing but text or the key 'action_mask'"):
        observation_specs(spaces.Dict({"action_mask": mask}), "MyEnv")


def test_masks_from_elsewhere() -> None:
    assert behavior_spec(UNIT, spaces.Tuple((UNIT, spaces.Discrete(2))), "env", masked=True).action.masked
    assert not behavior_spec(UNIT, spaces.Discrete(2), "env").action.masked
    assert not behavior_spec(UNIT, UNIT, "env", masked=True).action.masked


@pytest.mark.parametrize("space", [
    spaces.Graph(UNIT, None), spaces.Sequence(UNIT), spaces.OneOf((UNIT, UNIT)),
], ids=lambda space: type(space).__name__)
def test_other_observations_are_refused_by_their_place(space: spaces.Space) -> None:
    """The whole and any part of it: where it is, what it is, and what is supported."""
    supported = r"supported are: Box of any rank .*, Discrete, MultiDiscrete, MultiBinary, and Tuple and Dict of these\."
    with pytest.raises(ValueError, match=rf"(?s)^MyEnv: the observation space is .*{supported}$") as error:
        observation_specs(space, "MyEnv")
    assert str(space) in str(error.value)
    inside = spaces.Tuple((UNIT, spaces.Dict({"arm": space})))
    with pytest.raises(ValueError, match=rf"(?s)^MyEnv: the observation space at \[1\]\['arm'\] is .*{supported}$"):
        observation_specs(inside, "MyEnv")


@pytest.mark.parametrize(("space", "message"), [
    (spaces.Tuple(()), r"the observation space is an empty Tuple; give it a space, or leave it out"),
    (spaces.Dict({"a": UNIT, "b": spaces.Dict({})}), r"the observation space at \['b'\] is an empty Dict"),
    (spaces.Dict({1: UNIT}), r"the observation space is a Dict with the key 1; expected text as keys"),
    (spaces.Dict({"a": UNIT, "b": spaces.Box(0, 1, (3, 0))}), r"the observation space at \['b'\] is Box.*, which has no elements"),
    (spaces.Dict({"a/b": UNIT, "a": spaces.Dict({"b": UNIT})}),
     r"the observation space has 2 parts called 'a/b', at \['a'\]\['b'\] and \['a/b'\]; rename one"),
])
def test_refused_structures(space: spaces.Space, message: str) -> None:
    with pytest.raises(ValueError, match=f"^MyEnv: {message}"):
        observation_specs(space, "MyEnv")


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
