"""The examples of docs/extending.md as they stand, and trainers of the user's own: what is checked, saved and resumed."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import raytrain
from envs.own_code import NETWORK, SAMPLER, SIGNAL, TRAINER, load
from raytrain.config import load_config
from raytrain.errors import ConfigError, RunFault
from tests.envs.test_own_code import install

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "docs" / "examples"
PLUGIN = EXAMPLES / "raytrain_plugin"

OWN = """
import numpy as np
from trainers.own_settings import Hyperparameters
from trainers.setting_types import PositiveFloat

class Walk:
    '''Every update adds noise to all weights, and keeps what it was given.'''

    class Hyperparameters(Hyperparameters):
        buffer_size: int = 64
        size: PositiveFloat = 0.1

    def __init__(self, spec, settings, weights, rng):
        self.size, self.rng, self.weights, self.rows = settings.hyperparameters.size, rng, weights, 0

    def update(self, rows):
        assert len(rows.inputs) == rows.batch.rows == len(rows.reward) and len(rows.last) == len(rows.batch.length)
        self.rows += rows.batch.rows
        self.weights = {n: w + self.size * self.rng.standard_normal(w.shape) for n, w in self.weights.items()}
        return {"rows": self.rows, "Policy/Reward Here": rows.reward.mean(), "highest": rows.inputs.vector.max()}

    def policy_weights(self):
        return self.weights

    def state(self):
        return {**self.weights, "rows": np.int64(self.rows)}

    def load_state(self, arrays):
        self.weights, self.rows = {n: arrays[n] for n in self.weights}, int(arrays["rows"])

class Forgets(Walk):
    def policy_weights(self):
        return {n: w for n, w in self.weights.items() if "log_std" not in n and "bias" not in n}

class Empty(Walk):
    def policy_weights(self):
        return {}

class Texts(Walk):
    def policy_weights(self):
        return dict.fromkeys(self.weights, "big")

class Infinite(Walk):
    def update(self, rows):
        self.weights = {n: w * np.inf for n, w in self.weights.items()}

class Raises(Walk):
    def update(self, rows):
        raise KeyError("boom-46")

class Words(Walk):
    def update(self, rows):
        return {"loss": "small"}

class NoModel(Walk):
    Hyperparameters = {"size": 1}

class Free(Walk):
    Hyperparameters = None

    def __init__(self, spec, settings, weights, rng):
        self.size, self.rng, self.weights, self.rows = settings.hyperparameters.whatever["size"], rng, weights, 0
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Name of a module beside the configuration."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"own_trainers_{tmp_path.name}.py").write_text(OWN)
    return f"own_trainers_{tmp_path.name}"


def config(trainer_type: str, max_steps: int = 512, hyperparameters: dict | None = None, **behavior) -> dict:
    return {
        "env": "CartPole-v1",
        "behaviors": {"CartPole": {
            "trainer_type": trainer_type, "hyperparameters": {"buffer_size": 128, **(hyperparameters or {})},
            "network_settings": {"hidden_units": 4, "num_layers": 1, **behavior.pop("network_settings", {})}, "max_steps": max_steps, "summary_freq": 128,
            "checkpoint_interval": 10_000, "time_horizon": 16, **behavior}},
        "env_settings": {"num_envs": 2, "seed": 3},
    }


def train(tmp_path, data, name="run", **options):
    return raytrain.train(data, local=True, results_dir=tmp_path / "results", run_id=name, **options)


def logged(run) -> list[dict[str, str]]:
    with next(run.path.glob("*/metrics.csv")).open() as file:
        return list(csv.DictReader(file))


def tensors(run) -> dict[str, np.ndarray]:
    last = run.path / (run.path / "latest").read_text().strip()
    return load_file(next(last.rglob("trainer*.safetensors")))


