"""Advantages and value targets over flat, ragged trajectories.

Letters: ``N`` rows, ``K`` trajectories. The rows of a trajectory are consecutive (see `trainers.trajectory`).
"""

from __future__ import annotations

import numpy as np


def generalized_advantages(
    reward: np.ndarray,
    value: np.ndarray,
    length: np.ndarray,
    terminated: np.ndarray,
    bootstrap: np.ndarray,
    gamma: float,
    gae_lambda: float,
    ignore_terminated: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Generalised advantage estimates and λ-returns of every row.

    δ_t = r_t + γ V(s_{t+1}) − V(s_t);  A_t = Σ_{l ≥ 0} (γλ)^l δ_{t+l}, up to the trajectory's end;  target_t = A_t + V(s_t).

    The last row of a trajectory takes V(s_{t+1}) = `bootstrap`, whether it was truncated or cut at the horizon, and 0 where it
    was terminated; terminated wins when an episode was truncated on the same step. Every kind of end stops the sum.

    Source: Schulman et al. 2016, https://arxiv.org/abs/1506.02438, eq. 16 (δ from eq. 10), with the sum over the rows there are.
    Sums run in float64: the targets of a long trajectory with γ near 1 are much larger than one reward.

    Args:
        reward: float32 ``[N]``, received after the action at t.
        value: float32 ``[N]``, V(s_t).
        length: int ``[K]``, rows of each trajectory, at least 1.
        terminated: bool ``[K]``, the task ended with the last row. Whether it was truncated makes no difference here.
        bootstrap: float32 ``[K]``, V of the true observation after the last row; not used where terminated.
        gamma: discount per agent step.
        gae_lambda: λ; 0 gives one-step TD errors, 1 gives discounted returns minus values.
        ignore_terminated: bootstrap after terminated rows too: for intrinsic rewards, which do not end with an episode
            (Burda et al. 2019, https://arxiv.org/abs/1810.12894, section 2.3). The sum still stops there.

    Returns:
        Advantages and value targets, float32 ``[N]`` each.

    Raises:
        ValueError: shapes do not agree, or a trajectory without rows.
    """
    last = _check_shapes(reward, value, length, terminated, bootstrap)
    v = value.astype(np.float64)
    v_next = np.empty_like(v)
    v_next[:-1] = v[1:]
    v_next[last] = bootstrap if ignore_terminated else np.where(terminated, 0.0, bootstrap)
    # δ_t at first; the loop below adds what follows, and then it holds A_t.
    advantage = reward + gamma * v_next - v
    # Longest first: the trajectories that still have a row s steps before their end are then the first `active` ones.
    order = np.argsort(-np.asarray(length, np.int64), kind="stable")
    ends, descending = last[order], np.asarray(length, np.int64)[order]
    for s in range(1, int(descending[0]) if len(descending) else 0):
        active = int(np.searchsorted(-descending, -s))
        rows = ends[:active] - s
        advantage[rows] += gamma * gae_lambda * advantage[rows + 1]
    return advantage.astype(np.float32), (advantage + v).astype(np.float32)


def _check_shapes(
    reward: np.ndarray, value: np.ndarray, length: np.ndarray, terminated: np.ndarray, bootstrap: np.ndarray
) -> np.ndarray:
    """The last row of each trajectory, int64 ``[K]``."""
    if reward.ndim != 1 or value.shape != reward.shape:
        raise ValueError(f"Expected reward and value of one shape [N], received {list(reward.shape)} and {list(value.shape)}.")
    if length.ndim != 1 or terminated.shape != length.shape or bootstrap.shape != length.shape:
        shapes = [list(x.shape) for x in (length, terminated, bootstrap)]
        raise ValueError(f"Expected length, terminated and bootstrap of one shape [K], received {shapes}.")
    end = np.cumsum(length, dtype=np.int64)
    rows = int(end[-1]) if len(end) else 0
    if rows != len(reward) or (len(length) and int(length.min()) < 1):
        raise ValueError(
            f"Expected trajectories of at least one row that add up to {len(reward)} rows, received lengths that add up to {rows}"
            + (f", the shortest {int(length.min())}." if len(length) else " (no trajectory).")
        )
    return end - 1


def normalize_advantages(advantage: np.ndarray) -> np.ndarray:
    """(A − mean)/(std + 1e-8) over all rows given, with the population standard deviation (divided by N, not N − 1).

    Give it real rows only, never padding. A single row has no spread and is returned as it is; equal rows become 0.

    Args:
        advantage: float32 ``[N]``.

    Returns:
        float32 ``[N]``.
    """
    if advantage.size <= 1:
        return advantage
    a = advantage.astype(np.float64)
    return ((a - a.mean()) / (a.std() + 1e-8)).astype(np.float32)


def explained_variance(prediction: np.ndarray, target: np.ndarray) -> float | None:
    """1 − Var(target − prediction)/Var(target): 1 is a perfect prediction, 0 one no better than a constant, below 0 worse.

    Args:
        prediction, target: float32 ``[N]``.

    Returns:
        None where the targets do not vary (or there are none): the ratio is undefined, and a statistic is better left out.
    """
    y = np.asarray(target, np.float64)
    if y.size == 0 or y.min() == y.max():
        return None
    return float(1.0 - (y - np.asarray(prediction, np.float64)).var() / y.var())
