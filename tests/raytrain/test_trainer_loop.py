"""The trainer loop: what it takes, when it learns and publishes, what it counts and says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from raytrain.credit import CreditBook, first_round
from raytrain.intake import ManagerChange
from raytrain.messages import CheckpointDue, Credit, Episodes, Header
from raytrain.queues import LocalExchange
from raytrain.stats import Summary
from raytrain.trainer_loop import TrainerLoop
from tests.raytrain.fake_run import FakeRun
from tests.raytrain.fakes import BEHAVIOR, MEMORY_SIZE, SPEC, RecorderTrainer, ScriptedEnv, mask_of, memory_of, observe, reward_of
from trainers.settings import PPOHyperparameters, PPOSettings
from trainers.trajectory import TrajectoryBatch, empty_batch

ENDLESS = 10**9


def batch_of(rows: int, version: int = 0, episode: int = 0) -> TrajectoryBatch:
    """One trajectory of `rows` steps of slot 0 that ends its episode."""
    batch = empty_batch(SPEC, MEMORY_SIZE)
    if not rows:
        return batch
    step, same = np.arange(rows), np.full(rows, episode)
    batch.obs = observe(step * 0, same, step)
    batch.continuous = np.stack([np.full(rows, version), step], axis=-1).astype(np.float32)
    batch.action_mask, batch.memory = mask_of(step * 0, same, step), memory_of(step * 0, step)
    batch.discrete = batch.action_mask.argmax(axis=1)[:, None].astype(np.int32)
    batch.log_prob = -(same * 256 + step).astype(np.float32)
    batch.reward, batch.version = reward_of(step * 0, same, step), np.full(rows, version, np.int64)
    batch.length, batch.agent_id, batch.episode_id = np.array([rows], np.int32), np.zeros(1, np.int64), np.full(1, episode)
    batch.begin, batch.next_action_mask = np.zeros(1, np.int64), mask_of(np.zeros(1), same[:1], np.array([rows]))
    batch.next_obs = observe(np.zeros(1), same[:1], np.array([rows]))
    batch.terminated, batch.truncated = np.ones(1, bool), np.zeros(1, bool)
    batch.episode_return, batch.episode_length = np.array([float(rows)]), np.array([rows])
    return batch


class Loop:
    """A trainer loop with a recorder, fed by hand."""

    def __init__(self, buffer_size: int = 10, max_policy_lag: int = 10, managers: int = 1, lock_step: bool = False,
                 clock: Callable[[], float] = lambda: 0.0, trainer: RecorderTrainer | None = None, version: int = 0,
                 state: dict | None = None, elapsed_s: float = 0.0, **settings: int) -> None:
        self.exchange = LocalExchange(1000)
        self.trainer = trainer or RecorderTrainer(buffer_size, time_horizon=ENDLESS)
        self.trainer.compile()
        book = CreditBook({f"env-manager-{i}": 1 for i in range(managers)}, buffer_size, max_policy_lag, equal_shares=lock_step)
        self.trainer.version = self.trainer._first_version = version
        book.open(version)
        rest = {"max_steps": ENDLESS, "summary_freq": ENDLESS, "checkpoint_interval": ENDLESS, **settings}
        chosen = PPOSettings(hyperparameters=PPOHyperparameters(buffer_size=buffer_size, batch_size=1), **rest)
        self.loop = TrainerLoop(
            BEHAVIOR, self.trainer, chosen, SPEC, self.exchange, self.exchange, book, version=version, lock_step=lock_step, clock=clock,
            elapsed_s=elapsed_s, state=state,
        )
        self._sent: dict[tuple[str, int], list[int]] = {}

    def send(self, rows: int, version: int = 0, rounds_done: int = 0, manager: int = 0, sequence: int | None = None,
             incarnation: int = 0, agent_steps: int | None = None) -> None:
        """Put the next item of a manager into the queue (or one with another sequence number)."""
        sent = self._sent.setdefault((f"env-manager-{manager}", incarnation), [])
        sent.append(rows)
        number = len(sent) - 1 if sequence is None else sequence
        header = Header(
            behavior=BEHAVIOR, manager=f"env-manager-{manager}", incarnation=incarnation, sequence=number, rows=rows,
            agent_steps=sum(sent) if agent_steps is None else agent_steps, env_steps=sum(sent), rounds_done=rounds_done, oldest_version=version if rows else -1,
            newest_version=version if rows else -1, longest_episode=100 + number, busy_s=1.0,
        )
        assert self.exchange.put(header, batch_of(rows, version, number), 0.0)

    @property
    def learnt(self) -> list[int]:
        return self.trainer.rows_learnt

    def events(self, kind: type) -> list:
        return [e for e in self.loop.drain_events() if isinstance(e, kind)]


# -- what is taken, and when it learns ---------------------------------------------------------------------------------


def test_it_takes_what_waited_and_no_more() -> None:
    """The original change's test: items that arrive while a turn is going on are left for the next one."""
    run = Loop(buffer_size=100)
    process = run.trainer.process

    def busy_producer(batch: TrajectoryBatch, manager: str) -> dict[str, float]:
        run.send(2)
        return process(batch, manager)

    run.trainer.process = busy_producer
    for _ in range(3):
        run.send(1)
    assert not run.loop.advance(0.0)
    assert run.trainer.agent_steps == 3 and run.exchange.waiting() == 3
    assert not run.loop.advance(0.0)
    assert run.trainer.agent_steps == 9 and run.exchange.waiting() == 3


