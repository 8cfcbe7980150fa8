"""Schedules with the numbers of the cases."""

from __future__ import annotations

import pytest

from trainers.schedules import BETA_FLOOR, EPSILON_FLOOR, LEARNING_RATE_FLOOR, Schedule, ppo_schedules, sac_schedules
from trainers.settings import PPOHyperparameters, SACHyperparameters


def test_linear_learning_rate_follows_the_global_step():
    """C24: 3e-4 over 1,000 steps is 1.2e-4 at 600; raising the end to 2,000 moves it to 2.1e-4."""
    assert Schedule("linear", 3e-4, LEARNING_RATE_FLOOR, 1_000).value(600) == pytest.approx(1.2e-4, abs=1e-10)
    assert Schedule("linear", 3e-4, LEARNING_RATE_FLOOR, 2_000).value(600) == pytest.approx(2.1e-4, abs=1e-10)


def test_epsilon_falls_towards_its_floor():
    """C24: 0.2 with floor 0.1 is 0.14 at 600 of 1,000."""
    assert Schedule("linear", 0.2, EPSILON_FLOOR, 1_000).value(600) == pytest.approx(0.14)


@pytest.mark.parametrize("kind, floor, end", [("linear", 0.1, 0.1), ("constant", 0.1, 0.25), ("linear", 0.5, 0.25)])
def test_ends_and_a_floor_above_the_start(kind, floor, end):
    schedule = Schedule(kind, 0.25, floor, 10)
    assert schedule.value(0) == 0.25
    assert schedule.value(10) == schedule.value(11) == end


def test_resumed_sequence_equals_the_uninterrupted_one():
    """C24: a schedule has no state, so a new object continues on the same line."""
    through = [Schedule("linear", 3e-4, LEARNING_RATE_FLOOR, 1_000).value(t) for t in range(0, 1_000, 50)]
    resumed = Schedule("linear", 3e-4, LEARNING_RATE_FLOOR, 1_000)
    assert through[12:] == [resumed.value(t) for t in range(600, 1_000, 50)]


def test_steps_beyond_31_bits():
    """C55: neither an overflow nor a step lost to rounding, and the end holds."""
    t = 2_147_483_740
    assert Schedule("linear", 1.0, 0.0, 2 * t).value(t) == 0.5
    assert Schedule("linear", 1.0, 0.0, t).value(t - 1) > 0.0 == Schedule("linear", 1.0, 0.0, t).value(t)
    assert Schedule("linear", 1.0, 0.1, 1_000).value(t) == 0.1


def test_ppo_schedules_follow_the_learning_rate_unless_told():
    schedules = ppo_schedules(PPOHyperparameters(learning_rate_schedule="constant", beta_schedule="linear"), max_steps=100)
    assert [s.kind for s in schedules] == ["constant", "constant", "linear"]
    assert schedules.beta == Schedule("linear", 5e-3, BETA_FLOOR, 100)
    assert schedules.epsilon.initial == 0.2 and schedules.learning_rate.initial == 3e-4


def test_ppo_schedules_have_an_end_of_their_own():
    schedules = ppo_schedules(PPOHyperparameters(schedule_steps=50), max_steps=100)
    assert {s.steps for s in schedules} == {50}
    assert schedules.epsilon.value(50) == EPSILON_FLOOR


def test_sac_keeps_its_learning_rate_unless_told():
    assert sac_schedules(SACHyperparameters(), max_steps=100).value(100) == 3e-4


def test_sac_learning_rate_falls_over_max_steps_or_steps_of_its_own():
    falling = SACHyperparameters(learning_rate=1e-3, learning_rate_schedule="linear")
    assert sac_schedules(falling, max_steps=100) == Schedule("linear", 1e-3, LEARNING_RATE_FLOOR, 100)
    assert sac_schedules(falling, max_steps=100).value(50) == pytest.approx(5e-4, rel=1e-6)
    shorter = SACHyperparameters(learning_rate=1e-3, learning_rate_schedule="linear", schedule_steps=40)
    assert (
        sac_schedules(shorter, max_steps=100).value(39) > sac_schedules(shorter, max_steps=100).value(40) == LEARNING_RATE_FLOOR
    )
