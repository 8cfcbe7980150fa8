"""Policies of a run as files that other programs run: ONNX, and a Python file that needs NumPy alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from raytrain.checkpoint import CheckpointError, PolicyFiles, find_checkpoint, load_policy_files
from raytrain.export_check import OBSERVATIONS, TOLERANCE, NumpyFile, OnnxFile, largest_difference
from raytrain.export_numpy import load_source, policy_source
from raytrain.files import portable_name, sync_folder, write_synced
from raytrain.remote import is_uri, join
from raytrain.snapshot import RUN, find_problems
from trainers.architecture import Architecture, architecture
from trainers.onnx_policy import input_shape, policy_model
from trainers.policy import Policy

FORMATS = ("onnx", "numpy")
Format = Literal["onnx", "numpy"]


class ExportFault(RuntimeError):
    """An exported file that does not do what the policy does. It was deleted."""


@dataclass(frozen=True)
class ExportedFile:
    """One file.

    Attributes:
        behavior, format, path: what it is and where.
        size: bytes.
        rows: (name, what it is) of inputs and outputs, for a table.
        difference: the largest there was from the policy in `OBSERVATIONS` random observations; None where nothing could run it.
    """

    behavior: str
    format: str
    path: Path
    size: int
    rows: tuple[tuple[str, str], ...]
    difference: float | None


def export_run(
    run: str | Path, out: str | Path | None = None, formats: Sequence[Format] = FORMATS, checkpoint: str = "best", behavior: str | None = None,
    env_space: bool = False, tolerance: float = TOLERANCE,
) -> list[ExportedFile]:
    """Write a file of each format for each behavior of a run, each compared with the policy before it takes its name.

    Args:
        run: a run folder or one of its checkpoints; also a URI.
        out: folder for the files, made if it is missing; None: ``export`` in the folder of the run (in the current one for a URI).
        checkpoint: of a run folder, ``"best"``, ``"latest"`` or the number of one.
        behavior: only this one; None: all.
        env_space: see `trainers.onnx_policy.policy_model`.
        tolerance: the largest difference allowed.

    Raises:
        CheckpointError: there is no such checkpoint or behavior.
        ValueError: a policy that cannot be exported in a format; nothing was written.
        ExportFault: a file that differs from the policy; files written before are good.
        OSError: the disk refuses.
    """
    _check_packages(formats)
    folder = _checkpoint(run, checkpoint)
    names = _behaviors(folder, behavior)
    loaded = {name: load_policy_files(folder, name) for name in names}
    for name, files in loaded.items():
        if files.network.model is not None:
            raise ValueError(
                f"Expected a policy of raytrain's own layers, received {name} of {folder}, whose network is a Keras model of your own "
                f"({files.network.model}). Use load_policy, or export that model by its own means."
            )
    if out is None:
        run_folder = Path("export") if is_uri(run) else _run_folder(Path(run).expanduser()) / "export"
    target = Path(out).expanduser() if out is not None else run_folder
    target.mkdir(parents=True, exist_ok=True)
    modules = _module_names(names)
    results = []
    for name, files in loaded.items():
        for one in formats:
            path = target / (f"{portable_name(name)}.onnx" if one == "onnx" else f"{modules[name]}.py")
            results.append(_export(files, name, one, path, env_space, tolerance))
    return results


def _check_packages(formats: Sequence[Format]) -> None:
    if "onnx" in formats and find_spec("onnx") is None:
        raise ValueError("Expected the package onnx for --format onnx, it is not installed: pip install onnx onnxruntime, or use --format numpy.")


def _checkpoint(run: str | Path, which: str) -> Path:
    if which in ("best", "latest"):
        return find_checkpoint(run, which, policy_only=True)
    if not which.isdecimal():
        raise ValueError(f"Expected --checkpoint best, latest or a number, received {which!r}.")
    name = f"{int(which):06d}"
    if is_uri(run):
        return find_checkpoint(join(str(run), "checkpoints", name), "latest", policy_only=True)
    folder = _run_folder(Path(run).expanduser()) / "checkpoints" / name
    if not folder.is_dir():
        there = ", ".join(sorted(str(int(p.name)) for p in folder.parent.glob("[0-9]*"))) or "none"
        raise CheckpointError(f"Expected a checkpoint of {run}, received number {int(which)}. There are: {there}.")
    return find_checkpoint(folder, "latest", policy_only=True)


def _run_folder(path: Path) -> Path:
    """The run that a folder is, or that a checkpoint is of."""
    if not (path / RUN).is_file():
        return path
    return path.absolute().parent.parent if path.absolute().parent.name == "checkpoints" else path.absolute().parent


def _behaviors(folder: Path, behavior: str | None) -> list[str]:
    problems = find_problems(folder, only=[RUN])
    if problems:
        raise CheckpointError(f"Cannot load checkpoint {folder}: {'; '.join(problems)}.")
    names = list(dict(json.loads((folder / RUN).read_bytes())["behaviors"]))
    if behavior is not None and behavior not in names:
        raise CheckpointError(f"Expected a behavior of {folder}, received {behavior!r}. There are: {', '.join(map(repr, names))}.")
    return names if behavior is None else [behavior]


def _module_names(behaviors: Sequence[str]) -> dict[str, str]:
    """Names by which the Python files can be imported; different ones, also where a file system ignores case."""
    taken: dict[str, str] = {}
    for name in behaviors:
        word = re.sub(r"\W", "_", name, flags=re.ASCII)
        word = f"{'_' if word[0].isdigit() else ''}{word}_policy"
        while word.lower() in taken:
            word += "_"
        taken[word.lower()] = name
        taken[name] = word
    return {name: taken[name] for name in behaviors}


def _export(files: PolicyFiles, behavior: str, kind: Format, path: Path, env_space: bool, tolerance: float) -> ExportedFile:
    arch = architecture(files.spec, files.network)
    if kind == "onnx":
        about = {
            "behavior": behavior, "agent_steps": str(files.agent_steps), "policy_version": str(files.version), "distribution": files.distribution,
            "observations": json.dumps([o.name for o in files.spec.observations]), "action": json.dumps(files.spec.to_json()["action"]),
        }
        data = policy_model(arch, files.weights, files.distribution, env_space, about)
    else:
        data = policy_source(arch, files.weights, files.distribution, f"Policy {behavior} after {files.agent_steps:,} agent steps")
    temporary = path.with_name(f".tmp-{path.stem}{path.suffix}")
    try:
        temporary.unlink(missing_ok=True)
        write_synced(temporary, data)
        difference = _difference(files, arch, kind, temporary, env_space)
        if difference is not None and not difference <= tolerance:
            raise ExportFault(
                f"Expected {path} to act as the policy to {tolerance:g} in {OBSERVATIONS:,} random observations, received a difference of "
                f"{difference:.2g}; the file was deleted. Where numbers are large and not normalised, float32 itself may differ so much: "
                "then give --tolerance; otherwise please report it."
            )
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    rows = _onnx_rows(arch, env_space) if kind == "onnx" else _numpy_rows(arch)
    return ExportedFile(behavior, kind, path, len(data), rows, difference)


def _difference(files: PolicyFiles, arch: Architecture, kind: Format, path: Path, env_space: bool) -> float | None:
    if kind == "onnx" and find_spec("onnxruntime") is None:
        return None
    policy = Policy(files.spec, files.network, files.distribution)
    policy.set_weights(files.weights, files.version)
    exported = OnnxFile(path, arch, env_space) if kind == "onnx" else NumpyFile(load_source(path), files.spec)
    return largest_difference(exported, policy, files.weights)


def _onnx_rows(arch: Architecture, env_space: bool) -> tuple[tuple[str, str], ...]:
    action, rows = arch.spec.action, []
    images = {image.name for image in arch.images}
    for i, o in enumerate(arch.spec.observations):
        how = "" if o.name not in images else ", as stored" if env_space else ", channels first"
        rows.append((f"in   obs_{i}", f"float32 {_shape('n', *input_shape(arch, i, env_space))}  {o.name!r}, {o.kind}{how}"))
    if action.choices:
        rows.append(("in   action_masks", f"float32 {_shape('n', action.choices)}  1 = allowed, branches of {', '.join(map(str, action.discrete_branches))}"))
    if arch.memory is not None:
        rows.append(("in   recurrent_in", f"float32 {_shape('n', 1, arch.memory_size)}  zeros at the start of an episode"))
    for prefix, how in (("deterministic_", "the most likely"), ("", "a sample")):
        if action.continuous_size:
            rows.append((f"out  {prefix}continuous_actions", f"float32 {_shape('n', action.continuous_size)}  {how}, in [-1, 1]"))
        if action.choices:
            rows.append((f"out  {prefix}discrete_actions", f"int64 {_shape('n', len(action.discrete_branches))}  {how}, from 0"))
    if env_space:
        rows.append(("out  env_…", "each of these once more, in units of the environment"))
    if arch.memory is not None:
        rows.append(("out  recurrent_out", f"float32 {_shape('n', 1, arch.memory_size)}  recurrent_in of the next step"))
    shapes = [f"{name}_action_output_shape" for name, there in (("continuous", action.continuous_size), ("discrete", action.choices)) if there]
    rows.append(("out  constants", f"version_number 3, memory_size {arch.memory_size}, {', '.join(shapes)}"))
    return tuple(rows)


def _numpy_rows(arch: Architecture) -> tuple[tuple[str, str], ...]:
    rows = [("in   obs", "; ".join(f"{o.name!r} {o.dtype} {list(o.shape)}" for o in arch.spec.observations) + ", one or a batch")]
    if arch.spec.action.choices:
        needed = "needed" if arch.spec.action.masked else "may be left out"
        rows.append(("in   action_mask", f"bool {_shape(arch.spec.action.choices)}, True = allowed, {needed}"))
    if arch.memory is not None:
        rows.append(("in   memory", f"float32 {_shape(arch.memory_size)}, None at the start of an episode"))
    rows.append(("out", f"the environment's action ({arch.spec.action.kind}){', memory' if arch.memory is not None else ''}"))
    return tuple(rows)


def _shape(*axes: int | str) -> str:
    return f"[{', '.join(map(str, axes))}]"
