"""Policies with weights of ordinary size, observations for them, and their networks as loops over single numbers in float64."""

from __future__ import annotations

import math

import numpy as np

from envs.specs import ActionSpec, ObservationSpec
from trainers.architecture import architecture
from trainers.encoders import Conv, MaxPool, Residual, encoder_layers, encoder_prefix
from trainers.networks import policy_layout
from trainers.policy import Policy
from trainers.settings import NetworkSettings

OBS = (ObservationSpec("obs", (3,)),)
TWO_OBS = (ObservationSpec("a", (3,), "float64"), ObservationSpec("b", (2, 2), "uint8"))
CATEGORICAL = ObservationSpec("kind", (2,), "int64", "categorical", choices=(3, 2), starts=(0, -1))
BINARY = ObservationSpec("flags", (2, 2), "int8", "binary")
MIXED_OBS = (CATEGORICAL, ObservationSpec("speed", (2,)), BINARY)
"""Numbers of every kind; the normalised ones are not the first."""
IMAGE = ObservationSpec("image", (3, 21, 24), "uint8", "image", is_uint8_image=True)
GRID = ObservationSpec("grid", (7, 8, 3), "int16", "image")
DICT_OBS = (GRID, *MIXED_OBS, IMAGE)
"""Numbers of every kind, and two images of different layouts for different encoders."""
DICT_NETWORK = {"observations": {"grid": {"encoder": "match3"}}, "vis_encode_type": "simple"}
ACTIONS = {
    "box": ActionSpec("box", continuous_size=2),
    "discrete": ActionSpec("discrete", discrete_branches=(4,)),
    "multi_discrete": ActionSpec("multi_discrete", discrete_branches=(2, 4, 1)),
    "hybrid": ActionSpec("box", continuous_size=2, discrete_branches=(3,)),
}
MEMORY = {"memory": {"sequence_length": 4, "memory_size": 10}}
ACTIVATIONS = {
    "tanh": math.tanh,
    "relu": lambda x: max(x, 0.0),
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "swish": lambda x: x / (1 + math.exp(-x)),
}


def random_weights(arch, seed=0, distribution="gaussian", scale=0.7):
    """Weights of ordinary size everywhere, so that every tensor matters."""
    return fill(policy_layout(arch, distribution), seed, scale)


