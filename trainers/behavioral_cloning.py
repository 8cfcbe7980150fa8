"""Behavioral cloning: the actor learns to do what demonstrations do, beside another algorithm or by itself.

Source: Pomerleau 1991, https://doi.org/10.1162/neco.1991.3.1.88; keys and losses as in Unity ML-Agents.

Letters: ``N`` rows of demonstrations, ``M`` rows of a minibatch, ``Q`` sequences of ``L`` rows; others as in `trainers.graph`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from envs.demonstrations import Demonstrations, read_demonstrations
from trainers import graph
from trainers.architecture import Architecture
from trainers.inputs import NetworkInputs
from trainers.minibatches import minibatch_of
from trainers.networks import Distribution, Layout, action_heads, actor_layout
from trainers.optimizer import AdamState, adam
from trainers.ppo_memory import cut_into_sequences
from trainers.program import Program, flat, named
from trainers.quiet_tensorflow import tf
from trainers.settings import BehaviorSettings
from trainers.signal_graph import parameter_parts
from trainers.signal_settings import BehavioralCloningSettings
from trainers.trainer import TrainerState, Weights

_PREFIX = "behavioral_cloning"


class Progress(NamedTuple):
    """What one minibatch hands to the next: float32 ``[P]`` parameters and moments, Adam's step count, the sum of losses."""

    done: tf.Tensor
    parameters: tf.Tensor
    m: tf.Tensor
    v: tf.Tensor
    step: tf.Tensor
    loss: tf.Tensor


