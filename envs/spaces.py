"""Gymnasium spaces as specs.

What is decided here:
- Every simple space inside a Dict or Tuple is an observation of its own, in the order of the space (Gymnasium sorts the keys
  of a Dict). Its name is its path joined by ``/``; a space that is neither Dict nor Tuple is called ``"obs"``.
- A Box is an **image** if it has 2, 3 or 4 axes, dtype uint8 and the bounds 0 and 255 everywhere (with 2 axes: both of at
  least `SMALLEST_SIDE`), or if it has 3 axes, any other integer or float dtype or bounds, and two sides of at least
  `SMALLEST_SIDE`: all axes but the shorter of the first and the last, which holds the channels. Any other Box is a vector.
- Discrete and MultiDiscrete are categorical and stored as the environment gives them, ``start`` included. MultiBinary and a
  Box of bools are binary.
- A Box of float64 (or wider) is stored as float32: networks compute in float32, and it halves memory and traffic. Every other
  dtype is kept, so pixels stay uint8.
- A space of rank 0 is delivered as one element.
- Text (the instructions of some worlds) inside a Dict or Tuple is left out, and said to be so: networks do not take it in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from gymnasium import spaces

from envs.masks import MASK_KEY, has_mask_key
from envs.specs import ActionPart, ActionSpec, BehaviorSpec, ObservationSpec, hybrid_action, path_text

SUPPORTED_OBSERVATIONS = (
    "Box of any rank with an integer, float or bool dtype, Discrete, MultiDiscrete, MultiBinary, and Tuple and Dict of these")
SUPPORTED_ACTIONS = "Box with finite bounds, Discrete, MultiDiscrete, MultiBinary, and Tuple and Dict of these"
SMALLEST_SIDE = 15
"""Pixels; a Box with shorter sides is no image unless it has three axes and is uint8 from 0 to 255. The smallest that ``resnet`` takes."""
EXACT_INTEGER = 2**53
"""Whole numbers up to here survive the float64 arithmetic of `envs.specs.to_env_actions`."""


def behavior_spec(
    observation_space: spaces.Space | None, action_space: spaces.Space | None, env: str, masked: bool = False
) -> BehaviorSpec:
    """Spec of the one behavior of a single-agent environment.

    Args:
        observation_space, action_space: of one agent; None where the environment has none.
        env: name of the environment, for messages.
        masked: masks come from a method or from ``info``; a key of the observation space is noticed here. Without a discrete
            branch there is nothing to mask, whatever the environment gives.

    Raises:
        ValueError: a space is missing or not supported; names it, its place and what is supported.
    """
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        if space is None:
            raise ValueError(f"{env}: the environment has no {name}; set it in its constructor or class to a gymnasium.spaces.Space.")
    action = action_spec(action_space, env)
    if action.discrete_branches and (masked or has_mask_key(observation_space)):
        action = replace(action, masked=True)
    return BehaviorSpec(observation_specs(observation_space, env), action, left_out=tuple(_text_in(observation_space, ())))


def observation_specs(space: spaces.Space, env: str) -> tuple[ObservationSpec, ...]:
    """Spec of every observation in the space of one agent. The key `MASK_KEY` at the top of a Dict is none.

    Raises:
        ValueError: the space, or one inside it, is not supported, or two would have the same name; says which.
    """
    specs = tuple(_observation_specs(space, (), env))
    if not specs:
        raise ValueError(f"{env}: the observation space has nothing but text or the key {MASK_KEY!r}; a policy needs an observation.")
    counts = Counter(spec.name for spec in specs)
    for name, count in counts.items():
        if count > 1:
            paths = " and ".join(path_text(spec.path) for spec in specs if spec.name == name)
            raise ValueError(f"{env}: the observation space has {count} parts called {name!r}, at {paths}; rename one (avoid '/' in keys).")
    return specs


def _observation_specs(space: spaces.Space, path: tuple[int | str, ...], env: str) -> Iterator[ObservationSpec]:
    if isinstance(space, (spaces.Tuple, spaces.Dict)):
        for key, inner in _items(space, f"{env}: {_at('observation', path)}"):
            if (path or key != MASK_KEY) and not is_text(inner):
                yield from _observation_specs(inner, (*path, key), env)
    else:
        yield _observation_spec(space, path, env)


def is_text(space: spaces.Space) -> bool:
    """Whether the values of a simple space are text: `gymnasium.spaces.Text`, and spaces of other libraries that are like it."""
    return isinstance(space, spaces.Text) or (space.dtype is not None and np.dtype(space.dtype).kind == "U")


def _text_in(space: spaces.Space, path: tuple[int | str, ...]) -> Iterator[str]:
    """Names of the parts of a Dict or Tuple that are text."""
    if isinstance(space, (spaces.Tuple, spaces.Dict)):
        for key, inner in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            yield from ["/".join(map(str, (*path, key)))] if is_text(inner) else _text_in(inner, (*path, key))


def _observation_spec(space: spaces.Space, path: tuple[int | str, ...], env: str) -> ObservationSpec:
    """Spec of a simple space."""
    name = "/".join(map(str, path)) or "obs"
    if isinstance(space, spaces.Discrete):
        return ObservationSpec(name, (1,), space.dtype.name, "categorical", path, (int(space.n),), (int(space.start),))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.size:
        return ObservationSpec(name, space.shape, space.dtype.name, "categorical", path, tuple(int(n) for n in space.nvec.flat),
                               tuple(int(s) for s in space.start.flat))
    if isinstance(space, spaces.MultiBinary):
        return ObservationSpec(name, space.shape, space.dtype.name, "binary", path)
    if isinstance(space, spaces.Box) and space.dtype.kind in "biuf":
        shape = space.shape or (1,)
        if 0 in shape:
            raise ValueError(f"{env}: {_at('observation', path)} is {space}, which has no elements; leave it out.")
        if space.dtype.kind == "b":
            return ObservationSpec(name, shape, "bool", "binary", path)
        dtype = "float32" if space.dtype.kind == "f" and space.dtype.itemsize > 4 else space.dtype.name
        is_uint8_image = _is_uint8_image(space)
        kind = "image" if is_uint8_image or _is_other_image(space) else "vector"
        return ObservationSpec(name, shape, dtype, kind, path, is_uint8_image=is_uint8_image)
    raise ValueError(f"{env}: {_at('observation', path)} is {space}; supported are: {SUPPORTED_OBSERVATIONS}.")


def _is_uint8_image(space: spaces.Box) -> bool:
    is_picture = len(space.shape) in (3, 4) or (len(space.shape) == 2 and min(space.shape) >= SMALLEST_SIDE)
    return is_picture and space.dtype == np.uint8 and bool((space.low == 0).all() and (space.high == 255).all())


def _is_other_image(space: spaces.Box) -> bool:
    if len(space.shape) != 3:
        return False
    first, middle, last = space.shape
    return min(middle, max(first, last)) >= SMALLEST_SIDE


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
    raise ValueError(f"{env}: {_at('action', path)} is {space}; supported are: {SUPPORTED_ACTIONS}.")


def _parts(space: spaces.Tuple | spaces.Dict, path: tuple[int | str, ...], env: str) -> Iterator[ActionPart]:
    """The simple spaces inside `space`, which is at `path` of the whole action space."""
    for key, inner in _items(space, f"{env}: {_at('action', path)}"):
        spec = _action_spec(inner, (*path, key), env)
        yield from spec.parts or (ActionPart((*path, key), spec),)


def _items(space: spaces.Tuple | spaces.Dict, place: str) -> list[tuple[int | str, spaces.Space]]:
    """(position or key, space inside) of a Tuple or Dict; `place` says in messages which one it is."""
    items = list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))
    if not items:
        raise ValueError(f"{place} is an empty {type(space).__name__}; give it a space, or leave it out.")
    for key, _ in items:
        if isinstance(space, spaces.Dict) and not isinstance(key, str):
            raise ValueError(f"{place} is a Dict with the key {key!r}; expected text as keys.")  # noqa: TRY004 - a wrong configuration
    return items


def _at(which: str, path: tuple[int | str, ...]) -> str:
    return f"the {which} space" + (f" at {path_text(path)}" if path else "")


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
            f"{env}: {_at('action', path)} is {space}, whose bounds at index {list(index)} are low={space.low[index]}, "
            f"high={space.high[index]}; policies act in [-1, 1] and are mapped to finite bounds. Give the Box finite bounds, "
            "for example with gymnasium.wrappers.RescaleAction or in the environment's own action_space."
        )
