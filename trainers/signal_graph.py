"""What the models of reward signals have in common, as pure functions of tensors: what they see, rewards, optimizer steps.

A model is a frozen dataclass that says which tensors it has, what reward it gives and what its loss is (`SignalModel`). It knows
nothing of the algorithm that learns from its rewards.

Letters: ``N`` transitions, ``M`` of them in a minibatch, ``P`` parameters; others as in `trainers.graph`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from trainers import graph
from trainers.architecture import Architecture
from trainers.minibatches import minibatch_of
from trainers.networks import Dense, Layout
from trainers.normalizer import CLIP
from trainers.optimizer import AdamState, adam
from trainers.quiet_tensorflow import tf

Tensors = Mapping[str, tf.Tensor]


class Inputs(NamedTuple):
    """Inputs of networks, standardised: float32 ``[M, I]``, and images as `graph.encode` takes them."""

    vector: tf.Tensor
    images: tuple[tf.Tensor, ...]


class Seen(NamedTuple):
    """Transitions as a model sees them.

    Attributes:
        now, after: of the observations acted on, and of those that followed.
        continuous: float32 ``[M, C]`` in [-1, 1].
        discrete: int32 ``[M, B]``.
        ended: float32 ``[M]``, 1 where the task ended with the transition.
    """

    now: Inputs
    after: Inputs
    continuous: tf.Tensor
    discrete: tf.Tensor
    ended: tf.Tensor


class SignalModel(Protocol):
    """The networks of a signal. Equal models share compiled programs.

    Attributes:
        arch: of its own networks; inputs come standardised.
        learning_rate: of Adam.
        statistics: names of what `loss` returns besides the loss.
        has_experts: whether `loss` compares transitions with those of experts.
    """

    arch: Architecture
    learning_rate: float
    statistics: tuple[str, ...]
    has_experts: bool

    @property
    def scopes(self) -> tuple[str, ...]:
        """Of its bodies (see `trainers.networks.body_layout`), in the order in which first weights are drawn."""

    @property
    def layers(self) -> tuple[Dense, ...]:
        """Dense layers besides the bodies."""

    @property
    def layout(self) -> Layout:
        """Names and shapes of what is learnt."""

    @property
    def fixed(self) -> Layout:
        """Names and shapes of what is not: drawn once."""

    def rewards(self, named: graph.Parameters, seen: Seen) -> tf.Tensor:
        """Of M transitions, float32 ``[M]``."""

    def loss(
        self, named: graph.Parameters, seen: Seen, weight: tf.Tensor, experts: Seen | None, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """What a step lowers, and `statistics`.

        Args:
            weight: float32 ``[M]``, sums to 1; 0 for padding.
            experts: M transitions drawn at random, with `has_experts`.
            seed: int32 ``[2]``, of stateless random numbers; different in each step.
        """


class Progress(NamedTuple):
    """What one minibatch hands to the next: parameters and Adam's moments float32 ``[P]``, its step count, sums of statistics."""

    done: tf.Tensor
    parameters: tf.Tensor
    m: tf.Tensor
    v: tf.Tensor
    step: tf.Tensor
    sums: tf.Tensor


def action_features(arch: Architecture, continuous: tf.Tensor, discrete: tf.Tensor) -> tf.Tensor:
    """Actions as numbers: the continuous part, then each branch one-hot: float32 ``[M, C + W]``."""
    branches = [tf.one_hot(discrete[:, b], choices) for b, choices in enumerate(arch.spec.action.discrete_branches)]
    return tf.concat([continuous, *branches], axis=1)


def features(named: graph.Parameters, inputs: Inputs, arch: Architecture, scope: str) -> tf.Tensor:
    """The body of a network, float32 ``[M, U]``."""
    return graph.features(named, inputs.vector, inputs.images, arch, scope)


