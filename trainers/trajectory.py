"""Trajectories as flat arrays: many trajectories of one behavior, rows one after another.

Letters: ``N`` rows (agent steps), ``K`` trajectories, ``E`` finished episodes, ``C``, ``B`` and ``W`` as in `envs.specs`, ``M`` the size
of a recurrent policy's memory.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from envs.specs import BehaviorSpec, Observations


@dataclass(slots=True)
class TrajectoryBatch:
    """Trajectories of one behavior, ready to be learnt from. Row ``t`` is (observation, action) at ``t`` and the reward that followed.

    A trajectory is consecutive steps of one agent within one episode. It ends by `terminated` (the task ended: no
    bootstrap), by `truncated` (we stopped watching) or, with neither set, by a horizon cut; the last two bootstrap from `next_obs`.

    Groups: the columns from `group_reward` on are None unless the spec is ``grouped``. They are for an algorithm that learns from team-mates
    together; others learn from `total_reward`. Rows of team-mates at one moment have the same `group_id` and `world_episode` (of their
    trajectories) and the same `env_step`: their observations are what the team saw then, their actions what it did. After a
    trajectory's last row it saw the observations of the rows whose `env_step` is its `next_env_step`, and `next_obs` of the trajectories
    with the same `next_env_step`. A team-mate without such a row was dead or paused, or its row is in another batch of the same env
    manager: trajectories end at different times. In a world of agents in turn each moment has one row; the newest observation of
    each mate up to then is the team's.

    Attributes:
        obs: name -> ``[N, *shape]`` in the space's dtype.
        continuous: float32 ``[N, C]``, policy-space sample, not clipped.
        discrete: int32 ``[N, B]``.
        log_prob: float32 ``[N]``, joint log-probability (density) of the action when it was taken.
        reward: float32 ``[N]``, environment reward.
        version: int64 ``[N]``, policy version that acted.
        action_mask: bool ``[N, W]``, True = allowed; None unless the action spec is ``masked``.
        memory: float32 ``[N, M]``, the policy's memory before each step (h, then c); None unless the policy is recurrent.
        length: int32 ``[K]``, rows of each trajectory, in the order of the rows.
        begin: int64 ``[K]``, agent steps of its episode before each trajectory's first row; 0 where it begins the episode.
        next_obs: name -> ``[K, *shape]``, the true observation after each trajectory's last row.
        next_action_mask: bool ``[K, W]``, what is allowed at `next_obs`; None with `action_mask`.
        terminated, truncated: bool ``[K]``.
        agent_id: int64 ``[K]``, slot within its env manager.
        episode_id: int64 ``[K]``, unique within its env manager.
        episode_return, episode_length: float64 and int64 ``[E]``, of the episodes that ended in this batch, in the order of their end.
            A return has the group's rewards in it that reached the agent.
        episode_lesson: int64 ``[E]``, tag of the parameters that each of them began with (`envs.base.BatchedEnv.lesson_of`).
        group_reward: float32 ``[N]``, what the group received between a row's decision and what followed. Not in `reward`.
        env_step: int64 ``[N]``, steps of the world, in its episode, before the row's decision.
        next_env_step: int64 ``[K]``, those before `next_obs`.
        group_id: int64 ``[K]``, unique within its env manager; -1 for an agent without a group.
        world_episode: int64 ``[K]``, episode of the group's world, counted from 0 in its env manager.
        group_ended: bool ``[K]``, the group ended with the trajectory: no team-mate was left. An agent that terminates without it has a
            team that goes on, and whose value is not 0.
        group_return: float64 ``[G]``, of the groups that ended in this batch; see `envs.specs.TerminalSteps`.
    """

    obs: Observations
    continuous: np.ndarray
    discrete: np.ndarray
    log_prob: np.ndarray
    reward: np.ndarray
    version: np.ndarray
    action_mask: np.ndarray | None
    memory: np.ndarray | None
    length: np.ndarray
    begin: np.ndarray
    next_obs: Observations
    next_action_mask: np.ndarray | None
    terminated: np.ndarray
    truncated: np.ndarray
    agent_id: np.ndarray
    episode_id: np.ndarray
    episode_return: np.ndarray
    episode_length: np.ndarray
    episode_lesson: np.ndarray
    group_reward: np.ndarray | None = None
    env_step: np.ndarray | None = None
    next_env_step: np.ndarray | None = None
    group_id: np.ndarray | None = None
    world_episode: np.ndarray | None = None
    group_ended: np.ndarray | None = None
    group_return: np.ndarray | None = None

    @property
    def rows(self) -> int:
        """N, in agent steps."""
        return len(self.reward)

    @property
    def total_reward(self) -> np.ndarray:
        """float32 ``[N]``: an agent's reward and its group's together, what an algorithm that knows no groups learns from."""
        return self.reward if self.group_reward is None else self.reward + self.group_reward

    @property
    def starts(self) -> np.ndarray:
        """int64 ``[K]``: first row of each trajectory."""
        return np.cumsum(self.length, dtype=np.int64) - self.length


def empty_batch(spec: BehaviorSpec, memory_size: int = 0) -> TrajectoryBatch:
    """A batch without rows, trajectories or episodes, with the dtypes and shapes of `spec`.

    Args:
        memory_size: M; 0 where the policy is not recurrent.
    """
    def nothing(dtype: str, *shape: int) -> np.ndarray:
        return np.empty((0, *shape), dtype)

    mask = nothing("bool", spec.action.choices) if spec.action.masked else None
    groups = {"group_reward": "float32", "env_step": "int64", "next_env_step": "int64", "group_id": "int64", "world_episode": "int64",
              "group_ended": "bool", "group_return": "float64"}
    return TrajectoryBatch(
        obs={o.name: nothing(o.dtype, *o.shape) for o in spec.observations},
        continuous=nothing("float32", spec.action.continuous_size),
        discrete=nothing("int32", len(spec.action.discrete_branches)),
        log_prob=nothing("float32"), reward=nothing("float32"), version=nothing("int64"), action_mask=mask,
        memory=nothing("float32", memory_size) if memory_size else None,
        length=nothing("int32"), begin=nothing("int64"),
        next_obs={o.name: nothing(o.dtype, *o.shape) for o in spec.observations}, next_action_mask=mask,
        terminated=nothing("bool"), truncated=nothing("bool"), agent_id=nothing("int64"), episode_id=nothing("int64"),
        episode_return=nothing("float64"), episode_length=nothing("int64"),
        episode_lesson=nothing("int64"),
        **({name: nothing(dtype) for name, dtype in groups.items()} if spec.grouped else {}),
    )


def row_bytes(spec: BehaviorSpec, memory_size: int = 0) -> int:
    """Bytes of one row of a batch: what an agent step takes on its way from an env manager to a trainer.

    Args:
        memory_size: M; 0 where the policy is not recurrent.
    """
    b = empty_batch(spec, memory_size)
    arrays = [*b.obs.values(), b.continuous, b.discrete, b.log_prob, b.reward, b.version, b.action_mask, b.memory, b.group_reward,
              b.env_step]
    return sum(a.itemsize * int(np.prod(a.shape[1:], dtype=np.int64)) for a in arrays if a is not None)


def concatenate(batches: list[TrajectoryBatch]) -> TrajectoryBatch:
    """All trajectories of `batches` in one batch, in order. A single batch is returned as it is, not copied.

    Raises:
        ValueError: no batch given.
    """
    if not batches:
        raise ValueError("concatenate() needs at least one TrajectoryBatch, received none.")
    if len(batches) == 1:
        return batches[0]
    joined = {}
    for f in fields(TrajectoryBatch):
        parts = [getattr(b, f.name) for b in batches]
        if isinstance(parts[0], dict):
            joined[f.name] = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
        elif parts[0] is None:
            joined[f.name] = None
        else:
            joined[f.name] = np.concatenate(parts)
    return TrajectoryBatch(**joined)
