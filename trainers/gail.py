"""Generative adversarial imitation: a reward for what a discriminator takes for an expert's.

Source: Ho & Ermon 2016, https://arxiv.org/abs/1606.03476; gradient penalty: Gulrajani et al. 2017, https://arxiv.org/abs/1704.00028,
on the logits; ends: Kostrikov et al. 2019, https://arxiv.org/abs/1809.02925, section 4; bottleneck: Peng et al. 2019,
https://arxiv.org/abs/1810.00821 (VAIL). Letters as in `trainers.signal_graph`.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainers import graph
from trainers.architecture import Architecture
from trainers.networks import HIDDEN_GAIN, Dense, Layout, body_layout, body_width, dense_layout
from trainers.quiet_tensorflow import tf
from trainers.signal_graph import Inputs, Seen, action_features, features, mean

SCOPE = "gail"
BETA, LOG_SIGMA, ABSORBING = "gail/beta", "gail/log_sigma", "gail/absorbing"
_PENALTY = 10.0
_BOTTLENECK = 128  # units
_INFORMATION = 0.5  # nats, what the bottleneck lets through
_ABSORBING_SCALE = 30.0  # one number is all there is to learn of the absorbing state, and Adam moves it by a learning rate at a time


@dataclass(frozen=True)
class Gail:
    """D tells experts' transitions from others'; r = −log(1 − D).

    With `use_actions` D sees the action beside the observation. That reward is never negative, so longer episodes always pay. With
    `end_aware`, an episode that ends goes on for ever in one absorbing state, which D judges as well: with its last transition the
    agent gets that state's rewards, r(absorbing) · γ/(1 − γ), and ends like the experts. D's logit of that state is a number of its own:
    as an input of the network it would, by the gradient penalty, be held close to observations that have nothing to do with it.

    The loss is the cross entropy of D, and 10 · (‖∇D's logit‖ − 1)² at points between experts' and others', over all inputs. With
    `use_vail` D sees observations through a random code, N(μ, σ²) with a learnt σ, whose information (KL divergence from N(0, 1))
    is held at 0.5 by a price β.

    Attributes:
        gamma: discount of the signal.
    """

    arch: Architecture
    learning_rate: float
    gamma: float
    use_actions: bool = False
    use_vail: bool = False
    end_aware: bool = False
    has_experts = True

    @property
    def statistics(self) -> tuple[str, ...]:
        """See `SignalModel`."""
        ends = ("Policy/GAIL End Estimate",) if self.end_aware else ()
        vail = ("Losses/GAIL KL Loss", "Policy/GAIL Beta") if self.use_vail else ()
        return ("Losses/GAIL Loss", "Policy/GAIL Grad Mag Loss", "Policy/GAIL Policy Estimate", "Policy/GAIL Expert Estimate", *ends, *vail)

    @property
    def _extra(self) -> int:
        """Columns beside the observation: the action's."""
        action = self.arch.spec.action
        return (action.continuous_size + action.choices) * self.use_actions

    @property
    def _joined(self) -> Dense:
        """The layer where the observation's features meet the other columns."""
        return Dense(f"{SCOPE}/joined", body_width(self.arch) + self._extra, body_width(self.arch), HIDDEN_GAIN)

    @property
    def _code(self) -> Dense:
        return Dense(f"{SCOPE}/code", body_width(self.arch), _BOTTLENECK, 1.0)

    @property
    def _logit(self) -> Dense:
        return Dense(f"{SCOPE}/logit", _BOTTLENECK if self.use_vail else body_width(self.arch), 1, 1.0)

    @property
    def scopes(self) -> tuple[str, ...]:
        """See `SignalModel`."""
        return (SCOPE,)

    @property
    def layers(self) -> tuple[Dense, ...]:
        """Dense layers besides the body."""
        return (self._joined, *((self._code,) if self.use_vail else ()), self._logit)

    @property
    def layout(self) -> Layout:
        """See `SignalModel`; `LOG_SIGMA`, `BETA` and `ABSORBING` begin at 0."""
        ends = {ABSORBING: (1,)} if self.end_aware else {}
        vail = {LOG_SIGMA: (_BOTTLENECK,), BETA: (1,)} if self.use_vail else {}
        return {**body_layout(self.arch, SCOPE), **dense_layout(*self.layers), **ends, **vail}

    @property
    def fixed(self) -> Layout:
        """See `SignalModel`."""
        return {}

    # -- discriminator -----------------------------------------------------------------------------------------------

    def _extras(self, seen: Seen) -> tf.Tensor:
        return action_features(self.arch, seen.continuous, seen.discrete) if self.use_actions else tf.zeros([seen.ended.shape[0], 0])

    def _inside(self, named: graph.Parameters, inputs: Inputs, extras: tf.Tensor) -> tf.Tensor:
        """float32 ``[M, ·]``: mean of the code with `use_vail`, else what the logit stands on."""
        x = tf.concat([features(named, inputs, self.arch, SCOPE), extras], axis=1)
        x = graph.body(named, x, [self._joined], self.arch.activation)
        return graph.head(named, x, self._code) if self.use_vail else x

    def _logits(self, named: graph.Parameters, inside: tf.Tensor) -> tf.Tensor:
        return graph.head(named, inside, self._logit)[:, 0]

    def rewards(self, named: graph.Parameters, seen: Seen) -> tf.Tensor:
        """See `SignalModel`."""
        reward = tf.nn.softplus(self._logits(named, self._inside(named, seen.now, self._extras(seen))))
        if self.end_aware:
            absorbing = tf.nn.softplus(_ABSORBING_SCALE * named[ABSORBING][0])
            reward += seen.ended * absorbing * (self.gamma / (1.0 - self.gamma))
        return reward

    # -- loss --------------------------------------------------------------------------------------------------------

    def loss(
        self, named: graph.Parameters, seen: Seen, weight: tf.Tensor, experts: Seen | None, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """See `SignalModel`."""
        inside = [self._inside(named, x.now, self._extras(x)) for x in (experts, seen)]
        weights = [tf.fill(tf.shape(weight), 1.0 / weight.shape[0]), weight]
        total, ends, vail = tf.constant(0.0), (), ()
        if self.use_vail:
            sigma = tf.exp(named[LOG_SIGMA])
            information = sum(
                0.5 * mean(tf.reduce_sum(tf.square(mu) + tf.square(sigma) - 2.0 * named[LOG_SIGMA] - 1.0, axis=1), w)
                for mu, w in zip(inside, weights, strict=True)) / 2.0
            beta, excess = named[BETA][0], tf.stop_gradient(information) - _INFORMATION
            # The price rises while more comes through than should, and falls to 0 at least: dual ascent, with Adam's steps.
            price = tf.where((beta > 0.0) | (excess > 0.0), -beta * excess, 0.0)
            total += tf.stop_gradient(tf.maximum(beta, 0.0)) * (information - _INFORMATION) + price
            noise = tf.random.stateless_normal([2, *inside[0].shape], seed)
            inside = [mu + sigma * n for mu, n in zip(inside, tf.unstack(noise), strict=True)]
            vail = (information, beta)
        expert, other = (self._logits(named, x) for x in inside)
        loss = mean(tf.nn.softplus(-expert), weights[0]) + mean(tf.nn.softplus(other), weights[1])
        if self.end_aware:
            absorbing = _ABSORBING_SCALE * named[ABSORBING][0]
            loss += mean(experts.ended, weights[0]) * tf.nn.softplus(-absorbing) + mean(seen.ended, weights[1]) * tf.nn.softplus(absorbing)
            ends = (tf.sigmoid(absorbing),)
        penalty = self._penalty(named, seen, weight, experts, seed)
        estimates = (mean(tf.sigmoid(other), weights[1]), mean(tf.sigmoid(expert), weights[0]))
        return total + loss + _PENALTY * penalty, (loss, penalty, *estimates, *ends, *vail)

    def _penalty(self, named: graph.Parameters, seen: Seen, weight: tf.Tensor, experts: Seen, seed: tf.Tensor) -> tf.Tensor:
        """Mean of (‖∇ logit‖ − 1)² over pairs of an expert's and another's transition, each at a random point between the two."""
        share = tf.random.stateless_uniform([weight.shape[0]], seed + tf.constant([1 << 20, 0]))

        def between(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
            part = tf.reshape(share, [-1, *[1] * (a.shape.rank - 1)])
            return part * tf.cast(a, tf.float32) + (1.0 - part) * tf.cast(b, tf.float32)

        vector, extras = between(experts.now.vector, seen.now.vector), between(self._extras(experts), self._extras(seen))
        images = tuple(between(a, b) for a, b in zip(experts.now.images, seen.now.images, strict=True))
        points = (vector, extras, *images)
        with tf.GradientTape() as tape:
            tape.watch(points)
            logit = self._logits(named, self._inside(named, Inputs(vector, images), extras))
        # With respect to what the network sees: of images that it divides by 255, the divided ones.
        scale = (1.0, 1.0, *(255.0 if image.scale else 1.0 for image in self.arch.images))
        squares = [
            tf.reduce_sum(tf.square(k * tf.reshape(g, [g.shape[0], -1])), axis=1)
            for k, g in zip(scale, tape.gradient(logit, points, unconnected_gradients=tf.UnconnectedGradients.ZERO), strict=True)
            if g.shape.num_elements()
        ]
        return mean(tf.square(tf.sqrt(tf.add_n(squares) + 1e-12) - 1.0), weight)
