"""Action masks: every form and source, and what is refused."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from envs.base import BatchedEnv, EnvFault
from envs.factories import EnvFactory
from envs.gymnasium_env import make_batched_env
from envs.masks import MaskReader, has_mask_key, mask_method
from envs.single_env import Outcome, Reset, SingleEnv
from envs.spaces import action_spec
from envs.toy import ACTION_SPACES, CountObs
from envs.toy_masks import MaskedBandit
from tests.envs.contract import Auditor, act, poll, random_actions, the_behavior
from tests.envs.worlds import GivesMasks

BOX = spaces.Box(0.0, 1.0, (2,))
DISCRETE, MULTI, MATRIX = spaces.Discrete(3, start=-1), spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([[2, 3], [1, 2]])
EQUAL, BINARY = spaces.MultiDiscrete([[2, 2], [2, 2]]), spaces.MultiBinary(2)
TUPLE = spaces.Tuple((BOX, MULTI, spaces.Discrete(2)))
DICT = spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Tuple((spaces.Discrete(2), BOX))})


def reader(space: spaces.Space) -> MaskReader:
    return MaskReader(space, action_spec(space, "env"), "info['action_mask']")


def read(space: spaces.Space, value: Any) -> list[int]:
    out = np.zeros(action_spec(space, "env").choices, bool)
    reader(space).read(value, out)
    return out.astype(int).tolist()


@pytest.mark.parametrize(("space", "value", "mask"), [
    (DISCRETE, np.array([True, False, True]), [1, 0, 1]),
    (DISCRETE, np.array([1, 0, 1], np.int8), [1, 0, 1]),
    (DISCRETE, [1.0, 0.0, 1.0], [1, 0, 1]),
    (DISCRETE, (True, 0, np.float32(1)), [1, 0, 1]),
    (DISCRETE, [np.array([1, 0, 1])], [1, 0, 1]),
    (DISCRETE, np.array([[1, 0, 1]]), [1, 0, 1]),
    (DISCRETE, None, [1, 1, 1]),
    (MULTI, [1, 0, 0, 1, 1], [1, 0, 0, 1, 1]),
    (MULTI, (np.array([1, 0]), np.array([0, 1, 1])), [1, 0, 0, 1, 1]),
    (MULTI, [[1, 0], [False, True, True]], [1, 0, 0, 1, 1]),
    (MATRIX, np.array([1, 0, 1, 1, 0, 1, 0, 1]), [1, 0, 1, 1, 0, 1, 0, 1]),
    (MATRIX, [[1, 0], [1, 1, 0], [1], [0, 1]], [1, 0, 1, 1, 0, 1, 0, 1]),
    (MATRIX, (([1, 0], [1, 1, 0]), ([1], [0, 1])), [1, 0, 1, 1, 0, 1, 0, 1]),
    (EQUAL, np.array([[1, 0], [0, 1], [1, 1], [1, 0]]), [1, 0, 0, 1, 1, 1, 1, 0]),
    (EQUAL, np.array([[[1, 0], [0, 1]], [[1, 1], [1, 0]]]), [1, 0, 0, 1, 1, 1, 1, 0]),
    (EQUAL, [[1, 0], [0, 1], [1, 1], [1, 0]], [1, 0, 0, 1, 1, 1, 1, 0]),
    (EQUAL, (([1, 0], [0, 1]), ([1, 1], [1, 0])), [1, 0, 0, 1, 1, 1, 1, 0]),
    (BINARY, [1, 0, 0, 1], [1, 0, 0, 1]),
    (BINARY, ([1, 0], [0, 1]), [1, 0, 0, 1]),
    (BINARY, np.array([[1, 0], [0, 1]]), [1, 0, 0, 1]),
    (TUPLE, np.array([1, 0, 0, 1, 1, 0, 1]), [1, 0, 0, 1, 1, 0, 1]),
    (TUPLE, (None, (np.array([1, 0]), np.array([0, 1, 1])), [0, 1]), [1, 0, 0, 1, 1, 0, 1]),
    (TUPLE, [None, [1, 0, 0, 1, 1], np.array([0, 1])], [1, 0, 0, 1, 1, 0, 1]),
    (TUPLE, (None, None, [0, 1]), [1, 1, 1, 1, 1, 0, 1]),
    (DICT, {"a": ([1, 0], None), "b": [0, 1, 1]}, [1, 0, 0, 1, 1]),
    (DICT, [1, 0, 0, 1, 1], [1, 0, 0, 1, 1]),
    (DICT, {"a": None, "b": np.array([0, 0, 1])}, [1, 1, 0, 0, 1]),
    (spaces.Dict({"a": BOX, "b": DISCRETE}), {"b": [0, 1, 0]}, [0, 1, 0]),
    (spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))), ([1, 0], [0, 1]), [1, 0, 0, 1]),
], ids=str)
def test_forms(space: spaces.Space, value: Any, mask: list[int]) -> None:
    """C63: flat, by branch and nested as the space is; one branch after the other, whatever their first values are."""
    assert read(space, value) == mask


@pytest.mark.parametrize(("space", "value", "message"), [
    (DISCRETE, [1, 0], r"expected 3 values; received a list of 2: \[1, 0\]"),
    (DISCRETE, np.ones((3, 1)), r"expected 3 values; received an array of shape \(3, 1\) \(float64\)"),
    (DISCRETE, 1, r"expected 3 values; received 1"),
    (DISCRETE, [1, 0, None], r"expected 3 values; received a list of 3"),
    (DISCRETE, ["1", "0", "1"], r"expected 3 values; received a list of 3"),
    (DISCRETE, [1, 0, 2], r"expected only 0 \(not allowed\) and 1 \(allowed\); received 2 at index \[2\]"),
    (DISCRETE, [0.5, 0, 1], r"expected only 0 .* received 0.5 at index \[0\]"),
    (DISCRETE, np.array([1, np.nan, 0]), r"expected only 0 .* received nan at index \[1\]"),
    (DISCRETE, {"left": 1}, r"expected 3 values; received a dict with the keys \['left'\]"),
    (MULTI, ([1, 0], [1, 1]), r"expected 5 values, or one mask for each of the 2 branches, of 2, 3 values; received a tuple of 2"),
    (MULTI, ([1, 0, 0], [1, 1]), r"one mask for each of the 2 branches, of 2, 3 values; received a tuple of 2"),
    (MULTI, ([1, 0],), r"one mask for each of the 2 branches, of 2, 3 values; received a tuple of 1"),
    (MULTI, ([1, 0], [1, 2, 0]), r"expected only 0 .* received 2 at index \[3\]"),
    (EQUAL, np.ones((2, 4)), r"expected 8 values, or one mask for each of the 4 branches.* received an array of shape \(2, 4\)"),
    (BINARY, [0, 2], r"expected 4 values, or one mask for each of the 2 branches, of 2, 2 values; received a list of 2"),
    (TUPLE, [1, 0, 1], r"\[0\]: expected None for a Box, which has no choices; received 1"),
    (TUPLE, np.ones(6), r"expected 3 masks, nested as the action space is, or 7 values; received an array of shape \(6,\)"),
    (TUPLE, ([1, 1], None, None), r"\[0\]: expected None for a Box, which has no choices; received a list of 2"),
    (TUPLE, (None, None, [1, 1, 1]), r"\[2\]: expected 2 values; received a list of 3"),
    (DICT, {"b": [1, 1, 1]}, r"expected a dict with the keys \['a', 'b'\], or 5 values; received a dict with the keys \['b'\]"),
    (DICT, {"a": None, "b": None, "c": None}, r"expected a dict with the keys \['a', 'b'\], or 5 values; received a dict with the keys \['a', 'b', 'c'\]"),
    (DICT, {"a": ([1, 1, 1], None), "b": None}, r"\['a'\]\[0\]: expected 2 values; received a list of 3"),
    (DICT, {"a": [1, 1, 1], "b": None}, r"\['a'\]: expected 2 masks, nested as the action space is; received a list of 3"),
], ids=str)
def test_refused_forms(space: spaces.Space, value: Any, message: str) -> None:
    """C63: the source, the part, what was expected and what was received."""
    with pytest.raises(ValueError, match=r"^info\['action_mask'\].*" + message):
        read(space, value)


def test_what_was_read_is_a_copy() -> None:
    value, out = np.array([True, False, True]), np.zeros(3, bool)
    reader(DISCRETE).read(value, out)
    value[:] = False
    assert out.tolist() == [True, False, True]


MASK_SPACES = [
    (DISCRETE, spaces.MultiBinary(3)), (DISCRETE, spaces.Box(0, 1, (3,), np.int8)), (DISCRETE, spaces.MultiDiscrete([2, 2, 2])),
    (MULTI, spaces.Tuple((spaces.MultiBinary(2), spaces.MultiBinary(3)))), (MULTI, spaces.Box(0, 1, (5,), np.int8)),
    (EQUAL, spaces.Box(0, 1, (4, 2), np.int8)), (EQUAL, spaces.Tuple([spaces.MultiBinary(2)] * 4)), (BINARY, spaces.MultiBinary((2, 2))),
    (DICT, spaces.Dict({"a": spaces.Tuple((spaces.MultiBinary(2),) * 1), "b": spaces.MultiBinary(3)})), (DICT, spaces.MultiBinary(5)),
]


@pytest.mark.parametrize(("space", "mask_space"), MASK_SPACES[:-2] + MASK_SPACES[-1:], ids=str)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_batches_as_gymnasium_makes_them(space: spaces.Space, mask_space: spaces.Space, n: int) -> None:
    """Every row equals the mask that it was made of; also where n is the number of branches or choices."""
    mask_space.seed(n)
    masks = [mask_space.sample() for _ in range(n)]
    out = np.zeros((n, action_spec(space, "env").choices), bool)
    reader(space).read_batch(concatenate(mask_space, masks, create_empty_array(mask_space, n)), out)
    assert out.astype(int).tolist() == [read(space, mask) for mask in masks]
    assert batch_space(mask_space, n)


def test_batches_of_single_masks() -> None:
    """A list or an array of objects, None for an agent without."""
    out = np.zeros((3, 5), bool)
    reader(MULTI).read_batch([([1, 0], [0, 1, 1]), None, [1, 1, 1, 0, 0]], out)
    assert out.astype(int).tolist() == [[1, 0, 0, 1, 1], [1] * 5, [1, 1, 1, 0, 0]]
    objects = np.full(3, None, object)
    objects[1] = ([1, 0], [0, 1, 1])
    reader(MULTI).read_batch(objects, out)
    assert out.astype(int).tolist() == [[1] * 5, [1, 0, 0, 1, 1], [1] * 5]
    reader(TUPLE).read_batch((None, [np.ones((2, 2)), np.ones((2, 3))], np.array([[0, 1], [1, 0]])), wide := np.zeros((2, 7), bool))
    assert wide.astype(int).tolist() == [[1] * 5 + [0, 1], [1] * 5 + [1, 0]]
    reader(MULTI).read_batch(None, out)
    assert out.all()


@pytest.mark.parametrize(("value", "message"), [
    (np.ones((2, 5)), r"expected 5 values, .*, for each of 3 agents; received an array of shape \(2, 5\)"),
    ([[1] * 5] * 2, r"expected the masks of 3 agents; received 2 masks"),
    ((np.ones((3, 2)), np.ones((2, 3))), r"expected 5 values, .*, for each of 3 agents; received a tuple of 2"),
    (np.full((3, 5), 2), r"received 2 at index \[0, 0\]"),
])
def test_refused_batches(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"^info\['action_mask'\]: .*" + message):
        reader(MULTI).read_batch(value, np.zeros((3, 5), bool))


def test_a_branch_with_nothing_allowed_is_found() -> None:
    """C63: the first row and branch, of a batch and of one mask."""
    masks = np.ones((3, 5), bool)
    assert reader(MULTI).problem(masks) is None
    assert reader(MULTI).problem(masks[0]) is None
    masks[1, 2:] = False
    masks[2] = False
    row, text = reader(MULTI).problem(masks)
    assert row == 1
    assert text.startswith("info['action_mask'] allows none of the 3 choices of branch 1 (elements 2 to 4 of the flat mask)")
    assert reader(MULTI).problem(masks[2])[0] == 0
    assert reader(DISCRETE).problem(np.zeros(3, bool))[1].startswith("info['action_mask'] allows none of the 3 choices; at least one")
    assert reader(DISCRETE).problem(np.eye(3, dtype=bool)) is None


# -- of an environment -----------------------------------------------------------------------------------------------

ALL, NONE, LEFT = [1, 1, 1], [0, 0, 0], [1, 0, 0]


def single(masks: list[Any], source: str = "info", end: str = "truncated", masked: bool = True, action: spaces.Space | None = None) -> SingleEnv:
    """`GivesMasks` behind the boundary, as its factory would be known after a probe."""
    return SingleEnv(EnvFactory("tests.envs.worlds:GivesMasks", masked=masked and source == "info"), GivesMasks(masks, source, end, action))


def plain(mask: np.ndarray | None) -> list[int] | None:
    return None if mask is None else mask.astype(int).tolist()


def outcomes(env: SingleEnv, steps: int) -> list[Any]:
    found = [env.run(Reset(None))] + [env.run(np.int64(0)) for _ in range(steps)]
    return [plain(outcome.action_mask) if isinstance(outcome, Outcome) else outcome for outcome in found]


@pytest.mark.parametrize("source", ["info", "key", "method", "method+key+info", "key+info"])
def test_sources(source: str) -> None:
    """The method, else the key of the observation, else the info: the others of these environments allow everything."""
    env = single([LEFT, [0, 1, 0], [0, 1, 1], ALL], source)
    assert env.spec.action.masked
    assert outcomes(env, 2) == [LEFT, [0, 1, 0], [0, 1, 1]]


def test_method_is_found_through_wrappers() -> None:
    wrapped = gym.wrappers.TimeLimit(gym.wrappers.OrderEnforcing(GivesMasks([LEFT] * 9, "method")), 5)
    env = SingleEnv(EnvFactory("tests.envs.worlds:GivesMasks"), wrapped)
    assert outcomes(env, 1) == [LEFT, LEFT]
    assert mask_method(CountObs()) is None
    attribute = CountObs()
    attribute.action_masks = np.ones(2)
    assert mask_method(attribute) is None, "not a method"
    assert has_mask_key(spaces.Dict({"action_mask": BOX}))
    assert not has_mask_key(BOX)
    assert not has_mask_key(None)


@pytest.mark.parametrize("source", ["info", "key", "method"])
def test_a_missing_mask_allows_everything(source: str) -> None:
    assert outcomes(single([LEFT, "missing", LEFT, ALL], source), 2) == [LEFT, ALL, LEFT]
    assert outcomes(single(["missing", LEFT, LEFT, ALL], source), 1) == [ALL, LEFT]


@pytest.mark.parametrize("source", ["info", "key", "method"])
def test_nothing_allowed_at_an_end_counts_as_everything(source: str) -> None:
    """Environments have no legal move when a game is over; the next episode's mask is checked again."""
    env = single([LEFT, NONE], source, "truncated")
    assert outcomes(env, 0) == [LEFT]
    outcome = env.run(np.int64(0))
    assert (plain(outcome.final_action_mask), plain(outcome.action_mask)) == (ALL, LEFT)
    env = single([LEFT, [0, 1, 0]], source, "truncated")
    env.run(Reset(None))
    assert plain(env.run(np.int64(0)).final_action_mask) == [0, 1, 0], "a truncated episode goes on: the mask is needed"


