"""Names and shapes of the tensors of actor and critic."""

from __future__ import annotations

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from tests.trainers.policies import DICT_NETWORK, DICT_OBS
from trainers.architecture import architecture
from trainers.networks import (
    Lstm,
    action_heads,
    actor_layout,
    body_layers,
    body_layout,
    body_width,
    check_weights,
    critic_layout,
    encoder_layout,
    features_width,
    lstm_layer,
    normalizer_layout,
    policy_layout,
    value_heads,
)
from trainers.settings import NetworkSettings

OBSERVATIONS = (ObservationSpec("position", (3,)), ObservationSpec("grid", (2, 2), "uint8"))
SPEC = BehaviorSpec(OBSERVATIONS, ActionSpec("box", continuous_size=2, discrete_branches=(3, 4)))


def arch_of(spec=SPEC, **network):
    return architecture(spec, NetworkSettings(**{"hidden_units": 16, "normalize": True, **network}))


ARCH = arch_of()
BODY = {
    "actor/dense_0/kernel": (7, 16), "actor/dense_0/bias": (16,), "actor/dense_1/kernel": (16, 16), "actor/dense_1/bias": (16,),
}
MEAN = {"actor/mean/kernel": (16, 2), "actor/mean/bias": (2,)}
BRANCHES = {
    "actor/branch_0/kernel": (16, 3), "actor/branch_0/bias": (3,), "actor/branch_1/kernel": (16, 4), "actor/branch_1/bias": (4,),
}


def test_layout_names_every_tensor_of_the_actor_and_the_critic():
    assert actor_layout(ARCH) == {**BODY, **MEAN, **BRANCHES, "actor/log_std": (2,)}
    heads = {"critic/value_extrinsic/kernel": (16, 1), "critic/value_extrinsic/bias": (1,)}
    assert critic_layout(ARCH, shared_critic=True) == heads
    assert critic_layout(ARCH) == {**{name.replace("actor", "critic"): shape for name, shape in BODY.items()}, **heads}
    assert normalizer_layout(ARCH) == {
        "normalizer/position/mean": (3,), "normalizer/position/std": (3,), "normalizer/grid/mean": (2, 2), "normalizer/grid/std": (2, 2),
    }
    assert policy_layout(ARCH) == {**actor_layout(ARCH), **normalizer_layout(ARCH)}
    assert normalizer_layout(arch_of(normalize=False)) == {}


@pytest.mark.parametrize("distribution, expected", [
    ("gaussian", {**BODY, **MEAN, **BRANCHES, "actor/log_std": (2,)}),
    ("squashed_gaussian", {**BODY, **MEAN, "actor/log_std/kernel": (16, 2), "actor/log_std/bias": (2,), **BRANCHES}),
    ("gsde", {**BODY, **MEAN, **BRANCHES, "actor/log_std": (16, 2)}),
])
def test_layout_of_each_distribution(distribution, expected):
    """Order included: first weights are drawn in it."""
    assert list(actor_layout(ARCH, distribution).items()) == list(expected.items())
    assert policy_layout(ARCH, distribution) == {**expected, **normalizer_layout(ARCH)}


@pytest.mark.parametrize("distribution", ["gaussian", "squashed_gaussian", "gsde"])
def test_actor_without_continuous_part_is_the_same_with_every_distribution(distribution):
    arch = arch_of(BehaviorSpec(OBSERVATIONS, ActionSpec("multi_discrete", discrete_branches=(3, 4))))
    assert actor_layout(arch, distribution) == {**BODY, **BRANCHES}
    assert [head.name for head in action_heads(arch, distribution)] == ["actor/branch_0", "actor/branch_1"]


