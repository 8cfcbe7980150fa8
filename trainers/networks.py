"""Layout, names and first weights of the actor and critic networks.

The NumPy policy and the TensorFlow graph both read their layers from here, so a tensor has one name and one shape:

    actor/dense_{i}/kernel, /bias      body: dense layers, each followed by the activation
    actor/mean/kernel, /bias           head of the continuous part: mean of a Gaussian
    actor/log_std                      its log standard deviation (see `Distribution`): a free vector [C],
    actor/log_std/kernel, /bias        a head [U, C] and [C], or the [U, C] of generalized state-dependent exploration
    actor/branch_{b}/kernel, /bias     head of discrete branch b: logits
    critic/dense_{i}/kernel, /bias     body of the critic (absent with a shared critic)
    critic/value_{signal}/kernel, /bias  value head of a reward signal
    normalizer/{observation}/mean, /std  only with ``network_settings.normalize``

All tensors are float32; a kernel is ``[inputs, outputs]``, applied as ``x @ kernel + bias``. The input of every body is the
concatenation of all flattened observations in the order of the spec. ``n`` rows, ``U`` hidden units, ``C`` continuous dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from envs.specs import BehaviorSpec, Observations
from trainers.settings import NetworkSettings
from trainers.trainer import Weights

LOG_STD = "actor/log_std"

Distribution = Literal["gaussian", "squashed_gaussian", "gsde"]
"""How the continuous part of an action is distributed; discrete branches are categorical with all three.

- ``"gaussian"``: N(μ, σ²), log σ a free vector ``actor/log_std`` ``[C]``; not squashed (PPO).
- ``"squashed_gaussian"``: tanh(u), u ~ N(μ, σ²), log σ a head ``actor/log_std`` on the actor's body (SAC).
- ``"gsde"``: tanh(u), u = μ + z·(ε ⊙ σ) with the body's output z, log σ a free matrix ``actor/log_std`` ``[U, C]`` and noise ε
  ``[U, C]`` that is kept for many steps: generalized state-dependent exploration, Raffin et al. 2021,
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


def input_size(spec: BehaviorSpec) -> int:
    """Width of the network input: elements of all observations of one agent."""
    return sum(o.size for o in spec.observations)


def network_inputs(spec: BehaviorSpec, obs: Observations, out: np.ndarray | None = None) -> np.ndarray:
    """All observations of `n` agents as one network input, flattened and joined in the order of the spec.

    Args:
        obs: name -> ``[n, *shape]``, any real dtype.
        out: float32 ``[at least n, input_size]`` to write to, so that a caller can use one buffer again and again.

    Returns:
        float32 ``[n, input_size]``. Shares memory with `obs` where nothing had to be copied (one float32 observation): read only.

    Raises:
        ValueError: an observation is missing, unknown, or of another shape than the spec says.
    """
    return join_observations(spec, obs, check_observations(spec, obs), out)


def join_observations(spec: BehaviorSpec, obs: Observations, n: int, out: np.ndarray | None = None) -> np.ndarray:
    """`network_inputs` of observations that `check_observations` has found right and of `n` agents."""
    flat = [obs[o.name] if len(o.shape) == 1 else obs[o.name].reshape(n, o.size) for o in spec.observations]
    if len(flat) == 1 and flat[0].dtype == np.float32 and flat[0].flags.c_contiguous:
        return flat[0]
    inputs = np.empty((n, input_size(spec)), np.float32) if out is None else out[:n]
    column = 0
    for x in flat:
        inputs[:, column : column + x.shape[1]] = x
        column += x.shape[1]
    return inputs


def check_observations(spec: BehaviorSpec, obs: Observations) -> int:
    """The number of agents `n` in a batch of observations ``[n, *shape]``.

    Raises:
        ValueError: an observation is missing, unknown, or of another shape than the spec says.
    """
    if obs.keys() != {o.name for o in spec.observations}:
        raise ValueError(f"Expected the observations {[o.name for o in spec.observations]}, received {list(obs)}.")
    n = len(obs[spec.observations[0].name]) if obs[spec.observations[0].name].ndim else 0
    for o in spec.observations:
        shape = obs[o.name].shape
        if shape != (n, *o.shape):
            hint = " A single observation needs a leading dimension: obs[None]." if shape == o.shape else ""
            expected = ", ".join(map(str, ("n", *o.shape)))
            raise ValueError(
                f"Expected observation '{o.name}' of shape [{expected}], agents first and the same n for all observations, "
                f"received {list(shape)}.{hint}"
            )
    return n


def body_layers(spec: BehaviorSpec, network: NetworkSettings, scope: str = "actor") -> tuple[Dense, ...]:
    """Dense layers between network input and heads; `scope` is ``"actor"`` or ``"critic"``."""
    widths = [input_size(spec), *[network.hidden_units] * network.num_layers]
    return tuple(Dense(f"{scope}/dense_{i}", widths[i], widths[i + 1], HIDDEN_GAIN) for i in range(network.num_layers))


