"""The last observations of one agent, stacked along a new first axis: for the wrapper of an environment and the agents of a world.

Gymnasium's ``FrameStackObservation`` is not used: it keeps references to observations that environments may change in place, stacks
the key ``action_mask`` of a Dict like an observation, and turns the choices of a MultiDiscrete into quantities. Where none of that
matters, ours gives the same observations (tests/envs/test_wrappers.py compares them).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from envs.boundary import ObservationReader
from envs.masks import MASK_KEY
from envs.spaces import observation_specs
from envs.specs import Observations


class FrameStacker:
    """Stacks the last `size` observations, oldest first, along a new first axis; in a Dict or Tuple each part of them.

    A Box stays a Box, a Discrete becomes a MultiDiscrete, MultiDiscrete and MultiBinary keep their kind. What is no observation for a
    policy is passed on as it is: the key `MASK_KEY` at the top of a Dict, and parts that are left out.

    Attributes:
        space: of what is shown.
    """

    def __init__(self, space: spaces.Space, size: int, padding: Literal["reset", "zero"] = "reset", name: str = "") -> None:
        """`padding` stands before the first observation of an episode: itself, or zeros. `name` says in messages whose `space` it is.

        Raises:
            ValueError: a part of the observation space is not supported.
        """
        specs = observation_specs(space, name)
        self._reader = ObservationReader(space, specs)
        self._frames = self._reader.empty(size)
        self._newest = {key: frames[-1] for key, frames in self._frames.items()}
        self._padding = self._newest if padding == "reset" else dict.fromkeys(self._frames, 0)
        self._stacks = {  # path -> what is shown of that part
            spec.path: self._frames[spec.name].reshape(size, *_space_at(space, spec.path).shape) for spec in specs}
        self._inner_space = space
        self.space = self._stacked_space(space, ())

    def first(self, obs: Any) -> Any:
        """What is shown at the first observation of an episode. The arrays are written again by the next call, of `next` too.

        Raises:
            ValueError: another structure than the space's, as in `ObservationReader.read`.
        """
        self._reader.read(obs, self._newest)
        for name, frames in self._frames.items():
            frames[:-1] = self._padding[name]
        return self._shown(self._inner_space, (), obs)

    def next(self, obs: Any) -> Any:
        """What is shown at a later one; the oldest is forgotten. Otherwise as `first`."""
        for frames in self._frames.values():
            frames[:-1] = frames[1:]
        self._reader.read(obs, self._newest)
        return self._shown(self._inner_space, (), obs)

    def frames(self) -> Observations:
        """Copies of the last observations, name -> ``[size, *shape]``."""
        return {name: frames.copy() for name, frames in self._frames.items()}

    def load_frames(self, frames: Observations) -> None:
        """Go on from those of `frames`."""
        for name, own in self._frames.items():
            own[...] = frames[name]

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
