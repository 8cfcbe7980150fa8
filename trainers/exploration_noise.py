"""Noise matrices of generalized state-dependent exploration, one per agent.

Letters: ``n`` agents of one call, ``F`` features on which the actor's heads stand, ``C`` continuous dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainers.agent_slots import check_slots, with_room

VARIANCE_FLOOR = 1e-6
"""Added to the variance of u: features that are all 0 leave a density, not a point."""

_FLOOR, _HALF = np.float32(VARIANCE_FLOOR), np.float32(0.5)


def marginal_log_std(features: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """½ log(z²·σ² + 1e-6): log standard deviation of u over all ε, whose distribution N(μ, z²·σ²) is Gaussian given z.

    Source: Raffin, Kober & Stulp 2021, https://arxiv.org/abs/2005.05719, section 2 (the floor as in Stable-Baselines3).

    Args:
        features: z, float32 ``[n, F]``.
        variance: σ² transposed, float32 ``[C, F]``.

    Returns:
        float32 ``[n, C]``, in Fortran order.
    """
    log_std = np.matmul(variance, np.square(features).T)
    log_std += _FLOOR
    np.log(log_std, out=log_std)
    log_std *= _HALF
    return log_std.T


class ExplorationNoise:
    """ε of each agent: standard normal ``[F, C]``, the same from step to step until it is drawn anew.

    The exploration of an agent is then a function of what it observes, u − μ = z·(ε ⊙ σ), and smooth over an episode where
    independent noise at each step would shake. ε does not depend on σ, so new weights change the scale of an agent's exploration
    but not its direction.

    Source: Raffin, Kober & Stulp 2021, https://arxiv.org/abs/2005.05719, section 3 (features of the policy's last layer, ε
    drawn every n steps).

    Args:
        features: F.
        size: C.
        steps: decisions of one agent that one ε serves; None for a whole episode.
    """

    def __init__(self, features: int, size: int, steps: int | None):
        if steps is not None and steps < 1:
            raise ValueError(f"Expected noise_steps to be at least 1 decision or None (one draw per episode), received {steps}.")
        self._steps = steps
        self._noise = np.empty((0, size, features), np.float32)  # [slot, C, F]: products along the last axis
        self._left = np.empty(0, np.int64)  # decisions that the slot's ε still serves; 0 before the first draw

    def advance(self, agent_id: np.ndarray, first: np.ndarray | None, n: int, rng: np.random.Generator) -> None:
        """Count one decision of each agent, and draw ε anew for those whose episode begins or whose ε has served its time.

        Args:
            agent_id: int64 ``[n]``, slots of different agents; the table grows with the largest.
            first: bool ``[n]``, the agent's first decision of an episode; None: of no agent.
            rng: one matrix per drawn ε is taken from it, in the order of the rows.

        Raises:
            ValueError: an array of another shape or dtype, or a negative slot.
        """
        check_slots(agent_id, first, n)
        if n == 0:
            return
        self._noise, self._left = with_room(self._noise, agent_id), with_room(self._left, agent_id)
        left = self._left[agent_id]
        due = left == 0
        if first is not None:
            due |= first
        if due.any():
            drawn = agent_id[due]
            self._noise[drawn] = rng.standard_normal((len(drawn), *self._noise.shape[1:]), dtype=np.float32)
            left[due] = self._steps or 1
        if self._steps is not None:
            left -= 1
        self._left[agent_id] = left

    def state(self) -> dict[str, np.ndarray]:
        """Copies of the noise of all agents, and how long it serves them yet."""
        return {"noise": self._noise.copy(), "noise_left": self._left.copy()}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from `state`."""
        self._noise, self._left = state["noise"].copy(), state["noise_left"].copy()

    def displacement(self, features: np.ndarray, std: np.ndarray, agent_id: np.ndarray) -> np.ndarray:
        """u − μ = z·(ε ⊙ σ) of each agent with its ε; changes nothing.

        Args:
            features: z, float32 ``[n, F]``.
            std: σ transposed, float32 ``[C, F]``.
            agent_id: int64 ``[n]``, slots for which `advance` was called before.

        Returns:
            float32 ``[n, C]``, a fresh array in C order.
        """
        scaled = self._noise[agent_id]
        scaled *= std
        return np.matmul(scaled, features[:, :, None])[:, :, 0]
