"""PPO's compiled programs: value estimates of many rows, and all epochs and minibatches of an update.

Everything has static shapes: rows are padded to a capacity, how many there are is a run-time value. One program of each kind is compiled
in the life of a trainer (tests/trainers/test_ppo_update.py counts the traces).

Letters: ``N`` rows of a buffer, ``M`` rows of a minibatch (``batch_size``), ``D`` packed columns, ``P`` parameters of all networks,
``I``, ``C``, ``B``, ``S`` as in `trainers.graph`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from envs.specs import BehaviorSpec
from trainers import graph, losses  # graph first: it quietens TensorFlow before the import
from trainers.networks import actor_layout, body_layers, check_weights, critic_layout, input_size
from trainers.optimizer import AdamState, adam, clip_by_global_norm, global_norm
from trainers.settings import NetworkSettings, PPOHyperparameters
from trainers.trainer import Weights

import tensorflow as tf  # isort: skip

STATISTICS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "gradient_norm")
"""What an update reports as means over minibatches, in the order in which the program sums them."""

_CHUNK_S = 1.0  # longest time between two calls of between_chunks, about
_FIRST_CHUNK = 64  # minibatches, while the speed of this machine is not known
_VALUE_BLOCK = 512  # rows of one pass of the value program; its activations stay in a core's cache

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PPORows:
    """What an update learns from.

    Attributes:
        inputs: float32 ``[N, I]``, network inputs.
        continuous: float32 ``[N, C]``; discrete: int32 ``[N, B]``.
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
    """Scheduled values of one update: run-time inputs of the program."""

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


class _Progress(NamedTuple):
    """What one minibatch hands to the next; sums run on through all chunks, so that no result depends on where those end."""

    done: tf.Tensor  # int32: minibatches learnt from
    parameters: tf.Tensor  # [P]
    m: tf.Tensor
    v: tf.Tensor
    step: tf.Tensor  # int64: Adam's, over all updates
    sums: tf.Tensor  # [len(STATISTICS)]
    epoch_kl: tf.Tensor  # sum over the minibatches of the running epoch
    first_ratio_error: tf.Tensor
    stopped: tf.Tensor  # bool: an epoch ended above target_kl


