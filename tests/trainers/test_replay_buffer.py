"""Replay buffer: by hand, against a list of single frames, and in the cases where others went wrong."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from tests.trainers.replays import GAMMA, MASKED, MEMORY, MIXED, SPEC, SlowReplay, Streams, batch_of
from trainers.replay_buffer import ReplayBuffer
from trainers.replay_samples import ReplaySample
from trainers.trainer import TrainerState
from trainers.trajectory import empty_batch


def transitions(buffer: ReplayBuffer, n_step: int = 1, gamma: float = GAMMA) -> dict[float, tuple]:
    """Every transition held: observation -> (reward, next observation, steps, end)."""
    if not buffer.rows:
        return {}
    s = buffer.sample(60 * buffer.rows, np.random.default_rng(0), n_step, gamma)
    assert len(np.unique(s.index)) == buffer.rows, "a transition was never drawn, or rows is wrong"
    ends = [f"{'t' * a}{'l' * b}" for a, b in zip(s.terminated.tolist(), s.truncated.tolist(), strict=True)]
    columns = s.obs["obs"][:, 0].tolist(), s.reward.tolist(), s.next_obs["obs"][:, 0].tolist(), s.steps.tolist(), ends
    return {obs: (pytest.approx(reward), *rest) for obs, reward, *rest in zip(*columns, strict=True)}


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_one_trajectory():
    buffer = ReplayBuffer(SPEC, 10)
    buffer.add(batch_of((0, 0, [0, 1, 2, 3], [1, 2, 4], "t")), "m")
    assert (buffer.rows, buffer.frames) == (3, 4)
    assert transitions(buffer) == {0: (1, 1, 1, ""), 1: (2, 2, 1, ""), 2: (4, 3, 1, "t")}
    assert transitions(buffer, 2) == {0: (1 + 0.9 * 2, 2, 2, ""), 1: (2 + 0.9 * 4, 3, 2, "t"), 2: (4, 3, 1, "t")}
    assert transitions(buffer, 5) == {0: (1 + 0.9 * 2 + 0.81 * 4, 3, 3, "t"), 1: (2 + 0.9 * 4, 3, 2, "t"), 2: (4, 3, 1, "t")}


def test_what_a_sample_holds():
    buffer = ReplayBuffer(SPEC, 10)
    buffer.add(batch_of((0, 0, [0, 1, 2], [1, 2], "l")), "m")
    s = buffer.sample(50, np.random.default_rng(0), 2, GAMMA)
    types = {f.name: getattr(s, f.name).dtype for f in dataclasses.fields(ReplaySample) if "obs" not in f.name and "mask" not in f.name}
    assert types == {"index": np.int64, "continuous": np.float32, "discrete": np.int32, "reward": np.float32, "steps": np.int32,
                     "terminated": bool, "truncated": bool}
    assert s.continuous.shape == (50, 1) and s.discrete.shape == (50, 0) and s.obs["obs"].shape == (50, 1)
    # The action is that of the first of the two steps.
    np.testing.assert_array_equal(s.continuous[:, 0], np.where(s.index == 0, 10, 20))
    np.testing.assert_array_equal(s.obs["obs"][:, 0], s.index)
    s.obs["obs"][:], s.next_obs["obs"][:], s.continuous[:], s.reward[:] = 7, 7, 7, 7
    assert transitions(buffer) == {0: (1, 1, 1, ""), 1: (2, 2, 1, "l")}


def test_a_cut_trajectory_goes_on_in_its_last_frame():
    buffer, steps = ReplayBuffer(SPEC, 10), {}
    buffer.add(batch_of((0, 0, [0, 1, 2], [1, 2], ""), steps=steps), "m")
    assert transitions(buffer, 3) == {0: (1 + 0.9 * 2, 2, 2, ""), 1: (2, 2, 1, "")}
    buffer.add(batch_of((0, 0, [2, 3], [4], ""), (0, 0, [3, 4], [8], "t"), (0, 1, [50, 51], [1], ""), steps=steps), "m")
    assert (buffer.rows, buffer.frames) == (5, 5 + 2)
    assert transitions(buffer, 3) == {
        0: (1 + 0.9 * 2 + 0.81 * 4, 3, 3, ""), 1: (2 + 0.9 * 4 + 0.81 * 8, 4, 3, "t"), 2: (4 + 0.9 * 8, 4, 2, "t"),
        3: (8, 4, 1, "t"), 50: (1, 51, 1, ""),
    }


@pytest.mark.parametrize("what, manager, following", [
    ("rows were lost", "m", (0, 0, [3, 4], [4], "")),
    ("rows were lost after which the observation is the same", "m", (0, 0, [2, 4], [4], "", 3)),
    ("another episode", "m", (0, 1, [2, 4], [4], "")),
    ("another agent", "m", (1, 0, [2, 4], [4], "")),
    ("another manager", "m2", (0, 0, [2, 4], [4], "")),
])
@pytest.mark.parametrize("together", [True, False])
def test_what_is_no_continuation_begins_a_new_chain(what, manager, following, together):
    buffer, steps = ReplayBuffer(SPEC, 10), {}
    first = (0, 0, [1, 2], [1], "")
    if together and manager == "m":
        buffer.add(batch_of(first, following), "m")
    else:
        buffer.add(batch_of(first, steps=steps), "m")
        buffer.add(batch_of(following, steps=steps), manager)
    assert (buffer.rows, buffer.frames) == (2, 4)
    assert transitions(buffer, 3) == {1: (1, 2, 1, ""), following[2][0]: (4, 4, 1, "")}


@pytest.mark.parametrize("end", ["t", "l"])
@pytest.mark.parametrize("together", [True, False])
def test_nothing_follows_the_end_of_an_episode(end, together):
    """Even where the ids come again, as from a manager that was started anew, and the observation happens to be the same."""
    buffer, steps = ReplayBuffer(SPEC, 10), {}
    parts = (0, 0, [1, 2], [1], end), (0, 0, [2, 3], [4], "")
    for batch in ([parts] if together else [parts[:1], parts[1:]]):
        buffer.add(batch_of(*batch, steps=steps), "m")
    assert transitions(buffer, 3) == {1: (1, 2, 1, end), 2: (4, 3, 1, "")}


def test_bits_decide_whether_an_observation_is_the_same():
    """NaN is the same as itself; −0 and 0 are two observations."""
    buffer, steps = ReplayBuffer(SPEC, 10), {}
    buffer.add(batch_of((0, 0, [1, np.nan], [1], ""), (1, 0, [5, 0.0], [1], ""), steps=steps), "m")
    buffer.add(batch_of((0, 0, [np.nan, 2], [2], ""), (1, 0, [-0.0, 6], [2], ""), steps=steps), "m")
    assert (buffer.rows, buffer.frames) == (4, 3 + 4)


def test_the_oldest_frames_give_way():
    buffer, steps = ReplayBuffer(SPEC, 4), {}
    buffer.add(batch_of((0, 0, [0, 1, 2], [1, 2], ""), steps=steps), "m")
    buffer.add(batch_of((0, 0, [2, 3, 4], [3, 4], ""), steps=steps), "m")
    assert transitions(buffer, 3) == {1: (2 + 0.9 * 3 + 0.81 * 4, 4, 3, ""), 2: (3 + 0.9 * 4, 4, 2, ""), 3: (4, 4, 1, "")}
    buffer.add(batch_of((1, 0, [50, 51, 52], [5, 6], "t")), "m")
    assert buffer.frames == 4
    assert transitions(buffer, 3) == {50: (5 + 0.9 * 6, 52, 2, "t"), 51: (6, 52, 1, "t")}


def test_an_open_frame_that_was_overwritten_cannot_go_on():
    buffer, steps = ReplayBuffer(SPEC, 3), {}
    buffer.add(batch_of((0, 0, [0, 1], [1], ""), steps=steps), "m")
    buffer.add(batch_of((1, 0, [50, 51, 52], [5, 6], "")), "m")
    buffer.add(batch_of((0, 0, [1, 2], [2], ""), steps=steps), "m")
    assert transitions(buffer, 3) == {1: (2, 2, 1, "")}


def test_the_same_within_one_batch():
    """Agent 0's frame 1 is gone when its second trajectory comes, which therefore takes one frame more: that costs agent 1 its own."""
    buffer = ReplayBuffer(SPEC, 4)
    buffer.add(batch_of(
        (0, 0, [0, 1], [1], ""), (1, 0, [50, 51, 52, 53], [5, 6, 7], ""), (0, 0, [1, 2, 3, 4], [2, 3, 4], ""),
        (1, 0, [53, 54, 55], [8, 9], ""),
    ), "m")
    assert buffer.frames == 4
    # Without that, frame 53 would still have been the oldest of the four when agent 1 went on.
    assert transitions(buffer, 3) == {53: (8 + 0.9 * 9, 55, 2, ""), 54: (9, 55, 1, "")}


