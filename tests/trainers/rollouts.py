"""Trajectories for tests of trainers, made by the NumPy policy on random observations of every kind.

Letters: ``n``, ``N`` rows, ``K`` trajectories, ``W`` and ``M`` as in `trainers.trajectory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from envs.specs import ActionPart, ActionSpec, BehaviorSpec, Observations, ObservationSpec, hybrid_action
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
MASKED_DISCRETE, MASKED_MULTI_DISCRETE, MASKED_HYBRID = (replace(a, masked=True) for a in (DISCRETE, MULTI_DISCRETE, HYBRID))

IMAGE = ObservationSpec("eye", (6, 5, 3), "uint8", "image", is_uint8_image=True)
OBSERVATIONS = {
    "vector": (ObservationSpec("obs", (3,)),),
    "image": (IMAGE,),
    "dict": (
        ObservationSpec("cards", (2,), "int64", "categorical", ("cards",), choices=(3, 2), starts=(0, 5)),
        replace(IMAGE, path=("eye",)),
        ObservationSpec("flags", (2,), "int8", "binary", ("flags",)),
        ObservationSpec("inner/speed", (2, 2), "float64", "vector", ("inner", "speed")),
    ),
}
"""Kind of space -> its observations: a Box, a small image, a Dict with one of each kind."""


def spec_of(action: ActionSpec, size: int = 3, observations: str = "vector") -> BehaviorSpec:
    """A behavior with the `OBSERVATIONS` of a name; ``"vector"`` is one float32 observation of `size` numbers."""
    if observations == "vector":
        return BehaviorSpec((ObservationSpec("obs", (size,)),), action)
    return BehaviorSpec(OBSERVATIONS[observations], action)


def network_of(memory: bool | dict[str, int] = False, **changes) -> NetworkSettings:
    """A tiny network that takes every one of `OBSERVATIONS`; True is a memory of 6 numbers and sequences of 4."""
    remembered = {"memory": {"sequence_length": 4, "memory_size": 6} if memory is True else memory} if memory else {}
    small = {"hidden_units": 8, "num_layers": 1, "activation": "tanh", "vis_encode_type": "fully_connected"}
    return NetworkSettings.model_validate({**small, **remembered, **changes})


def policy_of(
    spec: BehaviorSpec, network: NetworkSettings, weights: dict[str, np.ndarray], version: int = 0,
    distribution: Distribution = "gaussian",
) -> Policy:
    """A NumPy policy with `weights`."""
    policy = Policy(spec, network, distribution)
    policy.set_weights(weights, version)
    return policy


def random_observations(spec: BehaviorSpec, rng: np.random.Generator, n: int, scale: float = 1.0) -> Observations:
    """Any observations of `n` agents that the spec allows; numbers of vectors are normal, times `scale`."""
    return {o.name: _random_observation(o, rng, n, scale) for o in spec.observations}


def _random_observation(o: ObservationSpec, rng: np.random.Generator, n: int, scale: float) -> np.ndarray:
    if o.kind == "categorical":
        choices, starts = (np.reshape(x, o.shape) for x in (o.choices, o.starts))
        return (starts + rng.integers(0, choices, (n, *o.shape))).astype(o.dtype)
    if o.kind == "binary":
        return rng.integers(0, 2, (n, *o.shape)).astype(o.dtype)
    if np.issubdtype(np.dtype(o.dtype), np.integer):
        return rng.integers(0, 256 if o.is_uint8_image else 10, (n, *o.shape)).astype(o.dtype)
    if o.kind == "image":
        return rng.random((n, *o.shape)).astype(o.dtype)
    return (scale * rng.standard_normal((n, *o.shape))).astype(o.dtype)


def random_masks(action: ActionSpec, rng: np.random.Generator, n: int) -> np.ndarray | None:
    """Masks bool ``[n, W]`` with at least one allowed choice in each branch, about half of the others; None unless masked."""
    if not action.masked:
        return None
    masks = rng.random((n, action.choices)) < 0.5
    first = 0
    for choices in action.discrete_branches:
        masks[np.arange(n), first + rng.integers(0, choices, n)] = True
        first += choices
    return masks


def rollout(
    policy: Policy, rng: np.random.Generator, lengths: Sequence[int], ends: Sequence[int] | None = None, scale: float = 1.0,
    rewards: Sequence[float] | None = None, horizon: int | None = None, first_episode: int = 0,
) -> TrajectoryBatch:
    """Episodes of `lengths` from their beginning, each of an agent of its own, with random observations and masks.

    Args:
        ends: how each one ends; cut, terminated and truncated in turn when None.
        scale: of the numbers of vector observations.
        rewards: of all rows; standard normal when None.
        horizon: longest trajectory: longer episodes are cut into several, one after another; None cuts nothing.
        first_episode: episode id of the first one.
    """
    n, lengths = sum(lengths), np.asarray(lengths, np.int64)
    ends = np.arange(len(lengths)) % 3 if ends is None else np.asarray(ends, np.int64)
    spec = policy.spec
    obs, masks = random_observations(spec, rng, n, scale), random_masks(spec.action, rng, n)
    acted = _act(policy, rng, obs, masks, lengths)
    reward = (rng.standard_normal(n) if rewards is None else np.asarray(rewards)).astype(np.float32)
    episode, begin, length = _cut(lengths, horizon)
    k = len(length)
    next_obs, next_masks = random_observations(spec, rng, k, scale), random_masks(spec.action, rng, k)
    goes_on = begin + length < lengths[episode]
    after = np.cumsum(length)[goes_on]  # the next trajectory's first row is what a cut one bootstraps from
    for name, x in next_obs.items():
        x[goes_on] = obs[name][after]
    if next_masks is not None:
        next_masks[goes_on] = masks[after]
    end = np.where(goes_on, CUT, ends[episode])
    return TrajectoryBatch(
        obs=obs, **acted, reward=reward, version=np.full(n, policy.version, np.int64), action_mask=masks,
        length=length.astype(np.int32), begin=begin, next_obs=next_obs, next_action_mask=next_masks,
        terminated=np.isin(end, (TERMINATED, BOTH)), truncated=np.isin(end, (TRUNCATED, BOTH)),
        agent_id=episode, episode_id=first_episode + episode,
        episode_return=np.zeros(0, np.float64), episode_length=np.zeros(0, np.int64),
        episode_lesson=np.zeros(0, np.int64),
    )


def _cut(lengths: np.ndarray, horizon: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Trajectories of episodes: number of the episode, agent steps before, rows; int64 ``[K]`` each."""
    pieces = [
        (episode, begin, min(horizon or length, length - begin))
        for episode, length in enumerate(lengths.tolist()) for begin in range(0, length, horizon or length)
    ]
    episode, begin, length = np.array(pieces, np.int64).reshape(-1, 3).T
    return episode.copy(), begin.copy(), length.copy()


