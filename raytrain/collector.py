"""Turns the steps of all agents of one behavior into trajectories, without a Python object per step.

Each agent slot owns one row of preallocated ``[slot, time, …]`` arrays, its *tape*. Steps are written to the end of the
tape; the end of a trajectory is only a mark. Rows leave the tape together, many trajectories at once, in `take`.
"""

from __future__ import annotations

import numpy as np

from envs.specs import BehaviorSpec, DecisionSteps, Observations, TerminalSteps
from trainers.policy import PolicyOutput
from trainers.trajectory import TrajectoryBatch, concatenate, empty_batch


class _Ends:
    """Marks of finished trajectories that are still on the tapes: one entry per call, each for several slots."""

    def __init__(self) -> None:
        self.parts: list[tuple[np.ndarray, ...]] = []
        self.next_obs: list[Observations] = []
        self.rows = 0

    def add(self, slot, start, stop, terminated, truncated, episode, next_obs: Observations) -> None:
        self.parts.append((slot, start, stop, terminated, truncated, episode))
        self.next_obs.append(next_obs)
        self.rows += int((stop - start).sum())

    def joined(self) -> tuple[list[np.ndarray], Observations]:
        columns = [np.concatenate(c) for c in zip(*self.parts)]
        obs = {k: np.concatenate([o[k] for o in self.next_obs]) for k in self.next_obs[0]}
        return columns, obs


