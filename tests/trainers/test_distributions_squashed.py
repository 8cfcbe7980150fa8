"""The squashed Gaussian against float64, against integrals of its density and against the frequencies of its samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainers.distributions import SquashedGaussian, clip_log_std


def f32(values):
    return np.array(values, np.float32)


def slow_log_prob(u, mean, log_std):
    """Log-density of tanh(u) for one dimension, in float64; log cosh u written so that it does not overflow."""
    log_normal = -0.5 * ((u - mean) / math.exp(log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
    log_cosh = abs(u) + math.log1p(math.exp(-2 * abs(u))) - math.log(2)
    return log_normal + 2 * log_cosh  # 1 - tanh(u)^2 = 1 / cosh(u)^2


def density(mean, log_std, u):
    """exp(log_prob) at tanh(u), float64 [N], for one dimension."""
    u = np.asarray(u)[:, None]
    gaussian = SquashedGaussian(np.full(u.shape, mean, np.float32), np.full(u.shape, log_std, np.float32))
    return np.exp(gaussian.log_prob(f32(u)).astype(np.float64))


def integral(y, x):
    return float(np.sum((y[1:] + y[:-1]) * np.diff(x)) / 2)


@pytest.mark.parametrize("u, log_prob, action", [(0.0, -0.91894, 0.0), (0.5, -0.80371, 0.46212), (-0.5, -0.80371, -0.46212)])
def test_log_density_of_a_standard_normal_after_the_tanh(u, log_prob, action):
    """C44."""
    gaussian = SquashedGaussian(f32([[0]]), f32([[0]]))
    assert gaussian.log_prob(f32([[u]]))[0] == pytest.approx(log_prob, abs=1e-5)
    assert np.tanh(f32(u)) == pytest.approx(action, abs=1e-5)


def test_log_prob_is_one_number_per_row():
    """C46: the sum over the dimensions; two at 0 -> -1.83788."""
    gaussian = SquashedGaussian(f32(np.zeros((5, 2))), f32(np.zeros((5, 2))))
    log_prob = gaussian.log_prob(f32(np.zeros((5, 2))))
    assert log_prob.shape == (5,) and log_prob.dtype == np.float32
    np.testing.assert_allclose(log_prob, -1.83788, atol=1e-5)
    six = SquashedGaussian(f32(np.zeros((128, 6))), f32(np.zeros((128, 6))))
    assert six.log_prob(six.sample(np.random.default_rng(0))).shape == (128,)


@pytest.mark.parametrize("order", ["C", "F"])
def test_log_prob_agrees_with_float64_where_every_row_has_its_own_mean_and_std(order):
    rng = np.random.default_rng(0)
    mean, log_std, u = f32(rng.normal(size=(40, 3)) * 3), f32(rng.uniform(-3, 2, (40, 3))), f32(rng.normal(size=(40, 3)) * 4)
    log_prob = SquashedGaussian(np.asarray(mean, order=order), np.asarray(log_std, order=order)).log_prob(u)
    for i in range(40):
        expected = sum(slow_log_prob(float(u[i, c]), float(mean[i, c]), float(log_std[i, c])) for c in range(3))
        assert log_prob[i] == pytest.approx(expected, rel=2e-6, abs=1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("u", [50.0, -50.0, 9.1, -300.0, 3e4])
@pytest.mark.parametrize("log_std", [-20.0, 0.0, 2.0])
def test_saturated_actions_have_a_finite_and_right_log_density(u, log_std):
    """Where tanh(u) is exactly 1 in float32, 1 - tanh(u)^2 is 0 and its logarithm would be infinite."""
    for mean in (u, u - 0.5 * math.exp(log_std)):
        mean = float(np.float32(mean))
        log_prob = SquashedGaussian(f32([[mean]]), f32([[log_std]])).log_prob(f32([[u]]))
        assert np.isfinite(log_prob).all()
        assert log_prob[0] == pytest.approx(slow_log_prob(float(np.float32(u)), mean, log_std), rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("mean, std", [(0.0, 1.0), (0.5, 0.3), (-1.0, 0.7), (2.0, 0.5), (0.0, 0.02), (0.3, 1.2)])
def test_density_over_actions_integrates_to_1(mean, std):
    """Over a in (-1, 1), on a grid that is denser towards the bounds, where wide distributions have their mass."""
    a = np.sin(np.linspace(-np.pi / 2, np.pi / 2, 400_001))[1:-1]
    assert integral(density(mean, math.log(std), np.arctanh(a)), a) == pytest.approx(1.0, abs=2e-4)


@pytest.mark.parametrize("mean, std", [(0.0, math.exp(2)), (20.0, 2.0), (-8.0, math.exp(2)), (50.0, 0.1), (-3.0, 1e-3)])
def test_density_of_saturating_distributions_integrates_to_1(mean, std):
    """Their mass lies closer to the bounds than float64 can tell, so the integral runs over u: da = du / cosh(u)^2."""
    u = np.linspace(mean - 9 * std, mean + 9 * std, 100_001).astype(np.float32).astype(np.float64)
    assert integral(density(mean, math.log(std), u) / np.cosh(u) ** 2, u) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("mean, std", [(0.4, 0.8), (-1.5, 0.5), (0.0, 2.0)])
def test_samples_follow_the_density(mean, std):
    n, log_std = 200_000, math.log(std)
    gaussian = SquashedGaussian(np.full((n, 1), mean, np.float32), np.full((n, 1), log_std, np.float32))
    u = gaussian.sample(np.random.default_rng(1))
    assert u.dtype == np.float32 and u.shape == (n, 1) and u.flags.c_contiguous
    edges = np.linspace(-0.98, 0.98, 29)
    frequency = np.histogram(np.tanh(u), edges)[0] / n
    for low, high, share in zip(edges[:-1], edges[1:], frequency, strict=True):
        a = np.linspace(low, high, 201)
        expected = integral(density(mean, log_std, np.arctanh(a)), a)
        assert share == pytest.approx(expected, abs=5 * math.sqrt(expected / n) + 1e-5)


def test_each_element_is_sampled_around_its_own_mean_with_its_own_std():
    mean, log_std = np.tile(f32([[0, 3], [-2, 1]]), (20_000, 1)), np.tile(f32([[0, -1], [-2, 0.5]]), (20_000, 1))
    u = SquashedGaussian(mean, log_std).sample(np.random.default_rng(2)).reshape(20_000, 2, 2)
    np.testing.assert_allclose(u.mean(axis=0), [[0, 3], [-2, 1]], atol=0.05)
    np.testing.assert_allclose(u.std(axis=0), np.exp([[0, -1], [-2, 0.5]]), rtol=0.03)


def test_mode_is_a_copy_of_the_mean():
    mean = np.asfortranarray(f32([[1, 2], [3, 4]]))
    mode = SquashedGaussian(mean, f32(np.zeros((2, 2)))).mode()
    assert mode.flags.c_contiguous
    np.testing.assert_array_equal(mode, mean)
    mode += 1
    np.testing.assert_array_equal(mean, [[1, 2], [3, 4]])


def test_log_std_is_clipped_to_its_range():
    log_std = f32([[-1e4, -20.5, -20, -19.5], [1.5, 2, 2.5, 1e4]])
    assert clip_log_std(log_std) is log_std
    np.testing.assert_array_equal(log_std, [[-20, -20, -20, -19.5], [1.5, 2, 2, 2]])