class PPOProgram:
    """All parameters in one flat vector, Adam's state, and the programs that read and move them.

    Args:
        signals: names of the reward signals, one value head each.
        max_rows: rows an update can hold without growing (and compiling anew).
        weights: tensors of actor and critic to begin with.
    """

    def __init__(
        self, spec: BehaviorSpec, network: NetworkSettings, settings: PPOHyperparameters, signals: Sequence[str], max_rows: int,
        weights: Weights,
    ) -> None:
        self._spec, self._network, self._settings, self._signals = spec, network, settings, tuple(signals)
        self.layout = {**actor_layout(spec, network), **critic_layout(spec, network, self._signals, settings.shared_critic)}
        self._sizes = [int(np.prod(shape)) for shape in self.layout.values()]
        self._columns = (input_size(spec), spec.action.continuous_size, len(spec.action.discrete_branches), 1, 1, *[len(signals)] * 2)
        self.set_weights(weights)
        zeros = {name: np.zeros(shape, np.float32) for name, shape in self.layout.items()}
        self.set_adam(zeros, zeros, 0)
        self._minibatches_per_s = 0.0
        # Made here, not by a decorator: a second trainer in the process must not count as a retrace of the first.
        self._run = tf.function(self._minibatches, jit_compile=True, autograph=False)
        self._values = tf.function(self._value_blocks, jit_compile=True, autograph=False)
        self._blocks = np.zeros((-(-max_rows // _VALUE_BLOCK), _VALUE_BLOCK, self._columns[0]), np.float32)
        self._reserve(max_rows)

    def _reserve(self, capacity: int) -> None:
        self.capacity = capacity
        self._packed = np.zeros((capacity, sum(self._columns)), np.float32)
        # One slice of batch_size at the last row must still lie inside.
        self._order = np.zeros((self._settings.num_epoch, capacity + self._settings.batch_size), np.int32)

    # -- state -------------------------------------------------------------------------------------------------------

    def set_weights(self, weights: Weights) -> None:
        """Take over the tensors of actor and critic.

        Raises:
            ValueError: a tensor is missing, unknown, not finite or of another shape; the present ones stay.
        """
        check_weights(weights, self.layout, "the networks of this configuration")
        self._parameters = self._flat(weights)

    def weights(self) -> Weights:
        """Fresh arrays of all tensors."""
        return self._named_arrays(self._parameters)

    def set_adam(self, m: Weights, v: Weights, step: int) -> None:
        """Take over Adam's moments and its step count."""
        self._adam = AdamState(self._flat(m), self._flat(v), tf.constant(step, tf.int64))

    def adam_state(self) -> tuple[Weights, Weights, int]:
        """Fresh arrays of Adam's first and second moments, and its step count."""
        return self._named_arrays(self._adam.m), self._named_arrays(self._adam.v), int(self._adam.step)

    def _flat(self, tensors: Weights) -> tf.Tensor:
        return tf.constant(np.concatenate([tensors[name].ravel() for name in self.layout]), tf.float32)

    def _named_arrays(self, flat: tf.Tensor) -> Weights:
        parts = np.split(flat.numpy(), np.cumsum(self._sizes)[:-1])
        return {name: part.reshape(shape).copy() for (name, shape), part in zip(self.layout.items(), parts, strict=True)}

    @property
    def traces(self) -> dict[str, int]:
        """How often each program was traced; once each in the life of a trainer whose capacity suffices."""
        programs = {"update": self._run, "values": self._values}
        return {name: program.experimental_get_tracing_count() for name, program in programs.items()}

    # -- values ------------------------------------------------------------------------------------------------------

    def values(self, inputs: np.ndarray) -> np.ndarray:
        """Value estimates of network inputs float32 ``[N, I]``, as many as there are: float32 ``[N, S]``."""
        flat = self._blocks.reshape(-1, self._columns[0])
        parts = []
        for first in range(0, len(inputs), len(flat)):
            part = inputs[first : first + len(flat)]
            flat[: len(part)] = part
            count = tf.constant(-(-len(part) // _VALUE_BLOCK))
            parts.append(self._values(self._parameters, tf.constant(self._blocks), count).numpy()[: len(part)])
        return np.concatenate(parts) if parts else np.empty((0, len(self._signals)), np.float32)

    def _value_blocks(self, parameters: tf.Tensor, blocks: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Values ``[blocks · _VALUE_BLOCK, S]`` of the first `count` blocks of inputs; 0 for the others."""
        named = self._named(self._split_parameters(parameters))
        shared = self._settings.shared_critic

        def one_more(i: tf.Tensor, out: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            return i + 1, out.write(i, graph.values(named, blocks[i], self._spec, self._network, self._signals, shared))

        out = tf.TensorArray(tf.float32, size=len(self._blocks), element_shape=(_VALUE_BLOCK, len(self._signals)))
        out = tf.while_loop(lambda i, _: i < count, one_more, (tf.constant(0), out))[1]
        return tf.reshape(out.stack(), [-1, len(self._signals)])

    # -- updates -----------------------------------------------------------------------------------------------------

    def compile(self) -> None:
        """Trace and compile both programs without a minibatch or a random number: no state is touched."""
        self._values(self._parameters, tf.constant(self._blocks), tf.constant(0))
        self._run(self._start(), *self._arguments(1, Coefficients(0.0, 0.0, 0.0)), tf.constant(0))

    def update(
        self, rows: PPORows, coefficients: Coefficients, rng: np.random.Generator, between_chunks: Callable[[], None] = lambda: None
    ) -> UpdateResult:
        """All epochs over `rows`, in chunks of about a second whose sizes change nothing in the result.

        Every epoch is a fresh permutation, cut into ceil(N / batch_size) minibatches whose sizes differ by at most one. After an epoch
        whose mean approximate KL divergence is above ``target_kl`` no other begins. Parameters and Adam's state move at the end, as one,
        and only if everything is finite.

        Raises:
            FloatingPointError: a loss or a weight is not finite.
        """
        self._pack(rows)
        for epoch in self._order:
            epoch[: len(rows)] = rng.permutation(len(rows))
        arguments = self._arguments(len(rows), coefficients)
        total, done = int(arguments[3]) * self._settings.num_epoch, 0
        progress = self._start()
        while done < total:
            end, started = min(total, done + self._chunk()), time.perf_counter()
            progress = self._run(progress, *arguments, tf.constant(end))
            before, done = done, int(progress.done)
            self._minibatches_per_s = max(1, done - before) / (time.perf_counter() - started)
            if done < end or progress.stopped:
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
        for field, width in zip(fields(PPORows), self._columns, strict=True):
            self._packed[: len(rows), first : first + width] = getattr(rows, field.name).reshape(len(rows), width)
            first += width

    def _start(self) -> _Progress:
        zero = tf.constant(0.0)
        sums = tf.zeros(len(STATISTICS))
        return _Progress(tf.constant(0), self._parameters, *self._adam, sums, zero, zero, tf.constant(False))

    def _arguments(self, rows: int, coefficients: Coefficients) -> tuple[tf.Tensor, ...]:
        """Packed rows, orders, number of rows and of minibatches per epoch, and coefficients; tensors, since numbers would be retraced."""
        target_kl = np.inf if self._settings.target_kl is None else self._settings.target_kl
        scheduled = (coefficients.learning_rate, coefficients.clip_ratio, coefficients.entropy_coef, target_kl)
        count = -(-rows // self._settings.batch_size)
        return tf.constant(self._packed), tf.constant(self._order), tf.constant(rows), tf.constant(count), tf.constant(scheduled, tf.float32)

    # -- the program -------------------------------------------------------------------------------------------------

    def _minibatches(self, progress: _Progress, packed, order, rows, count, coefficients, end) -> _Progress:
        """Learn from minibatches ``progress.done`` … `end` − 1, `count` of them in each epoch."""
        def goes_on(progress: _Progress) -> tf.Tensor:
            return (progress.done < end) & ~progress.stopped

        def one_more(progress: _Progress) -> tuple[_Progress]:
            minibatch, weight = self._gather(progress.done, packed, order, rows, count)
            return (self._minibatch(progress, minibatch, weight, count, coefficients),)

        return tf.while_loop(goes_on, one_more, (progress,))[0]

    def _gather(self, done, packed, order, rows, count) -> tuple[tf.Tensor, tf.Tensor]:
        """Rows and weights of the next minibatch: sizes within an epoch differ by at most one, the rest is padding of weight 0."""
        epoch, j = done // count, done % count
        size, longer = rows // count, rows % count
        first = j * size + tf.minimum(j, longer)
        size += tf.cast(j < longer, tf.int32)
        # Not tf.slice: XLA takes its begin for a compile-time constant, and with it the number of rows: each new one would be compiled.
        places = tf.range(self._settings.batch_size)
        index = tf.gather(tf.reshape(order, [-1]), epoch * order.shape[1] + first + places)
        real = places < size
        return tf.gather(packed, index), tf.cast(real, tf.float32) / tf.cast(size, tf.float32)

    def _minibatch(self, progress: _Progress, minibatch, weight, count, coefficients) -> _Progress:
        """One optimizer step."""
        settings, (learning_rate, clip_ratio, entropy_coef, target_kl) = self._settings, tf.unstack(coefficients)
        tensors = self._split_parameters(progress.parameters)
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            total, means, ratio_error = self._loss(self._named(tensors), minibatch, weight, clip_ratio, entropy_coef)
        gradients = tape.gradient(total, tensors, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradient = tf.concat([tf.reshape(g, [-1]) for g in gradients], axis=0)
        norm = global_norm(gradient)
        if settings.max_grad_norm is not None:
            gradient = clip_by_global_norm(gradient, norm, settings.max_grad_norm)
        state = AdamState(progress.m, progress.v, progress.step)
        parameters, state = adam(progress.parameters, gradient, state, learning_rate, settings.adam_epsilon)
        done = progress.done + 1
        epoch_kl, epoch_ends = progress.epoch_kl + means[STATISTICS.index("kl")], done % count == 0
        return _Progress(
            done, parameters, *state,
            sums=progress.sums + tf.stack([*means, norm]),
            epoch_kl=tf.where(epoch_ends, 0.0, epoch_kl),
            first_ratio_error=tf.where(progress.done == 0, ratio_error, progress.first_ratio_error),
            stopped=epoch_ends & (epoch_kl > target_kl * tf.cast(count, tf.float32)),
        )

    def _loss(self, named: graph.Parameters, minibatch, weight, clip_ratio, entropy_coef):
        """Total loss, the first five of `STATISTICS`, and the largest |ratio − 1|."""
        settings = self._settings
        inputs, continuous, discrete, old_log_prob, advantage, target, old_value = tf.split(minibatch, self._columns, axis=1)
        features = graph.body(named, inputs, body_layers(self._spec, self._network, "actor"), self._network.activation)
        log_prob, entropy = graph.log_prob_and_entropy(
            named, features, self._spec, self._network, continuous, tf.cast(discrete, tf.int32), settings.entropy_reduction
        )
        value = graph.values(named, inputs, self._spec, self._network, self._signals, settings.shared_critic, features)
        log_ratio = losses.log_importance_ratio(log_prob, old_log_prob[:, 0], weight)
        ratio = tf.exp(log_ratio)
        policy_loss = losses.clipped_surrogate_loss(ratio, advantage[:, 0], clip_ratio, weight)
        value_loss = losses.value_loss(value, old_value, target, clip_ratio if settings.value_clip else None, weight)
        entropy = losses.weighted_sum(weight, entropy)
        kl, clipped = losses.approximate_kl(log_ratio, weight), losses.clip_fraction(ratio, clip_ratio, weight)
        total = policy_loss + settings.value_coef * value_loss - entropy_coef * entropy
        return total, (policy_loss, value_loss, entropy, kl, clipped), tf.reduce_max(tf.abs(ratio - 1.0))

    def _split_parameters(self, flat: tf.Tensor) -> list[tf.Tensor]:
        return [tf.reshape(part, shape) for part, shape in zip(tf.split(flat, self._sizes), self.layout.values(), strict=True)]

    def _named(self, tensors: list[tf.Tensor]) -> graph.Parameters:
        return dict(zip(self.layout, tensors, strict=True))

    def _check_finite(self, means: dict[str, float], parameters: tf.Tensor, rows: PPORows) -> None:
        broken = [name.replace("_", " ") for name, value in means.items() if not np.isfinite(value)]
        broken += [name for name, tensor in self._named_arrays(parameters).items() if not np.isfinite(tensor).all()]
        if broken:
            columns = {field.name.replace("_", " "): getattr(rows, field.name) for field in fields(PPORows)}
            extremes = ", ".join(f"{name} {x.min():.4g} … {x.max():.4g}" for name, x in columns.items() if x.size)
            raise FloatingPointError(
                f"Expected finite losses and weights after an update of {len(rows)} rows, received others for {', '.join(broken)}. "
                f"The weights from before it are kept. The rows held: {extremes}. Look for huge rewards or observations "
                "(network_settings.normalize, hyperparameters.reward_scaling), or lower learning_rate."
            )
