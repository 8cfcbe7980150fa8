"""One Gymnasium environment behind the checks of the boundary: what the copies of every stepping mode run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from envs.base import EnvFault
from envs.factories import EnvFactory, behavior_name
from envs.faults import env_fault
from envs.seeding import EnvSeeds
from envs.spaces import BOUNDS_CHECK_STEPS, ObservationReader, behavior_spec, read_flag, read_reward
from envs.specs import BehaviorSpec, EnvAction

DISPLAY_VALUES = 32
"""Elements of an action shown in a message."""


@dataclass(slots=True)
class Reset:
    """Command: begin a new episode; seeded when it is the environment's first."""

    seeds: EnvSeeds | None


@dataclass(slots=True)
class Outcome:
    """What one command brought.

    Attributes:
        obs: the observation to act on now, ``[*shape]``, a copy: after an end it is the first of the next episode.
        first: `obs` is the first of an episode.
        reward: of the step; 0 after a `Reset`.
        terminated, truncated: how the episode ended, both False when it goes on.
        final_obs: the true last observation of the episode that ended, else None.
    """

    obs: np.ndarray
    first: bool
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final_obs: np.ndarray | None = None


class SingleEnv:
    """A Gymnasium environment that copies and checks what comes out, and resets itself after an end.

    Attributes:
        name: behavior name.
        spec: its specs.
    """

    def __init__(self, factory: EnvFactory, made: gym.Env | None = None) -> None:
        """`made` is what `factory` returned, where it has been called already."""
        env = factory.make() if made is None else made
        if not isinstance(env, gym.Env):
            raise ValueError(  # noqa: TRY004 - a wrong configuration is a ValueError
                f"{factory.env}: the factory returned a vector environment, which is stepped as one and cannot be copied. "
                "Set env_settings.stepping to auto.")
        self.env = env
        self.name = behavior_name(factory.env, env)
        self.spec: BehaviorSpec = behavior_spec(getattr(env, "observation_space", None), getattr(env, "action_space", None), self.name)
        self._reader = ObservationReader(env.observation_space, self.spec.observations[0])
        observation = self.spec.observations[0]
        self._obs_shape, self._obs_dtype = (1, *observation.shape), np.dtype(observation.dtype)
        self._steps = 0

    def run(self, command: Reset | EnvAction) -> Outcome | EnvFault:
        """Do one command: `Reset`, or one environment-space action. A failure is returned, not raised."""
        try:
            if isinstance(command, Reset):
                return Outcome(self._reset(command.seeds), first=True)
            return self._step(command)
        except EnvFault as fault:
            return fault

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _reset(self, seeds: EnvSeeds | None) -> np.ndarray:
        """First observation of a new episode; a fault says that it happened at step 0."""
        if seeds is not None:
            self.env.action_space.seed(seeds.action_space)
        try:
            try:
                result = self.env.reset(seed=seeds.reset if seeds is not None else None)
            except (Exception, SystemExit) as error:
                raise env_fault(error, "in reset()") from error
            if not isinstance(result, tuple) or len(result) != 2:
                raise EnvFault(f"reset(): expected (obs, info), received {_describe(result)}")
            return self._read(result[0])
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
        try:
            reward = read_reward(result[1])
            terminated, truncated = read_flag(result[2], "terminated"), read_flag(result[3], "truncated")
        except ValueError as error:
            raise EnvFault(str(error)) from None
        obs = self._read(result[0])
        if not math.isfinite(reward):
            raise EnvFault(f"non-finite reward {reward}")
        if terminated or truncated:
            return Outcome(self._reset(None), True, reward, terminated, truncated, obs)
        return Outcome(obs, False, reward)

    def _read(self, value: Any) -> np.ndarray:
        out = np.empty(self._obs_shape, self._obs_dtype)
        try:
            self._reader.read(value, out[0])
        except ValueError as error:
            raise EnvFault(str(error)) from None
        problem = self._reader.problem(out, check_bounds=self._steps <= BOUNDS_CHECK_STEPS)
        if problem is not None:
            raise EnvFault(problem[1])
        return out[0]


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
