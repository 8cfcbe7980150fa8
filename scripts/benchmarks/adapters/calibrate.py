"""How long a step of the environments of a file must sleep for stepping to take as long as learning (options: file, sleep_s to begin with)."""

from __future__ import annotations

import statistics
import time

import metered
from own_parts import FreeRunning, make_trainer_of, plan_of

WARM_S, STEPPING_S = 1.0, 5.0
UPDATES = 8
SHORTEST_S = 1e-4  # a sleep is some 60 µs longer than it was asked for


def main() -> None:
    from threadpoolctl import threadpool_limits

    options = metered.options()
    plan = plan_of(options["file"], metered.seed(), "make_env")
    with threadpool_limits(1):  # as in an env manager on Ray
        manager = FreeRunning(plan, plan.first_policy()).manager()
        manager.start()
        step_s = seconds_a_step(manager)
        manager.close()
        wires = FreeRunning(plan, plan.first_policy(), keep=True)
        batches = wires.one_round()
    trainer, spent = make_trainer_of(plan), []
    for _ in range(UPDATES):
        for batch in batches:
            trainer.process(batch, plan.managers[0])
        began_s = time.perf_counter()
        trainer.update()
        spent.append(time.perf_counter() - began_s)
    learning_s = statistics.median(spent[1:]) / wires.rows  # the first one warms up
    sleep_s = options["sleep_s"] + learning_s - step_s
    metered.info(lib="raytrain", sleep_s=round(sleep_s, 7), learning_us=round(1e6 * learning_s, 1), stepping_us=round(1e6 * step_s, 1),
                 probed_with_us=1e6 * options["sleep_s"])
    if sleep_s < SHORTEST_S:
        raise RuntimeError(f"Expected learning to take longer than a step does without a sleep, received {1e6 * learning_s:.0f} µs of learning and "
                           f"{1e6 * (step_s - options['sleep_s']):.0f} µs of stepping an agent step; give {options['file']} a larger network.")


def seconds_a_step(manager) -> float:
    """Of collecting with the policy."""
    until_s = time.monotonic() + WARM_S
    while time.monotonic() < until_s:
        manager.advance(0.25)
    before, began_s = manager.status().env_steps, time.monotonic()
    while time.monotonic() < began_s + STEPPING_S:
        manager.advance(0.25)
    return (time.monotonic() - began_s) / (manager.status().env_steps - before)


if __name__ == "__main__":
    main()
