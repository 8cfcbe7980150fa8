"""What the networks see: observations as one joined vector and a tuple of images.

Letters: ``n`` rows (agents), ``I`` columns of the vector.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from envs.specs import BehaviorSpec, Observations
from trainers.architecture import Architecture, VectorInput


@dataclass(frozen=True, slots=True)
class NetworkInputs:
    """The inputs of `n` rows.

    Attributes:
        vector: float32 ``[n, I]``; categorical parts are one-hot.
        images: one for each of `Architecture.images`, ``[n, *shape]`` as it is stored: scaled and transposed inside the networks.
    """

    vector: np.ndarray
    images: tuple[np.ndarray, ...] = ()

    def __len__(self) -> int:
        return len(self.vector)

    def take(self, rows: np.ndarray | slice) -> NetworkInputs:
        """The inputs of some rows."""
        return NetworkInputs(self.vector[rows], tuple(image[rows] for image in self.images))


def network_inputs(arch: Architecture, obs: Observations) -> NetworkInputs:
    """Observations of `n` agents as network inputs, not normalised.

    Args:
        obs: name -> ``[n, *shape]``, any real dtype.

    Returns:
        May share memory with `obs`: read only.

    Raises:
        ValueError: an observation is missing, unknown, or of another shape than the spec says; or a choice out of range.
    """
    n = check_observations(arch.spec, obs)
    return NetworkInputs(join_vector(arch, obs, n), tuple(obs[image.name] for image in arch.images))


def join_inputs(parts: list[NetworkInputs]) -> NetworkInputs:
    """All rows of `parts`, in order."""
    images = zip(*(part.images for part in parts), strict=True)
    return NetworkInputs(np.concatenate([part.vector for part in parts]), tuple(np.concatenate(image) for image in images))


def join_vector(arch: Architecture, obs: Observations, n: int, out: np.ndarray | None = None) -> np.ndarray:
    """The joined vector of observations that `check_observations` has found right and of `n` agents.

    Args:
        out: float32 ``[at least n, I]`` to write to, so that a caller can use one buffer again and again.

    Returns:
        float32 ``[n, I]``. Shares memory with `obs` where nothing had to be copied (one float32 observation): read only.
    """
    if len(arch.vectors) == 1 and not arch.vectors[0].choices:
        only = obs[arch.vectors[0].name]
        if only.dtype == np.float32 and only.flags.c_contiguous:
            return only if only.ndim == 2 else only.reshape(n, arch.vectors[0].size)
    vector = np.empty((n, arch.vector_width), np.float32) if out is None else out if len(out) == n else out[:n]
    column = 0
    for part in arch.vectors:
        columns = vector[:, column : column + part.width]
        x = obs[part.name]
        if part.choices:
            _one_hot(part, x.reshape(n, part.size), columns)
        else:
            columns[...] = x if x.ndim == 2 else x.reshape(n, part.size)
        column += part.width
    return vector


def _one_hot(part: VectorInput, x: np.ndarray, columns: np.ndarray) -> None:
    """Write 1 in the column of each element's choice and 0 in the others."""
    starts, choices, offset = _choice_arrays(part)
    index = x.astype(np.int64) - starts
    wrong = (index < 0) | (index >= choices)
    if wrong.any():
        row, element = (int(i) for i in np.argwhere(wrong)[0])
        first = part.starts[element]
        raise ValueError(f"Expected observation '{part.name}' element {element} from {first} to {first + part.choices[element] - 1}, "
                         f"received {x[row, element]} in row {row}.")
    index += offset
    columns[...] = 0.0
    columns[np.arange(len(x))[:, None], index] = 1.0


@functools.lru_cache(maxsize=256)
def _choice_arrays(part: VectorInput) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First value and number of choices of each element, and its first column: int64 ``[size]`` each."""
    choices = np.asarray(part.choices, np.int64)
    return np.asarray(part.starts, np.int64), choices, np.cumsum(choices) - choices


def check_observations(spec: BehaviorSpec, obs: Observations) -> int:
    """The number of agents `n` in a batch of observations ``[n, *shape]``.

    Raises:
        ValueError: an observation is missing, unknown, or of another shape than the spec says.
    """
    if obs.keys() != {o.name for o in spec.observations}:
        raise ValueError(f"Expected the observations {[o.name for o in spec.observations]}, received {list(obs)}.")
    n = len(obs[spec.observations[0].name]) if obs[spec.observations[0].name].ndim else 0
    for o in spec.observations:
        shape = obs[o.name].shape
        if shape != (n, *o.shape):
            hint = " A single observation needs a leading dimension: obs[None]." if shape == o.shape else ""
            expected = ", ".join(map(str, ("n", *o.shape)))
            raise ValueError(
                f"Expected observation '{o.name}' of shape [{expected}], agents first and the same n for all observations, "
                f"received {list(shape)}.{hint}"
            )
    return n
