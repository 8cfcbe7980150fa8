"""Environments that die within an env manager: nothing of their episode is used, everything is accounted for, and nobody waits for ever."""

from __future__ import annotations

import random

import numpy as np
import pytest

from envs.specs import Steps
from tests.raytrain.fake_run import FakeRun
from tests.raytrain.fakes import BEHAVIOR, ScriptedEnv


class MortalEnv(ScriptedEnv):
    """Environments of which a busy one dies now and then: its step never comes, and a new episode begins instead.

    Args:
        chance: that the next poll finds a busy one dead.
    """

    def __init__(self, chance: float, seed: int = 0, **arguments) -> None:
        super().__init__(**arguments)
        self._chance, self._dice = chance, random.Random(seed)
        self.killed: list[tuple[int, int]] = []
        """(slot, episode) that never came to an end."""

    def poll(self, timeout_s: float) -> dict[str, Steps]:
        busy = np.flatnonzero(self._busy.reshape(-1, self._agents_per_env).all(axis=1))
        if not len(busy) or self._dice.random() >= self._chance:
            return super().poll(timeout_s)
        env = self._dice.choice(busy.tolist())
        slots = np.arange(env * self._agents_per_env, (env + 1) * self._agents_per_env)
        self.killed += [(int(slot), int(self._episode[slot])) for slot in slots]
        self._busy[slots], self._new[slots] = False, True
        self._episode[slots] += 1
        self._step[slots] = 0
        news = super().poll(timeout_s)
        news[BEHAVIOR].lost = slots.astype(np.int64)
        return news

@pytest.mark.parametrize("lock_step", [False, True])
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("agents", [1, 2])
def test_a_run_goes_on_through_deaths(agents: int, lag: int, lock_step: bool) -> None:
    """C17: 40 updates with an environment dying in every tenth poll; every row that was completed is consumed, dropped or on its way."""
    envs = [MortalEnv(0.1, seed, num_envs=4, agents_per_env=agents) for seed in range(2)]
    run = FakeRun(envs, buffer_size=48, max_policy_lag=lag, lock_step=lock_step)
    run.run_until(lambda: run.loop.version >= 40)
    assert all(len(env.killed) >= 5 for env in envs), "nothing was tried"
    died = sum(m.status().died[BEHAVIOR] for m in run.managers)
    held = sum(header.rows for header, _ in run.loop._intake._round)
    assert died > 0 and run.balance == died + held


def test_nothing_of_a_broken_episode_after_its_last_horizon_is_used() -> None:
    """C17: no trajectory runs over the death, none ends as if the task had; what was cut at a horizon before it may stay."""
    env = MortalEnv(0.2, num_envs=3, length=lambda slot, episode: 20, ending=lambda slot, episode: (True, False))
    run = FakeRun([env], buffer_size=30, time_horizon=4)
    run.run_until(lambda: run.loop.version >= 30)
    killed, ends = set(env.killed), 0
    for _, batch in run.trainer.batches:
        for obs, terminated in zip(np.split(batch.obs["obs"], np.cumsum(batch.length)[:-1]), batch.terminated, strict=True):
            slot, episode, step = obs.astype(int).T
            assert len(set(zip(slot, episode, strict=True))) == 1 and (np.diff(step) == 1).all()
            assert not (terminated and (slot[0], episode[0]) in killed)
            ends += int(terminated)
    assert len(killed) > 5 and ends > 5


def test_many_deaths_only_take_longer() -> None:
    """Environments die in every other poll, strictly on-policy: rounds are collected again and again until they are whole."""
    env = MortalEnv(0.0, num_envs=2)
    run = FakeRun([env], buffer_size=20, max_policy_lag=0)
    run.run_until(lambda: run.loop.version >= 1)
    env._chance = 0.5
    run.run_until(lambda: run.loop.version >= 10)
    assert len(env.killed) > 3
