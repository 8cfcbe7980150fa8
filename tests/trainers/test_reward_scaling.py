"""Reward scaling against a loop over single steps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from trainers.reward_scaling import RewardScaler
from trainers.trajectory import TrajectoryBatch, empty_batch

SPEC = BehaviorSpec((ObservationSpec("obs", (1,)),), ActionSpec("discrete", 0, (2,)))
GAMMA = 0.9


def batch_of(trajectories) -> TrajectoryBatch:
    """Trajectories given as (agent, episode, rewards, end), end in "", "terminated", "truncated"."""
    empty = empty_batch(SPEC)
    return dataclasses.replace(
        empty,
        reward=np.concatenate([np.empty(0), *[t[2] for t in trajectories]]).astype(np.float32),
        length=np.array([len(t[2]) for t in trajectories], np.int32),
        agent_id=np.array([t[0] for t in trajectories], np.int64),
        episode_id=np.array([t[1] for t in trajectories], np.int64),
        terminated=np.array([t[3] == "terminated" for t in trajectories], bool),
        truncated=np.array([t[3] == "truncated" for t in trajectories], bool),
    )


class SlowScaler:
    """Engstrom et al. 2020, algorithm 1, one reward at a time, with the batch's rewards divided at its end."""

    def __init__(self):
        self.running, self.returns = {}, []

    def scale(self, trajectories, manager):
        for agent, episode, rewards, end in trajectories:
            key = (manager, agent, episode)
            for r in np.asarray(rewards, np.float32):
                self.running[key] = GAMMA * self.running.get(key, 0.0) + float(r)
                self.returns.append(self.running[key])
            if end:
                del self.running[key]
        return np.concatenate([t[2] for t in trajectories]) / np.sqrt(np.var(self.returns) + 1e-8)


def random_batches(rng, batches, slots):
    """Batches in which every slot adds 0 to several trajectories that continue or end its episode, slots mixed at random."""
    episode, following = list(range(slots)), slots
    for _ in range(batches):
        trajectories = []
        for slot in rng.integers(0, slots, 2 * slots).tolist():
            end = str(rng.choice(["", "", "terminated", "truncated"]))
            trajectories.append((slot, episode[slot], rng.normal(size=rng.integers(1, 9)), end))
            if end:
                episode[slot], following = following, following + 1
        yield trajectories


def test_scaled_rewards_agree_with_the_slow_loop():
    rng = np.random.default_rng(0)
    scaler, slow = RewardScaler(GAMMA), SlowScaler()
    streams = {m: random_batches(rng, 8, 5) for m in ("manager-0", "manager-1")}
    for _ in range(8):
        for manager, stream in streams.items():
            trajectories = next(stream)
            expected = slow.scale(trajectories, manager)
            result = scaler.scale(batch_of(trajectories), manager)
            assert result.dtype == np.float32
            np.testing.assert_allclose(result, expected, rtol=1e-5)
            assert len(scaler) == len(slow.running)
    assert scaler.statistics.count == len(slow.returns)


def test_running_return_continues_across_trajectories_and_ends_with_the_episode():
    scaler = RewardScaler(0.5)
    scaler.scale(batch_of([(0, 0, [4.0], "")]))
    scaler.scale(batch_of([(0, 0, [0.0], "truncated"), (0, 1, [1.0], "")]))
    # Returns 4, then 0.5·4 + 0 = 2, then 1 of the new episode.
    assert scaler.statistics.mean == pytest.approx(7 / 3)
    assert scaler.statistics.variance == pytest.approx(np.var([4, 2, 1]))


def test_same_ids_of_two_managers_are_two_episodes():
    scaler = RewardScaler(0.5)
    scaler.scale(batch_of([(0, 0, [4.0], "")]), "manager-0")
    scaler.scale(batch_of([(0, 0, [2.0], "")]), "manager-1")
    assert scaler.statistics.mean == pytest.approx(3.0)
    assert len(scaler) == 2


def test_agents_that_vanish_do_not_pile_up():
    scaler = RewardScaler(GAMMA)
    for episode in range(100):
        scaler.scale(batch_of([(0, 2 * episode, [1.0], ""), (0, 2 * episode + 1, [3.0], ""), (1, 1_000 + episode, [2.0], "")]))
    assert len(scaler) == 2
    scaler.scale(batch_of([(0, 199, [0.0], "terminated"), (1, 2_000, [0.0], "terminated")]))
    assert len(scaler) == 0


@pytest.mark.parametrize("rewards", [[0.0], [0.1], [1e6]])
def test_returns_without_spread_leave_rewards_as_they_are(rewards):
    """Otherwise the floor of the variance alone would multiply them by 10,000."""
    scaler = RewardScaler(GAMMA)
    for episode in range(20):
        result = scaler.scale(batch_of([(slot, episode, rewards, "terminated") for slot in range(7)]))
        np.testing.assert_array_equal(result, np.repeat(np.float32(rewards), 7))


def test_rewards_are_not_shifted_and_the_batch_is_not_changed():
    batch = batch_of([(0, 0, [1.0, 0.0, -2.0], "terminated")])
    result = RewardScaler(GAMMA).scale(batch)
    np.testing.assert_array_equal(batch.reward, [1, 0, -2])
    assert result[1] == 0.0 and result[2] == -2 * result[0]


def test_empty_batch_changes_nothing():
    scaler = RewardScaler(GAMMA)
    assert scaler.scale(batch_of([])).shape == (0,)
    assert scaler.statistics.count == 0


def test_reward_that_is_not_finite_is_refused_and_changes_nothing():
    """C54."""
    scaler = RewardScaler(GAMMA)
    scaler.scale(batch_of([(0, 0, [1.0, 2.0], "")]))
    before = scaler.state()
    with pytest.raises(ValueError, match=r"received inf at index \[1\]"):
        scaler.scale(batch_of([(0, 0, [1.0, np.inf], "terminated")]))
    after = scaler.state()
    assert after.scalars == before.scalars
    assert all(np.array_equal(after.tensors[name], before.tensors[name]) for name in before.tensors)


def test_state_continues_exactly():
    stream = list(random_batches(np.random.default_rng(1), 6, 4))
    through = RewardScaler(GAMMA)
    for trajectories in stream[:3]:
        through.scale(batch_of(trajectories), "m")
    resumed = RewardScaler(GAMMA)
    resumed.load_state(through.state())
    for trajectories in stream[3:]:
        np.testing.assert_array_equal(resumed.scale(batch_of(trajectories), "m"), through.scale(batch_of(trajectories), "m"))
    assert resumed.state().scalars == through.state().scalars
