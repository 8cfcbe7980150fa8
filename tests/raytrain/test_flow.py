"""Env managers, credit and trainer loop together, over fakes: progress, lag, nothing lost, the same stream."""

from __future__ import annotations

import numpy as np
import pytest

from tests.raytrain.fake_run import FakeRun
from tests.raytrain.fakes import BEHAVIOR, ScriptedEnv, random_subset, versions_acted


def fake_envs(managers: int, seed: int, asynchronous: bool = True) -> list[ScriptedEnv]:
    return [
        ScriptedEnv(
            num_envs=1 + (i + seed) % 4, length=lambda slot, episode: 2 + (slot + 3 * episode) % 9,
            ready=random_subset(seed + i) if asynchronous else lambda busy: busy,
        )
        for i in range(managers)
    ]


@pytest.mark.parametrize("max_policy_lag", [0, 1, 4])
@pytest.mark.parametrize("managers", [1, 4])
def test_the_lag_that_is_measured_never_exceeds_the_limit(managers: int, max_policy_lag: int) -> None:
    """C01: 20 updates with weights that travel slowly; the lag is read off the rows at each update. Nothing is ever dropped."""
    largest = 0
    speeds = [0.5 + i for i in range(managers)] + [1.0]
    for seed, (delay, capacity) in enumerate([(0, 1), (8, 5)]):
        run = FakeRun(fake_envs(managers, seed), 16, max_policy_lag, delay=delay, speeds=speeds, seed=seed, capacity=capacity)
        run.run_until(lambda trainer=run.trainer: trainer.policy_updates >= 20)
        assert max(run.trainer.lags) <= max_policy_lag
        assert min(run.trainer.rows_learnt) >= 16 and not run.loop.ledger.dropped and run.balance == 0
        for env, policy in zip(run.envs, run.policies):
            versions = versions_acted(env)
            assert versions == sorted(versions) and policy.applied == sorted(set(policy.applied))
        largest = max(largest, *run.trainer.lags)
    assert largest >= min(max_policy_lag, 1)


def test_short_horizons_lose_nothing() -> None:
    """C02: horizon 1, 8 envs, 8,000 steps and more: seen + dropped = produced, exactly; the queue stays bounded."""
    env = ScriptedEnv(num_envs=8, length=lambda slot, episode: 3)
    run = FakeRun([env], buffer_size=40, time_horizon=1, max_steps=8_000, capacity=3, speeds=[5.0, 1.0])
    run.run_until(lambda: run.loop.finished)
    while run.managers[0].advance(0.0):
        pass
    run.loop.advance(0.0)
    run.loop.finish()
    consumed = sum(b.rows for _, b in run.trainer.batches)
    assert 8_000 <= consumed == run.loop.ledger.consumed
    assert consumed + sum(run.loop.ledger.dropped.values()) == run.produced == len(np.concatenate(env.delivered))
    assert run.unshipped == 0 and run.wire.most_waiting <= 3
    rows = np.concatenate([b.obs["obs"] for _, b in run.trainer.batches]).astype(int)
    assert len(np.unique(rows, axis=0)) == consumed, "a row was seen twice"


def test_every_step_is_consumed_once() -> None:
    """Every delivered step of every agent comes to the trainer, once, in order within its agent."""
    run = FakeRun(fake_envs(3, seed=7), buffer_size=30, max_policy_lag=1, time_horizon=5, seed=7)
    run.run_until(lambda: run.trainer.policy_updates >= 30)
    for manager in run.managers:
        for _ in range(1000):
            manager.advance(0.0)
    while run.wire.waiting():
        run.loop.advance(0.0)
        for manager in run.managers:
            manager.advance(0.0)
    for i, env in enumerate(run.envs):
        batches = [b for name, b in run.trainer.batches if name.startswith(f"env-manager-{i}")]
        rows = np.concatenate([b.obs["obs"] for b in batches]).astype(int)
        delivered = np.concatenate(env.delivered)
        for slot in range(env.num_slots[BEHAVIOR]):
            seen = rows[rows[:, 0] == slot]
            assert (seen == delivered[delivered[:, 0] == slot][: len(seen)]).all()
        assert len(delivered) - len(rows) == run.managers[i].status().unshipped[BEHAVIOR]
        lengths = np.concatenate([b.episode_length for b in batches])
        assert set(lengths.tolist()) <= set(range(2, 11)) and len(lengths) > 20


def stream(turns_seed: int) -> list[bytes]:
    """Everything a trainer took in, in order, in a lock-step run of two managers; their turns are drawn with `turns_seed`."""
    run = FakeRun(fake_envs(2, 0, asynchronous=False), 24, max_policy_lag=0, lock_step=True, seed=turns_seed)
    run.run_until(lambda: run.trainer.policy_updates >= 8)
    arrays = [
        (m.encode(), *(b.obs[k].tobytes() for k in sorted(b.obs)), b.discrete.tobytes(), b.version.tobytes(), b.length.tobytes(),
         b.episode_return.tobytes(), b.episode_id.tobytes())
        for m, b in run.trainer.batches
    ]
    return [part for batch in arrays for part in batch]


def test_lock_step_gives_the_same_stream_in_any_order_of_delivery() -> None:
    """Same seed, same bytes, whichever manager is faster; trainer input is sorted by manager and sequence number."""
    expected = stream(0)
    assert len(expected) > 100
    for seed in range(1, 6):
        assert stream(seed) == expected
