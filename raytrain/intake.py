"""What becomes of an item that arrives at a trainer: learnt from, kept for its round, or dropped and counted; and what is granted instead."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from raytrain.credit import CreditBook, ReplayCredit
from raytrain.ledger import Ledger
from raytrain.messages import Header
from raytrain.queues import Item


@dataclass(frozen=True, slots=True)
class ManagerChange:
    """An env manager died, came back, left or joined.

    Attributes:
        kind: ``restarted`` in the place of one that died; ``removed`` for good; ``late``, so that the run goes on without it until it is
            ``added``.
        incarnation: how often it had been started before: the new one, or the one that is gone.
        produced: agent steps that the incarnation which is gone had produced, as far as anybody knows.
        agents: of one that joins, agents that act at once.
    """

    kind: Literal["restarted", "removed", "late", "added"]
    manager: str
    incarnation: int
    produced: int = 0
    agents: int = 1


class Intake:
    """The door of one trainer.

    Args:
        credit: opened.
        epoch: how often the trainer was started before. Rows that were collected for an earlier one, and rows of env managers whose place
            another one has taken, are of no use on-policy or in lock-step, where what was granted has been granted anew.
        lock_step: whole rounds only, in the order of (manager, sequence number).

    Attributes:
        ledger: of this trainer.
        waits_for_rounds: False once nothing can be learnt any more.
    """

    def __init__(self, credit: CreditBook | ReplayCredit, epoch: int = 0, lock_step: bool = False) -> None:
        self.ledger = Ledger()
        self.waits_for_rounds = lock_step
        self._credit, self._epoch, self._lock_step = credit, epoch, lock_step
        self._keeps_old_rows = credit.max_policy_lag is None and not lock_step
        self._round: list[Item] = []
        self._changes: deque[ManagerChange] = deque()
        self._has_granted = False

    def arrived(self, item: Item, version: int) -> tuple[list[Item], Item | None]:
        """Items to learn from now, in order, and the given one where it is dropped (its games are news all the same)."""
        header, batch = item
        if not self.ledger.accept(header):
            return [], None
        reason = self._why_dropped(header)
        if not reason:
            missing = self._credit.delivered(header) + (header.rows if batch is None else 0)
            self._has_granted |= self._credit.lost(header.manager, missing, version)
        if batch is None:  # its manager died after it had shipped the reference
            reason = "owner_died"
        elif reason and self._keeps_old_rows:
            reason = ""
        if reason:
            self.ledger.dropped[reason] += header.rows
            return [], item
        if not self._lock_step:
            return [item], None
        self._round.append(item)
        if self.waits_for_rounds and self._credit.waiting_for(version):
            return [], None
        ready, self._round = sorted(self._round, key=lambda i: (i[0].manager, i[0].sequence)), []
        return ready, None

    def _why_dropped(self, header: Header) -> str:
        """Why its rows do not count for the credit that is granted now; empty when they do."""
        if header.incarnation != self._credit.incarnation(header.manager):
            return "owner_died"
        return "stale_epoch" if header.epoch != self._epoch else ""

    def request(self, change: ManagerChange) -> None:
        """Take note of a change (from any thread)."""
        self._changes.append(change)

    def heed_changes(self, version: int) -> bool:
        """Do what was requested; whether credit has changed since the last call."""
        changed, self._has_granted = self._has_granted or bool(self._changes), False
        while self._changes:
            change = self._changes.popleft()
            if change.kind == "added":
                self._credit.add(change.manager, change.agents, change.incarnation, version)
                continue
            if change.kind != "late":
                ended = change.incarnation - (change.kind == "restarted")
                self.ledger.ended(change.manager, ended, change.produced)
            held = self._drop_held(change.manager)
            if self._credit.incarnation(change.manager) is None:  # it died before it had joined
                continue
            if change.kind == "restarted":
                self._credit.restarted(change.manager, change.incarnation, held)
            else:
                self._credit.remove(change.manager, version, held)
        return changed

    def _drop_held(self, manager: str) -> int:
        """What a manager brought for a round that is not complete is collected anew; how many rows that are."""
        held = sum(header.rows for header, _ in self._round if header.manager == manager)
        if held:
            self.ledger.dropped["owner_died"] += held
        self._round = [item for item in self._round if item[0].manager != manager]
        return held

    def shut(self) -> None:
        """What is held is of no use any more."""
        for header, _ in self._round:
            self.ledger.dropped["shutdown"] += header.rows
        self._round = []
