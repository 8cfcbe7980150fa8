"""The trajectory queue and policy mailbox as a Ray actor, and the ends of its wires."""

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


def header(sequence: int, rows: int = 1) -> Header:
    return Header("B", "env-manager-0", 0, sequence, rows, rows * (sequence + 1), 0, 0, 0, 0, 0, 0.0)


@pytest.fixture
def exchange(private_ray):
    actor = ray.remote(Exchange).options(num_cpus=0, max_concurrency=20).remote(3)
    yield actor
    ray.kill(actor)


def take_all(source: RemoteSource, count: int) -> list[int]:
    taken = []
    deadline = time.monotonic() + 20
    while len(taken) < count and time.monotonic() < deadline:
        if source.wait(0.5):
            taken.append(source.take()[0].sequence)
    return taken


def test_a_full_queue_blocks_the_producer_and_an_emptied_one_lets_it_go_on(exchange):
    """C02, C04: nothing is lost, the order stays."""
    sink = RemoteSink(exchange, threading.Event())
    accepted = 0
    while sink.put(header(accepted), empty_batch(SPEC), 3.0):
        accepted += 1
        assert accepted < 10, "a queue of 3 took everything"
    assert accepted >= 4  # 3 in the queue and one in the hands of the shipper
    source = RemoteSource(exchange, "first")
    sink.put(header(accepted), empty_batch(SPEC), 10.0)
    assert take_all(source, accepted + 1) == list(range(accepted + 1))


def test_an_item_handed_out_and_not_acknowledged_comes_again(exchange):
    """The consumer dies inside a call: the next one gets what it had not acknowledged."""
    for number in range(2):
        assert ray.get(exchange.offer.remote(("item", number), 1.0))
    first, _ = ray.get(exchange.take.remote("first", 0, 1, 1.0))
    assert [item for _, item in first] == [("item", 0)]
    again, _ = ray.get(exchange.take.remote("second", 0, 1, 1.0))
    assert again == first
    rest, _ = ray.get(exchange.take.remote("second", first[-1][0], 5, 1.0))
    assert [item for _, item in rest] == [("item", 1)]


def test_a_waiting_consumer_is_woken_by_an_item(exchange):
    waiting = exchange.take.remote("c", 0, 1, 30.0)
    assert not ray.wait([waiting], timeout=0.3)[0]
    ray.get(exchange.offer.remote("late", 1.0))
    items, _ = ray.get(waiting, timeout=10)
    assert [item for _, item in items] == ["late"]


def test_only_the_newest_policy_is_delivered(exchange):
    """Versions published in a row: an env manager that looks late gets the last; an older serial never replaces it."""
    sink = RemotePolicySink(exchange)
    for serial in range(5):
        sink.publish(PolicyMessage(serial, serial, {"w": np.full(3, serial, np.float32)}, {}))
    ray.get(exchange.publish.remote(PolicyMessage(2, 2, {"w": np.zeros(3, np.float32)}, {})))
    message = RemotePolicySource(exchange).wait_newer(3, 10.0)
    assert message.version == 4
    assert message.weights["w"].tolist() == [4, 4, 4]


def test_published_weights_are_arrays_that_nobody_can_change(exchange):
    """C07, C95: whole, immutable, plain NumPy."""
    RemotePolicySink(exchange).publish(PolicyMessage(0, 0, {"w": np.arange(3, dtype=np.float32)}, {}))
    message = RemotePolicySource(exchange).wait_newer(-1, 10.0)
    with pytest.raises(ValueError, match="read-only"):
        message.weights["w"][0] = 1.0
