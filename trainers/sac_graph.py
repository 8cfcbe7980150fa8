"""SAC's program: several updates in one call, as a pure function of tensors.

Everything has static shapes; how many of the batches are learnt from is a run-time value. Each trained tensor stays a tensor of
its own: joining hundreds of thousands of numbers in one vector, as PPO does with its small networks, and taking them apart again
for each update costs a third of the speed here.

Letters: ``K`` updates of one call at most, ``M`` rows of a batch (``batch_size``), ``D`` packed columns, ``I``, ``C``, ``B``, ``S`` as in `trainers.graph`, ``A`` choices of one branch, ``W`` as in `trainers.sac_networks`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from envs.specs import BehaviorSpec
from trainers import graph, sac_losses  # graph first: it quietens TensorFlow before the import
from trainers.distributions import LOG_STD_MAX, LOG_STD_MIN
from trainers.exploration_noise import VARIANCE_FLOOR
from trainers.networks import LOG_STD, Distribution, Layout, action_heads, body_layers, input_size
from trainers.optimizer import AdamState, adam, clip_by_global_norm
from trainers.sac_networks import (
    CRITIC,
    LOG_ALPHA,
    TARGET,
    distribution_of,
    outputs_per_signal,
    sac_layout,
    target_entropies,
    twin_layout,
)
from trainers.settings import NetworkSettings, SACSettings

import tensorflow as tf  # isort: skip

STATISTICS = ("q1_loss", "q2_loss", "policy_loss", "entropy", "actor_gradient_norm", "critic_gradient_norm")
"""What a call sums over its updates, in this order; the mean value estimate of each reward signal follows."""

_LOG_ALPHA_RANGE = (-20.0, 20.0)
"""α stays between 2e-9 and 5e8: above 0, and its square a float32, also where a target entropy is out of reach for ever."""


class Progress(NamedTuple):
    """What one update hands to the next.

    Attributes:
        done: int32, updates of this call.
        parameters, m, v: float32, in the order of `SACGraph.layout`; step: int64, Adam's count over all updates.
        target: float32, the target critics in the order of `SACGraph.target_layout`.
        sums: float32 ``[len(STATISTICS) + S]``.
        finite: bool, all sums and parameters are finite; known at the end of a call.
    """

    done: tf.Tensor
    parameters: tuple[tf.Tensor, ...]
    m: tuple[tf.Tensor, ...]
    v: tuple[tf.Tensor, ...]
    step: tf.Tensor
    target: tuple[tf.Tensor, ...]
    sums: tf.Tensor
    finite: tf.Tensor


class Batches(NamedTuple):
    """What a call learns from.

    Attributes:
        packed: float32 ``[K, M, D]``, the columns of `SACGraph.columns`.
        noise: float32 ``[K, 2, M, C]``, standard normal, for the actions after and at the sampled steps.
        learning_rate: float32 scalar.
    """

    packed: tf.Tensor
    noise: tf.Tensor
    learning_rate: tf.Tensor


class _Acted(NamedTuple):
    """A sample of the policy in each row: continuous ``[M, C]``; log-probs of all choices per branch; entropy per part ``[M]``."""

    continuous: tf.Tensor
    log_p: list[tf.Tensor]
    entropies: list[tf.Tensor]


@dataclass(frozen=True)
class SACGraph:
    """The program of one behavior. Equal graphs compile once for all.

    Attributes:
        target_entropy: of each part of an action.
    """

    spec: BehaviorSpec
    network: NetworkSettings
    signals: tuple[str, ...]
    distribution: Distribution
    target_entropy: tuple[float, ...]
    tau: float
    adam_epsilon: float
    max_grad_norm: float | None
    learn_entcoef: bool

    @classmethod
    def of(cls, spec: BehaviorSpec, settings: SACSettings) -> SACGraph:
        """The graph that `settings` ask for."""
        hyper = settings.hyperparameters
        inputs_as_given = settings.network_settings.model_copy(update={"normalize": False})  # they come normalised
        targets = target_entropies(spec.action, hyper.target_entropy, hyper.target_entropy_scale)
        return cls(
            spec, inputs_as_given, tuple(dict(settings.reward_signals)), distribution_of(settings),
            tuple(float(t) for t in targets), hyper.tau, hyper.adam_epsilon, hyper.max_grad_norm, hyper.learn_entcoef,
        )

    @functools.cached_property
    def layout(self) -> Layout:
        """Trained tensors: actor, critics, log α."""
        return sac_layout(self.spec, self.network, self.signals, self.distribution)

    @functools.cached_property
    def target_layout(self) -> Layout:
        """Target critics, in the order of the critics in `layout`."""
        return twin_layout(self.spec, self.network, self.signals, TARGET)

    @functools.cached_property
    def columns(self) -> dict[str, int]:
        """Packed columns: name -> width."""
        size, signals = input_size(self.spec), len(self.signals)
        action = self.spec.action
        return {
            "inputs": size, "next_inputs": size, "continuous": action.continuous_size,
            "discrete": len(action.discrete_branches), "reward": signals, "bootstrap": signals,
        }

    # -- updates -----------------------------------------------------------------------------------------------------

    def learn(self, progress: Progress, batches: Batches, end: tf.Tensor) -> Progress:
        """Learn from batches ``progress.done`` … `end` − 1."""
        progress = tf.while_loop(lambda p: p.done < end, lambda p: (self.update(p, batches),), (progress,))[0]
        numbers = [progress.sums, *progress.parameters, *progress.target]
        return progress._replace(finite=tf.reduce_all([tf.reduce_all(tf.math.is_finite(x)) for x in numbers]))

    def update(self, progress: Progress, batches: Batches) -> Progress:
        """One optimizer step on actor, critics and log α, all at the same parameters, then one of the targets.

        θ' ← (1 − τ)θ' + τθ with the new θ.
        """
        named = dict(zip(self.layout, progress.parameters, strict=True))
        target = dict(zip(self.target_layout, progress.target, strict=True))
        with tf.GradientTape() as tape:
            tape.watch(list(named.values()))
            loss, means = self.loss(named, target, tf.gather(batches.packed, progress.done), tf.gather(batches.noise, progress.done))
        gradients, norms = self._clipped(dict(zip(named, tape.gradient(loss, list(named.values())), strict=True)))
        moved, m, v, step = [], [], [], progress.step
        for i, (name, tensor) in enumerate(named.items()):
            state = AdamState(progress.m[i], progress.v[i], progress.step)
            new, (m_i, v_i, step) = adam(tensor, gradients[name], state, batches.learning_rate, self.adam_epsilon)
            if name == LOG_ALPHA:
                # Not learnt, moments of a run that learnt it, which a resumed one goes on with, must not move it either.
                new = tf.clip_by_value(new, *_LOG_ALPHA_RANGE) if self.learn_entcoef else tensor
            moved.append(new)
            m.append(m_i)
            v.append(v_i)
        online = [tensor for name, tensor in zip(named, moved, strict=True) if name.startswith(CRITIC)]
        followed = tuple(old + self.tau * (new - old) for old, new in zip(progress.target, online, strict=True))
        sums = progress.sums + tf.concat([tf.stack([*means[0], *norms]), means[1]], axis=0)
        return Progress(progress.done + 1, tuple(moved), tuple(m), tuple(v), step, followed, sums, progress.finite)

    def _clipped(self, gradients: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """Gradients, clipped where that is asked for, actor and critics apart; and the two norms from before."""
        norms = []
        for prefix in ("actor/", CRITIC):
            names = [name for name in gradients if name.startswith(prefix)]
            norms.append(tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(gradients[name])) for name in names])))
            if self.max_grad_norm is not None:
                gradients |= {name: clip_by_global_norm(gradients[name], norms[-1], self.max_grad_norm) for name in names}
        return gradients, norms

    def loss(
        self, named: graph.Parameters, target: graph.Parameters, packed: tf.Tensor, noise: tf.Tensor
    ) -> tuple[tf.Tensor, tuple[tuple[tf.Tensor, ...], tf.Tensor]]:
        """Sum of the losses of critics, policy and log α, no one's gradient reaching another's parameters.

        Returns:
            The loss; the first four of `STATISTICS`; the mean value estimates ``[S]``.
        """
        inputs, after, continuous, discrete, reward, bootstrap = tf.split(packed, list(self.columns.values()), axis=1)
        log_alpha = named[LOG_ALPHA]
        alpha = tf.unstack(tf.stop_gradient(tf.exp(log_alpha)))
        y = self._target(named, target, after, noise[0], reward, bootstrap, alpha)
        q = self._taken(named, inputs, continuous, discrete)
        critic_losses = sac_losses.critic_loss(q, y)
        acted = self._act(named, inputs, noise[1])
        frozen = {name: tf.stop_gradient(tensor) for name, tensor in named.items() if name.startswith(CRITIC)}
        value = tf.reduce_sum(sac_losses.smaller_twin(self._expected(frozen, CRITIC, inputs, acted)), axis=1)
        policy_loss = -tf.reduce_mean(value + _weighted(alpha, acted.entropies))
        entropy = tf.stack([tf.reduce_mean(part) for part in acted.entropies])
        alpha_loss = sac_losses.entropy_coef_loss(log_alpha, entropy, tf.constant(self.target_entropy))
        loss = tf.reduce_sum(critic_losses) + policy_loss + alpha_loss
        return loss, ((*tf.unstack(critic_losses), policy_loss, tf.reduce_sum(entropy)), tf.reduce_mean(q, axis=[0, 1]))

    def _target(
        self, named: graph.Parameters, target: graph.Parameters, after: tf.Tensor, noise: tf.Tensor, reward: tf.Tensor,
        bootstrap: tf.Tensor, alpha: list[tf.Tensor],
    ) -> tf.Tensor:
        """y ``[M, S]``; the entropy term goes into the first signal's stream only, or it would count once for each signal."""
        acted = self._act(named, after, noise)
        value = sac_losses.smaller_twin(self._expected(target, TARGET, after, acted))
        first = tf.one_hot(0, len(self.signals))
        value += _weighted(alpha, acted.entropies)[:, None] * first[None]
        return sac_losses.value_target(reward, bootstrap, value)

    # -- the policy --------------------------------------------------------------------------------------------------

    def _act(self, named: graph.Parameters, inputs: tf.Tensor, noise: tf.Tensor) -> _Acted:
        """The policy on network inputs ``[M, I]``; gradients flow through the sample (the reparametrisation trick)."""
        features = graph.body(named, inputs, body_layers(self.spec, self.network, "actor"), self.network.activation)
        heads = list(action_heads(self.spec, self.network, distribution=self.distribution))
        entropies, continuous = [], tf.zeros([features.shape[0], 0])
        if self.spec.action.continuous_size:
            mean = graph.head(named, features, heads.pop(0))
            if self.distribution == "gsde":
                log_std = 0.5 * tf.math.log(tf.square(features) @ tf.exp(2.0 * named[LOG_STD]) + VARIANCE_FLOOR)
            else:
                log_std = tf.clip_by_value(graph.head(named, features, heads.pop(0)), LOG_STD_MIN, LOG_STD_MAX)
            continuous, log_pi = sac_losses.squash(mean + tf.exp(log_std) * noise, noise, log_std)
            entropies.append(-log_pi)
        log_p = [tf.nn.log_softmax(graph.head(named, features, layer)) for layer in heads]
        return _Acted(continuous, log_p, entropies + sac_losses.entropies(log_p))

    # -- the critics -------------------------------------------------------------------------------------------------

    def _q(self, named: graph.Parameters, prefix: str, inputs: tf.Tensor, continuous: tf.Tensor) -> tf.Tensor:
        """Outputs of both critics, ``[2, M, S, W]``."""
        x = tf.concat([inputs, continuous], axis=1)
        x = tf.broadcast_to(x[None], [2, *x.shape])
        for i in range(self.network.num_layers):
            x = graph.ACTIVATIONS[self.network.activation](_twin(named, f"{prefix}dense_{i}", x))
        outputs = _twin(named, f"{prefix}q", x)
        return tf.reshape(outputs, [2, inputs.shape[0], len(self.signals), outputs_per_signal(self.spec.action)])

    def _branches(self, q: tf.Tensor) -> list[tf.Tensor]:
        return tf.split(q, list(self.spec.action.discrete_branches), axis=3)

    def _taken(self, named: graph.Parameters, inputs: tf.Tensor, continuous: tf.Tensor, discrete: tf.Tensor) -> tf.Tensor:
        """Q of stored actions, ``[2, M, S]``."""
        q = self._q(named, CRITIC, inputs, continuous)
        branches = self.spec.action.discrete_branches
        if not branches:
            return q[:, :, :, 0]
        chosen = [tf.one_hot(tf.cast(discrete[:, b], tf.int32), choices) for b, choices in enumerate(branches)]
        return sac_losses.taken_value(self._branches(q), chosen)

    def _expected(self, named: graph.Parameters, prefix: str, inputs: tf.Tensor, acted: _Acted) -> tf.Tensor:
        """Expected Q under the policy, ``[2, M, S]``: exact over choices, at the sample of the continuous part."""
        q = self._q(named, prefix, inputs, acted.continuous)
        return sac_losses.expected_value(self._branches(q), acted.log_p) if acted.log_p else q[:, :, :, 0]


def _twin(named: graph.Parameters, layer: str, x: tf.Tensor) -> tf.Tensor:
    """One dense layer of both critics: ``[2, M, inputs]`` -> ``[2, M, outputs]``."""
    return x @ named[f"{layer}/kernel"] + named[f"{layer}/bias"][:, None]


def _weighted(alpha: list[tf.Tensor], entropies: list[tf.Tensor]) -> tf.Tensor:
    """Σ_parts α_part H_part of each row, ``[M]``."""
    return tf.add_n([a * h for a, h in zip(alpha, entropies, strict=True)])


@functools.lru_cache(maxsize=32)
def compiled(sac: SACGraph) -> Callable[[Progress, Batches, tf.Tensor], Progress]:
    """`SACGraph.learn`, compiled at its first call; equal graphs share it, so that a second trainer in one process compiles nothing."""
    return tf.function(sac.learn, jit_compile=True, autograph=False)
