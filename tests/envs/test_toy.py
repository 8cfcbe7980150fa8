"""The toy worlds do what their docstrings say."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envs import toy


def play(env: gym.Env, actions: list[Any]) -> tuple[list[list[float]], list[float], list[tuple[bool, bool]]]:
    """Observations, rewards and (terminated, truncated)."""
    obs, _ = env.reset(seed=1)
    seen, rewards, ends = [obs.tolist()], [], []
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        seen.append(obs.tolist())
        rewards.append(reward)
        ends.append((terminated, truncated))
    return seen, rewards, ends


@pytest.mark.parametrize("env", [
    toy.ConstReward(), toy.TwoStepTerminal(), toy.RandomObs(), toy.EchoAction("multi_discrete_start"), toy.NaNAt(1000),
    toy.CrashAt(1000), toy.SlowStep(0.0), toy.SimpleEnvironment(), toy.SimpleEnvironment("continuous", 3),
    toy.SimpleEnvironment(num_visual=2), toy.SimpleEnvironment(num_vector=0, num_visual=1, vis_obs_size=[36, 36, 3]),
    toy.SimpleEnvironment("discrete", 2), toy.SimpleEnvironment("hybrid"), toy.SimpleEnvironment("hybrid", 2),
    *(toy.EchoAction(key) for key in toy.ACTION_SPACES if key.startswith("hybrid")),
], ids=lambda env: type(env).__name__)
@pytest.mark.filterwarnings("ignore")
def test_keeps_to_gymnasiums_rules(env: gym.Env) -> None:
    check_env(env, skip_render_check=True)


def test_const_reward() -> None:
    seen, rewards, ends = play(toy.ConstReward(3, 2.5, "truncated"), [0] * 3)
    assert seen == [[0.0]] * 4
    assert rewards == [2.5] * 3
    assert ends == [(False, False), (False, False), (False, True)]
    assert not any(any(e) for e in play(toy.ConstReward(0), [0] * 50)[2])


def test_two_step_terminal() -> None:
    assert play(toy.TwoStepTerminal(), [0, 1]) == ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], [0.0, 1.0], [(False, False), (True, False)])


def test_count_obs() -> None:
    env = toy.CountObs(2)
    assert play(env, [0, 0]) == ([[0, 0], [0, 1], [0, 2]], [1.0, 2.0], [(False, False), (False, True)])
    assert play(env, [0])[0] == [[1, 0], [1, 1]]
    with pytest.raises(ValueError, match="received 'done'"):
        toy.CountObs(2, end="done")


@pytest.mark.parametrize("step_size", [0.1, 0.2, 0.5])
@pytest.mark.parametrize("action", ["discrete", "continuous", "hybrid"])
@pytest.mark.parametrize("dimensions", [1, 2])
def test_simple_environment(action: str, dimensions: int, step_size: float) -> None:
    """A perfect episode takes 1 / step_size steps and totals about 1, the wrong way about -1."""
    env = toy.SimpleEnvironment(action, dimensions, step_size)
    for right in (True, False):
        for seed in range(4):
            obs, _ = env.reset(seed=seed)
            goal = int(obs[0])
            side = goal if right else -goal
            discrete: Any = np.full(dimensions, (side + 1) // 2) if dimensions > 1 else (side + 1) // 2
            continuous = np.full(dimensions, float(side), np.float32)
            move = {"discrete": discrete, "continuous": continuous, "hybrid": (continuous, discrete)}[action]
            total, steps, terminated = 0.0, 0, False
            while not terminated:
                obs, reward, terminated, truncated, _ = env.step(move)
                assert obs.tolist() == [goal]
                assert not truncated
                total, steps = total + reward, steps + 1
            assert steps == round(1 / step_size)
            success = 1.0 + 0.01 * (int(1 / step_size) + 1)
            assert total == pytest.approx((success if right else -success) - 0.01 * (steps - 1))
            assert abs(total) == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize(("kwargs", "shapes"), [
    ({}, (1,)), ({"vector_size": 4}, (4,)), ({"num_vector": 0, "num_visual": 1}, (20, 20, 3)),
    ({"num_vector": 2}, {"vector_0": (1,), "vector_1": (1,)}),
    ({"num_visual": 1}, {"vector_0": (1,), "visual_0": (20, 20, 3)}),
    ({"num_vector": 0, "num_visual": 2, "vis_obs_size": [5, 5, 5]}, {"visual_0": (5, 5, 5), "visual_1": (5, 5, 5)}),
])
def test_simple_environment_shows_the_goal_everywhere(kwargs: dict[str, Any], shapes: Any) -> None:
    """One observation as it is, several as a Dict; all float32 and filled with the goal."""
    env = toy.SimpleEnvironment(**kwargs)
    for seed in range(4):
        obs, _ = env.reset(seed=seed)
        for _ in range(3):
            arrays = obs if isinstance(obs, dict) else {"": obs}
            assert {name: a.shape for name, a in arrays.items()} == (shapes if isinstance(shapes, dict) else {"": shapes})
            assert all(a.dtype == np.float32 and (a == env._goal).all() for a in arrays.values())
            obs, *_ = env.step(0)


def test_simple_environment_needs_an_observation() -> None:
    with pytest.raises(ValueError, match="expected at least one observation, received num_vector=0 and num_visual=0"):
        toy.SimpleEnvironment(num_vector=0)


def test_simple_environment_has_both_goals_and_needs_every_dimension() -> None:
    env = toy.SimpleEnvironment("discrete", 2)
    assert {int(env.reset(seed=s)[0][0]) for s in range(20)} == {-1, 1}
    env.reset(seed=0)
    ends = [env.step([1, n % 2])[2] for n in range(20)]
    assert not any(ends), "the second dimension goes to and fro"


def test_simple_environment_needs_both_parts_of_a_hybrid_action() -> None:
    """An episode goes on while the discrete or the continuous position is on its way; both are paid for."""
    env = toy.SimpleEnvironment("hybrid", step_size=0.5)
    goal = int(env.reset(seed=0)[0][0])
    right, wrong = max(goal, 0), max(-goal, 0)
    assert [env.step((np.zeros(1), right))[2] for _ in range(5)] == [False] * 5, "the continuous one stays"
    env.reset(seed=0)
    assert [env.step((np.array([goal]), n % 2))[2] for n in range(5)] == [False] * 5, "the discrete one goes to and fro"
    env.reset(seed=0)
    env.step((np.array([goal]), wrong))
    assert env.step((np.array([goal]), wrong))[1:3] == (pytest.approx(0.0), True)
    with pytest.raises(ValueError, match="expected 'discrete', 'continuous' or 'hybrid', received 'both'"):
        toy.SimpleEnvironment("both")


@pytest.mark.parametrize(("key", "action"), [
    ("discrete", 3), ("discrete", np.int32(3)), ("discrete", np.int64(4)), ("box_0_1", np.array([0.5, 1.5])),
    ("box_scalar", np.float32(0.1)), ("hybrid_tuple", (np.array([400, 400], np.float32), 1)),
    ("hybrid_tuple", (np.array([400, 501], np.float32), np.int64(1))), ("hybrid_tuple", (np.array([400, 400], np.float32), np.int64(2))),
    ("hybrid_tuple", (np.array([400, 400], np.float16), np.int64(1))), ("hybrid_dict", (np.zeros(2),)),
])
def test_echo_action_refuses(key: str, action: Any) -> None:
    """It is strict, so what it lets pass is right: bounds, type, dtype and structure."""
    env = toy.EchoAction(key)
    env.reset()
    with pytest.raises(ValueError, match="is not"):
        env.step(action)


def test_simple_environment_pays_the_mean_of_the_dimensions() -> None:
    env = toy.SimpleEnvironment("discrete", 2, step_size=0.5)
    env.reset(seed=0)
    env.step([0, 1])
    assert env.step([0, 1])[1:3] == (pytest.approx(0.0), True)
