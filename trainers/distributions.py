"""Action distributions in NumPy: a diagonal Gaussian and a categorical per discrete branch, with log-probs and entropies.

Letters: ``n`` rows (agents), ``C`` continuous dimensions, ``A`` choices of one branch. Everything is float32. Nothing here
loops over rows, and results do not depend on the other rows. Arrays ``[n, A]`` are handled fastest in Fortran order (one
choice of all rows side by side), because every reduction runs over the few choices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class DiagonalGaussian:
    """Independent normal distributions N(μ_c, σ_c²), one per dimension.

    Args:
        mean: float32 ``[n, C]``.
        log_std: float32 ``[C]``, log σ, the same in every row.
    """

    def __init__(self, mean: np.ndarray, log_std: np.ndarray):
        self.mean = mean
        self._std = np.exp(log_std)
        self._log_std_sum = float(log_std.sum())

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """A sample per row: float32 ``[n, C]``, in C order, not clipped to any bounds."""
        noise = rng.standard_normal(self.mean.shape, dtype=np.float32)
        noise *= self._std
        noise += self.mean
        return noise

    def mode(self) -> np.ndarray:
        """The most likely action: a copy of the mean, float32 ``[n, C]``."""
        return np.array(self.mean, order="C")

    def log_prob(self, action: np.ndarray) -> np.ndarray:
        """Log-density of the whole action: Σ_c −½((a_c − μ_c)/σ_c)² − log σ_c − ½ log 2π.

        Args:
            action: float32 ``[n, C]``: the sample itself. A clipped one has another density: importance ratios would be wrong.

        Returns:
            float32 ``[n]``.
        """
        z = action - self.mean
        z /= self._std
        z *= z
        log_prob = np.add.reduce(z, axis=1)
        log_prob *= -0.5
        log_prob -= self._log_std_sum + self.mean.shape[1] * HALF_LOG_2PI
        return log_prob

    def entropy(self) -> np.ndarray:
        """Joint differential entropy Σ_c ½ log 2πe + log σ_c (nats): float32 ``[n]``, the same in every row."""
        entropy = self._log_std_sum + self.mean.shape[1] * (0.5 + HALF_LOG_2PI)
        return np.full(len(self.mean), entropy, np.float32)


class Categorical:
    """One choice out of ``A``, p_a ∝ exp(logit_a) over the allowed choices; a masked choice has probability exactly 0.

    Args:
        logits: float32 ``[n, A]``.
        mask: bool ``[n, A]``, True = allowed; None allows everything.
        name: what messages call this part of the action.

    Raises:
        ValueError: the mask has another shape than the logits, or a row in which nothing is allowed.
    """

    def __init__(self, logits: np.ndarray, mask: np.ndarray | None = None, name: str = "branch 0"):
        if mask is not None:
            check_mask(mask, logits.shape, name)
            logits = np.where(mask, logits, np.float32(-np.inf))
        self._mask = mask
        # Shifting by the largest logit keeps exp() in range and leaves the distribution as it is.
        self._shifted = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
        self._unnormalized = np.exp(self._shifted)
        self._cumulative = np.add.accumulate(self._unnormalized, axis=1)
        self._total = self._cumulative[:, -1]
        self._log_total = np.log(self._total)

    @property
    def probs(self) -> np.ndarray:
        """float32 ``[n, A]``, each row sums to 1."""
        return self._unnormalized / self._total[:, None]

    @property
    def log_probs(self) -> np.ndarray:
        """float32 ``[n, A]``: log-softmax; -inf where masked."""
        return self._shifted - self._log_total[:, None]

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """A choice per row by the inverse of the cumulative distribution: int32 ``[n]``. One uniform number per row is drawn."""
        # u < 1 times the total stays below the total in float32 too, so neither a masked choice (which adds nothing to the
        # cumulative sum) nor one past the end can come out.
        threshold = rng.random(len(self._total), dtype=np.float32)
        threshold *= self._total
        return np.add.reduce(self._cumulative[:, :-1] <= threshold[:, None], axis=1, dtype=np.int32)

    def mode(self) -> np.ndarray:
        """The most likely choice, the first of equals: int32 ``[n]``."""
        return self._shifted.argmax(axis=1).astype(np.int32)

    def log_prob(self, choice: np.ndarray) -> np.ndarray:
        """Log-probability of a choice per row (int ``[n]``): float32 ``[n]``; -inf for a masked one."""
        return self._shifted[np.arange(len(choice)), choice] - self._log_total

    def entropy(self) -> np.ndarray:
        """−Σ_a p_a log p_a over the allowed choices (nats): float32 ``[n]``."""
        # Written as log Z − Σ e_a·z_a / Z with z ≤ 0 the shifted logits: no term is negative, so neither is the result.
        shifted = self._shifted if self._mask is None else np.where(self._mask, self._shifted, np.float32(0.0))
        weighted = np.add.reduce(self._unnormalized * shifted, axis=1)
        weighted /= self._total
        return self._log_total - weighted


def check_mask(mask: np.ndarray, shape: tuple[int, ...], name: str) -> None:
    """Refuse the action mask of a branch if it has the wrong shape or dtype, or leaves a row without any action.

    Raises:
        ValueError: names the rows in which nothing is allowed.
    """
    if mask.shape != shape or mask.dtype != np.bool_:
        raise ValueError(f"Expected an action mask of {name} bool {list(shape)}, received {mask.dtype} {list(mask.shape)}.")
    blocked = np.flatnonzero(~mask.any(axis=1))
    if len(blocked):
        raise ValueError(
            f"Expected at least one allowed action per row of the action mask of {name}, received none in {len(blocked)} of "
            f"{len(mask)} rows (first rows: {blocked[:5].tolist()}). The environment must leave every agent a choice."
        )


def joint(parts: Iterable[np.ndarray], n: int) -> np.ndarray:
    """Sum over the independent parts of an action (continuous part, branches) of log-probs or entropies.

    The log-probability of independent choices made together is the sum of theirs; so is the entropy.

    Args:
        parts: float32 ``[n]`` each.

    Returns:
        float32 ``[n]``; zeros without parts.
    """
    total = np.zeros(n, np.float32)
    for part in parts:
        total += part
    return total
