"""Layout and names of the tensors of the actor and critic networks; their first weights are in `trainers.initial_weights`.

The NumPy policy and the TensorFlow graph both read their layers from here, so a tensor has one name and one shape:

    actor/encoder_{i}/…                layers of visual encoder i (see `trainers.encoders`), then its /dense/kernel, /bias
    actor/dense_{i}/kernel, /bias      body: dense layers, each followed by the activation
    actor/model/…                      in place of both: the variables of a user's own Keras model (see `trainers.keras_model`)
    actor/lstm/kernel, /recurrent_kernel, /bias   recurrent layer between body and heads, with a memory only
    actor/mean/kernel, /bias           head of the continuous part: mean of a Gaussian
    actor/log_std                      its log standard deviation (see `Distribution`): a free vector [C],
    actor/log_std/kernel, /bias        a head [F, C] and [C], or the [F, C] of generalized state-dependent exploration
    actor/branch_{b}/kernel, /bias     head of discrete branch b: logits
    critic/…                           encoders, body and recurrent layer of the critic (absent with a shared critic)
    critic/value_{signal}/kernel, /bias  value head of a reward signal
    normalizer/{observation}/mean, /std  of each normalised observation

All tensors are float32; a kernel is ``[inputs, outputs]``, applied as ``x @ kernel + bias``. The body's input is the joined vector
(see `trainers.inputs`) followed by the outputs of the encoders. ``n`` rows, ``C`` continuous dimensions, ``H`` and ``F`` as in
`trainers.architecture`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainers.architecture import Architecture, ImageInput
from trainers.encoders import convolutions, encoder_prefix, flat_width
from trainers.trainer import Weights

LOG_STD = "actor/log_std"

Distribution = Literal["gaussian", "squashed_gaussian", "gsde"]
"""How the continuous part of an action is distributed; discrete branches are categorical with all three.

- ``"gaussian"``: N(μ, σ²), log σ a free vector ``actor/log_std`` ``[C]``; not squashed (PPO).
- ``"squashed_gaussian"``: tanh(u), u ~ N(μ, σ²), log σ a head ``actor/log_std`` on the actor's body (SAC).
- ``"gsde"``: tanh(u), u = μ + z·(ε ⊙ σ) with the features z, log σ a free matrix ``actor/log_std`` ``[F, C]`` and noise ε
  ``[F, C]`` that is kept for many steps: generalized state-dependent exploration, Raffin et al. 2021,
  https://arxiv.org/abs/2005.05719, section 3.
