"""Versions of fake nodes, and importing an environment as another node would."""

import pytest

from envs.factories import EnvFactory
from envs.own_code import SAMPLER, TRAINER
from raytrain.node_check import compare_versions, import_problem, installed_versions, report

OWN = {"python": "3.11.7", "ray": "2.60.0", "tensorflow": "2.20.0", "numpy": "2.1.0"}


def test_equal_nodes_say_nothing():
    assert compare_versions(OWN, {"a": OWN, "b": dict(OWN)}) == ([], [])


@pytest.mark.parametrize("package, there, fatal", [
    ("python", "3.11.9", False), ("python", "3.12.7", True), ("ray", "2.59.0", True), ("ray", "", True), ("tensorflow", "2.19.0", False),
    ("tensorflow", "", False), ("numpy", "2.2.0", False), ("numpy", "1.26.4", True),
])
def test_a_difference_is_one_line_with_both_versions_the_node_and_the_fix(package, there, fatal):
    """C96."""
    warnings, refused = compare_versions(OWN, {"10.0.0.2": {**OWN, package: there}, "10.0.0.3": OWN})
    (line,) = refused if fatal else warnings
    assert not (warnings if fatal else refused)
    assert (there or "not installed") in line and OWN[package] in line and "10.0.0.2" in line and "10.0.0.3" not in line and "\n" not in line


def test_nodes_that_differ_alike_share_a_line():
    other = {**OWN, "tensorflow": "2.19.0"}
    (line,), _ = compare_versions(OWN, {"a": other, "b": other, "c": other})
    assert "a and 2 more nodes" in line and 'pip install "tensorflow==2.20.0"' in line


def test_versions_are_found_without_importing():
    versions = installed_versions()
    assert list(versions) == ["python", "ray", "tensorflow", "numpy"] and all(versions.values())


def test_a_report_has_the_search_path_of_a_missing_module(tmp_path):
    found = report(EnvFactory("no_such_module_anywhere:make", {}, (str(tmp_path),)))
    text = import_problem("no_such_module_anywhere:make", "10.0.0.2", found, "Ship it.")
    assert "not on 10.0.0.2" in text and "no_such_module_anywhere" in text and str(tmp_path) in text and text.endswith("Ship it.")


def test_a_module_that_breaks_brings_its_own_traceback(tmp_path):
    (tmp_path / "breaks_on_import.py").write_text("raise RuntimeError('boom-17')\n")
    found = report(EnvFactory("breaks_on_import:make", {}, (str(tmp_path),)))
    assert "boom-17" in found.problem and "breaks_on_import.py" in found.user_traceback


@pytest.mark.parametrize("env", ["CartPole-v1", "envs.toy:ToyEnv"])
def test_loading_makes_nothing(env, tmp_path):
    if ":" in env:
        (tmp_path / "counts_makes.py").write_text("made = []\ndef make():\n    made.append(1)\n")
        EnvFactory("counts_makes:make", {}, (str(tmp_path),)).load()
        import counts_makes

        assert counts_makes.made == []
    else:
        assert report(EnvFactory(env)).problem == ""


def test_a_node_says_what_else_of_the_users_code_it_cannot_import():
    """C92: trainers, signals and networks, not only the environment."""
    factory = EnvFactory("CartPole-v1")
    assert report(factory, [(SAMPLER, "tests.envs.test_randomization:Halves")]).problem == ""
    found = report(factory, [(TRAINER, "nowhere_at_all:Trainer")])
    assert found.what == "nowhere_at_all:Trainer" and "there is no module 'nowhere_at_all'" in found.problem
