"""Clusters of several nodes: code that only the driver has, places of actors, waits, tokens, and jobs. Nodes are processes of this machine."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import ray
import yaml

from raytrain.run_folder import ask_for_managers

ROOT = Path(__file__).resolve().parents[2]
WORLD = "import gymnasium as gym\nimport {helper}\n\ndef make():\n    return gym.make('CartPole-v1', max_episode_steps={helper}.STEPS)\n"


class Nodes:
    """A cluster of raylets in another process, so that this one can join it as any driver does. Ended by closing its standard input."""

    PROGRAM = """
import json, sys
from ray.cluster_utils import Cluster
head, *others = json.loads(sys.argv[1])
cluster = Cluster(initialize_head=True, head_node_args=head)
for node in others:
    cluster.add_node(**node)
print("address", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""

    def __init__(self, folder: Path, *nodes: dict, token: bool = False) -> None:
        # A folder of its own, so that no other run of the machine takes it for the cluster to join.
        head = {"include_dashboard": False, "temp_dir": str(folder), **nodes[0]}
        environ = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"RAY_AUTH_MODE": "token" if token else "disabled"}
        if token:
            (folder / "token").write_text("0123456789abcdef" * 4)
            environ["RAY_AUTH_TOKEN_PATH"] = str(folder / "token")
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the cluster
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM, json.dumps([head, *nodes[1:]])], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, text=True, env=environ)
        self.address = next((line.split()[1] for line in self._process.stdout if line.startswith("address")), "")
        if not self.address:
            self._errors.seek(0)
            raise RuntimeError(f"no cluster: {self._errors.read()}")

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        self._errors.close()


@pytest.fixture(scope="module")
def three_nodes(tmp_path_factory):
    """A head with 0 CPUs, and two workers of 2."""
    nodes = Nodes(Path("/tmp") / f"raytrain-{os.getpid()}", {"num_cpus": 0}, {"num_cpus": 2}, {"num_cpus": 2, "resources": {"fast": 1}})
    yield nodes
    nodes.close()


def write_run(folder: Path, module: str, **distributed) -> Path:
    data = {
        "env": f"{module}:make",
        "default_settings": {
            "hyperparameters": {"buffer_size": 256, "batch_size": 64, "num_epoch": 2}, "network_settings": {"hidden_units": 16, "num_layers": 1},
            "max_steps": 1000, "summary_freq": 500, "checkpoint_interval": 1000, "time_horizon": 32,
        },
        "env_settings": {"num_envs": 2, "seed": 3},
        "distributed": {"num_env_managers": 2, **distributed},
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def command(*arguments: str, cwd: Path, path: Path | None = None, **environ: str) -> subprocess.Popen:
    given = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | environ
    if path is not None:
        given["PYTHONPATH"] = str(path)
    return subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "train.py"), *arguments], cwd=cwd, env=given, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_code_of_the_driver_reaches_other_nodes_and_the_plan_is_where_actors_are(three_nodes, tmp_path):
    """C92, C97: module and helper lie beside the file, which no worker has on its path; nothing of the run is on a head with 0 CPUs."""
    (tmp_path / "world_of_nodes.py").write_text(WORLD.format(helper="helper_of_nodes"))
    (tmp_path / "helper_of_nodes.py").write_text("STEPS = 100\n")
    file = write_run(tmp_path, "world_of_nodes", trainer_resources={"fast": 1})
    file.write_text(file.read_text() + "evaluation: {episodes: 1}\n")
    out, _ = (run := command(str(file), "--address", three_nodes.address, "--results-dir", str(tmp_path / "r"), "--run-id", "n", cwd=tmp_path)).communicate(timeout=240)
    assert run.returncode == 0, out
    assert f"shipping raytrain and {tmp_path}" in out and "asks for no token" in out
    plan = out[out.index("placement"):].splitlines()[1:4]
    assert re.search(r"head, node \w+\)\s+nothing of this run", plan[0]), plan
    placed = " ".join(plan[1:])
    assert "trainer of CartPole" in placed and "env-manager-0" in placed and "env-manager-1" in placed
    (beside,) = (row for row in plan[1:] if "evaluator" in row)
    assert "trainer" not in beside and "evaluation at" in out