def test_a_batch_larger_than_the_buffer():
    buffer = ReplayBuffer(SPEC, 4)
    buffer.add(batch_of((0, 0, np.arange(101), np.ones(100), "t"), (0, 1, 200 + np.arange(101), np.ones(100), "l")), "m")
    assert transitions(buffer) == {297: (1, 298, 1, ""), 298: (1, 299, 1, ""), 299: (1, 300, 1, "l")}


def test_a_batch_without_rows_changes_nothing():
    buffer, steps = ReplayBuffer(SPEC, 4), {}
    buffer.add(batch_of((0, 0, [0, 1], [1], ""), steps=steps), "m")
    buffer.add(batch_of(), "m")
    buffer.add(empty_batch(SPEC), "m")
    assert (buffer.rows, buffer.frames) == (1, 2)
    buffer.add(batch_of((0, 0, [1, 2], [1], ""), steps=steps), "m")
    assert (buffer.rows, buffer.frames) == (2, 3)


def test_rows_can_be_none_although_frames_are_held():
    """As many agents in turn as there are frames: what follows a frame overwrites it."""
    agents = [(agent, 0, [10 * agent, 10 * agent + 1], [1], "") for agent in range(3)]
    on = [(agent, 0, [10 * agent + 1, 10 * agent + 2], [1], "") for agent in range(3)]
    large, buffer, steps = ReplayBuffer(SPEC, 9), ReplayBuffer(SPEC, 3), {}
    large.add(batch_of(*agents, steps=steps), "m")
    large.add(batch_of(*on, steps=steps), "m")
    buffer.load_state(large.state())
    assert (buffer.rows, buffer.frames) == (0, 3)
    with pytest.raises(ValueError, match="without transitions"):
        buffer.sample(1, np.random.default_rng(0))
    buffer.add(batch_of((0, 0, [2, 3], [1], ""), steps=steps), "m")
    assert (buffer.rows, buffer.frames) == (0, 3)
    buffer.add(batch_of((2, 0, [22, 23], [4], ""), steps=steps), "m")
    assert transitions(buffer) == {22: (4, 23, 1, "")}


