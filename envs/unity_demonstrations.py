"""Unity's ``.demo`` files, as ML-Agents records them (versions 0 and 1 of its demonstrations), by a small schema of our own.

    byte 0    length and message ``Meta``, then zeros up to byte 33
    byte 33   length and message ``Brain``, then length and message ``Pair`` of every record

Lengths are protobuf varints. A record is what an agent saw, what it had received *since its last record*, and what it then did; the
record with ``done`` has the last observation of the episode, and no action of its own. So row ``t`` takes its reward from record
``t + 1``, the record with ``done`` is no row, and an episode that the end of the file cuts gives its last record as the observation
to go on from. Each episode has an ``id`` of its own, or each agent has one; they are kept apart either way.
"""

from __future__ import annotations

import functools
import io
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.demonstration_data import DemonstrationError, Demonstrations
from envs.spaces import action_spec, observation_specs
from envs.specs import BehaviorSpec, ObservationSpec

FIRST_RECORD = 33
VERSIONS = (0, 1)
_PNG = b"\x89PNG\r\n\x1a\n"
# Message -> fields (name, number, type). Enumerations are int32 on the wire. Fields that are not needed here are passed over.
_SCHEMA: dict[str, tuple[tuple[str, int, str], ...]] = {
    "Meta": (("api_version", 1, "int32"), ("demonstration_name", 2, "string"), ("number_steps", 3, "int32"),
             ("number_episodes", 4, "int32"), ("mean_reward", 5, "float")),
    "ActionSpec": (("continuous", 1, "int32"), ("discrete", 2, "int32"), ("branches", 3, "repeated int32")),
    # Until 2020 one list of sizes and a type, 0 discrete and 1 continuous, stood in place of `action_spec`.
    "Brain": (("old_sizes", 3, "repeated int32"), ("old_type", 6, "int32"), ("name", 7, "string"), ("action_spec", 9, "ActionSpec")),
    "Floats": (("data", 1, "repeated float"),),
    "Observation": (("shape", 1, "repeated int32"), ("is_png", 2, "int32"), ("png", 3, "bytes"), ("floats", 4, "Floats"),
                    ("channel_mapping", 5, "repeated int32")),
    "AgentInfo": (("reward", 7, "float"), ("done", 8, "bool"), ("max_step_reached", 9, "bool"), ("id", 10, "int32"),
                  ("forbidden", 11, "repeated bool"), ("observations", 13, "repeated Observation")),
    "AgentAction": (("old_actions", 1, "repeated float"), ("continuous", 6, "repeated float"), ("discrete", 7, "repeated int32")),
    "Pair": (("agent_info", 1, "AgentInfo"), ("action_info", 2, "AgentAction")),
}


