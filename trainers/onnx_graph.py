"""ONNX graphs from NumPy arrays, node by node; the package ``onnx`` is loaded only when one is made.

Nodes are those that mean the same in every version of the operators from 9 on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_ACTIVATIONS = {"tanh": ("Tanh",), "relu": ("Relu",), "elu": ("Elu",), "swish": ("Sigmoid", "Mul")}


class OnnxGraph:
    """A graph that grows; tensors are known by their names.

    Args:
        opset: version of the operators.
        ir_version: of the file format; the one that came with `opset`, so that programs of that time read it.
    """

    def __init__(self, opset: int, ir_version: int) -> None:
        self._opset, self._ir_version = opset, ir_version
        self._nodes: list[Any] = []
        self._tensors: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str, dtype: np.dtype | type, shape: Sequence[int | str]) -> str:
        """An input; axes given by a name are of any length."""
        self._inputs.append(_value(name, dtype, shape))
        return name

    def output(self, x: str, name: str, dtype: np.dtype | type, shape: Sequence[int | str]) -> str:
        """Tensor `x` as the output `name`."""
        self._outputs.append(_value(name, dtype, shape))
        return self.node("Identity", x, name=name)

    def constant_output(self, name: str, array: np.ndarray) -> str:
        """An output that is always the same."""
        from onnx import numpy_helper

        # A node, not a tensor of the graph: readers that look it up by name without running the graph find both, those that run it only this.
        self._outputs.append(_value(name, array.dtype, array.shape))
        return self.node("Constant", name=name, value=numpy_helper.from_array(array, name))

    def constant(self, array: np.ndarray) -> str:
        """A tensor of the graph."""
        from onnx import numpy_helper

        self._tensors.append(numpy_helper.from_array(np.ascontiguousarray(array), f"w{len(self._tensors)}"))
        return self._tensors[-1].name

    def node(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """The one output of a new node, under `name` or one that is free."""
        from onnx import helper

        self._nodes.append(helper.make_node(kind, inputs, [name or f"x{len(self._nodes)}"], **attributes))
        return self._nodes[-1].output[0]

    def number(self, kind: str, x: str, value: float) -> str:
        """``kind(x, value)`` with one float32 number."""
        return self.node(kind, x, self.constant(np.float32(value)))

    def dense(self, x: str, kernel: np.ndarray, bias: np.ndarray, name: str = "") -> str:
        """``x @ kernel + bias``, float32 ``[n, inputs]`` -> ``[n, outputs]``."""
        return self.node("Gemm", x, self.constant(kernel), self.constant(bias), name=name)

    def activation(self, x: str, name: str) -> str:
        """One of `trainers.activations.ACTIVATIONS`."""
        first, *product = _ACTIVATIONS[name]
        y = self.node(first, x)
        return self.node(*product, x, y) if product else y

    def columns(self, x: str, start: int, stop: int) -> str:
        """``x[:, start:stop]``; for an opset below 10, where places are attributes."""
        return self.node("Slice", x, axes=[1], starts=[start], ends=[stop])

    def side_by_side(self, parts: Sequence[str]) -> str:
        """Tensors ``[n, …]`` joined along their second axis; the only one as it is."""
        return parts[0] if len(parts) == 1 else self.node("Concat", *parts, axis=1)

    def model(self, name: str, metadata: Mapping[str, str] | None = None) -> bytes:
        """The graph as an ONNX file."""
        from onnx import helper

        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, self._tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)], producer_name="raytrain")
        model.ir_version = self._ir_version
        if metadata:
            helper.set_model_props(model, dict(metadata))
        return model.SerializeToString()


def _value(name: str, dtype: np.dtype | type, shape: Sequence[int | str]) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape))