def test_it_stops_taking_when_an_update_is_ready() -> None:
    """The original change's test: 5 items of 6 rows wait, a buffer is 10: each turn takes two and learns."""
    run = Loop(buffer_size=10)
    for _ in range(5):
        run.send(6)
    assert run.loop.advance(0.0) and run.learnt == [12] and run.exchange.waiting() == 3
    assert run.loop.advance(0.0) and run.learnt == [12, 12] and run.exchange.waiting() == 1
    assert not run.loop.advance(0.0) and run.learnt == [12, 12] and run.exchange.waiting() == 0


def test_rows_held_never_exceed_a_buffer_and_one_item() -> None:
    """Back-pressure works since the trainer hoards nothing: random items, random turns."""
    rng = np.random.default_rng(0)
    run = Loop(buffer_size=20, max_policy_lag=1000)
    largest = 0
    for _ in range(200):
        for _ in range(rng.integers(4)):
            rows = int(rng.integers(0, 15))
            largest = max(largest, rows)
            run.send(rows, version=run.trainer.version)
        run.loop.advance(0.0)
    assert len(run.learnt) > 30 and run.trainer.most_rows_held < 20 + largest


def test_an_update_waits_for_every_manager_that_the_lag_limit_asks_for() -> None:
    """At limit 0 a full buffer is not enough: the round of the other manager has to come first."""
    run = Loop(buffer_size=10, max_policy_lag=0, managers=2)
    run.send(12, rounds_done=1, manager=0)
    assert not run.loop.advance(0.0) and run.loop.status().phase != "updating"
    assert run.loop.status().rows_held == 12
    run.send(3, rounds_done=0, manager=1)
    assert not run.loop.advance(0.0)
    run.send(2, rounds_done=1, manager=1)
    assert run.loop.advance(0.0) and run.learnt == [17]


def test_a_waiting_trainer_names_who_is_late() -> None:
    """The phase says whose trajectories are missing."""
    run = Loop(buffer_size=10, max_policy_lag=0, managers=2)
    run.send(12, rounds_done=1, manager=1)
    run.loop.advance(0.0)
    run.loop.advance(0.0)
    assert run.loop.status().phase == "waiting for trajectories of env-manager-0"


def test_an_empty_queue_is_waited_for() -> None:
    """With nothing there it blocks in the source for the time it was given, and never spins."""
    run = Loop()
    waits: list[float] = []
    run.exchange.wait = waits.append
    assert not run.loop.advance(0.25)
    run.send(1)
    assert not run.loop.advance(0.25)
    assert waits == [0.25] and run.trainer.agent_steps == 1


