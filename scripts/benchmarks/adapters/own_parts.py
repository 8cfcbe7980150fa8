"""Parts of a raytrain run outside of a run: the plan of a configuration, and wires that lead nowhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT))

if TYPE_CHECKING:
    from raytrain.messages import Header, PolicyMessage
    from raytrain.plan import Plan
    from trainers.trajectory import TrajectoryBatch

BALANCING = (0.1, 0.3, 3.0, 1.0)
"""Weights of (x, x', θ, θ') in a linear rule that keeps CartPole's pole up for 500 steps: push where the sum points."""
ENDLESS = 10**12


def throughput_plan(seed: int) -> Plan:
    """The plan of ``yaml/benchmarks/cartpole-throughput.yaml`` on the metered native vector env."""
    return plan_of("benchmarks/cartpole-throughput.yaml", seed)


def plan_of(file: str, seed: int) -> Plan:
    """The plan of a file below ``yaml/`` on the metered native vector env."""
    from envs.gymnasium_env import probe_spec
    from raytrain.config import load_config
    from raytrain.plan import Plan

    config = load_config(ROOT / "yaml" / file, {"env": "metered:make_vec_env"})
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
        batches, rows: what was kept.
    """

    def __init__(self, plan: Plan, weights: dict[str, Any], keep: bool = False) -> None:
        from raytrain.messages import Credit, PolicyMessage

        size = plan.settings.hyperparameters.buffer_size if keep else ENDLESS
        self._message = PolicyMessage(0, 0, weights, {name: Credit(0, (size,)) for name in plan.managers})
        self._keep = keep
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
