"""Sequences out of a replay buffer: by hand, and against the slow loop of `replays`."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.trainers.replays import GAMMA, MASKED, MEMORY, MIXED, SPEC, SlowReplay, Streams, batch_of
from trainers.replay_buffer import ReplayBuffer
from trainers.replay_samples import ReplaySequences


def buffer_of(*trajectories, capacity: int = 100) -> ReplayBuffer:
    buffer = ReplayBuffer(SPEC, capacity, 2)
    buffer.add(batch_of(*trajectories, memory_size=2), "m")
    return buffer


def count(agent: int, steps: int, end: str, begin: int = 0) -> tuple:
    """A trajectory whose observation is the step of the episode and whose rewards are 2^step; agents are 100 apart."""
    step = np.arange(begin, begin + steps + 1)
    return agent, 0, 100 * agent + step, 2.0 ** step[:-1], end, begin


def sequences(buffer: ReplayBuffer, length: int, burn_in: int, n_step: int = 1) -> dict[float, tuple]:
    """Every sequence: first observation -> (observations, rewards, steps, terminated, rows that count), padding left out."""
    drawn = buffer.sample_sequences(300, length, burn_in, np.random.default_rng(0), n_step, 0.5)
    found = {}
    for i, n in enumerate(drawn.length.tolist()):
        obs = drawn.obs["obs"][i, : n + 1, 0].tolist()
        counting = np.flatnonzero(drawn.weight[i]).tolist()
        rows = [getattr(drawn, name)[i, :n].tolist() for name in ("reward", "steps", "terminated")]
        found[obs[0]] = (obs, *rows, counting)
    return found


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_an_episode_in_sequences():
    """Eight steps, sequences of 3 after a burn-in of 2: from 0 five rows that all count, from 3 the rows 5, 6, 7; from 6 there
    are two, and none would count."""
    found = sequences(buffer_of(count(0, 8, "t")), 3, 2)
    end = [False] * 4
    assert found == {
        0: ([0, 1, 2, 3, 4, 5], [1, 2, 4, 8, 16], [1] * 5, [*end, False], [0, 1, 2, 3, 4]),
        3: ([3, 4, 5, 6, 7, 8], [8, 16, 32, 64, 128], [1] * 5, [*end, True], [2, 3, 4]),
    }


def test_n_step_sums_end_with_the_sequence():
    """γ = ½, so that each reward of 2^t counts as much as the first."""
    found = sequences(buffer_of(count(0, 8, "t")), 3, 2, n_step=3)
    assert found[0][1:4] == ([3, 6, 12, 16, 16], [3, 3, 3, 2, 1], [False] * 5)
    assert found[3][1:4] == ([24, 48, 96, 128, 128], [3, 3, 3, 2, 1], [False, False, True, True, True])


@pytest.mark.parametrize(("end", "terminated"), [("t", True), ("l", False), ("", False), ("tl", True)])
def test_ends(end, terminated):
    """C35, C37: only where the task ended there is no bootstrap; a time limit and a cut have the true next observation."""
    assert sequences(buffer_of(count(0, 2, end)), 4, 0) == {0: ([0, 1, 2], [1, 2], [1, 1], [False, terminated], [0, 1])}


def test_what_is_padded():
    """C67: padding is at the end: the last observation again, and zeros; it does not count."""
    drawn = buffer_of(count(0, 2, "")).sample_sequences(1, 3, 1, np.random.default_rng(0), 2, 0.5)
    assert drawn.obs["obs"][0, :, 0].tolist() == [0, 1, 2, 2, 2]
    assert drawn.weight.tolist() == [[1, 1, 0, 0]]
    assert (drawn.length.tolist(), drawn.begins.tolist()) == ([2], [True])
    assert drawn.continuous[0, :, 0].tolist() == [10, 20, 0, 0]
    assert drawn.reward.tolist() == [[2, 2, 0, 0]]
    assert drawn.terminated.tolist() == [[False] * 4]
    assert (drawn.steps >= 1).all()
    assert ((np.arange(4) + drawn.steps)[0] <= [2, 2, 3, 4]).all()


def test_the_memory_is_that_before_the_first_row():
    """C66: not that after it, and not zero where a trajectory was cut."""
    drawn = buffer_of(count(0, 3, ""), count(0, 5, "t", begin=3)).sample_sequences(50, 4, 1, np.random.default_rng(0))
    assert set(drawn.index.tolist()) == {0, 4}
    np.testing.assert_array_equal(drawn.memory, np.where(drawn.index == 4, 1600.0, 100.0)[:, None] * np.ones((1, 2)))


def test_types():
    buffer = ReplayBuffer(MASKED, 50, MEMORY)
    buffer.add(Streams(np.random.default_rng(0), MASKED, MEMORY).batch("m0"), "m0")
    drawn = buffer.sample_sequences(7, 3, 1, np.random.default_rng(0))
    found = {f.name: getattr(drawn, f.name) for f in dataclasses.fields(ReplaySequences) if f.name != "obs"}
    assert {name: (x.dtype.name, x.shape) for name, x in found.items()} == {
        "index": ("int64", (7,)), "length": ("int32", (7,)), "begins": ("bool", (7,)), "memory": ("float32", (7, MEMORY)),
        "action_mask": ("bool", (7, 5, 5)), "continuous": ("float32", (7, 4, 2)), "discrete": ("int32", (7, 4, 2)),
        "reward": ("float32", (7, 4)), "steps": ("int32", (7, 4)), "terminated": ("bool", (7, 4)), "weight": ("float32", (7, 4)),
    }
    assert {name: (x.dtype.name, x.shape) for name, x in drawn.obs.items()} == {
        "image": ("uint8", (7, 5, 2, 2)), "vector": ("float32", (7, 5, 3)), "count": ("int64", (7, 5)),
    }


# -- where a sequence cannot go ---------------------------------------------------------------------------------------


def test_a_chain_that_goes_on_in_a_later_trajectory():
    """Cut by the horizon in the middle of a sequence, in one batch and in two."""
    buffer, steps = ReplayBuffer(SPEC, 50, 2), {}
    for parts in ([count(0, 2, ""), count(0, 1, "", 2)], [count(0, 3, "", 3)]):
        buffer.add(batch_of(*parts, memory_size=2, steps=steps), "m")
    assert {k: v[0] for k, v in sequences(buffer, 4, 0).items()} == {0: [0, 1, 2, 3, 4], 4: [4, 5, 6]}


def test_a_broken_chain():
    """Steps 3 and 4 were lost. What begins at 5 has no sequence of its own before 8, which is a multiple of 4."""
    found = sequences(buffer_of(count(0, 3, ""), count(0, 5, "l", begin=5)), 4, 0)
    assert {k: v[0] for k, v in found.items()} == {0: [0, 1, 2, 3], 8: [8, 9, 10]}


def test_overwritten_heads():
    """Ten frames of 12: steps 0 to 2 are gone, with them the sequence that began at 0."""
    buffer = buffer_of(count(0, 12, "t"), capacity=10)
    assert {k: v[0] for k, v in sequences(buffer, 4, 2).items()} == {4: [4, 5, 6, 7, 8, 9, 10], 8: [8, 9, 10, 11, 12]}
    buffer.add(batch_of(count(1, 3, "t"), memory_size=2), "m")
    assert {k: v[0] for k, v in sequences(buffer, 4, 2).items()} == {8: [8, 9, 10, 11, 12], 100: [100, 101, 102, 103]}


def test_nothing_to_draw():
    buffer = ReplayBuffer(SPEC, 20, 2)
    rng = np.random.default_rng(0)
    assert not buffer.has_sequences(4, 2)
    with pytest.raises(ValueError, match="no episode step that is a multiple of 4"):
        buffer.sample_sequences(1, 4, 2, rng)
    buffer.add(batch_of(count(0, 5, "", begin=5), memory_size=2), "m")  # steps 5 … 9; of those from 8 on none counts
    assert not buffer.has_sequences(4, 2)
    assert buffer.has_sequences(4, 1)
    assert not buffer.has_sequences(4, 2)
    buffer.add(batch_of(count(0, 1, "", begin=10), memory_size=2), "m")
    assert buffer.has_sequences(4, 2)
    assert set(sequences(buffer, 4, 2)) == {8}
    buffer.add(batch_of(count(1, 19, "", begin=1), memory_size=2), "m")  # overwrites it
    assert set(sequences(buffer, 4, 2)) == {104, 108, 112, 116}
    with pytest.raises(ValueError, match="n_step of at least 1, received 0"):
        buffer.sample_sequences(1, 4, 2, rng, 0)
    assert len(buffer.sample_sequences(0, 4, 2, rng).index) == 0
    plain = ReplayBuffer(SPEC, 20)
    with pytest.raises(ValueError, match="memory_size=0"):
        plain.sample_sequences(1, 4, 2, rng)


def test_what_was_there_may_be_overwritten():
    """`has_sequences` does not go by what it once found."""
    buffer = buffer_of(count(0, 4, "t"), capacity=10)
    assert buffer.has_sequences(8, 2)
    buffer.add(batch_of(count(1, 6, "", begin=1), memory_size=2), "m")
    assert not buffer.has_sequences(8, 2)


# -- against the slow loop ---------------------------------------------------------------------------------------------


def check_against(slow: SlowReplay, buffer: ReplayBuffer, rng, length, burn_in, n_step, masked):
    expected = slow.sequences(length, burn_in)
    assert buffer.has_sequences(length, burn_in) == bool(expected)
    if not expected:
        return 0
    numbers = {g % buffer.capacity: g for g in expected}
    s = buffer.sample_sequences(16, length, burn_in, rng, n_step, GAMMA)
    assert set(s.index.tolist()) <= numbers.keys()
    for i, at in enumerate(s.index.tolist()):
        chain, counts = expected[numbers[at]]
        first = slow.frames[chain[0]][1]
        assert s.length[i] == len(chain) - 1
        assert np.flatnonzero(s.weight[i]).tolist() == counts
        assert s.begins[i] == (first["step"] == 0)
        assert s.memory[i].tolist() == first["memory"]
        for t in range(length + burn_in + 1):
            obs, mask = slow.frames[chain[min(t, len(chain) - 1)]][0]
            assert {k: v[i, t].tobytes() for k, v in s.obs.items()} == obs
            assert (s.action_mask[i, t].tolist() if masked else None) == mask
        for t in range(length + burn_in):
            found = s.continuous[i, t].tolist(), s.discrete[i, t].tolist(), s.terminated[i, t]
            if t < len(chain) - 1:
                row = slow.frames[chain[t]][1]
                reward, steps, last = slow.n_step(chain, t, n_step, GAMMA)
                assert found == (row["continuous"], row["discrete"], last["terminated"])
                assert s.reward[i, t] == pytest.approx(reward, rel=1e-6, abs=1e-6)
                assert s.steps[i, t] == steps
            else:
                assert found == ([0, 0], [0, 0], False)
                assert s.reward[i, t] == 0
    return len(expected)


@pytest.mark.parametrize("spec", [MIXED, MASKED], ids=["plain", "masked"])
@pytest.mark.parametrize("capacity", [3, 20, 61, 500])
@pytest.mark.parametrize(("length", "burn_in"), [(2, 0), (4, 1), (3, 5)])
def test_random_streams_agree_with_the_slow_loop(capacity, length, burn_in, spec):
    """Chains broken, cut and ended everywhere, heads overwritten; several steps of bootstrap."""
    rng = np.random.default_rng(capacity)
    streams, slow, buffer = Streams(rng, spec, MEMORY), SlowReplay(capacity), ReplayBuffer(spec, capacity, MEMORY)
    found = 0
    for call in range(60):
        manager = f"m{rng.integers(2)}"
        batch = streams.batch(manager)
        buffer.add(batch, manager)
        slow.add(batch, manager)
        found += check_against(slow, buffer, rng, length, burn_in, 1 + call % 4, spec.action.masked)
    assert found > min(capacity, 40)


@pytest.mark.parametrize("capacity", [30, 400])
def test_every_row_counts_at_most_once(capacity):
    """So that rows are as likely as sequences. Those that count in none are the ones whose sequence lost its head, and those that
    only warm up where nothing before them is known."""
    rng = np.random.default_rng(0)
    streams, slow, buffer = Streams(rng, MIXED, MEMORY, longest=9), SlowReplay(capacity), ReplayBuffer(MIXED, capacity, MEMORY)
    for call in range(20):
        batch = streams.batch(f"m{call % 2}")
        buffer.add(batch, f"m{call % 2}")
        slow.add(batch, f"m{call % 2}")
    drawn = buffer.sample_sequences(4_000, 4, 2, rng)
    numbers = {g % capacity: g for g in slow.transitions}
    rows = {}
    for place, weight in zip(drawn.index.tolist(), drawn.weight, strict=True):
        chain = slow.chain(numbers[place], 6)
        rows[place] = [chain[t] for t in np.flatnonzero(weight)]
    counting = [g for sequence in rows.values() for g in sequence]
    assert len(counting) == len(set(counting))
    before = {row["next"]: g for g, (_, row) in enumerate(slow.frames) if row and g >= slow.oldest}
    for g in set(slow.transitions) - set(counting):
        chain = [g]
        while chain[-1] in before:
            chain.append(before[chain[-1]])
        steps = [slow.frames[at][1]["step"] for at in chain]
        # Counted by the sequence that began 2 … 5 steps before, or 0 … 5 at the start of an episode.
        assert not any(step % 4 == 0 and (2 <= distance < 6 or (step == 0 and distance < 6)) for distance, step in enumerate(steps))


def test_every_sequence_is_equally_likely():
    """Pearson's χ² with 21 degrees of freedom: above 46.8 once in 1,000 seeds. Long and short ones, and one ring that wraps."""
    buffer = ReplayBuffer(SPEC, 90, 2)
    buffer.add(batch_of(count(3, 31, "t"), memory_size=2), "m")
    buffer.add(batch_of(*[count(agent, 1 + agent % 5, "t") for agent in range(10, 20)], count(1, 38, ""), memory_size=2), "m")
    n = 40_000
    places = buffer.sample_sequences(n, 4, 1, np.random.default_rng(0)).index
    frequency = np.bincount(places, minlength=90)
    assert np.count_nonzero(frequency) == 22
    expected = n / 22
    assert ((frequency[frequency > 0] - expected) ** 2).sum() / expected < 46.8
