"""``raytrain record`` keeps whole episodes as they were acted, and refuses in one sentence what it cannot use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from envs.copies import CopiesEnv
from envs.demonstrations import read_demonstrations, read_metadata
from envs.factories import EnvFactory
from envs.gymnasium_env import probe_spec
from envs.seeding import env_seeds
from envs.specs import Actions, env_action_rows, to_env_actions
from envs.toy import EchoAction
from raytrain.checkpoint import BehaviorSnapshot, CheckpointStore, Snapshot
from raytrain.cli import main
from raytrain.config import load_config, to_yaml
from raytrain.keyboard import play, read_keys
from raytrain.predict import load_policy
from raytrain.record import record_policy, world_of_run
from tests.trainers.policies import fill
from trainers.architecture import architecture
from trainers.networks import policy_layout
from trainers.settings import NetworkSettings
from trainers.trainer import TrainerState


def run_folder(path: Path, env: str, kwargs: dict[str, Any] | None = None, weights: dict[str, np.ndarray] | None = None, **network: Any) -> Path:
    """A run with one checkpoint of a policy for `env`."""
    config = load_config({"env": env, "env_kwargs": kwargs or {}, "default_settings": {"trainer_type": "ppo"}})
    spec = next(iter(probe_spec(env, kwargs or {}).values()))
    settings = NetworkSettings(hidden_units=8, vis_encode_type="fully_connected", **network)
    weights = fill(policy_layout(architecture(spec, settings)), seed=1, scale=0.5) if weights is None else weights
    path.mkdir()
    CheckpointStore(path, keep=1).save(Snapshot({"Agent": BehaviorSnapshot(TrainerState({}, {}), weights, 3, 100, spec, settings)}))
    (path / "configuration.yaml").write_text(to_yaml(config))
    return path


def recall_weights(spec: Any, settings: NetworkSettings) -> dict[str, np.ndarray]:
    """By hand: a cell that adds up what is shown and forgets nothing solves `envs.toy_memory.Recall`."""
    weights = {name: np.zeros(shape, np.float32) for name, shape in policy_layout(architecture(spec, settings)).items()}
    weights["actor/lstm/kernel"][0, 2] = 1.0
    weights["actor/lstm/bias"][:] = (20.0, 20.0, 0.0, 20.0)
    weights["actor/branch_0/kernel"][0] = (-10.0, 10.0)
    return weights


def record(tmp_path: Path, *arguments: str, out: str = "a.safetensors") -> Any:
    assert main(["record", *arguments, "--out", str(tmp_path / out)]) == 0
    return read_demonstrations(tmp_path / out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    assert main(["record", *arguments]) == code
    text = capsys.readouterr().err.strip()
    assert "Traceback" not in text
    assert text.count("\n") == 0
    return text


def test_a_recording_replays_to_the_same_returns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "run", "CartPole-v1")
    d = record(tmp_path, str(run), "--episodes", "3", "--seed", "7", "--stochastic")
    shown = capsys.readouterr().out
    returns = d.episode_return
    assert f"3 episodes, {d.rows} rows, return mean {returns.mean():.6g}, min {returns.min():g}, max {returns.max():g}, seed 7" in shown
    assert str(tmp_path / "a.safetensors") in shown.replace("\n", "")
    env = gym.make("CartPole-v1")
    seed = env_seeds(np.random.SeedSequence(7).spawn(2)[0], 0, 0).reset
    actions = iter(to_env_actions(d.spec.action, Actions(d.continuous, d.discrete)))
    for episode, length in enumerate(d.length):
        obs, _ = env.reset(seed=seed if episode == 0 else None)
        total = 0.0
        for _ in range(length):
            obs, reward, terminated, truncated, _ = env.step(next(actions))
            total += reward
        assert terminated or truncated
        assert (total, terminated) == (returns[episode], d.terminated[episode])
        np.testing.assert_array_equal(obs, d.next_obs["obs"][episode])
    texts = read_metadata(tmp_path / "a.safetensors")
    assert (texts["env"], texts["seed"]) == ("CartPole-v1", "7")
    assert "version 3, 100 agent steps, sampled actions" in texts["source"]


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", "CartPole-v1")
    one, again, other, best = (record(tmp_path, str(run / which), "--episodes", "2", "--seed", seed, *how, out=f"{i}.safetensors") for i, (which, seed, how) in enumerate(
        [("", "1", ["--stochastic"]), ("checkpoints/000000", "1", ["--stochastic"]), ("", "2", ["--stochastic"]), ("", "1", [])]))
    np.testing.assert_array_equal(one.obs["obs"], again.obs["obs"])
    assert one.obs["obs"].tobytes() != other.obs["obs"].tobytes()
    np.testing.assert_array_equal(one.obs["obs"][0], best.obs["obs"][0])
    assert one.discrete.tobytes() != best.discrete.tobytes()


@pytest.mark.parametrize("key", ["box_asymmetric", "hybrid_tuple", "multi_discrete"])
def test_actions_are_those_that_were_executed(tmp_path: Path, key: str) -> None:
    """`EchoAction` shows the last action of the environment in its observation."""
    run = run_folder(tmp_path / "run", "envs.toy:EchoAction", {"space": key, "length": 6})
    d = record(tmp_path, str(run), "--episodes", "2", "--stochastic")
    assert np.abs(d.continuous).max(initial=0.0) <= 1.0
    env = EchoAction(key)
    rows = env_action_rows(d.spec.action, to_env_actions(d.spec.action, Actions(d.continuous, d.discrete)))
    shown = np.stack([env._flat(action) for action in rows])
    after = np.concatenate([d.obs["obs"][1:6], d.next_obs["obs"][:1], d.obs["obs"][7:], d.next_obs["obs"][1:]])
    np.testing.assert_allclose(shown, after, rtol=1e-5, atol=1e-5)


def test_masks_are_obeyed_and_kept(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", "envs.toy_masks:MaskedBandit", {"choices": [5, 3], "masks": "info"})
    d = record(tmp_path, str(run), "--episodes", "4", "--stochastic")
    chosen = np.stack([d.action_mask[np.arange(d.rows), d.discrete[:, 0]], d.action_mask[np.arange(d.rows), 5 + d.discrete[:, 1]]])
    assert chosen.all()
    assert not d.action_mask.all()
    assert (d.reward >= 0.0).all()


def test_memory_is_kept_within_episodes_only(tmp_path: Path) -> None:
    kwargs, network = {"length": 4}, {"num_layers": 0, "memory": {"memory_size": 2}}
    spec = next(iter(probe_spec("envs.toy_memory:Recall", kwargs).values()))
    run = run_folder(tmp_path / "run", "envs.toy_memory:Recall", kwargs, recall_weights(spec, NetworkSettings(**network)), **network)
    d = record(tmp_path, str(run), "--episodes", "20")
    assert d.episode_return.tolist() == [1.0] * 20


def test_time_limits_are_no_ends_of_the_task(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", "envs.toy:Toy", {"length": 3, "end": "truncated"})
    d = record(tmp_path, str(run), "--episodes", "2")
    assert (d.length.tolist(), d.terminated.tolist()) == ([3, 3], [False, False])


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_environments_that_only_come_as_vectors(tmp_path: Path, mode: str) -> None:
    run = run_folder(tmp_path / "run", "envs.toy:count_vector", {"autoreset_mode": mode, "length": 4})
    d = record(tmp_path, str(run), "--episodes", "3")
    assert d.length.tolist() == [4, 4, 4]
    assert d.obs["obs"][:, 1].tolist() == [0, 1, 2, 3] * 3
    assert d.reward.tolist() == [1, 2, 3, 4] * 3
    assert d.next_obs["obs"][:, 1].tolist() == [4, 4, 4], "never the first of the next episode"


def test_another_environment_and_default_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "run", "CartPole-v1")
    (run / "configuration.yaml").unlink()
    monkeypatch.chdir(tmp_path)
    assert "expected configuration.yaml" in refused(capsys, str(run)).lower()
    assert main(["record", str(run), "--env", "CartPole-v0", "--episodes", "1"]) == 0
    (file,) = (tmp_path / "demos").iterdir()
    assert file.name.startswith("CartPole-v0-")
    assert read_metadata(file)["env"] == "CartPole-v0"
    text = refused(capsys, str(run), "--env", "Acrobot-v1")
    assert "expected an environment with the observations {'obs': ('float32', [4])}, received {'obs': ('float32', [6])}" in text


def test_what_is_refused_before_anything_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, there = run_folder(tmp_path / "run", "CartPole-v1"), tmp_path / "there.safetensors"
    there.write_bytes(b"mine")
    assert "which exists; give another name or delete it" in refused(capsys, str(run), "--out", str(there))
    assert there.read_bytes() == b"mine"
    assert "name ending in .safetensors" in refused(capsys, str(run), "--out", str(tmp_path / "a.demo"))
    assert "Expected --episodes of at least 1, received 0" in refused(capsys, str(run), "--episodes", "0")
    assert "Expected --seed of at least 0, received -1" in refused(capsys, str(run), "--seed", "-1")
    assert "Expected --keys with --keyboard only" in refused(capsys, str(run), "--keys", "{}")
    assert "No folder" in refused(capsys, str(tmp_path / "missing"))
    assert "Runs in " in refused(capsys, str(tmp_path / "missing"))
    (tmp_path / "empty").mkdir()
    assert "No complete checkpoint" in refused(capsys, str(tmp_path / "empty"))


@pytest.mark.parametrize("kept", [0, 2])
def test_ctrl_c_keeps_whole_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kept: int) -> None:
    run, polls, poll = run_folder(tmp_path / "run", "envs.toy:Toy", {"length": 5}), [], CopiesEnv.poll

    def interrupted(self: CopiesEnv, timeout_s: float) -> Any:
        polls.append(1)
        if len(polls) > kept * 5 + 3:
            raise KeyboardInterrupt
        return poll(self, timeout_s)

    monkeypatch.setattr(CopiesEnv, "poll", interrupted)
    out = tmp_path / "a.safetensors"
    code = main(["record", str(run), "--out", str(out)])
    shown = capsys.readouterr()
    if kept:
        assert code == 0
        assert read_demonstrations(out).length.tolist() == [5, 5]
        assert "interrupted: the episodes that were whole by then are kept" in shown.out
        assert "2 episodes, 10 rows" in shown.out
    else:
        assert code == 130
        assert "No whole episode was recorded" in shown.err
        assert not out.exists()


def test_a_fault_keeps_whole_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "run", "envs.toy:CrashAt", {"n": 8, "length": 5})
    assert main(["record", str(run), "--out", str(tmp_path / "a.safetensors")]) == 1
    assert "boom-42" in capsys.readouterr().err
    assert read_demonstrations(tmp_path / "a.safetensors").length.tolist() == [5]


def test_from_python(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", "CartPole-v1")
    recorder = record_policy(load_policy(run), world_of_run(run), episodes=2, seed=1, deterministic=True)
    assert recorder.demonstrations().episode_return.tolist() == recorder.returns


# -- a person ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def _no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame", reason="pygame is not installed")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


@pytest.mark.usefixtures("_no_screen")
def test_a_person_who_presses_nothing(tmp_path: Path) -> None:
    """Gymnasium's own `play`: the action without a key, seeded once, so that episodes differ."""
    d = record(tmp_path, "--keyboard", "CartPole-v1", "--keys", '{"left": 0, "right": 1, "noop": 1}', "--episodes", "2", "--fps", "1000", "--seed", "3")
    assert (d.episodes, set(d.discrete.ravel().tolist()), d.terminated.all()) == (2, {1}, True)
    ends = np.cumsum(d.length)
    assert d.obs["obs"][0].tobytes() != d.obs["obs"][ends[0]].tobytes()
    env = gym.make("CartPole-v1")
    np.testing.assert_array_equal(env.reset(seed=3)[0], d.obs["obs"][0])
    for row in range(ends[0]):
        np.testing.assert_array_equal(env.unwrapped.state.astype(np.float32), d.obs["obs"][row])
        env.step(1)
    np.testing.assert_array_equal(env.unwrapped.state.astype(np.float32), d.next_obs["obs"][0])


