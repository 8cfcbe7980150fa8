"""Gymnasium spaces as specs, and the checks that every observation passes at the boundary.

What is decided here:
- A float64 observation Box is stored as float32: networks compute in float32, and it halves memory and traffic. Every other
  dtype is kept, so integers stay integers. A value that does not survive the cast is a fault, never rounded silently.
- A Box of rank 0 is delivered as a vector of one element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.specs import ActionPart, ActionSpec, BehaviorSpec, ObservationSpec, hybrid_action, path_text

SUPPORTED_OBSERVATIONS = "Box of rank 0 or 1 (a vector) with an integer or float dtype"
SUPPORTED_ACTIONS = "Box with finite bounds, Discrete, MultiDiscrete, MultiBinary, and Tuple and Dict of these"
BOUNDS_CHECK_STEPS = 100
"""Observations are compared with the bounds of their space in this many first steps of each environment."""
BOUNDS_SLACK = 1e-5
"""Relative (absolute below 1) excess over a bound that counts as rounding; the check is there to find wrong scales."""
EXACT_INTEGER = 2**53
"""Whole numbers up to here survive the float64 arithmetic of `envs.specs.to_env_actions`."""


def behavior_spec(observation_space: spaces.Space | None, action_space: spaces.Space | None, env: str) -> BehaviorSpec:
    """Spec of the one behavior of a single-agent environment.

    Args:
        observation_space, action_space: of one agent; None where the environment has none.
        env: name of the environment, for messages.

    Raises:
        ValueError: a space is missing or not supported; names it, its key and what is supported.
    """
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        if space is None:
            raise ValueError(f"{env}: the environment has no {name}; set it in its constructor or class to a gymnasium.spaces.Space.")
    return BehaviorSpec(observations=(observation_spec(observation_space, "obs", env),), action=action_spec(action_space, env))


def observation_spec(space: spaces.Space, name: str, env: str) -> ObservationSpec:
    """Spec of one observation called `name`.

    Raises:
        ValueError: the space is not a vector Box.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) > 1 or space.dtype.kind not in "iuf":
        raise ValueError(f"{env}: observation {name!r} has the space {space}; supported are: {SUPPORTED_OBSERVATIONS}.")
    dtype = "float32" if space.dtype == np.float64 else space.dtype.name
    return ObservationSpec(name=name, shape=space.shape or (1,), dtype=dtype)


def action_spec(space: spaces.Space, env: str) -> ActionSpec:
    """Spec of the action space. A Tuple or Dict, nested or not, is flattened in its own order (Gymnasium's for the keys of a Dict).

    Raises:
        ValueError: the space, or one inside it, is not supported or is a Box with an infinite side; says which.
    """
    return _action_spec(space, (), env)


def _action_spec(space: spaces.Space, path: tuple[int | str, ...], env: str) -> ActionSpec:
    if isinstance(space, spaces.Discrete):
        return ActionSpec(kind="discrete", discrete_branches=(int(space.n),), starts=(int(space.start),),
                          shape=(), dtype=space.dtype.name)
    if isinstance(space, spaces.MultiDiscrete):
        return ActionSpec(kind="multi_discrete", discrete_branches=tuple(int(n) for n in space.nvec.flat),
                          starts=tuple(int(s) for s in space.start.flat), shape=space.shape, dtype=space.dtype.name)
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape, dtype=np.int64))
        return ActionSpec(kind="multi_binary", discrete_branches=(2,) * size, starts=(0,) * size, shape=space.shape,
                          dtype=space.dtype.name)
    if isinstance(space, spaces.Box) and space.dtype.kind in "iuf":
        _check_box_bounds(space, path, env)
        return ActionSpec(kind="box", continuous_size=int(np.prod(space.shape, dtype=np.int64)),
                          low=tuple(float(v) for v in space.low.flat), high=tuple(float(v) for v in space.high.flat),
                          shape=space.shape, dtype=space.dtype.name)
    if isinstance(space, (spaces.Tuple, spaces.Dict)):
        return hybrid_action(_parts(space, path, env))
    raise ValueError(f"{env}: {_action_space_at(path)} is {space}; supported are: {SUPPORTED_ACTIONS}.")


def _parts(space: spaces.Tuple | spaces.Dict, path: tuple[int | str, ...], env: str) -> Iterator[ActionPart]:
    """The simple spaces inside `space`, which is at `path` of the whole action space."""
    items = list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))
    if not items:
        raise ValueError(f"{env}: {_action_space_at(path)} is an empty {type(space).__name__}; give it a space, or leave it out.")
    for key, inner in items:
        if isinstance(space, spaces.Dict) and not isinstance(key, str):
            raise ValueError(  # noqa: TRY004 - a wrong configuration is a ValueError
                f"{env}: {_action_space_at(path)} is a Dict with the key {key!r}; expected text as keys.")
        spec = _action_spec(inner, (*path, key), env)
        yield from spec.parts or (ActionPart((*path, key), spec),)


def _action_space_at(path: tuple[int | str, ...]) -> str:
    return "the action space" + (f" at {path_text(path)}" if path else "")


