"""Action repeat and frame stacking: what arrives is the last frames of the task that is stepped so often, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

from envs.base import EnvFault
from envs.factories import EnvFactory, EnvOptions
from envs.gymnasium_env import make_batched_env, probe_spec
from envs.masks import mask_method
from envs.spaces import observation_specs
from envs.specs import Actions
from envs.toy import CountObs
from envs.toy_audit import EchoObs, MutatingObs, echo_mask
from envs.wrappers import ActionRepeat, FrameStack
from tests.envs.contract import Auditor
from tests.envs.worlds import Returns, WithSpaces

OPTIONS = EnvOptions(frame_stack=2, action_repeat=3)


class Samples(gym.Env):
    """Shows samples of its space; an episode has 5 steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space) -> None:
        self.observation_space = deepcopy(space)  # its generator is in it
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {"steps": 0}

    def step(self, action: Any) -> tuple[Any, ...]:
        self.steps += 1
        return self.observation_space.sample(), float(self.steps), self.steps == 5, False, {"steps": self.steps}


BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
SPACES = {
    "vector": BOX, "image": spaces.Box(0, 255, (6, 5, 3), np.uint8), "float64": spaces.Box(-2.0, 2.0, (3, 2), np.float64),
    "scalar": spaces.Box(0, 9, (), np.int32), "discrete": spaces.Discrete(4, start=-2), "multi_binary": spaces.MultiBinary((2, 3)),
    "multi_discrete": spaces.MultiDiscrete([3, 5], start=[0, 7]),
    "dict": spaces.Dict({"b": spaces.Tuple((BOX, spaces.Discrete(3))), "a": spaces.Dict({"x": spaces.Box(0, 1, (2,), np.bool_)})}),
}


def _same(ours: Any, theirs: Any) -> None:
    """Equal values in equal structures."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            _same(ours[key], value)
    elif isinstance(theirs, tuple):
        assert len(ours) == len(theirs)
        for pair in zip(ours, theirs, strict=True):
            _same(*pair)
    else:
        assert ours.shape == theirs.shape
        np.testing.assert_array_equal(ours, np.asarray(theirs).astype(ours.dtype))


@pytest.mark.parametrize(("key", "padding"), [*((key, "reset") for key in SPACES), ("vector", "zero"), ("image", "zero"), ("dict", "zero")])
def test_the_same_as_gymnasiums(key: str, padding: str) -> None:
    """Oldest first, padded at the start of every episode, in every part of a nested space."""
    ours = FrameStack(Samples(SPACES[key]), 3, padding)
    theirs = FrameStackObservation(Samples(SPACES[key]), 3, padding_type=padding)
    for episode in range(3):
        seed = 7 if episode == 0 else None
        (obs, info), (expected, _) = ours.reset(seed=seed), theirs.reset(seed=seed)
        _same(obs, expected)
        assert info == {"steps": 0}
        assert padding == "zero" or ours.observation_space.contains(_in_dtypes(ours.observation_space, obs))
        for step in range(1, 6):
            (obs, reward, terminated, truncated, info), (expected, *_) = ours.step(0), theirs.step(0)
            _same(obs, expected)
            assert (reward, terminated, truncated, info) == (step, step == 5, False, {"steps": step})
        assert ours.observation_space.contains(_in_dtypes(ours.observation_space, obs))


def _in_dtypes(space: spaces.Space, obs: Any) -> Any:
    """`obs` in the dtypes of `space`: float64 is stored as float32."""
    if isinstance(space, spaces.Dict):
        return {key: _in_dtypes(inner, obs[key]) for key, inner in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_in_dtypes(inner, value) for inner, value in zip(space, obs, strict=True))
    return obs.astype(space.dtype)


@pytest.mark.parametrize("key", ["vector", "image", "float64", "scalar", "discrete"])
def test_space_is_the_one_of_gymnasium(key: str) -> None:
    ours, theirs = (wrap(Samples(SPACES[key]), 3).observation_space for wrap in (FrameStack, FrameStackObservation))
    assert ours == theirs


@pytest.mark.parametrize(("key", "kind", "choices"), [
    ("discrete", "categorical", (4, 4)), ("multi_discrete", "categorical", (3, 5, 3, 5)), ("multi_binary", "binary", ()),
])
def test_choices_and_flags_stay_what_they_are(key: str, kind: str, choices: tuple[int, ...]) -> None:
    """Gymnasium's own makes quantities of the last two, which networks would not see one-hot."""
    (spec,) = observation_specs(FrameStack(Samples(SPACES[key]), 2).observation_space, "World")
    assert (spec.kind, spec.choices) == (kind, choices)