def test_items_without_rows_count_their_round() -> None:
    """An item without rows reaches the trainer's credit and takes part in no lag."""
    run = Loop(buffer_size=4, max_policy_lag=0)
    run.send(4)
    assert not run.loop.advance(0.0)
    run.send(0, rounds_done=1)
    assert run.loop.advance(0.0) and run.learnt == [4] and run.trainer.lags == [0]


# -- publishing --------------------------------------------------------------------------------------------------------


def test_a_policy_is_published_after_an_update_and_never_without() -> None:
    """The original change's test: one message per update, with the next version, its weights and a grant; nothing otherwise."""
    run = Loop(buffer_size=10)
    assert run.exchange.newest() is None
    for expected in range(1, 4):
        for _ in range(3):
            run.send(3)
            assert not run.loop.advance(0.0)
            run.loop.advance(0.0)  # nothing waits
        before = run.exchange.newest()
        assert (before.version if before else 0) == expected - 1
        run.send(1)
        assert run.loop.advance(0.0)
        message = run.exchange.newest()
        assert message.version == message.serial == expected == run.loop.version == run.trainer.version
        assert all((w == expected).all() for w in message.weights.values())
        assert message.credit["env-manager-0"].end == 11 + expected


def test_a_failed_update_publishes_nothing() -> None:
    """A fault of the algorithm comes out as it is, and the old policy stays the newest."""
    run = Loop(buffer_size=3)

    def broken(between_chunks: Callable[[], None]) -> dict[str, float]:
        raise FloatingPointError("the loss is not finite")

    run.trainer.update = broken
    run.send(3)
    with pytest.raises(FloatingPointError):
        run.loop.advance(0.0)
    assert run.exchange.newest() is None and run.loop.version == 0


def test_rows_beyond_the_lag_limit_are_refused_aloud() -> None:
    """The invariant is checked in the running system: rows that are too old mean that the credit rule is broken."""
    run = Loop(buffer_size=10, max_policy_lag=1)
    for _ in range(2):
        run.send(10, version=0, rounds_done=2)
        assert run.loop.advance(0.0)
    run.send(9, version=2, rounds_done=3)
    run.send(1, version=0, rounds_done=4)
    with pytest.raises(RuntimeError, match="lag 2 of Audit is above max_policy_lag=1"):
        run.loop.advance(0.0)


def test_the_lag_is_logged_as_mean_and_maximum() -> None:
    """30 rows of version 0 and 10 of version 2 at version 2: mean 1.5 over the rows, maximum 2."""
    run = Loop(buffer_size=40, summary_freq=120)
    for version in range(2):
        run.send(40, version)
        run.loop.advance(0.0)
    run.loop.drain_events()
    run.send(30, version=0)
    run.send(10, version=2)
    run.loop.advance(0.0)
    run.send(119, version=3)
    run.send(1, version=3)
    while run.exchange.waiting():
        run.loop.advance(0.0)
    (summary,) = [s for s in run.events(Summary) if s.step == 240]
    assert summary.values["Policy/Policy Lag Max"] == 2
    first, second = 1.5, 0.0  # the update at version 2, and the one of 119 rows at version 3
    assert summary.values["Policy/Policy Lag Mean"] == pytest.approx((first + second) / 2)


# -- duplicates, gaps, the end -----------------------------------------------------------------------------------------


def test_duplicates_are_ignored_and_gaps_counted() -> None:
    """Invariant 1: sequence numbers 0, 1, 1, 0, 4, 3, 5 of 3 rows each are 4 items and 2 missing ones."""
    run = Loop(buffer_size=1000)
    for sequence in (0, 1, 1, 0, 4, 3, 5):
        run.send(3, sequence=sequence, agent_steps=3 * (sequence + 1))
    run.loop.advance(0.0)
    assert run.trainer.agent_steps == run.loop.ledger.consumed == 12
    assert run.loop.status().ledger == {"consumed": 12, "gaps": 2, "dropped_queue_died": 6}


