"""Interquartile means and their 95 % intervals, as rliable has them, by SciPy (extra ``results``).

Source: Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice, https://arxiv.org/abs/2108.13264.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import bootstrap, trim_mean

RESAMPLES = 10_000
LEVEL = 0.95
CUT = 0.25
"""Share of the runs left out at either end; of less than four runs none is, and it is the mean."""


@dataclass(frozen=True)
class Estimate:
    """An interquartile mean of `count` values and its interval; None for both bounds with less than two values."""

    value: float
    low: float | None
    high: float | None
    count: int

    def show(self, decimals: int) -> str:
        """``"498.2 [495.0, 500.0]"``."""
        text = f"{self.value:,.{decimals}f}"
        return text if self.low is None else f"{text} [{self.low:,.{decimals}f}, {self.high:,.{decimals}f}]"


def iqm(values: Sequence[float]) -> Estimate:
    """Of the runs of one cell, one value each.

    Raises:
        ValueError: there are none.
    """
    if not len(values):
        raise ValueError("Expected at least one value, received none.")
    return _estimate([np.asarray(values, float)], lambda sample, axis=-1: trim_mean(sample, CUT, axis=axis))


def share(tasks: Sequence[tuple[Sequence[float], Sequence[float], float]]) -> Estimate:
    """Interquartile mean, over tasks and runs, of what runs reach of a reference: (x − r) / (IQM of the reference − r).

    The bootstrap is stratified: each task's runs and each task's reference are drawn anew apart from all others.

    Args:
        tasks: of each, returns of its runs, returns of the reference's runs, and r, the return of uniformly random actions (returns may be
            negative, so that a bare ratio would say nothing).

    Raises:
        ValueError: a reference that is not above r.
    """
    samples = [np.asarray(sample, float) for runs, reference, _ in tasks for sample in (runs, reference)]
    floors = [floor for _, _, floor in tasks]
    for reference, floor in zip(samples[1::2], floors, strict=True):
        if trim_mean(reference, CUT) <= floor:
            raise ValueError(f"Expected a reference above random actions, received {trim_mean(reference, CUT):g} against {floor:g}.")

    def statistic(*drawn: np.ndarray, axis: int = -1) -> np.ndarray:
        scores = [
            (runs - floor) / (np.expand_dims(trim_mean(reference, CUT, axis=axis), axis) - floor)
            for runs, reference, floor in zip(drawn[::2], drawn[1::2], floors, strict=True)
        ]
        return trim_mean(np.concatenate(scores, axis=axis), CUT, axis=axis)

    return _estimate(samples, statistic)


def _estimate(samples: list[np.ndarray], statistic: Callable[..., Any]) -> Estimate:
    value, count = float(statistic(*samples)), sum(map(len, samples))
    if min(map(len, samples)) < 2:
        return Estimate(value, None, None, count)
    found = bootstrap(samples, statistic, n_resamples=RESAMPLES, confidence_level=LEVEL, method="percentile", vectorized=True, axis=-1, rng=0)
    return Estimate(value, float(found.confidence_interval.low), float(found.confidence_interval.high), count)
