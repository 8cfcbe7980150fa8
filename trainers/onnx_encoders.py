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
from trainers.trainer import Weights

_FASTER = ("simple", "nature_cnn", "resnet")
_OPSET, _IR_VERSION = 17, 9  # of 2022: what onnxruntime 1.14 and later read
_ACTIVATIONS = {"tanh": ("Tanh",), "relu": ("Relu",), "elu": ("Elu",), "swish": ("Sigmoid", "Mul")}


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
    from onnx import TensorProto, helper, numpy_helper

    nodes, tensors = [], []

    def constant(array: np.ndarray) -> str:
        tensors.append(numpy_helper.from_array(np.ascontiguousarray(array), f"w{len(tensors)}"))
        return tensors[-1].name

    def node(kind: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"x{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def conv(x: str, layer: Conv) -> str:
        kernel, bias = weights[layer.kernel].transpose(3, 2, 0, 1), weights[layer.bias]
        padding = "SAME_UPPER" if layer.same else "VALID"
        x = node("Conv", x, constant(kernel), constant(bias), strides=[layer.stride] * 2, auto_pad=padding)
        return node("Relu", x) if layer.relu else x

    def activation(x: str) -> str:
        first, *product = _ACTIVATIONS[arch.activation]
        y = node(first, x)
        return node(*product, x, y) if product else y

    # Channels first, as onnxruntime's convolutions are; stacked frames become channels, as in `Architecture`.
    order = [0, *(1 + image.to_channels_last[i] for i in (*range(2, len(image.shape)), 0, 1))]
    x = node("Cast", "images", to=TensorProto.FLOAT)
    if order != sorted(order):
        x = node("Transpose", x, perm=order)
    shape = np.array([-1, image.channels, image.height, image.width], np.int64)
    x = node("Reshape", x, constant(shape))
    if image.scale:
        x = node("Mul", x, constant(np.float32(1.0 / 255.0)))
    for layer in encoder_layers(image, encoder_prefix(arch, image, "actor")):
        if isinstance(layer, Conv):
            x = conv(x, layer)
        elif isinstance(layer, MaxPool):
            x = node("MaxPool", x, kernel_shape=[layer.size] * 2, strides=[layer.stride] * 2, auto_pad="SAME_UPPER")
        elif isinstance(layer, Residual):
            x = node("Add", x, conv(node("Relu", conv(node("Relu", x), layer.first)), layer.second))
        else:
            x = node("Relu", x)
    dense = encoder_dense(arch, image)
    x = node("Flatten", node("Transpose", x, perm=[0, 2, 3, 1]))
    x = activation(node("Gemm", x, constant(weights[dense.kernel]), constant(weights[dense.bias])))
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(next(o.dtype for o in arch.spec.observations if o.name == image.name)))
    graph = helper.make_graph(
        nodes, "encoder", [helper.make_tensor_value_info("images", dtype, ["n", *image.shape])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["n", dense.outputs])], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
    model.ir_version = _IR_VERSION
    return model.SerializeToString()
