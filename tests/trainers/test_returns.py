"""Advantages, value targets and their statistics against loops written from the paper."""

from __future__ import annotations

import numpy as np
import pytest

from trainers.returns import explained_variance, generalized_advantages, normalize_advantages


def f32(*values):
    return np.array(values, np.float32)


def advantages_by_eq_16(reward, value, length, terminated, bootstrap, gamma, gae_lambda, ignore_terminated=False):
    """Schulman et al. 2016, eq. 16 term by term: A_t = Σ_l (γλ)^l δ_{t+l} within each trajectory."""
    result, first = [], 0
    for k, n in enumerate(length):
        r = [float(x) for x in reward[first : first + n]]
        v = [float(x) for x in value[first : first + n]]
        v.append(0.0 if terminated[k] and not ignore_terminated else float(bootstrap[k]))
        delta = [r[t] + gamma * v[t + 1] - v[t] for t in range(n)]
        result += [sum((gamma * gae_lambda) ** i * delta[t + i] for i in range(n - t)) for t in range(n)]
        first += n
    return np.array(result)


def ragged(rng, trajectories, longest):
    length = rng.integers(1, longest + 1, trajectories).astype(np.int32)
    rows = int(length.sum())
    return {
        "reward": rng.normal(size=rows).astype(np.float32), "value": rng.normal(size=rows).astype(np.float32), "length": length,
        "terminated": rng.random(trajectories) < 0.4, "bootstrap": rng.normal(size=trajectories).astype(np.float32),
    }


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("longest", [1, 2, 17])
@pytest.mark.parametrize("ignore_terminated", [False, True])
def test_ragged_trajectories_agree_with_the_paper(gae_lambda, longest, ignore_terminated):
    data = ragged(np.random.default_rng(longest), 23, longest)
    expected = advantages_by_eq_16(**data, gamma=0.97, gae_lambda=gae_lambda, ignore_terminated=ignore_terminated)
    advantage, target = generalized_advantages(**data, gamma=0.97, gae_lambda=gae_lambda, ignore_terminated=ignore_terminated)
    assert advantage.dtype == target.dtype == np.float32
    np.testing.assert_allclose(advantage, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(target, expected + data["value"], rtol=1e-5, atol=1e-6)


def test_lambda_0_is_the_td_error_and_lambda_1_the_discounted_return():
    reward, value, bootstrap = f32(1, 2, 3), f32(4, 5, 6), f32(7)
    common = {"length": np.array([3]), "terminated": np.array([False]), "bootstrap": bootstrap, "gamma": 0.5}
    advantage, _ = generalized_advantages(reward, value, gae_lambda=0.0, **common)
    np.testing.assert_allclose(advantage, [1 + 2.5 - 4, 2 + 3 - 5, 3 + 3.5 - 6])
    _, target = generalized_advantages(reward, value, gae_lambda=1.0, **common)
    np.testing.assert_allclose(target, [1 + 0.5 * 2 + 0.25 * 3 + 0.125 * 7, 2 + 0.5 * 3 + 0.25 * 7, 3 + 0.5 * 7])


C35 = {
    "reward": f32(1, 1, 1), "value": f32(2, 2, 2), "length": np.array([3]), "bootstrap": f32(2), "gamma": 0.9, "gae_lambda": 0.8,
}


def test_truncated_end_bootstraps():
    """C35."""
    advantage, target = generalized_advantages(**C35, terminated=np.array([False]))
    np.testing.assert_allclose(advantage, [1.79072, 1.376, 0.8], atol=1e-5)
    np.testing.assert_allclose(target, [3.79072, 3.376, 2.8], atol=1e-5)
    np.testing.assert_array_equal(C35["reward"], [1, 1, 1])


def test_terminated_end_does_not_bootstrap_whatever_truncated_says():
    """C35 and C37: there is no argument for `truncated`, so terminated wins."""
    advantage, target = generalized_advantages(**C35, terminated=np.array([True]))
    np.testing.assert_allclose(advantage, [0.8576, 0.08, -1], atol=1e-5)
    np.testing.assert_allclose(target, [2.8576, 2.08, 1], atol=1e-5)


def test_time_out_uses_the_true_last_observation():
    """C34: V is the step index, episodes of 5 steps end by truncation, and the next episode starts at 0 again."""
    value = f32(*range(5), *range(5))
    advantage, target = generalized_advantages(
        np.zeros(10, np.float32), value, np.array([5, 5]), np.array([False, False]), f32(5, 5), gamma=1.0, gae_lambda=0.0
    )
    assert target[4] == target[9] == 5.0
    np.testing.assert_array_equal(advantage, np.ones(10))


def test_advantages_do_not_leak_across_a_time_out():
    """C36."""
    advantage, _ = generalized_advantages(
        f32(1, 1, 5, 5), f32(2, 2, 2, 2), np.array([2, 2]), np.array([False, True]), f32(10, 99), gamma=0.9, gae_lambda=0.8
    )
    np.testing.assert_allclose(advantage, [6.56, 8.0, 6.96, 3.0], atol=1e-5)


def test_intrinsic_signals_bootstrap_across_a_terminal_step():
    """C102: δ = 0.1 + 0.9·1 − 1 = 0 with the intrinsic rule, −0.9 with the extrinsic one."""
    step = (f32(0.1), f32(1), np.array([1]), np.array([True]), f32(1))
    assert generalized_advantages(*step, gamma=0.9, gae_lambda=0.95, ignore_terminated=True)[0] == pytest.approx(0.0, abs=1e-7)
    assert generalized_advantages(*step, gamma=0.9, gae_lambda=0.95)[0] == pytest.approx(-0.9)


def test_no_trajectories_give_no_rows():
    none = np.empty(0, np.float32)
    advantage, target = generalized_advantages(none, none, np.empty(0, np.int32), np.empty(0, bool), none, 0.99, 0.95)
    assert advantage.shape == target.shape == (0,)


@pytest.mark.parametrize(
    "change",
    [
        {"value": f32(2, 2)},
        {"reward": np.ones((3, 1), np.float32), "value": np.ones((3, 1), np.float32)},
        {"length": np.array([2])},
        {"length": np.array([3, 0]), "terminated": np.array([True, True]), "bootstrap": f32(2, 2)},
        {"bootstrap": f32(2, 2)},
        {"terminated": np.array([[True]])},
    ],
)
def test_shapes_that_do_not_agree_are_refused(change):
    with pytest.raises(ValueError, match="Expected"):
        generalized_advantages(**{**C35, "terminated": np.array([True]), **change})


def test_normalized_advantages():
    """C43: population standard deviation; one row stays as it is; equal rows become 0."""
    np.testing.assert_allclose(normalize_advantages(f32(1, 2, 3, 4)), [-1.34164, -0.44721, 0.44721, 1.34164], atol=1e-5)
    np.testing.assert_array_equal(normalize_advantages(f32(5)), [5])
    np.testing.assert_array_equal(normalize_advantages(f32(7, 7)), [0, 0])
    assert normalize_advantages(f32()).shape == (0,)


def test_explained_variance():
    target = f32(1, 2, 3, 6)
    assert explained_variance(target, target) == 1.0
    assert explained_variance(f32(3, 3, 3, 3), target) == pytest.approx(0.0)
    assert explained_variance(-target, target) == pytest.approx(1 - 4.0)
    assert explained_variance(f32(1, 2), f32(0.1, 0.1)) is None
    assert explained_variance(f32(), f32()) is None
