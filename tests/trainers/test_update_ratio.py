"""Updates owed for agent steps: exact for every ratio, never a burst."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from trainers.update_ratio import UpdateRatio


def test_one_update_for_every_20_steps():
    """15 steps → none, 21 → one, 26 → still that one, 41 → a second."""
    ratio = UpdateRatio(20)
    assert [ratio.owed(steps, 0) for steps in (0, 15, 20, 21, 26, 40, 41)] == [0, 0, 0, 1, 1, 1, 2]
    assert [ratio.owed(steps, 1) for steps in (21, 26, 40, 41)] == [0, 0, 0, 1]


def test_counting_begins_at_the_origin():
    """B = 100: nothing before B + SU is exceeded."""
    ratio = UpdateRatio(20, origin_steps=100)
    assert [ratio.owed(steps, 0) for steps in (0, 99, 120, 121, 141)] == [0, 0, 0, 1, 2]


@pytest.mark.parametrize("steps_per_update", ["0.1", "0.3", "0.5", "1", "1.5", "3", "20"])
def test_is_exact_over_10000_steps(steps_per_update):
    """C88: the debt at every step is the largest n with steps > SU · n, in exact fractions; 0.1 and 0.3 are none in binary."""
    ratio, exact, n = UpdateRatio(float(steps_per_update)), Fraction(steps_per_update), 0
    for steps in range(10_001):
        while steps > exact * (n + 1):
            n += 1
        assert ratio.owed(steps, 0) == n, steps
    assert abs(n - 10_000 / exact) <= 1


@pytest.mark.parametrize("steps_per_update", [0.1, 0.5, 1.5, 3, 64])
def test_draining_leaves_a_debt_of_at_most_one(steps_per_update):
    """Batches of any size: after what is owed was made, the steps left pay for one update at most."""
    ratio, rng, steps, updates = UpdateRatio(steps_per_update), np.random.default_rng(0), 0, 0
    for _ in range(2_000):
        steps += int(rng.integers(1, 100))
        updates += ratio.owed(steps, updates)
        assert ratio.owed(steps, updates) == 0
        assert 0 < steps - ratio.steps_per_update * updates <= ratio.steps_per_update


def test_steps_behind_the_debt_are_rounded_up():
    assert UpdateRatio(20).steps_owed(65, 0) == 60
    assert UpdateRatio(1.5).steps_owed(5, 0) == 5  # 3 updates, 4.5 steps
    assert UpdateRatio(0.1).steps_owed(1, 0) == 1  # 9 updates, 0.9 steps
    assert UpdateRatio(20).steps_owed(65, 3) == 0


def test_rebasing_forgives_what_was_owed():
    ratio = UpdateRatio(20)
    assert ratio.owed(1_000, 3) == 46
    ratio.rebase(1_000, 3)
    assert [ratio.owed(steps, 3) for steps in (1_000, 1_020, 1_021, 1_041)] == [0, 0, 1, 2]
    assert (ratio.origin_steps, ratio.origin_updates) == (1_000, 3)


def test_updates_ahead_of_the_steps_owe_nothing():
    assert UpdateRatio(20).owed(100, 50) == 0
    assert UpdateRatio(20).steps_owed(100, 50) == 0


def test_measured_ratio_counts_from_the_origin():
    ratio = UpdateRatio(20, origin_steps=100, origin_updates=7)
    assert ratio.measured(180, 7) is None
    assert ratio.measured(180, 11) == 20.0


def test_counts_beyond_2_to_the_53():
    """C55: whole numbers all the way; a float would lose the last step."""
    ratio = UpdateRatio(1)
    assert ratio.owed(2**60 + 1, 0) == 2**60
    assert ratio.owed(2**60 + 1, 2**60 - 1) == 1


@pytest.mark.parametrize("steps_per_update", [0.0, -1.0, float("nan")])
def test_refuses_a_ratio_that_is_not_positive(steps_per_update):
    with pytest.raises(ValueError, match="above 0"):
        UpdateRatio(steps_per_update)
