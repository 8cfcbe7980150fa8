"""What makes newcomers give up in their first half hour, where no other test covers it (CASES: D1, D4, D8, C94, C95)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from raytrain.config import load_config, summary_rows, to_yaml
from trainers.quiet_tensorflow import tf

REPOSITORY = Path(__file__).parents[2]
CARTPOLE = REPOSITORY / "yaml" / "ppo" / "CartPole.yaml"


def test_the_readme_says_what_it_is_tested_on():
    """D1, C100: before anything is installed; and setup.py refuses older versions of Python by itself."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert re.search(r"Tested on Linux .*Python 3\.11.*macOS.*Windows", readme)
    assert 'python_requires=">=3.11"' in (REPOSITORY / "setup.py").read_text(encoding="utf-8")


def test_requirements_are_ranges():
    """D1: a pin is what breaks beside another package."""
    lines = [line for line in (REPOSITORY / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines and not [line for line in lines if "==" in line or not re.search(r">=\d", line)]


def test_the_effective_configuration_is_printed_and_saved_with_every_default():
    """D4: what the file does not say can be read, and read back."""
    config = load_config({"env": "CartPole-v1", "behaviors": {"CartPole": {"hyperparameters": {"beta": 0.125}}}})
    assert "β 0.125" in "\n".join(text for _, text in summary_rows(config))
    (settings,) = load_config(yaml.safe_load(to_yaml(config))).behaviors.values()
    assert settings == config.behaviors["CartPole"] and "max_grad_norm: 0.5" in to_yaml(config)


def test_the_arithmetic_of_a_run_is_said_in_its_own_units():
    """D8: envs, agents, steps and rows; rounded up, so that a buffer is never short (C88)."""
    config = load_config(CARTPOLE, {"env_settings.num_envs": 4, "behaviors.CartPole.hyperparameters.buffer_size": 4096,
                                    "behaviors.CartPole.hyperparameters.batch_size": 512})
    table = "\n".join(text for _, text in summary_rows(config, {"CartPole": 3}))
    assert "an update each 4,096 agent steps: 4 envs × 3 agents × 342 steps = 4,104" in table and "9 minibatches of 512" in table


def test_every_counter_has_its_line_in_one_table():
    """D8: steps of what, updates of what."""
    page = (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| .+ \|$", page[page.index("## Counters") : page.index("## Tags")], re.MULTILINE)
    assert {"env steps", "agent steps", "updates", "policy updates", "episodes"} <= {row.partition(" | ")[0] for row in rows}


def test_a_trainer_takes_gpu_memory_as_it_needs_it(monkeypatch):
    """C94: of every GPU, since two trainers may share one."""
    from raytrain.tensorflow_setup import set_up_tensorflow

    asked = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["gpu-0", "gpu-1"] if kind == "GPU" else [])
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda device, on: asked.append((device, on)))
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: 7)
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", lambda threads: None)
    monkeypatch.setattr(tf.config.threading, "set_inter_op_parallelism_threads", lambda threads: None)
    set_up_tensorflow(threads=1)
    assert asked == [("gpu-0", True), ("gpu-1", True)]


@pytest.mark.cluster
def test_only_actors_that_claim_a_gpu_see_one(monkeypatch):
    """C94: on machines with GPUs; without any, nothing is said of them."""
    from raytrain.cluster import placing
    from raytrain.placement import Node
    from raytrain.settings import DistributedSettings

    def options(gpus: float, settings: DistributedSettings):
        monkeypatch.setattr(placing, "live_nodes", lambda: [Node("a", "a", {"CPU": 8.0, **({"GPU": gpus} if gpus else {})})])
        monkeypatch.setattr(placing, "demands_of", lambda plans, settings: [])
        place = placing.Placement([], settings)
        return place.trainer("A"), place.env_manager(), place.evaluator()

    hidden = {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}
    trainer, manager, evaluator = options(1.0, DistributedSettings(trainer_gpus=0.5))
    assert trainer["num_gpus"] == 0.5 and "runtime_env" not in trainer
    assert manager["num_gpus"] == 0.0 and manager["runtime_env"] == hidden == evaluator["runtime_env"]
    trainer, manager, evaluator = options(1.0, DistributedSettings(env_manager_resources={"GPU": 0.25}))
    assert trainer["runtime_env"] == hidden and "runtime_env" not in evaluator, "its environments need one as those of env managers do"
    assert all("runtime_env" not in one for one in options(0.0, DistributedSettings()))


OWN_NETWORK = """
import keras

def make(inputs):
    (x,) = inputs.values()
    return keras.layers.Lambda(lambda x: x * 2.0, output_shape=(4,))(keras.layers.Dense(4)(x))
"""


def test_a_keras_model_with_a_lambda_layer_travels_by_its_name(tmp_path, monkeypatch):
    """C95: what is pickled with a run is the name of its factory, never the model."""
    import pickle

    import numpy as np

    from tests.trainers.rollouts import DISCRETE, policy_of, random_observations, spec_of
    from trainers.registry import first_weights
    from trainers.settings import PPOSettings

    (tmp_path / "lambda_network.py").write_text(OWN_NETWORK)
    monkeypatch.syspath_prepend(tmp_path)
    settings = PPOSettings.model_validate({"network_settings": {"model": "lambda_network:make"}})
    spec = spec_of(DISCRETE)
    weights = first_weights(spec, settings, np.random.default_rng(0))
    spec, network, weights = pickle.loads(pickle.dumps((spec, settings.network_settings, {k: v for k, v in weights.items() if k.startswith("actor/")})))
    obs = random_observations(spec, np.random.default_rng(0), 3)
    assert np.isfinite(policy_of(spec, network, weights).act(obs, np.random.default_rng(0)).log_prob).all()
