"""What SAC's networks make of the observations of a batch, in TensorFlow: transitions, or sequences for recurrent networks.

Letters: ``M``, ``Q``, ``L`` as in `trainers.sac_batches`, ``R`` rows that losses are taken from, M or Q·L; ``H``, ``I``, ``U``, ``F``
as in `trainers.architecture`, ``W`` as in `envs.specs`; a leading 2 is the twin critics.
"""

from __future__ import annotations

from typing import NamedTuple

from trainers import graph  # first: it quietens TensorFlow before the import
from trainers.architecture import Architecture
from trainers.networks import body_layers, lstm_layer
from trainers.recurrence import lstms
from trainers.sac_critics import twin_dense
from trainers.sac_networks import CRITIC, TARGET, critic_body

import tensorflow as tf  # isort: skip

Batch = dict[str, tf.Tensor]
"""One batch: the columns and blocks of `trainers.sac_batches` by name, each ``[M, …]``, or ``[Q, L + 1, …]`` and ``[Q, …]``."""


class Seen(NamedTuple):
    """What policy and critics make of the observations of R rows.

    Attributes:
        actor: float32 ``[R, F]``, the actor's features.
        critic: float32, what `sac_critics.q_values` takes.
        action_mask: bool ``[R, W]``; None unless actions are masked.
    """

    actor: tf.Tensor
    critic: tf.Tensor
    action_mask: tf.Tensor | None


class Encoded(NamedTuple):
    """Network inputs through encoders: float32 ``[rows, encoded width]`` each.

    Attributes:
        actor: at the sampled rows and k steps on; of sequences at all their steps, one after another, in a single tensor.
        critic: at the sampled rows, by the trained critics; of sequences at all steps.
        target: k steps on, by the target critics; of sequences at all steps.
    """

    actor: tuple[tf.Tensor, ...]
    critic: tf.Tensor
    target: tf.Tensor


def encode(named: graph.Parameters, target: graph.Parameters, batch: Batch, arch: Architecture) -> Encoded:
    """All that goes through encoders: the part that takes most of the time where there are convolutions.

    Args:
        named, target: the tensors of actor and critics, and those of the target critics.
    """
    def through(tensors: graph.Parameters, scope: str, prefix: str = "") -> tf.Tensor:
        vector, images = batch[f"{prefix}vector"], _images(batch, prefix)
        if arch.memory is not None:
            vector, images = by_row(vector), [by_row(image) for image in images]
        return graph.encode(tensors, vector, images, arch, scope)

    prefixes, after = (("", "next_"), "next_") if arch.memory is None else (("",), "")
    actor = tuple(through(named, "actor", prefix) for prefix in prefixes)
    return Encoded(actor, through(named, CRITIC), through(target, TARGET, after))


def transitions_seen(named: graph.Parameters, encoded: Encoded, batch: Batch, arch: Architecture) -> tuple[Seen, Seen]:
    """At the sampled steps, for the trained critics; and k steps on, for the target critics."""
    now, after = (graph.body(named, x, body_layers(arch), arch.activation) for x in encoded.actor)
    return Seen(now, encoded.critic, batch.get("action_mask")), Seen(after, encoded.target, batch.get("next_action_mask"))


def sequences_seen(
    named: graph.Parameters, target: graph.Parameters, encoded: Encoded, batch: Batch, arch: Architecture
) -> tuple[Seen, Seen]:
    """At each row of the sequences, for the trained critics; and one step after each row, for the target critics.

    The actor goes on from the memory it had when it acted, critics begin with zeros; all see a sequence from its first step on.
    No gradient goes back into the burn-in, except of a sequence that begins its episode: its first rows count.
    """
    mask, (sequences, length) = batch.get("action_mask"), batch["vector"].shape[:2]
    x = [graph.body(named, encoded.actor[0], body_layers(arch), arch.activation)]
    for tensors, scope, rows in ((named, CRITIC, encoded.critic), (target, TARGET, encoded.target)):
        x += tf.unstack(_before_memory(tensors, scope, rows, arch))
    kernels, recurrent_kernels, biases = [], [], []
    for tensors, scope in ((named, "actor"), (named, CRITIC), (target, TARGET)):
        layer = lstm_layer(arch, scope)
        for name, all_of in ((layer.kernel, kernels), (layer.recurrent_kernel, recurrent_kernels), (layer.bias, biases)):
            all_of += [tensors[name]] if scope == "actor" else tf.unstack(tensors[name])
    memory = tf.pad(batch["memory"][None], [[0, len(kernels) - 1], [0, 0], [0, 0]])
    outputs = lstms(
        kernels, recurrent_kernels, biases, [tf.reshape(part, [sequences, length, part.shape[1]]) for part in x], memory,
        batch["begins"], arch.memory.burn_in, trained=3,
    )
    seen = []
    for critics, steps in ((outputs[1:3], slice(None, -1)), (outputs[3:], slice(1, None))):
        twins = critics[:, :, steps]
        allowed = None if mask is None else by_row(mask[:, steps])
        seen.append(Seen(by_row(outputs[0, :, steps]), tf.reshape(twins, [2, -1, twins.shape[3]]), allowed))
    return seen[0], seen[1]


def _before_memory(named: graph.Parameters, scope: str, encoded: tf.Tensor, arch: Architecture) -> tf.Tensor:
    """Dense layers of both critics before their recurrent layers: ``[Q·(L + 1), E]`` -> ``[2, Q·(L + 1), U]``."""
    return twin_dense(named, tf.broadcast_to(encoded[None], [2, *encoded.shape]), critic_body(arch, scope), arch.activation)


def _images(batch: Batch, prefix: str = "") -> list[tf.Tensor]:
    """Image observations of a batch, in their order."""
    names = sorted((name for name in batch if name.startswith(f"{prefix}image/")), key=lambda name: int(name.rpartition("/")[2]))
    return [batch[name] for name in names]


def by_row(x: tf.Tensor) -> tf.Tensor:
    """``[Q, L, …]`` -> ``[Q·L, …]``."""
    return tf.reshape(x, [x.shape[0] * x.shape[1], *x.shape[2:]])
