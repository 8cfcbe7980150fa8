"""Credit: how env managers are made to wait for a trainer that is slower.

On-policy (`CreditBook`) credit bounds the policy lag; off-policy (`ReplayCredit`) it bounds how far collecting runs ahead of learning.

Lag = trainer version when an update uses a row − policy version that acted in it. Managers collect in *rounds*; a
round of all managers together brings at least one buffer. The first policy message grants ``1 + max_policy_lag`` rounds,
every later version one more, so managers collect for the next update while the trainer works on this one.

An update at version V may start once every manager has delivered all rounds that were granted with versions ≤ V − max lag: rows
that come later were acted with a version > V − max lag, and the update at V + 1 is the first that can use them. By induction
no row is ever older than the limit, with any number of managers, and no row has to be dropped. With a limit of 0 this is
strictly on-policy; it cannot come to a halt, since the rounds of one version always fill a buffer.

Rounds are numbered. When a manager or the trainer is started anew, numbers go on from `first_round`, far above all that were granted
before, so that neither side takes an old grant or an old delivery for a new one. What a lost manager had not delivered is granted to
whoever takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from raytrain.messages import Credit, Header

_ROUNDS = 2  # of one manager under way at once, off-policy and asynchronous
_SMOOTHING = 0.3  # weight of the newest rate in the running rate of a manager
_EPOCH, _INCARNATION = 2**40, 2**24  # round numbers between two trainers, and between two env managers


def first_round(epoch: int, incarnation: int) -> int:
    """Number of the first round that an env manager collects for a trainer.

    Args:
        epoch: how often the behavior's trainer was started before.
        incarnation: how often the env manager was started before.
    """
    return epoch * _EPOCH + incarnation * _INCARNATION


@dataclass(slots=True)
class _Manager:
    agents: int  # agents that act at once; rounds are multiples of it
    rounds: list[tuple[int, int]] = field(default_factory=list)  # (version, size) of the rounds granted and not delivered yet
    done: int = 0  # number of the first of them
    incarnation: int = 0
    has_delivered: bool = False
    rate: float = 0.0  # agent steps per second of collecting
    rows: int = 0
    rows_at_round: int = 0  # of those, up to the end of the last round delivered
    busy_s: float = 0.0

    @property
    def missing(self) -> int:
        """Rows granted that have not arrived."""
        return max(0, sum(size for _, size in self.rounds) - (self.rows - self.rows_at_round))


class CreditBook:
    """Grants rounds of credit and says when an update may start. Deterministic: two books fed alike agree.

    Args:
        managers: manager name -> agents that act at once in it.
        buffer_size: rows that one round of all managers must bring.
        max_policy_lag: highest allowed lag (versions), at least 0.
        equal_shares: every manager gets the same share; otherwise shares follow the measured collecting rates.
        epoch: how often the trainer was started before.
        incarnations: how often each manager was, where that is not never.
    """

    def __init__(
        self, managers: dict[str, int], buffer_size: int, max_policy_lag: int, equal_shares: bool, epoch: int = 0,
        incarnations: Mapping[str, int] | None = None,
    ) -> None:
        if max_policy_lag < 0 or not (managers or epoch):  # in later epochs all of them may be on their way
            raise ValueError(f"Expected max_policy_lag >= 0 and a manager, received {max_policy_lag} and {list(managers)}.")
        self.max_policy_lag = max_policy_lag
        self._buffer_size = buffer_size
        self._equal = equal_shares
        self._epoch = epoch
        self._managers: dict[str, _Manager] = {}
        for name, agents in managers.items():
            incarnation = (incarnations or {}).get(name, 0)
            self._managers[name] = _Manager(max(1, agents), done=first_round(epoch, incarnation), incarnation=incarnation)
        self._opened = False
        self._orphaned = 0  # rows granted to managers that are gone, while there is no other one

    def open(self, version: int) -> dict[str, Credit]:
        """The first grant: ``1 + max_policy_lag`` rounds with `version`."""
        for _ in range(1 + self.max_policy_lag):
            self._grant(version)
        self._opened = True
        return self.credit()

    def grant(self, version: int, wanted: int = 0, owed: int = 0, left: float = math.inf) -> dict[str, Credit]:
        """One more round with the newly published `version`; what off-policy learning wants, owes and has left is not used here."""
        if not self._opened:
            raise RuntimeError("CreditBook.grant() before open().")
        self._grant(version)
        return self.credit()

    def delivered(self, header: Header) -> int:
        """Take note of an item of this epoch and of the manager's incarnation; agent steps shipped before it that never came."""
        manager = self._managers[header.manager]
        if not manager.has_delivered:  # what came before it was for another trainer
            manager.has_delivered, manager.rows_at_round = True, header.agent_steps - header.rows
            manager.rows, manager.busy_s = manager.rows_at_round, header.busy_s if manager.rows_at_round else 0.0
        rows, busy_s = header.agent_steps - manager.rows, header.busy_s - manager.busy_s
        if header.rounds_done > manager.done:
            del manager.rounds[: header.rounds_done - manager.done]
            manager.done, manager.rows_at_round = header.rounds_done, header.agent_steps
        if busy_s > 0.0 and rows > 0:
            rate = rows / busy_s
            manager.rate = rate if manager.rate == 0.0 else (1 - _SMOOTHING) * manager.rate + _SMOOTHING * rate
        manager.rows, manager.busy_s = header.agent_steps, header.busy_s
        return rows - header.rows

    def restarted(self, name: str, incarnation: int, held: int = 0) -> None:
        """A manager lives again, with everything lost that it had not delivered: granted anew, in one round.

        Args:
            held: rows that it had delivered, and that are given up, too.
        """
        manager = self._managers[name]
        missing, version = manager.missing + held, manager.rounds[0][0] if manager.rounds else 0
        manager.incarnation, manager.done = incarnation, first_round(self._epoch, incarnation)
        manager.rows, manager.rows_at_round, manager.busy_s, manager.has_delivered = 0, 0, 0.0, False
        manager.rounds = [(version, _whole(missing, manager.agents))] if missing else []

    def lost(self, name: str, rows: int, version: int) -> bool:
        """Rows that a manager delivered never came: as many are granted anew; whether that was so."""
        if rows:
            manager = self._managers[name]
            manager.rounds.append((version, _whole(rows, manager.agents)))
        return rows > 0

    def remove(self, name: str, version: int, held: int = 0) -> None:
        """A manager is gone for good: the one with the fewest rows to bring takes over what it had not delivered, as of `version`."""
        self._orphaned += self._managers.pop(name).missing + held
        self._bequeath(version)

    def add(self, name: str, agents: int, incarnation: int, version: int) -> None:
        """One more manager, which is granted its share with the next version, and at once what the last one left where nobody else was."""
        self._managers[name] = _Manager(max(1, agents), done=first_round(self._epoch, incarnation), incarnation=incarnation)
        self._bequeath(version)

    def _bequeath(self, version: int) -> None:
        if self._orphaned and self._managers:
            heir = min(self._managers.values(), key=lambda m: m.missing)
            heir.rounds.append((version, _whole(self._orphaned, heir.agents)))
            self._orphaned = 0

    def incarnation(self, name: str) -> int | None:
        """Which incarnation of a manager is granted credit; None for one that is gone."""
        return self._managers[name].incarnation if name in self._managers else None

    def may_update(self, version: int) -> bool:
        """Whether an update at `version` keeps every later row within the lag limit."""
        return not self.waiting_for(version)

    def waiting_for(self, version: int) -> list[str]:
        """Managers whose rows must arrive before an update at `version`."""
        limit = version - self.max_policy_lag
        # One slice: a status call may ask from another thread while an item is being taken in.
        return [n for n, m in list(self._managers.items()) if any(granted <= limit for granted, _ in m.rounds[:1])]

    def has_more(self, wanted: int, owed: int, left: float = math.inf) -> bool:
        """Whether more could be granted without an update: never, a round comes with a version."""
        return False

    def credit(self) -> dict[str, Credit]:
        """What each manager may still collect, by what has been delivered so far."""
        return {n: Credit(m.done, tuple(size for _, size in m.rounds)) for n, m in self._managers.items()}

    def _grant(self, version: int) -> None:
        managers = self._managers.values()
        if not managers:
            self._orphaned += self._buffer_size
        known = not self._equal and all(m.rate > 0.0 for m in managers)
        total = sum(m.rate for m in managers) if known else 0.0
        for m in managers:
            share = m.rate / total if known else 1.0 / len(managers)
            m.rounds.append((version, _whole(int(-(-self._buffer_size * share // 1)), m.agents)))


def _whole(rows: int, agents: int) -> int:
    """`rows` rounded up to whole batches of `agents`, at least one."""
    return max(1, -(-rows // agents)) * agents


@dataclass(slots=True)
class _ReplayManager:
    agents: int
    size: int  # agent steps of its rounds once learning goes on
    rounds: list[int] = field(default_factory=list)  # sizes of those granted and not delivered yet
    done: int = 0  # number of the first of them
    incarnation: int = 0
    has_delivered: bool = False
    rows: int = 0  # shipped so far
    rows_at_round: int = 0  # of those, up to the end of the last round delivered

    @property
    def outstanding(self) -> int:
        """Rows granted that have not arrived."""
        return max(0, sum(self.rounds) - (self.rows - self.rows_at_round))


class ReplayCredit:
    """Credit of off-policy learning: managers run at most `ahead` agent steps in front of what was learnt.

    Rows that no update is owed for count as learnt; before learning can begin, what it still wants is granted on top. A manager has
    two rounds at most: one is being collected while the other is being learnt from, where `ahead` has room for both, and a fast
    manager, which delivers sooner, gets more of them. While much is wanted rounds are larger, the first one half of a manager's
    share. In lock-step all managers get one round at a time, which all must have delivered before the trainer goes on. There is no
    lag limit: replay is older than any policy.

    Args:
        managers: manager name -> agents that act at once in it.
        ahead: agent steps; at least one batch of all agents is granted, otherwise a manager could never act.
        warm_up: agent steps to collect before the first update; None where the trainer, which resumes, says itself what it wants.
        lock_step: rounds of all managers together.
        left: agent steps until the end of the run, for the first grant.
        epoch, incarnations: as for `CreditBook`.
    """

    max_policy_lag: None = None

    def __init__(
        self, managers: dict[str, int], ahead: float, warm_up: int | None, lock_step: bool, left: float = math.inf, epoch: int = 0,
        incarnations: Mapping[str, int] | None = None,
    ) -> None:
        if not (managers or epoch):
            raise ValueError("Expected at least one env manager, received none.")
        self._lock_step = lock_step
        self._warm_up, self._left, self._epoch = warm_up, left, epoch
        self._ahead = int(ahead)
        self._managers: dict[str, _ReplayManager] = {}
        for name, agents in managers.items():
            self._enter(name, agents, (incarnations or {}).get(name, 0))
        self._share_out()

    def _enter(self, name: str, agents: int, incarnation: int) -> None:
        self._managers[name] = _ReplayManager(max(1, agents), 0, done=first_round(self._epoch, incarnation), incarnation=incarnation)

    def _share_out(self) -> None:
        """The size of each manager's rounds, by how many managers there are."""
        managers = self._managers.values()
        self.ahead = max(self._ahead, sum(m.agents for m in managers))
        share = self.ahead / max(1, len(managers)) / (1 if self._lock_step else _ROUNDS)
        for m in managers:
            m.size = max(1, int(share) // m.agents) * m.agents

    def restarted(self, name: str, incarnation: int, held: int = 0) -> None:
        """As `CreditBook.restarted`; what was lost is granted anew, in one round."""
        m = self._managers[name]
        missing = m.outstanding
        m.incarnation, m.done, m.has_delivered = incarnation, first_round(self._epoch, incarnation), False
        m.rows = m.rows_at_round = 0
        m.rounds = [_whole(missing, m.agents)] if missing else []

    def lost(self, name: str, rows: int, version: int) -> bool:
        """Rows that a manager delivered never came: False, replay does without them."""
        return False

    def remove(self, name: str, version: int, held: int = 0) -> None:
        """A manager is gone for good; what it had not delivered is granted to others by the next `grant`."""
        del self._managers[name]
        self._share_out()

    def add(self, name: str, agents: int, incarnation: int, version: int) -> None:
        """One more manager, which takes part in the next `grant`."""
        self._enter(name, agents, incarnation)
        self._share_out()

    def incarnation(self, name: str) -> int | None:
        """As `CreditBook.incarnation`."""
        return self._managers[name].incarnation if name in self._managers else None

    def open(self, version: int) -> dict[str, Credit]:
        """The first grant: the warm-up, and what may be ahead of it; nothing where the trainer has to be asked."""
        return self.credit() if self._warm_up is None else self.grant(version, wanted=self._warm_up, left=self._left)

    def grant(self, version: int, wanted: int = 0, owed: int = 0, left: float = math.inf) -> dict[str, Credit]:
        """As many rounds as there is room for.

        Args:
            wanted: rows that must still come before learning can begin.
            owed: rows taken in that an update is owed for.
            left: rows that may still be taken in before the run is over; what is granted goes past it by less than one action of
                all agents.
        """
        while (rounds := self._next(wanted, owed, left)):
            for name, size in rounds.items():
                self._managers[name].rounds.append(size)
        return self.credit()

    def has_more(self, wanted: int, owed: int, left: float = math.inf) -> bool:
        """Whether `grant` would grant something now."""
        return bool(self._next(wanted, owed, left))

    def _next(self, wanted: int, owed: int, left: float) -> dict[str, int]:
        """Rounds to grant next: to all in lock-step once nothing is on its way or owed, else to the one with the fewest, if it fits."""
        managers = self._managers
        if self._lock_step:
            blocked = owed or left <= 0 or any(m.rounds for m in managers.values())
            share = left / len(managers)
            return {} if blocked else {name: self._size(m, wanted / len(managers), share) for name, m in managers.items()}
        outstanding = sum(m.outstanding for m in managers.values())
        if left <= outstanding:
            return {}
        pieces = _ROUNDS * len(managers)
        sizes = {
            name: self._size(m, (wanted - outstanding) / pieces, left - outstanding)
            for name, m in managers.items() if len(m.rounds) < _ROUNDS
        }
        fitting = [name for name, size in sizes.items() if size <= self.ahead + wanted - owed - outstanding]
        first = min(fitting, key=lambda name: len(managers[name].rounds), default=None)
        return {} if first is None else {first: sizes[first]}

    @staticmethod
    def _size(manager: _ReplayManager, wanted: float, left: float) -> int:
        """Whole batches of its agents for `wanted` rows, but no less than its usual round, and no more than for the rows `left`."""
        size = max(manager.size, -(-int(wanted) // manager.agents) * manager.agents)
        return size if size <= left else math.ceil(left / manager.agents) * manager.agents

    def delivered(self, header: Header) -> int:
        """As `CreditBook.delivered`."""
        m = self._managers[header.manager]
        if not m.has_delivered:  # what came before it was for another trainer
            m.has_delivered = True
            m.rows = m.rows_at_round = header.agent_steps - header.rows
        if header.rounds_done > m.done:
            del m.rounds[: header.rounds_done - m.done]
            m.done, m.rows_at_round = header.rounds_done, header.agent_steps
        missing, m.rows = header.agent_steps - m.rows - header.rows, header.agent_steps
        return missing

    def may_update(self, version: int) -> bool:
        """Whether an update may start: always, but in lock-step only once the round is complete."""
        return not (self._lock_step and self.waiting_for(version))

    def waiting_for(self, version: int) -> list[str]:
        """Managers with rounds that have not arrived."""
        return [name for name, m in list(self._managers.items()) if m.rounds]

    def credit(self) -> dict[str, Credit]:
        """What each manager may still collect, by what has been delivered so far."""
        return {name: Credit(m.done, tuple(m.rounds)) for name, m in self._managers.items()}
