"""What SAC's networks make of the observations of a batch, in TensorFlow: transitions, or sequences for recurrent networks.

Letters: ``M``, ``Q``, ``L`` as in `trainers.sac_batches`, ``R`` rows that losses are taken from, M or Q·L; ``H``, ``I``, ``U``, ``F``
as in `trainers.architecture`, ``W`` as in `envs.specs`; a leading 2 is the twin critics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainers import graph
from trainers.architecture import Architecture
from trainers.networks import body_layers, lstm_layer
from trainers.quiet_tensorflow import tf
from trainers.sac_critics import twin_dense
from trainers.sac_networks import CRITIC, TARGET, critic_body

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
    mask, sequences = batch.get("action_mask"), batch["vector"].shape[0]
    actor = graph.body(named, encoded.actor[0], body_layers(arch), arch.activation)
    trained = tf.concat([actor[None], _before_memory(named, CRITIC, encoded.critic, arch)], axis=0)
    # Actor and critics side by side in one loop; the targets, which need no gradients, in another.
    pairs = zip(lstm_layer(arch, "actor").layout, lstm_layer(arch, CRITIC).layout, strict=True)
    weights = [tf.concat([named[ours][None], named[theirs]], axis=0) for ours, theirs in pairs]
    memory = tf.pad(batch["memory"][None], [[0, 2], [0, 0], [0, 0]])
    trained = _remembered(weights, trained, memory, arch.memory.burn_in, batch["begins"])
    following = _before_memory(target, TARGET, encoded.target, arch)
    weights = [target[name] for name in lstm_layer(arch, TARGET).layout]
    following = _remembered(weights, following, tf.zeros([2, sequences, arch.memory_size]))
    seen = []
    for critics, steps in ((trained[1:], slice(None, -1)), (following, slice(1, None))):
        twins = critics[:, :, steps]
        allowed = None if mask is None else by_row(mask[:, steps])
        seen.append(Seen(by_row(trained[0, :, steps]), tf.reshape(twins, [2, -1, twins.shape[3]]), allowed))
    return seen[0], seen[1]


def _before_memory(named: graph.Parameters, scope: str, encoded: tf.Tensor, arch: Architecture) -> tf.Tensor:
    """Dense layers of both critics before their recurrent layers: ``[Q·(L + 1), E]`` -> ``[2, Q·(L + 1), U]``."""
    return twin_dense(named, tf.broadcast_to(encoded[None], [2, *encoded.shape]), critic_body(arch, scope), arch.activation)


def _remembered(
    weights: Sequence[tf.Tensor], x: tf.Tensor, memory: tf.Tensor, burn_in: int = 0, begins: tf.Tensor | None = None
) -> tf.Tensor:
    """Outputs of recurrent layers side by side over sequences, float32 ``[…, Q, L + 1, H]``.

    Args:
        weights: of `graph.lstm`, ``[…, …]``.
        x: float32 ``[…, Q·(L + 1), U]``.
        memory: float32 ``[…, Q, 2H]``, before the first step.
        burn_in: steps into which no gradient goes back from later ones.
        begins: bool ``[Q]``, sequences into whose first steps it does.
    """
    *lead, rows, width = x.shape
    sequences = memory.shape[-2]
    x = tf.reshape(x, [*lead, sequences, rows // sequences, width])
    if not burn_in:
        return graph.lstm(*weights, x, memory)[0]
    warm, memories = graph.lstm(*weights, x[..., :burn_in, :], memory)
    memory = memories[..., -1, :]
    rest, _ = graph.lstm(*weights, x[..., burn_in:, :], tf.where(begins[:, None], memory, tf.stop_gradient(memory)))
    return tf.concat([warm, rest], axis=-2)


def _images(batch: Batch, prefix: str = "") -> list[tf.Tensor]:
    """Image observations of a batch, in their order."""
    names = sorted((name for name in batch if name.startswith(f"{prefix}image/")), key=lambda name: int(name.rpartition("/")[2]))
    return [batch[name] for name in names]


def by_row(x: tf.Tensor) -> tf.Tensor:
    """``[Q, L, …]`` -> ``[Q·L, …]``."""
    return tf.reshape(x, [x.shape[0] * x.shape[1], *x.shape[2:]])
