"""TensorFlow comes in with its settings and without its greeting."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}


def python(code: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([*([path] if path else []), os.getcwd()])}
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize("module", ["ppo", "losses", "keras_model"])
def test_tensorflow_finds_its_settings(tmp_path, module):
    """Whichever module comes first: they are in the environment when TensorFlow is imported, or convolutions take twice as long."""
    (tmp_path / "tensorflow.py").write_text(
        "import os\nos.write(1, f\"{os.environ.get('TF_ENABLE_ONEDNN_OPTS')} {os.environ.get('TF_CPU_ALLOCATOR_USE_BFC')}\".encode())\n"
        "os._exit(0)\n"
    )
    assert python(f"import trainers.{module}", str(tmp_path)).stdout.split() == ["1", "true"]


def test_nothing_appears_on_the_terminal():
    done = python("import trainers.graph")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_whatever_else_is_written_meanwhile_appears(tmp_path):
    """Written by C code or by Python; also when the import fails, whose own traceback comes last."""
    (tmp_path / "tensorflow.py").write_text(
        "import os, sys\nos.write(2, b'I0000 00:00:1 1 port.cc:1] hello\\nE0000 disk full\\n')\nprint('I am here', file=sys.stderr)\n"
        "raise ImportError('no such symbol')\n"
    )
    lines = python("import trainers.quiet_tensorflow", str(tmp_path)).stderr.splitlines()
    assert lines[:2] == ["E0000 disk full", "I am here"] and lines[-1] == "ImportError: no such symbol"


def test_without_standard_error(tmp_path):
    (tmp_path / "tensorflow.py").write_text("")
    done = python("import os; os.close(2)\nimport trainers.quiet_tensorflow as q; print(q.tf.__name__)", str(tmp_path))
    assert done.stdout == "tensorflow\n"
