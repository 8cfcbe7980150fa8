"""The door of a trainer: what is learnt from, what is dropped under which name, and what is granted instead."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from raytrain.credit import CreditBook, ReplayCredit, first_round
from raytrain.intake import Intake, ManagerChange
from raytrain.messages import Credit, Header
from raytrain.queues import Item

A, B = "env-manager-0", "env-manager-1"


class Door:
    """An intake with two managers of two agents, fed by hand; every item has a batch unless it is lost."""

    def __init__(self, off_policy: bool = False, lock_step: bool = False, epoch: int = 0, lag: int = 0, managers: tuple[str, ...] = (A, B)) -> None:
        agents = dict.fromkeys(managers, 2)
        if off_policy:
            self.credit = ReplayCredit(agents, 16, 0, lock_step, epoch=epoch)
        else:
            self.credit = CreditBook(agents, 16, lag, lock_step, epoch)
        self.credit.open(0)
        self.intake = Intake(self.credit, epoch, lock_step)
        self._shipped: dict[tuple[str, int], list[int]] = {}

    def item(self, manager: str, rows: int, rounds_done: int = 0, incarnation: int = 0, epoch: int = 0, lost: bool = False) -> Item:
        sent = self._shipped.setdefault((manager, incarnation), [])
        sent.append(rows)
        header = Header(
            behavior="Toy", manager=manager, incarnation=incarnation, sequence=len(sent) - 1, rows=rows, agent_steps=sum(sent), env_steps=0,
            rounds_done=rounds_done, oldest_version=0, newest_version=0, longest_episode=0, busy_s=0.0, epoch=epoch,
        )
        return header, None if lost else SimpleNamespace(rows=rows)

    def arrive(self, *arguments, version: int = 0, **more) -> tuple[list[int], bool]:
        """Rows of the items to learn from, and whether the one that came was dropped."""
        ready, dropped = self.intake.arrived(self.item(*arguments, **more), version)
        return [header.rows for header, _ in ready], dropped is not None

    @property
    def dropped(self) -> dict[str, int]:
        return {reason: rows for reason, rows in self.intake.ledger.dropped.items() if rows}


def test_rows_collected_for_a_trainer_that_died_are_dropped_on_policy() -> None:
    """They have no part in the credit of the new one: what it granted is still to come."""
    door = Door(epoch=1)
    granted = door.credit.credit()
    assert granted == {A: Credit(first_round(1, 0), (8,)), B: Credit(first_round(1, 0), (8,))}
    assert door.arrive(A, 8, rounds_done=1, epoch=0) == ([], True)
    assert door.dropped == {"stale_epoch": 8} and door.credit.credit() == granted and door.credit.waiting_for(0) == [A, B]
    assert door.arrive(A, 8, rounds_done=first_round(1, 0) + 1, epoch=1) == ([8], False)
    assert door.credit.waiting_for(0) == [B] and door.dropped == {"stale_epoch": 8}


def test_replay_keeps_rows_collected_for_a_trainer_that_died() -> None:
    """Replay is older than any policy; the credit of the new trainer stays untouched all the same."""
    door = Door(off_policy=True, epoch=1)
    granted = door.credit.credit()
    assert door.arrive(A, 8, rounds_done=1, epoch=0) == ([8], False)
    assert door.dropped == {} and door.credit.credit() == granted


def test_in_lock_step_replay_keeps_none_of_them() -> None:
    """The same bytes whatever came when: only whole rounds of now."""
    door = Door(off_policy=True, lock_step=True, epoch=1)
    assert door.arrive(A, 8, rounds_done=1, epoch=0) == ([], True)
    assert door.dropped == {"stale_epoch": 8}


def test_rows_of_a_manager_whose_place_is_taken_are_dropped_on_policy() -> None:
    """What it had not delivered was granted to its successor in one round; its stragglers would be rows too many."""
    door = Door()
    assert door.arrive(A, 2) == ([2], False)
    door.intake.request(ManagerChange("restarted", A, 1, produced=5))
    assert door.intake.heed_changes(0) and door.dropped == {"owner_died": 3}
    assert door.credit.credit() == {A: Credit(first_round(0, 1), (6,)), B: Credit(0, (8,))}
    assert door.arrive(A, 3) == ([], True), "a straggler of the three rows"
    assert door.dropped == {"owner_died": 3}, "counted once"
    assert door.arrive(A, 6, rounds_done=first_round(0, 1) + 1, incarnation=1) == ([6], False)
    assert door.credit.waiting_for(0) == [B]


def test_replay_keeps_the_stragglers_of_a_manager_that_died() -> None:
    door = Door(off_policy=True)
    door.intake.request(ManagerChange("restarted", A, 1, produced=5))
    door.intake.heed_changes(0)
    assert door.dropped == {"owner_died": 5}
    assert door.arrive(A, 3) == ([3], False)
    assert door.dropped == {"owner_died": 2}, "three of the five were not lost after all"


def test_rows_whose_arrays_died_with_their_manager_are_granted_anew() -> None:
    """The header says that they were delivered, the arrays never come: as many again, as of now; and env managers have to be told."""
    door = Door(lag=1)
    assert door.arrive(A, 8, rounds_done=1, lost=True, version=1) == ([], True)
    assert door.dropped == {"owner_died": 8}
    assert door.credit.credit()[A] == Credit(1, (8, 8)), "one round of before, and the lost one"
    assert door.intake.heed_changes(1) and not door.intake.heed_changes(1), "told once"


def test_replay_does_without_rows_that_were_lost() -> None:
    door = Door(off_policy=True)
    before = door.credit.credit()[A]
    assert door.arrive(A, before.sizes[0], rounds_done=1, lost=True) == ([], True)
    assert door.credit.credit()[A].sizes == before.sizes[1:] and not door.intake.heed_changes(0)


def test_an_item_that_comes_again_is_nothing_at_all() -> None:
    door = Door()
    item = door.item(A, 4)
    assert door.intake.arrived(item, 0)[0] == [item]
    assert door.intake.arrived(item, 0) == ([], None) and door.dropped == {}


def test_what_is_held_for_a_round_goes_with_its_manager() -> None:
    """Lock-step: of a round that is not complete the dead one's part is collected anew, the other's is kept; the round then goes on."""
    door = Door(lock_step=True)
    assert door.arrive(A, 3) == ([], False) and door.arrive(B, 8, rounds_done=1) == ([], False)
    door.intake.request(ManagerChange("restarted", A, 1, produced=7))
    assert door.intake.heed_changes(0)
    assert door.dropped == {"owner_died": 7}, "four that were on their way and three that were held"
    assert door.credit.credit()[A] == Credit(first_round(0, 1), (8,)), "5 missing and 3 that were held"
    ready, _ = door.intake.arrived(door.item(A, 8, rounds_done=first_round(0, 1) + 1, incarnation=1), 0)
    assert [(header.manager, header.rows) for header, _ in ready] == [(A, 8), (B, 8)]


def test_a_manager_that_is_gone_leaves_its_rows_to_another() -> None:
    """Nothing waits for it any more, and a round still brings a buffer."""
    door = Door()
    assert door.arrive(A, 2) == ([2], False)
    door.intake.request(ManagerChange("removed", A, 0, produced=4))
    assert door.intake.heed_changes(0) and door.dropped == {"owner_died": 2}
    assert door.credit.credit() == {B: Credit(0, (8, 6))}
    assert door.arrive(A, 2) == ([], True), "nobody is there whose rows these could be"
    assert door.arrive(B, 14, rounds_done=2) == ([14], False) and door.credit.may_update(0)


def test_a_manager_that_joins_takes_over_what_the_last_one_left() -> None:
    door = Door(managers=(A,))
    door.intake.request(ManagerChange("removed", A, 0))
    door.intake.heed_changes(0)
    assert door.credit.credit() == {}
    door.intake.request(ManagerChange("added", B, 0, agents=4))
    door.intake.heed_changes(0)
    assert door.credit.credit() == {B: Credit(0, (16,))}
    door.intake.request(ManagerChange("added", "env-manager-2", 0, agents=4))
    door.intake.heed_changes(0)
    assert door.credit.credit()["env-manager-2"] == Credit(0, ()), "its share comes with the next version"
    assert door.credit.grant(1)["env-manager-2"].sizes == (8,)


@pytest.mark.parametrize("waits", [True, False])
def test_the_end_counts_what_was_held(waits: bool) -> None:
    """A round that never became complete; a trainer that is finished holds nothing."""
    door = Door(lock_step=True)
    door.intake.waits_for_rounds = waits
    assert door.arrive(A, 4) == ([] if waits else [4], False)
    door.intake.shut()
    door.intake.shut()
    assert door.dropped == ({"shutdown": 4} if waits else {})
