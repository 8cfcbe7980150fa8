"""PPO as a trainer: the contract, what it takes from trajectories, the normaliser, and what it reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec
from tests.trainers.contract import TRAJECTORIES, Driver, OnPolicyContract, same_tensors, through_json
from tests.trainers.rollouts import (
    ACTIONS,
    BOTH,
    BOX,
    CUT,
    DISCRETE,
    MASKED_DISCRETE,
    MASKED_HYBRID,
    MASKED_MULTI_DISCRETE,
    MULTI_DISCRETE,
    TERMINATED,
    TRUNCATED,
    network_of,
    rollout,
    spec_of,
    trajectories_of,
)
from trainers.architecture import architecture
from trainers.initial_weights import initial_weights
from trainers.inputs import NetworkInputs
from trainers.ppo import PPOTrainer
from trainers.ppo_graph import STATISTICS
from trainers.ppo_update import PPORows, UpdateResult
from trainers.settings import PPOSettings
from trainers.trajectory import TrajectoryBatch


def settings_of(
    normalize: bool = False, memory: bool = False, strength: float = 1.0, gamma: float = 0.9, max_steps: int = 1_000, **hyper
) -> PPOSettings:
    return PPOSettings.model_validate({
        "hyperparameters": {"batch_size": 16, "buffer_size": 40, "num_epoch": 3, "learning_rate": 0.01, "lambd": 0.8, **hyper},
        "network_settings": network_of(memory, normalize=normalize),
        "reward_signals": {"extrinsic": {"gamma": gamma, "strength": strength}},
        "max_steps": max_steps,
    })


def trainer_of(spec: BehaviorSpec, settings: PPOSettings, seed: int = 0, max_rows: int = 100) -> PPOTrainer:
    hyper = settings.hyperparameters
    arch = architecture(spec, settings.network_settings)
    weights = initial_weights(arch, np.random.default_rng(seed), hyper.initial_std, shared_critic=hyper.shared_critic)
    return PPOTrainer(spec, settings, np.random.SeedSequence(seed), max_rows, weights)


def driver_of(
    action: ActionSpec = DISCRETE, seed: int = 0, max_rows: int = 100, size: int = 3, observations: str = "vector",
    horizon: int | None = None, **changes,
) -> Driver:
    spec, settings = spec_of(action, size, observations), settings_of(**changes)
    d = Driver(trainer_of(spec, settings, seed, max_rows), spec, settings.network_settings, seed)
    d.horizon = horizon
    return d


class PPOContract(OnPolicyContract):
    def settings(self, **hyperparameters):
        return settings_of(**hyperparameters)

    def make(self, spec, settings, seed):
        return trainer_of(spec, settings, seed)


class TestDiscrete(PPOContract):
    action = DISCRETE


class TestBox(PPOContract):
    action = BOX


class TestMultiDiscreteSharedCritic(PPOContract):
    action = MULTI_DISCRETE

    def settings(self, **hyperparameters):
        return settings_of(shared_critic=True, entropy_reduction="mean", **hyperparameters)


@pytest.mark.slow
class TestRewardScalingAndTargetKL(PPOContract):
    """The optional parts that have state or change the flow."""

    action = DISCRETE

    def settings(self, **hyperparameters):
        return settings_of(reward_scaling=True, target_kl=0.5, max_grad_norm=None, value_clip=False, **hyperparameters)


@pytest.mark.slow
class TestImages(PPOContract):
    """A network that XLA does not compile."""

    action = DISCRETE
    observations = "image"

    def settings(self, **hyperparameters):
        settings = settings_of(shared_critic=True, **hyperparameters)
        return settings.model_copy(update={"network_settings": network_of(vis_encode_type="match3")})


@pytest.mark.slow
class TestDictMasksAndMemory(PPOContract):
    """Everything at once: observations of every kind, normalised, masks, sequences across trajectories, hybrid actions."""

    action = MASKED_HYBRID
    observations = "dict"
    horizon = 5

    def settings(self, **hyperparameters):
        return settings_of(memory=True, **hyperparameters)


@pytest.mark.slow
class TestMemorySharedCritic(PPOContract):
    action = DISCRETE
    horizon = 5

    def settings(self, **hyperparameters):
        return settings_of(memory=True, shared_critic=True, **hyperparameters)


def learnt_from(trainer: PPOTrainer) -> list[PPORows]:
    """The rows of every later update, in the list returned."""
    rows, update = [], trainer._program.update
    trainer._program.update = lambda r, *rest: rows.append(r) or update(r, *rest)
    return rows


def targets_of(batch: TrajectoryBatch, value, **changes) -> PPORows:
    """What an update would learn from `batch` with a critic `value`: vectors ``[N, I]`` -> ``[N]``."""
    trainer, rows = driver_of(buffer_size=16, normalize_advantages=False, **changes).trainer, []
    trainer._program.values = lambda x: value(x.vector)[:, None].astype(np.float32)
    trainer._program.update = lambda r, *rest: rows.append(r) or UpdateResult(dict.fromkeys(STATISTICS, 0.0), 1, 0.0)
    trainer.process(batch, "manager")
    trainer.update()
    return rows[0]


def trajectories(lengths, ends, rewards) -> TrajectoryBatch:
    d = driver_of()
    return rollout(d.policy, d.rng, lengths, ends, rewards=rewards)


# -- targets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "advantages"),
    [
        (TRUNCATED, (1.79072, 1.376, 0.8)), (CUT, (1.79072, 1.376, 0.8)),
        (TERMINATED, (0.8576, 0.08, -1.0)), (BOTH, (0.8576, 0.08, -1.0)),
    ],
)
def test_ends_of_trajectories(end, advantages):
    """C35, C37: truncation and a cut bootstrap from V(next_obs), termination does not and wins; rewards are not altered."""
    rows = targets_of(trajectories([3], [end], [1.0, 1.0, 1.0]), lambda x: np.full(len(x), 2.0))
    np.testing.assert_allclose(rows.advantage, advantages, atol=1e-5)
    np.testing.assert_allclose(rows.target[:, 0], np.array(advantages) + 2.0, atol=1e-5)


def test_bootstrap_is_the_true_next_observation():
    """C34: V(obs) = obs[0] = step; 5 steps, truncated, γ 1, λ 0, no reward: the last target is 5, neither 0 nor 4."""
    batch = trajectories([5], [TRUNCATED], [0.0] * 5)
    batch.obs["obs"][:, 0], batch.next_obs["obs"][:, 0] = np.arange(5), 5.0
    rows = targets_of(batch, lambda x: x[:, 0], gamma=1.0, lambd=0.0)
    np.testing.assert_allclose(rows.target[:, 0], [1.0, 2.0, 3.0, 4.0, 5.0])


def test_no_advantage_leaks_over_the_end_of_a_trajectory():
    """C36: two trajectories in one batch, the first truncated with V(final) = 10."""
    batch = trajectories([2, 2], [TRUNCATED, TERMINATED], [1.0, 1.0, 5.0, 5.0])
    batch.obs["obs"][:, 0], batch.next_obs["obs"][:, 0] = 2.0, [10.0, 99.0]
    rows = targets_of(batch, lambda x: x[:, 0])
    np.testing.assert_allclose(rows.advantage, [6.56, 8.0, 6.96, 3.0], atol=1e-5)


def test_advantages_are_normalised_over_the_whole_buffer():
    """C43: mean 0 and population standard deviation 1 over all rows, before any minibatch is made."""
    d = driver_of()
    rows = learnt_from(d.trainer)
    d.update()
    assert len(rows[0]) == 64
    assert rows[0].advantage.mean() == pytest.approx(0.0, abs=1e-6)
    assert rows[0].advantage.std() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.slow
def test_buffer_that_does_not_divide():
    """C43, C88: 65 rows, minibatches of at most 64, 3 epochs: 33 + 32 rows in each, nothing is dropped and nothing is NaN."""
    d = driver_of(buffer_size=65, batch_size=64)
    d.trainer.process(rollout(d.policy, d.rng, [65]))
    stats = d.trainer.update()
    assert d.trainer.updates == 6
    assert all(np.isfinite(value) for value in stats.values())


def test_strength_multiplies_rewards():
    batch = trajectories([3], [TERMINATED], [1.0, 2.0, 4.0])
    rows = targets_of(batch, lambda x: np.zeros(len(x)), strength=0.5, gamma=1.0, lambd=1.0)
    np.testing.assert_allclose(rows.target[:, 0], [3.5, 3.0, 2.0])


def test_reward_scaling_divides_by_the_spread_of_returns():
    """Rewards a thousand times larger give the same targets."""
    rewards = np.random.default_rng(0).standard_normal(20)
    small, large = (
        targets_of(trajectories([12, 8], None, factor * rewards), lambda x: np.zeros(len(x)), reward_scaling=True).target
        for factor in (1.0, 1_000.0)
    )
    np.testing.assert_allclose(small, large, rtol=1e-4)


@pytest.mark.parametrize("column", ["obs", "next_obs", "reward"])
@pytest.mark.parametrize("normalize", [False, True])
def test_values_that_are_not_finite_are_refused(column, normalize):
    """C53, C54: by name and index, before they are counted or touch statistics or weights."""
    d = driver_of(normalize=normalize)
    d.update()
    before, batch = d.trainer.state(), d.collect()
    array = batch.reward if column == "reward" else getattr(batch, column)["obs"]
    array[(3, 1)[: array.ndim]] = np.inf
    with pytest.raises(ValueError, match=r"(obs|rewards).* inf at index \[3"):
        d.trainer.process(batch, "manager")
    after = d.trainer.state()
    assert same_tensors(before.tensors, after.tensors)
    assert before.scalars == after.scalars
    assert d.trainer.rows_held == 0


@pytest.mark.parametrize(("action", "memory", "message"), [
    (DISCRETE, False, r"action_mask of shape None, received \(32, 3\)"),
    (MASKED_DISCRETE, False, r"action_mask of shape \(32, 3\), received None"),
    (DISCRETE, True, r"memory of shape \(32, 6\), received None"),
], ids=["mask", "no mask", "no memory"])
def test_rows_of_another_space_or_network_are_refused(action, memory, message):
    d = driver_of(action, memory=memory)
    batch = d.collect()
    batch.action_mask = None if action.masked else np.ones((batch.rows, 3), bool)
    if memory:
        batch.action_mask = batch.memory = None
    with pytest.raises(ValueError, match=message):
        d.trainer.process(batch)
    assert d.trainer.agent_steps == d.trainer.rows_held == 0


# -- the policy that acted is the policy that learns ------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.slow
def test_first_minibatch_has_ratio_1(kind, normalize):
    """C10: at lag 0 the stored log-probs come out of the training graph, update after update; also with a moving normaliser."""
    d = driver_of(ACTIONS[kind], normalize=normalize)
    tag = "Policy/First Minibatch Ratio Error"
    errors = [stats[tag] for stats in (d.update() for _ in range(6)) if tag in stats]
    assert len(errors) == (5 if normalize else 6)
    assert max(errors) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("action", "observations", "shared_critic"), [(MASKED_HYBRID, "dict", False), (DISCRETE, "vector", True)])
def test_first_minibatch_has_ratio_1_with_masks_and_memory(action, observations, shared_critic):
    """C10, C63, C66: the same where rows hold masks, images and memories, and episodes go over several trajectories."""
    d = driver_of(action, observations=observations, memory=True, normalize=True, horizon=5, shared_critic=shared_critic)
    tag = "Policy/First Minibatch Ratio Error"
    errors = [stats[tag] for stats in (d.update() for _ in range(4)) if tag in stats]
    assert len(errors) == 3
    assert max(errors) < 1e-5


def test_ratio_of_weights_that_were_not_published_is_not_1():
    """The control of the test above: a policy that misses a version shows."""
    d = driver_of()
    d.update()
    d.trainer.process(d.collect())
    d.trainer.process(d.collect())
    d.trainer.update()
    for _ in range(2):
        d.trainer.process(d.collect())
    assert d.trainer.update()["Policy/First Minibatch Ratio Error"] > 1e-3


def test_share_of_clipped_actions_and_their_log_probs():
    """C58: with σ = 1 and a mean of about 0, 31.7 % of the samples lie outside [-1, 1]; log-probs are those of the samples."""
    d = driver_of(BOX, learning_rate=0.0)
    rows = learnt_from(d.trainer)
    stats = [d.update() for _ in range(50)]
    assert np.mean([s["Policy/Action Clip Fraction"] for s in stats]) == pytest.approx(0.317, abs=0.03)
    assert max(s["Policy/First Minibatch Ratio Error"] for s in stats) < 1e-5
    assert np.abs(rows[0].continuous).max() > 2.0
    assert "Policy/Action Clip Fraction" not in driver_of().update()


# -- masks and memory -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_masked_choices_are_not_learnt_about():
    """C63: a choice that was never allowed has no gradient in any update: the weights of its logit stay to the bit."""
    d = driver_of(MASKED_DISCRETE)
    before = d.trainer.policy_weights()
    for _ in range(3):
        while not d.trainer.is_ready():
            batch = d.collect()
            batch.action_mask[:] = [True, False, True]
            d.trainer.process(_acted_again(d, batch))
        assert d.trainer.update()["Policy/Entropy"] <= np.log(2) + 1e-6
        d.publish()
    after = d.trainer.policy_weights()
    for name in ("actor/branch_0/kernel", "actor/branch_0/bias"):
        np.testing.assert_array_equal(after[name][..., 1], before[name][..., 1])
        assert (after[name][..., [0, 2]] != before[name][..., [0, 2]]).any()


@pytest.mark.slow
def test_masks_stay_with_their_rows():
    d = driver_of(MASKED_MULTI_DISCRETE)
    rows, batches = learnt_from(d.trainer), [d.collect(), d.collect()]
    for batch in batches:
        d.trainer.process(batch)
    d.trainer.update()
    np.testing.assert_array_equal(rows[0].action_mask, np.concatenate([batch.action_mask for batch in batches]))


RECURRENT = {"action": MASKED_HYBRID, "observations": "dict", "memory": True, "learning_rate": 0.0}


def recurrent_rollout(d: Driver) -> TrajectoryBatch:
    return rollout(d.policy, np.random.default_rng(0), [13, 31], [TERMINATED, CUT], horizon=4)


def recurrent_values(buffer_size: int, resume_after: int | None = None) -> np.ndarray:
    """Values of the rows of two episodes that a critic who learns nothing gives them, update by update."""
    d = driver_of(buffer_size=buffer_size, **RECURRENT)
    whole, trainer, rows = recurrent_rollout(d), d.trainer, [learnt_from(d.trainer)]
    for k in range(len(whole.length)):
        trainer.process(trajectories_of(whole, [k]), "manager")
        if trainer.is_ready():
            trainer.update()
        if k == resume_after:
            assert not trainer.rows_held
            saved = through_json(trainer.state())
            trainer = driver_of(buffer_size=buffer_size, seed=4, **RECURRENT).trainer
            trainer.load_state(saved)
            rows.append(learnt_from(trainer))
    return np.concatenate([r.old_value for learnt in rows for r in learnt])


@pytest.mark.slow
def test_critic_remembers_from_update_to_update():
    """C66: values do not depend on which update a row comes in, nor on a stop and a resume in the middle of an episode."""
    at_once = recurrent_values(buffer_size=44)
    assert at_once.shape == (44, 1)
    for later in (recurrent_values(buffer_size=16), recurrent_values(buffer_size=16, resume_after=4)):
        assert len(later) == 33  # updates of 17 and 16 rows, the second one within the second episode
        np.testing.assert_allclose(later, at_once[:33], atol=1e-6)


@pytest.mark.slow
def test_values_of_a_recurrent_critic_depend_on_the_rows_before():
    """The control of the test above: each row alone has another value."""
    d = driver_of(buffer_size=44, **RECURRENT)
    whole = recurrent_rollout(d)
    alone = trajectories_of(whole, range(len(whole.length)))
    alone.length, alone.begin = np.ones(44, np.int32), np.zeros(44, np.int64)
    alone.agent_id = alone.episode_id = np.arange(44)
    alone.terminated, alone.truncated = np.ones(44, bool), np.zeros(44, bool)
    alone.next_obs = {name: x.copy() for name, x in alone.obs.items()}
    rows = learnt_from(d.trainer)
    d.trainer.process(alone)
    d.trainer.update()
    different = np.abs(rows[0].old_value - recurrent_values(buffer_size=44))[:, 0] > 1e-3
    assert different.sum() > 30
    assert not different[[0, 13]].any()  # the first row of each episode


@pytest.mark.slow
def test_shared_critic_starts_from_the_memory_of_the_policy():
    """The stored memory serves both: sequences are independent of each other, and nothing is kept."""
    d = driver_of(memory=True, shared_critic=True, horizon=5)
    rows = learnt_from(d.trainer)
    batches = [d.collect(), d.collect()]
    for batch in batches:
        d.trainer.process(batch)
    d.trainer.update()
    assert rows[0].memory.keys() == {"actor"}
    stored = np.concatenate([batch.memory for batch in batches])
    np.testing.assert_array_equal(rows[0].memory["actor"], stored[rows[0].sequences.start])
    assert not any(name.startswith("critic_memory/") for name in d.trainer.state().tensors)


# -- the normaliser ---------------------------------------------------------------------------------------------------


def test_first_rows_only_initialise_the_normaliser():
    """They count as agent steps; nothing is learnt from them; their statistics go out with the next version."""
    d = driver_of(normalize=True)
    before = d.trainer.state()
    for _ in range(2):
        d.trainer.process(rollout(d.policy, d.rng, TRAJECTORIES, scale=100.0))
    assert d.trainer.is_ready()
    assert d.trainer.update() == {"Policy/Warm-up Rows": 64.0}
    assert (d.trainer.agent_steps, d.trainer.updates, d.trainer.policy_updates, d.trainer.rows_held) == (64, 0, 0, 0)
    after = d.trainer.state()
    assert same_tensors(*({k: v for k, v in s.tensors.items() if "norm" not in k} for s in (before, after)))
    assert before.scalars["rng"] == after.scalars["rng"]
    np.testing.assert_allclose(d.trainer.policy_weights()["normalizer/obs/std"], 100.0, rtol=0.3)


def test_warm_up_takes_no_more_than_1000_rows():
    d = driver_of(normalize=True, buffer_size=5_000)
    d.trainer.process(rollout(d.policy, d.rng, [999]))
    assert not d.trainer.is_ready()
    d.trainer.process(rollout(d.policy, d.rng, [1]))
    assert d.trainer.is_ready()
    d.trainer.update()
    d.trainer.process(rollout(d.policy, d.rng, [1_000]))
    assert not d.trainer.is_ready()


def test_every_network_sees_what_the_policy_saw():
    """C51: actor and critic learn from the acting policy's normalised inputs; observations × (1000, 1, 1)."""
    d = driver_of(normalize=True)
    factor = np.array([1_000.0, 1.0, 1.0], np.float32)
    for _ in range(2):
        d.trainer.process(_scaled(rollout(d.policy, d.rng, TRAJECTORIES), factor))
    d.trainer.update()
    d.publish()
    rows, critic = learnt_from(d.trainer), []
    values = d.trainer._program.values
    d.trainer._program.values = lambda x: critic.append(x) or values(x)
    weights = d.trainer.policy_weights()
    batch = _acted_again(d, _scaled(rollout(d.policy, d.rng, [64]), factor))
    d.trainer.process(batch)
    d.trainer.update()
    expected = np.clip((batch.obs["obs"] - weights["normalizer/obs/mean"]) / weights["normalizer/obs/std"], -5.0, 5.0)
    seen = rows[0].inputs.vector
    np.testing.assert_allclose(seen, expected, atol=1e-6)
    np.testing.assert_array_equal(critic[0].vector, seen)
    assert 0.5 < seen.std(axis=0).min() <= seen.std(axis=0).max() < 2.0


