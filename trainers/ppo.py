"""Proximal policy optimisation: what is learnt from a buffer of trajectories, and when.

Source: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, algorithm 1 with the clipped surrogate of eq. 7.

Letters: ``N`` rows held, ``K`` trajectories, ``S`` reward signals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from envs.specs import BehaviorSpec, Observations
from trainers.architecture import architecture
from trainers.behavioral_cloning import CloningModule, cloning_module
from trainers.inputs import NetworkInputs, join_inputs, network_inputs
from trainers.normalizer import NormalizerHistory, check_batch
from trainers.ppo_memory import CriticMemory, Sequences, cut_into_sequences
from trainers.ppo_update import Coefficients, PPOProgram, PPORows, UpdateResult
from trainers.returns import explained_variance, generalized_advantages, normalize_advantages
from trainers.reward_scaling import RewardScaler
from trainers.schedules import ppo_schedules
from trainers.settings import BehaviorSettings
from trainers.signal_set import SignalSet, title, transitions_of
from trainers.signals import EXTRINSIC, Transitions
from trainers.trainer import TrainerState, Weights
from trainers.trajectory import TrajectoryBatch, concatenate

_WARM_UP_ROWS = 1_000  # agent steps at most that only initialise the normaliser


@dataclass(frozen=True, slots=True)
class _Held:
    """Trajectories taken in.

    Attributes:
        manager: who collected them.
        rewards: of each signal, float32 ``[N]``, scaled.
    """

    batch: TrajectoryBatch
    manager: str
    rewards: dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class _Values:
    """What the critic says of the rows held.

    Attributes:
        inputs: of the rows.
        value, bootstrap: float32 ``[N, S]``, and ``[K, S]`` of the observations after the trajectories.
        sequences: with a memory.
        memory: ``actor``, and ``critic`` unless shared, before each sequence; `memory_after`, the critic's after each.
    """

    inputs: NetworkInputs
    value: np.ndarray
    bootstrap: np.ndarray
    sequences: Sequences | None = None
    memory: dict[str, np.ndarray] = field(default_factory=dict)
    memory_after: np.ndarray | None = None


class PPOTrainer:
    """PPO for one behavior. See `trainers.trainer.Trainer` for the methods' contract.

    An update starts at ``buffer_size`` rows or more and uses every row held; nothing is carried over to the next. Values,
    advantages and value targets are computed then, with the critic as it is, and advantages normalised over the whole buffer.

    With a memory, trajectories are cut into sequences of ``sequence_length`` from their first row on. The policy's memory before
    each comes with the rows; the critic's is kept here (see `CriticMemory`) and moves on with the rows of each update, as they are
    learnt from; with ``shared_critic`` the policy's serves both.

    With ``normalize``, every network sees the same normalised observations, each row with the statistics it was acted with; its
    rows are merged into the statistics after an update. The first ``min(buffer_size, 1,000)`` rows only initialise them:
    `is_ready` is true as soon as they are there, and that `update` learns nothing, leaves ``updates`` and ``policy_updates`` as
    they are and returns the number of rows as ``Policy/Warm-up Rows``. The statistics are then in `policy_weights` and ought to
    be published like any others.

    Args:
        seed: branch of the seed tree for minibatch shuffles.
        max_rows: most rows an update is expected to hold: (1 + ``max_policy_lag``) · ``buffer_size`` and some slack. A larger
            one makes the capacity grow, which compiles anew. No row may be older than max_rows / ``buffer_size`` versions.
        weights: tensors of actor and critic to begin with, as `trainers.initial_weights.initial_weights` makes them.
    """

    def __init__(
        self, spec: BehaviorSpec, settings: BehaviorSettings, seed: np.random.SeedSequence, max_rows: int, weights: Weights
    ) -> None:
        self._spec, self._settings, self._hyper = spec, settings, settings.hyperparameters
        self._signals = settings.reward_signals.active()
        self._arch = architecture(spec, settings.network_settings)
        self._program = PPOProgram(self._arch, self._hyper, list(self._signals), max_rows, _networks(weights))
        self._schedules = ppo_schedules(self._hyper, settings.max_steps)
        self._normalizer = NormalizerHistory(self._arch) if self._arch.normalized else None
        self._versions_kept = max_rows // self._hyper.buffer_size + 1
        self._scaler = RewardScaler(settings.reward_signals.extrinsic.gamma) if self._hyper.reward_scaling else None
        self._other_signals = SignalSet(
            self._arch, settings, self._hyper.batch_size, max_rows, self._hyper.num_epoch, seed.spawn(1)[0])
        self._cloning = cloning_module(settings, self._arch, "gaussian", 0, self._now)
        has_own_memory = self._arch.memory is not None and not self._hyper.shared_critic
        self._critic_memory = CriticMemory(self._arch.memory_size) if has_own_memory else None
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._held: list[_Held] = []
        self._warm = self._normalizer is None
        self.notices: list[str] = []
        self.agent_steps = 0
        self.updates = 0
        self.policy_updates = 0

    def compile(self) -> None:
        self._program.compile()
        self._other_signals.compile()

    # -- taking in ---------------------------------------------------------------------------------------------------

    @property
    def rows_held(self) -> int:
        return sum(held.batch.rows for held in self._held)

    @property
    def rows_wanted(self) -> int:
        return 0

    def process(self, batch: TrajectoryBatch, manager: str = "") -> dict[str, float]:
        """See `Trainer.process`.

        Raises:
            ValueError: an observation or reward is not finite (a normaliser would clip infinity and hide it), or masks or memories
                are missing; then nothing has changed.
        """
        check_batch(batch, manager)
        self._check_columns(batch)
        if batch.rows:
            reward = batch.total_reward if self._scaler is None else self._scaler.scale(batch, manager)
            reward = reward * np.float32(self._settings.reward_signals.extrinsic.strength)
            self._held.append(_Held(batch, manager, {EXTRINSIC: reward, **self._other_signals.arrived(batch, manager)}))
            self.agent_steps += batch.rows
        return {}

    def _check_columns(self, batch: TrajectoryBatch) -> None:
        """What a row has besides depends on the action space and the network: a policy of other ones collected it."""
        action = self._spec.action
        for name, width in (("action_mask", action.choices if action.masked else 0), ("memory", self._arch.memory_size)):
            column = getattr(batch, name)
            expected, received = (batch.rows, width) if width else None, None if column is None else column.shape
            if received != expected:
                raise ValueError(f"Expected trajectories with {name} of shape {expected}, received {received}.")

    def is_ready(self) -> bool:
        buffer_size = self._hyper.buffer_size
        return self.rows_held >= (buffer_size if self._warm else min(buffer_size, _WARM_UP_ROWS))

    # -- learning ----------------------------------------------------------------------------------------------------

    def update(self, between_chunks: Callable[[], None] = lambda: None) -> dict[str, float]:
        """See `Trainer.update`. ``Losses/Policy Loss`` is signed: negative where the surrogate objective rose.

        Raises:
            FloatingPointError: the update would make a loss or a weight NaN or infinite; weights, optimizer and counters stay.
        """
        if self._warm:
            stats = self._learn(between_chunks)
        else:
            stats = {"Policy/Warm-up Rows": float(self.rows_held)}
        if self._normalizer is not None:
            names = [o.name for o in self._arch.normalized]
            self._normalizer.update({name: np.concatenate([held.batch.obs[name] for held in self._held]) for name in names})
        self._held, self._warm = [], True
        return stats

    def _learn(self, between_chunks: Callable[[], None]) -> dict[str, float]:
        # Observations stay apart: images are copied once, to where the update wants them.
        batch = concatenate([replace(held.batch, obs={}, next_obs={}) for held in self._held])
        values = self._values(batch)
        advantage, target = self._targets(batch, values)
        if self._hyper.normalize_advantages:
            advantage = normalize_advantages(advantage)
        rows = PPORows(
            values.inputs, batch.continuous, batch.discrete, batch.log_prob, advantage, target, values.value, batch.action_mask,
            values.sequences, values.memory,
        )
        now = Coefficients(*(schedule.value(self.agent_steps) for schedule in self._schedules))
        result = self._program.update(rows, now, self._rng, between_chunks)
        if self._critic_memory is not None:
            self._critic_memory.keep(batch, self._managers(), values.sequences, values.memory_after)
        signals = self._other_signals.learn(self._transitions(), self._hyper.num_epoch, self._rng, own_epochs=True) if self._other_signals else {}
        self.updates += result.minibatches
        self.policy_updates += 1
        cloned = self._cloning.teach(self._program, self.agent_steps, self._rng) if self._cloning else {}
        return {**self._statistics(rows, now, result), **signals, **cloned}

    def _transitions(self) -> Transitions:
        """Of all rows held, for signals with a model."""
        return transitions_of(self._arch, concatenate([held.batch for held in self._held]))

    def _values(self, batch: TrajectoryBatch) -> _Values:
        """Inputs and values of the rows held, with the critic as it is now."""
        inputs = self._program.staged([self._inputs(held.batch.obs, held.batch.version) for held in self._held])
        last = [held.batch.version[held.batch.starts + held.batch.length - 1] for held in self._held]
        after = [self._inputs(held.batch.next_obs, version) for held, version in zip(self._held, last, strict=True)]
        after = self._program.channels_last(join_inputs(after))
        memory = self._arch.memory
        if memory is None:
            return _Values(inputs, self._program.values(inputs), self._program.values(after))
        sequences = cut_into_sequences(batch.length, memory.sequence_length)
        value, bootstrap = (np.empty((n, len(self._signals)), np.float32) for n in (len(inputs), len(after)))

        def run(which: np.ndarray, before: np.ndarray) -> np.ndarray:
            return self._program.sequence_values(inputs, after, sequences, which, before, value, bootstrap)

        of_policy = batch.memory[sequences.start]
        if self._critic_memory is None:
            run(np.arange(len(sequences)), of_policy)
            return _Values(inputs, value, bootstrap, sequences, {"actor": of_policy})
        of_critic, memory_after = self._critic_memory.run(batch, self._managers(), sequences, run)
        return _Values(inputs, value, bootstrap, sequences, {"actor": of_policy, "critic": of_critic}, memory_after)

    def _managers(self) -> list[str]:
        """Who collected each trajectory held."""
        return [held.manager for held in self._held for _ in held.batch.length]

    def _targets(self, batch: TrajectoryBatch, values: _Values) -> tuple[np.ndarray, np.ndarray]:
        """Advantages ``[N]`` (summed over signals) and value targets ``[N, S]``, float32."""
        advantage, target = np.zeros(batch.rows, np.float32), np.empty_like(values.value)
        for s, (name, signal) in enumerate(self._signals.items()):
            value, bootstrap = values.value[:, s], values.bootstrap[:, s]
            one, target[:, s] = generalized_advantages(
                np.concatenate([held.rewards[name] for held in self._held]), value, batch.length, batch.terminated, bootstrap,
                signal.gamma, self._hyper.lambd, ignore_terminated=not self._other_signals.ends_matter(name),
            )
            advantage += one
        return advantage, target

    def _now(self, obs: Observations) -> NetworkInputs:
        """What the networks see by the present statistics."""
        return network_inputs(self._arch, obs) if self._normalizer is None else self._normalizer.normalize_now(obs)

    def _inputs(self, obs: Observations, version: np.ndarray) -> NetworkInputs:
        """What the networks see: each row normalised with the statistics of the version that acted."""
        return network_inputs(self._arch, obs) if self._normalizer is None else self._normalizer.normalize(obs, version)

    def _statistics(self, rows: PPORows, now: Coefficients, result: UpdateResult) -> dict[str, float]:
        stats = {
            "Losses/Policy Loss": result.means["policy_loss"],
            "Losses/Value Loss": result.means["value_loss"],
            "Policy/Entropy": result.means["entropy"],
            "Policy/KL Divergence": result.means["kl"],
            "Policy/Clip Fraction": result.means["clip_fraction"],
            "Policy/Gradient Norm": result.means["gradient_norm"],
            "Policy/First Minibatch Ratio Error": result.first_ratio_error,
            "Policy/Learning Rate": now.learning_rate,
            "Policy/Epsilon": now.clip_ratio,
            "Policy/Beta": now.entropy_coef,
        }
        for s, name in enumerate(self._signals):
            stats[f"Policy/{title(name)} Value Estimate"] = float(rows.old_value[:, s].mean())
        explained = explained_variance(rows.old_value[:, 0], rows.target[:, 0])
        if explained is not None:
            stats["Policy/Explained Variance"] = explained
        if self._spec.action.continuous_size:
            stats["Policy/Action Clip Fraction"] = float((np.abs(rows.continuous) > 1.0).mean())
        return stats

    # -- publishing and state ----------------------------------------------------------------------------------------

    def policy_weights(self) -> Weights:
        weights = self._program.actor_weights()
        if self._normalizer is not None:
            weights.update(self._normalizer.policy_weights())
        return weights

    def published(self, version: int) -> None:
        if self._normalizer is not None and version not in self._normalizer.versions:
            self._normalizer.publish(version)
            self._normalizer.forget_before(version + 1 - self._versions_kept)

    def state(self) -> TrainerState:
        own = TrainerState(scalars={
            "agent_steps": self.agent_steps, "updates": self.updates, "policy_updates": self.policy_updates,
            "rng": self._rng.bit_generator.state, "warm": self._warm,
        })
        return self._program.state().joined(own, self._other_signals.state(), *(part.state() for part in self._parts()))

    def _parts(self) -> list[NormalizerHistory | RewardScaler | CriticMemory | CloningModule]:
        """Those that have a state of their own."""
        return [part for part in (self._normalizer, self._scaler, self._critic_memory, self._cloning) if part is not None]

    def load_state(self, state: TrainerState) -> None:
        """See `Trainer.load_state`; rows held are forgotten.

        Raises:
            ValueError: the state does not fit the networks or observations of this trainer's settings.
        """
        state.expect("normalizer_statistics/count", self._normalizer, "network_settings.normalize")
        state.expect("reward_scaling/count", self._scaler, "hyperparameters.reward_scaling")
        self._other_signals.load_state(state)
        self._program.set_weights(_networks(state.tensors))
        self._program.load_adam(state)
        self._rng.bit_generator.state = state.scalars["rng"]
        self.agent_steps, self.updates, self.policy_updates = (
            int(state.scalars[name]) for name in ("agent_steps", "updates", "policy_updates")
        )
        for part in self._parts():
            part.load_state(state)
        self._held = []
        self._warm = self._normalizer is None or bool(state.scalars["warm"])

    def load_weights(self, state: TrainerState) -> None:
        """See `Trainer.load_weights`.

        Raises:
            ValueError: as `load_state`.
        """
        state.expect("normalizer_statistics/count", self._normalizer, "network_settings.normalize")
        self._program.set_weights(_networks(state.tensors))
        if self._normalizer is not None:
            # Only the statistics: the versions in that state are those of another run.
            source = NormalizerHistory(self._arch)
            source.load_state(state)
            self._normalizer.statistics.update(source.statistics)
            self._warm = bool(state.scalars["warm"])


def _networks(tensors: Weights) -> Weights:
    return {name: tensor for name, tensor in tensors.items() if name.startswith(("actor/", "critic/"))}
