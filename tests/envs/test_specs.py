"""The mapping from policy space to the environment's space."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

from envs.spaces import action_spec, behavior_spec
from envs.specs import (
    Actions,
    BehaviorSpec,
    ObservationSpec,
    env_action_rows,
    no_terminal_steps,
    observation_part,
    path_text,
    to_env_actions,
)
from envs.toy import ACTION_SPACES, simple_parts
from envs.toy_audit import ECHO_SPACES, echo_observation
from tests.envs.contract import random_actions


def continuous(*values: float) -> Actions:
    return Actions(np.array(values, np.float32)[:, None], np.empty((len(values), 0), np.int32))


def discrete(*rows: list[int]) -> Actions:
    return Actions(np.empty((len(rows), 0), np.float32), np.array(rows, np.int32))


def test_box_ends_and_middle() -> None:
    """C57: Box(300, 500) gets 300, 400, 500 for -1, 0, 1, and samples beyond are clipped."""
    spec = action_spec(ACTION_SPACES["box_300_500"], "env")
    np.testing.assert_array_equal(to_env_actions(spec, continuous(-1, 0, 1, -7, 2.5)), np.array([[300, 400, 500, 300, 500]]).T)


def test_asymmetric_box() -> None:
    """C57: every dimension has its own bounds."""
    spec = action_spec(ACTION_SPACES["box_asymmetric"], "env")
    actions = Actions(np.array([[-1, -1], [0, 0], [1, 1]], np.float32), np.empty((3, 0), np.int32))
    np.testing.assert_array_equal(to_env_actions(spec, actions), [[-1, 0], [0, 5], [1, 10]])


def test_integer_box_rounds_to_the_nearest() -> None:
    """C57: Box int32(-1, 1)."""
    spec = action_spec(ACTION_SPACES["box_int"], "env")
    values = np.array([[-1, -0.6, -0.4], [0.4, 0.6, 1]], np.float32)
    env_actions = to_env_actions(spec, Actions(values, np.empty((2, 0), np.int32)))
    assert env_actions.dtype == np.int32
    np.testing.assert_array_equal(env_actions, [[-1, -1, 0], [0, 1, 1]])


def test_start_is_added() -> None:
    """C59: Discrete(3, start=-1) gets -1, 0, 1; MultiDiscrete has a start per branch."""
    spec = action_spec(ACTION_SPACES["discrete_negative"], "env")
    assert to_env_actions(spec, discrete([0], [1], [2])).tolist() == [-1, 0, 1]
    spec = action_spec(ACTION_SPACES["discrete_one"], "env")
    assert to_env_actions(spec, discrete([0], [0])).tolist() == [2, 2]
    spec = action_spec(ACTION_SPACES["multi_discrete_start"], "env")
    assert to_env_actions(spec, discrete([0, 0], [1, 10])).tolist() == [[0, 25], [1, 35]]


@pytest.mark.parametrize("key", ACTION_SPACES)
def test_every_action_is_in_its_space(key: str) -> None:
    """C57, C59: 1,000 actions each, ends included; dtype and shape too."""
    space = ACTION_SPACES[key]
    spec = action_spec(space, "env")
    actions = random_actions(behavior_spec(ACTION_SPACES["box_0_1"], space, "env"), 1000, np.random.default_rng(0))
    actions.continuous[:3] = np.array([[-1], [1], [1e30]])
    policy_space = actions.continuous.copy(), actions.discrete.copy()
    env_actions = to_env_actions(spec, actions)
    if spec.kind != "hybrid":
        assert env_actions.dtype == space.dtype
        assert env_actions.shape == (1000, *space.shape)
    rows = env_action_rows(spec, env_actions)
    assert len(rows) == 1000
    for action in rows:
        assert space.contains(action)
        for simple, part in simple_parts(space, action):
            assert isinstance(part, np.integer if isinstance(simple, spaces.Discrete) else np.ndarray)
            assert (part.dtype, part.shape) == (simple.dtype, simple.shape)
            if isinstance(part, np.ndarray):
                assert not np.shares_memory(part, actions.discrete), "an environment may write into its action (C20)"
                part[...] = 99
    for action in rows:
        for _, part in simple_parts(space, action):
            assert isinstance(part, np.integer) or (part == 99).all(), "no two environments share an action"
    np.testing.assert_array_equal(actions.continuous, policy_space[0])
    np.testing.assert_array_equal(actions.discrete, policy_space[1])


def hybrid(space: spaces.Space, continuous_rows: list[list[float]], discrete_rows: list[list[int]]) -> list:
    spec, n = action_spec(space, "env"), len(continuous_rows)
    continuous = np.array(continuous_rows, np.float32).reshape(n, spec.continuous_size)
    return to_env_actions(spec, Actions(continuous, np.array(discrete_rows, np.int32).reshape(n, len(spec.discrete_branches))))


def test_tuple_of_box_and_discrete() -> None:
    """C57, C59: bounds and start of each part; one tuple for each agent."""
    env_actions = hybrid(ACTION_SPACES["hybrid_tuple"], [[-1, 1], [0, -3], [1, 0.5]], [[0], [1], [2]])
    assert [(type(a), a[0].tolist(), a[1]) for a in env_actions] == [
        (tuple, [300, 500], -1), (tuple, [400, 300], 0), (tuple, [500, 450], 1)]
    assert hybrid(ACTION_SPACES["hybrid_tuple"], [], []) == []


def test_dict_takes_the_order_of_the_space() -> None:
    """C57, C59: Gymnasium sorts the keys (gear, lift, turn); every part gets its own dimensions and branches, integers rounded."""
    (action,) = hybrid(ACTION_SPACES["hybrid_dict"], [[0.6, -1, 1, 0]], [[1, 3]])
    assert {key: value.tolist() for key, value in action.items()} == {"gear": [1, 28], "lift": [[1], [-1]], "turn": [1, 5]}
    assert list(action) == list(ACTION_SPACES["hybrid_dict"].spaces) == ["gear", "lift", "turn"]


def test_dict_that_is_not_sorted() -> None:
    space = spaces.Dict([("b", spaces.Discrete(5)), ("a", spaces.Discrete(7))], sort_keys=False)
    assert hybrid(space, [[]], [[4, 6]]) == [{"b": 4, "a": 6}]


def test_nested() -> None:
    first, second = hybrid(ACTION_SPACES["hybrid_nested"], [[-1], [1]], [[0, 1, 0, 3], [0, 0, 1, 2]])
    assert second == (2, {"arm": (pytest.approx(0.3), pytest.approx(np.array([0, 1]))), "eye": 2})
    number, inner = first
    assert (number, inner["eye"], inner["arm"][0], inner["arm"][1].tolist()) == (2, 3, pytest.approx(-0.1), [1, 0])


@pytest.mark.parametrize("key", ["hybrid_tuple", "hybrid_dict", "hybrid_nested", "hybrid_discrete"])
def test_hybrid_is_the_sum_of_its_parts(key: str) -> None:
    """Each part maps as its space alone does, with the dimensions and branches that are its own."""
    spec = action_spec(ACTION_SPACES[key], "env")
    actions = random_actions(behavior_spec(ACTION_SPACES["box_0_1"], ACTION_SPACES[key], "env"), 20, np.random.default_rng(0))
    together = [list(simple_parts(ACTION_SPACES[key], action)) for action in to_env_actions(spec, actions)]
    continuous_left, discrete_left = actions.continuous, actions.discrete
    for column, part in enumerate(spec.parts):
        size, branches = part.action.continuous_size, len(part.action.discrete_branches)
        alone = to_env_actions(part.action, Actions(continuous_left[:, :size], discrete_left[:, :branches]))
        continuous_left, discrete_left = continuous_left[:, size:], discrete_left[:, branches:]
        for row in range(20):
            space, value = together[row][column]
            assert action_spec(space, "env") == part.action
            np.testing.assert_array_equal(value, alone[row])
    assert continuous_left.size == discrete_left.size == 0


def test_path_text() -> None:
    assert path_text((0, "arm", 1)) == "[0]['arm'][1]"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_actions_are_refused(value: float) -> None:
    """C54: with row, dimension and value."""
    spec = action_spec(ACTION_SPACES["box_0_1"], "env")
    actions = Actions(np.zeros((3, 2), np.float32), np.empty((3, 0), np.int32))
    actions.continuous[2, 1] = value
    with pytest.raises(ValueError, match=f"received {value} in dimension 1 of row 2"):
        to_env_actions(spec, actions)
    spec = action_spec(ACTION_SPACES["hybrid_tuple"], "env")
    with pytest.raises(ValueError, match=f"received {value} in dimension 1 of row 2"):
        to_env_actions(spec, Actions(actions.continuous, np.zeros((3, 1), np.int32)))


@pytest.mark.parametrize("key", ACTION_SPACES)
def test_spec_survives_json(key: str) -> None:
    spec = behavior_spec(ACTION_SPACES["box_0_1"], ACTION_SPACES[key], "env")
    assert BehaviorSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_spec_of_nested_observations_and_masks_survives_json() -> None:
    """Names, order, kinds, choices and paths: what a saved policy looks its observations up by."""
    spec = behavior_spec(spaces.Dict(ECHO_SPACES), spaces.MultiDiscrete([2, 3]), "env", masked=True)
    loaded = BehaviorSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert loaded == spec
    assert hash(loaded) == hash(spec)
    assert loaded.action.masked
    assert loaded.action.choices == 5


def test_observation_part() -> None:
    observation = echo_observation(2, 3)
    assert observation_part(ObservationSpec("body/1/gear", (1,), path=("body", 1, "gear")), observation) == 0
    assert observation_part(ObservationSpec("obs", (1,)), observation) is observation
    with pytest.raises(KeyError):
        observation_part(ObservationSpec("tail", (1,), path=("tail",)), observation)


def test_spec_that_was_saved_without_parts() -> None:
    """Checkpoints from before there were hybrid actions load."""
    spec = behavior_spec(ACTION_SPACES["box_0_1"], ACTION_SPACES["box_asymmetric"], "env")
    saved = spec.to_json()
    del saved["action"]["parts"]
    assert BehaviorSpec.from_json(json.loads(json.dumps(saved))) == spec


def test_no_terminal_steps_has_the_shapes_of_the_spec() -> None:
    steps = no_terminal_steps(behavior_spec(ACTION_SPACES["box_0_1"], ACTION_SPACES["discrete"], "env"))
    assert len(steps) == 0
    assert steps.obs["obs"].shape == (0, 2)
    assert steps.obs["obs"].dtype == np.float32
    assert steps.action_mask is None
    steps = no_terminal_steps(behavior_spec(spaces.Dict(ECHO_SPACES), spaces.MultiDiscrete([2, 3]), "env", masked=True))
    assert (steps.obs["camera"].shape, steps.obs["camera"].dtype) == ((0, 4, 5, 3), np.uint8)
    assert (steps.action_mask.shape, steps.action_mask.dtype) == ((0, 5), np.bool_)