def _scaled(batch, factor):
    batch.obs["obs"] *= factor
    batch.next_obs["obs"] *= factor
    return batch


def _acted_again(d, batch):
    out = d.policy.act(batch.obs, d.rng, action_mask=batch.action_mask)
    batch.continuous, batch.discrete, batch.log_prob = out.actions.continuous, out.actions.discrete, out.log_prob
    return batch


def test_rows_of_older_versions_are_normalised_with_their_own_statistics():
    """One update holds rows of versions 1 and 2, whose statistics differ: each row has the inputs that its policy saw."""
    d = driver_of(normalize=True)
    d.update()  # warm-up, version 1
    old, old_weights = rollout(d.policy, d.rng, [20]), d.trainer.policy_weights()
    for _ in range(2):
        d.trainer.process(rollout(d.policy, d.rng, TRAJECTORIES))
    d.trainer.update()
    d.publish()  # version 2
    new, new_weights = rollout(d.policy, d.rng, [20]), d.trainer.policy_weights()
    assert not np.array_equal(old_weights["normalizer/obs/mean"], new_weights["normalizer/obs/mean"])
    rows = learnt_from(d.trainer)
    for batch in (new, old):
        d.trainer.process(batch)
    d.trainer.update()
    seen = rows[0].inputs.vector
    for part, batch, weights in ((seen[:20], new, new_weights), (seen[20:], old, old_weights)):
        expected = np.clip((batch.obs["obs"] - weights["normalizer/obs/mean"]) / weights["normalizer/obs/std"], -5.0, 5.0)
        np.testing.assert_allclose(part, expected, atol=1e-6)


