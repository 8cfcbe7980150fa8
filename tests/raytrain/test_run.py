"""Whole runs in this process (``--local``), and the command line around them. Ray is not started."""

import json
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

import raytrain
from raytrain.checkpoint import CheckpointStore
from raytrain.cli import main
from raytrain.errors import RunFault, RunFolderError

ROOT = Path(__file__).resolve().parents[2]


def config(env="CartPole-v1", name="CartPole", **behavior) -> dict:
    hyper = {"buffer_size": 128, "batch_size": 64, "num_epoch": 2, "learning_rate": 3e-3, **behavior.pop("hyperparameters", {})}
    return {
        "env": env,
        "behaviors": {name: {
            "hyperparameters": hyper, "network_settings": {"hidden_units": 16, "num_layers": 1, **behavior.pop("network_settings", {})},
            "max_steps": 512, "summary_freq": 128, "checkpoint_interval": 256, "time_horizon": 32, **behavior,
        }},
        "env_settings": {"num_envs": 4, "seed": 3},
    }


def train(tmp_path, data, run_id="run", **options):
    return raytrain.train(data, results_dir=tmp_path, run_id=run_id, local=True, **options)


def newest(run) -> Path:
    return max((run.path / "checkpoints").iterdir())


def trainer_tensors(run) -> dict[str, np.ndarray]:
    return load_file(newest(run) / "CartPole" / "trainer.safetensors")


def test_a_run_leaves_what_it_should(tmp_path):
    """Checkpoint 0 before training, exact multiples on the x-axis, a configuration that loads again, timers, a balanced ledger (C32, C75)."""
    summaries, episodes, checkpoints = [], [], []
    run = train(
        tmp_path, config(), on_summary=summaries.append, on_episode=lambda *e: episodes.append(e), on_checkpoint=lambda *c: checkpoints.append(c)
    )
    assert [s.step for s in summaries] == [128, 256, 384, 512]
    assert [c[1] for c in checkpoints][:3] == [0, 256, 512]
    assert len(episodes) > 5 and all(e[0] == "CartPole" and e[1] == e[2] for e in episodes)
    assert sum(e[2] for e in episodes) <= run.results["agent_steps"]
    ledger = run.results["ledger"]
    assert ledger["produced"] == ledger["consumed"] + ledger["dropped_shutdown"]
    saved = yaml.safe_load((run.path / "configuration.yaml").read_text())
    assert saved["env_settings"]["seed"] == 3
    assert raytrain.config.load_config(run.path / "configuration.yaml").behaviors["CartPole"].max_steps == 512
    assert json.loads((run.path / "timers.json").read_text())["children"]["trainer"]["children"]["update"]["count"] == 4
    assert not (run.path / "lock").exists()


def test_lag_is_zero_and_the_first_ratio_exactly_one(tmp_path):
    """C10: what acts is what learns: ratio 1 ± 1e-5 in the first minibatch of every update, lag 0."""
    summaries = []
    train(tmp_path, config(network_settings={"normalize": True}), on_summary=summaries.append)
    errors = [s.values["Policy/First Minibatch Ratio Error"] for s in summaries if "Policy/First Minibatch Ratio Error" in s.values]
    assert len(errors) >= 2 and max(errors) < 1e-5
    assert {s.values["Policy/Policy Lag Max"] for s in summaries if "Policy/Policy Lag Max" in s.values} == {0}


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path):
    """C83, also with normalisation and reward scaling; twice in one process without trouble (C98)."""
    data = config(network_settings={"normalize": True}, hyperparameters={"reward_scaling": True})
    a, b, c = (trainer_tensors(train(tmp_path, data, i, seed=s)) for i, s in (("a", 1), ("b", 1), ("c", 2)))
    assert a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)
    assert any(not np.array_equal(a[k], c[k]) for k in a if k.startswith("actor/"))


def test_resume_continues_to_the_unit(tmp_path):
    """C21, C24, C29: the counter starts at the checkpoint's, weights move on from it, metrics have no step twice."""
    first = train(tmp_path, config(max_steps=512), "parts", overrides={"behaviors.CartPole.max_steps": 256, "behaviors.CartPole.hyperparameters.schedule_steps": 512})
    before = trainer_tensors_at(tmp_path / "parts")
    summaries, checkpoints = [], []
    parts = train(
        tmp_path, config(max_steps=512), "parts", resume=True, on_summary=summaries.append, on_checkpoint=lambda *c: checkpoints.append(c)
    )
    resumed_at = CheckpointStore.load(checkpoints[0][0]).run["agent_steps"]
    assert resumed_at == first.results["agent_steps"]
    assert [s.step for s in summaries] == [384, 512]
    assert 512 <= parts.results["agent_steps"] < 512 + 128 + 4
    assert parts.results["policy_updates"] > first.results["policy_updates"]
    after = trainer_tensors(parts)
    assert any(not np.array_equal(before[k], after[k]) for k in before)
    steps = [int(row.split(",")[0]) for row in (parts.path / "CartPole" / "metrics.csv").read_text().splitlines()[1:]]
    assert steps == [128, 256, 384, 512]


