"""Whole runs learn: the ready-made CartPole file in all three ways, the tiny world of ML-Agents' own suite, and controls that must not."""

from pathlib import Path

import pytest

import raytrain
from raytrain.default_run import default_config

ROOT = Path(__file__).resolve().parents[2]
CARTPOLE = ROOT / "yaml" / "ppo" / "CartPole.yaml"
RANDOM_RETURN = 23.0  # of a random policy on CartPole
pytestmark = pytest.mark.learning


def cartpole(tmp_path, **options):
    overrides = options.pop("overrides", {})
    return raytrain.train(CARTPOLE, results_dir=tmp_path, run_id="run", seed=1, overrides=overrides, **options)


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("local", {"local": True}),
        ("asynchronous", {}),
        ("lock-step", {"overrides": {"behaviors.CartPole.threaded": False}}),
    ],
)
def test_the_same_file_solves_cartpole_in_every_way(tmp_path, way, options):
    """Mean return 475 of the last 100 episodes within 600,000 agent steps (it takes about 200,000), whatever carries the data."""
    run = cartpole(tmp_path, **{**options, "overrides": {**options.get("overrides", {}), "behaviors.CartPole.max_steps": 600_000}})
    assert "stop.reward=475" in run.results["reason"], run.results


def test_without_learning_cartpole_stays_at_random(tmp_path):
    """Negative control: learning rate 0. A random policy gets about 23; passing the tests above takes 475."""
    run = cartpole(
        tmp_path, local=True,
        overrides={"behaviors.CartPole.max_steps": 50_000, "behaviors.CartPole.hyperparameters.learning_rate": 0.0},
    )
    assert run.results["mean_return"] < 2 * RANDOM_RETURN


def test_more_lag_still_learns(tmp_path):
    """C12: with a lag limit of 4 the return is at least 0.8 × that of lag 0 at equal steps (about 60 updates)."""
    returns = {}
    for lag in (0, 4):
        run = raytrain.train(
            CARTPOLE, results_dir=tmp_path, run_id=f"lag{lag}", seed=2,
            overrides={"distributed.max_policy_lag": lag, "behaviors.CartPole.max_steps": 500_000, "stop.reward": None},
        )
        returns[lag] = run.results["mean_return"]
    assert returns[0] > 300
    assert returns[4] >= 0.8 * returns[0]


def simple(tmp_path, action: str, learning_rate: float = 5e-3, dimensions: int = 1, max_steps: int = 3000):
    """The base configuration of ML-Agents' learning tests: minibatch 16, buffer 64, one layer of 32."""
    config = {
        "env": "envs.toy:SimpleEnvironment", "env_kwargs": {"action": action, "dimensions": dimensions, "step_size": 0.2},
        "behaviors": {"SimpleEnvironment": {
            "hyperparameters": {
                "batch_size": 16, "buffer_size": 64, "learning_rate": learning_rate, "learning_rate_schedule": "constant", "beta": 5e-3,
                "epsilon": 0.2, "lambd": 0.95, "num_epoch": 3,
            },
            "network_settings": {"hidden_units": 32, "num_layers": 1}, "max_steps": max_steps, "summary_freq": 500, "time_horizon": 64,
        }},
        "env_settings": {"seed": 1337}, "stop": {"episodes": 20},
    }
    return raytrain.train(config, results_dir=tmp_path, run_id="run", local=True)


@pytest.mark.parametrize("action", ["discrete", "continuous"])
def test_the_simple_environment_is_learnt(tmp_path, action):
    """ML-Agents' cell simple_ppo: above 0.9 within 3,000 steps; here over the last 20 episodes."""
    assert simple(tmp_path, action).results["mean_return"] > 0.9


@pytest.mark.parametrize("action", ["discrete", "continuous"])
def test_the_simple_environment_is_not_learnt_at_learning_rate_zero(tmp_path, action):
    """Negative control: half of a random policy's episodes go to the wrong side."""
    assert simple(tmp_path, action, learning_rate=0.0).results["mean_return"] < 0.6


@pytest.mark.parametrize(("env", "trainer", "goal", "steps"), [
    ("CartPole-v1", "ppo", 475, 600_000), ("Pendulum-v1", "ppo", -250, 1_000_000), ("CartPole-v1", "sac", 400, 100_000), ("Pendulum-v1", "sac", -250, 20_000),
])
def test_settings_that_nobody_chose_learn(tmp_path, env, trainer, goal, steps):
    """``raytrain train --env``: a random policy gets about 23 on CartPole and -1200 on Pendulum."""
    name = env.partition("-")[0]
    given = {"stop.reward": goal, "stop.episodes": 100 if trainer == "ppo" else 20}
    config = default_config(env, trainer, given)
    assert steps <= config.behaviors[name].max_steps
    run = raytrain.train(config.document.data, results_dir=tmp_path, run_id="run", seed=1, local=True)
    assert "reached stop.reward" in run.results["reason"] and run.results["agent_steps"] <= steps, run.results
