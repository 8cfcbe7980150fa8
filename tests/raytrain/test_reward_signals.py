"""Runs with reward signals and cloning: what is logged, what a resume goes on with, and what is refused before anything starts."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from safetensors.numpy import load_file

import raytrain
from envs.demonstrations import Demonstrations, write_demonstrations
from envs.gymnasium_env import probe_spec
from raytrain.errors import ConfigError, RunFault
from raytrain.snapshot import CheckpointError

PPO = {"buffer_size": 256, "batch_size": 64, "num_epoch": 2, "learning_rate_schedule": "constant", "beta_schedule": "constant", "epsilon_schedule": "constant"}
SAC = {"buffer_size": 2000, "batch_size": 32, "buffer_init_steps": 64, "steps_per_update": 8, "save_replay_buffer": True}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """CartPole pushed towards where the pole falls, with ends."""
    import gymnasium as gym

    (spec,) = probe_spec("CartPole-v1", {}).values()
    name, env, columns, lengths, last = spec.observations[0].name, gym.make("CartPole-v1"), ([], []), [], []
    for seed in range(4):
        x, _ = env.reset(seed=seed)
        n, over = 0, False
        while not over and n < 60:
            action = int(x[2] + x[3] > 0)
            columns[0].append(x)
            columns[1].append([action])
            x, _, over, _, _ = env.step(action)
            n += 1
        lengths.append(n)
        last.append(x)
    rows = len(columns[0])
    path = tmp_path_factory.mktemp("demos") / "expert.safetensors"
    write_demonstrations(path, Demonstrations(
        spec=spec, obs={name: np.array(columns[0], np.float32)}, continuous=np.zeros((rows, 0), np.float32),
        discrete=np.array(columns[1], np.int32), reward=np.ones(rows, np.float32), length=np.array(lengths, np.int32),
        terminated=np.zeros(len(lengths), bool), next_obs={name: np.array(last, np.float32)}, action_mask=None))
    return path


def config(trainer_type: str = "ppo", signals: dict | None = None, max_steps: int = 600, **behavior) -> dict:
    return {
        "env": "CartPole-v1",
        "behaviors": {"CartPole": {
            "trainer_type": trainer_type, "hyperparameters": PPO if trainer_type == "ppo" else SAC,
            "network_settings": {"hidden_units": 8, "num_layers": 1}, "reward_signals": signals or {}, "max_steps": max_steps,
            "summary_freq": 200, "checkpoint_interval": 10_000, "time_horizon": 16, **behavior,
        }},
        "env_settings": {"num_envs": 4, "seed": 3},
    }


def train(tmp_path, data, name="run", **options):
    return raytrain.train(data, local=True, results_dir=tmp_path, run_id=name, **options)


def logged(run) -> dict[str, str]:
    """The last value of each tag."""
    with next(run.path.glob("*/metrics.csv")).open() as file:
        return {tag: value for row in csv.DictReader(file) for tag, value in row.items() if value}


def every_signal(demo) -> dict:
    small = {"network_settings": {"hidden_units": 8}}
    return {"curiosity": {"strength": 0.1, **small}, "rnd": {"gamma": 0.9, **small}, "gail": {"demo_path": str(demo), "use_actions": True, **small}}


TAGS = {
    "Policy/Curiosity Reward", "Policy/RND Reward", "Policy/GAIL Reward", "Policy/Curiosity Value Estimate", "Policy/RND Value Estimate",
    "Policy/GAIL Value Estimate", "Losses/Curiosity Forward Loss", "Losses/Curiosity Inverse Loss", "Losses/RND Loss", "Losses/GAIL Loss",
    "Policy/GAIL Policy Estimate", "Policy/GAIL Expert Estimate", "Policy/GAIL Grad Mag Loss", "Losses/Pretraining Loss",
}


@pytest.mark.slow
@pytest.mark.parametrize("trainer_type", ["ppo", "sac"])
def test_every_signal_at_once(tmp_path, demo, trainer_type):
    cloning = {"demo_path": str(demo), "strength": 0.5}
    data = config(trainer_type, every_signal(demo), 1200, behavioral_cloning=cloning)
    whole = train(tmp_path, data, "whole")
    assert {tag for tag in TAGS if logged(whole).get(tag)} == TAGS
    weights = load_file(max((whole.path / "checkpoints").iterdir()) / "CartPole" / "trainer.safetensors")
    for name in ("curiosity", "rnd", "gail"):
        assert any(key.startswith(f"signals/{name}/adam/") for key in weights)
        assert trainer_type == "sac" or weights[f"critic/value_{name}/kernel"].shape == (8, 1)
    assert trainer_type == "ppo" or weights["critic/q/kernel"].shape == (2, 8, 4 * 2), "four signals, two choices"
    assert all(np.isfinite(w).all() for w in weights.values() if w.dtype.kind == "f")


@pytest.mark.parametrize("trainer_type", ["ppo", "sac"])
@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_models(tmp_path, trainer_type):
    data = config(trainer_type, {"rnd": {"network_settings": {"hidden_units": 8}}})
    first = train(tmp_path, data)
    before = load_file(max((first.path / "checkpoints").iterdir()) / "CartPole" / "trainer.safetensors")
    data["behaviors"]["CartPole"]["max_steps"] = 1200
    second = train(tmp_path, data, resume=True)
    after = load_file(max((second.path / "checkpoints").iterdir()) / "CartPole" / "trainer.safetensors")
    target, predictor = "signals/rnd/rnd/target/dense_0/kernel", "signals/rnd/rnd/predictor/dense_0/kernel"
    np.testing.assert_array_equal(before[target], after[target])
    assert not np.array_equal(before[predictor], after[predictor])


@pytest.mark.slow
def test_a_resume_without_the_signals_state_is_refused(tmp_path):
    train(tmp_path, config())
    with pytest.raises(CheckpointError, match=r"reward_signals besides extrinsic: \[\] in the checkpoint, \['rnd'\] here"):
        train(tmp_path, config(signals={"rnd": {}}, max_steps=1200), resume=True)


OWN = """
import numpy as np