@pytest.mark.slow
def test_an_own_trainer_learns_logs_and_goes_on_where_it_was(tmp_path, own):
    signal = {"own": {"count": {"signal": "raytrain_plugin.count_based:CountBased", "strength": 0.5}}}
    whole = config(f"{own}:Walk", 512, reward_signals=signal, network_settings={"normalize": True})
    whole["import_from"] = str(tmp_path)
    sys.path.append(str(PLUGIN))
    try:
        run = train(tmp_path, whole, "whole")
        half = train(tmp_path, whole, "half", overrides={"behaviors.CartPole.max_steps": 256})
        again = train(tmp_path, whole, "half", resume=True)
    finally:
        sys.path.remove(str(PLUGIN))
    assert half.results["policy_updates"] == 2 and again.results["policy_updates"] == run.results["policy_updates"] == 4
    last = logged(run)[-1]
    assert float(last["Trainer/rows"]) > 256 and float(last["Policy/Reward Here"]) > 1.0  # with what the signal pays
    assert float(last["Signals/count/cells visited"]) > 1 and float(last["Trainer/highest"]) <= 5.0  # normalised and clipped
    assert tensors(again)["own/rows"] >= 512 - 64  # what it had counted before was not lost
    assert raytrain.load_policy(run.path).act(np.zeros(4, np.float32)) in (0, 1)
    saved = load_config(run.path / "configuration.yaml").behaviors["CartPole"].hyperparameters
    assert saved.model_dump() == {"buffer_size": 128, "size": 0.1}


def test_another_run_begins_with_its_weights(tmp_path, own):
    run = train(tmp_path, config(f"{own}:Walk", 256), "first")
    begun = train(tmp_path, config(f"{own}:Walk", 128, {"size": 1e-6}), "second", initialize_from=str(run.path))
    before, after = tensors(run), tensors(begun)
    moved = [name for name in before if name.startswith("actor/")]
    assert moved and all(np.allclose(before[name], after[name], atol=1e-4) for name in moved)


def test_without_a_model_every_key_is_taken(tmp_path, own):
    assert train(tmp_path, config(f"{own}:Free", 128, {"whatever": {"size": 0.2}})).results["policy_updates"] == 1


@pytest.mark.parametrize(("name", "hyperparameters", "words"), [
    ("Walkk", {}, r"behaviors.CartPole.trainer_type .* has no class 'Walkk'; it has: Walk"),
    ("Walk", {"siez": 1}, r"behaviors.CartPole.hyperparameters.siez  unknown key \(received 1\); did you mean size\?"),
    ("Walk", {"size": -1}, r"behaviors.CartPole.hyperparameters.size  expected a number > 0, received -1"),
    ("Walk", {"size": "big"}, r"behaviors.CartPole.hyperparameters.size  expected a number, received text 'big'"),
    ("NoModel", {}, r"expected NoModel.Hyperparameters to be a pydantic model with a field buffer_size"),
    ("OWN", {}, r"has no class 'OWN'"),
    ("PositiveFloat", {}, r"trainer_type .* (has no class|expected a class)"),
])
def test_a_mistake_is_named_before_anything_starts(tmp_path, own, name, hyperparameters, words):
    with pytest.raises(ConfigError, match=words):
        train(tmp_path, config(f"{own}:{name}", hyperparameters=hyperparameters))
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(("name", "words"), [
    ("Forgets", r"Expected the weights of a policy from trainer_type .*:Forgets, policy_weights: .*bias is missing"),
    ("Empty", r"Expected the weights of a policy from trainer_type .*:Empty, policy_weights, a dict of arrays by the names .*actor/.* \[.*received an empty dict"),
    ("Texts", r"Expected the weights of a policy from trainer_type .*:Texts, policy_weights, an array of numbers for actor/.*, received 'big'"),
    ("Infinite", r"Expected the weights of a policy from trainer_type .*:Infinite, policy_weights"),
    ("Raises", r"KeyError: 'boom-46' \(in trainer_type .*:Raises, update\)"), ("Words", r"Expected numbers by name, or None, from .*:Words, update"),
])
def test_a_fault_in_an_own_trainer_names_it(tmp_path, own, name, words):
    with pytest.raises(RunFault, match=words) as caught:
        train(tmp_path, config(f"{own}:{name}"))
    assert bool(caught.value.user_traceback) == (name == "Raises"), "what is refused by a check is a sentence"


def test_cloning_beside_an_own_trainer_is_refused(own):
    with pytest.raises(ConfigError, match="expected no behavioral_cloning with trainer_type"):
        load_config(config(f"{own}:Walk", behavioral_cloning={"demo_path": "a"}))