class Collector:
    """Collects one behavior's trajectories within one env manager.

    Invariants: a trajectory is one agent, one episode, consecutive steps, at most `time_horizon` long. A row is the
    observation an agent acted on, its action with the log-prob and version of the policy that acted, and the reward that
    followed. Copies are made here, at the env's boundary (an env may reuse its arrays).

    Args:
        spec: observations and actions.
        num_slots: agent slots of the env.
        time_horizon: longest trajectory (agent steps).
        capacity: length of each tape (agent steps); at least `time_horizon`.
    """

    def __init__(self, spec: BehaviorSpec, num_slots: int, time_horizon: int, capacity: int | None = None) -> None:
        self.spec = spec
        self.time_horizon = time_horizon
        self.capacity = max(capacity or 0, time_horizon)
        shape = (num_slots, self.capacity)
        self._obs = {o.name: np.empty((*shape, *o.shape), o.dtype) for o in spec.observations}
        self._continuous = np.empty((*shape, spec.action.continuous_size), np.float32)
        self._discrete = np.empty((*shape, len(spec.action.discrete_branches)), np.int32)
        self._log_prob = np.empty(shape, np.float32)
        self._reward = np.empty(shape, np.float32)
        self._version = np.empty(shape, np.int64)
        self._position = np.zeros(num_slots, np.int64)  # next row to write
        self._start = np.zeros(num_slots, np.int64)  # first row of the running trajectory
        self._pending = np.zeros(num_slots, bool)  # acted, result not here yet
        self._episode = np.full(num_slots, -1, np.int64)
        self._return = np.zeros(num_slots, np.float64)
        self._length = np.zeros(num_slots, np.int64)
        self._fill = 0  # upper bound of max(position + pending), so that the check per step costs nothing
        self._ends = _Ends()
        self._spilled: list[TrajectoryBatch] = []
        self._spilled_rows = 0
        self._finished_returns: list[np.ndarray] = []
        self._finished_lengths: list[np.ndarray] = []
        self._next_episode = 0
        self.agent_steps = 0
        """Rows completed since construction."""

    @property
    def finished_rows(self) -> int:
        """Rows of finished trajectories that `take` would return."""
        return self._ends.rows + self._spilled_rows

    @property
    def longest_episode(self) -> int:
        """Length of the longest running episode (agent steps)."""
        return int(self._length.max(initial=0))

    @property
    def running(self) -> np.ndarray:
        """bool ``[num_slots]``: agents with an unfinished trajectory that has at least one row or a pending action."""
        return self._pending | (self._position > self._start)

    def record_actions(self, steps: DecisionSteps, output: PolicyOutput, version: int) -> None:
        """Write what agents saw and did; the reward follows with their next decision or terminal step."""
        if self._fill >= self.capacity:
            self._make_room()
        at = self._index(steps.agent_id)
        for name, tape in self._obs.items():
            tape[at] = steps.obs[name]
        if self._continuous.shape[-1]:
            self._continuous[at] = output.actions.continuous
        if self._discrete.shape[-1]:
            self._discrete[at] = output.actions.discrete
        self._log_prob[at] = output.log_prob
        self._version[at] = version
        self._pending[at[0]] = True
        self._fill += 1

    def record_terminals(self, steps: TerminalSteps) -> None:
        """Complete the last row of agents whose episode ended and mark the end. An agent that never acted leaves no row."""
        if not len(steps):
            return
        acted = self._pending[steps.agent_id]
        ids = steps.agent_id[acted]
        self._complete(ids, steps.reward[acted])
        self._finished_returns.append(self._return[ids].copy())
        self._finished_lengths.append(self._length[ids].copy())
        terminated = steps.terminated[acted]
        self._mark(ids, terminated, steps.truncated[acted] & ~terminated, {k: v[acted] for k, v in steps.obs.items()})
        self._episode[steps.agent_id] = -1
        self._length[steps.agent_id] = 0

    def record_decisions(self, steps: DecisionSteps) -> None:
        """Complete the rows of agents that need their next action; start the episodes of those that are new."""
        if not len(steps):
            return
        first = steps.first
        if first.any():
            self._begin(steps.agent_id[first])
            old = ~first
            ids, reward = steps.agent_id[old], steps.reward[old]
        else:
            old, ids, reward = None, steps.agent_id, steps.reward
        self._complete(ids, reward)
        if self._fill >= self.time_horizon:  # no trajectory can be longer than the fullest tape
            full = self._position[ids] - self._start[ids] >= self.time_horizon
            if full.any():
                obs = steps.obs if old is None else {k: v[old] for k, v in steps.obs.items()}
                self.cut(ids[full], {k: v[full] for k, v in obs.items()})

    def cut(self, agent_id: np.ndarray, obs: Observations) -> None:
        """End running trajectories here; the episodes go on. `obs` are the observations that follow their last rows."""
        has_rows = self._position[agent_id] > self._start[agent_id]
        if not has_rows.all():
            agent_id, obs = agent_id[has_rows], {k: v[has_rows] for k, v in obs.items()}
        if len(agent_id):
            no = np.zeros(len(agent_id), bool)
            self._mark(agent_id, no, no, obs)

    def take(self) -> TrajectoryBatch:
        """All finished trajectories and episodes since the last call, ordered by slot and time within each part of the tape."""
        self._spill()
        batch = concatenate(self._spilled) if self._spilled else empty_batch(self.spec)
        self._spilled, self._spilled_rows = [], 0
        if self._finished_returns:
            batch.episode_return = np.concatenate(self._finished_returns)
            batch.episode_length = np.concatenate(self._finished_lengths)
            self._finished_returns, self._finished_lengths = [], []
        return batch

    def abandon(self) -> int:
        """Forget every unfinished trajectory and episode (a hard reset); returns the rows that are lost."""
        lost = int((self._position - self._start).sum())
        self._position[:] = self._start
        self._pending[:] = False
        self._episode[:] = -1
        self._length[:] = 0
        return lost

    # -- inner parts -------------------------------------------------------------------------------------------------

    def _index(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return ids, self._position[ids]

    def _begin(self, ids: np.ndarray) -> None:
        # An agent that comes back without a terminal step left its trajectory unfinished: those rows are no trajectory.
        self._position[ids] = self._start[ids]
        self._pending[ids] = False
        self._episode[ids] = np.arange(self._next_episode, self._next_episode + len(ids))
        self._next_episode += len(ids)
        self._return[ids] = 0.0
        self._length[ids] = 0

    def _complete(self, ids: np.ndarray, reward: np.ndarray) -> None:
        self._reward[self._index(ids)] = reward
        self._position[ids] += 1
        self._pending[ids] = False
        self._return[ids] += reward
        self._length[ids] += 1
        self.agent_steps += len(ids)

    def _mark(self, ids, terminated, truncated, next_obs: Observations) -> None:
        start, stop = self._start[ids], self._position[ids]
        copies = {k: np.array(v, copy=True) for k, v in next_obs.items()}
        self._ends.add(np.array(ids), start, stop, terminated, truncated, self._episode[ids], copies)
        self._start[ids] = stop

    def _make_room(self) -> None:
        """A tape may be full: move finished rows away and the unfinished ones to the beginning."""
        self._fill = int(self._position.max(initial=0))  # where agents act in turn, `_fill` runs ahead of every tape
        if self._fill >= self.capacity:
            self._spill()

    def _spill(self) -> None:
        if self._ends.parts:
            (slot, start, stop, terminated, truncated, episode), next_obs = self._ends.joined()
            order = np.lexsort((start, slot))
            slot, start, stop = slot[order], start[order], stop[order]
            length = stop - start
            total = int(length.sum())
            # Row r of trajectory k lies at slot_k * capacity + start_k + r in the flattened tapes.
            offset = slot * self.capacity + start - (np.cumsum(length) - length)
            rows = np.repeat(offset, length) + np.arange(total)

            def flat(tape: np.ndarray) -> np.ndarray:
                return tape.reshape(tape.shape[0] * tape.shape[1], *tape.shape[2:]).take(rows, axis=0)

            self._spilled.append(TrajectoryBatch(
                obs={k: flat(v) for k, v in self._obs.items()},
                continuous=flat(self._continuous), discrete=flat(self._discrete), log_prob=flat(self._log_prob),
                reward=flat(self._reward), version=flat(self._version), action_mask=None,
                length=length.astype(np.int32), next_obs={k: v[order] for k, v in next_obs.items()},
                terminated=terminated[order], truncated=truncated[order], agent_id=slot, episode_id=episode[order],
                episode_return=np.empty(0, np.float64), episode_length=np.empty(0, np.int64),
            ))
            self._spilled_rows += total
            self._ends = _Ends()
        self._compact()

    def _compact(self) -> None:
        """Move each slot's unfinished rows (and its pending one) to the beginning of its tape."""
        tapes = [*self._obs.values(), self._continuous, self._discrete, self._log_prob, self._reward, self._version]
        end = self._position + self._pending
        for slot in np.flatnonzero((self._start > 0) & (end > self._start)):
            start, stop = self._start[slot], end[slot]
            for tape in tapes:
                tape[slot, : stop - start] = tape[slot, start:stop].copy()
        self._position -= self._start
        self._start[:] = 0
        self._fill = int((self._position + self._pending).max(initial=0))  # a pending row has been written already
