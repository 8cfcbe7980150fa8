"""Parts of a raytrain run outside of a run: the plan of a configuration, and wires that lead nowhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT))

if TYPE_CHECKING:
    from raytrain.env_manager import EnvManager
    from raytrain.messages import Header, PolicyMessage
    from raytrain.plan import Plan
    from raytrain.settings import RunConfig
    from trainers.trainer import Trainer
    from trainers.trajectory import TrajectoryBatch

BALANCING = (0.1, 0.3, 3.0, 1.0)
"""Weights of (x, x', θ, θ') in a linear rule that keeps CartPole's pole up for 500 steps: push where the sum points."""
ENDLESS = 10**12


def throughput_plan(seed: int) -> Plan:
    """The plan of ``yaml/benchmarks/cartpole-throughput.yaml`` on the metered native vector env."""
    return plan_of("benchmarks/cartpole-throughput.yaml", seed)


def config_of(file: str, env: str = "make_vec_env") -> RunConfig:
    """A file below ``yaml/`` on a metered env: the native vector env, or Python copies (``make_env``)."""
    from raytrain.config import load_config

    return load_config(ROOT / "yaml" / file, {"env": f"metered:{env}"})


def plan_of(file: str, seed: int, env: str = "make_vec_env") -> Plan:
    """The plan of `config_of` with one env manager."""
    from envs.gymnasium_env import probe_spec
    from raytrain.plan import Plan

    config = config_of(file, env)
    (behavior,), (spec,) = config.behaviors, probe_spec(config.env, {}).values()
    envs = config.env_settings
    return Plan(
        run_id="bench", behavior=behavior, spec=spec, settings=config.behaviors[behavior], env=config.env, env_kwargs={},
        num_envs=envs.num_envs, stepping=envs.stepping, step_timeout_s=None, import_dirs=(), seed=seed,
        managers=("env-manager-0",), agents=envs.num_envs, max_policy_lag=config.distributed.max_policy_lag, lock_step=False,
        trainer_threads=max(1, int(config.distributed.trainer_cpus)),
    )


def balancing_weights(plan: Plan) -> dict[str, Any]:
    """Initial weights with one path through the network that balances: episodes as long as in training, the same arithmetic."""
    first = plan.first_weights()
    weights = {name: array.copy() for name, array in first.items() if not name.startswith("critic/")}
    weights["actor/dense_0/kernel"][:, 0] = BALANCING
    last = plan.settings.network_settings.num_layers - 1
    for layer in range(1, last + 1):
        weights[f"actor/dense_{layer}/kernel"][:, 0] = 0.0
        weights[f"actor/dense_{layer}/kernel"][0, 0] = 1.0
    weights["actor/branch_0/kernel"][:] = 0.0
    weights["actor/branch_0/kernel"][0] = (-100.0, 100.0)
    return weights


class FreeRunning:
    """Policy source and trajectory sink of one env manager that runs by itself.

    Args:
        keep: grant one round of ``buffer_size`` rows and keep them; otherwise credit has no end and rows are dropped.

    Attributes:
        batches, rows: what was kept, or only counted.
    """

    def __init__(self, plan: Plan, weights: dict[str, Any], keep: bool = False) -> None:
        from raytrain.messages import Credit, PolicyMessage

        size = plan.settings.hyperparameters.buffer_size if keep else ENDLESS
        self._message = PolicyMessage(0, 0, weights, {name: Credit(0, (size,)) for name in plan.managers})
        self._plan, self._keep = plan, keep
        self.batches: list[TrajectoryBatch] = []
        self.rows = 0

    def newest(self) -> PolicyMessage:
        return self._message

    def wait_newer(self, serial: int, timeout_s: float) -> PolicyMessage | None:
        return self._message if serial < self._message.serial else None

    def put(self, header: Header, batch: TrajectoryBatch, timeout_s: float) -> bool:
        if self._keep:
            self.batches.append(batch)
        self.rows += batch.rows
        return True

    def one_round(self) -> list[TrajectoryBatch]:
        """Collect and keep the rows of one update."""
        manager = self.manager()
        manager.start()
        while self.rows < self._plan.settings.hyperparameters.buffer_size:
            manager.advance(0.25)
        manager.close()
        return self.batches

    def manager(self) -> EnvManager:
        """An env manager on these wires, not started yet."""
        from raytrain.plan import build_env_manager

        return build_env_manager([self._plan], 0, {self._plan.behavior: self}, {self._plan.behavior: self})


def make_trainer_of(plan: Plan) -> Trainer:
    """The plan's trainer in this process, compiled, with as many threads as the plan says."""
    from raytrain.plan import seed_branch
    from raytrain.tensorflow_setup import set_up_tensorflow

    set_up_tensorflow(plan.trainer_threads)
    from trainers.registry import make_trainer

    trainer = make_trainer(plan.spec, plan.settings, seed_branch(plan.seed, "trainer"), plan.max_rows(), plan.first_weights())
    trainer.published(0)
    trainer.compile()
    return trainer


def stay_on_one_core() -> None:
    """This process, and the threads that it starts from now on, run on the first core that it may use (Linux)."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
