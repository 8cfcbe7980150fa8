"""Going back to the newest checkpoint: to which one, who goes with whom, and what is taken back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import raytrain.recovery
from raytrain.checkpoint import CheckpointError
from raytrain.messages import CheckpointDue, Orders
from raytrain.plan import Start
from raytrain.recovery import Recovery
from raytrain.stop import RunStop
from raytrain.writers import Writer, Writers

STOP = SimpleNamespace(reward=None, episodes=2, plateau_summaries=None, plateau_delta=0.0, wall_time_s=None)


class Store:
    """Holds one snapshot, or none."""

    def __init__(self, path: Path, snapshot: Any = None, problems: tuple[str, ...] = ()) -> None:
        self.path, self.snapshot, self.problems = path, snapshot, list(problems)

    def load_latest(self) -> tuple[Any, Path, list[str]]:
        if self.snapshot is None:
            raise CheckpointError("there is none")
        return self.snapshot, self.path, self.problems


class Rewound(Writer):
    """Notes where it was rewound to: behavior -> steps."""

    def __init__(self, behaviors: tuple[str, ...]) -> None:
        self.steps: dict[str, list[int]] = {behavior: [] for behavior in behaviors}

    def rewind(self, behavior: str, step: int) -> None:
        self.steps[behavior].append(step)


class Case:
    """A run of the behaviors in `steps` (name -> agent steps of the checkpoint; without any there is no checkpoint)."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, behaviors: tuple[str, ...] = ("A", "B"), steps: dict[str, int] | None = None,
                 teams: tuple[int, ...] = (), referee: dict[str, Any] | None = None, problems: tuple[str, ...] = ()) -> None:
        self.path = folder / "000003"
        self.path.mkdir()
        plans = [SimpleNamespace(behavior=b, teams=teams, parameters={}) for b in behaviors]
        orders = None if referee is None else Orders(number=referee["number"])
        self.stop, self.writers = RunStop(STOP, behaviors), [Rewound(behaviors), Rewound(behaviors)]
        for behavior in behaviors:
            self.stop.episodes(behavior, np.array([1.0, 3.0]))
        snapshot = None if steps is None else SimpleNamespace(
            run={"referee": referee, "stop": self.stop.state(), "elapsed_s": 40.0}, behaviors={b: SimpleNamespace(agent_steps=n) for b, n in steps.items()})
        self.stop.episodes(behaviors[0], np.array([9.0, 9.0]))
        monkeypatch.setattr(
            raytrain.recovery, "starts_of", lambda plans, snapshot, source: ({b: Start({}, version=7, orders=orders) for b in behaviors}, None))
        self.recovery = Recovery(
            plans, Store(self.path, snapshot, problems), Writers(self.writers, {}, print, print), self.stop, lambda: {b: Start({}, orders=orders) for b in behaviors})

    def saved(self, **ledgers: dict[str, Any]) -> None:
        self.recovery.saved(self.path, {b: CheckpointDue(b, None, 0, 0, ledger) for b, ledger in ledgers.items()})

    def rewound(self) -> dict[str, list[list[int]]]:
        return {b: [writer.steps[b] for writer in self.writers] for b in self.writers[0].steps}


def test_only_the_behavior_that_died_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are cut at its own agent steps, its stop condition forgets what came after; the other one's stay as they are."""
    case = Case(tmp_path, monkeypatch, steps={"A": 500, "B": 700})
    case.saved(A={"consumed": 480}, B={"consumed": 690})
    assert case.recovery.affected(["A"]) == ["A"]
    way = case.recovery.way_back(["A"], 60.0)
    assert way.steps == {"A": 500} and way.referee is None and set(way.starts) == {"A"}
    assert way.starts["A"].ledger == {"consumed": 480} and way.starts["A"].version == 7
    assert way.starts["A"].elapsed_s == 20.0, "the time since the checkpoint is not taken back"
    assert way.sentences == ["going on from checkpoint 000003: A at 500 agent steps"]
    assert case.rewound() == {"A": [[500], [500]], "B": [[], []]}
    assert case.stop.mean_return("A") == 2.0, "as at the checkpoint, and not 9"


def test_without_a_checkpoint_they_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that dies before checkpoint 0 is written: no state, no ledger, no returns, files from the beginning."""
    case = Case(tmp_path, monkeypatch)
    way = case.recovery.way_back(["A"], 60.0)
    assert way.sentences == ["there is no checkpoint yet, so they begin anew"] and way.steps == {"A": 0}
    assert way.starts["A"].version == 0 and way.starts["A"].ledger is None
    assert case.rewound()["A"] == [[0], [0]]
    assert case.stop.mean_return("A") is None and case.stop.mean_return("B") == 2.0


def test_a_corrupt_checkpoint_is_told_and_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the store says comes first; a checkpoint of an earlier run has no ledger of this one."""
    case = Case(tmp_path, monkeypatch, steps={"A": 500, "B": 700}, problems=("000004 is corrupt",))
    way = case.recovery.way_back(["A"], 60.0)
    assert way.sentences == ["000004 is corrupt", "going on from checkpoint 000003: A at 500 agent steps"]
    assert way.starts["A"].ledger is None


def test_ledgers_of_deleted_checkpoints_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of days keeps as many as it keeps checkpoints."""
    case = Case(tmp_path, monkeypatch, steps={"A": 500, "B": 700})
    gone = tmp_path / "000002"
    gone.mkdir()
    case.recovery.saved(gone, {"A": CheckpointDue("A", None, 0, 0, {"consumed": 1})})
    gone.rmdir()
    case.saved(A={"consumed": 480})
    assert set(case.recovery._ledgers) == {case.path}


def test_with_a_referee_all_go_back_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ratings, opponents and weights belong to one moment; orders go on above all that env managers can have seen since."""
    case = Case(tmp_path, monkeypatch, steps={"A": 500, "B": 700}, teams=(0, 1), referee={"number": 12, "sides": {}})
    assert case.recovery.affected(["B"]) == ["A", "B"]
    way = case.recovery.way_back(["A", "B"], 60.0)
    assert way.referee == {"number": 1_000_012, "sides": {}}
    assert {b: s.orders.number for b, s in way.starts.items()} == {"A": 1_000_012, "B": 1_000_012}
    assert way.sentences == ["going on from checkpoint 000003: A at 500 agent steps, B at 700 agent steps"]
    assert case.rewound() == {"A": [[500], [500]], "B": [[700], [700]]}
