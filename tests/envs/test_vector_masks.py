"""Action masks of vector environments: from every source, with every autoreset mode, and what is wrong with some."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from envs.base import EnvFault
from envs.gymnasium_env import make_batched_env, probe_spec
from envs.native import NativeVectorEnv
from envs.specs import Actions
from envs.toy import count_vector
from envs.toy_audit import EchoObs
from tests.envs.contract import Auditor, act, check_echo_episode, poll, the_behavior
from tests.envs.worlds import GivesMasks

MODES = ("NextStep", "SameStep", "Disabled")


def native(env: gym.vector.VectorEnv, masked: bool = False) -> NativeVectorEnv:
    return NativeVectorEnv(env, "World", np.random.SeedSequence(1), masked=masked)


def gives_masks(mode: str, masks: Sequence[Any], source: str = "info", **kwargs: Any) -> gym.vector.VectorEnv:
    """Environment 0 gives these masks; environment 1 always allows everything, for longer."""
    everything = [np.ones_like(masks[0]) if isinstance(masks[0], np.ndarray) else "missing"] * 9
    copies = [lambda: GivesMasks(masks, source, **kwargs), lambda: GivesMasks(everything, source, **kwargs)]
    return gym.vector.SyncVectorEnv(copies, autoreset_mode=mode, observation_mode="same")


def masks_of(env: NativeVectorEnv, vector_steps: int) -> tuple[list[list[int]], list[list[int]]]:
    """Masks of environment 0 at its decisions and at its ends; the actions are always the first allowed one."""
    env.reset()
    decisions, ends = [], []
    name, spec = the_behavior(env)
    for _ in range(vector_steps):
        steps = poll(env)
        for part, found in ((steps.decision, decisions), (steps.terminal, ends)):
            assert part.action_mask.shape == (len(part), spec.action.choices)
            found += [mask.astype(int).tolist() for slot, mask in zip(part.agent_id, part.action_mask, strict=True) if slot == 0]
        if len(steps.decision):
            branches = np.split(steps.decision.action_mask, np.cumsum(spec.action.discrete_branches)[:-1], axis=1)
            discrete = np.stack([np.argmax(branch, axis=1) for branch in branches], axis=1).astype(np.int32)
            env.act(name, steps.decision.agent_id, Actions(np.zeros((len(steps.decision), spec.action.continuous_size), np.float32), discrete))
    return decisions, ends


A, B, C, ALL = np.array([1, 0, 0], bool), np.array([0, 1, 1], np.int8), np.array([0.0, 0.0, 1.0]), np.ones(3, bool)


@pytest.mark.parametrize("source", ["info", "key", "method"])
@pytest.mark.parametrize("mode", MODES)
def test_masks_of_every_source(mode: str, source: str) -> None:
    """C63: at each decision the newest, at a truncation the one of the last observation (unless the mode has lost it), bool whatever
    they are; a method of copies is called in each."""
    env = native(gives_masks(mode, [A, B.astype(bool), C.astype(bool)], source), masked=source == "info")
    decisions, ends = masks_of(env, 9)
    assert decisions == list(itertools.islice(itertools.cycle([[1, 0, 0], [0, 1, 1]]), len(decisions)))
    assert len(decisions) >= 6
    known = [0, 0, 1] if (mode, source) != ("SameStep", "method") else [1, 1, 1]
    assert ends == [known] * len(ends)
    assert len(ends) >= 2


@pytest.mark.parametrize("last", [np.zeros(3, bool), A], ids=["nothing", "something"])
@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize("mode", MODES)
def test_masks_at_an_end(mode: str, end: str, last: np.ndarray) -> None:
    """After a termination, and where nothing is allowed any more, everything counts as allowed; that is no fault."""
    _, ends = masks_of(native(gives_masks(mode, [A, ALL, last], end=end), masked=True), 9)
    assert ends == [[1, 0, 0] if end == "truncated" and last.any() else [1, 1, 1]] * len(ends)
    assert ends


@pytest.mark.parametrize("mode", MODES)
def test_masks_that_only_some_environments_give(mode: str) -> None:
    """Gymnasium fills the others' with zeros: they are missing, which allows everything."""
    copies = [lambda: GivesMasks([A, A, "missing", "missing", A]), lambda: GivesMasks(["missing", A, "missing", A, A])]
    decisions, _ = masks_of(native(gym.vector.SyncVectorEnv(copies, autoreset_mode=mode), masked=True), 4)
    assert decisions == [[1, 0, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1]]


HYBRID = spaces.Dict({"arm": spaces.Box(-1.0, 1.0, (2,), np.float32), "gear": spaces.MultiDiscrete([2, 3]), "horn": spaces.Discrete(2)})


@pytest.mark.parametrize("masks", [
    [{"gear": (np.array([1, 0]), np.array([0, 1, 1])), "horn": np.array([0, 1])}, {"gear": None, "horn": np.array([1, 0])}, None],
    [(1, 0, 0, 1, 1, 0, 1), (1, 1, 1, 1, 1, 1, 0), "missing"],
    [[1, 0, 0, 1, 1, 0, 1], np.array([1, 1, 1, 1, 1, 1, 0]), "missing"],
], ids=["nested", "tuples", "mixed"])
def test_masks_of_hybrid_actions(masks: list[Any]) -> None:
    """Nested as the action space is, flat, and where an environment leaves a part or all of it out."""
    copies = [lambda: GivesMasks(masks, action=HYBRID), lambda: GivesMasks(masks[1:], action=HYBRID)]
    decisions, _ = masks_of(native(gym.vector.SyncVectorEnv(copies), masked=True), 2)
    assert decisions == [[1, 0, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1, 0]]


