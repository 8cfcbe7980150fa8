"""The mapping from policy space to the environment's space."""

from __future__ import annotations

import json

import numpy as np
import pytest

from envs.spaces import action_spec, behavior_spec
from envs.specs import Actions, BehaviorSpec, no_terminal_steps, to_env_actions
from envs.toy import ACTION_SPACES
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
    assert env_actions.dtype == space.dtype
    assert env_actions.shape == (1000, *space.shape)
    for row in range(1000):
        assert space.contains(env_actions[row, ...] if spec.kind == "box" else env_actions[row])
    np.testing.assert_array_equal(actions.continuous, policy_space[0])
    np.testing.assert_array_equal(actions.discrete, policy_space[1])
    assert not np.shares_memory(env_actions, actions.discrete), "an environment may write into its action (C20)"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_actions_are_refused(value: float) -> None:
    """C54: with row, dimension and value."""
    spec = action_spec(ACTION_SPACES["box_0_1"], "env")
    actions = Actions(np.zeros((3, 2), np.float32), np.empty((3, 0), np.int32))
    actions.continuous[2, 1] = value
    with pytest.raises(ValueError, match=f"received {value} in dimension 1 of row 2"):
        to_env_actions(spec, actions)


@pytest.mark.parametrize("key", ACTION_SPACES)
def test_spec_survives_json(key: str) -> None:
    spec = behavior_spec(ACTION_SPACES["box_0_1"], ACTION_SPACES[key], "env")
    assert BehaviorSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_no_terminal_steps_has_the_shapes_of_the_spec() -> None:
    steps = no_terminal_steps(behavior_spec(ACTION_SPACES["box_0_1"], ACTION_SPACES["discrete"], "env"))
    assert len(steps) == 0
    assert steps.obs["obs"].shape == (0, 2)
    assert steps.obs["obs"].dtype == np.float32
