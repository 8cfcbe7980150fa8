"""The commands of docs/cluster.md against a cluster of this machine over SSH: a server, keys, ports, a home and a Ray of their own."""

import getpass
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import ssh_cluster

ROOT = Path(__file__).resolve().parents[2]
FILE = "yaml/cluster/local-ssh.yaml"
RUN = ["--set", "behaviors.CartPole.max_steps=2000"]
PORTS = {"--port=26379": "gcs", "--dashboard-port=28265": "dashboard", "--ray-client-server-port=26001": "client", "--dashboard-agent-listen-port=28266": "agent"}

if problem := ssh_cluster.missing():
    pytest.skip(problem, allow_module_level=True)


class Desk:
    """What a user has who types the commands: the cluster file with ports of its own, and a home folder that is not yours."""

    def __init__(self, folder: Path):
        self.home = folder / "home"
        self.home.mkdir()
        self.ports = free_ports([*PORTS.values(), "ssh"])
        self.file = folder / "local-ssh.yaml"
        self.file.write_text(self._with_own_ports((ROOT / FILE).read_text()))
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        self.environ = kept | {"HOME": str(self.home), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}", "RAY_TMPDIR": str(folder)}
        self.results = self.home / ".raytrain-ssh" / "home" / "results"
        self.token = self.home / ".raytrain-ssh" / "token"

    def _with_own_ports(self, text: str) -> str:
        changes = {option: f"{option.partition('=')[0]}={self.ports[name]}" for option, name in PORTS.items()} | {
            "cluster_name: raytrain-local-ssh": f"cluster_name: raytrain-local-ssh-{self.ports['ssh']}",
            "ssh_cluster.py connect": f"ssh_cluster.py connect --port {self.ports['ssh']}",
            "ssh_private_key: ~": f"ssh_private_key: {self.home}",  # ssh looks up your home folder by itself
            "ssh_user: root": f"ssh_user: {getpass.getuser()}"}
        for old, new in changes.items():
            assert old in text, f"{FILE} has no {old!r} any more"
            text = re.sub(rf"{re.escape(old)}(?![\w-])", new, text)
        return text

    def command(self, *words: str, seconds: float = 1_200.0, **environ: str) -> str:
        """Run `words` in the repository with this Python's programs first; what it printed."""
        run = subprocess.run(
            words, cwd=ROOT, env=self.environ | environ, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=seconds)
        assert run.returncode == 0, run.stdout
        return run.stdout


def free_ports(names: list[str]) -> dict[str, int]:
    """Name → a port that nobody listens on; all differ, since they are held until the last is found."""
    held = {name: socket.create_server(("127.0.0.1", 0)) for name in names}
    ports = {name: end.getsockname()[1] for name, end in held.items()}
    for end in held.values():
        end.close()
    return ports


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    desk = Desk(tmp_path_factory.mktemp("ssh"))
    desk.command("python", "scripts/ssh_cluster.py", "start", "--port", str(desk.ports["ssh"]))
    try:
        desk.command("ray", "up", "-y", str(desk.file))
        yield desk
    finally:
        desk.command("python", "scripts/ssh_cluster.py", "stop")
        assert not (desk.home / ".raytrain-ssh").exists()
        for port in desk.ports.values():  # nobody is left that listens: all that was started has ended
            socket.create_server(("127.0.0.1", port)).close()


def test_ray_submit_trains_with_the_token_and_leaves_results_on_the_head(desk):
    out = desk.command("ray", "submit", str(desk.file), "scripts/train.py", "yaml/ppo/CartPole.yaml", "--", "--run-id", "submitted", *RUN)
    assert "max_steps=2,000 reached" in out and "on this machine" in out and "asks for no token" not in out
    assert (desk.results / "submitted" / "latest").is_file()


def test_ray_job_submit_trains_and_keeps_results_in_the_home_folder(desk):
    """The working folder of a job is a package that Ray throws away."""
    out = desk.command(
        "ray", "job", "submit", "--address", f"http://127.0.0.1:{desk.ports['dashboard']}", "--working-dir", ".", "--", "python", "scripts/train.py",
        "yaml/ppo/CartPole.yaml", "--run-id", "job", *RUN, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(desk.token))
    assert "max_steps=2,000 reached" in out and "(ray job submit)" in out and f"results go to {desk.results}" in out
    assert (desk.results / "job" / "latest").is_file()
