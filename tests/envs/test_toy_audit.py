"""The worlds that audit observations do what their docstrings say."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from envs import toy_audit
from envs.spaces import observation_specs


@pytest.mark.parametrize("env", [toy_audit.StepPixels(image) for image in toy_audit.PIXEL_SPACES], ids=lambda env: env._image)
@pytest.mark.filterwarnings("ignore")
def test_keeps_to_gymnasiums_rules(env: gym.Env) -> None:
    check_env(env, skip_render_check=True)


def test_mutating_obs() -> None:
    """It really returns one array, and really writes into its action."""
    env = toy_audit.MutatingObs(3)
    first, _ = env.reset()
    action = np.zeros(2, np.float32)
    second = env.step(action)[0]
    assert first is second
    assert second.tolist() == [0, 1]
    assert np.isnan(action).all()


def test_echo_observations_have_every_kind_and_tell_steps_apart() -> None:
    specs = observation_specs(spaces.Dict(toy_audit.ECHO_SPACES), "env")
    assert {spec.kind for spec in specs} == {"vector", "categorical", "binary", "image"}
    assert {spec.dtype for spec in specs} == {"float32", "uint8", "int64", "int8", "bool"}
    assert max(len(spec.path) for spec in specs) == 3
    space = spaces.Dict(toy_audit.ECHO_SPACES)
    for episode, step in [(0, 0), (0, 1), (3, 9), (20, 15)]:
        assert toy_audit.echo_observation(episode, step) in space
    for key in toy_audit.ECHO_SPACES:
        shown = [repr(toy_audit.echo_observation(2, step)[key]) for step in range(4)]
        assert len(set(shown)) == (2 if key == "flags" else 4), key


@pytest.mark.parametrize("masks", ["none", "info", "key", "method"])
def test_echo_obs_shows_and_insists_on_its_masks(masks: str) -> None:
    env = toy_audit.EchoObs(5, masks=masks)
    obs, info = env.reset()
    expected = np.concatenate(toy_audit.echo_mask(0, 0))
    assert expected.tolist() == [True, False, True, False, True, False, True]
    assert (list(info), "action_mask" in obs, hasattr(env, "action_masks")) == (
        ["action_mask"] if masks == "info" else [], masks == "key", masks == "method")
    if masks == "info":
        np.testing.assert_array_equal(np.concatenate(info["action_mask"]), expected)
    elif masks == "key":
        np.testing.assert_array_equal(obs["action_mask"], expected)
    elif masks == "method":
        np.testing.assert_array_equal(env.action_masks(), expected)
    env.step(np.array([2, 1]))
    if masks == "none":
        env.step(np.array([0, 0]))
    else:
        with pytest.raises(ValueError, match=r"\[0 0\] is not allowed by"):
            env.step(np.array([0, 0]))
    assert all(mask.any() for episode in range(4) for step in range(12) for mask in toy_audit.echo_mask(episode, step))


@pytest.mark.parametrize("structure", ["dict", "tuple"])
def test_echo_obs_may_return_the_same_arrays(structure: str) -> None:
    for same in (True, False):
        env = toy_audit.EchoObs(5, structure=structure, masks="info", same_arrays=same)
        obs, info = env.reset()
        then, info_then, *_ = env.step(np.array([0, 1]))[0], env.step(np.array([1, 0]))[-1]
        camera, camera_then = (obs["camera"], then["camera"]) if structure == "dict" else (obs[1], then[1])
        assert (camera is camera_then) == same
        assert (info["action_mask"][0] is info_then["action_mask"][0]) == same


@pytest.mark.parametrize("kwargs", [{}, {"structure": "tuple"}, {"masks": "key"}, {"same_arrays": True}], ids=str)
def test_echo_obs_is_in_its_space(kwargs: dict[str, Any]) -> None:
    """(It counts its episodes, so a seed does not repeat one.)"""
    env = toy_audit.EchoObs(3, **kwargs)
    for _ in range(2):
        obs, _ = env.reset()
        for _ in range(3):
            assert obs in env.observation_space
            obs, *_ = env.step(np.array([np.argmax(mask) for mask in toy_audit.echo_mask(env.episode, env.steps)]))
        assert obs in env.observation_space


def test_echo_obs_refuses_other_words() -> None:
    for kwargs in ({"structure": "list"}, {"masks": "infos"}, {"structure": "tuple", "masks": "key"}):
        with pytest.raises(ValueError, match="expected the structure dict or tuple and the masks"):
            toy_audit.EchoObs(**kwargs)


def test_step_pixels_tell_step_row_column_and_channel() -> None:
    """So that any two axes that are swapped are noticed."""
    rgb = toy_audit.step_pixels("rgb", 7)
    assert rgb[2, 3, 1] == (7 + 6 + 15 + 64) % 256
    np.testing.assert_array_equal(toy_audit.step_pixels("rgb_first", 7), rgb.transpose(2, 0, 1))
    assert not np.array_equal(rgb, rgb.transpose(1, 0, 2))
    np.testing.assert_allclose(toy_audit.step_pixels("unit", 7)[..., 0] * 255, rgb[..., 0], atol=1e-4)
    codes = toy_audit.step_pixels("codes", 3)
    assert codes.dtype == np.uint8
    assert codes.max() == 10
    env = toy_audit.StepPixels("codes", 4)
    env.reset()
    obs, reward, *_ = env.step(0)
    np.testing.assert_array_equal(obs, toy_audit.step_pixels("codes", 1))
    assert reward == 1.0


def test_echo_vector_is_echo_obs() -> None:
    env = toy_audit.echo_obs_vector(2, "NextStep", masks="info")
    obs, infos = env.reset()
    assert obs["camera"].shape == (2, 4, 5, 3)
    assert len(infos["action_mask"]) == 2
    env.close()
