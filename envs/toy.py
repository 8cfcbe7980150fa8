"""Tiny worlds whose every value is known beforehand: for tests, and as first environments to try (``env: "envs.toy:CountObs"``).

More of them: `envs.toy_memory` (what was seen has to be remembered), `envs.toy_masks` (choices that are not allowed),
`envs.toy_audit` (observations of every kind), and of many agents `envs.toy_agents` and `envs.toy_teams`.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

Step = tuple[Any, Any, Any, Any, dict[str, Any]]
"""obs, reward, terminated, truncated, info."""


def _box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


class Toy(gym.Env):
    """Counts steps and episodes; the world is in `_observe`, `_reward` and `_act`.

    Args:
        length: steps of an episode; 0 for one that never ends.
        end: ``"terminated"`` or ``"truncated"``.
    """

    observation_space = _box(1)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 10, end: str = "terminated") -> None:
        if end not in ("terminated", "truncated"):
            raise ValueError(f"end: expected 'terminated' or 'truncated', received {end!r}")
        self.length, self.end = length, end
        self.episode, self.steps = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> Step:
        self.steps += 1
        self._act(action)
        ended = self.steps == self.length
        return self._observe(), self._reward(), ended and self.end == "terminated", ended and self.end == "truncated", {}

    def _act(self, action: Any) -> None:
        pass

    def _observe(self) -> Any:
        return np.zeros(1, np.float32)

    def _reward(self) -> Any:
        return 0.0


class ConstReward(Toy):
    """A constant observation and the same `reward` at every step."""

    def __init__(self, length: int = 10, reward: float = 1.0, end: str = "terminated") -> None:
        super().__init__(length, end)
        self.reward = reward

    def _reward(self) -> float:
        return self.reward


class TwoStepTerminal(Toy):
    """A → B → end, with rewards 0 and 1. Observations are one-hot: A, B, end."""

    observation_space = _box(3)

    def __init__(self) -> None:
        super().__init__(length=2)

    def _observe(self) -> np.ndarray:
        return np.eye(3, dtype=np.float32)[self.steps]

    def _reward(self) -> float:
        return float(self.steps == 2)


class CountObs(Toy):
    """Observation (episode, step), both from 0; the reward of a step is its number, from 1: everything stored can be audited.

    Args:
        vary: each episode has another length, drawn from 1 … `length` by the environment's own generator.
    """

    observation_space = _box(2)

    def __init__(self, length: int = 10, end: str = "truncated", vary: bool = False) -> None:
        super().__init__(length, end)
        self._longest = length if vary else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin the next episode."""
        obs, info = super().reset(seed=seed)
        if self._longest is not None:
            self.length = int(self.np_random.integers(1, self._longest, endpoint=True))
        return obs, info

    def _observe(self) -> np.ndarray:
        return np.array([self.episode, self.steps], np.float32)

    def _reward(self) -> float:
        return float(self.steps)


class RandomObs(Toy):
    """Observation: a number drawn uniformly from [0, 1) by the environment's own generator, at every reset and step."""

    def _observe(self) -> np.ndarray:
        return self.np_random.uniform(size=1).astype(np.float32)


ACTION_SPACES = {
    "box_300_500": spaces.Box(300.0, 500.0, (1,), np.float32),
    "box_0_1": spaces.Box(0.0, 1.0, (2,), np.float64),
    "box_asymmetric": spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32)),
    "box_matrix": spaces.Box(-2.0, 3.0, (2, 3), np.float32),
    "box_scalar": spaces.Box(-0.1, 0.3, (), np.float32),
    "box_int": spaces.Box(-1, 1, (3,), np.int32),
    "box_uint8": spaces.Box(0, 255, (2,), np.uint8),
    "discrete": spaces.Discrete(4),
    "discrete_negative": spaces.Discrete(3, start=-1),
    "discrete_one": spaces.Discrete(1, start=2),
    "multi_discrete": spaces.MultiDiscrete([3, 2]),
    "multi_discrete_start": spaces.MultiDiscrete([2, 11], start=[0, 25]),
    "multi_discrete_matrix": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multi_binary": spaces.MultiBinary(4),
    "multi_binary_matrix": spaces.MultiBinary((2, 3)),
    "hybrid_tuple": spaces.Tuple((spaces.Box(300.0, 500.0, (2,), np.float32), spaces.Discrete(3, start=-1))),
    "hybrid_dict": spaces.Dict({
        "turn": spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32)),
        "gear": spaces.MultiDiscrete([2, 11], start=[0, 25]), "lift": spaces.Box(-1, 1, (2, 1), np.int32),
    }),
    "hybrid_nested": spaces.Tuple((
        spaces.Discrete(1, start=2),
        spaces.Dict({"arm": spaces.Tuple((spaces.Box(-0.1, 0.3, (), np.float64), spaces.MultiBinary(2))), "eye": spaces.Discrete(4)}),
    )),
    "hybrid_discrete": spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2, start=5))),
}


