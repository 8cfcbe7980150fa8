"""What the arithmetic of ``yaml/ppo/Pong.yaml`` allows on these cores: updates on one buffer of real frames, and acting, by themselves.

Every agent step is acted on once and learnt from in each epoch. Updates use all the trainer's threads; acting uses one, beside
nothing else: with perfect overlap on two cores it costs half its time.
"""

from __future__ import annotations

import statistics
import time

import metered
from own_parts import FreeRunning, plan_of

CORES = 2
UPDATES, CALLS = 5, 100


def main() -> None:
    import numpy as np

    from raytrain.plan import build_env_manager, seed_branch
    from raytrain.tensorflow_setup import set_up_tensorflow

    plan = plan_of("ppo/Pong.yaml", metered.seed())
    first = plan.first_policy()
    wires = FreeRunning(plan, first, keep=True)
    manager = build_env_manager([plan], 0, {plan.behavior: wires}, {plan.behavior: wires})
    manager.start()
    while wires.rows < plan.settings.hyperparameters.buffer_size:
        manager.advance(0.25)
    manager.close()

    policy, rng, n = plan.policy(), np.random.default_rng(metered.seed()), plan.num_envs
    policy.set_weights(first, 0)
    rows = {name: x[:n] for name, x in wires.batches[0].obs.items()}
    acting_s = statistics.median(timed(lambda: policy.act(rows, rng, with_entropy=False), CALLS))

    set_up_tensorflow(CORES)
    from trainers.registry import make_trainer

    trainer = make_trainer(plan.spec, plan.settings, seed_branch(plan.seed, "trainer"), plan.max_rows(), plan.first_weights())
    trainer.published(0)
    trainer.compile()

    def learn() -> None:
        for batch in wires.batches:
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
