"""SAC learns tiny tasks without any environment code: the NumPy policy acts, `SACTrainer` learns, in lock-step.

Bandit, MaskedBandit, Corner, Recall: as in test_ppo_bandit; in a hybrid space the reward of the continuous part is paid where the
choice is right.
Lure: one action pays a little at once, another pays more one step later.

Rewards of other rows, the control of on-policy learning, would teach here: replay holds batches of many policies, and those of
better ones have higher rewards in all their rows. The control is a reward of the other sign.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from envs.specs import ActionPart, BehaviorSpec, ObservationSpec, hybrid_action
from tests.learning.test_ppo_bandit import ROWS, SPACES, Corner, MaskedBandit, Recall, bandit_reward, trajectories
from trainers.policy import Policy
from trainers.registry import first_weights, make_trainer, policy_distribution
from trainers.settings import SACSettings
from trainers.trajectory import TrajectoryBatch

ACTIONS = {**SPACES, "hybrid": hybrid_action(ActionPart((i,), SPACES[kind]) for i, kind in enumerate(("box", "discrete")))}


@dataclasses.dataclass
class Bandit:
    """Contextual bandit. What is learnt from is `sign` times the reward; returns are those of the reward itself."""

    kind: str
    sign: float = 1.0
    scale: float = 1.0

    @property
    def spec(self) -> BehaviorSpec:
        return BehaviorSpec((ObservationSpec("obs", (3,)),), ACTIONS[self.kind])

    def collect(self, policy: Policy, rng: np.random.Generator) -> TrajectoryBatch:
        """Episodes of one step."""
        context = rng.integers(0, 3, ROWS)
        obs = (self.scale * np.eye(3)[context]).astype(np.float32)
        out = policy.act({"obs": obs}, rng)
        kinds = ("box", "discrete") if self.kind == "hybrid" else (self.kind,)
        reward = np.prod([bandit_reward(kind, context, out) for kind in kinds], axis=0)
        batch = trajectories(obs, obs, out, np.float32(self.sign) * reward, policy.version, steps=1)
        batch.episode_return = reward.astype(np.float64)
        return batch


class Lure:
    """First action 0 pays 0.3 at once; first action 2 pays 1 after the second step, whose observation is the first action."""

    spec = Bandit("discrete").spec

    def collect(self, policy: Policy, rng: np.random.Generator) -> TrajectoryBatch:
        """Episodes of two steps, rows of an episode side by side."""
        first = np.zeros((ROWS // 2, 3), np.float32)
        begun = policy.act({"obs": first}, rng).actions.discrete
        second = np.eye(3, dtype=np.float32)[begun[:, 0]]
        obs = np.stack([first, second], axis=1).reshape(ROWS, 3)
        out = policy.act({"obs": obs}, rng)
        out.actions.discrete[::2] = begun
        reward = np.zeros(ROWS, np.float32)
        reward[::2] = 0.3 * (begun[:, 0] == 0)
        reward[1::2] = begun[:, 0] == 2
        batch = trajectories(obs, np.zeros((ROWS // 2, 3), np.float32), out, reward, policy.version, steps=2)
        batch.episode_return = (reward[::2] + reward[1::2]).astype(np.float64)
        return batch


def learn(world, rounds: int, seed: int = 0, network: dict | None = None, gamma: float = 0.99, **hyper) -> float:
    """Mean return of the last batch after `rounds` of 512 rows (of `Recall` 2,048) and an update for each 16, with entropies near
    those of the best policy."""
    spec = world.spec
    settings = SACSettings.model_validate({
        "hyperparameters": {
            "batch_size": 128, "buffer_size": 20_000, "buffer_init_steps": ROWS, "steps_per_update": 16, "learning_rate": 0.01,
            "init_entcoef": 0.1, "target_entropy_scale": 0.1, "tau": 0.05, **hyper,
        },
        "network_settings": {"hidden_units": 16, "num_layers": 1, "activation": "tanh", **(network or {})},
        "reward_signals": {"extrinsic": {"gamma": gamma}},
    })
    rng = np.random.default_rng(seed)
    trainer = make_trainer(spec, settings, np.random.SeedSequence(seed), ROWS, first_weights(spec, settings, rng))
    policy = Policy(spec, settings.network_settings, policy_distribution(settings))
    rows = 0
    for version in range(rounds + 1):
        trainer.published(version)
        policy.set_weights(trainer.policy_weights(), version)
        batch = world.collect(policy, rng)
        rows += len(batch.reward)
        trainer.process(batch)
        while trainer.is_ready():
            trainer.update()
    # With a memory they are counted from the first sequence on, which comes with the first batch.
    begin = len(batch.reward) if policy.architecture.memory else ROWS
    assert trainer.updates == (rows - begin - 1) // 16
    policy.set_weights(trainer.policy_weights(), rounds + 1)
    return float(world.collect(policy, rng).episode_return.mean())


@pytest.mark.slow
def test_learns_a_bandit():
    """Guessing earns 0.33. The control, rewards of the other sign, makes for the wrong actions."""
    assert learn(Bandit("discrete"), 15) > 0.9
    assert learn(Bandit("discrete", sign=-1.0), 15) < 0.1


@pytest.mark.slow
def test_learning_rate_0_does_not_learn():
    """C23: the same loop, and nothing moves."""
    assert learn(Bandit("discrete"), 15, learning_rate=0.0) < 0.45


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("kind", "threshold"), [("discrete", 0.93), ("multi_discrete", 0.9), ("box", 0.75), ("hybrid", 0.7)])
def test_learns_every_action_space(kind, threshold, seed):
    """Guessing earns 0.33, 0.17, 0.2 and 0.07; the entropy that is kept costs a few per cent of 1."""
    assert learn(Bandit(kind), 40, seed) > threshold


@pytest.mark.learning
@pytest.mark.parametrize("kind", ACTIONS)
def test_nothing_but_learning_reaches_the_thresholds(kind):
    """Negative controls: the first policy, and one that is paid for what is wrong."""
    assert learn(Bandit(kind), 3, learning_rate=0.0) < 0.45
    assert learn(Bandit(kind, sign=-1.0), 40) < 0.1


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("n_step", [1, 2])
def test_learns_from_a_reward_that_comes_later(n_step, seed):
    """Through the value of the next observation, or the second reward itself. The best return is 1."""
    assert learn(Lure(), 40, seed, n_step=n_step) > 0.9


@pytest.mark.learning
def test_without_a_bootstrap_the_lure_wins():
    """Negative control: with γ near 0 what comes a step later counts nothing, and the return is that of the lure, 0.3."""
    assert learn(Lure(), 40, gamma=1e-6) < 0.4


@pytest.mark.learning
@pytest.mark.parametrize("hyper", [
    {"n_step": 3}, {"max_grad_norm": 0.5}, {"learn_entcoef": False, "init_entcoef": 0.02}, {"learning_rate_schedule": "linear"},
], ids=lambda hyper: next(iter(hyper)))
def test_learns_with_every_option(hyper):
    assert learn(Bandit("multi_discrete"), 40, **hyper) > 0.9


@pytest.mark.learning
def test_learns_with_state_dependent_exploration():
    assert learn(Bandit("box"), 40, use_sde=True, sde_initial_log_std=-1.0) > 0.75


@pytest.mark.learning
def test_learns_through_the_normaliser():
    """Observations of 1,000, which saturate every unit otherwise."""
    assert learn(Bandit("discrete", scale=1_000.0), 40, network={"normalize": True}) > 0.9


# -- masks, images, memory ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_learns_under_masks():
    """C63: a forbidden choice is never taken, and the best allowed one is learnt; guessing among the allowed ones earns 0.5."""
    world = MaskedBandit()
    assert learn(world, 15) > 0.9
    assert world.illegal == 0


@pytest.mark.learning
@pytest.mark.parametrize("encoder", ["match3", "fully_connected"])
def test_learns_from_images(encoder):
    """Guessing earns 0.5."""
    assert learn(Corner(), 10, network={"vis_encode_type": encoder}, learning_rate=0.003) > 0.95


MEMORY = {"memory": {"sequence_length": 8, "memory_size": 32}}


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_remembers(seed):
    """C66: the cue comes in one trajectory and the answer in the next; guessing earns 0.5. A sequence, from whose start on the
    critics remember, must reach from one to the other."""
    assert learn(Recall(latest=0), 12, seed, MEMORY) > 0.9


@pytest.mark.learning
def test_cannot_remember_without_a_memory():
    """Negative control: guessing."""
    assert learn(Recall(latest=0), 12) < 0.65


@pytest.mark.learning
def test_critics_cannot_remember_what_came_before_their_sequence():
    """Negative control: with sequences of 4 no critic has ever seen the cue of what it values."""
    assert learn(Recall(latest=0), 12, network={"memory": {"sequence_length": 4, "memory_size": 32}}) < 0.65
