"""A trainer's desk for what worlds play: it reports to the referee, freezes snapshots, and has what goes out with the policy."""

from __future__ import annotations

import numpy as np

from raytrain.messages import Header, Orders
from raytrain.referee import ItemReport, RefereePort, Ruling
from raytrain.stats import ELO
from trainers.self_play import FrozenPolicy, SnapshotPool
from trainers.self_play_settings import SelfPlaySettings
from trainers.trainer import TrainerState, Weights
from trainers.trajectory import TrajectoryBatch


class WorldDesk:
    """One behavior's side of `raytrain.referee`.

    Args:
        behavior: its name.
        referee: to report to.
        orders: that were published last.
        self_play: the behavior's settings; None without.
        pool: its snapshots; None without self-play.

    Attributes:
        rating: of the behavior now; None without self-play.
    """

    def __init__(self, behavior: str, referee: RefereePort, orders: Orders, self_play: SelfPlaySettings | None, pool: SnapshotPool | None) -> None:
        self._behavior, self._referee = behavior, referee
        self._orders, self._published = orders, orders.number
        self._settings, self._pool = self_play, pool
        self._froze = False
        self.rating: float | None = None

    @property
    def has_news(self) -> bool:
        """Something is to be published."""
        return self._froze or self._orders.number != self._published

    def take_in(self, header: Header, batch: TrajectoryBatch | None, agent_steps: int, finished: bool, policy: Weights) -> Ruling:
        """Report an item, and freeze the policy where it is time for it.

        Args:
            batch: None where its arrays are lost.
            agent_steps: of the trainer, with the item.
            policy: as published last.
        """
        pool, settings = self._pool, self._settings
        if pool is not None and agent_steps // settings.save_steps > pool.last_agent_steps // settings.save_steps:
            pool.add(policy, agent_steps)
        returns, lessons = ((), ()) if batch is None else (tuple(batch.episode_return.tolist()), tuple(batch.episode_lesson.tolist()))
        ruling = self._referee.report(ItemReport(
            self._behavior, agent_steps, finished, returns, lessons, header.games, header.opponent_steps, pool.ids if pool is not None else ()))
        self._follow(ruling, agent_steps, policy)
        return ruling

    def in_last_lesson(self, batch: TrajectoryBatch) -> np.ndarray:
        """bool ``[E]``: of a batch's episodes, those that began when no curriculum had a lesson left."""
        return (batch.episode_lesson == self._orders.lesson) & self._orders.is_last

    def look(self, agent_steps: int, policy: Weights) -> None:
        """See what holds now, as reports of other trainers may have changed it."""
        self._follow(self._referee.current(self._behavior), agent_steps, policy)

    def _follow(self, ruling: Ruling, agent_steps: int, policy: Weights) -> None:
        self._orders = ruling.orders
        if self._pool is not None:
            self.rating = ruling.values[ELO]
            self._froze |= self._pool.keep(self._orders.snapshots_of(self._behavior), FrozenPolicy(policy, agent_steps))

    def outgoing(self) -> tuple[Orders, dict[int, Weights]]:
        """What the next policy message carries: orders, and the snapshots that they name. Noted as published."""
        self._published, self._froze = self._orders.number, False
        if self._pool is None:
            return self._orders, {}
        return self._orders, {number: self._pool.weights(number) for number in self._orders.snapshots_of(self._behavior)}

    def state(self) -> TrainerState | None:
        """Of the snapshots, for a checkpoint; None without self-play."""
        return None if self._pool is None else self._pool.state()
