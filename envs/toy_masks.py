"""Tiny worlds that do not allow every choice at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.toy import Step, Toy


class MaskedBandit(Toy):
    """Other choices are allowed at every step; the highest of them pays most, and one that is not allowed costs 100.

    Every choice of every branch is allowed with probability 1/2, at least one is. Choice i of n pays i / (n - 1), branches pay
    their mean: without regard to the masks 0.5 on average, for the highest allowed choice of five about 0.8. Taking one that is
    not allowed in any branch pays -100. Observation: how many such actions there have been in the episode.

    Args:
        choices: choices of a Discrete (an int), or of each branch of a MultiDiscrete.
        masks: where they are given: ``"info"`` (MultiDiscrete: one array for each branch), ``"key"`` (flat, in a Dict
            observation whose other part is ``"illegal"``), ``"method"`` (flat), or ``"none"`` (nowhere, as a control).
        length: steps of an episode, which ends by `end`, ``"terminated"`` or ``"truncated"``.

    Attributes:
        illegal: how many actions were not allowed, in the episode.
        illegal_in_life: the same, since the environment was made.
    """

    PENALTY = -100.0

    def __init__(self, choices: int | Sequence[int] = 5, masks: str = "info", length: int = 10, end: str = "terminated") -> None:
        super().__init__(length, end)
        if masks not in ("info", "key", "method", "none"):
            raise ValueError(f"masks: expected 'info', 'key', 'method' or 'none', received {masks!r}")
        is_one = isinstance(choices, int)
        self._choices = [choices] if is_one else [int(n) for n in choices]
        self.action_space = spaces.Discrete(choices) if is_one else spaces.MultiDiscrete(self._choices)
        self.observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
        self._masks = masks
        if masks == "key":
            self.observation_space = spaces.Dict({
                "illegal": self.observation_space, "action_mask": spaces.MultiBinary(sum(self._choices))})
        elif masks == "method":
            self.action_masks = self._flat  # in the class it would be there for the other sources, too
        self._allowed = [np.ones(n, bool) for n in self._choices]
        self._paid = 0.0
        self.illegal = self.illegal_in_life = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw the first masks."""
        super().reset(seed=seed)
        self.illegal = 0
        self._draw()
        return self._observe(), self._info()

    def step(self, action: Any) -> Step:
        """Pay for the action, and draw other masks."""
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, self._info()

    def _act(self, action: Any) -> None:
        picked = [int(i) for i in np.ravel(action)]
        if all(allowed[i] for allowed, i in zip(self._allowed, picked, strict=True)):
            self._paid = float(np.mean([i / max(1, n - 1) for i, n in zip(picked, self._choices, strict=True)]))
        else:
            self.illegal += 1
            self.illegal_in_life += 1
            self._paid = self.PENALTY
        self._draw()

    def _draw(self) -> None:
        for allowed in self._allowed:
            allowed[:] = self.np_random.integers(0, 2, len(allowed))
            if not allowed.any():
                allowed[self.np_random.integers(len(allowed))] = True

    def _flat(self) -> np.ndarray:
        return np.concatenate(self._allowed)

    def _info(self) -> dict[str, Any]:
        if self._masks != "info":
            return {}
        masks = tuple(allowed.astype(np.int8) for allowed in self._allowed)
        return {"action_mask": masks[0] if isinstance(self.action_space, spaces.Discrete) else masks}

    def _observe(self) -> Any:
        illegal = np.array([self.illegal], np.float32)
        return {"illegal": illegal, "action_mask": self._flat().astype(np.int8)} if self._masks == "key" else illegal

    def _reward(self) -> float:
        return self._paid
