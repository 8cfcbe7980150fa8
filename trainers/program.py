"""What the programs of all algorithms have in common: trained parameters, and Adam's state beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from trainers.networks import Layout, check_weights
from trainers.optimizer import AdamState
from trainers.quiet_tensorflow import tf
from trainers.trainer import TrainerState, Weights


class Program:
    """Trained parameters as named arrays outside; inside, for the compiled programs, as one vector, or as a subclass has them.

    Args:
        layout: names and shapes of the tensors, in the order in which they are kept.
        weights: tensors to begin with; Adam begins at 0.
    """

    def __init__(self, layout: Layout, weights: Weights) -> None:
        self.layout = layout
        self.set_weights(weights)
        zeros = {name: np.zeros(shape, np.float32) for name, shape in layout.items()}
        self.set_adam(zeros, zeros, 0)

    def set_weights(self, weights: Weights) -> None:
        """Take over the tensors of `layout`.

        Raises:
            ValueError: a tensor is missing, unknown, not finite or of another shape; the present ones stay.
        """
        check_weights(weights, self.layout, "the networks of this configuration")
        self._parameters = self._inside(weights)

    def weights(self) -> Weights:
        """Fresh arrays of all tensors."""
        return self._outside(self._parameters)

    def set_adam(self, m: Weights, v: Weights, step: int) -> None:
        """Take over Adam's moments and its step count."""
        self._adam = AdamState(self._inside(m), self._inside(v), tf.constant(step, tf.int64))

    def adam_state(self) -> tuple[Weights, Weights, int]:
        """Fresh arrays of Adam's first and second moments, and its step count."""
        return self._outside(self._adam.m), self._outside(self._adam.v), int(self._adam.step)

    def actor_weights(self) -> Weights:
        """Fresh arrays of the actor's tensors, in the order of the layout."""
        return self._outside(self._parameters, "actor/")

    def state(self) -> TrainerState:
        """All tensors, Adam's moments as ``adam/m/{tensor}`` and ``adam/v/{tensor}``, and ``adam_step``."""
        m, v, step = self.adam_state()
        moments = {f"adam/{moment}/{name}": tensor for moment, of in (("m", m), ("v", v)) for name, tensor in of.items()}
        return TrainerState({**self.weights(), **moments}, {"adam_step": step})

    def load_adam(self, state: TrainerState) -> None:
        """Go on with the moments and the step count of `state`."""
        m, v = ({name: state.tensors[f"adam/{moment}/{name}"] for name in self.layout} for moment in "mv")
        self.set_adam(m, v, state.scalars["adam_step"])

    def _inside(self, tensors: Weights) -> Any:
        """The tensors of `layout` as the compiled programs take them."""
        return flat(self.layout, tensors)

    def _outside(self, inside: Any, prefix: str = "") -> Weights:
        """The reverse of `_inside`: fresh arrays of the tensors whose names begin with `prefix`."""
        return named(self.layout, inside, prefix)


def flat(layout: Layout, tensors: Weights) -> tf.Tensor:
    """The tensors of a layout as one float32 vector."""
    return tf.constant(np.concatenate([tensors[name].ravel() for name in layout]), tf.float32)


def named(layout: Layout, vector: tf.Tensor, prefix: str = "") -> Weights:
    """The tensors of a layout whose names begin with `prefix`, out of its vector: fresh arrays."""
    ends = np.cumsum([np.prod(shape, dtype=np.int64) for shape in layout.values()])
    parts = np.split(vector.numpy(), ends[:-1])
    pairs = zip(layout.items(), parts, strict=True)
    return {name: part.reshape(shape).copy() for (name, shape), part in pairs if name.startswith(prefix)}


def extremes(rows: Any) -> str:
    """Smallest and largest value of each column of `rows`, for messages.

    Args:
        rows: a dataclass of arrays and of dataclasses, tuples and dicts of them; columns without numbers are left out.
    """
    return ", ".join(f"{name.replace('_', ' ')} {x.min():.4g} … {x.max():.4g}" for name, x in _columns("", rows))


def _columns(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    """(name, numbers) of everything inside `value`."""
    if isinstance(value, np.ndarray):
        if value.size and value.dtype != bool:
            yield name, value
    elif is_dataclass(value):
        for f in fields(value):
            yield from _columns(f"{name} {f.name}".strip(), getattr(value, f.name))
    elif isinstance(value, (tuple, dict)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _columns(f"{name} {key}", inner)
