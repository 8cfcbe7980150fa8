"""PPO learns tiny tasks without any environment code: the NumPy policy acts, `PPOTrainer` learns, in lock-step.

Bandit: the observation is one of three contexts (one-hot), an episode one step, and the reward 1 for the right action.
TwoSteps: the first action is rewarded only after the second step, whose observation tells nothing of it.
MaskedBandit: three choices, of which another one is forbidden in each row; a forbidden one costs 100.
Recall: a cue at the first step of eight, and 1 for repeating it at the last; between them observations tell nothing.
Corner: an image that is bright in one half; 1 for naming it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from trainers.architecture import architecture
from trainers.initial_weights import initial_weights
from trainers.policy import Policy, PolicyOutput
from trainers.ppo import PPOTrainer
from trainers.settings import PPOSettings
from trainers.trajectory import TrajectoryBatch

ROWS = 512
LEFT_OR_RIGHT = ActionSpec("discrete", discrete_branches=(2,), starts=(0,))
CONTEXT = (ObservationSpec("obs", (3,)),)
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

    @property
    def spec(self) -> BehaviorSpec:
        return BehaviorSpec(CONTEXT, SPACES[self.kind])

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

    spec = BehaviorSpec(CONTEXT, SPACES["discrete"])

    def collect(self, policy: Policy, rng: np.random.Generator) -> TrajectoryBatch:
        """Episodes of two steps, rows of an episode side by side."""
        obs = np.tile(np.eye(3, dtype=np.float32)[:2], (ROWS // 2, 1))
        out = policy.act({"obs": obs}, rng)
        reward = np.zeros(ROWS, np.float32)
        reward[1::2] = out.actions.discrete[::2, 0] == 2
        batch = trajectories(obs, np.zeros((ROWS // 2, 3), np.float32), out, reward, policy.version, steps=2)
        batch.episode_return = reward[1::2].astype(np.float64)
        return batch


class MaskedBandit:
    """The right choice is the first allowed one after the context. Counts forbidden choices."""

    spec = BehaviorSpec(CONTEXT, dataclasses.replace(SPACES["discrete"], masked=True))

    def __init__(self) -> None:
        self.illegal = 0

    def collect(self, policy: Policy, rng: np.random.Generator) -> TrajectoryBatch:
        """Episodes of one step."""
        context, forbidden, row = rng.integers(0, 3, ROWS), rng.integers(0, 3, ROWS), np.arange(ROWS)
        mask = np.ones((ROWS, 3), bool)
        mask[row, forbidden] = False
        obs = np.eye(3, dtype=np.float32)[context]
        out = policy.act({"obs": obs}, rng, action_mask=mask)
        choice = out.actions.discrete[:, 0]
        right = np.where((context + 1) % 3 == forbidden, (context + 2) % 3, (context + 1) % 3)
        reward = np.where(mask[row, choice], choice == right, -100.0).astype(np.float32)
        self.illegal += int((~mask[row, choice]).sum())
        batch = trajectories(obs, obs, out, reward, policy.version, steps=1)
        batch.action_mask = batch.next_action_mask = mask
        batch.episode_return = reward.astype(np.float64)
        return batch


class Corner:
    """Images 6 × 5 × 1, bright on the left or on the right."""

    spec = BehaviorSpec((ObservationSpec("obs", (6, 5, 1), "uint8", "image", is_uint8_image=True),), LEFT_OR_RIGHT)

    def collect(self, policy: Policy, rng: np.random.Generator) -> TrajectoryBatch:
        """Episodes of one step."""
        right = rng.integers(0, 2, ROWS)
        obs = rng.integers(0, 100, (ROWS, 6, 5, 1)).astype(np.uint8)
        obs[right == 0, :, :2] += 150
        obs[right == 1, :, 3:] += 150
        out = policy.act({"obs": obs}, rng)
        reward = (out.actions.discrete[:, 0] == right).astype(np.float32)
        batch = trajectories(obs, obs, out, reward, policy.version, steps=1)
        batch.episode_return = reward.astype(np.float64)
        return batch


class Recall:
    """A cue at any step but the last, which asks for it; episodes in trajectories of 4 rows.

    With sequences of 4 a gradient reaches from the answer back to the cue only in episodes whose cue comes late. They teach to
    keep it; in the others only a memory that is handed over right can bring it to the answer.
    """

    spec = BehaviorSpec(CONTEXT, LEFT_OR_RIGHT)
    steps, rows = 8, 2_048

    def __init__(self, forgets: bool = False, latest: int = steps - 2) -> None:
        self.forgets, self.latest = forgets, latest

    def collect(self, policy: Policy, rng: np.random.Generator) -> TrajectoryBatch:
        """Episodes begin and end together; the trajectories of an episode follow each other."""
        n, steps = self.rows // self.steps, self.steps
        cue, time = rng.integers(0, 2, n), rng.integers(0, self.latest + 1, n)
        obs = np.zeros((n, steps, 3), np.float32)
        obs[np.arange(n), time, 0] = 2.0 * cue - 1.0
        obs[:, -1, 1] = 1.0
        outs = [
            policy.act({"obs": obs[:, t]}, rng, agent_id=np.arange(n), first=np.full(n, t == 0 or self.forgets and t == 4))
            for t in range(steps)
        ]
        correct = outs[-1].actions.discrete[:, 0] == cue
        reward = np.zeros((n, steps), np.float32)
        reward[:, -1] = correct
        columns = [np.stack([get(out) for out in outs], axis=1).reshape(n * steps, -1) for get in (
            lambda out: out.actions.continuous, lambda out: out.actions.discrete, lambda out: out.log_prob[:, None],
            lambda out: out.log_prob[:, None] if out.memory is None else out.memory)]
        k, pieces = n * steps // 4, steps // 4
        is_last = np.tile(np.arange(pieces) == pieces - 1, n)
        flat = obs.reshape(-1, 3)
        after = np.roll(flat.reshape(k, 4, 3)[:, 0], -1, axis=0)
        return TrajectoryBatch(
            obs={"obs": flat}, continuous=columns[0], discrete=columns[1], log_prob=columns[2][:, 0], reward=reward.ravel(),
            version=np.full(n * steps, policy.version, np.int64), action_mask=None,
            memory=None if policy.network.memory is None else columns[3], length=np.full(k, 4, np.int32),
            begin=np.tile(np.arange(pieces) * 4, n), next_obs={"obs": after}, next_action_mask=None, terminated=is_last,
            truncated=np.zeros(k, bool), agent_id=np.repeat(np.arange(n), pieces), episode_id=np.repeat(np.arange(n), pieces),
            episode_return=correct.astype(np.float64), episode_length=np.full(n, steps, np.int64),
            episode_lesson=np.zeros(n, np.int64),
        )


def trajectories(obs, next_obs, out: PolicyOutput, reward, version: int, steps: int) -> TrajectoryBatch:
    n, k = len(obs), len(obs) // steps
    return TrajectoryBatch(
        obs={"obs": obs}, continuous=out.actions.continuous, discrete=out.actions.discrete, log_prob=out.log_prob, reward=reward,
        version=np.full(n, version, np.int64), action_mask=None, memory=None, length=np.full(k, steps, np.int32),
        begin=np.zeros(k, np.int64), next_obs={"obs": next_obs}, next_action_mask=None,
        terminated=np.ones(k, bool), truncated=np.zeros(k, bool), agent_id=np.arange(k), episode_id=np.arange(k),
        episode_return=np.zeros(0), episode_length=np.full(k, steps, np.int64),
        episode_lesson=np.zeros(k, np.int64),
    )


def learn(world, updates: int, seed: int = 0, network: dict | None = None, **hyper) -> float:
    """Mean return of the last batch after `updates` updates."""
    rows = getattr(world, "rows", ROWS)
    settings = PPOSettings.model_validate({
        "hyperparameters": {
            "buffer_size": rows, "batch_size": 128, "learning_rate": 0.01, "num_epoch": 4, "beta": 0.001, "initial_std": 0.5,
            **hyper,
        },
        "network_settings": {"hidden_units": 16, "num_layers": 1, "activation": "tanh", **(network or {})},
        "max_steps": 10**9,
    })
    rng = np.random.default_rng(seed)
    ours, arch = settings.hyperparameters, architecture(world.spec, settings.network_settings)
    weights = initial_weights(arch, rng, ours.initial_std, shared_critic=ours.shared_critic)
    trainer = PPOTrainer(world.spec, settings, np.random.SeedSequence(seed), rows, weights)
    policy = Policy(world.spec, settings.network_settings)
    for version in range(updates):
        trainer.published(version)
        policy.set_weights(trainer.policy_weights(), version)
        trainer.process(world.collect(policy, rng))
        assert trainer.is_ready()
        trainer.update()
    policy.set_weights(trainer.policy_weights(), updates)
    return float(world.collect(policy, rng).episode_return.mean())


@pytest.mark.slow
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


MEMORY = {"memory": {"sequence_length": 4, "memory_size": 32}}


@pytest.mark.slow
def test_learns_under_masks():
    """C63: a forbidden choice is never taken, and the best allowed one is learnt; guessing among the allowed ones earns 0.5."""
    world = MaskedBandit()
    assert learn(world, 25) > 0.9
    assert world.illegal == 0


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("shared_critic", [False, True])
def test_remembers(seed, shared_critic):
    """C66: four of seven cues come a sequence before the answer: without the memory handed over, at most 0.72."""
    assert learn(Recall(), 60, seed, MEMORY, shared_critic=shared_critic) > 0.95


@pytest.mark.learning
def test_cannot_remember_without_a_memory():
    """Negative controls: guessing; and a memory that is cleared between the sequences of an episode."""
    assert learn(Recall(), 60) < 0.65
    assert learn(Recall(forgets=True), 60, network=MEMORY) < 0.85


@pytest.mark.learning
@pytest.mark.parametrize("encoder", ["match3", "fully_connected"])
def test_learns_from_images(encoder):
    assert learn(Corner(), 20, network={"vis_encode_type": encoder}, learning_rate=0.003) > 0.95
