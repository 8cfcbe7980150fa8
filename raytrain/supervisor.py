"""Which parts of a run may be started anew, how often that has happened, and what they are then called."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from envs.restarts import RestartCounter, RestartLimits
from raytrain.errors import RunFault

SILENT_S = 60.0
"""An env manager that does not answer for this long is taken for dead."""


@dataclass(slots=True)
class Part:
    """An env manager or a trainer.

    Attributes:
        life: how often it was started before: an env manager's incarnation, a trainer's epoch.
        seen: this life of it has answered with a status.
    """

    counter: RestartCounter
    life: int = 0
    seen: bool = False
    started_s: float = 0.0


@dataclass(slots=True)
class Supervisor:
    """Decides on restarts.

    Args:
        limits: of each part.
        clock: seconds that only grow.

    Attributes:
        ended: env managers' lives that are over: (name, incarnation, behavior -> agent steps produced).
    """

    limits: RestartLimits
    clock: Callable[[], float] = time.monotonic
    parts: dict[str, Part] = field(default_factory=dict)
    ended: list[tuple[str, int, dict[str, int]]] = field(default_factory=list)

    def started(self, name: str) -> int:
        """A part begins, or begins anew; which life that is."""
        if name not in self.parts:
            self.parts[name] = Part(RestartCounter(self.limits, self.clock))
        else:
            self.parts[name].life += 1
        part = self.parts[name]
        part.seen, part.started_s = False, self.clock()
        return part.life

    def lives(self, names: Iterable[str]) -> dict[str, int]:
        """Which life each of these parts is in."""
        return {name: self.parts[name].life for name in names if name in self.parts}

    def check(self, name: str, fault: RunFault) -> str:
        """Count one more restart of a part; a sentence about it.

        Raises:
            RunFault: the given one, where no restart would help or it is one too many.
        """
        part = self.parts[name]
        was_well = part.seen or part.life > 0
        if not fault.restartable or (fault.user_traceback and not was_well):  # what raises when it begins will raise the next time
            raise fault
        refusal = part.counter.refusal(by_exception=bool(fault.user_traceback))
        if refusal:
            fault.message += f"\n{refusal}"
            raise fault
        return f"{fault.message} – started anew ({part.counter.so_far})"

    @property
    def restarts(self) -> int:
        """Of all parts together."""
        return sum(part.counter.restarts for part in self.parts.values())
