"""Sequences, and what the critic remembers from one to the next: across trajectories, updates and checkpoints."""

from __future__ import annotations

import numpy as np
import pytest

from tests.trainers.contract import same_tensors, through_json
from tests.trainers.rollouts import DISCRETE, spec_of
from trainers.ppo_memory import CriticMemory, cut_into_sequences
from trainers.trajectory import TrajectoryBatch, empty_batch


def batch_of(*trajectories: tuple[int, int, int, int, bool]) -> TrajectoryBatch:
    """Trajectories (agent, episode, begin, length, over); only what `CriticMemory` reads has rows."""
    agent, episode, begin, length, over = np.array(trajectories, np.int64).reshape(-1, 5).T
    batch = empty_batch(spec_of(DISCRETE), memory_size=2)
    batch.agent_id, batch.episode_id, batch.begin, batch.length = agent, episode, begin, length.astype(np.int32)
    batch.terminated, batch.truncated = over.astype(bool), np.zeros(len(over), bool)
    return batch


def run(memory: CriticMemory, batch: TrajectoryBatch, managers: str, length: int = 4) -> list[int]:
    """What is remembered before each sequence by a critic that counts the rows of the episode it has seen."""
    sequences = cut_into_sequences(batch.length, length)

    def critic(which, before):
        return before + sequences.length[which, None]

    before, after = memory.run(batch, list(managers), sequences, critic)
    memory.keep(batch, list(managers), sequences, after)
    assert before.dtype == np.float32 and before.shape == (len(sequences), 2)
    np.testing.assert_array_equal(before[:, 0], before[:, 1])
    return before[:, 0].astype(int).tolist()


def test_trajectories_are_cut_from_their_first_row_on():
    sequences = cut_into_sequences(np.array([9, 4, 1], np.int32), 4)
    assert sequences.start.tolist() == [0, 4, 8, 9, 13]
    assert sequences.length.tolist() == [4, 4, 1, 4, 1]
    assert sequences.trajectory.tolist() == [0, 0, 0, 1, 2]
    assert sequences.is_last.tolist() == [False, False, True, True, True]
    assert sequences.start.dtype == sequences.length.dtype == np.int32
    assert len(cut_into_sequences(np.zeros(0, np.int32), 4)) == 0


def test_memory_goes_from_sequence_to_sequence_and_update_to_update():
    """C66: it is the one after every earlier row of the episode, whatever trajectories and updates these came in."""
    memory = CriticMemory(2)
    first = batch_of((0, 0, 0, 6, False), (1, 1, 0, 3, False), (0, 0, 6, 5, False))
    assert run(memory, first, "aaa") == [0, 4, 0, 6, 10]
    second = batch_of((1, 1, 3, 9, False), (0, 0, 11, 1, True), (0, 2, 0, 5, False))
    assert run(memory, second, "aaa") == [3, 7, 11, 11, 0, 4]
    assert run(memory, batch_of((0, 2, 5, 1, True), (1, 1, 12, 2, True)), "aa") == [5, 12]
    assert len(memory) == 0


def test_episodes_in_any_order_of_a_batch():
    """Trajectories of two episodes alternate; those of one are in order."""
    batch = batch_of((0, 0, 0, 4, False), (1, 1, 0, 2, False), (0, 0, 4, 4, False), (1, 1, 2, 2, False), (0, 0, 8, 1, False))
    assert run(CriticMemory(2), batch, "aaaaa") == [0, 0, 4, 2, 8]


def test_unknown_and_new_episodes_begin_with_zeros():
    """The beginning of an episode, an episode of which nothing is known, and one whose slot has another one now."""
    memory = CriticMemory(2)
    assert run(memory, batch_of((0, 7, 30, 5, False)), "a") == [0, 4]
    assert run(memory, batch_of((0, 8, 20, 2, False)), "a") == [0]
    assert run(memory, batch_of((0, 7, 35, 2, False)), "a") == [0]
    assert run(memory, batch_of((0, 7, 0, 2, False)), "a") == [0]
    assert run(memory, batch_of((0, 7, 0, 3, False), (0, 7, 3, 1, False)), "aa") == [0, 3]
    assert len(memory) == 1


def test_managers_do_not_share_memories():
    memory = CriticMemory(2)
    assert run(memory, batch_of((0, 0, 0, 3, False), (0, 0, 0, 2, False)), "ab") == [0, 0]
    assert run(memory, batch_of((0, 0, 3, 1, False), (0, 0, 2, 1, False), (0, 0, 9, 1, False)), "abc") == [3, 2, 0]


def test_nothing_is_kept_before_it_is_said_so():
    """An update that fails must find the memories of before it."""
    memory, batch = CriticMemory(2), batch_of((0, 0, 0, 3, False))
    sequences = cut_into_sequences(batch.length, 4)
    memory.run(batch, ["a"], sequences, lambda which, before: before + 1.0)
    assert len(memory) == 0


def test_state_goes_on_exactly():
    """C21: what is remembered is saved and loaded, and a saved state does not change with what comes later."""
    memory = CriticMemory(2)
    run(memory, batch_of((0, 0, 0, 3, False), (5, 9, 0, 2, False)), "ab")
    state = memory.state()
    saved, other = through_json(state), CriticMemory(2)
    other.load_state(saved)
    more = batch_of((5, 9, 2, 6, False), (0, 0, 3, 1, True))
    assert run(other, more, "ba") == run(memory, more, "ba") == [2, 6, 3]
    assert same_tensors(state.tensors, saved.tensors)
    assert same_tensors(other.state().tensors, memory.state().tensors)
    empty = CriticMemory(2)
    empty.load_state(through_json(CriticMemory(2).state()))
    assert len(empty) == 0 and empty.state().tensors["critic_memory/memory"].shape == (0, 2)


def test_no_trajectory_at_all():
    assert run(CriticMemory(2), batch_of(), "") == []


@pytest.mark.parametrize("length", [1, 3, 100])
def test_length_of_sequences_changes_nothing(length):
    """The memory before row t is the same, however the rows are cut."""
    memory = CriticMemory(2)
    for begin, n in ((0, 7), (7, 1), (8, 12)):
        before = run(memory, batch_of((0, 0, begin, n, False)), "a", length)
        assert before == list(range(begin, begin + n, length))
