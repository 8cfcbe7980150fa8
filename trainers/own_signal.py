"""A reward signal of the user's own: any class with two methods, in NumPy or whatever it likes.

    class Novelty:
        def __init__(self, spec, **kwargs): ...
        def rewards(self, transitions) -> numpy.ndarray: ...            # [N]
        def learn(self, transitions) -> dict[str, float] | None: ...    # optional; statistics by name
        def state(self) -> dict[str, numpy.ndarray]: ...                # optional, with load_state(arrays)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.own_code import SIGNAL, OwnCodeError, load
from envs.specs import BehaviorSpec
from trainers.own_arrays import numeric_arrays
from trainers.signal_settings import OwnSignalSettings
from trainers.signals import Transitions
from trainers.trainer import TrainerState


class OwnSignal:
    """Wraps the user's object as a `trainers.signals.Signal`. Its rewards end with an episode where it has ``ends_matter = True``.

    Raises:
        OwnCodeError: there is no such class, or it lacks a method. Whatever its own code raises comes with a note that names signal and method.
    """

    def __init__(self, name: str, settings: OwnSignalSettings, spec: BehaviorSpec) -> None:
        self._name, self._given = name, f"reward_signals.own.{name} {settings.signal}"
        self._own = load(SIGNAL, settings.signal)(spec, **settings.kwargs)
        self.ends_matter = bool(getattr(self._own, "ends_matter", False))

    def compile(self) -> None:
        """Nothing to do."""

    def observe(self, transitions: Transitions) -> None:
        """Nothing to do."""

    def rewards(self, transitions: Transitions) -> np.ndarray:
        """See `trainers.signals.Signal`.

        Raises:
            OwnCodeError: no numbers, rewards of another shape, or some that are not finite.
        """
        given = self._call("rewards", transitions)
        try:
            rewards = np.asarray(given, np.float32)
        except (TypeError, ValueError):
            raise OwnCodeError(f"Expected numbers from {self._given}.rewards, received {given!r:.100}.") from None
        if rewards.shape != (len(transitions),):
            raise OwnCodeError(
                f"Expected one reward for each of {len(transitions)} transitions from {self._given}.rewards, received the shape {rewards.shape}.")
        if not np.isfinite(rewards).all():
            raise OwnCodeError(f"Expected finite rewards from {self._given}.rewards, received {rewards[~np.isfinite(rewards)][0]}.")
        return rewards

    def learn(self, transitions: Transitions, epochs: int, rng: np.random.Generator) -> dict[str, float]:
        """See `trainers.signals.Signal`; statistics are tagged ``Signals/{name}/…``.

        Raises:
            OwnCodeError: it returned something else than numbers by name.
        """
        stats = (self._call("learn", transitions) if hasattr(self._own, "learn") else None) or {}
        try:
            return {f"Signals/{self._name}/{key}": float(value) for key, value in stats.items()}
        except (AttributeError, TypeError, ValueError):
            raise OwnCodeError(f"Expected numbers by name, or None, from {self._given}.learn, received {stats!r:.100}.") from None

    def state(self) -> TrainerState:
        """See `trainers.signals.Signal`.

        Raises:
            OwnCodeError: it is no dict of numeric arrays.
        """
        own = self._call("state") if hasattr(self._own, "state") else {}
        return TrainerState(numeric_arrays(own, f"signals/{self._name}/own/", f"{self._given}.state"))

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
