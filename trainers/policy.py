"""Acting: from weights and observations to actions, in NumPy.

Letters: ``n`` agents of one call, ``I`` width of the network input, ``U`` hidden units, ``H`` outputs of all heads together,
``C`` continuous dimensions, ``B`` discrete branches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from envs.specs import Actions, BehaviorSpec, Observations
from trainers.distributions import Categorical, DiagonalGaussian, joint
from trainers.networks import (
    LOG_STD,
    action_heads,
    body_layers,
    check_observations,
    check_weights,
    input_size,
    join_observations,
    normalizer_names,
    policy_layout,
)
from trainers.normalizer import normalize
from trainers.settings import NetworkSettings
from trainers.trainer import Weights


@dataclass(slots=True)
class PolicyOutput:
    """What a policy did, as arrays of its own: later calls do not change them.

    Attributes:
        actions: policy-space actions; the continuous part is not clipped.
        log_prob: float32 ``[n]``, joint log-probability (density) of the actions.
        entropy: float32 ``[n]``, joint entropy of the distribution they come from (nats); None when not asked for.
    """

    actions: Actions
    log_prob: np.ndarray
    entropy: np.ndarray | None


@dataclass(frozen=True, slots=True)
class _Network:
    """The weights of one version, as `act` uses them. Replaced as a whole, so no call ever sees two versions.

    Attributes:
        layers: kernel ``[inputs, U]`` and bias ``[U]`` of each body layer.
        head_kernel, head_bias: the kernels of all heads side by side, transposed to ``[H, U]``, and their biases ``[H, 1]``.
        log_std: ``[C]``; None without continuous actions.
        mean, std: ``[I]`` of the normaliser; None without one.
    """

    version: int
    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    head_kernel: np.ndarray
    head_bias: np.ndarray
    log_std: np.ndarray | None
    mean: np.ndarray | None
    std: np.ndarray | None


class Policy:
    """Observation -> action distribution -> action, for all agents of a behavior at once.

    The body runs in buffers that are used again and again and grow with the largest batch seen; not for two threads at once.
    """

    def __init__(self, spec: BehaviorSpec, network: NetworkSettings):
        self.spec = spec
        self.network = network
        self._layout = policy_layout(spec, network)
        self._activate = _ACTIVATIONS[network.activation]
        self._active: _Network | None = None
        self._resize(0)

    @property
    def version(self) -> int:
        """Version of the weights in use; -1 before the first `set_weights`."""
        return -1 if self._active is None else self._active.version

    def set_weights(self, weights: Weights, version: int) -> None:
        """Act with other weights from the next call on: all of them and the version change together.

        The arrays are copied: views into shared memory can be freed, and later changes to them have no effect here.

        Args:
            weights: exactly the tensors of `policy_layout`.
            version: what `version` says from now on.

        Raises:
            ValueError: names, shapes or dtypes differ from the layout, or a value is not finite; the old weights stay in use.
        """
        check_weights(weights, self._layout, f"the policy (version {version})")
        heads = action_heads(self.spec, self.network)
        normalizer = [normalizer_names(o.name) for o in self.spec.observations] if self.network.normalize else []
        self._active = _Network(
            version=version,
            layers=tuple((weights[d.kernel].copy(), weights[d.bias].copy()) for d in body_layers(self.spec, self.network)),
            head_kernel=np.concatenate([weights[d.kernel].T for d in heads]),
            head_bias=np.concatenate([weights[d.bias] for d in heads])[:, None],
            log_std=weights[LOG_STD].copy() if LOG_STD in weights else None,
            mean=np.concatenate([weights[mean].ravel() for mean, _ in normalizer]) if normalizer else None,
            std=np.concatenate([weights[std].ravel() for _, std in normalizer]) if normalizer else None,
        )

    def act(
        self,
        obs: Observations,
        rng: np.random.Generator,
        deterministic: bool = False,
        action_mask: tuple[np.ndarray, ...] | None = None,
        with_entropy: bool = True,
    ) -> PolicyOutput:
        """Actions of `n` agents. An agent's distribution does not depend on the other rows.

        Args:
            obs: name -> ``[n, *shape]``.
            rng: source of the samples; not used when deterministic.
            deterministic: the mean of the continuous part and the most likely choice of each branch instead of a sample.
            action_mask: per branch bool ``[n, choices]``, True = allowed; None when nothing is masked.
            with_entropy: also work out the entropy; an env manager, which has no use for it, saves a tenth of the call.

        Raises:
            ValueError: observations or masks of a wrong name or shape, or a row without an allowed action.
            RuntimeError: no weights were set yet.
        """
        active = self._active
        if active is None:
            raise RuntimeError("Expected weights before the first action, received none. Call set_weights() first.")
        n, size = check_observations(self.spec, obs), self.spec.action.continuous_size
        heads = self._heads(active, obs, n)
        continuous = np.empty((n, 0), np.float32)
        log_probs, entropies = [], []
        if size:
            gaussian = DiagonalGaussian(heads[:size].T, active.log_std)
            continuous = gaussian.mode() if deterministic else gaussian.sample(rng)
            log_probs.append(gaussian.log_prob(continuous))
            if with_entropy:
                entropies.append(gaussian.entropy())
        discrete = np.empty((n, len(self.spec.action.discrete_branches)), np.int32)
        for b, branch in enumerate(self._branches(heads[size:], action_mask)):
            choice = branch.mode() if deterministic else branch.sample(rng)
            discrete[:, b] = choice
            log_probs.append(branch.log_prob(choice))
            if with_entropy:
                entropies.append(branch.entropy())
        return PolicyOutput(Actions(continuous, discrete), joint(log_probs, n), joint(entropies, n) if with_entropy else None)

    def _branches(self, logits: np.ndarray, action_mask: tuple[np.ndarray, ...] | None) -> list[Categorical]:
        sizes = self.spec.action.discrete_branches
        if action_mask is not None and len(action_mask) != len(sizes):
            raise ValueError(f"Expected one action mask per discrete branch ({len(sizes)}), received {len(action_mask)}.")
        branches, first = [], 0
        for b, size in enumerate(sizes):
            mask = None if action_mask is None else action_mask[b]
            branches.append(Categorical(logits[first : first + size].T, mask, f"branch {b}"))
            first += size
        return branches

    def _heads(self, active: _Network, obs: Observations, n: int) -> np.ndarray:
        """Outputs of all heads, transposed: float32 ``[H, n]``, a fresh array (see `distributions` for why)."""
        if n > len(self._scratch):
            self._resize(n)
        hidden = join_observations(self.spec, obs, n, self._inputs)
        if active.mean is not None:
            hidden = normalize(hidden, active.mean, active.std, out=self._inputs[:n])
        for i, (kernel, bias) in enumerate(active.layers):
            out = self._hidden[i % 2][:n]
            np.matmul(hidden, kernel, out=out)
            np.add(out, bias, out=out)
            self._activate(out, self._scratch[:n])
            hidden = out
        heads = np.matmul(active.head_kernel, hidden.T)
        heads += active.head_bias
        return heads

    def _resize(self, n: int) -> None:
        self._inputs = np.empty((n, input_size(self.spec)), np.float32)
        self._hidden = tuple(np.empty((n, self.network.hidden_units), np.float32) for _ in range(2))
        self._scratch = np.empty((n, self.network.hidden_units), np.float32)


def _tanh(x: np.ndarray, scratch: np.ndarray) -> None:
    np.tanh(x, out=x)


def _relu(x: np.ndarray, scratch: np.ndarray) -> None:
    np.maximum(x, np.float32(0.0), out=x)


def _elu(x: np.ndarray, scratch: np.ndarray) -> None:
    """max(x, 0) + exp(min(x, 0)) − 1."""
    np.minimum(x, np.float32(0.0), out=scratch)
    # Not expm1, which NumPy has no vector instructions for (six times slower); the absolute error stays below 1e-7.
    np.exp(scratch, out=scratch)
    np.subtract(scratch, np.float32(1.0), out=scratch)
    np.maximum(x, np.float32(0.0), out=x)
    np.add(x, scratch, out=x)


def _swish(x: np.ndarray, scratch: np.ndarray) -> None:
    """x / (1 + exp(−x))."""
    np.negative(x, out=scratch)
    # Below −88 the exponential is infinite in float32, and x / inf = −0 is the right limit.
    with np.errstate(over="ignore"):
        np.exp(scratch, out=scratch)
    np.add(scratch, np.float32(1.0), out=scratch)
    np.divide(x, scratch, out=x)


_ACTIVATIONS: dict[str, Callable[[np.ndarray, np.ndarray], None]] = {"tanh": _tanh, "relu": _relu, "elu": _elu, "swish": _swish}
"""Activation name -> function that applies it in place; the second array is scratch space of the same shape."""
