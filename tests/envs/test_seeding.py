"""Seed streams: different per environment, the same per seed, and never repeated after a resume."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from envs import toy
from envs.gymnasium_env import make_batched_env
from envs.seeding import env_seeds
from tests.envs.contract import Auditor, act, poll


def first_values(seed: int = 1, first_env_index: int = 0, state: dict | None = None, num_envs: int = 4, polls: int = 1,
                 stepping: str = "inline", **kwargs: object) -> np.ndarray:
    """float32 [polls, num_envs] of what `RandomObs` draws after a reset."""
    env = make_batched_env("envs.toy:RandomObs", {"length": 3}, num_envs, stepping, np.random.SeedSequence(seed), first_env_index,
                           wait_for_all=True, **kwargs)
    try:
        if state is not None:
            env.load_state(state)
        env.reset()
        values = []
        for _ in range(polls):
            steps = poll(env)
            values.append(steps.decision.obs["obs"][:, 0].copy())
            act(env, steps.decision.agent_id)
        return np.array(values)
    finally:
        env.close()


def test_environments_differ_and_runs_repeat() -> None:
    """C81: 4 environments, 4 different streams; the same seed gives the same values, another seed others."""
    values = first_values(polls=7)
    assert len(np.unique(values)) == values.size
    np.testing.assert_array_equal(first_values(polls=7), values)
    assert not np.isin(first_values(seed=2, polls=7), values).any()


@pytest.mark.parametrize("stepping", ["threads", "processes"])
def test_values_do_not_depend_on_the_stepping(stepping: str) -> None:
    """Lock-step: the same values in the same order, whatever steps the copies."""
    np.testing.assert_array_equal(first_values(polls=7, num_envs=3, stepping=stepping), first_values(polls=7, num_envs=3))


def test_streams_belong_to_the_index_in_the_run() -> None:
    """C81: environment 2 is the same whether one manager has all environments or a second one begins there; never seed + i."""
    everything = first_values()
    np.testing.assert_array_equal(first_values(first_env_index=2, num_envs=2), everything[:, 2:])
    assert first_values(seed=2, num_envs=1)[0, 0] != everything[0, 1]


def test_a_resumed_run_continues_and_never_repeats() -> None:
    """C81: with the state of a run, environments get streams they never had; from the same state, the same ones."""
    values = first_values(polls=7)
    env = make_batched_env("envs.toy:RandomObs", {"length": 3}, 4, "inline", np.random.SeedSequence(1))
    env.reset()
    auditor = Auditor(env)
    auditor.run(4 * 7, np.random.default_rng(0))
    state = env.state()
    assert set(state["episodes_begun"]) == {"0", "1", "2", "3"}
    resumed = first_values(polls=7, state=state)
    assert not np.isin(resumed, values).any()
    np.testing.assert_array_equal(first_values(polls=7, state=state), resumed)


def test_state_goes_by_index_in_the_run() -> None:
    """Managers may be dealt other environments after a resume; those that never began use their first stream."""
    state = {"episodes_begun": {"1": 5}}
    fresh, resumed = first_values(num_envs=3), first_values(num_envs=3, state=state)
    np.testing.assert_array_equal(resumed[:, [0, 2]], fresh[:, [0, 2]])
    assert resumed[0, 1] != fresh[0, 1]
    np.testing.assert_array_equal(first_values(first_env_index=1, num_envs=1, state=state)[:, 0], resumed[:, 1])


def test_only_the_first_reset_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gymnasium's convention: later resets continue the environment's own generator. The action space is seeded as well."""
    seen = []

    def reset(self: toy.RandomObs, *, seed: int | None = None, options: None = None) -> tuple[np.ndarray, dict]:
        seen.append((seed, self.action_space.np_random.bit_generator.state))
        return np.zeros(1), {}

    monkeypatch.setattr(toy.RandomObs, "reset", reset)
    env = make_batched_env("envs.toy:RandomObs", {"length": 1}, 1, "inline", np.random.SeedSequence(1))
    env.reset()
    poll(env)
    env.reset()
    poll(env)
    expected = env_seeds(np.random.SeedSequence(1), 0, 0)
    assert seen[0] == (expected.reset, spaces.Discrete(2, seed=expected.action_space).np_random.bit_generator.state)
    assert seen[1][0] is None


def test_native_environments_have_one_stream() -> None:
    """One generator serves all environments of CartPole's vector environment: seeded by one child, differing between managers."""
    def first(seed: int, first_env_index: int, state: dict | None = None) -> np.ndarray:
        env = make_batched_env("CartPole-v1", {}, 3, "auto", np.random.SeedSequence(seed), first_env_index)
        if state:
            env.load_state(state)
        env.reset()
        return poll(env).decision.obs["obs"].copy()

    obs = first(1, 0)
    assert len(np.unique(obs)) == obs.size
    np.testing.assert_array_equal(first(1, 0), obs)
    for other in (first(2, 0), first(1, 3), first(1, 0, {"episodes_begun": {"1": 1}})):
        assert not np.isin(other, obs).any()


def test_copies_in_a_users_vector_environment_are_seeded_one_by_one() -> None:
    """Gymnasium would give them seed + i; they get their children of the tree."""
    env = make_batched_env("envs.toy:count_vector", {"autoreset_mode": "NextStep"}, 3, "auto", np.random.SeedSequence(1), first_env_index=5)
    env.reset()
    poll(env)
    root = np.random.SeedSequence(1)
    assert list(env._env.np_random_seed) == [env_seeds(root, 5 + i, 0).reset for i in range(3)]


def test_seeds_fit_every_environment() -> None:
    """ALE takes 31 bits."""
    root = np.random.SeedSequence(7)
    seeds = [env_seeds(root, i, e) for i in range(50) for e in range(20)]
    assert len({s.reset for s in seeds} | {s.action_space for s in seeds}) == 2 * len(seeds)
    assert all(0 <= value < 2**31 for s in seeds for value in s)
    assert root.n_children_spawned == 0
