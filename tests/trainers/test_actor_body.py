"""Policies that see images beside numbers, against loops in float64."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from envs.specs import BehaviorSpec, ObservationSpec
from tests.trainers.policies import ACTIONS, DICT_NETWORK, DICT_OBS, GRID, IMAGE, OBS, observe, policy_and_weights, slow_heads

SETS = {
    "image": ((IMAGE,), {}),
    "two_images": ((IMAGE, GRID), DICT_NETWORK),
    "image_and_one_vector": ((IMAGE, *OBS), {"normalize": True}),
    "image_and_one_raw_vector": ((*OBS, IMAGE), {}),
    "dict": (DICT_OBS, {**DICT_NETWORK, "normalize": True}),
    "dict_without_layers": (DICT_OBS, {**DICT_NETWORK, "num_layers": 0}),
    "flattened": ((IMAGE, GRID), {"observations": {name: {"kind": "vector"} for name in ("image", "grid")}, "normalize": True, "scale": 0.1}),
    "vector_as_image": ((ObservationSpec("plane", (20, 21, 1), "float32"),), {"observations": {"plane": {"kind": "image"}}}),
}


@pytest.mark.parametrize("key", SETS)
def test_deterministic_actions_agree_with_loops(key):
    observations, network = SETS[key]
    spec = BehaviorSpec(observations, ACTIONS["hybrid"])
    policy, weights = policy_and_weights(spec, **network)
    obs = observe(spec, np.random.default_rng(1), 4)
    seen = {name: x.copy() for name, x in obs.items()}
    out = policy.act(obs, np.random.default_rng(2), deterministic=True)
    means = []
    for i in range(4):
        mean, branches = slow_heads(policy.architecture, weights, obs, i)
        np.testing.assert_allclose(out.actions.continuous[i], mean, atol=2e-5, rtol=2e-6)
        assert out.actions.discrete[i, 0] == np.argmax(branches[0])
        means.append(mean)
    assert np.ptp(means, axis=0).min() > 1e-2, "the observation makes a difference"
    for name, x in obs.items():
        np.testing.assert_array_equal(x, seen[name])
    assert policy.engine.endswith("NumPy")


@pytest.mark.parametrize("key", ["image", "dict"])
def test_every_observation_matters(key):
    observations, network = SETS[key]
    spec = BehaviorSpec(observations, ACTIONS["box"])
    policy, _ = policy_and_weights(spec, **network)
    obs, other = observe(spec, np.random.default_rng(3), 3), observe(spec, np.random.default_rng(4), 3)
    before = policy.act(obs, np.random.default_rng(0), deterministic=True).actions.continuous
    for name in obs:
        after = policy.act({**obs, name: other[name]}, np.random.default_rng(0), deterministic=True).actions.continuous
        assert (np.abs(after - before).max(axis=1) > 1e-4).any(), name


@pytest.mark.parametrize("key", SETS)
def test_one_agent_acts_as_in_a_batch(key):
    """C91: batches that grow and shrink use the same buffers."""
    observations, network = SETS[key]
    spec = BehaviorSpec(observations, ACTIONS["hybrid"])
    policy, _ = policy_and_weights(spec, **network)
    obs, rng = observe(spec, np.random.default_rng(5), 20), np.random.default_rng(6)
    alone = [policy.act({k: v[i : i + 1] for k, v in obs.items()}, rng, deterministic=True).actions for i in range(20)]
    for sizes in ([20], [1, 19], [11, 2, 7]):
        start = 0
        for size in sizes:
            actions = policy.act({k: v[start : start + size] for k, v in obs.items()}, rng, deterministic=True).actions
            for i in range(size):
                np.testing.assert_allclose(actions.continuous[i], alone[start + i].continuous[0], atol=1e-5)
                np.testing.assert_array_equal(actions.discrete[i], alone[start + i].discrete[0])
            start += size


def test_weights_of_images_are_replaced_as_a_whole():
    spec = BehaviorSpec(DICT_OBS, ACTIONS["box"])
    policy, weights = policy_and_weights(spec, **DICT_NETWORK)
    obs, rng = observe(spec, np.random.default_rng(7), 2), np.random.default_rng(0)
    old = policy.act(obs, rng, deterministic=True).actions.continuous
    for w in weights.values():
        w *= np.float32(0.5)
    np.testing.assert_array_equal(policy.act(obs, rng, deterministic=True).actions.continuous, old)
    policy.set_weights(weights, 1)
    expected = [slow_heads(policy.architecture, weights, obs, i)[0] for i in range(2)]
    np.testing.assert_allclose(policy.act(obs, rng, deterministic=True).actions.continuous, expected, atol=2e-5)


def test_nobody_to_act_for():
    spec = BehaviorSpec(DICT_OBS, ACTIONS["hybrid"])
    policy, _ = policy_and_weights(spec, **DICT_NETWORK)
    assert policy.act(observe(spec, np.random.default_rng(0), 0), np.random.default_rng(0)).actions.continuous.shape == (0, 2)


def test_acting_on_images_loads_neither_tensorflow_nor_keras():
    code = """
import sys
import numpy as np
from tests.trainers.policies import *
from envs.specs import BehaviorSpec
spec = BehaviorSpec(DICT_OBS, ACTIONS["hybrid"])
policy, _ = policy_and_weights(spec, **DICT_NETWORK, **MEMORY)
policy.act(observe(spec, np.random.default_rng(0), 2), np.random.default_rng(0), agent_id=np.arange(2), first=np.ones(2, bool))
print([m for m in ("tensorflow", "ray", "raytrain", "keras") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
