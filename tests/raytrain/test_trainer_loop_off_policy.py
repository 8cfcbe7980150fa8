"""The trainer loop off-policy: updates owed for what was taken, publishes in between, credit without an update, notices."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import count

import numpy as np
import pytest

from raytrain.credit import ReplayCredit
from raytrain.messages import CheckpointDue, Credit, Header, Notice, PolicyMessage
from raytrain.queues import LocalExchange
from raytrain.stats import Summary
from raytrain.trainer_loop import TrainerLoop
from tests.raytrain.fakes import BEHAVIOR, SPEC, ReplayRecorder
from tests.raytrain.test_trainer_loop import ENDLESS, batch_of
from trainers.settings import SACHyperparameters, SACSettings


class Loop:
    """A trainer loop with an off-policy recorder, fed by hand; every message it publishes is kept.

    Args:
        resumed: the first message, which the loop does not publish, grants nothing: the trainer is to say what it wants.
    """

    def __init__(self, steps_per_update: float = 1.0, warm_up: int = 0, ahead: float = 8.0, managers: int = 1, lock_step: bool = False,
                 clock: Callable[[], float] = lambda: 0.0, resumed: bool = False, **settings: int) -> None:
        self.exchange, self.messages = LocalExchange(1000), []
        self.trainer = ReplayRecorder(steps_per_update, warm_up, time_horizon=ENDLESS)
        book = ReplayCredit({f"env-manager-{i}": 1 for i in range(managers)}, ahead, None if resumed else warm_up, lock_step)
        self.granted = book.open(0)
        rest = {"max_steps": ENDLESS, "summary_freq": ENDLESS, "checkpoint_interval": ENDLESS, **settings}
        chosen = SACSettings(hyperparameters=SACHyperparameters(steps_per_update=steps_per_update), **rest)
        self.loop = TrainerLoop(BEHAVIOR, self.trainer, chosen, SPEC, self.exchange, self, book, version=0, lock_step=lock_step, clock=clock)
        self._sent: dict[int, list[int]] = {}

    def publish(self, message: PolicyMessage) -> None:
        self.messages.append(message)

    def send(self, rows: int, rounds_done: int = 0, manager: int = 0, died: bool = False, version: int = 0) -> None:
        """Put the next item of a manager into the queue; one whose arrays died with their process if `died`."""
        sent = self._sent.setdefault(manager, [])
        sent.append(rows)
        number = len(sent) - 1
        header = Header(BEHAVIOR, f"env-manager-{manager}", 0, number, rows, sum(sent), sum(sent), rounds_done, version, version, 0, 1.0)
        assert self.exchange.put(header, None if died else batch_of(rows, version, number), 0.0)

    def events(self, kind: type) -> list:
        return [e for e in self.loop.drain_events() if isinstance(e, kind)]


# -- updates that are owed ---------------------------------------------------------------------------------------------


def test_one_item_may_owe_several_calls_of_updates() -> None:
    """10 rows at 4 updates each are 39 by now: 16, 16 and 7, each published, with versions and serials that grow."""
    run = Loop(steps_per_update=0.25)
    run.send(10, rounds_done=2)
    assert run.loop.advance(0.0)
    assert run.trainer.calls == [16, 16, 7] and run.trainer.owed == 0
    assert [(m.serial, m.version) for m in run.messages] == [(1, 1), (2, 2), (3, 3)]
    for message in run.messages:
        assert all((w == message.version).all() for w in message.weights.values())
    assert run.loop.version == run.trainer.version == 3


@pytest.mark.parametrize("lock_step", [False, True])
@pytest.mark.parametrize("steps_per_update", [0.3, 1.0, 2.5, 20.0])
def test_after_a_turn_at_most_one_update_is_owed(steps_per_update: float, lock_step: bool) -> None:
    """Whatever items come: |agent steps − warm-up − steps_per_update · updates| ≤ steps_per_update from the warm-up on."""
    rng, each = np.random.default_rng(0), Fraction(str(steps_per_update))
    run = Loop(steps_per_update, warm_up=30, lock_step=lock_step)
    for number in range(100):
        run.send(int(rng.integers(0, 15)), rounds_done=number + 1)
        run.loop.advance(0.0)
        counted = run.trainer.agent_steps - 30 - each * run.trainer.updates
        assert counted <= each and (run.trainer.updates == 0 or counted > 0)
    assert run.trainer.updates > 20 and run.loop.ledger.consumed == run.trainer.agent_steps


def test_it_stops_taking_when_it_has_learnt() -> None:
    """As on-policy: the next item waits for the next turn, so that requests from outside are seen between them."""
    run = Loop()
    for _ in range(3):
        run.send(4)
    assert run.loop.advance(0.0) and run.exchange.waiting() == 2 and run.trainer.updates == 3
    assert run.loop.advance(0.0) and run.exchange.waiting() == 1 and run.trainer.updates == 7


def test_old_rows_are_welcome() -> None:
    """There is no lag limit: rows of version 0 are learnt from at version 60, and their lag is told."""
    run = Loop(summary_freq=61)
    for number in range(60):
        run.send(1, rounds_done=number + 1)
        run.loop.advance(0.0)
    assert run.loop.version == 59, "the first of 60 rows owes no update yet"
    run.send(1, rounds_done=61)
    run.loop.advance(0.0)
    (summary,) = run.events(Summary)
    assert summary.values["Policy/Policy Lag Max"] == 58


def test_the_last_items_updates_are_made_when_max_steps_are_reached() -> None:
    """What comes later is dropped, and owes nothing."""
    run = Loop(max_steps=20)
    for _ in range(3):
        run.send(12)
    while run.exchange.waiting():
        run.loop.advance(0.0)
    assert run.loop.finished and run.trainer.updates == 23
    assert run.loop.status().ledger == {"consumed": 24, "gaps": 0, "dropped_finished": 12}


def test_a_checkpoint_comes_after_every_update_that_was_owed() -> None:
    """So that a run that goes on from it owes nothing either."""
    run = Loop(steps_per_update=0.25, checkpoint_interval=10)
    run.send(12)
    run.loop.advance(0.0)
    (checkpoint,) = run.events(CheckpointDue)
    assert checkpoint.label == 10 and checkpoint.snapshot.trainer.scalars == {"agent_steps": 12, "updates": 47}
    assert (checkpoint.snapshot.trainer_type, checkpoint.snapshot.distribution) == ("sac", "squashed_gaussian")
    assert checkpoint.snapshot.policy_version == 3


# -- credit ------------------------------------------------------------------------------------------------------------


def test_collecting_goes_on_in_the_warm_up_without_an_update() -> None:
    """Rows that died with their process are still wanted: more credit, with the same version and a higher serial."""
    run = Loop(warm_up=20, ahead=4)
    assert run.granted == {"env-manager-0": Credit(0, (10, 5))}
    run.send(6)
    assert not run.loop.advance(0.0) and run.messages == []
    run.send(4, rounds_done=1)
    assert not run.loop.advance(0.0)
    run.send(7, rounds_done=3, died=True)
    assert not run.loop.advance(0.0)
    assert [(m.serial, m.version, m.credit["env-manager-0"]) for m in run.messages] == [(1, 0, Credit(1, (5, 2))), (2, 0, Credit(3, (5, 2)))]
    assert all((w == 0).all() for m in run.messages for w in m.weights.values())
    assert run.trainer.updates == 0 and run.loop.ledger.dropped == {"owner_died": 7}


def test_credit_is_not_published_when_there_is_none_to_give() -> None:
    """Rows of a round that is under way make no room."""
    run = Loop(ahead=8, steps_per_update=20.0)
    run.send(3)
    for _ in range(5):
        assert not run.loop.advance(0.0)
    assert run.messages == []
    run.send(2, rounds_done=1)
    assert not run.loop.advance(0.0), "5 rows owe no update"
    assert [(m.serial, m.version, m.credit["env-manager-0"]) for m in run.messages] == [(1, 0, Credit(1, (4, 4)))]


def test_rows_that_are_owed_for_hold_collecting_back() -> None:
    """In the messages between the calls of one item there is as much credit as has been learnt from by then."""
    run = Loop(steps_per_update=0.25, ahead=8)
    assert run.granted == {"env-manager-0": Credit(0, (4, 4))}
    run.send(8, rounds_done=2)
    run.loop.advance(0.0)
    assert run.trainer.calls == [16, 15]
    assert [m.credit["env-manager-0"] for m in run.messages] == [Credit(2, (4,)), Credit(2, (4, 4))]


def test_a_resumed_trainer_grants_what_it_wants_before_anything_came() -> None:
    """The book was opened without a warm-up; the first turn tells what the trainer wants, once."""
    run = Loop(warm_up=20, ahead=8, resumed=True)
    assert run.granted == {"env-manager-0": Credit(0, ())}
    assert not run.loop.advance(0.0) and not run.loop.advance(0.0)
    (message,) = run.messages
    assert (message.serial, message.version) == (1, 0)
    assert message.credit == {"env-manager-0": Credit(0, (10, 5))}


def test_a_resumed_trainer_makes_what_it_owes_before_it_takes_anything() -> None:
    """As the run that was not stopped would have: the updates of rows A come before rows B are taken in."""
    run = Loop(steps_per_update=0.25, resumed=True)
    run.trainer.agent_steps = 8
    run.send(4)
    steps, update = [], run.trainer.update
    run.trainer.update = lambda *rest: steps.append(run.trainer.agent_steps) or update(*rest)
    assert run.loop.advance(0.0) and run.trainer.calls == [16, 15, 16]
    assert steps == [8, 8, 12]


def test_a_run_is_finished_once_nothing_is_owed() -> None:
    """What the last rows owe is learnt whenever the controller looks."""
    run = Loop(steps_per_update=0.25, max_steps=8)
    seen = []
    update = run.trainer.update
    run.trainer.update = lambda *rest: seen.append(run.loop.status().finished) or update(*rest)
    run.send(8, rounds_done=2)
    run.loop.advance(0.0)
    assert seen == [False, False] and run.loop.status().finished


# -- lock-step ---------------------------------------------------------------------------------------------------------


def test_lock_step_grants_only_after_every_update_that_is_owed() -> None:
    """Two managers' rounds complete, 3 calls of updates: only the last message has the next round, the same for both."""
    run = Loop(steps_per_update=0.25, ahead=10, managers=2, lock_step=True)
    assert run.granted == {f"env-manager-{i}": Credit(0, (5,)) for i in range(2)}
    run.send(5, rounds_done=1, manager=1)
    assert not run.loop.advance(0.0) and run.messages == [] and run.trainer.agent_steps == 0
    run.send(5, rounds_done=1, manager=0)
    assert run.loop.advance(0.0) and run.trainer.calls == [16, 16, 7]
    sizes = [{c.sizes for c in m.credit.values()} for m in run.messages]
    assert sizes == [{()}, {()}, {(5,)}] and {c.first_round for m in run.messages for c in m.credit.values()} == {1}
    assert [m for m, _ in run.trainer.batches] == ["env-manager-0/0", "env-manager-1/0"]


