"""Acting: from weights and observations to actions, in NumPy.

Letters: ``n`` agents of one call, ``I`` width of the network input, ``U`` hidden units, ``H`` outputs of all heads together,
``C`` continuous dimensions, ``B`` discrete branches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.specs import Actions, BehaviorSpec, Observations
from trainers.activations import ACTIVATIONS
from trainers.distributions import Categorical, DiagonalGaussian, SquashedGaussian, clip_log_std, joint
from trainers.exploration_noise import ExplorationNoise, marginal_log_std
from trainers.networks import (
    LOG_STD,
    Distribution,
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
        actions: policy-space actions; the continuous part of a Gaussian is not clipped, that of a squashed one lies in [-1, 1].
        log_prob: float32 ``[n]``, joint log-probability (density) of the actions.
        entropy: float32 ``[n]``, joint entropy of the distribution they come from (nats); None when not asked for. A squashed
            Gaussian has no closed form: its part is the estimate from this one action, minus the log-density.
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
        gaussian: carries σ ``[C]`` of a Gaussian that is not squashed; None without.
        noise_std, noise_variance: σ and σ² of state-dependent exploration, transposed to ``[C, U]``; None without.
        mean, std: ``[I]`` of the normaliser; None without one.
    """

    version: int
    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    head_kernel: np.ndarray
    head_bias: np.ndarray
    gaussian: DiagonalGaussian | None
    noise_std: np.ndarray | None
    noise_variance: np.ndarray | None
    mean: np.ndarray | None
    std: np.ndarray | None


