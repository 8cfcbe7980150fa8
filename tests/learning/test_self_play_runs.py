"""Self-play learns: ML-Agents' cells with two teams, each with the half that must not, and a game that is really played."""

from __future__ import annotations

import numpy as np
import pytest

import raytrain
from tests.raytrain.self_play_worlds import FINAL

pytestmark = pytest.mark.learning
LAST = 20
"""Episodes that the judgement is taken over; ML-Agents takes 5."""


def behavior(max_steps: int, self_play: dict, **more) -> dict:
    """The base configuration of ML-Agents' learning tests for PPO."""
    hyper = {
        "batch_size": 16, "buffer_size": 64, "learning_rate": 5e-3, "learning_rate_schedule": "constant", "beta": 5e-3, "epsilon": 0.2,
        "lambd": 0.95, "num_epoch": 3,
    }
    return {"hyperparameters": hyper, "network_settings": {"hidden_units": 32, "num_layers": 1}, "max_steps": max_steps, "summary_freq": 500,
            "time_horizon": 64, "self_play": self_play, **more}


def final_rewards(tmp_path, action: str, behaviors: dict, names: tuple[str, str]) -> list[float]:
    """Mean last reward of each team's agent over its last episodes: about 1 on the right side, -1 on the wrong one."""
    FINAL.clear()
    raytrain.train({
        "env": "tests.raytrain.self_play_worlds:LoggedTeams", "env_kwargs": {"names": list(names), "continuous": action == "continuous"},
        "behaviors": behaviors, "env_settings": {"seed": 1337},
    }, results_dir=tmp_path, run_id="run", local=True)
    return [float(np.mean(FINAL[name][-LAST:])) for name in names]


@pytest.mark.parametrize("action", ["discrete", "continuous"])
def test_simple_ghost(tmp_path, action):
    """Both sides are good, though one alone learns: the other is given its policy at each swap."""
    settings = {"play_against_latest_model_ratio": 1.0, "save_steps": 2000, "swap_steps": 1000}
    assert min(final_rewards(tmp_path, action, {"LoggedTeams": behavior(2500, settings)}, ("a_0", "b_0"))) > 0.9


@pytest.mark.parametrize("action", ["discrete", "continuous"])
def test_simple_ghost_fails(tmp_path, action):
    """Without a swap in the whole run the opponent stays what it was at the start, so one side alone is good."""
    settings = {"play_against_latest_model_ratio": 1.0, "save_steps": 2000, "swap_steps": 40_000}
    learner, opponent = final_rewards(tmp_path, action, {"LoggedTeams": behavior(2500, settings)}, ("a_0", "b_0"))
    assert learner > 0.9 > opponent


def asymmetric(max_steps: int, settings: dict) -> dict:
    return {"1D": behavior(max_steps, settings, agents="1D"), "1DOpp": behavior(max_steps, settings, agents="1DOpp")}


@pytest.mark.parametrize("action", ["discrete", "continuous"])
def test_simple_asymm_ghost(tmp_path, action):
    """Two behaviors that learn in turn and meet each other as they are: both are good."""
    settings = {"play_against_latest_model_ratio": 1.0, "save_steps": 10_000, "swap_steps": 10_000, "team_change": 400}
    assert min(final_rewards(tmp_path, action, asymmetric(4000, settings), ("1D", "1DOpp"))) > 0.9


@pytest.mark.parametrize("action", ["discrete", "continuous"])
def test_simple_asymm_ghost_fails(tmp_path, action):
    """Opponents are snapshots only, and the first one is all that there is: whoever does not learn at the end is bad."""
    settings = {"play_against_latest_model_ratio": 0.0, "save_steps": 5_000, "swap_steps": 5_000, "team_change": 2000}
    first, second = final_rewards(tmp_path, action, asymmetric(2000, settings), ("1D", "1DOpp"))
    assert second > 0.9 > first