@dataclass(frozen=True)
class CloningGraph:
    """The program: minibatches of rows, or of sequences with a memory.

    The loss is the squared error of the continuous part, between the policy's mean (squashed by tanh where its distribution is) and
    what was done, summed over dimensions; and the cross entropy of each branch, with what was not allowed left out.
    """

    arch: Architecture
    distribution: Distribution
    batch_size: int

    @property
    def layout(self) -> Layout:
        """Tensors of the actor."""
        return actor_layout(self.arch, self.distribution)

    @property
    def sequence_length(self) -> int:
        """L; 1 without a memory."""
        return self.arch.memory.sequence_length if self.arch.memory else 1

    @property
    def items(self) -> int:
        """Rows, or sequences, of a minibatch."""
        return max(1, self.batch_size // self.sequence_length)

    def learn(
        self, progress: Progress, rows: Mapping[str, tf.Tensor], order: tf.Tensor, items: tf.Tensor, end: tf.Tensor, learning_rate: tf.Tensor
    ) -> Progress:
        """Optimizer steps on minibatches ``progress.done`` … `end` − 1 of all epochs.

        Args:
            rows: ``vector``, ``image_{i}``, ``continuous``, ``discrete``, ``action_mask``, ``[N, …]``; with a memory ``start`` and
                ``length`` of each sequence.
            order: int32 ``[E, Q or N, and a minibatch more]``.
            items: int32, how many sequences or rows there are.
        """
        count = (items + self.items - 1) // self.items

        def one_more(progress: Progress) -> tuple[Progress]:
            minibatch, weight = self.minibatch(rows, order, progress.done, items, count)
            weight /= tf.reduce_sum(weight)
            parts = parameter_parts(self.layout, progress.parameters)
            with tf.GradientTape() as tape:
                tape.watch(parts)
                loss = tf.reduce_sum(weight * self.errors(dict(zip(self.layout, parts, strict=True)), minibatch))
            gradients = tape.gradient(loss, parts, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            gradient = tf.concat([tf.reshape(g, [-1]) for g in gradients], axis=0)
            parameters, state = adam(progress.parameters, gradient, AdamState(progress.m, progress.v, progress.step), learning_rate, 1e-8)
            return (Progress(progress.done + 1, parameters, *state, progress.loss + loss),)

        return tf.while_loop(lambda progress: progress.done < end, one_more, (progress,))[0]

    def minibatch(
        self, rows: Mapping[str, tf.Tensor], order: tf.Tensor, number: tf.Tensor, items: tf.Tensor, count: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Rows of a minibatch as `learn` takes them, and 1 for real ones, 0 for padding: float32 ``[M]``.

        Args:
            count: int32, minibatches of an epoch.
        """
        index, weight = minibatch_of(order, number, items, count, self.items)
        real = weight > 0.0
        if self.arch.memory:
            step, length = tf.range(self.sequence_length)[None], tf.gather(rows["length"], index)[:, None]
            index = tf.reshape(tf.gather(rows["start"], index)[:, None] + tf.minimum(step, length - 1), [-1])
            real = tf.reshape(real[:, None] & (step < length), [-1])
        return {name: tf.gather(x, index) for name, x in rows.items() if name not in ("start", "length")}, tf.cast(real, tf.float32)

    def errors(self, parameters: graph.Parameters, rows: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Loss of each row, float32 ``[M]``. Sequences begin with an empty memory."""
        return self.judged(parameters, rows)[0]

    def judged(self, parameters: graph.Parameters, rows: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Loss of each row as `errors` gives it, and how many of its branches' most likely choices were made, float32 ``[M]`` each."""
        images = [rows[f"image_{i}"] for i in range(len(self.arch.images))]
        features, m = graph.features(parameters, rows["vector"], images, self.arch, "actor"), rows["vector"].shape[0]
        if self.arch.memory:
            q = m // self.sequence_length
            sequences = tf.reshape(features, [q, self.sequence_length, features.shape[1]])
            (outputs,), _ = graph.remember(parameters, [sequences], [tf.zeros([q, self.arch.memory_size])], self.arch, ["actor"])
            features = tf.reshape(outputs, [m, outputs.shape[2]])
        action, heads, errors, right = self.arch.spec.action, list(action_heads(self.arch, self.distribution)), tf.zeros([m]), tf.zeros([m])
        if action.continuous_size:
            mean = graph.head(parameters, features, heads.pop(0))
            if self.distribution != "gaussian":
                mean = tf.tanh(mean)
            errors += tf.reduce_sum(tf.square(mean - rows["continuous"]), axis=1)
            heads = [layer for layer in heads if layer.name.startswith("actor/branch_")]
        masks = graph.branch_masks(rows.get("action_mask"), action.discrete_branches)
        for b, (layer, allowed) in enumerate(zip(heads, masks, strict=True)):
            log_p = graph.masked_log_softmax(graph.head(parameters, features, layer), allowed)
            errors -= tf.reduce_sum(log_p * tf.one_hot(rows["discrete"][:, b], layer.outputs), axis=1)
            right += tf.cast(tf.argmax(log_p, axis=1, output_type=tf.int32) == rows["discrete"][:, b], tf.float32)
        return errors, right


class BehavioralCloning:
    """Demonstrations, and the optimizer that teaches an actor by them.

    Args:
        arch: of the behavior's networks.
        batch_size: rows of a minibatch; with a memory as many sequences as fit, at least one.
        epochs, minibatches: that one call of `teach` has at most, whichever are more.
        inputs: of the demonstrations' observations -> what the networks see now, normalised where they are.
    """

    def __init__(
        self, arch: Architecture, distribution: Distribution, demonstrations: Demonstrations, batch_size: int, epochs: int, minibatches: int,
        inputs: Callable[[dict[str, np.ndarray]], NetworkInputs],
    ) -> None:
        self._demonstrations, self._inputs = demonstrations, inputs
        self._graph = CloningGraph(arch.as_given(), distribution, batch_size)
        self._learn = compiled(self._graph)
        self._sequences: dict[str, np.ndarray] = {}
        self._items = len(demonstrations.reward)
        if arch.memory:
            cut = cut_into_sequences(demonstrations.length, arch.memory.sequence_length)
            self._sequences = {"start": cut.start.astype(np.int32), "length": cut.length.astype(np.int32)}
            self._items = len(cut)
        # As many rows whatever the call: another shape would be traced anew.
        epochs = max(epochs, -(-minibatches // self.minibatches_per_epoch))
        self._order = np.zeros((epochs, self._items + self._graph.items), np.int32)
        size = sum(int(np.prod(shape)) for shape in self._graph.layout.values())
        self._adam = AdamState(tf.zeros([size]), tf.zeros([size]), tf.constant(0, tf.int64))

    @property
    def minibatches_per_epoch(self) -> int:
        """Minibatches that make one pass over all demonstrations."""
        return -(-self._items // self._graph.items)

    def teach(
        self, actor: Weights, minibatches: int, learning_rate: float, rng: np.random.Generator
    ) -> tuple[Weights, float]:
        """So many optimizer steps, epoch by epoch in an order of its own each.

        Args:
            actor: the actor's tensors; not changed.

        Returns:
            New ones, and the mean loss.

        Raises:
            FloatingPointError: the loss or a weight would be NaN or infinite; nothing has changed.
        """
        d, layout = self._demonstrations, self._graph.layout
        inputs = self._inputs(d.obs)
        rows = {"vector": inputs.vector, **{f"image_{i}": x for i, x in enumerate(inputs.images)}, "continuous": d.continuous,
                "discrete": d.discrete, **self._sequences}
        if d.action_mask is not None and self._graph.arch.spec.action.masked:
            rows["action_mask"] = d.action_mask
        for epoch in self._order[: -(-minibatches // self.minibatches_per_epoch)]:
            epoch[: self._items] = rng.permutation(self._items)
        start = Progress(tf.constant(0), flat(layout, {name: actor[name] for name in layout}), *self._adam, tf.constant(0.0))
        done = self._learn(
            start, {name: tf.constant(x) for name, x in rows.items()}, tf.constant(self._order), tf.constant(self._items), tf.constant(minibatches),
            tf.constant(learning_rate, tf.float32))
        loss, weights = float(done.loss) / minibatches, named(layout, done.parameters)
        broken = [name for name, tensor in weights.items() if not np.isfinite(tensor).all()]
        if broken or not np.isfinite(loss):
            raise FloatingPointError(
                f"Expected a finite loss and finite weights of behavioral cloning, received the loss {loss:g}"
                f"{' and others in ' + ', '.join(broken) if broken else ''}. The weights from before it are kept. Lower behavioral_cloning.strength.")
        self._adam = AdamState(done.m, done.v, done.step)
        return weights, loss

    def state(self) -> TrainerState:
        """Adam's moments and step count."""
        moments = {f"{_PREFIX}/{name}": getattr(self._adam, name).numpy() for name in ("m", "v")}
        return TrainerState(moments, {f"{_PREFIX}/adam_step": int(self._adam.step)})

    def load_state(self, state: TrainerState) -> None:
        """Go on from `state`, which may hold entries of others too; begin anew where it has none of these."""
        if f"{_PREFIX}/adam_step" in state.scalars:
            m, v = (tf.constant(state.tensors[f"{_PREFIX}/{name}"]) for name in ("m", "v"))
            self._adam = AdamState(m, v, tf.constant(state.scalars[f"{_PREFIX}/adam_step"], tf.int64))


class CloningModule:
    """Behavioral cloning beside another algorithm, as ``behavioral_cloning`` says.

    Args:
        learning_rate, batch_size: of the algorithm beside it.
        most: optimizer steps of one of its learning calls at most, where it makes one for each of them.
        inputs: see `BehavioralCloning`.
    """

    def __init__(
        self, settings: BehavioralCloningSettings, arch: Architecture, distribution: Distribution, learning_rate: float, batch_size: int,
        most: int, inputs: Callable[[dict[str, np.ndarray]], NetworkInputs],
    ) -> None:
        self._settings, self._learning_rate = settings, learning_rate * settings.strength
        demonstrations = read_demonstrations(settings.demo_path, arch.spec)
        size = settings.batch_size or batch_size
        self._cloning = BehavioralCloning(arch, distribution, demonstrations, size, settings.num_epoch, most, inputs)
        a_pass = self._cloning.minibatches_per_epoch
        if settings.samples_per_update:
            a_pass = min(a_pass, max(1, settings.samples_per_update // size))
        self.minibatches = settings.num_epoch * a_pass

    def teach(
        self, program: Program, agent_steps: int, rng: np.random.Generator, minibatches: int | None = None
    ) -> dict[str, float]:
        """Move the actor of `program`, and no other of its tensors; statistics by tag. Nothing once the learning rate is 0.

        Args:
            minibatches: optimizer steps; None for ``num_epoch`` passes.
        """
        left = 1.0 if not self._settings.steps else 1.0 - agent_steps / self._settings.steps
        if left <= 0.0:
            return {}
        weights = program.weights()
        actor, loss = self._cloning.teach(weights, minibatches or self.minibatches, self._learning_rate * left, rng)
        program.set_weights({**weights, **actor})
        return {"Losses/Pretraining Loss": loss}

    def state(self) -> TrainerState:
        """See `BehavioralCloning.state`."""
        return self._cloning.state()

    def load_state(self, state: TrainerState) -> None:
        """See `BehavioralCloning.load_state`."""
        self._cloning.load_state(state)


def cloning_module(
    settings: BehaviorSettings, arch: Architecture, distribution: Distribution, most: int, inputs: Callable[[dict[str, np.ndarray]], NetworkInputs]
) -> CloningModule | None:
    """The module that a behavior's settings ask for, if they do."""
    own, hyper = settings.behavioral_cloning, settings.hyperparameters
    return None if own is None else CloningModule(own, arch, distribution, hyper.learning_rate, hyper.batch_size, most, inputs)


@functools.lru_cache(maxsize=32)
def compiled(cloning: CloningGraph) -> Callable[..., Progress]:
    """The program of a graph; equal graphs share it."""
    return tf.function(cloning.learn, jit_compile=graph.compile_with_xla(cloning.arch), autograph=False)