class OwnMasks(gym.vector.VectorWrapper):
    """A vector environment with a method for the masks of all: nobody repeats the action before."""

    def reset(self, **kwargs: Any) -> Any:
        self._mask = np.ones((self.num_envs, 2), np.int8)
        return super().reset(**kwargs)

    def step(self, actions: np.ndarray) -> Any:
        self._mask = (np.arange(2) != actions[:, None]).astype(np.int8)
        return super().step(actions)

    def action_masks(self) -> np.ndarray:
        return self._mask


@pytest.mark.parametrize("wrap", [OwnMasks, lambda env: gym.vector.VectorWrapper(OwnMasks(env))], ids=["itself", "inside"])
def test_a_method_of_the_vector_environment(wrap: Callable[..., gym.vector.VectorEnv]) -> None:
    """It gives the masks of all environments at once, also through wrappers."""
    decisions, _ = masks_of(native(wrap(count_vector(2, "NextStep", length=100))), 4)
    assert decisions == [[1, 1], [0, 1], [1, 0], [0, 1]]


def test_methods_of_copies_in_processes() -> None:
    """AsyncVectorEnv: the method is found without breaking a process that has none, and called there."""
    def env(masks: str) -> NativeVectorEnv:
        return native(gym.vector.AsyncVectorEnv([functools.partial(EchoObs, 4, masks=masks)] * 2))

    with_method, without = env("method"), env("none")
    try:
        assert [e.behaviors["World"].action.masked for e in (with_method, without)] == [True, False]
        for e in (with_method, without):
            e.reset()
            auditor = Auditor(e)
            auditor.run(16, np.random.default_rng(0))
            for episode in auditor.finished:
                check_echo_episode(episode, auditor.spec)
    finally:
        with_method.close()
        without.close()


@pytest.mark.parametrize("source", ["info", "key", "method"])
@pytest.mark.parametrize("mode", MODES)
def test_nothing_allowed(mode: str, source: str) -> None:
    """C63: the fault names the environment, the episode, the step and the source."""
    vector = gives_masks(mode, [ALL, ALL, np.zeros(3, bool), ALL], source)
    with pytest.raises(EnvFault, match=r"action_mask.* allows none of the 3 choices.*\nenv 0, episode 0, step 2, last action 0$"):
        masks_of(native(vector, masked=source == "info"), 9)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_allowed_from_the_start_of_a_later_episode(mode: str) -> None:
    """The step is 0 there, and no action has led to it."""
    masks = [ALL, ALL]
    vector = gives_masks(mode, masks)
    env = native(vector, masked=True)
    env.reset()
    act(env, poll(env).decision.agent_id)
    masks[0] = np.zeros(3, bool)
    with pytest.raises(EnvFault, match=r"allows none of the 3 choices.*\nenv 0, episode 1, step 0$"):
        for _ in range(2):
            act(env, poll(env).decision.agent_id)


@pytest.mark.parametrize(("masks", "message"), [
    ([np.ones(2, bool)] * 3, r"info\['action_mask'\]: expected 3 values, for each of 2 agents; received an array of shape \(2, 2\)"),
    ([ALL, np.array([1, 2, 0]), ALL], r"info\['action_mask'\]: expected only 0 \(not allowed\) and 1 \(allowed\)"),
])
def test_masks_of_a_wrong_form(masks: list[Any], message: str) -> None:
    copies = [lambda: GivesMasks(masks)] * 2
    with pytest.raises(EnvFault, match=message):
        masks_of(native(gym.vector.SyncVectorEnv(copies), masked=True), 3)


def test_method_that_raises() -> None:
    vector = gives_masks("NextStep", [A, ValueError("boom-42"), A], "method")
    with pytest.raises(EnvFault, match=r"^ValueError: boom-42\n.*in action_masks\(\)"):
        masks_of(native(vector), 3)


def test_a_mask_that_nobody_was_told_of() -> None:
    """The policy has been made without masks: it would act illegally."""
    env = native(gives_masks("NextStep", ["missing", A, A]))
    env.reset()
    act(env, poll(env).decision.agent_id)
    with pytest.raises(EnvFault, match=r"info\['action_mask'\] is given here, but the first reset .* Give it in the info of every reset, too"):
        env.poll(1.0)


@pytest.mark.parametrize(("masks", "structure"), [("none", "dict"), ("info", "dict"), ("key", "dict"), ("method", "tuple")])
def test_the_probe_finds_masks(masks: str, structure: str) -> None:
    """Of a vector environment, from every source; what is then made has the same spec."""
    kwargs = {"autoreset_mode": "NextStep", "masks": masks, "structure": structure}
    ((name, spec),) = probe_spec("envs.toy_audit:echo_obs_vector", {**kwargs, "num_envs": 2}).items()
    assert spec.action.masked == (masks != "none")
    env = make_batched_env("envs.toy_audit:echo_obs_vector", kwargs, 3, "auto", np.random.SeedSequence(1), masked=spec.action.masked)
    assert env.behaviors == {name: spec}