def test_observations_that_are_changed_in_place() -> None:
    """C20: frames are copies, so that an old one is not what the environment writes into its array later."""
    env = FrameStack(MutatingObs(5), 3)
    assert env.reset()[0].tolist() == [[0, 0]] * 3
    for step in range(1, 6):
        obs = env.step(np.zeros(2, np.float32))[0]
        assert obs.tolist() == [[0, max(0, step - 2)], [0, step - 1], [0, step]]


@pytest.mark.parametrize("masks", ["key", "method", "info"])
def test_masks_are_not_stacked(masks: str) -> None:
    """Those of the newest observation arrive, from whichever source; a key of the observation keeps its width."""
    env = make_batched_env("envs.toy_audit:EchoObs", {"masks": masks, "length": 4}, 1, "inline", np.random.SeedSequence(1),
                           options=EnvOptions(frame_stack=3), masked=masks == "info")
    ((name, spec),) = env.behaviors.items()
    assert spec.action.masked
    assert {o.name: o.shape for o in spec.observations}["codes"] == (3, 2)
    assert "action_mask" not in {o.name for o in spec.observations}
    env.reset()
    for _ in range(3):
        decision = env.poll(1.0)[name].decision
        episode, step = decision.obs["body/0"][0, -1].astype(int)
        np.testing.assert_array_equal(decision.action_mask[0], np.concatenate(echo_mask(episode, step)))
        env.act(name, decision.agent_id, Actions(np.empty((1, 0), np.float32), np.array([[np.argmax(m) for m in echo_mask(episode, step)]])))


def test_observation_without_its_mask() -> None:
    """Nothing is made up: a missing mask is missing."""
    env = FrameStack(EchoObs(masks="key"), 2)
    env.reset()
    step = env.env.step

    def without_mask(action: Any) -> tuple[Any, ...]:
        obs, *rest = step(action)
        del obs["action_mask"]
        return obs, *rest

    env.env.step = without_mask
    assert "action_mask" not in env.step([0, 1])[0]


def test_part_that_is_not_supported() -> None:
    space = spaces.Dict({"see": spaces.Tuple((BOX, spaces.Sequence(BOX)))})
    with pytest.raises(ValueError, match=r"World: the observation space at \['see'\]\[1\] is Sequence"):
        FrameStack(WithSpaces(space), 2, name="World")


@pytest.mark.parametrize(("kwargs", "message"), [
    ({"obs": np.zeros(2)}, r"observation 'obs': expected shape \(3,\), received shape \(2,\)"),
    ({"obs": np.full(3, np.nan)}, r"non-finite observation 'obs'\[1, 0\] = nan"),
    ({"step": (np.zeros(3), 0.0, False, {})}, r"step\(\): expected \(obs, reward, terminated, truncated, info\), received a tuple of 4"),
    ({"reset": np.zeros(3)}, r"reset\(\): expected \(obs, info\), received ndarray"),
])
def test_wrong_values_are_found(kwargs: dict[str, Any], message: str) -> None:
    """Also through both wrappers, which neither hide what is wrong nor fail with a text of their own."""
    env = make_batched_env("tests.envs.worlds:Returns", kwargs, 1, "inline", np.random.SeedSequence(1), options=EnvOptions(2, 2))
    env.reset()
    with pytest.raises(EnvFault, match=message):
        Auditor(env).run(5, np.random.default_rng(0))