def _act(
    policy: Policy, rng: np.random.Generator, obs: Observations, masks: np.ndarray | None, lengths: np.ndarray
) -> dict[str, np.ndarray | None]:
    """Actions, log-probs and memory of all rows; a policy with a memory goes through the episodes step by step."""
    if policy.network.memory is None:
        out = policy.act(obs, rng, action_mask=masks)
        return {"continuous": out.actions.continuous, "discrete": out.actions.discrete, "log_prob": out.log_prob, "memory": None}
    action, starts, n = policy.spec.action, np.cumsum(lengths) - lengths, int(lengths.sum())
    continuous = np.empty((n, action.continuous_size), np.float32)
    discrete = np.empty((n, len(action.discrete_branches)), np.int32)
    log_prob, memory = np.empty(n, np.float32), np.empty((n, policy.network.memory.memory_size), np.float32)
    for t in range(int(lengths.max(initial=0))):
        agents = np.flatnonzero(lengths > t)
        rows = starts[agents] + t
        out = policy.act(
            {name: x[rows] for name, x in obs.items()}, rng, action_mask=None if masks is None else masks[rows],
            agent_id=agents, first=np.full(len(agents), t == 0),
        )
        continuous[rows], discrete[rows] = out.actions.continuous, out.actions.discrete
        log_prob[rows], memory[rows] = out.log_prob, out.memory
    return {"continuous": continuous, "discrete": discrete, "log_prob": log_prob, "memory": memory}


def trajectories_of(batch: TrajectoryBatch, which: Sequence[int]) -> TrajectoryBatch:
    """Some trajectories of a batch, by number, in the order given."""
    which = np.asarray(which, np.int64)
    rows = np.concatenate([np.arange(s, s + n) for s, n in zip(batch.starts[which], batch.length[which], strict=True)])
    by_row = {"obs", "continuous", "discrete", "log_prob", "reward", "version", "action_mask", "memory"}

    def some(name: str):
        value = getattr(batch, name)
        index = rows if name in by_row else which
        if isinstance(value, dict):
            return {key: x[index] for key, x in value.items()}
        return value if value is None or name.startswith("episode_") and name != "episode_id" else value[index]

    return TrajectoryBatch(**{f.name: some(f.name) for f in fields(TrajectoryBatch)})
