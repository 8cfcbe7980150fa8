"""Collects the steps of one agent into demonstrations. Only whole episodes count."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.demonstration_data import DemonstrationError, Demonstrations, joined
from envs.specs import Actions, BehaviorSpec, Observations


class _Row(NamedTuple):
    obs: Observations
    actions: Actions
    action_mask: np.ndarray | None


class EpisodeRecorder:
    """Decision, reward, decision, reward, …, end; and again. An episode that is left unfinished leaves nothing."""

    def __init__(self, spec: BehaviorSpec) -> None:
        self.spec = spec
        self._done: list[Demonstrations] = []
        self._rows: list[_Row] = []
        self._rewards: list[float] = []

    @property
    def episodes(self) -> int:
        """Whole episodes so far."""
        return len(self._done)

    @property
    def returns(self) -> list[float]:
        """Of the whole episodes so far."""
        return [float(done.episode_return[0]) for done in self._done]

    def decide(self, obs: Observations, actions: Actions, action_mask: np.ndarray | None = None) -> None:
        """Note a decision; everything is copied.

        Args:
            obs: name -> ``[1, *shape]``.
            actions: of one agent. The continuous part is kept as it is executed, clipped to [-1, 1].
            action_mask: bool ``[1, W]``.
        """
        copy = Actions(np.clip(actions.continuous, -1.0, 1.0), actions.discrete.copy())
        self._rows.append(_Row({name: x.copy() for name, x in obs.items()}, copy, None if action_mask is None else action_mask.copy()))

    def reward(self, reward: float) -> None:
        """What followed the last decision."""
        self._rewards.append(float(reward))

    def end(self, next_obs: Observations, terminated: bool) -> None:
        """The episode is over after the last reward.

        Args:
            next_obs: the true last observations, name -> ``[1, *shape]``.
            terminated: the task ended; False: a time limit.
        """
        rows, rewards = self._rows, self._rewards
        self.discard()
        if not rows:
            return  # ended in its reset
        masks = [row.action_mask for row in rows]
        self._done.append(Demonstrations(
            spec=self.spec, obs={o.name: np.concatenate([row.obs[o.name] for row in rows]) for o in self.spec.observations},
            continuous=np.concatenate([row.actions.continuous for row in rows]), discrete=np.concatenate([row.actions.discrete for row in rows]),
            reward=np.array(rewards, np.float32), length=np.array([len(rows)], np.int32), terminated=np.array([bool(terminated)]),
            next_obs={name: x.copy() for name, x in next_obs.items()}, action_mask=None if masks[0] is None else np.concatenate(masks)))

    def discard(self) -> None:
        """Forget the episode that is going on."""
        self._rows, self._rewards = [], []

    def demonstrations(self) -> Demonstrations:
        """All whole episodes.

        Raises:
            DemonstrationError: there is none.
        """
        if not self._done:
            raise DemonstrationError("Expected at least one whole episode, recorded none; let one go on to its end.")
        return joined(self._done)