def test_a_module_that_workers_do_not_have_is_named_with_their_search_path(three_nodes, tmp_path):
    """C92: it lies in a folder that only this process's code can see."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "config").mkdir()
    (tmp_path / "hidden" / "only_here.py").write_text(WORLD.format(helper="math").replace("math.STEPS", "10"))
    file = write_run(tmp_path / "config", "only_here")
    program = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; sys.path.append({str(tmp_path / 'hidden')!r}); from raytrain.cli import main; sys.exit(main(sys.argv[1:]))"
    run = subprocess.run(
        [sys.executable, "-c", program, "train", str(file), "--address", three_nodes.address, "--results-dir", str(tmp_path / "r")],
        check=False, text=True, capture_output=True, timeout=120, cwd=tmp_path)
    assert run.returncode == 2, run.stdout + run.stderr
    assert "no module 'only_here'" in run.stderr and "_ray_pkg_" in run.stderr and not (tmp_path / "r").exists()


def test_what_no_node_has_is_refused(three_nodes, tmp_path):
    """C93."""
    (tmp_path / "plain_world.py").write_text("import gymnasium as gym\n\ndef make():\n    return gym.make('CartPole-v1')\n")
    for change, text in (("trainer_gpus=1", "needs 1 GPU"), ("env_manager_cpus=3", "the Ray cluster has 4"), ("trainer_resources={huge: 1}", "1 of huge")):
        file = write_run(tmp_path, "plain_world")
        out, _ = (run := command(str(file), "--address", three_nodes.address, "--set", f"distributed.{change}", cwd=tmp_path)).communicate(timeout=120)
        assert run.returncode == 2 and text in out, out


def test_a_run_waits_for_nodes_if_it_is_told_to_and_says_what_is_missing(three_nodes, tmp_path):
    """C93: interrupted while it waits, since nobody adds a node."""
    (tmp_path / "plain_world.py").write_text("import gymnasium as gym\n\ndef make():\n    return gym.make('CartPole-v1')\n")
    file = write_run(tmp_path, "plain_world", num_env_managers=5, wait_for_resources=True)
    run = command(str(file), "--address", three_nodes.address, "--results-dir", str(tmp_path / "r"), cwd=tmp_path, PYTHONUNBUFFERED="1")
    lines = []
    for line in run.stdout:
        lines.append(line)
        if "needs 1 CPU" in line and "waiting for" in line:
            break
    run.terminate()
    rest, _ = run.communicate(timeout=60)
    assert any("the run waits for nodes" in line for line in lines), lines + [rest]
    assert re.search(r"waiting for .*needs 1 CPU, 0 of 4 free", lines[-1]), lines + [rest]


def test_more_env_managers_than_there_is_room_for_are_told_of_while_the_run_goes_on(three_nodes, tmp_path):
    """`raytrain scale` beyond the cluster: who waits, what for, and how much is free; what has its place and is starting is not among them."""
    (tmp_path / "plain_world.py").write_text("import gymnasium as gym\n\ndef make():\n    return gym.make('CartPole-v1')\n")
    file = write_run(tmp_path, "plain_world", num_env_managers=1, max_env_managers=6)
    options = ["--address", three_nodes.address, "--results-dir", str(tmp_path / "r"), "--run-id", "n", "--set", "behaviors.CartPole.max_steps=100000000"]
    run = command(str(file), *options, cwd=tmp_path, PYTHONUNBUFFERED="1")
    lines, asked = [], False
    for line in run.stdout:
        lines.append(line)
        if not asked and "steps/s" in line:
            asked = ask_for_managers(tmp_path / "r" / "n", 6) == 6
        if "and 2 more (each needs" in line or len(lines) > 5_000:  # before, some of those that have room are not placed yet
            break
    run.terminate()
    rest, _ = run.communicate(timeout=120)
    text = "".join(lines)
    assert "going on with 6 env managers" in text and "waiting for room: env-manager-3 and 2 more (each needs 1 CPU, 0 of 4 free)" in text, text + rest


def test_a_cluster_with_a_token_is_joined_with_it_only(tmp_path):
    """Actors would vanish on a driver that asks for tokens where the cluster gives none, and the other way round."""
    folder = Path("/tmp") / f"raytrain-t{os.getpid()}"
    folder.mkdir()
    nodes = Nodes(folder, {"num_cpus": 2}, token=True)
    try:
        file = ROOT / "yaml" / "ppo" / "CartPole.yaml"
        few = ["--set", "behaviors.CartPole.max_steps=1000", "--results-dir", str(tmp_path / "r"), "--address", nodes.address]
        out, _ = (run := command(str(file), *few, cwd=tmp_path, HOME=str(tmp_path))).communicate(timeout=120)
        assert run.returncode == 2 and "asks for a token" in out, out
        out, _ = (run := command(str(file), *few, cwd=tmp_path, RAY_AUTH_TOKEN_PATH=str(folder / "token"))).communicate(timeout=240)
        assert run.returncode == 0 and "asks for no token" not in out, out
    finally:
        nodes.close()


def test_joining_leaves_this_process_as_it_was(three_nodes, monkeypatch):
    """C98: also its use of tokens, so that a private Ray that follows has one."""
    from raytrain import cluster

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    connection = cluster.connect(three_nodes.address)
    assert len(cluster.live_nodes()) == 3 and connection.warnings and not connection.is_here
    cluster.disconnect(connection)
    assert not ray.is_initialized() and "RAY_AUTH_MODE" not in os.environ
