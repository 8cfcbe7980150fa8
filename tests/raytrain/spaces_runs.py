"""A world of every kind of space, and configurations in which a whole run takes a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import raytrain


class Everything(gym.Env):
    """Observes of every kind, acts with both kinds, masks its gears through ``info``; insists that actions are in its space and allowed.

    The arrays of its observations are changed in place. A gear is right when it is the one that is wanted, which is always allowed.

    Args:
        length: steps of an episode.
        bad_mask_at: step at which no gear is allowed; 0 for never.
        insists: on masks; they are other ones at every step, so an action that is repeated breaks them.
    """

    observation_space = spaces.Dict({
        "camera": spaces.Box(0, 255, (8, 8, 2), np.uint8),
        "inner": spaces.Tuple((spaces.Box(-1.0, 1.0, (2, 2), np.float64), spaces.MultiBinary(3))),
        "mission": spaces.Text(20),
        "wanted": spaces.Discrete(3, start=-1),
    })
    action_space = spaces.Dict({"arm": spaces.Box(300.0, 500.0, (2,), np.float32), "gear": spaces.MultiDiscrete([3, 2], start=[-1, 0])})

    def __init__(self, length: int = 12, bad_mask_at: int = 0, insists: bool = True) -> None:
        self._length, self._bad_mask_at, self._insists, self._steps = length, bad_mask_at, insists, 0
        self._camera, self._numbers = np.zeros((8, 8, 2), np.uint8), np.zeros((2, 2))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self._steps = 0
        return self._drawn()

    def step(self, action: dict) -> tuple[dict, float, bool, bool, dict]:
        assert self.action_space.contains(action), f"{action} is not in the space"
        gear = action["gear"] - (-1, 0)
        is_allowed = self._allowed[0][gear[0]] and self._allowed[1][gear[1]]
        assert is_allowed or not self._insists, f"gear {gear} is not allowed by {self._allowed}"
        self._steps += 1
        reward = float(gear[0] == self._wanted) - abs(float(action["arm"].mean()) - 400.0) / 100.0
        obs, info = self._drawn()
        return obs, reward, False, self._steps == self._length, info

    def _drawn(self) -> tuple[dict, dict]:
        """A new observation and its mask."""
        rng = self.np_random
        self._wanted = int(rng.integers(3))
        self._camera[:] = rng.integers(256, size=(8, 8, 2))
        self._numbers[:] = rng.uniform(-1.0, 1.0, (2, 2))
        self._allowed = [rng.random(3) < 0.5, rng.random(2) < 0.5]
        self._allowed[0][self._wanted] = self._allowed[1][int(rng.integers(2))] = True
        if self._steps == self._bad_mask_at > 0:
            self._allowed[0][:] = False
        obs = {"camera": self._camera, "inner": (self._numbers, rng.integers(2, size=3, dtype=np.int8)), "mission": "go", "wanted": self._wanted - 1}
        return obs, {"action_mask": {"gear": tuple(mask.astype(np.int8) for mask in self._allowed)}}


def config(trainer_type: str = "ppo", network: dict | None = None, env_kwargs: dict | None = None, **behavior: Any) -> dict:
    """Some updates of a small network with a memory."""
    hyper = {
        "ppo": {"buffer_size": 64, "batch_size": 16, "num_epoch": 2, "learning_rate": 3e-3},
        "sac": {"batch_size": 16, "buffer_size": 400, "buffer_init_steps": 40, "steps_per_update": 2},
    }[trainer_type]
    settings = {
        "trainer_type": trainer_type, "hyperparameters": {**hyper, **behavior.pop("hyperparameters", {})}, "max_steps": 384, "summary_freq": 128,
        "checkpoint_interval": 192, "time_horizon": 8,
        "network_settings": {
            "hidden_units": 8, "num_layers": 1, "vis_encode_type": "match3", "memory": {"sequence_length": 4, "memory_size": 8}, "normalize": True,
            **(network or {}),
        },
        **behavior,
    }
    return {
        "env": "tests.raytrain.spaces_runs:Everything", "env_kwargs": env_kwargs or {}, "behaviors": {"Everything": settings},
        "env_settings": {"num_envs": 3, "seed": 3, "stepping": "inline"},
    }


def train(tmp_path: Path, data: dict, run_id: str = "run", **options: Any) -> raytrain.Run:
    """A run in this process."""
    return raytrain.train(data, results_dir=tmp_path, run_id=run_id, local=True, **options)
