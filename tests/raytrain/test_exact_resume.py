"""A run in lock-step that is stopped and resumed is the run that never stopped, bit for bit."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import raytrain
from raytrain.checkpoint import CheckpointStore
from raytrain.interrupts import Interrupts
from raytrain.replay_chunks import read_replay
from tests.raytrain.exact_worlds import Forgetful, config

BY_THE_CLOCK = ("per Second", "Queue Fill", "elapsed")
"""Metrics that depend on the machine or on how often somebody looked."""


def train(tmp_path: Path, data: dict, run_id: str, **options) -> raytrain.Run:
    return raytrain.train(data, results_dir=tmp_path, run_id=run_id, local=True, **options)


def newest(run: raytrain.Run) -> Path:
    return max((run.path / "checkpoints").iterdir())


def everything(run: raytrain.Run) -> dict[str, np.ndarray | object]:
    """All tensors of the newest checkpoint, and what `run.json` and the trainers' files say."""
    folder, found = newest(run), {}
    for file in sorted(folder.rglob("*.safetensors")):
        if "replay-" not in file.name:
            found |= {f"{file.relative_to(folder)}:{k}": v for k, v in load_file(file).items()}
    for sub in sorted(p for p in folder.iterdir() if p.is_dir()):
        found |= {f"{sub.name}/{k}": v for k, v in read_replay(sorted(sub.glob("replay-*"))).items()}
    for file in sorted(folder.rglob("*.json")):
        if file.name not in ("manifest.json", "run.json"):
            found[str(file.relative_to(folder))] = json.loads(file.read_text())
    state = json.loads((folder / "run.json").read_text())["run"]
    for key in ("elapsed_s", "ledger"):  # by the clock; of this part of the run
        del state[key]
    for loop in state["loops"].values():
        for part in ("totals", "weights", "reductions"):
            loop["stats"][part] = {k: v for k, v in loop["stats"][part].items() if not any(word in k for word in BY_THE_CLOCK)}
    return {**found, **{f"run/{k}": v for k, v in state.items()}}


def metrics(run: raytrain.Run, after: int = 0) -> list[dict[str, str]]:
    """Rows of ``metrics.csv`` without what goes by the clock."""
    (file,) = run.path.glob("*/metrics.csv")
    with open(file, encoding="utf-8", newline="") as lines:
        rows = [{k: v for k, v in row.items() if not any(word in k for word in BY_THE_CLOCK)} for row in csv.DictReader(lines)]
    return [row for row in rows if int(float(next(iter(row.values())))) > after]


def differences(a: raytrain.Run, b: raytrain.Run) -> list[str]:
    one, other = everything(a), everything(b)
    assert one.keys() == other.keys()
    return [k for k in one if not (np.array_equal(one[k], other[k]) if isinstance(one[k], np.ndarray) else one[k] == other[k])]


class Interrupt:
    """Ctrl-C after a number of calls of something."""

    def __init__(self, monkeypatch, owner, name: str, calls: int) -> None:
        self.left, self._handlers = calls, []
        before, original = Interrupts.handled, getattr(owner, name)

        def handled(interrupts):
            self._handlers.append(interrupts)
            return before(interrupts)

        def counted(*args, **kwargs):
            self.left -= 1
            if self.left == 0:
                self._handlers[-1].name = "SIGINT"
                self._handlers[-1]._on_first() if hasattr(self._handlers[-1], "_on_first") else None
            return original(*args, **kwargs)

        monkeypatch.setattr(Interrupts, "handled", handled)
        monkeypatch.setattr(owner, name, counted)
