"""From the environment's actions back to policy space, for recordings of others; the inverse of `envs.specs.to_env_actions`."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.specs import ActionPart, Actions, ActionSpec, path_text


def to_policy_actions(spec: ActionSpec, env_actions: Any, n: int) -> Actions:
    """Actions of `n` agents in policy space. What lies outside of a Box is clipped to its bounds, as the environment would.

    Args:
        env_actions: as Gymnasium batches them: an array ``[n, *spec.shape]``, or for ``"hybrid"`` the tuples and dicts of the space with
            such arrays in them.

    Raises:
        ValueError: another structure or shape, not finite, or no choice of its branch; says which part.
    """
    continuous, discrete = [np.empty((n, 0), np.float32)], [np.empty((n, 0), np.int32)]
    for part in spec.parts or (ActionPart((), spec),):
        array = _part(env_actions, part, n)
        if part.action.kind == "box":
            continuous.append(_unit(part.action, array))
        else:
            discrete.append(_choices(part, array))
    return Actions(np.concatenate(continuous, axis=1), np.concatenate(discrete, axis=1))


def _part(value: Any, part: ActionPart, n: int) -> np.ndarray:
    """The array of a simple space, flattened to ``[n, size]``."""
    try:
        for key in part.path:
            value = value[key]
        array = np.asarray(value)
        finite = bool(np.isfinite(array).all())
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"expected actions with a part at action{path_text(part.path)}, received {type(value).__name__} ({error})") from None
    if array.shape != (n, *part.action.shape):
        raise ValueError(f"expected action{path_text(part.path)} of shape {[n, *part.action.shape]}, received {list(array.shape)}")
    if not finite:
        raise ValueError(f"expected finite numbers in action{path_text(part.path)}, received {array[~np.isfinite(array)][0]}")
    return array.reshape(n, -1)


def _unit(spec: ActionSpec, array: np.ndarray) -> np.ndarray:
    low, high = np.asarray(spec.low, np.float64), np.asarray(spec.high, np.float64)
    width = np.where(high > low, high - low, 1.0)
    unit = np.where(high > low, (array.astype(np.float64) - low) / width * 2.0 - 1.0, 0.0)
    return np.clip(unit, -1.0, 1.0).astype(np.float32)


def _choices(part: ActionPart, array: np.ndarray) -> np.ndarray:
    choices = array.astype(np.int64) - np.asarray(part.action.starts, np.int64)
    outside = (choices < 0) | (choices >= np.asarray(part.action.discrete_branches, np.int64))
    if outside.any():
        row, branch = (int(i) for i in np.argwhere(outside)[0])
        first = part.action.starts[branch]
        raise ValueError(f"expected action{path_text(part.path)} from {first} to {first + part.action.discrete_branches[branch] - 1} in element "
                         f"{branch}, received {array[row, branch]} in row {row}")
    return choices.astype(np.int32)
