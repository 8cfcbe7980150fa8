"""Policies with weights of ordinary size, observations for them, and their networks as loops over single numbers."""

from __future__ import annotations

import math

import numpy as np

from envs.specs import ActionSpec, ObservationSpec
from trainers.networks import policy_layout
from trainers.policy import Policy
from trainers.settings import NetworkSettings

OBS = (ObservationSpec("obs", (3,)),)
TWO_OBS = (ObservationSpec("a", (3,), "float64"), ObservationSpec("b", (2, 2), "uint8"))
ACTIONS = {
    "box": ActionSpec("box", continuous_size=2),
    "discrete": ActionSpec("discrete", discrete_branches=(4,)),
    "multi_discrete": ActionSpec("multi_discrete", discrete_branches=(2, 4, 1)),
    "hybrid": ActionSpec("box", continuous_size=2, discrete_branches=(3,)),
}
ACTIVATIONS = {
    "tanh": math.tanh,
    "relu": lambda x: max(x, 0.0),
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "swish": lambda x: x / (1 + math.exp(-x)),
}


def random_weights(spec, network, seed=0, distribution="gaussian", scale=0.7):
    """Weights of ordinary size everywhere, so that every tensor matters."""
    rng = np.random.default_rng(seed)
    layout = policy_layout(spec, network, distribution)
    weights = {name: (rng.normal(size=shape) * scale).astype(np.float32) for name, shape in layout.items()}
    return {name: np.abs(w) + 0.5 if name.endswith("/std") else w for name, w in weights.items()}


def policy_and_weights(spec, version=0, distribution="gaussian", noise_steps=None, scale=0.7, **network):
    settings = NetworkSettings(**{"hidden_units": 8, "activation": "tanh", **network})
    policy, weights = Policy(spec, settings, distribution, noise_steps), random_weights(spec, settings, 0, distribution, scale)
    policy.set_weights(weights, version)
    return policy, weights


def observe(spec, rng, n):
    def draw(o):
        return rng.integers(0, 9, (n, *o.shape)) if o.dtype == "uint8" else rng.normal(size=(n, *o.shape)) * 2

    return {o.name: draw(o).astype(o.dtype) for o in spec.observations}


def slow_dense(weights, name, x):
    kernel, bias = weights[f"{name}/kernel"].astype(np.float64), weights[f"{name}/bias"]
    return [sum(x[k] * kernel[k, j] for k in range(len(x))) + float(bias[j]) for j in range(len(bias))]


def slow_features(spec, network, weights, obs, i):
    """Output of the body for agent `i`, one float64 number after another."""
    x = []
    for o in spec.observations:
        flat = np.asarray(obs[o.name][i], np.float64).ravel()
        if network.normalize:
            mean, std = weights[f"normalizer/{o.name}/mean"].ravel(), weights[f"normalizer/{o.name}/std"].ravel()
            flat = [min(max((v - m) / s, -5.0), 5.0) for v, m, s in zip(flat, mean, std, strict=True)]
        x += [float(v) for v in flat]
    for layer in range(network.num_layers):
        x = [ACTIVATIONS[network.activation](v) for v in slow_dense(weights, f"actor/dense_{layer}", x)]
    return x


def slow_heads(spec, network, weights, obs, i):
    """Mean and logits of each branch for agent `i`."""
    x = slow_features(spec, network, weights, obs, i)
    mean = slow_dense(weights, "actor/mean", x) if spec.action.continuous_size else []
    return mean, [slow_dense(weights, f"actor/branch_{b}", x) for b in range(len(spec.action.discrete_branches))]


def slow_log_std(spec, network, weights, obs, i, distribution):
    """Log sigma of u for agent `i`, where the action is squashed."""
    x = slow_features(spec, network, weights, obs, i)
    if distribution == "squashed_gaussian":
        return [min(max(v, -20.0), 2.0) for v in slow_dense(weights, "actor/log_std", x)]
    log_std = weights["actor/log_std"].astype(np.float64)
    return [
        0.5 * math.log(sum((x[k] * math.exp(log_std[k, c])) ** 2 for k in range(len(x))) + 1e-6)
        for c in range(spec.action.continuous_size)
    ]
