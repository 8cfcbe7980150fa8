"""Driving SAC's compiled program: parameters, targets and optimizer state, packing of sampled batches, and updates in chunks."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from envs.specs import BehaviorSpec
from trainers import graph
from trainers.networks import Layout, check_weights
from trainers.optimizer import AdamState
from trainers.program import Program, extremes
from trainers.quiet_tensorflow import tf
from trainers.sac_batches import CallArrays, SACRows, SACSequences
from trainers.sac_graph import STATISTICS, Batches, Progress, SACGraph, compiled
from trainers.sac_networks import LOG_ALPHA
from trainers.settings import SACSettings
from trainers.trainer import Weights

_CHUNK_S = 1.0  # longest time between two calls of between_chunks, about


class SACProgram(Program):
    """Parameters of actor, critics and log α, target critics, Adam's state, and the compiled program that reads and moves them.

    Args:
        weights: tensors of actor, critics, target critics and log α to begin with.

    Attributes:
        draws: transitions, or sequences with a memory, that one update learns from.
        updates_per_call: most updates of one call of `update`.
    """

    def __init__(self, spec: BehaviorSpec, settings: SACSettings, weights: Weights) -> None:
        self._graph = SACGraph.of(spec, settings)
        self._learn = compiled(self._graph)
        self._arrays = CallArrays(self._graph.arch, len(self._graph.signals), settings.hyperparameters.batch_size)
        self.draws, self.updates_per_call = self._arrays.draws, self._arrays.updates
        self.target_layout = self._graph.target_layout
        super().__init__(self._graph.layout, {name: weights[name] for name in self._graph.layout})
        self.set_targets({name: weights[name] for name in self.target_layout})
        self._updates_per_s = 0.0

    # -- state -------------------------------------------------------------------------------------------------------

    def set_targets(self, tensors: Weights) -> None:
        """Take over the target critics.

        Raises:
            ValueError: as `set_weights`.
        """
        check_weights(tensors, self.target_layout, "the target critics of this configuration")
        self._target = tuple(tf.constant(tensors[name], tf.float32) for name in self.target_layout)

    def targets(self) -> Weights:
        """Fresh arrays of the target critics."""
        return _named(self.target_layout, self._target)

    def alpha(self) -> np.ndarray:
        """Entropy coefficient of each part of an action, float32 ``[P]``."""
        return np.exp(self._parameters[list(self.layout).index(LOG_ALPHA)].numpy())

    def _inside(self, tensors: Weights) -> tuple[tf.Tensor, ...]:
        return tuple(tf.constant(tensors[name], tf.float32) for name in self.layout)

    def _outside(self, inside: tuple[tf.Tensor, ...], prefix: str = "") -> Weights:
        return _named(self.layout, inside, prefix)

    @property
    def traces(self) -> int:
        """How often the program was traced, by this and all other objects of an equal graph."""
        return self._learn.experimental_get_tracing_count()

    # -- learning ----------------------------------------------------------------------------------------------------

    def compile(self) -> None:
        """Compile: no state and no random number is touched.

        By a call that learns from no batch; or, where only parts of an update are compiled, from one, and what comes of it is forgotten.
        """
        self._learn(self._start(), self._batches(0.0), tf.constant(0 if graph.compile_with_xla(self._graph.arch) else 1))

    def update(
        self, rows: SACRows | SACSequences, learning_rate: float, rng: np.random.Generator, between_chunks: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """An update on each batch of `rows`, in chunks of about a second whose sizes change nothing in the result.

        Args:
            rows: at most `updates_per_call` batches of `draws` rows or sequences.

        Returns:
            Statistic (`STATISTICS`, then ``value/{signal}``) -> mean over the updates.

        Raises:
            FloatingPointError: a loss or weight would not be finite; parameters, targets and Adam's state are those of before.
        """
        before = self._parameters, self._target, self._adam
        count = self._arrays.fill(rows, rng)
        batches, progress = self._batches(learning_rate), self._start()
        while (done := int(progress.done)) < count:
            end, started = min(count, done + self._chunk()), time.perf_counter()
            progress = self._learn(progress, batches, tf.constant(end))
            if not progress.finite:
                self._parameters, self._target, self._adam = before
                raise FloatingPointError(self._not_finite(progress, rows))
            self._parameters, self._target = progress.parameters, progress.target
            self._adam = AdamState(progress.m, progress.v, progress.step)
            self._updates_per_s = (end - done) / (time.perf_counter() - started)
            if end < count:
                between_chunks()
        names = [*STATISTICS, *(f"value/{signal}" for signal in self._graph.signals)]
        return dict(zip(names, (progress.sums.numpy() / count).tolist(), strict=True))

    def _chunk(self) -> int:
        return max(1, int(self._updates_per_s * _CHUNK_S)) if self._updates_per_s else self.updates_per_call

    def _start(self) -> Progress:
        sums = tf.zeros(len(STATISTICS) + len(self._graph.signals))
        return Progress(tf.constant(0), self._parameters, *self._adam, self._target, sums, tf.constant(True))

    def _batches(self, learning_rate: float) -> Batches:
        arrays = self._arrays
        blocks = {name: tf.constant(block) for name, block in arrays.blocks.items()}
        return Batches(tf.constant(arrays.packed), blocks, tf.constant(arrays.noise), tf.constant(learning_rate, tf.float32))

    def _not_finite(self, progress: Progress, rows: SACRows | SACSequences) -> str:
        names = [*STATISTICS, *self._graph.signals]
        broken = [name.replace("_", " ") for name, value in zip(names, progress.sums.numpy(), strict=True) if not np.isfinite(value)]
        broken += [name for name, tensor in self._outside(progress.parameters).items() if not np.isfinite(tensor).all()]
        broken += [name for name, tensor in _named(self.target_layout, progress.target).items() if not np.isfinite(tensor).all()]
        return (
            f"Expected finite losses and weights from {int(progress.done)} updates, received others: {', '.join(broken)}. The weights "
            f"from before them are kept. The batches: {extremes(rows)}; α {', '.join(f'{a:.4g}' for a in self.alpha())}. Look for huge rewards "
            "(reward_signals.extrinsic.strength scales them) or observations (network_settings.normalize), or lower learning_rate."
        )


def _named(layout: Layout, tensors: tuple[tf.Tensor, ...], prefix: str = "") -> Weights:
    return {name: tensor.numpy().copy() for name, tensor in zip(layout, tensors, strict=True) if name.startswith(prefix)}
