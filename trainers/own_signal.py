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
    """Wraps the user's object as a `trainers.signals.Signal`. Its rewards end with an episode where it has ``ends_matter = True``.

    Raises:
        OwnSignalError: the class lacks a method. Whatever its own code raises comes with a note that names signal and method.
    """

    def __init__(self, name: str, settings: OwnSignalSettings, spec: BehaviorSpec) -> None:
        self._name, self._given = name, f"reward_signals.own.{name} {settings.signal}"
        self._own = own_class(settings.signal)(spec, **settings.kwargs)
        self.ends_matter = bool(getattr(self._own, "ends_matter", False))
        if not callable(getattr(self._own, "rewards", None)):
            raise OwnSignalError(f"Expected a class with a method rewards(transitions), received {settings.signal} without one.")
        if hasattr(self._own, "state") != hasattr(self._own, "load_state"):
            has, lacks = ("state", "load_state") if hasattr(self._own, "state") else ("load_state", "state")
            raise OwnSignalError(f"Expected both state and load_state or neither, received {settings.signal} with {has} and without {lacks}.")

    def compile(self) -> None:
        """Nothing to do."""

    def observe(self, transitions: Transitions) -> None:
        """Nothing to do."""

    def rewards(self, transitions: Transitions) -> np.ndarray:
        """See `trainers.signals.Signal`.

        Raises:
            OwnSignalError: no numbers, rewards of another shape, or some that are not finite.
        """
        given = self._call("rewards", transitions)
        try:
            rewards = np.asarray(given, np.float32)
        except (TypeError, ValueError):
            raise OwnSignalError(f"Expected numbers from {self._given}.rewards, received {given!r:.100}.") from None
        if rewards.shape != (len(transitions),):
            raise OwnSignalError(
                f"Expected one reward for each of {len(transitions)} transitions from {self._given}.rewards, received the shape {rewards.shape}.")
        if not np.isfinite(rewards).all():
            raise OwnSignalError(f"Expected finite rewards from {self._given}.rewards, received {rewards[~np.isfinite(rewards)][0]}.")
        return rewards

    def learn(self, transitions: Transitions, epochs: int, rng: np.random.Generator) -> dict[str, float]:
        """See `trainers.signals.Signal`; statistics are tagged ``Signals/{name}/…``.

        Raises:
            OwnSignalError: it returned something else than numbers by name.
        """
        stats = (self._call("learn", transitions) if hasattr(self._own, "learn") else None) or {}
        try:
            return {f"Signals/{self._name}/{key}": float(value) for key, value in stats.items()}
        except (AttributeError, TypeError, ValueError):
            raise OwnSignalError(f"Expected numbers by name, or None, from {self._given}.learn, received {stats!r:.100}.") from None

    def state(self) -> TrainerState:
        """See `trainers.signals.Signal`.

        Raises:
            OwnSignalError: it is no dict of numeric arrays.
        """
        own = self._call("state") if hasattr(self._own, "state") else {}
        try:
            arrays = {f"signals/{self._name}/own/{key}": np.asarray(value) for key, value in own.items()}
        except (AttributeError, ValueError):
            raise OwnSignalError(f"Expected a dict of arrays from {self._given}.state, received {own!r:.100}.") from None
        for key, array in arrays.items():
            if array.dtype.kind not in "biuf":
                raise OwnSignalError(f"Expected numeric arrays from {self._given}.state, received {key.rpartition('/')[2]} of dtype {array.dtype}.")
        return TrainerState(arrays)

    def load_state(self, state: TrainerState) -> None:
        """See `trainers.signals.Signal`."""
        prefix = f"signals/{self._name}/own/"
        own = {key.removeprefix(prefix): value for key, value in state.tensors.items() if key.startswith(prefix)}
        if hasattr(self._own, "load_state"):
            self._call("load_state", own)

    def _call(self, method: str, *arguments: Any) -> Any:
        """What the user's method returns."""
        try:
            return getattr(self._own, method)(*arguments)
        except Exception as error:
            error.add_note(f"in {self._given}.{method}")
            raise


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
