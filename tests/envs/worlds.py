"""Environments and factories with one peculiarity each, for the tests of the boundary."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.toy import ACTION_SPACES, CountObs, CrashAt, EchoAction, count_vector
from envs.toy_audit import MutatingObs

__all__ = ["CountObs", "count_vector"]


class Trifles(gym.Env):
    """Returns everything in another type than declared (C62)."""

    def __init__(self, kind: str = "float64") -> None:
        self.observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        if kind == "int_space":
            self.observation_space = spaces.Box(0, 100, (2,), np.int32)
        elif kind == "scalar_space":
            self.observation_space = spaces.Box(-10.0, 10.0, (), np.float32)
        elif kind == "float64_space":
            self.observation_space = spaces.Box(-10.0, 10.0, (2,), np.float64)
        elif kind == "parts":
            self.observation_space = spaces.Dict({
                "vec": self.observation_space, "choice": spaces.Discrete(3), "pair": spaces.Tuple((spaces.MultiBinary(1), spaces.Box(0, 9, ())))})
        self.kind, self.steps = kind, 0

    def _observe(self) -> Any:
        values = [float(self.steps), 0.5]
        return {
            "float64": np.array(values), "float64_space": np.array(values), "list": values, "tuple_of_numpy": tuple(np.float64(v) for v in values),
            "int": np.array([self.steps, 0], np.int64), "bool": np.array([True, False]), "int_space": [self.steps, 7],
            "scalar_space": self.steps, "float16": np.array(values, np.float16),
            "parts": {"vec": values, "choice": np.float64(self.steps % 3), "pair": [np.array([True]), np.array(self.steps)]},
        }[self.kind]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, ...]:
        self.steps += 1
        reward = [np.array([1.5]), np.float64(1.5), 1.5, np.float32(1.5)][self.steps % 4]
        return self._observe(), reward, np.bool_(self.steps == 5), np.array([False]), {}


class Returns(gym.Env):
    """Returns exactly what it is told to, at the second step."""

    def __init__(self, space: spaces.Space | None = None, obs: Any = None, step: Any = None, reset: Any = None, reward: Any = 0.0,
                 terminated: Any = False) -> None:
        self.observation_space = space if space is not None else spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._bad, self._step, self._reset, self._reward, self._terminated = obs, step, reset, reward, terminated
        self._good = self.observation_space.sample()
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._steps = 0
        return self._reset if self._reset is not None else (self._good, {})

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps < 2:
            return self._good, 0.0, False, False, {}
        if self._step is not None:
            return self._step
        return self._bad if self._bad is not None else self._good, self._reward, self._terminated, False, {}


class OutOfBounds(CountObs):
    """Its step number grows past the bound of 50 without an end."""

    observation_space = spaces.Box(0.0, np.array([10.0, 50.0], np.float32), (2,), np.float32)


class BadResetLater(CountObs):
    """Returns a NaN from its second reset."""

    def __init__(self) -> None:
        super().__init__(3)

    def _observe(self) -> np.ndarray:
        return np.array([np.nan if (self.episode, self.steps) == (1, 0) else 0.0, self.steps], np.float32)


class Pid(CountObs):
    """Its observation is (process id, 0)."""

    def _observe(self) -> np.ndarray:
        return np.array([os.getpid(), 0], np.float32)


class LeavesAChild(CrashAt):
    """Forks a helper that inherits every open file, shows its process id, and exits at its first step."""

    def __init__(self) -> None:
        super().__init__(1, "exit")
        self._helper = os.fork()
        if self._helper == 0:
            time.sleep(600.0)
            os._exit(0)

    def _observe(self) -> np.ndarray:
        return np.array([self._helper], np.float32)


class HybridCrash(CrashAt):
    """Fails with an action of two parts."""

    action_space = ACTION_SPACES["hybrid_tuple"]


class GivesMasks(gym.Env):
    """Gives mask number t after t steps of an episode, where it is told to; it ends when there are no more.

    Args:
        masks: what is given; ``"missing"`` for none at all, an exception to be raised.
        source: ``"info"``, ``"key"``, ``"method"`` or several of them joined by ``+``; those after the first allow everything.
        end: ``"terminated"`` or ``"truncated"``.
        action: the action space.
    """

    def __init__(self, masks: Sequence[Any], source: str = "info", end: str = "truncated", action: spaces.Space | None = None) -> None:
        self.action_space = action if action is not None else spaces.Discrete(3)
        vector = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._sources, self._masks, self._end, self._steps = source.split("+"), masks, end, 0
        is_dict = "key" in self._sources
        self.observation_space = spaces.Dict({"vec": vector, "action_mask": spaces.MultiBinary(3)}) if is_dict else vector
        if "method" in self._sources:
            self.action_masks = lambda: self._given("method")

    def _given(self, source: str) -> Any:
        mask = self._masks[self._steps] if source == self._sources[0] else np.ones(3, bool)
        if isinstance(mask, Exception):
            raise mask
        return None if isinstance(mask, str) and mask == "missing" else mask

    def _now(self) -> tuple[Any, dict[str, Any]]:
        obs: Any = np.zeros(1, np.float32)
        if "key" in self._sources:
            obs = {"vec": obs, **({} if self._given("key") is None else {"action_mask": self._given("key")})}
        info = {"action_mask": self._given("info")} if "info" in self._sources and self._given("info") is not None else {}
        return obs, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return self._now()

    def step(self, action: Any) -> tuple[Any, ...]:
        self._steps += 1
        obs, info = self._now()
        ended = self._steps == len(self._masks) - 1
        return obs, 0.0, ended and self._end == "terminated", ended and self._end == "truncated", info


class WithSpaces(gym.Env):
    """Has the spaces it is given."""

    def __init__(self, observation: spaces.Space | None = None, action: spaces.Space | None = None) -> None:
        self.observation_space = observation if observation is not None else spaces.Box(0.0, 1.0, (1,))
        self.action_space = action if action is not None else spaces.Discrete(2)


class WithoutSpaces(gym.Env):
    """Forgot its spaces."""


class BoomInConstructor(gym.Env):
    """Cannot be made."""

    def __init__(self) -> None:
        raise ValueError("boom-42")


class ExitsInStep(CountObs):
    """Calls `sys.exit` where it should return."""

    def _act(self, action: Any) -> None:
        raise SystemExit(5)


class Bouncing(VectorEnv):
    """Two environments of two steps, NEXT_STEP; environment 1 also ends in each step that resets it, twice in a row (C72)."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int = 2) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = spaces.Box(0.0, 100.0, (1,)), spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.calls = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.calls = 0
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        self.calls += 1
        terminated = np.array([False, self.calls in (2, 3, 4)])
        return np.full((2, 1), self.calls, np.float32), np.ones(2), terminated, np.zeros(2, bool), {}


