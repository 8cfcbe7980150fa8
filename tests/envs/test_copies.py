"""Copies of an environment: the checks of the boundary and what a fault says, whatever steps them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from envs.base import EnvFault
from envs.gymnasium_env import make_batched_env
from envs.single_env import plain_action
from envs.specs import Actions, to_env_actions
from envs.toy import ACTION_SPACES, simple_parts
from envs.toy_audit import PIXEL_SPACES, step_pixels
from tests.envs import worlds
from tests.envs.contract import Auditor, act, check_count_episode, check_echo_episode, poll, random_actions, the_behavior


def make(env: str, num_envs: int = 1, stepping: str = "inline", first_env_index: int = 0, **kwargs: Any):
    return make_batched_env(env, kwargs, num_envs, stepping, np.random.SeedSequence(1), first_env_index)


def run(env: str, env_steps: int = 1000, num_envs: int = 1, stepping: str = "inline", first_env_index: int = 0, **kwargs: Any) -> Auditor:
    """Random actions for `env_steps` steps."""
    batched = make(env, num_envs, stepping, first_env_index, **kwargs)
    try:
        batched.reset()
        auditor = Auditor(batched)
        auditor.run(env_steps, np.random.default_rng(0))
        return auditor
    finally:
        batched.close()


@pytest.mark.parametrize("structure", ["dict", "tuple"])
def test_environment_that_returns_the_same_nested_arrays(structure: str) -> None:
    """C20: parts of Dicts and Tuples at any depth that are changed in place; and their masks."""
    auditor = run("envs.toy_audit:EchoObs", 40, num_envs=2, structure=structure, masks="method", same_arrays=True, length=10)
    assert len(auditor.finished) == 4
    for episode in auditor.finished:
        check_echo_episode(episode, auditor.spec)
        assert len(episode.reward) == 10


def test_environment_that_returns_the_same_array() -> None:
    """C20: 10 steps, stored obs are 0 … 9 and the next ones 1 … 10; a scribbled-on action stays what the policy said."""
    env = make("envs.toy_audit:MutatingObs", num_envs=2, length=10)
    _, spec = the_behavior(env)
    env.reset()
    auditor = Auditor(env)
    for _ in range(21):
        steps = poll(env)
        auditor.take(steps)
        actions = random_actions(spec, len(steps.decision), np.random.default_rng(0))
        kept = actions.continuous.copy()
        auditor.answer(steps.decision.agent_id, actions)
        np.testing.assert_array_equal(actions.continuous, kept)
    assert len(auditor.finished) == 4
    for episode in auditor.finished:
        check_count_episode(episode, length=10)
    assert [float(o[1]) for o in auditor.finished[0].obs] == list(range(11))


@pytest.mark.parametrize("key", ACTION_SPACES)
def test_actions_are_in_the_space(key: str) -> None:
    """C57, C59: the environment insists on its space, dtype and shape, and shows what it received."""
    env = make("envs.toy:EchoAction", num_envs=4, space=key)
    name, spec = the_behavior(env)
    space = ACTION_SPACES[key]
    env.reset()
    rng = np.random.default_rng(0)
    seen = []
    for _ in range(50):
        steps = poll(env)
        seen.append(steps.decision.obs["obs"][~steps.decision.first].copy())
        env.act(name, steps.decision.agent_id, random_actions(spec, len(steps.decision), rng))
    received = np.concatenate(seen)
    assert len(received) > 100
    if isinstance(space, spaces.Discrete):
        assert set(received.ravel().tolist()) == set(range(int(space.start), int(space.start + space.n)))


@pytest.mark.parametrize("key", ["hybrid_tuple", "hybrid_dict", "hybrid_nested"])
@pytest.mark.parametrize("stepping", ["inline", "threads", "processes"])
def test_hybrid_actions_arrive(key: str, stepping: str) -> None:
    """C57, C59: 1,000 steps, none refused by the environment, and each copy received what the mapping says."""
    env = make("envs.toy:EchoAction", 4, stepping, space=key, length=0)
    name, spec = the_behavior(env)
    rng, sent, env_steps = np.random.default_rng(0), {}, 0
    try:
        env.reset()
        while env_steps < 1000:
            steps = poll(env)
            env_steps += steps.env_steps
            agent_id, received = steps.decision.agent_id, steps.decision.obs["obs"]
            for row in np.flatnonzero(~steps.decision.first):
                np.testing.assert_array_equal(received[row], sent[agent_id[row]])
            actions = random_actions(spec, len(agent_id), rng)
            for slot, action in zip(agent_id, to_env_actions(spec.action, actions), strict=True):
                sent[slot] = np.concatenate([np.ravel(part) for _, part in simple_parts(ACTION_SPACES[key], action)]).astype(np.float32)
            env.act(name, agent_id, actions)
    finally:
        env.close()


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes"])
def test_fault_shows_a_hybrid_action(stepping: str) -> None:
    """C19: as plain numbers in the space's own structure."""
    with pytest.raises(EnvFault, match=r"\nenv 0, episode 0, step 2, last action \(\[[34]\d\d[\d.]*, [34]\d\d[\d.]*\], (-1|0|1)\)\n"):
        run("tests.envs.worlds:HybridCrash", stepping=stepping, n=2)


