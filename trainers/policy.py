"""Acting: from weights and observations to actions, in NumPy (encoders and dense layers of a user's own Keras model: in TensorFlow).

Letters: ``n`` agents of one call, ``I``, ``U``, ``M`` and ``F`` as in `trainers.architecture`, ``H`` outputs of all heads together,
``C`` continuous dimensions, ``B`` discrete branches, ``W`` choices of all branches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from envs.specs import Actions, BehaviorSpec, Observations
from trainers.actor_body import ActorBody, BodyWeights
from trainers.agent_memory import AgentMemory, LstmStep, LstmWeights
from trainers.architecture import architecture
from trainers.distributions import Categorical, DiagonalGaussian, SquashedGaussian, clip_log_std, joint
from trainers.exploration_noise import ExplorationNoise, marginal_log_std
from trainers.inputs import check_observations
from trainers.networks import LOG_STD, Distribution, action_heads, check_weights, features_width, lstm_layer, policy_layout
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
        memory: float32 ``[n, M]``, what the agents remembered before this step; None without a recurrent layer.
    """

    actions: Actions
    log_prob: np.ndarray
    entropy: np.ndarray | None
    memory: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class _Network:
    """The weights of one version, as `act` uses them. Replaced as a whole, so no call ever sees two versions.

    Attributes:
        body: of what comes before the recurrent layer.
        lstm: of the recurrent layer; None without.
        head_kernel, head_bias: the kernels of all heads side by side, transposed to ``[H, F]``, and their biases ``[H, 1]``.
        gaussian: carries σ ``[C]`` of a Gaussian that is not squashed; None without.
        noise_std, noise_variance: σ and σ² of state-dependent exploration, transposed to ``[C, F]``; None without.
    """

    version: int
    body: BodyWeights
    lstm: LstmWeights | None
    head_kernel: np.ndarray
    head_bias: np.ndarray
    gaussian: DiagonalGaussian | None
    noise_std: np.ndarray | None
    noise_variance: np.ndarray | None


