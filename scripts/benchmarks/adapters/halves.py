"""One half of the throughput run by itself, in the product's own processes (option: part=rollouts|updates).

The backend of the product places its actors as in a run: exchange, trainer, env manager; this process asks them five times a second,
as the controller does. Only the other end is a fake: a trainer that grants the next round as soon as the rows of one are there, or an
env manager that ships the rows of its first round again and again. So a half does everything that it does in a run, transport included.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

import metered
import numpy as np
from own_parts import FreeRunning, balancing_weights, config_of, throughput_plan

from raytrain.actors import EnvManagerActor, RemotePolicySink, RemotePolicySource, RemoteSink, RemoteSource, TrainerActor
from raytrain.cluster import RayBackend, cast, connect
from raytrain.messages import Header, PolicyMessage
from raytrain.plan import Start

POLL_S = 0.2


class InstantTrainer(TrainerActor):
    """A trainer whose updates take no time: it takes what comes and publishes the policy that it began with once more."""

    def _loop(self) -> None:
        plan, start = self._plan, self._begin
        first, credit = plan.first_message(start), plan.credit_book(start)
        credit.open(start.version)
        sink = RemotePolicySink(self._exchange, first)
        source = RemoteSource(self._exchange, f"{plan.behavior}-{os.getpid()}", sink.publish_again)
        rows = version = 0
        while not self._stopping.is_set():
            if not source.wait(0.25) or (item := source.take()) is None:
                continue
            credit.delivered(item[0])
            rows += item[0].rows
            if rows >= plan.settings.hyperparameters.buffer_size and credit.may_update(version):
                rows, version = 0, version + 1
                sink.publish(PolicyMessage(version, version, first.weights, credit.grant(version)))


class ReplayingManager(EnvManagerActor):
    """An env manager whose environments take no time: it collects one round and ships that for every round it is granted."""

    def _loop(self) -> None:
        (plan,), (exchange,) = self._plans, self._exchanges.values()
        batches = FreeRunning(plan, balancing_weights(plan), keep=True).one_round()
        source, sink = RemotePolicySource(exchange), RemoteSink(exchange, self._stopping)
        serial, done, sequence, steps, began_s = -1, 0, 0, 0, time.monotonic()
        while not self._stopping.is_set():
            message = source.wait_newer(serial, 0.25)
            if message is None:
                continue
            serial, until = message.serial, message.credit[self._name].end
            for number in range(done, until):
                for i, batch in enumerate(batches):
                    steps += batch.rows
                    done = number + (i + 1 == len(batches))
                    header = Header(plan.behavior, self._name, 0, sequence, batch.rows, steps, steps, done, message.version, message.version, 0,
                                    time.monotonic() - began_s)
                    sequence += 1
                    aged = replace(batch, version=np.full_like(batch.version, message.version))
                    while not sink.put(header, aged, 1.0) and not self._stopping.is_set():
                        continue


def main() -> None:
    part = metered.options()["part"]
    if part == "rollouts":
        cast.TrainerActor = InstantTrainer
    else:
        cast.EnvManagerActor = ReplayingManager
    plan = throughput_plan(metered.seed())
    metered.info(lib="raytrain", part=part, num_envs=plan.num_envs, ray=connect(None).description)
    backend = RayBackend([plan], {plan.behavior: Start(balancing_weights(plan))}, config_of("benchmarks/cartpole-throughput.yaml").distributed)
    backend.start()
    learnt = 0
    while True:
        news = backend.poll(POLL_S)
        status = news.trainers.get(plan.behavior)
        now = 0 if status is None else status.agent_steps - status.rows_held
        if now > learnt:
            metered.rows.add(now - learnt)
            learnt = now


if __name__ == "__main__":
    main()
