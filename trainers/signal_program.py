"""Driving the compiled programs of a reward signal: parameters and optimizer state, packing of transitions, statistics of its inputs.

Letters: ``N`` transitions, ``M`` of them in a block or minibatch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trainers import graph
from trainers.initial_weights import initial_body, initial_layers
from trainers.optimizer import AdamState
from trainers.program import Program, extremes, named
from trainers.quiet_tensorflow import tf
from trainers.signal_graph import Progress, SignalGraph, SignalModel, Tensors
from trainers.signal_inputs import SignalInputs
from trainers.signals import Transitions
from trainers.trainer import TrainerState, Weights

BLOCK, BLOCK_OF_IMAGES = 512, 64
"""Transitions that the reward program takes at a time."""


class Room(NamedTuple):
    """What is learnt from at once: transitions of a minibatch; transitions at most, for which arrays are made; and epochs, usually."""

    batch_size: int
    max_rows: int
    epochs: int


class SignalProgram(Program):
    """A compiled signal: see `trainers.signals.Signal`.

    Args:
        name: of the signal; its entries in a checkpoint begin with ``signals/{name}/``.
        room: see `Room`.
        inputs: how what was seen becomes the inputs of its networks.
        weights: as `first_signal_weights` draws them.
        experts: transitions to compare with, for models that do.
        zero_at_first: rewards are 0 until something was learnt.
    """

    def __init__(
        self, name: str, model: SignalModel, room: Room, inputs: SignalInputs, weights: Weights, experts: Transitions | None = None,
        ends_matter: bool = False, zero_at_first: bool = False,
    ) -> None:
        self.name, self.ends_matter = name, ends_matter
        self._model, self._inputs = model, inputs
        self._zero_until_learnt, self._experts = zero_at_first, experts
        self._graph = SignalGraph(model, room.batch_size)
        self._compiled = compiled(self._graph)
        super().__init__(model.layout, {key: weights[key] for key in model.layout})
        self._set_fixed(weights)
        self._reserve(room.max_rows, room.epochs)
        block = BLOCK_OF_IMAGES if model.arch.images else BLOCK
        self._block = self._arrays(block)

    def _set_fixed(self, weights: Weights) -> None:
        self._fixed = {key: tf.constant(weights[key]) for key in self._model.fixed}

    def _arrays(self, rows: int) -> dict[str, np.ndarray]:
        return {name: np.zeros((rows, *shape), dtype) for name, (shape, dtype) in self._graph.columns.items()}

    def _reserve(self, rows: int, epochs: int) -> None:
        self._rows = self._arrays(rows)
        self._order = np.zeros((epochs, rows + self._graph.batch_size), np.int32)

    def compile(self) -> None:
        """See `trainers.signals.Signal`."""
        self._run(0, 1, 0)
        self._compiled.rewards(self._parameters, self._fixed, self._tensors(self._block))

    # -- judging and learning ----------------------------------------------------------------------------------------

    def observe(self, transitions: Transitions) -> None:
        """See `trainers.signals.Signal`."""
        self._inputs.observe(transitions)

    def rewards(self, transitions: Transitions) -> np.ndarray:
        """See `trainers.signals.Signal`."""
        out = np.zeros(len(transitions), np.float32)
        if self._zero_until_learnt and not int(self._adam.step):
            return out
        block = len(self._block["ended"])
        for first in range(0, len(transitions), block):
            part = transitions.take(slice(first, first + block))
            self._pack(part, self._block)
            rewards = self._compiled.rewards(self._parameters, self._fixed, self._tensors(self._block)).numpy()
            out[first : first + block] = rewards[: len(part)]
        return out

    def learn(self, transitions: Transitions, epochs: int, rng: np.random.Generator) -> dict[str, float]:
        """See `trainers.signals.Signal`."""
        n, rows = len(transitions), len(self._rows["ended"])
        if n > rows or epochs != len(self._order):
            self._reserve(max(n + n // 4, rows) if n > rows else rows, epochs)
        self._pack(transitions, self._rows)
        for epoch in self._order:
            epoch[:n] = rng.permutation(n)
        total = -(-n // self._graph.batch_size) * epochs
        progress = self._run(total, n, int(rng.integers(2**31 - 1)))
        means = dict(zip(self._model.statistics, (progress.sums.numpy() / total).tolist(), strict=True))
        self._check_finite(means, progress.parameters, transitions)
        self._parameters, self._adam = progress.parameters, AdamState(progress.m, progress.v, progress.step)
        return means

    def _run(self, minibatches: int, transitions: int, seed: int) -> Progress:
        """What comes of that many minibatches of the transitions that were packed."""
        start = Progress(tf.constant(0), self._parameters, *self._adam, tf.zeros(len(self._model.statistics)))
        numbers = (tf.constant(x, tf.int32) for x in (transitions, minibatches, seed))
        return self._compiled.learn(
            start, self._fixed, self._tensors(self._rows), self._expert_tensors(), tf.constant(self._order), *numbers)

    def _expert_tensors(self) -> Tensors:
        if self._experts is None:
            return {}
        arrays = self._arrays(len(self._experts))
        self._pack(self._experts, arrays)
        return {name: tf.constant(x) for name, x in arrays.items()}

    def _pack(self, transitions: Transitions, arrays: dict[str, np.ndarray]) -> None:
        n = len(transitions)
        for prefix, inputs in (("", transitions.now), ("after_", transitions.after)):
            arrays[f"{prefix}vector"][:n] = self._inputs.vector(inputs)
            for i, image in enumerate(inputs.images):
                arrays[f"{prefix}image_{i}"][:n] = image
        arrays["continuous"][:n], arrays["discrete"][:n] = transitions.continuous, transitions.discrete
        arrays["ended"][:n] = transitions.terminated

    def _tensors(self, arrays: dict[str, np.ndarray]) -> Tensors:
        return {name: tf.constant(x) for name, x in {**arrays, **self._inputs.image_statistics()}.items()}

    def _check_finite(self, means: dict[str, float], parameters: tf.Tensor, transitions: Transitions) -> None:
        broken = [name for name, value in means.items() if not np.isfinite(value)]
        broken += [name for name, tensor in named(self.layout, parameters).items() if not np.isfinite(tensor).all()]
        if broken:
            raise FloatingPointError(
                f"Expected finite losses and weights of the reward signal {self.name}, received others: {', '.join(broken)}. The weights "
                f"from before it are kept. The transitions: {extremes(transitions)}. Lower reward_signals.{self.name}.learning_rate."
            )

    # -- state -------------------------------------------------------------------------------------------------------

    def state(self) -> TrainerState:
        """See `trainers.signals.Signal`."""
        whole = super().state()
        tensors = {**whole.tensors, **{name: tensor.numpy() for name, tensor in self._fixed.items()}, **self._inputs.tensors()}
        prefix = f"signals/{self.name}/"
        return TrainerState(
            {prefix + name: tensor for name, tensor in tensors.items()},
            {f"{prefix}adam_step": whole.scalars["adam_step"], f"{prefix}rows_seen": self._inputs.count},
        )

    def load_state(self, state: TrainerState) -> None:
        """See `trainers.signals.Signal`.

        Raises:
            ValueError: a tensor is missing or of another shape.
        """
        prefix = f"signals/{self.name}/"
        own = TrainerState(*({name.removeprefix(prefix): x for name, x in part.items() if name.startswith(prefix)}
                             for part in (state.tensors, state.scalars)))
        missing = [name for name in (*self.layout, *self._model.fixed) if name not in own.tensors]
        if missing or "adam_step" not in own.scalars:
            raise ValueError(f"Expected a state saved with reward_signals.{self.name}, received one without. Remove the signal, or begin a new run.")
        self.set_weights({name: own.tensors[name] for name in self.layout})
        self._set_fixed(own.tensors)
        self.load_adam(own)
        self._inputs.load(own.tensors, int(own.scalars["rows_seen"]))


def first_signal_weights(model: SignalModel, rng: np.random.Generator) -> Weights:
    """First weights of a model, orthogonal like those of actor and critic; what is neither in its bodies nor its layers begins at 0."""
    weights: Weights = {}
    for scope in model.scopes:
        weights |= initial_body(model.arch, rng, scope)
    weights |= initial_layers(model.layers, rng)
    rest = {name: np.zeros(shape, np.float32) for name, shape in model.layout.items() if name not in weights}
    return {**weights, **rest}


class CompiledSignal(NamedTuple):
    """`SignalGraph.rewards` and `SignalGraph.learn`, compiled at their first call."""

    rewards: Callable[..., tf.Tensor]
    learn: Callable[..., Progress]


@functools.lru_cache(maxsize=32)
def compiled(signal: SignalGraph) -> CompiledSignal:
    """The programs of a graph; equal graphs share them."""
    xla = graph.compile_with_xla(signal.model.arch)
    return CompiledSignal(*(tf.function(program, jit_compile=xla, autograph=False) for program in (signal.rewards, signal.learn)))
