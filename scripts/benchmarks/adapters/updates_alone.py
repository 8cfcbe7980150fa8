"""A trainer by itself in one process on one core: it learns from one buffer of real trajectories again and again (option: file)."""

from __future__ import annotations

import metered
from own_parts import FreeRunning, make_trainer_of, plan_of, stay_on_one_core


def main() -> None:
    stay_on_one_core()
    plan = plan_of(metered.options()["file"], metered.seed(), "make_env")
    wires = FreeRunning(plan, plan.first_policy(), keep=True)
    batches = wires.one_round()
    trainer = make_trainer_of(plan)
    metered.info(lib="raytrain", rows_per_update=wires.rows, threads=plan.trainer_threads)
    while True:
        for batch in batches:
            trainer.process(batch, plan.managers[0])
        if not trainer.is_ready():
            raise RuntimeError(f"Expected {wires.rows:,} rows to start an update (buffer_size), received a trainer that waits.")
        trainer.update()
        metered.rows.add(wires.rows)


if __name__ == "__main__":
    main()