def test_hyperparameters_of_other_trainers_do_not_reach_it(own):
    data = config(f"{own}:Walk")
    data["default_settings"] = {"hyperparameters": {"batch_size": 64}, "time_horizon": 32}
    assert load_config(data).behaviors["CartPole"].hyperparameters.model_dump() == {"buffer_size": 128}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The example package as if it were installed: its modules on the path, and the names that its pyproject.toml gives."""
    import tomllib

    groups = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]["entry-points"]
    site = tmp_path / "site"
    site.mkdir()
    for i, (group, names) in enumerate(groups.items()):
        install(site, f"plugin{i}", group, **names)
    monkeypatch.syspath_prepend(site)
    monkeypatch.syspath_prepend(PLUGIN)
    return groups


def test_every_name_of_the_package_leads_to_what_is_asked_for(installed):
    kinds = {kind.group: kind for kind in (TRAINER, SIGNAL, NETWORK, SAMPLER)}
    assert installed.keys() == kinds.keys()
    for group, names in installed.items():
        for name, value in names.items():
            assert load(kinds[group], name).__name__ == value.partition(":")[2]


@pytest.mark.slow
def test_installed_names_are_names_like_built_in_ones(tmp_path, installed):
    run = train(tmp_path, EXAMPLES / "plugin.yaml", overrides={"behaviors.CartPole.max_steps": 4000, "env_settings.seed": 1})
    assert run.results["policy_updates"] == 2
    with pytest.raises(ConfigError, match=r"expected ppo, sac, bc, hill_climbing or module:Class, received text 'hill_climbin'; did you mean hill_climbing\?"):
        load_config(EXAMPLES / "plugin.yaml", {"behaviors.CartPole.trainer_type": "hill_climbin"})


def test_without_the_package_its_names_are_refused():
    with pytest.raises(ConfigError, match=r"received text 'hill_climbing'; no installed package gives that name"):
        load_config(EXAMPLES / "plugin.yaml")


def test_a_package_that_takes_a_built_in_name_is_refused(tmp_path, monkeypatch):
    install(tmp_path, "thieves", TRAINER.group, ppo="somewhere:Else")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"trainer_type .*not built in from thieves"):
        train(tmp_path, config("ppo", hyperparameters={"batch_size": 64}))


def test_every_example_is_run_by_a_command_of_the_page():
    page = (REPOSITORY / "docs" / "extending.md").read_text()
    assert all(f"raytrain train docs/examples/{file.name}" in page for file in EXAMPLES.glob("*.yaml"))


@pytest.mark.slow
def test_signal_network_and_sampler_in_one_run(tmp_path):
    run = train(tmp_path, EXAMPLES / "signal.yaml", overrides={"behaviors.PoleEnv.max_steps": 3000, "behaviors.PoleEnv.summary_freq": 1000})
    assert float(logged(run)[-1]["Signals/count/cells visited"]) > 10


@pytest.mark.slow
def test_reinforce_learns_and_without_learning_does_not(tmp_path):
    """A random policy has a mean return of about 22."""
    steps = {"behaviors.CartPole.max_steps": 60_000, "env_settings.seed": 1}
    learnt = train(tmp_path, EXAMPLES / "reinforce.yaml", "learnt", overrides=steps)
    control = train(tmp_path, EXAMPLES / "reinforce.yaml", "control", overrides={**steps, "behaviors.CartPole.hyperparameters.learning_rate": 1e-9})
    assert learnt.results["mean_return"] > 100 and control.results["mean_return"] < 40


@pytest.mark.slow
def test_hill_climbing_learns_and_without_steps_does_not(tmp_path, installed):
    steps = {"behaviors.CartPole.max_steps": 60_000, "env_settings.seed": 1}
    learnt = train(tmp_path, EXAMPLES / "plugin.yaml", "learnt", overrides=steps)
    small = {"behaviors.CartPole.hyperparameters.step": 1e-9, "behaviors.CartPole.hyperparameters.growth": 1.0}
    control = train(tmp_path, EXAMPLES / "plugin.yaml", "control", overrides={**steps, **small})
    assert learnt.results["mean_return"] > 45 and control.results["mean_return"] < 35


@pytest.mark.slow
def test_the_package_can_be_installed(tmp_path):
    """By pip, without looking anything up; then the command finds its names."""
    pytest.importorskip("setuptools")
    import shutil

    source = shutil.copytree(PLUGIN, tmp_path / "plugin")  # a build leaves folders behind
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(tmp_path / "site"), str(source)]
    subprocess.run(pip, check=True, timeout=300, capture_output=True)
    code = "from envs.own_code import *; print(installed_names(TRAINER), load(SAMPLER, 'log_uniform').__name__)"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": f"{REPOSITORY}:{tmp_path / 'site'}"}, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["['hill_climbing']", "LogUniform"]
