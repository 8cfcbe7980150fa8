"""The worlds with masks do what their docstrings say."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from envs.toy_masks import MaskedBandit


@pytest.mark.parametrize("env", [MaskedBandit(masks=masks) for masks in ("none", "info", "key", "method")], ids=lambda env: env._masks)
@pytest.mark.filterwarnings("ignore")
def test_keeps_to_gymnasiums_rules(env: gym.Env) -> None:
    check_env(env, skip_render_check=True)


def masks_of(env: MaskedBandit, obs: Any, info: dict[str, Any], source: str) -> list[np.ndarray]:
    """The mask of each branch, as an agent would find it."""
    found = {"info": lambda: info["action_mask"], "key": lambda: obs["action_mask"], "method": lambda: env.action_masks()}[source]()
    if source == "info":
        return [found] if isinstance(env.action_space, spaces.Discrete) else list(found)
    return np.split(found, np.cumsum(env._choices)[:-1])


@pytest.mark.parametrize("source", ["info", "key", "method"])
@pytest.mark.parametrize("choices", [5, [3, 4]], ids=str)
def test_masked_bandit(choices: Any, source: str) -> None:
    """Another mask at each step; the highest allowed choice pays most, one that is not allowed costs 100 and is counted."""
    env = MaskedBandit(choices, source, length=200)
    obs, info = env.reset(seed=1)
    seen, illegal, rewards = set(), 0, []
    for step in range(200):
        masks = masks_of(env, obs, info, source)
        assert [len(mask) for mask in masks] == ([5] if choices == 5 else [3, 4])
        assert all(mask.any() for mask in masks)
        seen.add(tuple(np.concatenate(masks).tolist()))
        picked = [int(np.flatnonzero(mask)[-1]) for mask in masks]
        best = np.mean([i / (len(mask) - 1) for i, mask in zip(picked, masks, strict=True)])
        is_legal = step % 4 != 3 or all(mask.all() for mask in masks)
        if not is_legal:  # in one branch only
            branch = next(b for b, mask in enumerate(masks) if not mask.all())
            picked[branch] = int(np.flatnonzero(masks[branch] == 0)[0])
            illegal += 1
        obs, reward, terminated, truncated, info = env.step(picked[0] if choices == 5 else np.array(picked))
        assert reward == (pytest.approx(best) if is_legal else -100.0)
        assert (terminated, truncated) == (step == 199, False)
        assert float((obs["illegal"] if source == "key" else obs)[0]) == env.illegal == illegal
        assert env.illegal_in_life == illegal
        rewards += [reward] if is_legal else []
    assert len(seen) > 20
    assert 0.7 < np.mean(rewards) < 0.9
    assert illegal > 30
    env.reset()
    assert (env.illegal, env.illegal_in_life) == (0, illegal)


def test_without_masks_nothing_is_said_and_everything_is_judged() -> None:
    env = MaskedBandit(5, "none")
    obs, info = env.reset(seed=1)
    assert (info, obs.tolist(), hasattr(env, "action_masks")) == ({}, [0.0], False)
    forbidden = int(np.flatnonzero(~env._allowed[0])[0])
    assert env.step(forbidden)[1] == -100.0
    with pytest.raises(ValueError, match="masks: expected 'info', 'key', 'method' or 'none', received 'obs'"):
        MaskedBandit(5, "obs")
