"""Replay buffer: a ring of frames in which off-policy algorithms keep transitions, each observation stored once.

Letters: ``N`` rows, ``K`` trajectories, ``n`` sampled transitions, ``C``, ``B`` and ``W`` as in `envs.specs`, ``M`` as in
`trainers.trajectory`.
"""

from __future__ import annotations

import numpy as np

from envs.specs import BehaviorSpec
from trainers.replay_frames import NONE, bitwise_equal, frame_columns, observed, transition_columns
from trainers.replay_samples import ReplaySample, ReplaySequences, gather_sequences, gather_transitions, sequence_starts
from trainers.trainer import TrainerState
from trainers.trajectory import TrajectoryBatch


class ReplayBuffer:
    """The newest frames of one behavior, in the order in which they came.

    A frame is one observation and, once it is known, the transition that starts there. The observation after the last row of
    a trajectory is an open frame: where the same episode of the same agent goes on in a later trajectory, that very frame
    gets its transition. So every observation is stored once, wherever trajectories are cut, and chains of n steps reach
    across cuts. At the end of an episode the frame stays open for good.

    Frames are numbered from 0 without end; number g lies at place g mod capacity. A frame has a smaller number than the one
    that follows it, so it is overwritten first: what follows a frame that is still here is here too.

    For a recurrent policy frames have its memory and the step of the episode as well, so that sequences can be drawn.

    Source: n-step returns, Sutton & Barto 2018, equation 7.1; time limits, Pardo et al. 2018, https://arxiv.org/abs/1712.00378.

    Attributes:
        spec: observations and actions.
        capacity: frames it can hold, at least 2.
        memory_size: M; 0 where the policy is not recurrent.
        rows: transitions that can be sampled now.

    Raises:
        ValueError: `capacity` is below 2, the frames of one transition.
        MemoryError: the system refuses to reserve the memory. Memory counts as used only once frames are written to it.
    """

    def __init__(self, spec: BehaviorSpec, capacity: int, memory_size: int = 0):
        if capacity < 2:
            raise ValueError(f"Expected a replay capacity of at least 2 frames, received {capacity}.")
        self.spec = spec
        self.capacity = int(capacity)
        self.memory_size = memory_size
        self.rows = 0
        self._names = [o.name for o in spec.observations]
        columns = frame_columns(spec, memory_size)
        self._data = {name: np.empty((self.capacity, *shape), dtype) for name, (dtype, shape) in columns.items()}
        self._tail = 0  # number of the oldest frame
        self._head = 0  # number that the next frame gets
        # (manager, agent_id) -> (episode_id, open frame, agent steps of the episode before it)
        self._open: dict[tuple[str, int], tuple[int, int, int]] = {}
        self._start: tuple[int, int, int] | None = None  # length, burn-in and frame number of a sequence that was there when last asked

    @staticmethod
    def memory_bytes(spec: BehaviorSpec, capacity: int, memory_size: int = 0) -> int:
        """Bytes that a full buffer of `capacity` frames takes."""
        columns = frame_columns(spec, memory_size).values()
        return capacity * sum(dtype.itemsize * int(np.prod(shape, dtype=np.int64)) for dtype, shape in columns)

    @property
    def nbytes(self) -> int:
        """Bytes reserved for frames, those not written yet included."""
        return sum(a.nbytes for a in self._data.values())

    @property
    def frames(self) -> int:
        """Frames held, at most `capacity`; `rows` of them have a transition."""
        return self._head - self._tail

    def add(self, batch: TrajectoryBatch, manager: str) -> None:
        """Take trajectories in; the oldest frames give way. A batch larger than the buffer leaves its newest frames.

        A trajectory continues the agent's previous one when the episode is the same and not over, the open frame is still
        here, no step lies between them and its observation is bitwise equal to the trajectory's first. Otherwise (rows between
        them were lost) the old chain ends there, by a cut, and a new one begins.

        Args:
            batch: each trajectory of at least one row, those of one agent in the order of time. It is copied.
            manager: who collected the batch; agent and episode ids are unique within it.

        Raises:
            ValueError: masks or memories are missing, or there are some that the buffer has no place for.
        """
        self.check(batch)
        if not batch.rows:
            return
        length, starts, over = batch.length.astype(np.int64), batch.starts, batch.terminated | batch.truncated
        begins, previous, continued = self._place(batch, manager, length, starts, over)
        ends = begins + length
        head = int(ends[-1]) + 1
        tail = max(self._tail, head - self.capacity)
        overwritten = np.arange(self._tail, min(tail, self._head)) % self.capacity
        self.rows -= int(np.count_nonzero(self._data["next"][overwritten] != NONE))
        self._tail, self._head = tail, head

        self._write(ends, observed(batch.next_obs, batch.next_action_mask), None)
        following = np.repeat(begins - starts, length) + np.arange(1, batch.rows + 1)
        frame = following - 1
        frame[starts[continued]] = previous[continued]
        last = starts + length - 1
        terminated, ended = np.zeros(batch.rows, bool), np.zeros(batch.rows, bool)
        terminated[last], ended[last] = batch.terminated, over
        transition = {"continuous": batch.continuous, "discrete": batch.discrete, "reward": batch.total_reward, "next": following,
                      "terminated": terminated, "ended": ended}
        if self.memory_size:
            transition["memory"] = batch.memory
            transition["step"] = np.repeat(batch.begin - starts, length) + np.arange(batch.rows)
        # A continued frame gets its observation again, the same bits; that is cheaper than leaving it out.
        self.rows += self._write(frame, observed(batch.obs, batch.action_mask), transition)

        steps = (batch.begin + length).tolist()
        entries = zip(batch.agent_id.tolist(), batch.episode_id.tolist(), ends.tolist(), steps, over.tolist(), strict=True)
        for agent, episode, end, step, is_over in entries:
            self._open.pop((manager, agent), None)  # even where it is set again: the order in the state is that of the last write
            if not is_over:
                self._open[manager, agent] = (episode, end, step)

    def check(self, batch: TrajectoryBatch) -> None:
        """Refuse what `add` would.

        Raises:
            ValueError: as `add`.
        """
        for what, given, wanted in (("action masks", batch.action_mask, self.spec.action.masked), ("memories", batch.memory, self.memory_size)):
            if (given is not None) != bool(wanted):
                raise ValueError(f"Expected trajectories with{'' if wanted else 'out'} {what}, received some "
                                 f"with{'out' if wanted else ''}.")

    def _place(self, batch: TrajectoryBatch, manager: str, length, starts, over) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers for the frames of a batch, as if its rows had come one by one.

        Returns:
            begins: int64 ``[K]``; row t of a trajectory gets frame begins + t, the observation after its last row begins + length;
            previous: int64 ``[K]``, frame that row 0 gets instead where `continued`; no frame begins there then;
            continued: bool ``[K]``.
        """
        order = np.argsort(batch.agent_id, kind="stable")
        agent = batch.agent_id[order]
        again = np.flatnonzero(agent[1:] == agent[:-1])
        before = np.full(len(order), NONE)  # trajectory of the same agent before this one, within the batch
        before[order[again + 1]] = order[again]

        stored = np.full(len(order), NONE)  # open frame from an earlier batch, maybe overwritten: see below
        for k in np.flatnonzero(before == NONE).tolist():
            episode, frame, step = self._open.get((manager, int(batch.agent_id[k])), (NONE, NONE, NONE))
            if episode == batch.episode_id[k] and step == batch.begin[k]:
                stored[k] = frame
        continued = (before != NONE) & (batch.episode_id[before] == batch.episode_id) & ~over[before]
        continued &= (batch.begin + length)[before] == batch.begin
        held = {o.name: self._data[f"obs/{o.name}"] for o in self.spec.observations}
        for possible, source, rows in ((continued.copy(), batch.next_obs, before), (stored != NONE, held, stored % self.capacity)):
            if possible.any():
                at, first = rows[possible], starts[possible]
                equal = [bitwise_equal(source[name][at], obs[first]) for name, obs in batch.obs.items()]
                continued[possible] = np.logical_and.reduce(equal)

        while True:
            new = length + ~continued
            own = self._head + np.cumsum(new) - new  # head when the trajectory comes
            begins = own - continued
            previous = np.where(before != NONE, (begins + length)[before], stored)
            lost = continued & (previous < own - self.capacity)
            if not lost.any():
                return begins, previous, continued
            # Without an overwritten frame to continue, a trajectory takes one more: later ones may lose theirs by that.
            continued &= ~lost

    def _write(self, frame: np.ndarray, seen: dict[str, np.ndarray], transition: dict[str, np.ndarray] | None) -> int:
        """Write to the frames that stay, and return how many those are. Without a transition they are open."""
        kept = np.flatnonzero(frame >= self._tail)
        at = frame[kept] % self.capacity
        for name, values in (seen | (transition or {})).items():
            self._data[name][at] = values[kept]
        if transition is None:
            # Not what was here before: equal buffers have equal states, and sequences are padded with open frames.
            for name in transition_columns(self.spec, self.memory_size):
                self._data[name][at] = NONE if name == "next" else 0
        return len(kept)

    def sample(self, n: int, rng: np.random.Generator, n_step: int = 1, gamma: float = 1.0) -> ReplaySample:
        """Draw transitions with replacement, each of `rows` equally likely, and follow each for up to `n_step` steps.

        A chain has fewer steps where the episode ends, where a trajectory was cut and no continuation is stored, and where
        the rest has not come yet. Each has the bootstrap that belongs to its own number of steps.

        Args:
            n_step: longest chain (agent steps), at least 1.
            gamma: discount per agent step.

        Raises:
            ValueError: there is nothing to sample, or `n_step` is below 1.
        """
        if not self.rows:
            raise ValueError("Cannot sample from a replay buffer without transitions.")
        if n_step < 1:
            raise ValueError(f"Expected n_step of at least 1, received {n_step}.")
        return gather_transitions(self._data, self._names, self._draw(n, rng), n_step, gamma)

    def has_sequences(self, length: int, burn_in: int) -> bool:
        """Whether there is a sequence to draw, see `sample_sequences`."""
        known = self._start is not None and self._start[:2] == (length, burn_in) and self._start[2] >= self._tail
        return known or len(self._sequence_starts(length, burn_in)) > 0

    def sample_sequences(
        self, n: int, length: int, burn_in: int, rng: np.random.Generator, n_step: int = 1, gamma: float = 1.0
    ) -> ReplaySequences:
        """Draw sequences with replacement, each equally likely, of up to `burn_in` + `length` consecutive transitions.

        A sequence begins where the step of its episode is a multiple of `length`, and reaches no further than a chain: to the end
        of the episode, or to where a trajectory was cut and no continuation is stored. Each row counts in at most one of them,
        so all that count are equally likely too. Sequences of which no row counts (all burn-in) are never drawn.

        Args:
            length: rows that count (agent steps); of a sequence that begins its episode the first `burn_in` ones do as well.
            n_step, gamma: as in `sample`. Sums end with the sequence.

        Raises:
            ValueError: there is no sequence, `n_step` is below 1, or the policy is not recurrent.
        """
        if n_step < 1:
            raise ValueError(f"Expected n_step of at least 1, received {n_step}.")
        starts = self._sequence_starts(length, burn_in)
        if not len(starts):
            raise ValueError(f"Cannot sample sequences: no episode step that is a multiple of {length} is in the replay buffer.")
        start = starts[rng.integers(0, len(starts), n)]
        return gather_sequences(self._data, self._names, start, length, burn_in, n_step, gamma)

    def _sequence_starts(self, length: int, burn_in: int) -> np.ndarray:
        if not self.memory_size:
            raise ValueError("Sequences are kept for recurrent policies only: this replay buffer has memory_size=0.")
        starts = sequence_starts(self._data, self._parts(), length, burn_in)
        if len(starts):
            self._start = (length, burn_in, self._tail + int(((starts - self._tail) % self.capacity).max()))
        return starts

    def _draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Places of `n` frames that have a transition, by rejection: draws among all frames, open ones dropped."""
        parts, missing = [], n
        while missing > 0:
            # Most frames have a transition, at least about half even where every episode lasts one step.
            tries = missing * self.frames // self.rows + 16
            at = (self._tail + rng.integers(0, self.frames, tries)) % self.capacity
            parts.append(at[self._data["next"][at] != NONE][:missing])
            missing -= len(parts[-1])
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _parts(self) -> tuple[slice, slice]:
        """Where the frames lie, oldest first."""
        start = self._tail % self.capacity
        stop = min(start + self.frames, self.capacity)
        return slice(start, stop), slice(0, self.frames - (stop - start))

    def state(self) -> TrainerState:
        """Everything held, for a checkpoint, under ``replay/…``: the frames oldest first (copies), and which are still open."""
        old, new = self._parts()
        return TrainerState(
            {f"replay/{name}": np.concatenate([a[old], a[new]]) for name, a in self._data.items()},
            {
                "replay/spec": self.spec.to_json(),
                "replay/memory_size": self.memory_size,
                "replay/frames": self._head,
                "replay/open": [[*key, *entry] for key, entry in self._open.items() if entry[1] >= self._tail],
            },
        )

    def load_state(self, state: TrainerState) -> None:
        """Continue from `state`, which may hold entries of others too; what was held before is gone.

        With the same capacity everything goes on bit for bit. A smaller buffer keeps the newest frames that fit (dropped ones
        are as if overwritten), a larger one keeps all.

        Raises:
            ValueError: the state is of another spec or memory size; then nothing has changed.
        """
        spec, memory_size = BehaviorSpec.from_json(state.scalars["replay/spec"]), state.scalars["replay/memory_size"]
        if spec != self.spec:
            raise ValueError(f"Replay buffer of another behavior spec: expected {self.spec}, received {spec}.")
        if memory_size != self.memory_size:
            raise ValueError(f"Replay buffer of a policy of another memory: expected memory_size {self.memory_size}, received {memory_size}.")
        held = len(state.tensors["replay/next"])
        keep = min(held, self.capacity)
        self._head = int(state.scalars["replay/frames"])
        self._tail = self._head - keep
        old, new = self._parts()
        split = held - keep + old.stop - old.start
        for name, array in self._data.items():
            values = state.tensors[f"replay/{name}"]
            array[old], array[new] = values[held - keep : split], values[split:]
        self.rows = sum(int(np.count_nonzero(self._data["next"][part] != NONE)) for part in (old, new))
        self._open = {(m, agent): tuple(entry) for m, agent, *entry in state.scalars["replay/open"]}
        self._start = None
