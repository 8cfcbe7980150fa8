"""Distributions against sums written out, and against the frequencies of their own samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainers.distributions import BLOCK, WIDE, Categorical, DiagonalGaussian, joint


def f32(values):
    return np.array(values, np.float32)


def test_gaussian_log_prob_and_entropy_agree_with_the_densities_of_each_dimension():
    rng = np.random.default_rng(0)
    mean, log_std, x = rng.normal(size=(5, 3)), rng.normal(size=3), rng.normal(size=(5, 3))
    gaussian = DiagonalGaussian(f32(mean), f32(log_std))
    for i in range(5):
        density = 1.0
        for c in range(3):
            std = math.exp(log_std[c])
            density *= math.exp(-0.5 * ((x[i, c] - mean[i, c]) / std) ** 2) / (std * math.sqrt(2 * math.pi))
        assert gaussian.log_prob(f32(x))[i] == pytest.approx(math.log(density), rel=1e-5)
    expected = sum(0.5 * math.log(2 * math.pi * math.e) + s for s in log_std)
    np.testing.assert_allclose(gaussian.entropy(), np.full(5, expected), rtol=1e-6)


def test_gaussian_at_its_mean():
    """C44, the part before squashing: μ 0, σ 1, u 0 -> −0.91894."""
    assert DiagonalGaussian(f32([[0]]), f32([0])).log_prob(f32([[0]])) == pytest.approx(-0.91894, abs=1e-5)


def test_gaussian_samples_have_its_moments_and_leave_policy_space():
    """C58: the sample is not clipped; with σ 1 a share of 0.317 lies outside [-1, 1]."""
    gaussian = DiagonalGaussian(f32(np.tile([0.0, 3.0], (40_000, 1))), f32([0.0, math.log(0.5)]))
    x = gaussian.sample(np.random.default_rng(1))
    assert x.dtype == np.float32 and x.flags.c_contiguous
    np.testing.assert_allclose(x.mean(axis=0), [0, 3], atol=0.02)
    np.testing.assert_allclose(x.std(axis=0), [1, 0.5], atol=0.02)
    assert np.mean(np.abs(x[:, 0]) > 1) == pytest.approx(0.317, abs=0.01)


def test_gaussian_mode_is_a_copy_of_the_mean():
    mean = f32([[1, 2]])
    mode = DiagonalGaussian(mean, f32([0, 0])).mode()
    mode += 1
    np.testing.assert_array_equal(mean, [[1, 2]])


def test_gaussian_moved_to_another_mean_is_one_made_there():
    mean, log_std, x = f32([[1, 2], [3, -4], [0, 9]]), f32([-0.5, 0.25]), f32([[1, 1], [2, 2], [3, 3]])
    moved, made = DiagonalGaussian(f32([[7, 7]]), log_std).around(mean), DiagonalGaussian(mean, log_std)
    for one, two in ((moved.log_prob(x), made.log_prob(x)), (moved.entropy(), made.entropy()), (moved.mode(), made.mode())):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(*(g.sample(np.random.default_rng(0)) for g in (moved, made)))


@pytest.mark.parametrize("order", ["C", "F"])
def test_categorical_agrees_with_softmax_written_out(order):
    logits = np.random.default_rng(2).normal(size=(6, 5)) * 3
    categorical = Categorical(np.asarray(f32(logits), order=order))
    for i in range(6):
        e = [math.exp(z) for z in logits[i]]
        p = [x / sum(e) for x in e]
        np.testing.assert_allclose(categorical.probs[i], p, rtol=1e-5)
        np.testing.assert_allclose(categorical.log_probs[i], np.log(p), rtol=1e-5)
        assert categorical.entropy()[i] == pytest.approx(-sum(x * math.log(x) for x in p), rel=1e-5)
        for a in range(5):
            assert categorical.log_prob(np.full(6, a))[i] == pytest.approx(math.log(p[a]), rel=1e-5)


def test_masked_choice_has_probability_exactly_0():
    """C63."""
    categorical = Categorical(f32([[1, 2, 3]]), np.array([[True, False, True]]))
    np.testing.assert_allclose(categorical.probs, [[0.11920, 0, 0.88080]], atol=1e-5)
    assert categorical.probs[0, 1] == 0.0
    assert categorical.log_probs[0, 1] == categorical.log_prob(np.array([1]))[0] == -np.inf
    assert categorical.entropy()[0] == pytest.approx(0.36533, abs=1e-5)


@pytest.mark.parametrize("n, choices", [(20_000, 4), (200, 2 * WIDE + 1)])
def test_masked_choices_are_never_sampled_nor_the_mode(n, choices):
    """C63: also first and last choices, and with a masked logit far above the others."""
    rng = np.random.default_rng(3)
    mask = rng.random((n, choices)) < 0.5
    mask[np.arange(n), rng.integers(0, choices, n)] = True
    logits = f32(rng.normal(size=(n, choices)))
    logits[~mask] += 50
    categorical = Categorical(logits, mask)
    for choice in (categorical.sample(rng), categorical.mode()):
        assert choice.dtype == np.int32
        assert mask[np.arange(n), choice].all()
    assert np.isfinite(categorical.entropy()).all()


class FixedUniform:
    """Stands for a generator whose next uniform numbers are all `value`."""

    def __init__(self, value):
        self.value = value

    def random(self, size, dtype=np.float64):
        return np.full(size, self.value, dtype)


def test_extreme_uniform_numbers_stay_within_the_allowed_choices():
    """0 and 1 − 2⁻²⁴ are the smallest and the largest number that `Generator.random` returns in float32."""
    logits = f32(np.random.default_rng(4).normal(size=(2_000, 7)) * 4)
    mask = np.ones(logits.shape, bool)
    mask[:, :2] = mask[:, -2:] = False
    for uniform in (FixedUniform(0.0), FixedUniform(1 - 2**-24)):
        assert set(Categorical(logits, mask).sample(uniform)) <= {2, 3, 4}
        assert set(Categorical(logits).sample(uniform)) <= set(range(7))


@pytest.mark.parametrize("value", [0.0, 1 - 2**-53])
def test_extreme_uniform_numbers_stay_within_the_allowed_choices_of_thousands(value):
    """The allowed ones begin and end within a block or at its edge."""
    rng = np.random.default_rng(4)
    logits = f32(rng.normal(size=(500, 1_000)) * 4)
    for allowed in (slice(130, 190), slice(0, 64), slice(63, 65), slice(970, 1_000), slice(7, 8), slice(3, 997)):
        mask = np.zeros(logits.shape, bool)
        mask[:, allowed] = True
        choice = Categorical(logits, mask).sample(FixedUniform(value))
        edge = allowed.start if value == 0 else allowed.stop - 1
        assert (choice == edge).all()
    assert (Categorical(logits).sample(FixedUniform(value)) == (0 if value == 0 else 999)).all()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("choices", [WIDE - 1, WIDE, WIDE + 1, 5_000, 100 * BLOCK])
@pytest.mark.parametrize("masked", [False, True])
def test_thousands_of_choices_agree_with_float64(choices, order, masked):
    rng = np.random.default_rng(5)
    logits = f32(rng.normal(size=(4, choices)) * 2)
    logits[1, 0] = 9  # the first one takes nearly everything: a running float32 sum would lose most of the rest
    mask = rng.random(logits.shape) < 0.3 if masked else None
    if masked:
        mask[:, 0] = True
    categorical = Categorical(np.asarray(logits, order=order), mask)
    allowed = logits.astype(np.float64) if mask is None else np.where(mask, logits.astype(np.float64), -np.inf)
    p = np.exp(allowed - allowed.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(categorical.probs, p, rtol=3e-6)
    if masked:
        assert (categorical.probs[~mask] == 0.0).all() and (categorical.log_probs[~mask] == -np.inf).all()
        assert (categorical.log_prob(np.argmin(mask, axis=1)) == -np.inf).all()
    np.testing.assert_allclose(categorical.entropy(), [-(q[q > 0] * np.log(q[q > 0])).sum() for q in p], rtol=2e-6)
    likeliest = p.argmax(axis=1)
    np.testing.assert_array_equal(categorical.mode(), likeliest)
    np.testing.assert_allclose(categorical.log_prob(likeliest), np.log(p.max(axis=1)), rtol=3e-6, atol=2e-7)
    assert categorical.probs.dtype == categorical.log_prob(likeliest).dtype == categorical.entropy().dtype == np.float32


def test_samples_of_thousands_follow_the_probabilities():
    """Each of the 1,000 rare ones has 1e-4; a tenth of the samples is theirs."""
    logits = np.zeros(1_001)
    logits[0] = math.log(0.9 / 1e-4)
    choice = Categorical(f32(np.tile(logits, (20_000, 1)))).sample(np.random.default_rng(6))
    assert choice.dtype == np.int32
    assert np.mean(choice > 0) == pytest.approx(0.1, abs=0.01)
    rare = choice[choice > 0]
    assert rare.mean() == pytest.approx(500.5, abs=25)
    assert np.bincount((rare - 1) // 100, minlength=10).min() > 100


def test_row_without_an_allowed_choice_is_an_error_that_names_the_row():
    """C63."""
    with pytest.raises(ValueError, match=r"1 of 3 rows \(first rows: \[1\]\)"):
        Categorical(f32(np.zeros((3, 2))), np.array([[True, False], [False, False], [True, True]]))


@pytest.mark.parametrize("mask", [np.ones((3, 3), bool), np.ones((3, 2), np.float32), np.ones(2, bool)])
def test_mask_of_another_shape_or_dtype_is_refused(mask):
    with pytest.raises(ValueError, match=r"Expected an action mask of branch 0 bool \[3, 2\]"):
        Categorical(f32(np.zeros((3, 2))), mask)


def test_samples_follow_the_probabilities():
    p = np.array([0.1, 0.2, 0.05, 0.65])
    choice = Categorical(f32(np.tile(np.log(p), (50_000, 1)))).sample(np.random.default_rng(5))
    np.testing.assert_allclose(np.bincount(choice, minlength=4) / 50_000, p, atol=0.01)


def test_extreme_logits_stay_finite():
    categorical = Categorical(f32([[1e4, -1e4, 0], [-3e38, -3e38, -3e38]]))
    np.testing.assert_array_equal(categorical.probs[0], [1, 0, 0])
    np.testing.assert_allclose(categorical.entropy(), [0, math.log(3)], atol=1e-6)
    np.testing.assert_allclose(categorical.log_prob(np.array([0, 2])), [0, -math.log(3)], atol=1e-6)


def test_single_choice_is_certain():
    """C59: Discrete(1)."""
    categorical = Categorical(f32([[0.3], [-7]]))
    np.testing.assert_array_equal(categorical.sample(np.random.default_rng(0)), [0, 0])
    np.testing.assert_array_equal(categorical.log_prob(np.array([0, 0])), [0, 0])
    np.testing.assert_array_equal(categorical.entropy(), [0, 0])


def test_joint_log_prob_of_branches_is_the_sum():
    """C56: MultiDiscrete([2, 4]), old probabilities (0.5, 0.25), new (0.6, 0.2)."""
    def log_prob(p, q):
        branches = [Categorical(np.log(f32([[p, 1 - p]]))), Categorical(np.log(f32([[q] + [(1 - q) / 3] * 3])))]
        return joint([b.log_prob(np.array([0])) for b in branches], 1)

    assert log_prob(0.5, 0.25)[0] == pytest.approx(-2.07944, abs=1e-5)
    assert np.exp(log_prob(0.6, 0.2) - log_prob(0.5, 0.25))[0] == pytest.approx(0.96, abs=1e-5)


def test_joint_of_continuous_and_discrete_parts():
    """C56: Tuple(Box(2), Discrete(3)): log-probs and entropies add up."""
    gaussian, branch = DiagonalGaussian(f32([[0, 0]]), f32([0, 0])), Categorical(f32([[0, 0, 0]]))
    log_prob = joint([gaussian.log_prob(f32([[0, 0]])), branch.log_prob(np.array([2]))], 1)
    entropy = joint([gaussian.entropy(), branch.entropy()], 1)
    assert log_prob[0] == pytest.approx(-2 * 0.91894 - math.log(3), abs=1e-5)
    assert entropy[0] == pytest.approx(2 * 1.41894 + math.log(3), abs=1e-5)
    np.testing.assert_array_equal(joint([], 2), [0, 0])
    np.testing.assert_array_equal(joint([f32([1, -2])], 2), [1, -2])
