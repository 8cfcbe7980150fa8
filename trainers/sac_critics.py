"""SAC's critics in TensorFlow: both at once, over the tensors of `trainers.sac_networks`.

Letters: ``R`` rows, ``E`` encoded inputs, ``H`` as in `trainers.architecture`, ``C``, ``B``, ``S``, ``A`` as in `trainers.sac_graph`, ``W``
as in `trainers.sac_networks`; a leading 2 is the twins.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainers import graph, sac_losses  # first: it quietens TensorFlow before the import
from trainers.architecture import Architecture
from trainers.networks import Dense
from trainers.quiet_tensorflow import tf
from trainers.sac_networks import critic_body, joint_layer, outputs_per_signal, q_head


def q_values(
    named: graph.Parameters, scope: str, features: tf.Tensor, continuous: tf.Tensor, arch: Architecture, signals: Sequence[str]
) -> tf.Tensor:
    """Outputs of both critics, float32 ``[2, R, S, W]``.

    Args:
        scope: ``"critic"`` or ``"target_critic"``.
        features: encoded inputs ``[R, E]``, or with a memory what is remembered ``[2, R, H]``.
        continuous: float32 ``[R, C]``, in policy space.
    """
    rows = continuous.shape[0]
    if arch.memory is None:
        x = tf.concat([features, continuous], axis=1)
        x = twin_dense(named, tf.broadcast_to(x[None], [2, *x.shape]), critic_body(arch, scope), arch.activation)
    else:
        x = tf.concat([features, tf.broadcast_to(continuous[None], [2, *continuous.shape])], axis=2)
    joint = joint_layer(arch, scope)
    x = twin_dense(named, x, [joint] if joint else [], arch.activation)
    x = _twin(named, x, q_head(arch, signals, scope))
    return tf.reshape(x, [2, rows, len(signals), outputs_per_signal(arch.spec.action)])


def taken(
    named: graph.Parameters, scope: str, features: tf.Tensor, continuous: tf.Tensor, discrete: tf.Tensor, arch: Architecture,
    signals: Sequence[str],
) -> tf.Tensor:
    """Q of stored actions, float32 ``[2, R, S]``.

    Args:
        discrete: ``[R, B]``, whole numbers of any dtype.
    """
    q, branches = q_values(named, scope, features, continuous, arch, signals), arch.spec.action.discrete_branches
    if not branches:
        return q[:, :, :, 0]
    chosen = [tf.one_hot(tf.cast(discrete[:, b], tf.int32), choices) for b, choices in enumerate(branches)]
    return sac_losses.taken_value(tf.split(q, list(branches), axis=3), chosen)


def expected(
    named: graph.Parameters, scope: str, features: tf.Tensor, continuous: tf.Tensor, log_p: Sequence[tf.Tensor], arch: Architecture,
    signals: Sequence[str],
) -> tf.Tensor:
    """Expected Q under the policy, float32 ``[2, R, S]``: exact over choices, at the sample of the continuous part.

    Args:
        log_p: log-probabilities of the choices of each branch, ``[R, A]``.
    """
    q = q_values(named, scope, features, continuous, arch, signals)
    if not log_p:
        return q[:, :, :, 0]
    return sac_losses.expected_value(tf.split(q, list(arch.spec.action.discrete_branches), axis=3), log_p)


def twin_dense(named: graph.Parameters, x: tf.Tensor, layers: Sequence[Dense], activation: str) -> tf.Tensor:
    """Dense layers of both critics, each followed by the activation: ``[2, R, inputs]`` -> ``[2, R, outputs]``."""
    for layer in layers:
        x = graph.ACTIVATIONS[activation](_twin(named, x, layer))
    return x


def _twin(named: graph.Parameters, x: tf.Tensor, layer: Dense) -> tf.Tensor:
    """One dense layer of both critics: ``[2, R, inputs]`` -> ``[2, R, outputs]``."""
    return x @ named[layer.kernel] + named[layer.bias][:, None]
