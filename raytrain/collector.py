"""Turns the steps of all agents of one behavior into trajectories, without a Python object per step.

Each agent slot owns one row of preallocated ``[slot, time, …]`` arrays, its *tape*. Steps are written to the end of the
tape; the end of a trajectory is only a mark. Rows leave the tape together, many trajectories at once, in `take`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from envs.specs import BehaviorSpec, DecisionSteps, Observations, TerminalSteps
from trainers.policy import PolicyOutput
from trainers.trajectory import TrajectoryBatch, concatenate, empty_batch

TAPE_ROWS = 64
"""Length of an env manager's tapes (agent steps) where ``time_horizon`` is not longer. Every slot has its own: 64 slots of images of
84 × 84 × 4 bytes take 116 MB, and twice that with a ``time_horizon`` of 128."""

ALL = slice(None)

_EPISODES = ("_left_out", "_episode", "_return", "_length", "_lesson")  # what is known of each slot's running episode

_TAPE_ENDS = ("_position", "_start", "_pending")  # where each slot's rows are
_LISTS = ("_finished_returns", "_finished_lengths", "_finished_lessons", "_group_returns")  # of episodes that ended


class _Ends:
    """Marks of finished trajectories that are still on the tapes: one entry per call, each for several slots."""

    def __init__(self) -> None:
        self.parts: list[dict[str, np.ndarray]] = []
        self.next_obs: list[Observations] = []
        self.rows = 0

    def add(self, next_obs: Observations, **columns: np.ndarray) -> None:
        self.parts.append(columns)
        self.next_obs.append(next_obs)
        self.rows += int((columns["stop"] - columns["start"]).sum())

    def joined(self) -> tuple[dict[str, np.ndarray], Observations]:
        """Everything by slot and time."""
        columns = {k: np.concatenate([part[k] for part in self.parts]) for k in self.parts[0]}
        order = np.lexsort((columns["start"], columns["slot"]))
        obs = {k: np.concatenate([o[k] for o in self.next_obs])[order] for k in self.next_obs[0]}
        return {k: v[order] for k, v in columns.items()}, obs


class Collector:
    """Collects one behavior's trajectories within one env manager.

    Invariants: a trajectory is one agent, one episode, consecutive steps, at most `time_horizon` long. A row is the
    observation an agent acted on, its action with the log-prob and version of the policy that acted, and the reward that
    followed; with an action mask where the spec is masked, with the policy's memory before the step where it is recurrent, and with
    the group's reward and the moment in its world where the spec is grouped.
    Copies are made here, at the env's boundary (an env may reuse its arrays): one onto the tape, one in `take`.

    Args:
        spec: observations and actions.
        num_slots: agent slots of the env.
        time_horizon: longest trajectory (agent steps).
        capacity: length of each tape (agent steps); at least `time_horizon`.
        memory_size: M of a recurrent policy; 0 without one.
    """

    def __init__(
        self, spec: BehaviorSpec, num_slots: int, time_horizon: int, capacity: int | None = None, memory_size: int = 0
    ) -> None:
        self.spec = spec
        self.memory_size = memory_size
        self.time_horizon = time_horizon
        self.capacity = max(capacity or 0, time_horizon)
        shape = (num_slots, self.capacity)
        self._obs = {o.name: np.empty((*shape, *o.shape), o.dtype) for o in spec.observations}
        self._continuous = np.empty((*shape, spec.action.continuous_size), np.float32)
        self._discrete = np.empty((*shape, len(spec.action.discrete_branches)), np.int32)
        self._log_prob = np.empty(shape, np.float32)
        self._reward = np.empty(shape, np.float32)
        self._version = np.empty(shape, np.int64)
        self._mask = np.empty((*shape, spec.action.choices), bool) if spec.action.masked else None
        self._memory = np.empty((*shape, memory_size), np.float32) if memory_size else None
        self._group_reward = np.empty(shape, np.float32) if spec.grouped else None
        self._env_step = np.empty(shape, np.int64) if spec.grouped else None
        optional = [tape for tape in (self._mask, self._memory, self._group_reward, self._env_step) if tape is not None]
        self._tapes = [*self._obs.values(), self._continuous, self._discrete, self._log_prob, self._reward, self._version, *optional]
        self._position = np.zeros(num_slots, np.int64)  # next row to write
        self._start = np.zeros(num_slots, np.int64)  # first row of the running trajectory
        self._pending = np.zeros(num_slots, bool)  # acted, result not here yet
        self._left_out = np.zeros(num_slots, bool)  # acted without a row, result not here yet
        self._episode = np.full(num_slots, -1, np.int64)
        self._return = np.zeros(num_slots, np.float64)
        self._length = np.zeros(num_slots, np.int64)
        self._lesson = np.zeros(num_slots, np.int64)
        self._fill = 0  # upper bound of max(position + pending), so that the check per step costs nothing
        self._ends = _Ends()
        self._spilled: list[TrajectoryBatch] = []
        self._spilled_rows = 0
        self._finished_returns: list[np.ndarray] = []
        self._finished_lengths: list[np.ndarray] = []
        self._finished_lessons: list[np.ndarray] = []
        self._group_returns: list[np.ndarray] = []
        self._next_episode = 0
        self.agent_steps = 0
        """Rows completed since construction."""
        self.steps_left_out = 0
        """Actions given since construction that leave no row."""

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
        if self._mask is not None:
            self._mask[at] = steps.action_mask
        if self._memory is not None:
            self._memory[at] = output.memory
        if self._env_step is not None:
            self._env_step[at] = steps.env_step
        self._pending[at[0]] = True
        self._fill += 1

    def leave_out(self, steps: DecisionSteps) -> None:
        """Note that agents act without leaving a row; what follows from it is part of their episodes' returns and of nothing else.

        Args:
            steps: recorded already, and cut: nothing may run.
        """
        self._left_out[steps.agent_id] = True
        self.steps_left_out += len(steps)

    def record_terminals(self, steps: TerminalSteps) -> None:
        """Complete the last row of agents whose episode ended and mark the end. An agent that never acted leaves no row."""
        if steps.group_return is not None and len(steps.group_return):
            self._group_returns.append(steps.group_return)
        if not len(steps):
            return
        pending = self._pending[steps.agent_id]
        acted = pending | self._left_out[steps.agent_id]
        ids = steps.agent_id[acted]
        self._complete(ids, steps.reward[acted], None if steps.group_reward is None else steps.group_reward[acted])
        self._finished_returns.append(self._return[ids].copy())
        self._finished_lengths.append(self._length[ids].copy())
        self._finished_lessons.append(self._lesson[ids].copy())
        terminated = steps.terminated[pending]
        self._mark(steps.agent_id[pending], terminated, steps.truncated[pending] & ~terminated, steps, pending)
        self._episode[steps.agent_id] = -1
        self._length[steps.agent_id] = 0

    def record_decisions(self, steps: DecisionSteps, lessons: Callable[[], np.ndarray] | None = None) -> None:
        """Complete the rows of agents that need their next action; start the episodes of those that are new.

        Args:
            lessons: int64 ``[num_slots]``, `envs.base.BatchedEnv.lesson_of` now; asked only when an episode begins. None: always 0.
        """
        if not len(steps):
            return
        first, group_reward = steps.first, steps.group_reward
        if first.any():
            new = steps.agent_id[first]
            self._begin(new)
            if lessons is not None:
                self._lesson[new] = lessons()[new]
            old = ~first
            ids, reward = steps.agent_id[old], steps.reward[old]
            group_reward = None if group_reward is None else group_reward[old]
        else:
            ids, reward = steps.agent_id, steps.reward
        self._complete(ids, reward, group_reward)
        if self._fill >= self.time_horizon:  # no trajectory can be longer than the fullest tape
            full = self._position[steps.agent_id] - self._start[steps.agent_id] >= self.time_horizon
            if full.any():
                self.cut(steps, full)

    def cut(self, steps: DecisionSteps, which: np.ndarray) -> None:
        """End running trajectories here; the episodes go on.

        Args:
            steps: recorded already; their observations are what follows the last rows.
            which: bool ``[n]``, the agents of `steps` whose trajectory ends; nothing happens to one without a row.
        """
        which = which & (self._position[steps.agent_id] > self._start[steps.agent_id])
        ids = steps.agent_id[which]
        if len(ids):
            no = np.zeros(len(ids), bool)
            self._mark(ids, no, no, steps, which)

    def take(self) -> TrajectoryBatch:
        """All finished trajectories and episodes since the last call, ordered by slot and time within each part of the tape."""
        self._spill()
        batch = concatenate(self._spilled) if self._spilled else empty_batch(self.spec, self.memory_size)
        self._spilled, self._spilled_rows = [], 0
        if self._finished_returns:
            batch.episode_return = np.concatenate(self._finished_returns)
            batch.episode_length = np.concatenate(self._finished_lengths)
            batch.episode_lesson = np.concatenate(self._finished_lessons)
            self._finished_returns, self._finished_lengths, self._finished_lessons = [], [], []
        if self._group_returns:
            batch.group_return = np.concatenate(self._group_returns)
            self._group_returns = []
        return batch

    def abandon(self, ids: np.ndarray | slice = ALL) -> tuple[int, int]:
        """Forget unfinished trajectories and episodes, of all agents (a hard reset) or of some (their environment died).

        Returns:
            Rows that are lost; actions that were given and whose result never comes.
        """
        rows, pending = int((self._position[ids] - self._start[ids]).sum()), int(self._pending[ids].sum())
        self._position[ids] = self._start[ids]
        self._pending[ids] = False
        self._left_out[ids] = False
        self._episode[ids] = -1
        self._length[ids] = 0
        return rows, pending

    def standing_state(self) -> dict[str, Any] | None:
        """What is known of the running episodes when no row and no result is on its way; None while there are some.

        Everything that was learnt from is gone by then: rows leave the tape with the round that they were collected for.
        """
        if self._ends.parts or self._spilled or self._finished_returns or self._group_returns or self.running.any():
            return None
        return {**{name: getattr(self, name).copy() for name in _EPISODES}, "next_episode": self._next_episode, "steps_left_out": self.steps_left_out}

    def running_state(self) -> dict[str, Any] | None:
        """Everything, rows that are still to be learnt from and actions without a result included; not all of it copies. None where so much
        has been collected that a part has left the tapes."""
        if self._spilled:
            return None
        end = self._position + self._pending
        rows = int(end.max(initial=0))
        tapes = []
        for tape in self._tapes:
            written = self._position if tape is self._reward or tape is self._group_reward else end  # which come with an action's result
            tapes.append(tape[:, :rows].copy())
            tapes[-1][np.arange(rows) >= written[:, None]] = 0  # whatever the memory had
        lists = {name: list(getattr(self, name)) for name in _LISTS}
        return {**{name: getattr(self, name) for name in (*_EPISODES, *_TAPE_ENDS)}, **lists, "tapes": tapes,
                "fill": self._fill, "ends": list(self._ends.parts), "next_obs": list(self._ends.next_obs), "next_episode": self._next_episode,
                "steps_left_out": self.steps_left_out}

    def load_running_state(self, state: dict[str, Any]) -> None:
        """Go on from `running_state`; nothing has been recorded here before."""
        for name in (*_EPISODES, *_TAPE_ENDS):
            getattr(self, name)[...] = state[name]
        for name in _LISTS:
            setattr(self, name, list(state[name]))
        for tape, rows in zip(self._tapes, state["tapes"], strict=True):
            tape[:, : rows.shape[1]] = rows
        for columns, next_obs in zip(state["ends"], state["next_obs"], strict=True):
            self._ends.add(next_obs, **columns)
        self._fill, self._next_episode, self.steps_left_out = state["fill"], state["next_episode"], state["steps_left_out"]
        self.agent_steps = self._ends.rows + int((self._position - self._start).sum())

    def load_standing_state(self, state: dict[str, Any]) -> None:
        """Go on with the episodes of `standing_state`; nothing has been recorded here before."""
        for name in _EPISODES:
            getattr(self, name)[...] = state[name]
        self._next_episode, self.steps_left_out = state["next_episode"], state["steps_left_out"]

    # -- inner parts -------------------------------------------------------------------------------------------------

    def _index(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return ids, self._position[ids]

    def _begin(self, ids: np.ndarray) -> None:
        # An agent that comes back without a terminal step left its trajectory unfinished: those rows are no trajectory.
        self._position[ids] = self._start[ids]
        self._pending[ids] = False
        self._left_out[ids] = False
        self._episode[ids] = np.arange(self._next_episode, self._next_episode + len(ids))
        self._next_episode += len(ids)
        self._return[ids] = 0.0
        self._length[ids] = 0

    def _complete(self, ids: np.ndarray, reward: np.ndarray, group_reward: np.ndarray | None) -> None:
        self._return[ids] += reward
        if group_reward is not None:
            self._return[ids] += group_reward
        self._length[ids] += 1
        if self.steps_left_out:  # which most runs never have, so that the check per step costs nothing
            with_row = self._pending[ids]
            self._left_out[ids] = False
            ids, reward = ids[with_row], reward[with_row]
            group_reward = None if group_reward is None else group_reward[with_row]
        self._reward[self._index(ids)] = reward
        if group_reward is not None:
            self._group_reward[self._index(ids)] = group_reward
        self._position[ids] += 1
        self._pending[ids] = False
        self.agent_steps += len(ids)

    def _mark(self, ids, terminated, truncated, steps: DecisionSteps | TerminalSteps, which: np.ndarray) -> None:
        """Note where the trajectories of `ids` end; what follows are the rows `which` (bool ``[n]``) of `steps`, copied here."""
        start, stop = self._start[ids], self._position[ids]
        columns = {
            "slot": ids, "start": start, "stop": stop, "begin": self._length[ids] - (stop - start), "terminated": terminated,
            "truncated": truncated, "episode": self._episode[ids],
        }
        if self._mask is not None:
            columns["next_mask"] = steps.action_mask[which]
        if self._env_step is not None:
            columns |= {name: getattr(steps, name)[which] for name in ("group_id", "world_episode")}
            columns["next_env_step"] = steps.env_step[which]
            columns["group_ended"] = steps.group_ended[which] if isinstance(steps, TerminalSteps) else np.zeros(len(ids), bool)
        self._ends.add({k: v[which] for k, v in steps.obs.items()}, **columns)
        self._start[ids] = stop

    def _make_room(self) -> None:
        """A tape may be full: move finished rows away and the unfinished ones to the beginning."""
        self._fill = int(self._position.max(initial=0))  # where agents act in turn, `_fill` runs ahead of every tape
        if self._fill >= self.capacity:
            self._spill()

    def _spill(self) -> None:
        if self._ends.parts:
            ends, next_obs = self._ends.joined()
            slot, start = ends["slot"], ends["start"]
            length = ends["stop"] - start
            total = int(length.sum())
            # Row r of trajectory k lies at slot_k * capacity + start_k + r in the flattened tapes.
            offset = slot * self.capacity + start - (np.cumsum(length) - length)
            rows = np.repeat(offset, length) + np.arange(total)

            def flat(tape: np.ndarray | None) -> np.ndarray | None:
                if tape is None:
                    return None
                return tape.reshape(tape.shape[0] * tape.shape[1], *tape.shape[2:]).take(rows, axis=0)

            self._spilled.append(TrajectoryBatch(
                obs={k: flat(v) for k, v in self._obs.items()},
                continuous=flat(self._continuous), discrete=flat(self._discrete), log_prob=flat(self._log_prob),
                reward=flat(self._reward), version=flat(self._version), action_mask=flat(self._mask), memory=flat(self._memory),
                length=length.astype(np.int32), begin=ends["begin"], next_obs=next_obs, next_action_mask=ends.get("next_mask"),
                terminated=ends["terminated"], truncated=ends["truncated"], agent_id=slot, episode_id=ends["episode"],
                episode_return=np.empty(0, np.float64), episode_length=np.empty(0, np.int64), episode_lesson=np.empty(0, np.int64),
                **self._groups(ends, flat),
            ))
            self._spilled_rows += total
            self._ends = _Ends()
        self._compact()

    def _groups(self, ends: dict[str, np.ndarray], flat: Callable[[np.ndarray], np.ndarray]) -> dict[str, np.ndarray]:
        """The columns of a batch that only groups have."""
        if self._env_step is None:
            return {}
        by_trajectory = {name: ends[name] for name in ("next_env_step", "group_id", "world_episode", "group_ended")}
        return {"group_reward": flat(self._group_reward), "env_step": flat(self._env_step), "group_return": np.empty(0), **by_trajectory}

    def _compact(self) -> None:
        """Move each slot's unfinished rows (and its pending one) to the beginning of its tape."""
        end = self._position + self._pending
        for slot in np.flatnonzero((self._start > 0) & (end > self._start)):
            start, stop = self._start[slot], end[slot]
            for tape in self._tapes:
                tape[slot, : stop - start] = tape[slot, start:stop]  # NumPy copies first where the two overlap
        self._position -= self._start
        self._start[:] = 0
        self._fill = int((self._position + self._pending).max(initial=0))  # a pending row has been written already
