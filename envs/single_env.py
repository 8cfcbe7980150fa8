"""One Gymnasium environment behind the checks of the boundary: what the copies of every stepping mode run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from envs.agent_reader import AgentReader
from envs.base import EnvFault
from envs.boundary import BOUNDS_CHECK_STEPS, read_flag, read_reward
from envs.factories import EnvFactory, behavior_name
from envs.faults import env_fault
from envs.masks import mask_method
from envs.randomization import EnvParameters
from envs.running_episodes import EpisodeKeeper, LoadEpisode, SavedEpisode, SaveEpisode
from envs.seeding import EnvSeeds
from envs.spaces import behavior_spec
from envs.specs import BehaviorSpec, EnvAction, Observations

DISPLAY_VALUES = 32
"""Elements of an action shown in a message."""


@dataclass(slots=True)
class Reset:
    """Command: begin a new episode; seeded when it is the environment's first."""

    seeds: EnvSeeds | None


@dataclass(slots=True)
class WithParameters:
    """Command: do `command`; from now on, resets of the environment (also the one within a step that ends) are given `parameters`."""

    parameters: dict[str, float]
    command: Reset | EnvAction


Command = Reset | WithParameters | SaveEpisode | LoadEpisode | EnvAction


@dataclass(slots=True)
class Outcome:
    """What one command brought.

    Attributes:
        obs: the observations to act on now, name -> ``[*shape]``, copies: after an end they are the first of the next episode.
        action_mask: bool ``[W]`` at `obs`, given exactly where the action spec is ``masked``.
        first: `obs` are the first of an episode.
        reward: of the step; 0 after a `Reset`.
        terminated, truncated: how the episode ended, both False when it goes on.
        final_obs: the true last observations of the episode that ended, else None.
        final_action_mask: at `final_obs`; after a termination everything is allowed, and the environment is not asked.
    """

    obs: Observations
    action_mask: np.ndarray | None
    first: bool
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final_obs: Observations | None = None
    final_action_mask: np.ndarray | None = None


class SingleEnv:
    """A Gymnasium environment that copies and checks what comes out, and resets itself after an end.

    Attributes:
        name: behavior name.
        spec: its specs.
    """

    def __init__(self, factory: EnvFactory, made: gym.Env | None = None) -> None:
        """`made` is what `factory` returned, where it has been called already.

        The behavior is masked if the environment has a method or an observation for it, or if ``factory.masked`` says so.
        """
        env = factory.make() if made is None else made
        if not isinstance(env, gym.Env):
            raise ValueError(  # noqa: TRY004 - a wrong configuration is a ValueError
                f"{factory.env}: the factory returned a vector environment, which is stepped as one and cannot be copied. "
                "Set env_settings.stepping to auto.")
        self.env = env
        self.name = behavior_name(factory.env, env)
        observation_space, action_space = getattr(env, "observation_space", None), getattr(env, "action_space", None)
        masked = factory.masked or mask_method(env) is not None
        self.spec: BehaviorSpec = behavior_spec(observation_space, action_space, self.name, masked)
        self._reader = AgentReader(env, self.spec)
        self._steps = 0
        self._parameters = EnvParameters(env, factory.env)
        self._keeper = EpisodeKeeper(env)

    def run(self, command: Command) -> Outcome | SavedEpisode | EnvFault:
        """Do one command: `Reset` or one environment-space action, with or without parameters; save or load the running episode. A failure
        is returned, not raised."""
        try:
            if isinstance(command, WithParameters):
                self._parameters.values, command = command.parameters, command.command
            if isinstance(command, Reset):
                return Outcome(*self._reset(command.seeds), first=True)
            if isinstance(command, (SaveEpisode, LoadEpisode)):
                return self._keep(command)
            return self._step(command)
        except EnvFault as fault:
            return fault

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _reset(self, seeds: EnvSeeds | None) -> tuple[Observations, np.ndarray | None]:
        """First observations and mask of a new episode; a fault says that it happened at step 0."""
        if seeds is not None:
            self.env.action_space.seed(seeds.action_space)
        try:
            given = self._parameters.give()
            try:
                result = self.env.reset(seed=seeds.reset if seeds is not None else None, **given)
            except (Exception, SystemExit) as error:
                raise env_fault(error, "in reset()") from error
            if not isinstance(result, tuple) or len(result) != 2:
                raise EnvFault(f"reset(): expected (obs, info), received {_describe(result)}")
            obs, info = result
            return self._read(obs), self._reader.mask(obs, info)
        except EnvFault as fault:
            fault.step = 0
            raise

    def _step(self, action: EnvAction) -> Outcome:
        try:
            result = self.env.step(action)
        except (Exception, SystemExit) as error:
            raise env_fault(error, "in step()") from error
        if not isinstance(result, tuple) or len(result) != 5:
            raise EnvFault(f"step(): expected (obs, reward, terminated, truncated, info), received {_describe(result)}")
        self._steps += 1
        value, reward, terminated, truncated, info = result
        try:
            reward = read_reward(reward)
            terminated, truncated = read_flag(terminated, "terminated"), read_flag(truncated, "truncated")
        except ValueError as error:
            raise EnvFault(str(error)) from None
        obs = self._read(value)
        if not math.isfinite(reward):
            raise EnvFault(f"non-finite reward {reward}")
        if terminated or truncated:
            final_mask = self._reader.final_mask(value, info, terminated)
            return Outcome(*self._reset(None), True, reward, terminated, truncated, obs, final_mask)
        return Outcome(obs, self._reader.mask(value, info), False, reward)

    def _keep(self, command: SaveEpisode | LoadEpisode) -> SavedEpisode:
        """See `envs.running_episodes`."""
        if isinstance(command, SaveEpisode):
            if not self._keeper.can:
                return SavedEpisode()
            return SavedEpisode({"kept": self._keeper.state(), "steps": self._steps, "parameters": self._parameters.state()})
        if not self._keeper.can:
            raise no_way_on()
        state, parameters = command.state, self._parameters
        parameters.values = state["parameters"]["given"]
        self._reset(command.seeds)
        parameters.values, self._steps = state["parameters"]["values"], state["steps"]
        self._keeper.load(state["kept"])
        return SavedEpisode()

    def _read(self, value: Any) -> Observations:
        return self._reader.obs(value, check_bounds=self._steps <= BOUNDS_CHECK_STEPS)


def no_way_on() -> EnvFault:
    """A saved episode is to be gone on with by an environment that cannot."""
    return EnvFault("the checkpoint has its running episode, and it has no get_state() and set_state() any more, or an unknown wrapper around "
                    "them. Resume with the environment of the checkpoint")


def plain_action(action: Any) -> Any:
    """An action as plain numbers for a message, in tuples and dicts as it is; long arrays are cut."""
    if isinstance(action, dict):
        return {key: plain_action(value) for key, value in action.items()}
    if isinstance(action, tuple):
        return tuple(plain_action(value) for value in action)
    values = np.asarray(action)
    return values.tolist() if values.size <= DISPLAY_VALUES else [*values.ravel()[:DISPLAY_VALUES].tolist(), "…"]


def _describe(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {len(result)}" + (" (the API of old Gym)" if len(result) == 4 else "")
    return f"{type(result).__name__}"
