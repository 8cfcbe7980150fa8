"""Runs of ``trainer_type: bc``: what they leave, how they go on, what is refused, and what begins with them. No Ray."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from safetensors.numpy import load_file

import raytrain
from envs.demonstrations import read_demonstrations, write_demonstrations
from envs.episode_recorder import EpisodeRecorder
from envs.gymnasium_env import probe_spec
from envs.specs import Actions
from raytrain.cli import main
from raytrain.errors import ConfigError
from raytrain.run_folder import RunFolderError

ROOT = Path(__file__).resolve().parents[2]


def record(path: Path, episodes: int = 10) -> Path:
    """A rule that keeps the pole up, in CartPole."""
    (spec,) = probe_spec("CartPole-v1", {}).values()
    env, recorder = gym.make("CartPole-v1"), EpisodeRecorder(spec)
    for seed in range(episodes):
        x, over = env.reset(seed=seed)[0], False
        while not over:
            action = int(np.dot(x, (0.1, 0.3, 3.0, 1.0)) > 0)
            recorder.decide({"obs": x[None]}, Actions(np.zeros((1, 0), np.float32), np.array([[action]], np.int32)))
            x, reward, terminated, truncated, _ = env.step(action)
            recorder.reward(reward)
            over = terminated or truncated
        recorder.end({"obs": x[None]}, terminated)
    write_demonstrations(path, recorder.demonstrations(), {"env": "CartPole-v1"})
    return path


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return record(tmp_path_factory.mktemp("demos") / "expert.safetensors")


def config(demo, network=None, hyperparameters=None, **values) -> dict:
    behavior = {
        "trainer_type": "bc", "demo_path": str(demo), "hyperparameters": {"num_epoch": 4, "learning_rate": 3e-3, **(hyperparameters or {})},
        "network_settings": {"hidden_units": 16, "num_layers": 1, "normalize": True, **(network or {})},
    }
    top = {key: values.pop(key) for key in ("env", "stop") if key in values}
    return {**top, "behaviors": {"CartPole": {**behavior, **values}}, "env_settings": {"seed": 3}}


def train(tmp_path, data, run_id="run", **options):
    return raytrain.train(data, results_dir=tmp_path, run_id=run_id, **options)


def tensors(run, folder: str | None = None) -> dict[str, np.ndarray]:
    path = run.path / folder if folder else max((run.path / "checkpoints").iterdir())
    return load_file(path / "CartPole" / "trainer.safetensors")


def rows_of(run) -> list[dict[str, str]]:
    with open(run.path / "CartPole" / "metrics.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_run_without_an_environment_leaves_what_any_run_leaves(tmp_path, demo):
    summaries, checkpoints = [], []
    run = train(tmp_path, config(demo), on_summary=summaries.append, on_checkpoint=lambda *c: checkpoints.append(c))
    assert [s.step for s in summaries] == [4500, 9000, 13500, 18000]  # nine of ten episodes of 500 rows
    assert [c[1] for c in checkpoints] == [0, 4500, 9000, 13500, 18000, 18000][: len(checkpoints)]
    assert (run.results["agent_steps"], run.results["policy_updates"], run.results["mean_return"]) == (18000, 4, None)
    assert "passes over the demonstrations" in run.results["reason"] and not run.results["interrupted"]
    assert {"configuration.yaml", "status.json", "timers.json", "best", "checkpoints", "latest", "CartPole"} <= {p.name for p in run.path.iterdir()}
    last = rows_of(run)[-1]
    assert float(last["Losses/Validation Loss"]) < 0.6 and float(last["Policy/Validation Accuracy"]) > 0.7 and last["Losses/Pretraining Loss"]
    losses = [float(row["Losses/Validation Loss"]) for row in rows_of(run)]
    assert json.loads((run.path / "status.json").read_text())["best_validation_loss"] == pytest.approx(min(losses))
    assert any((run.path / "CartPole").glob("events.out.tfevents.*"))
    policy = raytrain.load_policy(run.path)
    assert policy.agent_steps == 4500 * (1 + int(np.argmin(losses)))
    assert policy.act(np.array([0.0, 0.0, 0.1, 0.5], np.float32)) == 1 and policy.act(np.array([0.0, 0.0, -0.1, -0.5], np.float32)) == 0


@pytest.mark.slow
def test_neither_ray_is_loaded_nor_an_environment_made(tmp_path, demo):
    code = (
        "import sys, raytrain, json; import gymnasium as gym\n"
        "gym.make = gym.make_vec = None\n"
        f"raytrain.train(json.loads({json.dumps(json.dumps(config(demo, hyperparameters={'num_epoch': 1})))}), results_dir={str(tmp_path)!r}, run_id='r')\n"
        "print('ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"


def test_with_an_environment_the_best_is_that_of_the_highest_return(tmp_path, demo):
    episodes, checkpoints = [], []
    run = train(
        tmp_path, config(demo, env="CartPole-v1", evaluation_episodes=3, stop={"reward": 450}), num_envs=2,
        on_episode=lambda *e: episodes.append(e), on_checkpoint=lambda *c: checkpoints.append(c),
    )
    returns = {c[1]: c[2] for c in checkpoints if c[2] is not None}
    assert len(episodes) == 3 * len(returns) and all(e[1] == e[2] for e in episodes)
    for step, reward in returns.items():
        assert reward == np.mean([e[1] for e in episodes if e[3] == step])
    assert float(rows_of(run)[-1]["Environment/Cumulative Reward"]) == list(returns.values())[-1]
    status = json.loads((run.path / "status.json").read_text())
    assert status["best_reward"] == max(returns.values()) and run.results["mean_return"] == list(returns.values())[-1]
    assert raytrain.load_policy(run.path).agent_steps == max(returns, key=returns.get)


@pytest.mark.parametrize("memory", [None, {"sequence_length": 16, "memory_size": 8}], ids=["plain", "memory"])
@pytest.mark.slow
def test_a_resumed_run_learns_what_one_in_one_piece_does(tmp_path, demo, memory):
    whole = train(tmp_path, config(demo, {"memory": memory}), "whole")
    train(tmp_path, config(demo, {"memory": memory}, max_steps=7000), "parts")
    resumed = train(tmp_path, config(demo, {"memory": memory}), "parts", resume=True)
    expected, found = tensors(whole), tensors(resumed)
    assert expected.keys() == found.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    with pytest.raises(RunFolderError, match="exists"):
        train(tmp_path, config(demo), "parts")


def test_a_resume_with_other_settings_is_refused(tmp_path, demo):
    train(tmp_path, config(demo, hyperparameters={"num_epoch": 1}))
    with pytest.raises(RunFolderError, match="hidden_units: 16 in the checkpoint, 32 here"):
        train(tmp_path, config(demo, {"hidden_units": 32}), resume=True)
    ppo = {"env": "CartPole-v1", "behaviors": {"CartPole": {"network_settings": {"hidden_units": 16, "num_layers": 1, "normalize": True}}}}
    with pytest.raises(RunFolderError, match="trainer_type: bc in the checkpoint, ppo here"):
        train(tmp_path, ppo, resume=True, local=True)


@pytest.mark.parametrize("shared_critic", [False, True])
@pytest.mark.slow
def test_ppo_begins_with_the_cloned_actor_and_a_new_critic(tmp_path, demo, shared_critic):
    cloned = train(tmp_path, config(demo), "cloned")
    ppo = {
        "env": "CartPole-v1", "env_settings": {"seed": 5},
        "behaviors": {"CartPole": {
            "hyperparameters": {"buffer_size": 64, "batch_size": 32, "shared_critic": shared_critic}, "max_steps": 128, "time_horizon": 16,
            "network_settings": {"hidden_units": 16, "num_layers": 1, "normalize": True}, "summary_freq": 64, "checkpoint_interval": 128}},
    }
    run = train(tmp_path, ppo, "ppo", local=True, initialize_from="cloned")
    fresh = train(tmp_path, ppo, "fresh", local=True)
    best, first, new = tensors(cloned, "best"), tensors(run, "checkpoints/000000"), tensors(fresh, "checkpoints/000000")
    assert first.keys() == new.keys()
    for name, tensor in first.items():
        if name.startswith(("actor/", "normalizer_statistics/")):
            np.testing.assert_array_equal(tensor, best[name], err_msg=name)
        elif name.startswith("critic/"):
            np.testing.assert_array_equal(tensor, new[name], err_msg=name)
    assert any(name.startswith("critic/") for name in first) and run.results["agent_steps"] >= 128


def test_cloning_begins_with_the_weights_of_another_clone(tmp_path, demo):
    train(tmp_path, config(demo), "first")
    second = train(tmp_path, config(demo, hyperparameters={"num_epoch": 1, "learning_rate": 0.0}), "second", initialize_from="first")
    before, after = tensors(second, "checkpoints/000000"), tensors(second)
    for name in (n for n in before if n.startswith("actor/")):
        np.testing.assert_array_equal(after[name], before[name])


def test_without_held_out_episodes_the_newest_is_taken(tmp_path, demo):
    one = replace_episodes(demo, tmp_path / "one.safetensors", 1)
    run = train(tmp_path, config(one, validation_share=0))
    assert not (run.path / "best").exists() and raytrain.load_policy(run.path).agent_steps == 2000
    assert "Losses/Validation Loss" not in rows_of(run)[-1]


def replace_episodes(demo, path, episodes):
    """The first episodes of a demonstration, in a file of their own."""
    d = read_demonstrations(demo)
    n = int(d.length[:episodes].sum())
    write_demonstrations(path, replace(
        d, obs={k: x[:n] for k, x in d.obs.items()}, continuous=d.continuous[:n], discrete=d.discrete[:n], reward=d.reward[:n],
        length=d.length[:episodes], terminated=d.terminated[:episodes], next_obs={k: x[:episodes] for k, x in d.next_obs.items()}))
    return path


def refusals(demo, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    one = replace_episodes(demo, tmp_path / "one.safetensors", 1)
    yield config(tmp_path / "nothing.safetensors"), "CartPole.demo_path.*expected a file or folder of demonstrations, found none"
    yield config(empty), "CartPole.demo_path.*expected a folder with files"
    yield config(one), "CartPole.demo_path.*received 1 episode in all"
    yield {**config(demo), "env": "Acrobot-v1", "behaviors": {"Acrobot": config(demo)["behaviors"]["CartPole"]}}, "Acrobot.demo_path.*demonstration of another"
    yield {**config(demo), "env": "Acrobot-v1"}, "expected a behavior of Acrobot-v1, received CartPole"
    yield config(demo, reward_signals={}), "reward_signals.*it belongs to ppo"
    yield config(demo, hyperparameters={"buffer_size": 10}), "buffer_size.*it belongs to ppo"
    yield {"behaviors": {n: config(demo)["behaviors"]["CartPole"] for n in "AB"}}, "expected one behavior"
    yield {"behaviors": {"A": {"trainer_type": "bc"}}}, "demo_path.*required key is missing"
    yield {"behaviors": {"A": {}}}, "env.*required key is missing"
    yield {"env": None, "behaviors": {"A": {}}}, "env.*required key is missing"


def test_bad_input_is_refused_before_anything_is_written(tmp_path, demo):
    results = tmp_path / "results"
    for data, words in refusals(demo, tmp_path):
        with pytest.raises(ConfigError, match=words) as refused:
            raytrain.train(data, results_dir=results, run_id="run")
        assert len(refused.value.problems) == 1
    assert not results.exists()


def test_the_command_finds_demonstrations_beside_its_file(tmp_path, demo, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "expert.safetensors").write_bytes(demo.read_bytes())
    file = tmp_path / "here" / "bc.yaml"
    file.write_text("behaviors:\n  CartPole: {trainer_type: bc, demo_path: expert.safetensors, hyperparameters: {num_epoch: 1}}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(file), "--run-id", "run"]) == 0
    shown = capsys.readouterr().out
    assert "not started: demonstrations are learnt from in this process" in shown and "9 episodes of 4,500 rows" in shown
    assert main(["train", str(file), "--run-id", "other", "--set", "behaviors.CartPole.demo_path=no.safetensors"]) == 2
    assert main(["train", "results/run/configuration.yaml", "--run-id", "again"]) == 0  # as it was saved


@pytest.mark.slow
def test_ctrl_c_saves_and_the_run_goes_on(tmp_path, demo):
    file = tmp_path / "bc.yaml"
    file.write_text(f"behaviors:\n  CartPole: {{trainer_type: bc, demo_path: {demo}, hyperparameters: {{num_epoch: 100000}}}}\n")
    command = [sys.executable, "-m", "raytrain", "train", str(file), "--run-id", "run", "--results-dir", str(tmp_path), "--seed", "1"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    # Not for one of a name: only the last few are kept, and passes are short.
    while not any(path.name.isdigit() and int(path.name) >= 2 for path in tmp_path.glob("run/checkpoints/*")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "--resume" in out
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "interrupted" and status["agent_steps"] > 0
    more = [*command, "--resume", "--set", f"behaviors.CartPole.max_steps={status['agent_steps'] + 256}"]
    done = subprocess.run(more, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and f"resuming at {status['agent_steps']:,} agent steps" in done.stdout, done.stdout + done.stderr


@pytest.mark.learning
def test_ten_episodes_are_enough_for_nine_tenths_of_the_expert(tmp_path, demo):
    """And what was done at other times, shuffled, teaches nothing."""
    d = read_demonstrations(demo)
    expert = float(d.episode_return.mean())
    shuffled = tmp_path / "shuffled.safetensors"
    write_demonstrations(shuffled, replace(d, discrete=np.random.default_rng(0).permutation(d.discrete)))
    returns = {}
    for path in (demo, shuffled):
        data = config(path, {"hidden_units": 64, "num_layers": 2}, {"num_epoch": 50, "learning_rate": 1e-3})
        run = train(tmp_path, data, path.stem)
        for deterministic in (True, False):
            policy, env, sums = raytrain.load_policy(run.path, which="latest", seed=0), gym.make("CartPole-v1"), []
            for seed in range(1000, 1020):
                x, over, total = env.reset(seed=seed)[0], False, 0.0
                while not over:
                    x, reward, terminated, truncated, _ = env.step(policy.act(x, deterministic))
                    total, over = total + reward, terminated or truncated
                sums.append(total)
            returns[path.stem, deterministic] = float(np.mean(sums))
    assert returns["expert", True] >= 0.9 * expert, (returns, expert)
    # The most likely of two choices that are all but equally likely follows from the first weights, and may balance for a while by luck:
    # what was learnt shows where actions are drawn.
    assert returns["shuffled", False] < 0.2 * returns["expert", False], returns
