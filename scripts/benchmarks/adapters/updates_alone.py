"""The trainer of the throughput run by itself: it learns from one buffer of real trajectories again and again."""

from __future__ import annotations

import metered
from own_parts import FreeRunning, balancing_weights, throughput_plan


def main() -> None:
    from raytrain.plan import build_env_manager, seed_branch
    from raytrain.tensorflow_setup import set_up_tensorflow

    plan = throughput_plan(metered.seed())
    wires = FreeRunning(plan, balancing_weights(plan), keep=True)
    manager = build_env_manager([plan], 0, {plan.behavior: wires}, {plan.behavior: wires})
    manager.start()
    while wires.rows < plan.settings.hyperparameters.buffer_size:
        manager.advance(0.25)
    manager.close()
    set_up_tensorflow(plan.trainer_threads)
    from trainers.registry import make_trainer

    trainer = make_trainer(plan.spec, plan.settings, seed_branch(plan.seed, "trainer"), plan.max_rows(), plan.first_weights())
    trainer.published(0)
    trainer.compile()
    metered.info(lib="raytrain", rows_per_update=wires.rows)
    while True:
        for batch in wires.batches:
            trainer.process(batch, plan.managers[0])
        if not trainer.is_ready():
            raise RuntimeError(f"Expected {wires.rows:,} rows to start an update (buffer_size), received a trainer that waits.")
        trainer.update()
        metered.rows.add(wires.rows)


if __name__ == "__main__":
    main()
