"""What runs in a vector environment, as a whole, for a later process that goes on with it; see `envs.running_episodes` for single ones.

Gone on with are

- one, or a wrapper around one, that has ``get_state()`` and ``set_state(state)`` for all of its environments;
- Gymnasium's own CartPole, whose attributes are all that it is made of;
- ``gymnasium.vector.SyncVectorEnv`` of environments that can be gone on with each.

Not those whose environments live in other processes or in C++ (``AsyncVectorEnv``, ALE, EnvPool): what they are in the middle of cannot be
asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import SyncVectorEnv, VectorEnv

from envs.packing import copied
from envs.running_episodes import EpisodeKeeper, generators

_CART_POLE = ("state", "steps", "prev_done")


class VectorKeeper:
    """Saves and restores the running episodes of a vector environment."""

    def __init__(self, env: VectorEnv) -> None:
        self._env = env
        self._whole = EpisodeKeeper(env)  # by the two methods of the user's
        self._parts = [EpisodeKeeper(one) for one in env.envs] if type(env) is SyncVectorEnv and not self._whole.can else []
        self.can = self._whole.can or type(env) is CartPoleVectorEnv or bool(self._parts) and all(part.can for part in self._parts)
        """Whether it is one of those that can be gone on with."""

    def state(self) -> dict[str, Any]:
        """Copies of everything.

        Raises:
            EnvFault: a ``get_state`` raised, or returned what cannot be stored.
        """
        if self._whole.can:
            return {"whole": _without_spaces(self._whole.state())}
        if self._parts:
            return {"parts": [_without_spaces(part.state()) for part in self._parts], "resets": np.array(self._env._autoreset_envs, bool)}
        own = {name: copied(getattr(self._env, name)) for name in _CART_POLE}
        return _without_spaces({"own": own, "generators": {name: copied(rng.bit_generator.state) for name, rng in generators(self._env)}})

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state`; the environment has just been reset.

        Raises:
            EnvFault: a ``set_state`` raised, or this is another kind of environment.
        """
        if self._whole.can:
            self._whole.load(state["whole"])
        elif self._parts:
            for part, one in zip(self._parts, state["parts"], strict=True):
                part.load(one)
            self._env._autoreset_envs = state["resets"].copy()
        else:
            for name, value in state["own"].items():
                setattr(self._env, name, value.copy())
            for name, rng in generators(self._env):
                rng.bit_generator.state = state["generators"].get(name, rng.bit_generator.state)


def _without_spaces(state: dict[str, Any]) -> dict[str, Any]:
    """Action spaces of vector environments are never seeded, and nobody samples them."""
    return {**state, "generators": {name: bits for name, bits in state["generators"].items() if name == "env"}}
