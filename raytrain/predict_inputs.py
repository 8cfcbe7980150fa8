"""What a user hands to a loaded policy, one observation or a batch in the environment's own structure, as arrays by name.

Letters: ``n`` rows of a batch, ``W`` choices of all discrete branches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from envs.masks import MASK_KEY, MaskReader
from envs.specs import ActionSpec, BehaviorSpec, EnvAction, Observations, ObservationSpec, observation_part, path_text


def read_observations(spec: BehaviorSpec, value: Any, is_batch: bool | None = None) -> tuple[Observations, int | None]:
    """Observations by name with a leading axis of n, and n; None instead of n where `value` is one observation (then it is 1).

    A single number may come as a scalar or with the shape ``(1,)``. An array ``(1,)`` for it may then be one or a batch of one: the
    other observations decide, then `is_batch`; otherwise it is a batch where one of them is a choice (an environment gives those as
    scalars), and one observation elsewhere.

    Raises:
        ValueError: an observation is missing, of another shape, or holds values that its dtype cannot; names it.
    """
    arrays = {o.name: _array(o, value) for o in spec.observations}
    possible = [_row_counts(o, arrays[o.name]) for o in spec.observations]
    shared = set.intersection(*possible)
    if not shared:
        _refuse_shapes(spec, arrays, possible)
    if len(shared) > 1:
        if is_batch is None:
            is_batch = any(o.kind == "categorical" for o in spec.observations)
        shared = {1} if is_batch else {None}
    (n,) = shared
    return {o.name: arrays[o.name].reshape(1 if n is None else n, *o.shape) for o in spec.observations}, n


def _array(o: ObservationSpec, value: Any) -> np.ndarray:
    """The part of an observation that `o` names, in its dtype."""
    try:
        part = observation_part(o, value)
    except (KeyError, IndexError, TypeError):
        received = list(value) if isinstance(value, Mapping) else f"{type(value).__name__} of {len(value)}" if hasattr(value, "__len__") else value
        raise ValueError(f"Expected the observation {o.name!r}, at {path_text(o.path)} of what the environment gives, received {received}.") from None
    try:
        given = np.asarray(part)
        with np.errstate(invalid="ignore"):  # NaN as an integer is refused below
            array = given.astype(o.dtype, copy=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected observation {o.name!r} to be numbers of the shape {list(o.shape)}, received {type(part).__name__}: {error}") from None
    if array.dtype.kind in "iub" and array.dtype != given.dtype:
        wrong = array != given
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise ValueError(f"Expected observation {o.name!r} as {o.dtype}, received {given[index]} at index {list(index)} ({given.dtype}).")
    elif array.dtype.kind == "f" and not np.isfinite(array).all():
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"Expected finite numbers in observation {o.name!r}, received {array[index]} at index {list(index)}.")
    return array


def _row_counts(o: ObservationSpec, array: np.ndarray) -> set[int | None]:
    """How many rows an array may be: None for one observation, n for a batch."""
    possible: set[int | None] = set()
    is_number = o.shape == (1,)
    if array.shape == o.shape or (is_number and array.shape == ()):
        possible.add(None)
    if array.ndim and (array.shape[1:] == o.shape or (is_number and array.ndim == 1)):
        possible.add(len(array))
    return possible


def _refuse_shapes(spec: BehaviorSpec, arrays: Observations, possible: list[set[int | None]]) -> None:
    for o, counts in zip(spec.observations, possible, strict=True):
        if not counts:
            rows = ", ".join(map(str, ("n", *o.shape)))
            raise ValueError(f"Expected observation {o.name!r} of shape {list(o.shape)}, or [{rows}] for a batch, received {list(arrays[o.name].shape)}.")
    shapes = ", ".join(f"{o.name!r} {list(arrays[o.name].shape)}" for o in spec.observations)
    raise ValueError(f"Expected one observation, or a batch of the same n for all of them, received the shapes {shapes}.")


class MaskInput:
    """Action masks of a user as bool ``[n, W]``."""

    def __init__(self, action: ActionSpec) -> None:
        self._action = action
        self._readers: dict[str, MaskReader] = {}

    def read(self, given: Any, observation: Any, n: int | None) -> np.ndarray | None:
        """The mask of `n` rows (None: of one), from `given` or else from the key ``action_mask`` of the observation.

        Raises:
            ValueError: there is none though the policy was trained with masks, one of a wrong form, or one that allows nothing.
        """
        source = "action_mask"
        if given is None and self._action.masked and isinstance(observation, Mapping):
            given, source = observation.get(MASK_KEY), f"observation[{MASK_KEY!r}]"
        if given is None:
            if self._action.masked:
                raise ValueError(
                    "Expected action_mask=..., since this policy was trained with masks (env.action_masks() or info['action_mask']), received "
                    f"None. Where every action is allowed give np.ones({self._action.choices}, bool)."
                )
            return None
        if not self._action.discrete_branches:
            raise ValueError(f"{source}: expected None, since the actions are all continuous; received {type(given).__name__}.")
        reader = self._readers.setdefault(source, MaskReader(action_space(self._action), self._action, source))
        masks = np.empty((1 if n is None else n, self._action.choices), bool)
        if n is None:
            reader.read(given, masks[0])
        else:
            try:
                reader.read_batch(given, masks)
            except ValueError as error:
                raise ValueError(f"{error} A batch of {n} observations needs {n} masks, [{n}, {self._action.choices}].") from None
        problem = reader.problem(masks)
        if problem is not None:
            raise ValueError(problem[1] if n is None else f"Row {problem[0]}: {problem[1]}")
        return masks


def stacked(action: ActionSpec, rows: list[EnvAction]) -> EnvAction:
    """Actions of n agents, a tuple or dict each, as one tuple or dict of arrays ``[n, *shape]``."""
    space = action_space(action)
    return concatenate(space, rows, create_empty_array(space, len(rows)))


def action_space(action: ActionSpec) -> spaces.Space:
    """The space that an action spec was made from."""
    if action.kind == "hybrid":
        return _nested_space([(part.path, part.action) for part in action.parts])
    if action.kind == "box":
        low, high = (np.reshape(np.asarray(bound, action.dtype), action.shape) for bound in (action.low, action.high))
        return spaces.Box(low, high, dtype=np.dtype(action.dtype).type)
    if action.kind == "discrete":
        return spaces.Discrete(action.discrete_branches[0], start=action.starts[0])
    if action.kind == "multi_binary":
        return spaces.MultiBinary(action.shape)
    return spaces.MultiDiscrete(np.reshape(action.discrete_branches, action.shape), dtype=action.dtype, start=np.reshape(action.starts, action.shape))


def _nested_space(parts: list[tuple[tuple[int | str, ...], ActionSpec]]) -> spaces.Space:
    if not parts[0][0]:
        return action_space(parts[0][1])
    inner: dict[int | str, list[tuple[tuple[int | str, ...], ActionSpec]]] = {}
    for (key, *rest), action in parts:
        inner.setdefault(key, []).append((tuple(rest), action))
    members = [(key, _nested_space(group)) for key, group in inner.items()]
    return spaces.Tuple([space for _, space in members]) if isinstance(members[0][0], int) else spaces.Dict(members)
