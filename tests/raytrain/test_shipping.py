"""What is shipped, what is left out, and where a job keeps its results."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from raytrain import shipping
from raytrain.errors import ClusterError
from raytrain.shipping import JOB_VARIABLE, SHIPPED_FROM, Shipment, job_runtime_env, kept_results, shipment_of, worker_import_dirs

JOB = {JOB_VARIABLE: json.dumps({"runtime_env": {"working_dir": "gcs://_ray_pkg_1.zip"}, "metadata": {}})}


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """A module of the user's that was imported from `tmp_path`."""
    (tmp_path / "shipped_world.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("shipped_world")
    yield tmp_path
    del sys.modules["shipped_world"]


def test_the_folder_is_shipped_only_if_a_module_comes_from_it(user_module, tmp_path_factory):
    assert shipment_of(user_module).folder == user_module.resolve()
    assert shipment_of(tmp_path_factory.mktemp("other")).folder is None


def test_a_virtual_environment_in_the_folder_is_none_of_its_modules(tmp_path, monkeypatch):
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "installed_package.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / ".venv")
    importlib.import_module("installed_package")
    assert shipment_of(tmp_path).folder is None
    del sys.modules["installed_package"]


def test_raytrain_is_always_shipped_and_pythonpath_kept(tmp_path):
    env = Shipment(tmp_path).runtime_env({"PYTHONPATH": "/mine"})
    assert [Path(p).name for p in env["py_modules"]] == ["raytrain", "trainers", "envs"] and env["working_dir"] == str(tmp_path)
    # A trial of a sweep begins a run from a process that has the copy: it must know whose that is.
    assert env["env_vars"] == {"PYTHONPATH": "/mine", SHIPPED_FROM: str(tmp_path)} and {".git", "results", ".venv"} <= set(env["excludes"])
    assert "working_dir" not in Shipment().runtime_env({})


def test_a_folder_that_is_too_large_is_refused_unless_ignored(tmp_path, monkeypatch):
    monkeypatch.setattr(shipping, "MOST_BYTES", 1000)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "frames.bin").write_bytes(bytes(2000))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "run.bin").write_bytes(bytes(2000))
    with pytest.raises(ClusterError, match=r"most of it in data.*\.rayignore"):
        Shipment(tmp_path).runtime_env({})
    (tmp_path / ".rayignore").write_text("# large\ndata/\n")
    assert Shipment(tmp_path).runtime_env({})["working_dir"] == str(tmp_path)


def test_a_job_keeps_relative_results_in_the_home_folder():
    kept, text = kept_results("results", JOB)
    assert kept == str(Path.home() / "results") and kept in text
    assert kept_results("/data/results", JOB) == ("/data/results", "") and kept_results("s3://bucket/runs", JOB) == ("s3://bucket/runs", "")
    assert kept_results("results", {}) == ("results", "")
    no_package = {JOB_VARIABLE: json.dumps({"runtime_env": {"env_vars": {"A": "1"}}})}
    assert kept_results("results", no_package) == ("results", ""), "its working folder is not Ray's"


def test_job_is_told_from_no_job():
    assert job_runtime_env({}) is None and job_runtime_env({JOB_VARIABLE: "{}"}) == {} and job_runtime_env(JOB)["working_dir"].startswith("gcs:")


def test_workers_look_in_their_own_copy(tmp_path, monkeypatch):
    (tmp_path / "yaml" / "ppo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert worker_import_dirs(tmp_path / "yaml" / "ppo", None, JOB) == ("yaml/ppo",), "of the job's package"
    assert worker_import_dirs(tmp_path, tmp_path, {}) == (".",), "of the folder that was shipped"
    assert worker_import_dirs(tmp_path, None, {}) is None, "the same path"
    assert worker_import_dirs(tmp_path.parent, None, JOB) is None, "outside of the package"