def test_layers_of_any_width_and_number():
    arch = arch_of(layers=(5, 9, 4))
    assert [(d.name, d.inputs, d.outputs) for d in body_layers(arch, "critic")] == [
        ("critic/dense_0", 7, 5), ("critic/dense_1", 5, 9), ("critic/dense_2", 9, 4)]
    assert body_width(arch) == features_width(arch) == 4
    assert [d.inputs for d in (*action_heads(arch), *value_heads(arch, ["extrinsic", "rnd"]))] == [4] * 5
    none = arch_of(num_layers=0)
    assert body_layers(none) == () and body_width(none) == 7, "the heads stand on the observations themselves"


def test_recurrent_layer_stands_between_body_and_heads():
    """Half of the memory is its output; actor and critic have one each."""
    arch = arch_of(memory={"memory_size": 10})
    lstm = {"actor/lstm/kernel": (16, 20), "actor/lstm/recurrent_kernel": (5, 20), "actor/lstm/bias": (20,)}
    assert lstm_layer(arch) == Lstm("actor/lstm", 16, 5) and lstm_layer(arch).layout == lstm
    assert list(body_layout(arch)) == [*BODY, *lstm] and features_width(arch) == 5 and body_width(arch) == 16
    layout = actor_layout(arch, "gsde")
    assert layout["actor/mean/kernel"] == layout["actor/log_std"] == (5, 2) and layout["actor/branch_1/kernel"] == (5, 4)
    critic = critic_layout(arch)
    assert critic["critic/lstm/kernel"] == (16, 20) and critic["critic/value_extrinsic/kernel"] == (5, 1)
    assert list(critic_layout(arch, shared_critic=True)) == ["critic/value_extrinsic/kernel", "critic/value_extrinsic/bias"]
    assert lstm_layer(ARCH) is None


def test_encoders_come_first_and_widen_the_bodys_input():
    arch = arch_of(BehaviorSpec(DICT_OBS, SPEC.action), **DICT_NETWORK)
    assert encoder_layout(arch, "critic") == {
        "critic/encoder_0/conv_0/kernel": (3, 3, 3, 35), "critic/encoder_0/conv_0/bias": (35,),
        "critic/encoder_0/conv_1/kernel": (3, 3, 35, 144), "critic/encoder_0/conv_1/bias": (144,),
        "critic/encoder_0/dense/kernel": (3 * 4 * 144, 16), "critic/encoder_0/dense/bias": (16,),
        "critic/encoder_1/conv_0/kernel": (8, 8, 3, 16), "critic/encoder_1/conv_0/bias": (16,),
        "critic/encoder_1/conv_1/kernel": (4, 4, 16, 32), "critic/encoder_1/conv_1/bias": (32,),
        "critic/encoder_1/dense/kernel": (1 * 1 * 32, 16), "critic/encoder_1/dense/bias": (16,),
    }
    assert list(body_layout(arch))[: 12] == list(encoder_layout(arch, "actor"))
    # Numbers: 2 of the speed, 5 of the choices, 4 flags; then two encoders.
    assert body_layers(arch)[0].inputs == 2 + 5 + 4 + 2 * 16
    assert list(normalizer_layout(arch)) == ["normalizer/speed/mean", "normalizer/speed/std"]


def test_weights_that_do_not_fit_are_refused_with_every_difference():
    layout = actor_layout(ARCH)
    weights = {name: np.zeros(shape, np.float32) for name, shape in layout.items()}
    check_weights(weights, layout, "the test")
    del weights["actor/mean/bias"]
    weights["actor/extra"] = np.zeros(1, np.float32)
    weights["actor/log_std"] = np.zeros(3, np.float32)
    weights["actor/dense_0/bias"] = np.zeros(16)
    weights["actor/dense_1/bias"] = np.full(16, np.nan, np.float32)
    with pytest.raises(ValueError) as error:
        check_weights(weights, layout, "the test")
    for part in (
        "actor/mean/bias is missing (expected [2])", "actor/extra is not part",
        "actor/log_std: expected float32 [2], received float32 [3]",
        "actor/dense_0/bias: expected float32 [16], received float64 [16]",
        "16 of 16 that are NaN or infinite", "do not fit the test",
    ):
        assert part in str(error.value)
