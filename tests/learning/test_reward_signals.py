"""Signals and cloning teach what they should, in whole runs; and their negative controls do not."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import raytrain
from envs.demonstrations import Demonstrations, write_demonstrations
from envs.gymnasium_env import probe_spec
from envs.toy import ACTION_SPACES

pytestmark = pytest.mark.learning


def demonstrations(path, act, episodes: int = 10):
    """What the rule `act` does in CartPole."""
    (spec,) = probe_spec("CartPole-v1", {}).values()
    name, env, seen, done, lengths, ended, last = spec.observations[0].name, gym.make("CartPole-v1"), [], [], [], [], []
    for seed in range(episodes):
        x, _ = env.reset(seed=seed)
        n, terminated, truncated = 0, False, False
        while not (terminated or truncated):
            seen.append(x)
            done.append([act(x)])
            x, _, terminated, truncated, _ = env.step(done[-1][0])
            n += 1
        lengths.append(n)
        ended.append(terminated)
        last.append(x)
    rows = len(seen)
    write_demonstrations(path, Demonstrations(
        spec=spec, obs={name: np.array(seen, np.float32)}, continuous=np.zeros((rows, 0), np.float32), discrete=np.array(done, np.int32),
        reward=np.ones(rows, np.float32), length=np.array(lengths, np.int32), terminated=np.array(ended),
        next_obs={name: np.array(last, np.float32)}, action_mask=None))
    return float(np.mean(lengths))


def balances(x) -> int:
    """Keeps the pole up for 500 steps: pushes where (x, x', θ, θ') · (0.1, 0.3, 3, 1) points."""
    return int(np.dot(x, (0.1, 0.3, 3.0, 1.0)) > 0)


def run(tmp_path, max_steps: int, seed: int = 1, **behavior) -> float:
    """Mean return of the last summary, which the environment's reward had no part in."""
    returns: list[float] = []
    config = {
        "env": "CartPole-v1",
        "behaviors": {"CartPole": {
            "hyperparameters": {"buffer_size": 4096, "batch_size": 256, "num_epoch": 4, "learning_rate": 1e-3, "beta": 1e-3},
            "network_settings": {"hidden_units": 64, "num_layers": 2, "activation": "tanh"}, "time_horizon": 128, "max_steps": max_steps,
            "summary_freq": max_steps // 8, **behavior,
        }},
        "env_settings": {"num_envs": 32},
    }
    raytrain.train(config, local=True, seed=seed, results_dir=tmp_path, run_id="run", on_summary=lambda s: returns.append(s.values.get("Environment/Cumulative Reward")))
    return [r for r in returns if r is not None][-1]


def gail(demo, **settings) -> dict:
    settings = {"gamma": 0.99, "learning_rate": 1e-3, "use_actions": True, **settings}
    return {"extrinsic": {"strength": 0.0}, "gail": {"demo_path": str(demo), **settings}}


def test_gail_keeps_the_pole_up_like_the_expert(tmp_path):
    """Ten episodes of an expert: at least nine tenths of its return."""
    expert = demonstrations(tmp_path / "d.safetensors", balances)
    assert run(tmp_path, 240_000, reward_signals=gail(tmp_path / "d.safetensors")) >= 0.9 * expert


def test_gail_falls_like_an_expert_that_falls(tmp_path):
    """C101, and the control of the test above: the same signal, demonstrations of always pushing left (9.4 steps on average)."""
    expert = demonstrations(tmp_path / "d.safetensors", lambda x: 0, episodes=20)
    assert abs(run(tmp_path, 120_000, reward_signals=gail(tmp_path / "d.safetensors", end_aware=True)) - expert) < 2.0


def test_without_a_signal_nothing_is_learnt(tmp_path):
    """Negative control: the environment's reward at strength 0."""
    assert run(tmp_path, 60_000, reward_signals={"extrinsic": {"strength": 0.0}}) < 60