def test_plain_action() -> None:
    action = (np.int64(2), {"arm": (np.array(0.5), np.arange(40)), "eye": np.array([[1], [0]], np.int8)})
    assert plain_action(action) == (2, {"arm": (0.5, [*range(32), "…"]), "eye": [[1], [0]]})


@pytest.mark.parametrize("kind", ["float64", "float64_space", "list", "tuple_of_numpy", "int", "bool", "float16", "int_space", "scalar_space"])
def test_other_types_than_declared(kind: str) -> None:
    """C62: float64, lists, NumPy scalars, rewards of shape (1,) and NumPy bools train without complaint."""
    auditor = run("tests.envs.worlds:Trifles", 30, num_envs=2, kind=kind)
    assert len(auditor.finished) >= 4
    for episode in auditor.finished:
        assert episode.reward == [1.5] * 5
        assert episode.terminated
        if kind not in ("bool", "scalar_space"):
            assert [float(o[0]) for o in episode.obs] == [0, 1, 2, 3, 4, 5]
        assert episode.obs[0].dtype == ("int32" if kind == "int_space" else "float32")


def test_other_types_than_declared_inside() -> None:
    """C62: the same in the parts of a Dict and a Tuple."""
    auditor = run("tests.envs.worlds:Trifles", 30, num_envs=2, kind="parts")
    for episode in auditor.finished:
        assert [o["choice"].tolist() for o in episode.observations] == [[0], [1], [2], [0], [1], [2]]
        assert [o["pair/1"].tolist() for o in episode.observations] == [[0], [1], [2], [3], [4], [5]]
        assert {name: array.dtype for name, array in episode.observations[0].items()} == {
            "choice": np.int64, "pair/0": np.int8, "pair/1": np.float32, "vec": np.float32}


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes"])
@pytest.mark.parametrize("image", PIXEL_SPACES)
def test_images_arrive_as_they_are(image: str, stepping: str) -> None:
    """C60: every pixel, in the space's dtype and order of axes."""
    auditor = run("envs.toy_audit:StepPixels", 24, 2, stepping, image=image, length=5)
    (spec,) = auditor.spec.observations
    assert (spec.kind, spec.dtype, spec.shape) == ("image", PIXEL_SPACES[image].dtype.name, PIXEL_SPACES[image].shape)
    assert spec.is_uint8_image == (image != "unit")
    assert len(auditor.finished) >= 4
    for episode in auditor.finished:
        for step, pixels in enumerate(episode.obs):
            assert pixels.dtype == spec.dtype
            np.testing.assert_array_equal(pixels, step_pixels(image, step))


