"""Unity's ``.demo`` files, written here with the reader's schema, and once byte by byte without it."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from envs.demonstrations import DemonstrationError, Demonstrations, read_demonstrations
from envs.spaces import behavior_spec
from envs.unity_demonstrations import FIRST_RECORD, unity_messages

pytest.importorskip("google.protobuf", reason="protobuf is not installed")
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def delimited(data: bytes) -> bytes:
    return varint(len(data)) + data


def write_demo(path: Path, pairs: list[Any], continuous: int = 0, branches: tuple[int, ...] = (), old: bool = False, version: int = 1,
               steps: int | None = None) -> Path:
    messages = unity_messages()
    meta = messages["Meta"](api_version=version, demonstration_name="demo", number_steps=len(pairs) if steps is None else steps)
    brain = messages["Brain"](name="Walker")
    if old:
        brain.old_sizes.extend([continuous] if continuous else branches)
        brain.old_type = int(bool(continuous))
    else:
        brain.action_spec.continuous = continuous
        brain.action_spec.discrete = len(branches)
        brain.action_spec.branches.extend(branches)
    head = delimited(meta.SerializeToString()).ljust(FIRST_RECORD, b"\0")
    path.write_bytes(head + b"".join(delimited(m.SerializeToString()) for m in (brain, *pairs)))
    return path


def pair(value: float, reward: float = 0.0, done: bool = False, interrupted: bool = False, agent: int = 1, continuous: tuple[float, ...] = (),
         discrete: tuple[int, ...] = (), forbidden: tuple[bool, ...] = (), old: bool = False, size: int = 2) -> Any:
    """A record whose observation is `value` everywhere."""
    messages = unity_messages()
    info = messages["AgentInfo"](reward=reward, done=done, max_step_reached=interrupted, id=agent, forbidden=forbidden)
    observation = info.observations.add(shape=[size])
    observation.floats.data.extend([value] * size)
    action = messages["AgentAction"](old_actions=continuous or discrete) if old else messages["AgentAction"](continuous=continuous, discrete=discrete)
    return messages["Pair"](agent_info=info, action_info=action)


def refused(path: Path, spec: Any = None) -> str:
    with pytest.raises(DemonstrationError) as caught:
        read_demonstrations(path, spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def column(d: Demonstrations) -> list[float]:
    return d.obs["obs_0"][:, 0].tolist()


def test_bytes_written_by_hand(tmp_path: Path) -> None:
    """Field numbers and wire types as in ML-Agents' .proto files, without the schema under test."""

    def floats(field: int, *values: float) -> bytes:
        return varint(field << 3 | 2) + delimited(struct.pack(f"<{len(values)}f", *values))

    def message(field: int, data: bytes) -> bytes:
        return varint(field << 3 | 2) + delimited(data)

    def record(x: float, reward: float, done: bool, action: tuple[float, float], choice: int) -> bytes:
        observation = message(1, varint(3)) + message(4, floats(1, x, x + 1, x + 2))  # shape, packed; float_data
        info = (varint(7 << 3 | 5) + struct.pack("<f", reward) + varint(8 << 3) + varint(int(done)) + varint(10 << 3) + varint(300)
                + message(11, bytes([0, 1, 0])) + message(13, observation) + varint(14 << 3) + varint(9))  # 14: group_id, passed over
        return message(1, info) + message(2, floats(6, *action) + message(7, varint(choice)))

    meta = varint(1 << 3) + varint(1) + message(2, b"hand") + varint(3 << 3) + varint(3) + varint(5 << 3 | 5) + struct.pack("<f", 1.0)
    actions = varint(1 << 3) + varint(2) + varint(2 << 3) + varint(1) + message(3, varint(3))
    brain = message(7, b"Walker?team=0") + varint(8 << 3) + varint(1) + message(9, actions)
    records = [record(0.0, 9.0, False, (0.5, -2.0), 2), record(1.0, 0.25, False, (0.0, 1.0), 0), record(2.0, -1.0, True, (7.0, 7.0), 1)]
    path = tmp_path / "hand.demo"
    path.write_bytes(delimited(meta).ljust(33, b"\0") + b"".join(map(delimited, (brain, *records))))
    d = read_demonstrations(path)
    assert (d.rows, d.length.tolist(), d.terminated.tolist()) == (2, [2], [True])
    assert d.obs["obs_0"].tolist() == [[0, 1, 2], [1, 2, 3]]
    assert d.next_obs["obs_0"].tolist() == [[2, 3, 4]]
    assert d.reward.tolist() == [0.25, -1.0]
    assert d.continuous.tolist() == [[0.5, -1.0], [0.0, 1.0]], "clipped"
    assert d.discrete.tolist() == [[2], [0]]
    assert d.action_mask.tolist() == [[True, False, True]] * 2


