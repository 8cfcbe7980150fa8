"""What every trainer must do: subclass `TrainerContract`, or `OnPolicyContract`, in the algorithm's own test module."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec
from tests.trainers.rollouts import policy_of, rollout, spec_of
from trainers.architecture import architecture
from trainers.networks import Distribution, policy_layout
from trainers.settings import BehaviorSettings, NetworkSettings
from trainers.trainer import Trainer, TrainerState
from trainers.trajectory import TrajectoryBatch

TRAJECTORIES = (5, 1, 9, 13, 4)


def same_tensors(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> bool:
    """Whether names, dtypes and values are equal to the last bit."""
    return one.keys() == two.keys() and all(
        one[k].dtype == two[k].dtype and one[k].shape == two[k].shape and one[k].tobytes() == two[k].tobytes() for k in one
    )


def through_json(state: TrainerState) -> TrainerState:
    """A state as a checkpoint gives it back."""
    return TrainerState({k: v.copy() for k, v in state.tensors.items()}, json.loads(json.dumps(state.scalars)))


class Driver:
    """A trainer and the policy it publishes, in lock-step. The same seed collects the same rows from the same weights.

    Attributes:
        rows: agent steps that `update` has handed over so far.
        episodes: that were begun so far; also the id of the next one.
        horizon: longest trajectory (agent steps); None cuts no episode.
    """

    horizon: int | None = None

    def __init__(
        self, trainer: Trainer, spec: BehaviorSpec, network: NetworkSettings, seed: int = 0, distribution: Distribution = "gaussian"
    ) -> None:
        self.trainer, self.spec, self.network = trainer, spec, network
        self.rng = np.random.default_rng(seed)
        self.version = self.rows = self.episodes = 0
        trainer.published(0)
        self.policy = policy_of(spec, network, trainer.policy_weights(), 0, distribution)

    def collect(self) -> TrajectoryBatch:
        """32 rows of the newest policy, of new episodes."""
        self.episodes += len(TRAJECTORIES)
        first = self.episodes - len(TRAJECTORIES)
        return rollout(self.policy, self.rng, TRAJECTORIES, horizon=self.horizon, first_episode=first)

    def publish(self) -> None:
        """Act with the trainer's weights from now on."""
        self.version += 1
        self.policy.set_weights(self.trainer.policy_weights(), self.version)
        self.trainer.published(self.version)

    def update(self) -> dict[str, float]:
        """Collect until an update is ready, learn all that is owed, publish."""
        while not self.trainer.is_ready():
            self.trainer.process(batch := self.collect(), "manager")
            self.rows += batch.rows
        while self.trainer.is_ready():
            stats = self.trainer.update()
        self.publish()
        return stats


