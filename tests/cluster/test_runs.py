"""Whole runs over Ray: results, faults, resources, and Ray itself afterwards."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray
import yaml
from safetensors.numpy import load_file

import raytrain
from raytrain import cluster
from raytrain.actors import OtherNodesReplay
from raytrain.checkpoint import CheckpointStore
from raytrain.errors import ClusterError, RunFault
from raytrain.replay_chunks import REPLAY, ChunkReader, ChunkWriter, read_replay, write_replay
from tests.raytrain.exact_worlds import config as exact_config
from tests.raytrain.sac_runs import replays
from tests.raytrain.spaces_runs import config as spaces_config
from tests.raytrain.test_exact_resume import differences_of_trainer, metrics
from trainers.trainer import TrainerState

ROOT = Path(__file__).resolve().parents[2]


def config(**changes) -> dict:
    hyper = {"buffer_size": 256, "batch_size": 64, "num_epoch": 2, **changes.pop("hyperparameters", {})}
    behavior = {
        "hyperparameters": hyper, "network_settings": {"hidden_units": 16, "num_layers": 1}, "max_steps": 1500, "summary_freq": 500,
        "checkpoint_interval": 500, "time_horizon": 32, **changes.pop("behavior", {}),
    }
    return {
        "env": "CartPole-v1", "behaviors": {"CartPole": behavior}, "env_settings": {"num_envs": 4, "seed": 3},
        "distributed": {"env_manager_cpus": 0.25, "trainer_cpus": 0.5}, **changes,
    }


def train(tmp_path, data, run_id, **options):
    return raytrain.train(data, results_dir=tmp_path, run_id=run_id, **options)


def tensors(run) -> dict[str, np.ndarray]:
    newest = max((run.path / "checkpoints").iterdir())
    return load_file(newest / "CartPole" / "trainer.safetensors")


@pytest.mark.parametrize("managers", [1, 4])
def test_training_works_with_one_and_with_four_env_managers(private_ray, tmp_path, managers):
    """The ledger balances, summaries carry exact multiples, checkpoint 0 came before training."""
    summaries = []
    run = train(tmp_path, config(), "run", num_env_managers=managers, on_summary=summaries.append)
    assert run.results["agent_steps"] >= 1500
    assert run.results["policy_updates"] >= 4
    assert [s.step for s in summaries] == [500, 1000, 1500]
    ledger = run.results["ledger"]
    assert ledger["produced"] == ledger["consumed"] + sum(v for k, v in ledger.items() if k.startswith("dropped_"))
    assert max(s.values["Policy/Policy Lag Max"] for s in summaries if "Policy/Policy Lag Max" in s.values) <= 1
    assert (run.path / "best").exists() or run.results["mean_return"] is None
    assert json.loads((run.path / "status.json").read_text())["state"] == "finished"


def test_lock_step_over_ray_and_local_give_the_same_bytes(private_ray, tmp_path):
    """C83: same seed, same tensors (max diff 0), whatever carries them; another seed differs."""
    data = config(behavior={"threaded": False})
    over_ray = train(tmp_path, data, "ray", num_env_managers=2)
    local = train(tmp_path, data, "local", num_env_managers=2, local=True)
    other = train(tmp_path, data, "other", num_env_managers=2, local=True, seed=4)
    a, b, c = tensors(over_ray), tensors(local), tensors(other)
    assert a.keys() == b.keys()
    assert all(np.array_equal(a[k], b[k]) for k in a)
    assert not all(np.array_equal(b[k], c[k]) for k in b)


def sac(**behavior) -> dict:
    """Soft actor-critic on Pendulum: an update of 32 rows for every two steps from step 100 on."""
    hyper = {"batch_size": 32, "buffer_size": 2000, "buffer_init_steps": 100, "learning_rate": 1e-3, "steps_per_update": 2.0}
    data = config(env="Pendulum-v1")
    settings = data["behaviors"].pop("CartPole")
    data["behaviors"]["Pendulum"] = {**settings, "trainer_type": "sac", "hyperparameters": hyper, "max_steps": 1000, **behavior}
    return data


def sac_tensors(run) -> dict[str, np.ndarray]:
    return load_file(max((run.path / "checkpoints").iterdir()) / "Pendulum" / "trainer.safetensors")


def test_sac_in_lock_step_over_ray_and_local_give_the_same_bytes(private_ray, tmp_path):
    """C83: two env managers, whole rounds, every update made before the next: nothing depends on what carries them."""
    data = sac(threaded=False)
    over_ray = train(tmp_path, data, "ray", num_env_managers=2)
    local = train(tmp_path, data, "local", num_env_managers=2, local=True)
    other = train(tmp_path, data, "other", num_env_managers=2, local=True, seed=4)
    a, b, c = sac_tensors(over_ray), sac_tensors(local), sac_tensors(other)
    assert a.keys() == b.keys() and over_ray.results["updates"] == local.results["updates"] > 400
    assert all(np.array_equal(a[k], b[k]) for k in a)
    assert not all(np.array_equal(b[k], c[k]) for k in b)


def test_sac_keeps_its_ratio_while_two_env_managers_collect(private_ray, tmp_path):
    """Asynchronous: the ledger balances, and |agent steps − warm-up − steps_per_update · updates| ≤ steps_per_update at the end."""
    summaries = []
    run = train(tmp_path, sac(), "run", num_env_managers=2, on_summary=summaries.append)
    results, ledger = run.results, run.results["ledger"]
    assert ledger["produced"] == ledger["consumed"] + sum(v for k, v in ledger.items() if k.startswith("dropped_"))
    assert results["agent_steps"] >= 1000 and results["updates"] > 400
    assert 0 <= results["agent_steps"] - 100 - 2 * results["updates"] <= 2
    assert [s.step for s in summaries] == [500, 1000]
    assert ledger["produced"] <= results["agent_steps"] + 3 * 128 + 4 * 8, "collecting ran no further ahead than 64 updates and a batch each"


def test_sac_resumed_without_its_replay_buffer_tells_the_user(private_ray, tmp_path, capsys):
    """C30: a notice of the trainer, which is another process, reaches the console; counting goes on after the new warm-up."""
    first = train(tmp_path, sac(), "run", num_env_managers=2)
    assert "no replay buffer" not in capsys.readouterr().out
    again = train(tmp_path, sac(max_steps=1500), "run", num_env_managers=2, resume=True)
    assert "Pendulum: the checkpoint has no replay buffer" in capsys.readouterr().out
    steps, updates = (again.results[k] - first.results[k] for k in ("agent_steps", "updates"))
    assert steps >= 400 and 0 <= steps - 100 - 2 * updates <= 2


def test_a_replay_buffer_is_saved_and_resumed_without_passing_through_the_driver(private_ray, tmp_path, monkeypatch):
    """The trainer has it written where the results are; the same bytes as in one process, and nothing of it in the driver's snapshots."""
    data = sac(threaded=False)
    data["behaviors"]["Pendulum"]["hyperparameters"]["save_replay_buffer"] = True
    saved, save = [], CheckpointStore.save
    monkeypatch.setattr(CheckpointStore, "save", lambda store, snapshot: (saved.append(snapshot), save(store, snapshot))[1])
    runs = [train(tmp_path, data, name, num_env_managers=2, local=name == "local") for name in ("ray", "local")]
    parts = [snapshot.behaviors["Pendulum"] for snapshot in saved]
    assert all(part.replay.files and not any(name.startswith("replay/") for name in part.trainer.tensors) for part in parts)
    chunks = [max((run.path / "checkpoints").iterdir()) / "Pendulum" / "replay-00000.safetensors" for run in runs]
    assert chunks[0].read_bytes() == chunks[1].read_bytes()
    assert all(not list((run.path / "checkpoints").glob(".*")) for run in runs), "no leftovers"
    data["behaviors"]["Pendulum"]["max_steps"] = 1500
    with monkeypatch.context() as patch:  # of this process, the driver's; the trainer's is another one
        patch.setattr(ChunkReader, "read", lambda reader, number: pytest.fail("the driver reads it"))
        again = train(tmp_path, data, "ray", num_env_managers=2, resume=True)
    steps, updates = (again.results[k] - runs[0].results[k] for k in ("agent_steps", "updates"))
    assert steps >= 400 and abs(steps - 2 * updates) <= 2, "no new warm-up"
    assert len(replays(max((again.path / "checkpoints").iterdir()))["Pendulum"]["replay/next"]) >= again.results["agent_steps"]


