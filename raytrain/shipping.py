"""What of the user's code goes to the other machines of a cluster, and where a job keeps its results. Knows nothing of Ray but its file formats."""

from __future__ import annotations

import fnmatch
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytrain.errors import ClusterError

JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable in which ``ray job submit`` gives its driver the runtime environment of the job."""
EXCLUDED = (".git", ".venv", "venv", "__pycache__", "results", ".ruff_cache", ".pytest_cache", "*.egg-info")
"""Names that are never shipped; a ``.rayignore`` in the folder names more."""
MOST_BYTES = 200 * 2**20
"""Every node loads the package through the head's memory, so that a data set in it would cost minutes, or the head itself."""
_PACKAGES = ("raytrain", "trainers", "envs")


@dataclass(frozen=True)
class Shipment:
    """What `raytrain.cluster.connect` sends to the other nodes.

    Attributes:
        folder: the user's, whose modules the run uses; None where it uses none.
    """

    folder: Path | None = None

    def runtime_env(self, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
        """The runtime environment: raytrain's packages, and the user's folder as working folder of every process.

        Raises:
            ClusterError: the folder is too large to ship.
        """
        here = Path(__file__).resolve().parent.parent
        env: dict[str, Any] = {"py_modules": [str(here / name) for name in _PACKAGES], "excludes": list(EXCLUDED)}
        if environ.get("PYTHONPATH"):
            env["env_vars"] = {"PYTHONPATH": environ["PYTHONPATH"]}
        if self.folder is not None:
            _check_size(self.folder)
            env["working_dir"] = str(self.folder)
            env.setdefault("env_vars", {})[SHIPPED_FROM] = str(self.folder)  # a trial of a sweep begins a run from such a process
        return env

    def text(self) -> str:
        """For people: what is shipped."""
        return "raytrain" if self.folder is None else f"raytrain and {self.folder}"


SHIPPED_FROM = "RAYTRAIN_SHIPPED_FROM"
"""Environment variable: the folder of the driver's machine that is this process's working folder here."""


def shipment_of(source_dir: Path) -> Shipment:
    """What a run of a file in `source_dir` needs elsewhere: the folder, if one of the modules loaded by now comes from it.

    To be called once the environment has been tried in this process, so that its modules are loaded.
    """
    folder = source_dir.resolve()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or name.partition(".")[0] in _PACKAGES or name == "__main__":
            continue
        path = Path(file)
        if path.is_relative_to(folder) and "site-packages" not in path.parts and not _is_excluded(path.relative_to(folder), EXCLUDED):
            return Shipment(folder)
    return Shipment()


def _check_size(folder: Path) -> None:
    """Refuse a folder that is larger than anyone means to ship: the home folder, or one with data in it."""
    patterns = (*EXCLUDED, *ignored(folder))
    sizes: dict[str, int] = {}
    for path, names, files in os.walk(folder):
        inside = Path(path).relative_to(folder)
        names[:] = [name for name in names if not _is_excluded(inside / name, patterns)]
        for name in files:
            if _is_excluded(inside / name, patterns):
                continue
            top = (inside / name).parts[0]
            try:
                sizes[top] = sizes.get(top, 0) + os.lstat(os.path.join(path, name)).st_size
            except OSError:  # gone meanwhile
                continue
        if sum(sizes.values()) > MOST_BYTES:
            large = max(sizes, key=sizes.get)
            raise ClusterError(
                f"Expected a folder of at most {MOST_BYTES >> 20} MB to ship to the other nodes, received more in {folder}, most of it in {large}. "
                "Name what to leave out in a .rayignore there (a pattern a line), or keep your modules in a folder of their own (import_from)."
            )


def ignored(folder: Path) -> list[str]:
    """Patterns of the folder's ``.rayignore``: its lines without comments; negated ones are left to Ray."""
    file = folder / ".rayignore"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [line.strip().strip("/") for line in lines if line.strip() and not line.lstrip().startswith(("#", "!"))]


def _is_excluded(path: Path, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(part, pattern) for part in path.parts for pattern in patterns) or any(
        fnmatch.fnmatch(path.as_posix(), pattern) for pattern in patterns)


# -- jobs --------------------------------------------------------------------------------------------------------------


def job_runtime_env(environ: Mapping[str, str] = os.environ) -> dict[str, Any] | None:
    """The runtime environment that ``ray job submit`` made for this process; None when it did not start it."""
    text = environ.get(JOB_VARIABLE)
    if text is None:
        return None
    try:
        return dict(json.loads(text).get("runtime_env") or {})
    except (ValueError, AttributeError):
        return {}


def kept_results(results_dir: str, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Where results go, and a sentence if that is not where the file said.

    A job's working folder is an unpacked package in Ray's session folder, which Ray throws away: a relative folder is taken from the home
    folder there. An absolute path or a URI stays as it is.
    """
    runtime_env = job_runtime_env(environ)
    path = Path(results_dir).expanduser()
    if not (runtime_env and runtime_env.get("working_dir")) or "://" in results_dir or path.is_absolute():
        return results_dir, ""
    kept = Path.home() / path
    return str(kept), (
        f"results go to {kept}, since the working folder of a job is thrown away; --results-dir with an absolute path or a URI puts them elsewhere"
    )


def worker_import_dirs(source_dir: Path, shipped: Path | None, environ: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """Folder of the user's modules as processes on other nodes see it, relative to their working folder; None where it is the same path.

    Args:
        source_dir: as this process sees it.
        shipped: the working folder that was shipped, if one was.
    """
    runtime_env = job_runtime_env(environ)
    root = Path.cwd() if runtime_env and runtime_env.get("working_dir") else shipped
    if root is None or not source_dir.resolve().is_relative_to(root.resolve()):
        return None
    return (source_dir.resolve().relative_to(root.resolve()).as_posix(),)
