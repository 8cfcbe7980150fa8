"""The notebooks of docs/: what is kept in them is clean, and they run from the first cell to the last and show what they should."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs the extra docs")
pytest.importorskip("nbclient", reason="needs the extra docs")
sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "scripts")]

import notebooks

PATHS = sorted(notebooks.FOLDER.glob("*.ipynb"))


def text(cell: Any) -> str:
    """What a cell has printed and shown, as text."""
    return "".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in cell.get("outputs", []))


def kinds(notebook: Any) -> set[str]:
    return {kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_what_is_kept_is_clean(path: Path):
    """Every code cell has run, in order, without an error or a warning; no folder of the machine it ran on is left."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"] == []
    assert re.findall(r"(?:/home|/root|/tmp|/Users)/\w+", path.read_text(encoding="utf-8")) == []


@pytest.mark.slow
def test_the_quickstart_runs():
    notebook = notebooks.execute(notebooks.FOLDER / "quickstart.ipynb")
    shown = "\n".join(text(cell) for cell in notebook.cells)
    assert "did you mean num_envs?" in shown and "reached stop.reward=300" in shown and "deterministic" in shown
    assert {"image/png", "text/html"} <= kinds(notebook), "a picture of the curve, and the frame"
    onnx, policy = re.search(r"ONNX +(\[.*\])\npolicy (\[.*\])", shown).groups()
    assert onnx == policy


@pytest.mark.cluster
def test_an_environment_of_ones_own_runs():
    """It learns, goes on, and two starts of one cell leave the actors of one run, which end with it."""
    notebook = notebooks.execute(notebooks.FOLDER / "own_environment.ipynb")
    shown = "\n".join(text(cell) for cell in notebook.cells)
    for line in ("it can be trained", "mean return above 0.5: True", "mean return above 0.8: True", "went on from where it was: True", "actors afterwards: []"):
        assert line in shown
    assert shown.count("actors while it runs: ['EnvManagerActor', 'Exchange', 'TrainerActor']") == 2
    assert "image/png" in kinds(notebook)