def test_rewards_are_summed_until_the_end() -> None:
    """8 steps of rewards 1 … 8, three at a time: 6, 15, and 7 + 8 at the end; the info is the last step's."""
    env = ActionRepeat(Samples(BOX), 3)
    env.env.step = _of_length(env.env.step, 8)
    env.reset()
    assert [env.step(0)[1:] for _ in range(3)] == [
        (6.0, False, False, {"steps": 3}), (15.0, False, False, {"steps": 6}), (15.0, True, False, {"steps": 8})]


def _of_length(step: Callable[[Any], tuple[Any, ...]], length: int) -> Callable[[Any], tuple[Any, ...]]:
    def stepped(action: Any) -> tuple[Any, ...]:
        obs, reward, _, truncated, info = step(action)
        return obs, reward, info["steps"] == length, truncated, info

    return stepped


def test_reward_in_an_array() -> None:
    """C62: as trained without the wrapper."""
    env = ActionRepeat(Returns(reward=np.array([1.5])), 2)
    env.reset()
    assert env.step(0)[1] == pytest.approx(1.5)
    assert env.step(0)[1] == pytest.approx(3.0)


def test_every_step_gets_the_action() -> None:
    """C20: `MutatingObs` writes NaN into what it is given, which the next of the repeated steps must not see."""
    received = []

    class Recorded(MutatingObs):
        def _act(self, action: np.ndarray) -> None:
            received.append(action.tolist())
            super()._act(action)

    env = ActionRepeat(Recorded(), 3)
    env.reset()
    env.step(np.array([0.25, -0.5], np.float32))
    assert received == [[0.25, -0.5]] * 3


def test_the_mask_method_is_reachable() -> None:
    env = FrameStack(ActionRepeat(EchoObs(masks="method"), 2), 2)
    env.reset()
    np.testing.assert_array_equal(mask_method(env)(), np.concatenate(echo_mask(0, 0)))


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes", "auto"])
def test_options_reach_every_way_of_stepping(stepping: str) -> None:
    """Frames are those of decisions: after the repeated steps. The true last observation is stacked as well, and no episode's frames
    are in the next one."""
    env = make_batched_env("envs.toy:CountObs", {"length": 7}, 2, stepping, np.random.SeedSequence(1), options=OPTIONS)
    try:
        env.reset()
        auditor = Auditor(env)
        auditor.run(20, np.random.default_rng(0))
        assert len(auditor.finished) >= 4
        for episode in auditor.finished:
            number = episode.obs[0][0, 0]
            assert [o.tolist() for o in episode.obs] == [[[number, a], [number, b]] for a, b in ((0, 0), (0, 3), (3, 6), (6, 7))]
            assert episode.reward == [1 + 2 + 3, 4 + 5 + 6, 7]
    finally:
        env.close()


def test_probe_has_the_stacked_shape() -> None:
    ((_, spec),) = probe_spec("CartPole-v1", {}, options=OPTIONS).items()
    assert [(o.shape, o.kind) for o in spec.observations] == [((2, 4), "vector")]


@pytest.mark.parametrize("options", [EnvOptions(frame_stack=2), EnvOptions(action_repeat=2)], ids=str)
def test_a_whitelisted_id_is_not_native_then(options: EnvOptions) -> None:
    env = make_batched_env("CartPole-v1", {}, 1, "auto", np.random.SeedSequence(1), options=options)
    assert env.stepping == "inline"
    env.close()


@pytest.mark.parametrize("key", ["frame_stack", "action_repeat"])
def test_vector_environments_are_not_wrapped(key: str) -> None:
    """The message says what to do."""
    with pytest.raises(ValueError, match=rf"^env_settings.{key}: expected 1, received 2: envs.toy:count_vector makes a vector .* let it do that"):
        EnvFactory("envs.toy:count_vector", {"autoreset_mode": "NextStep"}, options=EnvOptions(**{key: 2})).make()


@pytest.mark.parametrize("key", ["frame_stack", "action_repeat"])
def test_less_than_one(key: str) -> None:
    with pytest.raises(ValueError, match=f"env_settings.{key}: expected at least 1, received 0"):
        EnvOptions(**{key: 0})


def test_nothing_is_wrapped_by_default() -> None:
    assert type(EnvFactory("envs.toy:CountObs").make()) is CountObs
