"""A reward signal of the user's own: any class with two methods, in NumPy or whatever it likes.

    class Novelty:
        def __init__(self, spec, **kwargs): ...
        def rewards(self, transitions) -> numpy.ndarray: ...            # [N]
        def learn(self, transitions) -> dict[str, float] | None: ...    # optional; statistics by name
        def state(self) -> dict[str, numpy.ndarray]: ...                # optional, with load_state(arrays)
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from envs.specs import BehaviorSpec
from trainers.signal_settings import OwnSignalSettings
from trainers.signals import Transitions
from trainers.trainer import TrainerState


class OwnSignalError(ValueError):
    """A class that cannot be used as a signal; says what to do."""


class OwnSignal:
    """Wraps the user's object as a `trainers.signals.Signal`. Its rewards end with an episode where it has ``ends_matter = True``."""

    def __init__(self, name: str, settings: OwnSignalSettings, spec: BehaviorSpec) -> None:
        self._name, self._given = name, settings.signal
        self._own = own_class(settings.signal)(spec, **settings.kwargs)
        self.ends_matter = bool(getattr(self._own, "ends_matter", False))

    def compile(self) -> None:
        """Nothing to do."""

    def observe(self, transitions: Transitions) -> None:
        """Nothing to do."""

    def rewards(self, transitions: Transitions) -> np.ndarray:
        """See `trainers.signals.Signal`.

        Raises:
            OwnSignalError: rewards of another shape, or some that are not finite.
        """
        rewards = np.asarray(self._own.rewards(transitions), np.float32)
        if rewards.shape != (len(transitions),):
            raise OwnSignalError(
                f"Expected one reward for each of {len(transitions)} transitions from {self._given}.rewards, received the shape {rewards.shape}.")
        if not np.isfinite(rewards).all():
            raise OwnSignalError(f"Expected finite rewards from {self._given}.rewards, received {rewards[~np.isfinite(rewards)][0]}.")
        return rewards

    def learn(self, transitions: Transitions, epochs: int, rng: np.random.Generator) -> dict[str, float]:
        """See `trainers.signals.Signal`; statistics are tagged ``Signals/{name}/…``."""
        stats: dict[str, Any] = (self._own.learn(transitions) if hasattr(self._own, "learn") else None) or {}
        return {f"Signals/{self._name}/{key}": float(value) for key, value in stats.items()}

    def state(self) -> TrainerState:
        """See `trainers.signals.Signal`."""
        own = self._own.state() if hasattr(self._own, "state") else {}
        return TrainerState({f"signals/{self._name}/own/{key}": np.asarray(value) for key, value in own.items()})

    def load_state(self, state: TrainerState) -> None:
        """See `trainers.signals.Signal`."""
        prefix = f"signals/{self._name}/own/"
        own = {key.removeprefix(prefix): value for key, value in state.tensors.items() if key.startswith(prefix)}
        if hasattr(self._own, "load_state"):
            self._own.load_state(own)


def own_class(reference: str) -> Any:
    """The class that ``module:Class`` names.

    Raises:
        OwnSignalError: no such module or class.
    """
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OwnSignalError(f"Expected a class as module:Class, received {reference!r}: {error}. Put its module beside the YAML file.") from error
