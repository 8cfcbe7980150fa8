"""What SAC learns from is what was acted: stored rows through the training graph give the log-probs that they were acted with."""

from __future__ import annotations

import numpy as np
import pytest

from envs.specs import ActionSpec
from tests.trainers.rollouts import (
    BOX,
    DISCRETE,
    HYBRID,
    MASKED_HYBRID,
    MULTI_DISCRETE,
    OBSERVATIONS,
    network_of,
    policy_of,
    rollout,
    spec_of,
)
from trainers.networks import policy_layout
from trainers.quiet_tensorflow import tf
from trainers.registry import first_weights
from trainers.sac import SACTrainer
from trainers.sac_features import encode, sequences_seen, transitions_seen
from trainers.settings import SACSettings
from trainers.trajectory import TrajectoryBatch

MASKED_MULTI_DISCRETE = ActionSpec("multi_discrete", discrete_branches=MULTI_DISCRETE.discrete_branches, starts=(0, 0), shape=(2,), masked=True)
SPACES = {"box": BOX, "discrete": DISCRETE, "masked multi_discrete": MASKED_MULTI_DISCRETE, "hybrid": HYBRID, "masked hybrid": MASKED_HYBRID}
LENGTHS = (7, 1, 12, 5, 4, 3, 9)


def trainer_and_rows(
    action: ActionSpec, observations: str, memory: bool, distribution: str = "squashed_gaussian"
) -> tuple[SACTrainer, TrajectoryBatch]:
    """A trainer with weights of ordinary size, so that every input matters, and rows acted with them, cut every third step. Means and σ
    are small enough that tanh keeps the digits of what it squashes."""
    spec = spec_of(action, observations=observations)
    settings = SACSettings.model_validate({
        "hyperparameters": {"batch_size": 16, "buffer_size": 200, "use_sde": distribution == "gsde"}, "network_settings": network_of(memory),
    })
    rng = np.random.default_rng(4)
    weights = first_weights(spec, settings, rng)
    for name in weights:
        if name.startswith("actor/"):
            scale = 0.1 if "/mean/" in name or "/log_std" in name else 0.3
            weights[name] = (weights[name] + scale * rng.standard_normal(weights[name].shape)).astype(np.float32)
    if "actor/log_std/bias" in weights:
        weights["actor/log_std/bias"] -= 1.0
    if distribution == "gsde":
        weights["actor/log_std"] -= 1.0
    trainer = SACTrainer(spec, settings, np.random.SeedSequence(0), weights)
    acting = {name: weights[name] for name in policy_layout(trainer._arch, distribution)}
    batch = rollout(policy_of(spec, settings.network_settings, acting, distribution=distribution), rng, LENGTHS, horizon=3)
    trainer.process(batch, "manager")
    return trainer, batch


