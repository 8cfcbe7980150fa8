"""Environments that break in some of their lives, a life being a process that holds them."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv

from envs.toy import CountObs, CrashAt, Toy

PARAMETER = "mass"


def begin_life(folder: str) -> int:
    """Number of this life of the environment's copy, counted from 0; the lives are files in `folder`."""
    name = multiprocessing.current_process().name
    number = len(list(Path(folder).glob(f"{name}.*")))
    (Path(folder) / f"{name}.{number}").touch()
    return number


class Fragile(CrashAt):
    """Observation: (life, seed it was given last, the parameter mass, step).

    Args:
        folder: where lives are counted, and what happened is noted.
        n, mode: as `CrashAt`.
        lives: in which lives it breaks, by number; None for all.
        only: name of the process of the copy that breaks; None for all.
        breaks: ``"step"``; ``"reset"``, at the reset after the first episode; ``"first_reset"``; or ``"constructor"``.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)

    def __init__(
        self, folder: str, n: int = 3, mode: str = "exit", lives: tuple[int, ...] | None = (0,), only: str | None = None, breaks: str = "step",
        length: int = 100,
    ) -> None:
        self._folder, self._life_number, self._seed, self._mass = Path(folder), begin_life(folder), -1, -1.0
        is_broken = (lives is None or self._life_number in lives) and only in (None, multiprocessing.current_process().name)
        super().__init__(n if is_broken and breaks == "step" else -1, mode, length=length)
        self._breaks = breaks if is_broken else ""
        if self._breaks == "constructor":
            self._break()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._seed = self._seed if seed is None else seed
        self._mass = (options or {}).get(PARAMETER, -1.0)
        if self._breaks == "first_reset" or (self._breaks == "reset" and self.episode == 0):
            (self._folder / f"seed {seed}").touch()
            self._break()
        return super().reset(seed=seed)

    def close(self) -> None:
        (self._folder / f"closed {multiprocessing.current_process().name} {self._life_number}").touch()

    def _break(self) -> None:
        self._n = self._life + 1
        self._act(None)

    def _observe(self) -> np.ndarray:
        return np.array([self._life_number, self._seed, self._mass, self.steps], np.float64)


class SlowStart(Fragile):
    """From its second life on it is made only when the file ``open`` is there."""

    def __init__(self, folder: str, **kwargs: Any) -> None:
        super().__init__(folder, **kwargs)
        while self._life_number and not (Path(folder) / "open").exists():
            time.sleep(0.005)


class DiesThenFails(Fragile):
    """Dies in its first step; in `lives` it cannot be made."""

    def __init__(self, folder: str, mode: str, lives: tuple[int, ...] | None) -> None:
        number = len(list(Path(folder).glob(f"{multiprocessing.current_process().name}.*")))
        super().__init__(folder, 1, mode, None if not number else lives, breaks="constructor" if number else "step")


class HangsInClose(Fragile):
    """Does not close."""

    def close(self) -> None:
        time.sleep(600.0)


class Grows(Fragile):
    """Has another observation in each life."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, n=1)
        self.observation_space = spaces.Box(-np.inf, np.inf, (self._life_number + 1,), np.float64)

    def _observe(self) -> np.ndarray:
        return np.zeros(self._life_number + 1)


class Second(CrashAt):
    """The second one that a process makes is killed in its second step, with its process."""

    made: ClassVar[int] = 0

    def __init__(self) -> None:
        Second.made += 1
        super().__init__(2 if Second.made == 2 else -1, "sigkill")


def killed_vector(num_envs: int) -> VectorEnv:
    """A vector environment that is killed in its second step."""
    return SyncVectorEnv([lambda: CrashAt(2, "sigkill")] * num_envs)


class Gate(Toy):
    """Waits in a step with action 1 until the gate is open."""

    gate: ClassVar[threading.Event] = threading.Event()

    def _act(self, action: Any) -> None:
        if action:
            self.gate.wait()


class NaNOnce(CountObs):
    """A NaN in its second step."""

    def _observe(self) -> np.ndarray:
        return np.array([np.nan if self.steps == 2 else 0.0, self.steps], np.float32)


class BadMass(Toy):
    """Refuses its parameters."""

    def set_parameters(self, parameters: dict[str, float]) -> None:
        raise ValueError(f"no such mass: {parameters} in {os.getpid()}")