def simple_parts(space: spaces.Space, action: Any) -> Iterator[tuple[spaces.Space, Any]]:
    """Every simple space inside a Tuple or Dict, in its order, with its part of `action`; anything else is the only part."""
    if isinstance(space, spaces.Tuple):
        for inner, value in zip(space.spaces, action, strict=True):
            yield from simple_parts(inner, value)
    elif isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from simple_parts(inner, action[key])
    else:
        yield space, action


class EchoAction(Toy):
    """Insists that every action is in its space, with the very dtypes and shapes; the last one is in the observation, flattened.

    Args:
        space: key of `ACTION_SPACES`.
    """

    def __init__(self, space: str, length: int = 10) -> None:
        super().__init__(length)
        self.action_space = ACTION_SPACES[space]
        self._last = np.zeros_like(self._flat(self.action_space.sample()))
        self.observation_space = _box(len(self._last))

    def _act(self, action: Any) -> None:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        for space, part in simple_parts(self.action_space, action):
            dtype, shape = np.asarray(part).dtype, np.shape(part)
            if not isinstance(part, np.integer if isinstance(space, spaces.Discrete) else np.ndarray) or dtype != space.dtype or (
                shape != space.shape
            ):
                raise ValueError(f"{part!r} ({type(part).__name__}, {dtype}, shape {shape}) is not as {space} has it")
        self._last = self._flat(action)

    def _flat(self, action: Any) -> np.ndarray:
        return np.concatenate([np.ravel(part).astype(np.float32) for _, part in simple_parts(self.action_space, action)])

    def _observe(self) -> np.ndarray:
        return self._last.copy()


class NaNAt(Toy):
    """`CountObs`-like vector of `size` whose element `index`, or whose reward, is `value` at step `n` of episode `episode`.

    Args:
        where: ``"obs"`` or ``"reward"``.
    """

    def __init__(self, n: int, where: str = "obs", value: float = math.nan, index: int = 3, size: int = 4, episode: int = 0,
                 length: int = 1000) -> None:
        super().__init__(length)
        self.observation_space = _box(size)
        self._n, self._where, self._value, self._index, self._bad_episode = n, where, float(value), index, episode

    def _bad(self, where: str) -> bool:
        return self._where == where and self.steps == self._n and self.episode == self._bad_episode

    def _observe(self) -> np.ndarray:
        obs = np.full(self.observation_space.shape, self.steps, np.float32)
        if self._bad("obs"):
            obs[self._index] = self._value
        return obs

    def _reward(self) -> float:
        return self._value if self._bad("reward") else 0.0


class CrashAt(Toy):
    """Fails at step `n` of its life.

    Args:
        mode: ``"raise"`` (ValueError with `text`), ``"exit"`` (`os._exit`), ``"sigkill"`` or ``"hang"``.
    """

    def __init__(self, n: int, mode: str = "raise", text: str = "boom-42", length: int = 1000) -> None:
        super().__init__(length)
        self._n, self._mode, self._text, self._life = n, mode, text, 0

    def _act(self, action: Any) -> None:
        self._life += 1
        if self._life != self._n:
            return
        if self._mode == "raise":
            raise ValueError(self._text)
        if self._mode == "exit":
            os._exit(3)
        if self._mode == "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            time.sleep(3600.0)


class SlowStep(Toy):
    """Waits in every step.

    Args:
        sleep_s: seconds asleep.
        spin_s: seconds busy on the processor.
    """

    def __init__(self, sleep_s: float = 0.01, spin_s: float = 0.0, length: int = 100) -> None:
        super().__init__(length)
        self._sleep_s, self._spin_s = sleep_s, spin_s

    def _act(self, action: Any) -> None:
        end = time.thread_time() + self._spin_s
        while time.thread_time() < end:
            pass
        if self._sleep_s:
            time.sleep(self._sleep_s)


