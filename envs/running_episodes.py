"""Running episodes that a later process goes on with: what is asked of an environment, and what is around it.

An environment, or a wrapper of the user's, that has both methods

    get_state() -> state      everything that decides what comes next: numbers, text, bytes, NumPy arrays, in lists, tuples and dicts
    set_state(state) -> None  be where that was; called after a reset of a new environment

can be gone on with in the middle of an episode. The outermost layer that has them speaks for everything inside of it. Kept beside it
are the bit generators of the environment (``np_random``) and its action space, and the state of the wrappers around that layer that are
known: frame stack, action repeat, Gymnasium's ``TimeLimit``, order enforcing and plain transformations. Any other wrapper without the
two methods means that episodes cannot be gone on with, as what it remembers would be lost.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from envs.base import EnvFault
from envs.faults import env_fault
from envs.held_actions import HeldActions
from envs.packing import copied
from envs.seeding import EnvSeeds
from envs.wrappers import ActionRepeat, FrameStack

GET, SET = "get_state", "set_state"
_PLAIN = tuple(f"gymnasium.wrappers.transform_{what}" for what in ("observation", "action", "reward"))
"""Modules of wrappers that remember nothing."""
_PLAIN_AROUND_WORLDS = tuple(f"pettingzoo.utils.wrappers.{name}" for name in (
    "base", "base_parallel", "order_enforcing", "assert_out_of_bounds", "clip_out_of_bounds", "capture_stdout"))


@dataclass(slots=True)
class SaveEpisode:
    """Command: give the state of the running episode."""


@dataclass(slots=True)
class LoadEpisode:
    """Command: go on with an episode that was saved; `seeds` are for the reset before."""

    state: dict[str, Any]
    seeds: EnvSeeds


@dataclass(slots=True)
class SavedEpisode:
    """What `SaveEpisode` and `LoadEpisode` bring; None where the environment cannot do it, and after loading."""

    state: dict[str, Any] | None = None


class EpisodeKeeper:
    """Saves and restores the running episode of one environment, or of one world of many agents."""

    def __init__(self, env: Any, is_world: bool = False) -> None:
        self._env = env
        found = _provider(env, is_world)
        self._around, self._layer = found if found is not None else ([], None)

    @property
    def can(self) -> bool:
        """Whether the environment has the two methods, and nothing unknown is around them."""
        return self._layer is not None

    def state(self) -> dict[str, Any]:
        """Copies of everything.

        Raises:
            EnvFault: ``get_state`` raised, or returned what cannot be stored.
        """
        given = _call(GET, self._layer.get_state)
        try:
            given = copied(given, f"{GET}()")
        except ValueError as error:
            raise EnvFault(str(error)) from None
        return {"env": given, "around": [_layer_state(layer) for layer in self._around],
                "generators": {name: copied(rng.bit_generator.state) for name, rng in generators(self._env)}}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state`; the environment has just been reset.

        Raises:
            EnvFault: ``set_state`` raised, or other wrappers are around it now.
        """
        if len(state["around"]) != len(self._around):
            raise EnvFault(f"expected {len(state['around'])} wrappers around the environment with {SET}(), as when its episode was saved, received "
                           f"{len(self._around)}. Resume with the environment of the checkpoint")
        for layer, one in zip(self._around, state["around"], strict=True):
            _load_layer(layer, one)
        there = dict(generators(self._env))
        for name, bits in state["generators"].items():
            if name in there and there[name].bit_generator.state["bit_generator"] == bits["bit_generator"]:
                there[name].bit_generator.state = bits
        _call(SET, self._layer.set_state, state["env"])  # last: what it says of its generators holds


def generators(env: Any) -> Iterator[tuple[str, np.random.Generator]]:
    """Name and generator of the environment, and of its action space where it has one that was seeded."""
    own = getattr(getattr(env, "unwrapped", env), "__dict__", {})
    for name in ("_np_random", "np_random"):
        if isinstance(own.get(name), np.random.Generator):
            yield "env", own[name]
            break
    if isinstance(space := getattr(env, "action_space", None), spaces.Space):
        yield from space_generators(space, "action_space")


def space_generators(space: spaces.Space, name: str) -> Iterator[tuple[str, np.random.Generator]]:
    """Those of a space and the spaces inside of it that have been used."""
    if isinstance(space._np_random, np.random.Generator):  # the property would make one
        yield name, space._np_random
    inner = space.spaces if isinstance(space, (spaces.Dict, spaces.Tuple)) else ()
    for key, one in inner.items() if isinstance(inner, dict) else enumerate(inner):
        yield from space_generators(one, f"{name}/{key}")


def held_state(held: HeldActions | None, names: dict[Any, str]) -> dict[str, Any] | None:
    """What agents of a world repeat, by their names."""
    if held is None:
        return None
    return {"action": {names[one]: action for one, action in held.action.items()}, "left": {names[one]: n for one, n in held.left.items()},
            "again": [names[one] for one in held.again]}


def load_held(held: HeldActions | None, state: dict[str, Any] | None, ids: dict[str, Any]) -> None:
    """Go on from `held_state`."""
    if held is None or state is None:
        return
    held.action = {ids[name]: action for name, action in state["action"].items()}
    held.left = {ids[name]: n for name, n in state["left"].items()}
    held.again = [ids[name] for name in state["again"]]


def _provider(env: Any, is_world: bool) -> tuple[list[Any], Any] | None:
    """The known layers around the outermost one that has both methods, and that one."""
    around: list[Any] = []
    layer = env
    while layer is not None:
        # Wrappers of PettingZoo hand on what they do not have, so that their class is asked.
        owner = type(layer) if is_world else layer
        if callable(getattr(owner, GET, None)) and callable(getattr(owner, SET, None)) and _takes_one(layer.set_state):
            return around, layer
        if not _is_known(layer, is_world):
            return None
        around.append(layer)
        layer = getattr(layer, "env", None)
    return None


def _takes_one(method: Callable[..., Any]) -> bool:
    """Whether it can be called with a state alone: others have methods of these names that mean something else."""
    try:
        inspect.signature(method).bind(None)
    except (TypeError, ValueError):
        return False
    return True


def _is_known(layer: Any, is_world: bool) -> bool:
    if is_world:
        return type(layer).__module__ in _PLAIN_AROUND_WORLDS
    return type(layer) in (ActionRepeat, FrameStack, TimeLimit, OrderEnforcing, PassiveEnvChecker) or type(layer).__module__ in _PLAIN


def _layer_state(layer: Any) -> Any:
    if isinstance(layer, FrameStack):
        return layer.stacker.frames()
    return layer._elapsed_steps if isinstance(layer, TimeLimit) else None


def _load_layer(layer: Any, state: Any) -> None:
    if isinstance(layer, FrameStack):
        layer.stacker.load_frames(state)
    elif isinstance(layer, TimeLimit):
        layer._elapsed_steps = state


def _call(name: str, method: Callable[..., Any], *args: Any) -> Any:
    try:
        return method(*args)
    except (Exception, SystemExit) as error:
        raise env_fault(error, f"in {name}()", restartable=False) from error
