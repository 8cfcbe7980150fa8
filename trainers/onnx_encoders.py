"""Visual encoders in onnxruntime, which is faster than NumPy on convolutions: 1.5 times with nature_cnn, twice with resnet.

Used where the packages ``onnxruntime`` and ``onnx`` are installed, for encoders that gain by it; `scripts/acting.py` measures both.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

import numpy as np

from trainers.architecture import Architecture, ImageInput
from trainers.encoders import Conv, MaxPool, Residual, encoder_layers, encoder_prefix
from trainers.networks import encoder_dense
from trainers.onnx_graph import OnnxGraph
from trainers.trainer import Weights

_FASTER = ("simple", "nature_cnn", "resnet")
_OPSET, _IR_VERSION = 17, 9  # of 2022: what onnxruntime 1.14 and later read


@functools.cache
def is_installed() -> bool:
    """Whether onnxruntime can be used here."""
    return find_spec("onnxruntime") is not None and find_spec("onnx") is not None


def suits(image: ImageInput) -> bool:
    """Whether the encoder of an image is to run in onnxruntime."""
    return image.encoder in _FASTER and is_installed()


class OnnxEncoder:
    """One visual encoder of the actor, with the methods of `trainers.numpy_encoders.ImageEncoder`."""

    def __init__(self, arch: Architecture, image: ImageInput) -> None:
        self._arch, self._image = arch, image

    def prepare(self, weights: Weights) -> Any:
        """A session of these weights; of one thread, as an env manager has."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(_model(self._arch, self._image, weights), options, providers=["CPUExecutionProvider"])

    def encode(self, session: Any, x: np.ndarray) -> np.ndarray:
        """Features of `n` images ``[n, *shape]`` as stored: float32 ``[n, U]``, a fresh array."""
        return session.run(None, {"images": np.ascontiguousarray(x)})[0]


def _model(arch: Architecture, image: ImageInput, weights: Weights) -> bytes:
    """The encoder as an ONNX model, ``images`` -> features."""
    graph = OnnxGraph(_OPSET, _IR_VERSION)
    dtype = np.dtype(next(o.dtype for o in arch.spec.observations if o.name == image.name))
    stored = graph.input("images", dtype, ["n", *image.shape])
    x = image_features(graph, arch, image, weights, channels_first(graph, image, graph.node("Cast", stored, to=1)))
    graph.output(x, "features", np.float32, ["n", arch.image_units])
    return graph.model("encoder")


def channels_first(graph: OnnxGraph, image: ImageInput, x: str) -> str:
    """Images as they are stored, float32 ``[n, *shape]`` -> ``[n, C, H, W]``; stacked frames become channels, as in `Architecture`."""
    order = [0, *(1 + image.to_channels_last[i] for i in (*range(2, len(image.shape)), 0, 1))]
    if order != sorted(order):
        x = graph.node("Transpose", x, perm=order)
    return graph.node("Reshape", x, graph.constant(np.array([-1, image.channels, image.height, image.width], np.int64)))


def image_features(graph: OnnxGraph, arch: Architecture, image: ImageInput, weights: Weights, x: str) -> str:
    """The actor's encoder of an image, pixels as stored but float32 ``[n, C, H, W]`` (which onnxruntime's convolutions want) -> ``[n, U]``."""
    def conv(x: str, layer: Conv) -> str:
        kernel, bias = weights[layer.kernel].transpose(3, 2, 0, 1), weights[layer.bias]
        padding = "SAME_UPPER" if layer.same else "VALID"
        x = graph.node("Conv", x, graph.constant(kernel), graph.constant(bias), strides=[layer.stride] * 2, auto_pad=padding,
                       kernel_shape=[layer.size] * 2)
        return graph.node("Relu", x) if layer.relu else x

    if image.scale:
        x = graph.number("Mul", x, 1.0 / 255.0)
    for layer in encoder_layers(image, encoder_prefix(arch, image, "actor")):
        if isinstance(layer, Conv):
            x = conv(x, layer)
        elif isinstance(layer, MaxPool):
            x = graph.node("MaxPool", x, kernel_shape=[layer.size] * 2, strides=[layer.stride] * 2, auto_pad="SAME_UPPER")
        elif isinstance(layer, Residual):
            x = graph.node("Add", x, conv(graph.node("Relu", conv(graph.node("Relu", x), layer.first)), layer.second))
        else:
            x = graph.node("Relu", x)
    dense = encoder_dense(arch, image)
    x = graph.node("Flatten", graph.node("Transpose", x, perm=[0, 2, 3, 1]))
    return graph.activation(graph.dense(x, weights[dense.kernel], weights[dense.bias]), arch.activation)
