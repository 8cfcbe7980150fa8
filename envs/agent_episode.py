"""What one agent of a PettingZoo world sees and is given, checked, and brought together for its decisions and its end.

An agent's *episode* runs from its first decision to its own end. It may begin after the world's (an agent that joins), end before it
(one that dies), and the same name may begin another one in the same world. The rules for rewards:

- Everything an agent is given between two of its decisions, while it pauses or others act, is summed (float64) into the transition
  between them; what comes after its last decision goes into its terminal step.
- What it is given in the world before its first decision goes into its first transition, because a first decision has no reward.
- An agent that ends without a decision of its own has no transition: it makes no sample, and its rewards are nobody's. Nor are
  those of an agent that the world does not list in ``agents``.
- What its group is given reaches it in the same way, in a sum of its own; see `envs.agent_groups`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from envs.agent_groups import gives_group_reward, without_group
from envs.agent_reader import AgentReader
from envs.base import EnvFault
from envs.boundary import BOUNDS_CHECK_STEPS, read_flag, read_reward
from envs.frame_stack import FrameStacker
from envs.specs import BehaviorSpec, Observations


@dataclass(slots=True)
class AgentDecision:
    """An agent needs an action; the fields are those of `envs.specs.DecisionSteps` without the first axis."""

    agent: str
    obs: Observations
    reward: float
    first: bool
    action_mask: np.ndarray | None
    group_reward: float
    env_step: int
    world_episode: int


@dataclass(slots=True)
class AgentEnd:
    """The episode of an agent that had acted has ended; the fields are those of `envs.specs.TerminalSteps` without the first axis."""

    agent: str
    obs: Observations
    reward: float
    terminated: bool
    truncated: bool
    action_mask: np.ndarray | None
    group_reward: float
    env_step: int
    world_episode: int
    group_ended: bool = False


@dataclass(slots=True)
class AgentSpaces:
    """What `envs.agent_reader.AgentReader` wants to know of an agent."""

    observation_space: gym.Space
    action_space: gym.Space


@dataclass(slots=True)
class WorldClock:
    """Where a world is: its episode, counted from 0, and the steps made in it."""

    episode: int = -1
    env_step: int = 0


class Agent:
    """Copies and checks what one agent of a world sees, and keeps its account.

    Args:
        clock: of the world.
        has_group: it shares a reward with others.
        stacker: shows it its last observations together; `spaces` have its space. None: it sees the newest one.

    Attributes:
        name, id: as text, and as PettingZoo knows it.
        running: it has had a first decision and no end since.
    """

    def __init__(self, name: str, agent_id: Any, spaces: AgentSpaces, spec: BehaviorSpec, clock: WorldClock, has_group: bool,
                 stacker: FrameStacker | None = None) -> None:
        self.name, self.id = name, agent_id
        self.spaces = spaces
        self.running = False
        self._reader, self._stacker = AgentReader(spaces, spec), stacker
        self._last_obs: Observations | None = None
        self._clock, self._has_group = clock, has_group
        self._owed = self._group_owed = 0.0
        self._reads = 0

    def forget(self) -> None:
        """Begin a new episode of the world."""
        self.running, self._owed, self._group_owed, self._last_obs = False, 0.0, 0.0, None

    def state(self) -> dict[str, Any]:
        """Its account, and what it saw last."""
        return {"running": self.running, "owed": self._owed, "group_owed": self._group_owed, "last_obs": self._last_obs, "reads": self._reads,
                "frames": None if self._stacker is None else self._stacker.frames()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.running, self._owed, self._group_owed = state["running"], state["owed"], state["group_owed"]
        self._last_obs, self._reads = state["last_obs"], state["reads"]
        if self._stacker is not None:
            self._stacker.load_frames(state["frames"])

    def earn(self, reward: Any) -> None:
        """Add to what the agent gets with its next decision or its end."""
        try:
            value = reward if type(reward) is float else read_reward(reward)
        except ValueError as error:
            raise self._fault(str(error)) from None
        if not math.isfinite(value):
            raise self._fault(f"non-finite reward {value}")
        self._owed += value

    def share(self, reward: float) -> None:
        """Add to what reaches the agent, as one of its group, with its next decision or its end."""
        self._group_owed += reward

    def decide(self, value: Any, info: Any) -> AgentDecision:
        """The agent sees `value` and has to act."""
        first, reward, group_reward = not self.running, 0.0, 0.0
        if not first:
            reward, group_reward = self._owed, self._group_owed
            self._owed = self._group_owed = 0.0
        self._reads += 1
        try:
            value = value if self._stacker is None else self._stacked(value, first)
            obs = self._last_obs = self._reader.obs(value, self._reads <= BOUNDS_CHECK_STEPS)
            mask = self._reader.mask(value, info)
        except EnvFault as fault:
            raise self._fault(fault.message) from None
        self.running = True
        if info and not self._has_group and gives_group_reward(info):
            raise without_group(self.name)
        return AgentDecision(self.name, obs, reward, first, mask, group_reward, self._clock.env_step, self._clock.episode)

    def end(self, value: Any, info: Any, terminated: bool, truncated: bool) -> AgentEnd | None:
        """The agent's episode is over; None where it never had a decision.

        Without an observation (None) the one that it acted on stands for it after a termination, where nothing is bootstrapped from
        it; after a truncation that is a fault.
        """
        reward, group_reward, was_running = self._owed, self._group_owed, self.running
        last_obs = self._last_obs
        self.forget()
        if not was_running:
            return None
        if value is None and not terminated:
            raise self._fault("it was truncated without a last observation, which is needed to estimate what would have followed. Return "
                              "its observation with the step that ends it")
        self._reads += value is not None
        try:
            value = value if self._stacker is None or value is None else self._stacked(value, first=False)
            obs = last_obs if value is None else self._reader.obs(value, self._reads <= BOUNDS_CHECK_STEPS)
            mask = self._reader.final_mask(value, info, terminated)
        except EnvFault as fault:
            raise self._fault(fault.message) from None
        if info and not self._has_group and gives_group_reward(info):
            raise without_group(self.name)
        flags = terminated, truncated and not terminated
        return AgentEnd(self.name, obs, reward, *flags, mask, group_reward, self._clock.env_step, self._clock.episode)

    def ended(self, terminated: Any, truncated: Any) -> tuple[bool, bool]:
        """The two flags, checked."""
        if type(terminated) is bool and type(truncated) is bool:
            return terminated, truncated
        try:
            return read_flag(terminated, "terminated"), read_flag(truncated, "truncated")
        except ValueError as error:
            raise self._fault(str(error)) from None

    def left(self) -> EnvFault:
        """It is not among ``agents`` any more, and nothing said that it ended."""
        return self._fault("it left the world's agents without terminated or truncated. Set one of the two, with its last observation, "
                           "in the step that takes it out")

    def _stacked(self, value: Any, first: bool) -> Any:
        try:
            return self._stacker.first(value) if first else self._stacker.next(value)
        except ValueError as error:
            raise EnvFault(str(error)) from None

    def _fault(self, message: str) -> EnvFault:
        return EnvFault(f"agent {self.name!r}: {message}")