def test_incarnations_have_sequences_of_their_own() -> None:
    """A manager that was started again begins at 0 and loses nothing by it; a late item of the old one is dropped, for what was granted
    has been granted anew, and the account stays exact."""
    run = Loop(buffer_size=1000)
    run.send(3)
    run.send(3)
    run.loop.advance(0.0)
    run.loop.request_change(ManagerChange("restarted", "env-manager-0", 1, produced=11))
    run.send(3, incarnation=1)
    run.send(3)
    run.send(3, incarnation=1)
    run.loop.advance(0.0)
    assert run.loop.status().ledger == {"consumed": 12, "gaps": 0, "dead_produced": 11, "dropped_owner_died": 5}
    assert {m for m, _ in run.trainer.batches} == {"env-manager-0/0", "env-manager-0/1"}, "episode ids of two lives would clash"


def test_a_finished_trainer_keeps_draining_and_counts() -> None:
    """Invariant 8: the buffer that reaches `max_steps` is still learnt from; everything that comes later is counted as `finished`."""
    run = Loop(buffer_size=10, max_steps=30)
    for _ in range(10):
        run.send(5)
    while run.exchange.waiting():
        run.loop.advance(0.0)
    assert run.loop.finished and run.loop.status().finished
    assert run.trainer.agent_steps == 30 and run.learnt == [10, 10, 10]
    assert run.loop.status().ledger == {"consumed": 30, "gaps": 0, "dropped_finished": 20}
    assert run.exchange.newest().version == 3


def test_the_end_counts_what_was_not_taken_and_saves() -> None:
    """At the shutdown waiting items, and those of an incomplete round, are dropped by that name; a last checkpoint comes."""
    run = Loop(buffer_size=10, max_policy_lag=0, managers=2, lock_step=True)
    run.send(6, manager=0)
    run.loop.advance(0.0)  # kept until the round is complete
    run.send(7, manager=0)
    run.send(7, manager=0, sequence=1)  # a duplicate
    run.loop.finish()
    assert run.loop.status().ledger == {"consumed": 0, "gaps": 0, "dropped_shutdown": 13}
    (checkpoint,) = run.events(CheckpointDue)
    assert checkpoint.label == checkpoint.snapshot.agent_steps == 0


# -- summaries, episodes, checkpoints ----------------------------------------------------------------------------------


def test_intervals_count_agent_steps_whatever_the_batch() -> None:
    """C32: 32 envs, horizon 16, checkpoint_interval 1,000, 60,000 steps: 60 checkpoints (±1) and summaries, at multiples."""
    env = ScriptedEnv(num_envs=32, length=lambda slot, episode: 200)
    run = FakeRun([env], buffer_size=512, time_horizon=16, max_steps=60_000, summary_freq=1_000, checkpoint_interval=1_000)
    run.run_until(lambda: run.loop.finished)
    events = run.loop.drain_events()
    for labels in ([e.label for e in events if isinstance(e, CheckpointDue)], [e.step for e in events if isinstance(e, Summary)]):
        assert abs(len(labels) - 60) <= 1
        assert labels == [1_000 * (i + 1) for i in range(len(labels))]


def test_an_item_that_crosses_several_multiples_gives_one_summary_and_one_save() -> None:
    """Labelled with the last multiple crossed: items of 7, 30 and 3 rows at intervals of 10 and 5."""
    run = Loop(buffer_size=ENDLESS, summary_freq=10, checkpoint_interval=5)
    found = []
    for rows in (7, 30, 2, 1, 9):
        run.send(rows)
        run.loop.advance(0.0)
        events = run.loop.drain_events()
        summaries = [e.step for e in events if isinstance(e, Summary)]
        found.append((summaries, [e.label for e in events if isinstance(e, CheckpointDue)]))
    assert found == [([], [5]), ([30], [35]), ([], []), ([40], [40]), ([], [45])]
    assert run.trainer.agent_steps == 49


