"""SAC's program: several updates in one call, as a pure function of tensors.

Everything has static shapes; how many of the batches are learnt from is a run-time value. Each trained tensor stays a tensor of
its own: joining hundreds of thousands of numbers in one vector, as PPO does with its small networks, and taking them apart again
for each update costs a third of the speed here. With convolutions only what comes after the encoders and the optimizer step are
compiled, see `trainers.graph.compile_with_xla`.

Letters: ``K``, ``M``, ``Q``, ``L``, ``D`` as in `trainers.sac_batches`; ``R`` rows that losses are taken from, M or Q·L; ``F``, ``C``,
``B``, ``S`` as in `trainers.graph`; ``A`` choices of one branch, ``W`` as in `trainers.sac_networks`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from envs.specs import BehaviorSpec
from trainers import graph, sac_critics, sac_features, sac_losses
from trainers.architecture import Architecture, architecture
from trainers.distributions import LOG_STD_MAX, LOG_STD_MIN
from trainers.exploration_noise import VARIANCE_FLOOR
from trainers.networks import LOG_STD, Distribution, Layout, action_heads, encoder_layout
from trainers.optimizer import AdamState, adam, clip_by_global_norm
from trainers.quiet_tensorflow import tf
from trainers.sac_batches import packed_columns
from trainers.sac_features import Batch, Encoded, Seen
from trainers.sac_networks import CRITIC, LOG_ALPHA, TARGET, distribution_of, sac_layout, target_entropies, twin_layout
from trainers.settings import SACSettings

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
        packed, blocks, noise: as `trainers.sac_batches.CallArrays` has them.
        learning_rate: float32 scalar.
    """

    packed: tf.Tensor
    blocks: dict[str, tf.Tensor]
    noise: tf.Tensor
    learning_rate: tf.Tensor


class Distributions(NamedTuple):
    """The policy in each row.

    Attributes:
        mean, log_std: float32 ``[R, C]``, of u; None without continuous actions.
        log_p: log-probs of all choices, ``[R, A]`` for each branch.
    """

    mean: tf.Tensor | None
    log_std: tf.Tensor | None
    log_p: list[tf.Tensor]


class Acted(NamedTuple):
    """A sample of the policy in each row: continuous ``[R, C]``; log-probs of all choices per branch; entropy per part ``[R]``."""

    continuous: tf.Tensor
    log_p: list[tf.Tensor]
    entropies: list[tf.Tensor]