class NoFinalObs(VectorEnv):
    """Says SAME_STEP and does not give the last observations."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros((self.num_envs, 1), np.float32), {}

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        n = self.num_envs
        return np.zeros((n, 1), np.float32), np.zeros(n), np.ones(n, bool), np.zeros(n, bool), {}


def undeclared(num_envs: int) -> VectorEnv:
    """A vector environment that does not say its autoreset mode."""
    env = Bouncing(num_envs)
    env.metadata = {}
    return env


def two_whatever_you_ask() -> VectorEnv:
    """A vector environment of 2, without asking how many are wanted."""
    return count_vector(2, "NextStep")


def mutating_vector(num_envs: int, autoreset_mode: str) -> VectorEnv:
    """`MutatingObs` in a vector environment that hands out its own buffers."""
    return gym.vector.SyncVectorEnv([lambda: MutatingObs(5)] * num_envs, copy=False, autoreset_mode=autoreset_mode)


def echo_vector(num_envs: int, autoreset_mode: str, space: str, length: int = 10) -> VectorEnv:
    """`EchoAction` in a vector environment."""
    return gym.vector.SyncVectorEnv([lambda: EchoAction(space, length)] * num_envs, autoreset_mode=autoreset_mode)


def crashing_vector(num_envs: int) -> VectorEnv:
    """A vector environment that raises at its third step."""
    return gym.vector.SyncVectorEnv([lambda: CrashAt(3)] * num_envs)


def make_cartpole() -> gym.Env:
    """A registered environment made by a factory."""
    return gym.make("CartPole-v1")


def makes_nothing() -> str:
    """Not an environment."""
    return "cartpole"


def needs_size(size: int) -> gym.Env:
    """A factory with a required argument."""
    return CountObs(size)


def passes_on(**kwargs: Any) -> gym.Env:
    """A factory that hands its arguments on."""
    return CountObs(**kwargs)
