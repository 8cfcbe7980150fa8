"""Trajectories for tests of trainers, made by the NumPy policy on random observations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envs.specs import ActionPart, ActionSpec, BehaviorSpec, ObservationSpec, hybrid_action
from trainers.networks import Distribution
from trainers.policy import Policy
from trainers.settings import NetworkSettings
from trainers.trajectory import TrajectoryBatch

CUT, TERMINATED, TRUNCATED, BOTH = range(4)

BOX = ActionSpec("box", continuous_size=2, low=(-1.0, -1.0), high=(1.0, 1.0), shape=(2,), dtype="float32")
DISCRETE = ActionSpec("discrete", discrete_branches=(3,), starts=(0,))
MULTI_DISCRETE = ActionSpec("multi_discrete", discrete_branches=(2, 4), starts=(0, 0), shape=(2,))
HYBRID = hybrid_action([ActionPart(("arm",), BOX), ActionPart(("tool",), MULTI_DISCRETE)])
ACTIONS = {"box": BOX, "discrete": DISCRETE, "multi_discrete": MULTI_DISCRETE, "hybrid": HYBRID}


def spec_of(action: ActionSpec, size: int = 3) -> BehaviorSpec:
    """One float32 observation of `size` numbers."""
    return BehaviorSpec((ObservationSpec("obs", (size,)),), action)


def policy_of(
    spec: BehaviorSpec, network: NetworkSettings, weights: dict[str, np.ndarray], version: int = 0,
    distribution: Distribution = "gaussian",
) -> Policy:
    """A NumPy policy with `weights`."""
    policy = Policy(spec, network, distribution)
    policy.set_weights(weights, version)
    return policy


def rollout(
    policy: Policy, rng: np.random.Generator, lengths: Sequence[int], ends: Sequence[int] | None = None, scale: float = 1.0,
    rewards: Sequence[float] | None = None,
) -> TrajectoryBatch:
    """Trajectories of `lengths` with random observations (normal, times `scale`), each of an agent and episode of its own.

    Args:
        ends: how each trajectory ends; terminated, truncated and cut in turn when None.
        rewards: of all rows; standard normal when None.
    """
    n, k = sum(lengths), len(lengths)
    ends = np.arange(k) % 3 if ends is None else np.asarray(ends)
    obs = {o.name: (scale * rng.standard_normal((n, *o.shape))).astype(o.dtype) for o in policy.spec.observations}
    out = policy.act(obs, rng)
    return TrajectoryBatch(
        obs=obs, continuous=out.actions.continuous, discrete=out.actions.discrete, log_prob=out.log_prob,
        reward=(rng.standard_normal(n) if rewards is None else np.asarray(rewards)).astype(np.float32),
        version=np.full(n, policy.version, np.int64), action_mask=None, length=np.asarray(lengths, np.int32),
        next_obs={o.name: (scale * rng.standard_normal((k, *o.shape))).astype(o.dtype) for o in policy.spec.observations},
        terminated=np.isin(ends, (TERMINATED, BOTH)), truncated=np.isin(ends, (TRUNCATED, BOTH)),
        agent_id=np.arange(k, dtype=np.int64), episode_id=np.arange(k, dtype=np.int64),
        episode_return=np.zeros(0, np.float64), episode_length=np.zeros(0, np.int64),
    )
