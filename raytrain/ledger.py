"""Where every agent step went: produced = consumed + dropped(reason) + queued, at all times."""

from __future__ import annotations

from collections import Counter

from raytrain.messages import Header


class Ledger:
    """A trainer's side of the account, kept from item headers.

    Attributes:
        consumed: agent steps taken into the trainer.
        dropped: reason -> agent steps that were not (``finished``, ``duplicate`` is not counted as it was counted once).
        gaps: items missing by sequence number (lost with a process that died).
        env_steps: env steps behind what was taken, summed over managers.
    """

    def __init__(self) -> None:
        self.consumed = 0
        self.dropped: Counter[str] = Counter()
        self.gaps = 0
        self._next: dict[tuple[str, int], int] = {}
        self._env_steps: dict[tuple[str, int], int] = {}

    def accept(self, header: Header) -> bool:
        """Note an item's arrival; False when it has been here before and must be ignored."""
        key = (header.manager, header.incarnation)
        expected = self._next.get(key, 0)
        if header.sequence < expected:
            return False
        self.gaps += header.sequence - expected
        self._next[key] = header.sequence + 1
        self._env_steps[key] = header.env_steps
        return True

    @property
    def env_steps(self) -> int:
        return sum(self._env_steps.values())

    def report(self) -> dict[str, int]:
        """JSON-able summary; any thread may ask."""
        dropped = list(self.dropped.items())  # at once: the loop's thread may add a reason meanwhile
        return {"consumed": self.consumed, "gaps": self.gaps, **{f"dropped_{k}": v for k, v in dropped}}
