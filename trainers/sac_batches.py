"""What SAC learns from: sampled transitions or sequences, and the arrays in which those of one compiled call lie.

Letters: ``K`` updates of one call at most, ``M`` rows of a batch (``batch_size``), ``Q`` sequences of a batch, ``L`` rows of a sequence
(burn-in and sequence), ``N`` rows or sequences of all batches, ``D`` packed columns; ``I`` as in `trainers.architecture`, ``C``, ``B``,
``W`` as in `envs.specs`, ``S`` reward signals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainers.architecture import Architecture
from trainers.update_ratio import UPDATES_PER_CALL

_BYTES_PER_CALL = 64 * 2**20


@dataclass(frozen=True, slots=True)
class SACRows:
    """Transitions over k steps, those of several batches one after another.

    Attributes:
        vector, next_vector: float32 ``[N, I]``, network inputs (normalised) at the sampled steps and k steps on.
        continuous: float32 ``[N, C]``, in policy space.
        discrete: int32 ``[N, B]``.
        reward: float32 ``[N, S]``, discounted sums over the k steps.
        bootstrap: float32 ``[N, S]``, γ^k; 0 where the task ended within them.
        images, next_images: one for each image observation, ``[N, *shape]`` as it is stored.
        action_mask, next_action_mask: bool ``[N, W]``; None unless actions are masked.
    """

    vector: np.ndarray
    next_vector: np.ndarray
    continuous: np.ndarray
    discrete: np.ndarray
    reward: np.ndarray
    bootstrap: np.ndarray
    images: tuple[np.ndarray, ...] = ()
    next_images: tuple[np.ndarray, ...] = ()
    action_mask: np.ndarray | None = None
    next_action_mask: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.vector)


@dataclass(frozen=True, slots=True)
class SACSequences:
    """Sequences of transitions, those of several batches one after another, padded at their end.

    Attributes:
        vector: float32 ``[N, L + 1, I]``, network inputs (normalised) at each row and after the last.
        continuous, discrete: float32 ``[N, L, C]`` and int32 ``[N, L, B]``.
        reward, bootstrap: float32 ``[N, L, S]``, as in `SACRows`.
        steps: int32 ``[N, L]``, k: row t bootstraps from the observation t + k.
        weight: float32 ``[N, L]``, 1 for rows that count, else 0.
        memory: float32 ``[N, 2H]``, the policy's before the first row.
        begins: bool ``[N]``, the sequence begins its episode.
        images: one for each image observation, ``[N, L + 1, *shape]``.
        action_mask: bool ``[N, L + 1, W]``; None unless actions are masked.
    """

    vector: np.ndarray
    continuous: np.ndarray
    discrete: np.ndarray
    reward: np.ndarray
    bootstrap: np.ndarray
    steps: np.ndarray
    weight: np.ndarray
    memory: np.ndarray
    begins: np.ndarray
    images: tuple[np.ndarray, ...] = ()
    action_mask: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.vector)


def packed_columns(arch: Architecture, signals: int) -> dict[str, int]:
    """The float32 columns of a batch, in their order: name -> width."""
    action = arch.spec.action
    taken = {
        "continuous": action.continuous_size, "discrete": len(action.discrete_branches), "reward": signals, "bootstrap": signals,
    }
    if arch.memory is None:
        return {"vector": arch.vector_width, "next_vector": arch.vector_width, **taken}
    return {"vector": arch.vector_width, **taken, "steps": 1, "weight": 1}


class CallArrays:
    """The batches of one call as arrays that are used again and again. Only the first of `updates` batches are ever read.

    Attributes:
        draws: M or Q, what is drawn for one batch.
        rows: rows of one batch from which losses are taken, M or Q·L.
        updates: K: as many as 64 MiB hold, between 1 and 32.
        packed: float32 ``[K, M, D]`` or ``[K, Q, L + 1, D]``, the `packed_columns`. In the row after a sequence's last only the
            vector means something.
        blocks: what is not float32 or not by row, each ``[K, …]``: ``image/{i}``, ``action_mask``; of transitions the same with
            ``next_`` before it; of sequences ``memory`` and ``begins``.
        noise: float32 ``[K, 2, rows, C]``, standard normal, for the actions after and at the sampled steps.
    """

    def __init__(self, arch: Architecture, signals: int, batch_size: int) -> None:
        self._columns = packed_columns(arch, signals)
        memory = arch.memory
        self.draws = batch_size if memory is None else max(1, batch_size // memory.sequence_length)
        length = 1 if memory is None else memory.burn_in + memory.sequence_length
        self.rows = self.draws * length
        each = (self.draws,) if memory is None else (self.draws, length + 1)
        blocks = _blocks(arch, each)
        packed, noise = (*each, sum(self._columns.values())), (2, self.rows, arch.spec.action.continuous_size)
        size = 4 * (np.prod(packed) + np.prod(noise)) + sum(np.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in blocks.values())
        self.updates = int(min(UPDATES_PER_CALL, max(1, _BYTES_PER_CALL // size)))
        self.packed, self.noise = (np.zeros((self.updates, *shape), np.float32) for shape in (packed, noise))
        self.blocks = {name: np.zeros((self.updates, *shape), dtype) for name, (shape, dtype) in blocks.items()}

    def fill(self, rows: SACRows | SACSequences, rng: np.random.Generator) -> int:
        """Take `rows` in and draw the noise of their actions; returns the number of their batches. Branch indices are exact in
        float32 up to 2²⁴."""
        n, each = len(rows), self.packed.shape[2:-1]
        count, first = n // self.draws, 0
        packed = self.packed[:count].reshape(n, *each, self.packed.shape[-1])
        for name, width in self._columns.items():
            column = getattr(rows, name)
            steps = column.shape[1 : 1 + len(each)]
            packed[(slice(None), *map(slice, steps), slice(first, first + width))] = column.reshape(n, *steps, width)
            first += width
        for name, block in self.blocks.items():
            group, _, i = name.partition("/")
            values = getattr(rows, f"{group}s")[int(i)] if i else getattr(rows, group)
            block[:count] = values.reshape(count, *block.shape[1:])
        self.noise[:count] = rng.standard_normal(self.noise[:count].shape, np.float32)
        return count


def _blocks(arch: Architecture, each: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name -> shape in one batch and dtype."""
    dtypes, action = {o.name: o.dtype for o in arch.spec.observations}, arch.spec.action
    seen = {f"image/{i}": ((*each, *image.shape), dtypes[image.name]) for i, image in enumerate(arch.images)}
    if action.masked:
        seen["action_mask"] = (*each, action.choices), "bool"
    if arch.memory is None:
        return {**seen, **{f"next_{name}": block for name, block in seen.items()}}
    return {**seen, "memory": ((each[0], arch.memory.size), "float32"), "begins": (each[:1], "bool")}
