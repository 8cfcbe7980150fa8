"""Tiny worlds that show what matters only at the beginning of an episode: a policy without a memory cannot solve them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.toy import SimpleEnvironment, Toy


class MemoryEnvironment(SimpleEnvironment):
    """`SimpleEnvironment` that shows the goal in the observations after 0 … `num_show_steps` steps, and zeros from then on.

    With the step size of 0.2, an episode that goes straight to the goal takes 5 steps: 3 decisions see it, 2 have to remember it.

    Args:
        num_show_steps: last number of steps after which the goal is still shown.
        action, dimensions, step_size, num_vector, num_visual, vector_size, vis_obs_size: see `SimpleEnvironment`.

    Source: Unity ML-Agents' ``MemoryEnvironment`` of its learning tests, told anew.
    """

    def __init__(
        self, action: str = "discrete", dimensions: int = 1, step_size: float = 0.2, num_show_steps: int = 2, num_vector: int = 1,
        num_visual: int = 0, vector_size: int = 1, vis_obs_size: Sequence[int] = (20, 20, 3),
    ) -> None:
        super().__init__(action, dimensions, step_size, num_vector, num_visual, vector_size, vis_obs_size)
        self._num_show_steps = num_show_steps

    def _shown(self) -> int:
        return self._goal if self._steps <= self._num_show_steps else 0


class Recall(Toy):
    """A bit is shown in the first observation of an episode only and has to be answered by the action of the last step.

    Observation: (±1 at the first, else 0; steps so far / `length`). The last step terminates the episode and pays 1 for the
    right answer, else 0; the other actions have no effect. Who does not remember gets 0.5 on average, unless an episode has
    one step only.

    Args:
        length: steps of an episode.
        action: ``"discrete"`` (0 answers -1, 1 answers +1) or ``"continuous"`` (the sign answers).
        vary: each episode has another length, drawn from 2 … `length` by the environment's own generator.
    """

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, length: int = 8, action: str = "discrete", vary: bool = False) -> None:
        super().__init__(length)
        action_spaces = {"discrete": spaces.Discrete(2), "continuous": spaces.Box(-1.0, 1.0, (1,), np.float32)}
        if action not in action_spaces:
            raise ValueError(f"action: expected 'discrete' or 'continuous', received {action!r}")
        self.action_space = action_spaces[action]
        self._longest, self._vary = length, vary
        self._cue, self._answer = 1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw a bit."""
        super().reset(seed=seed)
        self._cue = int(self.np_random.choice((-1, 1)))
        if self._vary:
            self.length = int(self.np_random.integers(2, self._longest, endpoint=True))
        return self._observe(), {}

    def _act(self, action: Any) -> None:
        if isinstance(self.action_space, spaces.Discrete):
            self._answer = 2 * int(action) - 1
        else:
            self._answer = int(np.sign(action[0]))

    def _observe(self) -> np.ndarray:
        return np.array([0 if self.steps else self._cue, self.steps / self._longest], np.float32)

    def _reward(self) -> float:
        return float(self.steps == self.length and self._answer == self._cue)
