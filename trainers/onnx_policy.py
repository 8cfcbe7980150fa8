"""A whole policy as one ONNX file: normaliser, encoders, dense layers, memory, heads, masks, squashing and clipping, from weights.

Names, axes and meanings are those that Unity's ML-Agents package reads (``version_number`` 3): everything float32, the batch first,
images ``[batch, channels, height, width]``, continuous actions in [-1, 1], choices from 0.

Letters: ``M`` size of the memory, ``C`` continuous dimensions, ``B`` discrete branches, ``W`` choices of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from envs.specs import ActionSpec
from trainers.architecture import Architecture, VectorInput
from trainers.distributions import LOG_STD_MAX, LOG_STD_MIN
from trainers.exploration_noise import VARIANCE_FLOOR
from trainers.networks import LOG_STD, Distribution, body_layers, lstm_layer, normalizer_names
from trainers.normalizer import CLIP
from trainers.onnx_encoders import channels_first, image_features
from trainers.onnx_graph import OnnxGraph
from trainers.trainer import Weights

OPSET, IR_VERSION = 9, 4  # of 2019, as ML-Agents writes: Barracuda, Sentis, Inference Engine and onnxruntime read them
VERSION_NUMBER = 3
"""Of ML-Agents' format: observations by place, continuous and discrete actions at once, memory as an ordinary input."""
FORBIDDEN = 1e8
"""Taken from the logit of a masked choice. Finite, so that a mask of zeros (with which Unity tries a model) gives no NaN."""
_BATCH = "batch"


def policy_model(
    arch: Architecture, weights: Weights, distribution: Distribution, env_space: bool = False, metadata: Mapping[str, str] | None = None
) -> bytes:
    """The ONNX file of a policy.

    Inputs, each where the policy has a use for it: ``obs_{i}`` of the observations in the order of the spec, ``action_masks``
    ``[batch, W]`` (1 = allowed), ``recurrent_in`` ``[batch, 1, M]``. Outputs: ``version_number`` and ``memory_size`` ``[1]``; of
    continuous actions ``continuous_actions`` and ``deterministic_continuous_actions`` ``[batch, C]`` and
    ``continuous_action_output_shape`` ``[1]``; of discrete ones ``discrete_actions`` and ``deterministic_discrete_actions`` int64
    ``[batch, B]`` and ``discrete_action_output_shape`` ``[1, B]``; ``recurrent_out`` like ``recurrent_in``. Those that are not
    called deterministic are samples, drawn in the graph.

    Args:
        arch: without a model of the user's.
        weights: the policy's.
        env_space: images come in as the environment stores them, and the actions come out also as ``env_…``, in units of the
            environment: a Box from low to high, flat; a choice counted from its start.
        metadata: text to keep in the file, by name.
    """
    graph = OnnxGraph(OPSET, IR_VERSION)
    graph.constant_output("version_number", np.array([VERSION_NUMBER], np.float32))
    graph.constant_output("memory_size", np.array([arch.memory_size], np.float32))
    features = _features(graph, arch, weights, env_space)
    if arch.memory is not None:
        features = _remember(graph, arch, weights, features)
    if arch.spec.action.continuous_size:
        _continuous(graph, arch.spec.action, weights, distribution, features, env_space)
    if arch.spec.action.discrete_branches:
        _discrete(graph, arch.spec.action, weights, features, env_space)
    return graph.model("policy", metadata)


def input_shape(arch: Architecture, index: int, env_space: bool = False) -> tuple[int, ...]:
    """Shape of one agent's ``obs_{index}``."""
    o = arch.spec.observations[index]
    image = next((image for image in arch.images if image.name == o.name), None)
    return o.shape if image is None or env_space else (image.channels, image.height, image.width)


