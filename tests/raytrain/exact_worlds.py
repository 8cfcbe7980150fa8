"""Worlds whose episodes can be gone on with, some that forget something, and a configuration in which a whole run takes a moment."""

from __future__ import annotations

import signal
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit


class Forgetful(gym.Env):
    """A walk with a random wind that lasts for an episode: where it ends and what it pays depends on all that was before.

    Attributes:
        observation_space: place, wind, how far the episode is.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    began: ClassVar[list[float]] = []
    """The wind of each episode that began in this process."""
    signal_in: ClassVar[int] = 0
    """Steps of all copies until this process gets a SIGINT, within that step; 0: none."""

    def __init__(self, discrete: bool = True, length: int = 13) -> None:
        self.action_space = spaces.Discrete(3) if discrete else spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._discrete, self._length = discrete, length
        self._place, self._wind, self._steps, self._memory = 0.0, 0.0, 0, np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._wind, self._steps = 0.0, float(self.np_random.normal()), 0
        self._memory[:] = 0.0
        Forgetful.began.append(self._wind)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        push = float(action) - 1.0 if self._discrete else float(action[0])
        if Forgetful.signal_in:
            Forgetful.signal_in -= 1
            if not Forgetful.signal_in:
                signal.raise_signal(signal.SIGINT)
        self._steps += 1
        self._memory[:] = self._memory[1], push
        self._place += 0.3 * push + 0.1 * self._wind + 0.05 * float(self.np_random.normal()) + 0.05 * self._memory[0]
        return self._seen(), 1.0 - abs(self._place), abs(self._place) > 1.5, self._steps >= self._length, {}

    def _seen(self) -> np.ndarray:
        return np.array([self._place, self._wind, self._steps / self._length], np.float32)


class Windy(Forgetful):
    """The same, and it can be gone on with."""

    def get_state(self) -> dict[str, Any]:
        return {"place": self._place, "wind": self._wind, "steps": self._steps, "memory": self._memory}

    def set_state(self, state: dict[str, Any]) -> None:
        self._place, self._wind, self._steps = state["place"], state["wind"], state["steps"]
        self._memory[:] = state["memory"]


def limited(**kwargs: Any) -> gym.Env:
    """With Gymnasium's time limit around it."""
    return TimeLimit(Windy(**kwargs), 9)


class OwnVector(SyncVectorEnv):
    """A vector environment of the user's, with the two methods for all of its environments."""

    def get_state(self) -> dict[str, Any]:
        one = [{"state": env.get_state(), "rng": env.np_random.bit_generator.state} for env in self.envs]
        return {"each": one, "resets": self._autoreset_envs}

    def set_state(self, state: dict[str, Any]) -> None:
        self._autoreset_envs = state["resets"]
        for env, one in zip(self.envs, state["each"], strict=True):
            env.set_state(one["state"])
            env.np_random.bit_generator.state = one["rng"]


def vector(kind: str, num_envs: int = 1) -> VectorEnv:
    """A vector environment of `Windy`."""
    if kind == "async":
        return AsyncVectorEnv([Windy] * num_envs)
    mode = AutoresetMode.SAME_STEP if kind == "same step" else AutoresetMode.NEXT_STEP
    return (OwnVector if kind == "own" else SyncVectorEnv)([Windy] * num_envs, autoreset_mode=mode)


def config(env: str = "Windy", discrete: bool = True, trainer: str = "ppo", env_settings: dict | None = None, **behavior: Any) -> dict:
    """PPO: rounds of 64 agent steps; SAC: 16 to begin with, then 2 for each update."""
    hyper = {"learning_rate": 3e-3, **behavior.pop("hyperparameters", {})}
    if trainer == "ppo":
        constant = dict.fromkeys(("learning_rate_schedule", "beta_schedule", "epsilon_schedule"), "constant")
        hyper = {"buffer_size": 64, "batch_size": 32, "num_epoch": 2, **constant, **hyper}
    else:
        hyper = {"buffer_size": 300, "batch_size": 16, "buffer_init_steps": 16, "steps_per_update": 2.0, "save_replay_buffer": True, **hyper}
    return {
        "env": f"tests.raytrain.exact_worlds:{env}", "env_kwargs": {"discrete": discrete},
        "behaviors": {env: {
            "trainer_type": trainer, "hyperparameters": hyper, "time_horizon": 7,
            "network_settings": {"hidden_units": 8, "num_layers": 1, **behavior.pop("network_settings", {})},
            "max_steps": 512, "summary_freq": 96, "checkpoint_interval": 256, **behavior,
        }},
        "env_settings": {"num_envs": 4, "seed": 3, "stepping": "inline", **(env_settings or {})},
    }