def test_a_trainer_that_does_not_see_the_results_has_its_replay_buffer_read_where_they_are(private_ray, tmp_path, monkeypatch):
    """As on another node: a file that is not there, or another one of the same name. Chunks come one at a time, bit for bit."""
    rng = np.random.default_rng(0)
    state = TrainerState({f"{REPLAY}obs": rng.random((1000, 8)), f"{REPLAY}next": np.arange(1000)}, {})
    _, replay = write_replay(state, ChunkWriter(tmp_path, ".replay-"), 20_000)
    replay = replace(replay, folder=str(tmp_path / replay.folder), kept=True)

    def unseen(reader, number):
        raise FileNotFoundError(2, "no such file")

    monkeypatch.setattr(ChunkReader, "shapes", unseen)
    monkeypatch.setattr(ChunkReader, "read", unseen)
    node = ray.get_runtime_context().get_node_id()
    with pytest.raises(FileNotFoundError):
        read_replay(OtherNodesReplay(replay, node))
    monkeypatch.setattr("raytrain.actors.replay.own_node", lambda: "another")
    found = read_replay(OtherNodesReplay(replay, node))
    assert len(replay.files) > 3 and all(np.array_equal(found[name], array) for name, array in state.tensors.items())
    file = Path(replay.folder) / replay.files[2].name
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(OSError, match="SHA-256 that the checkpoint lists"):
        read_replay(OtherNodesReplay(replay, node))