def trainer_tensors_at(path: Path) -> dict[str, np.ndarray]:
    return load_file(max((path / "checkpoints").iterdir()) / "CartPole" / "trainer.safetensors")


def test_resume_with_another_network_names_both_shapes(tmp_path):
    """C23."""
    train(tmp_path, config())
    before = (tmp_path / "run" / "configuration.yaml").read_bytes()
    with pytest.raises(RunFolderError, match=r"hidden_units: 16 in the checkpoint, 32 here"):
        train(tmp_path, config(network_settings={"hidden_units": 32}), resume=True)
    assert (tmp_path / "run" / "configuration.yaml").read_bytes() == before


def test_resume_with_learning_rate_zero_leaves_the_weights(tmp_path, capsys):
    """C23: hyper-parameters come from the configuration, state from the checkpoint."""
    first = train(tmp_path, config())
    before = trainer_tensors(first)
    capsys.readouterr()
    again = train(tmp_path, config(max_steps=1024, hyperparameters={"learning_rate": 0.0}), resume=True)
    assert "learning_rate: 0.003 (before) → 0.0 (now)" in capsys.readouterr().out
    after = trainer_tensors(again)
    assert again.results["policy_updates"] > first.results["policy_updates"]
    assert all(np.array_equal(before[k], after[k]) for k in before if k.startswith(("actor/", "critic/")))


def test_a_corrupt_newest_checkpoint_is_named_and_the_one_before_used(tmp_path, capsys):
    run = train(tmp_path, config())
    folders = sorted((run.path / "checkpoints").iterdir())
    (folders[-1] / "CartPole" / "policy.safetensors").write_bytes(b"broken")
    snapshot = CheckpointStore.load(folders[-2])
    capsys.readouterr()
    train(tmp_path, config(max_steps=640), resume=True)
    out = capsys.readouterr().out
    assert folders[-1].name in out
    assert f"resuming at {snapshot.run['agent_steps']:,} agent steps" in out


def test_initialize_from_takes_the_weights_and_starts_at_step_zero(tmp_path):
    first = train(tmp_path, config(), "first")
    run = train(tmp_path, config(hyperparameters={"learning_rate": 0.0}), "second", initialize_from="first")
    assert run.results["agent_steps"] < 700
    a, b = trainer_tensors(first), trainer_tensors(run)
    assert all(np.array_equal(a[k], b[k]) for k in a if k.startswith(("actor/", "critic/")))


def test_an_existing_run_id_is_refused_and_not_touched(tmp_path):
    """C87: no byte changes; --force starts at step 0 and moves the old run aside."""
    run = train(tmp_path, config())
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    with pytest.raises(RunFolderError, match="--resume"):
        train(tmp_path, config())
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before
    again = train(tmp_path, config(), force=True)
    assert again.results["agent_steps"] == run.results["agent_steps"]
    assert len(list((tmp_path / ".replaced").iterdir())) == 1


@pytest.mark.slow
def test_load_policy_acts_in_the_envs_own_scale(tmp_path):
    """C57, C91: single and batched observations agree, actions are the env's, deterministic ones repeat; statistics do not change (C53)."""
    run = train(tmp_path, config("Pendulum-v1", "Pendulum", network_settings={"normalize": True}))
    env = gym.make("Pendulum-v1")
    policy = raytrain.load_policy(run.path)
    batch = np.stack([env.reset(seed=s)[0] for s in range(5)])
    actions = policy.act(batch)
    assert actions.shape == (5, 1)
    for row, action in zip(batch, actions):
        one = policy.act(row)
        assert env.action_space.contains(one)
        assert np.allclose(one, action, atol=1e-6)
    assert env.action_space.contains(policy.act(batch[0], deterministic=False))
    with pytest.raises(ValueError, match=r"obs"):
        policy.act(np.zeros(4, np.float32))


