"""EnvPool's C++ worlds as Gymnasium vector environments: ``env: envpool:Pong-v5``. Needs the extra ``envpool``.

``env_kwargs`` are EnvPool's own (``num_threads``, ``stack_num``, ``reward_clip``, …), and so are the defaults: a world of EnvPool is
another task than Gymnasium's of the same name where they differ (its Atari games do not repeat actions and press fire at the start).
At a time limit EnvPool reports a truncation, also where the task ends in that very step.
"""

from __future__ import annotations

import difflib
import importlib
import re
from types import ModuleType
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.masks import MASK_KEY

PREFIX = "envpool:"
INSTALL = "pip install envpool"

REFUSED = {
    "num_envs": "it is env_settings.num_envs",
    "batch_size": "all environments are stepped together",
    "seed": "it is drawn from env_settings.seed",
    "env_seed": "it is drawn from env_settings.seed",
    "gym_reset_return_info": "resets have to return it",
}
"""Arguments of `envpool.make` that are not the user's to give -> why."""

OTHER_MASK_KEY = "legal_action_mask"
"""What some of EnvPool's games call a mask in ``info``."""


def is_envpool(env: str) -> bool:
    """Whether a configuration's ``env`` names a world of EnvPool."""
    return env.startswith(PREFIX)


def is_pool(env: gym.Env | VectorEnv) -> bool:
    """Whether `env` came straight from EnvPool, so that its seeds are fixed and cannot be given any more."""
    return any(base.__module__.partition(".")[0] == "envpool" for base in type(env).__mro__)


class EnvPoolVectorEnv(VectorEnv):
    """`num_envs` worlds of EnvPool, made at the first `reset` because that brings their seeds.

    An action after an end is ignored and resets that world (NEXT_STEP).

    Attributes:
        gives_masks: ``info`` has action masks.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, env: str, num_envs: int, env_kwargs: dict[str, Any]) -> None:
        """`env` is as in a configuration.

        Raises:
            ValueError: EnvPool is not installed, has no such world, or takes other arguments.
        """
        self._envpool = load_envpool(env)
        self._id, self._kwargs = env.removeprefix(PREFIX), {**env_kwargs, "num_envs": num_envs}
        self.num_envs = num_envs
        spec, self.single_observation_space, self.single_action_space = self._describe(env, env_kwargs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.gives_masks = any(f"info:{key}" in spec.state_array_spec for key in (MASK_KEY, OTHER_MASK_KEY))
        self._takes_seeds = "env_seed" in spec.config._fields
        self._pool: Any = None

    def reset(self, *, seed: list[int] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes everywhere.

        Args:
            seed: one for each world, at the first reset. Versions of EnvPool that take only one are given the first: they derive the
                others from it.
        """
        if self._pool is None or seed is not None:
            self.close()
            given = {} if seed is None else {"seed": list(seed) if self._takes_seeds else seed[0]}
            self._pool = self._envpool.make_gymnasium(self._id, **self._kwargs, **given)
        obs, info = self._pool.reset()
        return obs, _with_mask(info)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step all worlds."""
        obs, reward, terminated, truncated, info = self._pool.step(actions)
        return obs, reward, terminated, truncated, _with_mask(info)

    def close(self, **kwargs: Any) -> None:
        """End the pool's threads."""
        pool, self._pool = self._pool, None
        if pool is not None and hasattr(pool, "close"):
            pool.close()

    def _describe(self, env: str, env_kwargs: dict[str, Any]) -> tuple[Any, spaces.Space, spaces.Space]:
        """EnvPool's description of a world, made without making it, and the spaces of one."""
        for name in env_kwargs:
            if name in REFUSED:
                raise ValueError(f"env_kwargs: {env} is not given {name!r}: {REFUSED[name]}.")
        known = self._envpool.list_all_envs()
        if self._id not in known:
            near = difflib.get_close_matches(self._id, known, n=3, cutoff=0.5)
            hint = f" Nearest: {', '.join(near)}." if near else ""
            raise ValueError(f"env: EnvPool has no environment {self._id!r}.{hint}")
        try:
            spec = self._envpool.make_spec(self._id, **self._kwargs)
            if spec.config.max_num_players == 1:
                return spec, _unbounded(spec.gymnasium_observation_space), spec.gymnasium_action_space
        except ImportError as error:
            raise ValueError(f"env: {env!r} cannot be loaded by EnvPool: {error}") from error
        except (TypeError, AssertionError, ValueError, RuntimeError) as error:
            self._raise_if_name(env, env_kwargs, error)
            text = str(error).partition("\n")[0]
            raise ValueError(f"env_kwargs: {env} cannot be made from {env_kwargs}: {type(error).__name__}: {text}") from error
        raise ValueError(f"env: {env!r} has {spec.config.max_num_players} players at once; expected a world of one agent.")

    def _raise_if_name(self, env: str, env_kwargs: dict[str, Any], error: Exception) -> None:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown is None or unknown[1] not in env_kwargs:
            return
        known = [name for name in self._envpool.make_spec(self._id).config._fields if name not in (*REFUSED, "base_path")]
        near = difflib.get_close_matches(unknown[1], known, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"env_kwargs: {env} has no argument {unknown[1]!r}.{hint} It takes: {', '.join(known)}.") from error


def load_envpool(env: str) -> ModuleType:
    """EnvPool, for the environment `env`; ValueError where it is not installed."""
    try:
        return importlib.import_module("envpool")
    except ModuleNotFoundError as error:
        if error.name != "envpool":
            raise
        raise ValueError(f"env: {env!r} needs EnvPool, which is not installed: {INSTALL}") from None


def _unbounded(space: spaces.Space) -> spaces.Space:
    """`space` without bounds of floats: several worlds leave those that EnvPool declares, and nobody here could correct either."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _unbounded(inner) for key, inner in space.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_unbounded(inner) for inner in space])
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, space.shape, space.dtype.type)
    return space


def _with_mask(info: dict[str, Any]) -> dict[str, Any]:
    if OTHER_MASK_KEY in info and MASK_KEY not in info:
        return {**info, MASK_KEY: info[OTHER_MASK_KEY]}
    return info
