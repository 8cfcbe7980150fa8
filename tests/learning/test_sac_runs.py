"""Whole SAC runs learn: ML-Agents' tiny world with every kind of action, CartPole, Pendulum on two scales, and controls that must not."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import yaml

import raytrain

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.learning


def ready_made(name: str) -> dict:
    """A file of yaml/sac as a dict."""
    return yaml.safe_load((ROOT / "yaml" / "sac" / f"{name}.yaml").read_text(encoding="utf-8"))


# -- the tiny world ----------------------------------------------------------------------------------------------------

# action, dimensions, step size, agent steps, threshold, what differs from the base. Where several positions move at once the world
# ends only when all have arrived, so a larger step makes up for the noise that the entropy target asks for.
CELLS = {
    "discrete": ("discrete", 1, 0.2, 1_000, 0.9, {}),
    "continuous": ("continuous", 1, 0.2, 1_000, 0.9, {}),
    "multi_discrete": ("discrete", 2, 0.8, 4_000, 0.8, {"target_entropy_scale": 0.2}),  # ML-Agents' value: 0.7 of each branch is too random for 0.8
    "continuous_2d": ("continuous", 2, 0.8, 4_000, 0.8, {}),
    "hybrid": ("hybrid", 1, 0.8, 4_000, 0.9, {"batch_size": 256, "buffer_size": 50_000, "buffer_init_steps": 0}),
}


def simple(tmp_path, cell: str, **changes) -> raytrain.Run:
    """The base configuration of ML-Agents' learning tests for SAC: batches of 8, one layer of 16, updates from step 100 on."""
    action, dimensions, step_size, max_steps, _, differs = CELLS[cell]
    hyper = {
        "batch_size": 8, "buffer_size": 5_000, "learning_rate": 5e-3, "learning_rate_schedule": "constant", "buffer_init_steps": 100,
        "init_entcoef": 0.01, "tau": 0.01, "steps_per_update": 1, **differs, **changes,
    }
    config = {
        "env": "envs.toy:SimpleEnvironment", "env_kwargs": {"action": action, "dimensions": dimensions, "step_size": step_size},
        "behaviors": {"SimpleEnvironment": {
            "trainer_type": "sac", "hyperparameters": hyper, "network_settings": {"hidden_units": 16, "num_layers": 1},
            "max_steps": max_steps, "summary_freq": 100, "time_horizon": 64,
        }},
        "env_settings": {"seed": 1337}, "stop": {"episodes": 20},
    }
    return raytrain.train(config, results_dir=tmp_path, run_id="run", local=True)


@pytest.mark.parametrize("cell", CELLS)
def test_the_simple_environment_is_learnt(tmp_path, cell):
    """ML-Agents' cells simple_sac, 2d_sac and hybrid_sac: above 0.9 (0.8 in two dimensions) over the last 20 episodes."""
    assert simple(tmp_path, cell).results["mean_return"] > CELLS[cell][4]


@pytest.mark.parametrize("cell", CELLS)
def test_the_simple_environment_is_not_learnt_at_learning_rate_zero(tmp_path, cell):
    """Negative control: the first policy goes to either side, whatever the goal."""
    assert simple(tmp_path, cell, learning_rate=0.0).results["mean_return"] < 0.5


# -- CartPole ----------------------------------------------------------------------------------------------------------


def cartpole(tmp_path, max_steps: int = 30_000, **hyper) -> tuple[float, list[float]]:
    """The ready-made file with the entropy target that is the default: the best mean return of 20 episodes in a row, and all α."""
    config, returns, summaries = ready_made("CartPole"), [], []
    behavior = config["behaviors"]["CartPole"]
    behavior["hyperparameters"].pop("target_entropy_scale", None)
    behavior["hyperparameters"].update(hyper)
    behavior["max_steps"] = max_steps
    config["stop"] = {}
    raytrain.train(
        config, results_dir=tmp_path, run_id="run", seed=1, local=True, on_summary=summaries.append,
        on_episode=lambda behavior, reward, length, step: returns.append(reward),
    )
    means = np.convolve(returns, np.full(20, 1 / 20), "valid")
    tag = "Policy/Discrete Entropy Coeff"
    return float(means.max()), [s.values[tag] for s in summaries if tag in s.values]


def test_cartpole_is_learnt_with_discrete_actions(tmp_path):
    """A training return of 150 within 30,000 steps (a random policy gets 23), and α neither dies out nor runs away in all of them."""
    best, alphas = cartpole(tmp_path)
    assert best >= 150
    assert len(alphas) >= 14 and 1e-4 < min(alphas) <= max(alphas) < 10.0


def test_cartpole_stays_at_random_at_learning_rate_zero(tmp_path):
    """Negative control: not even the best 20 episodes in a row."""
    best, _ = cartpole(tmp_path, max_steps=6_000, learning_rate=0.0, steps_per_update=10)
    assert best < 50


# -- Pendulum ----------------------------------------------------------------------------------------------------------


def wide_pendulum() -> gym.Env:
    """Pendulum whose torque is said on a scale from 0 to 1000."""
    return gym.wrappers.RescaleAction(gym.make("Pendulum-v1"), np.float32(0.0), np.float32(1000.0))


def pendulum(tmp_path, env: str, max_steps: int = 20_000, **hyper) -> tuple[raytrain.Run, list]:
    config, summaries = ready_made("Pendulum"), []
    config["env"] = env
    (behavior,) = config["behaviors"].values()
    config["behaviors"] = {"Pendulum": behavior}
    behavior["hyperparameters"].update(hyper)
    behavior["max_steps"] = max_steps
    config["stop"] = {"reward": -200, "episodes": 20}
    run = raytrain.train(config, results_dir=tmp_path, run_id="run", seed=1, local=True, on_summary=summaries.append)
    return run, summaries


@pytest.mark.parametrize("env", ["Pendulum-v1", "tests.learning.test_sac_runs:wide_pendulum"])
def test_pendulum_is_learnt_whatever_the_scale_of_its_action(tmp_path, env):
    """C44: −200 over 20 episodes within 20,000 steps with the torque on [-2, 2] and on [0, 1000].

    The entropy is that of policy space on both: held at −1, where that of the scale from 0 to 1000 would be 6.2 higher.
    """
    run, summaries = pendulum(tmp_path, env)
    assert "stop.reward=-200" in run.results["reason"], run.results
    assert abs(summaries[-1].values["Policy/Entropy"] + 1.0) < 0.7
    policy = raytrain.load_policy(run.path, which="latest")
    given = policy.act(np.random.default_rng(0).uniform(-1.0, 1.0, (200, 3)).astype(np.float32))
    low, high = policy.spec.action.low[0], policy.spec.action.high[0]
    assert (given >= low).all() and (given <= high).all() and np.ptp(given) > 0.5 * (high - low)


def test_pendulum_stays_at_random_at_learning_rate_zero(tmp_path):
    """Negative control: a random policy gets about −1,200."""
    run, _ = pendulum(tmp_path, "Pendulum-v1", max_steps=5_000, learning_rate=0.0, steps_per_update=10)
    assert run.results["mean_return"] < -900