class SignalGraph(NamedTuple):
    """Programs of one model.

    Attributes:
        batch_size: transitions of a minibatch.
    """

    model: SignalModel
    batch_size: int

    @property
    def columns(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name -> shape and dtype of what a transition holds. Beside them go ``image_{i}/mean`` and ``/std``, if images are standardised."""
        arch = self.model.arch
        action, dtypes = arch.spec.action, {o.name: o.dtype for o in arch.spec.observations}
        columns: dict[str, tuple[tuple[int, ...], str]] = {}
        for prefix in ("", "after_"):
            columns[f"{prefix}vector"] = ((arch.vector_width,), "float32")
            columns |= {f"{prefix}image_{i}": (image.shape, dtypes[image.name]) for i, image in enumerate(arch.images)}
        return {
            **columns, "continuous": ((action.continuous_size,), "float32"), "discrete": ((len(action.discrete_branches),), "int32"),
            "ended": ((), "float32"),
        }

    def seen(self, rows: Tensors) -> Seen:
        """Transitions out of the columns of `columns`, ``[M, …]`` each."""
        def inputs(prefix: str) -> Inputs:
            images = []
            for i in range(len(self.model.arch.images)):
                image = rows[f"{prefix}image_{i}"]
                if f"image_{i}/mean" in rows:
                    image = (tf.cast(image, tf.float32) - rows[f"image_{i}/mean"]) / rows[f"image_{i}/std"]
                    image = tf.clip_by_value(image, -CLIP, CLIP)
                images.append(image)
            return Inputs(rows[f"{prefix}vector"], tuple(images))

        return Seen(inputs(""), inputs("after_"), rows["continuous"], rows["discrete"], rows["ended"])

    def rewards(self, parameters: tf.Tensor, fixed: Tensors, rows: Tensors) -> tf.Tensor:
        """Rewards of a block of transitions, float32 ``[M]``."""
        return self.model.rewards({**named_parts(self.model.layout, parameters), **fixed}, self.seen(rows))

    def learn(
        self, progress: Progress, fixed: Tensors, rows: Tensors, experts: Tensors, order: tf.Tensor, items: tf.Tensor, end: tf.Tensor,
        seed: tf.Tensor,
    ) -> Progress:
        """Optimizer steps on minibatches ``progress.done`` … `end` − 1 of all epochs.

        Args:
            order: int32 ``[E, capacity + batch_size]``, a permutation of the transitions per epoch.
            items: int32, how many of them are real.
            seed: int32, of this call's random numbers.
        """
        count = (items + self.batch_size - 1) // self.batch_size
        return tf.while_loop(
            lambda progress: progress.done < end,
            lambda progress: (self._learn_minibatch(progress, fixed, rows, experts, order, items, count, seed),), (progress,),
        )[0]

    def _learn_minibatch(
        self, progress: Progress, fixed: Tensors, rows: Tensors, experts: Tensors, order: tf.Tensor, items: tf.Tensor,
        count: tf.Tensor, seed: tf.Tensor,
    ) -> Progress:
        index, weight = minibatch_of(order, progress.done, items, count, self.batch_size)
        seen = self.seen(gathered(rows, index))
        seeds = tf.stack([seed, progress.done])
        drawn = None
        if self.model.has_experts:
            number = tf.random.stateless_uniform(
                [self.batch_size], seeds, maxval=experts["ended"].shape[0], dtype=tf.int32)
            drawn = self.seen(gathered({**experts, **statistics_of(rows)}, number))
        parts = parameter_parts(self.model.layout, progress.parameters)
        with tf.GradientTape() as tape:
            tape.watch(parts)
            named = {**dict(zip(self.model.layout, parts, strict=True)), **fixed}
            loss, means = self.model.loss(named, seen, weight, drawn, seeds)
        gradients = tape.gradient(loss, parts, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradient = tf.concat([tf.reshape(g, [-1]) for g in gradients], axis=0)
        state = AdamState(progress.m, progress.v, progress.step)
        rate = tf.constant(self.model.learning_rate, tf.float32)
        parameters, state = adam(progress.parameters, gradient, state, rate, 1e-8)
        return Progress(progress.done + 1, parameters, *state, progress.sums + tf.stack(means))


def gathered(rows: Tensors, index: tf.Tensor) -> Tensors:
    """Some transitions; what is the same for all of them stays."""
    return {name: x if "/" in name else tf.gather(x, index) for name, x in rows.items()}


def statistics_of(rows: Tensors) -> Tensors:
    """What images are standardised with."""
    return {name: x for name, x in rows.items() if "/" in name}


def parameter_parts(layout: Layout, parameters: tf.Tensor) -> list[tf.Tensor]:
    """The tensors of a layout out of its vector."""
    sizes = [functools.reduce(int.__mul__, shape, 1) for shape in layout.values()]
    return [tf.reshape(part, shape) for part, shape in zip(tf.split(parameters, sizes), layout.values(), strict=True)]


def named_parts(layout: Layout, parameters: tf.Tensor) -> graph.Parameters:
    """The same by name."""
    return dict(zip(layout, parameter_parts(layout, parameters), strict=True))


def mean(values: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Weighted mean of float32 ``[M]``."""
    return tf.reduce_sum(values * weight)


def dense(named: graph.Parameters, x: tf.Tensor, layers: Sequence, activation: str) -> tf.Tensor:
    """Dense layers, the last without an activation."""
    x = graph.body(named, x, layers[:-1], activation)
    return graph.head(named, x, layers[-1])


def stacked(seen: Seen) -> Inputs:
    """Observations acted on, then those that followed: 2 · M rows."""
    images = zip(seen.now.images, seen.after.images, strict=True)
    return Inputs(tf.concat([seen.now.vector, seen.after.vector], axis=0), tuple(tf.concat(pair, axis=0) for pair in images))
