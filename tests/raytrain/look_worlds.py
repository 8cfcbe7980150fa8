"""Environments with one fault each, and some that draw themselves."""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.toy_memory import Recall


class Sound(gym.Env):
    """Gives lists, float64 and NumPy bools, which is no fault; 20 steps long."""

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-3.0, 5.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.random(2), {}

    def step(self, action: np.ndarray) -> Any:
        self.steps += 1
        return self.np_random.random(2).tolist(), np.float64(action.sum()), np.bool_(False), self.steps >= 20, {}


class OldStep(Sound):
    def step(self, action: np.ndarray) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, bool(terminated or truncated), info


class OldReset(Sound):
    def reset(self) -> Any:
        return super().reset()[0]


class NoActionSpace(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


class BareReset(Sound):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0]


class OutOfBounds(Sound):
    def step(self, action: np.ndarray) -> Any:
        obs, *rest = super().step(action)
        return [obs[0], 1.2], *rest


class NotFinite(Sound):
    def step(self, action: np.ndarray) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, float("nan") if self.steps == 7 else reward, *rest


class Raises(Sound):
    def step(self, action: np.ndarray) -> Any:
        if self.steps == 3:
            raise KeyError("boom-42")
        return super().step(action)


class Unbounded(Sound):
    action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class NoConstructor(Sound):
    def __init__(self) -> None:
        raise OSError("no simulator")


class NoEnv:
    """The class of another library."""


class Unseeded(Sound):
    def step(self, action: np.ndarray) -> Any:
        _, *rest = super().step(action)
        return [random.random(), 0.5], *rest


class SeedsAgain(Sound):
    last = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.last = self.last if seed is None else seed
        return super().reset(seed=self.last)


class LimitAsEnd(Sound):
    def step(self, action: np.ndarray) -> Any:
        obs, reward, _, over, info = super().step(action)
        return obs, reward, over, False, info


class Endless(Sound):
    def step(self, action: np.ndarray) -> Any:
        obs, *_ = super().step(action)
        return obs, 0.0, False, False, {}


class Reuses(Sound):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = super().reset(seed=seed)
        self.held = obs.astype(np.float32)
        return self.held, info

    def step(self, action: np.ndarray) -> Any:
        obs, reward, *rest = super().step(action)
        self.held[:] = obs
        action[:] = 0.0
        return self.held, reward, *rest


class Huge(Sound):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def step(self, action: np.ndarray) -> Any:
        obs, *rest = super().step(action)
        return [1e4 * obs[0], 0.0], *rest


class Drawn(Recall):
    """What is shown at the first step has to be known at the last; draws frames that get brighter."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - Gymnasium's form

    def __init__(self, length: int = 4, render_mode: str | None = None) -> None:
        super().__init__(length)
        self.render_mode = render_mode
        self.frames = 0

    def render(self) -> np.ndarray:
        self.frames += 1
        return np.full((32, 48, 3), min(255, 20 * self.frames), np.uint8)


class Forgetful(Drawn):
    """Takes the mode and does not keep it."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()


class BadFrames(Drawn):
    def render(self) -> Any:
        return super().render().astype(np.float32)


class NeedsPackage(Drawn):
    def render(self) -> Any:
        import drawing_package

        return drawing_package.draw()


class Pixels(Sound):
    """Sees an image and acts by a Tuple."""

    observation_space = spaces.Box(0, 255, (48, 48, 3), np.uint8)
    action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (1,), np.float32)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros((48, 48, 3), np.uint8), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.full((48, 48, 3), self.steps, np.uint8), 1.0, False, self.steps >= 20, {}