def test_statistics_count_every_row_once():
    """C53: the count is the rows consumed."""
    d = driver_of(normalize=True)
    for _ in range(3):
        d.update()
    assert d.trainer.state().scalars["normalizer_statistics/count"] == {"obs": 192}


def test_kept_versions_cover_the_lag_and_no_more():
    """Buffers of 40 rows and room for 100: rows may be two versions old; older statistics are dropped."""
    d = driver_of(normalize=True)
    for _ in range(10):
        d.update()
    assert d.trainer.state().tensors["normalizer_history/version"].tolist() == [8, 9, 10]


class TestNormalizer(PPOContract):
    """The contract with a normaliser, its warm-up behind it."""

    action = BOX

    def settings(self, **hyperparameters):
        return settings_of(normalize=True, **hyperparameters)

    def driver(self, seed=0, settings=None):
        d = super().driver(seed, settings)
        d.update()
        # The contract counts from 0.
        d.trainer.agent_steps = d.rows = 0
        return d

    def test_begins_with_the_weights_of_another_run(self):
        """Statistics come along, versions do not: those belong to the other run. No second warm-up."""
        source, spec = self.driver(1), spec_of(self.action)
        for _ in range(4):
            source.update()
        trainer = self.make(spec, self.settings(), 2)
        trainer.load_weights(source.trainer.state())
        assert same_tensors(trainer.policy_weights(), source.trainer.policy_weights())
        d = Driver(trainer, spec, self.settings().network_settings)
        assert "Losses/Policy Loss" in d.update()

    def test_state_without_statistics_is_refused(self):
        """C25: a checkpoint of a run without normaliser does not go on with an empty one."""
        d = self.driver()
        plain = trainer_of(d.spec, settings_of()).state()
        for load in (d.trainer.load_state, d.trainer.load_weights):
            with pytest.raises(ValueError, match=r"network_settings\.normalize: true"):
                load(plain)


