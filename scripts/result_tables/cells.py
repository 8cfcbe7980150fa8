"""What is run: a file, to its own goal or for a fixed number of agent steps, asynchronously or in lock-step; and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SEEDS, GOAL_SEEDS = 5, 3
"""Of a cell with fixed steps (with four and more the interquartile mean leaves the best and the worst out), and of one that ends at its goal."""


@dataclass(frozen=True)
class Cell:
    """One row of a table: runs that differ in their seed alone.

    Attributes:
        file: name in yaml/, such as ``sac/Pendulum``.
        steps: agent steps of each run, without ``stop.reward``; None ends it as the file says.
        lockstep: with ``threaded: false``.
        label: what `sets` make of it, in a few words.
        sets: further ``--set`` of ``raytrain train``.
    """

    file: str
    steps: int | None = None
    lockstep: bool = False
    label: str = ""
    sets: tuple[str, ...] = ()

    @property
    def section(self) -> str:
        """Key of the results file under which cells of this kind stand."""
        return "runs" if self.steps is None else "final"

    @property
    def key(self) -> str:
        """Key of its runs in that section."""
        steps = [] if self.steps is None else [str(self.steps)]
        return " ".join([self.file, *steps, *(["lock-step"] if self.lockstep else []), *([self.label] if self.label else [])])

    @property
    def seeds(self) -> int:
        """How many are wanted."""
        return GOAL_SEEDS if self.steps is None else SEEDS

    @property
    def overrides(self) -> list[str]:
        """``KEY=VALUE`` of every ``--set``."""
        found = []
        if self.steps is not None:
            found += ["stop.reward=null", *(f"behaviors.{name}.max_steps={self.steps}" for name in behaviors(self.file))]
        if self.lockstep:
            found += [f"behaviors.{name}.threaded=false" for name in behaviors(self.file)]
        return [*found, *self.sets]


@cache
def settings(file: str) -> dict[str, Any]:
    """The configuration file of that name.

    Raises:
        FileNotFoundError: there is none.
    """
    return yaml.safe_load((ROOT / "yaml" / f"{file}.yaml").read_text(encoding="utf-8"))


def behaviors(file: str) -> list[str]:
    """Names of its behaviors."""
    return list(settings(file)["behaviors"])


def goal(file: str) -> float | None:
    """Its ``stop.reward``."""
    return settings(file).get("stop", {}).get("reward")


def window(file: str) -> int:
    """Its ``stop.episodes``: of how many training episodes the mean return is."""
    return settings(file).get("stop", {}).get("episodes", 100)


SMALL = {
    "ppo/CartPole": 500_000, "ppo/Acrobot": 500_000, "ppo/Pendulum": 100_000, "ppo/MountainCarContinuous": 500_000,
    "sac/Pendulum": 20_000, "sac/CartPole": 50_000, "sac/MountainCarContinuous": 50_000, "sac/Acrobot": 300_000,
}
"""Small tasks → agent steps, also run in lock-step. Where a published figure has few enough steps for the file, they are its."""
BOX2D = {
    "ppo/LunarLander": 1_000_000, "ppo/LunarLanderContinuous": 1_000_000, "sac/LunarLander": 300_000, "sac/LunarLanderContinuous": 500_000,
    "sac/BipedalWalker": 500_000, "ppo/BipedalWalker": 5_000_000,
}
MUJOCO = {f"{trainer}/{task}": 1_000_000 for trainer in ("ppo", "sac") for task in ("HalfCheetah", "Hopper", "Walker2d", "Ant")}
GOALS = (
    "ppo/CartPole", "ppo/Acrobot", "ppo/Pendulum", "ppo/MountainCarContinuous", "ppo/LunarLander", "ppo/LunarLanderContinuous",
    "sac/Pendulum", "sac/CartPole", "sac/MountainCarContinuous", "sac/LunarLanderContinuous", "ppo/Pole-Curriculum",
    "ppo/Taxi", "sac/Taxi", "ppo/Recall", "ppo/MountainCar", "ppo/MiniGrid-DoorKey-5x5", "ppo/Pong",
    "sac/Acrobot", "sac/LunarLander", "ppo/BipedalWalker", "sac/BipedalWalker",
)
TIERS: dict[str, tuple[Cell, ...]] = {
    "small tasks, asynchronous and in lock-step": tuple(Cell(file, steps, lockstep) for file, steps in SMALL.items() for lockstep in (False, True)),
    "Box2D": tuple(Cell(file, steps) for file, steps in BOX2D.items()),
    "MuJoCo": tuple(Cell(file, steps) for file, steps in MUJOCO.items()),
    "to the goal of the file": tuple(Cell(file) for file in GOALS),
}
"""All cells in the order of the queue: tier after tier, and in each of them one seed of every cell before the next seed of any."""
CELLS = tuple(cell for cells in TIERS.values() for cell in cells)
STEPS = SMALL | BOX2D | MUJOCO


def runs_of(data: dict[str, Any], cell: Cell) -> list[dict[str, Any]]:
    """What is known of it, by seed."""
    return data.get(cell.section, {}).get(cell.key, [])


def missing(data: dict[str, Any], cell: Cell, seeds: int | None = None) -> list[int]:
    """Seeds from 1 to `seeds` (None: as many as it wants) that have not been run."""
    done = {run["seed"] for run in runs_of(data, cell)}
    return [seed for seed in range(1, (cell.seeds if seeds is None else seeds) + 1) if seed not in done]


def queue(data: dict[str, Any], tiers: Iterable[Sequence[Cell]], seeds: int | None = None) -> Iterator[tuple[Cell, int]]:
    """The (cell, seed) that have not been run, in the order of `TIERS`."""
    for cells in tiers:
        left = {cell: missing(data, cell, seeds) for cell in cells}
        yield from sorted(((cell, seed) for cell in cells for seed in left[cell]), key=lambda pair: pair[1])


def expected_s(data: dict[str, Any], cell: Cell) -> float | None:
    """Wall time of one run: the mean of its own, else of the file's other runs by steps; None where the file has none."""
    own = [run["wall_s"] for run in runs_of(data, cell)]
    if own:
        return sum(own) / len(own)
    others = [run for section in ("runs", "final") for key, runs in data.get(section, {}).items() if key.split(" ")[0] == cell.file for run in runs]
    steps = cell.steps or max((settings_["max_steps"] for settings_ in settings(cell.file)["behaviors"].values() if "max_steps" in settings_), default=0)
    total = sum(run["agent_steps"] for run in others)
    return sum(run["wall_s"] for run in others) / total * steps if total else None
