"""What the arithmetic of ``yaml/ppo/Pong.yaml`` allows on these cores: updates on one buffer of real frames, and acting, by themselves.

Every agent step is acted on once and learnt from in each epoch. Updates use all the trainer's threads; acting uses one, beside
nothing else: with perfect overlap on two cores it costs half its time.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import metered
from own_parts import FreeRunning, make_trainer_of, plan_of

CORES = 2
UPDATES, CALLS = 5, 100


def main() -> None:
    import numpy as np

    plan = replace(plan_of("ppo/Pong.yaml", metered.seed()), trainer_threads=CORES)
    first = plan.first_policy()
    wires = FreeRunning(plan, first, keep=True)
    batches = wires.one_round()

    policy, rng, n = plan.policy(), np.random.default_rng(metered.seed()), plan.num_envs
    policy.set_weights(first, 0)
    rows = {name: x[:n] for name, x in batches[0].obs.items()}
    acting_s = statistics.median(timed(lambda: policy.act(rows, rng, with_entropy=False), CALLS))

    trainer = make_trainer_of(plan)

    def learn() -> None:
        for batch in batches:
            trainer.process(batch, plan.managers[0])
        trainer.update()

    update_s = statistics.median(timed(learn, UPDATES)[1:])  # the first call warms up
    metered.info(
        lib="raytrain", rows_per_update=wires.rows, update_s=round(update_s, 3), act_ms=round(1000 * acting_s, 3), threads=CORES,
        steps_per_s=round(wires.rows / (update_s + wires.rows / n * acting_s / CORES), 1),
    )


def timed(call, times: int) -> list[float]:
    """Seconds of each of several calls."""
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return spent


if __name__ == "__main__":
    main()
