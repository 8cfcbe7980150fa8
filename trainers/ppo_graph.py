"""PPO's programs: all epochs and minibatches of an update, and the value estimates of many rows, as pure functions of tensors.

Everything has static shapes: rows are padded to a capacity, how many there are is a run-time value. All parameters are one flat
vector.

Letters: ``N`` rows of a buffer (capacity included), ``M`` rows of a minibatch (``batch_size``), ``E`` epochs, ``D`` packed
columns, ``P`` parameters of all networks, ``I``, ``C``, ``B``, ``S`` as in `trainers.graph`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from envs.specs import BehaviorSpec
from trainers import graph, losses  # graph first: it quietens TensorFlow before the import
from trainers.networks import Layout, actor_layout, body_layers, critic_layout, input_size
from trainers.optimizer import AdamState, adam, clip_by_global_norm, global_norm
from trainers.settings import NetworkSettings, PPOHyperparameters

import tensorflow as tf  # isort: skip

STATISTICS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "gradient_norm")
"""What an update sums over minibatches, in this order."""

VALUE_BLOCK = 512
"""Rows of one pass of the value program: their activations stay in a core's cache."""


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
        packed: float32 ``[N, D]``, rows as `PPOGraph.columns` says.
        order: int32 ``[E, N + M]``, a permutation of the real rows per epoch.
        rows: int32, how many are real.
        count: int32, minibatches per epoch.
        coefficients: float32 ``[4]``: learning rate, clip ratio, entropy coefficient, limit of an epoch's mean KL.
    """

    packed: tf.Tensor
    order: tf.Tensor
    rows: tf.Tensor
    count: tf.Tensor
    coefficients: tf.Tensor


@dataclass(frozen=True)
class PPOGraph:
    """All that shapes the programs; what changes from update to update are their inputs.

    Attributes:
        signals: names of the reward signals, one value head each.
    """

    spec: BehaviorSpec
    network: NetworkSettings
    signals: tuple[str, ...]
    batch_size: int
    shared_critic: bool
    value_coef: float
    value_clip: bool
    max_grad_norm: float | None
    adam_epsilon: float
    entropy_reduction: str

    @classmethod
    def of(cls, spec: BehaviorSpec, network: NetworkSettings, settings: PPOHyperparameters, signals: tuple[str, ...]) -> PPOGraph:
        """The graph that `settings` ask for."""
        inputs_as_given = network.model_copy(update={"normalize": False})  # they come normalised: it does not shape the programs
        return cls(
            spec, inputs_as_given, signals, settings.batch_size, settings.shared_critic, settings.value_coef, settings.value_clip,
            settings.max_grad_norm, settings.adam_epsilon, settings.entropy_reduction,
        )

    @property
    def layout(self) -> Layout:
        """Names and shapes of the tensors in the flat vector, in its order."""
        critic = critic_layout(self.spec, self.network, self.signals, self.shared_critic)
        return {**actor_layout(self.spec, self.network), **critic}

    @property
    def columns(self) -> dict[str, int]:
        """Names and widths of what a packed row holds."""
        action, signals = self.spec.action, len(self.signals)
        return {
            "inputs": input_size(self.spec), "continuous": action.continuous_size, "discrete": len(action.discrete_branches),
            "log_prob": 1, "advantage": 1, "target": signals, "old_value": signals,
        }

    # -- an update ---------------------------------------------------------------------------------------------------

    def learn(self, progress: Progress, minibatches: Minibatches, end: tf.Tensor) -> Progress:
        """Learn from minibatches ``progress.done`` … `end` − 1 of all epochs, or up to the end of an epoch above the KL limit."""
        def goes_on(progress: Progress) -> tf.Tensor:
            return (progress.done < end) & ~progress.stopped

        return tf.while_loop(goes_on, lambda progress: (self.learn_minibatch(progress, minibatches),), (progress,))[0]

    def learn_minibatch(self, progress: Progress, minibatches: Minibatches) -> Progress:
        """One optimizer step on the next minibatch."""
        learning_rate, clip_ratio, entropy_coef, kl_limit = tf.unstack(minibatches.coefficients)
        minibatch, weight = self.minibatch(progress.done, minibatches)
        tensors = self._tensors(progress.parameters)
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            total, means, ratio_error = self.loss(self._named(tensors), minibatch, weight, clip_ratio, entropy_coef)
        gradients = tape.gradient(total, tensors, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradient = tf.concat([tf.reshape(g, [-1]) for g in gradients], axis=0)
        norm = global_norm(gradient)
        if self.max_grad_norm is not None:
            gradient = clip_by_global_norm(gradient, norm, self.max_grad_norm)
        state = AdamState(progress.m, progress.v, progress.step)
        parameters, state = adam(progress.parameters, gradient, state, learning_rate, self.adam_epsilon)
        done = progress.done + 1
        epoch_kl, epoch_ends = progress.epoch_kl + means[STATISTICS.index("kl")], done % minibatches.count == 0
        return Progress(
            done, parameters, *state,
            sums=progress.sums + tf.stack([*means, norm]),
            epoch_kl=tf.where(epoch_ends, 0.0, epoch_kl),
            first_ratio_error=tf.where(progress.done == 0, ratio_error, progress.first_ratio_error),
            stopped=epoch_ends & (epoch_kl > kl_limit * tf.cast(minibatches.count, tf.float32)),
        )

    def minibatch(self, number: tf.Tensor, minibatches: Minibatches) -> tuple[tf.Tensor, tf.Tensor]:
        """Rows ``[M, D]`` and weights ``[M]`` of one minibatch: 1/size for its rows, 0 for what pads it to M.

        Sizes within an epoch differ by at most one, and every row is in one minibatch.
        """
        epoch, j = number // minibatches.count, number % minibatches.count
        size, longer = minibatches.rows // minibatches.count, minibatches.rows % minibatches.count
        first = j * size + tf.minimum(j, longer)
        size += tf.cast(j < longer, tf.int32)
        # Not tf.slice: XLA takes what its begin depends on (rows, count) for constants and would compile anew for every
        # number of rows (tests/trainers/test_ppo_update.py: test_no_input_is_a_constant_of_the_compiled_program).
        first += epoch * minibatches.order.shape[1]
        index = tf.gather(tf.reshape(minibatches.order, [-1]), first + tf.range(self.batch_size))
        real = tf.range(self.batch_size) < size
        return tf.gather(minibatches.packed, index), tf.cast(real, tf.float32) / tf.cast(size, tf.float32)

    def loss(
        self, named: graph.Parameters, minibatch: tf.Tensor, weight: tf.Tensor, clip_ratio: tf.Tensor, entropy_coef: tf.Tensor
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...], tf.Tensor]:
        """policy loss + ``value_coef`` · value loss − β · entropy; the first five of `STATISTICS`; the largest |ratio − 1|."""
        columns = tf.split(minibatch, list(self.columns.values()), axis=1)
        inputs, continuous, discrete, old_log_prob, advantage, target, old_value = columns
        features = graph.body(named, inputs, body_layers(self.spec, self.network, "actor"), self.network.activation)
        log_prob, entropy = graph.log_prob_and_entropy(
            named, features, self.spec, self.network, continuous, tf.cast(discrete, tf.int32), self.entropy_reduction
        )
        value = graph.values(named, inputs, self.spec, self.network, self.signals, self.shared_critic, features)
        log_ratio = losses.log_importance_ratio(log_prob, old_log_prob[:, 0], weight)
        ratio = tf.exp(log_ratio)
        policy_loss = losses.clipped_surrogate_loss(ratio, advantage[:, 0], clip_ratio, weight)
        value_loss = losses.value_loss(value, old_value, target, clip_ratio if self.value_clip else None, weight)
        entropy = losses.weighted_sum(weight, entropy)
        kl, clipped = losses.approximate_kl(log_ratio, weight), losses.clip_fraction(ratio, clip_ratio, weight)
        total = policy_loss + self.value_coef * value_loss - entropy_coef * entropy
        return total, (policy_loss, value_loss, entropy, kl, clipped), tf.reduce_max(tf.abs(ratio - 1.0))

    # -- values ------------------------------------------------------------------------------------------------------

    def values(self, parameters: tf.Tensor, blocks: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Value estimates of the first `count` blocks of inputs ``[K, VALUE_BLOCK, I]``: ``[K · VALUE_BLOCK, S]``."""
        named = self._named(self._tensors(parameters))

        def one_more(i: tf.Tensor, out: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            value = graph.values(named, tf.gather(blocks, i), self.spec, self.network, self.signals, self.shared_critic)
            return i + 1, out.write(i, value)

        out = tf.TensorArray(tf.float32, size=blocks.shape[0], element_shape=(VALUE_BLOCK, len(self.signals)))
        out = tf.while_loop(lambda i, _: i < count, one_more, (tf.constant(0), out))[1]
        return tf.reshape(out.stack(), [-1, len(self.signals)])

    # -- parameters --------------------------------------------------------------------------------------------------

    def _tensors(self, parameters: tf.Tensor) -> list[tf.Tensor]:
        sizes = [int(np.prod(shape)) for shape in self.layout.values()]
        return [tf.reshape(part, shape) for part, shape in zip(tf.split(parameters, sizes), self.layout.values(), strict=True)]

    def _named(self, tensors: list[tf.Tensor]) -> graph.Parameters:
        return dict(zip(self.layout, tensors, strict=True))


class CompiledPPO(NamedTuple):
    """`PPOGraph.learn` and `PPOGraph.values`, compiled at their first call."""

    learn: Callable[[Progress, Minibatches, tf.Tensor], Progress]
    values: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


@functools.lru_cache(maxsize=32)
def compiled(ppo: PPOGraph) -> CompiledPPO:
    """The programs of a graph; equal graphs share them, so that a second trainer in one process compiles nothing."""
    return CompiledPPO(*(tf.function(program, jit_compile=True, autograph=False) for program in (ppo.learn, ppo.values)))
