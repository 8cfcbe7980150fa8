"""Random network distillation: a reward for observations that a network has not yet learnt to tell.

Source: Burda et al. 2019, https://arxiv.org/abs/1810.12894. Letters as in `trainers.signal_graph`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainers import graph
from trainers.architecture import Architecture
from trainers.networks import Dense, Layout, body_layout
from trainers.quiet_tensorflow import tf
from trainers.signal_graph import Inputs, Seen, features, mean

PREDICTOR, TARGET = "rnd/predictor", "rnd/target"


@dataclass(frozen=True)
class RandomNetworkDistillation:
    """A predictor learns what a network of random weights makes of the next observation: r = ‖f̂(s') − f(s')‖², loss the mean of r.

    Inputs have to be standardised, or the random network tells hardly anything of them (section 2.4 there).
    """

    arch: Architecture
    learning_rate: float
    statistics: ClassVar[tuple[str, ...]] = ("Losses/RND Loss",)
    has_experts: ClassVar[bool] = False

    @property
    def scopes(self) -> tuple[str, ...]:
        """See `SignalModel`."""
        return (PREDICTOR, TARGET)

    @property
    def layers(self) -> tuple[Dense, ...]:
        """Dense layers besides the bodies."""
        return ()

    @property
    def layout(self) -> Layout:
        """See `SignalModel`."""
        return body_layout(self.arch, PREDICTOR)

    @property
    def fixed(self) -> Layout:
        """See `SignalModel`."""
        return body_layout(self.arch, TARGET)

    def rewards(self, named: graph.Parameters, seen: Seen) -> tf.Tensor:
        """See `SignalModel`."""
        return self._unknown(named, seen.after)

    def _unknown(self, named: graph.Parameters, inputs: Inputs) -> tf.Tensor:
        told, target = (features(named, inputs, self.arch, scope) for scope in (PREDICTOR, TARGET))
        return tf.reduce_sum(tf.square(told - target), axis=1)

    def loss(
        self, named: graph.Parameters, seen: Seen, weight: tf.Tensor, experts: Seen | None, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """See `SignalModel`."""
        loss = mean(self._unknown(named, seen.after), weight)
        return loss, (loss,)