def test_lock_step_goes_on_through_the_warm_up() -> None:
    """A complete round that owes no update is followed by the next at once."""
    run = Loop(warm_up=20, ahead=10, managers=2, lock_step=True)
    assert {c.sizes for c in run.granted.values()} == {(10,)}
    for manager in range(2):
        run.send(10, rounds_done=1, manager=manager)
    assert not run.loop.advance(0.0) and run.trainer.agent_steps == 20
    assert [(m.serial, m.version, {c.sizes for c in m.credit.values()}) for m in run.messages] == [(1, 0, {(5,)})]


# -- a long call of updates --------------------------------------------------------------------------------------------


def slow(lock_step: bool) -> Loop:
    """16 updates of 0.4 s each, in one call."""
    now = [0.0]
    run = Loop(lock_step=lock_step, clock=lambda: now[0], ahead=20)

    def chunk() -> None:
        now[0] += 0.4

    run.trainer.chunk_s = chunk
    run.send(17, rounds_done=2 - lock_step)
    run.loop.advance(0.0)
    assert run.trainer.calls == [16]
    return run


def test_a_long_call_publishes_about_every_second_what_it_has_learnt() -> None:
    """After 1.2, 2.4, 3.6, 4.8 and 6 s and at the end; new credit only then, when the updates count as made."""
    run = slow(lock_step=False)
    assert [(m.serial, m.version) for m in run.messages] == [(i, i) for i in range(1, 7)]
    assert all((w == m.version).all() for m in run.messages for w in m.weights.values())
    assert [m.credit["env-manager-0"].sizes for m in run.messages] == [()] * 5 + [(10, 10)]