def _features(graph: OnnxGraph, arch: Architecture, weights: Weights, env_space: bool) -> str:
    """Inputs -> what comes out of the dense layers, float32 ``[n, U]``."""
    obs = {
        o.name: graph.input(f"obs_{i}", np.float32, [_BATCH, *input_shape(arch, i, env_space)]) for i, o in enumerate(arch.spec.observations)
    }
    parts = [_vector(graph, part, obs[part.name], weights) for part in arch.vectors]
    for image in arch.images:
        x = channels_first(graph, image, obs[image.name]) if env_space else obs[image.name]
        parts.append(image_features(graph, arch, image, weights, x))
    x = graph.side_by_side(parts)
    for layer in body_layers(arch):
        x = graph.activation(graph.dense(x, weights[layer.kernel], weights[layer.bias]), arch.activation)
    return x


def _vector(graph: OnnxGraph, part: VectorInput, x: str, weights: Weights) -> str:
    x = graph.node("Flatten", x, axis=1)
    if part.choices:
        return _one_hot(graph, part, x)
    if not part.normalized:
        return x
    mean, std = (graph.constant(weights[name].reshape(1, -1)) for name in normalizer_names(part.name))
    return graph.node("Clip", graph.node("Div", graph.node("Sub", x, mean), std), min=-CLIP, max=CLIP)


def _one_hot(graph: OnnxGraph, part: VectorInput, x: str) -> str:
    """1 in the column of each element's choice: max(0, 1 − |x − value|), which is 0 or 1 where numbers are whole."""
    element = np.repeat(np.arange(part.size), part.choices)
    value = np.concatenate([start + np.arange(n) for start, n in zip(part.starts, part.choices, strict=True)]).astype(np.float32)
    repeated = graph.node("Gather", x, graph.constant(element.astype(np.int64)), axis=1)
    distance = graph.node("Abs", graph.node("Sub", repeated, graph.constant(value[None])))
    return graph.node("Relu", graph.node("Sub", graph.constant(np.float32(1.0)), distance))


def _remember(graph: OnnxGraph, arch: Architecture, weights: Weights, x: str) -> str:
    """One step of the recurrent layer; h after it."""
    layer, size = lstm_layer(arch), arch.memory_size
    units = layer.units
    memory = graph.node("Flatten", graph.input("recurrent_in", np.float32, [_BATCH, 1, size]), axis=1)
    h, c = graph.columns(memory, 0, units), graph.columns(memory, units, size)
    z = graph.dense(graph.side_by_side([x, h]), np.concatenate([weights[layer.kernel], weights[layer.recurrent_kernel]]), weights[layer.bias])
    i, f, g, o = (graph.columns(z, gate * units, (gate + 1) * units) for gate in range(4))
    kept = graph.node("Mul", graph.node("Sigmoid", f), c)
    c = graph.node("Add", kept, graph.node("Mul", graph.node("Sigmoid", i), graph.node("Tanh", g)))
    h = graph.node("Mul", graph.node("Sigmoid", o), graph.node("Tanh", c))
    graph.output(graph.node("Unsqueeze", graph.side_by_side([h, c]), axes=[1]), "recurrent_out", np.float32, [_BATCH, 1, size])
    return h


def _continuous(graph: OnnxGraph, action: ActionSpec, weights: Weights, distribution: Distribution, features: str, env_space: bool) -> None:
    size = action.continuous_size
    mean = graph.dense(features, weights["actor/mean/kernel"], weights["actor/mean/bias"])
    noise = graph.node("RandomNormalLike", mean, dtype=1, mean=0.0, scale=1.0)
    sample = graph.node("Add", mean, graph.node("Mul", noise, _std(graph, weights, distribution, features)))
    graph.constant_output("continuous_action_output_shape", np.array([size], np.float32))
    for name, x in (("continuous_actions", sample), ("deterministic_continuous_actions", mean)):
        unit = graph.node("Clip", x, min=-1.0, max=1.0) if distribution == "gaussian" else graph.node("Tanh", x)
        graph.output(unit, name, np.float32, [_BATCH, size])
        if env_space:
            graph.output(_to_box(graph, action, unit), f"env_{name}", np.float32, [_BATCH, size])