def test_what_cannot_be_sampled_or_made():
    buffer = ReplayBuffer(SPEC, 4)
    with pytest.raises(ValueError, match="without transitions"):
        buffer.sample(1, np.random.default_rng(0))
    buffer.add(batch_of((0, 0, [0, 1], [1], "")), "m")
    with pytest.raises(ValueError, match="n_step of at least 1, received 0"):
        buffer.sample(1, np.random.default_rng(0), 0)
    assert len(buffer.sample(0, np.random.default_rng(0)).index) == 0
    with pytest.raises(ValueError, match="at least 2 frames, received 1"):
        ReplayBuffer(SPEC, 1)


# -- against a list of single frames ---------------------------------------------------------------------------------


def check_against(slow: SlowReplay, buffer: ReplayBuffer, rng, n_step):
    held = slow.transitions
    assert buffer.rows == len(held)
    assert buffer.frames == len(slow.frames) - slow.oldest
    if not held:
        return
    numbers = {g % buffer.capacity: g for g in held}
    s = buffer.sample(24, rng, n_step, GAMMA)
    for i, at in enumerate(s.index.tolist()):
        chain = slow.chain(numbers[at], n_step)
        reward, steps, last = slow.n_step(chain, 0, n_step, GAMMA)
        (obs, mask), first = slow.frames[chain[0]]
        next_obs, next_mask = slow.frames[chain[-1]][0]
        assert {k: v[i].tobytes() for k, v in s.obs.items()} == obs
        assert {k: v[i].tobytes() for k, v in s.next_obs.items()} == next_obs
        assert [m if m is None else m[i].tolist() for m in (s.action_mask, s.next_action_mask)] == [mask, next_mask]
        assert (s.continuous[i].tolist(), s.discrete[i].tolist()) == (first["continuous"], first["discrete"])
        assert (s.steps[i], s.terminated[i], s.truncated[i]) == (steps, last["terminated"], last["truncated"])
        assert s.reward[i] == pytest.approx(reward, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("spec", "memory_size"), [(MIXED, 0), (MASKED, MEMORY)], ids=["plain", "masks and memory"])
