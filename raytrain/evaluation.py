"""Evaluating: whole episodes of the policies of one moment, in environments that nothing is learnt from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from envs.base import BatchedEnv
from envs.randomization import Samplers
from envs.specs import DecisionSteps
from raytrain.errors import RunFault
from raytrain.plan import Plan, make_envs, seed_branch
from trainers.policy import Policy
from trainers.trainer import Weights

EVALUATOR = "evaluator"
"""What plays evaluations is called so in messages."""
_POLL_S = 1.0


@dataclass(frozen=True)
class Played:
    """Episodes of one evaluation, in the order in which they ended.

    Attributes:
        returns: behavior -> float64 ``[E]``, undiscounted sums of the environment's rewards, one for each episode of an agent.
        lengths: behavior -> int64 ``[E]``, agent steps.
        agent_steps: of all of them, and of episodes that were not counted.
    """

    returns: dict[str, np.ndarray]
    lengths: dict[str, np.ndarray]
    agent_steps: int


class Evaluator:
    """Plays the same episodes each time: environments are made anew, with seeds of a branch of their own.

    The policies' normaliser statistics are part of their weights, which nothing here changes.

    Args:
        plans: of all behaviors.
        episodes: of an environment (in a world of many agents: of the world), over all environments.
        deterministic: the most likely actions instead of samples.
        seed: root of the episodes' seeds and of the samples.
    """

    def __init__(self, plans: Sequence[Plan], episodes: int, deterministic: bool, seed: int) -> None:
        self._plans, self._episodes, self._deterministic, self._seed = list(plans), episodes, deterministic, seed
        self._policies: dict[str, Policy] = {}
        self._stepping = plans[0].stepping

    def play(
        self, weights: Mapping[str, Weights], versions: Mapping[str, int], parameters: Samplers, go_on: Callable[[], bool] = lambda: True,
    ) -> Played | None:
        """Play with these policies; None when `go_on` said no.

        How many episodes each environment plays is settled beforehand, as many as the others or one more: to take those that end first
        would prefer short ones.

        Args:
            weights, versions: of each behavior.
            parameters: how the environment's parameters are drawn.
            go_on: asked after each step.

        Raises:
            EnvFault: an environment failed; its index is that among the environments here.
        """
        n = min(self._plans[0].num_envs, self._episodes)
        left = np.array([self._episodes // n + (i < self._episodes % n) for i in range(n)])
        policies = self._policies_with(weights, versions)
        with threadpool_limits(1):  # as in an env manager's own process: the same bytes, wherever it is played
            env = make_envs(
                self._plans, n, self._stepping, seed_branch(self._seed, "evaluation", 0), wait_for_all=True, parameters=parameters,
                own_generators=True)
            if env.stepping != "native":
                self._stepping = env.stepping  # which may have been found out by measuring
            try:
                return _Episodes(env, left).play(policies, self._rng(), self._deterministic, go_on)
            finally:
                env.close()

    def _policies_with(self, weights: Mapping[str, Weights], versions: Mapping[str, int]) -> dict[str, Policy]:
        if not self._policies:
            for plan in self._plans:
                plan.prepare(threads=1)
            self._policies = {plan.behavior: plan.policy() for plan in self._plans}
        for behavior, policy in self._policies.items():
            policy.set_weights(weights[behavior], versions[behavior])
        return self._policies

    def _rng(self) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(seed_branch(self._seed, "evaluation", 1)))


class _Lane:
    """The running and the finished episodes of one behavior's agents; `envs` is the environment of each slot."""

    def __init__(self, slots: int, envs: int) -> None:
        self.envs = np.arange(slots) // (slots // envs)
        self._sums, self._steps = np.zeros(slots), np.zeros(slots, np.int64)
        self.found: list[tuple[float, int]] = []

    def end(self, agent_id: np.ndarray, reward: np.ndarray, counts: np.ndarray) -> None:
        """Episodes that ended; those where bool ``[n] counts`` says so are kept."""
        for agent, last, is_counted in zip(agent_id, reward, counts, strict=True):
            if is_counted:
                self.found.append((float(self._sums[agent] + last), int(self._steps[agent])))

    def decide(self, decision: DecisionSteps) -> None:
        """Agents that act now."""
        ids = decision.agent_id
        self._sums[ids] = np.where(decision.first, 0.0, self._sums[ids] + decision.total_reward)
        self._steps[ids] = np.where(decision.first, 0, self._steps[ids]) + 1