class Policy:
    """Observation -> action distribution -> action, for all agents of a behavior at once.

    The network runs in buffers that are used again and again and grow with the largest batch seen; not for two threads at once.
    With a recurrent layer the policy keeps what each agent remembers, whatever weights it acts with.

    Args:
        distribution: how the continuous part of an action is distributed (see `trainers.networks.Distribution`).
        noise_steps: with ``"gsde"``, decisions of an agent between two draws of its noise; None: one draw per episode.

    Raises:
        ArchitectureError: network settings that do not suit the observations, or a model of the user's that cannot be used.
    """

    def __init__(
        self, spec: BehaviorSpec, network: NetworkSettings, distribution: Distribution = "gaussian", noise_steps: int | None = None
    ):
        self.spec = spec
        self.network = network
        self.distribution = distribution
        self.architecture = arch = architecture(spec, network)
        self._layout = policy_layout(arch, distribution)
        self._body = ActorBody(arch)
        lstm = lstm_layer(arch)
        self._lstm = LstmStep(lstm) if lstm else None
        self._memory = AgentMemory(arch.memory_size)
        self._noise = ExplorationNoise(features_width(arch), spec.action.continuous_size, noise_steps)
        self._is_squashed = distribution != "gaussian"
        # Rows of the heads' output that come before the logits.
        self._continuous_outputs = spec.action.continuous_size * (2 if distribution == "squashed_gaussian" else 1)
        self._active: _Network | None = None

    @property
    def version(self) -> int:
        """Version of the weights in use; -1 before the first `set_weights`."""
        return -1 if self._active is None else self._active.version

    @property
    def engine(self) -> str:
        """What computes the largest part: NumPy; TensorFlow for a model of the user's own; onnxruntime for images where it is installed."""
        return self._body.engine

    def set_weights(self, weights: Weights, version: int) -> None:
        """Act with other weights from the next call on: all of them and the version change together.

        The arrays are copied: views into shared memory can be freed, and later changes to them have no effect here. The noise of
        state-dependent exploration stays; new weights only scale it. So does what the agents remember.

        Args:
            weights: exactly the tensors of `policy_layout`.
            version: what `version` says from now on.

        Raises:
            ValueError: names, shapes or dtypes differ from the layout, or a value is not finite; the old weights stay in use.
        """
        check_weights(weights, self._layout, f"the policy (version {version})")
        heads = action_heads(self.architecture, self.distribution)
        log_std = weights.get(LOG_STD)
        noise_std = np.exp(log_std.T, order="C") if log_std is not None and self.distribution == "gsde" else None
        self._active = _Network(
            version=version,
            body=self._body.prepare(weights),
            lstm=self._lstm.prepare(weights) if self._lstm else None,
            head_kernel=np.concatenate([weights[d.kernel].T for d in heads]),
            head_bias=np.concatenate([weights[d.bias] for d in heads])[:, None],
            gaussian=DiagonalGaussian(log_std[None], log_std) if log_std is not None and self.distribution == "gaussian" else None,
            noise_std=noise_std,
            noise_variance=None if noise_std is None else np.square(noise_std),
        )

    def act(
        self,
        obs: Observations,
        rng: np.random.Generator,
        deterministic: bool = False,
        action_mask: np.ndarray | None = None,
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
            action_mask: bool ``[n, W]``, True = allowed, one branch after the other; None allows everything.
            with_entropy: also work out the entropy; an env manager, which has no use for it, saves a tenth of the call.
            agent_id: int64 ``[n]``, slots of different agents: whose memory and whose noise is used. A recurrent policy needs it;
                ``"gsde"`` without it draws every row from the marginal distribution, as if its noise were new.
            first: bool ``[n]``, the agent's first decision of an episode: it remembers nothing, and its noise is drawn anew; None:
                of no agent.

        Raises:
            ValueError: observations, masks or slots of a wrong name, shape or dtype, a row without an allowed action, or no slots
                for a recurrent policy. No agent's memory has changed then.
            RuntimeError: no weights were set yet.
        """
        active = self._active
        if active is None:
            raise RuntimeError("Expected weights before the first action, received none. Call set_weights() first.")
        n = check_observations(self.spec, obs)
        if action_mask is not None and (action_mask.shape != (n, self.spec.action.choices) or action_mask.dtype != np.bool_):
            raise ValueError(f"Expected action_mask bool [{n}, {self.spec.action.choices}], all branches side by side, "
                             f"received {action_mask.dtype} {list(action_mask.shape)}.")
        features, memory, after = self._body.features(active.body, obs, n), None, None
        if self._lstm is not None:
            if agent_id is None:
                raise ValueError("Expected agent_id, the slot of each agent, since this policy remembers earlier steps; received None.")
            memory = self._memory.recall(agent_id, first, n)
            after = self._lstm.step(active.lstm, features, memory)
            features = after[:, : after.shape[1] // 2]
        # Transposed, a fresh array: see `distributions` for why.
        heads = active.head_kernel.dot(features.T)
        heads += active.head_bias
        log_probs, entropies = [], []
        continuous = np.empty((n, 0), np.float32)
        if self._continuous_outputs:
            part = self._continuous_part(active, heads, features)
            continuous = self._continuous_action(active, part, features, rng, deterministic, agent_id, first)
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
        if after is not None:
            self._memory.store(agent_id, after)
        return PolicyOutput(Actions(continuous, discrete), joint(log_probs, n), joint(entropies, n) if with_entropy else None, memory)

    def agents_state(self) -> dict[str, np.ndarray]:
        """What all agents remember, and their noise; copies."""
        return {**self._memory.state(), **self._noise.state()}

    def load_agents_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from `agents_state` of a policy with the same networks."""
        self._memory.load_state(state)
        self._noise.load_state(state)

    def _continuous_part(self, active: _Network, heads: np.ndarray, features: np.ndarray) -> DiagonalGaussian | SquashedGaussian:
        size = self.spec.action.continuous_size
        mean = heads[:size].T
        if active.gaussian is not None:
            return active.gaussian.around(mean)
        if active.noise_variance is not None:
            return SquashedGaussian(mean, marginal_log_std(features, active.noise_variance))
        return SquashedGaussian(mean, clip_log_std(heads[size : 2 * size]).T)

    def _continuous_action(
        self, active: _Network, part: DiagonalGaussian | SquashedGaussian, features: np.ndarray, rng: np.random.Generator,
        deterministic: bool, agent_id: np.ndarray | None, first: np.ndarray | None,
    ) -> np.ndarray:
        """The action before any tanh, float32 ``[n, C]``."""
        if deterministic:
            return part.mode()
        if active.noise_std is None or agent_id is None:
            return part.sample(rng)
        self._noise.advance(agent_id, first, len(features), rng)
        action = self._noise.displacement(features, active.noise_std, agent_id)
        action += part.mean
        return action

    def _branches(self, logits: np.ndarray, action_mask: np.ndarray | None) -> list[Categorical]:
        branches, first = [], 0
        for b, size in enumerate(self.spec.action.discrete_branches):
            mask = None if action_mask is None else action_mask[:, first : first + size]
            branches.append(Categorical(logits[first : first + size].T, mask, f"branch {b}"))
            first += size
        return branches
