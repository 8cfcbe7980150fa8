"""Layout and first weights of SAC's networks; the actor's are in `trainers.networks`.

    critic/dense_{i}/kernel, /bias     bodies of both critics, side by side: ``[2, inputs, U]`` and ``[2, U]``
    critic/q/kernel, /bias             heads: ``[2, U, S·W]`` and ``[2, S·W]``
    target_critic/…                    the same: slowly following copies
    entropy_coef/log_alpha             ``[P]``: log α of each part of an action, the continuous part first, then the branches

The twins lie in one tensor, so that one batched product does the work of two, a core for each. Their input is the actor's
followed by the continuous part of the action. Letters: ``U`` hidden units, ``S`` reward signals, ``P`` parts, ``W`` outputs for
each signal: the choices of all discrete branches together, 1 without branches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from envs.specs import ActionSpec, BehaviorSpec
from trainers.networks import (
    HIDDEN_GAIN,
    VALUE_HEAD_GAIN,
    Distribution,
    Layout,
    actor_layout,
    initial_actor,
    initial_normalizer,
    input_size,
    orthogonal,
)
from trainers.settings import NetworkSettings, SACSettings
from trainers.trainer import Weights

LOG_ALPHA = "entropy_coef/log_alpha"
CRITIC, TARGET = "critic/", "target_critic/"


def distribution_of(settings: SACSettings) -> Distribution:
    """The distribution of continuous actions that the settings ask for."""
    return "gsde" if settings.hyperparameters.use_sde else "squashed_gaussian"


def outputs_per_signal(action: ActionSpec) -> int:
    """W."""
    return sum(action.discrete_branches) or 1


def action_parts(action: ActionSpec) -> int:
    """P."""
    return bool(action.continuous_size) + len(action.discrete_branches)


def target_entropies(action: ActionSpec, continuous: float | None, scale: float) -> np.ndarray:
    """The entropy that each part of an action is held at (nats), in policy space: float32 ``[P]``.

    −C for the continuous part unless told otherwise (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, appendix D);
    ``scale · ln n`` for a branch of n choices, whose entropy is at most ln n (Christodoulou 2019,
    https://arxiv.org/abs/1910.07207, uses the scale 0.98, with which a policy stays close to random).

    Args:
        continuous: of the continuous part; None is −C.
        scale: of the branches, between 0 and 1.
    """
    size = action.continuous_size
    part = [] if not size else [-float(size) if continuous is None else continuous]
    return np.array(part + [scale * math.log(n) for n in action.discrete_branches], np.float32)


def twin_layout(spec: BehaviorSpec, network: NetworkSettings, signals: Sequence[str], prefix: str = CRITIC) -> Layout:
    """Tensors of both critics."""
    units = network.hidden_units
    widths = [input_size(spec) + spec.action.continuous_size, *[units] * network.num_layers]
    layout: Layout = {}
    for i in range(network.num_layers):
        layout[f"{prefix}dense_{i}/kernel"] = (2, widths[i], units)
        layout[f"{prefix}dense_{i}/bias"] = (2, units)
    outputs = len(signals) * outputs_per_signal(spec.action)
    layout[f"{prefix}q/kernel"] = (2, units, outputs)
    layout[f"{prefix}q/bias"] = (2, outputs)
    return layout


def sac_layout(spec: BehaviorSpec, network: NetworkSettings, signals: Sequence[str], distribution: Distribution) -> Layout:
    """Tensors that gradients move: actor, critics and log α, in this order."""
    alphas = {LOG_ALPHA: (action_parts(spec.action),)}
    return {**actor_layout(spec, network, distribution=distribution), **twin_layout(spec, network, signals), **alphas}


def initial_sac_weights(
    spec: BehaviorSpec, settings: SACSettings, rng: np.random.Generator, signals: Sequence[str] | None = None
) -> Weights:
    """First weights: actor as `initial_actor`, two different critics (orthogonal kernels, gain sqrt(2), 1 in the heads, biases 0),
    targets equal to them, log α = log ``init_entcoef``, and an identity normaliser where one is used.

    Returns:
        float32 arrays by tensor name.
    """
    network, hyper = settings.network_settings, settings.hyperparameters
    signals = list(dict(settings.reward_signals)) if signals is None else signals
    weights = initial_actor(spec, network, rng, distribution=distribution_of(settings), initial_log_std=hyper.sde_initial_log_std)
    for name, shape in twin_layout(spec, network, signals).items():
        if name.endswith("/bias"):
            weights[name] = np.zeros(shape, np.float32)
        else:
            gain = VALUE_HEAD_GAIN if name == f"{CRITIC}q/kernel" else HIDDEN_GAIN
            weights[name] = np.stack([orthogonal(shape[1], shape[2], gain, rng) for _ in range(2)])
    weights[LOG_ALPHA] = np.full(action_parts(spec.action), math.log(hyper.init_entcoef), np.float32)
    weights.update({TARGET + name.removeprefix(CRITIC): weights[name].copy() for name in twin_layout(spec, network, signals)})
    weights.update(initial_normalizer(spec, network))
    return weights
