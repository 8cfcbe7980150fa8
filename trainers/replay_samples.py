"""What is drawn from a replay buffer's frames: transitions over several steps, and sequences for recurrent networks.

Letters: ``n`` transitions or sequences, ``L`` their longest length (burn-in and sequence), ``C``, ``B`` and ``W`` as in `envs.specs`, ``M`` the size
of the policy's memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from envs.specs import Observations
from trainers.replay_frames import NONE

Frames = Mapping[str, np.ndarray]
"""Name -> one row for each place of the ring (see `trainers.replay_frames`)."""


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
        action_mask, next_action_mask: bool ``[n, W]``, what is allowed at `obs` and `next_obs`; None where actions are not masked.
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
    action_mask: np.ndarray | None
    next_action_mask: np.ndarray | None


@dataclass(frozen=True, slots=True)
class ReplaySequences:
    """``n`` sequences of consecutive steps of one agent within one episode, padded at their end to one length.

    Row t of a sequence is (observation, action) at its step t, to be learnt from with the target
    ``reward + γ^steps · V(obs[t + steps])``, where V is 0 if `terminated`. Padding holds the last observation again, and 0.

    Attributes:
        index: int64 ``[n]``, place in the ring of the frame where each begins.
        length: int32 ``[n]``, rows that are no padding, 1 … L.
        begins: bool ``[n]``, the sequence begins its episode.
        memory: float32 ``[n, M]``, the policy's memory before the first row, as it was when it acted.
        obs: name -> ``[n, L + 1, *shape]`` in the space's dtype: of every row, and the true one after the last.
        action_mask: bool ``[n, L + 1, W]``, what is allowed at `obs`; None where actions are not masked.
        continuous, discrete: float32 ``[n, L, C]`` and int32 ``[n, L, B]``.
        reward: float32 ``[n, L]``, Σ_{i<steps} γ^i r_{t+i}.
        steps: int32 ``[n, L]``, n_step, or fewer where the sequence has no more.
        terminated: bool ``[n, L]``, the task ended `steps` later: no bootstrap.
        weight: float32 ``[n, L]``, 1 for rows that count: 0 in padding, and in the burn-in of a sequence that does not begin its episode.
    """

    index: np.ndarray
    length: np.ndarray
    begins: np.ndarray
    memory: np.ndarray
    obs: Observations
    action_mask: np.ndarray | None
    continuous: np.ndarray
    discrete: np.ndarray
    reward: np.ndarray
    steps: np.ndarray
    terminated: np.ndarray
    weight: np.ndarray


def gather_transitions(frames: Frames, observations: list[str], index: np.ndarray, n_step: int, gamma: float) -> ReplaySample:
    """The transitions that begin at places `index` (int64 ``[n]``), each followed for up to `n_step` steps.

    Args:
        observations: their names.
        n_step: at least 1.
        gamma: discount per agent step.
    """
    following, rewards = frames["next"], frames["reward"]
    last = index.copy()  # place of the last transition of each chain
    reward = rewards[index].astype(np.float64)
    steps, active = np.ones(len(index), np.int32), np.arange(len(index))
    for i in range(1, n_step):
        further = following[last[active]] % len(following)
        there = following[further] != NONE  # the last frame of an episode never has a transition
        active, further = active[there], further[there]
        if not len(active):
            break
        last[active] = further
        reward[active] += gamma**i * rewards[further].astype(np.float64)
        steps[active] += 1
    end, terminated = following[last] % len(following), frames["terminated"][last]
    masks = frames.get("action_mask")
    return ReplaySample(
        index=index, obs=_observations(frames, observations, index),
        continuous=frames["continuous"].take(index, axis=0), discrete=frames["discrete"].take(index, axis=0),
        reward=reward.astype(np.float32), next_obs=_observations(frames, observations, end), steps=steps,
        terminated=terminated, truncated=frames["ended"][last] & ~terminated,
        action_mask=None if masks is None else masks.take(index, axis=0),
        next_action_mask=None if masks is None else masks.take(end, axis=0),
    )


def _observations(frames: Frames, names: list[str], at: np.ndarray) -> Observations:
    return {name: frames[f"obs/{name}"].take(at, axis=0) for name in names}  # faster than [at]


def sequence_starts(frames: Frames, parts: tuple[slice, slice], length: int, burn_in: int) -> np.ndarray:
    """Places of the frames that begin a sequence of which a row counts, int64, ascending.

    A sequence begins where the step of its episode is a multiple of `length`, so that every row counts in one sequence.

    Args:
        parts: the places in use.
    """
    capacity = len(frames["next"])
    starts = np.concatenate([
        part.start + np.flatnonzero((frames["step"][part] % length == 0) & (frames["next"][part] != NONE)) for part in parts
    ])
    starts.sort()
    late = np.flatnonzero(frames["step"][starts] > 0)
    at, last = starts[late], np.zeros(len(starts), bool)
    for _ in range(burn_in):  # rows that do not count, followed by at least one that does
        at = frames["next"][at] % capacity
        goes_on = frames["next"][at] != NONE
        last[late[~goes_on]] = True
        at, late = at[goes_on], late[goes_on]
    return starts[~last]


def gather_sequences(
    frames: Frames, observations: list[str], start: np.ndarray, length: int, burn_in: int, n_step: int, gamma: float
) -> ReplaySequences:
    """The sequences that begin at places `start` (int64 ``[n]``), each of up to `burn_in` + `length` rows.

    Args:
        observations: their names.
        n_step: rewards that a row sums, at least 1. Rows near the end of a sequence sum those that there are.
        gamma: discount per agent step.
    """
    at, rows = _follow(frames["next"], start, burn_in + length)
    t, begins = np.arange(burn_in + length), frames["step"][start] == 0
    counts = (t[None] < rows[:, None]) & ((t[None] >= burn_in) | begins[:, None])
    steps = np.clip(rows[:, None] - t[None], 1, n_step).astype(np.int32)
    now = at[:, :-1]  # padding lies in the open frame in which a chain ends, whose transition is all 0
    ends = np.take_along_axis(frames["terminated"].take(now), rows[:, None] - 1, axis=1)
    return ReplaySequences(
        index=start, length=rows, begins=begins, memory=frames["memory"].take(start, axis=0),
        obs=_observations(frames, observations, at),
        action_mask=frames["action_mask"].take(at, axis=0) if "action_mask" in frames else None,
        continuous=frames["continuous"].take(now, axis=0), discrete=frames["discrete"].take(now, axis=0),
        reward=_sums(frames["reward"].take(now).astype(np.float64), n_step, gamma), steps=steps,
        terminated=ends & (t[None] + steps == rows[:, None]), weight=counts.astype(np.float32),
    )


def _follow(following: np.ndarray, start: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the frames of each chain from `start` on, int64 ``[n, longest + 1]``, its last one again where it is over; and
    transitions between them, int32 ``[n]``."""
    at = np.empty((len(start), longest + 1), np.int64)
    at[:, 0] = start
    rows, active = np.zeros(len(start), np.int32), np.arange(len(start))
    for t in range(longest):
        at[:, t + 1] = at[:, t]
        number = following[at[active, t]]
        active, number = active[number != NONE], number[number != NONE]
        at[active, t + 1] = number % len(following)
        rows[active] += 1
    return at, rows


def _sums(reward: np.ndarray, n_step: int, gamma: float) -> np.ndarray:
    """Discounted sums of `n_step` rewards from each step on, float32 ``[n, L]``."""
    total = reward.copy()
    for i in range(1, min(n_step, reward.shape[1])):
        total[:, :-i] += gamma**i * reward[:, i:]
    return total.astype(np.float32)
