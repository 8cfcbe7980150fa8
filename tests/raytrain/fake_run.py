"""A whole run of fakes in one thread, whose components take turns in a random order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np

from raytrain.credit import CreditBook, ReplayCredit
from raytrain.env_manager import EnvManager
from raytrain.messages import QUEUE_CAPACITY, Header, PolicyMessage
from raytrain.queues import Item, LocalExchange
from raytrain.trainer_loop import TrainerLoop
from tests.raytrain.fakes import BEHAVIOR, SPEC, FakePolicy, RecorderTrainer, ReplayRecorder, ScriptedEnv, weights_of
from trainers.settings import PPOHyperparameters, PPOSettings, SACHyperparameters, SACSettings
from trainers.trajectory import TrajectoryBatch


class Wire:
    """A `LocalExchange` that counts rows, and says when a producer finds it full instead of blocking this thread."""

    def __init__(self, capacity: int) -> None:
        self.exchange = LocalExchange(capacity)
        self.queued_rows = 0
        """Rows that wait; an item that comes twice counts once."""
        self._taken: set[tuple[str, int]] = set()
        self.most_waiting = 0
        self.on_full: Callable[[], object] = lambda: None

    def put(self, header: Header, batch: TrajectoryBatch, timeout_s: float) -> bool:
        assert header.rows == batch.rows
        if not self.exchange.put(header, batch, 0.0):
            self.on_full()
            return False
        self.queued_rows += header.rows
        self.most_waiting = max(self.most_waiting, self.exchange.waiting())
        return True

    def take(self) -> Item | None:
        item = self.exchange.take()
        if item is not None and (key := (item[0].manager, item[0].sequence)) not in self._taken:
            self._taken.add(key)
            self.queued_rows -= item[0].rows
        return item

    def waiting(self) -> int:
        return self.exchange.waiting()

    def wait(self, timeout_s: float) -> bool:
        return self.exchange.wait(0.0)


class LateMailbox:
    """A policy source that shows a message only after it was asked for it `delay` times (a slow way from node to node)."""

    def __init__(self, exchange: LocalExchange, delay: int) -> None:
        self._exchange, self._delay = exchange, delay
        self._shown: PolicyMessage | None = None
        self._coming: PolicyMessage | None = None
        self._asked = 0

    def newest(self) -> PolicyMessage | None:
        message = self._exchange.newest()
        if self._coming is None and message is not self._shown:
            self._coming, self._asked = message, 0
        if self._coming is not None:
            self._asked += 1
            if self._asked > self._delay:
                self._shown, self._coming = self._coming, None
        return self._shown

    def wait_newer(self, serial: int, timeout_s: float) -> PolicyMessage | None:
        message = self.newest()
        return message if message is not None and message.serial > serial else None


class FakeRun:
    """Env managers, exchange and trainer loop over fakes.

    Args:
        envs: one per env manager.
        buffer_size, max_policy_lag, time_horizon, max_steps: as in the settings.
        capacity: of the trajectory queue (items).
        delay: turns that a policy message takes to arrive at a manager.
        speeds: weights by which managers, then the trainer, get their turns; equal by default.
        seed: of the order of turns.
        steps_per_update, warm_up, ahead: of an off-policy trainer, where ``steps_per_update`` is given.
    """

    def __init__(
        self, envs: list[ScriptedEnv], buffer_size: int = 32, max_policy_lag: int = 1, time_horizon: int = 8,
        max_steps: int = 10**9, capacity: int = QUEUE_CAPACITY, lock_step: bool = False, delay: int = 0,
        speeds: list[float] | None = None, seed: int = 0, summary_freq: int = 10**9, checkpoint_interval: int = 10**9,
        steps_per_update: float | None = None, warm_up: int = 0, ahead: float = 0.0,
    ) -> None:
        off_policy = steps_per_update is not None
        self._random = random.Random(seed)
        ticks = itertools.count()

        def clock() -> float:  # a time of its own, so that rates and ages of items are the same in every run of the test
            return next(ticks) * 0.01

        self.envs = envs
        self.wire = Wire(capacity)
        self.wire.on_full = lambda: self.loop.advance(0.0)
        names = [f"env-manager-{i}" for i in range(len(envs))]
        agents = {name: env.num_slots[BEHAVIOR] for name, env in zip(names, envs)}

        def new_book() -> CreditBook | ReplayCredit:
            if off_policy:
                return ReplayCredit(agents, ahead, warm_up, lock_step)
            return CreditBook(agents, buffer_size, max_policy_lag, equal_shares=lock_step)

        self.wire.exchange.publish(PolicyMessage(0, 0, weights_of(0), new_book().open(0)))
        self.policies = [FakePolicy() for _ in envs]
        self.managers = [
            EnvManager(
                name, env, {BEHAVIOR: LateMailbox(self.wire.exchange, delay)}, {BEHAVIOR: self.wire}, {BEHAVIOR: policy},
                {BEHAVIOR: time_horizon}, np.random.SeedSequence(1, spawn_key=(i,)), ship_early=not lock_step, clock=clock,
            )
            for i, (name, env, policy) in enumerate(zip(names, envs, self.policies))
        ]
        rest = {
            "time_horizon": time_horizon, "max_steps": max_steps, "summary_freq": summary_freq, "checkpoint_interval": checkpoint_interval,
        }
        self.trainer: RecorderTrainer | ReplayRecorder
        if off_policy:
            self.trainer = ReplayRecorder(steps_per_update, warm_up, time_horizon)
            settings = SACSettings(hyperparameters=SACHyperparameters(steps_per_update=steps_per_update), **rest)
        else:
            self.trainer = RecorderTrainer(buffer_size, time_horizon)
            settings = PPOSettings(hyperparameters=PPOHyperparameters(buffer_size=buffer_size, batch_size=1), **rest)
        self.trainer.compile()
        self.credit = credit = new_book()
        credit.open(0)
        self.loop = TrainerLoop(
            BEHAVIOR, self.trainer, settings, SPEC, self.wire, self.wire.exchange, credit, version=0, lock_step=lock_step,
            clock=clock,
        )
        self._speeds = speeds or [1.0] * (len(envs) + 1)
        for manager in self.managers:
            manager.start()

    def turn(self) -> None:
        """One turn of a component drawn at random."""
        self._random.choices([*self.managers, self.loop], self._speeds)[0].advance(0.0)

    def run_until(self, done: Callable[[], bool], most_turns: int = 100_000) -> None:
        """Turns until `done`, which must come within `most_turns`."""
        for _ in range(most_turns):
            if done():
                return
            self.turn()
        raise AssertionError(f"no end after {most_turns} turns: {self.loop.status()}, {[m.status() for m in self.managers]}")

    @property
    def produced(self) -> int:
        """Agent steps that the managers say they completed."""
        return sum(m.status().produced[BEHAVIOR] for m in self.managers)

    @property
    def unshipped(self) -> int:
        """Of those, not shipped."""
        return sum(m.status().unshipped[BEHAVIOR] for m in self.managers)

    @property
    def balance(self) -> int:
        """produced − (consumed + dropped + queued + unshipped), agent steps; 0 if nothing got lost and nothing counts twice."""
        ledger = self.loop.ledger
        return self.produced - ledger.consumed - sum(ledger.dropped.values()) - self.wire.queued_rows - self.unshipped
