"""The forward pass of actor and critic in TensorFlow, over the same tensors and layers as the NumPy policy.

Letters: ``M`` rows, ``Q`` sequences of ``L`` steps, ``I``, ``U``, ``H`` and ``F`` as in
`trainers.architecture`, ``C`` continuous dimensions, ``B`` discrete branches, ``W`` choices of all branches, ``S`` reward signals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trainers.architecture import Architecture, ImageInput
from trainers.distributions import HALF_LOG_2PI
from trainers.encoders import Conv, MaxPool, Residual, convolutions, encoder_layers, encoder_prefix
from trainers.networks import LOG_STD, Dense, action_heads, body_layers, encoder_dense, lstm_layer, value_heads
from trainers.quiet_tensorflow import tf

Parameters = Mapping[str, tf.Tensor]
"""Tensor name -> float32 tensor, as laid out in `trainers.networks`."""

_NARROW = 8  # outputs of a layer up to which `_narrow_product` is the faster way

ACTIVATIONS = {"tanh": tf.tanh, "relu": tf.nn.relu, "swish": tf.nn.silu, "elu": tf.nn.elu}


def compile_with_xla(arch: Architecture) -> bool:
    """Whether programs of these networks are compiled by XLA: not with convolutions or a model of the user's, which may have some.

    On a CPU, XLA's convolutions take 8 to 20 times as long as oneDNN's, which a `tf.function` without XLA uses, and matrix products
    of image patches in XLA 1.7 times. Everything else is faster with XLA: it joins the many small operations of dense networks.
    Measured on 2 cores (AVX2), nature_cnn, minibatches of 256, forward and backward: about 900 rows a core and second with oneDNN,
    40 with XLA.
    """
    return arch.model is None and not any(convolutions(image, "") for image in arch.images)


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


# -- encoders --------------------------------------------------------------------------------------------------------


def encode(parameters: Parameters, vector: tf.Tensor, images: Sequence[tf.Tensor], arch: Architecture, scope: str) -> tf.Tensor:
    """Network inputs (see `trainers.inputs`) through the visual encoders: the body's input, float32 ``[M, encoded_width]``.

    A model of the user's takes both in and gives features ``[M, U]``.
    """
    if arch.model is not None:
        from trainers.keras_model import call_model

        return call_model(parameters, vector, images, arch, scope)
    if not images:
        return vector
    parts = [vector] if arch.vector_width else []
    for image, x in zip(arch.images, images, strict=True):
        parts.append(encode_image(parameters, x, image, arch, scope))
    return tf.concat(parts, axis=1)


def encode_image(parameters: Parameters, x: tf.Tensor, image: ImageInput, arch: Architecture, scope: str) -> tf.Tensor:
    """One image observation ``[M, *shape]`` as it is stored -> float32 ``[M, image_units]``."""
    x = pixels(x, image)
    for layer in encoder_layers(image, encoder_prefix(arch, image, scope)):
        if isinstance(layer, Conv):
            x = convolution(parameters, x, layer)
        elif isinstance(layer, MaxPool):
            x = tf.nn.max_pool2d(x, layer.size, layer.stride, "SAME")
        elif isinstance(layer, Residual):
            x += convolution(parameters, tf.nn.relu(convolution(parameters, tf.nn.relu(x), layer.first)), layer.second)
        else:
            x = tf.nn.relu(x)
    dense = encoder_dense(arch, image, scope)
    return ACTIVATIONS[arch.activation](head(parameters, tf.reshape(x, [x.shape[0], dense.inputs]), dense))


def pixels(x: tf.Tensor, image: ImageInput) -> tf.Tensor:
    """Images as they are stored -> float32 ``[M, height, width, channels]``, divided by 255 where that is asked for."""
    order = [0, *(axis + 1 for axis in image.to_channels_last)]
    if order != sorted(order):
        x = tf.transpose(x, order)
    x = tf.cast(tf.reshape(x, [x.shape[0], image.height, image.width, image.channels]), tf.float32)
    return x * (1.0 / 255.0) if image.scale else x


def convolution(parameters: Parameters, x: tf.Tensor, layer: Conv) -> tf.Tensor:
    """float32 ``[M, H, W, inputs]`` -> ``[M, H', W', outputs]``."""
    x = tf.nn.conv2d(x, parameters[layer.kernel], layer.stride, "SAME" if layer.same else "VALID")
    x = tf.nn.bias_add(x, parameters[layer.bias])
    return tf.nn.relu(x) if layer.relu else x


def features(parameters: Parameters, vector: tf.Tensor, images: Sequence[tf.Tensor], arch: Architecture, scope: str) -> tf.Tensor:
    """Encoders and dense layers, without the memory: float32 ``[M, U]``."""
    return body(parameters, encode(parameters, vector, images, arch, scope), body_layers(arch, scope), arch.activation)


def remember(
    parameters: Parameters, inputs: Sequence[tf.Tensor], memories: Sequence[tf.Tensor], arch: Architecture, scopes: Sequence[str]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """The recurrent layers of some scopes over the same sequences, see `lstm`.

    Side by side: a loop of both layers takes a tenth to a fifth less time than two loops.

    Args:
        inputs, memories: of each scope, float32 ``[Q, L, U]`` and ``[Q, M]``.

    Returns:
        Outputs and memories of each scope.
    """
    layers = [lstm_layer(arch, scope) for scope in scopes]
    if len(layers) == 1:
        outputs, after = lstm(*(parameters[name] for name in layers[0].layout), inputs[0], memories[0])
        return [outputs], [after]
    tensors = [tf.stack([parameters[name] for name in names]) for names in zip(*(layer.layout for layer in layers), strict=True)]
    outputs, after = lstm(*tensors, tf.stack(inputs), tf.stack(memories))
    return tf.unstack(outputs), tf.unstack(after)


def lstm(
    kernel: tf.Tensor, recurrent_kernel: tf.Tensor, bias: tf.Tensor, x: tf.Tensor, memory: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """A recurrent layer (`trainers.networks.Lstm`) over sequences that all begin with their own memory.

    What comes after a sequence's end (padding) never reaches what comes before it. Several layers of one shape run side by side
    where all arguments have more axes in front (``…``).

    Args:
        kernel, recurrent_kernel, bias: float32 ``[…, U, 4·H]``, ``[…, H, 4·H]`` and ``[…, 4·H]``.
        x: float32 ``[…, Q, L, U]``.
        memory: float32 ``[…, Q, M]``, before the first step: h, then c.

    Returns:
        Outputs ``[…, Q, L, H]``, and the memory after each step ``[…, Q, L, M]``.
    """
    *lead, q, length, inputs = x.shape
    h, c = tf.split(memory, 2, axis=-1)
    z = tf.matmul(tf.reshape(x, [*lead, q * length, inputs]), kernel) + bias[..., None, :]
    # Steps first, so that each is one block of memory.
    steps, axes = len(lead) + 1, range(len(lead) + 1)
    z = tf.transpose(tf.reshape(z, [*lead, q, length, kernel.shape[-1]]), [steps, *axes, steps + 1])
    outputs, cells = (tf.transpose(y, [*(axis + 1 for axis in axes), 0, steps + 1]) for y in _recurrence(z, recurrent_kernel, h, c))
    return outputs, tf.concat([outputs, cells], axis=-1)


@tf.custom_gradient
def _recurrence(
    z: tf.Tensor, kernel: tf.Tensor, h: tf.Tensor, c: tf.Tensor
) -> tuple[tuple[tf.Tensor, tf.Tensor], Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, ...]]]:
    """h and c after each step ``[L, …, Q, H]``, from what inputs give to the gates ``[L, …, Q, 4·H]`` and h, c before the first.

    Loops both ways with as little as possible inside, and the gradient of the kernel as one product over all steps. With unrolled
    steps a program takes 20 times as long to compile and twice as long to run; with the compiler's own gradient of the loop a
    quarter longer (one core, 16 or 32 sequences of 16 steps, 32 or 64 units). Half and more of the time is matrix products.
    """
    length, units = z.shape[0], kernel.shape[-2]
    # One function for all four gates: tanh(z) for the third, σ(z) = ½ tanh(z/2) + ½ for the others.
    scale, offset = (tf.constant(np.repeat(x, units), tf.float32) for x in ([0.5, 0.5, 1.0, 0.5], [0.5, 0.5, 0.0, 0.5]))

    def array(like: tf.Tensor) -> tf.TensorArray:
        return tf.TensorArray(tf.float32, size=length, element_shape=like.shape)

    def forward(t, h, c, hs, cs, gates):
        now = scale * tf.tanh(scale * (tf.gather(z, t) + tf.matmul(h, kernel))) + offset
        i, f, g, o = tf.split(now, 4, axis=-1)
        c = f * c + i * g
        h = o * tf.tanh(c)
        return t + 1, h, c, hs.write(t, h), cs.write(t, c), gates.write(t, now)

    start = (tf.constant(0), h, c, array(h), array(c), array(z[0]))
    *_, hs, cs, gates = tf.while_loop(lambda t, *_: t < length, forward, start)
    hs, cs, gates = hs.stack(), cs.stack(), gates.stack()

    def gradients(of_h: tf.Tensor, of_c: tf.Tensor) -> tuple[tf.Tensor, ...]:
        i, f, g, o = tf.split(gates, 4, axis=-1)
        squashed, earlier_c = tf.tanh(cs), tf.concat([c[None], cs[:-1]], axis=0)
        # dz = (dc, dc, dc, dh) ⊙ slopes, and dc grows by dh · through: all that does not depend on later steps.
        slopes = tf.concat([
            g * i * (1.0 - i), earlier_c * f * (1.0 - f), i * (1.0 - tf.square(g)), squashed * o * (1.0 - o),
        ], axis=-1)
        through, kernel_t = o * (1.0 - tf.square(squashed)), tf.linalg.matrix_transpose(kernel)

        def backward(t, d_h, d_c, d_hs, d_cs):
            d_h += tf.gather(of_h, t)
            d_c += tf.gather(of_c, t) + d_h * tf.gather(through, t)
            d_z = tf.concat([d_c, d_c, d_c, d_h], axis=-1) * tf.gather(slopes, t)
            return t - 1, tf.matmul(d_z, kernel_t), d_c * tf.gather(f, t), d_hs.write(t, d_h), d_cs.write(t, d_c)

        last = (tf.constant(length - 1), tf.zeros_like(h), tf.zeros_like(c), array(h), array(c))
        _, d_h, d_c, d_hs, d_cs = tf.while_loop(lambda t, *_: t >= 0, backward, last)
        d_hs, d_cs = d_hs.stack(), d_cs.stack()
        d_z = tf.concat([d_cs, d_cs, d_cs, d_hs], axis=-1) * slopes  # again: writing it in the loop takes longer
        earlier_h = tf.concat([h[None], hs[:-1]], axis=0)
        return d_z, tf.matmul(_rows(earlier_h), _rows(d_z), transpose_a=True), d_h, d_c

    return (hs, cs), gradients


def _rows(steps: tf.Tensor) -> tf.Tensor:
    """``[L, …, Q, H]`` -> ``[…, L·Q, H]``."""
    length, *lead, q, width = steps.shape
    axes = range(1, len(lead) + 1)
    return tf.reshape(tf.transpose(steps, [*axes, 0, len(lead) + 1, len(lead) + 2]), [*lead, length * q, width])


# -- heads -----------------------------------------------------------------------------------------------------------


def masked_log_softmax(logits: tf.Tensor, allowed: tf.Tensor | None) -> tf.Tensor:
    """Log-probabilities of one branch, float32 ``[M, A]``; very negative (probability exactly 0, gradient 0) where not allowed.

    Args:
        allowed: bool ``[M, A]``, at least one True in each row that counts; None allows everything.
    """
    if allowed is None:
        return tf.nn.log_softmax(logits)
    # Finite, because 0 · inf is NaN in a product with a probability of 0; exp(-1e9) is 0 exactly.
    return tf.where(allowed, tf.nn.log_softmax(tf.where(allowed, logits, -1e9)), -1e9)


def log_prob_and_entropy(
    parameters: Parameters,
    features: tf.Tensor,
    arch: Architecture,
    continuous: tf.Tensor,
    discrete: tf.Tensor,
    entropy_reduction: str = "sum",
    action_mask: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Joint log-probability (density) of actions, and the entropy of the distribution they come from.

    Args:
        features: of the actor on these rows, float32 ``[M, F]``.
        continuous: float32 ``[M, C]``, samples before clipping.
        discrete: int32 ``[M, B]``.
        entropy_reduction: ``"sum"`` over dimensions and branches (the joint entropy) or ``"mean"`` over them.
        action_mask: bool ``[M, W]``, True = allowed; None allows everything.

    Returns:
        Two float32 ``[M]``, in nats.
    """
    log_probs: list[tf.Tensor] = []
    entropies: list[tf.Tensor] = []
    action = arch.spec.action
    heads = list(action_heads(arch))
    if action.continuous_size:
        mean, log_std = head(parameters, features, heads.pop(0)), parameters[LOG_STD]
        z = (continuous - mean) * tf.exp(-log_std)
        log_probs.append(tf.reduce_sum(-0.5 * tf.square(z) - log_std - HALF_LOG_2PI, axis=1))
        entropies.append(tf.fill([tf.shape(features)[0]], tf.reduce_sum(log_std + HALF_LOG_2PI + 0.5)))
    for b, (layer, allowed) in enumerate(zip(heads, branch_masks(action_mask, action.discrete_branches), strict=True)):
        log_p = masked_log_softmax(head(parameters, features, layer), allowed)
        # A product: faster than a gather of one element per row, and its gradient.
        chosen = tf.one_hot(discrete[:, b], layer.outputs)
        log_probs.append(tf.reduce_sum(log_p * chosen, axis=1))
        entropies.append(-tf.reduce_sum(tf.exp(log_p) * log_p, axis=1))
    entropy = tf.add_n(entropies)
    if entropy_reduction == "mean":
        entropy /= action.continuous_size + len(action.discrete_branches)
    return tf.add_n(log_probs), entropy


def branch_masks(action_mask: tf.Tensor | None, branches: Sequence[int]) -> list[tf.Tensor | None]:
    """The mask of each branch ``[M, n_b]``, out of one ``[M, W]`` for all; None for each without a mask."""
    return [None] * len(branches) if action_mask is None else tf.split(action_mask, list(branches), axis=1)


def values(parameters: Parameters, features: tf.Tensor, arch: Architecture, signals: Sequence[str]) -> tf.Tensor:
    """Value estimates, float32 ``[M, S]``, from the critic's features (the actor's, with a shared critic) ``[M, F]``."""
    return tf.concat([head(parameters, features, layer) for layer in value_heads(arch, signals)], axis=1)