class _Episodes:
    """One evaluation under way.

    Args:
        left: int64 ``[envs]``, episodes that each environment has to play.
    """

    def __init__(self, env: BatchedEnv, left: np.ndarray) -> None:
        self._env, self._left = env, left
        self._lanes = {behavior: _Lane(slots, len(left)) for behavior, slots in env.num_slots.items()}
        self._begun = np.ones(len(left), np.int64)
        self._agent_steps = 0

    def play(self, policies: Mapping[str, Policy], rng: np.random.Generator, deterministic: bool, go_on: Callable[[], bool]) -> Played | None:
        env = self._env
        env.reset()
        while self._left.any():
            if not go_on():
                return None
            news = env.poll(_POLL_S)
            if not news:
                continue
            for behavior, steps in news.items():
                lane, ended = self._lanes[behavior], steps.terminal
                lane.end(ended.agent_id, ended.total_reward, self._left[lane.envs[ended.agent_id]] > 0)
            self._count_episodes()
            for behavior, steps in news.items():
                decision = self._of_those_that_go_on(behavior, steps.decision)
                if len(decision):
                    self._lanes[behavior].decide(decision)
                    self._agent_steps += len(decision)
                    output = policies[behavior].act(
                        decision.obs, rng, deterministic, decision.action_mask, with_entropy=False, agent_id=decision.agent_id,
                        first=decision.first)
                    env.act(behavior, decision.agent_id, output.actions)
        columns = {b: list(zip(*lane.found, strict=True)) or [(), ()] for b, lane in self._lanes.items()}
        return Played(
            {b: np.array(returns, np.float64) for b, (returns, _) in columns.items()},
            {b: np.array(lengths, np.int64) for b, (_, lengths) in columns.items()}, self._agent_steps)

    def _count_episodes(self) -> None:
        """An environment's episode is over when its next one begins. In a world, agents end before, and may begin another one."""
        begun = np.array(list(self._env.state()["episodes_begun"].values()))
        self._left = np.maximum(self._left - (begun - self._begun), 0)
        self._begun = begun

    def _of_those_that_go_on(self, behavior: str, decision: DecisionSteps) -> DecisionSteps:
        """Without environments that have played their share; a vector environment steps all or none."""
        if self._env.stepping == "native":
            return decision
        rows = self._left[self._lanes[behavior].envs[decision.agent_id]] > 0
        if rows.all():
            return decision
        return decision.where(rows)


class EvaluatorHandle(Protocol):
    """Where evaluations are played. They are answered in the order in which they were asked for."""

    def request(self, weights: Mapping[str, Weights], versions: Mapping[str, int], parameters: Samplers) -> None:
        """Ask for one; arguments as in `Evaluator.play`."""

    def poll(self, timeout_s: float) -> list[Played]:
        """What was played since the last call, waiting up to `timeout_s` for something.

        Raises:
            RunFault: an environment failed, or the evaluator died.
        """

    def interrupt(self) -> None:
        """Leave off (called from a signal's handler): no more answers come."""

    def close(self) -> None:
        """End it; may be called twice."""


class LocalEvaluator:
    """In this process, whenever it is polled.

    Args:
        meanwhile: called after each step, to say that it is going on.
    """

    def __init__(self, evaluator: Evaluator, meanwhile: Callable[[], Any]) -> None:
        self._evaluator, self._meanwhile = evaluator, meanwhile
        self._requests: list[tuple[Any, ...]] = []
        self._stopping = False

    def request(self, weights: Mapping[str, Weights], versions: Mapping[str, int], parameters: Samplers) -> None:
        self._requests.append((dict(weights), dict(versions), parameters))

    def poll(self, timeout_s: float) -> list[Played]:
        requests, self._requests = self._requests, []
        try:
            found = [self._evaluator.play(*request, self._go_on) for request in requests if not self._stopping]
        except Exception as error:
            raise RunFault.of(EVALUATOR, error) from error
        return [played for played in found if played is not None]

    def _go_on(self) -> bool:
        self._meanwhile()
        return not self._stopping

    def interrupt(self) -> None:
        self._stopping = True

    def close(self) -> None:
        self._requests.clear()
