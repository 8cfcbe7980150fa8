"""How scripts/benchmark.py counts: counters and episode logs, metered environments, what it reads from a run folder."""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS / "benchmarks" / "adapters")]

import metered
from benchmarks.counters import CounterReader, Episode, Sample, first_reached, rate, value_at
from benchmarks.run_folder import queue_shares, read_run_folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(metered, "DIR", str(tmp_path))
    monkeypatch.setattr(metered, "episodes", metered.Episodes())
    return tmp_path


# -- counters --------------------------------------------------------------------------------------------------------


def test_counters_of_all_processes_are_summed_and_the_earliest_start_counts(tmp_path):
    (tmp_path / "env-11-0-1.cnt").write_bytes(struct.pack("qq", 5, 3_000_000_000))
    (tmp_path / "env-12-0-2.cnt").write_bytes(struct.pack("qq", 7, 2_000_000_000))
    (tmp_path / "env-13-0-3.cnt").write_bytes(struct.pack("qq", 0, 0))  # made, nothing counted
    (tmp_path / "env-14-0-4.cnt").write_bytes(b"")  # made, not sized
    (tmp_path / "upd-11-0-5.cnt").write_bytes(struct.pack("qq", 1, 1_000_000_000))
    reader = CounterReader(tmp_path)
    assert reader.count("env") == (12, 2.0)
    assert reader.count("upd") == (1, 1.0)
    assert reader.count("row") == (0, None)
    assert reader.counting_processes("env") == [11, 12, 13, 14]


def test_a_half_written_episode_waits_for_its_end(tmp_path):
    log = tmp_path / "ep-1-0-1.txt"
    log.write_bytes(b"2000000000 9.0 9\n1000000000 8.0 8\n30000")
    reader = CounterReader(tmp_path)
    assert reader.read_episodes() == 2
    assert reader.episodes == [Episode(1.0, 8.0, 8), Episode(2.0, 9.0, 9)]
    with log.open("ab") as file:
        file.write(b"00000 7.5 7\n")
    assert reader.read_episodes() == 1
    assert reader.episodes[-1] == Episode(3.0, 7.5, 7)
    assert reader.read_episodes() == 0


def test_values_between_samples_are_linear_and_rates_follow():
    samples = [Sample(10.0, env_steps=0), Sample(12.0, env_steps=100), Sample(14.0, env_steps=500)]
    assert value_at(samples, 11.0, "env_steps") == 50
    assert value_at(samples, 13.0, "env_steps") == 300
    assert value_at(samples, 9.0, "env_steps") == 0
    assert value_at(samples, 20.0, "env_steps") == 500
    assert rate(samples, 11.0, 13.0, "env_steps") == 125
    with pytest.raises(ValueError, match="at least one sample"):
        value_at([], 1.0, "env_steps")


def test_solved_is_the_first_full_window_whose_mean_reaches_the_threshold():
    episodes = [Episode(float(i), value, 1) for i, value in enumerate([10, 10, 2, 3, 4, 8, 9])]
    assert first_reached(episodes, 3, 5.0) == 2  # (10 + 10 + 2) / 3; two episodes of 10 are no full window
    assert first_reached(episodes, 3, 5.0, begin=3) == 3  # exactly 5 counts
    assert first_reached(episodes, 3, 5.0, begin=4) == 5
    assert first_reached(episodes, 3, 7.5) is None
    assert first_reached(episodes[:2], 3, 5.0) is None


# -- metered environments --------------------------------------------------------------------------------------------


def test_single_environment_counts_its_steps_and_logs_its_returns(folder):
    env = metered.make_env()
    env.reset(seed=1)
    steps, returns, so_far = 0, [], 0.0
    while len(returns) < 3:
        _, reward, terminated, truncated, _ = env.step(steps % 2)
        steps, so_far = steps + 1, so_far + reward
        if terminated or truncated:
            returns, so_far = [*returns, so_far], 0.0
            env.reset()
    reader = CounterReader(folder)
    assert reader.count("env").total == steps
    assert reader.read_episodes() == 3
    assert [e.episode_return for e in reader.episodes] == returns
    assert sum(e.length for e in reader.episodes) == steps
    assert reader.counting_processes("env") == [os.getpid()]


def test_vector_environment_does_not_count_calls_that_only_reset(folder):
    """Gymnasium's native CartPole resets at the next step: that call is no transition of the environment that resets."""
    env = metered.make_vec_env(num_envs=4)
    env.reset(seed=2)
    real, previous = 0, np.zeros(4, bool)
    for i in range(200):
        _, rewards, terminated, truncated, _ = env.step(np.full(4, i % 2))
        assert not rewards[previous].any()
        real += int((~previous).sum())
        previous = terminated | truncated
    reader = CounterReader(folder)
    reader.read_episodes()
    assert real < 800
    assert reader.count("env").total == real
    assert len(reader.episodes) > 4
    assert all(e.episode_return == e.length for e in reader.episodes)  # CartPole: reward 1 a step


def test_vector_tally_with_reset_in_the_same_step(folder):
    tally = metered.VectorTally(2, resets_at_next_step=False)
    no = np.zeros(2, bool)
    tally.step(np.array([1.0, 2.0]), no, no)
    tally.step(np.array([1.0, 2.0]), np.array([True, False]), no)
    tally.step(np.array([5.0, 2.0]), no, np.array([True, True]))
    reader = CounterReader(folder)
    reader.read_episodes()
    assert reader.count("env").total == 6
    assert sorted(e[1:] for e in reader.episodes) == [(2.0, 2), (5.0, 1), (6.0, 3)]


# -- run folder ------------------------------------------------------------------------------------------------------


def test_queue_share_is_taken_per_component_and_found_at_any_depth(tmp_path):
    def node(total, **children):
        return {"total": total, "count": 1, "self": 0.0, **({"children": children} if children else {})}

    trainer = {**node(10.0, take=node(0.1), update=node(8.0), publish=node(0.2)), "is_parallel": True}
    managers = {**node(20.0, env_step=node(9.0), collect=node(6.0, ship=node(1.0)), ship=node(0.4)), "is_parallel": True}
    tree = {"name": "root", **node(12.0, trainer=trainer, env_managers=managers)}
    assert queue_shares(tree) == pytest.approx([0.0, 0.07, 0.03])
    run_path = tmp_path / "results" / "bench"
    (run_path / "CartPole").mkdir(parents=True)
    (run_path / "timers.json").write_text(json.dumps(tree))
    (run_path / "CartPole" / "metrics.csv").write_text(
        "step,Policy/Policy Lag Mean,Policy/Policy Lag Max,System/Updates per Second\n1,0.5,1.0,100\n2,0.7,1.0,\n3,,,300\n"
    )
    assert read_run_folder(tmp_path) == {
        "queue_percent": 7.0, "policy_lag_max": 1.0, "policy_lag_mean": 0.6, "updates_per_s": 200.0,
    }
    assert read_run_folder(tmp_path / "nothing") == {}
