"""Layout and first weights of SAC's networks, and the entropies that parts of an action are held at."""

from __future__ import annotations

import math

import numpy as np
import pytest

from envs.specs import ActionSpec
from tests.trainers.rollouts import (
    ACTIONS,
    BOX,
    DISCRETE,
    HYBRID,
    OBSERVATIONS,
    network_of,
    policy_of,
    random_masks,
    random_observations,
    spec_of,
)
from trainers import sac_networks
from trainers.architecture import Architecture, architecture
from trainers.networks import normalizer_layout, policy_layout
from trainers.registry import first_weights, policy_distribution
from trainers.sac_networks import CRITIC, LOG_ALPHA, TARGET
from trainers.settings import SACSettings


def settings_of(memory: bool = False, network: dict | None = None, **hyper) -> SACSettings:
    settings = network_of(memory, **{"num_layers": 2, **(network or {})})
    return SACSettings.model_validate({"hyperparameters": hyper, "network_settings": settings})


def arch_of(action: ActionSpec, memory: bool = False, observations: str = "vector", **network) -> Architecture:
    return architecture(spec_of(action, observations=observations), settings_of(memory, network).network_settings)


def weights_of(action: ActionSpec, settings: SACSettings, seed: int = 0, observations: str = "vector") -> dict[str, np.ndarray]:
    return first_weights(spec_of(action, observations=observations), settings, np.random.default_rng(seed))


@pytest.mark.parametrize("memory", [False, True], ids=["feed-forward", "recurrent"])
@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("use_sde", [False, True])
@pytest.mark.parametrize("kind", ACTIONS)
def test_first_weights_fill_the_layouts(kind, use_sde, observations, memory):
    """Trained tensors, targets and normaliser: every name, shape and dtype, and nothing else; the policy can act with its part."""
    spec, settings = spec_of(ACTIONS[kind], observations=observations), settings_of(memory, {"normalize": True}, use_sde=use_sde)
    arch, distribution = architecture(spec, settings.network_settings), policy_distribution(settings)
    assert distribution == ("gsde" if use_sde else "squashed_gaussian")
    weights = weights_of(spec.action, settings, observations=observations)
    layout = {
        **sac_networks.sac_layout(arch, ["extrinsic"], distribution), **sac_networks.twin_layout(arch, ["extrinsic"], TARGET),
        **normalizer_layout(arch),
    }
    assert {name: tensor.shape for name, tensor in weights.items()} == layout
    assert {tensor.dtype for tensor in weights.values()} == {np.dtype(np.float32)}
    acting = {name: weights[name] for name in policy_layout(arch, distribution)}
    policy, rng = policy_of(spec, settings.network_settings, acting, distribution=distribution), np.random.default_rng(0)
    agents = {"agent_id": np.arange(4), "first": np.ones(4, bool)}
    out = policy.act(random_observations(spec, rng, 4), rng, action_mask=random_masks(spec.action, rng, 4), **agents)
    assert np.isfinite(out.log_prob).all()


def test_shapes_of_the_critics():
    """Inputs 3 + 2 continuous; one output for each signal and choice: 2 · (2 + 4)."""
    layout = sac_networks.twin_layout(arch_of(HYBRID), ["extrinsic", "curiosity"])
    assert layout == {
        "critic/dense_0/kernel": (2, 5, 8), "critic/dense_0/bias": (2, 8), "critic/dense_1/kernel": (2, 8, 8),
        "critic/dense_1/bias": (2, 8), "critic/q/kernel": (2, 8, 12), "critic/q/bias": (2, 12),
    }
    assert {kind: sac_networks.outputs_per_signal(action) for kind, action in ACTIONS.items()} == {
        "box": 1, "discrete": 3, "multi_discrete": 6, "hybrid": 6,
    }


def test_shapes_of_recurrent_critics():
    """The action comes in after the memory of 3 numbers (and 3 of the cell), through one layer of hidden_units."""
    layout = sac_networks.twin_layout(arch_of(HYBRID, memory=True, num_layers=1), ["extrinsic"])
    assert layout == {
        "critic/dense_0/kernel": (2, 3, 8), "critic/dense_0/bias": (2, 8),
        "critic/lstm/kernel": (2, 8, 12), "critic/lstm/recurrent_kernel": (2, 3, 12), "critic/lstm/bias": (2, 12),
        "critic/joint/kernel": (2, 5, 8), "critic/joint/bias": (2, 8), "critic/q/kernel": (2, 8, 6), "critic/q/bias": (2, 6),
    }