# -- what it reports --------------------------------------------------------------------------------------------------


def test_statistics_and_schedules():
    """C24: rates follow agent steps: 64 of 128 steps are half way to the floors. The value estimate is a mean of fresh values."""
    d = driver_of(max_steps=128, learning_rate=0.01, epsilon=0.2, beta=0.005)
    rows = learnt_from(d.trainer)
    stats = d.update()
    assert stats["Policy/Learning Rate"] == pytest.approx(0.005, rel=1e-6)
    assert stats["Policy/Epsilon"] == pytest.approx(0.15)
    assert stats["Policy/Beta"] == pytest.approx(0.002505)
    assert stats["Policy/Extrinsic Value Estimate"] == pytest.approx(float(rows[0].old_value.mean()))
    assert stats["Policy/Entropy"] == pytest.approx(np.log(3), abs=0.05)
    assert stats.keys() == {
        "Losses/Policy Loss", "Losses/Value Loss", "Policy/Entropy", "Policy/KL Divergence", "Policy/Clip Fraction",
        "Policy/Gradient Norm", "Policy/First Minibatch Ratio Error", "Policy/Learning Rate", "Policy/Epsilon", "Policy/Beta",
        "Policy/Extrinsic Value Estimate", "Policy/Explained Variance",
    }


def test_update_that_breaks_keeps_the_trainer_as_it_was():
    """C54: the error names what broke; weights, optimizer and counters are those of before."""
    d = driver_of()
    d.update()
    before = d.trainer.state()
    batch = rollout(d.policy, d.rng, [64])
    batch.reward[7] = 1e30
    d.trainer.process(batch)
    with pytest.raises(FloatingPointError, match="value loss"):
        d.trainer.update()
    after = d.trainer.state()
    assert same_tensors(before.tensors, after.tensors)
    assert all(before.scalars[counter] == after.scalars[counter] for counter in ("updates", "policy_updates", "adam_step"))