@pytest.mark.parametrize("capacity", [2, 3, 7, 20, 61, 500])
@pytest.mark.parametrize("longest", [1, 6])
def test_random_streams_agree_with_the_slow_loop(capacity, longest, spec, memory_size):
    rng = np.random.default_rng(capacity)
    streams = Streams(rng, spec, memory_size, longest=longest)
    slow, buffer = SlowReplay(capacity), ReplayBuffer(spec, capacity, memory_size)
    for call in range(100):
        manager = f"m{rng.integers(2)}"
        batch = streams.batch(manager)
        buffer.add(batch, manager)
        slow.add(batch, manager)
        check_against(slow, buffer, rng, 1 + call % 5)
    assert streams.steps > 400


def test_every_transition_is_equally_likely():
    """Pearson's χ² with 29 degrees of freedom: above 58.3 once in 1,000 seeds."""
    buffer = ReplayBuffer(SPEC, 40)
    # Open frames of all kinds, and the end of the ring within the frames held.
    buffer.add(batch_of((3, 0, np.arange(26), np.ones(25), "t")), "m")
    buffer.add(batch_of(*[(0, e, [e, e + 0.5], [1], "t") for e in range(8)], (1, 0, np.arange(20), np.ones(19), ""),
                        (2, 0, [7, 8, 9, 10], np.ones(3), "l")), "m")
    assert (buffer.rows, buffer.frames) == (30, 40)
    n = 60_000
    count = np.bincount(buffer.sample(n, np.random.default_rng(0)).index, minlength=40)
    assert np.count_nonzero(count) == 30
    expected = n / 30
    assert ((count[count > 0] - expected) ** 2).sum() / expected < 58.3


# -- cases -----------------------------------------------------------------------------------------------------------


def test_c15_bytes_are_known_beforehand_and_observations_stored_once_in_their_dtype():
    image = BehaviorSpec((ObservationSpec("obs", (84, 84, 4), "uint8"),), ActionSpec("discrete", 0, (4,)))
    assert ReplayBuffer.memory_bytes(image, 1_000_000) == pytest.approx(28.2e9, rel=0.01)
    for spec in (image, SPEC, MIXED):
        assert ReplayBuffer(spec, 100).nbytes == ReplayBuffer.memory_bytes(spec, 100)
    # By hand: image 4, vector 12, count 8; actions 8 + 8; reward 4, number of the next frame 8, two flags.
    assert ReplayBuffer.memory_bytes(MIXED, 10) == 10 * (4 + 12 + 8 + 8 + 8 + 4 + 8 + 2)
    # And the mask of 5 choices; and 16 numbers that are remembered, and the step of the episode.
    assert ReplayBuffer.memory_bytes(MASKED, 10) == ReplayBuffer.memory_bytes(MIXED, 10) + 10 * 5
    assert ReplayBuffer.memory_bytes(MASKED, 10, 16) == ReplayBuffer.memory_bytes(MASKED, 10) + 10 * (64 + 4)
    assert ReplayBuffer(MASKED, 100, 16).nbytes == ReplayBuffer.memory_bytes(MASKED, 100, 16)

    buffer = ReplayBuffer(MIXED, 100)
    rng = np.random.default_rng(0)
    rows = np.arange(64)
    obs = {"image": rng.integers(0, 256, (65, 2, 2)).astype(np.uint8), "vector": np.zeros((65, 3), np.float32),
           "count": np.arange(65)}
    for start in rows[::16].tolist():
        part = slice(start, start + 16)
        buffer.add(dataclasses.replace(
            empty_batch(MIXED), obs={k: v[part] for k, v in obs.items()}, next_obs={k: v[start + 16 : start + 17] for k, v in obs.items()},
            continuous=np.zeros((16, 2), np.float32), discrete=np.zeros((16, 2), np.int32), reward=np.zeros(16, np.float32),
            length=np.array([16], np.int32), begin=np.array([start]), agent_id=np.array([0]), episode_id=np.array([0]), terminated=np.array([False]),
            truncated=np.array([start == 48]),
        ), "m")
    assert (buffer.rows, buffer.frames) == (64, 65)  # however often it is cut, one frame for each observation
    s = buffer.sample(500, rng, 3)
    assert s.obs["image"].dtype == s.next_obs["image"].dtype == np.uint8
    np.testing.assert_array_equal(s.obs["image"], obs["image"][s.obs["count"]])
    np.testing.assert_array_equal(s.next_obs["image"], obs["image"][s.next_obs["count"]])
    np.testing.assert_array_equal(s.next_obs["count"], np.minimum(s.obs["count"] + 3, 64))