def action_heads(spec: BehaviorSpec, network: NetworkSettings, distribution: Distribution = "gaussian") -> tuple[Dense, ...]:
    """Heads on the actor's body: the mean of the continuous part if there is one, log σ if squashed, the logits of each branch."""
    heads = []
    if spec.action.continuous_size:
        heads.append(Dense("actor/mean", network.hidden_units, spec.action.continuous_size, POLICY_HEAD_GAIN))
        if distribution == "squashed_gaussian":
            heads.append(Dense(LOG_STD, network.hidden_units, spec.action.continuous_size, POLICY_HEAD_GAIN))
    for b, choices in enumerate(spec.action.discrete_branches):
        heads.append(Dense(f"actor/branch_{b}", network.hidden_units, choices, POLICY_HEAD_GAIN))
    return tuple(heads)


def value_heads(network: NetworkSettings, value_signals: Sequence[str]) -> tuple[Dense, ...]:
    """One head of width 1 per reward signal, on the critic's body (on the actor's with a shared critic)."""
    return tuple(Dense(f"critic/value_{signal}", network.hidden_units, 1, VALUE_HEAD_GAIN) for signal in value_signals)


def actor_layout(spec: BehaviorSpec, network: NetworkSettings, distribution: Distribution = "gaussian") -> Layout:
    """Tensors of the actor: body, heads and, with continuous actions whose log σ is no head, `LOG_STD`."""
    layout = _layout_of(*body_layers(spec, network, "actor"), *action_heads(spec, network, distribution))
    return {**layout, **_free_log_std(spec, network, distribution)}


def _free_log_std(spec: BehaviorSpec, network: NetworkSettings, distribution: Distribution) -> Layout:
    size = spec.action.continuous_size
    if not size or distribution == "squashed_gaussian":
        return {}
    return {LOG_STD: (size,) if distribution == "gaussian" else (network.hidden_units, size)}


def critic_layout(
    spec: BehaviorSpec, network: NetworkSettings, value_signals: Sequence[str] = ("extrinsic",), shared_critic: bool = False
) -> Layout:
    """Tensors of the critic: body (none with a shared critic) and value heads."""
    body = () if shared_critic else body_layers(spec, network, "critic")
    return _layout_of(*body, *value_heads(network, value_signals))


def normalizer_layout(spec: BehaviorSpec, network: NetworkSettings) -> Layout:
    """Mean and standard deviation of each observation; empty unless the network normalises."""
    if not network.normalize:
        return {}
    return {name: o.shape for o in spec.observations for name in normalizer_names(o.name)}


def normalizer_names(observation: str) -> tuple[str, str]:
    """Tensor names of the mean and the standard deviation of one observation."""
    return f"normalizer/{observation}/mean", f"normalizer/{observation}/std"


def policy_layout(spec: BehaviorSpec, network: NetworkSettings, distribution: Distribution = "gaussian") -> Layout:
    """Tensors that acting needs: the actor's and the normaliser's."""
    return {**actor_layout(spec, network, distribution), **normalizer_layout(spec, network)}


def _layout_of(*layers: Dense) -> Layout:
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


def initial_weights(
    spec: BehaviorSpec,
    network: NetworkSettings,
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
    critic = () if shared_critic else body_layers(spec, network, "critic")
    return {
        **initial_actor(spec, network, rng, "gaussian", float(np.log(initial_std))),
        **initial_layers([*critic, *value_heads(network, value_signals)], rng),
        **initial_normalizer(spec, network),
    }


def initial_actor(
    spec: BehaviorSpec,
    network: NetworkSettings,
    rng: np.random.Generator,
    distribution: Distribution,
    initial_log_std: float = -3.0,
) -> Weights:
    """First weights of an actor: the tensors of `actor_layout`.

    Kernels are orthogonal: gain sqrt(2) in the body whatever the activation, and 0.01 in the heads, so that the first policy
    hardly depends on the observation. Biases are 0, so the first σ of a squashed Gaussian is about 1.

    Source: orthogonal kernels: Saxe, McClelland & Ganguli 2014, https://arxiv.org/abs/1312.6120. Small last policy layer:
    Andrychowicz et al. 2021, https://arxiv.org/abs/2006.05990, section 3.2. Gains as in the PPO of OpenAI Baselines: Huang et
    al. 2022, https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/, detail 2.

    Args:
        initial_log_std: every element of a free ``actor/log_std`` (``"gaussian"``, ``"gsde"``), in policy space [-1, 1]; a
            squashed Gaussian has none.
    """
    weights = initial_layers([*body_layers(spec, network, "actor"), *action_heads(spec, network, distribution)], rng)
    for name, shape in _free_log_std(spec, network, distribution).items():
        weights[name] = np.full(shape, initial_log_std, np.float32)
    return weights


def initial_layers(layers: Sequence[Dense], rng: np.random.Generator) -> Weights:
    """Orthogonal kernels of each layer's gain, drawn in the order given, and biases of 0."""
    weights: Weights = {}
    for dense in layers:
        weights[dense.kernel] = orthogonal(dense.inputs, dense.outputs, dense.gain, rng)
        weights[dense.bias] = np.zeros(dense.outputs, np.float32)
    return weights


def initial_normalizer(spec: BehaviorSpec, network: NetworkSettings) -> Weights:
    """The tensors of `normalizer_layout` that change nothing: mean 0, standard deviation 1."""
    layout = normalizer_layout(spec, network)
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
