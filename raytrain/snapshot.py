"""A consistent snapshot of a whole run, and its form on disk: safetensors and JSON, nothing that could run code.

A checkpoint folder holds, per behavior, a subfolder (its name made portable) with

    trainer.safetensors, trainer.json    exact state of the trainer
    snapshots.safetensors, snapshots.json  with self-play, earlier policies
    replay-00000.safetensors, …          with a replay buffer that is saved, its rows, in files of at most 64 MiB
    policy.safetensors, policy.json      what acting needs: weights; behavior, spec, network settings, version, agent steps, reward

in lock-step, where environments can be gone on with (`raytrain.standing`), in the subfolder ``env_managers`` per env manager

    env-manager-0.safetensors, env-manager-0.json   its running episodes, and what its agents wait with

and beside them ``run.json`` (behavior -> subfolder; the controller's state) and ``manifest.json`` (size and SHA-256 of every
other file, and the SHA-256 of that list), which is written last. Equal snapshots give equal bytes: no time, no host is stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from envs.packing import pack, unpack
from envs.specs import BehaviorSpec
from raytrain.errors import RunFolderError
from raytrain.files import portable_name, to_json
from raytrain.replay_chunks import ChunkFile, ReplayFiles
from trainers.networks import Distribution
from trainers.self_play import FrozenPolicy, snapshots_in
from trainers.settings import NetworkSettings
from trainers.trainer import TrainerState, Weights

MANIFEST = "manifest.json"
RUN = "run.json"
MANAGERS = "env_managers"
FORMAT = 2
"""Version of the layout, in the manifest. A reader takes this one only."""


class CheckpointError(RunFolderError):
    """A checkpoint that cannot be read: missing, incomplete or corrupt."""


@dataclass(frozen=True)
class BehaviorSnapshot:
    """One behavior at one moment.

    Attributes:
        trainer: exact state of its trainer.
        policy: weights that acting needs, of `policy_version`.
        policy_version: version under which they were published.
        agent_steps: agent steps the trainer has taken in.
        spec, network: what the weights fit to.
        trainer_type: the algorithm.
        distribution: how its policy draws continuous actions.
        reward: mean return of recent episodes; with self-play its rating; None if no episode has finished.
        self_play: its frozen policies (`trainers.self_play.SnapshotPool`); None without self-play.
        replay: its replay buffer, which is in files already and no part of `trainer`: still to be moved into a checkpoint, or in the one that
            was loaded; None without.
    """

    trainer: TrainerState
    policy: Weights
    policy_version: int
    agent_steps: int
    spec: BehaviorSpec
    network: NetworkSettings
    reward: float | None = None
    trainer_type: str = "ppo"
    distribution: Distribution = "gaussian"
    self_play: TrainerState | None = None
    replay: ReplayFiles | None = None


@dataclass(frozen=True)
class Snapshot:
    """A whole run at one moment.

    Attributes:
        behaviors: behavior name -> its part.
        run: what is not a behavior's (controller, seeds, ledger, managers); JSON-able. Tuples come back as lists.
        running: env manager -> its running episodes, see `envs.packing`; empty where they cannot be gone on with.
    """

    behaviors: dict[str, BehaviorSnapshot]
    run: dict[str, Any] = field(default_factory=dict)
    running: dict[str, Any] = field(default_factory=dict)


def encode(snapshot: Snapshot) -> dict[str, bytes]:
    """The files of a checkpoint, in the order in which they are to be written: the manifest last. It lists replay buffers, too, whose
    files have been written already.

    Returns:
        Path inside the checkpoint folder, with ``/`` -> content.

    Raises:
        ValueError: NaN or infinity among the scalars, or two behaviors that a file system could not tell apart.
        TypeError: a scalar that is not JSON or a tensor of a dtype that safetensors does not have; the message names it.
    """
    folders = _behavior_folders(snapshot.behaviors)
    files: dict[str, bytes] = {}
    for name, behavior in snapshot.behaviors.items():
        folder = folders[name]
        policy = {
            "behavior": name,
            "spec": behavior.spec.to_json(),
            "network": behavior.network.model_dump(mode="json"),
            "version": behavior.policy_version,
            "agent_steps": behavior.agent_steps,
            "reward": behavior.reward,
            "trainer_type": behavior.trainer_type,
            "distribution": behavior.distribution,
        }
        files[f"{folder}/trainer.safetensors"] = _tensors(behavior.trainer.tensors, f"trainer state of {name}")
        files[f"{folder}/trainer.json"] = to_json(behavior.trainer.scalars, f"trainer state of {name}")
        if behavior.self_play is not None:
            files[f"{folder}/snapshots.safetensors"] = _tensors(behavior.self_play.tensors, f"snapshots of {name}")
            files[f"{folder}/snapshots.json"] = to_json(behavior.self_play.scalars, f"snapshots of {name}")
        files[f"{folder}/policy.safetensors"] = _tensors(behavior.policy, f"policy of {name}")
        files[f"{folder}/policy.json"] = to_json(policy, f"policy of {name}")
    for name, running in snapshot.running.items():
        arrays, rest = pack(running, f"running episodes of {name}")
        files[f"{MANAGERS}/{name}.safetensors"] = _tensors(arrays, f"running episodes of {name}")
        files[f"{MANAGERS}/{name}.json"] = to_json({"state": rest}, f"running episodes of {name}")
    files[RUN] = to_json({"behaviors": folders, "run": snapshot.run}, "run")
    entries = {path: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in files.items()}
    entries |= {path: {"size": file.size, "sha256": file.sha256} for path, (_, file) in replay_files(snapshot).items()}
    files[MANIFEST] = _manifest(entries)
    return files


def replay_files(snapshot: Snapshot) -> dict[str, tuple[ReplayFiles, ChunkFile]]:
    """Path inside the checkpoint -> what it belongs to where it is now, and file, of all chunks of replay buffers."""
    folders = _behavior_folders(snapshot.behaviors)
    return {
        f"{folders[name]}/{file.name}": (one.replay, file)
        for name, one in snapshot.behaviors.items() if one.replay is not None for file in one.replay.files
    }


def _manifest(entries: dict[str, dict[str, Any]]) -> bytes:
    """It has a checksum of its own, so that an entry that is gone is noticed as well as one that has changed."""
    digest = hashlib.sha256(to_json(entries, "manifest")).hexdigest()
    return to_json({"format": FORMAT, "files": entries, "files_sha256": digest}, "manifest")


def _behavior_folders(names: Collection[str]) -> dict[str, str]:
    folders: dict[str, str] = {}
    owners: dict[str, str] = {}
    for name in names:
        folders[name] = portable_name(name, reserved=(RUN, MANIFEST, MANAGERS))
        other = owners.setdefault(folders[name].casefold(), name)
        if other != name:
            raise ValueError(
                f"Expected behavior names that differ in more than upper and lower case, received {other!r} and {name!r}: "
                "on macOS and Windows they would share a folder. Rename one."
            )
    return folders


def _tensors(tensors: dict[str, np.ndarray], where: str) -> bytes:
    # safetensors copies memory as it lies: anything but C order would come back scrambled (test_a_transposed_tensor_survives).
    try:
        return safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in tensors.items()})
    except SafetensorError as error:
        kinds = {name: str(np.asarray(array).dtype) for name, array in tensors.items()}
        raise TypeError(f"Cannot store a tensor of the {where}: {error}. Received the dtypes {kinds}.") from error


def find_problems(folder: Path, only: Collection[str] | None = None) -> list[str]:
    """What is wrong with checkpoint `folder`, a line for each file; empty when its files are what the manifest says.

    Args:
        folder: the checkpoint.
        only: paths inside the folder to look at; None looks at all.
    """
    try:
        expected = _read_manifest(folder)
    except CheckpointError as error:
        return [f"{MANIFEST}: {error}"]
    wanted = dict.fromkeys([*expected, RUN]) if only is None else only
    unlisted = [f"{path}: not in {MANIFEST}" for path in wanted if path not in expected]
    found = (_find_problem(folder / path, path, *expected[path]) for path in wanted if path in expected)
    return unlisted + [problem for problem in found if problem is not None]


def _read_manifest(folder: Path) -> dict[str, tuple[int, str]]:
    """Path inside checkpoint `folder` -> size (bytes) and SHA-256 that the file has to have.

    Raises:
        CheckpointError: there is no manifest, or it is not as it was written.
    """
    try:
        data = (folder / MANIFEST).read_bytes()
        manifest = json.loads(data)
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"format {manifest['format']!r}, and this raytrain reads format {FORMAT}")
        expected = {path: (entry["size"], entry["sha256"]) for path, entry in manifest["files"].items()}
        is_as_written = data == _manifest(manifest["files"])
    except FileNotFoundError:
        raise CheckpointError("missing, so the checkpoint was never finished") from None
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"not readable ({type(error).__name__}: {error})") from error
    for path, (size, sha256) in expected.items():
        if not is_inside(path):
            raise CheckpointError(f"expected paths inside the checkpoint, found {path!r}")
        if type(size) is not int or type(sha256) is not str:
            raise CheckpointError(f"expected a size (whole number) and a SHA-256 (text) of {path}, found {size!r} and {sha256!r}")
    if not is_as_written:
        raise CheckpointError(f"changed since it was written, its list of {len(expected)} files does not have the checksum it names")
    return expected


def listed_files(folder: Path) -> dict[str, int]:
    """Path -> size (bytes) of each file that the manifest in `folder` lists; all inside the folder.

    Raises:
        CheckpointError: the manifest is missing or not as it was written.
    """
    try:
        return {path: size for path, (size, _) in _read_manifest(folder).items()}
    except CheckpointError as error:
        raise CheckpointError(f"Cannot load checkpoint {folder}: {MANIFEST}: {error}. Use another checkpoint.") from error


def is_inside(path: str) -> bool:
    """Whether a path of a manifest stays inside its folder on every system."""
    return path.isprintable() and not set(path) & set("\\:") and not {"", ".", ".."} & set(path.split("/"))


def _find_problem(file: Path, name: str, size: int, sha256: str) -> str | None:
    try:
        if file.stat().st_size != size:
            return f"{name}: expected {size} bytes, found {file.stat().st_size}"
        with open(file, "rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        return f"{name}: {error.strerror}"
    return None if found == sha256 else f"{name}: expected SHA-256 {sha256[:12]}…, found {found[:12]}…"


def load_snapshot(folder: Path) -> Snapshot:
    """The snapshot in checkpoint `folder`, after its files have been checked. Arrays are the caller's own; replay buffers stay in their files.

    Raises:
        CheckpointError: `folder` is not a complete checkpoint, or corrupt; each file is named with the reason.
    """
    _refuse(folder, find_problems(folder))
    behaviors = {}
    with _decoding(folder):
        run, listed = json.loads((folder / RUN).read_bytes()), _read_manifest(folder)
        lone = [path for path in listed if path.startswith(f"{MANAGERS}/") and path.endswith(".json") and f"{path[:-5]}.safetensors" not in listed]
        _refuse(folder, [f"{path[:-5]}.safetensors: not in {MANIFEST}" for path in lone])
        for name, subfolder in run["behaviors"].items():
            parts = ["policy", "trainer", *(["snapshots"] if f"{subfolder}/snapshots.json" in listed else [])]
            files = [f"{subfolder}/{part}.{kind}" for part in parts for kind in ("json", "safetensors")]
            _refuse(folder, [f"{file}: not in {MANIFEST}" for file in files if file not in listed])
            policy, weights = _load_policy(folder / subfolder)
            state = _load_state(folder / subfolder, "trainer")
            chunks = tuple(ChunkFile(path.rpartition("/")[2], *listed[path]) for path in sorted(listed) if path.startswith(f"{subfolder}/replay-"))
            replay = ReplayFiles(str((folder / subfolder).absolute()), chunks, kept=True) if chunks else None
            frozen = _load_state(folder / subfolder, "snapshots") if "snapshots" in parts else None
            behaviors[name] = BehaviorSnapshot(trainer=state, policy=weights, self_play=frozen, replay=replay, **policy)
        names = sorted(path[len(MANAGERS) + 1 : -len(".json")] for path in listed if path.startswith(f"{MANAGERS}/") and path.endswith(".json"))
        running = {name: _load_running(folder / MANAGERS, name) for name in run["run"].get("managers", names) if name in names}
        return Snapshot(behaviors=behaviors, run=dict(run["run"]), running=running)


@contextmanager
def _decoding(folder: Path) -> Iterator[None]:
    """What has the right checksums and still is no checkpoint (made by other means, or gone since it was checked) is a `CheckpointError`."""
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, SafetensorError) as error:
        raise CheckpointError(
            f"Cannot load checkpoint {folder}: its files are what {MANIFEST} says, but not what this raytrain writes "
            f"({type(error).__name__}: {' '.join(str(error).split())}). Use another checkpoint."
        ) from error


def load_policy_part(folder: Path, behavior: str | None) -> tuple[dict[str, Any], Weights]:
    """The fields of `BehaviorSnapshot` but for the trainer's state, and the policy's weights; only these files are read.

    Raises:
        CheckpointError: as `load_snapshot`; or there are several behaviors and none is named, or not the one that is.
    """
    _, subfolder = _part(folder, behavior)
    _refuse(folder, find_problems(folder, only=[f"{subfolder}/policy.safetensors", f"{subfolder}/policy.json"]))
    with _decoding(folder):
        return _load_policy(folder / subfolder)


def load_frozen_part(folder: Path, behavior: str | None) -> dict[int, tuple[FrozenPolicy, float]]:
    """Number -> frozen policy and its rating (mean over teams) of each snapshot that self-play draws from, oldest first.

    Raises:
        CheckpointError: as `load_policy_part`; or the behavior has not learnt by self-play.
    """
    behavior, subfolder = _part(folder, behavior)
    if not (folder / subfolder / "snapshots.json").exists():
        raise CheckpointError(f"Expected a behavior that learnt by self-play, received {behavior} of {folder}, which has no snapshots.")
    _refuse(folder, find_problems(folder, only=[f"{subfolder}/snapshots.safetensors", f"{subfolder}/snapshots.json"]))
    with _decoding(folder):
        state = _load_state(folder / subfolder, "snapshots")
        frozen = snapshots_in(state)
        ratings = json.loads((folder / RUN).read_bytes())["run"]["referee"]["sides"][behavior]["frozen"]
        return {number: (frozen[number], fmean(ratings[str(number)].values())) for number in state.scalars["ids"]}


def load_run_part(folder: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Behavior -> its subfolder, and what is not a behavior's (`Snapshot.run`), of checkpoint `folder`; only this file is read.

    Raises:
        CheckpointError: as `load_snapshot`.
    """
    _refuse(folder, find_problems(folder, only=[RUN]))
    with _decoding(folder):
        run = json.loads((folder / RUN).read_bytes())
        return dict(run["behaviors"]), dict(run["run"])