@functools.cache
def unity_messages() -> dict[str, Any]:
    """Name -> protobuf class of every message of the schema, in a pool of their own (ML-Agents may be loaded, too).

    Raises:
        DemonstrationError: there is no package protobuf.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise DemonstrationError(f"Unity's .demo files need the package protobuf, which cannot be imported ({error}); pip install protobuf.") from None
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="raytrain/unity_demonstration.proto", package="raytrain.unity", syntax="proto3")
    for message_name, fields in _SCHEMA.items():
        message = file.message_type.add(name=message_name)
        for name, number, text in fields:
            kind = text.removeprefix("repeated ")
            label = kinds.LABEL_OPTIONAL if kind == text else kinds.LABEL_REPEATED
            if kind in _SCHEMA:
                message.field.add(name=name, number=number, label=label, type=kinds.TYPE_MESSAGE, type_name=f".raytrain.unity.{kind}")
            else:
                message.field.add(name=name, number=number, label=label, type=getattr(kinds, f"TYPE_{kind.upper()}"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"raytrain.unity.{name}")) for name in _SCHEMA}


@dataclass(slots=True)
class _Episode:
    """Records of one agent and one episode."""

    records: list[Any] = field(default_factory=list)
    is_done: bool = False


def read_unity(path: Path, spec: BehaviorSpec | None = None) -> Demonstrations:
    """The demonstrations in a ``.demo`` file, called ``obs_0``, ``obs_1``, … in Unity's order.

    Compressed observations are uint8 images. Continuous actions are clipped to [-1, 1], as Unity does when it uses them.

    Args:
        spec: of the environment they are for: where it has an image in floats or with the channels at the other end, so does the result.

    Raises:
        DemonstrationError: not a whole file of that kind, no records, or observations or actions that change on the way.
    """
    brain, pairs = _messages(path)
    if not pairs:
        raise DemonstrationError(f"{path}: expected records of an agent, found none; record at least one whole episode.")
    actions = _action_space(brain, path)
    observations = _observation_specs(pairs[0].agent_info, path)
    episodes = [e for e in _episodes(pairs) if len(e.records) > 1]
    if not episodes:
        raise DemonstrationError(f"{path}: expected at least two records of one episode, found none; record at least one whole episode.")
    rows = [record for e in episodes for record in e.records[:-1]]
    following = [record for e in episodes for record in e.records[1:]]
    last = [e.records[-1] for e in episodes]
    action = action_spec(actions, str(path))
    mask = _masks(rows, action.choices)
    continuous, discrete = _actions(rows, action.continuous_size, len(action.discrete_branches), path)
    obs, next_obs = (
        {o.name: np.stack([_read(record.agent_info, i, o, path) for record in records]) for i, o in enumerate(observations)}
        for records in (rows, last))
    demonstrations = Demonstrations(
        spec=BehaviorSpec(observations, replace(action, masked=mask is not None)), obs=obs, continuous=continuous, discrete=discrete,
        reward=np.array([record.agent_info.reward for record in following], np.float32),
        length=np.array([len(e.records) - 1 for e in episodes], np.int32),
        terminated=np.array([e.is_done and not e.records[-1].agent_info.max_step_reached for e in episodes]),
        next_obs=next_obs, action_mask=mask)
    return demonstrations if spec is None else _suited(demonstrations, spec)


def _messages(path: Path) -> tuple[Any, list[Any]]:
    """``Brain`` and every ``Pair`` of a file."""
    messages = unity_messages()
    from google.protobuf.message import DecodeError

    try:
        data = path.read_bytes()
    except OSError as error:
        raise DemonstrationError(f"{path}: expected a file that can be read, received: {error.strerror or error}.") from None
    try:
        raw, end = _delimited(data, 0)
        if end > FIRST_RECORD:
            raise ValueError(f"its first message ends at byte {end}")
        meta = messages["Meta"].FromString(raw)
        if meta.api_version not in VERSIONS:
            raise DemonstrationError(f"{path}: expected a demonstration of version {VERSIONS[0]} or {VERSIONS[1]}, received version "
                                     f"{meta.api_version}; record it with a release of ML-Agents up to 22.")
        raw, end = _delimited(data, FIRST_RECORD)
        brain, pairs = messages["Brain"].FromString(raw), []
        # A recording that was not closed says 0 steps; then the records go on to the end of the file.
        while end < len(data) and (not meta.number_steps or len(pairs) < meta.number_steps):
            raw, end = _delimited(data, end)
            pairs.append(messages["Pair"].FromString(raw))
        if len(pairs) < meta.number_steps:
            raise ValueError(f"it has {len(pairs)} of {meta.number_steps} records")
    except (DecodeError, ValueError) as error:
        if isinstance(error, DemonstrationError):
            raise
        raise DemonstrationError(f"{path}: expected a .demo file of ML-Agents, received one that is truncated, damaged or of another kind "
                                 f"({error}); copy it again or record it anew.") from None
    return brain, pairs


def _delimited(data: bytes, start: int) -> tuple[bytes, int]:
    """The message whose length stands at `start`, and where it ends."""
    length = shift = 0
    while True:
        if start >= len(data) or shift > 28:
            raise ValueError(f"there is no length at byte {start}")
        byte = data[start]
        start, length, shift = start + 1, length | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            break
    if start + length > len(data):
        raise ValueError(f"a message of {length} bytes at byte {start} is cut at {len(data)}")
    return data[start : start + length], start + length


def _episodes(pairs: list[Any]) -> list[_Episode]:
    """Records by agent and episode, in the order in which the episodes began."""
    episodes: list[_Episode] = []
    running: dict[int, _Episode] = {}
    for pair in pairs:
        info = pair.agent_info
        if info.id not in running:
            running[info.id] = _Episode()
            episodes.append(running[info.id])
        running[info.id].records.append(pair)
        if info.done:
            running.pop(info.id).is_done = True
    return episodes


def _action_space(brain: Any, path: Path) -> spaces.Space:
    if brain.HasField("action_spec"):
        size, branches = brain.action_spec.continuous, list(brain.action_spec.branches)
    elif brain.old_sizes:
        size, branches = (brain.old_sizes[0], []) if brain.old_type == 1 else (0, list(brain.old_sizes))
    else:
        size, branches = 0, []
    if not size and not branches:
        raise DemonstrationError(f"{path}: expected the behavior parameters with their actions, found none; record it anew.")
    box = spaces.Box(-1.0, 1.0, (size,), np.float32)
    discrete = spaces.Discrete(branches[0]) if len(branches) == 1 else spaces.MultiDiscrete(branches) if branches else None
    return box if discrete is None else discrete if not size else spaces.Tuple((box, discrete))


def _observation_specs(info: Any, path: Path) -> tuple[ObservationSpec, ...]:
    """By the same rule for images as in `envs.spaces`."""
    specs = []
    for i, observation in enumerate(info.observations):
        low, high, dtype = (0, 255, np.uint8) if observation.is_png else (-np.inf, np.inf, np.float32)
        simple = observation_specs(spaces.Box(low, high, tuple(observation.shape), dtype), str(path))[0]
        specs.append(replace(simple, name=f"obs_{i}", path=(f"obs_{i}",)))
    if not specs:
        raise DemonstrationError(f"{path}: expected observations in its records, found none; record it with a newer release of ML-Agents.")
    return tuple(specs)


def _read(info: Any, i: int, o: ObservationSpec, path: Path) -> np.ndarray:
    """Observation `i` of a record, of the shape and dtype of `o`."""
    observation = info.observations[i] if i < len(info.observations) else None
    received = None if observation is None else tuple(observation.shape)
    if received != o.shape or bool(observation.is_png) != (o.dtype == "uint8"):
        raise DemonstrationError(f"{path}: expected observation {o.name!r} of shape {list(o.shape)} and the same compression in every record, "
                                 f"received {'none' if received is None else list(received)}; record each behavior in a file of its own.")
    if observation.is_png:
        return _pixels(observation.png, o, list(observation.channel_mapping), path)
    values = np.array(observation.floats.data, np.float32)
    if values.size != o.size:
        raise DemonstrationError(f"{path}: expected {o.size} numbers in observation {o.name!r}, received {values.size}; record it anew.")
    return values.reshape(o.shape)


def _pixels(data: bytes, o: ObservationSpec, mapping: list[int], path: Path) -> np.ndarray:
    """uint8 ``o.shape`` from one PNG file or several, one after another, of three channels each."""
    starts = [found.start() for found in re.finditer(re.escape(_PNG), data)] or [0]
    try:
        parts = [_decode_png(data[start:end]) for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]
    except (OSError, ValueError, SyntaxError) as error:
        raise DemonstrationError(f"{path}: expected PNG data in observation {o.name!r}, received something else ({error}); record it anew.") from None
    channels = np.concatenate(parts, axis=2)
    is_last = channels.shape[:2] == o.shape[:2]
    wanted = o.shape[2] if is_last else o.shape[0]
    if mapping:
        groups = [[c for c, target in enumerate(mapping[: channels.shape[2]]) if target == k] for k in range(wanted)]
        image = np.stack([channels[..., g].mean(axis=2) if g else np.zeros(channels.shape[:2]) for g in groups], axis=2)
    else:
        image = parts[0].mean(axis=2, keepdims=True) if wanted == 1 else channels[..., :wanted]
    image = np.rint(image).astype(np.uint8)
    image = image if is_last else image.transpose(2, 0, 1)
    if image.shape != o.shape:
        raise DemonstrationError(f"{path}: expected pixels of shape {list(o.shape)} in observation {o.name!r}, received {list(image.shape)}; "
                                 "record it anew.")
    return image


def _decode_png(data: bytes) -> np.ndarray:
    """uint8 ``[height, width, channels]``, red first."""
    try:
        from PIL import Image
    except ImportError:
        try:
            import cv2
        except ImportError:
            raise DemonstrationError("Images in Unity's .demo files need the package pillow (or opencv), which is not installed; pip install pillow.") from None
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        if image is None:
            raise ValueError("no PNG") from None
        return image[..., ::-1]
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def _masks(rows: list[Any], choices: int) -> np.ndarray | None:
    """bool ``[N, choices]``, True = allowed (Unity says which are not), None where no record has a mask."""
    if not any(record.agent_info.forbidden for record in rows):
        return None
    mask = np.ones((len(rows), choices), bool)
    for row, record in enumerate(rows):
        if len(record.agent_info.forbidden) == choices:
            mask[row] = np.logical_not(list(record.agent_info.forbidden))
    return mask


def _actions(rows: list[Any], size: int, branches: int, path: Path) -> tuple[np.ndarray, np.ndarray]:
    continuous, discrete = np.empty((len(rows), size), np.float32), np.empty((len(rows), branches), np.int32)
    for row, record in enumerate(rows):
        given = record.action_info
        floats, choices = list(given.continuous), list(given.discrete)
        if not floats and not choices:
            floats, choices = (list(given.old_actions), []) if size else ([], list(given.old_actions))
        if (len(floats), len(choices)) != (size, branches):
            raise DemonstrationError(f"{path}: expected {size} continuous and {branches} discrete actions in every record, received "
                                     f"{len(floats)} and {len(choices)} in row {row}; record it anew.")
        continuous[row], discrete[row] = floats, choices
    return np.clip(continuous, -1.0, 1.0), discrete


def _suited(d: Demonstrations, spec: BehaviorSpec) -> Demonstrations:
    """Images as `spec` has them: the layout of the channels, and floats from 0 to 1 in place of uint8."""
    specs, obs, next_obs = [], {}, {}
    for o in d.spec.observations:
        arrays = [d.obs[o.name], d.next_obs[o.name]]
        shapes = {w.shape for w in spec.observations}
        for axes in ((2, 0, 1), (1, 2, 0)) if o.kind == "image" and o.shape not in shapes else ():
            moved = tuple(o.shape[a] for a in axes)
            if moved in shapes:
                o, arrays = replace(o, shape=moved), [a.transpose(0, *(axis + 1 for axis in axes)) for a in arrays]
                break
        dtypes = {np.dtype(w.dtype).kind for w in spec.observations if w.shape == o.shape}
        if o.is_uint8_image and dtypes == {"f"}:
            o, arrays = replace(o, dtype="float32", is_uint8_image=False), [a.astype(np.float32) / np.float32(255) for a in arrays]
        specs.append(o)
        obs[o.name], next_obs[o.name] = arrays
    return replace(d, spec=replace(d.spec, observations=tuple(specs)), obs=obs, next_obs=next_obs)
