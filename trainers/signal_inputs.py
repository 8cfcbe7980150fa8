"""How observations become the inputs of a reward signal's networks: standardised, by statistics of what was seen or of experts."""

from __future__ import annotations

import numpy as np

from trainers.architecture import Architecture
from trainers.inputs import NetworkInputs
from trainers.normalizer import RunningStatistics, normalize
from trainers.signals import Transitions
from trainers.trainer import Weights


class SignalInputs:
    """Clips (x − mean) / std to ±5, whatever ``network_settings.normalize`` says of actor and critic.

    Numbers are standardised, choices and flags pass as they are: 0 and 1. Images are scaled by their network as they are
    for the policy; with `standardize_images` each pixel is standardised.

    Args:
        arch: of the signal's networks.
    """

    def __init__(self, arch: Architecture, standardize_images: bool = False, fixed: bool = False) -> None:
        """With `fixed` the first transitions that are observed are the only ones that count."""
        kinds = {o.name: o.kind for o in arch.spec.observations}
        self._numbers = np.concatenate([np.empty(0, bool), *(
            np.full(part.width, not part.choices and kinds[part.name] != "binary") for part in arch.vectors)])
        self._vector = RunningStatistics((int(self._numbers.sum()),))
        self._images = [RunningStatistics(image.shape) for image in arch.images] if standardize_images else []
        self._fixed = fixed

    @property
    def count(self) -> int:
        """Rows seen."""
        return self._vector.count

    def observe(self, transitions: Transitions) -> None:
        """Merge what was acted on into the statistics."""
        if self._fixed and self._vector.count:
            return
        self._vector.update(transitions.now.vector[:, self._numbers])
        for statistics, image in zip(self._images, transitions.now.images, strict=bool(self._images)):
            statistics.update(image)

    def vector(self, inputs: NetworkInputs) -> np.ndarray:
        """Standardised: float32 ``[n, I]``."""
        vector = inputs.vector.copy()
        vector[:, self._numbers] = normalize(vector[:, self._numbers], *self._vector.float32())
        return vector

    def image_statistics(self) -> Weights:
        """``image_{i}/mean`` and ``/std``, float32, where images are standardised."""
        return {
            f"image_{i}/{name}": x for i, statistics in enumerate(self._images)
            for name, x in zip(("mean", "std"), statistics.float32(), strict=True)
        }

    def tensors(self) -> dict[str, np.ndarray]:
        """Statistics for a checkpoint."""
        return {f"inputs_{i}/{name}": getattr(s, name) for i, s in enumerate((self._vector, *self._images)) for name in ("mean", "m2")}

    def load(self, tensors: dict[str, np.ndarray], count: int) -> None:
        """Go on with saved statistics."""
        for i, statistics in enumerate((self._vector, *self._images)):
            statistics.count = count
            statistics.mean, statistics.m2 = (np.array(tensors[f"inputs_{i}/{name}"], np.float64) for name in ("mean", "m2"))