class SimpleEnvironment(gym.Env):
    """Go to the side that the observation shows, in every dimension: the smallest world that tells learning from luck.

    A goal g ∈ {-1, +1} is drawn for each episode, and every element of every observation is g. Each dimension has a position
    p = 0; an action moves it by at most `step_size`, within [-1, 1]. The episode terminates when every p is -1 or +1. Each step
    but the last costs 0.01; the last pays the mean of p·g times ``1 + 0.01 · (int(1 / step_size) + 1)``. A perfect episode
    totals about 1, one that goes the wrong way about -1.

    Args:
        action: ``"discrete"`` (branches of 2: 0 → -step, 1 → +step), ``"continuous"`` (clipped to ±step) or ``"hybrid"`` (a Tuple
            of both).
        dimensions: number of branches or continuous dimensions; ``"hybrid"`` has so many of each, that is twice the positions.
        step_size: largest move of one step.
        num_vector, num_visual: observations that are vectors and images (float32). A single one is the observation itself,
            several are a Dict of ``vector_0``, …, ``visual_0``, ….
        vector_size: elements of each vector.
        vis_obs_size: shape of each image.

    Source: Unity ML-Agents' ``SimpleEnvironment`` of its learning tests, told anew.
    """

    TIME_PENALTY = 0.01

    def __init__(
        self, action: str = "discrete", dimensions: int = 1, step_size: float = 0.2, num_vector: int = 1, num_visual: int = 0,
        vector_size: int = 1, vis_obs_size: Sequence[int] = (20, 20, 3),
    ) -> None:
        continuous = spaces.Box(-1.0, 1.0, (dimensions,), np.float32)
        discrete = spaces.Discrete(2) if dimensions == 1 else spaces.MultiDiscrete([2] * dimensions)
        action_spaces = {"discrete": discrete, "continuous": continuous, "hybrid": spaces.Tuple((continuous, discrete))}
        if action not in action_spaces:
            raise ValueError(f"action: expected 'discrete', 'continuous' or 'hybrid', received {action!r}")
        if num_vector + num_visual < 1:
            raise ValueError(f"expected at least one observation, received num_vector={num_vector} and num_visual={num_visual}")
        shapes = {f"vector_{i}": (vector_size,) for i in range(num_vector)}
        shapes.update((f"visual_{i}", tuple(vis_obs_size)) for i in range(num_visual))
        boxes = {name: spaces.Box(-1.0, 1.0, shape, np.float32) for name, shape in shapes.items()}
        self.observation_space = spaces.Dict(boxes) if len(boxes) > 1 else boxes.popitem()[1]
        self.action_space = action_spaces[action]
        self._step_size = step_size
        self._success_reward = 1.0 + self.TIME_PENALTY * (int(1 / step_size) + 1)
        self._goal, self._steps = 1, 0
        self._positions = np.zeros(2 * dimensions if action == "hybrid" else dimensions)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw a goal."""
        super().reset(seed=seed)
        self._goal, self._steps = int(self.np_random.choice((-1, 1))), 0
        self._positions[:] = 0.0
        return self._observe(), {}

    def step(self, action: Any) -> Step:
        """Move every position."""
        moves = np.concatenate([
            np.ravel(part) if isinstance(space, spaces.Box) else (2.0 * np.ravel(part) - 1.0) * self._step_size
            for space, part in simple_parts(self.action_space, action)
        ])
        self._steps += 1
        self._positions = np.clip(self._positions + np.clip(moves, -self._step_size, self._step_size), -1.0, 1.0)
        # Ten steps of 0.1 sum up to 1 but for rounding.
        terminated = bool((np.abs(self._positions) >= 1.0 - 1e-9).all())
        reward = self._success_reward * float(np.mean(self._positions * self._goal)) if terminated else -self.TIME_PENALTY
        return self._observe(), reward, terminated, False, {}

    def _observe(self) -> Any:
        if isinstance(self.observation_space, spaces.Dict):
            return {name: np.full(box.shape, self._shown(), np.float32) for name, box in self.observation_space.spaces.items()}
        return np.full(self.observation_space.shape, self._shown(), np.float32)

    def _shown(self) -> int:
        """What the observations are filled with."""
        return self._goal


def count_vector(num_envs: int, autoreset_mode: str, length: int = 3, end: str = "terminated", vary: bool = False,
                 copy: bool = True) -> VectorEnv:
    """`CountObs` in a Gymnasium vector environment with the autoreset mode ``"NextStep"``, ``"SameStep"`` or ``"Disabled"``."""
    return SyncVectorEnv([lambda: CountObs(length, end, vary)] * num_envs, copy=copy, autoreset_mode=AutoresetMode(autoreset_mode))