def test_a_summary_before_the_first_episode_has_no_return() -> None:
    """No episode finished yet: no Environment tag, no NaN, no 0; the longest running one is told instead."""
    run = Loop(summary_freq=5)
    run.send(6)
    header, batch = run.exchange.take()
    batch.episode_return, batch.episode_length = batch.episode_return[:0], batch.episode_length[:0]
    run.exchange.put(header, batch, 0.0)
    run.loop.advance(0.0)
    (summary,) = run.events(Summary)
    assert summary.episodes == 0 and summary.longest_episode == 100
    assert not [tag for tag in summary.values if tag.startswith("Environment/")]
    assert np.isfinite(list(summary.values.values())).all()


def test_a_summary_tells_what_happened_since_the_last_one() -> None:
    """Rates over the time between two summaries (C04), counters in total, queue fill, and the algorithm's own values."""
    now = [0.0]
    run = Loop(buffer_size=10, summary_freq=20, clock=lambda: now[0], elapsed_s=100.0)
    for seconds, version in ((2.0, 0), (4.0, 2)):
        for i in range(2):
            run.send(10, version + i)
            now[0] += seconds / 2
            run.loop.advance(0.0)
    first, second = run.events(Summary)
    assert (first.step, second.step) == (20, 40) and (first.elapsed_s, second.elapsed_s) == (102.0, 106.0), "with those of the run before it was resumed"
    assert first.values["System/Steps per Second"] == 10.0 and second.values["System/Steps per Second"] == 5.0
    assert second.values["System/Updates per Second"] == pytest.approx(6 / 4)
    assert second.values["System/Agent Steps Consumed"] == second.values["System/Env Steps"] == 40
    assert second.values["System/Policy Updates"] == 3 and second.values["System/Updates"] == 9
    assert second.values["System/Agent Steps Dropped"] == 0 and second.values["System/Queue Fill"] == 1
    assert second.values["Environment/Cumulative Reward"] == 10.0 and second.episodes == 2
    assert second.values["Losses/Value Loss"] == 0.5 and second.values["Policy/Entropy"] == 1.0


def test_episodes_are_told_in_the_order_of_consumption() -> None:
    """Each with the agent steps at which it was taken in."""
    run = Loop(buffer_size=ENDLESS)
    for rows in (3, 1, 2):
        run.send(rows)
    run.loop.advance(0.0)
    found = [(e.returns.tolist(), e.lengths.tolist(), e.step) for e in run.events(Episodes)]
    assert found == [([3.0], [3], 3), ([1.0], [1], 4), ([2.0], [2], 6)]
    assert run.loop.drain_events() == []


def test_a_checkpoint_is_one_moment() -> None:
    """Trainer state, policy and version belong together; one that is asked for comes before the next item is taken."""
    run = Loop(buffer_size=10)
    for _ in range(3):
        run.send(5)
    run.loop.request_save()
    run.loop.advance(0.0)
    run.loop.request_save()
    run.loop.advance(0.0)
    first, second = run.events(CheckpointDue)
    assert (first.label, first.snapshot.policy_version) == (0, 0)
    assert (second.label, second.snapshot.agent_steps, second.snapshot.policy_version) == (10, 10, 1)
    for event in (first, second):
        snapshot = event.snapshot
        assert all((w == snapshot.policy_version).all() for w in snapshot.policy.values())
        assert (snapshot.trainer.tensors["weights"] == snapshot.policy_version).all()
        assert snapshot.trainer.scalars["agent_steps"] == snapshot.agent_steps and snapshot.spec == SPEC
    run.loop.advance(0.0)
    assert run.events(CheckpointDue) == []


def test_a_checkpoint_has_the_mean_return_of_the_last_hundred_episodes() -> None:
    """None before there are so many: the mean of a few short episodes would look best for ever."""
    run = Loop(buffer_size=ENDLESS)
    for episodes, expected in ((99, None), (1, np.mean(range(1, 101))), (20, np.mean(range(21, 121)))):
        for _ in range(episodes):
            run.send(len(run.trainer.batches) + 1)  # its return, too
            run.loop.advance(0.0)
        run.loop.request_save()
        run.loop.advance(0.0)
        (checkpoint,) = run.events(CheckpointDue)
        assert checkpoint.snapshot.reward == expected


