"""Visual encoders: which layers turn an image into features, and their first weights.

Each encoder ends in a dense layer of ``image_units``. After each convolution comes a ReLU (in ``resnet`` it stands before the
convolutions of a block). Images are ``[n, H, W, C]`` here; kernels ``[height, width, inputs, outputs]``.

Source: the encoders of Unity ML-Agents (docs/Training-Configuration-File.md there); ``nature_cnn``: Mnih et al. 2015,
https://doi.org/10.1038/nature14236; ``resnet``: Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, figure 3 (without the LSTM).
Deviation: ML-Agents uses a leaky ReLU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainers.architecture import Architecture, ImageInput


@dataclass(frozen=True)
class Conv:
    """A convolution: float32 ``[n, H, W, inputs]`` -> ``[n, H', W', outputs]``, with a bias.

    Attributes:
        name: prefix of its two tensors.
        size: height and width of the kernel (pixels).
        stride: pixels.
        same: padded with zeros so that H' = ceil(H / stride), as TensorFlow's ``SAME``; else not padded.
        relu: followed by a ReLU.
    """

    name: str
    size: int
    stride: int
    inputs: int
    outputs: int
    same: bool = False
    relu: bool = True

    @property
    def kernel(self) -> str:
        """Tensor name of the kernel, shape ``[size, size, inputs, outputs]``."""
        return f"{self.name}/kernel"

    @property
    def bias(self) -> str:
        """Tensor name of the bias, shape ``[outputs]``."""
        return f"{self.name}/bias"

    def side(self, pixels: int) -> int:
        """Height or width of the output for one of the input."""
        return -(-pixels // self.stride) if self.same else (pixels - self.size) // self.stride + 1


@dataclass(frozen=True)
class MaxPool:
    """The largest of each ``size × size`` window, padded as TensorFlow's ``SAME``."""

    size: int = 3
    stride: int = 2

    def side(self, pixels: int) -> int:
        """Height or width of the output for one of the input."""
        return -(-pixels // self.stride)


@dataclass(frozen=True)
class Residual:
    """x + second(relu(first(relu(x)))); neither convolution is followed by a ReLU of its own."""

    first: Conv
    second: Conv


@dataclass(frozen=True)
class Relu:
    """max(x, 0)."""


EncoderLayer = Conv | MaxPool | Residual | Relu


def encoder_layers(image: ImageInput, prefix: str) -> tuple[EncoderLayer, ...]:
    """Layers before the flattening and the last dense layer.

    Args:
        prefix: of the tensors' names, such as ``"actor/encoder_0"``.
    """
    c = image.channels
    if image.encoder == "simple":
        return _plain(prefix, c, (16, 8, 4), (32, 4, 2))
    if image.encoder == "nature_cnn":
        return _plain(prefix, c, (32, 8, 4), (64, 4, 2), (64, 3, 1))
    if image.encoder == "match3":
        return _plain(prefix, c, (35, 3, 1), (144, 3, 1))
    if image.encoder == "resnet":
        return (*_resnet(prefix, c), Relu())
    return ()


def _plain(prefix: str, channels: int, *convolutions: tuple[int, int, int]) -> tuple[Conv, ...]:
    layers = []
    for i, (outputs, size, stride) in enumerate(convolutions):
        layers.append(Conv(f"{prefix}/conv_{i}", size, stride, channels, outputs))
        channels = outputs
    return tuple(layers)


def _resnet(prefix: str, channels: int) -> Iterator[EncoderLayer]:
    for s, outputs in enumerate((16, 32, 32)):
        stack = f"{prefix}/stack_{s}"
        yield Conv(f"{stack}/conv", 3, 1, channels, outputs, same=True, relu=False)
        yield MaxPool()
        for b in range(2):
            yield Residual(*(Conv(f"{stack}/block_{b}/conv_{i}", 3, 1, outputs, outputs, same=True, relu=False) for i in range(2)))
        channels = outputs


def convolutions(image: ImageInput, prefix: str) -> tuple[Conv, ...]:
    """The convolutions among `encoder_layers`, in their order."""
    found: list[Conv] = []
    for layer in encoder_layers(image, prefix):
        if isinstance(layer, Conv):
            found.append(layer)
        elif isinstance(layer, Residual):
            found += [layer.first, layer.second]
    return tuple(found)


def flat_width(image: ImageInput) -> int:
    """Numbers that come out of `encoder_layers` for one image."""
    height, width, channels = image.height, image.width, image.channels
    for layer in encoder_layers(image, ""):
        if isinstance(layer, (Conv, MaxPool)):
            height, width = layer.side(height), layer.side(width)
        if isinstance(layer, Conv):
            channels = layer.outputs
    return height * width * channels


def encoder_prefix(arch: Architecture, image: ImageInput, scope: str) -> str:
    """Prefix of the tensors' names of one encoder of ``"actor"`` or ``"critic"``: ``"actor/encoder_0"``, by place among the images."""
    return f"{scope}/encoder_{arch.images.index(image)}"