@pytest.mark.parametrize(("masked", "memory_size"), [(False, 0), (True, 256)])
def test_images_take_hardly_more_than_their_pixels(masked, memory_size):
    """1e5 frames of 84 × 84 × 4: at most 1.1 times the 2.82 GB of the pixels, whatever else is kept."""
    image = ObservationSpec("obs", (84, 84, 4), "uint8", "image", is_uint8_image=True)
    spec = BehaviorSpec((image,), ActionSpec("discrete", 0, (18,), masked=masked))
    buffer = ReplayBuffer(spec, 100_000, memory_size)
    assert 84 * 84 * 4 * 100_000 < buffer.nbytes <= 1.1 * 84 * 84 * 4 * 100_000
    assert buffer.nbytes == ReplayBuffer.memory_bytes(spec, 100_000, memory_size)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_c15_memory_is_not_used_before_it_is_written():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    spec = BehaviorSpec((ObservationSpec("obs", (64, 64), "uint8"),), ActionSpec("discrete", 0, (4,)))
    before = resident()
    buffer = ReplayBuffer(spec, 100_000)
    assert buffer.nbytes > 400e6
    assert resident() - before < 50e6


def test_c20_later_changes_of_the_batch_do_not_reach_the_buffer():
    buffer = ReplayBuffer(SPEC, 20)
    batch = batch_of((0, 0, np.arange(11), np.ones(10), ""))
    buffer.add(batch, "m")
    for array in (batch.obs["obs"], batch.next_obs["obs"], batch.reward, batch.continuous, batch.terminated):
        array[:] = 77
    assert transitions(buffer) == {t: (1, t + 1, 1, "") for t in range(10)}


def test_c34_a_time_limit_gives_the_true_last_observation():
    """Observations count the steps, 100 per episode; five steps each, never 0 or 4 of the next or the same episode."""
    buffer = ReplayBuffer(SPEC, 100)
    for episode in range(4):
        base = 100 * episode
        buffer.add(batch_of((0, episode, base + np.arange(4), np.zeros(3), ""), (0, episode, base + np.arange(3, 6), np.zeros(2), "l")), "m")
    for n_step in range(1, 7):
        held = transitions(buffer, n_step)
        assert held == {
            100 * e + t: (0, 100 * e + min(t + n_step, 5), min(n_step, 5 - t), "l" if t + n_step >= 5 else "")
            for e in range(4) for t in range(5)
        }


def lambda_returns(buffer: ReplayBuffer, value: dict[float, float], first: float, horizon: int, lambd: float = 0.8) -> float:
    """(1 − λ) Σ λ^(n−1) G_n + λ^(T−1) G_T, with the n-step returns G_n = reward + γ^steps V(next) of the buffer."""
    g = []
    for n in range(1, horizon + 1):
        reward, after, steps, end = transitions(buffer, n)[first]
        assert steps == n
        g.append(reward.expected + (0 if "t" in end else GAMMA**steps * value[after]))
    return sum((1 - lambd) * lambd**i * x for i, x in enumerate(g[:-1])) + lambd ** (horizon - 1) * g[-1]


@pytest.mark.parametrize("end, expected", [
    ("l", (3.79072, 3.376, 2.8)), ("", (3.79072, 3.376, 2.8)), ("t", (2.8576, 2.08, 1.0)), ("tl", (2.8576, 2.08, 1.0)),
], ids=["C35 time limit", "horizon cut", "C35 terminated", "C37 both: terminated wins"])
def test_c35_c37_returns_at_the_end_of_a_trajectory(end, expected):
    buffer = ReplayBuffer(SPEC, 10)
    buffer.add(batch_of((0, 0, [0, 1, 2, 3], [1, 1, 1], end)), "m")
    value = dict.fromkeys((0, 1, 2, 3), 2.0)
    assert [lambda_returns(buffer, value, t, 3 - t) for t in range(3)] == pytest.approx(expected, abs=1e-5)
    flags = buffer.sample(100, np.random.default_rng(0), 3)
    assert not (flags.terminated & flags.truncated).any()
    assert flags.terminated.all() == ("t" in end) and flags.truncated.all() == (end == "l")


