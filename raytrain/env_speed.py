"""How fast an environment steps in each way of stepping, and what an env manager collects with a policy."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from envs.base import BatchedEnv
from envs.factories import EnvFactory
from envs.gymnasium_env import make_batched_env
from envs.specs import Actions, BehaviorSpec, DecisionSteps
from raytrain.env_findings import Findings
from trainers.policy import Policy
from trainers.settings import NetworkSettings

MEASURE_S = 0.5
"""Of each measurement; starting processes comes on top."""
NUM_ENVS = 8
_SEED = np.random.SeedSequence(5)


@dataclass(frozen=True)
class Speed:
    """Agent steps per second of one env manager; JSON-able.

    Attributes:
        num_envs: environments side by side.
        stepping: way of stepping -> with random actions.
        chosen: the way that ``stepping: auto`` takes.
        collecting: with a policy, stepped the chosen way; None where that failed.
        managers: env managers that this machine has room for beside a trainer.
        training: estimate of what they collect together.
        policy: what acted.
    """

    num_envs: int
    stepping: dict[str, float]
    chosen: str
    collecting: float | None
    managers: int
    training: float | None
    policy: str


def measure_speed(
    factory: EnvFactory, behaviors: dict[str, BehaviorSpec], networks: dict[str, NetworkSettings], num_envs: int, findings: Findings,
) -> Speed:
    """Step `num_envs` copies in each way for a moment; what fails is a finding.

    Args:
        networks: of each behavior.
    """
    rates: dict[str, float] = {}
    chosen, collecting, act = "auto", None, _policies(behaviors, networks)
    with threadpool_limits(1):  # as in an env manager
        for stepping in ("inline", "threads", "processes", "auto"):
            try:
                env = _make(factory, behaviors, num_envs, stepping)
            except ValueError:  # what steps as a whole only
                continue
            except (RuntimeError, OSError) as error:  # an EnvFault is one
                findings.add("speed", "warning", f"stepping: {stepping} fails: {error}", "do not set env_settings.stepping to it")
                continue
            try:
                if stepping == "auto":
                    chosen = env.stepping
                if env.stepping not in rates:
                    rates[env.stepping] = _rate(env, _Random(env))
                if stepping == "auto":
                    collecting = _rate(env, act)
            except (RuntimeError, OSError) as error:  # an EnvFault is one
                findings.add("speed", "warning", f"stepping: {stepping} fails: {error}", "do not set env_settings.stepping to it")
            finally:
                env.close()
    managers = max(1, (os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count() or 1) - 1)
    sizes = {f"{n.num_layers} x {n.hidden_units}" for n in networks.values()}
    return Speed(num_envs, rates, chosen, collecting, managers, None if collecting is None else collecting * managers, ", ".join(sorted(sizes)))


def _make(factory: EnvFactory, behaviors: dict[str, BehaviorSpec], num_envs: int, stepping: str) -> BatchedEnv:
    masked = [name for name, spec in behaviors.items() if spec.action.masked]
    return make_batched_env(
        factory.env, factory.kwargs, num_envs, stepping, _SEED, import_dirs=factory.import_dirs, options=factory.options,
        masked=masked if len(behaviors) > 1 else bool(masked), agents=factory.agents, groups=factory.groups)


class _Random:
    """Random actions that are allowed."""

    def __init__(self, env: BatchedEnv) -> None:
        self._specs, self._rng = env.behaviors, np.random.default_rng(5)

    def __call__(self, behavior: str, steps: DecisionSteps) -> Actions:
        spec, n = self._specs[behavior].action, len(steps)
        continuous = self._rng.uniform(-1.0, 1.0, (n, spec.continuous_size)).astype(np.float32)
        discrete, start = np.zeros((n, len(spec.discrete_branches)), np.int32), 0
        for branch, size in enumerate(spec.discrete_branches):
            weights = self._rng.random((n, size))
            if steps.action_mask is not None:
                weights[~steps.action_mask[:, start : start + size]] = -1.0
            discrete[:, branch] = weights.argmax(axis=1)
            start += size
        return Actions(continuous, discrete)


def _policies(behaviors: dict[str, BehaviorSpec], networks: dict[str, NetworkSettings]) -> Any:
    """Acting as a new run does."""
    from trainers.architecture import architecture
    from trainers.networks import policy_layout

    rng, policies = np.random.default_rng(5), {}
    for name, spec in behaviors.items():
        policy = Policy(spec, networks[name])
        layout = policy_layout(architecture(spec, networks[name]))
        policy.set_weights({key: rng.normal(0.0, 0.05, shape).astype(np.float32) for key, shape in layout.items()}, 0)
        policies[name] = policy

    def act(behavior: str, steps: DecisionSteps) -> Actions:
        output = policies[behavior].act(steps.obs, rng, False, steps.action_mask, with_entropy=False, agent_id=steps.agent_id, first=steps.first)
        return output.actions

    return act


def _rate(env: BatchedEnv, act: Any) -> float:
    """Agent steps per second; the first answer, which may load or compile something, does not count."""
    env.reset()
    started_s, steps, begun = time.perf_counter(), 0, False
    while True:
        news = env.poll(1.0)
        if not begun and news:
            started_s, begun = time.perf_counter(), True
        elapsed_s = time.perf_counter() - started_s
        if elapsed_s > MEASURE_S and (steps or elapsed_s > 10 * MEASURE_S):
            return steps / elapsed_s
        for behavior, found in news.items():
            decision = found.decision
            if len(decision):
                steps += int((~decision.first).sum())  # an action that was answered
                env.act(behavior, decision.agent_id, act(behavior, decision))


def add_speed(speed: Speed, findings: Findings) -> None:
    """What is worth saying of it."""
    each = ", ".join(f"{way} {rate:,.0f}" for way, rate in speed.stepping.items())
    findings.add("speed", "ok", f"agent steps/s of {speed.num_envs} environments with random actions: {each}; stepping: auto takes {speed.chosen}")
    best = max(speed.stepping, key=lambda way: speed.stepping[way], default=speed.chosen)
    if speed.stepping.get(speed.chosen, 0.0) < 0.5 * speed.stepping.get(best, 0.0):
        findings.add("speed", "note", f"{best} was more than twice as fast as {speed.chosen} here", f"try env_settings: {{stepping: {best}}}")
    if speed.training is not None:
        findings.add("throughput", "ok",
                     f"one env manager collects about {speed.collecting:,.0f} agent steps/s with a policy of {speed.policy}; training gets at most about "
                     f"{speed.training:,.0f} from {speed.managers} on this machine, and less where learning from them takes longer")
        if speed.training < 200.0:
            findings.add("throughput", "note", f"1,000,000 agent steps take {1e6 / speed.training / 3600:,.1f} hours", "use more machines, or trainer_type: sac, which needs fewer steps")