@pytest.mark.parametrize("trainer_type", ["ppo", "sac"])
def test_cloning_ten_episodes(tmp_path, trainer_type):
    """Cloning alone: at least nine tenths of the expert's return; that of `always left` falls like it."""
    cloning = {"demo_path": str(tmp_path / "d.safetensors"), "strength": 1.0}
    settings = {"reward_signals": {"extrinsic": {"strength": 0.0}}, "behavioral_cloning": cloning}
    if trainer_type == "sac":
        # Without rewards its values are noise, after which Adam goes as fast as after anything: let it hardly move by itself.
        cloning["strength"] = 1000.0
        settings |= {"trainer_type": "sac", "hyperparameters": {
            "batch_size": 64, "buffer_size": 20_000, "buffer_init_steps": 500, "steps_per_update": 4, "learning_rate": 1e-6,
            "init_entcoef": 0.001, "learn_entcoef": False,
        }}
    expert = demonstrations(tmp_path / "d.safetensors", balances)
    assert run(tmp_path, 40_000, **settings) >= 0.9 * expert
    falling = demonstrations(tmp_path / "d.safetensors", lambda x: 0, episodes=20)
    assert run(tmp_path / "left", 40_000, **settings) < 1.5 * falling


class TwoStates(gym.Env):
    """Two states in turn, whatever is done. With `coin`, half of the actions change the state, but one in four times the others do.

    Args:
        actions: name of a space in `envs.toy.ACTION_SPACES`.
    """

    observation_space = spaces.Discrete(2)

    def __init__(self, actions: str = "discrete", coin: bool = False) -> None:
        self.action_space, self._coin = ACTION_SPACES[actions], coin

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._state, self._steps = 0, 0
        return self._state, {}

    def step(self, action):
        change = (int(action) > 1) ^ (self.np_random.integers(4) == 0) if self._coin else True
        self._state, self._steps = self._state ^ int(change), self._steps + 1
        return self._state, 0.0, False, self._steps == 50, {}


def intrinsic_rewards(tmp_path, signal: str, tag: str, **kwargs) -> list[float]:
    """Of an episode, for each 500 agent steps of 5,000, 20 optimizer steps of the model in each."""
    sums: list[float] = []
    config = {
        "env": f"{__name__}:TwoStates", "env_kwargs": kwargs,
        "behaviors": {"TwoStates": {
            "hyperparameters": {"buffer_size": 100, "batch_size": 50, "num_epoch": 2, "learning_rate": 1e-4, "beta": 0.1},
            "network_settings": {"hidden_units": 16, "num_layers": 1}, "time_horizon": 20, "max_steps": 5000, "summary_freq": 500,
            "reward_signals": {signal: {"learning_rate": 1e-3}},
        }},
        "env_settings": {"num_envs": 5},
    }
    raytrain.train(config, local=True, seed=1, results_dir=tmp_path, run_id="run", on_summary=lambda s: sums.append(s.values[tag]))
    assert len(sums) == 10 and np.isfinite(sums).all(), sums
    return sums


@pytest.mark.parametrize("actions", ["box_asymmetric", "discrete", "multi_discrete"])
def test_curiosity_ends_where_all_is_foreseen(tmp_path, actions):
    """C103: in a deterministic world of two states, rewards of the last 500 agent steps are less than a tenth of the first ones."""
    paid = intrinsic_rewards(tmp_path, "curiosity", "Policy/Curiosity Reward", actions=actions)
    assert 0.0 < paid[-1] < 0.1 * paid[0], paid


def test_curiosity_stays_where_chance_decides(tmp_path):
    """The control of the test above: what an action does to the two states cannot be foreseen for certain, and that keeps paying."""
    foreseen, chance = (intrinsic_rewards(tmp_path / str(coin), "curiosity", "Policy/Curiosity Reward", coin=coin) for coin in (False, True))
    assert np.mean(chance[-3:]) > 3 * np.mean(foreseen[-3:]), (chance, foreseen)


def test_what_is_known_is_no_news_even_where_chance_decides(tmp_path):
    """RND pays for states, not for surprise: both are known soon."""
    paid = intrinsic_rewards(tmp_path, "rnd", "Policy/RND Reward", coin=True)
    assert 0.0 < paid[-1] < 0.1 * paid[0], paid
