"""Demonstrations keep every bit on the way through a file, and what does not suit is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from safetensors.numpy import load_file, save_file

from envs.demonstration_data import with_choices_allowed
from envs.demonstrations import DemonstrationError, Demonstrations, read_demonstrations, read_metadata, write_demonstrations
from envs.episode_recorder import EpisodeRecorder
from envs.policy_actions import to_policy_actions
from envs.spaces import behavior_spec
from envs.specs import Actions, env_action_rows, to_env_actions
from envs.toy import ACTION_SPACES, simple_parts

SPACE = spaces.Dict({
    "eye": spaces.Box(0, 255, (16, 15, 3), np.uint8), "gear": spaces.Discrete(4, start=2), "flags": spaces.MultiBinary(3),
    "body": spaces.Tuple((spaces.Box(-1.0, 1.0, (2, 2), np.float64), spaces.Box(0, 9, (), np.int16)))})
ACTION = spaces.Tuple((spaces.Box(-2.0, np.array([2.0, 6.0], np.float32), (2,), np.float32), spaces.MultiDiscrete([3, 2])))


def demonstrations(
    observation: spaces.Space = SPACE, action: spaces.Space = ACTION, lengths: tuple[int, ...] = (2, 1, 4), masked: bool = False, seed: int = 0,
) -> Demonstrations:
    """Random content of some spaces."""
    rng, spec, n, k = np.random.default_rng(seed), behavior_spec(observation, action, "env", masked), sum(lengths), len(lengths)

    def obs(rows: int) -> dict[str, np.ndarray]:
        made = {}
        for o in spec.observations:
            if o.kind == "categorical":
                made[o.name] = (rng.integers(0, 2**31, (rows, *o.shape)) % np.reshape(o.choices, o.shape) + np.reshape(o.starts, o.shape)).astype(o.dtype)
            elif o.dtype == "float32":
                made[o.name] = rng.normal(size=(rows, *o.shape)).astype(np.float32)
            else:
                made[o.name] = rng.integers(0, 2, (rows, *o.shape)).astype(o.dtype)
        return made

    discrete = [rng.integers(0, branch, n) for branch in spec.action.discrete_branches]
    made = Demonstrations(
        spec=spec, obs=obs(n), continuous=rng.uniform(-1, 1, (n, spec.action.continuous_size)).astype(np.float32),
        discrete=np.array(discrete, np.int32).T.reshape(n, len(discrete)), reward=rng.normal(size=n).astype(np.float32),
        length=np.array(lengths, np.int32), terminated=rng.random(k) < 0.5, next_obs=obs(k),
        action_mask=rng.random((n, spec.action.choices)) < 0.7 if masked else None)
    return with_choices_allowed(made)


def assert_equal(one: Demonstrations, other: Demonstrations) -> None:
    for name in ("continuous", "discrete", "reward", "length", "terminated", "action_mask"):
        a, b = getattr(one, name), getattr(other, name)
        if a is None or b is None:
            assert a is b, name
        else:
            assert (a.dtype, a.shape) == (b.dtype, b.shape), name
            assert a.tobytes() == b.tobytes(), name
    for a, b in ((one.obs, other.obs), (one.next_obs, other.next_obs)):
        assert a.keys() == b.keys()
        for name in a:
            assert (a[name].dtype, a[name].tobytes()) == (b[name].dtype, b[name].tobytes()), name


def refused(path: Path | str, spec: Any = None) -> str:
    with pytest.raises(DemonstrationError) as caught:
        read_demonstrations(path, spec)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    write_demonstrations(path, demonstrations(), {"env": "Toy-v0", "date": "2026-01-02"})
    return path


def rewritten(file: Path, tensors: dict[str, Any] | None = None, texts: dict[str, str] | None = None, without: str = "") -> Path:
    """A copy with other parts."""
    changed = {k: v for k, v in {**load_file(file), **(tensors or {})}.items() if k != without}
    other = file.with_name("b.safetensors")
    save_file({k: np.ascontiguousarray(v) for k, v in changed.items()}, other, {**read_metadata(file), **(texts or {})})
    return other


# -- the format ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
def test_a_file_keeps_every_bit(tmp_path: Path, masked: bool) -> None:
    there, path = demonstrations(masked=masked), tmp_path / "new" / "a.safetensors"
    write_demonstrations(path, there, {"env": "Toy-v0"})
    for back in (read_demonstrations(path), read_demonstrations(str(path), there.spec)):
        assert back.spec == there.spec
        assert back.obs["eye"].dtype == np.uint8
        assert_equal(there, back)
    assert [p.name for p in path.parent.iterdir()] == ["a.safetensors"], "nothing temporary is left"


@pytest.mark.parametrize("key", ACTION_SPACES)
def test_every_action_space(tmp_path: Path, key: str) -> None:
    there = demonstrations(spaces.Box(-9.0, 9.0, (3,)), ACTION_SPACES[key])
    write_demonstrations(tmp_path / "a.safetensors", there)
    assert_equal(there, read_demonstrations(tmp_path / "a.safetensors", there.spec))


def test_counts_and_returns() -> None:
    d = demonstrations(lengths=(2, 1, 3))
    assert (d.rows, d.episodes) == (6, 3)
    expected = [d.reward[:2].sum(dtype=np.float64), d.reward[2], d.reward[3:].sum(dtype=np.float64)]
    np.testing.assert_allclose(d.episode_return, expected, rtol=1e-12)


def test_what_the_documentation_says_of_the_file(file: Path) -> None:
    texts = read_metadata(file)
    assert (texts["format"], texts["format_version"], texts["env"], texts["date"]) == ("raytrain-demonstration", "1", "Toy-v0", "2026-01-02")
    assert json.loads(texts["spec"])["observations"][0]["name"] == "body/0"
    shapes = {name: (str(x.dtype), x.shape) for name, x in load_file(file).items()}
    assert shapes["action/continuous"] == ("float32", (7, 2))
    assert shapes["action/discrete"] == ("int32", (7, 2))
    assert shapes["obs/eye"] == ("uint8", (7, 16, 15, 3))
    assert shapes["next_obs/eye"] == ("uint8", (3, 16, 15, 3))
    assert shapes["episode/terminated"] == ("bool", (3,))
    assert "action_mask" not in shapes


def test_a_folder_is_joined_in_the_order_of_names(tmp_path: Path) -> None:
    first, second = demonstrations(seed=1), demonstrations(seed=2, masked=True)
    second = replace(second, spec=first.spec)
    write_demonstrations(tmp_path / "b.safetensors", second)
    write_demonstrations(tmp_path / "a.safetensors", first)
    (tmp_path / "notes.txt").write_text("not one of them")
    masked = replace(first.spec, action=replace(first.spec.action, masked=True))
    both = read_demonstrations(tmp_path, masked)
    assert (both.rows, both.length.tolist()) == (14, [2, 1, 4, 2, 1, 4])
    np.testing.assert_array_equal(both.obs["body/0"], np.concatenate([first.obs["body/0"], second.obs["body/0"]]))
    assert both.action_mask[:7].all(), "a file without masks allows everything"
    np.testing.assert_array_equal(both.action_mask[7:], second.action_mask)
    assert read_demonstrations(tmp_path).action_mask is None, "the behavior has no masks"


def test_what_the_expert_chose_counts_as_allowed(tmp_path: Path) -> None:
    """A person may do what is forbidden; cloning it needs a likelihood above 0."""
    d = demonstrations(BOX, spaces.MultiDiscrete([3, 2]), masked=True)
    write_demonstrations(tmp_path / "a.safetensors", replace(d, action_mask=np.zeros((7, 5), bool)))
    mask = read_demonstrations(tmp_path / "a.safetensors").action_mask
    expected = np.concatenate([np.eye(3, dtype=bool)[d.discrete[:, 0]], np.eye(2, dtype=bool)[d.discrete[:, 1]]], axis=1)
    np.testing.assert_array_equal(mask, expected)


def test_the_spec_given_decides_names_order_and_dtype(file: Path) -> None:
    there = read_demonstrations(file)
    narrow = [replace(o, dtype="int32") if o.name == "body/1" else o for o in reversed(there.spec.observations)]
    spec = replace(there.spec, observations=tuple(narrow))
    back = read_demonstrations(file, spec)
    assert back.spec is spec
    assert list(back.obs) == [o.name for o in narrow]
    assert back.obs["body/1"].dtype == np.int32
    np.testing.assert_array_equal(back.obs["body/1"], there.obs["body/1"])


# -- what is refused -------------------------------------------------------------------------------------------------


def test_paths_that_are_none(tmp_path: Path, file: Path) -> None:
    assert "demonstrations beside it: a.safetensors" in refused(tmp_path / "missing.safetensors")
    assert "it was looked for in" in refused("no/such/place.demo")
    (tmp_path / "empty").mkdir()
    assert "expected a folder with files ending in .safetensors" in refused(tmp_path / "empty")
    (tmp_path / "a.csv").write_text("1,2")
    assert "received one ending in '.csv'" in refused(tmp_path / "a.csv")
    (tmp_path / "plain").write_text("1,2")
    assert "received one ending in 'nothing'" in refused(tmp_path / "plain")


def test_files_of_something_else(tmp_path: Path, file: Path) -> None:
    save_file({"policy/kernel": np.ones(3, np.float32)}, tmp_path / "policy.safetensors")
    assert "something else (the weights of a policy, for example)" in refused(tmp_path / "policy.safetensors")
    assert "received version 2" in refused(rewritten(file, texts={"format_version": "2"}))
    assert "'action/discrete' is missing or wrong" in refused(rewritten(file, without="action/discrete"))
    assert "missing or wrong" in refused(rewritten(file, texts={"spec": "{}"}))
    assert "missing or wrong" in refused(rewritten(file, texts={"spec": "[1"}))


@pytest.mark.parametrize("size", [0, 3, 200, -1])
def test_truncated_files(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])
    assert "truncated or damaged" in refused(file)


def test_content_that_is_none(tmp_path: Path, file: Path) -> None:
    d = demonstrations()

    def message(**parts: Any) -> str:
        with pytest.raises(DemonstrationError) as caught:
            write_demonstrations(tmp_path / "c.safetensors", replace(d, **parts))
        assert not (tmp_path / "c.safetensors").exists()
        return str(caught.value)

    empty = demonstrations(lengths=())
    with pytest.raises(DemonstrationError, match="expected at least one row, received none"):
        write_demonstrations(tmp_path / "c.safetensors", empty)
    changed = d.continuous.copy()
    changed[3, 1] = np.nan
    assert "expected finite numbers in action/continuous, received nan at [3, 1]" in message(continuous=changed)
    assert "from -1 to 1 (policy space), received 1.5 in dimension 0 of row 0" in message(continuous=np.full((7, 2), 1.5, np.float32))
    assert "expected choices from 0 to 2 in discrete branch 0, received 3 in row 0" in message(discrete=np.full((7, 2), 3, np.int32))
    assert "expected choices from 0 to 2 in discrete branch 0, received -1" in message(discrete=np.full((7, 2), -1, np.int32))
    assert "expected reward to be float32 [7], received float64 [7]" in message(reward=np.zeros(7))
    assert "lengths that sum to 6" in message(length=np.array([2, 1, 3], np.int32))
    assert "the shortest 0" in message(length=np.array([0, 3, 4], np.int32))
    assert "expected obs/gear from 2 to 5 at [0], received 9 in row 0" in message(obs={**d.obs, "gear": np.full((7, 1), 9)})
    assert "expected next_obs/eye to be uint8 [3, 16, 15, 3], received none" in message(next_obs={k: v for k, v in d.next_obs.items() if k != "eye"})
    infinite = {**d.next_obs, "body/0": np.full((3, 2, 2), np.inf, np.float32)}
    assert "expected finite numbers in next_obs/body/0, received inf at [0, 0, 0]" in message(next_obs=infinite)
    with pytest.raises(DemonstrationError, match="expected a name ending in .safetensors, received one ending in '.npz'"):
        write_demonstrations(tmp_path / "c.npz", d)
    assert "expected finite numbers in reward" in refused(rewritten(file, {"reward": np.full(7, np.nan, np.float32)}))


def test_others_may_read_the_file_as_any_other(file: Path) -> None:
    (file.parent / "plain").write_text("")
    assert file.stat().st_mode == (file.parent / "plain").stat().st_mode


def test_a_failed_write_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("envs.demonstrations.os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_demonstrations(file, demonstrations(seed=9))
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == [file.name]


BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)
OTHERS: dict[str, tuple[spaces.Space, spaces.Space, str]] = {
    "count": (spaces.Dict({"a": BOX, "b": BOX}), BOX, "expected 2 observations, ['a', 'b'], received 1, ['obs']"),
    "name": (spaces.Dict({"a": BOX}), BOX, "expected the observations ['a'], received ['obs']"),
    "shape": (spaces.Box(-2.0, 2.0, (3,), np.float32), BOX, "expected observation 'obs' of shape [3], received [2]"),
    "dtype": (spaces.Box(-2, 2, (2,), np.int32), BOX, "expected observation 'obs' of dtype int32, received float32"),
    "continuous": (BOX, spaces.Box(-2.0, 2.0, (3,), np.float32), "expected 3 continuous action dimensions, received 2"),
    "branches": (BOX, spaces.Discrete(3), "expected 0 continuous action dimensions, received 2"),
    "bounds": (BOX, spaces.Box(-2.0, 3.0, (2,), np.float32), "expected the high bounds [3, 3] of the actions, received [2, 2]"),
}


@pytest.mark.parametrize("key", OTHERS)
def test_demonstrations_of_another_environment(tmp_path: Path, key: str) -> None:
    observation, action, expected = OTHERS[key]
    write_demonstrations(tmp_path / "a.safetensors", demonstrations(BOX, BOX), {"env": "Box-v0"})
    text = refused(tmp_path / "a.safetensors", behavior_spec(observation, action, "env"))
    assert f"a.safetensors (recorded in Box-v0): {expected}; it is a demonstration of another environment" in text


def test_discrete_spaces_that_differ(tmp_path: Path) -> None:
    write_demonstrations(tmp_path / "a.safetensors", demonstrations(spaces.Discrete(4), spaces.Discrete(3)))
    assert "expected discrete branches with [4] choices, received [3]" in refused(
        tmp_path / "a.safetensors", behavior_spec(spaces.Discrete(4), spaces.Discrete(4), "env"))
    assert "with [5] choices from [0], received [4] from [0]" in refused(
        tmp_path / "a.safetensors", behavior_spec(spaces.Discrete(5), spaces.Discrete(3), "env"))
    assert "expected actions of a multi_discrete space, received those of a discrete space" in refused(
        tmp_path / "a.safetensors", behavior_spec(spaces.Discrete(4), spaces.MultiDiscrete([3]), "env"))
    assert "to be categorical, received vector" in _vector_for_categorical(tmp_path)


def _vector_for_categorical(tmp_path: Path) -> str:
    write_demonstrations(tmp_path / "b.safetensors", demonstrations(spaces.Box(0, 3, (1,), np.int64), spaces.Discrete(3)))
    return refused(tmp_path / "b.safetensors", behavior_spec(spaces.Discrete(4), spaces.Discrete(3), "env"))


def test_values_that_the_dtype_cannot_hold(tmp_path: Path) -> None:
    wide = demonstrations(spaces.Box(-999, 999, (2,), np.int32), BOX)
    write_demonstrations(tmp_path / "a.safetensors", replace(wide, obs={"obs": np.full((7, 2), 300, np.int32)}))
    text = refused(tmp_path / "a.safetensors", behavior_spec(spaces.Box(0, 9, (2,), np.uint8), BOX, "env"))
    assert "that uint8 can hold, received int32 values from 300 to 300" in text


def test_a_folder_of_two_environments(tmp_path: Path) -> None:
    write_demonstrations(tmp_path / "a.safetensors", demonstrations(BOX, BOX))
    write_demonstrations(tmp_path / "b.safetensors", demonstrations(spaces.Box(-2.0, 2.0, (4,)), BOX))
    assert "b.safetensors: expected observation 'obs' of shape [2], received [4]" in refused(tmp_path)


# -- recording -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ACTION_SPACES)
def test_policy_actions_are_the_inverse(key: str) -> None:
    d = demonstrations(BOX, ACTION_SPACES[key], lengths=(50,))
    spec = d.spec.action
    there = to_env_actions(spec, Actions(d.continuous, d.discrete))
    batch = _batched(there) if spec.kind == "hybrid" else there
    back = to_policy_actions(spec, batch, 50)
    np.testing.assert_array_equal(back.discrete, d.discrete)
    again = to_env_actions(spec, back)
    space = ACTION_SPACES[key]
    for one, other in zip(env_action_rows(spec, there), env_action_rows(spec, again), strict=True):
        for (_, a), (_, b) in zip(simple_parts(space, one), simple_parts(space, other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-5)


def _batched(rows: list[Any]) -> Any:
    if isinstance(rows[0], dict):
        return {key: _batched([row[key] for row in rows]) for key in rows[0]}
    return tuple(map(_batched, zip(*rows, strict=True))) if isinstance(rows[0], tuple) else np.stack(rows)


def test_actions_that_are_none() -> None:
    box, discrete = (behavior_spec(BOX, action, "env").action for action in (BOX, spaces.Discrete(3, start=5)))
    with pytest.raises(ValueError, match=r"expected action of shape \[4, 2\], received \[4, 3\]"):
        to_policy_actions(box, np.zeros((4, 3)), 4)
    with pytest.raises(ValueError, match="expected finite numbers in action, received nan"):
        to_policy_actions(box, np.full((4, 2), np.nan), 4)
    with pytest.raises(ValueError, match="expected action from 5 to 7 in element 0, received 8 in row 1"):
        to_policy_actions(discrete, np.array([7, 8]), 2)
    assert to_policy_actions(box, np.array([[-9.0, 9.0]]), 1).continuous.tolist() == [[-1.0, 1.0]]


def test_only_whole_episodes_are_kept_and_actions_as_executed() -> None:
    spec = behavior_spec(BOX, BOX, "env")
    recorder, obs = EpisodeRecorder(spec), {"obs": np.zeros((1, 2), np.float32)}
    with pytest.raises(DemonstrationError, match="recorded none"):
        recorder.demonstrations()
    recorder.end(obs, terminated=True)
    assert recorder.episodes == 0, "ended in its reset"
    for step in range(2):
        obs["obs"][:] = step
        recorder.decide(obs, Actions(np.array([[3.0, -0.5]], np.float32), np.empty((1, 0), np.int32)))
        recorder.reward(step + 0.5)
    recorder.end(obs, terminated=False)
    recorder.decide(obs, Actions(np.zeros((1, 2), np.float32), np.empty((1, 0), np.int32)))
    found = recorder.demonstrations()
    assert (found.rows, found.episodes, found.terminated.tolist(), recorder.returns) == (2, 1, [False], [2.0])
    assert found.obs["obs"][:, 0].tolist() == [0.0, 1.0], "copies"
    assert found.continuous.tolist() == [[1.0, -0.5]] * 2


def test_demonstrations_replay_in_the_environment(tmp_path: Path) -> None:
    """Actions of the file, in an environment seeded alike, give its observations and rewards."""
    env, spec = gym.make("CartPole-v1"), None
    spec = behavior_spec(env.observation_space, env.action_space, "CartPole")
    recorder = EpisodeRecorder(spec)
    env.action_space.seed(3)
    for episode in range(3):
        obs, done = env.reset(seed=episode)[0], False
        while not done:
            action = env.action_space.sample()
            recorder.decide({"obs": obs[None]}, to_policy_actions(spec.action, np.array([action]), 1))
            obs, reward, terminated, truncated, _ = env.step(action)
            recorder.reward(reward)
            done = terminated or truncated
        recorder.end({"obs": obs[None]}, terminated)
    write_demonstrations(tmp_path / "a.safetensors", recorder.demonstrations())
    d = read_demonstrations(tmp_path / "a.safetensors", spec)
    actions = iter(to_env_actions(spec.action, Actions(d.continuous, d.discrete)))
    row = 0
    for episode, length in enumerate(d.length):
        obs = env.reset(seed=episode)[0]
        for _ in range(length):
            np.testing.assert_array_equal(d.obs["obs"][row], obs)
            obs, reward, terminated, _, _ = env.step(next(actions))
            assert reward == d.reward[row]
            row += 1
        np.testing.assert_array_equal(d.next_obs["obs"][episode], obs)
        assert terminated == d.terminated[episode]