@pytest.mark.slow
def test_critic_learns_time_limits_and_ends():
    """C35 as learning: obs = step / 10, reward 1, 10 steps, γ 0.9: V(0) → 10 if episodes are truncated, 6.513 if they end."""
    for end, expected, tolerance in ((TRUNCATED, 10.0, 0.5), (TERMINATED, 6.513, 0.3)):
        d = driver_of(size=1, buffer_size=80, batch_size=40, num_epoch=20, value_clip=False, max_grad_norm=None, max_steps=10**9)
        for _ in range(90):
            batch = rollout(d.policy, d.rng, [10] * 8, [end] * 8, rewards=[1.0] * 80)
            batch.obs["obs"][:, 0] = np.tile(np.arange(10), 8) / 10
            batch.next_obs["obs"][:, 0] = 1.0
            d.trainer.process(_acted_again(d, batch))
            d.trainer.update()
            d.publish()
        value = d.trainer._program.values(NetworkInputs(np.zeros((1, 1), np.float32)))
        assert float(value[0, 0]) == pytest.approx(expected, abs=tolerance)


# -- groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reward_scaling", [False, True])
def test_group_rewards_are_learnt_from_like_rewards(reward_scaling):
    """Value targets are those of own and group reward together."""
    batch = trajectories([3, 2], [TERMINATED, CUT], [1.0, 2.0, 3.0, 4.0, 5.0])
    group_reward = np.array([0.5, 0.0, -2.0, 7.0, 0.0], np.float32)
    rewards = []
    for given in (replace(batch, group_reward=group_reward), replace(batch, reward=batch.reward + group_reward), batch):
        trainer = trainer_of(spec_of(DISCRETE), settings_of(reward_scaling=reward_scaling, strength=2.0))
        trainer.process(given, "m")
        rewards.append(trainer._held[0].rewards["extrinsic"])
    np.testing.assert_array_equal(rewards[0], rewards[1])
    assert not np.array_equal(rewards[0], rewards[2])


def test_a_group_reward_that_is_not_finite_is_refused():
    batch = trajectories([2], [CUT], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"finite values for rewards from m, received nan at index \[1\]"):
        trainer_of(spec_of(DISCRETE), settings_of()).process(replace(batch, group_reward=np.array([0, np.nan], np.float32)), "m")
