"""A trainer's queue and mailbox under up to a thousand env managers, of which only the calls are real.

A thousand env managers do not fit on one machine, but what they ask of the one process that all of them share does: each fake one ships
trajectories at its own pace and waits for policies, with the same calls and messages as a real one, and learns nothing. The trainer's
end is the real one, and publishes a policy for each round.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psutil
import ray

from chaos_runs.tables import Row
from raytrain import cluster
from raytrain.actors import Exchange, RemotePolicySink, RemoteSource
from raytrain.messages import QUEUE_CAPACITY, Header, PolicyMessage

_NUMBERS = 12  # of an agent step: as large as one of CartPole
_PER_PROCESS = 125
_SLICE_S, _NEWS_SLICE_S = 1.0, 5.0  # as of the real ends
_SETTLE_S = 5.0
_PUSH_S = 1.0  # in which a policy is asked to be everywhere


class Fakes:
    """Some env managers in one process; use as an actor."""

    def __init__(self, exchange: Any, first: int, count: int, rows: int, period_s: float) -> None:
        self._exchange, self._rows, self._period_s = exchange, rows, period_s
        self._numbers = range(first, first + count)
        self._shipped = 0
        self._arrivals: list[tuple[int, float]] = []
        self._tasks: list[asyncio.Task] = []

    async def start(self) -> None:
        for number in self._numbers:
            self._tasks += [asyncio.create_task(self._ship(number)), asyncio.create_task(self._listen())]

    async def look(self) -> tuple[int, list[tuple[int, float]]]:
        """Items that were accepted since the last look; (serial, time of arrival) of policies since then."""
        for task in self._tasks:
            if task.done():
                task.result()
        shipped, arrivals = self._shipped, self._arrivals
        self._shipped, self._arrivals = 0, []
        return shipped, arrivals

    async def _ship(self, number: int) -> None:
        rng, sequence, life = np.random.default_rng(number), 0, ""
        batch = np.zeros((self._rows, _NUMBERS), np.float32)
        await asyncio.sleep(rng.uniform(0.0, self._period_s))
        due = time.monotonic()
        while True:
            header = Header(
                behavior="Fake", manager=f"env-manager-{number}", incarnation=0, sequence=sequence, rows=self._rows, agent_steps=self._rows * (sequence + 1),
                env_steps=self._rows * (sequence + 1), rounds_done=0, oldest_version=0, newest_version=0, longest_episode=0, busy_s=0.0)
            item = (ray.put(batch), header)
            is_in = False
            while not is_in:
                is_in, life, _ = await self._exchange.offer.remote(f"{header.manager}/0", life, item, _SLICE_S)
            sequence += 1
            self._shipped += 1
            due = max(due + self._period_s, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    async def _listen(self) -> None:
        serial = -1
        while True:
            message = await self._exchange.newer_than.remote(serial, _NEWS_SLICE_S)
            if message is not None and message.serial > serial:
                serial = message.serial
                await message.weights
                self._arrivals.append((serial, time.time()))


def simulate(counts: Sequence[int], rows: int, period_s: float, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """A measurement for each number of env managers, on a Ray of its own."""
    connection = cluster.connect(None)
    try:
        measured = []
        for count in counts:
            measured.append(_measure(count, rows, period_s, seconds))
            say(_text(measured[-1]))
    finally:
        cluster.disconnect(connection)
    return {"rows": rows, "period_s": period_s, "runs": measured}


def _measure(count: int, rows: int, period_s: float, seconds: float) -> dict[str, Any]:
    exchange = ray.remote(Exchange).options(num_cpus=0, max_concurrency=16 + 4 * count).remote(max(QUEUE_CAPACITY, count))
    pid = ray.get(exchange.__ray_call__.remote(lambda self: os.getpid()))
    weights = {f"layer{i}": np.zeros((64, 64), np.float32) for i in range(3)}
    sink = RemotePolicySink(exchange, PolicyMessage(0, 0, weights, {}))
    source = RemoteSource(exchange, "trainer", sink.publish_again)
    make = ray.remote(Fakes).options(num_cpus=0, max_concurrency=1000)
    fakes = [make.remote(exchange, first, min(_PER_PROCESS, count - first), rows, period_s) for first in range(0, count, _PER_PROCESS)]
    try:
        ray.get([fake.start.remote() for fake in fakes])
        published, taken = _consume(source, sink, weights, count, 1, _SETTLE_S)
        ray.get([fake.look.remote() for fake in fakes])
        process = psutil.Process(pid)
        before, began = process.cpu_times(), time.monotonic()
        published, taken = _consume(source, sink, weights, count, max(published, default=0) + 1, seconds)
        after, took = process.cpu_times(), time.monotonic() - began
        looks = ray.get([fake.look.remote() for fake in fakes])
    finally:
        source.close()
        for fake in fakes:
            ray.kill(fake)
        ray.kill(exchange)
    delays = [arrived - published[serial] for _, arrivals in looks for serial, arrived in arrivals if serial in published]
    pushes = len(delays)
    return {
        "managers": count, "asked_per_s": count / period_s, "puts_per_s": sum(shipped for shipped, _ in looks) / took, "takes_per_s": taken / took,
        "versions_per_s": len(published) / took, "pushes_per_s": pushes / took, "push_median_s": statistics.median(delays) if delays else None,
        "push_p99_s": float(np.percentile(delays, 99)) if delays else None,
        "exchange_cores": (after.user + after.system - before.user - before.system) / took,
    }


def _consume(source: RemoteSource, sink: RemotePolicySink, weights: dict, count: int, serial: int, seconds: float) -> tuple[dict[int, float], int]:
    """Take items and publish a version for each round of them. Serial → when it was published; items taken."""
    published, taken, deadline = {}, 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not source.wait(0.2):
            continue
        source.take()
        taken += 1
        if taken % count == 0:
            published[serial] = time.time()
            sink.publish(PolicyMessage(serial, serial, weights, {}))
            serial += 1
    return published, taken


def _text(one: dict[str, Any]) -> str:
    push = f"{one['push_median_s'] * 1000:,.0f} ms, 99 % within {one['push_p99_s'] * 1000:,.0f} ms" if one["push_median_s"] is not None else "none"
    return (f"{one['managers']} env managers: {one['puts_per_s']:,.0f} of {one['asked_per_s']:,.0f} items/s, {one['pushes_per_s']:,.0f} pushes/s "
            f"({push}), exchange {one['exchange_cores']:.2f} of a core")


def rows(result: dict[str, Any]) -> list[Row]:
    """Whether all that was to be shipped went through, and policies came in time."""
    found = []
    for one in result["runs"]:
        fits = one["puts_per_s"] >= 0.95 * one["asked_per_s"] and one["push_p99_s"] is not None and one["push_p99_s"] <= _PUSH_S
        found.append(Row(f"{one['managers']} fake env managers", _text(one).partition(": ")[2], f"≥ 95 % of the items, policies within {_PUSH_S:.0f} s", fits))
    return found
