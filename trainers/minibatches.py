"""Which items of a buffer make which minibatch: one rule for every program that learns from a buffer in epochs."""

from __future__ import annotations

from trainers.quiet_tensorflow import tf


def minibatch_of(
    order: tf.Tensor, number: tf.Tensor, items: tf.Tensor, count: tf.Tensor, size: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """The items of minibatch `number`, counted over all epochs, and the weight of each.

    Numbers of items within an epoch differ by at most one, and every item is in one minibatch.

    Args:
        order: int32 ``[E, at least items + size]``, a permutation of the items per epoch.
        number: int32 scalar.
        items: int32 scalar, how many are real.
        count: int32 scalar, minibatches of an epoch: ceil(items / size).
        size: most items of a minibatch.

    Returns:
        int32 ``[size]``, and float32 ``[size]``: 1 over the number of real ones, 0 for padding.
    """
    epoch, j = number // count, number % count
    length, longer = items // count, items % count
    first = j * length + tf.minimum(j, longer)
    length += tf.cast(j < longer, tf.int32)
    # Not tf.slice: XLA takes what its begin depends on (items, count) for constants and would compile anew for every
    # number of rows (tests/trainers/test_ppo_update.py: test_no_input_is_a_constant_of_the_compiled_program).
    place = tf.range(size)
    index = tf.gather(tf.reshape(order, [-1]), first + epoch * order.shape[1] + place)
    real = tf.cast(place < length, tf.float32)
    return index, real / tf.reduce_sum(real)
