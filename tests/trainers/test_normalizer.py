"""Running statistics and the observation normaliser."""

from __future__ import annotations

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from tests.trainers.rollouts import DISCRETE, network_of, random_observations, spec_of
from trainers.architecture import architecture
from trainers.inputs import network_inputs
from trainers.normalizer import CLIP, NormalizerHistory, RunningStatistics, check_finite
from trainers.trainer import TrainerState

SPEC = BehaviorSpec((ObservationSpec("a", (2,)), ObservationSpec("b", (1, 2), "float64")), ActionSpec("discrete", 0, (2,)))


def history_of(spec=SPEC, **network):
    """A history of all observations that can be normalised."""
    return NormalizerHistory(architecture(spec, network_of(normalize=True, **network)))


def observations(rng, n, scale=1.0, shift=0.0):
    return {"a": (rng.normal(size=(n, 2)) * scale + shift).astype(np.float32), "b": rng.normal(size=(n, 1, 2)) * scale + shift}


def test_merge_of_two_batches():
    """C50: {1, 2, 3} then {10, 20} -> mean 7.2, variance 50.96, n 5."""
    statistics = RunningStatistics()
    statistics.update(np.array([1.0, 2, 3]))
    statistics.update(np.array([10.0, 20]))
    assert statistics.count == 5
    assert statistics.mean == pytest.approx(7.2, rel=1e-14)
    assert statistics.variance == pytest.approx(50.96, rel=1e-14)


def test_any_split_into_batches_gives_the_statistics_of_all_rows():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1_000, 3)) * [1, 100, 1e-3] + [0, 50, 1e4]
    statistics = RunningStatistics((3,))
    for part in np.split(rows, np.sort(rng.integers(0, 1_000, 30))):
        statistics.update(part)
    assert statistics.count == 1_000
    np.testing.assert_allclose(statistics.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(statistics.variance, rows.var(axis=0), rtol=1e-9)


@pytest.mark.parametrize("constant", [1800.0, 0.1, -1e6, 3e30])
def test_constant_observation_is_exactly_0(constant):
    """C50."""
    statistics = RunningStatistics((1,))
    x = np.full((37, 1), constant, np.float32)
    for _ in range(10):
        statistics.update(x)
    assert statistics.variance[0] <= (1e-12 * abs(constant)) ** 2
    np.testing.assert_array_equal(statistics.normalized(x), np.zeros((37, 1)))


@pytest.mark.parametrize("offset", [1800.0, 1e6, -1e6])
def test_small_spread_around_a_large_offset(offset):
    """C50: the variance is never negative, nothing is NaN, and the clip holds."""
    rng = np.random.default_rng(1)
    statistics = RunningStatistics((2,))
    for _ in range(10):
        x = offset + rng.uniform(-1e-3, 1e-3, (50, 2))
        statistics.update(x)
        assert (statistics.variance >= 0).all()
        np.testing.assert_allclose(statistics.variance, 1e-6 / 3, rtol=0.5)
        assert (np.abs(statistics.normalized(x)) <= CLIP).all()
    assert (np.abs(statistics.normalized(np.array([[0.0, 1e9]]))) == CLIP).all()


def test_before_the_first_row_nothing_is_changed():
    statistics = RunningStatistics((2,))
    statistics.update(np.empty((0, 2)))
    assert statistics.count == 0
    np.testing.assert_array_equal(statistics.normalized(np.array([[1.5, -2]])), [[1.5, -2]])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_values_that_are_not_finite_are_refused_and_change_nothing(bad):
    """C53: also when only the second observation is bad, and when float32 cannot hold the value."""
    rng = np.random.default_rng(2)
    history = history_of()
    history.update(observations(rng, 10))
    before = history.state()
    for value in (bad, 1e39):
        obs = observations(rng, 5)
        obs["b"][3, 0, 1] = value
        with np.errstate(over="ignore"), pytest.raises(ValueError, match=r"observation 'b', received .* at index \[3, 0, 1\]"):
            history.update(obs)
    assert_same(history.state(), before)


def test_rows_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="Expected rows of shape"):
        RunningStatistics((2,)).update(np.zeros(2))
    with pytest.raises(ValueError, match="Expected observation 'a'"):
        history_of().update({"a": np.zeros((1, 3)), "b": np.zeros((1, 1, 2))})


