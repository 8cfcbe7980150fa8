"""ML-Agents' learning tests for images, memory and mixed actions, for PPO and SAC: the same tiny worlds, budgets and thresholds.

Each kind has a control that must fail: a learning rate of 0, or a policy without memory where memory is needed.
"""

from __future__ import annotations

from typing import Any

import pytest

import raytrain

pytestmark = pytest.mark.acceptance

PPO = {
    "batch_size": 16, "buffer_size": 64, "learning_rate": 5e-3, "learning_rate_schedule": "constant", "beta": 5e-3, "epsilon": 0.2,
    "lambd": 0.95, "num_epoch": 3,
}
SAC = {
    "batch_size": 8, "buffer_size": 5_000, "learning_rate": 5e-3, "learning_rate_schedule": "constant", "buffer_init_steps": 100,
    "init_entcoef": 0.01, "tau": 0.01, "steps_per_update": 1,
}
UNITS = {"ppo": 32, "sac": 16}
BASE = {"ppo": PPO, "sac": SAC}
MODULES = {"SimpleEnvironment": "toy", "MemoryEnvironment": "toy_memory", "Recall": "toy_memory", "MaskedBandit": "toy_masks"}


def run(
    tmp_path, trainer: str, world: str, max_steps: int, env: dict[str, Any], network: dict[str, Any] | None = None, episodes: int = 20,
    **hyper: Any,
) -> float:
    """Train as ML-Agents' tests do and return the mean return of the last 20 episodes (ML-Agents: 5)."""
    config = {
        "env": f"envs.{MODULES[world]}:{world}", "env_kwargs": env,
        "behaviors": {world: {
            "trainer_type": trainer, "hyperparameters": {**BASE[trainer], **hyper},
            "network_settings": {"hidden_units": UNITS[trainer], "num_layers": 1, **(network or {})},
            "max_steps": max_steps, "summary_freq": 100, "time_horizon": 64,
        }},
        "env_settings": {"seed": 1337}, "stop": {"episodes": episodes},
    }
    return raytrain.train(config, results_dir=tmp_path, run_id="run", local=True).results["mean_return"]


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("action", ["discrete", "continuous"])
def test_ppo_learns_from_images(tmp_path, action, images):
    """visual_ppo: 20 × 20 × 3 images, no vector; 0.9 within 3,000 steps."""
    env = {"action": action, "step_size": 0.2, "num_vector": 0, "num_visual": images}
    assert run(tmp_path, "ppo", "SimpleEnvironment", 3_000, env, learning_rate=3e-4) > 0.9


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("action", ["discrete", "continuous"])
def test_sac_learns_from_images(tmp_path, action, images):
    """visual_sac: as visual_ppo, 0.9 within 1,000 steps."""
    env = {"action": action, "step_size": 0.2, "num_vector": 0, "num_visual": images}
    assert run(tmp_path, "sac", "SimpleEnvironment", 1_000, env, batch_size=16, learning_rate=3e-4) > 0.9


ENCODERS = {"resnet": (36, 36, 3), "nature_cnn": (36, 36, 3), "match3": (5, 5, 5)}


@pytest.mark.parametrize("encoder", ENCODERS)
def test_ppo_learns_with_every_encoder(tmp_path, encoder):
    """visual_advanced_ppo: larger images and steps; 0.5 within 900 steps."""
    env = {"action": "discrete", "step_size": 0.5, "num_vector": 0, "num_visual": 1, "vis_obs_size": ENCODERS[encoder]}
    network = {"vis_encode_type": encoder, "observations": {"obs": {"kind": "image"}}}
    assert run(tmp_path, "ppo", "SimpleEnvironment", 900, env, network, learning_rate=3e-4) > 0.5


@pytest.mark.parametrize("encoder", ["resnet", "nature_cnn"])
def test_sac_learns_with_the_deep_encoders(tmp_path, encoder):
    """visual_advanced_sac: 0.5 within 100 steps, from the first step on; of some 30 episodes the last 5 count."""
    env = {"action": "discrete", "step_size": 0.5, "num_vector": 0, "num_visual": 1, "vis_obs_size": ENCODERS[encoder]}
    network = {"vis_encode_type": encoder}
    hyper = {"batch_size": 16, "learning_rate": 3e-4, "buffer_init_steps": 0}
    assert run(tmp_path, "sac", "SimpleEnvironment", 100, env, network, episodes=5, **hyper) > 0.5


@pytest.mark.parametrize("trainer", ["ppo", "sac"])
def test_images_are_not_learnt_at_learning_rate_zero(tmp_path, trainer):
    """Negative control of all of the above: the first policy goes to either side."""
    env = {"action": "discrete", "step_size": 0.2, "num_vector": 0, "num_visual": 1}
    assert run(tmp_path, trainer, "SimpleEnvironment", 1_000, env, learning_rate=0.0) < 0.5


# -- memory ------------------------------------------------------------------------------------------------------------

PPO_MEMORY: dict[str, Any] = {"memory": {"sequence_length": 64, "memory_size": 16}}
SAC_MEMORY: dict[str, Any] = {"memory": {"sequence_length": 16, "memory_size": 16}}
RECURRENT_PPO = {"batch_size": 64, "buffer_size": 128, "learning_rate": 1e-3}
RECURRENT_SAC = {"batch_size": 256, "learning_rate": 1e-3, "buffer_init_steps": 1_000, "steps_per_update": 2}


