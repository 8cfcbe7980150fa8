"""Processes of one run, told by a token in their environment: nothing else on the machine is ever touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "RAYTRAIN_CHAOS_TOKEN"
"""Environment variable that every process of a run inherits."""
ACTORS = {"env manager": "ray::EnvManagerActor", "trainer": "ray::TrainerActor", "exchange": "ray::Exchange"}
"""What can be killed -> how its process is called."""


def new_token() -> str:
    """A token that no other run has."""
    return f"{os.getpid()}-{uuid.uuid4().hex}"


def members(token: str) -> list[psutil.Process]:
    """Every live process with this token, but for this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(TOKEN) == token and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue  # it has ended, or is somebody else's
    return found


def title(process: psutil.Process) -> str:
    """Its command line; empty once it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def actors(token: str, kind: str) -> list[psutil.Process]:
    """The run's processes of one kind (a key of `ACTORS`), in the order of their process ids."""
    return sorted((p for p in members(token) if title(p).startswith(ACTORS[kind])), key=lambda p: p.pid)


@contextmanager
def private_ray() -> Iterator[dict[str, str]]:
    """Environment variables with which a run starts a Ray of its own, whatever other Ray there is on this machine."""
    folder = tempfile.mkdtemp(prefix="rt-")  # short: sockets lie in it
    try:
        yield {"RAY_ADDRESS": "", "RAY_TMPDIR": folder}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def kill_all(token: str, root: subprocess.Popen | None = None) -> int:
    """SIGKILL to every process of a run at once, the driver first, until none is left; how many there were."""
    killed: set[int] = set()
    if root is not None and root.poll() is None:
        root.send_signal(signal.SIGKILL)
        killed.add(root.pid)
    deadline = time.monotonic() + 20.0
    while (left := members(token)) and time.monotonic() < deadline:
        for process in left:
            try:
                process.kill()
                killed.add(process.pid)
            except psutil.Error:
                continue
        time.sleep(0.05)
    if root is not None:
        root.wait(timeout=20.0)
    if left:
        raise RuntimeError(f"Expected every process of the run to end, still there: {[(p.pid, title(p)[:60]) for p in left]}.")
    return len(killed)


def start_run(python: str, file: Path, words: Sequence[str], token: str, log: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen:
    """``scripts/train.py FILE …`` in a process of its own whose whole family carries `token`; what it prints is added to `log`."""
    given = {**os.environ, TOKEN: token, "COLUMNS": "200", **(environment or {})}
    with log.open("ab") as out:
        return subprocess.Popen(
            [python, str(ROOT / "scripts" / "train.py"), str(file), *words], stdout=out, stderr=subprocess.STDOUT, env=given, cwd=file.parent,
            start_new_session=True,
        )
