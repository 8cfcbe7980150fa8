"""The actor's network between observations and recurrent layer (or heads), in NumPy; a user's own model in TensorFlow.

Letters: ``n`` agents of one call, ``I`` and ``U`` as in `trainers.architecture`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from envs.specs import Observations
from trainers.activations import ACTIVATIONS
from trainers.architecture import Architecture
from trainers.inputs import join_vector
from trainers.networks import body_layers, normalizer_names
from trainers.normalizer import normalize
from trainers.numpy_encoders import EncoderWeights, ImageEncoder
from trainers.onnx_encoders import OnnxEncoder, suits
from trainers.trainer import Weights

if TYPE_CHECKING:
    from trainers.keras_model import ModelActor, ModelWeights


@dataclass(frozen=True, slots=True)
class BodyWeights:
    """The tensors of one version, as `ActorBody` uses them.

    Attributes:
        layers: kernel ``[inputs, outputs]`` and bias ``[outputs]`` of each dense layer.
        encoders: of each image, as its encoder prepares them.
        model: of the user's own model; None without.
        mean, std: of the normalised columns of the vector; None where none is.
    """

    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    encoders: tuple[EncoderWeights | Any, ...]
    model: ModelWeights | None
    mean: np.ndarray | None
    std: np.ndarray | None


class ActorBody:
    """Normaliser, encoders and dense layers, or the user's model in place of the last two.

    Runs in buffers that are used again and again and grow with the largest batch seen; not for two threads at once.

    Attributes:
        model: what runs the user's model; None without one.
    """

    def __init__(self, arch: Architecture) -> None:
        self._arch = arch
        self.model: ModelActor | None = None
        if arch.model is not None:
            from trainers.keras_model import ModelActor  # loads TensorFlow, so only where it is needed

            self.model = ModelActor(arch)
        self._encoders: tuple[ImageEncoder | OnnxEncoder, ...] = ()
        if self.model is None:
            self._encoders = tuple((OnnxEncoder if suits(image) else ImageEncoder)(arch, image) for image in arch.images)
        self._activate = ACTIVATIONS[arch.activation]
        self._is_all_normalized = arch.normalized_width == arch.vector_width
        self._rows = -1
        self._buffers: dict[tuple[str, int], np.ndarray] = {}

    @property
    def engine(self) -> str:
        """What computes the largest part."""
        if self.model is not None:
            return "TensorFlow"
        return "onnxruntime for images, NumPy" if any(isinstance(encoder, OnnxEncoder) for encoder in self._encoders) else "NumPy"

    def prepare(self, weights: Weights) -> BodyWeights:
        """Copies of the body's tensors and of the normaliser's, out of those of the policy."""
        normalizer = [normalizer_names(o.name) for o in self._arch.normalized]
        return BodyWeights(
            layers=tuple((weights[d.kernel].copy(), weights[d.bias].copy()) for d in body_layers(self._arch)),
            encoders=tuple(encoder.prepare(weights) for encoder in self._encoders),
            model=self.model.prepare(weights) if self.model else None,
            mean=np.concatenate([weights[mean].ravel() for mean, _ in normalizer]) if normalizer else None,
            std=np.concatenate([weights[std].ravel() for _, std in normalizer]) if normalizer else None,
        )

    def features(self, weights: BodyWeights, obs: Observations, n: int) -> np.ndarray:
        """Output of the last layer for observations that `trainers.inputs.check_observations` has found right, of `n` agents.

        Args:
            weights: from `prepare`.

        Returns:
            float32 ``[n, U]``, valid until the next call; may share memory with `obs` (read only) where there is no layer.
        """
        if n != self._rows:
            self._resize(n)
        hidden = join_vector(self._arch, obs, n, self._vector)
        if weights.mean is not None:
            # With columns that are not normalised there are several observations, which stand in the buffer already.
            columns = hidden if self._is_all_normalized else self._normalized
            normalize(columns, weights.mean, weights.std, out=self._normalized)
            hidden = self._vector
        if self.model is not None:
            return self.model.features(weights.model, hidden, obs)
        if self._encoders:
            hidden = self._with_images(weights, hidden, obs)
        for (kernel, bias), (out, scratch) in zip(weights.layers, self._outputs, strict=True):
            hidden.dot(kernel, out)
            np.add(out, bias, out)
            self._activate(out, scratch)
            hidden = out
        return hidden

    def _with_images(self, weights: BodyWeights, vector: np.ndarray, obs: Observations) -> np.ndarray:
        """The joined vector and the features of all images side by side, float32 ``[n, encoded_width]``."""
        arch = self._arch
        if len(arch.images) == 1 and not arch.vectors:
            return self._encoders[0].encode(weights.encoders[0], obs[arch.images[0].name])
        if vector is not self._vector:
            self._vector[...] = vector
        column = arch.vector_width
        for image, encoder, prepared in zip(arch.images, self._encoders, weights.encoders, strict=True):
            self._inputs[:, column : column + arch.image_units] = encoder.encode(prepared, obs[image.name])
            column += arch.image_units
        return self._inputs

    def _resize(self, n: int) -> None:
        """Buffers of `n` rows: views of the largest ones so far, or larger ones."""
        arch = self._arch
        self._rows = n
        self._inputs = self._buffer("inputs", arch.vector_width if self.model else arch.encoded_width, n)
        self._vector = self._inputs[:, : arch.vector_width] if self._encoders else self._inputs
        self._normalized = self._vector if self._is_all_normalized else self._vector[:, : arch.normalized_width]
        widths = () if self.model else arch.layers
        self._outputs = [
            (self._buffer(("even", "odd")[i % 2], width, n), self._buffer("scratch", width, n)) for i, width in enumerate(widths)
        ]

    def _buffer(self, name: str, width: int, n: int) -> np.ndarray:
        """float32 ``[n, width]``: the same memory for one name and width until a larger batch comes."""
        buffer = self._buffers.get((name, width))
        if buffer is None or len(buffer) < n:
            buffer = self._buffers[name, width] = np.empty((n, width), np.float32)
        return buffer[:n]
