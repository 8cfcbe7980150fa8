"""The env manager of the throughput run by itself: it steps, acts and collects; nobody learns, and what it ships is dropped."""

from __future__ import annotations

import metered
from own_parts import FreeRunning, balancing_weights, throughput_plan
from threadpoolctl import threadpool_limits


def main() -> None:
    from raytrain.plan import build_env_manager

    threadpool_limits(1)  # as in the run over Ray
    plan = throughput_plan(metered.seed())
    wires = FreeRunning(plan, balancing_weights(plan))
    manager = build_env_manager([plan], 0, {plan.behavior: wires}, {plan.behavior: wires})
    metered.info(lib="raytrain", num_envs=plan.num_envs, behavior=plan.behavior)
    manager.start()
    while True:
        manager.advance(0.25)


if __name__ == "__main__":
    main()