def test_each_row_is_normalised_with_the_statistics_of_its_version():
    rng = np.random.default_rng(3)
    history, published = history_of(), {}
    for version in (0, 1, 5):
        published[version] = history.publish(version)
        history.update(observations(rng, 100, scale=version + 2.0, shift=3.0 * version))
    obs = observations(rng, 60, scale=3.0)
    version = np.repeat([0, 5, 1, 0, 5], 12)
    result = history.normalize(obs, version).vector
    assert result.dtype == np.float32 and result.shape == (60, 4)
    for i in range(60):
        mean, std = ({k: published[version[i]][f"normalizer/{k}/{part}"] for k in obs} for part in ("mean", "std"))
        parts = [((obs[k][i].astype(np.float32) - mean[k]) / std[k]).ravel() for k in ("a", "b")]
        np.testing.assert_array_equal(result[i], np.clip(np.concatenate(parts), -5, 5))
    np.testing.assert_array_equal(history.normalize(obs, np.full(60, 5)).vector[version == 5], result[version == 5])


def test_publishing_and_normalising_leave_statistics_and_inputs_alone():
    """C53: only `update` changes statistics, and it takes effect with the next version."""
    rng = np.random.default_rng(4)
    history, obs = history_of(), observations(rng, 20, shift=7.0)
    first = history.publish(0)
    history.update(obs)
    copy = {k: v.copy() for k, v in obs.items()}
    for _ in range(1_000):
        history.normalize(obs, np.zeros(20, np.int64))
    assert {s.count for s in history.statistics.values()} == {20}
    np.testing.assert_array_equal(obs["a"], copy["a"])
    np.testing.assert_array_equal(first["normalizer/a/mean"], [0, 0])
    np.testing.assert_array_equal(history.normalize(obs, np.zeros(20, np.int64)).vector[:, :2], np.clip(obs["a"], -5, 5))
    np.testing.assert_allclose(history.publish(1)["normalizer/a/mean"], obs["a"].mean(axis=0), rtol=1e-6)


def test_single_observation_is_normalised_into_a_fresh_array():
    spec = BehaviorSpec((ObservationSpec("obs", (2,)),), SPEC.action)
    history = history_of(spec)
    history.publish(0)
    obs = np.ones((3, 2), np.float32)
    history.normalize({"obs": obs}, np.zeros(3, np.int64)).vector[:] = 9
    np.testing.assert_array_equal(obs, 1)
    assert history.normalize({"obs": obs[:0]}, np.zeros(0, np.int64)).vector.shape == (0, 2)


def test_only_vectors_are_normalised():
    """Choices, flags and images have no statistics and pass as they are, whatever versions the rows are of."""
    spec, rng = spec_of(DISCRETE, observations="dict"), np.random.default_rng(7)
    history, obs = history_of(spec), random_observations(spec, rng, 50, scale=30.0)
    history.publish(0)
    history.update(obs)
    weights = history.publish(1)
    assert weights.keys() == {"normalizer/inner/speed/mean", "normalizer/inner/speed/std"}
    plain = network_inputs(architecture(spec, network_of(normalize=True)), obs)
    version = np.repeat([0, 1], 25)
    for result, rows in ((history.normalize(obs, version), slice(25, None)), (history.normalize_now(obs), slice(None))):
        np.testing.assert_array_equal(result.vector[:, 4:], plain.vector[:, 4:])
        np.testing.assert_array_equal(result.images[0], obs["eye"])
        speed = obs["inner/speed"][rows].astype(np.float32)
        expected = (speed - weights["normalizer/inner/speed/mean"]) / weights["normalizer/inner/speed/std"]
        np.testing.assert_allclose(result.vector[rows, :4], expected.reshape(-1, 4), rtol=1e-6)
    assert history.state().tensors["normalizer_history/mean"].shape == (2, 4)


