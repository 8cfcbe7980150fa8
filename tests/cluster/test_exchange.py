"""The trajectory queue and policy mailbox as a Ray actor, and the ends of its wires."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import ray

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from raytrain.actors import Exchange, RemotePolicySink, RemotePolicySource, RemoteSink, RemoteSource
from raytrain.messages import Header, PolicyMessage
from trainers.trajectory import empty_batch

SPEC = BehaviorSpec((ObservationSpec("obs", (2,)),), ActionSpec("discrete", discrete_branches=(2,), starts=(0,)))

PRODUCER = "env-manager-0/0"


def header(sequence: int, rows: int = 1) -> Header:
    return Header("B", "env-manager-0", 0, sequence, rows, rows * (sequence + 1), 0, 0, 0, 0, 0, 0.0)


@pytest.fixture
def exchange(private_ray):
    actor = ray.remote(Exchange).options(num_cpus=0, max_concurrency=20, max_restarts=-1).remote(3)
    yield actor
    ray.kill(actor)


@pytest.fixture
def end(exchange):
    """Makes an end of the exchange's wires in this process, which is closed with the test: its thread must not call a Ray that is gone."""
    made = []

    def make(kind: type, *arguments):
        made.append(kind(exchange, *arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()


def sink_of_policies(exchange) -> RemotePolicySink:
    """That of a trainer which has published nothing yet."""
    return RemotePolicySink(exchange, PolicyMessage(-1, 0, {"w": np.zeros(3, np.float32)}, {}))


def take_all(source: RemoteSource, count: int) -> list[int]:
    taken = []
    deadline = time.monotonic() + 20
    while len(taken) < count and time.monotonic() < deadline:
        if source.wait(0.5):
            taken.append(source.take()[0].sequence)
    return taken


def test_a_full_queue_blocks_the_producer_and_an_emptied_one_lets_it_go_on(end):
    """C02, C04: nothing is lost, the order stays."""
    sink = end(RemoteSink, threading.Event())
    accepted = 0
    while sink.put(header(accepted), empty_batch(SPEC), 3.0):
        accepted += 1
        assert accepted < 10, "a queue of 3 took everything"
    assert accepted >= 4  # 3 in the queue and one in the hands of the shipper
    source = end(RemoteSource, "first", lambda: None)
    sink.put(header(accepted), empty_batch(SPEC), 10.0)
    assert take_all(source, accepted + 1) == list(range(accepted + 1))


def test_an_item_handed_out_and_not_acknowledged_comes_again(exchange):
    """The consumer dies inside a call: the next one gets what it had not acknowledged."""
    for number in range(2):
        is_in, life, acknowledged = ray.get(exchange.offer.remote(PRODUCER, "", ("item", header(number)), 1.0))
        assert is_in and acknowledged == -1
    _, first, waiting = ray.get(exchange.take.remote("first", "", 0, 1, 1.0))
    assert [item[1].sequence for _, item in first] == [0] and waiting == 1
    _, again, _ = ray.get(exchange.take.remote("second", "", 0, 1, 1.0))
    assert again == first
    assert ray.get(exchange.acknowledged.remote(PRODUCER)) == (life, -1)
    _, rest, _ = ray.get(exchange.take.remote("second", life, first[-1][0], 5, 1.0))
    assert [item[1].sequence for _, item in rest] == [1]
    assert ray.get(exchange.acknowledged.remote(PRODUCER)) == (life, 0), "its producer may forget the first"


def test_numbers_of_an_earlier_life_acknowledge_nothing(exchange):
    """The exchange was started anew, and a consumer's count is still that of the last one."""
    ray.get(exchange.offer.remote(PRODUCER, "", ("item", header(0)), 1.0))
    life, first, _ = ray.get(exchange.take.remote("c", "", 0, 1, 1.0))
    number = first[-1][0]
    ray.get(exchange.take.remote("c", "another life", number, 1, 0.1))
    assert ray.get(exchange.acknowledged.remote(PRODUCER)) == (life, -1)
    ray.get(exchange.take.remote("c", life, number, 1, 0.1))
    assert ray.get(exchange.acknowledged.remote(PRODUCER)) == (life, 0)


def test_a_producer_that_knows_an_earlier_life_has_to_put_back_what_was_lost_first(exchange):
    """Its newest item in front of those would make them look like duplicates of nothing: rows that are intact, and counted as lost."""
    is_in, life, acknowledged = ray.get(exchange.offer.remote(PRODUCER, "an earlier life", ("item", header(5)), 1.0))
    assert not is_in and acknowledged == -1
    assert ray.get(exchange.take.remote("c", "", 0, 1, 0.1))[1] == []
    assert ray.get(exchange.offer.remote(PRODUCER, life, ("item", header(5)), 1.0))[0]


def test_a_waiting_consumer_is_woken_by_an_item(exchange):
    waiting = exchange.take.remote("c", "", 0, 1, 30.0)
    assert not ray.wait([waiting], timeout=0.3)[0]
    ray.get(exchange.offer.remote(PRODUCER, "", ("late", header(0)), 1.0))
    _, items, _ = ray.get(waiting, timeout=10)
    assert [item[0] for _, item in items] == ["late"]


def test_only_the_newest_policy_is_delivered(exchange, end):
    """Versions published in a row: an env manager that looks late gets the last; an older serial never replaces it."""
    sink = sink_of_policies(exchange)
    for serial in range(5):
        sink.publish(PolicyMessage(serial, serial, {"w": np.full(3, serial, np.float32)}, {}))
    ray.get(exchange.publish.remote(PolicyMessage(2, 2, {"w": np.zeros(3, np.float32)}, {})))
    message = end(RemotePolicySource).wait_newer(3, 10.0)
    assert message.version == 4
    assert message.weights["w"].tolist() == [4, 4, 4]


def test_published_weights_are_arrays_that_nobody_can_change(exchange, end):
    """C07, C95: whole, immutable, plain NumPy."""
    sink_of_policies(exchange).publish(PolicyMessage(0, 0, {"w": np.arange(3, dtype=np.float32)}, {}))
    message = end(RemotePolicySource).wait_newer(-1, 10.0)
    with pytest.raises(ValueError, match="read-only"):
        message.weights["w"][0] = 1.0


# -- an exchange that is started anew ----------------------------------------------------------------------------------


def die(exchange) -> None:
    """SIGKILL, as the system would; Ray starts it anew."""
    before = ray.get(exchange.acknowledged.remote(PRODUCER))[0]
    pid = ray.get(exchange.__ray_call__.remote(lambda self: os.getpid()))
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if ray.get(exchange.acknowledged.remote(PRODUCER), timeout=10)[0] != before:
                return
        except ray.exceptions.RayActorError:
            time.sleep(0.1)
    raise AssertionError("it was not started anew")


def test_items_that_died_with_the_exchange_come_again_and_in_order(exchange, end):
    """Nobody had taken them: the producer kept them and puts them back by itself, though it ships nothing more."""
    sink = end(RemoteSink, threading.Event())
    for number in range(3):
        assert sink.put(header(number), empty_batch(SPEC), 10.0)
    assert sink.flush(20.0)
    die(exchange)
    assert take_all(end(RemoteSource, "first", lambda: None), 3) == [0, 1, 2]


def test_items_that_were_received_may_come_twice_and_never_go_missing(exchange, end):
    """The exchange dies while a consumer reads from it: it goes on in the next life; what it had before it may drop by its number."""
    sink, source = end(RemoteSink, threading.Event()), end(RemoteSource, "first", lambda: None)
    for number in range(2):
        sink.put(header(number), empty_batch(SPEC), 10.0)
    taken = take_all(source, 2)
    die(exchange)
    for number in range(2, 5):
        sink.put(header(number), empty_batch(SPEC), 20.0)
    deadline = time.monotonic() + 40
    while set(taken) != set(range(5)) and time.monotonic() < deadline:
        taken += take_all(source, 1) if source.wait(0.5) else []
    assert set(taken) == set(range(5)) and list(dict.fromkeys(taken)) == sorted(set(taken)), taken


def test_the_newest_policy_is_published_again(exchange, end):
    """The trainer hears of the new life with its next call and puts its newest message back, snapshots and all."""
    sink, heard = sink_of_policies(exchange), threading.Semaphore(0)

    def publish_again() -> None:
        sink.publish_again()
        heard.release()

    source = end(RemoteSource, "trainer", publish_again)
    assert heard.acquire(timeout=30.0)
    sink.publish(PolicyMessage(4, 4, {"w": np.full(3, 4, np.float32)}, {}, snapshots={0: {"w": np.zeros(3, np.float32)}}))
    assert end(RemotePolicySource).wait_newer(3, 10.0).version == 4
    die(exchange)
    assert heard.acquire(timeout=30.0) and source.waiting() == 0
    message = end(RemotePolicySource).wait_newer(-1, 20.0)
    assert message.version == 4 and message.weights["w"].tolist() == [4, 4, 4] and message.snapshots[0]["w"].tolist() == [0, 0, 0]
    assert ray.get(exchange.mark.remote(0)) == (4, 4)


def test_what_an_exchange_lost_while_the_trainer_was_starting_is_put_back(exchange, end):
    """The controller's first message is gone, and an env manager that came later waits for it: the trainer brings it along."""
    sink = RemotePolicySink(exchange, PolicyMessage(7, 2, {"w": np.ones(3, np.float32)}, {}))
    source = end(RemoteSource, "trainer", sink.publish_again)
    assert end(RemotePolicySource).wait_newer(-1, 20.0).serial == 7 and source.waiting() == 0


def test_the_last_word_of_a_trainer_whose_place_is_taken_is_not_heard(exchange, end):
    """It was alive when the mark was asked for (all trainers of self-play go back together), and its next serial is that of the new one."""

    def message(serial: int, epoch: int) -> PolicyMessage:
        return PolicyMessage(serial, serial, {"w": np.full(3, epoch, np.float32)}, {}, epoch=epoch)

    ray.get(exchange.publish.remote(message(5, 0)))
    assert ray.get(exchange.mark.remote(1)) == (5, 5)
    assert ray.get(exchange.publish.remote(message(6, 0)))
    assert ray.get(exchange.mark.remote(1)) == (5, 5)
    ray.get(exchange.publish.remote(message(6, 1)))
    newest = end(RemotePolicySource).wait_newer(5, 10.0)
    assert (newest.serial, newest.epoch, newest.weights["w"].tolist()) == (6, 1, [1, 1, 1])
