"""A module with the interface of EnvPool 1.2 (`list_all_envs`, `make_spec`, `make_gymnasium`) and worlds of our own behind it.

It is as strict as EnvPool: about arguments, seeds and dtypes of actions, and seeds are given when a pool is made, never at a reset.
Whatever passes the tests on it passes on EnvPool, where that is installed (tests/envs/test_envpool.py has both).
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from envs.toy import CountObs, EchoAction, RandomObs
from envs.toy_audit import EchoObs

COMMON = {"num_envs": 1, "batch_size": 0, "num_threads": 0, "max_num_players": 1, "base_path": "", "seed": 42, "env_seed": (),
          "gym_reset_return_info": True}


class Overflowing(CountObs):
    """Declares bounds that it does not keep."""

    observation_space = spaces.Dict({"count": spaces.Box(0.0, 1.0, (2,), np.float64), "pixel": spaces.Box(0, 255, (1, 1, 1), np.uint8)})

    def _observe(self) -> dict[str, Any]:
        return {"count": super()._observe().astype(np.float64), "pixel": np.full((1, 1, 1), self.steps, np.uint8)}


WORLDS: dict[str, tuple[Callable[..., gym.Env], dict[str, Any]]] = {
    "Count-v1": (CountObs, {"length": 10, "end": "truncated", "vary": False}),
    "Random-v1": (RandomObs, {"length": 10}),
    "Echo-v1": (lambda **kwargs: EchoObs(masks="info", **kwargs), {"length": 10, "vary": False}),
    "Arm-v1": (lambda length: EchoAction("box_asymmetric", length), {"length": 10}),
    "Overflowing-v1": (Overflowing, {"length": 10}),
    "Chess-v1": (CountObs, {"max_num_players": 2}),
}
"""Id -> (world, its own arguments and defaults)."""


class Spec:
    """What a world is like, without any being made."""

    def __init__(self, task_id: str, kwargs: dict[str, Any]) -> None:
        self.world, defaults = WORLDS[task_id]
        config = {**COMMON, **defaults}
        self.config = namedtuple("Config", config, defaults=config.values())(**kwargs)
        self.kwargs = {name: getattr(self.config, name) for name in defaults if name not in COMMON}
        made = self.world(**self.kwargs)
        self.gymnasium_observation_space, self.gymnasium_action_space = made.observation_space, made.action_space
        # The flat mask that games of EnvPool give.
        self.state_array_spec = {"obs": None, "info:env_id": None, **({"info:legal_action_mask": None} if task_id == "Echo-v1" else {})}


class Pool:
    """Steps its worlds; an action after an end only resets."""

    def __init__(self, spec: Spec) -> None:
        config = spec.config
        self._copies = SyncVectorEnv([lambda: spec.world(**spec.kwargs)] * config.num_envs)
        self._seeds: list[int] | None = list(config.env_seed) or [config.seed + i for i in range(config.num_envs)]
        self.action_space, self.closed = spec.gymnasium_action_space, False

    def reset(self) -> tuple[Any, dict[str, Any]]:
        """All worlds; unlike in Gymnasium there is no seed."""
        seeds, self._seeds = self._seeds, None
        obs, infos = self._copies.reset(seed=seeds)
        return obs, self._info(infos)

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Its time limit is told by ``trunc``; ``terminated`` is never set along with it."""
        assert not self.closed
        assert isinstance(actions, np.ndarray)
        assert actions.shape == (self._copies.num_envs, *self.action_space.shape)
        obs, reward, terminated, truncated, infos = self._copies.step(actions.astype(self.action_space.dtype))
        return obs, reward.astype(np.float32), terminated & ~truncated, truncated, self._info(infos)

    def close(self) -> None:
        """End it."""
        self.closed = True
        self._copies.close()

    def _info(self, infos: dict[str, Any]) -> dict[str, Any]:
        info = {"env_id": np.arange(self._copies.num_envs, dtype=np.int32)}
        if "action_mask" in infos:
            info["legal_action_mask"] = np.array([np.concatenate(mask) for mask in infos["action_mask"]])
        return info


def list_all_envs() -> list[str]:
    """All ids."""
    return [*WORLDS, "Broken-v1"]


def make_spec(task_id: str, **kwargs: Any) -> Spec:
    """The spec of a world."""
    assert task_id in list_all_envs(), f"{task_id} is not supported, `envpool.list_all_envs()` may help."
    if task_id == "Broken-v1":
        raise ImportError("libGL.so.1: cannot open shared object file")
    seed, num_envs = kwargs.get("seed"), kwargs.get("num_envs", 1)
    if isinstance(seed, Sequence):
        assert len(seed) == num_envs, f"got len(seed) = {len(seed)} and num_envs = {num_envs}"
        kwargs = {**kwargs, "env_seed": [int(s) for s in seed], "seed": 0}
    assert all(-(2**31) <= s < 2**31 for s in (kwargs.get("seed", 0), *kwargs.get("env_seed", ())))
    return Spec(task_id, kwargs)


def make_gymnasium(task_id: str, **kwargs: Any) -> Pool:
    """A pool."""
    return Pool(make_spec(task_id, **kwargs))
