"""Action repeat and frame stacking around one environment, as ``env_settings`` asks for them.

Gymnasium's ``FrameStackObservation`` is not used: it keeps references to observations that environments may change in place, stacks
the key ``action_mask`` of a Dict like an observation, and turns the choices of a MultiDiscrete into quantities. Where none of that
matters, ours gives the same observations (tests/envs/test_wrappers.py compares them).
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.boundary import ObservationReader
from envs.masks import MASK_KEY
from envs.spaces import observation_specs


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
    """Observations are the last `size` ones, oldest first, along a new first axis; in a Dict or Tuple each part of them.

    A Box stays a Box, a Discrete becomes a MultiDiscrete, MultiDiscrete and MultiBinary keep their kind. What is no observation for a
    policy is passed on as it is: the key `MASK_KEY` at the top of a Dict, and parts that are left out. The arrays that are returned
    are written again by the next step.
    """

    def __init__(self, env: gym.Env, size: int, padding: Literal["reset", "zero"] = "reset", name: str = "") -> None:
        """`padding` stands before the first observation of an episode: itself, or zeros. `name` is that of `env`, for messages.

        Raises:
            ValueError: a part of the observation space is not supported.
        """
        super().__init__(env)
        specs = observation_specs(env.observation_space, name)
        self._reader = ObservationReader(env.observation_space, specs)
        self._frames = self._reader.empty(size)
        self._newest = {key: frames[-1] for key, frames in self._frames.items()}
        self._padding = self._newest if padding == "reset" else dict.fromkeys(self._frames, 0)
        self._stacks = {  # path -> what is shown of that part
            spec.path: self._frames[spec.name].reshape(size, *_space_at(env.observation_space, spec.path).shape) for spec in specs}
        self._inner_space = env.observation_space
        self.observation_space = self._stacked_space(env.observation_space, ())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The first observation and its padding."""
        result = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            return result
        obs, info = result
        self._reader.read(obs, self._newest)
        for name, frames in self._frames.items():
            frames[:-1] = self._padding[name]
        return self._shown(self._inner_space, (), obs), info

    def step(self, action: Any) -> Any:
        """Step; the oldest observation is forgotten."""
        result = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            return result
        for frames in self._frames.values():
            frames[:-1] = frames[1:]
        self._reader.read(result[0], self._newest)
        return self._shown(self._inner_space, (), result[0]), *result[1:]

    def _shown(self, space: spaces.Space, path: tuple[int | str, ...], newest: Any) -> Any:
        """The part at `path`: its stack, or the newest one of what is not stacked; a mask may be missing."""
        if path in self._stacks:
            return self._stacks[path]
        if isinstance(space, spaces.Dict):
            return {key: self._shown(inner, (*path, key), newest[key]) for key, inner in space.items() if key in newest}
        if isinstance(space, spaces.Tuple):
            return tuple(self._shown(inner, (*path, i), newest[i]) for i, inner in enumerate(space))
        return newest

    def _stacked_space(self, space: spaces.Space, path: tuple[int | str, ...]) -> spaces.Space:
        """The space of what `_shown` returns."""
        if path == (MASK_KEY,):
            return space
        if isinstance(space, spaces.Dict):
            return spaces.Dict({key: self._stacked_space(inner, (*path, key)) for key, inner in space.items()})
        if isinstance(space, spaces.Tuple):
            return spaces.Tuple([self._stacked_space(inner, (*path, i)) for i, inner in enumerate(space)])
        if path not in self._stacks:
            return space
        size = len(self._stacks[path])
        if isinstance(space, spaces.Box):
            return spaces.Box(np.stack([space.low] * size), np.stack([space.high] * size), dtype=space.dtype.type)
        if isinstance(space, spaces.MultiBinary):
            return spaces.MultiBinary((size, *space.shape))
        choices, start = (space.n, space.start) if isinstance(space, spaces.Discrete) else (space.nvec, space.start)
        return spaces.MultiDiscrete(np.stack([choices] * size), dtype=space.dtype.type, start=np.stack([start] * size))


def _space_at(space: spaces.Space, path: tuple[int | str, ...]) -> spaces.Space:
    for key in path:
        space = space[key]
    return space
