"""Elo by hand-worked numbers, and the pool of frozen policies."""

from __future__ import annotations

import numpy as np
import pytest

from trainers.self_play import FrozenPolicy, SnapshotPool, expected_score, rating_change, snapshots_in
from trainers.self_play_settings import SelfPlaySettings


def weights(value: float) -> dict[str, np.ndarray]:
    return {"actor/kernel": np.full((2, 2), value, np.float32), "actor/bias": np.full(2, value, np.float32)}


def test_elo_by_the_textbook():
    """C76: 1200 against 1200 won with K 16 is 1208; 1200 beating 1400 gets 12.156, with K 1 0.7597."""
    assert rating_change(1200.0, 1200.0, 1.0, 16.0) == 8.0
    assert rating_change(1200.0, 1400.0, 1.0, 16.0) == pytest.approx(12.156, abs=5e-4)
    assert rating_change(1200.0, 1400.0, 1.0, 1.0) == pytest.approx(0.7597, abs=5e-5)
    assert rating_change(1300.0, 1300.0, 0.5, 16.0) == 0.0
    assert expected_score(1e9, 0.0) == 1.0 and expected_score(0.0, 1e9 / 1e6) == pytest.approx(1 / (1 + 10 ** 2.5))


def test_two_wins_and_a_draw():
    """C76: from 1200 each with K 16 to 1214.914 and 1185.086."""
    a = b = 1200.0
    for score in (1.0, 1.0, 0.5):
        change = rating_change(a, b, score, 16.0)
        a, b = a + change, b - change
    assert (a, b) == (pytest.approx(1214.914, abs=5e-4), pytest.approx(1185.086, abs=5e-4)) and a + b == pytest.approx(2400.0, abs=1e-9)


@pytest.mark.parametrize(("agents", "opponents", "expected"), [(1, 2, 25_000), (2, 1, 100_000), (1, 1, 50_000)])
def test_swaps_per_team_change_give_the_steps(agents, opponents, expected):
    """C77: 200,000 steps and 4 swaps."""
    settings = SelfPlaySettings(team_change=200_000, swaps_per_team_change=4)
    assert settings.steps_per_swap(500_000, agents, opponents) == expected


def test_what_is_not_said_follows():
    assert SelfPlaySettings(save_steps=1000).steps_per_team(500_000) == 5000
    assert SelfPlaySettings().steps_per_team(30_000) == 30_000, "never above max_steps"
    assert SelfPlaySettings().steps_per_swap(1, 1, 1) == 20_000 and SelfPlaySettings(swap_steps=7).steps_per_swap(1, 3, 1) == 7


def test_the_window_holds_the_newest():
    pool = SnapshotPool(3, weights(0))
    assert pool.ids == (0,)
    assert [pool.add(weights(i), 100 * i) for i in range(1, 5)] == [1, 2, 3, 4]
    assert pool.ids == (2, 3, 4) and pool.last_agent_steps == 400
    assert pool.weights(3)["actor/bias"][0] == 3


def test_what_is_played_is_kept_beyond_the_window_and_what_is_not_is_forgotten():
    pool = SnapshotPool(2, weights(0))
    for i in range(1, 4):
        pool.add(weights(i), i)
    assert not pool.keep({1, 3}, FrozenPolicy(weights(9), 9))
    assert pool.weights(1)["actor/bias"][0] == 1
    with pytest.raises(KeyError):
        pool.weights(0)
    assert pool.keep({-1, 3}, FrozenPolicy(weights(9), 9)), "the policy as it is, frozen at a draw"
    assert not pool.keep({-1, 3}, FrozenPolicy(weights(10), 10)), "and not again"
    assert pool.weights(-1)["actor/bias"][0] == 9 and pool.ids == (2, 3)
    with pytest.raises(KeyError):
        pool.weights(1)


def test_a_pool_goes_on_from_its_state():
    pool = SnapshotPool(3, weights(0))
    for i in range(1, 6):
        pool.add(weights(i), 10 * i)
    pool.keep({-2}, FrozenPolicy(weights(7), 55))
    again = SnapshotPool(2, weights(99))
    again.load_state(pool.state())
    assert again.ids == (4, 5), "a smaller window keeps the newest"
    assert again.last_agent_steps == 50 and again.weights(-2)["actor/kernel"][0, 0] == 7
    assert again.add(weights(6), 60) == 6
    frozen = snapshots_in(pool.state())
    assert list(frozen) == [-2, 3, 4, 5] and [one.agent_steps for one in frozen.values()] == [55, 30, 40, 50]