def test_in_lock_step_a_long_call_publishes_once() -> None:
    """What a clock says must not reach the env managers."""
    run = slow(lock_step=True)
    assert [(m.serial, m.version, m.credit["env-manager-0"].sizes) for m in run.messages] == [(1, 1, (20,))]


def test_short_calls_publish_once_each() -> None:
    """A second counts from the last publish, whichever call it was in."""
    ticks = count()
    run = Loop(clock=lambda: next(ticks) * 0.001)
    for number in range(5):
        run.send(4, rounds_done=number + 1)
        run.loop.advance(0.0)
    assert [m.version for m in run.messages] == [1, 2, 3, 4, 5]


# -- what it says ------------------------------------------------------------------------------------------------------


def test_notices_are_told_once_in_order() -> None:
    """Those of a state that was loaded with the first checkpoint, later ones with the item that they came with."""
    run = Loop()
    run.trainer.notices += ["first", "second"]
    run.loop.request_save()
    run.loop.advance(0.0)
    events = run.loop.drain_events()
    assert events[:2] == [Notice(BEHAVIOR, "first"), Notice(BEHAVIOR, "second")] and isinstance(events[2], CheckpointDue)
    run.trainer.notices.append("third")
    run.send(3)
    run.loop.advance(0.0)
    assert run.events(Notice) == [Notice(BEHAVIOR, "third")] and run.trainer.notices == []
    run.send(3)
    run.loop.advance(0.0)
    assert run.events(Notice) == []


def test_the_ratio_is_in_the_summaries() -> None:
    """Agent steps per update as they really were: 2 in the long run, and the counters beside it."""
    run = Loop(steps_per_update=2.0, warm_up=10, summary_freq=210)
    for number in range(22):
        run.send(10, rounds_done=number + 1)
        run.loop.advance(0.0)
    (summary,) = run.events(Summary)
    assert summary.values["Policy/Steps Per Update"] == pytest.approx(2.0, rel=0.1)
    assert summary.values["System/Updates"] == 94, "of the 190 rows before the item that crossed 210, and one more is owed at 191"