@pytest.mark.parametrize("trainer_type", ["ppo", "sac"])
def test_images_masks_and_memory_over_ray_and_local_give_the_same_bytes(private_ray, tmp_path, trainer_type):
    """C83 with every kind of observation, hybrid actions, masks and an LSTM: nothing of it is left on the way."""
    data = spaces_config(trainer_type, threaded=False)
    data["distributed"] = {"env_manager_cpus": 0.25, "trainer_cpus": 0.5}
    runs = [train(tmp_path, data, name, num_env_managers=2, local=name == "local") for name in ("ray", "local")]
    a, b = (load_file(max((run.path / "checkpoints").iterdir()) / "Everything" / "trainer.safetensors") for run in runs)
    assert runs[0].results["updates"] == runs[1].results["updates"] > 10
    assert a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_a_model_of_ones_own_is_found_by_every_process(private_ray, tmp_path):
    """Env manager, trainer and driver import it from the folder of the file; asynchronous."""
    (tmp_path / "model_over_ray.py").write_text(
        "import keras\n\n\ndef make(inputs):\n    return keras.layers.Dense(8, activation='tanh')(keras.layers.concatenate(list(inputs.values())))\n"
    )
    data = config(env="Acrobot-v1")
    data["behaviors"] = {"Acrobot": {**data["behaviors"]["CartPole"], "network_settings": {"model": "model_over_ray:make"}}}
    file = tmp_path / "model.yaml"
    file.write_text(yaml.safe_dump(data))
    run = train(tmp_path, file, "model")
    assert run.results["policy_updates"] >= 4
    policy = load_file(max((run.path / "checkpoints").iterdir()) / "Acrobot" / "policy.safetensors")
    assert any(name.startswith("actor/model/") for name in policy)


