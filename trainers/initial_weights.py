"""First weights of the actor and critic networks, in NumPy, so that acting never waits for TensorFlow to load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trainers.architecture import Architecture
from trainers.encoders import Conv, EncoderLayer, Residual, encoder_layers, encoder_prefix
from trainers.networks import (
    HIDDEN_GAIN,
    Dense,
    Distribution,
    Lstm,
    action_heads,
    body_layers,
    encoder_dense,
    free_log_std,
    lstm_layer,
    normalizer_layout,
    value_heads,
)
from trainers.trainer import Weights

RESIDUAL_SCALE = 0.1
"""Of the second convolution of a residual block: a block hardly changes what goes through it at first, where with the full gain
six of them made features 15 to 25 times too large. Fixup (Zhang, Dauphin & Ma 2019, https://arxiv.org/abs/1901.09321) begins at 0."""


def initial_weights(
    arch: Architecture,
    rng: np.random.Generator,
    initial_std: float = 1.0,
    value_signals: Sequence[str] = ("extrinsic",),
    shared_critic: bool = False,
) -> Weights:
    """First weights of a Gaussian actor and its critic, and an identity normaliser where one is used.

    The gain of value heads is 1; see `initial_actor` for the other layers. The actor is drawn first: for one state of `rng` it
    does not depend on the critic.

    Args:
        initial_std: standard deviation of continuous actions, in policy space [-1, 1]; above 0.
        value_signals: names of the reward signals, one value head each.

    Returns:
        float32 arrays by tensor name; `policy_layout` names those that acting needs.
    """
    return {
        **initial_actor(arch, rng, "gaussian", float(np.log(initial_std))),
        **({} if shared_critic else initial_body(arch, rng, "critic")),
        **initial_layers(value_heads(arch, value_signals), rng),
        **initial_normalizer(arch),
    }


def initial_actor(
    arch: Architecture, rng: np.random.Generator, distribution: Distribution, initial_log_std: float = -3.0
) -> Weights:
    """First weights of an actor: the tensors of `actor_layout`.

    Kernels are orthogonal: gain sqrt(2) in encoders (see `RESIDUAL_SCALE`) and body whatever the activation, and 0.01 in the heads, so that the first
    policy hardly depends on the observation. Biases are 0, so the first σ of a squashed Gaussian is about 1.

    Source: orthogonal kernels: Saxe, McClelland & Ganguli 2014, https://arxiv.org/abs/1312.6120. Small last policy layer:
    Andrychowicz et al. 2021, https://arxiv.org/abs/2006.05990, section 3.2. Gains as in the PPO of OpenAI Baselines: Huang et
    al. 2022, https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/, detail 2.

    Args:
        initial_log_std: every element of a free ``actor/log_std`` (``"gaussian"``, ``"gsde"``), in policy space [-1, 1]; a
            squashed Gaussian has none.
    """
    weights = {**initial_body(arch, rng, "actor"), **initial_layers(action_heads(arch, distribution), rng)}
    for name, shape in free_log_std(arch, distribution).items():
        weights[name] = np.full(shape, initial_log_std, np.float32)
    return weights


def initial_body(arch: Architecture, rng: np.random.Generator, scope: str) -> Weights:
    """First weights of `body_layout`: as `initial_actor` says, of a recurrent layer as `initial_lstm`; a user's model makes its own."""
    lstm = lstm_layer(arch, scope)
    return {
        **initial_encoders(arch, rng, scope), **initial_layers(body_layers(arch, scope), rng),
        **(initial_lstm(lstm, rng) if lstm else {}),
    }


def initial_encoders(arch: Architecture, rng: np.random.Generator, scope: str) -> Weights:
    """First weights of `encoder_layout`."""
    if arch.model is not None:
        from trainers.keras_model import initial_model

        return initial_model(arch, rng, scope)
    weights: Weights = {}
    for image in arch.images:
        for conv, gain in _convolutions_and_gains(encoder_layers(image, encoder_prefix(arch, image, scope))):
            flat = orthogonal(conv.size**2 * conv.inputs, conv.outputs, gain, rng)
            weights[conv.kernel] = flat.reshape(conv.size, conv.size, conv.inputs, conv.outputs)
            weights[conv.bias] = np.zeros(conv.outputs, np.float32)
        weights.update(initial_layers([encoder_dense(arch, image, scope)], rng))
    return weights


def _convolutions_and_gains(layers: Sequence[EncoderLayer]) -> Iterator[tuple[Conv, float]]:
    for layer in layers:
        if isinstance(layer, Conv):
            yield layer, HIDDEN_GAIN
        elif isinstance(layer, Residual):
            yield layer.first, HIDDEN_GAIN
            yield layer.second, HIDDEN_GAIN * RESIDUAL_SCALE


def initial_lstm(lstm: Lstm, rng: np.random.Generator) -> Weights:
    """Orthogonal kernels for each gate (gain 1) and biases of 0, but 1 for the forget gates, so that the first memory lasts.

    Source: Jozefowicz, Zaremba & Sutskever 2015, http://proceedings.mlr.press/v37/jozefowicz15.html, section 2.2 (forget bias).
    """
    bias = np.zeros(4 * lstm.units, np.float32)
    bias[lstm.units : 2 * lstm.units] = 1.0
    kernel, recurrent = (
        np.concatenate([orthogonal(inputs, lstm.units, 1.0, rng) for _ in range(4)], axis=1) for inputs in (lstm.inputs, lstm.units)
    )
    return {lstm.kernel: kernel, lstm.recurrent_kernel: recurrent, lstm.bias: bias}


def initial_layers(layers: Sequence[Dense], rng: np.random.Generator) -> Weights:
    """Orthogonal kernels of each layer's gain, drawn in the order given, and biases of 0."""
    weights: Weights = {}
    for dense in layers:
        weights[dense.kernel] = orthogonal(dense.inputs, dense.outputs, dense.gain, rng)
        weights[dense.bias] = np.zeros(dense.outputs, np.float32)
    return weights


def initial_normalizer(arch: Architecture) -> Weights:
    """The tensors of `normalizer_layout` that change nothing: mean 0, standard deviation 1."""
    layout = normalizer_layout(arch)
    return {name: (np.zeros if name.endswith("/mean") else np.ones)(shape, np.float32) for name, shape in layout.items()}


def orthogonal(inputs: int, outputs: int, gain: float, rng: np.random.Generator) -> np.ndarray:
    """A uniformly distributed kernel whose rows or columns, whichever are fewer, are orthogonal vectors of length `gain`.

    Source: Saxe, McClelland & Ganguli 2014, https://arxiv.org/abs/1312.6120. The sign of each column of Q follows the diagonal
    of R, otherwise the distribution would not be uniform: Mezzadri 2007, https://arxiv.org/abs/math-ph/0609050, section 5.

    Returns:
        float32 ``[inputs, outputs]``.
    """
    tall = rng.standard_normal((max(inputs, outputs), min(inputs, outputs)))
    q, r = np.linalg.qr(tall)
    q *= np.sign(np.diagonal(r))
    return np.ascontiguousarray(gain * (q if inputs >= outputs else q.T), dtype=np.float32)
