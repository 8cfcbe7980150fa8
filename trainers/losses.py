"""PPO's losses as pure functions of TensorFlow tensors. Letters: ``M`` rows of a minibatch, ``S`` reward signals.

Every mean is ``Σ weight · x`` with weights that are 0 for padding and sum to 1 over real rows, so what lies in the padding
never matters, neither for a loss nor for its gradient.
"""

from __future__ import annotations

from trainers.quiet_tensorflow import tf


def weighted_sum(weight: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """``Σ weight · x`` over rows, a scalar; rows of weight 0 count nothing whatever `x` is there, infinity and NaN included.

    Args:
        weight: float32 ``[M]``.
        x: float32 ``[M]``.
    """
    return tf.reduce_sum(tf.where(weight > 0.0, weight * x, 0.0))


def log_importance_ratio(log_prob: tf.Tensor, old_log_prob: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """``log π(a|s) − log π_old(a|s)`` of joint actions, float32 ``[M]``; 0 in rows of weight 0.

    One ratio per action, whatever its dimensions and branches: ``exp`` of the difference of their *summed* log-probabilities.

    Args:
        log_prob, old_log_prob: float32 ``[M]``, joint log-probabilities of the same actions.
    """
    # Masked here, before the exponential: it would turn padding into infinity, and the gradient 0 · inf into NaN.
    return tf.where(weight > 0.0, log_prob - old_log_prob, 0.0)


def clipped_surrogate_loss(ratio: tf.Tensor, advantage: tf.Tensor, clip_ratio: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """``−E[min(r A, clip(r, 1 − ε, 1 + ε) A)]``, a scalar.

    Source: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, eq. 7.

    Args:
        ratio: float32 ``[M]``, importance ratios r.
        advantage: float32 ``[M]``.
        clip_ratio: ε, a scalar.
        weight: float32 ``[M]``.
    """
    clipped = tf.clip_by_value(ratio, 1.0 - clip_ratio, 1.0 + clip_ratio)
    return -weighted_sum(weight, tf.minimum(ratio * advantage, clipped * advantage))


def value_loss(
    value: tf.Tensor, old_value: tf.Tensor, target: tf.Tensor, clip_range: tf.Tensor | None, weight: tf.Tensor
) -> tf.Tensor:
    """Squared error of the value estimates: mean over signals of ``E[max((V − R)², (V_clip − R)²)]``, a scalar.

    ``V_clip = V_old + clip(V − V_old, −ε, ε)`` with the estimates of before the update as V_old; ``E[(V − R)²]`` when
    `clip_range` is None.

    Source: Huang et al. 2022, https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/, detail 9, without its
    factor of one half, as in ML-Agents: ``value_coef`` has it.

    Args:
        value: float32 ``[M, S]``, V.
        old_value: float32 ``[M, S]``, V_old.
        target: float32 ``[M, S]``, R.
        clip_range: ε, a scalar.
        weight: float32 ``[M]``.
    """
    error = tf.square(value - target)
    if clip_range is not None:
        clipped = old_value + tf.clip_by_value(value - old_value, -clip_range, clip_range)
        error = tf.maximum(error, tf.square(clipped - target))
    return weighted_sum(weight, tf.reduce_mean(error, axis=1))


def approximate_kl(log_ratio: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """``E[(r − 1) − log r]``, an unbiased, never negative estimate of KL(π_old ‖ π), a scalar.

    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html (estimator k3).

    Args:
        log_ratio: float32 ``[M]``, log r.
        weight: float32 ``[M]``.
    """
    return weighted_sum(weight, tf.exp(log_ratio) - 1.0 - log_ratio)


def clip_fraction(ratio: tf.Tensor, clip_ratio: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Share of rows whose ratio lies outside ``[1 − ε, 1 + ε]``, a scalar.

    Args:
        ratio: float32 ``[M]``.
        clip_ratio: ε, a scalar.
        weight: float32 ``[M]``.
    """
    return weighted_sum(weight, tf.cast(tf.abs(ratio - 1.0) > clip_ratio, tf.float32))
