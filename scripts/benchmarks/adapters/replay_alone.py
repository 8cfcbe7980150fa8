"""Replay by itself beside the updates it feeds: insert and sample from a full buffer of a million rows, and SAC's own learning.

The buffer and the trainer are those of ``yaml/benchmarks/halfcheetah-sac-throughput.yaml``, but for 32 environments: each turn
brings one row from each and owes 32 updates of 256 rows. Learning is timed as a whole, its own insert and sample included.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import metered
import numpy as np
from own_parts import ROOT

if TYPE_CHECKING:
    from envs.specs import BehaviorSpec
    from trainers.trajectory import TrajectoryBatch

ENVS = 32
FILL_STEPS = 500  # rows of a trajectory while the buffer is filled
TURNS, WARM_TURNS = 150, 20


class Worlds:
    """Endless random episodes of `ENVS` agents; each trajectory begins at the observation where the agent's last one stopped."""

    def __init__(self, spec: BehaviorSpec, rng: np.random.Generator) -> None:
        self._spec, self._rng = spec, rng
        self._size = spec.observations[0].shape
        self._obs = self._normal(ENVS, *self._size)
        self._steps = 0

    def _normal(self, *shape: int) -> np.ndarray:
        return self._rng.standard_normal(shape, np.float32)

    def collect(self, steps: int) -> TrajectoryBatch:
        """`steps` rows of each agent."""
        from trainers.trajectory import TrajectoryBatch

        self._steps += steps
        name, rows = self._spec.observations[0].name, ENVS * steps
        path = np.concatenate([self._obs[:, None], self._normal(ENVS, steps, *self._size)], axis=1)
        self._obs = path[:, -1]
        return TrajectoryBatch(
            obs={name: path[:, :-1].reshape(rows, *self._size)}, next_obs={name: self._obs},
            continuous=np.tanh(self._normal(rows, self._spec.action.continuous_size)), discrete=np.zeros((rows, 0), np.int32),
            log_prob=np.zeros(rows, np.float32), reward=self._normal(rows), version=np.zeros(rows, np.int64), action_mask=None,
            memory=None, length=np.full(ENVS, steps, np.int32), begin=np.full(ENVS, self._steps - steps), next_action_mask=None,
            terminated=np.zeros(ENVS, bool), truncated=np.zeros(ENVS, bool), agent_id=np.arange(ENVS, dtype=np.int64),
            episode_id=np.arange(ENVS, dtype=np.int64), episode_return=np.zeros(0, np.float64), episode_length=np.zeros(0, np.int64),
            episode_lesson=np.zeros(0, np.int64),
        )


def main() -> None:
    from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
    from raytrain.config import load_config
    from raytrain.tensorflow_setup import set_up_tensorflow
    from trainers.registry import first_weights, make_trainer
    from trainers.replay_buffer import ReplayBuffer

    config = load_config(ROOT / "yaml" / "benchmarks" / "halfcheetah-sac-throughput.yaml")
    (settings,) = config.behaviors.values()
    rows, batch_size = settings.hyperparameters.buffer_size, settings.hyperparameters.batch_size
    threads = max(1, int(config.distributed.trainer_cpus))
    set_up_tensorflow(threads)
    action = ActionSpec("box", continuous_size=6, low=(-1.0,) * 6, high=(1.0,) * 6, shape=(6,), dtype="float32")
    spec = BehaviorSpec((ObservationSpec("obs", (17,)),), action)
    rng = np.random.default_rng(metered.seed())
    weights = first_weights(spec, settings, rng)
    trainer = make_trainer(spec, settings, np.random.SeedSequence(metered.seed()), ENVS, weights)
    trainer.published(0)
    trainer.compile()
    replay, worlds = ReplayBuffer(spec, rows), Worlds(spec, rng)
    for _ in range(-(-rows // (ENVS * FILL_STEPS)) + 1):
        batch = worlds.collect(FILL_STEPS)
        replay.add(batch, "manager")
        trainer.process(batch, "manager")
    spent = dict.fromkeys(("insert", "sample", "learn"), 0.0)
    for turn in itertools.count():
        if turn == WARM_TURNS:
            spent = dict.fromkeys(spent, 0.0)
        elif turn == WARM_TURNS + TURNS:
            break
        batch, before = worlds.collect(1), trainer.updates
        moments = [time.perf_counter()]
        replay.add(batch, "manager")
        moments.append(time.perf_counter())
        replay.sample(ENVS * batch_size, rng)
        moments.append(time.perf_counter())
        trainer.process(batch, "manager")
        trainer.update()
        moments.append(time.perf_counter())
        if trainer.updates - before != ENVS:
            raise RuntimeError(f"Expected {ENVS} updates for {ENVS} rows, received {trainer.updates - before}.")
        spent = {name: spent[name] + end - start for name, start, end in zip(spent, moments, moments[1:], strict=False)}
    milliseconds = {f"{name}_ms": round(1000 * seconds / TURNS, 4) for name, seconds in spent.items()}
    metered.info(
        lib="raytrain", rows=replay.rows, batch_size=batch_size, updates_a_turn=ENVS, threads=threads, **milliseconds,
        replay_percent=round(100 * (spent["insert"] + spent["sample"]) / spent["learn"], 3),
    )


if __name__ == "__main__":
    main()