class Faster:
    ends_matter = True

    def __init__(self, spec, scale=1.0):
        self.scale, self.calls = scale, 0

    def rewards(self, transitions):
        return self.scale * np.abs(transitions.after.vector[:, 1])

    def learn(self, transitions):
        self.calls += 1
        return {"calls": self.calls}

    def state(self):
        return {"calls": np.array(self.calls)}

    def load_state(self, arrays):
        self.calls = int(arrays["calls"])


class Broken:
    def __init__(self, spec):
        raise RuntimeError("boom-44")

    def rewards(self, transitions):
        raise NotImplementedError


class Plain:
    def __init__(self, spec):
        pass


class Short(Plain):
    def rewards(self, transitions):
        return np.zeros(3)


class Half(Short):
    def state(self):
        return {}


class Texts(Half):
    def state(self):
        return {"name": "text"}

    def load_state(self, arrays):
        pass


class Raises(Plain):
    def rewards(self, transitions):
        raise KeyError("boom-45")


class Words(Plain):
    def rewards(self, transitions):
        return ["a"]


class Three(Plain):
    def rewards(self, transitions):
        return np.zeros(len(transitions))

    def learn(self, transitions):
        return 3
"""


def own(tmp_path, signal: str, **settings) -> dict:
    module = f"own_signals_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(OWN)
    return {"own": {"faster": {"signal": f"{module}:{signal}", **settings}}}


@pytest.mark.slow
def test_a_signal_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    signals = own(tmp_path, "Faster", strength=0.5, kwargs={"scale": 2.0})
    run = train(tmp_path, config(signals=signals))
    row = logged(run)
    assert float(row["Policy/Faster Reward"]) > 0 and float(row["Signals/faster/calls"]) >= 1 and row["Policy/Faster Value Estimate"]
    again = train(tmp_path, config(signals=signals, max_steps=1200), resume=True)
    assert float(logged(again)["Signals/faster/calls"]) > float(row["Signals/faster/calls"])


@pytest.mark.parametrize(("signal", "kwargs", "words"), [
    ("Nobody", {}, "has no class 'Nobody'; it has: Broken"), ("Faster", {"speed": 1}, "unexpected keyword argument 'speed'"), ("Broken", {}, "boom-44"),
    ("Plain", {}, "a method rewards"), ("Half", {}, "with state and without load_state"), ("Texts", {}, "numeric arrays from reward_signals.own.faster"),
])
def test_a_signal_of_ones_own_that_cannot_be_made(tmp_path, monkeypatch, signal, kwargs, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, RunFault), match=words):
        train(tmp_path, config(signals=own(tmp_path, signal, kwargs=kwargs)))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("signal", "words"), [
    ("Short", r"one reward for each of .* transitions from reward_signals.own.faster own_signals_.*Short.rewards"),
    ("Raises", r"KeyError: 'boom-45' \(in reward_signals.own.faster own_signals_.*Raises.rewards\)"), ("Words", r"Expected numbers from .*Words.rewards"),
    ("Three", "Expected numbers by name, or None, from .*Three.learn, received 3"),
])
def test_a_fault_in_a_signal_of_ones_own_names_it(tmp_path, monkeypatch, signal, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunFault, match=words):
        train(tmp_path, config(signals=own(tmp_path, signal)))


@pytest.mark.parametrize(("behavior", "path", "words"), [
    ({"signals": {"gail": {"demo_path": "nothing.safetensors"}}}, "reward_signals.gail.demo_path", "nothing.safetensors"),
    ({"behavioral_cloning": {"demo_path": "nothing"}}, "behavioral_cloning.demo_path", "nothing"),
    ({"signals": {"gail": {"demo_path": "x", "end_aware": True, "gamma": 1.0}}}, "reward_signals.gail.gamma", "below 1"),
    ({"trainer_type": "sac", "signals": {"rnd": {}}, "hyperparameters": {**SAC, "n_step": 3}}, "hyperparameters.n_step", "n_step: 1"),
], ids=["no demonstrations", "no demonstrations to clone", "ends without a discount", "n steps"])
def test_what_is_refused(tmp_path, behavior, path, words):
    with pytest.raises(ConfigError) as caught:
        train(tmp_path, config(**behavior))
    assert path in str(caught.value) and words in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_demonstration_of_another_environment_is_refused(tmp_path, demo):
    data = config(signals={"gail": {"demo_path": str(demo)}})
    data["env"], data["behaviors"] = "Acrobot-v1", {"Acrobot": data["behaviors"]["CartPole"]}
    with pytest.raises(ConfigError, match=r"gail\.demo_path"):
        train(tmp_path, data)


@pytest.mark.slow
def test_demonstrations_lie_beside_the_file(tmp_path, demo):
    """A relative path starts at the YAML file, wherever the command is called."""
    import shutil

    import yaml

    (tmp_path / "demos").mkdir()
    shutil.copy(demo, tmp_path / "demos")
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(config(behavioral_cloning={"demo_path": "demos"}, max_steps=300)))
    run = raytrain.train(file, local=True, results_dir=tmp_path, run_id="run")
    saved = yaml.safe_load((run.path / "configuration.yaml").read_text())
    assert saved["behaviors"]["CartPole"]["behavioral_cloning"]["demo_path"] == str(tmp_path / "demos")
