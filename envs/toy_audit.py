"""Tiny worlds whose observations of every kind say when they were made, so that whatever is stored of them can be checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from envs.toy import CountObs, Step, Toy

ECHO_SPACES = {
    "body": spaces.Tuple((
        spaces.Box(-np.inf, np.inf, (2,), np.float64),
        spaces.Dict({"gear": spaces.Discrete(7, start=-3), "lights": spaces.MultiBinary(3)}),
    )),
    "camera": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "clock": spaces.Box(0, 10**9, (), np.int64),
    "codes": spaces.MultiDiscrete([5, 7], start=[1, -2]),
    "depth": spaces.Box(0.0, np.inf, (15, 16, 1), np.float32),
    "flags": spaces.Box(0, 1, (2,), np.bool_),
    "grid": spaces.Box(-np.inf, np.inf, (3, 2), np.float32),
}
"""Parts of the observation of `EchoObs`: every kind of space, nested."""

ECHO_BRANCHES = (3, 4)
"""Choices of its actions."""


def echo_observation(episode: int, step: int) -> dict[str, Any]:
    """What `EchoObs` shows after `step` steps of `episode`, both counted from 0, as a dict."""
    step_bits = np.array([step >> bit & 1 for bit in range(3)], np.int8)
    return {
        "body": (np.array([episode, step], np.float64), {"gear": np.int64(step % 7 - 3), "lights": step_bits}),
        "camera": np.full((4, 5, 3), (16 * episode + step) % 256, np.uint8) ^ np.arange(3, dtype=np.uint8),
        "clock": np.array(1000 * episode + step, np.int64),
        "codes": np.array([episode % 5 + 1, step % 7 - 2]),
        "depth": np.full((15, 16, 1), 100 * episode + step, np.float32),
        "flags": np.array([episode % 2, step % 2], bool),
        "grid": np.array([[episode, step], [step, episode], [episode + step, episode - step]], np.float32),
    }


def echo_mask(episode: int, step: int) -> list[np.ndarray]:
    """Which choices `EchoObs` then allows: one bool array for each branch, never all False."""
    return [(np.arange(n) + episode + step + branch) % 2 == 0 for branch, n in enumerate(ECHO_BRANCHES)]


class EchoObs(CountObs):
    """`CountObs` (reward = number of the step) whose observation is nested, has a leaf of every kind, and may be masked.

    Args:
        length, end, vary: see `CountObs`.
        structure: ``"dict"`` or ``"tuple"``: the outermost space.
        masks: ``"none"``, ``"info"`` (one array for each branch), ``"key"`` (flat, in a Dict) or ``"method"`` (flat). An action
            that the mask does not allow is a ValueError.
        same_arrays: the very same arrays are returned every time, changed in place.
    """

    action_space = spaces.MultiDiscrete(ECHO_BRANCHES)

    def __init__(self, length: int = 10, end: str = "truncated", vary: bool = False, structure: str = "dict", masks: str = "none",
                 same_arrays: bool = False) -> None:
        super().__init__(length, end, vary)
        if structure not in ("dict", "tuple") or masks not in ("none", "info", "method", *(["key"] if structure == "dict" else [])):
            raise ValueError(f"expected the structure dict or tuple and the masks none, info, method or (dict only) key, "
                             f"received {structure!r} and {masks!r}")
        parts = dict(ECHO_SPACES, **({"action_mask": spaces.MultiBinary(sum(ECHO_BRANCHES))} if masks == "key" else {}))
        self.observation_space = spaces.Dict(parts) if structure == "dict" else spaces.Tuple(parts.values())
        if masks == "method":
            self.action_masks = lambda: self._kept["mask"]
        self._masks, self._same_arrays = masks, same_arrays
        self._kept: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""
        obs, _ = super().reset(seed=seed)
        return obs, self._info()

    def step(self, action: Any) -> Step:
        """Count; insist on the mask."""
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, self._info()

    def _act(self, action: np.ndarray) -> None:
        masks = echo_mask(self.episode, self.steps - 1)
        if self._masks != "none" and not all(mask[i] for mask, i in zip(masks, action, strict=True)):
            raise ValueError(f"{action} is not allowed by {masks}")

    def _observe(self) -> Any:
        obs, masks = echo_observation(self.episode, self.steps), echo_mask(self.episode, self.steps)
        now = {"obs": obs, "masks": masks, "mask": np.concatenate(masks)}
        self._kept = _written_over(self._kept, now) if self._same_arrays and self._kept else now
        obs = dict(self._kept["obs"])
        if self._masks == "key":
            obs["action_mask"] = self._kept["mask"].view(np.int8)
        return obs if isinstance(self.observation_space, spaces.Dict) else tuple(obs.values())

    def _info(self) -> dict[str, Any]:
        return {"action_mask": tuple(self._kept["masks"])} if self._masks == "info" else {}


def _written_over(kept: Any, now: Any) -> Any:
    """`kept`, with the values of `now` in its arrays."""
    if isinstance(now, dict):
        return {key: _written_over(kept[key], value) for key, value in now.items()}
    if isinstance(now, (tuple, list)):
        return type(now)(_written_over(*pair) for pair in zip(kept, now, strict=True))
    if isinstance(kept, np.ndarray):
        kept[...] = now
        return kept
    return now  # a scalar


class MutatingObs(CountObs):
    """`CountObs` that returns the same array object every step, changed in place, and scribbles on the action it was given."""

    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, length: int = 10, end: str = "truncated") -> None:
        super().__init__(length, end)
        self._obs = np.zeros(2, np.float32)

    def _act(self, action: np.ndarray) -> None:
        action[:] = np.nan

    def _observe(self) -> np.ndarray:
        self._obs[:] = self.episode, self.steps
        return self._obs


PIXEL_SPACES = {
    "rgb": spaces.Box(0, 255, (84, 84, 3), np.uint8),
    "rgb_first": spaces.Box(0, 255, (3, 84, 84), np.uint8),
    "unit": spaces.Box(0.0, 1.0, (84, 84, 1), np.float32),
    "codes": spaces.Box(0, 255, (7, 7, 3), np.uint8),
}
"""Images of `StepPixels`: colours with the channels last and first, brightness from 0 to 1, and small whole numbers in a grid
(object, colour and state, as MiniGrid has them)."""


def step_pixels(image: str, step: int) -> np.ndarray:
    """What `StepPixels` shows after `step` steps: at row h, column w and channel c ``(step + 3h + 5w + 64c) mod m``.

    m is 256, and 11 for ``"codes"``; ``"unit"`` is divided by 255.
    """
    space = PIXEL_SPACES[image]
    height, width, channels = space.shape if image != "rgb_first" else (*space.shape[1:], space.shape[0])
    h, w, c = np.ogrid[:height, :width, :channels]
    values = (step + 3 * h + 5 * w + 64 * c) % (11 if image == "codes" else 256)
    if image == "rgb_first":
        values = values.transpose(2, 0, 1)
    return (values / 255.0 if image == "unit" else values).astype(space.dtype)


class StepPixels(Toy):
    """An image whose every pixel says step, row, column and channel, and a reward of 1 for each step.

    Args:
        image: key of `PIXEL_SPACES`.
        length, end: see `envs.toy.Toy`.
    """

    def __init__(self, image: str = "rgb", length: int = 10, end: str = "terminated") -> None:
        super().__init__(length, end)
        self.observation_space = PIXEL_SPACES[image]
        self._image = image

    def _observe(self) -> np.ndarray:
        return step_pixels(self._image, self.steps)

    def _reward(self) -> float:
        return 1.0


def echo_obs_vector(num_envs: int, autoreset_mode: str, length: int = 10, end: str = "truncated", vary: bool = False,
                    structure: str = "dict", masks: str = "none", copy: bool = True) -> VectorEnv:
    """`EchoObs` in a Gymnasium vector environment with the autoreset mode ``"NextStep"``, ``"SameStep"`` or ``"Disabled"``."""
    return SyncVectorEnv([lambda: EchoObs(length, end, vary, structure, masks)] * num_envs, copy=copy,
                         autoreset_mode=AutoresetMode(autoreset_mode))
