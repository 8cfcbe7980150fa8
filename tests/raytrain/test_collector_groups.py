"""Groups from the world to the batch: nothing is lost with a dead team-mate, and a moment of the team is found again (C74)."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace

import numpy as np
import pytest

from envs.gymnasium_env import make_batched_env
from envs.specs import Actions, BehaviorSpec
from raytrain.collector import Collector
from trainers.policy import PolicyOutput
from trainers.trajectory import TrajectoryBatch, concatenate, empty_batch, row_bytes

pytest.importorskip("pettingzoo", reason="the extra pettingzoo is not installed")

COLUMNS = ("group_reward", "env_step", "next_env_step", "group_id", "world_episode", "group_ended", "group_return")
DEATHS = [25, 50, 75, 100]


def collect(
    groups: dict[str, str], env_steps: int = 100, num_envs: int = 1, time_horizon: int = 128, take_every: int = 10_000, leave_out_at: int = -1, **kwargs
) -> tuple[BehaviorSpec, list[TrajectoryBatch]]:
    """What a collector hands out of `env_steps` steps of a world; action 1 where (time + number of the agent) is odd.

    Args:
        take_every: messages after which is taken, besides the end.
        leave_out_at: number of the message that is answered without rows.
    """
    groups = {"PayingAgents": groups} if groups else {}
    env = make_batched_env("tests.envs.agent_worlds:PayingAgents", kwargs, num_envs, "inline", np.random.SeedSequence(1), wait_for_all=True, groups=groups)
    spec = env.behaviors["PayingAgents"]
    collector = Collector(spec, env.num_slots["PayingAgents"], time_horizon, capacity=64)
    env.reset()
    batches, made, message = [], 0, 0
    while True:
        steps = env.poll(60)["PayingAgents"]
        made += steps.env_steps
        collector.record_terminals(steps.terminal)
        collector.record_decisions(steps.decision)
        if made >= env_steps or message % take_every == take_every - 1:
            batches.append(collector.take())
        if made >= env_steps:
            return spec, batches
        seen, n = steps.decision.obs["obs"], len(steps.decision)
        actions = Actions(np.empty((n, 0), np.float32), ((seen[:, 1] + seen[:, 2]) % 2).astype(np.int32)[:, None])
        if message == leave_out_at:
            collector.cut(steps.decision, np.ones(n, bool))
            collector.leave_out(steps.decision)
        else:
            collector.record_actions(steps.decision, PolicyOutput(actions, np.zeros(n, np.float32), None, None), 0)
        env.act("PayingAgents", steps.decision.agent_id, actions)
        message += 1


def by_row(batch: TrajectoryBatch, column: np.ndarray) -> np.ndarray:
    """[K] -> [N]"""
    return np.repeat(column, batch.length)


def test_deaths_one_after_another():
    """C74, C75: 250 agent steps of 100 env steps; a reward after a mate's death reaches the survivors, and the group's return has all of it."""
    pays = [[10, "agent_3", 1.0], [60, "agent_2", 5.0], [100, "agent_0", 9.0]]
    _, (batch,) = collect({"team": "*"}, pays=pays)
    assert batch.rows == 250 and batch.length.tolist() == DEATHS
    assert batch.group_return.tolist() == [15.0] and batch.group_return.dtype == np.float64
    paid = [np.flatnonzero(part).tolist() for part in np.split(batch.group_reward, batch.starts[1:])]
    assert paid == [[9], [9], [9, 59], [9, 59, 99]]
    assert batch.group_reward.sum() == 4 * 1 + 2 * 5 + 9
    np.testing.assert_array_equal(batch.reward, 1.0)
    np.testing.assert_array_equal(batch.total_reward, 1.0 + batch.group_reward)
    assert sorted(batch.episode_return.tolist()) == [25 + 1, 50 + 1, 75 + 6, 100 + 15], "what reached the agent"
    assert batch.group_ended.tolist() == [False, False, False, True] and batch.terminated.all()


@pytest.mark.parametrize("time_horizon", [128, 7])
@pytest.mark.parametrize("take_every", [10_000, 9])
def test_team_mates_of_one_moment_are_found(time_horizon: int, take_every: int):
    """The observation is (episode, step, number of the agent): for every moment of every group all mates alive are there, with what they did."""
    groups = {"red": "agent_[01]", "blue": "agent_[23]"}
    spec, batches = collect(groups, env_steps=440, num_envs=2, time_horizon=time_horizon, take_every=take_every)
    batch = concatenate(batches)
    obs, moment = batch.obs["obs"], (by_row(batch, batch.group_id), by_row(batch, batch.world_episode), batch.env_step)
    np.testing.assert_array_equal(obs[:, 1], batch.env_step)
    np.testing.assert_array_equal(obs[:, 0], moment[1])
    np.testing.assert_array_equal(batch.next_obs["obs"][:, 1], batch.next_env_step)
    seen: dict[tuple, dict[int, tuple[int, int]]] = {}
    for row, key in enumerate(zip(*(column.tolist() for column in moment), strict=True)):
        mates = seen.setdefault(key, {})
        assert int(obs[row, 2]) not in mates, "an agent has one row at a moment"
        mates[int(obs[row, 2])] = (int(obs[row, 1]), int(batch.discrete[row, 0]))
    for copy in range(2):
        for group, members in enumerate(((0, 1), (2, 3))):
            for episode in range(2):
                for step in range(100):
                    alive = [m for m in members if step < DEATHS[m]]
                    expected = {m: (step, (step + m) % 2) for m in alive}
                    assert seen.pop((2 * copy + group, episode, step), {}) == expected
    assert all(episode == 2 for _, episode, _ in seen), "only the episodes that run"
    # What the team saw when one died: the mate's row of the same moment.
    for k in np.flatnonzero(batch.terminated & ~batch.group_ended):
        at = (moment[0] == batch.group_id[k]) & (moment[1] == batch.world_episode[k]) & (batch.env_step == batch.next_env_step[k])
        assert np.count_nonzero(at) == 1 and obs[at][0, 2] == batch.next_obs["obs"][k, 2] + 1
    assert batch.group_ended.sum() == len(batch.group_return) == 8
    assert spec.grouped


def test_parts_are_the_whole():
    """Taken at once or in parts, joined, pickled: the same rows of every trajectory."""
    pays = [[t, "agent_3", float(t)] for t in range(1, 101)]
    spec, (whole,) = collect({"team": "*"}, time_horizon=10, pays=pays)
    _, parts = collect({"team": "*"}, time_horizon=10, take_every=7, pays=pays)
    assert len(parts) > 10
    joined = pickle.loads(pickle.dumps(concatenate([empty_batch(spec), *parts])))
    assert joined.group_return.tolist() == whole.group_return.tolist() == [5050.0]
    for batch in (whole, joined):
        order = np.lexsort((batch.env_step, by_row(batch, batch.agent_id)))
        np.testing.assert_array_equal(batch.group_reward[order], np.concatenate([np.arange(1, death + 1) for death in DEATHS]))
        np.testing.assert_array_equal(batch.env_step[order], np.concatenate([np.arange(death) for death in DEATHS]))
    assert {name: getattr(joined, name).dtype for name in COLUMNS} == {name: getattr(empty_batch(spec), name).dtype for name in COLUMNS}


def test_actions_without_rows_keep_the_group_return():
    """What follows from them is part of the agents' returns and of the group's, and of no row."""
    _, batches = collect({"team": "*"}, leave_out_at=30, pays=[[31, "agent_3", 8.0], [40, "agent_3", 1.0]])
    batch = concatenate(batches)
    assert batch.group_return.tolist() == [9.0] and batch.rows == 250 - 3
    assert batch.group_reward.sum() == 3.0
    assert sorted(batch.episode_return.tolist()) == [25, 59, 84, 109]
    np.testing.assert_array_equal(batch.obs["obs"][:, 1], batch.env_step)


def test_without_groups_nothing_is_carried():
    spec, (batch,) = collect({}, env_steps=100)
    assert [getattr(batch, name) for name in COLUMNS] == [None] * len(COLUMNS)
    assert batch.total_reward is batch.reward
    grouped = replace(spec, grouped=True)
    assert spec == grouped, "what is seen and done is the same"
    assert row_bytes(grouped) == row_bytes(spec) + 4 + 8
    assert BehaviorSpec.from_json(grouped.to_json()).grouped and not BehaviorSpec.from_json(spec.to_json()).grouped
    saved = {key: value for key, value in spec.to_json().items() if key != "grouped"}
    assert not BehaviorSpec.from_json(saved).grouped, "saved before there were groups"
    none = empty_batch(grouped)
    assert {f.name for f in fields(none) if getattr(none, f.name) is None} == {"action_mask", "memory", "next_action_mask"}
