"""Action distributions in NumPy: a diagonal Gaussian, squashed or not, and a categorical per discrete branch.

Letters: ``n`` rows (agents), ``C`` continuous dimensions, ``A`` choices of one branch. Everything is float32. Nothing here
loops over rows, and results do not depend on the other rows. Arrays ``[n, A]`` are handled fastest in Fortran order (one
choice of all rows side by side), because every reduction runs over the few choices; where they are many it is C order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
LOG_2 = math.log(2.0)
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
"""Range of a log σ that a network puts out: a smaller σ is lost when added to a mean in float32, a larger one only saturates."""

WIDE = 512
"""Choices of one branch from which on `Categorical` works in blocks."""
BLOCK = 64
"""Choices in one block."""

# Ready-made float32 numbers: converting a Python number costs as much as the arithmetic on a few rows.
_ZERO, _MINUS_HALF, _QUARTER, _TWO = (np.float32(x) for x in (0.0, -0.5, 0.25, 2.0))
_FLOOR, _CEILING = np.float32(LOG_STD_MIN), np.float32(LOG_STD_MAX)
_LOG_ALLOWED = np.array([-np.inf, 0.0], np.float32)  # log 0 and log 1


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
        self._minus_log_peak = np.float32(self._log_std_sum + len(log_std) * HALF_LOG_2PI)

    def around(self, mean: np.ndarray) -> DiagonalGaussian:
        """The same σ around other means, float32 ``[n, C]``: what is computed from σ alone is kept."""
        moved = DiagonalGaussian.__new__(DiagonalGaussian)
        moved.mean, moved._std = mean, self._std
        moved._log_std_sum, moved._minus_log_peak = self._log_std_sum, self._minus_log_peak
        return moved

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """A sample per row: float32 ``[n, C]``, in C order, not clipped to any bounds."""
        return _normal(self.mean, self._std, rng)

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
        log_prob *= _MINUS_HALF
        log_prob -= self._minus_log_peak
        return log_prob

    def entropy(self) -> np.ndarray:
        """Joint differential entropy Σ_c ½ log 2πe + log σ_c (nats): float32 ``[n]``, the same in every row."""
        entropy = self._log_std_sum + self.mean.shape[1] * (0.5 + HALF_LOG_2PI)
        return np.full(len(self.mean), entropy, np.float32)


class SquashedGaussian:
    """tanh(u) with u_c ~ N(μ_c, σ_c²) independent: an action inside (-1, 1), or at ±1 by rounding.

    Everything is written in u, since tanh(u) rounds to ±1 from |u| = 9 on and u could not be found from it.

    Source: Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, appendix C.

    Args:
        mean: float32 ``[n, C]``.
        log_std: float32 ``[n, C]``, log σ, used as it is (see `clip_log_std`).
    """

    def __init__(self, mean: np.ndarray, log_std: np.ndarray):
        self.mean = mean
        self._log_std = log_std
        self._std = np.exp(log_std)
        self._constant = np.float32(mean.shape[1] * (HALF_LOG_2PI + 2.0 * LOG_2))

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """A u per row, before the tanh: float32 ``[n, C]``, in C order."""
        return _normal(self.mean, self._std, rng)

    def mode(self) -> np.ndarray:
        """The u of the deterministic action: a copy of the mean, float32 ``[n, C]``.

        tanh(μ) is the median of the action, not the peak of its density (which for a wide σ lies at the bounds).
        """
        return np.array(self.mean, order="C")

    def log_prob(self, u: np.ndarray) -> np.ndarray:
        """Log-density of the action a = tanh(u) over [-1, 1]^C: Σ_c log N(u_c; μ_c, σ_c²) − log(1 − tanh²u_c).

        log(1 − tanh²u) = 2(log 2 − u − softplus(−2u)) = 2(log 2 − log(e^u + e^−u)), which is right where 1 − tanh²u rounds to 0.

        Args:
            u: float32 ``[n, C]``, before the tanh.

        Returns:
            float32 ``[n]``, finite for every finite u; not bounded above (the action's density is not).
        """
        z = u - self.mean
        z /= self._std
        z *= z
        z *= _QUARTER
        half = np.logaddexp(u, -u)
        half -= z
        log_prob = np.add.reduce(half, axis=1)
        log_prob *= _TWO
        log_prob -= np.add.reduce(self._log_std, axis=1)
        log_prob -= self._constant
        return log_prob


def clip_log_std(log_std: np.ndarray) -> np.ndarray:
    """Log σ within [`LOG_STD_MIN`, `LOG_STD_MAX`]: changes `log_std` (float32, any shape) itself and returns it."""
    np.maximum(log_std, _FLOOR, out=log_std)
    return np.minimum(log_std, _CEILING, out=log_std)


def _normal(mean: np.ndarray, std: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """μ + σ·noise, float32 of the shape of `mean`, in C order."""
    noise = rng.standard_normal(mean.shape, dtype=np.float32)
    noise *= std
    noise += mean
    return noise


class Categorical:
    """One choice out of ``A``, p_a ∝ exp(logit_a) over the allowed choices; a masked choice has probability exactly 0.

    From `WIDE` choices on sums are made block by block, in float64: a running float32 sum of thousands would lose
    the rare choices (and run one number after another).

    Args:
        logits: float32 ``[n, A]``.
        mask: bool ``[n, A]``, True = allowed; None allows everything.
        name: what messages call this part of the action.

    Raises:
        ValueError: the mask has another shape than the logits, or a row in which nothing is allowed.
    """

    def __init__(self, logits: np.ndarray, mask: np.ndarray | None = None, name: str = "branch 0"):
        self._is_wide = logits.shape[1] >= WIDE
        if self._is_wide:
            logits = np.ascontiguousarray(logits)
        if mask is not None:
            check_mask(mask, logits.shape, name)
            if self._is_wide:  # a quarter of the time of `where`, which branches for each number
                logits = logits + _LOG_ALLOWED.take(mask.view(np.uint8), mode="clip")
            else:
                logits = np.where(mask, logits, _LOG_ALLOWED[0])
        self._mask = mask
        # Shifting by the largest logit keeps exp() in range and leaves the distribution as it is.
        self._shifted = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
        if self._is_wide:
            self._sum_blocks()
        else:
            self._unnormalized = np.exp(self._shifted)
            self._cumulative = np.add.accumulate(self._unnormalized, axis=1)
            self._total = self._cumulative[:, -1]
            self._log_total = np.log(self._total)

    def _sum_blocks(self) -> None:
        """Where wide: ``[n, blocks, BLOCK]`` unnormalised probabilities, 0 behind the last choice, and the cumulative sum of the blocks."""
        n, choices = self._shifted.shape
        self._blocks = np.zeros((n, -(-choices // BLOCK), BLOCK), np.float32)
        self._unnormalized = self._blocks.reshape(n, -1)[:, :choices]
        np.exp(self._shifted, out=self._unnormalized)
        self._cumulative = np.zeros((n, self._blocks.shape[1] + 1))  # begins with 0
        np.add.accumulate(np.add.reduce(self._blocks, axis=2, dtype=np.float64), axis=1, out=self._cumulative[:, 1:])
        total = self._cumulative[:, -1]
        self._total, self._log_total = total.astype(np.float32), np.log(total).astype(np.float32)

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
        if self._is_wide:
            return self._sample_blocks(rng)
        # u < 1 times the total stays below the total in float32 too, so neither a masked choice (which adds nothing to the
        # cumulative sum) nor one past the end can come out.
        threshold = rng.random(len(self._total), dtype=np.float32)
        threshold *= self._total
        return np.add.reduce(self._cumulative[:, :-1] <= threshold[:, None], axis=1, dtype=np.int32)

    def _sample_blocks(self, rng: np.random.Generator) -> np.ndarray:
        """First the block, then the choice in it, with one float64 threshold."""
        threshold = (rng.random(len(self._cumulative)) * self._cumulative[:, -1])[:, None]
        block = (self._cumulative[:, 1:] > threshold).argmax(axis=1)
        rows = np.arange(len(block))
        inside = self._blocks[rows, block]
        reached = np.add.accumulate(inside, axis=1, dtype=np.float64)
        reached += self._cumulative[rows, block][:, None]
        choice = np.add.reduce(reached <= threshold, axis=1, dtype=np.int64)
        # The same numbers summed in another order: at the very end of the block the threshold may not be reached. The last choice
        # with any probability is meant.
        np.minimum(choice, BLOCK - 1 - (inside[:, ::-1] > _ZERO).argmax(axis=1), out=choice)
        choice += block * BLOCK
        return choice.astype(np.int32)

    def mode(self) -> np.ndarray:
        """The most likely choice, the first of equals: int32 ``[n]``."""
        return self._shifted.argmax(axis=1).astype(np.int32)

    def log_prob(self, choice: np.ndarray) -> np.ndarray:
        """Log-probability of a choice per row (int ``[n]``): float32 ``[n]``; -inf for a masked one."""
        return self._shifted[np.arange(len(choice)), choice] - self._log_total

    def entropy(self) -> np.ndarray:
        """−Σ_a p_a log p_a over the allowed choices (nats): float32 ``[n]``."""
        # Written as log Z − Σ e_a·z_a / Z with z ≤ 0 the shifted logits: no term is negative, so neither is the result.
        shifted = self._shifted if self._mask is None else np.where(self._mask, self._shifted, _ZERO)
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


def joint(parts: Sequence[np.ndarray], n: int) -> np.ndarray:
    """Sum over the independent parts of an action (continuous part, branches) of log-probs or entropies.

    The log-probability of independent choices made together is the sum of theirs; so is the entropy.

    Args:
        parts: float32 ``[n]`` each.

    Returns:
        float32 ``[n]``; zeros without parts, the part itself where there is only one.
    """
    if len(parts) == 1:
        return parts[0]
    total = np.zeros(n, np.float32)
    for part in parts:
        total += part
    return total
