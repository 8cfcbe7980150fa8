"""Proximal policy optimisation: what is learnt from a buffer of trajectories, and when.

Source: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, algorithm 1 with the clipped surrogate of eq. 7.

Letters: ``N`` rows held, ``K`` trajectories, ``I`` network inputs, ``S`` reward signals.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from envs.specs import BehaviorSpec, Observations
from trainers.networks import network_inputs
from trainers.normalizer import NormalizerHistory, check_batch
from trainers.ppo_update import Coefficients, PPOProgram, PPORows, UpdateResult
from trainers.returns import explained_variance, generalized_advantages, normalize_advantages
from trainers.reward_scaling import RewardScaler
from trainers.schedules import ppo_schedules
from trainers.settings import BehaviorSettings
from trainers.trainer import TrainerState, Weights
from trainers.trajectory import TrajectoryBatch, concatenate

_WARM_UP_ROWS = 1_000  # agent steps at most that only initialise the normaliser


class PPOTrainer:
    """PPO for one behavior. See `trainers.trainer.Trainer` for the methods' contract.

    An update starts at ``buffer_size`` rows or more and uses every row held; nothing is carried over to the next. Values,
    advantages and value targets are computed then, with the critic as it is, and advantages normalised over the whole buffer.

    With ``normalize``, every network sees the same normalised observations, each row with the statistics it was acted with; its
    rows are merged into the statistics after an update. The first ``min(buffer_size, 1,000)`` rows only initialise them:
    `is_ready` is true as soon as they are there, and that `update` learns nothing, leaves ``updates`` and ``policy_updates`` as
    they are and returns the number of rows as ``Policy/Warm-up Rows``. The statistics are then in `policy_weights` and ought to
    be published like any others.

    Args:
        seed: branch of the seed tree for minibatch shuffles.
        max_rows: most rows an update is expected to hold: (1 + ``max_policy_lag``) · ``buffer_size`` and some slack. A larger
            one makes the capacity grow, which compiles anew. No row may be older than max_rows / ``buffer_size`` versions.
        weights: tensors of actor and critic to begin with, as `trainers.networks.initial_weights` makes them.
    """

    def __init__(
        self, spec: BehaviorSpec, settings: BehaviorSettings, seed: np.random.SeedSequence, max_rows: int, weights: Weights
    ) -> None:
        self._spec, self._settings, self._hyper = spec, settings, settings.hyperparameters
        self._signals = dict(settings.reward_signals)
        self._program = PPOProgram(
            spec, settings.network_settings, self._hyper, list(self._signals), max_rows, _networks(weights)
        )
        self._schedules = ppo_schedules(self._hyper, settings.max_steps)
        self._normalizer = NormalizerHistory(spec) if settings.network_settings.normalize else None
        self._versions_kept = max_rows // self._hyper.buffer_size + 1
        self._scaler = RewardScaler(settings.reward_signals.extrinsic.gamma) if self._hyper.reward_scaling else None
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._held: list[TrajectoryBatch] = []
        self._rewards: list[np.ndarray] = []  # of each batch held, scaled
        self._warm = self._normalizer is None
        self.notices: list[str] = []
        self.agent_steps = 0
        self.updates = 0
        self.policy_updates = 0

    def compile(self) -> None:
        self._program.compile()

    # -- taking in ---------------------------------------------------------------------------------------------------

    @property
    def rows_held(self) -> int:
        return sum(batch.rows for batch in self._held)

    @property
    def rows_wanted(self) -> int:
        return 0

    def process(self, batch: TrajectoryBatch, manager: str = "") -> dict[str, float]:
        """See `Trainer.process`.

        Raises:
            ValueError: an observation or reward is not finite (a normaliser would clip infinity and hide it), or actions were
                masked; then nothing has changed.
        """
        if batch.action_mask is not None:
            raise ValueError("Expected trajectories without action masks, received some with; PPO cannot learn from those.")
        check_batch(batch, manager)
        if batch.rows:
            reward = batch.reward if self._scaler is None else self._scaler.scale(batch, manager)
            self._rewards.append(reward * np.float32(self._settings.reward_signals.extrinsic.strength))
            self._held.append(batch)
            self.agent_steps += batch.rows
        return {}

    def is_ready(self) -> bool:
        buffer_size = self._hyper.buffer_size
        return self.rows_held >= (buffer_size if self._warm else min(buffer_size, _WARM_UP_ROWS))

    # -- learning ----------------------------------------------------------------------------------------------------

    def update(self, between_chunks: Callable[[], None] = lambda: None) -> dict[str, float]:
        """See `Trainer.update`. ``Losses/Policy Loss`` is signed: negative where the surrogate objective rose.

        Raises:
            FloatingPointError: the update would make a loss or a weight NaN or infinite; weights, optimizer and counters stay.
        """
        batch = concatenate(self._held)
        if self._warm:
            stats = self._learn(batch, {"extrinsic": np.concatenate(self._rewards)}, between_chunks)
        else:
            stats = {"Policy/Warm-up Rows": float(batch.rows)}
        if self._normalizer is not None:
            self._normalizer.update(batch.obs)
        self._held, self._rewards, self._warm = [], [], True
        return stats

    def _learn(
        self, batch: TrajectoryBatch, rewards: dict[str, np.ndarray], between_chunks: Callable[[], None]
    ) -> dict[str, float]:
        inputs, value, advantage, target = self._targets(batch, rewards)
        if self._hyper.normalize_advantages:
            advantage = normalize_advantages(advantage)
        rows = PPORows(inputs, batch.continuous, batch.discrete, batch.log_prob, advantage, target, value)
        now = Coefficients(*(schedule.value(self.agent_steps) for schedule in self._schedules))
        result = self._program.update(rows, now, self._rng, between_chunks)
        self.updates += result.minibatches
        self.policy_updates += 1
        return self._statistics(rows, now, result)

    def _targets(self, batch: TrajectoryBatch, rewards: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Network inputs ``[N, I]``, values ``[N, S]``, advantages ``[N]`` (summed over signals), targets ``[N, S]``; float32."""
        last = batch.starts + batch.length - 1
        inputs = self._inputs(batch.obs, batch.version)
        after = self._inputs(batch.next_obs, batch.version[last])
        # One call for both: the bootstrap rows fill up the last block of the others.
        value, bootstrap = np.split(self._program.values(np.concatenate([inputs, after])), [batch.rows])
        advantage, target = np.zeros(batch.rows, np.float32), np.empty_like(value)
        for s, (name, signal) in enumerate(self._signals.items()):
            one, target[:, s] = generalized_advantages(
                rewards[name], value[:, s], batch.length, batch.terminated, bootstrap[:, s], signal.gamma, self._hyper.lambd
            )
            advantage += one
        return inputs, value, advantage, target

    def _inputs(self, obs: Observations, version: np.ndarray) -> np.ndarray:
        """What the networks see, float32 ``[N, I]``: each row normalised with the statistics of the version that acted."""
        return network_inputs(self._spec, obs) if self._normalizer is None else self._normalizer.normalize(obs, version)

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
            stats[f"Policy/{name.capitalize()} Value Estimate"] = float(rows.old_value[:, s].mean())
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
        parts = (part.state() for part in (self._normalizer, self._scaler) if part is not None)
        return self._program.state().joined(own, *parts)

    def load_state(self, state: TrainerState) -> None:
        """See `Trainer.load_state`; rows held are forgotten.

        Raises:
            ValueError: the state does not fit the networks or observations of this trainer's settings.
        """
        state.expect("normalizer_statistics/count", self._normalizer, "network_settings.normalize")
        state.expect("reward_scaling/count", self._scaler, "hyperparameters.reward_scaling")
        self._program.set_weights(_networks(state.tensors))
        self._program.load_adam(state)
        self._rng.bit_generator.state = state.scalars["rng"]
        self.agent_steps, self.updates, self.policy_updates = (
            int(state.scalars[name]) for name in ("agent_steps", "updates", "policy_updates")
        )
        for part in (self._normalizer, self._scaler):
            if part is not None:
                part.load_state(state)
        self._held, self._rewards = [], []
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
            source = NormalizerHistory(self._spec)
            source.load_state(state)
            self._normalizer.statistics.update(source.statistics)
            self._warm = bool(state.scalars["warm"])


def _networks(tensors: Weights) -> Weights:
    return {name: tensor for name, tensor in tensors.items() if name.startswith(("actor/", "critic/"))}
