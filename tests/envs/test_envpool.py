"""EnvPool's worlds: always on a module with its interface, and on EnvPool itself where it is installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from envs.base import BatchedEnv, EnvFault
from envs.envpool_env import EnvPoolVectorEnv
from envs.factories import EnvFactory, EnvOptions
from envs.gymnasium_env import make_batched_env, probe_spec
from envs.seeding import env_seeds
from tests.envs import fake_envpool
from tests.envs.contract import (
    LENGTH,
    NUM_ENVS,
    Auditor,
    BatchedEnvContract,
    check_count_episode,
    check_echo_episode,
    poll,
    the_behavior,
)

real = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="needs EnvPool: pip install envpool")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`fake_envpool` in place of EnvPool."""
    monkeypatch.setitem(sys.modules, "envpool", fake_envpool)
    yield


def make(env: str, kwargs: dict[str, Any], num_envs: int = 3, seed: int = 1, first_env_index: int = 0, **settings: Any) -> BatchedEnv:
    return make_batched_env(env, kwargs, num_envs, "auto", np.random.SeedSequence(seed), first_env_index, **settings)


def first_observations(env: BatchedEnv) -> np.ndarray:
    env.reset()
    try:
        return poll(env).decision.obs["obs"].copy()
    finally:
        env.close()


@pytest.mark.usefixtures("fake")
class TestContract(BatchedEnvContract):
    """What every `BatchedEnv` keeps to."""

    stepping = "native"

    def make(self, seed: int = 1) -> BatchedEnv:
        return make("envpool:Count-v1", {"length": LENGTH, "vary": True}, NUM_ENVS, seed)


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_ends(end: str, fake: None) -> None:
    """C34, C41: the step that resets is no transition; time limits are truncations."""
    env = make("envpool:Count-v1", {"length": 3, "end": end})
    env.reset()
    auditor = Auditor(env)
    auditor.run(30, np.random.default_rng(0))
    assert len(auditor.finished) >= 6
    for episode in auditor.finished:
        check_count_episode(episode, length=3)
        assert (episode.terminated, episode.truncated) == (end == "terminated", end == "truncated")


def test_masks(fake: None) -> None:
    """C63: what EnvPool calls legal_action_mask, found without a reset at the probe; an illegal action would be a fault."""
    ((name, spec),) = probe_spec("envpool:Echo-v1", {}).items()
    assert (name, spec.action.masked) == ("Echo", True)
    assert not probe_spec("envpool:Count-v1", {})["Count"].action.masked
    env = make("envpool:Echo-v1", {"length": 4}, masked=True)
    env.reset()
    auditor = Auditor(env)
    auditor.run(30, np.random.default_rng(0))
    assert auditor.finished
    for episode in auditor.finished:
        check_echo_episode(episode, auditor.spec)


def test_continuous_actions_arrive(fake: None) -> None:
    """C57: in the space's bounds, shape and dtype; the world raises otherwise."""
    env = make("envpool:Arm-v1", {"length": 5})
    env.reset()
    auditor = Auditor(env)
    auditor.run(40, np.random.default_rng(0))
    assert all((np.array(e.obs[1:]) >= [-1, 0]).all() and (np.array(e.obs[1:]) <= [1, 10]).all() for e in auditor.finished)


def test_untrue_bounds_of_floats_are_no_fault(fake: None) -> None:
    """Nobody but EnvPool could correct them. Pixels keep theirs, which make an image of them."""
    env = make("envpool:Overflowing-v1", {"length": 20}, 1)
    env.reset()
    Auditor(env).run(40, np.random.default_rng(0))
    _, spec = the_behavior(env)
    assert {o.name: (o.kind, o.is_uint8_image) for o in spec.observations} == {"count": ("vector", False), "pixel": ("image", True)}


def test_every_world_has_its_own_seed(fake: None) -> None:
    """C80, C81: by its index in the run and the run's seed, never seed + i; another one after a resume."""
    together = first_observations(make("envpool:Random-v1", {}, 4))
    assert len(set(together.ravel().tolist())) == 4
    np.testing.assert_array_equal(first_observations(make("envpool:Random-v1", {}, 2, first_env_index=2)), together[2:])
    assert first_observations(make("envpool:Random-v1", {}, 1, seed=2))[0] != together[0]
    resumed = make("envpool:Random-v1", {}, 1)
    resumed.load_state({"episodes_begun": {"0": 3}})
    assert first_observations(resumed)[0] != together[0]