def test_twins_share_encoders():
    """An image of 6 × 5 × 3 = 90 bytes through one encoder, without a leading 2; the body's inputs: 5 one-hot columns, 2 flags, 4
    numbers, 8 of the encoder and 2 of the action."""
    layout = sac_networks.twin_layout(arch_of(BOX, observations="dict", num_layers=1), ["extrinsic"])
    assert layout == {
        "critic/encoder_0/dense/kernel": (90, 8), "critic/encoder_0/dense/bias": (8,),
        "critic/dense_0/kernel": (2, 21, 8), "critic/dense_0/bias": (2, 8), "critic/q/kernel": (2, 8, 1), "critic/q/bias": (2, 1),
    }
    assert [name.replace(TARGET, CRITIC) for name in sac_networks.twin_layout(arch_of(BOX, observations="dict"), ["a"], TARGET)] == list(
        sac_networks.twin_layout(arch_of(BOX, observations="dict"), ["a"])
    )


@pytest.mark.parametrize(("action", "joint"), [(BOX, (2, 5, 8)), (DISCRETE, None)], ids=["box", "discrete"])
def test_without_dense_layers_an_action_still_meets_the_observation(action, joint):
    """Otherwise Q would be a sum of what the observation is worth and what the action is, and the best action one for all."""
    layout = sac_networks.twin_layout(arch_of(action, num_layers=0), ["extrinsic"])
    assert layout.get("critic/joint/kernel") == joint
    assert layout["critic/q/kernel"] == ((2, 8, 1) if joint else (2, 3, 3))


def test_widths_one_by_one():
    layout = sac_networks.twin_layout(arch_of(BOX, layers=[7, 4]), ["extrinsic"])
    assert [layout[f"critic/{name}/kernel"] for name in ("dense_0", "dense_1", "q")] == [(2, 5, 7), (2, 7, 4), (2, 4, 1)]


@pytest.mark.parametrize("memory", [False, True], ids=["feed-forward", "recurrent"])
def test_trained_tensors_lie_actor_critics_alpha(memory):
    names = list(sac_networks.sac_layout(arch_of(HYBRID, memory, "dict"), ["extrinsic"], "gsde"))
    groups = [name.split("/")[0] for name in names]
    assert groups == sorted(groups, key=["actor", "critic", "entropy_coef"].index)
    assert names[-1] == LOG_ALPHA


@pytest.mark.parametrize("memory", [False, True], ids=["feed-forward", "recurrent"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_targets_begin_equal_to_the_critics(kind, memory):
    """C49: max |θ' − θ| = 0 for both, encoders included, in arrays of their own; the two critics differ."""
    weights = weights_of(ACTIONS[kind], settings_of(memory), observations="image")
    critics = [name for name in weights if name.startswith(f"{CRITIC}/")]
    assert len(critics) == (13 if memory else 8)
    for name in critics:
        target = weights[TARGET + name.removeprefix(CRITIC)]
        np.testing.assert_array_equal(target, weights[name])
        assert not np.shares_memory(target, weights[name])
        if name.endswith("kernel"):  # of encoders, which are one for both, the actor's is another
            one, other = (weights[name], weights[name.replace(CRITIC, "actor")]) if "encoder" in name else weights[name]
            assert not np.allclose(one, other), name


def test_critic_kernels_are_orthogonal():
    """Gain √2 in the bodies, 1 in the heads and recurrent layers (each gate): singular values. Forget gates begin at 1."""
    weights = weights_of(BOX, settings_of())
    for layer, gain in (("dense_0", math.sqrt(2.0)), ("dense_1", math.sqrt(2.0)), ("q", 1.0)):
        for kernel in weights[f"{CRITIC}/{layer}/kernel"]:
            np.testing.assert_allclose(np.linalg.svd(kernel, compute_uv=False), gain, rtol=1e-5)
        assert not weights[f"{CRITIC}/{layer}/bias"].any()
    weights = weights_of(BOX, settings_of(True))
    for kernel in weights[f"{CRITIC}/lstm/recurrent_kernel"]:
        for gate in np.split(kernel, 4, axis=1):
            np.testing.assert_allclose(np.linalg.svd(gate, compute_uv=False), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(weights[f"{CRITIC}/lstm/bias"], [[0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0]] * 2)
    for kernel in weights[f"{CRITIC}/joint/kernel"]:
        np.testing.assert_allclose(np.linalg.svd(kernel, compute_uv=False), math.sqrt(2.0), rtol=1e-5)


def test_same_seed_same_weights():
    one, two, other = (weights_of(HYBRID, settings_of(True), seed, "dict") for seed in (0, 0, 1))
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])
    assert not np.array_equal(one["critic/q/kernel"], other["critic/q/kernel"])


def test_coefficients_begin_where_they_are_told():
    """log α = log init_entcoef for each part; the noise of state-dependent exploration at its own setting."""
    hyper = {"init_entcoef": 0.2, "use_sde": True, "sde_initial_log_std": -2.5}
    weights = weights_of(HYBRID, settings_of(**hyper))
    np.testing.assert_allclose(weights[LOG_ALPHA], [math.log(0.2)] * 3, rtol=1e-6)
    np.testing.assert_array_equal(weights["actor/log_std"], np.full((8, 2), -2.5))
    assert weights_of(HYBRID, settings_of(True, **hyper))["actor/log_std"].shape == (3, 2)  # on what is remembered
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
