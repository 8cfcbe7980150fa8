"""What one agent sees, copied and checked: the boundary that single environments and worlds of many agents share."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.base import EnvFault
from envs.boundary import ObservationReader
from envs.masks import LATE_MASK, EnvMasks, mask_in
from envs.specs import BehaviorSpec, Observations


class AgentReader:
    """Reads observations and action masks of one agent.

    Args:
        env: the environment, or whatever else has the agent's ``observation_space`` and ``action_space``.
        spec: of its behavior.
    """

    def __init__(self, env: Any, spec: BehaviorSpec) -> None:
        self._reader = ObservationReader(env.observation_space, spec.observations)
        self._masks = EnvMasks(env, spec.action) if spec.action.masked else None
        self._must_not_mask = self._masks is None and bool(spec.action.discrete_branches)

    def obs(self, value: Any, check_bounds: bool) -> Observations:
        """A copy of what the environment returned.

        Raises:
            EnvFault: another structure than the space's, or values that must not be learnt from.
        """
        try:
            obs = self._reader.copy(value)
        except ValueError as error:
            raise EnvFault(str(error)) from None
        problem = self._reader.problem(obs, check_bounds)
        if problem is not None:
            raise EnvFault(problem[1])
        return obs

    def mask(self, value: Any, info: Any) -> np.ndarray | None:
        """The mask that came with observation `value` and `info`: bool ``[W]``, None where the action spec is not ``masked``.

        Raises:
            EnvFault: it cannot be used, or comes although the first reset had none.
        """
        if self._masks is not None:
            return self._masks.read(value, info)
        if self._must_not_mask and mask_in(info) is not None:
            raise EnvFault(LATE_MASK)
        return None

    def final_mask(self, value: Any, info: Any, terminated: bool) -> np.ndarray | None:
        """As `mask`, at the end of an episode; after a termination everything is allowed, and the environment is not asked."""
        if self._masks is None:
            return None
        return self._masks.all_allowed() if terminated else self._masks.read(value, info, at_end=True)
