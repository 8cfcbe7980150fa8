"""What a node says of itself before a run starts: versions, and whether the environment can be imported there. Runs on workers; without Ray."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from envs.base import EnvFault
from envs.factories import EnvFactory
from envs.own_code import Kind, load

COMPARED = ("python", "ray", "tensorflow", "numpy")


@dataclass(frozen=True)
class NodeReport:
    """Answer of one node.

    Attributes:
        versions: as of `installed_versions`.
        problem: why the user's own code cannot be imported there, with the folders that were searched; empty when it can.
        what: the environment, trainer, … that cannot.
        user_traceback: of the user's own code, where that raised.
        path: search path of Python there.
    """

    versions: dict[str, str]
    problem: str = ""
    user_traceback: str = ""
    path: tuple[str, ...] = ()
    what: str = ""


def installed_versions() -> dict[str, str]:
    """`COMPARED` -> version in this process's Python, found without importing anything; empty where it is not installed."""
    return {"python": platform.python_version(), **{name: _version(name) for name in COMPARED[1:]}}


def _version(name: str) -> str:
    for package in (name, f"{name}-cpu") if name == "tensorflow" else (name,):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""


def report(factory: EnvFactory | None, own: Sequence[tuple[Kind, str]] = ()) -> NodeReport:
    """Versions of this process, and whether it can import what makes the environment, and what else there is of the user's.

    Args:
        own: trainers, signals, … and how the configuration names them.
    """
    problem = user = what = ""
    try:
        if factory is not None:
            what = factory.env
            factory.load()
            for kind, what in own:
                load(kind, what, factory.import_dirs)
    except EnvFault as fault:
        problem, user = str(fault), fault.user_traceback
    except ValueError as error:
        problem = str(error)
    return NodeReport(installed_versions(), problem, user, tuple(path or "." for path in sys.path), what if problem else "")


def compare_versions(own: Mapping[str, str], nodes: Mapping[str, Mapping[str, str]]) -> tuple[list[str], list[str]]:
    """Differences between this process and the nodes, one sentence each with what to do.

    Args:
        own: `installed_versions` here.
        nodes: node, for people -> its own.

    Returns:
        Those with which a run can go on, and those with which it cannot: another Ray, another minor version of Python (functions do not
        travel), another major version of NumPy (arrays do not).
    """
    warnings, refused = [], []
    for package in COMPARED:
        others: dict[str, list[str]] = {}
        for node, versions in nodes.items():
            if versions.get(package, "") != own[package]:
                others.setdefault(versions.get(package, ""), []).append(node)
        for there, names in others.items():
            where = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more nodes"
            text = f"{_title(package)} is {there or 'not installed'} on {where} and {own[package] or 'not installed'} here; {_fix(package, own[package])}"
            (refused if _is_fatal(package, own[package], there) else warnings).append(text)
    return warnings, refused


def _is_fatal(package: str, own: str, there: str) -> bool:
    parts = {"python": 2, "ray": None, "numpy": 1}
    if package not in parts:  # only trainers and Keras models use TensorFlow, and weights travel as arrays
        return False
    return not there or own.split(".")[: parts[package]] != there.split(".")[: parts[package]]


def _fix(package: str, own: str) -> str:
    if package == "python":
        return f"give every node Python {own}"
    return f'run pip install "{package}=={own}" there' if own else f"install {package} here"


def _title(package: str) -> str:
    return {"python": "Python", "ray": "Ray", "tensorflow": "TensorFlow", "numpy": "NumPy"}[package]


def import_problem(what: str, node: str, found: NodeReport, hint: str) -> str:
    """The sentence that refuses a run of whose code `node` cannot import `what`."""
    searched = "" if "Searched:" in found.problem else "\nSearched:\n  " + "\n  ".join(found.path)
    parts: Sequence[str] = (f"{what} can be imported here, but not on {node}: {found.problem}{searched}", found.user_traceback.rstrip(), hint)
    return "\n".join(part for part in parts if part)
