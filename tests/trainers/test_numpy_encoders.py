"""Visual encoders in NumPy against loops in float64 and against TensorFlow."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from tests.trainers.policies import fill, slow_encoder
from trainers import numpy_encoders
from trainers.architecture import architecture
from trainers.encoders import Conv, MaxPool
from trainers.networks import encoder_layout
from trainers.numpy_encoders import ImageEncoder
from trainers.settings import NetworkSettings

SMALL = [
    ((20, 24, 3), "uint8", "simple", {}),
    ((3, 23, 21), "uint8", "simple", {}),  # sides that no block fills, channels first
    ((21, 22), "uint8", "simple", {}),
    ((4, 20, 23, 3), "uint8", "simple", {}),  # four frames, colours last
    ((2, 3, 22, 20), "float32", "simple", {}),  # two frames, colours first
    ((36, 37, 1), "float32", "nature_cnn", {}),
    ((2, 38, 36), "uint8", "nature_cnn", {}),
    ((15, 16, 3), "uint8", "resnet", {}),
    ((3, 17, 22), "int16", "resnet", {}),
    ((7, 7, 3), "int64", "match3", {}),
    ((5, 8), "uint8", "match3", {}),
    ((3, 6, 9), "uint8", "fully_connected", {}),
    ((6, 9, 3), "float32", "fully_connected", {}),
    ((5, 5, 5), "uint8", "match3", {"channels": "first"}),
]
LARGE = [
    ((4, 84, 84), "uint8", "nature_cnn"), ((84, 84, 3), "uint8", "simple"), ((64, 96, 3), "float32", "resnet"), ((3, 210, 160), "uint8", "nature_cnn"),
]


def network(shape, dtype, encoder, activation="tanh", **settings):
    """Architecture of one image, and weights of its encoder."""
    spec = BehaviorSpec((ObservationSpec("image", shape, dtype, "image", is_uint8_image=dtype == "uint8"),), ActionSpec("discrete"))
    arch = architecture(spec, NetworkSettings(
        hidden_units=6, activation=activation, vis_encode_type=encoder, observations={"image": settings} if settings else {}))
    return arch, fill(encoder_layout(arch), seed=1)


def pictures(rng, shape, dtype, n):
    return (rng.integers(0, 256, (n, *shape)) if np.dtype(dtype).kind in "iu" else rng.random((n, *shape))).astype(dtype)


def encoded(arch, weights, x):
    encoder = ImageEncoder(arch, arch.images[0])
    return encoder.encode(encoder.prepare(weights), x).copy()


@pytest.mark.parametrize("shape, dtype, encoder, settings", SMALL)
def test_encoders_agree_with_loops(shape, dtype, encoder, settings):
    """C60: every layout and dtype, pixels divided by 255 exactly where they are uint8 from 0 to 255."""
    arch, weights = network(shape, dtype, encoder, **settings)
    x = pictures(np.random.default_rng(2), shape, dtype, 2)
    if dtype.startswith("int"):
        x = (x // 64).astype(dtype)  # codes of a grid
    result = encoded(arch, weights, x)
    assert result.shape == (2, 6) and result.dtype == np.float32
    expected = [slow_encoder(arch, weights, arch.images[0], x[i]) for i in range(2)]
    assert np.ptp(expected) > 0.1, "a test in which every output is the same shows nothing"
    np.testing.assert_allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize("shape, dtype, encoder", LARGE)
def test_encoders_agree_with_tensorflow(shape, dtype, encoder):
    """Images of ordinary size, which go through in several groups and many matrix products."""
    from trainers.graph import encode_image
    from trainers.quiet_tensorflow import tf

    arch, weights = network(shape, dtype, encoder)
    x = pictures(np.random.default_rng(3), shape, dtype, 5)
    parameters = {name: tf.constant(w) for name, w in weights.items()}
    expected = encode_image(parameters, tf.constant(x), arch.images[0], arch, "actor").numpy()
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(encoded(arch, weights, x), expected, atol=1e-5)


@pytest.mark.parametrize("encoder", ["simple", "nature_cnn", "resnet", "match3"])
@pytest.mark.parametrize("images, windows", [(1, 1), (2**13, 2**9), (2**13, 2**13), (2**15, 2**11)])
def test_groups_and_pieces_of_any_size_give_the_same(monkeypatch, encoder, images, windows):
    shape = (11, 12, 2) if encoder == "match3" else (39, 37, 2)
    arch, weights = network(shape, "uint8", encoder)
    x = pictures(np.random.default_rng(4), shape, "uint8", 7)
    expected = encoded(arch, weights, x)
    monkeypatch.setattr(numpy_encoders, "GROUP_NUMBERS", images)
    monkeypatch.setattr(numpy_encoders, "WINDOW_NUMBERS", windows)
    np.testing.assert_allclose(encoded(arch, weights, x), expected, atol=2e-6)


@pytest.mark.parametrize("encoder", ["simple", "resnet", "fully_connected"])
def test_one_image_is_encoded_as_in_a_batch(encoder):
    """C91: also in batches that grow and shrink, with the same buffers."""
    arch, weights = network((21, 24, 3), "uint8", encoder)
    x = pictures(np.random.default_rng(5), (21, 24, 3), "uint8", 30)
    numpy_encoder = ImageEncoder(arch, arch.images[0])
    prepared = numpy_encoder.prepare(weights)
    alone = np.concatenate([numpy_encoder.encode(prepared, x[i : i + 1]).copy() for i in range(30)])
    for sizes in ([30], [1, 29], [13, 7, 10], [2] * 15):
        edges = pairwise(np.cumsum([0, *sizes]))
        together = np.concatenate([numpy_encoder.encode(prepared, x[a:b]).copy() for a, b in edges])
        np.testing.assert_allclose(together, alone, atol=2e-6)
    assert numpy_encoder.encode(prepared, x[:0]).shape == (0, 6)


@pytest.mark.parametrize("encoder", ["simple", "resnet", "fully_connected"])
def test_images_in_any_memory_order(encoder):
    """Views of a larger array, and reversed ones; the image itself stays as it is."""
    arch, weights = network((3, 21, 24), "uint8", encoder)
    x = pictures(np.random.default_rng(6), (3, 21, 24), "uint8", 4)
    expected, before = encoded(arch, weights, x), x.copy()
    for view in (np.repeat(x, 2, axis=0)[::2], np.asfortranarray(x), np.ascontiguousarray(x[..., ::-1])[..., ::-1]):
        np.testing.assert_array_equal(encoded(arch, weights, view), expected)
    np.testing.assert_array_equal(x, before)


def test_pixels_are_scaled_once_and_only_where_asked_for():
    """C60: 255 times as large a kernel makes up for the scale; a float image passes untouched, whatever its numbers."""
    x = pictures(np.random.default_rng(7), (20, 20, 3), "uint8", 2)
    scaled, weights = network((20, 20, 3), "uint8", "simple")
    unscaled, _ = network((20, 20, 3), "uint8", "simple", scale=False)
    as_float, _ = network((20, 20, 3), "float32", "simple")
    first = "actor/encoder_0/conv_0/kernel"
    shrunk = {**weights, first: weights[first] / np.float32(255)}
    expected = encoded(scaled, weights, x)
    np.testing.assert_allclose(encoded(unscaled, shrunk, x), expected, atol=1e-5)
    np.testing.assert_allclose(encoded(as_float, shrunk, x.astype(np.float32)), expected, atol=1e-5)
    np.testing.assert_allclose(encoded(as_float, weights, x.astype(np.float32) / np.float32(255)), expected, atol=1e-5)


def test_weights_are_copied():
    arch, weights = network((20, 20, 3), "uint8", "simple")
    numpy_encoder, x = ImageEncoder(arch, arch.images[0]), pictures(np.random.default_rng(8), (20, 20, 3), "uint8", 2)
    before = {name: w.copy() for name, w in weights.items()}
    prepared = numpy_encoder.prepare(weights)
    for name, w in weights.items():
        np.testing.assert_array_equal(w, before[name])
    old = numpy_encoder.encode(prepared, x).copy()
    for w in weights.values():
        w += 1
    np.testing.assert_array_equal(numpy_encoder.encode(prepared, x), old)
    assert not np.array_equal(numpy_encoder.encode(numpy_encoder.prepare(weights), x), old)


def test_memory_does_not_grow_with_the_batch_but_for_the_features():
    """Windows of 64 images of 84 x 84 would take 26 MB."""
    arch, weights = network((4, 84, 84), "uint8", "nature_cnn")
    numpy_encoder = ImageEncoder(arch, arch.images[0])
    numpy_encoder.encode(numpy_encoder.prepare(weights), np.zeros((64, 4, 84, 84), np.uint8))
    stages = numpy_encoder._stages._stages
    assert sum(s.inputs.nbytes + s._copies.nbytes for s in stages) < 4e6


@pytest.mark.parametrize("size, stride", [(3, 2), (4, 2), (4, 1), (5, 3), (2, 2)])
@pytest.mark.parametrize("same", [False, True])
def test_convolutions_of_any_stride_pad_as_tensorflow_does(size, stride, same):
    """Also those that no encoder has: an odd number of padded pixels, the last of which comes after the image."""
    from trainers.quiet_tensorflow import tf

    rng = np.random.default_rng(9)
    for height, width in ((9, 10), (10, 12), (11, 9)):
        layer = Conv("conv", size, stride, 3, 5, same, relu=False)
        x, kernel = (rng.normal(size=shape).astype(np.float32) for shape in ((2, height, width, 3), (size, size, 3, 5)))
        convolution = numpy_encoders._Convolution(layer, 0, (2, height, width, 3))
        convolution.inputs[...] = x
        out = np.empty((2, *convolution.out_shape), np.float32)
        bias = np.arange(5, dtype=np.float32)
        convolution.run([(kernel.reshape(-1, 5), np.tile(bias, convolution.out_shape[1]))], out)
        np.testing.assert_allclose(out, tf.nn.conv2d(x, kernel, stride, "SAME" if same else "VALID") + bias, atol=1e-5)


@pytest.mark.parametrize("size, stride", [(3, 2), (4, 2), (3, 1), (5, 3), (2, 2)])
def test_max_pools_of_any_stride_pad_as_tensorflow_does(size, stride):
    from trainers.quiet_tensorflow import tf

    rng = np.random.default_rng(10)
    for height, width in ((9, 10), (10, 12), (11, 9)):
        x = rng.normal(size=(2, height, width, 3)).astype(np.float32) - 5
        pool = numpy_encoders._MaxPool(MaxPool(size, stride), x.shape)
        pool.inputs[...] = x
        out = np.empty((2, *pool.out_shape), np.float32)
        pool.run([], out)
        np.testing.assert_array_equal(out, tf.nn.max_pool2d(x, size, stride, "SAME"))
