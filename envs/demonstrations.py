"""Reading and writing demonstrations: files of our own, Unity's ``.demo`` files and Minari data sets.

A file of our own is one safetensors file; docs/demonstrations.md describes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from envs.demonstration_data import DemonstrationError, Demonstrations, check_content, fitted, joined, with_choices_allowed
from envs.specs import BehaviorSpec

__all__ = ["DemonstrationError", "Demonstrations", "read_demonstrations", "read_metadata", "write_demonstrations"]
SUFFIX = ".safetensors"
UNITY_SUFFIX = ".demo"
MINARI_PREFIX = "minari:"
FORMAT = "raytrain-demonstration"
FORMAT_VERSION = 1
_SUFFIXES = f"{SUFFIX} (written by raytrain record) or {UNITY_SUFFIX} (Unity)"


def read_demonstrations(path: str | Path, spec: BehaviorSpec | None = None) -> Demonstrations:
    """Demonstrations from a file, from all files of a folder in the order of their names, or from a Minari data set.

    Args:
        path: a file ending in ``.safetensors`` or ``.demo``, a folder with such files, or ``minari:`` and the id of a data set.
        spec: of the environment that they are for. The result has its names and dtypes. Without it, the files of a folder
            have to suit the first one.

    Raises:
        DemonstrationError: nothing there, not a demonstration, unusable content, or a demonstration of another environment.
    """
    if str(path).startswith(MINARI_PREFIX):
        from envs.minari_demonstrations import read_minari

        name = str(path)
        found = read_minari(name[len(MINARI_PREFIX) :])
        check_content(found, name)
        return with_choices_allowed(found if spec is None else fitted(found, spec, name))
    parts: list[Demonstrations] = []
    for file in _files(Path(path).expanduser()):
        is_unity = file.suffix == UNITY_SUFFIX
        found, where = _read_unity(file, spec) if is_unity else _read_own(file)
        check_content(found, where)
        target = spec if spec is not None or not parts else parts[0].spec
        parts.append(found if target is None else fitted(found, target, where, by_shape=is_unity))
    return with_choices_allowed(joined(parts))


def _files(path: Path) -> list[Path]:
    """The files that `path` means, at least one."""
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if f.suffix in (SUFFIX, UNITY_SUFFIX) and f.is_file() and not f.name.startswith("."))
        if not files:
            raise DemonstrationError(f"{path}: expected a folder with files ending in {_SUFFIXES}, found none; record one into it.")
        return files
    if not path.exists():
        beside = sorted(f.name for f in path.parent.iterdir() if f.suffix in (SUFFIX, UNITY_SUFFIX)) if path.parent.is_dir() else []
        hint = f"demonstrations beside it: {', '.join(beside[:5])}" if beside else f"it was looked for in {Path.cwd()}"
        raise DemonstrationError(f"{path}: expected a file or folder of demonstrations, found none; {hint}.")
    if path.suffix not in (SUFFIX, UNITY_SUFFIX):
        raise DemonstrationError(f"{path}: expected a file ending in {_SUFFIXES}, received one ending in {path.suffix or 'nothing'!r}; "
                                 "record it with raytrain record, or rename it if it is one of them.")
    return [path]


def _read_unity(path: Path, spec: BehaviorSpec | None) -> tuple[Demonstrations, str]:
    from envs.unity_demonstrations import read_unity

    return read_unity(path, spec), str(path)


def read_metadata(path: str | Path) -> dict[str, str]:
    """What `write_demonstrations` was given as `metadata`, and ``format``, ``format_version`` and ``spec``.

    Raises:
        DemonstrationError: not a demonstration of ours, of a newer format, or damaged.
    """
    return _open(Path(path), lambda metadata, _: metadata)


def _read_own(path: Path) -> tuple[Demonstrations, str]:
    metadata, tensors = _open(path, lambda metadata, file: (metadata, {name: file.get_tensor(name) for name in file.keys()}))  # noqa: SIM118
    where = f"{path} (recorded in {metadata['env']})" if metadata.get("env") else str(path)
    try:
        spec = BehaviorSpec.from_json(json.loads(metadata["spec"]))
        demonstrations = Demonstrations(
            spec=spec,
            obs={o.name: tensors[f"obs/{o.name}"] for o in spec.observations},
            continuous=tensors["action/continuous"], discrete=tensors["action/discrete"], reward=tensors["reward"],
            length=tensors["episode/length"], terminated=tensors["episode/terminated"],
            next_obs={o.name: tensors[f"next_obs/{o.name}"] for o in spec.observations},
            action_mask=tensors.get("action_mask"),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DemonstrationError(f"{path}: expected the tensors and the spec of a demonstration, received a file whose part {error} is "
                                 "missing or wrong; record it anew.") from None
    return demonstrations, where


def _open(path: Path, read: Callable[[dict[str, str], Any], Any]) -> Any:
    """What `read` makes of the metadata and the open file."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise DemonstrationError(f"{path}: expected a demonstration, received a safetensors file of something else (the weights of "
                                         "a policy, for example); record a demonstration with raytrain record.")
            if metadata.get("format_version") != str(FORMAT_VERSION):
                raise DemonstrationError(f"{path}: expected version {FORMAT_VERSION} of the format, received version "
                                         f"{metadata.get('format_version')}; read it with the raytrain that wrote it, or a newer one.")
            return read(metadata, file)
    except SafetensorError as error:
        raise DemonstrationError(f"{path}: expected a safetensors file, received one that is truncated or damaged ({error}); copy it again "
                                 "or record it anew.") from None
    except OSError as error:
        raise DemonstrationError(f"{path}: expected a file that can be read, received: {error.strerror or error}.") from None


def write_demonstrations(
    path: str | Path, demonstrations: Demonstrations, metadata: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Write a file of our own in one step: a reader sees the old file or the new one, never a part. Missing folders are made.

    Args:
        path: ends in ``.safetensors``; a file that is there is replaced.
        metadata: text beside the arrays: ``env`` (an id), ``date`` and ``source`` by convention.

    Raises:
        DemonstrationError: another suffix, or content that `read_demonstrations` would refuse.
        OSError: the disk refuses; a file that was there is intact.
    """
    path, d = Path(path).expanduser(), demonstrations
    if path.suffix != SUFFIX:
        raise DemonstrationError(f"{path}: expected a name ending in {SUFFIX}, received one ending in {path.suffix or 'nothing'!r}; add it.")
    check_content(d, str(path))
    tensors = {f"obs/{name}": array for name, array in d.obs.items()}
    tensors |= {"action/continuous": d.continuous, "action/discrete": d.discrete, "reward": d.reward, "episode/length": d.length,
                "episode/terminated": d.terminated}
    tensors |= {f"next_obs/{name}": array for name, array in d.next_obs.items()}
    if d.action_mask is not None:
        tensors["action_mask"] = d.action_mask
    texts = {**metadata, "format": FORMAT, "format_version": str(FORMAT_VERSION), "spec": json.dumps(d.spec.to_json(), allow_nan=False)}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        temporary.touch()
        rights = temporary.stat().st_mode  # as for any new file; safetensors gives its files to their owner alone
        save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, temporary, texts)
        temporary.chmod(rights)
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
