"""Sequences of a recurrent PPO: how trajectories are cut, and what the critic remembers before each.

Letters: ``K`` trajectories, ``Q`` sequences, ``L`` rows of the longest one, ``M`` size of a memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trainers.trainer import TrainerState
from trainers.trajectory import TrajectoryBatch


@dataclass(frozen=True)
class Sequences:
    """Consecutive rows of one trajectory each, in the order of the rows.

    Attributes:
        start: int32 ``[Q]``, first row.
        length: int32 ``[Q]``, rows, 1 to L.
        trajectory: int64 ``[Q]``, number of the trajectory.
        is_last: bool ``[Q]``, the trajectory ends with it.
    """

    start: np.ndarray
    length: np.ndarray
    trajectory: np.ndarray
    is_last: np.ndarray

    def __len__(self) -> int:
        return len(self.start)


def cut_into_sequences(length: np.ndarray, sequence_length: int) -> Sequences:
    """Trajectories cut into sequences of `sequence_length` rows from their first row on; the last one of each may be shorter.

    Args:
        length: int ``[K]``, rows of each trajectory, at least 1.
    """
    length = length.astype(np.int64)
    pieces = -(-length // sequence_length)
    trajectory = np.repeat(np.arange(len(length)), pieces)
    number = np.arange(len(trajectory)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    before = number * sequence_length
    start = (np.cumsum(length) - length)[trajectory] + before
    rows = np.minimum(sequence_length, length[trajectory] - before)
    return Sequences(start.astype(np.int32), rows.astype(np.int32), trajectory, number == pieces[trajectory] - 1)


class CriticMemory:
    """What the critic remembers of every running episode: its memory after the last row taken in.

    Acting stores the policy's memory with each step; nobody has the critic's but the trainer. It is one per (manager, agent slot)
    and goes with the episode's end; a later episode in the same slot takes the place of one whose end never came.

    Args:
        size: M.
    """

    def __init__(self, size: int):
        self._size = size
        self._kept: dict[tuple[str, int], tuple[int, np.ndarray]] = {}

    def __len__(self) -> int:
        """Episodes that are remembered."""
        return len(self._kept)

    def run(
        self, batch: TrajectoryBatch, managers: Sequence[str], sequences: Sequences,
        critic: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lead the critic through all sequences, those of one episode in their order. Nothing is kept yet, see `keep`.

        A sequence begins with the memory after the one before it; the first one of an episode, and of an episode of which
        nothing is known, with zeros.

        Args:
            managers: of each trajectory, who collected it; agent and episode ids are unique within it.
            critic: numbers of sequences int64 ``[q]`` and the memories before them ``[q, M]`` -> the memories after them.

        Returns:
            The memories before and after each sequence, float32 ``[Q, M]``.
        """
        before, after = np.zeros((len(sequences), self._size), np.float32), np.empty((len(sequences), self._size), np.float32)
        first = _first_sequences(batch, sequences)
        previous, wave = np.arange(len(sequences)) - 1, np.arange(len(sequences)) - first[sequences.trajectory]
        tails: dict[tuple[str, int, int], int] = {}  # episode -> its last sequence so far
        for k, key in enumerate(_episodes(batch, managers)):
            tail = tails.get(key) if batch.begin[k] else None
            previous[first[k]] = -1 if tail is None else tail
            if tail is not None:
                wave[first[k] : first[k + 1]] += wave[tail] + 1
            elif batch.begin[k]:
                before[first[k]] = self._remembered(*key)
            tails[key] = first[k + 1] - 1
        for number in range(int(wave.max(initial=-1)) + 1):
            which = np.flatnonzero(wave == number)
            follows = which[previous[which] >= 0]
            before[follows] = after[previous[follows]]
            after[which] = critic(which, before[which])
        return before, after

    def keep(self, batch: TrajectoryBatch, managers: Sequence[str], sequences: Sequences, after: np.ndarray) -> None:
        """Remember episodes that go on, and forget those that are over.

        Args:
            after: as `run` returned it for the same batch.
        """
        tail = _first_sequences(batch, sequences)[1:] - 1
        over = batch.terminated | batch.truncated
        for k, (manager, agent, episode) in enumerate(_episodes(batch, managers)):
            self._kept.pop((manager, agent), None)
            if not over[k]:
                self._kept[manager, agent] = episode, after[tail[k]].copy()

    def _remembered(self, manager: str, agent: int, episode: int) -> np.ndarray:
        known, memory = self._kept.get((manager, agent), (episode, np.float32(0.0)))
        return memory if known == episode else np.float32(0.0)

    def state(self) -> TrainerState:
        """For a checkpoint, under ``critic_memory/…``."""
        kept = list(self._kept.items())
        return TrainerState({
            "critic_memory/agent_id": np.array([agent for (_, agent), _ in kept], np.int64),
            "critic_memory/episode_id": np.array([episode for _, (episode, _) in kept], np.int64),
            "critic_memory/memory": np.array([memory for _, (_, memory) in kept], np.float32).reshape(len(kept), self._size),
        }, {"critic_memory/manager": [manager for (manager, _), _ in kept]})

    def load_state(self, state: TrainerState) -> None:
        """Continue from `state`, which may hold entries of others too."""
        agents, episodes = (state.tensors[f"critic_memory/{name}"].tolist() for name in ("agent_id", "episode_id"))
        managers, memories = state.scalars["critic_memory/manager"], state.tensors["critic_memory/memory"].copy()
        self._kept = {(m, a): (e, memory) for m, a, e, memory in zip(managers, agents, episodes, memories, strict=True)}


def _first_sequences(batch: TrajectoryBatch, sequences: Sequences) -> np.ndarray:
    """The first sequence of each trajectory, and one that would follow the last: int64 ``[K + 1]``."""
    return np.searchsorted(sequences.trajectory, np.arange(len(batch.length) + 1))


def _episodes(batch: TrajectoryBatch, managers: Sequence[str]) -> list[tuple[str, int, int]]:
    """Manager, agent slot and episode id of each trajectory."""
    return list(zip(managers, batch.agent_id.tolist(), batch.episode_id.tolist(), strict=True))
