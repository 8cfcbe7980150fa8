"""Damaged checkpoints: copies of a run whose files were cut, emptied, deleted, flipped or given wrong values, and what loading makes of them.

    python scripts/chaos.py corrupt results/cartpole --variants 200

Each variant damages one file of the newest checkpoint or of ``best/``. It must be *noticed* (loading that checkpoint, or a policy of
it, is a `CheckpointError`), *fallen back from* (a resume takes the checkpoint before) and *reported* (file and reason are named).
*Forged* variants have the damage and a manifest that was made to fit it. Checksums are no signatures, so a wrong number in one of
these may pass; it must never end in a traceback.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos_runs.tables import Row
from raytrain import load_policy
from raytrain.checkpoint import CheckpointError, CheckpointStore
from raytrain.files import to_json
from raytrain.snapshot import FORMAT, MANIFEST

_WRONG: tuple[Any, ...] = (None, "12", "../../x", "/etc/passwd", -1, 2**70, 1e300, True, [], {}, [[]], {"size": 0})


def corrupt(run_folder: str | Path, variants: int = 200, seed: int = 0) -> dict[str, Any]:
    """Damage copies of a finished run and load them, in this process.

    Args:
        run_folder: a run with at least two checkpoints; nothing in it is touched.
        variants: how many copies.
        seed: of the damage.

    Returns:
        ``variants``; ``noticed``, ``fallen_back`` (of those that damaged the newest numbered checkpoint: ``newest``) and ``reported``;
        ``silent`` (damage that nobody noticed), ``tracebacks`` (any other exception); ``forged``; ``kinds`` (kind of damage -> count) and
        ``failures`` (a line for each variant that went wrong).

    Raises:
        ValueError: the run has fewer than two sound checkpoints.
    """
    run, rng = Path(run_folder), random.Random(seed)
    paths = CheckpointStore(run, keep=1).paths()[-2:]
    if len(paths) < 2:
        raise ValueError(f"Expected a run with at least 2 checkpoints, received {run} with {len(paths)}.")
    counts: Counter[str] = Counter(noticed=0, fallen_back=0, reported=0, silent=0, tracebacks=0, forged=0, newest=0)
    kinds: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="raytrain-corrupt-") as scratch:
        for number in range(variants):
            made = _copy(run, paths, Path(scratch, str(number)))
            targets = [f"checkpoints/{paths[-1].name}", *(["best"] if (made / "best").is_dir() else [])]
            target = made / rng.choices(targets, weights=[3, 1][: len(targets)])[0]
            kind, file = _damage(target, rng)
            kinds[kind] += 1
            what = f"variant {number}: {kind} {file} of {target.name}"
            problem = _judge(made, target, paths[0].name, file, kind == "forged", counts)
            failures += [f"{what}: {problem}"] if problem else []
            shutil.rmtree(made)
    return {"variants": variants, **counts, "kinds": dict(kinds), "failures": failures}


def _copy(run: Path, checkpoints: list[Path], target: Path) -> Path:
    """The run with these checkpoints only; hard links, so damage must put a new file in the place of one."""
    for folder in [*checkpoints, run / "best"]:
        if folder.is_dir():
            shutil.copytree(folder, target / folder.relative_to(run), copy_function=os.link)
    return target


def _damage(folder: Path, rng: random.Random) -> tuple[str, str]:
    """Kind of damage and path of the file in `folder` that it was done to."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "evaluation.json")
    kind = rng.choice(list(_KINDS))
    if kind in ("value", "forged"):
        files = [p for p in files if p.suffix == ".json" and (kind == "value" or p.name != MANIFEST)]
    file = rng.choice(files)
    data = file.read_bytes()
    file.unlink()
    after = _KINDS[kind](data, rng)
    if after is not None:
        file.write_bytes(after)
    if kind == "forged":
        _sign(folder)
    return kind, file.relative_to(folder).as_posix()


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _scramble(data: bytes, rng: random.Random) -> bytes:
    """A block that was never written: zeros in its place."""
    begin = rng.randrange(len(data))
    end = min(len(data), begin + rng.choice((16, 512, 4096)))
    zeroed = data[:begin] + bytes(end - begin) + data[end:]
    return zeroed if zeroed != data else _flip(data, rng)


