"""A cluster of this one machine over SSH, for yaml/cluster/local-ssh.yaml: an SSH server on the loopback address with a key, a port and a home of its own.

    python scripts/ssh_cluster.py start     # then: ray up, ray submit
    python scripts/ssh_cluster.py stop      # ends the server and the Ray that was started through it, by process id

Needs the packages openssh-server and rsync. Nothing outside ``~/.raytrain-ssh`` and one folder ``/tmp/raytrain-ssh-…`` is touched; other Rays of the machine go on.
``--port N`` takes another port than 22022, for a second one beside it under another ``HOME``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

FOLDER = Path.home() / ".raytrain-ssh"
RAY_FOLDER = FOLDER / "ray"
"""A link to a folder in /tmp: paths of Ray's sockets may not be long."""
PORT = 22_022

_PROFILE = """\
export PATH={bin}:$PATH RAY_TMPDIR={ray} RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$HOME/.ray/auth_token RAY_USAGE_STATS_ENABLED=0 RAY_gcs_server_port_wait_time_s=120
cd "$HOME"
"""
_SERVER = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
PidFile {folder}/sshd.pid
AuthorizedKeysFile {folder}/key.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
SetEnv HOME={folder}/home
"""


def missing() -> str:
    """What has to be installed first; empty when all is there."""
    names = [name for name, path in (("openssh-server", sshd()), ("openssh-client", shutil.which("ssh")), ("rsync", shutil.which("rsync"))) if not path]
    return f"needs {', '.join(names)}: apt-get install {' '.join(names)}" if names else ""


def sshd() -> str | None:
    """Path of the server's program, which is not on every user's PATH; None where it is not installed."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def start(port: int) -> None:
    """Make key, home and token, and start the server on `port`."""
    if problem := missing():
        raise SystemExit(problem)
    stop()
    home = FOLDER / "home"
    (home / ".ray").mkdir(parents=True, mode=0o700)
    RAY_FOLDER.symlink_to(tempfile.mkdtemp(prefix="raytrain-ssh-", dir="/tmp"))
    for name in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(FOLDER / name)], check=True)
    token = FOLDER / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    for name in (".bash_profile", ".bashrc"):
        (home / name).write_text(_PROFILE.format(bin=Path(sys.executable).parent, ray=RAY_FOLDER.readlink()))
    (FOLDER / "sshd_config").write_text(_SERVER.format(port=port, folder=FOLDER))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # of the packaged server, which as root separates privileges there
    subprocess.run([sshd(), "-f", str(FOLDER / "sshd_config"), "-E", str(FOLDER / "sshd.log")], check=True)
    deadline = time.monotonic() + 60.0
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            break
        except OSError:
            if time.monotonic() > deadline:
                raise SystemExit(f"the SSH server does not answer; see {FOLDER / 'sshd.log'}") from None
            time.sleep(0.1)
    print(f"SSH server on 127.0.0.1:{port}, home {home}")


def stop() -> None:
    """End the server and every process of the Ray that was started through it; remove the folders."""
    ray = str(RAY_FOLDER.readlink()) if RAY_FOLDER.is_symlink() else None
    mine = {process for process in psutil.process_iter() if process.pid != os.getpid() and _is_ours(process, ray)}
    for process in list(mine):  # those of Ray that change their title write it over their environment
        with contextlib.suppress(psutil.NoSuchProcess):
            mine.update(process.children(recursive=True))
    for process in mine:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(mine, timeout=10.0)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(mine, timeout=10.0)
    for state in (Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray").glob("cluster-raytrain-local-ssh.*"):  # what 'ray up' noted here
        state.unlink()
    for folder in (ray, FOLDER):
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _is_ours(process: psutil.Process, ray: str | None) -> bool:
    """Whether it is our server, or was started in a session of it, whose Ray has the folder `ray`."""
    try:
        return str(FOLDER / "sshd_config") in process.cmdline() or (ray is not None and process.environ().get("RAY_TMPDIR") == ray)
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, OSError):
        return False


def connect(port: int) -> None:
    """Standard input and output to the server and back: ssh's way to a port that cluster files have no key for."""
    server = socket.create_connection(("127.0.0.1", port))

    def upwards() -> None:
        while data := os.read(0, 65_536):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)

    threading.Thread(target=upwards, daemon=True).start()
    while data := server.recv(65_536):
        os.write(1, data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("start", "stop", "connect"))
    parser.add_argument("--port", type=int, default=PORT, help="of the SSH server (default %(default)s)")
    given = parser.parse_args()
    {"start": start, "stop": lambda _port: stop(), "connect": connect}[given.command](given.port)