@dataclass(frozen=True)
class SACGraph:
    """The program of one behavior. Equal graphs compile once for all.

    Attributes:
        target_entropy: of each part of an action, where all choices are allowed.
        target_entropy_scale: c of c·ln n, for n choices that a mask allows.
    """

    arch: Architecture
    signals: tuple[str, ...]
    distribution: Distribution
    target_entropy: tuple[float, ...]
    target_entropy_scale: float
    tau: float
    adam_epsilon: float
    max_grad_norm: float | None
    learn_entcoef: bool

    @classmethod
    def of(cls, spec: BehaviorSpec, settings: SACSettings) -> SACGraph:
        """The graph that `settings` ask for."""
        hyper = settings.hyperparameters
        targets = target_entropies(spec.action, hyper.target_entropy, hyper.target_entropy_scale)
        return cls(
            architecture(spec, settings.network_settings).as_given(), tuple(settings.reward_signals.active()), distribution_of(settings),
            tuple(float(t) for t in targets), hyper.target_entropy_scale, hyper.tau, hyper.adam_epsilon, hyper.max_grad_norm,
            hyper.learn_entcoef,
        )

    @functools.cached_property
    def layout(self) -> Layout:
        """Trained tensors: actor, critics, log α."""
        return sac_layout(self.arch, self.signals, self.distribution)

    @functools.cached_property
    def target_layout(self) -> Layout:
        """Target critics, in the order of the critics in `layout`."""
        return twin_layout(self.arch, self.signals, TARGET)

    @functools.cached_property
    def _encoders(self) -> frozenset[str]:
        """Tensors of all encoders."""
        return frozenset(name for scope in ("actor", CRITIC, TARGET) for name in encoder_layout(self.arch, scope))

    @functools.cached_property
    def columns(self) -> dict[str, int]:
        """Packed columns: name -> width."""
        return packed_columns(self.arch, len(self.signals))

    @functools.cached_property
    def _loss(self) -> Callable:
        """`loss_of_encoded`, compiled by itself where the whole is not; but not with a memory: XLA refuses the gradient of its loops then."""
        return _compiled_part(self.loss_of_encoded, self.arch) if self.arch.memory is None else self.loss_of_encoded

    @functools.cached_property
    def _step(self) -> Callable:
        return _compiled_part(self.moved, self.arch)

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
        batch = self.unpacked(tf.gather(batches.packed, progress.done))
        batch |= {name: tf.gather(block, progress.done) for name, block in batches.blocks.items()}
        with tf.GradientTape() as tape:
            tape.watch(list(named.values()))
            loss, means = self.loss(named, target, batch, tf.gather(batches.noise, progress.done))
        # A user's model may have variables that no output depends on.
        gradients = tape.gradient(loss, list(named.values()), unconnected_gradients=tf.UnconnectedGradients.ZERO)
        progress, norms = self._step(progress, gradients, batches.learning_rate)
        sums = progress.sums + tf.concat([tf.stack([*means[0], *norms]), means[1]], axis=0)
        return progress._replace(done=progress.done + 1, sums=sums)

    def moved(self, progress: Progress, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor) -> tuple[Progress, list[tf.Tensor]]:
        """Parameters, Adam's state and targets one step on; and the norms of the actor's and the critics' gradients."""
        named = dict(zip(self.layout, progress.parameters, strict=True))
        gradients, norms = self._clipped(dict(zip(named, gradients, strict=True)))
        parameters, m, v, step = [], [], [], progress.step
        for i, (name, tensor) in enumerate(named.items()):
            state = AdamState(progress.m[i], progress.v[i], progress.step)
            new, (m_i, v_i, step) = adam(tensor, gradients[name], state, learning_rate, self.adam_epsilon)
            if name == LOG_ALPHA:
                # Not learnt, moments of a run that learnt it, which a resumed one goes on with, must not move it either.
                new = tf.clip_by_value(new, *_LOG_ALPHA_RANGE) if self.learn_entcoef else tensor
            parameters.append(new)
            m.append(m_i)
            v.append(v_i)
        online = [tensor for name, tensor in zip(named, parameters, strict=True) if name.startswith(f"{CRITIC}/")]
        followed = tuple(old + self.tau * (new - old) for old, new in zip(progress.target, online, strict=True))
        return progress._replace(parameters=tuple(parameters), m=tuple(m), v=tuple(v), step=step, target=followed), norms

    def _clipped(self, gradients: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """Gradients, clipped where that is asked for, actor and critics apart; and the two norms from before."""
        norms = []
        for prefix in ("actor/", f"{CRITIC}/"):
            names = [name for name in gradients if name.startswith(prefix)]
            norms.append(tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(gradients[name])) for name in names])))
            if self.max_grad_norm is not None:
                gradients |= {name: clip_by_global_norm(gradients[name], norms[-1], self.max_grad_norm) for name in names}
        return gradients, norms

    def unpacked(self, packed: tf.Tensor) -> Batch:
        """The packed columns ``[…, D]`` of one batch by name."""
        columns = tf.split(packed, list(self.columns.values()), axis=packed.shape.rank - 1)
        return dict(zip(self.columns, columns, strict=True))

    def loss(
        self, named: graph.Parameters, target: graph.Parameters, batch: Batch, noise: tf.Tensor
    ) -> tuple[tf.Tensor, tuple[tuple[tf.Tensor, ...], tf.Tensor]]:
        """Sum of the losses of critics, policy and log α, no one's gradient reaching another's parameters.

        Args:
            noise: float32 ``[2, R, C]``, standard normal, for the actions after and at the sampled steps.

        Returns:
            The loss; the first four of `STATISTICS`; the mean value estimates ``[S]``.
        """
        encoded = sac_features.encode(named, target, batch, self.arch)
        heads, target_heads = ({name: x for name, x in tensors.items() if name not in self._encoders} for tensors in (named, target))
        batch = {name: x for name, x in batch.items() if "image/" not in name}
        return self._loss(heads, target_heads, encoded, batch, noise)

    def loss_of_encoded(
        self, named: graph.Parameters, target: graph.Parameters, encoded: Encoded, batch: Batch, noise: tf.Tensor
    ) -> tuple[tf.Tensor, tuple[tuple[tf.Tensor, ...], tf.Tensor]]:
        """`loss` after the encoders."""
        if self.arch.memory is None:
            weight, (now, after) = None, sac_features.transitions_seen(named, encoded, batch, self.arch)
        else:
            now, after = sac_features.sequences_seen(named, target, encoded, batch, self.arch)
            batch = {name: sac_features.by_row(batch[name][:, :-1]) for name in self.columns if name != "vector"}
            weight = batch["weight"][:, 0]
        log_alpha = named[LOG_ALPHA]
        alpha = tf.unstack(tf.stop_gradient(tf.exp(log_alpha)))
        y = self._target(named, target, after, noise[0], batch, alpha)
        q = sac_critics.taken(named, CRITIC, now.critic, batch["continuous"], batch["discrete"], self.arch, self.signals)
        critic_losses = sac_losses.critic_loss(q, y, weight)
        acted = self._act(named, now, noise[1])
        frozen = {name: tf.stop_gradient(tensor) for name, tensor in named.items() if name.startswith(f"{CRITIC}/")}
        value = tf.reduce_sum(sac_losses.smaller_twin(self._expected(frozen, CRITIC, tf.stop_gradient(now.critic), acted)), axis=1)
        policy_loss = -sac_losses.mean(value + _weighted(alpha, acted.entropies), weight)
        entropy = tf.stack([sac_losses.mean(part, weight) for part in acted.entropies])
        wanted = tf.stack([sac_losses.mean(part, weight) for part in self._wanted_entropies(now)])
        alpha_loss = sac_losses.entropy_coef_loss(log_alpha, entropy, wanted)
        loss = tf.reduce_sum(critic_losses) + policy_loss + alpha_loss
        return loss, ((*tf.unstack(critic_losses), policy_loss, tf.reduce_sum(entropy)), sac_losses.mean(tf.reduce_mean(q, axis=0), weight))

    def _target(
        self, named: graph.Parameters, target: graph.Parameters, after: Seen, noise: tf.Tensor, batch: Batch, alpha: list[tf.Tensor]
    ) -> tf.Tensor:
        """y ``[R, S]``; the entropy term goes into the first signal's stream only, or it would count once for each signal."""
        acted = self._act(named, after, noise)
        value = sac_losses.smaller_twin(self._expected(target, TARGET, after.critic, acted))
        first = tf.one_hot(0, len(self.signals))
        value += _weighted(alpha, acted.entropies)[:, None] * first[None]
        if self.arch.memory is not None:
            value = _later(value, batch["steps"], self.arch.memory.burn_in + self.arch.memory.sequence_length)
        return sac_losses.value_target(batch["reward"], batch["bootstrap"], value)

    def _expected(self, named: graph.Parameters, scope: str, features: tf.Tensor, acted: Acted) -> tf.Tensor:
        return sac_critics.expected(named, scope, features, acted.continuous, acted.log_p, self.arch, self.signals)

    def _wanted_entropies(self, now: Seen) -> list[tf.Tensor]:
        """The entropy that each part of an action should have in each row, ``[R]``."""
        rows, wanted = now.actor.shape[0], list(self.target_entropy)
        if now.action_mask is None:
            return [tf.fill([rows], entropy) for entropy in wanted]
        masks = graph.branch_masks(now.action_mask, self.arch.spec.action.discrete_branches)
        # A branch of a row that does not count may have no choice: its entropy is 0 then, like that of a single one.
        allowed = [tf.maximum(tf.reduce_sum(tf.cast(mask, tf.float32), axis=1), 1.0) for mask in masks]
        continuous = [tf.fill([rows], entropy) for entropy in wanted[: len(wanted) - len(masks)]]
        return continuous + [self.target_entropy_scale * tf.math.log(n) for n in allowed]

    # -- the policy --------------------------------------------------------------------------------------------------

    def distributions(self, named: graph.Parameters, seen: Seen) -> Distributions:
        """The policy on the actor's features."""
        action, mean, log_std = self.arch.spec.action, None, None
        heads = list(action_heads(self.arch, self.distribution))
        if action.continuous_size:
            mean = graph.head(named, seen.actor, heads.pop(0))
            if self.distribution == "gsde":
                log_std = 0.5 * tf.math.log(tf.square(seen.actor) @ tf.exp(2.0 * named[LOG_STD]) + VARIANCE_FLOOR)
            else:
                log_std = tf.clip_by_value(graph.head(named, seen.actor, heads.pop(0)), LOG_STD_MIN, LOG_STD_MAX)
        masks = graph.branch_masks(seen.action_mask, action.discrete_branches)
        logits = [graph.head(named, seen.actor, layer) for layer in heads]
        return Distributions(mean, log_std, [graph.masked_log_softmax(x, mask) for x, mask in zip(logits, masks, strict=True)])

    def _act(self, named: graph.Parameters, seen: Seen, noise: tf.Tensor) -> Acted:
        """An action in each row; gradients flow through the sample (the reparametrisation trick)."""
        policy, entropies, continuous = self.distributions(named, seen), [], tf.zeros([seen.actor.shape[0], 0])
        if policy.mean is not None:
            continuous, log_pi = sac_losses.squash(policy.mean + tf.exp(policy.log_std) * noise, noise, policy.log_std)
            entropies.append(-log_pi)
        return Acted(continuous, policy.log_p, entropies + sac_losses.entropies(policy.log_p))


