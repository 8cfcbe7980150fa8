"""SAC as a trainer: the contract, when it learns, what it takes from replay, and what a resumed run goes on with."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from tests.trainers.contract import TRAJECTORIES, Driver, TrainerContract, same_tensors, through_json
from tests.trainers.rollouts import (
    ACTIONS,
    BOTH,
    BOX,
    CUT,
    DISCRETE,
    HYBRID,
    MASKED_DISCRETE,
    MASKED_HYBRID,
    MASKED_MULTI_DISCRETE,
    TERMINATED,
    TRUNCATED,
    network_of,
    policy_of,
    rollout,
    spec_of,
)
from trainers import sac_batches
from trainers.registry import first_weights, make_trainer, policy_distribution
from trainers.sac import SACTrainer
from trainers.sac_batches import SACRows, SACSequences
from trainers.sac_networks import LOG_ALPHA
from trainers.settings import BehaviorSettings, SACSettings
from trainers.trainer import TrainerState
from trainers.trajectory import TrajectoryBatch

BATCH, STEPS_PER_UPDATE, INIT_STEPS = 16, 8, 32
slow = pytest.mark.slow  # programs of images and of recurrent networks take long to compile


def settings_of(
    normalize: bool = False, memory: bool = False, strength: float = 1.0, gamma: float = 0.9, max_steps: int = 1_000, **hyper
) -> SACSettings:
    """Networks as in test_sac_update. The ring of 100 frames wraps in most tests."""
    return SACSettings.model_validate({
        "hyperparameters": {
            "batch_size": BATCH, "buffer_size": 100, "buffer_init_steps": INIT_STEPS, "steps_per_update": STEPS_PER_UPDATE,
            "learning_rate": 0.01, "save_replay_buffer": True, **hyper,
        },
        "network_settings": network_of(memory, normalize=normalize),
        "reward_signals": {"extrinsic": {"gamma": gamma, "strength": strength}},
        "max_steps": max_steps,
    })


def trainer_of(spec: BehaviorSpec, settings: BehaviorSettings, seed: int = 0) -> SACTrainer:
    weights = first_weights(spec, settings, np.random.default_rng(seed))
    return make_trainer(spec, settings, np.random.SeedSequence(seed), 100, weights)


def driver_of(action: ActionSpec = BOX, seed: int = 0, observations: str = "vector", **changes) -> Driver:
    spec, settings = spec_of(action, observations=observations), settings_of(**changes)
    return Driver(trainer_of(spec, settings, seed), spec, settings.network_settings, seed, policy_distribution(settings))


def resumed(d: Driver, state: TrainerState | None = None, **changes) -> SACTrainer:
    """Another trainer with the state of `d` (or `state`), as it comes out of a checkpoint."""
    trainer = trainer_of(d.spec, settings_of(**changes), seed=99)
    trainer.load_state(through_json(state or d.trainer.state()))
    return trainer


def feed(d: Driver, steps: int, trainer: SACTrainer | None = None) -> None:
    """`steps` agent steps, one at a time, each an episode."""
    for _ in range(steps):
        (trainer or d.trainer).process(rollout(d.policy, d.rng, [1]), "manager")


def drain(trainer: SACTrainer) -> list[int]:
    """All updates that are owed: how many each call made."""
    made = []
    while trainer.is_ready():
        before = trainer.updates
        trainer.update()
        made.append(trainer.updates - before)
    return made


def learnt_from(trainer: SACTrainer) -> list[SACRows | SACSequences]:
    """The rows of every later call, in the list returned."""
    rows, update = [], trainer._program.update
    trainer._program.update = lambda r, *rest: rows.append(r) or update(r, *rest)
    return rows


def without_learning(trainer: SACTrainer) -> list[SACRows | SACSequences]:
    """As `learnt_from`, but nothing is learnt (and nothing compiled): for what happens around it."""
    rows = []
    names = ("q1_loss", "q2_loss", "policy_loss", "entropy", "actor_gradient_norm", "critic_gradient_norm", "value/extrinsic")
    trainer._program.update = lambda r, *_: rows.append(r) or dict.fromkeys(names, 0.0)
    return rows


# -- the contract -----------------------------------------------------------------------------------------------------


class SACContract(TrainerContract):
    distribution = "squashed_gaussian"
    counters = ("agent_steps", "updates", "policy_updates", "origin_steps", "origin_updates")

    def settings(self, **hyperparameters):
        return settings_of(**hyperparameters)

    def make(self, spec, settings, seed):
        return trainer_of(spec, settings, seed)


class TestBox(SACContract):
    action = BOX


class TestDiscrete(SACContract):
    action = DISCRETE


class TestMultiDiscrete(SACContract):
    action = ACTIONS["multi_discrete"]


@slow
class TestHybrid(SACContract):
    action = HYBRID


@slow
class TestStateDependentExploration(SACContract):
    """With n-step returns, a fraction of steps per update and a falling learning rate."""

    action = BOX
    distribution = "gsde"

    def settings(self, **hyperparameters):
        more = {"use_sde": True, "n_step": 3, "steps_per_update": 2.5, "learning_rate_schedule": "linear", **hyperparameters}
        return settings_of(max_steps=2**33, **more)


class TestNormalizer(SACContract):
    action = BOX

    def settings(self, **hyperparameters):
        return settings_of(normalize=True, **hyperparameters)

    def test_state_without_statistics_is_refused(self):
        """C25: a checkpoint of a run without normaliser does not go on with an empty one."""
        d = self.driver()
        plain = trainer_of(d.spec, settings_of()).state()
        for load in (d.trainer.load_state, d.trainer.load_weights):
            with pytest.raises(ValueError, match=r"network_settings\.normalize: true"):
                load(plain)


@slow
class TestRecurrent(SACContract):
    """With masks, and everything that is observed: images, vectors, choices, flags; trajectories cut every third step."""

    action = MASKED_HYBRID
    observations = "dict"
    horizon = 3

    def settings(self, **hyperparameters):
        return settings_of(normalize=True, memory=True, **hyperparameters)


@slow
class TestImages(SACContract):
    action = MASKED_DISCRETE
    observations = "image"


@slow
class TestRecurrentStateDependentExploration(SACContract):
    action = HYBRID
    distribution = "gsde"
    horizon = 4

    def settings(self, **hyperparameters):
        return settings_of(memory=True, **{"use_sde": True, "n_step": 3, **hyperparameters})


# -- when it learns ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_first_update_comes_after_the_warm_up():
    """B = 32, SU = 8: nothing up to step 40, the first update at 41, the second at 49."""
    d = driver_of()
    wanted, updates = [], []
    for _ in range(50):
        wanted.append(d.trainer.rows_wanted)
        feed(d, 1)
        drain(d.trainer)
        updates.append(d.trainer.updates)
    assert wanted == [*range(32, 0, -1), *[0] * 18]
    assert [updates.index(n) + 1 for n in (1, 2)] == [41, 49]
    assert updates[-1] == 2
    assert d.trainer.notices == []


def test_rows_held_are_those_behind_the_updates_owed():
    d = driver_of()
    held = []
    for _ in range(3):
        feed(d, 20)
        held.append((d.trainer.agent_steps, d.trainer.rows_held, d.trainer.is_ready()))
    assert held == [(20, 0, False), (40, 0, False), (60, 24, True)]
    assert drain(d.trainer) == [3]
    assert d.trainer.rows_held == 0


@pytest.mark.parametrize("items", [[1] * 40, [40], [15, 25]], ids=len)
def test_first_full_batch_brings_no_burst(items):
    """SU = 1 without warm-up: 15 updates would be owed by the first full batch, at step 16. Counting begins there: 23 at step 40,
    whatever the items, and one line says so."""
    d = driver_of(buffer_init_steps=0, steps_per_update=1)
    assert d.trainer.rows_wanted == BATCH
    made = []
    for item in items:
        d.trainer.process(rollout(d.policy, d.rng, [item]), "manager")
        assert d.trainer.is_ready() == (d.trainer.agent_steps > BATCH + 1 + len(made))
        made += drain(d.trainer)
    assert sum(made) == d.trainer.updates == 23
    assert d.trainer.rows_wanted == 0
    assert len(d.trainer.notices) == 1
    assert "agent step 16 on" in d.trainer.notices[0]
    assert d.trainer.state().scalars["origin_steps"] == 16


def test_warm_up_as_long_as_a_batch_is_nothing_to_tell():
    d = driver_of(buffer_init_steps=BATCH, steps_per_update=1)
    feed(d, 20)
    assert drain(d.trainer) == [3]
    assert d.trainer.notices == []


@pytest.mark.parametrize(("steps_per_update", "steps", "made"), [(0.1, 10, [32, 32, 32, 3]), (0.5, 30, [32, 27]), (1.5, 60, [32, 7])])
def test_a_call_makes_32_updates_at_most(steps_per_update, steps, made):
    """And what is left of the debt after draining is one update at most."""
    d = driver_of(steps_per_update=steps_per_update)
    feed(d, INIT_STEPS)
    d.trainer.process(rollout(d.policy, d.rng, [steps]), "manager")
    rows = learnt_from(d.trainer)
    assert drain(d.trainer) == made
    assert [len(r) for r in rows] == [BATCH * n for n in made]
    assert 0 < steps - steps_per_update * d.trainer.updates <= steps_per_update
    assert d.trainer.policy_updates == len(made)


@pytest.mark.parametrize(("bytes_per_call", "made"), [(10**9, [6]), (2_000, [2, 2, 2]), (1, [1] * 6)])
def test_calls_of_fewer_updates_where_batches_are_large(monkeypatch, bytes_per_call, made):
    """As with images; what is owed stays what it is. One batch is 896 bytes here."""
    monkeypatch.setattr(sac_batches, "_BYTES_PER_CALL", bytes_per_call)
    d = driver_of(steps_per_update=1)
    rows = without_learning(d.trainer)
    feed(d, INIT_STEPS + 7)
    assert drain(d.trainer) == made
    assert [len(r) for r in rows] == [BATCH * n for n in made]
    assert d.trainer.updates == 6


def episode(d: Driver, begin: int, steps: int, end: int = CUT, number: int = 0) -> TrajectoryBatch:
    """`steps` agent steps of an episode from step `begin` on."""
    batch = rollout(d.policy, d.rng, [begin + steps], [end])
    return dataclasses.replace(
        batch, **{name: getattr(batch, name)[begin:] for name in ("continuous", "discrete", "log_prob", "reward", "version", "memory")},
        obs={name: x[begin:] for name, x in batch.obs.items()}, length=np.array([steps], np.int32), begin=np.array([begin]),
        episode_id=np.array([number]),
    )


def test_without_a_sequence_updates_wait():
    """Episodes that are known from step 5 to 7 only: in none is there a step that is a multiple of 4, where a sequence may begin.
    Nothing is owed for that time, however long; counting begins with the first sequence, and one line says so."""
    d = driver_of(memory=True, buffer_init_steps=0, steps_per_update=1)
    without_learning(d.trainer)
    for number in range(15):
        d.trainer.process(episode(d, 5, 2, number=number), "manager")
        assert (d.trainer.is_ready(), d.trainer.rows_held) == (False, 0)
        assert d.trainer.rows_wanted == max(1, BATCH - d.trainer.agent_steps)
    d.trainer.process(episode(d, 0, 3, number=99), "manager")
    assert (d.trainer.agent_steps, d.trainer.rows_wanted, d.trainer.rows_held) == (33, 0, 0)
    assert d.trainer.notices == ["updates are counted from agent step 33 on, where the replay buffer had a first sequence and a full batch"]
    d.trainer.process(episode(d, 5, 5, number=100), "manager")
    assert drain(d.trainer) == [4]


def test_sequences_may_be_overwritten_and_come_again():
    """A ring of 20 frames and episodes known from their middle on: waiting once more, without a burst later."""
    d = driver_of(memory=True, buffer_init_steps=0, steps_per_update=1, buffer_size=20, batch_size=8)
    without_learning(d.trainer)
    d.trainer.process(episode(d, 0, 16), "manager")
    updates = sum(drain(d.trainer))
    for number in range(1, 12):
        d.trainer.process(episode(d, 5, 2, number=number), "manager")
    assert (d.trainer.is_ready(), d.trainer.rows_wanted) == (False, 1)
    before = d.trainer.updates
    d.trainer.process(episode(d, 0, 4, number=50), "manager")
    assert drain(d.trainer) == []
    d.trainer.process(episode(d, 0, 4, number=51), "manager")
    assert drain(d.trainer) == [3]
    assert (before, d.trainer.updates) == (updates, updates + 3)


# -- what it learns from ----------------------------------------------------------------------------------------------


def counted(end: int, rewards: list[float] | None = None, action: ActionSpec = BOX) -> TrajectoryBatch:
    """Five steps of one agent whose observation counts them, from 0 to the final 5."""
    d = driver_of(action)
    batch = rollout(d.policy, d.rng, [5], [end], rewards=rewards or [0.0] * 5)
    batch.obs["obs"][:, 0], batch.next_obs["obs"][:, 0] = np.arange(5), 5.0
    return batch


def rows_from(batch: TrajectoryBatch, **changes) -> SACRows:
    """What is drawn from a replay of nothing but `batch`, 256 rows."""
    d = driver_of(buffer_init_steps=0, steps_per_update=1, **changes)
    d.trainer.process(batch, "manager")
    return d.trainer._sample(256)[0]


@pytest.mark.parametrize(("end", "last"), [(CUT, 0.9), (TRUNCATED, 0.9), (TERMINATED, 0.0), (BOTH, 0.0)])
def test_ends_of_trajectories(end, last):
    """C34, C35: the true final observation, 5, and γ where a time limit or the horizon cut it; 0 where the task ended, which wins."""
    rows = rows_from(counted(end))
    t = rows.vector[:, 0]
    assert set(t) == {0.0, 1.0, 2.0, 3.0, 4.0}
    np.testing.assert_array_equal(rows.next_vector[:, 0], t + 1.0)
    assert rows.bootstrap.shape == rows.reward.shape == (256, 1)
    np.testing.assert_allclose(rows.bootstrap[:, 0], np.where(t == 4.0, last, 0.9), rtol=1e-6)


@pytest.mark.parametrize("end", [TRUNCATED, TERMINATED])
def test_n_step_returns_shorten_at_the_end(end):
    """Three steps, k = min(3, 5 − t): Σ γ^i r, the observation k steps on, and γ^k, or 0 if the task ended within them."""
    rewards = [1.0, 2.0, 4.0, 8.0, 16.0]
    rows = rows_from(counted(end, rewards), n_step=3, strength=0.5)
    t = rows.vector[:, 0].astype(int)
    k = np.minimum(3, 5 - t)
    np.testing.assert_array_equal(rows.next_vector[:, 0], t + k)
    expected = [0.5 * sum(0.9**i * rewards[s + i] for i in range(n)) for s, n in zip(t, k, strict=True)]
    np.testing.assert_allclose(rows.reward[:, 0], expected, rtol=1e-6)
    np.testing.assert_allclose(rows.bootstrap[:, 0], np.where((end == TERMINATED) & (t + k == 5), 0.0, 0.9**k), rtol=1e-6)
    assert rows.bootstrap.dtype == rows.reward.dtype == np.float32


def test_actions_come_as_they_were_taken():
    batch = counted(CUT, action=HYBRID)
    rows = rows_from(batch, action=HYBRID)
    t = rows.vector[:, 0].astype(int)
    np.testing.assert_array_equal(rows.continuous, batch.continuous[t])
    np.testing.assert_array_equal(rows.discrete, batch.discrete[t])
    assert np.abs(rows.continuous).max() < 1.0


def test_an_update_learns_from_sequences():
    """Batches of 16 rows: four sequences of 4 rows after a burn-in of 1, whose rows bootstrap from the observation k steps on."""
    d = driver_of(HYBRID, memory=True, buffer_init_steps=0, n_step=2, strength=0.5)
    batch = rollout(d.policy, d.rng, [3, 9], [TERMINATED, TRUNCATED], horizon=4)
    batch.obs["obs"][:, 0] = [*range(3), *range(100, 109)]
    batch.next_obs["obs"][:, 0] = [3, 104, 108, 109]
    d.trainer.process(batch, "manager")
    for _ in range(2):
        d.trainer.process(d.collect(), "manager")
    rows = without_learning(d.trainer)
    assert drain(d.trainer) == [3]
    assert [len(r) for r in rows] == [3 * 4]
    drawn = d.trainer._sample(300)[0]
    first, t = drawn.vector[:, 0, 0], np.arange(5)
    for start, known, ends in ((0.0, 3, True), (100.0, 5, False), (104.0, 5, False)):
        i = np.flatnonzero(first == start)[0]
        np.testing.assert_array_equal(drawn.vector[i, :, 0], start + np.minimum(np.arange(6), known))
        counts = t < known if start in (0.0, 100.0) else (t >= 1) & (t < known)
        np.testing.assert_array_equal(drawn.weight[i], counts)
        k = np.minimum(2, known - t)[:known]
        np.testing.assert_array_equal(drawn.steps[i, :known], k)
        np.testing.assert_allclose(drawn.bootstrap[i, :known, 0], np.where(ends & (t[:known] + k == known), 0.0, 0.9**k), rtol=1e-6)
        row = int(start) if start < 100 else int(start) - 97
        rewards = 0.5 * batch.reward[row : row + known]
        expected = [rewards[s] + (0.9 * rewards[s + 1] if s + 1 < known else 0.0) for s in range(known)]
        np.testing.assert_allclose(drawn.reward[i, :known, 0], expected, rtol=1e-6)
        np.testing.assert_array_equal(drawn.memory[i], batch.memory[row])
        assert drawn.begins[i] == (start in (0.0, 100.0))


def test_images_stay_as_they_came():
    """C15, C60: one copy of each frame in its own dtype, and what is drawn is what was stored, byte by byte."""
    d = driver_of(MASKED_DISCRETE, observations="image", buffer_init_steps=0)
    batch = d.collect()
    d.trainer.process(batch, "manager")
    held = d.trainer._replay._data["obs/eye"]
    assert (held.dtype, held.shape) == (np.uint8, (100, 6, 5, 3))
    rows = d.trainer._sample(64)[0]
    assert rows.vector.shape == (64, 0)
    by_reward = {reward: row for row, reward in enumerate(batch.reward.tolist())}
    at = [by_reward[reward] for reward in rows.reward[:, 0].tolist()]
    assert rows.images[0].dtype == rows.next_images[0].dtype == np.uint8
    np.testing.assert_array_equal(rows.images[0], batch.obs["eye"][at])
    np.testing.assert_array_equal(rows.action_mask, batch.action_mask[at])
    last = batch.starts + batch.length - 1
    for images, masks, row in zip(rows.next_images[0], rows.next_action_mask, at, strict=True):
        k = np.flatnonzero(last == row)
        expected = (batch.next_obs["eye"][k[0]], batch.next_action_mask[k[0]]) if len(k) else (batch.obs["eye"][row + 1], batch.action_mask[row + 1])
        np.testing.assert_array_equal(images, expected[0])
        np.testing.assert_array_equal(masks, expected[1])


@pytest.mark.parametrize("column", ["obs", "next_obs", "reward"])
@pytest.mark.parametrize("normalize", [False, True])
def test_values_that_are_not_finite_are_refused(column, normalize):
    """C53, C54: by name and index, before they are counted or touch statistics, replay or weights."""
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


def test_observation_beyond_float32_reaches_neither_statistics_nor_replay():
    """1e300 is finite as it comes, and infinite as the networks would see it."""
    spec, settings = BehaviorSpec((ObservationSpec("obs", (3,), "float64"),), BOX), settings_of(normalize=True)
    d = Driver(trainer_of(spec, settings), spec, settings.network_settings, distribution="squashed_gaussian")
    before, batch = d.trainer.state(), d.collect()
    batch.obs["obs"][3, 1] = 1e300
    with np.errstate(over="ignore"), pytest.raises(ValueError, match=r"statistics of observation 'obs'.* inf"):
        d.trainer.process(batch, "manager")
    assert same_tensors(before.tensors, d.trainer.state().tensors)
    assert d.trainer.agent_steps == 0


@pytest.mark.parametrize(("action", "memory", "column"), [(MASKED_DISCRETE, False, "action_mask"), (BOX, True, "memory")])
def test_trajectories_that_lack_something_are_refused(action, memory, column):
    """Before they are counted or touch statistics."""
    d = driver_of(action, memory=memory, normalize=True)
    batch = d.collect()
    setattr(batch, column, None)
    with pytest.raises(ValueError, match="received some without"):
        d.trainer.process(batch)
    assert d.trainer.agent_steps == 0
    assert d.trainer.state().scalars["normalizer_statistics/count"] == {"obs": 0}


# -- the normaliser ---------------------------------------------------------------------------------------------------


def test_every_network_sees_the_same_normalised_observations():
    """C49, C51: observations × (1000, 1, 1); policy, critics and targets get them with the statistics that go out with the weights:
    those of now, also for rows that came before them."""
    d = driver_of(normalize=True)
    factor = np.array([1_000.0, 1.0, 1.0], np.float32)
    seen = []
    for _ in range(3):
        batch = rollout(d.policy, d.rng, TRAJECTORIES)
        batch.obs["obs"] *= factor
        batch.next_obs["obs"] *= factor
        d.trainer.process(batch, "manager")
        seen += [batch.obs["obs"], batch.next_obs["obs"]]
    rows, weights = learnt_from(d.trainer), d.trainer.policy_weights()
    drain(d.trainer)
    raw = np.concatenate(seen)
    known = np.clip((raw - weights["normalizer/obs/mean"]) / weights["normalizer/obs/std"], -5.0, 5.0)
    for inputs in (rows[0].vector, rows[0].next_vector):
        distance = np.abs(inputs[:, None] - known[None]).max(axis=2).min(axis=1)
        assert distance.max() < 1e-5
        assert 0.5 < inputs.std(axis=0).min() <= inputs.std(axis=0).max() < 2.0
    first = np.concatenate(seen[::2])
    np.testing.assert_allclose(weights["normalizer/obs/mean"], first.mean(axis=0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(weights["normalizer/obs/std"], first.std(axis=0), rtol=1e-4)


def test_statistics_count_every_row_once():
    """C53: the rows taken in, however often they are drawn, looked at or published."""
    d = driver_of(normalize=True, steps_per_update=0.5)
    for _ in range(3):
        d.update()
    assert d.trainer.updates > d.rows
    assert d.trainer.state().scalars["normalizer_statistics/count"] == {"obs": d.rows}


# -- resuming ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_alpha_and_optimizer_are_restored():
    """C22: α is what it was, not init_entcoef, and the next update is that of the run that was never stopped."""
    d = driver_of(HYBRID)
    for _ in range(3):
        d.update()
    trainer = resumed(d)
    alpha = d.trainer._program.alpha()
    assert (np.abs(alpha - 1.0) > 0.02).all()
    np.testing.assert_allclose(trainer._program.alpha(), alpha, atol=1e-6)
    rows = d.trainer._sample(BATCH)[0]
    for one in (d.trainer, trainer):
        one._program.update(rows, 0.01, np.random.default_rng(0))
    for of in ("weights", "targets"):
        assert same_tensors(getattr(d.trainer._program, of)(), getattr(trainer._program, of)())


def test_replay_is_restored():
    """C30: as many rows, and the same batch from the same random numbers."""
    d = driver_of()
    for _ in range(4):
        d.update()
    trainer = resumed(d)
    assert trainer._replay.rows == d.trainer._replay.rows > 60
    one, two = (t._sample(64)[0] for t in (d.trainer, trainer))
    for field in ("vector", "next_vector", "continuous", "discrete", "reward", "bootstrap"):
        np.testing.assert_array_equal(getattr(one, field), getattr(two, field))
    assert trainer.notices == []
    assert trainer.rows_wanted == 0


def test_checkpoint_after_a_resume_is_not_the_old_one():
    """C29: three updates later weights differ from those loaded, and the new state gives those of the trainer."""
    d = driver_of()
    d.update()
    saved = through_json(d.trainer.state())
    trainer = resumed(d)
    for _ in range(3):
        feed(d, 20, trainer)
        drain(trainer)
    again = through_json(trainer.state())
    assert not np.array_equal(again.tensors["actor/mean/kernel"], saved.tensors["actor/mean/kernel"])
    assert same_tensors(resumed(d, again).policy_weights(), trainer.policy_weights())


def test_without_its_replay_a_run_warms_up_again():
    """C30: the loaded policy acts (500 actions are its own, not uniform), one line says so, and updates begin after B + SU new steps:
    never more than the new steps owe."""
    d = driver_of(save_replay_buffer=False)
    for _ in range(10):
        d.update()
    assert not any(name.startswith("replay/") for name in d.trainer.state().tensors)
    trainer = resumed(d, save_replay_buffer=False)
    steps, updates = trainer.agent_steps, trainer.updates
    assert (steps, updates) == (d.trainer.agent_steps, d.trainer.updates)
    assert same_tensors(trainer.policy_weights(), d.trainer.policy_weights())
    obs = {"obs": np.random.default_rng(1).standard_normal((500, 3)).astype(np.float32)}
    loaded = policy_of(d.spec, d.network, trainer.policy_weights(), distribution="squashed_gaussian")
    ours, theirs = (p.act(obs, np.random.default_rng(2)).actions.continuous for p in (loaded, d.policy))
    np.testing.assert_array_equal(ours, theirs)
    assert len(trainer.notices) == 1
    assert "no replay buffer (save_replay_buffer: true saves it): the first 32 agent steps fill a new one" in trainer.notices[0]
    assert (trainer.rows_wanted, trainer.rows_held, trainer.is_ready()) == (INIT_STEPS, 0, False)
    for new in range(1, 80):
        feed(d, 1, trainer)
        drain(trainer)
        assert trainer.updates - updates == max(0, -(-(new - INIT_STEPS) // STEPS_PER_UPDATE) - 1), new
    assert trainer.agent_steps == steps + 79


def test_without_replay_and_warm_up_a_full_batch_must_come():
    """B = 0, batch 16, SU 1: rebased at the load, and once more where the batch is full."""
    d = driver_of(save_replay_buffer=False, buffer_init_steps=0, steps_per_update=1)
    for _ in range(3):
        d.update()
    trainer = resumed(d, save_replay_buffer=False, buffer_init_steps=0, steps_per_update=1)
    updates = trainer.updates
    assert trainer.rows_wanted == BATCH
    trainer.process(rollout(d.policy, d.rng, [20]), "manager")
    assert sum(drain(trainer)) == trainer.updates - updates == 3
    assert len(trainer.notices) == 2


@pytest.mark.parametrize("steps_per_update", [1, 0.1])
def test_changed_steps_per_update_brings_no_burst(steps_per_update):
    """8 → 1 after 96 steps would owe 57 updates at once; counted from here on it owes one for each new step, but the last."""
    d = driver_of()
    for _ in range(2):
        d.update()
    trainer = resumed(d, steps_per_update=steps_per_update)
    updates = trainer.updates
    assert not trainer.is_ready()
    assert trainer.notices == [f"steps_per_update 8 (before) → {steps_per_update:g} (now): updates are counted from here on"]
    trainer.process(rollout(d.policy, d.rng, [10]), "manager")
    drain(trainer)
    assert trainer.updates - updates == round(10 / steps_per_update) - 1
    assert resumed(d, steps_per_update=8.0).notices == []



def test_changed_steps_per_update_keeps_a_warm_up_that_is_not_over():
    d = driver_of()
    feed(d, 20)
    trainer = resumed(d, steps_per_update=1)
    assert trainer.rows_wanted == INIT_STEPS - 20
    feed(d, 13, trainer)
    assert not trainer.is_ready()
    feed(d, 1, trainer)
    assert drain(trainer) == [1]


def test_interrupted_warm_up_goes_on():
    """Saved at step 20 of 32 with its replay: the first update comes at 41, as if nothing had been."""
    d = driver_of()
    feed(d, 20)
    trainer = resumed(d)
    assert (trainer.rows_wanted, trainer._replay.rows) == (12, 20)
    feed(d, 20, trainer)
    assert not trainer.is_ready()
    feed(d, 1, trainer)
    assert drain(trainer) == [1]


@pytest.mark.parametrize("changes", [{"num_layers": 2}, {"use_sde": True}], ids=["more layers", "other distribution"])
def test_state_that_fits_in_part_changes_nothing(changes):
    """C23: also where all tensors of this network are in it, with right shapes, among others."""
    d = driver_of()
    settings = settings_of(**{k: v for k, v in changes.items() if k == "use_sde"})
    if "num_layers" in changes:
        settings = settings.model_copy(update={"network_settings": settings.network_settings.model_copy(update=changes)})
    state, before = trainer_of(d.spec, settings, 1).state(), d.trainer.state()
    for load in (d.trainer.load_state, d.trainer.load_weights):
        with pytest.raises(ValueError, match="do not fit"):
            load(state)
        assert same_tensors(d.trainer.state().tensors, before.tensors)


# -- what it reports --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [BOX, DISCRETE, HYBRID], ids=["box", "discrete", "hybrid"])
def test_statistics(action):
    """C24: the learning rate follows agent steps. Coefficients of the continuous part and the mean of the branches."""
    d = driver_of(action, max_steps=128, learning_rate_schedule="linear")
    stats = d.update()
    continuous, branches = action.continuous_size > 0, len(action.discrete_branches)
    assert d.trainer.agent_steps == 64
    assert stats["Policy/Learning Rate"] == pytest.approx(0.005, rel=1e-6)
    assert stats["Policy/Steps Per Update"] == pytest.approx(32 / 3)  # 3 of the 4 that 32 steps pay for; the last is not exceeded yet
    assert stats["Policy/Replay Rows"] == d.trainer._replay.rows == 64
    alpha = d.trainer._program.alpha()
    if continuous:
        assert stats["Policy/Continuous Entropy Coeff"] == alpha[0]
    if branches:
        assert stats["Policy/Discrete Entropy Coeff"] == pytest.approx(alpha[continuous:].mean())
    assert stats.keys() - {"Policy/Continuous Entropy Coeff", "Policy/Discrete Entropy Coeff"} == {
        "Losses/Q1 Loss", "Losses/Q2 Loss", "Losses/Policy Loss", "Policy/Entropy", "Policy/Learning Rate", "Policy/Steps Per Update",
        "Policy/Actor Gradient Norm", "Policy/Critic Gradient Norm", "Policy/Replay Rows", "Policy/Extrinsic Value Estimate",
    }
    assert ("Policy/Continuous Entropy Coeff" in stats, "Policy/Discrete Entropy Coeff" in stats) == (continuous, branches > 0)


def test_entropy_of_the_first_policy():
    """Nearly uniform: ln 3; an update more or less does not matter at rate 0."""
    stats = driver_of(DISCRETE, learning_rate=0.0).update()
    assert stats["Policy/Entropy"] == pytest.approx(np.log(3), abs=1e-3)


@slow
def test_entropy_is_that_of_the_rows_that_count():
    """C67: the first policy is nearly uniform over what is allowed: Σ ln n over the branches, averaged over the rows that count,
    padding and burn-in left out."""
    d = driver_of(MASKED_MULTI_DISCRETE, memory=True, learning_rate=0.0)
    rows = learnt_from(d.trainer)
    stats = d.update()
    allowed = np.stack([part.sum(axis=-1) for part in np.split(rows[0].action_mask[:, :-1], [2], axis=-1)], axis=-1)
    most = np.split(np.log(allowed).sum(axis=-1), len(rows[0]) // 4)  # by update: 4 sequences
    weight = np.split(rows[0].weight, len(rows[0]) // 4)
    assert 0.3 < rows[0].weight.mean() < 0.9
    expected = np.mean([of_rows[counts > 0].mean() for of_rows, counts in zip(most, weight, strict=True)])
    assert stats["Policy/Entropy"] == pytest.approx(expected, abs=2e-3)
    assert abs(expected - np.mean(most)) > 0.01


def test_update_that_breaks_keeps_the_trainer_as_it_was():
    """C54: the error names what broke; weights, targets, optimizer and counters are those of before."""
    d = driver_of()
    d.update()
    batch = rollout(d.policy, d.rng, [90])
    batch.reward[:] = 1e30
    d.trainer.process(batch)
    before = d.trainer.state()
    with pytest.raises(FloatingPointError, match="q1 loss"):
        d.trainer.update()
    after = d.trainer.state()
    assert same_tensors(before.tensors, after.tensors)
    assert all(before.scalars[counter] == after.scalars[counter] for counter in ("updates", "policy_updates", "adam_step"))


@pytest.mark.slow
def test_coefficient_is_not_learnt_where_told():
    """As the run that is resumed had learnt it."""
    d = driver_of(HYBRID)
    d.update()
    trainer = resumed(d, learn_entcoef=False, max_grad_norm=0.1)
    before = trainer.state().tensors[LOG_ALPHA]
    trainer.process(d.collect(), "manager")
    assert drain(trainer)
    np.testing.assert_array_equal(trainer.state().tensors[LOG_ALPHA], before)
