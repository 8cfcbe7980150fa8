"""The shape of a behavior's networks: what its observations and its network settings come to, with every choice made.

Letters: ``I`` columns of the joined vector, ``U`` outputs of the dense layers, ``H`` outputs of the recurrent layer (half of ``M``,
the size of the memory), ``F`` features on which the heads stand.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, replace
from typing import Literal

from envs.specs import BehaviorSpec, ObservationSpec
from trainers.settings import Encoder, NetworkSettings, ObservationSettings

ImageLayout = Literal["HW", "HWC", "CHW", "SHWC", "SCHW"]
"""Axes of a stored image: height, width, channels, and a stack of frames that become channels (oldest first)."""

SMALLEST_SIDE: dict[Encoder, int] = {"simple": 20, "nature_cnn": 36, "resnet": 15, "match3": 5, "fully_connected": 1}
"""Encoder -> smallest height and width (pixels) that it can take."""


class ArchitectureError(ValueError):
    """Network settings that do not suit the observations.

    Attributes:
        key: path of the setting below ``network_settings``.
        value: what it is there.
    """

    def __init__(self, key: tuple[str, ...], value: object, message: str) -> None:
        super().__init__(message)
        self.key, self.value = key, value


@dataclass(frozen=True)
class VectorInput:
    """Columns of the joined vector that come from one observation.

    Attributes:
        size: elements of the observation.
        width: columns: `size`, or for a categorical one the sum of its choices.
        choices, starts: of a categorical observation, one for each element; else empty.
        normalized: by running statistics.
    """

    name: str
    size: int
    width: int
    choices: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    normalized: bool = False


@dataclass(frozen=True)
class ImageInput:
    """An observation that a visual encoder takes in.

    Attributes:
        shape: as it is stored, in the order of `layout`.
        encoder: which one.
        scale: pixels are divided by 255, once, inside the network.
        is_ambiguous: height, width and channels could be told apart by no rule; channels were taken as last.
    """

    name: str
    shape: tuple[int, ...]
    layout: ImageLayout
    encoder: Encoder
    scale: bool
    is_ambiguous: bool = False

    @property
    def height(self) -> int:
        """Pixels."""
        return self.shape[self.layout.index("H")]

    @property
    def width(self) -> int:
        """Pixels."""
        return self.shape[self.layout.index("W")]

    @property
    def channels(self) -> int:
        """Colours, times stacked frames."""
        stored = dict(zip(self.layout, self.shape, strict=True))
        return stored.get("C", 1) * stored.get("S", 1)

    @property
    def to_channels_last(self) -> tuple[int, ...]:
        """Permutation of the stored axes (the batch's not counted) to height, width, stack, channels; reshape to ``[n, H, W, C]`` after it."""
        return tuple(self.layout.index(axis) for axis in "HWSC" if axis in self.layout)


@dataclass(frozen=True)
class MemoryShape:
    """A recurrent layer.

    Attributes:
        sequence_length: agent steps through which gradients flow.
        size: M: the output h and the cell state c, in this order.
        burn_in: agent steps that only warm up the critics of an off-policy algorithm, where a sequence does not begin its episode.
    """

    sequence_length: int
    size: int
    burn_in: int

    @property
    def units(self) -> int:
        """H."""
        return self.size // 2


@dataclass(frozen=True)
class ModelReference:
    """A Keras model of the user's, made by ``module:factory``; `arguments` are JSON, so that equal references are equal."""

    factory: str
    arguments: str = "{}"


@dataclass(frozen=True)
class Architecture:
    """What the networks of one behavior look like. Hashable, so that equal ones share compiled programs.

    Attributes:
        spec: observations and actions.
        vectors: parts of the joined vector, the normalised ones first; each group in the order of the spec.
        images: in the order of the spec.
        layers: widths of the dense layers after the encoders (units).
        image_units: width of the dense layer at the end of each visual encoder.
        activation: after each dense layer.
        memory: None without a recurrent layer.
        model: takes the place of encoders and dense layers.
    """

    spec: BehaviorSpec
    vectors: tuple[VectorInput, ...]
    images: tuple[ImageInput, ...]
    layers: tuple[int, ...]
    image_units: int
    activation: str
    memory: MemoryShape | None = None
    model: ModelReference | None = None

    @property
    def vector_width(self) -> int:
        """I; 0 where all observations are images."""
        return sum(part.width for part in self.vectors)

    @property
    def normalized_width(self) -> int:
        """How many of the first columns are normalised."""
        return sum(part.width for part in self.vectors if part.normalized)

    @property
    def normalized(self) -> tuple[ObservationSpec, ...]:
        """The observations that are normalised, in the order of their columns."""
        by_name = {o.name: o for o in self.spec.observations}
        return tuple(by_name[part.name] for part in self.vectors if part.normalized)

    @property
    def encoded_width(self) -> int:
        """Inputs of the first dense layer: the joined vector and the output of each encoder."""
        return self.vector_width + self.image_units * len(self.images)

    @property
    def memory_size(self) -> int:
        """M; 0 without a memory."""
        return self.memory.size if self.memory else 0

    def as_given(self) -> Architecture:
        """The same networks on inputs that come normalised: normalising does not shape the compiled programs."""
        return replace(self, vectors=tuple(replace(part, normalized=False) for part in self.vectors))


def architecture(spec: BehaviorSpec, network: NetworkSettings) -> Architecture:
    """The networks that `network` asks for on the observations of `spec`.

    An observation is an image if its spec says so (see `envs.spaces.observation_specs`) or ``observations.{name}.kind`` does. Of
    three axes the channels are the first or the last, whichever is shorter; with four the first counts stacked frames.

    Raises:
        ArchitectureError: an unknown observation or one that cannot be taken in as asked, or an image too small for its encoder.
    """
    names = [o.name for o in spec.observations]
    for name, settings in network.observations.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ArchitectureError(("observations", name), settings.model_dump(exclude_none=True),
                                    f"expected an observation of the environment ({', '.join(names)}), received {name!r}.{hint}")
    vectors, images = [], []
    for o in spec.observations:
        settings = network.observations.get(o.name, ObservationSettings())
        _check_kind(o, settings)
        if (settings.kind or o.kind) == "image":
            images.append(_image(o, settings, network))
        else:
            vectors.append(_vector(o, settings, network))
    vectors.sort(key=lambda part: not part.normalized)  # stable: each group stays in the order of the spec
    layers = network.layers if network.layers is not None else (network.hidden_units,) * network.num_layers
    memory = network.memory
    return Architecture(
        spec, tuple(vectors), tuple(images), layers, network.hidden_units, network.activation,
        None if memory is None else MemoryShape(
            memory.sequence_length, memory.memory_size, memory.sequence_length // 4 if memory.burn_in is None else memory.burn_in),
        None if network.model is None else ModelReference(network.model, json.dumps(network.model_kwargs, sort_keys=True)),
    )


def _check_kind(o: ObservationSpec, settings: ObservationSettings) -> None:
    """Refuse what the settings ask of an observation that has no use for it."""
    def refuse(key: str, message: str) -> None:
        raise ArchitectureError(("observations", o.name, key), getattr(settings, key), message)

    if settings.kind is not None and o.kind in ("categorical", "binary"):
        refuse("kind", f"expected no kind for {o.name!r}, which is {o.kind} and always part of the vector; remove it")
    if settings.kind == "image" and len(o.shape) not in (2, 3, 4):
        refuse("kind", f"expected an observation of 2, 3 or 4 axes as an image, {o.name!r} has the shape {o.shape}")
    is_image = (settings.kind or o.kind) == "image"
    for key in ("encoder", "channels", "scale"):
        if getattr(settings, key) is not None and not is_image:
            instead = ", or add kind: image" if o.kind == "vector" and len(o.shape) in (2, 3, 4) else ""
            refuse(key, f"expected {key} only for an image, {o.name!r} is part of the vector; remove it{instead}")
    if settings.normalize and (is_image or o.kind in ("categorical", "binary")):
        refuse("normalize", f"expected normalize only for a vector, {o.name!r} is {'an image' if is_image else o.kind}; remove it")
    if settings.channels is not None and len(o.shape) == 2:
        refuse("channels", f"expected channels only for an image of 3 or 4 axes, {o.name!r} has the shape {o.shape}: one channel; remove it")


def _vector(o: ObservationSpec, settings: ObservationSettings, network: NetworkSettings) -> VectorInput:
    if o.kind == "categorical":
        return VectorInput(o.name, o.size, sum(o.choices), o.choices, o.starts)
    wanted = network.normalize if settings.normalize is None else settings.normalize
    return VectorInput(o.name, o.size, o.size, normalized=wanted and o.kind != "binary")


def _image(o: ObservationSpec, settings: ObservationSettings, network: NetworkSettings) -> ImageInput:
    layout, is_ambiguous = _image_layout(o, settings)
    encoder = settings.encoder or network.vis_encode_type
    image = ImageInput(o.name, o.shape, layout, encoder, o.is_uint8_image if settings.scale is None else settings.scale, is_ambiguous)
    smallest = SMALLEST_SIDE[encoder]
    if network.model is None and min(image.height, image.width) < smallest:
        fitting = [name for name, side in SMALLEST_SIDE.items() if min(image.height, image.width) >= side]
        key = ("observations", o.name, "encoder") if settings.encoder else ("vis_encode_type",)
        raise ArchitectureError(key, encoder, (
            f"expected an image of at least {smallest} × {smallest} pixels for the encoder {encoder}, {o.name!r} has "
            f"{image.height} × {image.width} (shape {o.shape}, channels {'first' if 'C' in layout and layout.index('C') < layout.index('H') else 'last'}); "
            f"encoders that fit: {', '.join(fitting)}; or take it in as a vector: observations: {{{o.name}: {{kind: vector}}}}"
        ))
    return image


def _image_layout(o: ObservationSpec, settings: ObservationSettings) -> tuple[ImageLayout, bool]:
    if len(o.shape) == 2:
        return "HW", False
    first, _, last = o.shape[-3:]
    channels = settings.channels or ("first" if first < last else "last")
    layout: ImageLayout = "CHW" if channels == "first" else "HWC"
    if len(o.shape) == 4:
        layout = "SCHW" if channels == "first" else "SHWC"
    return layout, settings.channels is None and first == last
