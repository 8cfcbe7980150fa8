"""PPO learns tiny tasks without any environment code: the NumPy policy acts, `PPOTrainer` learns, in lock-step.

Bandit: the observation is one of three contexts (one-hot), an episode one step, and the reward 1 for the right action.
TwoSteps: the first action is rewarded only after the second step, whose observation tells nothing of it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from trainers.networks import initial_weights
from trainers.policy import Policy, PolicyOutput
from trainers.ppo import PPOTrainer
from trainers.settings import PPOSettings
from trainers.trajectory import TrajectoryBatch

ROWS = 512
SPACES = {
    "discrete": ActionSpec("discrete", discrete_branches=(3,), starts=(0,)),
    "multi_discrete": ActionSpec("multi_discrete", discrete_branches=(3, 2), starts=(0, 0), shape=(2,)),
    "box": ActionSpec("box", continuous_size=2, low=(-1.0,) * 2, high=(1.0,) * 2, shape=(2,), dtype="float32"),
}


def bandit_reward(kind: str, context: np.ndarray, out: PolicyOutput) -> np.ndarray:
    """1 for the right action, less or 0 for others; float32 ``[n]``."""
    if kind == "box":
        target = np.array([[-0.5, 0.5], [0.0, 0.0], [0.5, -0.8]])[context]
        return np.maximum(0.0, 1.0 - np.abs(np.clip(out.actions.continuous, -1.0, 1.0) - target).sum(axis=1)).astype(np.float32)
    right = out.actions.discrete[:, 0] == (context + 1) % 3
    if kind == "multi_discrete":
        right &= out.actions.discrete[:, 1] == (context == 1)
    return right.astype(np.float32)


@dataclasses.dataclass
class Bandit:
    """Contextual bandit; `shuffled` hands the rewards to the wrong rows."""

    kind: str
    shuffled: bool = False
    scale: float = 1.0

    def collect(self, policy: Policy, rng: np.random.Generator) -> TrajectoryBatch:
        """Episodes of one step."""
        context = rng.integers(0, 3, ROWS)
        obs = (self.scale * np.eye(3)[context]).astype(np.float32)
        out = policy.act({"obs": obs}, rng)
        reward = bandit_reward(self.kind, context, out)
        batch = trajectories(obs, obs, out, rng.permutation(reward) if self.shuffled else reward, policy.version, steps=1)
        batch.episode_return = reward.astype(np.float64)
        return batch


class TwoSteps:
    """A → B → end. The return is 1 where the first action was 2; the reward comes after the second."""

    kind = "discrete"

    def collect(self, policy: Policy, rng: np.random.Generator) -> TrajectoryBatch:
        """Episodes of two steps, rows of an episode side by side."""
        obs = np.tile(np.eye(3, dtype=np.float32)[:2], (ROWS // 2, 1))
        out = policy.act({"obs": obs}, rng)
        reward = np.zeros(ROWS, np.float32)
        reward[1::2] = out.actions.discrete[::2, 0] == 2
        batch = trajectories(obs, np.zeros((ROWS // 2, 3), np.float32), out, reward, policy.version, steps=2)
        batch.episode_return = reward[1::2].astype(np.float64)
        return batch


def trajectories(obs, next_obs, out: PolicyOutput, reward, version: int, steps: int) -> TrajectoryBatch:
    n, k = len(obs), len(obs) // steps
    return TrajectoryBatch(
        obs={"obs": obs}, continuous=out.actions.continuous, discrete=out.actions.discrete, log_prob=out.log_prob, reward=reward,
        version=np.full(n, version, np.int64), action_mask=None, length=np.full(k, steps, np.int32), next_obs={"obs": next_obs},
        terminated=np.ones(k, bool), truncated=np.zeros(k, bool), agent_id=np.arange(k), episode_id=np.arange(k),
        episode_return=np.zeros(0), episode_length=np.full(k, steps, np.int64),
    )


def learn(world, updates: int, seed: int = 0, network: dict | None = None, **hyper) -> float:
    """Mean return of the last batch after `updates` updates."""
    spec = BehaviorSpec((ObservationSpec("obs", (3,)),), SPACES[world.kind])
    settings = PPOSettings.model_validate({
        "hyperparameters": {
            "buffer_size": ROWS, "batch_size": 128, "learning_rate": 0.01, "num_epoch": 4, "beta": 0.001, "initial_std": 0.5,
            **hyper,
        },
        "network_settings": {"hidden_units": 16, "num_layers": 1, "activation": "tanh", **(network or {})},
        "max_steps": 10**9,
    })
    rng = np.random.default_rng(seed)
    ours = settings.hyperparameters
    weights = initial_weights(spec, settings.network_settings, rng, ours.initial_std, shared_critic=ours.shared_critic)
    trainer = PPOTrainer(spec, settings, np.random.SeedSequence(seed), ROWS, weights)
    policy = Policy(spec, settings.network_settings)
    for version in range(updates):
        trainer.published(version)
        policy.set_weights(trainer.policy_weights(), version)
        trainer.process(world.collect(policy, rng))
        assert trainer.is_ready()
        trainer.update()
    policy.set_weights(trainer.policy_weights(), updates)
    return float(world.collect(policy, rng).episode_return.mean())


def test_learns_a_bandit():
    """Guessing earns 0.33. The control, rewards of other rows, stays there."""
    assert learn(Bandit("discrete"), 15) > 0.9
    assert learn(Bandit("discrete", shuffled=True), 15) < 0.55


def test_learning_rate_0_does_not_learn():
    """C23: the same loop, and nothing moves."""
    assert learn(Bandit("discrete"), 15, learning_rate=0.0) < 0.45


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("kind", "threshold"), [("discrete", 0.97), ("multi_discrete", 0.95), ("box", 0.75)])
def test_learns_every_action_space(kind, threshold, seed):
    assert learn(Bandit(kind), 60, seed) > threshold


@pytest.mark.learning
@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "box"])
def test_rewards_of_other_rows_teach_nothing(kind):
    """Negative control: the same loop with shuffled rewards stays below every threshold above by far."""
    assert learn(Bandit(kind, shuffled=True), 60) < 0.6


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_learns_from_a_reward_that_comes_later(seed):
    """Credit for the first action passes over the second step."""
    assert learn(TwoSteps(), 40, seed) > 0.95


@pytest.mark.learning
def test_without_advantages_over_steps_or_a_critic_there_is_no_credit():
    """Negative control: λ = 0 leaves the first action to the critic, and ``value_coef`` 0 leaves the critic as it began."""
    assert learn(TwoSteps(), 40, lambd=0.0, value_coef=0.0) < 0.6


@pytest.mark.learning
@pytest.mark.parametrize("hyper", [
    {"shared_critic": True}, {"reward_scaling": True}, {"target_kl": 0.02, "num_epoch": 10},
    {"value_clip": False, "max_grad_norm": None},
    {"normalize_advantages": False, "learning_rate": 0.02}, {"entropy_reduction": "mean"},
], ids=lambda hyper: next(iter(hyper)))
def test_learns_with_every_option(hyper):
    assert learn(Bandit("multi_discrete"), 60, **hyper) > 0.9


@pytest.mark.learning
def test_learns_through_the_normaliser():
    """Observations of 1,000; the first update only initialises the statistics."""
    assert learn(Bandit("discrete", scale=1_000.0), 40, network={"normalize": True}) > 0.95
