"""Damaged copies of a checkpoint: each is noticed, fallen back from and reported; and the script notices when that is not so."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "scripts")]

from chaos_runs import corrupt

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from raytrain import snapshot
from raytrain.checkpoint import BehaviorSnapshot, CheckpointStore, Snapshot
from trainers.networks import policy_layout
from trainers.policy import Policy
from trainers.settings import NetworkSettings
from trainers.trainer import TrainerState

SPEC = BehaviorSpec((ObservationSpec("obs", (3,)),), ActionSpec("discrete", discrete_branches=(2,)))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    network = NetworkSettings(hidden_units=4, num_layers=1)
    weights = {name: np.zeros(shape, np.float32) for name, shape in policy_layout(Policy(SPEC, network).architecture).items()}
    state = TrainerState(dict(weights), {"agent_steps": 3, "rng": np.random.default_rng(0).bit_generator.state})
    store = CheckpointStore(tmp_path, keep=3)
    for steps in (100, 200):
        path = store.save(Snapshot({"Walker": BehaviorSnapshot(state, weights, 1, steps, SPEC, network)}, {"agent_steps": steps}))
    store.mark_best(path)
    return tmp_path


def test_damage_of_every_kind_is_noticed_fallen_back_from_and_reported(run: Path) -> None:
    """C25: never a policy of wrong numbers, never a traceback."""
    counts = corrupt.corrupt(run, variants=60, seed=3)
    assert counts["failures"] == [] and counts["silent"] == counts["tracebacks"] == 0
    assert counts["noticed"] == counts["reported"] == 60 - counts["forged"]
    assert counts["fallen_back"] == counts["newest"] > 20 and len(counts["kinds"]) == 8


def test_a_reader_that_does_not_look_is_found_out(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "find_problems", lambda folder, only=None: [])
    monkeypatch.setattr("raytrain.checkpoint.find_problems", lambda folder, only=None: [])
    counts = corrupt.corrupt(run, variants=40, seed=3)
    assert counts["silent"] > 0 and counts["failures"]


def test_one_checkpoint_is_too_few(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        corrupt.corrupt(tmp_path)
