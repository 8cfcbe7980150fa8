"""Proximal policy optimisation: what is learnt from a buffer of trajectories, and when.

Source: Schulman et al. 2017, https://arxiv.org/abs/1707.06347. Deviations are listed in docs/ppo.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from envs.specs import BehaviorSpec
from trainers.networks import check_weights, input_size, network_inputs
from trainers.normalizer import NormalizerHistory
from trainers.ppo_update import Coefficients, PPOProgram
from trainers.returns import explained_variance, generalized_advantages, normalize_advantages
from trainers.reward_scaling import RewardScaler
from trainers.schedules import ppo_schedules
from trainers.settings import BehaviorSettings
from trainers.trainer import TrainerState, Weights
from trainers.trajectory import TrajectoryBatch, concatenate

_KEPT_VERSIONS = 1_000  # whose statistics are kept; far above any policy lag
_WARM_UP_ROWS = 1_000  # rows at most that only initialise the normaliser


class PPOTrainer:
    """PPO for one behavior. See `trainers.trainer.Trainer` for the methods' contract.

    An update starts at ``buffer_size`` rows or more and uses every row held. With ``normalize``, the first
    ``min(buffer_size, 1,000)`` rows or more only initialise the statistics: the first `update` then learns nothing and takes no optimizer step.

    Args:
        seed: branch of the seed tree for minibatch shuffles.
        max_rows: most rows an update is expected to hold.
        weights: tensors of actor and critic (and normaliser) to begin with.
    """

    def __init__(
        self, spec: BehaviorSpec, settings: BehaviorSettings, seed: np.random.SeedSequence, max_rows: int, weights: Weights
    ) -> None:
        self._spec, self._settings, self._hyper = spec, settings, settings.hyperparameters
        self._gammas = {name: signal["gamma"] for name, signal in settings.reward_signals.model_dump().items()}
        self._strengths = {name: signal["strength"] for name, signal in settings.reward_signals.model_dump().items()}
        self._program = PPOProgram(spec, settings.network_settings, self._hyper, list(self._gammas), max_rows, weights)
        self._schedules = ppo_schedules(self._hyper, settings.max_steps)
        self._normalizer = NormalizerHistory(spec) if settings.network_settings.normalize else None
        self._normalizer_weights: Weights = {k: v for k, v in weights.items() if k.startswith("normalizer/")}
        self._scaler = RewardScaler(self._gammas["extrinsic"]) if self._hyper.reward_scaling else None
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._held: list[tuple[TrajectoryBatch, np.ndarray]] = []
        self._rows_held = 0
        self._warm = self._normalizer is None
        self.agent_steps = 0
        self.updates = 0
        self.policy_updates = 0

    def compile(self) -> None:
        """Compile the programs on made-up rows; the state stays as it is, bit for bit."""
        hyper, program, n = self._hyper, self._program, min(self._hyper.batch_size, self._program.capacity)
        weights, adam, random = program.weights(), program.adam_state(), self._rng.bit_generator.state
        x = np.zeros((n, input_size(self._spec)), np.float32)
        program.values(x)
        ones = np.ones(n, np.float32)
        rows = program.pack(
            x, np.zeros((n, self._spec.action.continuous_size)), np.zeros((n, len(self._spec.action.discrete_branches))),
            -ones, ones, np.ones((n, len(self._gammas))), np.ones((n, len(self._gammas))),
        )
        program.update(rows, Coefficients(0.0, hyper.epsilon, 0.0), self._rng, lambda: None)
        program.set_weights(weights)
        program.set_adam(list(adam[0].values()), list(adam[1].values()), adam[2])
        program.forget_speed()
        self._rng.bit_generator.state = random

    # -- taking in ---------------------------------------------------------------------------------------------------

    @property
    def rows_held(self) -> int:
        return self._rows_held

    def process(self, batch: TrajectoryBatch, manager: str = "") -> dict[str, float]:
        if batch.rows:
            reward = self._scaler.scale(batch, manager) if self._scaler else batch.reward
            self._held.append((batch, reward * np.float32(self._strengths["extrinsic"])))
            self._rows_held += batch.rows
            self.agent_steps += batch.rows
        stats = {}
        if batch.rows and self._spec.action.continuous_size:
            stats["Policy/Action Clip Fraction"] = float(np.mean(np.abs(batch.continuous) > 1.0))
        return stats

    def is_ready(self) -> bool:
        needed = self._hyper.buffer_size if self._warm else min(self._hyper.buffer_size, _WARM_UP_ROWS)
        return self._rows_held >= needed

    # -- learning ----------------------------------------------------------------------------------------------------

    def update(self, between_chunks: Callable[[], None] = lambda: None) -> dict[str, float]:
        batch = concatenate([b for b, _ in self._held])
        reward = np.concatenate([r for _, r in self._held])
        stats = self._learn(batch, reward, between_chunks) if self._warm else {"Policy/Warm-up Rows": float(batch.rows)}
        self._held, self._rows_held = [], 0
        self._warm = True
        if self._normalizer is not None:
            self._normalizer.update(batch.obs)
        return stats

    def _learn(self, batch: TrajectoryBatch, reward: np.ndarray, between_chunks: Callable[[], None]) -> dict[str, float]:
        x, advantage, target, value = self._targets(batch, reward)
        raw = advantage
        if self._hyper.normalize_advantages:
            advantage = normalize_advantages(advantage)
        rows = self._program.pack(x, batch.continuous, batch.discrete, batch.log_prob, advantage, target, value)
        now = Coefficients(*(schedule.value(self.agent_steps) for schedule in self._schedules))
        result = self._program.update(rows, now, self._rng, between_chunks)
        self.updates += result.minibatches
        self.policy_updates += 1
        stats = {
            "Losses/Policy Loss": result.means["policy_loss"], "Losses/Value Loss": result.means["value_loss"],
            "Policy/Entropy": result.means["entropy"], "Policy/KL Divergence": result.means["kl"],
            "Policy/Clip Fraction": result.means["clip_fraction"], "Policy/Gradient Norm": result.means["gradient_norm"],
            "Policy/First Minibatch Ratio Error": result.first_ratio_error, "Policy/Advantage Std": float(raw.std()),
            "Policy/Learning Rate": now.learning_rate, "Policy/Epsilon": now.clip_ratio, "Policy/Beta": now.entropy_coef,
        }
        for s, name in enumerate(self._gammas):
            stats[f"Policy/{name.capitalize()} Value Estimate"] = float(value[:, s].mean())
        explained = explained_variance(value[:, 0], target[:, 0])
        return stats if explained is None else {**stats, "Policy/Explained Variance": explained}

    def _targets(self, batch: TrajectoryBatch, reward: np.ndarray) -> tuple[np.ndarray, ...]:
        """Network inputs ``[N, I]``, advantages ``[N]`` (sum over signals), value targets and fresh values ``[N, S]``."""
        last = batch.starts + batch.length - 1
        x = self._inputs(batch.obs, batch.version)
        value = self._program.values(x)
        bootstrap = self._program.values(self._inputs(batch.next_obs, batch.version[last]))
        advantage = np.zeros(batch.rows, np.float32)
        target = np.empty_like(value)
        for s, gamma in enumerate(self._gammas.values()):
            one, target[:, s] = generalized_advantages(
                reward, value[:, s], batch.length, batch.terminated, bootstrap[:, s], gamma, self._hyper.lambd
            )
            advantage += one
        return x, advantage, target, value

    def _inputs(self, obs: dict[str, np.ndarray], version: np.ndarray) -> np.ndarray:
        """What the networks see: each row normalised with the statistics that it was acted with."""
        return network_inputs(self._spec, obs) if self._normalizer is None else self._normalizer.normalize(obs, version)

    # -- publishing and state ----------------------------------------------------------------------------------------

    def published(self, version: int) -> None:
        if self._normalizer is None:
            return
        if version not in self._normalizer.versions:  # a resumed trainer has it already
            self._normalizer.publish(version)
            self._normalizer.forget_before(version - _KEPT_VERSIONS)
        self._normalizer_weights = self._normalizer.weights(version)

    def policy_weights(self) -> Weights:
        actor = {k: v for k, v in self._program.weights().items() if k.startswith("actor/")}
        if self._normalizer is None:
            return actor
        return {**actor, **self._normalizer_weights}

    def load_weights(self, state: TrainerState) -> None:
        """Begin with the networks (and normaliser) of another trainer's state; counters, optimizer and random numbers stay new."""
        self._program.set_weights(self._checked(state))
        if self._normalizer is not None:
            self._normalizer.load_state(state)
            self._warm = True

    def state(self) -> TrainerState:
        weights, (m, v, step) = self._program.weights(), self._program.adam_state()
        tensors = {**weights, **{f"adam/m/{k}": a for k, a in m.items()}, **{f"adam/v/{k}": a for k, a in v.items()}}
        scalars: dict[str, Any] = {
            "agent_steps": self.agent_steps, "updates": self.updates, "policy_updates": self.policy_updates, "adam_step": step,
            "rng": self._rng.bit_generator.state, "warm": self._warm,
        }
        for part in (self._normalizer, self._scaler):
            if part is not None:
                one = part.state()
                tensors.update(one.tensors)
                scalars.update(one.scalars)
        return TrainerState(tensors, scalars)

    def load_state(self, state: TrainerState) -> None:
        self._program.set_weights(self._checked(state))
        layout = self._program.layout
        self._program.set_adam(
            [state.tensors[f"adam/m/{k}"] for k in layout], [state.tensors[f"adam/v/{k}"] for k in layout], state.scalars["adam_step"]
        )
        self.agent_steps = int(state.scalars["agent_steps"])
        self.updates = int(state.scalars["updates"])
        self.policy_updates = int(state.scalars["policy_updates"])
        self._rng.bit_generator.state = state.scalars["rng"]
        self._warm = bool(state.scalars["warm"]) or self._normalizer is None
        for part in (self._normalizer, self._scaler):
            if part is not None:
                part.load_state(state)

    def _checked(self, state: TrainerState) -> Weights:
        weights = {k: v for k, v in state.tensors.items() if k.startswith(("actor/", "critic/"))}
        check_weights(weights, self._program.layout, "the networks of this configuration")
        return weights
