"""Layout and first weights of SAC's networks; the actor's are in `trainers.networks`.

    critic/encoder_{i}/…, critic/model/…   visual encoders or a user's model, one for both critics (see `trainers.networks`)
    critic/dense_{i}/kernel, /bias     bodies of both critics, side by side: ``[2, inputs, U]`` and ``[2, U]``
    critic/lstm/kernel, /recurrent_kernel, /bias   recurrent layers of both, with a memory only: a leading 2, too
    critic/joint/kernel, /bias         layer that joins features and action where no layer of the body could
    critic/q/kernel, /bias             heads: ``[2, inputs, S·W]`` and ``[2, S·W]``
    target_critic/…                    the same, encoders included: slowly following copies
    entropy_coef/log_alpha             ``[P]``: log α of each part of an action, the continuous part first, then the branches

The twins lie in one tensor, so that one batched product does the work of two, a core for each. What the critics see is the joined
vector and the encoders' outputs (or the user's model's), and the continuous part of the action:

    without a memory   [encoded, action] → dense layers → q
    with one           encoded → dense layers → LSTM → [h, action] → joint → q

Without any dense layer (``num_layers: 0``) the joint layer stands between [encoded, action] and q as well: the value of an action
could not depend on the observation otherwise. Letters: ``U`` units of a dense layer, ``S`` reward signals, ``P`` parts, ``W``
outputs for each signal: the choices of all discrete branches together, 1 without branches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from envs.specs import ActionSpec, BehaviorSpec
from trainers.architecture import Architecture, architecture
from trainers.initial_weights import initial_actor, initial_encoders, initial_lstm, initial_normalizer, orthogonal
from trainers.networks import (
    HIDDEN_GAIN,
    VALUE_HEAD_GAIN,
    Dense,
    Distribution,
    Layout,
    Lstm,
    actor_layout,
    body_width,
    encoder_layout,
    lstm_layer,
)
from trainers.settings import SACSettings
from trainers.trainer import Weights

LOG_ALPHA = "entropy_coef/log_alpha"
CRITIC, TARGET = "critic", "target_critic"


def distribution_of(settings: SACSettings) -> Distribution:
    """The distribution of continuous actions that the settings ask for."""
    return "gsde" if settings.hyperparameters.use_sde else "squashed_gaussian"


def outputs_per_signal(action: ActionSpec) -> int:
    """W."""
    return action.choices or 1


def action_parts(action: ActionSpec) -> int:
    """P."""
    return bool(action.continuous_size) + len(action.discrete_branches)


def target_entropies(action: ActionSpec, continuous: float | None, scale: float) -> np.ndarray:
    """The entropy that each part of an action is held at (nats), in policy space: float32 ``[P]``.

    −C for the continuous part unless told otherwise (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, appendix D);
    ``scale · ln n`` for a branch of n choices, whose entropy is at most ln n (Christodoulou 2019,
    https://arxiv.org/abs/1910.07207, uses the scale 0.98, with which a policy stays close to random). With action masks n is
    the number of choices that are allowed, row by row.

    Args:
        continuous: of the continuous part; None is −C.
        scale: of the branches, between 0 and 1.
    """
    size = action.continuous_size
    part = [] if not size else [-float(size) if continuous is None else continuous]
    return np.array(part + [scale * math.log(n) for n in action.discrete_branches], np.float32)


# -- layers of one critic; its tensors have a leading 2 ----------------------------------------------------------------


def encoded_width(arch: Architecture) -> int:
    """Width of what the critics' own layers begin with: vector and encoders, or the user's model."""
    return body_width(arch) if arch.model is not None else arch.encoded_width


def critic_body(arch: Architecture, scope: str = CRITIC) -> tuple[Dense, ...]:
    """Dense layers, each followed by the activation; with a memory they see no action, and a user's model takes their place."""
    if arch.memory is not None and arch.model is not None:
        return ()
    action = 0 if arch.memory else arch.spec.action.continuous_size
    widths = [encoded_width(arch) + action, *arch.layers]
    return tuple(Dense(f"{scope}/dense_{i}", widths[i], widths[i + 1], HIDDEN_GAIN) for i in range(len(arch.layers)))


def joint_layer(arch: Architecture, scope: str = CRITIC) -> Dense | None:
    """The layer that features and action go through together, followed by the activation; None where the body does it."""
    action = arch.spec.action.continuous_size
    if arch.memory is None and (arch.layers or not action):
        return None
    features = arch.memory.units if arch.memory else encoded_width(arch)
    return Dense(f"{scope}/joint", features + action, arch.image_units, HIDDEN_GAIN)


def q_head(arch: Architecture, signals: Sequence[str], scope: str = CRITIC) -> Dense:
    """All outputs of one critic: for each signal one for each choice."""
    joint = joint_layer(arch, scope)
    inputs = joint.outputs if joint else arch.layers[-1] if arch.layers else encoded_width(arch)
    return Dense(f"{scope}/q", inputs, len(signals) * outputs_per_signal(arch.spec.action), VALUE_HEAD_GAIN)


def _critic_layers(arch: Architecture, signals: Sequence[str], scope: str = CRITIC) -> list[Dense | Lstm]:
    """Layers of one critic after the encoders, in their order."""
    layers = [*critic_body(arch, scope), lstm_layer(arch, scope), joint_layer(arch, scope), q_head(arch, signals, scope)]
    return [layer for layer in layers if layer is not None]


def twin_layout(arch: Architecture, signals: Sequence[str], scope: str = CRITIC) -> Layout:
    """Tensors of both critics and of the encoders they share."""
    layout = encoder_layout(arch, scope)
    for layer in _critic_layers(arch, signals, scope):
        one = layer.layout if isinstance(layer, Lstm) else {layer.kernel: (layer.inputs, layer.outputs), layer.bias: (layer.outputs,)}
        layout.update({name: (2, *shape) for name, shape in one.items()})
    return layout


def sac_layout(arch: Architecture, signals: Sequence[str], distribution: Distribution) -> Layout:
    """Tensors that gradients move: actor, critics and log α, in this order."""
    alphas = {LOG_ALPHA: (action_parts(arch.spec.action),)}
    return {**actor_layout(arch, distribution), **twin_layout(arch, signals), **alphas}


# -- first weights -----------------------------------------------------------------------------------------------------


def initial_sac_weights(
    spec: BehaviorSpec, settings: SACSettings, rng: np.random.Generator, signals: Sequence[str] | None = None
) -> Weights:
    """First weights: actor as `initial_actor`, two different critics (kernels as the actor's, gain 1 in the heads, biases 0),
    targets equal to them, log α = log ``init_entcoef``, and an identity normaliser where one is used.

    Returns:
        float32 arrays by tensor name.
    """
    arch, hyper = architecture(spec, settings.network_settings), settings.hyperparameters
    signals = list(settings.reward_signals.active()) if signals is None else signals
    weights = initial_actor(arch, rng, distribution_of(settings), hyper.sde_initial_log_std)
    critics = {**initial_encoders(arch, rng, CRITIC), **_initial_twins(arch, signals, rng)}
    return {
        **weights, **critics, LOG_ALPHA: np.full(action_parts(spec.action), math.log(hyper.init_entcoef), np.float32),
        **{TARGET + name.removeprefix(CRITIC): tensor.copy() for name, tensor in critics.items()}, **initial_normalizer(arch),
    }


def _initial_twins(arch: Architecture, signals: Sequence[str], rng: np.random.Generator) -> Weights:
    weights: Weights = {}
    for layer in _critic_layers(arch, signals):
        if isinstance(layer, Lstm):
            both = [initial_lstm(layer, rng) for _ in range(2)]
            weights.update({name: np.stack([one[name] for one in both]) for name in layer.layout})
        else:
            weights[layer.kernel] = np.stack([orthogonal(layer.inputs, layer.outputs, layer.gain, rng) for _ in range(2)])
            weights[layer.bias] = np.zeros((2, layer.outputs), np.float32)
    return weights