def test_versions_that_take_one_seed(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They get the first world's, which is of this env manager alone."""
    monkeypatch.delitem(fake_envpool.COMMON, "env_seed")
    given: list[Any] = []

    class Recorded(fake_envpool.Pool):
        def __init__(self, spec: fake_envpool.Spec) -> None:
            given.append(spec.config.seed)
            self._copies, self.action_space = gym.vector.SyncVectorEnv([lambda: spec.world(**spec.kwargs)] * spec.config.num_envs), None
            self._seeds, self.closed = None, False

    monkeypatch.setattr(fake_envpool, "Pool", Recorded)
    first_observations(make("envpool:Count-v1", {}, 2, first_env_index=4))
    assert given == [env_seeds(np.random.SeedSequence(1), 4, 0).reset]


def test_a_second_reset_keeps_the_pool(fake: None) -> None:
    """Its worlds go on with their generators; only the first reset makes it."""
    env = make("envpool:Count-v1", {"length": 5}, 2)
    for episode in range(3):
        env.reset()
        assert poll(env).decision.obs["obs"][:, 0].tolist() == [episode] * 2
    env.close()
    env.close()


def test_close_ends_the_pool(fake: None) -> None:
    env = make("envpool:Count-v1", {}, 2)
    env.reset()
    poll(env)
    pool = env._env._pool
    env.close()
    assert pool.closed


@pytest.mark.parametrize(("env", "kwargs", "message"), [
    ("envpool:Cuont-v1", {}, "env: EnvPool has no environment 'Cuont-v1'. Nearest: Count-v1"),
    ("envpool:Xyzzy", {}, r"env: EnvPool has no environment 'Xyzzy'\.$"),
    ("envpool:Count-v1", {"lenght": 3}, "env_kwargs: envpool:Count-v1 has no argument 'lenght'. Did you mean 'length'. It takes: .*num_threads"),
    ("envpool:Count-v1", {"end": "never"}, "env_kwargs: envpool:Count-v1 cannot be made from {'end': 'never'}: ValueError: end: expected"),
    ("envpool:Count-v1", {"num_envs": 3}, "is not given 'num_envs': it is env_settings.num_envs"),
    ("envpool:Count-v1", {"seed": 3}, "is not given 'seed': it is drawn from env_settings.seed"),
    ("envpool:Chess-v1", {}, "has 2 players at once; expected a world of one agent"),
    ("envpool:Broken-v1", {}, "cannot be loaded by EnvPool: libGL.so.1"),
])
def test_wrong_configurations(env: str, kwargs: dict[str, Any], message: str, fake: None) -> None:
    """C89: ValueErrors that say what is right, at the probe and when the environments are made."""
    with pytest.raises(ValueError, match=message):
        probe_spec(env, kwargs)
    with pytest.raises(ValueError, match=message):
        make(env, kwargs)


def test_missing_package_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ValueError, match="env: 'envpool:Pong-v5' needs EnvPool, which is not installed: pip install envpool"):
        probe_spec("envpool:Pong-v5", {})


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes"])
def test_other_ways_of_stepping_are_refused(stepping: str, fake: None) -> None:
    """With the reason, and before anything is made."""
    message = rf"env_settings.stepping: expected auto for envpool:Count-v1, received '{stepping}': EnvPool steps its worlds in threads"
    with pytest.raises(ValueError, match=message):
        probe_spec("envpool:Count-v1", {}, stepping=stepping)
    with pytest.raises(ValueError, match=message):
        make_batched_env("envpool:Count-v1", {}, 2, stepping, np.random.SeedSequence(1))


@pytest.mark.parametrize("key", ["frame_stack", "action_repeat"])
def test_pools_are_not_wrapped(key: str, fake: None) -> None:
    with pytest.raises(ValueError, match=rf"env_settings.{key}: expected 1, received 4: envpool:Count-v1 is stepped as a whole; give env_kwargs"):
        probe_spec("envpool:Count-v1", {}, options=EnvOptions(**{key: 4}))