class TrainerContract:
    """The suite. A subclass says how a trainer is made; tests take their trainers from `driver`.

    Attributes:
        action: action space of the behavior.
        observations: which of `rollouts.OBSERVATIONS` it has.
        horizon: longest trajectory (agent steps); None cuts no episode.
        distribution: of the continuous part of its actions.
        counters: scalars of the state that count.
    """

    action: ActionSpec
    observations: str = "vector"
    horizon: int | None = None
    distribution: Distribution = "gaussian"
    counters: tuple[str, ...] = ("agent_steps", "updates", "policy_updates")

    def settings(self, **hyperparameters: Any) -> BehaviorSettings:
        """Settings with a tiny network; `hyperparameters` change some."""
        raise NotImplementedError

    def make(self, spec: BehaviorSpec, settings: BehaviorSettings, seed: int) -> Trainer:
        """A trainer with initial weights of its own."""
        raise NotImplementedError

    def driver(self, seed: int = 0, settings: BehaviorSettings | None = None) -> Driver:
        """A new trainer, its initial weights published as version 0."""
        spec, settings = spec_of(self.action, observations=self.observations), settings or self.settings()
        d = Driver(self.make(spec, settings, seed), spec, settings.network_settings, seed, self.distribution)
        d.horizon = self.horizon
        return d

    def test_begins_at_0_and_learns(self):
        """Every statistic is a finite float, and the policy moves."""
        d = self.driver()
        assert (d.trainer.agent_steps, d.trainer.updates, d.trainer.policy_updates, d.trainer.rows_held) == (0, 0, 0, 0)
        assert not d.trainer.is_ready()
        before = d.trainer.policy_weights()
        stats = d.update()
        assert d.trainer.agent_steps == d.rows > 0
        assert not d.trainer.is_ready()
        assert d.trainer.policy_updates == 1
        assert d.trainer.updates >= 1
        assert stats
        assert all(isinstance(value, float) and np.isfinite(value) for value in stats.values()), stats
        assert not same_tensors(before, d.trainer.policy_weights())

    def test_empty_batch_changes_nothing(self):
        """Items may bring finished episodes without rows."""
        d = self.driver()
        d.trainer.process(rollout(d.policy, d.rng, []))
        assert (d.trainer.agent_steps, d.trainer.rows_held, d.trainer.is_ready()) == (0, 0, False)
        d.update()

    def test_policy_weights_are_complete_and_nobody_elses(self):
        """C07: published arrays are fresh, and no later update changes them."""
        d = self.driver()
        first = d.trainer.policy_weights()
        assert {k: v.shape for k, v in first.items()} == policy_layout(architecture(d.spec, d.network), self.distribution)
        assert {v.dtype for v in first.values()} == {np.dtype(np.float32)}
        kept = {k: v.copy() for k, v in first.items()}
        d.update()
        assert same_tensors(first, kept)
        second = d.trainer.policy_weights()
        for tensor in second.values():
            tensor[...] = 7.0
        assert not any((tensor == 7.0).all() for tensor in d.trainer.policy_weights().values())

    def test_same_rows_in_same_weights_out(self):
        """C22, C83: two trainers of one seed agree to the bit after three updates, another seed does not."""
        states = []
        for seed in (0, 0, 1):
            d = self.driver(seed)
            stats = [d.update() for _ in range(3)]
            states.append((d.trainer.state(), stats))
        (one, stats), (two, same_stats), (other, _) = states
        assert same_tensors(one.tensors, two.tensors)
        assert one.scalars == two.scalars
        assert stats == same_stats
        assert not same_tensors(one.tensors, other.tensors)

    def test_saved_and_loaded_it_goes_on_as_if_nothing_had_been(self):
        """C21, C22, C29: save, load into a new trainer, and update: the uninterrupted one, to the bit, counters included."""
        d = self.driver()
        for _ in range(2):
            d.update()
        saved = through_json(d.trainer.state())
        other = self.make(d.spec, self.settings(), seed=99)
        other.load_state(saved)
        again = through_json(other.state())
        assert same_tensors(again.tensors, saved.tensors)
        assert again.scalars == saved.scalars
        assert same_tensors(other.policy_weights(), d.trainer.policy_weights())
        rows = [d.collect(), d.collect()]
        results = []
        for trainer in (d.trainer, other):
            for batch in rows:
                trainer.process(batch, "manager")
            results.append(trainer.update())
        assert results[0] == results[1]
        assert same_tensors(d.trainer.state().tensors, other.state().tensors)
        assert not same_tensors(d.trainer.state().tensors, saved.tensors)
        assert d.trainer.state().scalars == other.state().scalars

    def test_state_is_a_copy(self):
        d = self.driver()
        state = d.trainer.state()
        kept = {k: v.copy() for k, v in state.tensors.items()}
        d.update()
        assert same_tensors(state.tensors, kept)

    def test_compiling_leaves_the_state_as_it_is(self):
        d = self.driver()
        d.update()
        before = d.trainer.state()
        d.trainer.compile()
        after = d.trainer.state()
        assert same_tensors(before.tensors, after.tensors)
        assert before.scalars == after.scalars

    def test_learning_rate_0_changes_no_weight(self):
        """C23: three updates, max difference 0."""
        d = self.driver(settings=self.settings(learning_rate=0.0))
        before = d.trainer.policy_weights()
        for _ in range(3):
            d.update()
        after = d.trainer.policy_weights()
        assert same_tensors({k: v for k, v in before.items() if "actor/" in k}, {k: v for k, v in after.items() if "actor/" in k})

    def test_counters_go_beyond_2_to_the_31(self):
        """C55: 2,147,483,640 and what came since, to the unit, and nothing is NaN."""
        d = self.driver()
        state = d.trainer.state()
        state.scalars.update(dict.fromkeys(self.counters, 2_147_483_640))
        d.trainer.load_state(through_json(state))
        d.rows = 0
        for _ in range(2):
            stats = d.update()
            assert all(np.isfinite(value) for value in stats.values())
        assert d.rows > 8
        assert d.trainer.agent_steps == 2_147_483_640 + d.rows
        assert d.trainer.policy_updates == 2_147_483_642
        assert d.trainer.updates >= 2_147_483_642
        assert json.loads(json.dumps(d.trainer.state().scalars))["agent_steps"] == 2_147_483_640 + d.rows

    def test_state_of_another_network_is_refused(self):
        """C23: the message names the tensor and both shapes; the trainer stays as it was."""
        d = self.driver()
        wide = self.settings()
        wide = wide.model_copy(update={"network_settings": wide.network_settings.model_copy(update={"hidden_units": 11})})
        before, other = d.trainer.state(), self.make(d.spec, wide, 0).state()
        ours, theirs = (list(s.tensors["actor/dense_0/kernel"].shape) for s in (before, other))
        assert ours != theirs
        message = f"actor/dense_0/kernel: expected float32 {ours}, received float32 {theirs}"
        for load in (d.trainer.load_state, d.trainer.load_weights):
            with pytest.raises(ValueError, match=re.escape(message)):
                load(other)
        assert same_tensors(d.trainer.state().tensors, before.tensors)

    def test_begins_with_the_weights_of_another_run(self):
        """``--initialize-from``: its networks; counters and optimizer of its own."""
        d, source = self.driver(), self.driver(1)
        for _ in range(2):
            source.update()
        d.trainer.load_weights(through_json(source.trainer.state()))
        assert same_tensors(d.trainer.policy_weights(), source.trainer.policy_weights())
        assert (d.trainer.agent_steps, d.trainer.updates, d.trainer.policy_updates) == (0, 0, 0)
        d.publish()
        d.update()

    def test_looking_changes_nothing(self):
        """C53: reading weights, state and readiness has no effect on what is learnt."""
        quiet, watched = self.driver(), self.driver()
        for _ in range(2):
            quiet.update()
            for _ in range(3):
                watched.trainer.state(), watched.trainer.policy_weights(), watched.trainer.is_ready(), watched.trainer.rows_held
            watched.update()
        assert same_tensors(quiet.trainer.state().tensors, watched.trainer.state().tensors)


class OnPolicyContract(TrainerContract):
    """An update starts once a buffer is full, at more than 32 and at most 64 rows, and uses every row."""

    def test_counts_rows_and_says_when_it_is_ready(self):
        """C75: ``agent_steps`` counts rows taken in, ``rows_held`` those not learnt from yet."""
        d = self.driver()
        assert (d.trainer.agent_steps, d.trainer.updates, d.trainer.policy_updates, d.trainer.rows_held) == (0, 0, 0, 0)
        assert not d.trainer.is_ready()
        d.trainer.process(d.collect())
        assert (d.trainer.agent_steps, d.trainer.rows_held, d.trainer.is_ready()) == (32, 32, False)
        d.trainer.process(d.collect())
        assert (d.trainer.agent_steps, d.trainer.rows_held, d.trainer.is_ready()) == (64, 64, True)

    def test_learns_from_every_row_held(self):
        d = self.driver()
        d.update()
        assert (d.trainer.agent_steps, d.trainer.rows_held, d.trainer.is_ready()) == (64, 0, False)
        assert d.trainer.policy_updates == 1
        assert d.trainer.updates > 1