def test_one_observation_is_left_out():
    """``observations.{name}.normalize: false``: no statistics, and its columns come after the others."""
    history = history_of(observations={"a": {"normalize": False}})
    obs = observations(np.random.default_rng(8), 20, shift=50.0)
    history.update(obs)
    result = history.normalize_now(obs).vector
    np.testing.assert_array_equal(result[:, 2:], obs["a"])
    np.testing.assert_allclose(result[:, :2].mean(axis=0), 0.0, atol=1e-4)
    assert history.state().scalars["normalizer_statistics/count"] == {"b": 20}


def test_whole_numbers_are_always_finite():
    """No pass over the pixels of images to find that out."""
    class Loud(np.ndarray):
        def __array_ufunc__(self, *args, **kwargs):
            raise AssertionError("looked at")

    check_finite(np.zeros((2, 3), np.uint8).view(Loud), "pixels")
    with pytest.raises(AssertionError, match="looked at"):
        check_finite(np.zeros((2, 3), np.float32).view(Loud), "numbers")


def test_forgotten_and_unknown_versions_are_refused():
    history = history_of()
    obs = observations(np.random.default_rng(5), 2)
    with pytest.raises(ValueError, match=r"received rows of \[0\]"):
        history.normalize(obs, np.array([0, 0]))
    for version in (0, 1, 2, 3):
        history.publish(version)
        history.update(observations(np.random.default_rng(version), 10, shift=10.0 * version))
    before = history.normalize(obs, np.array([2, 3])).vector
    history.forget_before(2)
    assert history.versions == [2, 3]
    np.testing.assert_array_equal(history.normalize(obs, np.array([2, 3])).vector, before)
    with pytest.raises(ValueError, match=r"Expected rows of versions .* \[2, 3\], received rows of \[1, 4\]"):
        history.normalize(obs, np.array([1, 4]))
    history.forget_before(99)
    assert history.versions == [3]
    with pytest.raises(ValueError, match="Expected a version above 3"):
        history.publish(3)
    with pytest.raises(ValueError, match="Expected one version per row"):
        history.normalize(obs, np.array([3]))


def assert_same(one: TrainerState, two: TrainerState):
    assert one.scalars == two.scalars and one.tensors.keys() == two.tensors.keys()
    for name, tensor in one.tensors.items():
        assert tensor.dtype == two.tensors[name].dtype
        np.testing.assert_array_equal(tensor, two.tensors[name])


def test_state_continues_exactly():
    rng = np.random.default_rng(6)
    history = history_of()
    history.publish(0)
    history.update(observations(rng, 30))
    history.publish(1)
    state = history.state()
    restored = history_of()
    restored.load_state(state)
    more, version = observations(rng, 10), np.repeat([0, 1], 5)
    np.testing.assert_array_equal(restored.normalize(more, version).vector, history.normalize(more, version).vector)
    for h in (history, restored):
        h.update(more)
        h.publish(2)
    assert_same(restored.state(), history.state())
    name = "normalizer_statistics/a/mean"
    assert not np.array_equal(state.tensors[name], history.state().tensors[name])


def test_state_of_other_observations_is_refused():
    other = history_of(BehaviorSpec((ObservationSpec("obs", (2,)),), SPEC.action))
    with pytest.raises(ValueError, match=r"Expected normaliser statistics of \['a', 'b'\], received those of \['obs'\]"):
        history_of().load_state(other.state())
    wider = history_of(BehaviorSpec((ObservationSpec("a", (3,)), SPEC.observations[1]), SPEC.action))
    with pytest.raises(ValueError, match=r"'a' of shape \[2\], received \[3\]"):
        history_of().load_state(wider.state())
