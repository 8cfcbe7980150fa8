"""A trainer, a signal and a sampler of the user's own over Ray: their modules lie beside the configuration only."""

from __future__ import annotations

import numpy as np
import yaml

import raytrain
from tests.cluster.test_runs import tensors
from tests.raytrain.test_extending import OWN

SIGNAL = """
import numpy as np

class Seen:
    def __init__(self, spec):
        self.seen = 0

    def rewards(self, transitions):
        return np.full(len(transitions), 0.5)

    def learn(self, transitions):
        self.seen += len(transitions)

    def state(self):
        return {"seen": np.int64(self.seen)}

    def load_state(self, arrays):
        self.seen = int(arrays["seen"])
"""


def test_own_code_beside_the_file_gives_the_same_bytes_over_ray_and_locally(private_ray, tmp_path):
    (tmp_path / "own_code_over_ray.py").write_text(OWN + SIGNAL)
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({
        "env": "CartPole-v1", "env_settings": {"num_envs": 4, "seed": 3}, "distributed": {"env_manager_cpus": 0.25, "trainer_cpus": 0.5},
        "behaviors": {"CartPole": {
            "trainer_type": "own_code_over_ray:Walk", "hyperparameters": {"buffer_size": 128}, "network_settings": {"hidden_units": 4, "num_layers": 1},
            "reward_signals": {"own": {"seen": {"signal": "own_code_over_ray:Seen"}}}, "max_steps": 512, "summary_freq": 128,
            "checkpoint_interval": 256, "time_horizon": 16, "threaded": False}},
    }))
    runs = [raytrain.train(file, results_dir=tmp_path / "results", run_id=name, local=name == "local") for name in ("local", "ray")]
    local, ray = map(tensors, runs)
    assert local.keys() == ray.keys() and {"own/rows", "signals/seen/own/seen"} <= local.keys()
    assert all(np.array_equal(local[name], ray[name]) for name in local)
    assert ray["own/rows"] == ray["signals/seen/own/seen"] >= 512
