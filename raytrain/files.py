"""Files that survive a crash, strict JSON, and names that every file system takes."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

FORBIDDEN = '\\/:*?"<>|%'
"""Characters that some file system refuses, and ``%``, which stands for them in `portable_name`."""
_DEVICES = {"con", "prn", "aux", "nul", *(f"com{i}" for i in range(1, 10)), *(f"lpt{i}" for i in range(1, 10))}
_LONGEST = 150  # bytes; file systems take 255, and event files are named inside
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}


def portable_name(name: str, reserved: Collection[str] = ()) -> str:
    """A folder name for `name` that Linux, macOS and Windows accept; different names get different ones.

    What is not portable is written as ``%`` and its hexadecimal UTF-8 bytes: ``"Walker?team=0"`` becomes
    ``"Walker%3Fteam=0"``. A portable name is returned as it is.

    Args:
        name: any text that is not empty.
        reserved: lower-case names already taken in the folder; also avoided in upper case.

    Raises:
        ValueError: `name` is empty.
    """
    if not name:
        raise ValueError("Expected a name of at least one character, received an empty one.")
    last = len(name) - 1
    unsafe = [
        char in FORBIDDEN or not char.isprintable() or (i in (0, last) and char in " .") for i, char in enumerate(name)
    ]
    # Windows keeps device names to itself, whatever their case and extension.
    unsafe[0] |= name.casefold() in reserved or name.split(".")[0].casefold() in _DEVICES
    safe = "".join("".join(f"%{b:02X}" for b in char.encode()) if bad else char for char, bad in zip(name, unsafe))
    if len(safe.encode()) <= _LONGEST:
        return safe
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{safe.encode()[:_LONGEST - 17].decode(errors='ignore')}-{digest}"


def to_json(value: Any, where: str) -> bytes:
    """`value` as UTF-8 JSON that reads back equal: whole numbers of any size stay whole, NumPy scalars become numbers.

    Tuples come back as lists.

    Args:
        value: mappings with text keys, sequences, text, numbers, booleans and None.
        where: what `value` is, for the message of an error.

    Raises:
        ValueError: NaN or infinity.
        TypeError: something that JSON has no form for; the message has its path.
    """
    return (json.dumps(_plain(value, where), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, (float, np.floating)):
        if not math.isfinite(value):
            raise ValueError(f"Expected a finite number at {where}, received {value}. JSON has no form for it: store null instead.")
        return float(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"Expected text as every key of {where}, received {key!r} of type {type(key).__name__}.")
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise TypeError(
        f"Expected a number, text, boolean, null, list or dictionary at {where}, received {type(value).__name__}. "
        "Arrays belong among the tensors."
    )


def write_synced(path: Path, data: bytes) -> None:
    """Create `path` with `data` and return when the disk has it.

    Raises:
        FileExistsError: `path` is there already.
        OSError: the disk refuses.
    """
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes, synced: bool = True) -> None:
    """Put `data` in the place of `path` in one step: a reader sees the old file or the new one, never a part.

    Args:
        path: the file; its folder exists. One writer at a time.
        data: the whole content.
        synced: return only when the disk has it; without, a power cut may bring the old file back.

    Raises:
        OSError: the disk refuses; the old file is untouched.
    """
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        temporary.unlink(missing_ok=True)
        if synced:
            write_synced(temporary, data)
        else:
            temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if synced:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names inside folder `path` durable, where the system can (Windows and some network drives cannot)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def remove_folder(path: Path) -> None:
    """Delete folder `path`: it leaves under a ``.trash-`` name in one step first, so that half of it is never seen.

    Raises:
        OSError: it could not be renamed or not be deleted.
    """
    trash = path.with_name(f".trash-{path.name}")
    if trash.exists():
        shutil.rmtree(trash)
    os.replace(path, trash)
    shutil.rmtree(trash)


def link_folder(source: Path, target: Path) -> None:
    """A copy of folder `source` as `target`, which must not exist, of files that never change: hard links where the disk can.

    Raises:
        OSError: the disk refuses, or `source` is gone.
    """
    target.mkdir()
    for item in source.iterdir():
        (link_folder if item.is_dir() else link_or_copy)(item, target / item.name)
    sync_folder(target)


def link_or_copy(source: Path, target: Path) -> None:
    """Checkpoint files never change, so two folders may share them; file systems without hard links get a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        with open(target, "r+b") as file:
            os.fsync(file.fileno())