def test_a_resumed_loop_goes_on_with_its_counters() -> None:
    """Versions, env steps and intervals continue; rates count only what happened since."""
    trainer = RecorderTrainer(10, time_horizon=ENDLESS, version=7)
    trainer.agent_steps = 95
    exchange = LocalExchange()
    book = CreditBook({"env-manager-0": 1}, 10, 0, equal_shares=True)
    assert book.open(7) == {"env-manager-0": Credit(0, (10,))}
    trainer.compile()
    settings = PPOSettings(hyperparameters=PPOHyperparameters(buffer_size=10, batch_size=1), summary_freq=50)
    now = [3.0]
    loop = TrainerLoop(BEHAVIOR, trainer, settings, SPEC, exchange, exchange, book, 7, env_steps=190, clock=lambda: now[0])
    header = Header(BEHAVIOR, "env-manager-0", 0, 0, 10, 10, 20, 1, 7, 7, 0, 1.0)
    exchange.put(header, batch_of(10, version=7), 0.0)
    now[0] = 5.0
    assert loop.advance(0.0)
    assert exchange.newest().version == loop.version == 8 and loop.status().env_steps == 210
    (summary,) = [e for e in loop.drain_events() if isinstance(e, Summary)]
    assert summary.step == 100 and summary.values["System/Steps per Second"] == 5.0


# -- lock-step ---------------------------------------------------------------------------------------------------------


def test_lock_step_takes_whole_rounds_in_the_order_of_managers() -> None:
    """Items are sorted by (manager, sequence number) whatever order they came in, and nothing is taken before all are there."""
    for order in ([0, 0, 1, 2], [2, 1, 0, 0], [1, 0, 2, 0]):
        run = Loop(buffer_size=9, max_policy_lag=0, managers=3, lock_step=True)
        left = {m: order.count(m) for m in order}
        for i, manager in enumerate(order):
            assert run.trainer.agent_steps == 0
            left[manager] -= 1
            run.send(3 + manager, manager=manager, rounds_done=int(left[manager] == 0))
            assert run.loop.advance(0.0) == (i == len(order) - 1)
        assert [(m, b.rows) for m, b in run.trainer.batches] == [
            ("env-manager-0/0", 3), ("env-manager-0/0", 3), ("env-manager-1/0", 4), ("env-manager-2/0", 5),
        ]
        assert run.learnt == [15]


# -- a trainer that takes over, and env managers that die ----------------------------------------------------------------


def taking_over(run: Loop, epoch: int = 1, rolled_back: int = 0, ledger: dict | None = None, ended: tuple = ()) -> None:
    """Put in place of the loop another one, `epoch` times started, that goes on from version 0."""
    book = CreditBook({"env-manager-0": 1}, 10, 0, equal_shares=True, epoch=epoch)
    book.open(5)
    settings = PPOSettings(hyperparameters=PPOHyperparameters(buffer_size=10, batch_size=1), max_steps=ENDLESS)
    run.trainer = RecorderTrainer(10, time_horizon=ENDLESS, version=5)
    run.trainer.compile()
    run.loop = TrainerLoop(
        BEHAVIOR, run.trainer, settings, SPEC, run.exchange, run.exchange, book, version=5, serial=40, epoch=epoch, rolled_back=rolled_back)
    run.loop.go_on_with_ledger(ledger, ended)


def test_a_trainer_that_takes_over_publishes_above_all_that_was_seen() -> None:
    """Versions and serials go on from what it was told, and its messages say how often it was started."""
    run = Loop(buffer_size=10)
    taking_over(run, epoch=2)
    header = Header(BEHAVIOR, "env-manager-0", 0, 0, 10, 10, 10, first_round(2, 0) + 1, 5, 5, 0, 1.0, epoch=2)
    run.exchange.put(header, batch_of(10, version=5), 0.0)
    assert run.loop.advance(0.0)
    message = run.exchange.newest()
    assert (message.serial, message.version, message.epoch) == (41, 6, 2)
    assert message.credit == {"env-manager-0": Credit(first_round(2, 0) + 1, (10,))}