def log_probs(trainer: SACTrainer, updates: int, compiled: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of sampled rows, padding left out: rewards (which tell rows apart), log-probs by the training graph, and weights."""
    program, memory = trainer._program, trainer._arch.memory
    rows = trainer._sample(updates * program.draws)[0]
    arrays, graph = program._arrays, program._graph
    arrays.fill(rows, np.random.default_rng(0))
    named, target = (dict(zip(layout, tensors, strict=True)) for layout, tensors in (
        (graph.layout, program._parameters), (graph.target_layout, program._target)))

    def distributions(batch):
        encoded = encode(named, target, batch, graph.arch)
        if memory is None:
            now, _ = transitions_seen(named, encoded, batch, graph.arch)
        else:
            now, _ = sequences_seen(named, target, encoded, batch, graph.arch)
        found = graph.distributions(named, now)
        return [found.log_p] if found.mean is None else [found.log_p, found.mean, found.log_std]

    run = tf.function(distributions, jit_compile=True, autograph=False) if compiled else distributions
    found = []
    for i in range(updates):
        batch = graph.unpacked(tf.constant(arrays.packed[i])) | {k: tf.constant(x[i]) for k, x in arrays.blocks.items()}
        log_p, *gaussian = run(batch)
        rewards = batch["reward"].numpy()
        rewards = rewards.reshape(-1) if memory is None else rewards[:, :-1].reshape(-1)
        actions = [batch[name].numpy() if memory is None else batch[name][:, :-1].numpy() for name in ("continuous", "discrete")]
        continuous, discrete = (x.reshape(len(rewards), x.shape[-1]) for x in actions)
        total = np.zeros(len(rewards))
        if gaussian:
            mean, log_std = (x.numpy().astype(np.float64) for x in gaussian)
            a = continuous.astype(np.float64)
            density = -0.5 * ((np.arctanh(a) - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - a**2)
            total += density.sum(axis=1)
        for b, branch in enumerate(log_p):
            total += np.take_along_axis(branch.numpy(), discrete[:, b : b + 1].astype(int), axis=1)[:, 0]
        found.append((rewards, total))
    rewards, total = (np.concatenate(x) for x in zip(*found, strict=True))
    if memory is None:
        return rewards, total, np.ones(len(rewards))
    is_row = np.arange(rows.weight.shape[1]) < (np.abs(rows.reward[..., 0]) > 0).sum(axis=1)[:, None]
    return rewards[is_row.ravel()], total[is_row.ravel()], rows.weight.ravel()[is_row.ravel()]


def check(trainer: SACTrainer, batch: TrajectoryBatch, updates: int = 16, compiled: bool = False) -> None:
    rewards, found, weight = log_probs(trainer, updates, compiled)
    stored = dict(zip(batch.reward.tolist(), batch.log_prob.tolist(), strict=True))
    np.testing.assert_allclose(found, [stored[reward] for reward in rewards.tolist()], atol=1e-5)
    counted = set(rewards[weight > 0].tolist())
    assert len(counted) == batch.rows if trainer._arch.memory else len(counted) > 0.7 * batch.rows
    assert np.ptp(list(stored.values())) > 0.3, "all rows look alike: nothing is shown"


@pytest.mark.parametrize("memory", [False, True], ids=["feed-forward", "recurrent"])
@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("space", SPACES)
def test_stored_log_probs_come_out_of_the_training_graph(space, observations, memory):
    """C57, C58, C63, C66: every observation, mask and memory is that of its row, also after cuts, in padding's neighbourhood and in
    burn-ins (the actor's memory is stored, so those rows are exact too)."""
    check(*trainer_and_rows(SPACES[space], observations, memory), updates=16 if memory else 8)


@pytest.mark.parametrize("memory", [False, True], ids=["feed-forward", "recurrent"])
def test_state_dependent_exploration(memory):
    """The density is that of the marginal, also of a recurrent policy, whose noise stays for an episode."""
    check(*trainer_and_rows(BOX, "vector", memory, "gsde"), updates=16 if memory else 8)


def test_a_memory_of_another_step_shows():
    """Negative control: memories one row late."""
    trainer, batch = trainer_and_rows(HYBRID, "dict", True)
    frames = trainer._replay._data
    frames["memory"][:] = np.roll(frames["memory"], 1, axis=0)
    with pytest.raises(AssertionError, match="atol=1e-05"):
        check(trainer, batch)


def test_masks_of_another_step_show():
    trainer, batch = trainer_and_rows(MASKED_MULTI_DISCRETE, "vector", False)
    frames = trainer._replay._data
    frames["action_mask"][:] = np.roll(frames["action_mask"], 1, axis=0)
    with pytest.raises(AssertionError, match="atol=1e-05"):
        check(trainer, batch)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [False, True], ids=["feed-forward", "recurrent"])
@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("space", SPACES)
def test_the_same_compiled(space, observations, memory):
    check(*trainer_and_rows(SPACES[space], observations, memory), updates=16 if memory else 8, compiled=True)
