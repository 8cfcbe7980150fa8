"""Native vector environments: the whitelist is the same task, and every autoreset mode gives the same episodes."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from envs.base import EnvFault
from envs.factories import NATIVE_IDS
from envs.gymnasium_env import make_batched_env
from envs.native import NativeVectorEnv
from envs.specs import Actions, to_env_actions
from envs.toy import ACTION_SPACES, NaNAt, count_vector, simple_parts
from envs.toy_audit import echo_obs_vector
from tests.envs.contract import Auditor, act, check_count_episode, check_echo_episode, poll, random_actions, the_behavior
from tests.envs.worlds import Bouncing, echo_vector

MODES = ("NextStep", "SameStep", "Disabled")


def native(env: gym.vector.VectorEnv) -> NativeVectorEnv:
    return NativeVectorEnv(env, "World", np.random.SeedSequence(1))


@pytest.mark.parametrize("kwargs", [{}, {"sutton_barto_reward": True}], ids=["plain", "sutton_barto_reward"])
@pytest.mark.parametrize("env_id", NATIVE_IDS)
def test_whitelisted_environments_are_the_same_task(env_id: str, kwargs: dict) -> None:
    """Step by step from the same states: the same next state, reward, end, and truncation at the same step as the single environment."""
    vector = gym.make_vec(env_id, num_envs=8, vectorization_mode="vector_entry_point", **kwargs)
    single = gym.make(env_id, **kwargs)
    assert vector.single_observation_space == single.observation_space
    assert vector.single_action_space == single.action_space
    single.reset(seed=0)
    rng = np.random.default_rng(0)
    obs, _ = vector.reset(seed=3)
    pole_fell = 0
    for _ in range(60):
        resetting = vector.prev_done.copy()
        states = vector.state.T.copy()
        actions = rng.integers(0, 2, 8)
        obs, reward, terminated, truncated, _ = vector.step(actions)
        for i in np.flatnonzero(~resetting):
            single.unwrapped.state = states[i]
            single.unwrapped.steps_beyond_terminated = None
            expected = single.unwrapped.step(actions[i])
            np.testing.assert_allclose(obs[i], expected[0], rtol=1e-6, atol=1e-7)
            assert (reward[i], terminated[i]) == expected[1:3]
            assert not truncated[i]
            pole_fell += int(terminated[i])
        assert (np.abs(obs[resetting]) <= 0.05).all()
    assert pole_fell > 5


@pytest.mark.parametrize("env_id", NATIVE_IDS)
def test_whitelisted_environments_have_the_same_time_limit(env_id: str) -> None:
    """A pole that never falls is truncated (not terminated) at the same step."""
    single, vector = gym.make(env_id), gym.make_vec(env_id, num_envs=2, vectorization_mode="vector_entry_point")
    for env in (single.unwrapped, vector):
        env.theta_threshold_radians = env.x_threshold = np.inf
    single.reset(seed=0)
    vector.reset(seed=0)
    ends = []
    for step in range(gym.spec(env_id).max_episode_steps):
        _, _, terminated, truncated, _ = single.step(step % 2)
        *_, all_terminated, all_truncated, _ = vector.step(np.full(2, step % 2))
        assert not terminated
        assert not all_terminated.any()
        assert (all_truncated == truncated).all()
        ends.append(truncated)
    assert ends == [False] * (len(ends) - 1) + [True]


@pytest.mark.parametrize(("kwargs", "stepping", "expected"), [
    ({}, "auto", "native"), ({"sutton_barto_reward": True}, "auto", "native"), ({}, "inline", "inline"), ({"render_mode": None}, "auto", "inline"),
])
def test_native_only_when_it_is_the_same_and_left_to_us(kwargs: dict, stepping: str, expected: str) -> None:
    env = make_batched_env("CartPole-v1", kwargs, 1, stepping, np.random.SeedSequence(1))
    assert env.stepping == expected
    env.close()


@pytest.mark.parametrize(("mode", "episodes", "transitions"), [("NextStep", 3, 9), ("SameStep", 4, 12), ("Disabled", 4, 12)])
def test_twelve_vector_steps(mode: str, episodes: int, transitions: int) -> None:
    """C41: 3-step episodes, one env, 12 vector steps; the reset step of NEXT_STEP is not a transition and is not counted."""
    env = native(count_vector(1, mode, length=3))
    env.reset()
    auditor = Auditor(env)
    auditor.take(poll(env))
    for _ in range(12):
        if auditor.waiting:
            act(env, np.array([0]))
            auditor.waiting, auditor.acted = set(), {0}
        auditor.take(poll(env))
    assert env._vector_steps == 12
    assert [len(e.reward) for e in auditor.finished] == [3] * episodes
    assert auditor.env_steps == transitions
    for episode in auditor.finished:
        check_count_episode(episode, length=3)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_the_true_last_observation(mode: str, end: str) -> None:
    """C34: bootstrapping gets (episode, 3), never the first observation of the next episode, nor the one before the last action."""
    env = native(count_vector(2, mode, length=3, end=end))
    env.reset()
    auditor = Auditor(env)
    auditor.run(24, np.random.default_rng(0))
    assert len(auditor.finished) >= 6
    for episode in auditor.finished:
        assert episode.obs[-1][1] == 3
        assert (episode.terminated, episode.truncated) == (end == "terminated", end == "truncated")


def test_all_environments_end_at_once() -> None:
    """NEXT_STEP: nobody waits for a decision then, and the next poll steps (and resets) by itself."""
    env = native(count_vector(3, "NextStep", length=1))
    env.reset()
    for number in range(3):
        steps = poll(env)
        assert steps.decision.first.all()
        assert steps.decision.obs["obs"][:, 0].tolist() == [number] * 3
        assert steps.env_steps == 0
        act(env, steps.decision.agent_id)
        steps = poll(env)
        assert (len(steps.decision), len(steps.terminal), steps.env_steps) == (0, 3, 3)


def test_an_episode_without_a_decision_is_left_out() -> None:
    """C72: an environment that ends in the step that resets it gives no transition, no crash, and goes on later."""
    env = native(Bouncing())
    env.reset()
    auditor = Auditor(env)
    auditor.run(9, np.random.default_rng(0))
    assert [(e.slot, len(e.reward)) for e in auditor.finished] == [(1, 2)]
    assert auditor.running[1].obs[0] == 5, "reset by the steps 3, 4 and 5; only the last began an episode that was seen"


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_buffers_of_the_environment_are_not_handed_out(mode: str) -> None:
    """C20: a vector environment that returns its own buffers, changed in place, and environments that write into their actions.

    With SAME_STEP, Gymnasium's own wrapper keeps a reference to the array that such an environment overwrites when it is reset.
    """
    env = make_batched_env("tests.envs.worlds:mutating_vector", {"autoreset_mode": mode}, 2, "auto", np.random.SeedSequence(1))
    env.reset()
    auditor = Auditor(env)
    auditor.run(30, np.random.default_rng(0))
    assert len(auditor.finished) >= 4
    for episode in auditor.finished:
        check_count_episode(episode, length=5)


def nan_vector(**kwargs: object) -> gym.vector.VectorEnv:
    """Environment 1 of 3 has the NaN."""
    return gym.vector.SyncVectorEnv([lambda: NaNAt(10**9), lambda: NaNAt(**kwargs), lambda: NaNAt(10**9)])


@pytest.mark.parametrize(("kwargs", "message"), [
    ({"n": 20}, r"non-finite observation 'obs'\[3\] = nan\nenv 1, episode 0, step 20, last action [01]"),
    ({"n": 150, "value": np.inf, "index": 0}, r"non-finite observation 'obs'\[0\] = inf\nenv 1, episode 0, step 150"),
    ({"n": 2, "episode": 1, "length": 5}, r"non-finite observation 'obs'\[3\] = nan\nenv 1, episode 1, step 2, last action [01]"),
    ({"n": 0, "episode": 1, "length": 5}, r"non-finite observation 'obs'\[3\] = nan\nenv 1, episode 1, step 0$"),
    ({"n": 20, "where": "reward"}, r"non-finite reward nan\nenv 1, episode 0, step 20"),
    ({"n": 120, "where": "reward", "value": -np.inf}, r"non-finite reward -inf\nenv 1, episode 0, step 120"),
])
def test_non_finite_values(kwargs: dict, message: str) -> None:
    """C54: env index, episode, step, key, index and value."""
    env = native(nan_vector(**kwargs))
    env.reset()
    with pytest.raises(EnvFault, match=message):
        Auditor(env).run(10**4, np.random.default_rng(0))


def test_non_finite_last_observation() -> None:
    """C54: also in infos['final_obs'], and at the index in the run."""
    copies = [lambda: NaNAt(10**9, length=4), lambda: NaNAt(4, length=4)]
    env = NativeVectorEnv(gym.vector.SyncVectorEnv(copies, autoreset_mode="SameStep"), "World", np.random.SeedSequence(1), first_env_index=6)
    env.reset()
    with pytest.raises(EnvFault, match=r"'obs'\[3\] = nan\nenv 7, episode 0, step 4"):
        Auditor(env).run(100, np.random.default_rng(0))


def test_exception_of_the_environment() -> None:
    """C19: type, message, file and line come first."""
    env = make_batched_env("tests.envs.worlds:crashing_vector", {}, 2, "auto", np.random.SeedSequence(1))
    env.reset()
    with pytest.raises(EnvFault, match=r"^ValueError: boom-42\n  at .*toy.py:\d+ \(_act\), in vector step 3\n"):
        Auditor(env).run(100, np.random.default_rng(0))


def test_undeclared_mode_is_refused() -> None:
    """C41: guessing the mode would train on dummy transitions."""
    with pytest.raises(ValueError, match=r"metadata\['autoreset_mode'\].* to be one of \['NextStep', 'SameStep', 'Disabled'\], received None"):
        make_batched_env("tests.envs.worlds:undeclared", {}, 2, "auto", np.random.SeedSequence(1))


def test_same_step_without_last_observations_is_refused() -> None:
    """C34: the last observation is never made up."""
    env = make_batched_env("tests.envs.worlds:NoFinalObs", {}, 2, "auto", np.random.SeedSequence(1))
    env.reset()
    act(env, poll(env).decision.agent_id)
    with pytest.raises(ValueError, match="final_obs"):
        env.poll(1.0)


def test_number_of_environments_has_to_be_the_one_asked_for() -> None:
    with pytest.raises(ValueError, match=r"num_envs = 3 environments, received one of 2"):
        make_batched_env("tests.envs.worlds:two_whatever_you_ask", {}, 3, "auto", np.random.SeedSequence(1))


def test_vector_environments_are_not_copied() -> None:
    with pytest.raises(ValueError, match="Set env_settings.stepping to auto"):
        make_batched_env("envs.toy:count_vector", {"autoreset_mode": "NextStep"}, 2, "threads", np.random.SeedSequence(1))


def test_actions_reach_their_environment() -> None:
    """Also when agents are answered in another order or in parts, or only a part of them waits; the array is a new one each time."""
    received: list[np.ndarray] = []
    vector = count_vector(3, "NextStep", length=100)
    vector.envs[1].length = 2
    step = vector.step
    vector.step = lambda actions: (received.append(actions), step(actions))[1]
    env = native(vector)
    name, _ = the_behavior(env)
    env.reset()
    rng = np.random.default_rng(0)
    sent = []
    for parts in ([[2, 0, 1]], [[0, 1], [2]], [[2], [0]], [[1, 2, 0]], [[0, 1, 2]], [[0, 2]], [[0], [1], [2]]):
        waiting = poll(env).decision.agent_id.tolist()
        assert sorted(itertools.chain(*parts)) == waiting
        wanted = rng.integers(0, 2, 3).astype(np.int32)
        for part in parts:
            env.act(name, np.array(part), Actions(np.empty((len(part), 0), np.float32), wanted[part][:, None]))
        sent.append((waiting, wanted))
    poll(env)
    assert len(received) == len(sent)
    for (waiting, wanted), actions in zip(sent, received, strict=True):
        np.testing.assert_array_equal(actions[waiting], wanted[waiting])


@pytest.mark.parametrize("key", ["hybrid_tuple", "hybrid_dict"])
@pytest.mark.parametrize("mode", MODES)
def test_hybrid_actions_arrive(mode: str, key: str) -> None:
    """C57, C59: 1,000 steps, none refused by an environment, answered at once or in parts; each received what the mapping says."""
    env = native(echo_vector(4, mode, key, length=0))
    name, spec = the_behavior(env)
    rng, env_steps, sent = np.random.default_rng(0), 0, None
    env.reset()
    while env_steps < 1000:
        steps = poll(env)
        env_steps += steps.env_steps
        if sent is not None:
            np.testing.assert_array_equal(steps.decision.obs["obs"], sent)
        actions = random_actions(spec, 4, rng)
        sent = np.array([
            np.concatenate([np.ravel(part).astype(np.float32) for _, part in simple_parts(ACTION_SPACES[key], action)])
            for action in to_env_actions(spec.action, actions)
        ])
        if rng.random() < 0.5:
            env.act(name, steps.decision.agent_id, actions)
            continue
        for part in np.split(rng.permutation(4), [1, 3]):
            env.act(name, part, Actions(actions.continuous[part], actions.discrete[part]))


@pytest.mark.parametrize("key", ["hybrid_tuple", "hybrid_dict", "hybrid_nested", "hybrid_discrete"])
def test_hybrid_actions_are_batched_as_gymnasium_does(key: str) -> None:
    """NEXT_STEP with ends at different times: environments that only reset get an action of the space as well."""
    vector = count_vector(3, "NextStep", length=4, vary=True)
    space = vector.single_action_space = ACTION_SPACES[key]
    batched, step, received = batch_space(space, 3), vector.step, []
    vector.step = lambda actions: (received.append(actions), step(np.zeros(3, np.int64)))[1]
    env = native(vector)
    env.reset()
    auditor = Auditor(env)
    auditor.run(60, np.random.default_rng(0))
    assert len(auditor.finished) > 5
    assert len(received) * 3 > 60, "some were reset"
    for actions in received:
        assert batched.contains(actions)
        for inner, part in simple_parts(batched, actions):
            assert (type(part), part.dtype, part.shape) == (np.ndarray, inner.dtype, inner.shape)


def test_fault_shows_a_hybrid_action() -> None:
    """C54: the one of the environment that the fault is about."""
    vector = gym.vector.SyncVectorEnv([lambda: NaNAt(1000), lambda: NaNAt(2)])
    vector.single_action_space = ACTION_SPACES["hybrid_tuple"]
    step = vector.step
    vector.step = lambda actions: step(np.zeros(2, np.int64))
    env = native(vector)
    name, _ = the_behavior(env)
    env.reset()
    for number in range(2):
        poll(env)
        env.act(name, np.arange(2), Actions(np.array([[0, 0], [-1, number]], np.float32), np.array([[0], [number]], np.int32)))
    with pytest.raises(EnvFault, match=r"env 1, episode 0, step 2, last action \(\[300.0, 500.0\], 0\)"):
        poll(env)


@pytest.mark.parametrize("structure", ["dict", "tuple"])
@pytest.mark.parametrize("mode", MODES)
def test_nested_buffers_of_the_environment_are_not_handed_out(mode: str, structure: str) -> None:
    """C20: dicts and tuples of arrays that are changed in place."""
    env = native(echo_obs_vector(2, mode, length=3, structure=structure, copy=False))
    env.reset()
    auditor = Auditor(env)
    auditor.run(24, np.random.default_rng(0))
    assert len(auditor.finished) >= 6
    for episode in auditor.finished:
        check_echo_episode(episode, auditor.spec)


class BatchedFinalObs(gym.vector.VectorEnv):
    """Gives the last observations of all environments batched as observations are (ALE's way), not as an array of objects."""

    def __init__(self, copies: gym.vector.SyncVectorEnv) -> None:
        self._copies = copies
        self.num_envs, self.metadata = copies.num_envs, copies.metadata
        self.single_observation_space, self.single_action_space = copies.single_observation_space, copies.single_action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._copies.reset(seed=None if seed is None else [seed] * self.num_envs)

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, infos = self._copies.step(actions)
        if "final_obs" in infos:
            space = self.single_observation_space
            rows = [space.sample() if last is None else last for last in infos["final_obs"]]
            infos["final_obs"] = concatenate(space, rows, create_empty_array(space, self.num_envs))
        return obs, reward, terminated, truncated, infos


@pytest.mark.parametrize("structure", ["dict", "tuple", "array"])
def test_last_observations_in_a_batch(structure: str) -> None:
    """C34: SAME_STEP with ends at different times; rows of environments that go on hold anything."""
    make = count_vector if structure == "array" else functools.partial(echo_obs_vector, structure=structure)
    env = native(BatchedFinalObs(make(3, "SameStep", length=4, vary=True)))
    env.reset()
    auditor = Auditor(env)
    auditor.run(60, np.random.default_rng(0))
    assert len(auditor.finished) > 10
    for episode in auditor.finished:
        check_count_episode(episode) if structure == "array" else check_echo_episode(episode, auditor.spec)
