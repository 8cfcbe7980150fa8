"""What acts in an environment that is shown, of one agent or of several, has in common: policies, random numbers, and steps that may fail."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.base import EnvFault
from envs.randomization import draw
from envs.seeding import env_seeds
from envs.single_env import Reset, WithParameters
from raytrain.plan import Plan, seed_branch
from raytrain.saved_run import SavedRun
from trainers.policy import Policy


def saved_policy(saved: SavedRun, plan: Plan) -> Policy:
    """The policy of a behavior with its saved weights."""
    plan.prepare(threads=1)
    policy = plan.policy()
    policy.set_weights(saved.weights[plan.behavior], saved.versions[plan.behavior])
    return policy


class Shown:
    """An environment or a world behind the boundary, episode after episode.

    Args:
        env: has a `run`, as `envs.single_env.SingleEnv` and `envs.agent_world.AgentWorld`.
        saved: whose parameters each episode draws.

    Attributes:
        rng: for the policies' samples.
    """

    def __init__(self, env: Any, saved: SavedRun, seed: int) -> None:
        self._env, self._parameters = env, saved.parameters
        self._seeds, self.rng = seed_branch(seed, "evaluation", 0), np.random.default_rng(seed_branch(seed, "evaluation", 1))
        self._episodes = 0  # begun
        self._between: Any = None  # what ended the last one, and began the next

    def begin(self) -> Any:
        """What the next episode begins with.

        Raises:
            EnvFault: the environment failed; also in `step`.
        """
        if self._between is None:
            self._between = self._run(Reset(env_seeds(self._seeds, 0, 0)), 0, 0, None)
        self._episodes += 1
        return self._between

    def step(self, action: Any, step: int) -> Any:
        """What comes of it; steps are counted from 1 within an episode, and at the first the parameters of the episode to come are drawn."""
        self._between = self._run(action, self._episodes if step == 1 else None, step, action)
        return self._between

    def _run(self, command: Any, next_episode: int | None, step: int, action: Any) -> Any:
        if self._parameters and next_episode is not None:
            command = WithParameters(draw(self._parameters, self._seeds, 0, next_episode), command)
        outcome = self._env.run(command)
        if isinstance(outcome, EnvFault):
            raise outcome.located(0, max(0, self._episodes - 1), step, action)
        return outcome
