"""Minari data sets, made here, become the demonstrations that the environment itself would have given."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from envs.demonstrations import DemonstrationError, read_demonstrations
from envs.spaces import behavior_spec
from envs.specs import Actions, to_env_actions

minari = pytest.importorskip("minari", reason='Minari is not installed: pip install "raytrain[minari]"')
pytest.importorskip("h5py", reason='h5py is not installed: pip install "raytrain[minari]"')
pytest.importorskip("PIL", reason="Pillow is not installed")
from minari.data_collector import EpisodeBuffer

INNER = spaces.Dict({"eye": spaces.Box(0, 255, (16, 16, 3), np.uint8), "pair": spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-1.0, 1.0, (2,), np.float64)))})
HYBRID = spaces.Dict({"arm": spaces.Box(np.array([0.0, -4.0]), np.array([10.0, 4.0]), dtype=np.float64), "gear": spaces.Discrete(4, start=-1)})


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def stacked(values: list[Any]) -> Any:
    """As Minari's storage takes them: lists in the dicts and tuples of the space."""
    if isinstance(values[0], dict):
        return {key: stacked([value[key] for value in values]) for key in values[0]}
    return tuple(map(stacked, zip(*values, strict=True))) if isinstance(values[0], tuple) else np.stack(values)


def make(name: str, observation: spaces.Space, action: spaces.Space, ends: tuple[tuple[int, bool], ...]) -> tuple[list[list[Any]], list[list[Any]]]:
    """A data set of samples of the spaces; (rows, terminated) of each episode."""
    observation.seed(1)
    action.seed(2)
    all_obs, all_actions, buffers = [], [], []
    for i, (rows, terminated) in enumerate(ends):
        obs, actions = [observation.sample() for _ in range(rows + 1)], [action.sample() for _ in range(rows)]
        flags = [False] * (rows - 1)
        buffers.append(EpisodeBuffer(
            id=i, observations=stacked(obs), actions=stacked(actions), rewards=[float(i + r) for r in range(rows)],
            terminations=[*flags, terminated], truncations=[*flags, not terminated]))
        all_obs.append(obs)
        all_actions.append(actions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            name, buffers, observation_space=observation, action_space=action, algorithm_name="samples", author="a", author_email="b",
            code_permalink="c", description="d", jpeg_encoding=False)
    return all_obs, all_actions


def refused(name: str, spec: Any = None) -> str:
    with pytest.raises(DemonstrationError) as caught:
        read_demonstrations(name, spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rewards_ends_and_last_observations() -> None:
    env = gym.make("Pendulum-v1")
    obs, actions = make("toy/box-v0", env.observation_space, env.action_space, ((3, True), (1, False)))
    d = read_demonstrations("minari:toy/box-v0", behavior_spec(env.observation_space, env.action_space, "Pendulum"))
    assert (d.length.tolist(), d.terminated.tolist(), d.reward.tolist()) == ([3, 1], [True, False], [0.0, 1.0, 2.0, 1.0])
    np.testing.assert_array_equal(d.obs["obs"], np.stack([*obs[0][:-1], *obs[1][:-1]]))
    np.testing.assert_array_equal(d.next_obs["obs"], np.stack([obs[0][-1], obs[1][-1]]))
    np.testing.assert_allclose(d.continuous[:3] * 2.0, np.stack(actions[0]), rtol=1e-6, atol=1e-6)


def test_dicts_tuples_starts_and_images() -> None:
    obs, actions = make("toy/dict-v0", INNER, HYBRID, ((4, True),))
    d = read_demonstrations("minari:toy/dict-v0", behavior_spec(INNER, HYBRID, "env"))
    assert d.obs["eye"].dtype == np.uint8
    np.testing.assert_array_equal(d.obs["eye"], np.stack([o["eye"] for o in obs[0][:-1]]))
    np.testing.assert_array_equal(d.obs["pair/0"][:, 0], [o["pair"][0] for o in obs[0][:-1]])
    np.testing.assert_allclose(d.obs["pair/1"], np.stack([o["pair"][1] for o in obs[0][:-1]]), rtol=1e-6)
    for action, original in zip(to_env_actions(d.spec.action, Actions(d.continuous, d.discrete)), actions[0], strict=True):
        assert action["gear"] == original["gear"]
        np.testing.assert_allclose(action["arm"], original["arm"], rtol=1e-5, atol=1e-5)


def test_masks_in_the_observation() -> None:
    space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "x": spaces.Box(-1.0, 1.0, (2,), np.float32)})
    obs, _ = make("toy/mask-v0", space, spaces.Discrete(3), ((5, True),))
    d = read_demonstrations("minari:toy/mask-v0")
    assert (d.spec.action.masked, list(d.obs)) == (True, ["x"])
    np.testing.assert_array_equal(d.action_mask, np.stack([o["action_mask"] for o in obs[0][:-1]]).astype(bool))


def test_what_is_not_there() -> None:
    assert "expected a data set on this machine, found none of this id (there are: none); get it with: minari download D4RL/door/human-v2" in refused(
        "minari:D4RL/door/human-v2")
    make("toy/there-v0", spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2), ((2, True),))
    assert "(there are: toy/there-v0)" in refused("minari:other-v0")


def test_what_cannot_be_used() -> None:
    unbounded = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    make("toy/infinite-v0", unbounded, unbounded, ((2, True),))
    assert "bounds at index [0] are low=-inf" in refused("minari:toy/infinite-v0")
    make("toy/box-v0", spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2), ((2, True),))
    other = behavior_spec(spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2), "env")
    assert "minari:toy/box-v0: expected observation 'obs' of shape [3], received [2]" in refused("minari:toy/box-v0", other)


def test_without_minari(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    assert 'pip install "raytrain[minari]"' in refused("minari:toy/box-v0")