def test_c36_nothing_leaks_from_one_episode_into_the_one_before():
    buffer = ReplayBuffer(SPEC, 10)
    buffer.add(batch_of((0, 0, [0, 1, 9], [1, 1], "l"), (0, 1, [2, 3, 4], [5, 5], "t")), "m")
    value = {0: 2.0, 1: 2.0, 2: 2.0, 3: 2.0, 9: 10.0}
    advantages = [lambda_returns(buffer, value, t, 2 - t % 2) - 2 for t in range(4)]
    assert advantages == pytest.approx((6.56, 8.0, 6.96, 3.0), abs=1e-5)


# -- state -----------------------------------------------------------------------------------------------------------


def through_disk(state: TrainerState, folder: Path) -> TrainerState:
    path = folder / "state.safetensors"
    safetensors.numpy.save_file(state.tensors, path)
    return TrainerState(safetensors.numpy.load_file(path), json.loads(json.dumps(state.scalars)))


def filled(capacity: int, calls: int, seed: int = 0, spec: BehaviorSpec = MIXED, memory: int = 0) -> tuple[ReplayBuffer, Streams]:
    buffer, streams = ReplayBuffer(spec, capacity, memory), Streams(np.random.default_rng(seed), spec, memory)
    for call in range(calls):
        buffer.add(streams.batch(f"m{call % 2}"), f"m{call % 2}")
    return buffer, streams


def assert_same(a: ReplayBuffer, b: ReplayBuffer):
    left, right = a.state(), b.state()
    assert left.scalars == right.scalars and left.tensors.keys() == right.tensors.keys()
    assert (a.rows, a.frames) == (b.rows, b.frames)
    for name, tensor in left.tensors.items():
        assert tensor.dtype == right.tensors[name].dtype and tensor.tobytes() == right.tensors[name].tobytes(), name
    if a.rows:
        x, y = (buffer.sample(200, np.random.default_rng(5), 3, GAMMA) for buffer in (a, b))
        assert_same_fields(x, y)
    if a.memory_size and a.has_sequences(4, 2):
        assert_same_fields(*(buffer.sample_sequences(50, 4, 2, np.random.default_rng(5), 3, GAMMA) for buffer in (a, b)))


def assert_same_fields(x, y):
    for f in dataclasses.fields(x):
        parts = [getattr(s, f.name) if isinstance(getattr(s, f.name), dict) else {"": getattr(s, f.name)} for s in (x, y)]
        for k, part in parts[0].items():
            assert (part is None and parts[1][k] is None) or part.tobytes() == parts[1][k].tobytes(), f.name


@pytest.mark.parametrize(("spec", "memory"), [(MIXED, 0), (MASKED, MEMORY)], ids=["plain", "masks and memory"])
@pytest.mark.parametrize("capacity, calls", [(50, 0), (400, 4), (50, 4), (50, 30)])
def test_c30_saved_and_loaded_bit_for_bit(capacity, calls, spec, memory, tmp_path):
    buffer, streams = filled(capacity, calls, spec=spec, memory=memory)
    loaded, _ = filled(capacity, 3, 1, spec, memory)  # what it held before goes
    loaded.load_state(through_disk(buffer.state(), tmp_path))
    assert_same(buffer, loaded)
    continued = False
    for call in range(40):
        batch, frames = streams.batch(f"m{call % 2}"), buffer.frames
        buffer.add(batch, f"m{call % 2}")
        loaded.add(batch, f"m{call % 2}")
        continued |= (call < 2 or not calls) and buffer.frames - frames < batch.rows + len(batch.length)
        assert_same(buffer, loaded)
    assert continued


def test_the_state_holds_the_filled_part_only_and_shares_no_memory():
    buffer, _ = filled(1_000, 4)
    state = buffer.state()
    assert 0 < buffer.frames < 1_000
    assert all(name.startswith("replay/") and len(t) == buffer.frames and t.flags.c_contiguous for name, t in state.tensors.items())
    assert {name for name in state.scalars if not name.startswith("replay/")} == set()
    before = {name: t.tobytes() for name, t in state.tensors.items()}
    for tensor in state.tensors.values():
        tensor[...] = 0
    assert {name: t.tobytes() for name, t in buffer.state().tensors.items()} == before


