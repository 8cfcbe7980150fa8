"""Between an environment and the checks of the boundary: sees what the environment gives before it is copied and cast."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from envs.single_env import Outcome
from envs.specs import Actions, ActionSpec, BehaviorSpec, EnvAction, env_action_rows, observation_part, to_env_actions


class RandomActions:
    """Actions that a new policy might take: any direction of a Box, any choice that is allowed.

    Args:
        spec: of the policy's actions.
    """

    def __init__(self, spec: ActionSpec, seed: int) -> None:
        self._spec, self._rng = spec, np.random.default_rng(seed)

    def next(self, mask: np.ndarray | None) -> EnvAction:
        """One action of the environment's space; `mask` is bool ``[W]`` or None."""
        spec, rng = self._spec, self._rng
        continuous = rng.uniform(-1.0, 1.0, (1, spec.continuous_size)).astype(np.float32)
        choices, start = [], 0
        for size in spec.discrete_branches:
            allowed = np.arange(size) if mask is None else np.flatnonzero(mask[start : start + size])
            choices.append(rng.choice(allowed))
            start += size
        discrete = np.array(choices, np.int32).reshape(1, -1)
        return env_action_rows(spec, to_env_actions(spec, Actions(continuous, discrete)))[0]


@dataclass
class Range:
    """What one observation was seen to be.

    Attributes:
        low, high: smallest and largest values, of the observation's shape.
    """

    low: np.ndarray
    high: np.ndarray

    def add(self, values: np.ndarray) -> None:
        np.minimum(self.low, values, out=self.low)
        np.maximum(self.high, values, out=self.high)


@dataclass
class Seen:
    """Everything that a number of steps brought.

    Attributes:
        dtypes: observation -> the dtypes (or types) that it came in.
        reused: observations whose array was changed by a later step.
        action_changed: the environment wrote into the action it was given.
        flag_types: types of ``terminated`` and ``truncated``.
        ranges: observation -> values after the boundary.
        rewards: of every step.
        returns, lengths, ends: of whole episodes; how each ended.
        longest: steps of the longest episode, also one that did not end.
    """

    dtypes: dict[str, set[str]] = field(default_factory=dict)
    reused: set[str] = field(default_factory=set)
    action_changed: bool = False
    reward_types: set[str] = field(default_factory=set)
    flag_types: set[str] = field(default_factory=set)
    ranges: dict[str, Range] = field(default_factory=dict)
    rewards: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    longest: int = 0
    _total: float = 0.0
    _length: int = 0

    def outcome(self, outcome: Outcome) -> None:
        """Take in what passed the boundary."""
        for obs in (outcome.obs, outcome.final_obs or {}):
            for name, values in obs.items():
                plain = values.astype(np.float64)
                if name in self.ranges:
                    self.ranges[name].add(plain)
                else:
                    self.ranges[name] = Range(plain.copy(), plain.copy())
        if outcome.first and not (outcome.terminated or outcome.truncated):
            return  # of a reset
        self.rewards.append(outcome.reward)
        self._total, self._length = self._total + outcome.reward, self._length + 1
        self.longest = max(self.longest, self._length)
        if outcome.terminated or outcome.truncated:
            self.returns.append(self._total)
            self.lengths.append(self._length)
            self.ends.append("terminated" if outcome.terminated else "truncated")
            self._total, self._length = 0.0, 0


class Spy(gym.Wrapper):
    """Notes what an environment returns, and hands it on as it is."""

    def __init__(self, env: gym.Env, spec: BehaviorSpec, seen: Seen) -> None:
        super().__init__(env)
        self._spec, self._seen = spec, seen
        self._held: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # observation -> the array that was given, and a copy from then

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """As that of the environment; ``options`` are left out where there are none."""
        result = self.env.reset(seed=seed) if options is None else self.env.reset(seed=seed, options=options)
        if isinstance(result, tuple) and result:
            self._look(result[0])
        return result

    def step(self, action: Any) -> Any:
        """As that of the environment."""
        before = np.array(action, copy=True) if isinstance(action, np.ndarray) else None
        result = self.env.step(action)
        if before is not None and not np.array_equal(before, action):
            self._seen.action_changed = True
        if isinstance(result, tuple) and len(result) == 5:
            self._look(result[0])
            self._seen.reward_types.add(type(result[1]).__name__)
            self._seen.flag_types |= {type(flag).__name__ for flag in result[2:4]}
        return result

    def _look(self, value: Any) -> None:
        for observation in self._spec.observations:
            name = observation.name
            held = self._held.pop(name, None)
            if held is not None and not np.array_equal(*held, equal_nan=held[1].dtype.kind == "f"):
                self._seen.reused.add(name)
            try:
                part = observation_part(observation, value)
            except (KeyError, IndexError, TypeError):
                continue  # which the boundary refuses
            is_array = isinstance(part, np.ndarray)
            self._seen.dtypes.setdefault(name, set()).add(str(part.dtype) if is_array else type(part).__name__)
            if is_array and part.dtype.kind in "biuf":
                self._held[name] = (part, part.copy())
