"""The libraries raytrain is measured against: their virtual envs, and the configurations that are run.

Each library lives in a virtual env of its own, made by ``venv`` and ``pip`` the first time it is asked for. A virtual
env counts as finished once its marker file holds the recipe it was made from; anything else is made again from nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARKER = "raytrain-peer.json"

# Torch comes first and alone: the libraries then find it installed and leave its version as it is.
TORCH = "torch==2.13.0"
# The wheel; the extra of older releases of Gymnasium names another package, which must be compiled.
BOX2D = ("box2d==2.3.10", "pygame>=2.1.3")

RECIPES: dict[str, tuple[tuple[str, ...], ...]] = {
    "peers": ((TORCH,), (
        "stable-baselines3==2.9.2", "ray[rllib]==2.60.*", "gymnasium[mujoco]==1.2.2", "ale-py<0.13", "opencv-python-headless",
        *BOX2D,
    )),
    "sbx": ((TORCH,), ("sbx-rl==0.28.0", "gymnasium[mujoco]<1.3", *BOX2D)),
    "sf": ((TORCH,), ("sample-factory==2.1.1", "numpy<2", "mujoco<3", "imageio", "ale-py<0.11", "opencv-python-headless<4.12")),
    "tianshou": ((TORCH,), ("tianshou==2.0.1",)),
}
"""Name of a virtual env -> the package lists of successive ``pip install`` calls."""


class PeerError(RuntimeError):
    """A virtual env could not be made.

    Attributes:
        reason: in one line.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Peer:
    """One configuration of a library.

    Attributes:
        library: what ``--peers`` calls it.
        venv: key of `RECIPES`; None runs in the interpreter that runs the benchmark.
        adapter: file in ``adapters/`` without its ending.
        options: read by the adapter.
    """

    library: str
    venv: str | None
    adapter: str
    options: dict[str, Any] = field(default_factory=dict)


PEERS: dict[str, Peer] = {
    "sb3": Peer("sb3", "peers", "sb3", {"lib": "sb3", "vec": "dummy"}),
    "sb3-subproc": Peer("sb3", "peers", "sb3", {"lib": "sb3", "vec": "subproc"}),
    "sb3-subproc-2-threads": Peer("sb3", "peers", "sb3", {"lib": "sb3", "vec": "subproc", "threads": 2}),
    "sbx": Peer("sbx", "sbx", "sb3", {"lib": "sbx", "vec": "dummy"}),
    "sbx-subproc": Peer("sbx", "sbx", "sb3", {"lib": "sbx", "vec": "subproc"}),
    "sample-factory": Peer("sample-factory", "sf", "sample_factory_", {"async_rl": True}),
    "sample-factory-sync": Peer("sample-factory", "sf", "sample_factory_", {"async_rl": False}),
    "rllib-ppo": Peer("rllib", "peers", "rllib", {"algo": "PPO", "runners": 2}),
    "rllib-ppo-async": Peer("rllib", "peers", "rllib", {"algo": "PPO", "runners": 2, "vec": "async"}),
    "rllib-appo": Peer("rllib", "peers", "rllib", {"algo": "APPO", "runners": 2}),
    "tianshou": Peer("tianshou", "tianshou", "tianshou_", {"vec": "dummy"}),
}
LIBRARIES = ("sb3", "sbx", "sample-factory", "rllib", "tianshou")
DISTRIBUTED = ("sample-factory", "rllib")
"""Libraries that always step and learn in processes of their own, as raytrain does: what a start and the memory are compared with."""


def default_venvs() -> Path:
    """``raytrain-peers`` in the user's cache folder (``XDG_CACHE_HOME``, else ``~/.cache``)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raytrain-peers"


def interpreter(venvs: Path, name: str) -> Path:
    """Python of the virtual env `name` under `venvs`."""
    return venvs / name / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def is_ready(venvs: Path, name: str) -> bool:
    """Whether `name` was made to its end, from the recipe as it is now."""
    marker = venvs / name / MARKER
    return marker.exists() and json.loads(marker.read_text()).get("recipe") == [list(step) for step in RECIPES[name]]


def ensure(venvs: Path, name: str, tell: Callable[[str], None] = print) -> Path:
    """Make the virtual env `name` if it is missing, and return its interpreter.

    Raises:
        PeerError: pip failed; the message ends with the last lines of its log, whose path it names.
    """
    python = interpreter(venvs, name)
    if is_ready(venvs, name):
        return python
    home = venvs / name
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    log = venvs / f"{name}.log"
    tell(f"Making the virtual env {home} (log: {log}) …")
    steps = [[sys.executable, "-m", "venv", str(home)]]
    steps += [[str(python), "-m", "pip", "install", "--disable-pip-version-check", *packages] for packages in RECIPES[name]]
    with log.open("w") as output:
        for command in steps:
            output.write(f"$ {' '.join(command)}\n")
            output.flush()
            done = subprocess.run(command, check=False, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            if done.returncode:
                lines = log.read_text(errors="replace").splitlines()
                said = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1]).removeprefix("ERROR:").strip()
                tail = "\n".join(lines[-15:])
                raise PeerError(f"Making the virtual env {home} failed at `{' '.join(command)}` (log: {log}):\n{tail}", said[:200])
    frozen = subprocess.run([str(python), "-m", "pip", "freeze"], capture_output=True, text=True, check=True).stdout
    marker = {"recipe": [list(step) for step in RECIPES[name]], "packages": frozen.split()}
    (home / MARKER).write_text(json.dumps(marker, indent=1))
    return python


def main() -> None:
    """Make virtual envs ahead of a benchmark."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", choices=[*RECIPES, []], help="virtual envs to make (default: all)")
    parser.add_argument("--venvs", type=Path, default=default_venvs(), help="folder of the virtual envs")
    args = parser.parse_args()
    for name in args.names or RECIPES:
        print(ensure(args.venvs, name))


if __name__ == "__main__":
    main()
