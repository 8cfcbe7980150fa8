"""Visual encoders in NumPy: convolutions as matrix products, in buffers that are used again and again.

A batch goes through in groups of images so small that their numbers stay in the processor's caches. Images are ``[n, H, W, C]``
here as in `trainers.encoders`. Letters: ``n`` images of one call, ``m`` of the largest group, ``O`` outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from trainers.activations import ACTIVATIONS
from trainers.architecture import Architecture, ImageInput
from trainers.encoders import Conv, MaxPool, Residual, convolutions, encoder_layers, encoder_prefix
from trainers.networks import encoder_dense
from trainers.trainer import Weights

GROUP_NUMBERS = 2**18
"""Numbers (float32) of the widest layer in one group of images, at most (but for a single image): 1 MB."""
WINDOW_NUMBERS = 2**17
"""Numbers of the windows that one matrix product takes in, at most (but for a single line of outputs): 512 kB, a core's cache."""

_ZERO = np.float32(0.0)

Kernels = Sequence[tuple[np.ndarray, np.ndarray]]
"""Of each convolution the kernel ``[numbers of a window, O]``, and the bias for a whole line of outputs, ``[W' · O]``."""


@dataclass(frozen=True, slots=True)
class EncoderWeights:
    """The tensors of one encoder as `ImageEncoder` uses them.

    Attributes:
        convolutions: of each, in their order.
        kernel, bias: of the dense layer, transposed: ``[U, inputs]`` and ``[U, 1]``.
    """

    convolutions: Kernels
    kernel: np.ndarray
    bias: np.ndarray


