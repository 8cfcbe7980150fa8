"""Driving PPO's compiled programs: parameters and optimizer state, packing of rows, and an update in chunks.

Letters: ``N`` rows of a buffer, ``K`` trajectories, ``Q`` sequences, ``C``, ``B``, ``W``, ``S`` as in `trainers.graph`, ``M`` as in
`trainers.trajectory`.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from trainers.architecture import Architecture, ImageInput
from trainers.inputs import NetworkInputs
from trainers.optimizer import AdamState
from trainers.ppo_graph import STATISTICS, Minibatches, PPOGraph, Progress, Tensors
from trainers.ppo_memory import Sequences
from trainers.ppo_values import ValueGraph
from trainers.program import Program, extremes, named
from trainers.quiet_tensorflow import tf
from trainers.settings import PPOHyperparameters
from trainers.trainer import Weights

_CHUNK_S = 1.0  # longest time between two calls of between_chunks, about
_FIRST_CHUNK = 4  # minibatches, while the speed of this machine is not known: of images they may take a second

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PPORows:
    """What an update learns from.

    Attributes:
        inputs: of N rows, normalised, images with their channels last.
        continuous: float32 ``[N, C]``, samples before clipping.
        discrete: int32 ``[N, B]``.
        log_prob: float32 ``[N]``, of the policy that acted.
        advantage: float32 ``[N]``, normalised already.
        target, old_value: float32 ``[N, S]``.
        action_mask: bool ``[N, W]``; None unless actions are masked.
        sequences: what makes a minibatch with a memory; None without.
        memory: ``actor`` and ``critic`` (not with a shared one) -> memory before each sequence's first row, float32 ``[Q, M]``.
    """

    inputs: NetworkInputs
    continuous: np.ndarray
    discrete: np.ndarray
    log_prob: np.ndarray
    advantage: np.ndarray
    target: np.ndarray
    old_value: np.ndarray
    action_mask: np.ndarray | None = None
    sequences: Sequences | None = None
    memory: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.advantage)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Scheduled values of one update."""

    learning_rate: float
    clip_ratio: float
    entropy_coef: float


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What an update did.

    Attributes:
        means: statistic (`STATISTICS`) -> mean over the minibatches that ran.
        minibatches: optimizer steps taken.
        first_ratio_error: largest |ratio − 1| in the first minibatch; 0 where the policy that acted is the one that learns.
    """

    means: dict[str, float]
    minibatches: int
    first_ratio_error: float


class PPOProgram(Program):
    """The parameters of actor and critic, Adam's state, and the compiled programs that read and move them.

    Args:
        signals: names of the reward signals, one value head each.
        max_rows: rows an update can hold without growing (and compiling anew).
        weights: tensors of actor and critic to begin with.
    """

    def __init__(
        self, arch: Architecture, settings: PPOHyperparameters, signals: Sequence[str], max_rows: int, weights: Weights
    ) -> None:
        self._settings = settings
        self._arch, self._graph = arch, PPOGraph.of(arch, settings, tuple(signals))
        self._value_graph = value_graph = ValueGraph(self._graph)
        self._compiled = compiled(self._graph)
        super().__init__(self._graph.layout, weights)
        self._minibatches_per_s = 0.0
        self._blocks = {
            name: np.zeros((value_graph.blocks_per_call, *shape), dtype) for name, (shape, dtype) in value_graph.inputs.items()
        }
        self._reserve(max_rows)

    def _reserve(self, capacity: int) -> None:
        self.capacity, ours = capacity, self._graph
        self._rows = {name: np.zeros((capacity, *shape), dtype) for name, (shape, dtype) in ours.stored.items()}
        self._sequences: dict[str, np.ndarray] = {}
        if ours.arch.memory:
            # At most as many as rows. No length is 0: the last row of each pads it.
            self._sequences = {"start": np.zeros(capacity, np.int32), "length": np.ones(capacity, np.int32)}
            self._sequences |= {scope: np.zeros((capacity, ours.arch.memory_size), np.float32) for scope in ours.scopes}
        # A minibatch that begins at the last item must still lie inside.
        self._order = np.zeros((self._settings.num_epoch, capacity + ours.items), np.int32)

    @property
    def traces(self) -> dict[str, int]:
        """How often each program was traced, by this and all other objects of an equal graph."""
        return {name: program.experimental_get_tracing_count() for name, program in self._compiled._asdict().items()}

    # -- programs ----------------------------------------------------------------------------------------------------

    def compile(self) -> None:
        """Compile both programs, by calls that learn from no minibatch: no state and no random number is touched."""
        self._compiled.values(self._parameters, _tensors(self._blocks), tf.constant(0))
        self._compiled.learn(self._start(), self._minibatches(1, Coefficients(0.0, 0.0, 0.0)), tf.constant(0))

    def values(self, inputs: NetworkInputs) -> np.ndarray:
        """Value estimates of N rows, as many as there are, of a critic without memory: float32 ``[N, S]``.

        Args:
            inputs: images with their channels last.
        """
        names, out = ["vector", *self._graph.images], np.empty((len(inputs), len(self._graph.signals)), np.float32)
        rows, step = self._value_graph.rows, self._value_graph.rows * self._value_graph.blocks_per_call
        for first in range(0, len(inputs), step):
            part = inputs.take(slice(first, first + step))
            for name, x in zip(names, (part.vector, *part.images), strict=True):
                _flat(self._blocks[name])[: len(part)] = x
            count = tf.constant(-(-len(part) // rows))
            value = self._compiled.values(self._parameters, _tensors(self._blocks), count)["value"].numpy()
            out[first : first + step] = _flat(value)[: len(part)]
        return out

    def sequence_values(
        self, inputs: NetworkInputs, after: NetworkInputs, sequences: Sequences, which: np.ndarray, memory: np.ndarray,
        value: np.ndarray, bootstrap: np.ndarray,
    ) -> np.ndarray:
        """Value estimates of a critic with a memory, along some sequences.

        Args:
            inputs, after: of N rows, and of what came after each of K trajectories; images with their channels last.
            which: int64 ``[q]``, the sequences that are run.
            memory: float32 ``[q, M]``, before the first row of each.
            value, bootstrap: float32 ``[N, S]`` and ``[K, S]``: estimates of these sequences' rows, and of what came after the
                trajectories that end with them, are written here.

        Returns:
            The memory after the last row of each, float32 ``[q, M]``.
        """
        graph, memory_after = self._graph, np.empty_like(memory)
        names, length = ["vector", *graph.images], graph.sequence_length + 1
        slots = self._value_graph.blocks_per_call * self._value_graph.sequences
        blocks = {name: _flat(x) for name, x in self._blocks.items()}
        step = np.arange(length)
        for first in range(0, len(which), slots):
            some = which[first : first + slots]
            n, rows = len(some), sequences.length[some]
            # Position (sequence, step) of each row, and of the observation after a trajectory's last one.
            sequence, t = np.nonzero(step < rows[:, None])
            row, ends = sequences.start[some][sequence] + t, np.flatnonzero(sequences.is_last[some])
            place, place_after = sequence * length + t, ends * length + rows[ends]
            trajectory = sequences.trajectory[some][ends]
            for name, x, x_after in zip(names, (inputs.vector, *inputs.images), (after.vector, *after.images), strict=True):
                blocks[name][place], blocks[name][place_after] = x[row], x_after[trajectory]
            blocks["memory"][:n], blocks["length"][:n] = memory[first : first + n], rows
            count = tf.constant(-(-n // self._value_graph.sequences))
            out = self._compiled.values(self._parameters, _tensors(self._blocks), count)
            estimates = _flat(out["value"].numpy())
            value[row], bootstrap[trajectory] = estimates[place], estimates[place_after]
            memory_after[first : first + n] = _flat(out["memory"].numpy())[:n]
        return memory_after

    def staged(self, parts: Sequence[NetworkInputs]) -> NetworkInputs:
        """All rows of `parts`, whose images are as they were stored, with channels last.

        The images are copied once, to where an update wants them: valid until the next call.
        """
        self._make_room(sum(len(part) for part in parts))
        images = [self._rows[name] for name in self._graph.images]
        first = 0
        for part in parts:
            for image, x, out in zip(self._arch.images, part.images, images, strict=True):
                to_channels_last(image, x, out[first : first + len(part)])
            first += len(part)
        return NetworkInputs(np.concatenate([part.vector for part in parts]), tuple(x[:first] for x in images))

    def channels_last(self, inputs: NetworkInputs) -> NetworkInputs:
        """The same with channels last, in arrays of their own."""
        images = []
        for image, (shape, dtype), x in zip(self._arch.images, self._graph.images.values(), inputs.images, strict=True):
            images.append(to_channels_last(image, x, np.empty((len(x), *shape), dtype)))
        return NetworkInputs(inputs.vector, tuple(images))

    def update(
        self, rows: PPORows, coefficients: Coefficients, rng: np.random.Generator,
        between_chunks: Callable[[], None] = lambda: None,
    ) -> UpdateResult:
        """All epochs over `rows`, in chunks of about a second whose sizes change nothing in the result.

        Every epoch is a fresh permutation of the rows, cut into ceil(N / batch_size) minibatches whose sizes differ by at most one;
        with a memory, of the sequences, max(1, batch_size // sequence_length) of which make a minibatch. After
        an epoch whose mean approximate KL divergence is above ``target_kl`` no other begins. Parameters and Adam's state move
        at the end, together, and only if everything is finite.

        Raises:
            FloatingPointError: a loss or a weight is not finite.
        """
        self._pack(rows)
        items = len(rows) if rows.sequences is None else len(rows.sequences)
        for epoch in self._order:
            epoch[:items] = rng.permutation(items)
        minibatches, progress = self._minibatches(items, coefficients), self._start()
        total, done = int(minibatches.count) * self._settings.num_epoch, 0
        while done < total:
            end, started = min(total, done + self._chunk()), time.perf_counter()
            progress = self._compiled.learn(progress, minibatches, tf.constant(end))
            before, done = done, int(progress.done)
            self._minibatches_per_s = (done - before) / (time.perf_counter() - started)
            if progress.stopped:
                break
            if done < total:
                between_chunks()
        means = dict(zip(STATISTICS, (progress.sums.numpy() / done).tolist(), strict=True))
        self._check_finite(means, progress.parameters, rows)
        self._parameters, self._adam = progress.parameters, AdamState(progress.m, progress.v, progress.step)
        return UpdateResult(means, done, float(progress.first_ratio_error))

    def _chunk(self) -> int:
        return max(1, int(self._minibatches_per_s * _CHUNK_S)) if self._minibatches_per_s else _FIRST_CHUNK

    def _make_room(self, rows: int) -> None:
        if rows > self.capacity:
            capacity = rows + rows // 4
            logger.info("An update holds %d rows, capacity was %d: compiling for %d.", rows, self.capacity, capacity)
            self._reserve(capacity)

    def _pack(self, rows: PPORows) -> None:
        """Rows where the program finds them. Branch indices are exact in float32 up to 2²⁴."""
        n, first = len(rows), 0
        self._make_room(n)
        for name, width in self._graph.columns.items():
            column = rows.inputs.vector if name == "vector" else getattr(rows, name)
            self._rows["packed"][:n, first : first + width] = column.reshape(n, width)
            first += width
        for name, image in zip(self._graph.images, rows.inputs.images, strict=True):
            if not np.may_share_memory(image, self._rows[name]):  # else they are `staged`
                self._rows[name][:n] = image
        if "action_mask" in self._rows:
            self._rows["action_mask"][:n] = rows.action_mask
        if rows.sequences is not None:
            columns = {"start": rows.sequences.start, "length": rows.sequences.length, **rows.memory}
            for name, column in self._sequences.items():
                column[: len(rows.sequences)] = columns[name]

    def _start(self) -> Progress:
        zero = tf.constant(0.0)
        return Progress(tf.constant(0), self._parameters, *self._adam, tf.zeros(len(STATISTICS)), zero, zero, tf.constant(False))

    def _minibatches(self, items: int, coefficients: Coefficients) -> Minibatches:
        """Tensors throughout: a Python number would be a constant of the program, and another number a retrace."""
        kl_limit = np.inf if self._settings.target_kl is None else self._settings.target_kl
        values = (coefficients.learning_rate, coefficients.clip_ratio, coefficients.entropy_coef, kl_limit)
        return Minibatches(
            _tensors(self._rows), _tensors(self._sequences), tf.constant(self._order), tf.constant(items),
            tf.constant(-(-items // self._graph.items)), tf.constant(values, tf.float32),
        )

    def _check_finite(self, means: dict[str, float], parameters: tf.Tensor, rows: PPORows) -> None:
        broken = [name.replace("_", " ") for name, value in means.items() if not np.isfinite(value)]
        broken += [name for name, tensor in named(self.layout, parameters).items() if not np.isfinite(tensor).all()]
        if broken:
            raise FloatingPointError(
                f"Expected finite losses and weights from an update of {len(rows)} rows, received others: {', '.join(broken)}. "
                f"The weights from before it are kept. The rows held: {extremes(rows)}. Look for huge rewards or observations "
                "(network_settings.normalize, hyperparameters.reward_scaling), or lower learning_rate."
            )


class CompiledPPO(NamedTuple):
    """`PPOGraph.learn` and `ValueGraph.values`, compiled at their first call."""

    learn: Callable[[Progress, Minibatches, tf.Tensor], Progress]
    values: Callable[[tf.Tensor, Tensors, tf.Tensor], dict[str, tf.Tensor]]


@functools.lru_cache(maxsize=32)
def compiled(ppo: PPOGraph) -> CompiledPPO:
    """The programs of a graph; equal graphs share them, so that a second trainer in one process compiles nothing."""
    programs = (ppo.learn, ValueGraph(ppo).values)
    return CompiledPPO(*(tf.function(program, jit_compile=ppo.compile_with_xla, autograph=False) for program in programs))


def to_channels_last(image: ImageInput, x: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Write images ``[n, *shape]`` as they are stored to `out` ``[n, height, width, channels]``, and return it."""
    x = x.transpose(0, *(axis + 1 for axis in image.to_channels_last)).reshape(out.shape) if x.ndim > 3 else x[..., None]
    # One channel after another: on four stacked frames three times as fast as all at once.
    for channel in range(image.channels):
        out[..., channel] = x[..., channel]
    return out


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(array) for name, array in arrays.items()}


def _flat(blocks: np.ndarray) -> np.ndarray:
    """``[blocks, rows of a block, …]`` -> ``[all rows, …]``, a view."""
    return blocks.reshape(blocks.shape[0] * blocks.shape[1], *blocks.shape[2:])