def test_a_method_is_not_asked_after_a_termination() -> None:
    env = single([LEFT, ValueError("the game is over")], "method", "terminated")
    env.run(Reset(None))
    outcome = env.run(np.int64(0))
    assert (plain(outcome.final_action_mask), plain(outcome.action_mask)) == (ALL, LEFT)


def test_without_a_discrete_branch_there_is_nothing_to_mask() -> None:
    for source in ("info", "key", "method"):
        env = single([LEFT, LEFT, LEFT], source, action=BOX)
        assert not env.spec.action.masked
        env.run(Reset(None))
        assert env.run(np.zeros(2, np.float32)).action_mask is None


def test_a_mask_that_was_not_announced_is_a_fault() -> None:
    """The policy was made without masks; ignoring this one would be silent."""
    env = single(["missing", LEFT, LEFT], masked=False)
    assert outcomes(env, 0) == [None]
    fault = env.run(np.int64(0))
    assert isinstance(fault, EnvFault)
    assert str(fault).startswith("info['action_mask'] is given here, but the first reset of the environment gave none")
    assert "in the info of every reset" in str(fault)


def make(masks: list[Any], source: str, stepping: str, num_envs: int = 2, **kwargs: Any) -> BatchedEnv:
    return make_batched_env("tests.envs.worlds:GivesMasks", {"masks": masks, "source": source, **kwargs}, num_envs, stepping,
                            np.random.SeedSequence(1), first_env_index=5, masked=source == "info")


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes"])
@pytest.mark.parametrize("source", ["info", "key", "method"])
def test_nothing_allowed_names_env_and_step(stepping: str, source: str) -> None:
    """C63: whatever steps the environments and wherever the mask comes from."""
    names = {"info": r"info\['action_mask'\]", "key": r"observation\['action_mask'\]", "method": r"action_masks\(\)"}
    for masks, where in (([LEFT, LEFT, NONE, LEFT], "episode 0, step 2, last action 0"), ([NONE, LEFT], "episode 0, step 0")):
        env = make(masks, source, stepping, num_envs=1)
        try:
            with pytest.raises(EnvFault, match=rf"^{names[source]} allows none of the 3 choices; .*\nenv 5, {where}$"):
                env.reset()
                for _ in range(9):
                    steps = poll(env)
                    env.act(the_behavior(env)[0], steps.decision.agent_id, random_actions(
                        the_behavior(env)[1], 1, np.random.default_rng(0), steps.decision.action_mask))
        finally:
            env.close()


