"""Worlds whose parameters are drawn for each episode: one that shows what it was given, and CartPole with poles of any length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit

from envs.toy import Toy

UNKNOWN = -1.0
"""What `ParamEcho` shows of a parameter that it was not given."""


class ParamEcho(Toy):
    """Observation: the parameters of this episode, as they came with ``options``; the reward of each step is their sum.

    Args:
        names: of the parameters that are shown, in this order.

    Attributes:
        received: the options of every reset so far, copies; None where there were none.
    """

    def __init__(self, names: Sequence[str] = ("mass",), length: int = 3, end: str = "terminated") -> None:
        super().__init__(length, end)
        self.observation_space = spaces.Box(-np.inf, np.inf, (len(names),), np.float64)
        self._names = tuple(names)
        self._values = np.full(len(names), UNKNOWN)
        self.received: list[dict[str, Any] | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin the next episode with the parameters in `options`."""
        self.received.append(None if options is None else dict(options))
        self._values[:] = [(options or {}).get(name, UNKNOWN) for name in self._names]
        return super().reset(seed=seed)

    def _observe(self) -> np.ndarray:
        return self._values.copy()

    def _reward(self) -> float:
        return float(self._values.sum())


class PoleEnv(CartPoleEnv):
    """CartPole with the parameter ``pole_length``: half the length of the pole (m), 0.5 in Gymnasium's own."""

    def set_parameters(self, parameters: Mapping[str, float]) -> None:
        """Change the pole; called before each reset.

        Raises:
            ValueError: a parameter that it does not have, or a pole without length.
        """
        unknown = [name for name in parameters if name != "pole_length"]
        if unknown:
            raise ValueError(f"expected the parameter pole_length, received {', '.join(unknown)}")
        length = parameters.get("pole_length", 0.5)
        if length <= 0.0:
            raise ValueError(f"expected a pole_length > 0, received {length:g}")
        self.length = length
        self.polemass_length = self.masspole * length


def pole(max_episode_steps: int = 500) -> gym.Env:
    """`PoleEnv` with CartPole-v1's time limit."""
    return TimeLimit(PoleEnv(), max_episode_steps)
