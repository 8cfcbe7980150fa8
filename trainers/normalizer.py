"""Running mean and variance, and the observation normaliser built on them.

Only the trainer updates statistics, once per row it consumes; policies receive them as float32 with the weights and never
change them. Letters: ``N`` rows, ``V`` versions kept, ``I`` as in `trainers.architecture`, ``Z`` normalised columns.
"""

from __future__ import annotations

import numpy as np

from envs.specs import Observations
from trainers.architecture import Architecture
from trainers.inputs import NetworkInputs, network_inputs
from trainers.networks import normalizer_names
from trainers.trainer import TrainerState, Weights
from trainers.trajectory import TrajectoryBatch

CLIP = 5.0
"""Normalised observations are clipped to ±CLIP standard deviations."""
VARIANCE_FLOOR = 1e-8
"""Added to the variance under the root: an observation that never varies is 0, not NaN."""


def normalize(x: np.ndarray, mean: np.ndarray, std: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """clip((x − mean)/std, ±5): the one formula for policies and trainers, the same to the last bit.

    Args:
        x: float32 ``[N, Z]``.
        mean, std: float32, broadcast against `x`.
        out: float32 ``[N, Z]`` to write to (may be `x`).
    """
    out = np.subtract(x, mean, out=out)
    np.divide(out, std, out=out)
    np.minimum(out, np.float32(CLIP), out=out)
    return np.maximum(out, np.float32(-CLIP), out=out)


class RunningStatistics:
    """Count, mean and sum of squared deviations of everything seen, in float64.

    With n_A rows so far and a batch of n_B, δ = mean_B − mean_A and n = n_A + n_B:
    mean = mean_A + δ·n_B/n and M2 = M2_A + M2_B + δ²·n_A·n_B/n. Every term of M2 is a square, so the variance is never negative.

    Source: Chan, Golub & LeVeque 1983, https://doi.org/10.1080/00031305.1983.10483115, pairwise updating formula.

    Attributes:
        count: rows seen; a Python int, so it never overflows.
        mean: float64 ``[*shape]``.
        m2: float64 ``[*shape]``, sum of squared deviations from the mean.
    """

    def __init__(self, shape: tuple[int, ...] = ()):
        self.count = 0
        self.mean = np.zeros(shape)
        self.m2 = np.zeros(shape)

    @property
    def variance(self) -> np.ndarray:
        """Population variance M2/n, float64 ``[*shape]``; 1 before the first row."""
        return self.m2 / self.count if self.count else np.ones_like(self.m2)

    def update(self, x: np.ndarray) -> None:
        """Merge rows ``[N, *shape]`` in; no rows change nothing.

        Raises:
            ValueError: another shape, or a value that is not finite (then nothing is merged).
        """
        x = np.asarray(x, np.float64)
        if x.shape[1:] != self.mean.shape or x.ndim == 0:
            raise ValueError(f"Expected rows of shape [N, {', '.join(map(str, self.mean.shape))}], received {list(x.shape)}.")
        check_finite(x, "running statistics")
        if len(x) == 0:
            return
        mean = x.mean(axis=0)
        m2 = np.square(x - mean).sum(axis=0)
        total = self.count + len(x)
        delta = mean - self.mean
        self.mean = self.mean + delta * (len(x) / total)
        self.m2 = self.m2 + m2 + np.square(delta) * (self.count * (len(x) / total))
        self.count = total

    def float32(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sqrt(variance + 1e-8) as float32 ``[*shape]``, as policies get them: 0 and 1 before the first row."""
        std = np.sqrt(self.variance + VARIANCE_FLOOR) if self.count else np.ones_like(self.m2)
        return self.mean.astype(np.float32), std.astype(np.float32)

    def normalized(self, x: np.ndarray) -> np.ndarray:
        """`normalize` of `x` (``[N, *shape]``) with these statistics: float32 of the same shape."""
        return normalize(np.asarray(x, np.float32), *self.float32())


def check_finite(x: np.ndarray, where: str) -> None:
    """Refuse NaN and infinity.

    Raises:
        ValueError: names the first offending index (row first) and its value.
    """
    if x.dtype.kind in "biu":  # images: nothing to find, and a pass over all pixels to find it
        return
    finite = np.isfinite(x)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(f"Expected finite values for {where}, received {x[index]} at index {list(index)} of {list(x.shape)}.")


def check_batch(batch: TrajectoryBatch, manager: str) -> None:
    """Refuse trajectories with a value that is not finite (a normaliser would clip infinity and hide it).

    Raises:
        ValueError: names the observation or the reward, the index and `manager`.
    """
    for where, obs in (("observations", batch.obs), ("next observations", batch.next_obs)):
        for name, x in obs.items():
            check_finite(x, f"{where} '{name}' from {manager or 'a manager'}")
    check_finite(batch.total_reward, f"rewards from {manager or 'a manager'}")


class NormalizerHistory:
    """Statistics of a behavior's normalised observations, and those of the last published versions.

    An update must see each row as the policy saw that acted, or importance ratios would compare two different inputs: rows are
    normalised with the statistics that were published with their own policy version. What `Architecture.normalized` leaves out
    (images, choices, flags) passes as it is.

    The statistics are those of the float32 values that the network gets.
    """

    def __init__(self, arch: Architecture):
        self._arch = arch
        self.statistics = {o.name: RunningStatistics(o.shape) for o in arch.normalized}
        self._versions = np.empty(0, np.int64)
        self._means = np.empty((0, arch.normalized_width), np.float32)
        self._stds = np.empty((0, arch.normalized_width), np.float32)

    @property
    def versions(self) -> list[int]:
        """Published versions that can still be normalised for, oldest first."""
        return self._versions.tolist()

    def update(self, obs: Observations) -> None:
        """Merge rows (name -> ``[N, *shape]``) into the statistics; they count from the next `publish` on.

        Args:
            obs: the normalised observations; others are left alone.

        Raises:
            ValueError: a shape differs from the spec, or a value is not finite in float32; then no statistics have changed.
        """
        for o in self._arch.normalized:
            if obs[o.name].shape[1:] != o.shape:
                expected = ", ".join(map(str, ("N", *o.shape)))
                raise ValueError(f"Expected observation '{o.name}' of shape [{expected}], received {list(obs[o.name].shape)}.")
        as_seen = {name: np.asarray(obs[name], np.float32) for name in self.statistics}
        for name, x in as_seen.items():
            check_finite(x, f"the statistics of observation '{name}'")
        for name, x in as_seen.items():
            self.statistics[name].update(x)

    def publish(self, version: int) -> Weights:
        """Remember the present statistics as those of `version` and return them as policy weights.

        Returns:
            ``normalizer/{observation}/mean`` and ``/std``: fresh float32 arrays of the observations' shapes.

        Raises:
            ValueError: `version` is not above the newest one.
        """
        if len(self._versions) and version <= self._versions[-1]:
            raise ValueError(f"Expected a version above {self._versions[-1]}, the newest published one, received {version}.")
        mean, std = self._present()
        self._versions = np.append(self._versions, version)
        self._means, self._stds = np.vstack([self._means, mean]), np.vstack([self._stds, std])
        return self.weights(version)

    def _present(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of all normalised columns as they are now, float32 ``[Z]``."""
        pairs = [statistics.float32() for statistics in self.statistics.values()]
        mean, std = (np.concatenate([pair[i].ravel() for pair in pairs] or [np.empty(0, np.float32)]) for i in range(2))
        return mean, std

    def weights(self, version: int) -> Weights:
        """The statistics of a published version as policy weights.

        Raises:
            ValueError: it was never published or is forgotten already.
        """
        if version not in self.versions:
            raise ValueError(f"Expected one of the versions {self.versions}, received {version}.")
        row = self.versions.index(version)
        weights: Weights = {}
        offset = 0
        for o in self._arch.normalized:
            part = slice(offset, offset + o.size)
            for name, table in zip(normalizer_names(o.name), (self._means, self._stds), strict=True):
                weights[name] = table[row, part].reshape(o.shape).copy()
            offset += o.size
        return weights

    def normalize(self, obs: Observations, version: np.ndarray) -> NetworkInputs:
        """Network inputs of rows, each normalised as the policy of its version did.

        Args:
            obs: name -> ``[N, *shape]``.
            version: int64 ``[N]``, published version that acted on each row.

        Returns:
            The vector is a fresh array; images are those of `obs`.

        Raises:
            ValueError: a version was never published or is forgotten already.
        """
        inputs = network_inputs(self._arch, obs)
        if len(version) != len(inputs):
            raise ValueError(f"Expected one version per row, received {len(version)} versions for {len(inputs)} rows.")
        index = np.searchsorted(self._versions, version)
        known = index < len(self._versions)
        known[known] = self._versions[index[known]] == version[known]
        if not known.all():
            unknown = np.unique(version[~known]).tolist()
            raise ValueError(f"Expected rows of versions whose statistics are kept, {self.versions}, received rows of {unknown}.")
        if len(index) and (index == index[0]).all():
            index = index[0]
        return self._normalized(inputs, self._means[index], self._stds[index])

    def normalize_now(self, obs: Observations) -> NetworkInputs:
        """Network inputs of rows with the present statistics, published or not, as `normalize` returns them."""
        return self._normalized(network_inputs(self._arch, obs), *self._present())

    def _normalized(self, inputs: NetworkInputs, mean: np.ndarray, std: np.ndarray) -> NetworkInputs:
        vector, width = inputs.vector, self._arch.normalized_width
        if width == vector.shape[1]:
            return NetworkInputs(normalize(vector, mean, std), inputs.images)
        vector = vector.copy()
        normalize(vector[:, :width], mean, std, out=vector[:, :width])
        return NetworkInputs(vector, inputs.images)

    def policy_weights(self) -> Weights:
        """The present statistics as policy weights, published or not: fresh float32 arrays of the observations' shapes."""
        weights: Weights = {}
        for name, statistics in self.statistics.items():
            weights.update(zip(normalizer_names(name), statistics.float32(), strict=True))
        return weights

    def forget_before(self, version: int) -> None:
        """Drop the statistics of versions below `version`; the newest is always kept."""
        first = min(int(np.searchsorted(self._versions, version)), max(len(self._versions) - 1, 0))
        self._versions, self._means, self._stds = self._versions[first:], self._means[first:], self._stds[first:]

    def state(self) -> TrainerState:
        """Statistics and history for a checkpoint, under ``normalizer_statistics/…`` and ``normalizer_history/…``."""
        tensors = {
            "normalizer_history/version": self._versions.copy(),
            "normalizer_history/mean": self._means.copy(),
            "normalizer_history/std": self._stds.copy(),
        }
        counts = {}
        for name, statistics in self.statistics.items():
            tensors[f"normalizer_statistics/{name}/mean"] = statistics.mean.copy()
            tensors[f"normalizer_statistics/{name}/m2"] = statistics.m2.copy()
            counts[name] = statistics.count
        return TrainerState(tensors, {"normalizer_statistics/count": counts})

    def load_state(self, state: TrainerState) -> None:
        """Continue from `state`, which may hold entries of others too.

        Raises:
            ValueError: the state belongs to other observations.
        """
        counts = state.scalars["normalizer_statistics/count"]
        if set(counts) != set(self.statistics):
            raise ValueError(f"Expected normaliser statistics of {sorted(self.statistics)}, received those of {sorted(counts)}.")
        for name, statistics in self.statistics.items():
            mean = state.tensors[f"normalizer_statistics/{name}/mean"]
            if mean.shape != statistics.mean.shape:
                expected = list(statistics.mean.shape)
                raise ValueError(f"Expected statistics of '{name}' of shape {expected}, received {list(mean.shape)}.")
            statistics.count = int(counts[name])
            statistics.mean = mean.copy()
            statistics.m2 = state.tensors[f"normalizer_statistics/{name}/m2"].copy()
        self._versions = state.tensors["normalizer_history/version"].copy()
        self._means = state.tensors["normalizer_history/mean"].copy()
        self._stds = state.tensors["normalizer_history/std"].copy()
