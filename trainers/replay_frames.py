"""What a frame of a replay buffer holds: an observation and the transition that starts there.

Letters: ``C``, ``B`` and ``W`` as in `envs.specs`, ``M`` the size of a recurrent policy's memory.
"""

from __future__ import annotations

import numpy as np

from envs.specs import BehaviorSpec, Observations

NONE = -1
"""In place of a frame number: nothing follows (yet)."""

Columns = dict[str, tuple[np.dtype, tuple[int, ...]]]
"""Name -> dtype and shape of what a frame holds under it."""


def observed_columns(spec: BehaviorSpec) -> Columns:
    """What belongs to the observation: each of its parts under ``obs/{name}``, and ``action_mask`` ``[W]`` where actions are masked."""
    columns = {f"obs/{o.name}": (np.dtype(o.dtype), o.shape) for o in spec.observations}
    if spec.action.masked:
        columns["action_mask"] = np.dtype(bool), (spec.action.choices,)
    return columns


def transition_columns(spec: BehaviorSpec, memory_size: int) -> Columns:
    """What belongs to the transition; ``memory`` ``[M]`` and ``step`` only where there is a memory."""
    columns: Columns = {
        "continuous": (np.dtype(np.float32), (spec.action.continuous_size,)),
        "discrete": (np.dtype(np.int32), (len(spec.action.discrete_branches),)),
        "reward": (np.dtype(np.float32), ()),
        "next": (np.dtype(np.int64), ()),  # number of the frame that follows
        "terminated": (np.dtype(bool), ()),
        "ended": (np.dtype(bool), ()),  # the episode is over with this transition: terminated or truncated
    }
    if memory_size:
        columns["memory"] = np.dtype(np.float32), (memory_size,)  # the policy's, before the step
        columns["step"] = np.dtype(np.int32), ()  # agent steps of the episode before this one
    return columns


def frame_columns(spec: BehaviorSpec, memory_size: int) -> Columns:
    """All that a frame holds."""
    return {**observed_columns(spec), **transition_columns(spec, memory_size)}


def observed(obs: Observations, action_mask: np.ndarray | None) -> dict[str, np.ndarray]:
    """Observations and masks under the names of `observed_columns`."""
    columns = {f"obs/{name}": x for name, x in obs.items()}
    return columns if action_mask is None else {**columns, "action_mask": action_mask}


def bitwise_equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """bool ``[n]``: rows of the same bits, so that NaN equals itself. Both ``[n, …]`` of one dtype, n at least 1."""
    a, b = (np.ascontiguousarray(x).reshape(len(x), -1).view(np.uint8) for x in (a, b))
    return (a == b).all(axis=1)