@pytest.mark.parametrize(("kwargs", "message"), [
    ({"obs": np.array([0, 0, 1.2])}, r"observation 'obs'\[2\] = 1.2\d* is outside of its space: high bound 1.0.*\nenv 0, episode 0, step 2"),
    ({"obs": np.zeros(4)}, r"observation 'obs': expected shape \(3,\), received shape \(4,\)\nenv 0, episode 0, step 2, last action [01]"),
    ({"space": spaces.Discrete(3), "obs": 3}, r"^observation 'obs'\[0\] = 3 is outside of its space: high bound 2.*\nenv 0, episode 0, step 2, last action"),
    ({"space": spaces.Dict({"a": spaces.Discrete(3)}), "obs": {"b": 1}},
     r"^observation: expected a dict with the keys \['a'\], received one with \['a'\] missing and \['b'\] not in .*\nenv 0, episode 0, step 2"),
    ({"space": spaces.Tuple((spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (3,)))), "obs": (np.zeros(2), [0, 1.2, 0])},
     r"^observation '1'\[1\] = 1.2\d* is outside of its space: high bound 1.0.*\nenv 0, episode 0, step 2"),
    ({"space": spaces.Tuple((spaces.Box(0, 1, (2,)),)), "obs": np.zeros((1, 2))}, r"^observation: expected a tuple of 1, .* received a ndarray"),
    ({"obs": "abc"}, r"observation 'obs': expected numbers of shape \(3,\), received 'abc'"),
    ({"reward": "good"}, r"reward: expected one number, received 'good'\nenv 0, episode 0, step 2"),
    ({"terminated": None, "reward": 1}, r"^.{0}terminated: expected a bool, received None"),
    ({"step": (np.zeros(3), 0.0, False, {})}, r"step\(\): expected \(obs, reward, terminated, truncated, info\), received a tuple of 4 \(the API of old"),
    ({"step": "x"}, r"step\(\): expected .* received str"),
    ({"reset": np.zeros(3)}, r"reset\(\): expected \(obs, info\), received ndarray\nenv 0, episode 0, step 0"),
])
def test_wrong_returns(kwargs: dict, message: str) -> None:
    """C62: what was expected, what was received and where."""
    with pytest.raises(EnvFault, match=message):
        run("tests.envs.worlds:Returns", 3, **kwargs)


def test_bounds_are_checked_in_the_first_100_steps_only() -> None:
    """C62: of each environment; a longer check would cost time at every step of the run."""
    with pytest.raises(EnvFault, match=r"'obs'\[1\] = 51.0 .* high bound 50.0.*\nenv 0, episode 0, step 51"):
        run("tests.envs.worlds:OutOfBounds", 100, length=1000)
    within = run("tests.envs.worlds:OutOfBounds", 120, length=40)  # 3 episodes in bounds
    batched = within.env
    assert len(within.finished) == 3
    batched._workers._envs[0].env.length = 1000
    within.run(80, np.random.default_rng(0))
    assert within.running[0].obs[-1][1] > 50


@pytest.mark.parametrize(("kwargs", "message"), [
    ({"n": 200, "index": 3}, r"^non-finite observation 'obs'\[3\] = nan\nenv 5, episode 0, step 200, last action [01]$"),
    ({"n": 3, "index": 1, "value": "-inf", "episode": 2, "length": 4}, r"^non-finite observation 'obs'\[1\] = -inf\nenv 5, episode 2, step 3"),
    ({"n": 4, "length": 4}, r"^non-finite observation 'obs'\[3\] = nan\nenv 5, episode 0, step 4"),
    ({"n": 0, "episode": 1, "length": 4}, r"^non-finite observation 'obs'\[3\] = nan\nenv 5, episode 1, step 0$"),
    ({"n": 0}, r"^non-finite observation 'obs'\[3\] = nan\nenv 5, episode 0, step 0$"),
    ({"n": 200, "where": "reward", "value": "inf"}, r"^non-finite reward inf\nenv 5, episode 0, step 200"),
])
def test_non_finite_values(kwargs: dict, message: str) -> None:
    """C54: env index, episode, step, key, index and value; at any step, at the last one and at a reset."""
    with pytest.raises(EnvFault, match=message):
        run("envs.toy:NaNAt", first_env_index=5, **kwargs)


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes"])
def test_users_exception_comes_first(stepping: str) -> None:
    """C19: type and message, then the user's file and line, then the place, then their traceback without our frames."""
    with pytest.raises(EnvFault) as caught:
        run("envs.toy:CrashAt", stepping=stepping, first_env_index=7, n=30, length=20)
    fault = caught.value
    lines = str(fault).splitlines()
    assert lines[0] == "ValueError: boom-42"
    assert "envs/toy.py:" in lines[1]
    assert lines[1].endswith("(_act), in step()")
    assert lines[2].startswith("env 7, episode 1, step 10, last action ")
    assert fault.user_traceback.startswith("Traceback (most recent call last):")
    assert "single_env.py" not in fault.user_traceback
    assert (fault.env_index, fault.episode, fault.step) == (7, 1, 10)
    assert fault.last_action in (0, 1)


