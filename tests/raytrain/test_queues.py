"""The trajectory queue and the policy mailbox inside one process."""

from __future__ import annotations

import threading

import pytest

from raytrain.messages import QUEUE_CAPACITY, Header, PolicyMessage
from raytrain.queues import LocalExchange
from tests.raytrain.fakes import SPEC, weights_of
from trainers.trajectory import empty_batch

LONG_S = 30.0  # only ever waited out by a test that fails


def header(sequence: int) -> Header:
    return Header(
        behavior="Audit", manager="env-manager-0", incarnation=0, sequence=sequence, rows=0, agent_steps=0, env_steps=0,
        rounds_done=0, oldest_version=-1, newest_version=-1, longest_episode=0, busy_s=0.0,
    )


def message(serial: int) -> PolicyMessage:
    return PolicyMessage(serial, serial, weights_of(serial), {})


BATCH = empty_batch(SPEC)


def test_items_come_out_in_the_order_they_went_in() -> None:
    """The queue keeps header and batch together, first in, first out."""
    exchange = LocalExchange()
    batches = [empty_batch(SPEC) for _ in range(5)]
    for i, batch in enumerate(batches):
        assert exchange.put(header(i), batch, 0.0)
    assert exchange.waiting() == 5 and exchange.wait(0.0)
    for i, batch in enumerate(batches):
        found_header, found_batch = exchange.take()
        assert found_header.sequence == i and found_batch is batch
    assert exchange.take() is None and exchange.waiting() == 0 and not exchange.wait(0.0) and not exchange.wait(0.001)


def test_a_full_queue_takes_nothing() -> None:
    """20 items at most; a put that finds no room in time says so and leaves nothing behind."""
    exchange = LocalExchange()
    for i in range(QUEUE_CAPACITY):
        assert exchange.put(header(i), BATCH, 0.0)
    assert not exchange.put(header(99), BATCH, 0.0) and not exchange.put(header(99), BATCH, 0.001)
    assert exchange.waiting() == QUEUE_CAPACITY == 20
    assert exchange.take()[0].sequence == 0
    assert exchange.put(header(QUEUE_CAPACITY), BATCH, 0.0)
    assert [exchange.take()[0].sequence for _ in range(QUEUE_CAPACITY)] == list(range(1, QUEUE_CAPACITY + 1))


def test_a_blocked_producer_goes_on_when_there_is_room() -> None:
    """The original change's test: a full trajectory queue blocks the producer, an emptied one lets it go on, nothing is lost."""
    exchange = LocalExchange(capacity=2)
    stored = threading.Semaphore(0)

    def produce() -> None:
        for i in range(50):
            assert exchange.put(header(i), BATCH, LONG_S)
            stored.release()

    producer = threading.Thread(target=produce)
    producer.start()
    for expected in range(50):
        assert stored.acquire(timeout=LONG_S)
        assert exchange.waiting() <= 2
        assert exchange.take()[0].sequence == expected
    producer.join(LONG_S)
    assert not producer.is_alive() and exchange.take() is None


def test_several_producers_lose_nothing() -> None:
    """4 producers of 200 items each and one consumer through a queue of 3: every item once, in order for each producer."""
    exchange = LocalExchange(capacity=3)

    def produce(number: int) -> None:
        for i in range(200):
            assert exchange.put(header(1000 * number + i), BATCH, LONG_S)

    producers = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
    for producer in producers:
        producer.start()
    found: list[int] = []
    while len(found) < 800:
        assert exchange.wait(LONG_S)
        assert exchange.waiting() <= 3
        found.append(exchange.take()[0].sequence)
    for producer in producers:
        producer.join(LONG_S)
    for n in range(4):
        assert [s for s in found if s // 1000 == n] == list(range(1000 * n, 1000 * n + 200))


def test_the_mailbox_keeps_only_the_newest() -> None:
    """Several in a row: only the last one is seen; an older serial never replaces a newer one."""
    exchange = LocalExchange()
    assert exchange.newest() is None and exchange.wait_newer(-1, 0.0) is None
    for serial in (0, 1, 2, 5, 3):
        exchange.publish(message(serial))
    assert exchange.newest().serial == 5
    assert exchange.wait_newer(4, 0.0).serial == 5
    assert exchange.wait_newer(5, 0.0) is None and exchange.wait_newer(5, 0.001) is None
    exchange.publish(message(5))
    assert exchange.wait_newer(5, 0.0) is None


@pytest.mark.parametrize("what", ["item", "message"])
def test_a_waiting_thread_is_woken(what: str) -> None:
    """Waiting for an item or for a policy ends as soon as it is there, long before the time is over."""
    exchange = LocalExchange()
    found: list[object] = []

    def wait() -> None:
        found.append(exchange.wait(LONG_S) if what == "item" else exchange.wait_newer(3, LONG_S).serial)

    thread = threading.Thread(target=wait)
    thread.start()
    exchange.publish(message(3))  # not newer than 3: wakes nobody for good
    if what == "item":
        exchange.put(header(0), BATCH, 0.0)
    else:
        exchange.publish(message(4))
    thread.join(LONG_S / 2)
    assert not thread.is_alive()
    assert found == [True if what == "item" else 4]