@pytest.mark.parametrize("capacity", [2, 3, 10, 59, 60, 61, 500])
def test_another_capacity_keeps_the_newest_frames_that_fit(capacity, tmp_path):
    """Frames that do not fit are gone as if overwritten; everything goes on from there."""
    rng = np.random.default_rng(3)
    streams, slow, buffer = Streams(rng), SlowReplay(60), ReplayBuffer(MIXED, 60)
    for call in range(60):
        if call == 20:
            state = through_disk(buffer.state(), tmp_path)
            buffer = ReplayBuffer(MIXED, capacity)
            buffer.load_state(state)
            slow.first, slow.capacity = len(slow.frames) - min(60, capacity), capacity
            check_against(slow, buffer, rng, 3)
        batch = streams.batch(f"m{call % 2}")
        buffer.add(batch, f"m{call % 2}")
        slow.add(batch, f"m{call % 2}")
        check_against(slow, buffer, rng, 3)
    assert slow.oldest > slow.first


def test_frame_numbers_beyond_32_bits():
    """C55: counters go on past 2³¹."""
    buffer, streams = filled(50, 10)
    state = buffer.state()
    shift = 50 * 2**30
    following = state.tensors["replay/next"]
    following[following >= 0] += shift
    far = ReplayBuffer(MIXED, 50)
    scalars = state.scalars | {
        "replay/frames": state.scalars["replay/frames"] + shift,
        "replay/open": [[*entry[:3], entry[3] + shift, entry[4]] for entry in state.scalars["replay/open"]],
    }
    far.load_state(TrainerState(state.tensors, scalars))
    for call in range(10):
        batch = streams.batch(f"m{call % 2}")
        for b in (buffer, far):
            b.add(batch, f"m{call % 2}")
        x, y = (b.sample(100, np.random.default_rng(call), 3, GAMMA) for b in (buffer, far))
        assert buffer.rows == far.rows
        np.testing.assert_array_equal(x.index, y.index)
        np.testing.assert_array_equal(x.reward, y.reward)
        assert x.next_obs["image"].tobytes() == y.next_obs["image"].tobytes()
    assert far.state().scalars["replay/frames"] > 2**35


def test_a_state_of_another_spec_is_refused_and_changes_nothing():
    buffer, _ = filled(50, 4)
    other = ReplayBuffer(SPEC, 50)
    other.add(batch_of((0, 0, [0, 1], [1], "")), "m")
    with pytest.raises(ValueError) as error:
        other.load_state(buffer.state())
    assert str(SPEC) in str(error.value) and str(MIXED) in str(error.value)
    assert transitions(other) == {0: (1, 1, 1, "")}


def test_a_state_of_another_memory_is_refused():
    buffer, _ = filled(50, 4, spec=MASKED, memory=MEMORY)
    other = ReplayBuffer(MASKED, 50, 6)
    with pytest.raises(ValueError, match="expected memory_size 6, received 4"):
        other.load_state(buffer.state())
    assert other.frames == 0


@pytest.mark.parametrize(("given", "wanted", "message"), [
    ((MASKED, 0), (MASKED, MEMORY), "with memories, received some without"),
    ((MASKED, MEMORY), (MASKED, 0), "without memories, received some with"),
    ((MIXED, 0), (MASKED, 0), "with action masks, received some without"),
    ((MASKED, 0), (MIXED, 0), "without action masks, received some with"),
])
def test_batches_that_lack_something_are_refused(given, wanted, message):
    buffer = ReplayBuffer(wanted[0], 50, wanted[1])
    with pytest.raises(ValueError, match=message):
        buffer.add(Streams(np.random.default_rng(0), *given).batch("m0"), "m0")
    assert buffer.frames == 0


def test_agents_that_vanish_do_not_stay_in_the_state():
    buffer = ReplayBuffer(SPEC, 10)
    for agent in range(100):
        buffer.add(batch_of((agent, 0, [0, 1], [1], "")), "m")
    assert [entry[:3] for entry in buffer.state().scalars["replay/open"]] == [["m", agent, 0] for agent in range(95, 100)]


def test_group_rewards_are_stored_as_part_of_the_reward():
    buffer, batch = ReplayBuffer(SPEC, 10), batch_of((0, 0, [0, 1, 2, 3], [1, 2, 4], "t"))
    buffer.add(dataclasses.replace(batch, group_reward=np.array([0.5, 0, -3], np.float32)), "m")
    assert transitions(buffer) == {0: (1.5, 1, 1, ""), 1: (2, 2, 1, ""), 2: (1, 3, 1, "t")}
