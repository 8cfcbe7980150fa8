"""Replay buffer: a ring of frames in which off-policy algorithms keep transitions, each observation stored once.

Letters: ``N`` rows, ``K`` trajectories, ``n`` sampled transitions, ``C`` and ``B`` as in `envs.specs`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.specs import BehaviorSpec, Observations
from trainers.trainer import TrainerState
from trainers.trajectory import TrajectoryBatch

_NONE = -1
"""In place of a frame number: nothing follows (yet)."""


@dataclass(frozen=True, slots=True)
class ReplaySample:
    """``n`` transitions over 1 to n_step agent steps, to be learnt from with the target ``reward + γ^steps · V(next_obs)``.

    Attributes:
        index: int64 ``[n]``, place in the ring (below `ReplayBuffer.capacity`) of the frame where each begins.
        obs: name -> ``[n, *shape]`` in the space's dtype.
        continuous, discrete: float32 ``[n, C]`` and int32 ``[n, B]``, the action taken at `obs`.
        reward: float32 ``[n]``, Σ_{i<steps} γ^i r_{t+i}.
        next_obs: name -> ``[n, *shape]``, the true observation `steps` later; at a time limit the last one of the episode.
        steps: int32 ``[n]``, agent steps from `obs` to `next_obs`.
        terminated: bool ``[n]``, the task ended at `next_obs`: no bootstrap.
        truncated: bool ``[n]``, the episode was cut off at `next_obs`; bootstrap as usual. Never set together with `terminated`.
    """

    index: np.ndarray
    obs: Observations
    continuous: np.ndarray
    discrete: np.ndarray
    reward: np.ndarray
    next_obs: Observations
    steps: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def _columns(spec: BehaviorSpec) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """Dtype and shape of what one frame holds: an observation and the transition that starts there."""
    columns = {f"obs/{o.name}": (np.dtype(o.dtype), o.shape) for o in spec.observations}
    columns["continuous"] = np.dtype(np.float32), (spec.action.continuous_size,)
    columns["discrete"] = np.dtype(np.int32), (len(spec.action.discrete_branches),)
    columns["reward"] = np.dtype(np.float32), ()
    columns["next"] = np.dtype(np.int64), ()  # number of the frame that follows
    columns["terminated"] = np.dtype(bool), ()
    columns["ended"] = np.dtype(bool), ()  # the episode is over with this transition: terminated or truncated
    return columns


class ReplayBuffer:
    """The newest frames of one behavior, in the order in which they came.

    A frame is one observation and, once it is known, the transition that starts there. The observation after the last row of
    a trajectory is an open frame: where the same episode of the same agent goes on in a later trajectory, that very frame
    gets its transition. So every observation is stored once, wherever trajectories are cut, and chains of n steps reach
    across cuts. At the end of an episode the frame stays open for good.

    Frames are numbered from 0 without end; number g lies at place g mod capacity. A frame has a smaller number than the one
    that follows it, so it is overwritten first: what follows a frame that is still here is here too.

    Action masks are not kept.

    Source: n-step returns, Sutton & Barto 2018, equation 7.1; time limits, Pardo et al. 2018, https://arxiv.org/abs/1712.00378.

    Attributes:
        spec: observations and actions.
        capacity: frames it can hold, at least 2.
        rows: transitions that can be sampled now.

    Raises:
        ValueError: `capacity` is below 2, the frames of one transition.
        MemoryError: the system refuses to reserve the memory. Memory counts as used only once frames are written to it.
    """

    def __init__(self, spec: BehaviorSpec, capacity: int):
        if capacity < 2:
            raise ValueError(f"Expected a replay capacity of at least 2 frames, received {capacity}.")
        self.spec = spec
        self.capacity = int(capacity)
        self.rows = 0
        self._data = {name: np.empty((self.capacity, *shape), dtype) for name, (dtype, shape) in _columns(spec).items()}
        self._tail = 0  # number of the oldest frame
        self._head = 0  # number that the next frame gets
        self._open: dict[tuple[str, int], tuple[int, int]] = {}  # (manager, agent_id) -> (episode_id, open frame)

    @staticmethod
    def memory_bytes(spec: BehaviorSpec, capacity: int) -> int:
        """Bytes that a full buffer of `capacity` frames takes."""
        return capacity * sum(dtype.itemsize * int(np.prod(shape, dtype=np.int64)) for dtype, shape in _columns(spec).values())

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
        here and its observation is bitwise equal to the trajectory's first. Otherwise (rows between them were lost) the old
        chain ends there, by a cut, and a new one begins.

        Args:
            batch: each trajectory of at least one row, those of one agent in the order of time. It is copied.
            manager: who collected the batch; agent and episode ids are unique within it.
        """
        if not batch.rows:
            return
        length, starts, over = batch.length.astype(np.int64), batch.starts, batch.terminated | batch.truncated
        begins, previous, continued = self._place(batch, manager, length, starts, over)
        ends = begins + length
        head = int(ends[-1]) + 1
        tail = max(self._tail, head - self.capacity)
        overwritten = np.arange(self._tail, min(tail, self._head)) % self.capacity
        self.rows -= int(np.count_nonzero(self._data["next"][overwritten] != _NONE))
        self._tail, self._head = tail, head

        self._write(ends, {f"obs/{k}": v for k, v in batch.next_obs.items()}, None)
        following = np.repeat(begins - starts, length) + np.arange(1, batch.rows + 1)
        frame = following - 1
        frame[starts[continued]] = previous[continued]
        last = starts + length - 1
        terminated, ended = np.zeros(batch.rows, bool), np.zeros(batch.rows, bool)
        terminated[last], ended[last] = batch.terminated, over
        transition = {"continuous": batch.continuous, "discrete": batch.discrete, "reward": batch.reward, "next": following,
                      "terminated": terminated, "ended": ended}
        # A continued frame gets its observation again, the same bits; that is cheaper than leaving it out.
        self.rows += self._write(frame, {f"obs/{k}": v for k, v in batch.obs.items()}, transition)

        entries = zip(batch.agent_id.tolist(), batch.episode_id.tolist(), ends.tolist(), over.tolist(), strict=True)
        for agent, episode, end, is_over in entries:
            self._open.pop((manager, agent), None)  # even where it is set again: the order in the state is that of the last write
            if not is_over:
                self._open[manager, agent] = (episode, end)

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
        before = np.full(len(order), _NONE)  # trajectory of the same agent before this one, within the batch
        before[order[again + 1]] = order[again]

        stored = np.full(len(order), _NONE)  # open frame from an earlier batch, maybe overwritten: see below
        for k in np.flatnonzero(before == _NONE).tolist():
            episode, frame = self._open.get((manager, int(batch.agent_id[k])), (_NONE, _NONE))
            if episode == batch.episode_id[k]:
                stored[k] = frame
        continued = (before != _NONE) & (batch.episode_id[before] == batch.episode_id) & ~over[before]
        held = {o.name: self._data[f"obs/{o.name}"] for o in self.spec.observations}
        for possible, source, rows in ((continued.copy(), batch.next_obs, before), (stored != _NONE, held, stored % self.capacity)):
            if possible.any():
                at, first = rows[possible], starts[possible]
                equal = [_bitwise_equal(source[name][at], obs[first]) for name, obs in batch.obs.items()]
                continued[possible] = np.logical_and.reduce(equal)

        while True:
            new = length + ~continued
            own = self._head + np.cumsum(new) - new  # head when the trajectory comes
            begins = own - continued
            previous = np.where(before != _NONE, (begins + length)[before], stored)
            lost = continued & (previous < own - self.capacity)
            if not lost.any():
                return begins, previous, continued
            # Without an overwritten frame to continue, a trajectory takes one more: later ones may lose theirs by that.
            continued &= ~lost

    def _write(self, frame: np.ndarray, obs: Observations, transition: dict[str, np.ndarray] | None) -> int:
        """Write to the frames that stay, and return how many those are. Without a transition they are open."""
        kept = np.flatnonzero(frame >= self._tail)
        at = frame[kept] % self.capacity
        for name, values in (obs | (transition or {})).items():
            self._data[name][at] = values[kept]
        if transition is None:
            self._data["next"][at] = _NONE
            for name in ("continuous", "discrete", "reward", "terminated", "ended"):
                self._data[name][at] = 0  # not what was here before: equal buffers have equal states
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
        data, following = self._data, self._data["next"]
        index = self._draw(n, rng)
        last = index.copy()  # place of the last transition of each chain
        reward = data["reward"][index].astype(np.float64)
        steps = np.ones(n, np.int32)
        active = np.arange(n)
        for i in range(1, n_step):
            further = following[last[active]] % self.capacity
            there = following[further] != _NONE  # the last frame of an episode never has a transition
            active, further = active[there], further[there]
            if not len(active):
                break
            last[active] = further
            reward[active] += gamma**i * data["reward"][further].astype(np.float64)
            steps[active] += 1
        end = following[last] % self.capacity
        terminated = data["terminated"][last]
        return ReplaySample(
            index=index, obs=self._observations(index),
            continuous=data["continuous"].take(index, axis=0), discrete=data["discrete"].take(index, axis=0),
            reward=reward.astype(np.float32), next_obs=self._observations(end), steps=steps,
            terminated=terminated, truncated=data["ended"][last] & ~terminated,
        )

    def _draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Places of `n` frames that have a transition, by rejection: draws among all frames, open ones dropped."""
        parts, missing = [], n
        while missing > 0:
            # Most frames have a transition, at least about half even where every episode lasts one step.
            tries = missing * self.frames // self.rows + 16
            at = (self._tail + rng.integers(0, self.frames, tries)) % self.capacity
            parts.append(at[self._data["next"][at] != _NONE][:missing])
            missing -= len(parts[-1])
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _observations(self, at: np.ndarray) -> Observations:
        return {o.name: self._data[f"obs/{o.name}"].take(at, axis=0) for o in self.spec.observations}  # faster than [at]

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
                "replay/frames": self._head,
                "replay/open": [[*key, *entry] for key, entry in self._open.items() if entry[1] >= self._tail],
            },
        )

    def load_state(self, state: TrainerState) -> None:
        """Continue from `state`, which may hold entries of others too; what was held before is gone.

        With the same capacity everything goes on bit for bit. A smaller buffer keeps the newest frames that fit (dropped ones
        are as if overwritten), a larger one keeps all.

        Raises:
            ValueError: the state is of another spec; then nothing has changed.
        """
        spec = BehaviorSpec.from_json(state.scalars["replay/spec"])
        if spec != self.spec:
            raise ValueError(f"Replay buffer of another behavior spec: expected {self.spec}, received {spec}.")
        held = len(state.tensors["replay/next"])
        keep = min(held, self.capacity)
        self._head = int(state.scalars["replay/frames"])
        self._tail = self._head - keep
        old, new = self._parts()
        split = held - keep + old.stop - old.start
        for name, array in self._data.items():
            values = state.tensors[f"replay/{name}"]
            array[old], array[new] = values[held - keep : split], values[split:]
        self.rows = sum(int(np.count_nonzero(self._data["next"][part] != _NONE)) for part in (old, new))
        self._open = {(m, agent): (episode, frame) for m, agent, episode, frame in state.scalars["replay/open"]}


def _bitwise_equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """bool ``[n]``: rows of the same bits, so that NaN equals itself. Both ``[n, …]`` of one dtype, n at least 1."""
    a, b = (np.ascontiguousarray(x).reshape(len(x), -1).view(np.uint8) for x in (a, b))
    return (a == b).all(axis=1)
