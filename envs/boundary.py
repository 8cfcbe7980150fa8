"""The checks that everything passes at the boundary on its way from an environment into arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.masks import MASK_KEY, has_mask_key
from envs.spaces import is_text
from envs.specs import Observations, ObservationSpec

BOUNDS_CHECK_STEPS = 100
"""Boxes are compared with their bounds in this many first steps of each environment."""
BOUNDS_SLACK = 1e-5
"""Relative (absolute below 1) excess over a bound that counts as rounding; the check is there to find wrong scales."""


class ObservationReader:
    """Copies whole observations out of an environment into one array for each spec, and finds what must not be learnt from."""

    def __init__(self, space: spaces.Space, specs: tuple[ObservationSpec, ...]) -> None:
        """`specs` are those that `observation_specs` gives for `space`."""
        self._leaves = [_LeafReader(_space_at(space, spec.path), spec) for spec in specs]
        by_path = {leaf.spec.path: leaf for leaf in self._leaves}
        self._is_simple = () in by_path
        self._root = by_path[()] if self._is_simple else _TreeReader(space, (), by_path)
        self._single = [(leaf.name, leaf.shape, leaf.dtype) for leaf in self._leaves]

    def empty(self, n: int | None) -> Observations:
        """New arrays for `n` observations, name -> ``[n, *shape]``, or for a single one without the first axis."""
        if n is None:
            return {name: np.empty(shape, dtype) for name, shape, dtype in self._single}
        return {name: np.empty((n, *shape), dtype) for name, shape, dtype in self._single}

    def read(self, value: Any, out: Observations) -> None:
        """Copy one observation, or a batch as Gymnasium batches it (the dicts and tuples of the space, with arrays ``[n, …]``).

        Arrays, lists and scalars of any numeric dtype are taken; a single element may have any rank. The key `MASK_KEY` of a
        Dict space is passed over, also where it is missing.

        Args:
            value: what the environment returned.
            out: arrays made by `empty`, for one or for n.

        Raises:
            ValueError: another structure than the space's, wrong shape, not numeric, or integers expected and something else
                given; names the part.
        """
        self._root.read(value, out)

    def copy(self, value: Any) -> Observations:
        """One observation as `read` copies it, in new arrays.

        Raises:
            ValueError: as `read`.
        """
        if self._is_simple and (array := self._root.quick_copy(value)) is not None:
            return {self._root.name: array}
        out = self.empty(None)
        self._root.read(value, out)
        return out

    def problem(self, observations: Observations, check_bounds: bool) -> tuple[int, str] | None:
        """First part of `observations` that is not finite, no choice of its space or, if asked for, out of the bounds of its Box.

        Args:
            observations: arrays made by `empty`, for one or for n.

        Returns:
            Its row (0 for one observation) and a sentence with key, index, value (and bound), or None when all is well.
        """
        for leaf in self._leaves:
            found = leaf.problem(observations[leaf.name], check_bounds)
            if found is not None:
                return found
        return None


class _LeftOut:
    """Passes over text."""

    def read(self, value: Any, out: Observations) -> None:
        """Nothing."""


class _TreeReader:
    """Reads a Dict or Tuple and what is inside."""

    def __init__(self, space: spaces.Tuple | spaces.Dict, path: tuple[int | str, ...], leaves: dict[Any, _LeafReader]) -> None:
        self._is_dict = isinstance(space, spaces.Dict)
        self._at = f"observation {'/'.join(map(str, path))!r}" if path else "observation"
        self._ignored = MASK_KEY if not path and has_mask_key(space) else None
        self._inner = [
            (key, leaves.get((*path, key)) or (_LeftOut() if is_text(inner) else _TreeReader(inner, (*path, key), leaves)))
            for key, inner in (space.spaces.items() if self._is_dict else enumerate(space.spaces)) if key != self._ignored
        ]

    def read(self, value: Any, out: Observations) -> None:
        """See `ObservationReader.read`."""
        if not isinstance(value, (dict, Mapping) if self._is_dict else (tuple, list)):
            raise self._wrong(value)
        if self._ignored is not None and self._ignored in value:
            surplus = len(value) - len(self._inner) - 1
        else:
            surplus = len(value) - len(self._inner)
        if surplus:
            raise self._wrong(value)
        for key, reader in self._inner:
            try:
                part = value[key]
            except KeyError:
                raise self._wrong(value) from None
            reader.read(part, out)

    def _wrong(self, value: Any) -> ValueError:
        keys = [key for key, _ in self._inner]
        if not self._is_dict:
            received = f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (tuple, list)) else f": {value!r:.100}")
            return ValueError(f"{self._at}: expected a tuple of {len(keys)}, as the observation space has it, received {received}")
        if not isinstance(value, Mapping):
            return ValueError(f"{self._at}: expected a dict with the keys {keys}, received a {type(value).__name__}: {value!r:.100}")
        missing = [key for key in keys if key not in value]
        unknown = [key for key in value if key not in keys and key != self._ignored]
        parts = ([f"{missing} missing"] if missing else []) + ([f"{unknown} not in the observation space"] if unknown else [])
        return ValueError(f"{self._at}: expected a dict with the keys {keys}, received one with {' and '.join(parts)}")


class _LeafReader:
    """Reads one simple space."""

    def __init__(self, space: spaces.Space, spec: ObservationSpec) -> None:
        self.spec = spec
        self.name, self.shape, self.dtype = spec.name, spec.shape, np.dtype(spec.dtype)
        self._is_float = self.dtype.kind == "f"
        self._is_scalar = not space.shape
        plain = {"f": (int, float), "i": (int,), "u": (int,)}.get(self.dtype.kind, ())
        self._scalar_types = (self.dtype.type, *plain) if self._is_scalar else ()
        self._always_checked = spec.kind == "categorical"
        self._bounds = low, high = _bounds(space, spec)
        self._has_bounds = not _is_everything(low, high)
        slack = BOUNDS_SLACK if self._is_float else 0
        with np.errstate(over="ignore"):
            self._low = low - slack * np.maximum(1, np.abs(np.where(np.isfinite(low), low, 0))) if slack else low
            self._high = high + slack * np.maximum(1, np.abs(np.where(np.isfinite(high), high, 0))) if slack else high
        self._finite = np.empty(0, bool)

    def quick_copy(self, value: Any) -> np.ndarray | None:
        """A new array of one value where that takes no checks; None where `read` has to look closer."""
        if type(value) is np.ndarray and value.shape == self.shape and self._is_kept(value.dtype):
            return value.astype(self.dtype, "C")
        return None

    def _is_kept(self, dtype: np.dtype) -> bool:
        """Whether numbers of another dtype are taken without a look at each."""
        return dtype is self.dtype or dtype == self.dtype or (self._is_float and dtype.kind in "fiub")

    def read(self, value: Any, observations: Observations) -> None:
        """Copy one or n values; see `ObservationReader.read`."""
        out = observations[self.name]
        if type(value) is np.ndarray and value.shape == out.shape and self._is_kept(value.dtype):
            out[...] = value
            return
        try:
            if type(value) in self._scalar_types and out.ndim == 1:
                out[0] = value
                return
            array = np.asarray(value)
            if array.dtype.kind not in "biufO":
                raise ValueError(f"{array.dtype} is no number")
            with np.errstate(invalid="ignore"):
                cast = array.astype(self.dtype)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"observation {self.name!r}: expected numbers of shape {out.shape}, "
                             f"received {value!r:.200} ({error})") from None
        is_shape = array.shape == out.shape or (self._is_scalar and array.shape == out.shape[:-1])
        if not is_shape and not array.size == out.size == 1:
            raise ValueError(f"observation {self.name!r}: expected shape {out.shape}, received shape {array.shape}")
        if not self._is_float and not np.array_equal(cast, array):
            wrong = np.atleast_1d(np.asarray(cast != array))
            index = [int(i) for i in np.argwhere(wrong)[0]]
            where = f" at index {index}" if array.ndim else ""
            raise ValueError(f"observation {self.name!r}: expected {self.dtype} values, received {np.atleast_1d(array)[*index]}{where} "
                             f"({array.dtype}). Correct the dtype or bounds of observation_space, or the values.")
        out[...] = cast.reshape(out.shape)

    def problem(self, values: np.ndarray, check_bounds: bool) -> tuple[int, str] | None:
        """See `ObservationReader.problem`."""
        if self._is_float and not self._all_finite(values):
            row, index = self._first(~np.isfinite(values))
            return row, f"non-finite observation {self.name!r}{index} = {self._row(values, row)[*index]}"
        if self._has_bounds and (check_bounds or self._always_checked):
            below, above = values < self._low, values > self._high
            if below.any() or above.any():
                row, index = self._first(below | above)
                side, bound = ("low", self._bounds[0]) if self._row(below, row)[*index] else ("high", self._bounds[1])
                return row, (f"observation {self.name!r}{index} = {self._row(values, row)[*index]} is outside of its space: "
                             f"{side} bound {bound[*index]}. Correct the bounds of observation_space or the values.")
        return None

    def _all_finite(self, values: np.ndarray) -> bool:
        if self._finite.shape != values.shape:
            self._finite = np.empty(values.shape, bool)
        # Half the time of np.isfinite(values).all(), and this is done for every step.
        return np.count_nonzero(np.isfinite(values, out=self._finite)) == values.size

    def _first(self, wrong: np.ndarray) -> tuple[int, list[int]]:
        """Row and index of the first True in ``[n, *shape]``, or ``[*shape]`` of row 0."""
        row, *index = (int(i) for i in np.argwhere(wrong.reshape(-1, *self.shape))[0])
        return row, index

    def _row(self, values: np.ndarray, row: int) -> np.ndarray:
        return values.reshape(-1, *self.shape)[row]


def _space_at(space: spaces.Space, path: tuple[int | str, ...]) -> spaces.Space:
    for key in path:
        space = space[key]
    return space


def _bounds(space: spaces.Space, spec: ObservationSpec) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest values, of the shape and dtype of `spec`."""
    if spec.kind == "categorical":
        low = np.array(spec.starts).reshape(spec.shape)
        return low, low + np.array(spec.choices).reshape(spec.shape) - 1
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(spec.shape, spec.dtype), np.ones(spec.shape, spec.dtype)
    with np.errstate(over="ignore"):
        return space.low.reshape(spec.shape).astype(spec.dtype), space.high.reshape(spec.shape).astype(spec.dtype)


def _is_everything(low: np.ndarray, high: np.ndarray) -> bool:
    """Whether the bounds are those of the dtype, so that no value can be outside."""
    if low.dtype.kind == "b":
        return True
    smallest, largest = (-np.inf, np.inf) if low.dtype.kind == "f" else (np.iinfo(low.dtype).min, np.iinfo(low.dtype).max)
    return bool((low == smallest).all() and (high == largest).all())


def read_reward(value: Any) -> float:
    """A reward as a float; arrays of one element are taken.

    Raises:
        ValueError: not one number.
    """
    if isinstance(value, float):  # NumPy's float64 is one, too
        return float(value)
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
