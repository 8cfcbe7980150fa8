"""Action repeat and frame stacking around one environment, as ``env_settings`` asks for them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from envs.frame_stack import FrameStacker


class ActionRepeat(gym.Wrapper):
    """Does every action `times` times, or until the episode ends.

    The rewards are summed; observation, flags and info are those of the last step. Everything in between is not seen by anybody.
    """

    def __init__(self, env: gym.Env, times: int) -> None:
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> Any:
        """Step until `times` steps are done or the episode ends. What is no result of a step is returned as it is, for the checks."""
        total = None
        for left in reversed(range(self._times)):
            # An environment may write into its action.
            result = self.env.step(deepcopy(action) if left else action)
            if not isinstance(result, tuple) or len(result) != 5:
                return result
            obs, reward, terminated, truncated, info = result
            total = reward if total is None else total + reward
            if np.any(terminated) or np.any(truncated):
                break
        return obs, total, terminated, truncated, info


class FrameStack(gym.Wrapper):
    """Observations are the last `size` ones, as `FrameStacker` shows them. The arrays that are returned are written again by the next step."""

    def __init__(self, env: gym.Env, size: int, padding: Literal["reset", "zero"] = "reset", name: str = "") -> None:
        """As `FrameStacker`; `name` is that of `env`."""
        super().__init__(env)
        self.stacker = FrameStacker(env.observation_space, size, padding, name)
        self.observation_space = self.stacker.space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The first observation and its padding."""
        result = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            return result
        obs, info = result
        return self.stacker.first(obs), info

    def step(self, action: Any) -> Any:
        """Step; the oldest observation is forgotten."""
        result = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            return result
        return self.stacker.next(result[0]), *result[1:]