def test_an_exception_in_an_env_reaches_the_user(private_ray, tmp_path):
    """C19: type, message, file and line of the user's own code."""
    (tmp_path / "crashing.py").write_text(
        "import gymnasium as gym\n\nclass Crash(gym.Wrapper):\n    n = 0\n    def step(self, action):\n        self.n += 1\n"
        "        if self.n == 30:\n            raise ValueError('boom-42')\n        return self.env.step(action)\n\n"
        "def make():\n    return Crash(gym.make('CartPole-v1'))\n"
    )
    file = tmp_path / "crash.yaml"
    data = config(env="crashing:make")
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(RunFault) as caught:
        train(tmp_path, file, "crash")
    assert "ValueError: boom-42" in str(caught.value)
    assert "crashing.py" in caught.value.user_traceback and "line 8" in caught.value.user_traceback


def test_more_than_the_cluster_has_is_refused_with_both_numbers(private_ray, tmp_path):
    """C05: nothing is written, nothing hangs."""
    have = int(ray.cluster_resources()["CPU"])
    data = config(distributed={"num_env_managers": have * 4, "env_manager_cpus": 1, "trainer_cpus": 1})
    with pytest.raises(ClusterError, match=rf"needs {have * 4 + 1} CPUs.*has {have}"):
        train(tmp_path, data, "big")
    assert not (tmp_path / "big").exists()


@pytest.mark.parametrize(("message", "tries"), [("The current node timed out during startup.", 2), ("no room in /tmp", 1)])
def test_ray_gets_a_second_try_on_a_busy_machine_only(monkeypatch, message, tries):
    calls = []

    def init(**_):
        calls.append("init")
        raise Exception(message)  # noqa: TRY002 - as Ray does

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append("shutdown"))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr("raytrain.cluster.connection.read_ray_address", lambda: None)
    with pytest.raises(ClusterError, match=message):
        cluster.connect(None)
    assert calls == ["init", "shutdown"] * tries


def test_a_ray_that_was_there_is_used_and_left_running(private_ray, tmp_path):
    """C98: twice in one process, Ray stays as it was."""
    for number in range(2):
        train(tmp_path, config(), f"again-{number}")
        assert ray.is_initialized()
    alive = [a for a in ray.util.list_named_actors(all_namespaces=True)]
    assert alive == []


def test_resume_continues_to_the_unit(private_ray, tmp_path):
    """C21, C31: counters go on, steps of every tag strictly increase, the run ends at the new max_steps."""
    first = train(tmp_path, config(), "run")
    summaries = []
    data = config(behavior={"max_steps": 3000})
    second = train(tmp_path, data, "run", resume=True, on_summary=summaries.append)
    assert [s.step for s in summaries] == [2000, 2500, 3000]
    assert second.results["agent_steps"] >= 3000 > first.results["agent_steps"]
    steps = [int(line.split(",")[0]) for line in (second.path / "CartPole" / "metrics.csv").read_text().splitlines()[1:]]
    assert steps == [500, 1000, 1500, 2000, 2500, 3000]


