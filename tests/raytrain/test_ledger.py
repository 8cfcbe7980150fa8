"""The ledger: produced = consumed + dropped + queued (+ unshipped), in agent steps, at every turn."""

from __future__ import annotations

import json
import random
from collections import Counter, deque
from dataclasses import replace

import numpy as np
import pytest

from raytrain.ledger import Ledger
from raytrain.messages import Header
from tests.raytrain.fake_run import FakeRun
from tests.raytrain.fakes import BEHAVIOR, ScriptedEnv
from trainers.trajectory import TrajectoryBatch


def header(manager: str, sequence: int, incarnation: int = 0, env_steps: int = 0) -> Header:
    return Header(
        behavior=BEHAVIOR, manager=manager, incarnation=incarnation, sequence=sequence, rows=1, agent_steps=1,
        env_steps=env_steps, rounds_done=0, oldest_version=0, newest_version=0, longest_episode=0, busy_s=0.0,
    )


def random_run(seed: int, **more) -> FakeRun:
    """1 to 3 managers with environments that answer when they like; a small queue, a short or long horizon, any lag limit."""
    rng = np.random.default_rng(seed)

    def env(index: int) -> ScriptedEnv:
        draw = np.random.default_rng([seed, index])
        return ScriptedEnv(
            num_envs=int(rng.integers(1, 5)), agents_per_env=int(rng.integers(1, 3)),
            length=lambda slot, episode: 1 + (episode * 7) % 11, ready=lambda busy: busy & (draw.random(len(busy)) < 0.6),
        )

    envs = [env(i) for i in range(rng.integers(1, 4))]
    return FakeRun(
        envs, buffer_size=int(rng.integers(5, 40)), max_policy_lag=int(rng.integers(3)), time_horizon=int(rng.integers(1, 9)),
        capacity=int(rng.integers(1, 5)), delay=int(rng.integers(4)), seed=seed, **more,
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_books_balance_at_every_turn_and_after_the_end(seed: int) -> None:
    """C01, invariant 1: nothing is lost and nothing counts twice, until and after `max_steps` and the shutdown."""
    run = random_run(seed, max_steps=400)
    for turn in range(700):
        run.turn()
        assert run.balance == 0, f"after turn {turn}"
        if run.loop.finished and turn > 500:
            break
    assert run.loop.ledger.consumed > 30
    assert run.produced == sum(len(np.concatenate(env.delivered)) for env in run.envs)
    assert run.loop.ledger.consumed == run.trainer.agent_steps == sum(b.rows for _, b in run.trainer.batches)
    run.loop.finish()
    assert run.wire.queued_rows == 0 and run.balance == 0


def test_a_finished_run_says_where_everything_went() -> None:
    """What the managers still had credit for is consumed or counted as `finished`."""
    finished = 0
    for seed in range(5):
        run = random_run(seed, max_steps=100)
        for _ in range(800):
            run.turn()
        assert run.loop.finished and set(run.loop.ledger.dropped) <= {"finished"}
        assert run.balance == run.unshipped == run.wire.queued_rows == 0
        finished += run.loop.ledger.dropped["finished"]
    assert finished > 0


def test_lock_step_holds_only_the_rows_of_a_round_that_is_not_complete() -> None:
    """Between two updates the loop keeps items to sort them; at each update everything that was taken is consumed."""
    envs = [ScriptedEnv(num_envs=n, length=lambda slot, episode: 5) for n in (1, 3)]
    run = FakeRun(envs, buffer_size=12, max_policy_lag=0, lock_step=True)
    kept = []
    while run.trainer.policy_updates < 20:
        before = run.trainer.policy_updates
        run.turn()
        kept.append(run.balance)
        assert run.balance == 0 or run.trainer.policy_updates == before
    assert set(kept) == {0, 6}, "one manager's half of a round"


def test_items_that_come_twice_do_not_disturb_the_books() -> None:
    """A producer that died in a blocked put may deliver again, later and out of order."""
    run = random_run(2)
    rng = np.random.default_rng(0)
    put, old = run.wire.put, []

    def put_twice(header: Header, batch: TrajectoryBatch, timeout_s: float) -> bool:
        if old and rng.random() < 0.5:
            run.wire.exchange.put(*old[rng.integers(len(old))], 0.0)
        if not put(header, batch, timeout_s):
            return False
        old.append((header, batch))
        return True

    run.wire.put = put_twice
    for _ in range(700):
        run.turn()
        assert run.balance == 0
    assert run.loop.ledger.gaps == 0 and run.trainer.policy_updates > 5


def test_lost_items_are_counted_as_gaps() -> None:
    """Two of every four items vanish; both are gaps once the next one of their manager has come."""
    ledger = Ledger()
    assert all(ledger.accept(header("a", s)) for s in range(40) if s % 4 in (0, 3))
    assert ledger.gaps == 20
    assert not ledger.accept(header("a", 1)), "too late: it was counted as missing"
    assert ledger.gaps == 20


def test_managers_and_incarnations_are_accounted_apart() -> None:
    """Sequence numbers and env steps belong to one life of one manager; env steps are summed over all of them."""
    ledger = Ledger()
    assert ledger.accept(header("a", 0, env_steps=10)) and ledger.accept(header("b", 0, env_steps=5))
    assert ledger.accept(header("a", 1, env_steps=30)) and ledger.accept(header("a", 0, incarnation=1, env_steps=7))
    assert not ledger.accept(header("a", 1, env_steps=30))
    assert ledger.env_steps == 30 + 5 + 7 and ledger.gaps == 0


def test_the_report_names_every_reason() -> None:
    """JSON-able, one entry per reason."""
    ledger = Ledger()
    ledger.consumed = 7
    ledger.dropped["finished"] += 3
    ledger.dropped["shutdown"] += 2
    assert ledger.report() == {"consumed": 7, "gaps": 0, "dropped_finished": 3, "dropped_shutdown": 2}


# -- what dies ---------------------------------------------------------------------------------------------------------


def shipped(manager: str, sequence: int, rows: int, total: int, incarnation: int = 0) -> Header:
    """An item of `rows`, the last of `total` that this life has shipped."""
    return replace(header(manager, sequence, incarnation), rows=rows, agent_steps=total)


def test_what_a_dead_manager_had_not_told_of_is_lost_with_it() -> None:
    """It had produced 30, items told of 10: 20 are dropped; a straggler of 15 that comes after all is taken back from them."""
    ledger = Ledger()
    ledger.accept(shipped("a", 0, 10, 10))
    ledger.consumed = 10
    ledger.ended("a", 0, produced=30)
    assert ledger.report() == {"consumed": 10, "gaps": 0, "dead_produced": 30, "dropped_owner_died": 20}
    assert ledger.accept(shipped("a", 1, 15, 25))
    ledger.consumed += 15
    assert ledger.report() == {"consumed": 25, "gaps": 0, "dead_produced": 30, "dropped_owner_died": 5}
    ledger.ended("a", 0, produced=30)
    assert ledger.dropped["owner_died"] == 5, "an end is counted once"


def test_a_straggler_may_tell_of_more_than_anybody_knew() -> None:
    """The last status was older than the last item: what it produced is then what the item says."""
    ledger = Ledger()
    ledger.ended("a", 0, produced=10)
    ledger.accept(shipped("a", 0, 12, 12))
    ledger.consumed = 12
    assert ledger.report() == {"consumed": 12, "gaps": 0, "dead_produced": 12}


def test_rows_that_a_queue_took_with_it_are_known_to_the_step() -> None:
    """By the next item of the same manager, or at the end by what it says to have shipped; a dead one's are in its own account."""
    ledger = Ledger()
    ledger.accept(shipped("a", 0, 10, 10))
    ledger.accept(shipped("a", 3, 5, 40))
    assert ledger.dropped == {"queue_died": 25} and ledger.gaps == 2
    ledger.ended("b", 0, produced=9)
    ledger.settle({("a", 0): 47, ("b", 0): 9, ("c", 0): 3})
    assert ledger.dropped == {"queue_died": 25 + 7 + 3, "owner_died": 9}
    ledger.settle({("a", 0): 47, ("c", 0): 3})
    assert ledger.dropped["queue_died"] == 35, "settled once"


def test_a_trainer_that_takes_over_finds_what_the_dead_one_took_in() -> None:
    """From the checkpoint at 10 of 35 on: the 25 were consumed in vain, and are found with the next item."""
    first = Ledger()
    first.accept(shipped("a", 0, 10, 10))
    first.consumed = 10
    saved = first.state()
    first.accept(shipped("a", 1, 25, 35))
    second = Ledger()
    second.load_state(json.loads(json.dumps(saved)))
    assert second.consumed == 10
    second.accept(shipped("a", 2, 5, 40))
    second.consumed += 5
    assert second.report() == {"consumed": 15, "gaps": 1, "dropped_consumer_died": 25}


class Mishaps:
    """Env managers that produce and ship, a queue that loses and repeats, a trainer; whatever may die dies at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lives = dict.fromkeys("abc", 0)
        self.produced: Counter[tuple[str, int]] = Counter()
        self.sent: Counter[tuple[str, int]] = Counter()
        self.sequence: Counter[tuple[str, int]] = Counter()
        self.dead: dict[tuple[str, int], int] = {}  # as far as the controller knows
        self.queue: deque[Header] = deque()
        self.ledger, self.saved = Ledger(), Ledger().state()

    def step(self) -> None:
        moves = (self.produce, self.ship, self.take, self.save, self.lose, self.repeat, self.end_manager, self.end_trainer)
        self.random.choices(moves, (30, 20, 20, 2, 2, 2, 1, 1))[0]()
        assert all(rows >= 0 for rows in self.ledger.dropped.values()), self.ledger.dropped

    def _someone(self) -> tuple[str, int]:
        return self.random.choice(list(self.lives.items()))

    def produce(self) -> None:
        self.produced[self._someone()] += self.random.randint(1, 9)

    def ship(self) -> None:
        who = self._someone()
        rows = self.produced[who] - self.sent[who]
        self.sent[who] += rows
        self.queue.append(shipped(who[0], self.sequence[who], rows, self.sent[who], who[1]))
        self.sequence[who] += 1

    def take(self) -> None:
        if self.queue and self.ledger.accept(item := self.queue.popleft()):
            if self.random.random() < 0.1:
                self.ledger.dropped["stale_epoch"] += item.rows
            else:
                self.ledger.consumed += item.rows

    def save(self) -> None:
        self.saved = self.ledger.state()

    def lose(self) -> None:
        """The queue dies with what it holds."""
        self.queue.clear()

    def repeat(self) -> None:
        if self.queue:
            self.queue.append(self.random.choice(self.queue))

    def end_manager(self) -> None:
        """The controller's last status of it may be old."""
        who = self._someone()
        self.dead[who] = self.random.randint(self.produced[who] // 2, self.produced[who])
        self.ledger.ended(*who, self.dead[who])
        self.lives[who[0]] += 1

    def end_trainer(self) -> None:
        self.ledger = Ledger()
        self.ledger.load_state(self.saved)
        for who, produced in self.dead.items():
            self.ledger.ended(*who, produced)

    def finish(self) -> int:
        """Agent steps that cannot be explained after the end: items that wait are taken or lost, the rest is settled."""
        while self.queue:
            self.take()
        alive = list(self.lives.items())
        self.ledger.settle({who: self.sent[who] for who in alive})
        unshipped = sum(self.produced[who] - self.sent[who] for who in alive)
        produced = sum(self.produced[who] for who in alive) + self.ledger.dead_produced
        return produced - unshipped - self.ledger.consumed - sum(self.ledger.dropped.values())


@pytest.mark.parametrize("seed", range(200))
def test_consumed_and_dropped_make_up_what_was_produced_whatever_dies(seed: int) -> None:
    """Invariant 1, at the end of 400 random moves; deaths, losses, repeats and trainers that go back are among them."""
    world = Mishaps(seed)
    for _ in range(400):
        world.step()
    assert world.finish() == 0
    assert world.ledger.consumed > 0


def test_a_ledger_that_forgets_who_died_does_not_balance() -> None:
    """The negative control."""

    class Forgetful(Mishaps):
        def end_trainer(self) -> None:
            self.ledger = Ledger()
            self.ledger.load_state(self.saved)

    worlds = [Forgetful(seed) for seed in range(20)]
    for world in worlds:
        for _ in range(400):
            world.step()
    assert any(world.finish() for world in worlds)