"""

Layout = dict[str, tuple[int, ...]]
"""Tensor name -> shape, in the order in which first weights are drawn."""

HIDDEN_GAIN = float(np.sqrt(2.0))
POLICY_HEAD_GAIN = 0.01
VALUE_HEAD_GAIN = 1.0


@dataclass(frozen=True)
class Dense:
    """A dense layer ``x @ kernel + bias``: float32 ``[n, inputs]`` -> ``[n, outputs]``.

    Attributes:
        name: prefix of its two tensors, such as ``"actor/dense_0"``.
        inputs, outputs: widths (units).
        gain: scale of the orthogonal first kernel.
    """

    name: str
    inputs: int
    outputs: int
    gain: float

    @property
    def kernel(self) -> str:
        """Tensor name of the kernel, shape ``[inputs, outputs]``."""
        return f"{self.name}/kernel"

    @property
    def bias(self) -> str:
        """Tensor name of the bias, shape ``[outputs]``."""
        return f"{self.name}/bias"


@dataclass(frozen=True)
class Lstm:
    """A recurrent layer: x_t ``[n, inputs]`` and memory (h, c) -> h ``[n, units]`` and the next memory.

    z = x @ kernel + h @ recurrent_kernel + bias, split into i, f, g, o; c' = σ(f) ⊙ c + σ(i) ⊙ tanh(g); h' = σ(o) ⊙ tanh(c').

    Source: Hochreiter & Schmidhuber 1997; forget gates: Gers, Schmidhuber & Cummins 2000. Gate order as in Keras.

    Attributes:
        name: prefix of its tensors.
        inputs, units: widths.
    """

    name: str
    inputs: int
    units: int

    @property
    def kernel(self) -> str:
        """Tensor name, shape ``[inputs, 4 · units]``."""
        return f"{self.name}/kernel"

    @property
    def recurrent_kernel(self) -> str:
        """Tensor name, shape ``[units, 4 · units]``."""
        return f"{self.name}/recurrent_kernel"

    @property
    def bias(self) -> str:
        """Tensor name, shape ``[4 · units]``."""
        return f"{self.name}/bias"

    @property
    def layout(self) -> Layout:
        """Its tensors."""
        gates = 4 * self.units
        return {self.kernel: (self.inputs, gates), self.recurrent_kernel: (self.units, gates), self.bias: (gates,)}


def encoder_dense(arch: Architecture, image: ImageInput, scope: str = "actor") -> Dense:
    """The dense layer at the end of a visual encoder, followed by the activation."""
    return Dense(f"{encoder_prefix(arch, image, scope)}/dense", flat_width(image), arch.image_units, HIDDEN_GAIN)


def body_layers(arch: Architecture, scope: str = "actor") -> tuple[Dense, ...]:
    """Dense layers after the encoders; `scope` is ``"actor"`` or ``"critic"``. None where a model of the user's takes their place."""
    if arch.model is not None:
        return ()
    widths = [arch.encoded_width, *arch.layers]
    return tuple(Dense(f"{scope}/dense_{i}", widths[i], widths[i + 1], HIDDEN_GAIN) for i in range(len(arch.layers)))


def body_width(arch: Architecture) -> int:
    """U: outputs of the dense layers (of the encoders without any), or of the user's model."""
    if arch.model is not None:
        from trainers.keras_model import output_width  # loads TensorFlow, so only where it is needed

        return output_width(arch)
    return arch.layers[-1] if arch.layers else arch.encoded_width


def lstm_layer(arch: Architecture, scope: str = "actor") -> Lstm | None:
    """The recurrent layer after the body; None without a memory."""
    return Lstm(f"{scope}/lstm", body_width(arch), arch.memory.units) if arch.memory else None


def features_width(arch: Architecture) -> int:
    """F: what the heads stand on, H with a memory, else U."""
    return arch.memory.units if arch.memory else body_width(arch)


def action_heads(arch: Architecture, distribution: Distribution = "gaussian") -> tuple[Dense, ...]:
    """Heads on the actor's features: the mean of the continuous part if there is one, log σ if squashed, the logits of each branch."""
    heads, action, features = [], arch.spec.action, features_width(arch)
    if action.continuous_size:
        heads.append(Dense("actor/mean", features, action.continuous_size, POLICY_HEAD_GAIN))
        if distribution == "squashed_gaussian":
            heads.append(Dense(LOG_STD, features, action.continuous_size, POLICY_HEAD_GAIN))
    for b, choices in enumerate(action.discrete_branches):
        heads.append(Dense(f"actor/branch_{b}", features, choices, POLICY_HEAD_GAIN))
    return tuple(heads)


def value_heads(arch: Architecture, value_signals: Sequence[str]) -> tuple[Dense, ...]:
    """One head of width 1 per reward signal, on the critic's features (on the actor's with a shared critic)."""
    return tuple(Dense(f"critic/value_{signal}", features_width(arch), 1, VALUE_HEAD_GAIN) for signal in value_signals)


def encoder_layout(arch: Architecture, scope: str = "actor") -> Layout:
    """Tensors of all visual encoders, or of the user's model."""
    if arch.model is not None:
        from trainers.keras_model import model_layout

        return model_layout(arch, scope)
    layout: Layout = {}
    for image in arch.images:
        for conv in convolutions(image, encoder_prefix(arch, image, scope)):
            layout[conv.kernel] = (conv.size, conv.size, conv.inputs, conv.outputs)
            layout[conv.bias] = (conv.outputs,)
        layout.update(dense_layout(encoder_dense(arch, image, scope)))
    return layout


def body_layout(arch: Architecture, scope: str = "actor") -> Layout:
    """Tensors between inputs and heads: encoders, dense layers and the recurrent layer."""
    lstm = lstm_layer(arch, scope)
    return {**encoder_layout(arch, scope), **dense_layout(*body_layers(arch, scope)), **(lstm.layout if lstm else {})}


def actor_layout(arch: Architecture, distribution: Distribution = "gaussian") -> Layout:
    """Tensors of the actor: body, heads and, with continuous actions whose log σ is no head, `LOG_STD`."""
    return {**body_layout(arch, "actor"), **dense_layout(*action_heads(arch, distribution)), **free_log_std(arch, distribution)}


def free_log_std(arch: Architecture, distribution: Distribution) -> Layout:
    """The log standard deviation that stands on no body; nothing where it is a head or there are no continuous actions."""
    size = arch.spec.action.continuous_size
    if not size or distribution == "squashed_gaussian":
        return {}
    return {LOG_STD: (size,) if distribution == "gaussian" else (features_width(arch), size)}


def critic_layout(arch: Architecture, value_signals: Sequence[str] = ("extrinsic",), shared_critic: bool = False) -> Layout:
    """Tensors of the critic: body (none with a shared critic) and value heads."""
    body = {} if shared_critic else body_layout(arch, "critic")
    return {**body, **dense_layout(*value_heads(arch, value_signals))}


def normalizer_layout(arch: Architecture) -> Layout:
    """Mean and standard deviation of each normalised observation."""
    return {name: o.shape for o in arch.normalized for name in normalizer_names(o.name)}


def normalizer_names(observation: str) -> tuple[str, str]:
    """Tensor names of the mean and the standard deviation of one observation."""
    return f"normalizer/{observation}/mean", f"normalizer/{observation}/std"


def policy_layout(arch: Architecture, distribution: Distribution = "gaussian") -> Layout:
    """Tensors that acting needs: the actor's and the normaliser's."""
    return {**actor_layout(arch, distribution), **normalizer_layout(arch)}


def dense_layout(*layers: Dense) -> Layout:
    """Tensors of dense layers."""
    return {name: shape for d in layers for name, shape in ((d.kernel, (d.inputs, d.outputs)), (d.bias, (d.outputs,)))}


def check_weights(weights: Weights, layout: Layout, where: str) -> None:
    """Refuse weights that do not fit a layout, with every difference in one message.

    Args:
        where: what the weights are for; ends the message's first sentence.

    Raises:
        ValueError: a tensor is missing, unknown, of another shape, not float32, or holds a value that is not finite.
    """
    problems = [f"{name} is missing (expected {list(shape)})" for name, shape in layout.items() if name not in weights]
    problems += [f"{name} is not part of this network" for name in weights if name not in layout]
    for name in layout.keys() & weights.keys():
        tensor = weights[name]
        if tensor.shape != layout[name] or tensor.dtype != np.float32:
            problems.append(f"{name}: expected float32 {list(layout[name])}, received {tensor.dtype} {list(tensor.shape)}")
        elif not np.isfinite(tensor).all():
            bad = int(np.count_nonzero(~np.isfinite(tensor)))
            problems.append(f"{name}: expected finite numbers, received {bad} of {tensor.size} that are NaN or infinite")
    if problems:
        raise ValueError(f"Weights do not fit {where}: {'; '.join(sorted(problems))}. Check spaces and network_settings.")