def test_ctrl_c_saves_and_leaves_nothing_behind(tmp_path):
    """C99, D10: exit code 0 within 15 s, a checkpoint that resumes, no process left, the command to resume on the console."""
    file = tmp_path / "a b.yaml"  # a path with a space (C100)
    file.write_text(yaml.safe_dump(config(behavior={"max_steps": 50_000_000})))
    words = [sys.executable, str(ROOT / "scripts" / "train.py"), str(file), "--results-dir", str(tmp_path), "--run-id", "run"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "step" in line and "CartPole" in line and "steps/s" in line:
            break
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0, "".join(lines) + rest
    assert "--run-id run --resume" in rest
    assert time.monotonic() - started < 60
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "interrupted"
    manifest = max((tmp_path / "run" / "checkpoints").iterdir()) / "manifest.json"
    assert manifest.exists()
    assert not _children_named(str(tmp_path))


def _children_named(text: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir() if Path("/proc").exists() else []:
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text in (entry / "cmdline").read_text():
                    found.append(int(entry.name))
            except OSError:
                continue  # it has ended
    return found


def with_shares(data: dict) -> dict:
    """With small claims for the CPU."""
    return {**data, "distributed": {"env_manager_cpus": 0.25, "trainer_cpus": 0.5}}


@pytest.mark.parametrize("trainer", ["ppo", "sac"])
def test_a_run_in_lock_step_over_ray_goes_on_exactly(private_ray, tmp_path, trainer):
    """C21: two env managers, stopped somewhere after the first summary and at its end; against a run in one process that never stopped."""
    steps = {"ppo": 5120, "sac": 1536}[trainer]
    data = with_shares(exact_config(trainer=trainer, threaded=False, max_steps=steps))
    whole = train(tmp_path, data, "whole", num_env_managers=2, local=True)
    seen = []
    first = train(tmp_path, data, "parts", num_env_managers=2, on_summary=seen.append, should_stop=lambda: len(seen) >= 1)
    assert 0 < first.results["agent_steps"] < steps, "it was to stop on its way"
    longer = with_shares(exact_config(trainer=trainer, threaded=False, max_steps=steps + 256))
    assert unlike_in_trainers(whole, train(tmp_path, data, "parts", num_env_managers=2, resume=True)) == []
    parts = train(tmp_path, longer, "parts", num_env_managers=2, resume=True)
    whole = train(tmp_path, longer, "longer", num_env_managers=2, local=True)
    assert unlike_in_trainers(whole, parts) == []
    assert seen_by_the_trainer(parts) == seen_by_the_trainer(whole)


def unlike_in_trainers(a, b) -> list[str]:
    """At the end env managers over Ray may have collected a round more, which the next run would begin with."""
    return [name for name in differences_of_trainer(a, b) if not name.startswith("env_managers/")]


def seen_by_the_trainer(run) -> list[dict[str, str]]:
    """Rows of ``metrics.csv`` without how far env managers were ahead of it when it looked."""
    return [{k: v for k, v in row.items() if k != "System/Agent Steps Produced"} for row in metrics(run)]


def test_asynchronous_every_counter_goes_on_to_the_unit(private_ray, tmp_path):
    """C21: what the last checkpoint says is what the results say and what the resumed run begins with; what it adds is what its own account says."""
    data = with_shares(exact_config(threaded=True, max_steps=512))
    first = train(tmp_path, data, "run", num_env_managers=2)
    last = CheckpointStore.load(max((first.path / "checkpoints").iterdir()))
    first = first.results
    counters = ("agent_steps", "updates", "policy_updates")
    assert {name: last.behaviors["Windy"].trainer.scalars[name] for name in counters} == {name: first[name] for name in counters}
    assert last.run["env_steps"] == first["env_steps"]
    data = with_shares(exact_config(threaded=True, max_steps=1024))
    again = train(tmp_path, data, "run", num_env_managers=2, resume=True)
    loaded = [CheckpointStore.load(path) for path in sorted((again.path / "checkpoints").iterdir())]
    begun = [one for one in loaded if (one.run["agent_steps"], one.run["env_steps"]) == (first["agent_steps"], first["env_steps"])]
    assert len(begun) == 2, "the last one of the first part, and the first one of the second"
    assert begun[0].behaviors["Windy"].trainer.scalars == begun[1].behaviors["Windy"].trainer.scalars
    assert begun[0].run["stop"] == begun[1].run["stop"]
    assert begun[0].run["loops"]["Windy"]["recent_returns"] == begun[1].run["loops"]["Windy"]["recent_returns"]
    results, ledger = again.results, again.results["ledger"]
    assert ledger["produced"] == ledger["consumed"] + sum(v for k, v in ledger.items() if k.startswith("dropped_"))
    assert results["agent_steps"] - first["agent_steps"] == ledger["consumed"] > 0
    assert results["policy_updates"] > first["policy_updates"] > 0 and results["env_steps"] - first["env_steps"] >= ledger["consumed"]
