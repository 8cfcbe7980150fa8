"""On what published figures were made: the machine, the versions of the packages, the days."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

PACKAGES = ("ray", "tensorflow", "numpy", "gymnasium")


def describe(packages: Iterable[str] = PACKAGES) -> dict[str, Any]:
    """``machine`` as one text, and ``versions`` of Python and `packages`, for a file of figures."""
    return {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "versions": {package: version(package) for package in packages} | {"python": platform.python_version()},
    }


def today() -> str:
    """The day on which a figure was made."""
    return time.strftime("%Y-%m-%d")


def made(facts: Mapping[str, Any], dates: Iterable[str]) -> tuple[str, str]:
    """Of figures with what `describe` says in `facts`: from the first to the last of their days, and on what, for the page about them."""
    days, versions = sorted(set(dates)), ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    return " … ".join(dict.fromkeys([*days[:1], *days[-1:]])), f"{facts['machine']}, {versions}"
