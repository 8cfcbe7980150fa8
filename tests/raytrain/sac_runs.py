"""A world and a configuration in which a whole SAC run takes a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from safetensors.numpy import load_file

import raytrain
from raytrain.replay_chunks import ChunkReader, read_replay
from raytrain.snapshot import load_snapshot


class Target(gym.Env):
    """Say where the first observation is, on a scale from 10 to 30; told what it was shown and what it was given.

    Args:
        reward: of a perfect step; each unit of error in policy space costs as much.
        length: steps of an episode.
    """

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(10.0, 30.0, (1,), np.float32)
    log: ClassVar[list[tuple[np.ndarray, np.ndarray]]] = []
    """(observation, action) of every step of every copy in this process, in order."""

    def __init__(self, reward: float = 1.0, length: int = 20) -> None:
        self._scale, self._length, self._steps = reward, length, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps, self._obs = 0, self._drawn()
        return self._obs, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action} is out of bounds"
        Target.log.append((self._obs.copy(), action.copy()))
        error = abs((float(action[0]) - 20.0) / 10.0 - float(self._obs[0]))
        self._steps, self._obs = self._steps + 1, self._drawn()
        return self._obs, self._scale * (1.0 - error), False, self._steps == self._length, {}

    def _drawn(self) -> np.ndarray:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)


def config(env: str = "tests.raytrain.sac_runs:Target", name: str = "Target", env_kwargs: dict | None = None, **behavior: Any) -> dict:
    """Updates of 16 rows from step 40 on, one for each step, 200 steps."""
    hyper = {
        "batch_size": 16, "buffer_size": 500, "buffer_init_steps": 40, "learning_rate": 3e-3, "init_entcoef": 0.1, "tau": 0.05,
        **behavior.pop("hyperparameters", {}),
    }
    settings = {
        "trainer_type": "sac", "hyperparameters": hyper, "network_settings": {"hidden_units": 16, "num_layers": 1},
        "max_steps": 200, "summary_freq": 50, "checkpoint_interval": 100, "time_horizon": 16, **behavior,
    }
    return {
        "env": env, "env_kwargs": env_kwargs or {}, "behaviors": {name: settings},
        "env_settings": {"num_envs": 1, "seed": 3, "stepping": "inline"},
    }


def ppo_config() -> dict:
    """The same world and networks for PPO."""
    data = config()
    data["behaviors"]["Target"] = {
        "trainer_type": "ppo", "hyperparameters": {"buffer_size": 64, "batch_size": 32}, "max_steps": 100,
        "network_settings": {"hidden_units": 16, "num_layers": 1}, "time_horizon": 16,
    }
    return data


def train(tmp_path: Path, data: dict, run_id: str = "run", **options: Any) -> raytrain.Run:
    """A run in this process; `Target.log` begins empty."""
    Target.log.clear()
    return raytrain.train(data, results_dir=tmp_path, run_id=run_id, local=True, **options)


def checkpoints(run: raytrain.Run) -> list[Path]:
    """Checkpoint folders, oldest first."""
    return sorted((run.path / "checkpoints").iterdir())


def tensors(checkpoint: Path, part: str = "trainer") -> dict[str, np.ndarray]:
    """Tensors of ``trainer`` or ``policy`` in a checkpoint of one behavior."""
    folder = next(p for p in checkpoint.iterdir() if p.is_dir())
    (replay,) = replays(checkpoint).values() if part == "trainer" else ({},)
    return {**load_file(folder / f"{part}.safetensors"), **replay}


def replays(checkpoint: Path) -> dict[str, dict[str, np.ndarray]]:
    """Behavior -> tensors of its replay buffer; none where it is not saved."""
    saved = {name: one.replay for name, one in load_snapshot(checkpoint).behaviors.items()}
    return {name: read_replay(ChunkReader(replay)) if replay is not None else {} for name, replay in saved.items()}


def files_of(path: Path) -> dict[Path, bytes]:
    """Every file below `path`."""
    return {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