def _check_box_bounds(space: spaces.Box, path: tuple[int | str, ...], env: str) -> None:
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    with np.errstate(over="ignore"):
        usable = space.bounded_below & space.bounded_above & np.isfinite(high - low)
    if space.dtype.kind in "iu":
        # Integer Boxes store an infinite side as the largest integer; those bounds are meaningless as a range, too.
        usable &= (np.abs(low) <= EXACT_INTEGER) & (np.abs(high) <= EXACT_INTEGER)
    if not usable.all():
        index = tuple(int(i) for i in np.argwhere(~usable)[0])
        raise ValueError(
            f"{env}: {_action_space_at(path)} is {space}, whose bounds at index {list(index)} are low={space.low[index]}, "
            f"high={space.high[index]}; policies act in [-1, 1] and are mapped to finite bounds. Give the Box finite bounds, "
            "for example with gymnasium.wrappers.RescaleAction or in the environment's own action_space."
        )


class ObservationReader:
    """Copies observations out of an environment, in the spec's dtype, and finds what must not be learnt from."""

    def __init__(self, space: spaces.Box, spec: ObservationSpec) -> None:
        self.spec = spec
        self._dtype = np.dtype(spec.dtype)
        self._is_float = self._dtype.kind == "f"
        low, high = space.low.reshape(spec.shape), space.high.reshape(spec.shape)
        slack = BOUNDS_SLACK if self._is_float else 0
        self._low = low.astype(self._dtype) - slack * np.maximum(1, np.abs(np.where(np.isfinite(low), low, 0)))
        self._high = high.astype(self._dtype) + slack * np.maximum(1, np.abs(np.where(np.isfinite(high), high, 0)))
        self._bounds = low, high
        self._finite = np.empty(0, bool)

    def read(self, value: Any, out: np.ndarray) -> None:
        """Copy one observation, or a batch of them, into `out`.

        Arrays, lists and scalars of any numeric dtype are taken; a single element may have any rank.

        Args:
            value: what the environment returned.
            out: array of the spec's dtype, ``[*shape]`` or ``[n, *shape]``.

        Raises:
            ValueError: wrong shape, not numeric, or integers expected and something else given.
        """
        if type(value) is np.ndarray and value.shape == out.shape and (
            value.dtype == self._dtype or (self._is_float and value.dtype.kind in "fiub")
        ):
            out[...] = value
            return
        try:
            array = np.asarray(value)
            cast = array.astype(self._dtype)
        except (ValueError, TypeError) as error:
            raise ValueError(f"observation {self.spec.name!r}: expected numbers of shape {out.shape}, "
                             f"received {value!r:.200} ({error})") from None
        if array.shape != out.shape and not array.size == out.size == 1:
            raise ValueError(f"observation {self.spec.name!r}: expected shape {out.shape}, received shape {array.shape}")
        if not self._is_float and not np.array_equal(cast, array):
            raise ValueError(f"observation {self.spec.name!r}: expected {self._dtype} values, received {value!r:.200}")
        out[...] = cast.reshape(out.shape)

    def problem(self, batch: np.ndarray, check_bounds: bool) -> tuple[int, str] | None:
        """First observation of ``batch [n, *shape]`` that is not finite or, if asked for, out of bounds.

        Returns:
            Its row and a sentence with key, index, value (and bound), or None when all is well.
        """
        if self._is_float and not self._all_finite(batch):
            row, *index = (int(i) for i in np.argwhere(~np.isfinite(batch))[0])
            return row, f"non-finite observation {self._element(index)} = {batch[row, *index]}"
        if check_bounds:
            below, above = batch < self._low, batch > self._high
            if below.any() or above.any():
                row, *index = (int(i) for i in np.argwhere(below | above)[0])
                side, bound = ("low", self._bounds[0]) if below[row, *index] else ("high", self._bounds[1])
                return row, (f"observation {self._element(index)} = {batch[row, *index]} is outside of its space: "
                             f"{side} bound {bound[*index]}. Correct the bounds of observation_space or the values.")
        return None

    def _all_finite(self, batch: np.ndarray) -> bool:
        if self._finite.shape != batch.shape:
            self._finite = np.empty(batch.shape, bool)
        # Half the time of np.isfinite(batch).all(), and this is done for every step.
        return np.count_nonzero(np.isfinite(batch, out=self._finite)) == batch.size

    def _element(self, index: list[int]) -> str:
        return f"{self.spec.name!r}{index}"


def read_reward(value: Any) -> float:
    """A reward as a float; arrays of one element are taken.

    Raises:
        ValueError: not one number.
    """
    if type(value) is float:
        return value
    try:
        return float(value.item() if isinstance(value, (np.ndarray, np.generic)) else value)
    except (ValueError, TypeError):
        raise ValueError(f"reward: expected one number, received {value!r:.200}") from None


def read_flag(value: Any, name: str) -> bool:
    """``terminated`` or ``truncated`` as a bool; NumPy bools, 0, 1 and arrays of one element are taken.

    Raises:
        ValueError: anything else.
    """
    if type(value) is bool:
        return value
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biu":
        raise ValueError(f"{name}: expected a bool, received {value!r:.200}")
    return bool(array.item())
