"""PPO's update: all epochs and minibatches in one program, as a pure function of tensors.

Everything has static shapes: rows are padded to a capacity, how many there are is a run-time value. All parameters are one flat
vector. Without a memory an update shuffles rows; with one it shuffles sequences of consecutive rows, each of which starts from a
memory of its own.

Letters: ``N`` rows of a buffer (capacity included), ``M`` rows of a minibatch, ``E`` epochs, ``D`` packed columns, ``P``
parameters of all networks, ``Q`` sequences, ``L`` rows of the longest one, ``I``, ``C``, ``B``, ``W``, ``S`` as in
`trainers.graph`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from trainers import graph, losses
from trainers.architecture import Architecture
from trainers.minibatches import minibatch_of
from trainers.networks import Layout, actor_layout, critic_layout
from trainers.optimizer import AdamState, adam, clip_by_global_norm, global_norm
from trainers.quiet_tensorflow import tf
from trainers.settings import PPOHyperparameters

STATISTICS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "gradient_norm")
"""What an update sums over minibatches, in this order."""

Tensors = Mapping[str, tf.Tensor]
"""What rows or sequences hold, by name."""


class Progress(NamedTuple):
    """What one minibatch hands to the next.

    Sums run on through all calls of an update, so that no result depends on where a call ends.

    Attributes:
        done: int32, minibatches learnt from.
        parameters, m, v: float32 ``[P]``; step: int64, Adam's count over all updates.
        sums: float32 ``[len(STATISTICS)]``.
        epoch_kl: float32, summed over the minibatches of the running epoch.
        first_ratio_error: float32, largest |ratio − 1| in the first minibatch.
        stopped: bool, an epoch ended above the KL limit.
    """

    done: tf.Tensor
    parameters: tf.Tensor
    m: tf.Tensor
    v: tf.Tensor
    step: tf.Tensor
    sums: tf.Tensor
    epoch_kl: tf.Tensor
    first_ratio_error: tf.Tensor
    stopped: tf.Tensor


class Minibatches(NamedTuple):
    """Which rows make which minibatch, and with what coefficients: fixed before an update begins.

    Attributes:
        rows: ``packed``, float32 ``[N, D]`` as `PPOGraph.columns` says, and the others of `PPOGraph.stored`.
        sequences: with a memory only, ``start`` and ``length``, int32 ``[N]``, and ``actor`` and ``critic``, the memories before
            their first rows, float32 ``[N, size]`` (none for the critic with a shared one).
        order: int32 ``[E, N + items of a minibatch]``, a permutation of the items (rows or sequences) per epoch.
        items: int32, how many are real.
        count: int32, minibatches per epoch.
        coefficients: float32 ``[4]``: learning rate, clip ratio, entropy coefficient, limit of an epoch's mean KL.
    """

    rows: Tensors
    sequences: Tensors
    order: tf.Tensor
    items: tf.Tensor
    count: tf.Tensor
    coefficients: tf.Tensor


class Minibatch(NamedTuple):
    """One minibatch, with padding.

    Attributes:
        rows: as in `Minibatches`, ``[M, …]``; with a memory, M = Q · L, one sequence after another.
        memory: of ``actor`` and ``critic`` before the first row of each sequence, float32 ``[Q, size]``; empty without memories.
        weight: float32 ``[M]``: one over the number of real rows, 0 for padding.
    """

    rows: Tensors
    memory: Tensors
    weight: tf.Tensor


def channels_last(arch: Architecture) -> Architecture:
    """The same networks on images ``[n, height, width, channels]``, so that they are transposed once and not in each minibatch."""
    return replace(arch, images=tuple(
        replace(image, shape=(image.height, image.width, image.channels), layout="HWC") for image in arch.images
    ))


@dataclass(frozen=True)
class PPOGraph:
    """All that shapes the program; what changes from update to update are its inputs.

    Attributes:
        arch: for inputs that come normalised, and images with their channels last (see `channels_last`).
        signals: names of the reward signals, one value head each.
        batch_size: rows of a minibatch; with a memory as many whole sequences as fit, at least one.
    """

    arch: Architecture
    signals: tuple[str, ...]
    batch_size: int
    shared_critic: bool
    value_coef: float
    value_clip: bool
    max_grad_norm: float | None
    adam_epsilon: float
    entropy_reduction: str

    @classmethod
    def of(cls, arch: Architecture, settings: PPOHyperparameters, signals: tuple[str, ...]) -> PPOGraph:
        """The graph that `settings` ask for."""
        return cls(
            channels_last(arch.as_given()), signals, settings.batch_size, settings.shared_critic, settings.value_coef,
            settings.value_clip, settings.max_grad_norm, settings.adam_epsilon, settings.entropy_reduction,
        )

    @property
    def compile_with_xla(self) -> bool:
        """Whether XLA compiles the programs, or TensorFlow runs them as they are; see `graph.compile_with_xla`."""
        return graph.compile_with_xla(self.arch)

    @property
    def layout(self) -> Layout:
        """Names and shapes of the tensors in the flat vector, in its order."""
        return {**actor_layout(self.arch), **critic_layout(self.arch, self.signals, self.shared_critic)}

    @property
    def columns(self) -> dict[str, int]:
        """Names and widths of what a packed row holds."""
        action, signals = self.arch.spec.action, len(self.signals)
        return {
            "vector": self.arch.vector_width, "continuous": action.continuous_size, "discrete": len(action.discrete_branches),
            "log_prob": 1, "advantage": 1, "target": signals, "old_value": signals,
        }

    @property
    def images(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name -> shape and dtype of the images of a row."""
        dtypes = {o.name: o.dtype for o in self.arch.spec.observations}
        return {f"image_{i}": (image.shape, dtypes[image.name]) for i, image in enumerate(self.arch.images)}

    @property
    def stored(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name -> shape and dtype of what a row holds: everything small in one matrix, of which a minibatch is one gather."""
        action = self.arch.spec.action
        mask = {"action_mask": ((action.choices,), "bool")} if action.masked else {}
        return {"packed": ((sum(self.columns.values()),), "float32"), **mask, **self.images}

    @property
    def scopes(self) -> tuple[str, ...]:
        """Networks with a body, and with a memory of their own where there are memories."""
        return ("actor",) if self.shared_critic else ("actor", "critic")

    @property
    def sequence_length(self) -> int:
        """L; 1 without a memory, where every row is an item by itself."""
        return self.arch.memory.sequence_length if self.arch.memory else 1

    @property
    def items(self) -> int:
        """Rows of a minibatch, or sequences with a memory."""
        return max(1, self.batch_size // self.sequence_length)

    # -- an update ---------------------------------------------------------------------------------------------------

    def learn(self, progress: Progress, minibatches: Minibatches, end: tf.Tensor) -> Progress:
        """Learn from minibatches ``progress.done`` … `end` − 1 of all epochs, or up to the end of an epoch above the KL limit."""
        def goes_on(progress: Progress) -> tf.Tensor:
            return (progress.done < end) & ~progress.stopped

        return tf.while_loop(goes_on, lambda progress: (self.learn_minibatch(progress, minibatches),), (progress,))[0]

    def learn_minibatch(self, progress: Progress, minibatches: Minibatches) -> Progress:
        """One optimizer step on the next minibatch."""
        learning_rate, clip_ratio, entropy_coef, kl_limit = tf.unstack(minibatches.coefficients)
        minibatch = self.minibatch(progress.done, minibatches)
        tensors = self.tensors(progress.parameters)
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            total, means, ratio_error = self.loss(self.named(tensors), minibatch, clip_ratio, entropy_coef)
        gradients = tape.gradient(total, tensors, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradient = tf.concat([tf.reshape(g, [-1]) for g in gradients], axis=0)
        # Where XLA does not compile the whole, it still makes one loop of this: on millions of parameters three times as fast.
        step = self.step if self.compile_with_xla else tf.function(self.step, jit_compile=True, autograph=False)
        state = AdamState(progress.m, progress.v, progress.step)
        parameters, state, norm = step(progress.parameters, gradient, state, learning_rate)
        done = progress.done + 1
        epoch_kl, epoch_ends = progress.epoch_kl + means[STATISTICS.index("kl")], done % minibatches.count == 0
        return Progress(
            done, parameters, *state,
            sums=progress.sums + tf.stack([*means, norm]),
            epoch_kl=tf.where(epoch_ends, 0.0, epoch_kl),
            first_ratio_error=tf.where(progress.done == 0, ratio_error, progress.first_ratio_error),
            stopped=epoch_ends & (epoch_kl > kl_limit * tf.cast(minibatches.count, tf.float32)),
        )

    def step(
        self, parameters: tf.Tensor, gradient: tf.Tensor, state: AdamState, learning_rate: tf.Tensor
    ) -> tuple[tf.Tensor, AdamState, tf.Tensor]:
        """New parameters and Adam's new state, from a gradient that is not clipped yet; and its norm."""
        norm = global_norm(gradient)
        if self.max_grad_norm is not None:
            gradient = clip_by_global_norm(gradient, norm, self.max_grad_norm)
        return *adam(parameters, gradient, state, learning_rate, self.adam_epsilon), norm

    def minibatch(self, number: tf.Tensor, minibatches: Minibatches) -> Minibatch:
        """The rows of one minibatch. Numbers of items within an epoch differ by at most one, and every item is in one minibatch."""
        index, weight = minibatch_of(minibatches.order, number, minibatches.items, minibatches.count, self.items)
        memory: dict[str, tf.Tensor] = {}
        if self.arch.memory:
            chosen = {name: tf.gather(x, index) for name, x in minibatches.sequences.items()}
            step = tf.range(self.sequence_length)[None]
            length = chosen["length"][:, None]
            # What pads a sequence at its end is its own last row: real numbers, of which none counts.
            index = tf.reshape(chosen["start"][:, None] + tf.minimum(step, length - 1), [-1])
            weight = tf.cast(tf.reshape((weight[:, None] > 0.0) & (step < length), [-1]), tf.float32)
            weight /= tf.reduce_sum(weight)
            memory = {scope: chosen[scope] for scope in self.scopes}
        rows = {name: tf.gather(x, index) for name, x in minibatches.rows.items()}
        return Minibatch(rows, memory, weight)

    def loss(
        self, named: graph.Parameters, minibatch: Minibatch, clip_ratio: tf.Tensor, entropy_coef: tf.Tensor
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...], tf.Tensor]:
        """policy loss + ``value_coef`` · value loss − β · entropy; the first five of `STATISTICS`; the largest |ratio − 1|."""
        column, weight = self.columns_of(minibatch), minibatch.weight
        features, _ = self.features(named, minibatch)
        log_prob, entropy = self.log_prob_and_entropy(named, features["actor"], minibatch)
        value = graph.values(named, features[self.scopes[-1]], self.arch, self.signals)
        log_ratio = losses.log_importance_ratio(log_prob, column["log_prob"][:, 0], weight)
        ratio = tf.exp(log_ratio)
        policy_loss = losses.clipped_surrogate_loss(ratio, column["advantage"][:, 0], clip_ratio, weight)
        clip_range = clip_ratio if self.value_clip else None
        value_loss = losses.value_loss(value, column["old_value"], column["target"], clip_range, weight)
        entropy = losses.weighted_sum(weight, entropy)
        kl, clipped = losses.approximate_kl(log_ratio, weight), losses.clip_fraction(ratio, clip_ratio, weight)
        total = policy_loss + self.value_coef * value_loss - entropy_coef * entropy
        return total, (policy_loss, value_loss, entropy, kl, clipped), tf.reduce_max(tf.abs(ratio - 1.0))

    def columns_of(self, minibatch: Minibatch) -> Tensors:
        """The packed columns by name, float32 ``[M, width]``."""
        return dict(zip(self.columns, tf.split(minibatch.rows["packed"], list(self.columns.values()), axis=1), strict=True))

    def log_prob_and_entropy(
        self, named: graph.Parameters, features: tf.Tensor, minibatch: Minibatch
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Of the actions of a minibatch and of the distributions they come from, float32 ``[M]`` each; see `graph`."""
        column = self.columns_of(minibatch)
        return graph.log_prob_and_entropy(
            named, features, self.arch, column["continuous"], tf.cast(column["discrete"], tf.int32), self.entropy_reduction,
            minibatch.rows.get("action_mask"),
        )

    def features(self, named: graph.Parameters, minibatch: Minibatch) -> tuple[Tensors, Tensors]:
        """What the heads of each scope stand on, float32 ``[M, F]``; and its memory after each row ``[Q, L, size]``, with memories."""
        vector, images = self.columns_of(minibatch)["vector"], [minibatch.rows[name] for name in self.images]
        return self.features_of(named, vector, images, self.scopes, minibatch.memory)

    def features_of(
        self, named: graph.Parameters, vector: tf.Tensor, images: Sequence[tf.Tensor], scopes: Sequence[str], memory: Tensors
    ) -> tuple[Tensors, Tensors]:
        """The same of some scopes on any inputs of M rows; `memory` is that of each scope, and empty without memories."""
        features = [graph.features(named, vector, images, self.arch, scope) for scope in scopes]
        if not memory:
            return dict(zip(scopes, features, strict=True)), {}
        q = memory[scopes[0]].shape[0]
        sequences = [tf.reshape(x, [q, x.shape[0] // q, x.shape[1]]) for x in features]
        outputs, after = graph.remember(named, sequences, [memory[scope] for scope in scopes], self.arch, scopes)
        outputs = [tf.reshape(x, [vector.shape[0], x.shape[2]]) for x in outputs]
        return dict(zip(scopes, outputs, strict=True)), dict(zip(scopes, after, strict=True))

    # -- parameters --------------------------------------------------------------------------------------------------

    def tensors(self, parameters: tf.Tensor) -> list[tf.Tensor]:
        """The tensors of `layout` out of the flat vector."""
        sizes = [int(np.prod(shape)) for shape in self.layout.values()]
        return [tf.reshape(part, shape) for part, shape in zip(tf.split(parameters, sizes), self.layout.values(), strict=True)]

    def named(self, tensors: list[tf.Tensor]) -> graph.Parameters:
        """The same by name."""
        return dict(zip(self.layout, tensors, strict=True))