@pytest.mark.parametrize(("masks", "message"), [
    ([LEFT, [1, 1], LEFT], r"^info\['action_mask'\]: expected 3 values; received a list of 2: \[1, 1\]\.\nenv 5, episode 0, step 1, last action"),
    ([LEFT, [1, 1, 7], LEFT], r"^info\['action_mask'\]: expected only 0 .* received 7 at index \[2\]\.\nenv 5, episode 0, step 1, last action"),
    ([[1, 1], LEFT], r"^info\['action_mask'\]: expected 3 values; .*\nenv 5, episode 0, step 0$"),
    ([LEFT, [1, 1]], r"^info\['action_mask'\]: expected 3 values; .*\nenv 5, episode 0, step 1, last action"),
])
def test_a_wrong_mask_names_env_and_step(masks: list[Any], message: str) -> None:
    env = make(masks, "info", "inline", num_envs=1)
    with pytest.raises(EnvFault, match=message):
        env.reset()
        poll(env)
        act(env, np.array([0]))
        poll(env)


def test_what_a_method_raises_is_the_users_exception() -> None:
    """C19."""
    env = make([LEFT, ValueError("boom-42"), LEFT], "method", "inline", num_envs=1)
    env.reset()
    poll(env)
    act(env, np.array([0]))
    with pytest.raises(EnvFault, match=r"^ValueError: boom-42\n  at .*worlds.py:\d+ \(_given\), in action_masks\(\)\nenv 5, episode 0, step 1"):
        poll(env)


