"""Layout and first weights of SAC's networks, and the entropies that parts of an action are held at."""

from __future__ import annotations

import math

import numpy as np
import pytest

from envs.specs import ActionSpec
from tests.trainers.rollouts import ACTIONS, BOX, DISCRETE, HYBRID, policy_of, spec_of
from trainers import sac_networks
from trainers.networks import policy_layout
from trainers.registry import first_weights, policy_distribution
from trainers.sac_networks import CRITIC, LOG_ALPHA, TARGET
from trainers.settings import SACSettings


def settings_of(network: dict | None = None, **hyper) -> SACSettings:
    return SACSettings.model_validate({
        "hyperparameters": hyper, "network_settings": {"hidden_units": 8, "num_layers": 2, **(network or {})},
    })


def weights_of(action: ActionSpec, settings: SACSettings, seed: int = 0) -> dict[str, np.ndarray]:
    return first_weights(spec_of(action), settings, np.random.default_rng(seed))


@pytest.mark.parametrize("use_sde", [False, True])
@pytest.mark.parametrize("kind", ACTIONS)
def test_first_weights_fill_the_layouts(kind, use_sde):
    """Trained tensors, targets and normaliser: every name, shape and dtype, and nothing else; the policy can act with its part."""
    spec, settings = spec_of(ACTIONS[kind]), settings_of({"normalize": True}, use_sde=use_sde)
    network, distribution = settings.network_settings, policy_distribution(settings)
    assert distribution == ("gsde" if use_sde else "squashed_gaussian")
    weights = weights_of(spec.action, settings)
    layout = {
        **sac_networks.sac_layout(spec, network, ["extrinsic"], distribution),
        **sac_networks.twin_layout(spec, network, ["extrinsic"], TARGET), **policy_layout(spec, network, distribution),
    }
    assert {name: tensor.shape for name, tensor in weights.items()} == layout
    assert {tensor.dtype for tensor in weights.values()} == {np.dtype(np.float32)}
    acting = {name: weights[name] for name in policy_layout(spec, network, distribution)}
    out = policy_of(spec, network, acting, distribution=distribution).act({"obs": np.zeros((4, 3), np.float32)}, np.random.default_rng(0))
    assert np.isfinite(out.log_prob).all()


def test_shapes_of_the_critics():
    """Inputs 3 + 2 continuous; one output for each signal and choice: 2 · (2 + 4)."""
    layout = sac_networks.twin_layout(spec_of(HYBRID), settings_of().network_settings, ["extrinsic", "curiosity"])
    assert layout == {
        "critic/dense_0/kernel": (2, 5, 8), "critic/dense_0/bias": (2, 8), "critic/dense_1/kernel": (2, 8, 8),
        "critic/dense_1/bias": (2, 8), "critic/q/kernel": (2, 8, 12), "critic/q/bias": (2, 12),
    }
    assert {kind: sac_networks.outputs_per_signal(action) for kind, action in ACTIONS.items()} == {
        "box": 1, "discrete": 3, "multi_discrete": 6, "hybrid": 6,
    }


def test_trained_tensors_lie_actor_critics_alpha():
    """The flat vector is cut into these three, in this order."""
    names = list(sac_networks.sac_layout(spec_of(HYBRID), settings_of().network_settings, ["extrinsic"], "gsde"))
    groups = [name.split("/")[0] for name in names]
    assert groups == sorted(groups, key=["actor", "critic", "entropy_coef"].index)
    assert names[-1] == LOG_ALPHA


@pytest.mark.parametrize("kind", ACTIONS)
def test_targets_begin_equal_to_the_critics(kind):
    """C49: max |θ' − θ| = 0 for both, in arrays of their own; the two critics differ."""
    weights = weights_of(ACTIONS[kind], settings_of())
    critics = [name for name in weights if name.startswith(CRITIC)]
    assert len(critics) == 6
    for name in critics:
        target = weights[TARGET + name.removeprefix(CRITIC)]
        np.testing.assert_array_equal(target, weights[name])
        assert not np.shares_memory(target, weights[name])
        if name.endswith("/kernel"):
            assert not np.allclose(weights[name][0], weights[name][1]), name
        else:
            assert not weights[name].any()


def test_critic_kernels_are_orthogonal():
    """Gain √2 in the bodies, 1 in the heads: singular values."""
    weights = weights_of(BOX, settings_of())
    for layer, gain in (("dense_0", math.sqrt(2.0)), ("dense_1", math.sqrt(2.0)), ("q", 1.0)):
        for kernel in weights[f"{CRITIC}{layer}/kernel"]:
            np.testing.assert_allclose(np.linalg.svd(kernel, compute_uv=False), gain, rtol=1e-5)


def test_same_seed_same_weights():
    one, two, other = (weights_of(HYBRID, settings_of(), seed) for seed in (0, 0, 1))
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])
    assert not np.array_equal(one["critic/q/kernel"], other["critic/q/kernel"])


def test_coefficients_begin_where_they_are_told():
    """log α = log init_entcoef for each part; the noise of state-dependent exploration at its own setting."""
    weights = weights_of(HYBRID, settings_of(init_entcoef=0.2, use_sde=True, sde_initial_log_std=-2.5))
    np.testing.assert_allclose(weights[LOG_ALPHA], [math.log(0.2)] * 3, rtol=1e-6)
    np.testing.assert_array_equal(weights["actor/log_std"], np.full((8, 2), -2.5))
    assert {kind: sac_networks.action_parts(action) for kind, action in ACTIONS.items()} == {
        "box": 1, "discrete": 1, "multi_discrete": 2, "hybrid": 3,
    }


@pytest.mark.parametrize(("scale", "targets"), [
    (1.0, (0.69315, 1.09861, 1.38629, 2.30259)), (0.98, (0.67928, 1.07664, 1.35857, 2.25653)),
])
def test_target_entropy_of_branches(scale, targets):
    """C48: c · ln n for n = 2, 3, 4, 10, one for each branch."""
    found = sac_networks.target_entropies(ActionSpec("multi_discrete", discrete_branches=(2, 3, 4, 10)), None, scale)
    assert found.shape == (4,)
    np.testing.assert_allclose(found, targets, atol=6e-6)


def test_target_entropy_of_each_part():
    """−C for the continuous part unless told otherwise; MultiDiscrete [3, 2] together at most ln 6 = 1.79176."""
    np.testing.assert_allclose(sac_networks.target_entropies(BOX, None, 0.7), [-2.0])
    np.testing.assert_allclose(sac_networks.target_entropies(BOX, -0.5, 0.7), [-0.5])
    np.testing.assert_allclose(sac_networks.target_entropies(DISCRETE, -0.5, 0.7), [0.7 * math.log(3)], rtol=1e-6)
    np.testing.assert_allclose(sac_networks.target_entropies(HYBRID, None, 0.5), [-2.0, 0.5 * math.log(2), 0.5 * math.log(4)], rtol=1e-6)
    both = sac_networks.target_entropies(ActionSpec("multi_discrete", discrete_branches=(3, 2)), None, 1.0)
    assert float(both.sum()) == pytest.approx(1.79176, abs=6e-6)
