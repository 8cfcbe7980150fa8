"""Where every agent step went: produced = consumed + dropped(reason) + queued, at all times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raytrain.messages import Header


@dataclass(slots=True)
class _Account:
    """Of one incarnation of one env manager."""

    next: int = 0  # sequence number that comes next
    rows: int = 0  # agent steps accounted for: every one that it had shipped with the last item, whatever became of it
    env_steps: int = 0
    ended_with: int | None = None  # agent steps it had produced when it died; None while it lives
    unseen: int = 0  # of those, what no item has told of: counted as dropped until one does


class Ledger:
    """A trainer's side of the account, kept from item headers.

    Headers carry how many agent steps their manager has shipped in all, so that what was lost with a process is known to the step.

    Attributes:
        consumed: agent steps taken into the trainer.
        dropped: reason -> agent steps that were not: ``owner_died`` (with the env manager), ``consumer_died`` (taken by a trainer that died
            after its last checkpoint), ``queue_died``, ``stale_epoch`` (collected for a trainer that died), ``finished``, ``shutdown``.
            Items that come twice are counted once.
        gaps: items missing by sequence number (lost with a process that died).
        env_steps: env steps behind what was taken, summed over managers.
    """

    def __init__(self) -> None:
        self.consumed = 0
        self.dropped: Counter[str] = Counter()
        self.gaps = 0
        self._accounts: dict[tuple[str, int], _Account] = {}
        self._lost_with = "queue_died"

    def accept(self, header: Header) -> bool:
        """Note an item's arrival; False when it has been here before and must be ignored."""
        account = self._accounts.setdefault((header.manager, header.incarnation), _Account())
        if header.sequence < account.next:
            return False
        self.gaps += header.sequence - account.next
        lost = header.agent_steps - header.rows - account.rows
        if lost > 0:
            self.dropped[self._lost_with] += lost
        told = header.agent_steps - account.rows
        account.next, account.rows, account.env_steps = header.sequence + 1, header.agent_steps, header.env_steps
        if account.ended_with is not None:  # a straggler, whose rows were taken for lost
            back = min(told, account.unseen)
            account.unseen -= back
            self.dropped["owner_died"] -= back
        return True

    def ended(self, manager: str, incarnation: int, produced: int) -> None:
        """An env manager is gone; of the `produced` agent steps those that no item has told of are lost with it."""
        account = self._accounts.setdefault((manager, incarnation), _Account())
        if account.ended_with is None:
            account.ended_with = max(produced, account.rows)
            account.unseen = account.ended_with - account.rows
            self.dropped["owner_died"] += account.unseen

    def settle(self, shipped: Mapping[tuple[str, int], int]) -> None:
        """Nothing comes any more: what env managers, (name, incarnation), have shipped beyond what items told of is lost."""
        for key, rows in shipped.items():
            account = self._accounts.setdefault(key, _Account())
            if account.ended_with is None and rows > account.rows:
                self.dropped[self._lost_with] += rows - account.rows
                account.rows = rows

    @property
    def dead_produced(self) -> int:
        """Agent steps that incarnations which are gone had produced, as far as anybody knows."""
        return sum(max(a.ended_with, a.rows) for a in list(self._accounts.values()) if a.ended_with is not None)

    @property
    def env_steps(self) -> int:
        return sum(account.env_steps for account in list(self._accounts.values()))

    def report(self) -> dict[str, int]:
        """JSON-able summary; any thread may ask."""
        dropped = list(self.dropped.items())  # at once: the loop's thread may add a reason meanwhile
        gone = {"dead_produced": self.dead_produced} if self.dead_produced else {}
        return {"consumed": self.consumed, "gaps": self.gaps, **gone, **{f"dropped_{k}": v for k, v in dropped if v}}

    def state(self) -> dict[str, Any]:
        """Everything, for a trainer that takes over from a checkpoint in the same run."""
        accounts = [[*key, a.next, a.rows, a.env_steps, a.ended_with, a.unseen] for key, a in self._accounts.items()]
        return {"consumed": self.consumed, "dropped": dict(self.dropped), "gaps": self.gaps, "accounts": accounts}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from `state` of a trainer that has died: what it took in afterwards comes up as ``consumer_died``."""
        self.consumed, self.dropped, self.gaps = state["consumed"], Counter(state["dropped"]), state["gaps"]
        self._accounts = {(manager, incarnation): _Account(*rest) for manager, incarnation, *rest in state["accounts"]}
        self._lost_with = "consumer_died"
