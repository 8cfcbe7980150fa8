import json
from types import SimpleNamespace

import numpy as np
import pytest

from raytrain.stats import CUMULATIVE_REWARD, Summary
from raytrain.stop import StopConditions


def conditions(**settings):
    rules = {"reward": None, "episodes": 3, "plateau_summaries": None, "plateau_delta": 0.0, "wall_time_s": None}
    return StopConditions(SimpleNamespace(**(rules | settings)))


def summary(mean, step=0):
    return Summary("Walker", step, {} if mean is None else {CUMULATIVE_REWARD: mean}, 0 if mean is None else 1, 0, 0.0)


def test_mean_return_needs_all_its_episodes():
    stop = conditions()
    stop.episodes(np.array([1.0, 2.0]))
    assert stop.mean_return is None
    stop.episodes(np.array([6.0]))
    assert stop.mean_return == 3.0
    stop.episodes(np.array([10.0, 20.0]))
    assert stop.mean_return == 12.0


def test_reward_ends_the_run_with_a_sentence():
    stop = conditions(reward=475)
    stop.episodes(np.array([500.0, 500.0]))
    assert stop.reason(0.0) is None
    stop.episodes(np.array([428.9]))
    assert stop.reason(0.0) == "mean return 476.3 of the last 3 episodes reached stop.reward=475"


def test_reward_counts_the_first_episodes_alone_only_when_they_are_enough():
    stop = conditions(reward=-10, episodes=1)
    assert stop.reason(0.0) is None
    stop.episodes(np.array([-10.5]))
    assert stop.reason(0.0) is None
    stop.episodes(np.array([-10.0]))
    assert "mean return -10 of the last 1 episodes" in stop.reason(0.0)


@pytest.mark.parametrize("sizes", [[8], [1] * 8, [3, 5], [0, 7, 0, 1]])
def test_the_way_episodes_are_packed_changes_nothing(sizes):
    returns = np.array([0.0, 3.0, 3.0, 3.0, 0.0, 0.0, 1.0, 2.0])  # the goal is met on the way and lost again
    stop = conditions(reward=3.0)
    for part in np.split(returns, np.cumsum(sizes)[:-1]):
        stop.episodes(part)
    assert stop.mean_return == 3.0, "episodes after the one that ended the run are left out"
    assert stop.reason(0.0) == "mean return 3 of the last 3 episodes reached stop.reward=3"


def test_window_means_agree_with_a_slow_loop():
    returns = np.random.default_rng(1).normal(size=200)
    slow = [float(np.mean(returns[i - 6 : i + 1])) for i in range(6, 200)]
    for goal, expected in [(max(slow) - 1e-9, True), (max(slow) + 1e-9, False)]:
        stop = conditions(reward=goal, episodes=7)
        for part in np.split(returns, [2, 50, 51, 120]):
            stop.episodes(part)
        assert (stop.reason(0.0) is not None) == expected


def test_a_plateau_ends_the_run():
    stop = conditions(plateau_summaries=2, plateau_delta=1.0)
    for step, mean in enumerate([10.0, 12.0, None, 12.9, None]):
        stop.summary(summary(mean, step * 100))
        assert stop.reason(0.0) is None
    stop.summary(summary(5.0, 500))
    assert stop.reason(0.0) == (
        "mean return has not risen by more than stop.plateau_delta=1 above 12.0 (step 100) in 2 summaries (stop.plateau_summaries=2)"
    )


def test_a_rise_starts_the_plateau_anew():
    stop = conditions(plateau_summaries=2)
    for mean in [10.0, 9.0, 11.0, 11.0]:
        stop.summary(summary(mean))
    assert stop.reason(0.0) is None


def test_wall_time_ends_the_run():
    stop = conditions(wall_time_s=3600.0)
    assert stop.reason(3599.9) is None
    assert stop.reason(3605.0) == "3,605 s of training reached stop.wall_time_s=3600"


def test_the_first_reason_stays():
    stop = conditions(reward=1.0, episodes=1, wall_time_s=10.0)
    stop.episodes(np.array([2.0]))
    first = stop.reason(20.0)
    assert first.startswith("mean return")
    stop.episodes(np.array([-5.0]))
    assert stop.reason(30.0) == first


def test_nothing_set_never_ends():
    stop = conditions()
    stop.episodes(np.full(10, 1e9))
    stop.summary(summary(1e9))
    assert stop.reason(1e9) is None


def test_state_goes_through_json_and_continues():
    stop, resumed = conditions(reward=4.0, plateau_summaries=3), conditions(reward=4.0, plateau_summaries=3)
    stop.episodes(np.array([1.0, 5.0, 2.0]))
    stop.summary(summary(5.0, 100))
    stop.summary(summary(4.0, 200))
    resumed.load_state(json.loads(json.dumps(stop.state())))
    assert resumed.mean_return == stop.mean_return
    for one in (stop, resumed):
        one.summary(summary(4.0, 300))
        assert one.reason(0.0) is None
        one.summary(summary(4.0, 400))
    assert resumed.reason(0.0) == stop.reason(0.0) is not None


def test_a_smaller_window_keeps_the_newest_returns():
    stop, resumed = conditions(), conditions(episodes=2)
    stop.episodes(np.array([1.0, 2.0, 4.0]))
    resumed.load_state(stop.state())
    assert resumed.mean_return == 3.0


def test_a_run_that_reached_its_goal_ends_at_once_when_it_goes_on():
    """Unless the goal has been raised or taken away."""
    stop = conditions(reward=3.0)
    stop.episodes(np.array([0.0, 3.0, 3.0, 3.0, 0.0]))
    for reward, ends in ((3.0, True), (3.5, False), (None, False)):
        again = conditions(reward=reward)
        again.load_state(stop.state())
        assert (again.reason(0.0) is not None) == ends


def test_every_return_is_kept_once():
    """Before there are enough of them, and with batches of none, one or more than the window."""
    stop, all_returns = conditions(reward=1e9, episodes=4), []
    assert stop.mean_return is None
    for part in ([1.0], [], [2.0, 3.0], [4.0], [5.0], [], [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]):
        stop.episodes(np.array(part))
        all_returns += part
        assert stop.state()["returns"] == all_returns[-4:]
        assert stop.mean_return == (np.mean(all_returns[-4:]) if len(all_returns) >= 4 else None)


def test_lessons_before_the_last_end_no_run():
    """What an easy lesson returned is shown, and counts neither for the goal nor for a plateau."""
    stop = conditions(reward=10.0, episodes=2, plateau_summaries=1)
    stop.episodes(np.array([20.0, 20.0]), in_last_lesson=False)
    stop.summary(summary(20.0, 100))
    stop.summary(summary(20.0, 200))
    assert stop.reason(0.0) is None and stop.mean_return == 20.0
    again = conditions(reward=10.0, episodes=2)
    again.load_state(stop.state())
    for one in (stop, again):
        one.episodes(np.array([12.0]))
        assert one.reason(0.0) is None and one.mean_return is None, "nothing of the lesson before is left"
        one.episodes(np.array([9.0]))
        assert "reached stop.reward=10" in one.reason(0.0)
