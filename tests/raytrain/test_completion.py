"""Scripts for shells; that of bash is sourced by a real bash, whose completion function is called as the shell calls it."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from raytrain.cli import COMMANDS, main
from raytrain.completion import script

CALL = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_shtab_raytrain 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    """What bash offers for the last of some words, in a folder with two runs, a sweep and some files."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    folder = tmp_path_factory.mktemp("completion")
    for name in ("results/cartpole", "results/pendulum", "results/tuned", "yaml"):
        (folder / name).mkdir(parents=True)
    for name in ("cart.yaml", "cart.yml", "cart.txt", "yaml/own.yaml", "results/tuned/sweep.json"):
        (folder / name).touch()
    file = folder / "script"
    file.write_text(script("bash"))

    def offered(*words: str) -> list[str]:
        done = subprocess.run(["bash", "--norc", "-c", CALL, "bash", str(file), *words], cwd=folder, capture_output=True, text=True, timeout=30, check=True)
        return sorted(done.stdout.split())

    return offered


def test_the_script_registers_its_function(tmp_path):
    (tmp_path / "script").write_text(script("bash"))
    done = subprocess.run(["bash", "--norc", "-c", "source ./script; complete -p raytrain"], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert "-F _shtab_raytrain raytrain" in done.stdout, done.stderr


@pytest.mark.parametrize(("words", "expected"), [
    (["raytrain", ""], sorted(COMMANDS)),
    (["raytrain", "re"], ["record", "resume"]),
    (["raytrain", "train", "cart"], ["cart.yaml", "cart.yml"]),
    (["raytrain", "train", "yaml/"], ["yaml/own.yaml"]),
    (["raytrain", "train", "cart.yaml", "--num"], ["--num-env-managers", "--num-envs"]),
    (["raytrain", "train", "cart.yaml", "--run-id", "c"], ["cartpole"]),
    (["raytrain", "train", "cart.yaml", "--results-dir", "r"], ["results"]),
    (["raytrain", "evaluate", "pen"], ["results/pendulum"]),
    (["raytrain", "evaluate", "results/"], ["results/cartpole", "results/pendulum", "results/tuned"]),
    (["raytrain", "tune", "--resume", ""], ["results", "tuned", "yaml"]),
    (["raytrain", "tune", "--resume", "tu"], ["tuned"]),
    (["raytrain", "tune", "--resume", "ca"], []),
    (["raytrain", "tune", "--resume", "results/tu"], ["results/tuned"]),
    (["raytrain", "compare", "results/cartpole", "p"], ["results/pendulum"]),
    (["raytrain", "export", "results/cartpole", "--format", ""], ["all", "numpy", "onnx"]),
    (["raytrain", "completion", "z"], ["zsh"]),
    (["raytrain", "resume", "nothing-like-it"], []),
], ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None)
def test_bash_completes(bash, words, expected):
    assert bash(*words) == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_scripts_that_they_can_read(shell, tmp_path):
    text = script(shell)
    assert all(command in text for command in COMMANDS) and "--num-env-managers" in text.replace("-l num", "--num")
    if shutil.which(shell) is not None:
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", "script"], cwd=tmp_path, check=True, timeout=30)


def test_the_command_prints_the_script_and_refuses_other_shells(capsys):
    assert main(["completion", "fish"]) == 0
    assert "complete -c raytrain" in capsys.readouterr().out
    with pytest.raises(SystemExit) as error:
        main(["completion", "tcsh"])
    assert error.value.code == 2 and "choose from" in capsys.readouterr().err
