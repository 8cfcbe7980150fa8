"""Trajectories as flat arrays: many trajectories of one behavior, rows one after another.

Letters: ``N`` rows (agent steps), ``K`` trajectories, ``E`` finished episodes, ``C`` and ``B`` as in `envs.specs`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from envs.specs import BehaviorSpec, Observations


@dataclass(slots=True)
class TrajectoryBatch:
    """Trajectories of one behavior, ready to be learnt from. Row ``t`` is (observation, action) at ``t`` and the reward that followed.

    A trajectory is consecutive steps of one agent within one episode. It ends by `terminated` (the task ended: no
    bootstrap), by `truncated` (we stopped watching) or, with neither set, by a horizon cut; the last two bootstrap from `next_obs`.

    Attributes:
        obs: name -> ``[N, *shape]`` in the space's dtype.
        continuous: float32 ``[N, C]``, policy-space sample, not clipped.
        discrete: int32 ``[N, B]``.
        log_prob: float32 ``[N]``, joint log-probability (density) of the action when it was taken.
        reward: float32 ``[N]``, environment reward.
        version: int64 ``[N]``, policy version that acted.
        action_mask: bool ``[N, sum of branches]``, True = allowed; None when nothing was masked.
        length: int32 ``[K]``, rows of each trajectory, in the order of the rows.
        next_obs: name -> ``[K, *shape]``, the true observation after each trajectory's last row.
        terminated, truncated: bool ``[K]``.
        agent_id: int64 ``[K]``, slot within its env manager.
        episode_id: int64 ``[K]``, unique within its env manager.
        episode_return, episode_length: float64 and int64 ``[E]``, of the episodes that ended in this batch, in the order of their end.
    """

    obs: Observations
    continuous: np.ndarray
    discrete: np.ndarray
    log_prob: np.ndarray
    reward: np.ndarray
    version: np.ndarray
    action_mask: np.ndarray | None
    length: np.ndarray
    next_obs: Observations
    terminated: np.ndarray
    truncated: np.ndarray
    agent_id: np.ndarray
    episode_id: np.ndarray
    episode_return: np.ndarray
    episode_length: np.ndarray

    @property
    def rows(self) -> int:
        """N, in agent steps."""
        return len(self.reward)

    @property
    def starts(self) -> np.ndarray:
        """int64 ``[K]``: first row of each trajectory."""
        return np.cumsum(self.length, dtype=np.int64) - self.length


def empty_batch(spec: BehaviorSpec) -> TrajectoryBatch:
    """A batch without rows, trajectories or episodes, with the dtypes and shapes of `spec`."""
    def nothing(dtype: str, *shape: int) -> np.ndarray:
        return np.empty((0, *shape), dtype)

    return TrajectoryBatch(
        obs={o.name: nothing(o.dtype, *o.shape) for o in spec.observations},
        continuous=nothing("float32", spec.action.continuous_size),
        discrete=nothing("int32", len(spec.action.discrete_branches)),
        log_prob=nothing("float32"), reward=nothing("float32"), version=nothing("int64"), action_mask=None,
        length=nothing("int32"),
        next_obs={o.name: nothing(o.dtype, *o.shape) for o in spec.observations},
        terminated=nothing("bool"), truncated=nothing("bool"), agent_id=nothing("int64"), episode_id=nothing("int64"),
        episode_return=nothing("float64"), episode_length=nothing("int64"),
    )


def concatenate(batches: list[TrajectoryBatch]) -> TrajectoryBatch:
    """All trajectories of `batches` in one batch, in order. A single batch is returned as it is, not copied.

    Raises:
        ValueError: no batch given.
    """
    if not batches:
        raise ValueError("concatenate() needs at least one TrajectoryBatch, received none.")
    if len(batches) == 1:
        return batches[0]
    joined = {}
    for f in fields(TrajectoryBatch):
        parts = [getattr(b, f.name) for b in batches]
        if isinstance(parts[0], dict):
            joined[f.name] = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
        elif f.name == "action_mask":
            joined[f.name] = None if all(p is None for p in parts) else np.concatenate(parts)
        else:
            joined[f.name] = np.concatenate(parts)
    return TrajectoryBatch(**joined)
