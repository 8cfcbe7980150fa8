"""The forward pass of actor and critic in TensorFlow, over the same tensors and layers as the NumPy policy.

The one place that imports TensorFlow first. Letters: ``M`` rows, ``I`` network inputs, ``U`` hidden units, ``C`` continuous
dimensions, ``B`` discrete branches, ``S`` reward signals.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before the import: TensorFlow greets at length otherwise

import tensorflow as tf

from envs.specs import BehaviorSpec
from trainers.distributions import HALF_LOG_2PI
from trainers.networks import LOG_STD, Dense, action_heads, body_layers, value_heads
from trainers.settings import NetworkSettings

Parameters = Mapping[str, tf.Tensor]
"""Tensor name -> float32 tensor, as laid out in `trainers.networks`."""

_NARROW = 8  # outputs of a layer up to which `_narrow_product` is the faster way

ACTIVATIONS = {"tanh": tf.tanh, "relu": tf.nn.relu, "swish": tf.nn.silu, "elu": tf.nn.elu}


def body(parameters: Parameters, inputs: tf.Tensor, layers: Sequence[Dense], activation: str) -> tf.Tensor:
    """Dense layers, each followed by the activation: float32 ``[M, I]`` -> ``[M, U]``."""
    for layer in layers:
        inputs = ACTIVATIONS[activation](head(parameters, inputs, layer))
    return inputs


def head(parameters: Parameters, features: tf.Tensor, layer: Dense) -> tf.Tensor:
    """One dense layer without activation: float32 ``[M, layer.inputs]`` -> ``[M, layer.outputs]``."""
    product = _narrow_product if layer.outputs <= _NARROW else tf.matmul
    return product(features, parameters[layer.kernel]) + parameters[layer.bias]


@tf.custom_gradient
def _narrow_product(x: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
    """``x @ kernel`` for a kernel of a few columns: on a CPU about 5 % off a whole update of a 2 × 64 network.

    The compiler's matrix products are slow on narrow matrices. As a sum of outer products the gradient of `x` joins the loop
    that follows, and that of the kernel is faster the other way round.
    """

    def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        columns = zip(tf.unstack(upstream, axis=1), tf.unstack(kernel, axis=1), strict=True)
        of_x = tf.add_n([u[:, None] * k[None, :] for u, k in columns])
        return of_x, tf.transpose(tf.matmul(upstream, x, transpose_a=True))

    return x @ kernel, gradients


def log_prob_and_entropy(
    parameters: Parameters,
    features: tf.Tensor,
    spec: BehaviorSpec,
    network: NetworkSettings,
    continuous: tf.Tensor,
    discrete: tf.Tensor,
    entropy_reduction: str = "sum",
) -> tuple[tf.Tensor, tf.Tensor]:
    """Joint log-probability (density) of actions, and the entropy of the distribution they come from.

    Args:
        features: the actor's body on these rows, float32 ``[M, U]``.
        continuous: float32 ``[M, C]``, samples before clipping.
        discrete: int32 ``[M, B]``.
        entropy_reduction: ``"sum"`` over dimensions and branches (the joint entropy) or ``"mean"`` over them.

    Returns:
        Two float32 ``[M]``, in nats.
    """
    log_probs: list[tf.Tensor] = []
    entropies: list[tf.Tensor] = []
    heads = list(action_heads(spec, network))
    if spec.action.continuous_size:
        mean, log_std = head(parameters, features, heads.pop(0)), parameters[LOG_STD]
        z = (continuous - mean) * tf.exp(-log_std)
        log_probs.append(tf.reduce_sum(-0.5 * tf.square(z) - log_std - HALF_LOG_2PI, axis=1))
        entropies.append(tf.fill([tf.shape(features)[0]], tf.reduce_sum(log_std + HALF_LOG_2PI + 0.5)))
    for b, layer in enumerate(heads):
        log_p = tf.nn.log_softmax(head(parameters, features, layer))
        # A product: faster than a gather of one element per row, and its gradient.
        chosen = tf.one_hot(discrete[:, b], layer.outputs)
        log_probs.append(tf.reduce_sum(log_p * chosen, axis=1))
        entropies.append(-tf.reduce_sum(tf.exp(log_p) * log_p, axis=1))
    entropy = tf.add_n(entropies)
    if entropy_reduction == "mean":
        entropy /= spec.action.continuous_size + len(spec.action.discrete_branches)
    return tf.add_n(log_probs), entropy


def values(
    parameters: Parameters,
    inputs: tf.Tensor,
    spec: BehaviorSpec,
    network: NetworkSettings,
    signals: Sequence[str],
    shared_critic: bool,
    actor_features: tf.Tensor | None = None,
) -> tf.Tensor:
    """Value estimates, float32 ``[M, S]``.

    Args:
        inputs: network inputs, float32 ``[M, I]``.
        actor_features: the actor's body on `inputs`, read by a shared critic only; computed here when it is None.
    """
    features = actor_features
    if not shared_critic or features is None:
        scope = "actor" if shared_critic else "critic"
        features = body(parameters, inputs, body_layers(spec, network, scope), network.activation)
    return tf.concat([head(parameters, features, layer) for layer in value_heads(network, signals)], axis=1)
