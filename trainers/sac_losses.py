"""SAC's distributions and losses as pure functions of TensorFlow tensors.

Letters: ``M`` rows of a batch, ``C`` continuous dimensions, ``A`` choices of one branch, ``S`` reward signals; a leading 2 is the
twin critics. With sequences, rows are theirs, one after another, and some of them, padding and burn-in, do not count. Entropies
and log-probabilities are in nats, those of continuous actions in policy space [-1, 1].
"""

from __future__ import annotations

from collections.abc import Sequence

from trainers.distributions import HALF_LOG_2PI, LOG_2
from trainers.quiet_tensorflow import tf


def squash(u: tf.Tensor, noise: tf.Tensor, log_std: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """tanh(u) and its joint log-density: log N(u) − Σ_c log(1 − tanh²(u_c)).

    The correction is written as 2(ln 2 − u − softplus(−2u)), which is finite where 1 − tanh² is 0 in float32.

    Source: Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, appendix C.

    Args:
        u: float32 ``[M, C]``, μ + σ·noise.
        noise: float32 ``[M, C]``, standard normal.
        log_std: float32 ``[M, C]``, log σ.

    Returns:
        float32 ``[M, C]`` in [-1, 1], and ``[M]``.
    """
    log_normal = -0.5 * tf.square(noise) - log_std - HALF_LOG_2PI
    correction = 2.0 * (LOG_2 - u - tf.nn.softplus(-2.0 * u))
    return tf.tanh(u), tf.reduce_sum(log_normal - correction, axis=1)


def taken_value(q: Sequence[tf.Tensor], chosen: Sequence[tf.Tensor]) -> tf.Tensor:
    """Q(s, a) of the choices that were made: the mean over branches of each one's value, ``[2, M, S]``.

    Args:
        q: per branch ``[2, M, S, A]``.
        chosen: per branch float32 ``[M, A]``, 1 at the choice.
    """
    return tf.add_n([tf.reduce_sum(q_b * one_hot[None, :, None, :], axis=3) for q_b, one_hot in zip(q, chosen, strict=True)]) / len(q)


def expected_value(q: Sequence[tf.Tensor], log_p: Sequence[tf.Tensor]) -> tf.Tensor:
    """E_π[Q(s, a)] over the choices, exactly: the mean over branches of Σ_a p_a Q_a, ``[2, M, S]``.

    Args:
        q: per branch ``[2, M, S, A]``.
        log_p: per branch ``[M, A]``.
    """
    return taken_value(q, [tf.exp(branch) for branch in log_p])


def entropies(log_p: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """−Σ_a p_a log p_a of each branch, ``[M]`` each.

    Args:
        log_p: per branch ``[M, A]``.
    """
    return [-tf.reduce_sum(tf.exp(branch) * branch, axis=1) for branch in log_p]


def smaller_twin(values: tf.Tensor) -> tf.Tensor:
    """Per row the values of the critic whose sum over signals is smaller (clipped double Q): ``[2, M, S]`` -> ``[M, S]``.

    All signals of a row come from one critic: the minimum is taken of what the policy maximises, not of each stream.

    Source: Fujimoto, van Hoof & Meger 2018, https://arxiv.org/abs/1802.09477, eq. 10.
    """
    total = tf.reduce_sum(values, axis=2)
    return tf.where((total[0] <= total[1])[:, None], values[0], values[1])


def value_target(reward: tf.Tensor, bootstrap: tf.Tensor, soft_value: tf.Tensor) -> tf.Tensor:
    """y = r + bootstrap · V, float32 ``[M, S]``; no gradient flows through it.

    Args:
        reward: ``[M, S]``, n-step sums of discounted rewards.
        bootstrap: ``[M, S]``, γ^k, 0 where the task ended.
        soft_value: ``[M, S]``, V of the observation k steps on.
    """
    return tf.stop_gradient(reward + bootstrap * soft_value)


def mean(x: tf.Tensor, weight: tf.Tensor | None) -> tf.Tensor:
    """Mean over the rows that count, ``[M, …]`` -> ``[…]``; 0 where none does.

    Args:
        weight: float32 ``[M]``, 1 or 0; None counts all rows.
    """
    if weight is None:
        return tf.reduce_mean(x, axis=0)
    weight = tf.reshape(weight, [-1] + [1] * (x.shape.rank - 1))
    return tf.reduce_sum(weight * x, axis=0) / tf.maximum(tf.reduce_sum(weight), 1.0)


def critic_loss(q: tf.Tensor, target: tf.Tensor, weight: tf.Tensor | None = None) -> tf.Tensor:
    """½ E[(Q − y)²] of each critic, the mean over signals: float32 ``[2]``.

    Args:
        q: ``[2, M, S]``.
        target: ``[M, S]``.
        weight: as `mean` takes it.
    """
    return 0.5 * mean(tf.transpose(tf.reduce_mean(tf.square(q - target[None]), axis=2)), weight)


def entropy_coef_loss(log_alpha: tf.Tensor, entropy: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """Σ_parts log α · (H − H_target), a scalar whose gradient lowers α where the entropy is above its target and raises it below.

    log α is what is trained, so α = exp(log α) is never negative. The loss is linear in it (not in α, as in the paper's eq. 18):
    the same fixed point, and a step that does not shrink with α.

    Args:
        log_alpha: ``[P]``.
        entropy: ``[P]``, mean over the batch of each part's entropy; no gradient flows through it.
        target: ``[P]``.
    """
    return tf.reduce_sum(log_alpha * tf.stop_gradient(entropy - target))
