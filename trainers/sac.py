"""Soft actor-critic: what is learnt from a replay buffer, and how often.

Source: Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, algorithm 1 (with the entropy coefficient learnt); discrete
actions: Christodoulou 2019, https://arxiv.org/abs/1910.07207. Deviations and formulas are in docs/sac.md.

Letters: ``N`` sampled rows or sequences, ``L`` rows of a sequence, ``S`` reward signals.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from envs.specs import BehaviorSpec, Observations
from trainers.architecture import architecture
from trainers.behavioral_cloning import cloning_module
from trainers.inputs import NetworkInputs, network_inputs
from trainers.networks import check_weights
from trainers.normalizer import NormalizerHistory, check_batch
from trainers.replay_buffer import ReplayBuffer
from trainers.sac_batches import SACRows, SACSequences
from trainers.sac_networks import CRITIC, LOG_ALPHA, TARGET, distribution_of
from trainers.sac_update import SACProgram
from trainers.schedules import sac_schedules
from trainers.settings import SACSettings
from trainers.signal_set import SignalSet, title
from trainers.signals import EXTRINSIC, Transitions
from trainers.trainer import TrainerState, Weights
from trainers.trajectory import TrajectoryBatch
from trainers.update_ratio import UpdateRatio


class SACTrainer:
    """SAC for one behavior. See `trainers.trainer.Trainer` for the methods' contract.

    One update (an optimizer step on a batch drawn from replay) is owed for each ``steps_per_update`` agent steps, as
    `UpdateRatio` counts; `update` makes up to 32 of them (fewer where their images take much memory). Counting begins at
    ``buffer_init_steps``, and anew, so that steps without a possible update are never made up for in a burst: when the first
    full batch is there, when a state is loaded without its replay, and when it is loaded with another ``steps_per_update``.

    With a memory an update learns from sequences, max(1, ``batch_size`` // ``sequence_length``) of them. As long as replay holds
    none that begins where one may (after a resume in the middle of an episode, say) updates wait, and nothing is owed for that.

    With ``normalize`` all networks, targets included, see observations with the present statistics, into which each row is
    merged once, when it is taken in.

    Args:
        seed: branch of the seed tree for sampling and for the noise of the policy's actions in the losses.
        weights: tensors to begin with, as `trainers.sac_networks.initial_sac_weights` makes them.
    """

    def __init__(self, spec: BehaviorSpec, settings: SACSettings, seed: np.random.SeedSequence, weights: Weights) -> None:
        self._spec, self._settings, self._hyper = spec, settings, settings.hyperparameters
        self._signals = settings.reward_signals.active()
        self._arch = architecture(spec, settings.network_settings)
        self._program = SACProgram(spec, settings, weights)
        self._learning_rate = sac_schedules(self._hyper, settings.max_steps)
        self._normalizer = NormalizerHistory(self._arch) if self._arch.normalized else None
        self._replay = self._new_replay()
        self._ratio = UpdateRatio(self._hyper.steps_per_update, origin_steps=self._hyper.buffer_init_steps)
        self._other_signals = SignalSet(self._arch, settings, self._hyper.batch_size, self._signal_rows, 1, seed.spawn(1)[0])
        self._cloning = cloning_module(settings, self._arch, distribution_of(settings), self._program.updates_per_call, self._inputs)
        per_update = self._hyper.reward_signal_steps_per_update or self._hyper.steps_per_update
        self._signal_ratio = UpdateRatio(per_update, origin_steps=self._hyper.buffer_init_steps)
        self._signal_updates = 0
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._filled = 0  # rows taken in by this replay buffer
        self.notices: list[str] = []
        self.agent_steps = 0
        self.updates = 0
        self.policy_updates = 0

    @property
    def _signal_rows(self) -> int:
        """Most transitions of one call of `update`."""
        memory = self._arch.memory
        return self._program.updates_per_call * self._program.draws * (1 if memory is None else memory.burn_in + memory.sequence_length)

    def _new_replay(self) -> ReplayBuffer:
        return ReplayBuffer(self._spec, self._hyper.buffer_size, self._arch.memory_size)

    def compile(self) -> None:
        self._program.compile()
        self._other_signals.compile()

    # -- taking in ---------------------------------------------------------------------------------------------------

    @property
    def rows_held(self) -> int:
        return self._ratio.steps_owed(self.agent_steps, self.updates) if self._can_learn else 0

    @property
    def rows_wanted(self) -> int:
        rows = max(0, self._hyper.batch_size - self._filled, self._ratio.origin_steps - self.agent_steps)
        return rows if self._has_sequences else max(1, rows)  # how many more a first sequence takes is not known

    @property
    def _can_learn(self) -> bool:
        """Whether a batch can be drawn."""
        return self._filled >= self._hyper.batch_size and self._has_sequences

    @property
    def _has_sequences(self) -> bool:
        memory = self._arch.memory
        return memory is None or self._replay.has_sequences(memory.sequence_length, memory.burn_in)

    def process(self, batch: TrajectoryBatch, manager: str = "") -> dict[str, float]:
        """See `Trainer.process`.

        Raises:
            ValueError: an observation or reward is not finite, or masks or memories are missing; then nothing has changed.
        """
        check_batch(batch, manager)
        self._replay.check(batch)
        if batch.rows:
            could_learn = self._can_learn
            if self._normalizer is not None:  # first: it refuses what is not finite in float32
                self._normalizer.update(batch.obs)
            self._other_signals.arrived(batch, manager)
            self._replay.add(batch, manager)
            self._filled += batch.rows
            self.agent_steps += batch.rows
            if self._can_learn and not could_learn:
                # Without a memory it is known at which of these rows a batch was full.
                since = min(batch.rows, self._filled - self._hyper.batch_size) if self._arch.memory is None else 0
                self._begin_to_count(self.agent_steps - since)
        return {}

    def _begin_to_count(self, agent_steps: int) -> None:
        """The first batch could be drawn at `agent_steps`: what was owed by then could not be done, and is not made up for."""
        if self._ratio.owed(agent_steps, self.updates):
            self._ratio.rebase(agent_steps, self.updates)
            self._signal_ratio.rebase(agent_steps, self._signal_updates)
            what = f"a full batch (batch_size={self._hyper.batch_size})" if self._arch.memory is None else "a first sequence and a full batch"
            self.notices.append(f"updates are counted from agent step {agent_steps:,} on, where the replay buffer had {what}")

    def is_ready(self) -> bool:
        return self._can_learn and self._ratio.owed(self.agent_steps, self.updates) > 0

    # -- learning ----------------------------------------------------------------------------------------------------

    def update(self, between_chunks: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Make the updates that are owed, 32 at most (see the class). See `Trainer.update`.

        Raises:
            FloatingPointError: a loss or a weight would be NaN or infinite; weights, targets and optimizer stay those of before.
        """
        count = min(self._program.updates_per_call, self._ratio.owed(self.agent_steps, self.updates))
        learning_rate = self._learning_rate.value(self.agent_steps)
        rows, transitions = self._sample(count * self._program.draws)
        means = self._program.update(rows, learning_rate, self._rng, between_chunks)
        self.updates += count
        self.policy_updates += 1
        stats = {
            "Losses/Q1 Loss": means["q1_loss"],
            "Losses/Q2 Loss": means["q2_loss"],
            "Losses/Policy Loss": means["policy_loss"],
            "Policy/Entropy": means["entropy"],
            "Policy/Learning Rate": learning_rate,
            "Policy/Steps Per Update": self._ratio.measured(self.agent_steps, self.updates),
            "Policy/Actor Gradient Norm": means["actor_gradient_norm"],
            "Policy/Critic Gradient Norm": means["critic_gradient_norm"],
            "Policy/Replay Rows": float(self._replay.rows),
        }
        alpha = self._program.alpha()
        if self._spec.action.continuous_size:
            stats["Policy/Continuous Entropy Coeff"], alpha = float(alpha[0]), alpha[1:]
        if len(alpha):
            stats["Policy/Discrete Entropy Coeff"] = float(alpha.mean())
        for name in self._signals:
            stats[f"Policy/{title(name)} Value Estimate"] = means[f"value/{name}"]
        if self._cloning:
            stats |= self._cloning.teach(self._program, self.agent_steps, self._rng, count)
        return stats if transitions is None else {**stats, **self._teach(transitions)}

    def _teach(self, transitions: Transitions) -> dict[str, float]:
        """Let the other signals make the updates that they owe, on what the policy has just learnt from."""
        owed, size = self._signal_ratio.owed(self.agent_steps, self._signal_updates), self._hyper.batch_size
        there = max(1, len(transitions) // size)
        if not owed:
            return {}
        epochs = max(1, owed // there)
        self._signal_updates += min(owed, there) * epochs
        return self._other_signals.learn(transitions.take(slice(0, min(owed, there) * size)), epochs, self._rng)

    def _sample(self, n: int) -> tuple[SACRows | SACSequences, Transitions | None]:
        """`n` transitions, or sequences with a memory; and, with signals besides the extrinsic one, the transitions as those see them."""
        if self._arch.memory is not None:
            return self._sequences(n)
        drawn = self._replay.sample(n, self._rng, self._hyper.n_step, self._settings.reward_signals.extrinsic.gamma)
        now, after = self._inputs(drawn.obs), self._inputs(drawn.next_obs)
        transitions, others = None, {}
        if self._other_signals:
            transitions = Transitions(
                network_inputs(self._arch, drawn.obs), network_inputs(self._arch, drawn.next_obs), np.clip(drawn.continuous, -1.0, 1.0),
                drawn.discrete, drawn.terminated,
            )
            others = self._other_signals.rewards(transitions)
        return SACRows(
            now.vector, after.vector, drawn.continuous, drawn.discrete, self._rewards(drawn.reward, others),
            self._bootstrap(drawn.steps, drawn.terminated), now.images, after.images, drawn.action_mask, drawn.next_action_mask,
        ), transitions

    def _sequences(self, n: int) -> tuple[SACSequences, Transitions | None]:
        hyper, gamma, memory = self._hyper, self._settings.reward_signals.extrinsic.gamma, self._arch.memory
        drawn = self._replay.sample_sequences(n, memory.sequence_length, memory.burn_in, self._rng, hyper.n_step, gamma)
        shape = next(iter(drawn.obs.values())).shape[:2]
        seen = self._inputs({name: x.reshape(shape[0] * shape[1], *x.shape[2:]) for name, x in drawn.obs.items()})
        transitions, others = None, {}
        if self._other_signals:
            # They see single transitions: each row of a sequence with the one after it, and none of the padding when they learn.
            now, after = (
                network_inputs(self._arch, {name: x[:, steps].reshape(-1, *x.shape[2:]) for name, x in drawn.obs.items()})
                for steps in (slice(None, -1), slice(1, None))
            )
            continuous, discrete = (x.reshape(-1, x.shape[2]) for x in (drawn.continuous, drawn.discrete))
            transitions = Transitions(now, after, np.clip(continuous, -1.0, 1.0), discrete, drawn.terminated.ravel())
            others = {name: x.reshape(drawn.reward.shape) for name, x in self._other_signals.rewards(transitions).items()}
            transitions = transitions.take(np.flatnonzero(drawn.weight.ravel()))
        return SACSequences(
            seen.vector.reshape(*shape, -1), drawn.continuous, drawn.discrete, self._rewards(drawn.reward, others),
            self._bootstrap(drawn.steps, drawn.terminated), drawn.steps, drawn.weight, drawn.memory, drawn.begins,
            tuple(x.reshape(*shape, *x.shape[1:]) for x in seen.images), drawn.action_mask,
        ), transitions

    def _rewards(self, reward: np.ndarray, others: dict[str, np.ndarray]) -> np.ndarray:
        """Of each signal: the extrinsic one, float32 ``[N, …]``, and the others -> ``[N, …, S]``."""
        extrinsic = reward * np.float32(self._settings.reward_signals.extrinsic.strength)
        return np.stack([extrinsic, *(others[name] for name in self._signals if name != EXTRINSIC)], axis=-1)

    def _bootstrap(self, steps: np.ndarray, terminated: np.ndarray) -> np.ndarray:
        """γ^steps of each signal, 0 where the task ended and the signal with it: int ``[N, …]`` -> float32 ``[N, …, S]``."""
        gammas = np.array([signal.gamma for signal in self._signals.values()], np.float32)
        end = np.array([self._other_signals.ends_matter(name) for name in self._signals])
        return np.power(gammas, steps[..., None], dtype=np.float32) * ~(terminated[..., None] & end)

    def _inputs(self, obs: Observations) -> NetworkInputs:
        """What the networks see."""
        return network_inputs(self._arch, obs) if self._normalizer is None else self._normalizer.normalize_now(obs)

    # -- publishing and state ----------------------------------------------------------------------------------------

    def policy_weights(self) -> Weights:
        weights = self._program.actor_weights()
        if self._normalizer is not None:
            weights.update(self._normalizer.policy_weights())
        return weights

    def published(self, version: int) -> None:
        """Nothing to remember: rows are learnt from with the present statistics, whichever version acted."""

    def state(self) -> TrainerState:
        """See `Trainer.state`; with ``save_replay_buffer`` the replay buffer is part of it."""
        own = TrainerState(self._program.targets(), {
            "agent_steps": self.agent_steps, "updates": self.updates, "policy_updates": self.policy_updates,
            "rng": self._rng.bit_generator.state, "filled": self._filled, "steps_per_update": str(self._ratio.steps_per_update),
            "origin_steps": self._ratio.origin_steps, "origin_updates": self._ratio.origin_updates, "signal_updates": self._signal_updates,
        }).joined(self._other_signals.state())
        replay = self._replay if self._hyper.save_replay_buffer else None
        parts = (part.state() for part in (self._normalizer, replay, self._cloning) if part is not None)
        return self._program.state().joined(own, *parts)

    def load_state(self, state: TrainerState) -> None:
        """See `Trainer.load_state`. Without a replay buffer in `state` this one begins empty, and updates wait for
        ``buffer_init_steps`` (and a full batch) again, acted by the loaded policy.

        Raises:
            ValueError: the state does not fit the networks or observations of this trainer's settings.
        """
        self.load_weights(state)
        self._program.load_adam(state)
        self._rng.bit_generator.state = state.scalars["rng"]
        self.agent_steps, self.updates, self.policy_updates, origin_steps, origin_updates = (
            int(state.scalars[name]) for name in ("agent_steps", "updates", "policy_updates", "origin_steps", "origin_updates")
        )
        self._other_signals.load_state(state)
        if self._cloning:
            self._cloning.load_state(state)
        self._signal_updates = int(state.scalars["signal_updates"])
        self._replay, self._filled = self._new_replay(), 0
        self._ratio.rebase(origin_steps, origin_updates)
        self._signal_ratio.rebase(max(self.agent_steps, origin_steps), self._signal_updates)
        if not any(name.startswith("replay/") for name in state.tensors):
            self._ratio.rebase(self.agent_steps + self._hyper.buffer_init_steps, self.updates)
            self._signal_ratio.rebase(self.agent_steps + self._hyper.buffer_init_steps, self._signal_updates)
            rows = max(self._hyper.buffer_init_steps, self._hyper.batch_size)
            self.notices.append(
                f"the checkpoint has no replay buffer (save_replay_buffer: true saves it): the first {rows:,} agent steps fill a new one, "
                "acted by the loaded policy; updates go on after them"
            )
            return
        self._replay.load_state(state)
        self._filled = int(state.scalars["filled"])
        before, now = state.scalars["steps_per_update"], str(self._ratio.steps_per_update)
        if before != now:
            self._ratio.rebase(max(self.agent_steps, origin_steps), self.updates)
            self.notices.append(
                f"steps_per_update {float(Fraction(before)):g} (before) → {float(Fraction(now)):g} (now): updates are counted from here on"
            )

    def load_weights(self, state: TrainerState) -> None:
        """See `Trainer.load_weights`: actor, critics, targets, log α and normaliser.

        Raises:
            ValueError: as `load_state`.
        """
        state.expect("normalizer_statistics/count", self._normalizer, "network_settings.normalize")
        networks, targets = (
            {name: tensor for name, tensor in state.tensors.items() if name.startswith(prefixes)}
            for prefixes in (("actor/", f"{CRITIC}/", LOG_ALPHA), f"{TARGET}/")
        )
        if not self._hyper.learn_entcoef and LOG_ALPHA in networks:  # then α is a setting, and settings come from the configuration
            networks[LOG_ALPHA] = np.full_like(networks[LOG_ALPHA], np.log(self._hyper.init_entcoef))
        # All together, so that a state which fits in part changes nothing.
        layout = {**self._program.layout, **self._program.target_layout}
        check_weights({**networks, **targets}, layout, "the networks of this configuration")
        self._program.set_weights(networks)
        self._program.set_targets(targets)
        if self._normalizer is not None:
            self._normalizer.load_state(state)