def test_a_stop_condition_ends_the_run(tmp_path):
    run = train(tmp_path, config(max_steps=100_000), overrides={"stop.reward": 5.0, "stop.episodes": 10})
    assert "stop.reward=5" in run.results["reason"]
    assert run.results["agent_steps"] < 5_000


def test_a_user_exception_and_a_non_finite_observation_end_the_run_with_their_place(tmp_path):
    """C19, C54: env, episode, step, key, index; the checkpoint on disk is whole."""
    for env, kwargs, words in (
        ("envs.toy:CrashAt", {"n": 20, "mode": "raise"}, ("ValueError", "toy.py")),
        ("envs.toy:NaNAt", {"n": 20}, ("obs", "20")),
    ):
        data = config(env, env.split(":")[1])
        data["env_kwargs"] = kwargs
        with pytest.raises(RunFault) as caught:
            train(tmp_path, data, env.split(":")[1])
        assert all(w in str(caught.value) for w in words), str(caught.value)
        snapshot, _, _ = CheckpointStore(tmp_path / env.split(":")[1], 5).load_latest()
        one = next(iter(snapshot.behaviors.values()))
        assert all(np.isfinite(t).all() for t in one.trainer.tensors.values())


def test_a_callback_that_raises_ends_the_run_with_the_users_traceback(tmp_path):
    from raytrain.callbacks import CallbackError

    def broken(_summary):
        raise KeyError("mine")

    with pytest.raises(CallbackError) as caught:
        train(tmp_path, config(), on_summary=broken)
    assert "test_run.py" in caught.value.user_traceback


# -- the command line ---------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cart pole.yaml"  # a path with a space (C100)
    path.write_text(yaml.safe_dump(config()))
    return path


def test_bad_input_is_exit_code_2_with_every_problem(file, tmp_path, capsys):
    """C86."""
    words = ["train", str(file), "--results-dir", str(tmp_path), "--run-id", "x"]
    assert main([*words, "--set", "behaviors.CartPole.max_stps=3", "--set", "behaviors.CartPole.time_horizon=0"]) == 2
    err = capsys.readouterr().err
    assert "2 problems" in err and "max_steps" in err and "time_horizon" in err
    assert not (tmp_path / "x").exists()


def test_a_behavior_that_the_env_does_not_have_is_exit_code_2(tmp_path, capsys):
    """C85: both names."""
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(config(name="CartPol")))
    assert main(["train", str(path), "--results-dir", str(tmp_path), "--run-id", "x"]) == 2
    err = capsys.readouterr().err
    assert "CartPol" in err and "CartPole" in err
    assert not (tmp_path / "x").exists()


def test_a_wrong_env_argument_or_module_is_exit_code_2(tmp_path, capsys):
    """C89, C92."""
    for env, kwargs, words in (("CartPole-v1", {"gravty": 9.8}, ("env_kwargs", "gravty")), ("no_such_module:make", {}, ("no_such_module",))):
        path = tmp_path / "a.yaml"
        data = config(env, "CartPole")
        data["env_kwargs"] = kwargs
        path.write_text(yaml.safe_dump(data))
        assert main(["train", str(path), "--results-dir", str(tmp_path), "--run-id", "x"]) == 2
        err = capsys.readouterr().err
        assert all(w in err for w in words), err


def test_the_command_line_wins_over_the_file(file, tmp_path):
    assert main(["train", str(file), "--local", "--results-dir", str(tmp_path), "--run-id", "y", "--seed", "9", "--num-envs", "2"]) == 0
    saved = yaml.safe_load((tmp_path / "y" / "configuration.yaml").read_text())
    assert (saved["env_settings"]["seed"], saved["env_settings"]["num_envs"]) == (9, 2)


def test_importing_raytrain_loads_neither_ray_nor_tensorflow():
    """Also with the command line and a configuration loaded; trainers and envs never load raytrain."""
    code = (
        "import sys, raytrain, raytrain.cli, raytrain.run; from raytrain.config import load_config; load_config('yaml/ppo/CartPole.yaml');"
        "assert not {'ray', 'tensorflow'} & set(sys.modules), 'heavy'"
    )
    layers = (
        "import sys, trainers.ppo, trainers.registry, envs.gymnasium_env; assert not {'ray', 'raytrain'} & set(sys.modules), 'layers'"
    )
    envs = "import sys, envs.gymnasium_env, envs.toy; assert not {'ray', 'raytrain', 'trainers', 'tensorflow'} & set(sys.modules), 'layers'"
    for program in (code, layers, envs):
        subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