def test_rows_of_its_predecessor_are_counted_and_not_learnt_from() -> None:
    """On-policy; of the next epoch's rows an update is made as ever."""
    run = Loop(buffer_size=10)
    taking_over(run)
    for sequence, (epoch, done) in enumerate([(0, 1), (0, 2), (1, first_round(1, 0) + 1)]):
        header = Header(BEHAVIOR, "env-manager-0", 0, sequence, 10, 10 * (sequence + 1), 0, done, 5, 5, 0, 1.0, epoch=epoch)
        run.exchange.put(header, batch_of(10, version=5, episode=sequence), 0.0)
    assert run.loop.advance(0.0) and run.learnt == [10] and run.trainer.agent_steps == 10
    assert run.loop.ledger.report() == {"consumed": 10, "gaps": 0, "dropped_stale_epoch": 20}


def test_the_account_of_a_trainer_that_died_is_taken_over() -> None:
    """15 were consumed up to the checkpoint and 10 in vain after it; a manager that died had produced 7."""
    run = Loop(buffer_size=ENDLESS)
    for rows in (5, 10):
        run.send(rows)
    run.loop.advance(0.0)
    run.loop.request_save()
    run.loop.advance(0.0)
    (saved,) = run.events(CheckpointDue)
    assert saved.ledger["consumed"] == 15
    run.send(10)
    run.loop.advance(0.0)
    taking_over(run, rolled_back=10, ledger=saved.ledger, ended=(("env-manager-1", 0, 7),))
    run.send(3)
    run.loop.advance(0.0)
    assert run.loop.ledger.report() == {
        "consumed": 15, "gaps": 1, "dead_produced": 7, "dropped_consumer_died": 10, "dropped_owner_died": 7, "dropped_stale_epoch": 3}
    status = run.loop.status()
    assert (status.epoch, status.rolled_back) == (1, 10)


def test_a_manager_that_lives_again_is_told_its_credit_at_once() -> None:
    """Without an update: the same version, another serial, and what the dead one had not delivered."""
    run = Loop(buffer_size=10, max_policy_lag=0)
    run.send(4)
    run.loop.advance(0.0)
    assert run.exchange.newest() is None
    run.loop.request_change(ManagerChange("restarted", "env-manager-0", 1, produced=6))
    run.loop.advance(0.0)
    message = run.exchange.newest()
    assert (message.version, message.serial) == (0, 1) and message.credit == {"env-manager-0": Credit(first_round(0, 1), (6,))}
    run.loop.advance(0.0)
    assert run.exchange.newest() is message, "told once"
    run.send(6, rounds_done=first_round(0, 1) + 1, incarnation=1)
    assert run.loop.advance(0.0) and run.learnt == [10]
    assert run.loop.ledger.report() == {"consumed": 10, "gaps": 0, "dead_produced": 6, "dropped_owner_died": 2}


def test_the_end_counts_what_nobody_delivered() -> None:
    """What env managers say to have shipped and what never came: a queue had died with it."""
    run = Loop(buffer_size=100)
    run.send(10)
    run.loop.advance(0.0)
    run.loop.finish({("env-manager-0", 0): 25})
    assert run.loop.ledger.report() == {"consumed": 10, "gaps": 0, "dropped_queue_died": 15}


def test_rows_that_waited_at_a_checkpoint_do_not_count_for_the_lag_after_a_resume() -> None:
    """They are not part of it: a trainer that goes on, at a later version, would take its first update for one of old rows."""
    run = Loop(buffer_size=10, max_policy_lag=1)
    run.send(6)
    run.loop.advance(0.0)
    saved = run.loop.state()
    assert saved["held_versions"], "nothing was tried"
    later = Loop(buffer_size=10, max_policy_lag=1, version=20, state=saved)
    later.send(12, version=20, rounds_done=1)
    assert later.loop.advance(0.0) and later.learnt == [12]
