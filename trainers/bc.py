"""Behavioral cloning by itself: demonstrations in, a policy out, no environment.

Source: Pomerleau 1991, https://doi.org/10.1162/neco.1991.3.1.88. Loss and optimizer steps are those of `trainers.behavioral_cloning`.

Letters: ``N`` rows of demonstrations, ``K`` episodes; an *item* is a row, or with a memory a sequence of at most ``L`` rows of one
episode that begins with an empty memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from envs.demonstrations import Demonstrations
from trainers import graph
from trainers.architecture import Architecture, architecture
from trainers.bc_data import run_length
from trainers.behavioral_cloning import CloningGraph, Progress, compiled
from trainers.inputs import network_inputs
from trainers.networks import check_weights
from trainers.normalizer import NormalizerHistory
from trainers.optimizer import AdamState
from trainers.ppo_memory import cut_into_sequences
from trainers.program import flat, named
from trainers.quiet_tensorflow import tf
from trainers.schedules import LEARNING_RATE_FLOOR, Schedule
from trainers.settings import BCSettings
from trainers.signal_graph import parameter_parts
from trainers.trainer import TrainerState, Weights


class Learnt(NamedTuple):
    """What some optimizer steps were.

    Attributes:
        minibatches: how many.
        loss: their mean.
        learning_rate: theirs.
    """

    minibatches: int
    loss: float
    learning_rate: float


class Validation(NamedTuple):
    """How a policy does on episodes that it has not learnt from.

    Attributes:
        loss: mean over rows.
        accuracy: share of discrete choices that the policy would make, too, most likely choices; None without any.
    """

    loss: float
    accuracy: float | None


@dataclass(frozen=True)
class _Items:
    """Demonstrations as the compiled programs take them.

    Attributes:
        rows: as `CloningGraph.learn` wants them.
        length: int64, rows of each item.
    """

    rows: dict[str, tf.Tensor]
    length: np.ndarray

    @classmethod
    def of(cls, d: Demonstrations, arch: Architecture, normalizer: NormalizerHistory | None) -> _Items:
        inputs = network_inputs(arch, d.obs) if normalizer is None else normalizer.normalize_now(d.obs)
        rows = {"vector": inputs.vector, **{f"image_{i}": x for i, x in enumerate(inputs.images)}, "continuous": d.continuous, "discrete": d.discrete}
        if d.action_mask is not None and arch.spec.action.masked:
            rows["action_mask"] = d.action_mask
        length = np.ones(d.rows, np.int64)
        if arch.memory:
            cut = cut_into_sequences(d.length, arch.memory.sequence_length)
            rows |= {"start": cut.start.astype(np.int32), "length": cut.length.astype(np.int32)}
            length = cut.length.astype(np.int64)
        return cls({name: tf.constant(x) for name, x in rows.items()}, length)


class BCTrainer:
    """Behavioral cloning of one behavior from demonstrations alone.

    Passes over the demonstrations, each in an order of its own and with a learning rate of its own. What is learnt does not depend
    on how the steps are spread over calls of `learn`, nor on a stop and resume between two of them.

    Args:
        demonstrations: to learn from, with the spec of the behavior.
        held_out: to be judged by; None for none.
        seed: branch of the seed tree, for the orders.
        weights: tensors of the actor to begin with.

    Attributes:
        agent_steps: rows learnt from, each as often as it was.
        updates: optimizer steps.
        policy_updates: whole passes.
        max_steps: rows after which `finished` is true.
        rows_per_pass: rows that are learnt from, once each.
        notices: what the user should read; whoever reads them empties the list.

    Raises:
        ArchitectureError: the network settings do not suit the observations.
    """

    def __init__(
        self, demonstrations: Demonstrations, held_out: Demonstrations | None, settings: BCSettings, seed: np.random.SeedSequence, weights: Weights
    ) -> None:
        hyper = settings.hyperparameters
        self._learnt, self._held_out = demonstrations, held_out
        self._arch = architecture(demonstrations.spec, settings.network_settings)
        self._graph = CloningGraph(self._arch.as_given(), "gaussian", hyper.batch_size)
        self._normalizer = NormalizerHistory(self._arch) if self._arch.normalized else None
        if self._normalizer is not None:
            self._normalizer.update({o.name: self._learnt.obs[o.name] for o in self._arch.normalized})
        self._stage()
        self.rows_per_pass = self._learnt.rows
        self.max_steps = run_length(settings, self.rows_per_pass)
        self._schedule = Schedule(hyper.learning_rate_schedule, hyper.learning_rate, LEARNING_RATE_FLOOR, self.max_steps)
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._set_actor(weights)
        size = sum(int(np.prod(shape)) for shape in self._graph.layout.values())
        self._adam = AdamState(tf.zeros([size]), tf.zeros([size]), tf.constant(0, tf.int64))
        self.notices: list[str] = []
        self.agent_steps = self.updates = self.policy_updates = 0
        self._begin_pass(0)

    def _stage(self) -> None:
        """Make the items of both parts, normalised by the statistics of now."""
        self._items = _Items.of(self._learnt, self._arch, self._normalizer)
        self._judged_items = None if self._held_out is None else _Items.of(self._held_out, self._arch, self._normalizer)

    def _set_actor(self, weights: Weights) -> None:
        actor = {name: tensor for name, tensor in weights.items() if name.startswith("actor/")}
        check_weights(actor, self._graph.layout, "the networks of this configuration")
        self._parameters = flat(self._graph.layout, actor)

    @property
    def finished(self) -> bool:
        """All passes are made, or ``max_steps`` are reached."""
        return self.agent_steps >= self.max_steps

    @property
    def minibatches_per_pass(self) -> int:
        """Optimizer steps of one pass."""
        return -(-len(self._items.length) // self._graph.items)

    def compile(self) -> None:
        """Get ready to learn and to judge, leaving the state bit for bit as it is."""
        self._run(0)
        self.validate()

    # -- learning ----------------------------------------------------------------------------------------------------

    def _begin_pass(self, position: int) -> None:
        """Draw the order of a pass, of which `position` minibatches are done already."""
        self._rng_before = self._rng.bit_generator.state
        items, size = len(self._items.length), self._graph.items
        order = self._rng.permutation(items)
        self._order = tf.constant(np.concatenate([order, np.zeros(size, order.dtype)])[None], tf.int32)
        done, count = np.arange(1, self.minibatches_per_pass + 1), self.minibatches_per_pass
        last = done * (items // count) + np.minimum(done, items % count)  # as `minibatch_of` deals them out
        self._rows_after = np.concatenate([[0], np.cumsum(self._items.length[order])[last - 1]])
        self._position = position
        self._steps_before = self.agent_steps - int(self._rows_after[position])

    def learn(self, minibatches: int, until: int) -> Learnt:
        """At most so many optimizer steps: not beyond the end of the pass, nor the first one with which `until` or ``max_steps`` are reached.

        Args:
            until: agent steps, above those so far.

        Raises:
            FloatingPointError: the loss or a weight would be NaN or infinite; nothing has changed.
        """
        reached = int(np.searchsorted(self._rows_after, min(until, self.max_steps) - self._steps_before))
        end = min(self._position + minibatches, self.minibatches_per_pass, reached)
        rate = self._schedule.value(self._steps_before)
        done, count = self._run(end), end - self._position
        loss = float(done.loss) / max(1, count)
        if not np.isfinite(loss) or not bool(tf.reduce_all(tf.math.is_finite(done.parameters))):
            raise FloatingPointError(
                f"Expected a finite loss and finite weights of behavioral cloning, received the loss {loss:g} at {self.agent_steps:,} agent steps. "
                "The weights from before it are kept. Lower hyperparameters.learning_rate, or set network_settings.normalize: true.")
        self._parameters, self._adam = done.parameters, AdamState(done.m, done.v, done.step)
        self._position = end
        self.updates += count
        self.agent_steps = self._steps_before + int(self._rows_after[end])
        if end == self.minibatches_per_pass:
            self.policy_updates += 1
            self._begin_pass(0)
        return Learnt(count, loss, rate)

    def _run(self, end: int) -> Progress:
        start = Progress(tf.constant(self._position), self._parameters, *self._adam, tf.constant(0.0))
        return compiled(self._graph)(
            start, self._items.rows, self._order, tf.constant(len(self._items.length)), tf.constant(end),
            tf.constant(self._schedule.value(self._steps_before), tf.float32))

    def validate(self) -> Validation | None:
        """How the policy does on the episodes held out; None where there are none."""
        if self._judged_items is None:
            return None
        items = len(self._judged_items.length)
        order = tf.constant(np.arange(items + self._graph.items)[None] % items, tf.int32)
        loss, right = _compiled_judge(self._graph)(self._parameters, self._judged_items.rows, order, tf.constant(items))
        rows, branches = self._held_out.rows, len(self._arch.spec.action.discrete_branches)
        return Validation(float(loss) / rows, float(right) / (rows * branches) if branches else None)

    # -- policy and state --------------------------------------------------------------------------------------------

    def policy_weights(self) -> Weights:
        """What a policy needs to act: fresh arrays."""
        weights = named(self._graph.layout, self._parameters)
        return weights if self._normalizer is None else {**weights, **self._normalizer.policy_weights()}

    def state(self) -> TrainerState:
        """Exact state, also in the middle of a pass."""
        tensors = {**named(self._graph.layout, self._parameters), "adam/m": self._adam.m.numpy(), "adam/v": self._adam.v.numpy()}
        own = TrainerState(tensors, {
            "agent_steps": self.agent_steps, "updates": self.updates, "policy_updates": self.policy_updates,
            "adam_step": int(self._adam.step), "rng": self._rng_before, "position": self._position, "rows_after": self._rows_after.tolist()[-1],
            "minibatches": self.minibatches_per_pass, "warm": True,  # the statistics, as a PPO that begins with them wants to know
        })
        return own if self._normalizer is None else own.joined(self._normalizer.state())

    def load_state(self, state: TrainerState) -> None:
        """Continue from `state`. With other demonstrations than then, or another ``batch_size``, a new pass is begun.

        Raises:
            ValueError: the state does not fit the networks or observations of this trainer's settings.
        """
        self.load_weights(state)
        self._adam = AdamState(*(tf.constant(state.tensors[f"adam/{moment}"]) for moment in "mv"), tf.constant(state.scalars["adam_step"], tf.int64))
        self.agent_steps, self.updates, self.policy_updates = (int(state.scalars[name]) for name in ("agent_steps", "updates", "policy_updates"))
        self._rng.bit_generator.state = state.scalars["rng"]
        same = (state.scalars["rows_after"], state.scalars["minibatches"]) == (self.rows_per_pass, self.minibatches_per_pass)
        if not same:
            self.notices.append("the demonstrations or the batch size are not those of before, so a new pass over them begins")
        self._begin_pass(int(state.scalars["position"]) if same else 0)

    def load_weights(self, state: TrainerState) -> None:
        """Begin with the actor of `state` and the statistics it was trained with; all else stays new.

        Raises:
            ValueError: as `load_state`.
        """
        state.expect("normalizer_statistics/count", self._normalizer, "network_settings.normalize")
        self._set_actor(state.tensors)
        if self._normalizer is not None:
            source = NormalizerHistory(self._arch)
            source.load_state(state)
            self._normalizer.statistics.update(source.statistics)
            self._stage()


def judge(
    cloning: CloningGraph, parameters: tf.Tensor, rows: Mapping[str, tf.Tensor], order: tf.Tensor, items: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Sum of the losses of all rows, and number of right choices.

    Args:
        parameters: float32 ``[P]``.
        rows, order, items: as in `CloningGraph.learn`.
    """
    count = (items + cloning.items - 1) // cloning.items
    tensors = dict(zip(cloning.layout, parameter_parts(cloning.layout, parameters), strict=True))

    def one_more(number: tf.Tensor, loss: tf.Tensor, right: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        minibatch, real = cloning.minibatch(rows, order, number, items, count)
        errors, choices = cloning.judged(tensors, minibatch)
        return number + 1, loss + tf.reduce_sum(real * errors), right + tf.reduce_sum(real * choices)

    return tf.while_loop(lambda number, *_: number < count, one_more, (tf.constant(0), tf.constant(0.0), tf.constant(0.0)))[1:]


@functools.lru_cache(maxsize=32)
def _compiled_judge(cloning: CloningGraph) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """`judge` of a graph; equal graphs share it."""
    return tf.function(functools.partial(judge, cloning), jit_compile=graph.compile_with_xla(cloning.arch), autograph=False)