class Policy:
    """Observation -> action distribution -> action, for all agents of a behavior at once.

    The body runs in buffers that are used again and again and grow with the largest batch seen; not for two threads at once.

    Args:
        distribution: how the continuous part of an action is distributed (see `trainers.networks.Distribution`).
        noise_steps: with ``"gsde"``, decisions of an agent between two draws of its noise; None: one draw per episode.
    """

    def __init__(
        self, spec: BehaviorSpec, network: NetworkSettings, distribution: Distribution = "gaussian", noise_steps: int | None = None
    ):
        self.spec = spec
        self.network = network
        self.distribution = distribution
        self._layout = policy_layout(spec, network, distribution)
        self._activate = ACTIVATIONS[network.activation]
        self._noise = ExplorationNoise(network.hidden_units, spec.action.continuous_size, noise_steps)
        self._is_squashed = distribution != "gaussian"
        # Rows of the heads' output that come before the logits.
        self._continuous_outputs = spec.action.continuous_size * (2 if distribution == "squashed_gaussian" else 1)
        self._active: _Network | None = None
        self._rows = -1
        self._buffers: list[np.ndarray] = []

    @property
    def version(self) -> int:
        """Version of the weights in use; -1 before the first `set_weights`."""
        return -1 if self._active is None else self._active.version

    def set_weights(self, weights: Weights, version: int) -> None:
        """Act with other weights from the next call on: all of them and the version change together.

        The arrays are copied: views into shared memory can be freed, and later changes to them have no effect here. The noise of
        state-dependent exploration stays; new weights only scale it.

        Args:
            weights: exactly the tensors of `policy_layout`.
            version: what `version` says from now on.

        Raises:
            ValueError: names, shapes or dtypes differ from the layout, or a value is not finite; the old weights stay in use.
        """
        check_weights(weights, self._layout, f"the policy (version {version})")
        heads = action_heads(self.spec, self.network, self.distribution)
        normalizer = [normalizer_names(o.name) for o in self.spec.observations] if self.network.normalize else []
        log_std = weights.get(LOG_STD)
        noise_std = np.exp(log_std.T, order="C") if log_std is not None and self.distribution == "gsde" else None
        self._active = _Network(
            version=version,
            layers=tuple((weights[d.kernel].copy(), weights[d.bias].copy()) for d in body_layers(self.spec, self.network)),
            head_kernel=np.concatenate([weights[d.kernel].T for d in heads]),
            head_bias=np.concatenate([weights[d.bias] for d in heads])[:, None],
            gaussian=DiagonalGaussian(log_std[None], log_std) if log_std is not None and self.distribution == "gaussian" else None,
            noise_std=noise_std,
            noise_variance=None if noise_std is None else np.square(noise_std),
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
        agent_id: np.ndarray | None = None,
        first: np.ndarray | None = None,
    ) -> PolicyOutput:
        """Actions of `n` agents. An agent's distribution does not depend on the other rows.

        Args:
            obs: name -> ``[n, *shape]``.
            rng: source of the samples; not used when deterministic.
            deterministic: the mean (its tanh if squashed) of the continuous part and the most likely choice of each branch
                instead of a sample. Leaves the noise of ``"gsde"`` as it is.
            action_mask: per branch bool ``[n, choices]``, True = allowed; None when nothing is masked.
            with_entropy: also work out the entropy; an env manager, which has no use for it, saves a tenth of the call.
            agent_id: int64 ``[n]``, slot of each agent: whose noise is used. Read by ``"gsde"`` only; None draws every row from
                the marginal distribution, as if its noise were new.
            first: bool ``[n]``, the agent's first decision of an episode, for which its noise is drawn anew; None: of no agent.

        Raises:
            ValueError: observations, masks or slots of a wrong name, shape or dtype, or a row without an allowed action.
            RuntimeError: no weights were set yet.
        """
        active = self._active
        if active is None:
            raise RuntimeError("Expected weights before the first action, received none. Call set_weights() first.")
        n = check_observations(self.spec, obs)
        features = self._features(active, obs, n)
        # Transposed, a fresh array: see `distributions` for why.
        heads = active.head_kernel.dot(features.T)
        heads += active.head_bias
        log_probs, entropies = [], []
        continuous = np.empty((n, 0), np.float32)
        if self._continuous_outputs:
            part = self._continuous_part(active, heads, features)
            if deterministic:
                continuous = part.mode()
            elif active.noise_std is not None and agent_id is not None:
                self._noise.advance(agent_id, first, n, rng)
                continuous = self._noise.displacement(features, active.noise_std, agent_id)
                continuous += part.mean
            else:
                continuous = part.sample(rng)
            log_probs.append(part.log_prob(continuous))
            if with_entropy:
                entropies.append(-log_probs[0] if self._is_squashed else part.entropy())
            if self._is_squashed:
                np.tanh(continuous, out=continuous)
        discrete = np.empty((n, len(self.spec.action.discrete_branches)), np.int32)
        for b, branch in enumerate(self._branches(heads[self._continuous_outputs :], action_mask)):
            choice = branch.mode() if deterministic else branch.sample(rng)
            discrete[:, b] = choice
            log_probs.append(branch.log_prob(choice))
            if with_entropy:
                entropies.append(branch.entropy())
        return PolicyOutput(Actions(continuous, discrete), joint(log_probs, n), joint(entropies, n) if with_entropy else None)

    def _continuous_part(self, active: _Network, heads: np.ndarray, features: np.ndarray) -> DiagonalGaussian | SquashedGaussian:
        size = self.spec.action.continuous_size
        mean = heads[:size].T
        if active.gaussian is not None:
            return active.gaussian.around(mean)
        if active.noise_variance is not None:
            return SquashedGaussian(mean, marginal_log_std(features, active.noise_variance))
        return SquashedGaussian(mean, clip_log_std(heads[size : 2 * size]).T)

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

    def _features(self, active: _Network, obs: Observations, n: int) -> np.ndarray:
        """Output of the body, float32 ``[n, U]``: valid until the next call."""
        if n != self._rows:
            self._resize(n)
        hidden = join_observations(self.spec, obs, n, self._inputs)
        if active.mean is not None:
            hidden = normalize(hidden, active.mean, active.std, out=self._inputs)
        for (kernel, bias), out in zip(active.layers, self._outputs, strict=True):
            hidden.dot(kernel, out)
            np.add(out, bias, out)
            self._activate(out, self._scratch)
            hidden = out
        return hidden

    def _resize(self, n: int) -> None:
        """Buffers of `n` rows: views of the largest ones so far, or larger ones."""
        if not self._buffers or n > len(self._buffers[0]):
            widths = [input_size(self.spec), *[self.network.hidden_units] * 3]
            self._buffers = [np.empty((n, width), np.float32) for width in widths]
        self._rows = n
        self._inputs, self._scratch, *alternate = (buffer[:n] for buffer in self._buffers)
        self._outputs = [alternate[i % 2] for i in range(self.network.num_layers)]