def _part(folder: Path, behavior: str | None) -> tuple[str, str]:
    """Name and subfolder of the behavior that is meant."""
    folders, _ = load_run_part(folder)
    names = ", ".join(repr(name) for name in folders)
    if behavior is None:
        if len(folders) != 1:
            raise CheckpointError(f"Expected behavior=NAME, since {folder} has several behaviors: {names}.")
        (behavior,) = folders
    if behavior not in folders:
        raise CheckpointError(f"Expected a behavior of {folder}, received {behavior!r}. There are: {names}.")
    return behavior, folders[behavior]


def _load_state(subfolder: Path, name: str) -> TrainerState:
    tensors = safetensors.numpy.load_file(subfolder / f"{name}.safetensors")
    return TrainerState(tensors, json.loads((subfolder / f"{name}.json").read_bytes()))


def _load_running(folder: Path, name: str) -> Any:
    return unpack(safetensors.numpy.load_file(folder / f"{name}.safetensors"), json.loads((folder / f"{name}.json").read_bytes())["state"])


def _load_policy(subfolder: Path) -> tuple[dict[str, Any], Weights]:
    data = json.loads((subfolder / "policy.json").read_bytes())
    fields = {
        "policy_version": data["version"],
        "agent_steps": data["agent_steps"],
        "spec": BehaviorSpec.from_json(data["spec"]),
        "network": NetworkSettings(**data["network"]),
        "reward": data["reward"],
        "trainer_type": data["trainer_type"],
        "distribution": data["distribution"],
    }
    return fields, safetensors.numpy.load_file(subfolder / "policy.safetensors")


def _refuse(folder: Path, problems: list[str]) -> None:
    if problems:
        raise CheckpointError(f"Cannot load checkpoint {folder}: {'; '.join(problems)}. Use another checkpoint.")