def fill(layout, seed=0, scale=0.7):
    """Tensors of a layout; those of encoders so small that thousands of pixels add up to numbers of ordinary size."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in layout.items():
        w = rng.normal(size=shape) * scale
        if "/encoder_" in name:
            w *= 2.0 / math.sqrt(math.prod(shape[:-1])) if name.endswith("/kernel") else 0.2
            w *= 0.3 if "/block_" in name else 1.0  # else the numbers grow from block to block
        weights[name] = np.abs(w) + 0.5 if name.endswith("/std") else w
    return {name: w.astype(np.float32) for name, w in weights.items()}


def policy_and_weights(spec, version=0, distribution="gaussian", noise_steps=None, scale=0.7, **network):
    settings = NetworkSettings(**{"hidden_units": 8, "activation": "tanh", **network})
    policy = Policy(spec, settings, distribution, noise_steps)
    weights = random_weights(architecture(spec, settings), 0, distribution, scale)
    policy.set_weights(weights, version)
    return policy, weights


def observe(spec, rng, n):
    return {o.name: _draw(o, rng, n).astype(o.dtype) for o in spec.observations}


def _draw(o, rng, n):
    shape = (n, *o.shape)
    if o.kind == "categorical":
        return (rng.integers(0, o.choices, (n, o.size)) + o.starts).reshape(shape)
    if o.kind == "binary":
        return rng.integers(0, 2, shape)
    if o.is_uint8_image:
        return rng.integers(0, 256, shape)
    return rng.integers(0, 9, shape) if np.dtype(o.dtype).kind in "iu" else rng.normal(size=shape) * 2


def slow_dense(weights, name, x):
    kernel, bias = weights[f"{name}/kernel"].astype(np.float64), weights[f"{name}/bias"]
    return [sum(x[k] * kernel[k, j] for k in range(len(x))) + float(bias[j]) for j in range(len(bias))]


def slow_pixels(image, x):
    """One stored image -> float64 [height, width, channels]; channel s·C + c is colour c of frame s."""
    axes, stored = dict(zip(image.layout, range(x.ndim), strict=True)), np.asarray(x, np.float64)
    pixels = np.zeros((image.height, image.width, image.channels))
    colours = x.shape[axes["C"]] if "C" in axes else 1
    for h in range(image.height):
        for w in range(image.width):
            for channel in range(image.channels):
                at = {"H": h, "W": w, "S": channel // colours, "C": channel % colours}
                pixels[h, w, channel] = stored[tuple(at[axis] for axis in image.layout)]
    return pixels / 255 if image.scale else pixels


def slow_convolution(weights, layer, x):
    """float64 [H, W, inputs] -> [H', W', outputs]."""
    kernel, bias = weights[layer.kernel].astype(np.float64), weights[layer.bias].astype(np.float64)
    x, (height, width) = _padded(x, layer.size, layer.stride, 0.0) if layer.same else (x, (
        (x.shape[0] - layer.size) // layer.stride + 1, (x.shape[1] - layer.size) // layer.stride + 1))
    out = np.zeros((height, width, layer.outputs))
    for h in range(height):
        for w in range(width):
            top, left = h * layer.stride, w * layer.stride
            window = x[top : top + layer.size, left : left + layer.size]
            for o in range(layer.outputs):
                out[h, w, o] = (window * kernel[:, :, :, o]).sum() + bias[o]
    return np.maximum(out, 0.0) if layer.relu else out


def slow_max_pool(layer, x):
    x, (height, width) = _padded(x, layer.size, layer.stride, -np.inf)
    out = np.zeros((height, width, x.shape[2]))
    for h in range(height):
        for w in range(width):
            top, left = h * layer.stride, w * layer.stride
            out[h, w] = x[top : top + layer.size, left : left + layer.size].max(axis=(0, 1))
    return out


def _padded(x, size, stride, value):
    """TensorFlow's SAME: ceil(side / stride) windows; what they reach beyond the image is split, the odd one at the end."""
    sides = [-(-side // stride) for side in x.shape[:2]]
    needed = [max((out - 1) * stride + size - side, 0) for out, side in zip(sides, x.shape[:2], strict=True)]
    return np.pad(x, [*((p // 2, p - p // 2) for p in needed), (0, 0)], constant_values=value), sides


def slow_encoder(arch, weights, image, x, scope="actor"):
    """One stored image -> the outputs of its encoder."""
    prefix = encoder_prefix(arch, image, scope)
    y = slow_pixels(image, x)
    for layer in encoder_layers(image, prefix):
        if isinstance(layer, Conv):
            y = slow_convolution(weights, layer, y)
        elif isinstance(layer, MaxPool):
            y = slow_max_pool(layer, y)
        elif isinstance(layer, Residual):
            inner = slow_convolution(weights, layer.first, np.maximum(y, 0.0))
            y = y + slow_convolution(weights, layer.second, np.maximum(inner, 0.0))
        else:
            y = np.maximum(y, 0.0)
    return [ACTIVATIONS[arch.activation](v) for v in slow_dense(weights, f"{prefix}/dense", [float(v) for v in y.ravel()])]


def slow_vector(arch, weights, obs, i):
    """The joined vector of agent `i`, normalised."""
    x = []
    for part in arch.vectors:
        flat = np.asarray(obs[part.name][i], np.float64).ravel()
        if part.choices:
            flat = [float(v - start == k) for v, start, n in zip(flat, part.starts, part.choices, strict=True) for k in range(n)]
        elif part.normalized:
            mean, std = weights[f"normalizer/{part.name}/mean"].ravel(), weights[f"normalizer/{part.name}/std"].ravel()
            flat = [min(max((v - m) / s, -5.0), 5.0) for v, m, s in zip(flat, mean, std, strict=True)]
        x += [float(v) for v in flat]
    return x


def slow_body(arch, weights, obs, i):
    """Output of encoders and dense layers for agent `i`, one float64 number after another."""
    x = slow_vector(arch, weights, obs, i)
    for image in arch.images:
        x += slow_encoder(arch, weights, image, obs[image.name][i])
    for layer in range(len(arch.layers)):
        x = [ACTIVATIONS[arch.activation](v) for v in slow_dense(weights, f"actor/dense_{layer}", x)]
    return x


def slow_lstm(weights, x, memory, name="actor/lstm"):
    """One step of a recurrent layer: memory (h, then c) before it -> memory after it."""
    units = len(memory) // 2
    h, c = memory[:units], memory[units:]
    kernel, recurrent = (weights[f"{name}/{part}"].astype(np.float64) for part in ("kernel", "recurrent_kernel"))
    z = np.asarray(x) @ kernel + np.asarray(h) @ recurrent + weights[f"{name}/bias"]
    sigmoid = lambda v: 1 / (1 + math.exp(-v))
    new_h, new_c = [], []
    for k in range(units):
        i, f, g, o = (z[gate * units + k] for gate in range(4))
        new_c.append(sigmoid(f) * c[k] + sigmoid(i) * math.tanh(g))
        new_h.append(sigmoid(o) * math.tanh(new_c[k]))
    return new_h + new_c


def slow_features(arch, weights, obs, i, memory=None):
    """What the heads stand on for agent `i`; with a recurrent layer h after this step, zeros before it unless `memory` says more."""
    x = slow_body(arch, weights, obs, i)
    if arch.memory is None:
        return x
    return slow_lstm(weights, x, [0.0] * arch.memory.size if memory is None else memory)[: arch.memory.units]


def slow_heads(arch, weights, obs, i, memory=None):
    """Mean and logits of each branch for agent `i`."""
    x = slow_features(arch, weights, obs, i, memory)
    mean = slow_dense(weights, "actor/mean", x) if arch.spec.action.continuous_size else []
    return mean, [slow_dense(weights, f"actor/branch_{b}", x) for b in range(len(arch.spec.action.discrete_branches))]


def slow_log_std(arch, weights, obs, i, distribution):
    """Log sigma of u for agent `i`, where the action is squashed."""
    x = slow_features(arch, weights, obs, i)
    if distribution == "squashed_gaussian":
        return [min(max(v, -20.0), 2.0) for v in slow_dense(weights, "actor/log_std", x)]
    log_std = weights["actor/log_std"].astype(np.float64)
    return [
        0.5 * math.log(sum((x[k] * math.exp(log_std[k, c])) ** 2 for k in range(len(x))) + 1e-6)
        for c in range(arch.spec.action.continuous_size)
    ]
