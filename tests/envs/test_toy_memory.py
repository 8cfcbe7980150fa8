"""The worlds that need a memory do what their docstrings say."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envs.toy_memory import MemoryEnvironment, Recall


@pytest.mark.parametrize("env", [MemoryEnvironment(), MemoryEnvironment(num_visual=1), Recall(), Recall(vary=True), Recall(4, "continuous")],
                         ids=lambda env: type(env).__name__)
@pytest.mark.filterwarnings("ignore")
def test_keeps_to_gymnasiums_rules(env: gym.Env) -> None:
    check_env(env, skip_render_check=True)


@pytest.mark.parametrize("num_show_steps", [0, 2])
def test_memory_environment_forgets_its_goal(num_show_steps: int) -> None:
    """The goal is seen after 0 … num_show_steps steps, zeros after that; every observation says the same, and rewards stay those of the goal."""
    env = MemoryEnvironment(num_show_steps=num_show_steps, num_visual=1)
    for seed in range(6):
        obs, _ = env.reset(seed=seed)
        goal = int(obs["vector_0"][0])
        assert goal in (-1, 1)
        shown, total, terminated = [], 0.0, False
        while not terminated:
            assert (obs["visual_0"] == obs["vector_0"][0]).all()
            shown.append(int(obs["vector_0"][0]))
            obs, reward, terminated, _, _ = env.step((goal + 1) // 2)
            total += reward
        assert shown == [goal if step <= num_show_steps else 0 for step in range(5)]
        assert total == pytest.approx(1.06 - 0.04)


def play(env: Recall, answer: Any, seed: int) -> tuple[list[list[float]], list[float]]:
    """Observations and rewards of an episode; `answer` makes the action out of the first observation and the step."""
    obs, _ = env.reset(seed=seed)
    cue, seen, rewards, terminated = int(obs[0]), [obs.tolist()], [], False
    while not terminated:
        obs, reward, terminated, truncated, _ = env.step(answer(cue, len(rewards)))
        assert not truncated
        seen.append(obs.tolist())
        rewards.append(reward)
    return seen, rewards


@pytest.mark.parametrize("action", ["discrete", "continuous"])
def test_recall_pays_the_last_answer_only(action: str) -> None:
    env = Recall(8, action)

    def act(side: int) -> Any:
        return (side + 1) // 2 if action == "discrete" else np.array([0.3 * side], np.float32)

    cues = set()
    for seed in range(8):
        seen, rewards = play(env, lambda cue, step: act(cue if step == 7 else -cue), seed)
        cues.add(seen[0][0])
        assert [cue for cue, _ in seen[1:]] == [0.0] * 8, "shown once"
        np.testing.assert_allclose([time for _, time in seen], np.arange(9) / 8)
        assert rewards == [0.0] * 7 + [1.0]
        assert play(env, lambda cue, step: act(-cue if step == 7 else cue), seed)[1] == [0.0] * 8
    assert cues == {-1.0, 1.0}


def test_who_does_not_remember_gets_half() -> None:
    env = Recall(3)
    assert np.mean([play(env, lambda cue, step: 1, seed)[1][-1] for seed in range(200)]) == pytest.approx(0.5, abs=0.1)


def test_recall_of_different_lengths() -> None:
    env = Recall(6, vary=True)
    assert {len(play(env, lambda cue, step: 0, seed)[1]) for seed in range(60)} == {2, 3, 4, 5, 6}
    with pytest.raises(ValueError, match="action: expected 'discrete' or 'continuous', received 'both'"):
        Recall(3, "both")