def test_rewards_and_ends_come_from_the_next_record(tmp_path: Path) -> None:
    pairs = [pair(0, reward=5, continuous=(0.1,)), pair(1, reward=1, continuous=(0.2,)), pair(2, reward=2, done=True),
             pair(3, reward=7, continuous=(0.3,)), pair(4, reward=3, done=True, interrupted=True),
             pair(5, continuous=(0.4,)), pair(6, reward=4, continuous=(0.5,))]
    d = read_demonstrations(write_demo(tmp_path / "a.demo", pairs, continuous=1))
    assert column(d) == [0, 1, 3, 5]
    assert d.reward.tolist() == [1, 2, 3, 4]
    assert d.length.tolist() == [2, 1, 1]
    assert d.terminated.tolist() == [True, False, False], "a step limit, and the end of the file, are no ends of the task"
    assert d.next_obs["obs_0"][:, 0].tolist() == [2, 4, 6]
    np.testing.assert_array_equal(d.continuous[:, 0], np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    assert d.action_mask is None


def test_agents_in_one_file_stay_apart(tmp_path: Path) -> None:
    pairs = [pair(0, agent=1, discrete=(0,)), pair(10, agent=2, discrete=(1,)), pair(1, agent=1, reward=1, discrete=(2,)),
             pair(11, agent=2, reward=10, done=True), pair(2, agent=1, reward=2, done=True), pair(99, agent=3, discrete=(0,))]
    d = read_demonstrations(write_demo(tmp_path / "a.demo", pairs, branches=(3,)))
    assert column(d) == [0, 1, 10]
    assert (d.reward.tolist(), d.length.tolist(), d.discrete[:, 0].tolist()) == ([1, 2, 10], [2, 1], [0, 2, 1])
    assert d.terminated.all()


@pytest.mark.parametrize("version", [0, 1])
def test_files_of_2020(tmp_path: Path, version: int) -> None:
    """One list of actions and of sizes for both kinds."""
    ends = pair(9, done=True, old=True)
    d = read_demonstrations(write_demo(tmp_path / "a.demo", [pair(0, continuous=(0.5, -0.5), old=True), ends], 2, old=True, version=version))
    assert (d.continuous.tolist(), d.discrete.shape) == ([[0.5, -0.5]], (1, 0))
    d = read_demonstrations(write_demo(tmp_path / "b.demo", [pair(0, discrete=(2, 1), old=True), ends], branches=(3, 2), old=True, version=version))
    assert (d.discrete.tolist(), d.continuous.shape) == ([[2, 1]], (1, 0))


def test_masks_say_what_is_forbidden(tmp_path: Path) -> None:
    pairs = [pair(0, discrete=(1,), forbidden=(True, False, False)), pair(1, discrete=(0,)), pair(2, done=True)]
    d = read_demonstrations(write_demo(tmp_path / "a.demo", pairs, branches=(3,)))
    assert d.action_mask.tolist() == [[False, True, True], [True, True, True]]
    assert d.spec.action.masked


def test_a_recording_that_was_not_closed_says_no_count(tmp_path: Path) -> None:
    pairs = [pair(0, continuous=(0.0,)), pair(1, continuous=(0.0,)), pair(2, continuous=(0.0,))]
    assert read_demonstrations(write_demo(tmp_path / "a.demo", pairs, 1, steps=0)).rows == 2


# -- images ----------------------------------------------------------------------------------------------------------


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def image_demo(path: Path, shape: tuple[int, ...], data: bytes, mapping: tuple[int, ...] = ()) -> Path:
    pairs = [pair(0, discrete=(0,)), pair(1, done=True)]
    for record in pairs:
        record.agent_info.observations.add(shape=shape, is_png=1, png=data, channel_mapping=mapping)
    return write_demo(path, pairs, branches=(2,))


PIXELS = np.random.default_rng(0).integers(0, 256, (20, 24, 3), np.uint8)


def test_images_stay_uint8(tmp_path: Path) -> None:
    last, first = (image_demo(tmp_path / f"{shape[0]}.demo", shape, png(PIXELS)) for shape in ((20, 24, 3), (3, 20, 24)))
    d = read_demonstrations(last)
    assert d.obs["obs_1"].dtype == np.uint8
    assert d.spec.observations[1].is_uint8_image
    np.testing.assert_array_equal(d.obs["obs_1"][0], PIXELS)
    np.testing.assert_array_equal(read_demonstrations(first).obs["obs_1"][0], PIXELS.transpose(2, 0, 1))


def test_grey_and_many_channels(tmp_path: Path) -> None:
    grey = np.repeat(PIXELS[..., :1], 3, axis=2)
    d = read_demonstrations(image_demo(tmp_path / "a.demo", (20, 24, 1), png(grey)))
    np.testing.assert_array_equal(d.obs["obs_1"][0], PIXELS[..., :1])
    d = read_demonstrations(image_demo(tmp_path / "b.demo", (20, 24, 5), png(PIXELS) + png(grey)))
    np.testing.assert_array_equal(d.obs["obs_1"][0], np.concatenate([PIXELS, grey[..., :2]], axis=2))
    d = read_demonstrations(image_demo(tmp_path / "c.demo", (20, 24, 2), png(PIXELS), mapping=(1, 0, -1)))
    np.testing.assert_array_equal(d.obs["obs_1"][0], PIXELS[..., [1, 0]])
    d = read_demonstrations(image_demo(tmp_path / "d.demo", (20, 24, 1), png(PIXELS), mapping=(0, 0, 0)))
    np.testing.assert_array_equal(d.obs["obs_1"][0][..., 0], np.rint(PIXELS.mean(axis=2)))


def test_images_as_the_environment_has_them(tmp_path: Path) -> None:
    """Layout and dtype of the images in the spec that is asked for, whose names and order are others."""
    path, vector = image_demo(tmp_path / "a.demo", (20, 24, 3), png(PIXELS)), spaces.Box(-np.inf, np.inf, (2,), np.float32)
    wanted = spaces.Dict({"camera": spaces.Box(0.0, 1.0, (3, 20, 24), np.float32), "state": vector})
    d = read_demonstrations(path, behavior_spec(wanted, spaces.Discrete(2), "env"))
    assert list(d.obs) == ["camera", "state"]
    np.testing.assert_array_equal(d.obs["camera"][0], PIXELS.transpose(2, 0, 1).astype(np.float32) / np.float32(255))
    wanted["camera"] = spaces.Box(0, 255, (20, 24, 3), np.uint8)
    np.testing.assert_array_equal(read_demonstrations(path, behavior_spec(wanted, spaces.Discrete(2), "env")).obs["camera"][0], PIXELS)


def test_images_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "expected PNG data in observation 'obs_1'" in refused(image_demo(tmp_path / "a.demo", (20, 24, 3), b"no picture"))
    assert "expected pixels of shape [9, 9, 3] in observation 'obs_1', received [3, 20, 24]" in refused(
        image_demo(tmp_path / "b.demo", (9, 9, 3), png(PIXELS)))
    path = image_demo(tmp_path / "c.demo", (20, 24, 3), png(PIXELS))
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert "need the package pillow" in refused(path)


def test_opencv_reads_the_same_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cv2", reason="OpenCV is not installed")
    path = image_demo(tmp_path / "a.demo", (20, 24, 3), png(PIXELS))
    monkeypatch.setitem(sys.modules, "PIL", None)
    np.testing.assert_array_equal(read_demonstrations(path).obs["obs_1"][0], PIXELS)


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_demo(tmp_path / "a.demo", [pair(i, continuous=(0.0, 0.5)) for i in range(9)], continuous=2)


@pytest.mark.parametrize("keep", [0, 20, 33, 40, -1, -30])
def test_truncated_files(file: Path, keep: int) -> None:
    file.write_bytes(file.read_bytes()[:keep])
    assert "truncated, damaged or of another kind" in refused(file)


def test_a_file_cut_between_records(file: Path) -> None:
    write_demo(file, [pair(0, continuous=(0.0,)), pair(1, continuous=(0.0,))], 1, steps=9)
    assert "it has 2 of 9 records" in refused(file)


def test_files_of_something_else(tmp_path: Path, file: Path) -> None:
    file.write_bytes(b"PK\x03\x04" * 99)
    assert "of another kind" in refused(file)
    assert "expected a demonstration of version 0 or 1, received version 2" in refused(write_demo(file, [pair(0)], 1, version=2))
    assert "expected records of an agent, found none" in refused(write_demo(file, [], 1))
    assert "expected at least two records of one episode" in refused(write_demo(file, [pair(0)], 1))
    assert "expected the behavior parameters with their actions, found none" in refused(write_demo(file, [pair(0), pair(1)]))
    assert "expected 2 continuous and 0 discrete actions in every record, received 1 and 0 in row 0" in refused(
        write_demo(file, [pair(0, continuous=(1.0,)), pair(1)], 2))
    assert "expected observation 'obs_0' of shape [2] and the same compression in every record, received [3]" in refused(
        write_demo(file, [pair(0, continuous=(1.0,)), pair(1, size=3)], 1))
    assert "expected finite numbers in obs/obs_0, received nan at [0, 0]" in refused(
        write_demo(file, [pair(np.nan, continuous=(1.0,)), pair(1)], 1))
    assert "expected choices from 0 to 2 in discrete branch 0, received 3" in refused(
        write_demo(file, [pair(0, discrete=(3,)), pair(1)], branches=(3,)))


def test_another_environment(file: Path) -> None:
    two, action = spaces.Box(-9.0, 9.0, (2,), np.float32), spaces.Box(-3.0, 9.0, (2,), np.float32)
    d = read_demonstrations(file, behavior_spec(two, action, "env"))
    assert list(d.obs) == ["obs"], "the environment's names, and whatever its bounds are: Unity's actions are in policy space"
    assert "expected an observation of shape [3] for 'obs', received the shapes [[2]]" in refused(
        file, behavior_spec(spaces.Box(-9.0, 9.0, (3,)), action, "env"))
    assert "expected 2 observations, ['a', 'b'], received 1, ['obs_0']" in refused(
        file, behavior_spec(spaces.Dict({"a": two, "b": two}), action, "env"))
    assert "expected discrete branches with [3] choices, received []" in refused(
        file, behavior_spec(two, spaces.Tuple((action, spaces.Discrete(3))), "env"))


def test_without_protobuf(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unity_messages.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    assert "need the package protobuf" in refused(file)
    unity_messages.cache_clear()
