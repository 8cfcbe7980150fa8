"""Action masks: which choices of the discrete branches are allowed, in every form in which environments give them.

An environment says it in one of three ways; the first that it has is used:

1. its method ``action_masks()``, asked after every reset and step (also through Gymnasium's wrappers);
2. the key ``action_mask`` of its observation, where the observation space is a Dict with that key at its top;
3. the key ``action_mask`` of ``info``, given from the very first reset on.

Where a mask is missing at some step, or None, every choice is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.base import EnvFault
from envs.faults import env_fault
from envs.specs import ActionSpec, path_text

MASK_KEY = "action_mask"
"""Key of a mask in an observation or in ``info``."""
METHOD_SOURCE = "action_masks()"
OBSERVATION_SOURCE = f"observation[{MASK_KEY!r}]"
INFO_SOURCE = f"info[{MASK_KEY!r}]"
LATE_MASK = (
    f"{INFO_SOURCE} is given here, but the first reset of the environment gave none, so its policy was made without masks. Give it in "
    "the info of every reset, too (all True where everything is allowed)."
)


def mask_method(env: gym.Env) -> Callable[[], Any] | None:
    """The method ``action_masks`` of `env` or of an environment inside its wrappers, None where there is none."""
    try:
        method = env.get_wrapper_attr("action_masks")
    except AttributeError:
        return None
    return method if callable(method) else None


def has_mask_key(observation_space: spaces.Space | None) -> bool:
    """Whether the observations of a space carry a mask: a Dict with the key `MASK_KEY` at its top."""
    return isinstance(observation_space, spaces.Dict) and MASK_KEY in observation_space.spaces


class EnvMasks:
    """The masks of one agent, from the first of the three sources that its environment has."""

    def __init__(self, env: gym.Env | Any, spec: ActionSpec) -> None:
        """`env` has the two spaces of the agent; only a `gymnasium.Env` can have the method."""
        self._method = mask_method(env)
        self._in_observation = has_mask_key(env.observation_space)
        source = METHOD_SOURCE if self._method is not None else OBSERVATION_SOURCE if self._in_observation else INFO_SOURCE
        self._reader = MaskReader(env.action_space, spec, source)
        self._width = spec.choices

    def read(self, observation: Any, info: Any, at_end: bool = False) -> np.ndarray:
        """The mask that belongs to what the environment has just returned: bool ``[W]``, a copy.

        Args:
            at_end: the episode is over. Environments then often allow nothing; that counts as everything.

        Raises:
            EnvFault: the method raised, the mask has a wrong form, or a branch has nothing allowed.
        """
        out = np.empty(self._width, bool)
        try:
            self._reader.read(self._find(observation, info), out)
        except ValueError as error:
            raise EnvFault(str(error)) from None
        problem = self._reader.problem(out)
        if problem is not None:
            if not at_end:
                raise EnvFault(problem[1])
            out[:] = True
        return out

    def _find(self, observation: Any, info: Any) -> Any:
        if self._method is not None:
            try:
                return self._method()
            except (Exception, SystemExit) as error:
                raise env_fault(error, "in action_masks()") from error
        return mask_in(observation if self._in_observation else info)

    def all_allowed(self) -> np.ndarray:
        """A mask that forbids nothing: bool ``[W]``."""
        return np.ones(self._width, bool)


def mask_in(mapping: Any) -> Any:
    """The mask in an observation or info, None where there is none."""
    return mapping.get(MASK_KEY) if isinstance(mapping, (dict, Mapping)) else None


class MaskReader:
    """Copies masks into bool ``[W]`` or ``[n, W]`` (W choices of all branches, one branch after the other; True = allowed).

    Taken are numbers or bools, 0 and 1 only, in one of these forms:

    - flat: W values;
    - MultiDiscrete, MultiBinary: a tuple or list with one mask for each branch (nested as the space is, or flat); where all
      branches have the same number of choices, also an array ``[B, choices]``;
    - Tuple and Dict: nested as the space is, with one of these forms for each of its parts; None for a Box (in a Dict it may
      be left out).
    """

    def __init__(self, space: spaces.Space, spec: ActionSpec, source: str = "action mask") -> None:
        """`spec` is that of `space`; `source` says in messages where the masks come from."""
        self._space, self._width, self._branches, self._source = space, spec.choices, spec.discrete_branches, source
        self._starts = np.cumsum((0, *spec.discrete_branches[:-1]))

    def read(self, value: Any, out: np.ndarray) -> None:
        """Copy the mask of one agent into ``out``, bool ``[W]``.

        Raises:
            ValueError: wrong length, shape or values; names the source, what was expected and what was received.
        """
        if value is None:
            out[...] = True
        elif type(value) is np.ndarray and value.shape == out.shape and _is_plain(value):
            out[...] = value
        else:
            self._copy(value, out)

    def read_batch(self, value: Any, out: np.ndarray) -> None:
        """Copy the masks of n agents into ``out``, bool ``[n, W]``.

        Args:
            value: as Gymnasium batches it, that is every array of the forms above with a leading axis of n; or a list or an
                array of objects with n masks, None for an agent without.

        Raises:
            ValueError: as `read`.
        """
        if isinstance(value, list) or (isinstance(value, np.ndarray) and value.dtype == object):
            if len(value) != len(out):
                raise self._wrong(f"the masks of {len(out)} agents", f"{len(value)} masks")
            for mask, row in zip(value, out, strict=True):
                self.read(mask, row)
        else:
            self.read(value, out)

    def problem(self, masks: np.ndarray) -> tuple[int, str] | None:
        """The first mask of ``masks``, bool ``[n, W]`` or one ``[W]``, that allows nothing in some branch.

        Returns:
            Its row (0 for one mask) and a sentence with source and branch, or None where every branch has a choice.
        """
        if len(self._branches) == 1:
            if masks.ndim == 1 and np.count_nonzero(masks):  # the quick way for one agent, done for every step
                return None
            allowed = masks.any(axis=-1)[..., None]
        else:
            allowed = np.logical_or.reduceat(masks, self._starts, axis=-1)
        if allowed.all():
            return None
        row, branch = (int(i) for i in np.argwhere(~np.atleast_2d(allowed))[0])
        start, choices = int(self._starts[branch]), self._branches[branch]
        where = "" if len(self._branches) == 1 else f" of branch {branch} (elements {start} to {start + choices - 1} of the flat mask)"
        return row, f"{self._source} allows none of the {choices} choices{where}; at least one has to be allowed while an episode goes on."

    def _copy(self, value: Any, out: np.ndarray) -> None:
        flat = None if _is_nested(value) else _numbers(value)
        if flat is not None and flat.shape == out.shape:
            out[...] = self._checked(flat)
        else:
            self._copy_part(self._space, (), value, out)

    def _copy_part(self, space: spaces.Space, path: tuple[int | str, ...], value: Any, out: np.ndarray) -> None:
        """Copy the mask of the part of the action at `path` into its columns of the whole."""
        if isinstance(space, (spaces.Tuple, spaces.Dict)):
            column = 0
            for key, inner in _inner_spaces(space):
                width = sum(_branches(inner))
                self._copy_part(inner, (*path, key), self._inner(space, path, value, key), out[..., column : column + width])
                column += width
        elif isinstance(space, spaces.Box):
            if value is not None:
                raise self._wrong("None for a Box, which has no choices", _described(value), path)
        elif value is None:
            out[...] = True
        else:
            self._copy_simple(space, path, value, out)

    def _inner(self, space: spaces.Tuple | spaces.Dict, path: tuple[int | str, ...], value: Any, key: int | str) -> Any:
        if value is None:
            return None
        if isinstance(space, spaces.Dict):
            if isinstance(value, Mapping) and (key in value or isinstance(space[key], spaces.Box)) and space.spaces.keys() >= value.keys():
                return value.get(key)
            expected = f"a dict with the keys {list(space.spaces)}"
        else:
            if isinstance(value, (tuple, list)) and len(value) == len(space.spaces):
                return value[key]
            expected = f"{len(space.spaces)} masks, nested as the action space is"
        alternative = f", or {self._width} values" if not path else ""
        raise self._wrong(expected + alternative, _described(value), path)

    def _copy_simple(self, space: spaces.Space, path: tuple[int | str, ...], value: Any, out: np.ndarray) -> None:
        branches, lead = _branches(space) if path else self._branches, out.shape[:-1]
        if _is_nested(value):
            masks = list(_flat_masks(value, 1 if isinstance(space, spaces.Discrete) else len(space.shape)))
            arrays = [_numbers(mask) for mask in masks]
            if [None if a is None else a.shape for a in arrays] == [(*lead, choices) for choices in branches]:
                out[...] = self._checked(np.concatenate(arrays, axis=-1))
                return
        else:
            array = _numbers(value)
            shapes = [out.shape]
            if len(set(branches)) == 1:
                shapes += [(*lead, len(branches), branches[0]), (*lead, *space.shape, branches[0])]
            if array is not None and array.shape in shapes:
                out[...] = self._checked(array).reshape(out.shape)
                return
        expected = f"{out.shape[-1]} values"
        if len(branches) > 1:
            expected += f", or one mask for each of the {len(branches)} branches, of {', '.join(map(str, branches))} values"
        raise self._wrong(expected + (f", for each of {lead[0]} agents" if lead else ""), _described(value), path)

    def _checked(self, mask: np.ndarray) -> np.ndarray:
        if mask.dtype == bool:
            return mask
        allowed = mask.astype(bool)
        if not (same := allowed == mask).all():
            index = tuple(int(i) for i in np.argwhere(~same)[0])
            raise self._wrong("only 0 (not allowed) and 1 (allowed)", f"{mask[index]} at index {list(index)}")
        return allowed

    def _wrong(self, expected: str, received: str, path: tuple[int | str, ...] = ()) -> ValueError:
        return ValueError(f"{self._source}{path_text(path)}: expected {expected}; received {received}.")


def _is_plain(mask: np.ndarray) -> bool:
    """Whether it holds bools, or integers that are 0 and 1."""
    return mask.dtype == bool or (mask.dtype.kind in "iu" and np.count_nonzero(mask == mask.astype(bool)) == mask.size)


def _inner_spaces(space: spaces.Tuple | spaces.Dict) -> Iterator[tuple[int | str, spaces.Space]]:
    yield from space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)


def _branches(space: spaces.Space) -> tuple[int, ...]:
    """Choices of every branch of a space, in the order of `envs.spaces.action_spec`."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(int(n) for n in space.nvec.flat)
    if isinstance(space, spaces.MultiBinary):
        return (2,) * int(np.prod(space.shape, dtype=np.int64))
    if isinstance(space, (spaces.Tuple, spaces.Dict)):
        return tuple(n for _, inner in _inner_spaces(space) for n in _branches(inner))
    return ()


def _flat_masks(value: Any, depth: int) -> Iterator[Any]:
    """The masks of the branches in a tuple or list that is nested at most `depth` deep."""
    for item in value:
        if depth > 1 and _is_nested(item):
            yield from _flat_masks(item, depth - 1)
        else:
            yield item


def _is_nested(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) > 0 and (
        isinstance(value[0], (tuple, list)) or (isinstance(value[0], np.ndarray) and value[0].ndim > 0)
    )


def _numbers(value: Any) -> np.ndarray | None:
    """`value` as an array of numbers, None where it is none."""
    if isinstance(value, Mapping):
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        return None
    return array if array.dtype.kind in "biuf" else None


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} ({value.dtype})"
    if isinstance(value, Mapping):
        return f"a dict with the keys {list(value)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}: {value!r:.100}"
    return f"{value!r:.100}"
