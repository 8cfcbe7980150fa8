"""Curiosity: a reward for what the next observation has that a forward model did not foresee.

Source: Pathak et al. 2017, https://arxiv.org/abs/1705.05363 (ICM), with the weights of Unity ML-Agents. Letters as in
`trainers.signal_graph`; ``U`` units of the encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainers import graph
from trainers.architecture import Architecture
from trainers.networks import HIDDEN_GAIN, Dense, Layout, body_layout, body_width, dense_layout
from trainers.quiet_tensorflow import tf
from trainers.signal_graph import Seen, action_features, dense, features, mean, stacked

_HIDDEN = 256  # units of the hidden layer of both models
_FORWARD, _INVERSE, _LOSS = 0.2, 0.8, 10.0  # weights of the losses, and of their sum


@dataclass(frozen=True)
class Curiosity:
    """φ encodes observations; an inverse model tells the action from φ(s), φ(s'), a forward model tells φ(s') from φ(s) and the action.

    r = ½ ‖φ̂(s') − φ(s')‖², at most 1/strength; loss = 10 (0.2 L_forward + 0.8 L_inverse), where L_forward is the mean of ½ ‖…‖² and
    L_inverse the cross entropy of the branches and the squared error of the continuous part, summed over both. φ learns from both.
    """

    arch: Architecture
    learning_rate: float
    largest: float
    statistics: ClassVar[tuple[str, ...]] = ("Losses/Curiosity Forward Loss", "Losses/Curiosity Inverse Loss")
    has_experts: ClassVar[bool] = False

    @property
    def _actions(self) -> int:
        return self.arch.spec.action.continuous_size + self.arch.spec.action.choices

    @property
    def _forward(self) -> tuple[Dense, Dense]:
        units = body_width(self.arch)
        return (Dense("curiosity/forward_0", units + self._actions, _HIDDEN, HIDDEN_GAIN),
                Dense("curiosity/forward_1", _HIDDEN, units, 1.0))

    @property
    def _inverse(self) -> tuple[Dense, Dense]:
        return (Dense("curiosity/inverse_0", 2 * body_width(self.arch), _HIDDEN, HIDDEN_GAIN),
                Dense("curiosity/inverse_1", _HIDDEN, self._actions, 1.0))

    @property
    def scopes(self) -> tuple[str, ...]:
        """See `SignalModel`."""
        return ("curiosity",)

    @property
    def layers(self) -> tuple[Dense, ...]:
        """Dense layers besides the body."""
        return (*self._forward, *self._inverse)

    @property
    def layout(self) -> Layout:
        """See `SignalModel`."""
        return {**body_layout(self.arch, "curiosity"), **dense_layout(*self.layers)}

    @property
    def fixed(self) -> Layout:
        """See `SignalModel`."""
        return {}

    def rewards(self, named: graph.Parameters, seen: Seen) -> tf.Tensor:
        """See `SignalModel`."""
        now, after = (features(named, x, self.arch, "curiosity") for x in (seen.now, seen.after))
        return tf.minimum(self._surprise(named, now, after, seen), self.largest)

    def _surprise(self, named: graph.Parameters, now: tf.Tensor, after: tf.Tensor, seen: Seen) -> tf.Tensor:
        action = action_features(self.arch, seen.continuous, seen.discrete)
        foreseen = dense(named, tf.concat([now, action], axis=1), self._forward, self.arch.activation)
        return 0.5 * tf.reduce_sum(tf.square(foreseen - after), axis=1)

    def loss(
        self, named: graph.Parameters, seen: Seen, weight: tf.Tensor, experts: Seen | None, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """See `SignalModel`."""
        # Both observations in one pass: one product of twice the rows.
        both = features(named, stacked(seen), self.arch, "curiosity")
        now, after = tf.split(both, 2)
        forward = mean(self._surprise(named, now, after, seen), weight)
        told = dense(named, tf.concat([now, after], axis=1), self._inverse, self.arch.activation)
        inverse = mean(self._mistaken(told, seen), weight)
        return _LOSS * (_FORWARD * forward + _INVERSE * inverse), (forward, inverse)

    def _mistaken(self, told: tf.Tensor, seen: Seen) -> tf.Tensor:
        """How far what the inverse model tells is from the action, float32 ``[M]``."""
        action = self.arch.spec.action
        parts = tf.split(told, [action.continuous_size, *action.discrete_branches], axis=1)
        wrong = tf.reduce_sum(tf.square(parts[0] - seen.continuous), axis=1)
        for b, logits in enumerate(parts[1:]):
            wrong += tf.nn.sparse_softmax_cross_entropy_with_logits(seen.discrete[:, b], logits)
        return wrong
