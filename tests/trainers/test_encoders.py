"""Which layers an encoder has, and what comes out of them."""

from __future__ import annotations

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from trainers.architecture import SMALLEST_SIDE, architecture
from trainers.encoders import Conv, MaxPool, Relu, Residual, convolutions, encoder_layers, encoder_prefix, flat_width
from trainers.settings import NetworkSettings


def image_of(shape, encoder):
    spec = BehaviorSpec((ObservationSpec("image", shape, "uint8", "image"),), ActionSpec("discrete"))
    return architecture(spec, NetworkSettings(vis_encode_type=encoder)).images[0]


@pytest.mark.parametrize("encoder, shape, expected", [
    # ML-Agents: conv 16 of 8 x 8 stride 4, conv 32 of 4 x 4 stride 2.
    ("simple", (84, 84, 3), [(8, 4, 3, 16), (4, 2, 16, 32)]),
    # Mnih et al. 2015.
    ("nature_cnn", (4, 84, 84), [(8, 4, 4, 32), (4, 2, 32, 64), (3, 1, 64, 64)]),
    ("match3", (9, 8, 6), [(3, 1, 6, 35), (3, 1, 35, 144)]),
    ("fully_connected", (9, 8, 6), []),
])
def test_plain_encoders(encoder, shape, expected):
    image = image_of(shape, encoder)
    layers = encoder_layers(image, "actor/encoder_0")
    assert [(c.size, c.stride, c.inputs, c.outputs) for c in layers] == expected
    assert all(c.relu and not c.same for c in layers)
    assert [c.kernel for c in layers] == [f"actor/encoder_0/conv_{i}/kernel" for i in range(len(expected))]


def test_resnet():
    """Espeholt et al. 2018, figure 3: three stacks of a convolution, a pool and two residual blocks, and a ReLU at the end."""
    image = image_of((64, 72, 3), "resnet")
    layers = encoder_layers(image, "p")
    assert [type(layer) for layer in layers] == [Conv, MaxPool, Residual, Residual] * 3 + [Relu]
    found = convolutions(image, "p")
    assert [(c.inputs, c.outputs) for c in found] == [
        (inputs, outputs) for first, outputs in ((3, 16), (16, 32), (32, 32)) for inputs in (first, *[outputs] * 4)]
    assert all(c.same and not c.relu and (c.size, c.stride) == (3, 1) for c in found)
    assert len({c.name for c in found}) == 15 and found[1].name == "p/stack_0/block_0/conv_0"
    assert all((pool.size, pool.stride) == (3, 2) for pool in layers if isinstance(pool, MaxPool))


@pytest.mark.parametrize("encoder, shape, expected", [
    ("simple", (84, 84, 3), 9 * 9 * 32), ("simple", (20, 84, 3), 1 * 9 * 32), ("nature_cnn", (4, 84, 84), 7 * 7 * 64),
    ("nature_cnn", (210, 160, 3), 22 * 16 * 64), ("resnet", (84, 84, 4), 11 * 11 * 32), ("resnet", (15, 17, 3), 2 * 3 * 32),
    ("match3", (5, 8, 3), 1 * 4 * 144), ("fully_connected", (5, 8, 3), 120),
])
def test_numbers_that_come_out(encoder, shape, expected):
    image = image_of(shape, encoder)
    assert flat_width(image) == expected


@pytest.mark.parametrize("encoder, side", SMALLEST_SIDE.items())
def test_smallest_images_leave_one_pixel_at_least(encoder, side):
    """And one pixel less leaves nothing of them in the encoders without padding; 15 is ML-Agents' minimum for resnet."""
    image = image_of((side, 50, 3), encoder)
    assert flat_width(image) > 0
    if encoder not in ("resnet", "fully_connected"):
        height = side - 1
        for layer in encoder_layers(image, ""):
            height = layer.side(height)
        assert height < 1


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("size, stride", [(8, 4), (4, 2), (3, 1), (3, 2)])
def test_sides_are_tensorflows(same, size, stride):
    from trainers.quiet_tensorflow import tf

    conv, pool = Conv("c", size, stride, 1, 1, same), MaxPool(size, stride)
    for pixels in range(size, 30):
        x = tf.zeros((1, pixels, pixels, 1))
        out = tf.nn.conv2d(x, tf.zeros((size, size, 1, 1)), stride, "SAME" if same else "VALID")
        assert conv.side(pixels) == out.shape[1] == out.shape[2]
        assert pool.side(pixels) == tf.nn.max_pool2d(x, size, stride, "SAME").shape[1]


def test_prefixes_follow_the_place_among_the_images():
    observations = (ObservationSpec("a", (20, 20, 3), "uint8", "image"), ObservationSpec("x", (2,)), ObservationSpec("b", (20, 20), "uint8", "image"))
    arch = architecture(BehaviorSpec(observations, ActionSpec("discrete")), NetworkSettings())
    assert [encoder_prefix(arch, image, "critic") for image in arch.images] == ["critic/encoder_0", "critic/encoder_1"]
    assert np.prod(arch.images[1].shape) == 400