@pytest.mark.parametrize("masks", ["info", "key", "method", "none"])
@pytest.mark.parametrize("choices", [5, [3, 4], 5000], ids=str)
def test_masked_bandit_is_never_given_an_illegal_action(masks: str, choices: Any) -> None:
    """C63, the environment's side: with the delivered masks 0 illegal choices; the same actions without them are often illegal."""
    kwargs = {"choices": choices, "masks": masks, "length": 7}
    env = make_batched_env("envs.toy_masks:MaskedBandit", kwargs, 4, "inline", np.random.SeedSequence(1), masked=masks == "info")
    env.reset()
    auditor = Auditor(env)
    auditor.run(400, np.random.default_rng(0))
    rewards = [r for e in auditor.finished for r in e.reward]
    illegal = rewards.count(MaskedBandit.PENALTY)
    counted = max(float(e.observations[-1]["illegal" if masks == "key" else "obs"][0]) for e in auditor.finished)
    if masks == "none":
        assert illegal > 100
        assert counted > 2
    else:
        assert (illegal, counted) == (0, 0)
        assert 0.4 < np.mean(rewards) < 0.6


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes"])
def test_masks_arrive_with_their_agents(stepping: str) -> None:
    """Each slot its own mask, in whichever order the copies answer; a hybrid action's mask is that of its branches."""
    masks = [{"turn": None, "gear": ([1, 0], [0] * t + [1] * (11 - t)), "lift": None} for t in range(9)]
    env = make(masks, "method", stepping, num_envs=3, action=ACTION_SPACES["hybrid_dict"])
    try:
        env.reset()
        auditor = Auditor(env)
        auditor.run(60, np.random.default_rng(0))
        assert len(auditor.finished) > 3
        for episode in [*auditor.finished, *auditor.running.values()]:
            for t, mask in enumerate(episode.masks):
                assert mask.tolist() == [True, False] + [False] * t + [True] * (11 - t)
    finally:
        env.close()