def test_every_toy_world_counts_as_the_users_code() -> None:
    """C19: its own file comes first, as that of a user would."""
    env = make("envs.toy_audit:EchoObs", masks="method")
    env.reset()
    poll(env)
    env.act("EchoObs", np.array([0]), Actions(np.empty((1, 0), np.float32), np.array([[1, 0]], np.int32)))
    with pytest.raises(EnvFault, match=r"^ValueError: \[1 0\] is not allowed by .*\n  at .*/envs/toy_audit.py:\d+ \(_act\), in step\(\)"):
        poll(env)


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes"])
def test_constructor_error(stepping: str) -> None:
    """C19: also when an environment cannot even be made."""
    with pytest.raises(EnvFault) as caught:
        make("tests.envs.worlds:BoomInConstructor", num_envs=2, stepping=stepping)
    lines = str(caught.value).splitlines()
    assert lines[0] == "ValueError: boom-42"
    assert worlds.__file__ in lines[1]
    assert lines[2] == "env 0"


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes", "auto"])
def test_refused_space(stepping: str) -> None:
    """A space that is not supported is a ValueError at construction, in every stepping mode."""
    refused = spaces.Dict({"vec": spaces.Box(0, 1, (2,)), "notes": spaces.Tuple((spaces.Sequence(spaces.Discrete(3)),))})
    with pytest.raises(ValueError, match=r"^WithSpaces: the observation space at \['notes'\]\[0\] is Sequence.*; supported are: Box of any rank"):
        make("tests.envs.worlds:WithSpaces", num_envs=2, stepping=stepping, observation=refused)


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes", "auto"])
def test_forgotten_space(stepping: str) -> None:
    with pytest.raises(ValueError, match="WithoutSpaces: the environment has no observation_space"):
        make("tests.envs.worlds:WithoutSpaces", num_envs=2, stepping=stepping)


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes", "auto"])
def test_wrong_env_kwargs(stepping: str) -> None:
    """C89, in every stepping mode."""
    with pytest.raises(ValueError, match="env_kwargs: envs.toy:CountObs has no argument 'lenght'. Did you mean 'length'?"):
        make("envs.toy:CountObs", num_envs=2, stepping=stepping, lenght=3)


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes"])
def test_an_environment_that_exits_is_a_fault(stepping: str) -> None:
    """sys.exit in a step must end neither the run silently nor a thread without an answer."""
    with pytest.raises(EnvFault, match=r"^SystemExit: 5\n  at .*worlds.py"):
        run("tests.envs.worlds:ExitsInStep", stepping=stepping)


def test_fault_in_a_later_reset_names_the_episode_that_was_to_begin() -> None:
    with pytest.raises(EnvFault, match=r"nan\nenv 0, episode 1, step 0$"):
        run("tests.envs.worlds:BadResetLater", 10)


def test_others_go_on_after_a_fault() -> None:
    """One environment fails; what the others did in the same poll is not lost."""
    env = make("envs.toy:CrashAt", num_envs=3, n=2)
    env.reset()
    poll(env)
    act(env, np.array([1]))
    assert poll(env).decision.agent_id.tolist() == [1]
    act(env, np.array([0, 1, 2]))
    with pytest.raises(EnvFault, match="env 1, episode 0, step 2"):
        env.poll(1.0)
    steps = poll(env)
    assert steps.decision.agent_id.tolist() == [0, 2]
    assert env.poll(0.0) == {}


def test_wrong_settings() -> None:
    with pytest.raises(ValueError, match="env_settings.stepping: expected one of auto, inline, threads, processes, received 'fast'"):
        make("envs.toy:CountObs", stepping="fast")
    with pytest.raises(ValueError, match="env_settings.num_envs: expected at least 1, received 0"):
        make("envs.toy:CountObs", num_envs=0)


def test_actions_reach_their_copy_in_any_order() -> None:
    env = make("envs.toy:EchoAction", num_envs=3, space="discrete")
    name, _ = the_behavior(env)
    env.reset()
    poll(env)
    env.act(name, np.array([2, 0, 1]), Actions(np.empty((3, 0), np.float32), np.array([[3], [1], [2]], np.int32)))
    assert poll(env).decision.obs["obs"].tolist() == [[1], [2], [3]]