def test_a_pool_from_a_factory_is_refused(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would silently be seeded alike in every env manager."""
    class Pool(VectorEnv):
        """Comes from the package."""

    Pool.__module__ = "envpool.atari"
    monkeypatch.setattr(fake_envpool, "make_gymnasium", lambda: Pool())
    with pytest.raises(ValueError, match="a pool of EnvPool, whose seeds are fixed: .* Name it as env: envpool:ID"):
        EnvFactory("tests.envs.fake_envpool:make_gymnasium").make()


def test_fault_of_a_world(fake: None) -> None:
    """C19: the text comes first, and the place in the run after it."""
    env = make("envpool:Count-v1", {}, 2)
    env.reset()
    auditor = Auditor(env)
    auditor.take(poll(env))
    env._env._pool._copies.step = lambda actions: 1 / 0
    with pytest.raises(EnvFault, match=r"^ZeroDivisionError: division by zero\n.*in vector step 1"):
        auditor.answer(np.arange(2), auditor.random_actions(np.arange(2), np.random.default_rng(0)))
        env.poll(1.0)


@real
def test_real_time_limit() -> None:
    """``trunc`` of EnvPool: CartPole cut after 8 steps, before any pole can fall."""
    env = make("envpool:CartPole-v1", {"max_episode_steps": 8, "num_threads": 1})
    env.reset()
    auditor = Auditor(env)
    auditor.run(60, np.random.default_rng(0))
    assert len(auditor.finished) >= 6
    assert all((len(e.reward), e.terminated, e.truncated) == (8, False, True) for e in auditor.finished)
    for episode in auditor.finished:
        assert (np.abs(episode.obs[0]) <= 0.05).all(), "a first observation, not the one before the reset"
        assert (np.abs(np.diff(np.array(episode.obs), axis=0)) < 0.8).all(), "no observation of another episode"
    env.close()


@real
def test_real_end() -> None:
    """A pole that falls is a termination, at its true last observation."""
    env = make("envpool:CartPole-v1", {})
    env.reset()
    auditor = Auditor(env)
    auditor.run(400, np.random.default_rng(0))
    assert len(auditor.finished) > 5
    for episode in auditor.finished:
        assert (episode.terminated, episode.truncated) == (True, False)
        fallen = [abs(o[2]) > 0.2095 or abs(o[0]) > 2.4 for o in episode.obs]
        assert fallen == [False] * (len(fallen) - 1) + [True]
    env.close()


@real
def test_real_seeds() -> None:
    together = first_observations(make("envpool:CartPole-v1", {}, 4))
    assert len({o.tobytes() for o in together}) == 4
    np.testing.assert_array_equal(first_observations(make("envpool:CartPole-v1", {}, 2, first_env_index=2)), together[2:])
    assert (first_observations(make("envpool:CartPole-v1", {}, 1, seed=2))[0] != together[0]).any()


@real
@pytest.mark.parametrize(("env", "name", "observations"), [
    ("envpool:Pong-v5", "Pong", {"obs": ((4, 84, 84), "uint8", "image")}), ("envpool:HalfCheetah-v4", "HalfCheetah", {"obs": ((17,), "float32", "vector")}),
    ("envpool:FrozenLake-v1", "FrozenLake", {"obs": ((1,), "int64", "categorical")}),
    ("envpool:WalkerWalk-v1", "WalkerWalk", {"height": ((1,), "float32", "vector"), "orientations": ((14,), "float32", "vector"),
                                             "velocity": ((9,), "float32", "vector")}),
])
def test_real_spaces(env: str, name: str, observations: dict[str, Any]) -> None:
    """Every kind of observation arrives, in whole batches."""
    assert list(probe_spec(env, {})) == [name]
    batched = make(env, {"num_threads": 1}, 2)
    _, spec = the_behavior(batched)
    assert {o.name: (o.shape, o.dtype, o.kind) for o in spec.observations} == observations
    batched.reset()
    Auditor(batched).run(6, np.random.default_rng(0))
    batched.close()


@real
def test_real_masks() -> None:
    """A game of EnvPool that has them: only allowed moves are made."""
    assert probe_spec("envpool:Play2048-v1", {})["Play2048"].action.masked
    env = make("envpool:Play2048-v1", {}, 2, masked=True)
    env.reset()
    Auditor(env).run(60, np.random.default_rng(0))
    env.close()


@real
@pytest.mark.parametrize(("kwargs", "message"), [
    ({"stack_nm": 3}, "has no argument 'stack_nm'. Did you mean 'stack_num'"), ({"stack_num": "four"}, "cannot be made from"),
    ({"img_height": -3}, "cannot be made from"),
])
def test_real_wrong_env_kwargs(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EnvPoolVectorEnv("envpool:Pong-v5", 2, kwargs)