@pytest.mark.usefixtures("_no_screen")
def test_keys_become_actions_and_esc_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pygame

    frames: list[int] = []

    def events() -> list[Any]:
        frames.append(1)
        if len(frames) == 1:
            return [pygame.event.Event(pygame.KEYDOWN, key=pygame.K_RIGHT), pygame.event.Event(pygame.KEYDOWN, key=pygame.K_w)]
        return [pygame.event.Event(pygame.KEYDOWN, key=pygame.K_ESCAPE)] if len(frames) == 230 else []

    monkeypatch.setattr(pygame.event, "get", events)
    keys = tmp_path / "keys.json"
    keys.write_text('{"right+w": [1.5], "right": [-1.0], "noop": [0.0]}')
    session = play(EnvFactory("Pendulum-v1"), read_keys(str(keys)), seed=0, episodes=None, fps=10_000)
    session.run()
    d = session.recorder.demonstrations()
    assert (d.episodes, d.rows, d.terminated.tolist()) == (1, 200, [False]), "the unfinished second episode is left out"
    np.testing.assert_allclose(d.continuous[:, 0], 0.75, rtol=1e-6)


@pytest.mark.usefixtures("_no_screen")
def test_keys_and_games_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected an environment with keys of its own" in refused(capsys, "--keyboard", "CartPole-v1")
    assert "Expected an action of Discrete(2) for 'a' in --keys, received 7" in refused(capsys, "--keyboard", "CartPole-v1", "--keys", '{"a": 7}')
    assert "Expected keys such as a, left or space" in refused(capsys, "--keyboard", "CartPole-v1", "--keys", '{"nokey": 1}')
    assert "Expected --keys with JSON" in refused(capsys, "--keyboard", "CartPole-v1", "--keys", "{a: 7}")
    assert "Expected --keys with JSON or a file of it" in refused(capsys, "--keyboard", "CartPole-v1", "--keys", str(tmp_path / "no.json"))
    assert "at least one key and its action" in refused(capsys, "--keyboard", "CartPole-v1", "--keys", '{"noop": 1}')
    assert "render_mode='rgb_array', received Toy with None" in refused(capsys, "--keyboard", "envs.toy:Toy", "--keys", '{"a": 1}')
    assert "leave --env out with --keyboard" in refused(capsys, "--keyboard", "CartPole-v1", "--env", "Acrobot-v1")
    monkeypatch.setitem(sys.modules, "gymnasium.utils.play", None)
    monkeypatch.setitem(sys.modules, "pygame", None)
    assert "Expected pygame for the keyboard, which is not installed" in refused(capsys, "--keyboard", "CartPole-v1", "--keys", '{"a": 1}')