def _compiled_part(function: Callable, arch: Architecture) -> Callable:
    """A part of an update without convolutions: compiled by itself where the whole is not."""
    return function if graph.compile_with_xla(arch) else tf.function(function, jit_compile=True, autograph=False)


def _later(value: tf.Tensor, steps: tf.Tensor, length: int) -> tf.Tensor:
    """From values one step after each row those `steps` after it, ``[Q·L, S]``.

    Args:
        value: ``[Q·L, S]``.
        steps: float32 ``[Q·L, 1]``, at least 1, none beyond its sequence's end.
    """
    at = tf.range(length)[None] + tf.reshape(tf.cast(steps, tf.int32), [-1, length]) - 1
    at = tf.maximum(at, 0)  # arrays that hold nothing yet, with which a program is compiled, have 0 steps
    by_sequence = tf.reshape(value, [-1, length, value.shape[1]])
    return tf.reshape(tf.gather(by_sequence, at, axis=1, batch_dims=1), value.shape)


def _weighted(alpha: Sequence[tf.Tensor], entropies: Sequence[tf.Tensor]) -> tf.Tensor:
    """Σ_parts α_part H_part of each row, ``[R]``."""
    return tf.add_n([a * h for a, h in zip(alpha, entropies, strict=True)])


@functools.lru_cache(maxsize=32)
def compiled(sac: SACGraph) -> Callable[[Progress, Batches, tf.Tensor], Progress]:
    """`SACGraph.learn`, compiled at its first call; equal graphs share it, so that a second trainer in one process compiles nothing."""
    return tf.function(sac.learn, jit_compile=graph.compile_with_xla(sac.arch), autograph=False)
