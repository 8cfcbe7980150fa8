"""A cluster of this one machine over SSH, for yaml/cluster/local-ssh.yaml: an SSH server on the loopback address with a key, a port and a home of its own.

    python scripts/ssh_cluster.py start     # then: ray up, ray submit
    python scripts/ssh_cluster.py stop      # ends the server and the Ray that was started through it, by process id

Needs the packages openssh-server and rsync. Nothing outside ``~/.raytrain-ssh`` and ``/tmp/raytrain-ssh`` is touched; other Rays of the machine go on.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

FOLDER = Path.home() / ".raytrain-ssh"
RAY_FOLDER = "/tmp/raytrain-ssh"
PORT = 22_022
RAY_PORT = 26_379

_PROFILE = """\
export PATH={bin}:$PATH RAY_TMPDIR={ray} RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$HOME/.ray/auth_token RAY_USAGE_STATS_ENABLED=0
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


def start() -> None:
    """Make key, home and token, and start the server."""
    if problem := missing():
        raise SystemExit(problem)
    stop()
    home = FOLDER / "home"
    (home / ".ray").mkdir(parents=True, mode=0o700)
    for name in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(FOLDER / name)], check=True)
    token = FOLDER / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    for name in (".bash_profile", ".bashrc"):
        (home / name).write_text(_PROFILE.format(bin=Path(sys.executable).parent, ray=RAY_FOLDER))
    (FOLDER / "sshd_config").write_text(_SERVER.format(port=PORT, folder=FOLDER))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # of the packaged server, which as root separates privileges there
    subprocess.run([sshd(), "-f", str(FOLDER / "sshd_config"), "-E", str(FOLDER / "sshd.log")], check=True)
    deadline = time.monotonic() + 10.0
    while True:
        try:
            socket.create_connection(("127.0.0.1", PORT), timeout=1.0).close()
            break
        except OSError:
            if time.monotonic() > deadline:
                raise SystemExit(f"the SSH server does not answer; see {FOLDER / 'sshd.log'}") from None
            time.sleep(0.1)
    print(f"SSH server on 127.0.0.1:{PORT}, home {home}")


def stop() -> None:
    """End the server and every process of the Ray that was started through it; remove the folders."""
    mine = [process for process in psutil.process_iter() if process.pid != os.getpid() and _is_ours(process)]
    for process in mine:
        _send(process.terminate)
    for process in psutil.wait_procs(mine, timeout=10.0)[1]:
        _send(process.kill)
    for state in Path("/tmp/ray").glob("cluster-raytrain-local-ssh.*"):  # what 'ray up' noted here
        state.unlink()
    for folder in (FOLDER, Path(RAY_FOLDER)):
        shutil.rmtree(folder, ignore_errors=True)


def _is_ours(process: psutil.Process) -> bool:
    """Whether it is our server, or was started in a session of it."""
    try:
        return str(FOLDER / "sshd_config") in process.cmdline() or process.environ().get("RAY_TMPDIR") == RAY_FOLDER
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, OSError):
        return False


def _send(signal) -> None:
    try:
        signal()
    except psutil.NoSuchProcess:
        pass


def connect() -> None:
    """Standard input and output to the server and back: ssh's way to a port that cluster files have no key for."""
    server = socket.create_connection(("127.0.0.1", PORT))

    def upwards() -> None:
        while data := os.read(0, 65_536):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)

    threading.Thread(target=upwards, daemon=True).start()
    while data := server.recv(65_536):
        os.write(1, data)


if __name__ == "__main__":
    commands = {"start": start, "stop": stop, "connect": connect}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        raise SystemExit(f"usage: python {sys.argv[0]} {{{','.join(commands)}}}")
    commands[sys.argv[1]]()
