"""Driving PPO's compiled programs: parameters and optimizer state, packing of rows, and an update in chunks.

Letters: ``N`` rows of a buffer, ``C``, ``B``, ``I``, ``S`` as in `trainers.graph`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from envs.specs import BehaviorSpec
from trainers.optimizer import AdamState
from trainers.ppo_graph import STATISTICS, VALUE_BLOCK, Minibatches, PPOGraph, Progress, compiled
from trainers.program import Program, extremes, named
from trainers.settings import NetworkSettings, PPOHyperparameters
from trainers.trainer import Weights

import tensorflow as tf  # isort: skip

_CHUNK_S = 1.0  # longest time between two calls of between_chunks, about
_FIRST_CHUNK = 64  # minibatches, while the speed of this machine is not known

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PPORows:
    """What an update learns from; the fields are `PPOGraph.columns`.

    Attributes:
        inputs: float32 ``[N, I]``, network inputs.
        continuous: float32 ``[N, C]``, samples before clipping.
        discrete: int32 ``[N, B]``.
        log_prob: float32 ``[N]``, of the policy that acted.
        advantage: float32 ``[N]``, normalised already.
        target, old_value: float32 ``[N, S]``.
    """

    inputs: np.ndarray
    continuous: np.ndarray
    discrete: np.ndarray
    log_prob: np.ndarray
    advantage: np.ndarray
    target: np.ndarray
    old_value: np.ndarray

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
        self, spec: BehaviorSpec, network: NetworkSettings, settings: PPOHyperparameters, signals: Sequence[str], max_rows: int,
        weights: Weights,
    ) -> None:
        self._settings = settings
        self._graph = PPOGraph.of(spec, network, settings, tuple(signals))
        self._compiled = compiled(self._graph)
        super().__init__(self._graph.layout, weights)
        self._minibatches_per_s = 0.0
        self._blocks = np.zeros((-(-max_rows // VALUE_BLOCK), VALUE_BLOCK, self._graph.columns["inputs"]), np.float32)
        self._reserve(max_rows)

    def _reserve(self, capacity: int) -> None:
        self.capacity = capacity
        self._packed = np.zeros((capacity, sum(self._graph.columns.values())), np.float32)
        # A slice of batch_size that begins at the last row must still lie inside.
        self._order = np.zeros((self._settings.num_epoch, capacity + self._settings.batch_size), np.int32)

    @property
    def traces(self) -> dict[str, int]:
        """How often each program was traced, by this and all other objects of an equal graph."""
        return {name: program.experimental_get_tracing_count() for name, program in self._compiled._asdict().items()}

    # -- programs ----------------------------------------------------------------------------------------------------

    def compile(self) -> None:
        """Compile both programs, by calls that learn from no minibatch: no state and no random number is touched."""
        self._compiled.values(self._parameters, tf.constant(self._blocks), tf.constant(0))
        self._compiled.learn(self._start(), self._minibatches(1, Coefficients(0.0, 0.0, 0.0)), tf.constant(0))

    def values(self, inputs: np.ndarray) -> np.ndarray:
        """Value estimates of network inputs float32 ``[N, I]``, as many as there are: float32 ``[N, S]``."""
        flat = self._blocks.reshape(-1, inputs.shape[1])
        parts = []
        for first in range(0, len(inputs), len(flat)):
            part = inputs[first : first + len(flat)]
            flat[: len(part)] = part
            count = tf.constant(-(-len(part) // VALUE_BLOCK))
            parts.append(self._compiled.values(self._parameters, tf.constant(self._blocks), count).numpy()[: len(part)])
        return np.concatenate(parts)

    def update(
        self, rows: PPORows, coefficients: Coefficients, rng: np.random.Generator,
        between_chunks: Callable[[], None] = lambda: None,
    ) -> UpdateResult:
        """All epochs over `rows`, in chunks of about a second whose sizes change nothing in the result.

        Every epoch is a fresh permutation, cut into ceil(N / batch_size) minibatches whose sizes differ by at most one. After
        an epoch whose mean approximate KL divergence is above ``target_kl`` no other begins. Parameters and Adam's state move
        at the end, together, and only if everything is finite.

        Raises:
            FloatingPointError: a loss or a weight is not finite.
        """
        self._pack(rows)
        for epoch in self._order:
            epoch[: len(rows)] = rng.permutation(len(rows))
        minibatches, progress = self._minibatches(len(rows), coefficients), self._start()
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

    def _pack(self, rows: PPORows) -> None:
        """Rows as one float32 matrix, so that a minibatch is one gather. Branch indices are exact in float32 up to 2²⁴."""
        if len(rows) > self.capacity:
            capacity = len(rows) + len(rows) // 4
            logger.info("An update holds %d rows, capacity was %d: compiling for %d.", len(rows), self.capacity, capacity)
            self._reserve(capacity)
        first = 0
        for name, width in self._graph.columns.items():
            self._packed[: len(rows), first : first + width] = getattr(rows, name).reshape(len(rows), width)
            first += width

    def _start(self) -> Progress:
        zero = tf.constant(0.0)
        return Progress(tf.constant(0), self._parameters, *self._adam, tf.zeros(len(STATISTICS)), zero, zero, tf.constant(False))

    def _minibatches(self, rows: int, coefficients: Coefficients) -> Minibatches:
        """Tensors throughout: a Python number would be a constant of the program, and another number a retrace."""
        kl_limit = np.inf if self._settings.target_kl is None else self._settings.target_kl
        values = (coefficients.learning_rate, coefficients.clip_ratio, coefficients.entropy_coef, kl_limit)
        count = -(-rows // self._settings.batch_size)
        packed, order = tf.constant(self._packed), tf.constant(self._order)
        return Minibatches(packed, order, tf.constant(rows), tf.constant(count), tf.constant(values, tf.float32))

    def _check_finite(self, means: dict[str, float], parameters: tf.Tensor, rows: PPORows) -> None:
        broken = [name.replace("_", " ") for name, value in means.items() if not np.isfinite(value)]
        broken += [name for name, tensor in named(self.layout, parameters).items() if not np.isfinite(tensor).all()]
        if broken:
            raise FloatingPointError(
                f"Expected finite losses and weights from an update of {len(rows)} rows, received others: {', '.join(broken)}. "
                f"The weights from before it are kept. The rows held: {extremes(rows)}. Look for huge rewards or observations "
                "(network_settings.normalize, hyperparameters.reward_scaling), or lower learning_rate."
            )
