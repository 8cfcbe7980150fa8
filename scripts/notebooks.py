#!/usr/bin/env python
"""Run the notebooks of docs/notebooks anew and keep what they show: ``python scripts/notebooks.py``.

Each runs from its first cell to its last in an empty folder, and is written only when every cell has passed. Nothing of this machine stays
in the outputs: its folders become ``…``, and when cells ran is not kept.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "notebooks"
CELL_TIMEOUT_S = 600


def execute(path: Path) -> Any:
    """The notebook at `path` with the outputs of a new run.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised, with its traceback.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])), "NO_COLOR": "1"}
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        try:
            NotebookClient(notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", coalesce_streams=True, resources={"metadata": {"path": folder}}).execute()
        finally:
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
            cell["outputs"] = [_tidy(output, folder) for output in cell.get("outputs", [])] if cell.cell_type == "code" else None
            if cell["outputs"] is None:
                del cell["outputs"]
    notebook.metadata.pop("language_info", None)
    return notebook


def _tidy(output: Any, folder: str) -> Any:
    """An output without this machine's folders."""
    text = nbformat.from_dict(output)
    for places in [text, text.get("data", {})]:
        for key, value in places.items():
            if isinstance(value, str) and key != "image/png":
                value = value.replace(os.path.realpath(folder), "…").replace(folder, "…").replace(str(ROOT), "…").replace(sys.prefix, "…")
                places[key] = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", value)
    return text


def main() -> int:
    """Run what was asked for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="notebooks without .ipynb (default: all)")
    names = parser.parse_args().names or sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    for name in names:
        path = FOLDER / f"{name}.ipynb"
        if not path.is_file():
            print(f"error: Expected a notebook of {FOLDER}, received {name}. There are: {', '.join(sorted(p.stem for p in FOLDER.glob('*.ipynb')))}.", file=sys.stderr)
            return 2
        notebook = execute(path)
        nbformat.write(notebook, path)
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
