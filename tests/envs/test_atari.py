"""Atari games: ALE's own vector environment and copies behind Gymnasium's preprocessing are one and the same task."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from envs import atari
from envs.base import BatchedEnv
from envs.factories import EnvFactory, EnvOptions
from envs.gymnasium_env import make_batched_env, probe_spec
from envs.seeding import env_seeds
from envs.specs import Actions
from tests.envs.contract import Auditor, Episode, poll

pytest.importorskip("ale_py", reason='needs ale-py: pip install "ale-py>=0.12"')
pytest.importorskip("cv2", reason="needs OpenCV: pip install opencv-python-headless")

SAME_GAMES = {"noop_max": 0, "repeat_action_probability": 0.0}
"""Nothing is left to chance, so that the games are the same in both."""


def make(env: str, kwargs: dict[str, Any], num_envs: int, stepping: str, seed: int = 1, first_env_index: int = 0) -> BatchedEnv:
    return make_batched_env(env, kwargs, num_envs, stepping, np.random.SeedSequence(seed), first_env_index)


def play(env: BatchedEnv, env_steps: int) -> list[Episode]:
    """All episodes, the unfinished ones last; the action of step t of a slot's k-th episode is always the same."""
    env.reset()
    auditor = Auditor(env)
    (choices,) = auditor.spec.action.discrete_branches
    begun: dict[int, int] = {}
    try:
        while auditor.env_steps < env_steps:
            steps = poll(env)
            auditor.take(steps)
            discrete = []
            for slot, first in zip(steps.decision.agent_id.tolist(), steps.decision.first.tolist(), strict=True):
                begun[slot] = begun.get(slot, 0) + first
                t = len(auditor.running[slot].reward)
                discrete.append([np.random.default_rng((slot, begun[slot], t // 3)).integers(choices)])
            if discrete:
                auditor.answer(steps.decision.agent_id, Actions(np.empty((len(discrete), 0), np.float32), np.array(discrete, np.int32)))
        return auditor.finished + [auditor.running[slot] for slot in sorted(auditor.running)]
    finally:
        env.close()


@pytest.mark.slow
@pytest.mark.parametrize(("env", "kwargs", "env_steps", "shape", "end"), [
    ("ALE/Breakout-v5", {}, 500, (4, 84, 84), "terminated"),
    ("ALE/Breakout-v5", {"episodic_life": True}, 150, (4, 84, 84), "terminated"),
    ("ALE/Pong-v5", {"max_num_frames_per_episode": 90}, 120, (4, 84, 84), "truncated"),
    ("ALE/SpaceInvaders-v5", {"img_height": 40, "img_width": 50, "grayscale": False, "stack_num": 2, "reward_clipping": True}, 300,
     (2, 40, 50, 3), ""),
    ("ALE/SpaceInvaders-v5", {"frameskip": 2, "full_action_space": True}, 400, (4, 84, 84), ""),
], ids=["game", "lives", "time_limit", "rgb", "frameskip"])
def test_native_and_copies_are_the_same_task(env: str, kwargs: dict[str, Any], env_steps: int, shape: tuple[int, ...], end: str) -> None:
    """Step by step the same frames, rewards and ends, to the last observation of an episode and across the start of the next."""
    native, copies = (play(make(env, {**SAME_GAMES, **kwargs}, 2, stepping), env_steps) for stepping in ("auto", "inline"))
    finished, rewards = 0, 0.0
    for slot in range(2):
        pairs = list(zip(*([e for e in episodes if e.slot == slot] for episodes in (native, copies)), strict=False))
        for ours, theirs in pairs:
            n = min(len(ours.reward), len(theirs.reward))  # the last one was cut: the native one spends steps on resets
            assert n or ours is pairs[-1][0]
            assert ours.reward[:n] == theirs.reward[:n]
            np.testing.assert_array_equal(np.array(ours.obs[: n + 1]), np.array(theirs.obs[: n + 1]))
            if ours is not pairs[-1][0]:
                assert (len(ours.reward), ours.terminated, ours.truncated) == (len(theirs.reward), theirs.terminated, theirs.truncated)
                finished += 1
            rewards += sum(abs(r) for r in ours.reward)
    first = native[0]
    assert first.obs[0].shape == shape
    assert first.obs[0].dtype == np.uint8
    assert len({o.tobytes() for o in first.obs}) > 10, "the picture moves"
    assert (finished > 0) == bool(end)
    assert not end or (first.terminated, first.truncated) == (end == "terminated", end == "truncated")
    assert rewards > 0 or end == "truncated"
    if kwargs.get("reward_clipping"):
        assert max(r for e in native for r in e.reward) == 1.0
    elif "SpaceInvaders" in env:
        assert max(r for e in native for r in e.reward) >= 5.0, "not clipped by default"


def test_a_time_limit_in_frames() -> None:
    """90 frames are 23 steps of 4, the last one cut short; that is a truncation, from which a value is bootstrapped."""
    episodes = play(make("ALE/Pong-v5", {**SAME_GAMES, "max_num_frames_per_episode": 90}, 1, "auto"), 50)
    assert [len(e.reward) for e in episodes[:2]] == [23, 23]
    assert all(e.truncated and not e.terminated for e in episodes[:2])


@pytest.mark.parametrize(("given", "probability"), [({}, 0.25), ({"repeat_action_probability": 0.0}, 0.0)])
def test_the_native_environment_has_the_registrations_defaults(given: dict[str, Any], probability: float) -> None:
    """Those of the single environment, unless env_kwargs say otherwise; no clipping, no fire."""
    env = make("ALE/Pong-v5", given, 2, "auto")
    assert env.stepping == "native"
    used = env._env.spec.kwargs
    assert gym.spec("ALE/Pong-v5").kwargs["repeat_action_probability"] == 0.25
    assert used["repeat_action_probability"] == probability
    assert (used["reward_clipping"], used["use_fire_reset"]) == (False, False)
    env.close()


def test_copies_have_the_registrations_defaults() -> None:
    env = EnvFactory("ALE/Pong-v5").make()
    assert env.unwrapped.spec.kwargs["repeat_action_probability"] == 0.25
    assert env.unwrapped.spec.kwargs["frameskip"] == 1
    env.close()


@pytest.mark.slow
def test_every_environment_has_its_own_seed() -> None:
    """C80, C81: as an array, from the run's seed tree by the index in the run; other ones after a resume, and none at a second reset."""
    def seeds(first_env_index: int, num_envs: int, begun: int = 0) -> list[int]:
        env = make("ALE/Pong-v5", {}, num_envs, "auto", 1, first_env_index)
        given, reset = [], env._env.reset
        env._env.reset = lambda seed: (given.append(seed), reset(seed=seed))[1]
        env.load_state({"episodes_begun": {"1": begun}})
        for _ in range(2):
            env.reset()
            poll(env)
        env.close()
        assert given[1] is None
        return given[0].tolist()

    together = seeds(0, 3)
    assert together == [env_seeds(np.random.SeedSequence(1), i, 0).reset for i in range(3)]
    assert seeds(1, 2) == together[1:]
    assert seeds(1, 1, begun=5) == [env_seeds(np.random.SeedSequence(1), 1, 5).reset]


@pytest.mark.slow
def test_seeds_make_the_games() -> None:
    """The same seeds give the same games, others give others: by the no-ops and the actions that are repeated."""
    games = [play(make("ALE/SpaceInvaders-v5", {}, 2, "auto", seed), 40) for seed in (1, 1, 2)]
    first, again, other = ([[o.tobytes() for o in episode.obs] for episode in episodes] for episodes in games)
    assert first == again
    assert first[0] != other[0]
    assert first[0] != first[1]


def test_probe_says_the_same_of_both() -> None:
    native, copies, module = (
        probe_spec(env, {"stack_num": 3}, stepping=stepping)
        for env, stepping in (("ALE/Pong-v5", "auto"), ("ALE/Pong-v5", "threads"), ("ale_py:ALE/Pong-v5", "auto")))
    assert native == copies == module
    (observation,) = native["Pong"].observations
    assert (observation.shape, observation.dtype, observation.kind) == ((3, 84, 84), "uint8", "image")
    assert native["Pong"].action.discrete_branches == (6,)


def test_plain_game() -> None:
    """Without the preprocessing the env_kwargs are the single environment's."""
    options = EnvOptions(atari_preprocessing=False)
    ((_, spec),) = probe_spec("ALE/Pong-v5", {"obs_type": "ram"}, options=options).items()
    assert (spec.observations[0].shape, spec.observations[0].kind) == ((128,), "vector")
    env = EnvFactory("ALE/Pong-v5", {}, options=options).make()
    assert env.observation_space.shape == (210, 160, 3)
    env.close()


@pytest.mark.parametrize("stepping", ["auto", "inline"])
@pytest.mark.parametrize(("kwargs", "message"), [
    ({"obs_type": "ram"}, r"env_kwargs: ALE/Pong-v5 has no argument 'obs_type'\. .*takes: .*stack_num.*atari_preprocessing: false"),
    ({"stacknum": 2}, "Did you mean 'stack_num'"),
    ({"num_envs": 2}, "is not given 'num_envs': it is env_settings.num_envs"),
    ({"life_loss_info": True}, "is not given 'life_loss_info': .*episodic_life"),
    ({"frameskip": 0}, "env_kwargs: ALE/Pong-v5 cannot be made from them: .*frame"),
])
def test_wrong_env_kwargs(stepping: str, kwargs: dict[str, Any], message: str) -> None:
    """C89: named, at the probe as well as when the environments are made."""
    with pytest.raises(ValueError, match=message):
        probe_spec("ALE/Pong-v5", kwargs, stepping=stepping)
    with pytest.raises(ValueError, match=message):
        make("ALE/Pong-v5", kwargs, 2, stepping)


@pytest.mark.parametrize(("kwargs", "reason"), [
    ({"use_fire_reset": True}, "use_fire_reset=True needs ALE's vector environment: .*does not press fire.*stepping to auto"),
    ({"maxpool": False}, "maxpool=False needs ALE's vector environment"),
    ({"num_threads": 2}, "num_threads=2 needs ALE's vector environment: copies are stepped as env_settings.stepping says"),
    ({"continuous": True}, "continuous=True with no-ops needs ALE's vector environment.* noop_max: 0"),
])
def test_what_only_the_vector_environment_can_do(kwargs: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        probe_spec("ALE/Pong-v5", kwargs, stepping="processes")
    ((_, spec),) = probe_spec("ALE/Pong-v5", kwargs).items()
    assert (spec.action.kind == "box") == ("continuous" in kwargs)


@pytest.mark.parametrize("stepping", ["auto", "inline"])
def test_continuous_actions(stepping: str) -> None:
    env = make("ALE/Pong-v5", {"continuous": True, "noop_max": 0}, 2, stepping)
    env.reset()
    auditor = Auditor(env)
    auditor.run(6, np.random.default_rng(0))
    assert auditor.spec.action.continuous_size == 3
    env.close()


@pytest.mark.parametrize("stepping", ["auto", "inline"])
@pytest.mark.parametrize("key", ["frame_stack", "action_repeat"])
def test_frames_are_not_stacked_twice(key: str, stepping: str) -> None:
    with pytest.raises(ValueError, match=rf"env_settings.{key}: expected 1, received 4: .* stack_num or frameskip"):
        probe_spec("ALE/Pong-v5", {}, options=EnvOptions(**{key: 4}), stepping=stepping)


def test_other_vector_environments_declare_what_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """ALE writes its autoreset mode where every vector environment would inherit it (C41)."""
    monkeypatch.setattr(VectorEnv, "metadata", {})
    env = make("ALE/Pong-v5", {}, 1, "auto")
    assert env._env.metadata["autoreset_mode"] is gym.vector.AutoresetMode.NEXT_STEP
    assert VectorEnv.metadata == {}
    env.close()


def test_number_of_threads() -> None:
    """It is passed on; what it changes is only the time."""
    episodes = [play(make("ALE/Pong-v5", {**SAME_GAMES, "num_threads": n}, 2, "auto"), 20) for n in (1, 2)]
    np.testing.assert_array_equal(*(np.array(e[0].obs) for e in episodes))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads as Linux shows them")
def test_close_ends_the_threads() -> None:
    """ALE's own `close` leaves them."""
    before = len(os.listdir("/proc/self/task"))
    env = make("ALE/Pong-v5", {"num_threads": 2}, 2, "auto")
    env.reset()
    poll(env)
    assert len(os.listdir("/proc/self/task")) > before
    env.close()
    env.close()
    assert len(os.listdir("/proc/self/task")) == before


def test_description() -> None:
    assert atari.describe("ALE/Pong-v5", {}) == (
        "84×84 grey, 4 frames per action, maximum of the last two, 4 stacked, up to 30 no-ops, actions repeat with probability 0.25, "
        "at most 108,000 frames")
    text = atari.describe("ALE/Pong-v5", {"reward_clipping": True, "grayscale": False, "frameskip": 1, "episodic_life": True})
    assert "84×84 RGB, 1 frames per action, 4 stacked" in text
    assert text.endswith("rewards clipped to [-1, 1], every life is an episode")


def test_missing_opencv_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ValueError, match="ALE/Pong-v5: .*pip install .*opencv-python-headless"):
        EnvFactory("ALE/Pong-v5").make()