def _other_value(data: bytes, rng: random.Random) -> bytes:
    """Valid JSON with a wrong value, a key that is gone, or another name for a key."""
    before = json.loads(data)
    while True:
        value = copy.deepcopy(before)
        place = value
        while isinstance(place, dict | list) and place:
            key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
            if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.3:
                break
            place = place[key]
        if not place:
            return b"null"
        how = rng.randrange(4)
        if how == 0:
            del place[key]
        elif how == 1 and isinstance(place, dict):
            place[f"../../{key}"] = place.pop(key)
        elif how == 2 and isinstance(place[key], int | float):
            place[key] = str(place[key])
        else:
            place[key] = rng.choice(_WRONG)
        after = to_json(value, "value")
        if after != data:
            return after


_KINDS: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "cut": lambda data, rng: data[: rng.choice((rng.randrange(len(data)), len(data) - 1))],
    "flipped": _flip,
    "zeroed": _scramble,
    "longer": lambda data, rng: data + rng.choice((b"\0", b"\n", b" ", data)),
    "emptied": lambda data, rng: b"",
    "deleted": lambda data, rng: None,
    "value": _other_value,
    "forged": _other_value,
}


def _sign(folder: Path) -> None:
    """A manifest that fits the files in `folder`."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    for path in manifest["files"]:
        data = (folder / path).read_bytes()
        manifest["files"][path] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    digest = hashlib.sha256(to_json(manifest["files"], MANIFEST)).hexdigest()
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).write_bytes(to_json({"format": FORMAT, "files": manifest["files"], "files_sha256": digest}, MANIFEST))


def _judge(run: Path, target: Path, before: str, file: str, is_forged: bool, counts: Counter[str]) -> str:
    """Load what was damaged in every way; what went wrong, empty if nothing did."""
    try:
        refusals = [text for text in (_refusal(lambda: CheckpointStore.load(target)), _refusal(lambda: load_policy(target))) if text]
        _, path, problems = CheckpointStore(run, keep=1).load_latest()
    except Exception as error:  # noqa: BLE001 - what is counted here
        counts["tracebacks"] += 1
        return f"{type(error).__name__}: {error}"
    is_newest = target.name != "best"
    wrong = []
    if is_forged:
        counts["forged"] += 1
        return ""
    counts["newest"] += is_newest
    counts["noticed"] += bool(refusals)
    counts["silent"] += not refusals
    counts["fallen_back"] += is_newest and path.name == before
    is_reported = any(file in text for text in (problems if is_newest else refusals))
    counts["reported"] += is_reported
    wrong += [] if refusals else ["not noticed"]
    wrong += [] if not is_newest or path.name == before else [f"checkpoint {path.name} was loaded"]
    wrong += [] if is_reported else ["not reported"]
    return ", ".join(wrong)


def _refusal(load: Callable[[], Any]) -> str:
    try:
        load()
    except CheckpointError as error:
        return str(error)
    return ""


def rows(result: dict[str, Any]) -> list[Row]:
    """What is asked of it, and whether it holds."""
    return [
        Row("damaged copies", f"{result['variants']:,}, of which {result.get('forged', 0):,} with a manifest made to fit", "", None),
        Row("loaded silently", f"{result.get('silent', 0):,}", "0", not result.get("silent", 0)),
        Row("tracebacks", f"{result.get('tracebacks', 0):,}", "0", not result.get("tracebacks", 0)),
        Row("of the newest checkpoint, the one before was used", f"{result.get('fallen_back', 0):,} of {result.get('newest', 0):,}", "all",
            result.get("fallen_back", 0) == result.get("newest", 0)),
        Row("failures", f"{len(result['failures']):,}", "0", not result["failures"]),
    ]