@pytest.mark.parametrize("action", ["discrete", "continuous"])
def test_ppo_remembers(tmp_path, action):
    """recurrent_ppo: the goal shows for the first steps only; 0.9 within 6,000 steps."""
    assert run(tmp_path, "ppo", "MemoryEnvironment", 6_000, {"action": action, "step_size": 0.2}, PPO_MEMORY, **RECURRENT_PPO) > 0.9


@pytest.mark.parametrize(("action", "step_size"), [("discrete", 0.2), ("continuous", 0.5)])
def test_sac_remembers(tmp_path, action, step_size):
    """recurrent_sac: 0.9 within 4,000 steps."""
    env = {"action": action, "step_size": step_size}
    assert run(tmp_path, "sac", "MemoryEnvironment", 4_000, env, SAC_MEMORY, **RECURRENT_SAC) > 0.9


@pytest.mark.parametrize(("trainer", "hyper"), [("ppo", RECURRENT_PPO), ("sac", RECURRENT_SAC)])
def test_without_a_memory_the_goal_is_forgotten(tmp_path, trainer, hyper):
    """Negative control: the same world and budget, no memory. Two steps of a goal that takes six are all that can be known."""
    assert run(tmp_path, trainer, "MemoryEnvironment", 4_000, {"action": "discrete", "step_size": 0.2}, **hyper) < 0.8


@pytest.mark.parametrize(("memory", "least", "most"), [(True, 0.95, 1.0), (False, 0.0, 0.75)])
def test_ppo_recalls_across_cut_trajectories(tmp_path, memory, least, most):
    """C66: a bit shown at step 0 must be answered at step 8, with trajectories and sequences of 4. Without a memory it is a guess."""
    config = {
        "env": "envs.toy_memory:Recall", "env_kwargs": {"length": 8},
        "behaviors": {"Recall": {
            "hyperparameters": {**PPO, "batch_size": 64, "buffer_size": 512, "learning_rate": 2e-3, "beta": 1e-2},
            "network_settings": {
                "hidden_units": 32, "num_layers": 1, "memory": {"sequence_length": 4, "memory_size": 32} if memory else None,
            },
            "max_steps": 80_000, "summary_freq": 4_096, "time_horizon": 4,
        }},
        "env_settings": {"seed": 1, "num_envs": 8}, "stop": {"episodes": 200, **({"reward": 0.97} if memory else {})},
    }
    assert least <= raytrain.train(config, results_dir=tmp_path, run_id="run", local=True).results["mean_return"] <= most


# -- mixed actions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["discrete", "continuous"])
def test_ppo_learns_two_dimensions(tmp_path, action):
    """2d_ppo: 0.9 within 10,000 steps."""
    env = {"action": action, "dimensions": 2, "step_size": 0.8}
    assert run(tmp_path, "ppo", "SimpleEnvironment", 10_000, env, batch_size=64, buffer_size=640) > 0.9


def test_ppo_learns_mixed_actions(tmp_path):
    """hybrid_ppo: a Tuple of a continuous and a discrete action; 0.9 within 10,000 steps."""
    env = {"action": "hybrid", "step_size": 0.8}
    assert run(tmp_path, "ppo", "SimpleEnvironment", 10_000, env, batch_size=64, buffer_size=1_024, learning_rate=1e-3) > 0.9


@pytest.mark.parametrize(("trainer", "max_steps", "hyper"), [
    ("ppo", 8_000, {"batch_size": 64, "buffer_size": 1_024, "learning_rate": 1e-3}),
    ("sac", 3_000, {"batch_size": 128, "learning_rate": 3e-4}),
])
def test_mixed_actions_from_images(tmp_path, trainer, max_steps, hyper):
    """hybrid_visual_ppo and hybrid_visual_sac: 0.9."""
    env = {"action": "hybrid", "step_size": 0.8, "num_vector": 0, "num_visual": 1}
    assert run(tmp_path, trainer, "SimpleEnvironment", max_steps, env, **hyper) > 0.9


@pytest.mark.parametrize(("trainer", "max_steps", "network", "hyper"), [
    ("ppo", 5_000, PPO_MEMORY, {"batch_size": 64, "buffer_size": 512, "learning_rate": 1e-3}),
    ("sac", 4_000, SAC_MEMORY, {"batch_size": 256, "learning_rate": 3e-4, "buffer_init_steps": 1_000, "steps_per_update": 2}),
])
def test_mixed_actions_with_a_memory(tmp_path, trainer, max_steps, network, hyper):
    """hybrid_recurrent_ppo and hybrid_recurrent_sac: 0.9."""
    assert run(tmp_path, trainer, "MemoryEnvironment", max_steps, {"action": "hybrid", "step_size": 0.5}, network, **hyper) > 0.9


# -- masks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["info", "key", "method"])
@pytest.mark.parametrize(("trainer", "max_steps", "hyper"), [
    ("ppo", 8_000, {"batch_size": 64, "buffer_size": 512}), ("sac", 3_000, {"batch_size": 64, "buffer_size": 20_000}),
])
def test_masked_choices_are_never_made(tmp_path, trainer, max_steps, hyper, source):
    """C63: an illegal choice costs 100, so one alone would show; and the highest legal one is preferred (8 an episode, at random 5)."""
    assert run(tmp_path, trainer, "MaskedBandit", max_steps, {"masks": source}, learning_rate=3e-3, **hyper) > 6.8


def test_unmasked_the_illegal_choices_are_made(tmp_path):
    """Negative control: the same world that gives no mask."""
    hyper = {"batch_size": 64, "buffer_size": 512, "learning_rate": 0.0}
    assert run(tmp_path, "ppo", "MaskedBandit", 1_000, {"masks": "none"}, **hyper) < -20.0
