"""Loaded policies act in the environment's own space, for one observation and for many."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from envs.spaces import behavior_spec
from envs.toy import ACTION_SPACES, EchoAction, simple_parts
from raytrain.predict import LoadedPolicy
from trainers.networks import policy_layout
from trainers.policy import Policy
from trainers.settings import NetworkSettings

NETWORK = NetworkSettings(hidden_units=8, num_layers=1)
OBSERVATION = spaces.Box(-10.0, 10.0, (3,), np.float32)


def loaded(key: str, seed: int | None = None) -> LoadedPolicy:
    """A policy with weights so large that it acts all over the space `key`, and beyond [-1, 1]."""
    spec, rng = behavior_spec(OBSERVATION, ACTION_SPACES[key], "env"), np.random.default_rng(1)
    policy = Policy(spec, NETWORK)
    policy.set_weights({name: rng.normal(0.0, 0.5, shape).astype(np.float32) for name, shape in policy_layout(spec, NETWORK).items()}, 7)
    return LoadedPolicy(spec, policy, agent_steps=100, seed=seed)


def observations(n: int) -> np.ndarray:
    return np.random.default_rng(2).uniform(-10.0, 10.0, (n, 3)).astype(np.float32)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("key", ACTION_SPACES)
def test_every_action_is_in_its_space(key: str, deterministic: bool) -> None:
    """C57, C59: 1,000 actions one by one, 0 refused by an environment that insists on bounds, structure, types, dtypes and shapes."""
    policy, env = loaded(key, seed=3), EchoAction(key, length=0)
    env.reset()
    shown = [env.step(policy.act(obs, deterministic=deterministic))[0] for obs in observations(1000)]
    varies = np.ptp(shown, axis=0) > 0
    assert varies.any() or key == "discrete_one"


@pytest.mark.parametrize("key", [key for key in ACTION_SPACES if key.startswith("hybrid")])
def test_a_batch_is_a_list_where_the_space_is_a_tuple_or_dict(key: str) -> None:
    """C57: as many as observations, each the very action that its observation gets alone."""
    policy, obs = loaded(key), observations(20)
    actions = policy.act(obs)
    assert isinstance(actions, list)
    assert len(actions) == 20
    for row, action in zip(obs, actions, strict=True):
        alone = policy.act(row)
        assert type(alone) is type(action) is (dict if isinstance(ACTION_SPACES[key], spaces.Dict) else tuple)
        assert ACTION_SPACES[key].contains(action)
        for (_, one), (_, other) in zip(simple_parts(ACTION_SPACES[key], alone), simple_parts(ACTION_SPACES[key], action), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert len(policy.act(obs[:1])) == 1, "a batch of one is a batch"


@pytest.mark.parametrize("key", [key for key in ACTION_SPACES if not key.startswith("hybrid")])
def test_a_batch_is_an_array_elsewhere(key: str) -> None:
    actions = loaded(key).act(observations(20))
    assert (actions.shape, actions.dtype) == ((20, *ACTION_SPACES[key].shape), ACTION_SPACES[key].dtype)


def test_samples_follow_the_seed() -> None:
    obs = observations(50)
    first, again, other = (loaded("hybrid_tuple", seed).act(obs, deterministic=False) for seed in (1, 1, 2))
    values = [np.array([[*box, choice] for box, choice in actions]) for actions in (first, again, other)]
    np.testing.assert_array_equal(values[0], values[1])
    assert (values[0] != values[2]).any()
