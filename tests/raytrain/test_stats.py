import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from raytrain import stats
from raytrain.stats import CUMULATIVE_REWARD, EPISODE_LENGTH, REDUCTIONS, StatsBuffer

METRICS_PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def summarize(buffer):
    return buffer.summarize("Walker", step=1000, longest_episode=7, elapsed_s=1.5)


def test_values_are_averaged_by_weight():
    buffer = StatsBuffer()
    buffer.add("Policy/Entropy", 1.0, weight=3)
    buffer.add("Policy/Entropy", np.float32(5.0))
    assert summarize(buffer).values == {"Policy/Entropy": 2.0}


def test_put_keeps_the_newest_and_add_max_the_largest():
    buffer = StatsBuffer()
    for value in (-3, -1, -2):
        buffer.put("Policy/Learning Rate", value)
        buffer.add_max("Policy/Policy Lag Max", value)
    assert summarize(buffer).values == {"Policy/Learning Rate": -2.0, "Policy/Policy Lag Max": -1.0}


def test_add_all_reduces_each_tag_in_its_own_way():
    buffer = StatsBuffer()
    for value in (4.0, 2.0):
        buffer.add_all({"Losses/Value Loss": value, "Policy/Beta": value, "Policy/Policy Lag Max": value})
    assert summarize(buffer).values == {"Losses/Value Loss": 3.0, "Policy/Beta": 2.0, "Policy/Policy Lag Max": 4.0}


def test_episodes_give_mean_return_length_and_spread():
    buffer = StatsBuffer()
    buffer.add_episodes(np.array([1.0, 3.0]), np.array([10, 20]), {"Policy/Extrinsic Reward": np.array([2.0, 6.0])})
    buffer.add_episodes([8.0], [60], {"Policy/Extrinsic Reward": [16.0]})
    summary = summarize(buffer)
    assert summary.values == {CUMULATIVE_REWARD: 4.0, EPISODE_LENGTH: 30.0, "Policy/Extrinsic Reward": 8.0}
    assert summary.episodes == 3
    assert summary.reward_std == pytest.approx(np.std([1, 3, 8]))


def test_without_an_episode_there_is_no_environment_tag():
    """C42: neither NaN nor 0 stands for episodes that did not happen."""
    buffer = StatsBuffer()
    buffer.add("Policy/Entropy", 0.5)
    buffer.add_episodes(np.empty(0), np.empty(0, np.int64))
    summary = summarize(buffer)
    assert summary.values == {"Policy/Entropy": 0.5}
    assert (summary.episodes, summary.longest_episode, summary.reward_std) == (0, 7, None)


@pytest.mark.parametrize("method", ["add", "put", "add_max"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("-inf")])
def test_what_is_not_a_number_is_refused_by_name(method, value):
    """C42: no NaN reaches a file."""
    buffer = StatsBuffer()
    with pytest.raises(ValueError, match="Losses/Policy Loss"):
        getattr(buffer, method)("Losses/Policy Loss", value)
    assert summarize(buffer).values == {}


def test_a_return_that_is_not_a_number_is_refused_by_name():
    with pytest.raises(ValueError, match=CUMULATIVE_REWARD):
        StatsBuffer().add_episodes([1.0, float("nan")], [5, 5])


def test_arrays_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=rf"2 values for '{EPISODE_LENGTH}'"):
        StatsBuffer().add_episodes([1.0, 2.0], [5])


def test_one_tag_has_one_reduction():
    buffer = StatsBuffer()
    buffer.add("Policy/Entropy", 1.0)
    with pytest.raises(ValueError, match="'mean' and is now 'latest'"):
        buffer.put("Policy/Entropy", 1.0)


def test_a_weight_of_zero_is_refused():
    with pytest.raises(ValueError, match="weight above 0"):
        StatsBuffer().add("Policy/Entropy", 1.0, weight=0)


def test_a_summary_empties_the_buffer():
    buffer = StatsBuffer()
    buffer.add("Policy/Entropy", 1.0)
    buffer.put("Policy/Beta", 1.0)
    buffer.add_episodes([1.0], [1])
    summarize(buffer)
    again = summarize(buffer)
    assert (again.values, again.episodes, again.reward_std) == ({}, 0, None)


def test_a_summary_crosses_processes():
    buffer = StatsBuffer()
    buffer.add_episodes([1.0, 2.0], [1, 2])
    summary = summarize(buffer)
    assert pickle.loads(pickle.dumps(summary)) == summary


def documented_tags():
    """Tag -> how it is reduced, from the tables of the metrics page."""
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \|", METRICS_PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {tag: reduction.strip() for tag, _unit, reduction in rows}


def test_the_metrics_page_says_how_tags_are_reduced():
    page = documented_tags()
    constants = {value for name, value in vars(stats).items() if name.isupper() and isinstance(value, str)}
    assert constants | REDUCTIONS.keys() <= page.keys()
    words = {tag: reduction for tag, reduction in page.items() if not reduction.startswith(("mean", "of one evaluation"))}
    assert words == {tag: word for tag, word in REDUCTIONS.items() if tag in page}
