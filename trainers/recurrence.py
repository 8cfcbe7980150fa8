"""Several recurrent layers of one shape over the same sequences in one loop, in TensorFlow.

A program compiles a loop for each call, and each takes seconds: SAC's actor, critics and targets go through theirs together.

Letters: ``L`` steps, ``P`` layers, ``Q`` sequences, ``U``, ``H`` as in `trainers.architecture`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainers import graph  # noqa: F401 - it quietens TensorFlow before the import

import tensorflow as tf  # isort: skip


def lstms(
    kernels: Sequence[tf.Tensor], recurrent_kernels: Sequence[tf.Tensor], biases: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor],
    memory: tf.Tensor, keeps: tf.Tensor, cut: int = 0, trained: int | None = None,
) -> tf.Tensor:
    """P layers, each as `trainers.graph.lstm`, whose gradients may stop between two steps.

    Args:
        kernels, recurrent_kernels, biases: P float32 ``[U, 4H]``, ``[H, 4H]`` and ``[4H]``; U may differ.
        inputs: P float32 ``[Q, L, U]``.
        memory: float32 ``[P, Q, 2H]``, before the first step: h, then c. No gradient flows to it.
        keeps: bool ``[Q]``, sequences in which the gradient does not stop.
        cut: step before which gradients stop, so that steps from it on do not move what was before; 0 stops none.
        trained: only the first so many layers get gradients; None: all.

    Returns:
        Outputs, float32 ``[P, Q, L, H]``.
    """
    gates = [_gates(x, kernel, bias) for x, kernel, bias in zip(inputs, kernels, biases, strict=True)]
    trained = len(gates) if trained is None else trained

    @tf.custom_gradient
    def recurrence(z: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
        return _recurrence(z, kernel, tf.stop_gradient(memory), tf.cast(keeps, tf.float32)[:, None], cut, trained)

    return tf.transpose(recurrence(tf.stack(gates, axis=1), tf.stack(recurrent_kernels)), [1, 2, 0, 3])


def _gates(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """What the inputs of one layer ``[Q, L, U]`` give to its gates, ``[L, Q, 4H]``: in one product for all steps."""
    sequences, length, width = x.shape
    x = tf.reshape(tf.transpose(x, [1, 0, 2]), [length * sequences, width])
    return tf.reshape(tf.matmul(x, kernel) + bias, [length, sequences, kernel.shape[1]])


def _recurrence(
    z: tf.Tensor, kernel: tf.Tensor, memory: tf.Tensor, keeps: tf.Tensor, cut: int, trained: int
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
    """What goes from step to step: h after each ``[L, P, Q, H]``, and its gradient.

    Args:
        z: float32 ``[L, P, Q, 4H]``, what the inputs give to the gates.
        kernel: ``[P, H, 4H]``.
        memory: ``[P, Q, 2H]``.
        keeps: float32 ``[Q, 1]``, by what gradients are multiplied that go back from step `cut`.
    """
    length, start = z.shape[0], tf.split(memory, 2, axis=2)

    def forward(t, h, c, hs, cs, gates):
        i, f, g, o = tf.split(tf.gather(z, t) + tf.matmul(h, kernel), 4, axis=2)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        c = f * c + i * g
        h = o * tf.tanh(c)
        return t + 1, h, c, hs.write(t, h), cs.write(t, c), gates.write(t, tf.concat([i, f, g, o], axis=2))

    begin = (tf.constant(0), *start, *(_steps(length, x.shape) for x in start), _steps(length, z.shape[1:]))
    *_, hs, cs, gates = tf.while_loop(lambda t, *_: t < length, forward, begin)
    hs, cs, gates = hs.stack(), cs.stack(), gates.stack()

    def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        before_h, before_c = (tf.concat([first[None], x[:-1]], axis=0)[:, :trained] for first, x in zip(start, (hs, cs), strict=True))
        of_h, c_after, acted, weights = upstream[:, :trained], cs[:, :trained], gates[:, :trained], kernel[:trained]

        def backward(t, d_h, d_c, d_z):
            i, f, g, o = tf.split(tf.gather(acted, t), 4, axis=2)
            squashed = tf.tanh(tf.gather(c_after, t))
            d_h += tf.gather(of_h, t)
            d_c += d_h * o * (1.0 - tf.square(squashed))
            now = tf.concat([
                d_c * g * i * (1.0 - i), d_c * tf.gather(before_c, t) * f * (1.0 - f), d_c * i * (1.0 - tf.square(g)),
                d_h * squashed * o * (1.0 - o),
            ], axis=2)
            kept = tf.where(t == cut, keeps, 1.0)
            return t - 1, kept * tf.matmul(now, weights, transpose_b=True), kept * d_c * f, d_z.write(t, now)

        zeros = tf.zeros_like(before_h[0])
        last = (tf.constant(length - 1), zeros, zeros, _steps(length, acted.shape[1:]))
        d_z = tf.while_loop(lambda t, *_: t >= 0, backward, last)[3].stack()
        d_kernel = tf.matmul(_by_layer(before_h), _by_layer(d_z), transpose_a=True)  # one product for all steps
        rest = z.shape[1] - trained
        return tf.pad(d_z, [[0, 0], [0, rest], [0, 0], [0, 0]]), tf.pad(d_kernel, [[0, rest], [0, 0], [0, 0]])

    return hs, gradients


def _steps(length: int, shape: tf.TensorShape) -> tf.TensorArray:
    return tf.TensorArray(tf.float32, size=length, element_shape=shape)


def _by_layer(x: tf.Tensor) -> tf.Tensor:
    """``[L, P, Q, H]`` -> ``[P, L·Q, H]``."""
    length, layers, sequences, width = x.shape
    return tf.reshape(tf.transpose(x, [1, 0, 2, 3]), [layers, length * sequences, width])