def _std(graph: OnnxGraph, weights: Weights, distribution: Distribution, features: str) -> str:
    """σ of the action before it is clipped or squashed, ``[C]`` or ``[n, C]``; with state-dependent exploration over all its noise."""
    if distribution == "gaussian":
        return graph.constant(np.exp(weights[LOG_STD]))
    if distribution == "gsde":
        variance = graph.node("MatMul", graph.node("Mul", features, features), graph.constant(np.exp(2.0 * weights[LOG_STD])))
        return graph.node("Sqrt", graph.number("Add", variance, VARIANCE_FLOOR))
    log_std = graph.dense(features, weights[f"{LOG_STD}/kernel"], weights[f"{LOG_STD}/bias"])
    return graph.node("Exp", graph.node("Clip", log_std, min=LOG_STD_MIN, max=LOG_STD_MAX))


def _to_box(graph: OnnxGraph, action: ActionSpec, unit: str) -> str:
    """[-1, 1] -> the bounds of each dimension, as `envs.specs.to_env_actions`; whole numbers where the Box has them."""
    low, high = np.array(action.low), np.array(action.high)
    whole = np.concatenate([
        np.full(a.continuous_size, np.issubdtype(np.dtype(a.dtype), np.integer)) for a in simple_actions(action) if a.continuous_size
    ])
    x = graph.node("Mul", unit, graph.constant(((high - low) / 2.0).astype(np.float32)[None]))
    x = graph.node("Add", x, graph.constant(((high + low) / 2.0).astype(np.float32)[None]))
    x = graph.node("Min", graph.node("Max", x, graph.constant(low.astype(np.float32)[None])), graph.constant(high.astype(np.float32)[None]))
    if not whole.any():
        return x
    rounded = graph.node("Floor", graph.number("Add", x, 0.5))  # there is no Round in this opset
    if whole.all():
        return rounded
    which = whole.astype(np.float32)[None]
    return graph.node("Add", graph.node("Mul", rounded, graph.constant(which)), graph.node("Mul", x, graph.constant(1.0 - which)))


def logits_name(branch: int) -> str:
    """The tensor inside the graph with the logits of a branch before any mask, float32 ``[n, choices]``."""
    return f"branch_{branch}_logits"


def simple_actions(action: ActionSpec) -> tuple[ActionSpec, ...]:
    """The simple spaces of an action, in its order."""
    return tuple(part.action for part in action.parts) or (action,)


def _discrete(graph: OnnxGraph, action: ActionSpec, weights: Weights, features: str, env_space: bool) -> None:
    masks = graph.input("action_masks", np.float32, [_BATCH, action.choices])
    masked_out = graph.number("Mul", graph.number("Sub", masks, 1.0), FORBIDDEN)
    likeliest, sampled, first = [], [], 0
    for b, size in enumerate(action.discrete_branches):
        logits = graph.dense(features, weights[f"actor/branch_{b}/kernel"], weights[f"actor/branch_{b}/bias"], logits_name(b))
        logits = graph.node("Add", logits, graph.columns(masked_out, first, first + size))
        likeliest.append(graph.node("ArgMax", logits, axis=1, keepdims=1))
        # The largest of logits + Gumbel noise is a choice with the probabilities of the softmax. The bounds keep the noise finite.
        uniform = graph.node("RandomUniformLike", logits, dtype=1, low=1e-30, high=0.9999999)
        gumbel = graph.node("Neg", graph.node("Log", graph.node("Neg", graph.node("Log", uniform))))
        sampled.append(graph.node("ArgMax", graph.node("Add", logits, gumbel), axis=1, keepdims=1))
        first += size
    branches = len(action.discrete_branches)
    graph.constant_output("discrete_action_output_shape", np.array([action.discrete_branches], np.float32))
    for name, choices in (("discrete_actions", sampled), ("deterministic_discrete_actions", likeliest)):
        x = graph.side_by_side(choices)
        graph.output(x, name, np.int64, [_BATCH, branches])
        if env_space:
            starts = [start for a in simple_actions(action) for start in a.starts or (0,) * len(a.discrete_branches)]
            graph.output(graph.node("Add", x, graph.constant(np.array([starts], np.int64))), f"env_{name}", np.int64, [_BATCH, branches])
