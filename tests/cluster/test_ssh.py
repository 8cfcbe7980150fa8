"""The commands of docs/cluster.md against a cluster of this machine over SSH, as they stand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import ssh_cluster

ROOT = Path(__file__).resolve().parents[2]
FILE = "yaml/cluster/local-ssh.yaml"
RUN = ["--set", "behaviors.CartPole.max_steps=2000"]

if not os.environ.get("RAYTRAIN_TEST_SSH"):
    pytest.skip("starts an SSH server and a Ray cluster by ray up: set RAYTRAIN_TEST_SSH=1", allow_module_level=True)


def command(*words: str, **environ: str) -> str:
    """Run `words` in the repository with this Python's programs first; what it printed."""
    given = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | environ
    given["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{given['PATH']}"
    run = subprocess.run(words, cwd=ROOT, env=given, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=300)
    assert run.returncode == 0, run.stdout
    return run.stdout


@pytest.fixture(scope="module")
def cluster():
    if problem := ssh_cluster.missing():
        pytest.skip(problem)
    if os.getuid():
        pytest.skip(f"{FILE} names root as the user")
    command("python", "scripts/ssh_cluster.py", "start")
    try:
        command("ray", "up", "-y", FILE)
        yield ssh_cluster.FOLDER / "home"
    finally:
        command("python", "scripts/ssh_cluster.py", "stop")


def test_ray_submit_trains_with_the_token_and_leaves_results_on_the_head(cluster):
    out = command("ray", "submit", FILE, "scripts/train.py", "yaml/ppo/CartPole.yaml", "--", "--run-id", "submitted", *RUN)
    assert "max_steps=2,000 reached" in out and "on this machine" in out and "asks for no token" not in out
    assert (cluster / "results" / "submitted" / "latest").is_file()


def test_ray_job_submit_trains_and_keeps_results_in_the_home_folder(cluster):
    """The working folder of a job is a package that Ray throws away."""
    out = command(
        "ray", "job", "submit", "--address", "http://127.0.0.1:28265", "--working-dir", ".", "--", "python", "scripts/train.py",
        "yaml/ppo/CartPole.yaml", "--run-id", "job", *RUN, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(ssh_cluster.FOLDER / "token"))
    assert "max_steps=2,000 reached" in out and "(ray job submit)" in out and f"results go to {cluster / 'results'}" in out
    assert (cluster / "results" / "job" / "latest").is_file()