class ImageEncoder:
    """One visual encoder: images as they are stored -> features. Not for two threads at once.

    Args:
        scope: of the tensors, ``"actor"`` or ``"critic"``.
    """

    def __init__(self, arch: Architecture, image: ImageInput, scope: str = "actor") -> None:
        self._image = image
        self._prefix = encoder_prefix(arch, image, scope)
        self._dense = encoder_dense(arch, image, scope)
        self._activate = ACTIVATIONS[arch.activation]
        self._layers = encoder_layers(image, self._prefix)
        first = self._layers[0] if self._layers else None
        can_block = isinstance(first, Conv) and not first.same and first.size % first.stride == 0
        self._block = first.stride if can_block else 1
        self._stages = _Stages(image, self._prefix, self._block, 1)
        self._flat = np.empty((0, self._dense.inputs), np.float32)

    def prepare(self, weights: Weights) -> EncoderWeights:
        """Copies of this encoder's tensors, laid out for the products; the division by 255 is in the first of them."""
        kernels = []
        for i, conv in enumerate(convolutions(self._image, self._prefix)):
            kernel = weights[conv.kernel]
            if i == 0 and self._block > 1:
                kernel = _by_blocks(kernel, self._block, *_channels(self._image))
            # A line at once: many short operations, of O numbers each, take several times as long.
            kernels.append((np.array(kernel.reshape(-1, conv.outputs)), np.tile(weights[conv.bias], self._stages.widths[i])))
        dense = np.array(weights[self._dense.kernel].T, order="C")
        if self._image.scale:
            first = kernels[0][0] if kernels else dense
            first *= np.float32(1.0 / 255.0)
        return EncoderWeights(tuple(kernels), dense, weights[self._dense.bias].copy()[:, None])

    def encode(self, weights: EncoderWeights, x: np.ndarray) -> np.ndarray:
        """Features of `n` images.

        Args:
            weights: from `prepare`.
            x: ``[n, *shape]`` as stored.

        Returns:
            float32 ``[n, U]``, a fresh array in Fortran order.
        """
        n = len(x)
        if n > len(self._flat):
            self._flat = np.empty((n, self._flat.shape[1]), np.float32)
        group = max(1, min(n, GROUP_NUMBERS // self._stages.numbers_per_image))
        if group > self._stages.group:
            self._stages = _Stages(self._image, self._prefix, self._block, group)
        x, flat = np.ascontiguousarray(x), self._flat[:n]
        for start in range(0, n, self._stages.group):
            end = start + self._stages.group
            self._stages.run(weights.convolutions, x[start:end], flat[start:end])
        # Transposed: BLAS packs the kernel, by far the larger one, in pieces that fit its cache (a tenth off at 8 images).
        out = weights.kernel.dot(flat.T)
        out += weights.bias
        self._activate(out, np.empty_like(out))
        return out.T


def _channels(image: ImageInput) -> tuple[int, int]:
    """Channels before and after height and width in a stored image; channel ``l · after + t`` of the network is ``(l, t)`` of these."""
    after = image.shape[-1] if image.layout.endswith("C") else 1
    return image.channels // after, after


def _by_blocks(kernel: np.ndarray, block: int, before: int, after: int) -> np.ndarray:
    """A kernel ``[size, size, channels, O]`` whose inputs come in the order of `_Pixels`: ``[size/b, size/b, before, b, b, after, O]``."""
    size, outputs = len(kernel) // block, kernel.shape[3]
    return kernel.reshape(size, block, size, block, before, after, outputs).transpose(0, 2, 4, 1, 3, 5, 6)


class _Stages:
    """All layers before the flattening, with buffers for a group of images.

    Attributes:
        group: m.
        numbers_per_image: of the widest layer.
        widths: W' of each convolution.
    """

    def __init__(self, image: ImageInput, prefix: str, block: int, group: int) -> None:
        self.group = group
        self.widths: list[int] = []
        self.numbers_per_image = image.height * image.width * image.channels
        self._stages: list[_Convolution | _MaxPool | _Residual | _Relu] = []
        height, width, channels = image.height, image.width, image.channels
        for layer in encoder_layers(image, prefix):
            shape, index = (group, height, width, channels), len(self.widths)
            if isinstance(layer, Conv):
                stage = _Convolution(layer, index, shape, 1 if self._stages else block)
            elif isinstance(layer, MaxPool):
                stage = _MaxPool(layer, shape)
            elif isinstance(layer, Residual):
                stage = _Residual(layer, index, shape)
            else:
                stage = _Relu(shape)
            self._stages.append(stage)
            height, width, channels = stage.out_shape
            self.widths += [width] * {Conv: 1, Residual: 2}.get(type(layer), 0)
            self.numbers_per_image = max(self.numbers_per_image, height * width * channels)
        grid = self._stages[0].inputs.shape[1:3] if self._stages else (height, width)
        self._pixels = _Pixels(image, block, (group, *grid))
        self._out_shape = height, width, channels

    def run(self, kernels: Kernels, x: np.ndarray, flat: np.ndarray) -> None:
        """Write the last layer's output for c ≤ m images as stored, C-contiguous ``[c, *shape]``, to `flat` ``[c, inputs of the dense layer]``."""
        c = len(x)
        outs = [*(stage.inputs[:c] for stage in self._stages), flat.reshape(c, *self._out_shape)]
        self._pixels.load(x, outs[0])
        for stage, out in zip(self._stages, outs[1:], strict=True):
            stage.run(kernels, out)


class _Pixels:
    """Stored images -> float32 ``[c, H/b, W/b, before · b · b · after]``: blocks of b × b pixels become the channels of one.

    A convolution whose stride is b and whose size is a multiple of it is one of stride 1 on the blocks, whose windows are made of
    long runs of numbers. Inside a block the pixels stay in the order in which they are stored, so that whole runs are moved.
    """

    def __init__(self, image: ImageInput, block: int, grid: tuple[int, int, int]) -> None:
        self._group, self._rows, self._columns = grid
        self._block = block
        self._before, self._after = _channels(image)
        self._height, self._width = image.height, image.width
        self._moved = np.empty(0)

    def load(self, x: np.ndarray, out: np.ndarray) -> None:
        """Write c images ``[c, *shape]`` to `out` ``[c, H/b, W/b, …]``, whose last axis is contiguous; what fills no block is left out."""
        c, b = len(x), self._block
        if b == 1 and self._before == 1:  # they are stored as the networks see them
            out[...] = x.reshape(out.shape)
            return
        run = np.dtype((np.void, b * self._after * x.itemsize))
        if self._moved.dtype != run:
            self._moved = np.empty((self._group, self._rows, self._columns, self._before, b), run)
        lines = x.reshape(c, self._before, self._height, self._width * self._after)
        lines = lines[:, :, : self._rows * b, : self._columns * b * self._after].view(run)
        moved = self._moved[:c]
        np.copyto(moved, lines.reshape(c, self._before, self._rows, b, self._columns).transpose(0, 2, 4, 1, 3))
        out[...] = moved.view(x.dtype).reshape(out.shape)


class _Convolution:
    """A convolution as products of its windows ``[outputs, size · size · C]``, some images or some lines at a time, and its kernel.

    Attributes:
        inputs: where the layer before writes, float32 ``[m, H, W, C]``; inside a border of zeros where the layer pads.
        out_shape: ``(H', W', O)``.
    """

    def __init__(self, layer: Conv, index: int, shape: tuple[int, int, int, int], block: int = 1, relu: bool | None = None) -> None:
        group, height, width, channels = shape
        out_height, out_width = layer.side(height), layer.side(width)
        size, stride, channels = layer.size // block, layer.stride // block, channels * block**2
        top, bottom = _padding(layer, height)
        left, right = _padding(layer, width)
        if block > 1:
            height, width = out_height + size - 1, out_width + size - 1
        padded = np.zeros((group, top + height + bottom, left + width + right, channels), np.float32)
        self.inputs = padded[:, top : top + height, left : left + width]
        per_image, per_row, per_column, number = padded.strides
        self._windows = as_strided(
            padded, (group, out_height, out_width, size, size * channels),
            (per_image, stride * per_row, stride * per_column, per_row, number), writeable=False,
        )
        numbers_per_line = out_width * size**2 * channels
        self._lines = min(out_height, max(1, WINDOW_NUMBERS // numbers_per_line))
        self._images = min(group, max(1, WINDOW_NUMBERS // (out_height * numbers_per_line)))
        self._copies = np.empty((self._images, self._lines, *self._windows.shape[2:]), np.float32)
        self._product = np.empty((self._images, self._lines, out_width * layer.outputs), np.float32)
        self._index = index
        self._relu = layer.relu if relu is None else relu
        self.out_shape = out_height, out_width, layer.outputs

    def run(self, kernels: Kernels, out: np.ndarray) -> None:
        """Write the outputs of the first c images to `out` ``[c, H', W', O]``."""
        kernel, bias = kernels[self._index]
        out, windows = out.reshape(*out.shape[:2], len(bias)), self._windows[: len(out)]  # a view: lines are contiguous
        is_contiguous = out.flags.c_contiguous
        for image in range(0, len(out), self._images):
            images = slice(image, image + self._images)
            for line in range(0, self.out_shape[0], self._lines):
                lines = slice(line, line + self._lines)
                part = out[images, lines]
                rows = part.shape[:2]
                copies, product = self._copies[: rows[0], : rows[1]], part if is_contiguous else self._product[: rows[0], : rows[1]]
                np.copyto(copies, windows[images, lines])
                np.dot(copies.reshape(-1, len(kernel)), kernel, out=product.reshape(-1, kernel.shape[1]))
                np.add(product, bias, out=part)
                if self._relu:
                    np.maximum(part, _ZERO, out=part)


def _padding(layer: Conv, pixels: int) -> tuple[int, int]:
    """Zeros before and after a side; the odd one comes after, as TensorFlow does."""
    missing = max((layer.side(pixels) - 1) * layer.stride + layer.size - pixels, 0) if layer.same else 0
    return missing // 2, missing - missing // 2


class _MaxPool:
    """The largest of each window, first along the columns of the image, then along its rows."""

    def __init__(self, layer: MaxPool, shape: tuple[int, int, int, int]) -> None:
        group, height, width, channels = shape
        self._layer = layer
        self.inputs = np.empty(shape, np.float32)
        self.out_shape = layer.side(height), layer.side(width), channels
        self._columns_done = np.empty((group, self.out_shape[0], width, channels), np.float32)

    def run(self, kernels: Kernels, out: np.ndarray) -> None:
        c, done = len(out), self._columns_done[: len(out)]
        self._along(self.inputs[:c], done, 1)
        self._along(done, out, 2)

    def _along(self, x: np.ndarray, out: np.ndarray, axis: int) -> None:
        """Maximum over the windows of one axis; what lies outside counts for nothing."""
        size, stride = self._layer.size, self._layer.stride
        pixels, windows = x.shape[axis], out.shape[axis]
        before = max((windows - 1) * stride + size - pixels, 0) // 2
        # The pixel that all windows have comes first; for each other place, the windows whose pixel there is inside.
        for place in sorted(range(size), key=lambda k: k != before):
            shift = place - before
            first = -(shift // stride) if shift < 0 else 0
            last = min(windows, (pixels - 1 - shift) // stride + 1)
            there = _slice(x, axis, first * stride + shift, (last - 1) * stride + shift + 1, stride)
            if place == before:
                np.copyto(out, there)
            else:
                part = _slice(out, axis, first, last, 1)
                np.maximum(part, there, out=part)


def _slice(x: np.ndarray, axis: int, start: int, stop: int, step: int) -> np.ndarray:
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


class _Residual:
    """x + second(relu(first(relu(x))))."""

    def __init__(self, layer: Residual, index: int, shape: tuple[int, int, int, int]) -> None:
        self.inputs = np.empty(shape, np.float32)
        self._first = _Convolution(layer.first, index, shape, relu=True)
        self._second = _Convolution(layer.second, index + 1, shape)
        self._change = np.empty(shape, np.float32)
        self.out_shape = shape[1:]

    def run(self, kernels: Kernels, out: np.ndarray) -> None:
        c = len(out)
        x, change = self.inputs[:c], self._change[:c]
        np.maximum(x, _ZERO, out=self._first.inputs[:c])
        self._first.run(kernels, self._second.inputs[:c])
        self._second.run(kernels, change)
        np.add(x, change, out=out)


class _Relu:
    """max(x, 0)."""

    def __init__(self, shape: tuple[int, int, int, int]) -> None:
        self.inputs = np.empty(shape, np.float32)
        self.out_shape = shape[1:]

    def run(self, kernels: Kernels, out: np.ndarray) -> None:
        np.maximum(self.inputs[: len(out)], _ZERO, out=out)
