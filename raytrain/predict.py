"""Acting with a trained policy: three lines, environment-scale actions, nothing to remember."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from envs.specs import BehaviorSpec, env_action_rows, to_env_actions
from raytrain.checkpoint import load_policy_files
from trainers.policy import Policy


class LoadedPolicy:
    """A policy from a checkpoint; the same inference code as in training, statistics frozen.

    Attributes:
        spec: what it observes and does.
        version, agent_steps: of the checkpoint.
    """

    def __init__(self, spec: BehaviorSpec, policy: Policy, agent_steps: int, seed: int | None = None) -> None:
        self.spec = spec
        self.version = policy.version
        self.agent_steps = agent_steps
        self._policy = policy
        self._rng = np.random.default_rng(seed)

    def act(self, obs: Any, deterministic: bool = True) -> Any:
        """The environment's action for one observation, or a batch of actions for a batch.

        Args:
            obs: one observation as the environment gives it, or a batch of them (one dimension more); a mapping where the
                observation space has names.
            deterministic: the most likely action (mean or arg max); otherwise a sample.

        Returns:
            For one observation an action that ``env.step`` takes as it is: a NumPy integer for Discrete, a tuple or dict for Tuple
            and Dict, an array of the space's shape and dtype otherwise. For a batch of n, one array ``[n, *shape]``; a list of n
            tuples or dicts for Tuple and Dict.

        Raises:
            ValueError: an observation of another shape; names it, with the shape that is expected.
        """
        named = obs if isinstance(obs, Mapping) else {self.spec.observations[0].name: obs}
        batch, single = {}, False
        for o in self.spec.observations:
            if o.name not in named:
                raise ValueError(f"Expected the observation {o.name!r}, received {', '.join(map(str, named)) or 'none'}.")
            array = np.asarray(named[o.name], o.dtype)
            single = array.shape == o.shape
            batch[o.name] = array[None] if single else array
        output = self._policy.act(batch, self._rng, deterministic=deterministic)
        actions = to_env_actions(self.spec.action, output.actions)
        return env_action_rows(self.spec.action, actions)[0] if single else actions


def load_policy(path: str | Path, behavior: str | None = None, which: Literal["best", "latest"] = "best", seed: int | None = None) -> LoadedPolicy:
    """The policy of a run or checkpoint folder.

    Args:
        path: run folder, or one of its checkpoints.
        behavior: needed when the run has several.
        which: of a run folder, the best checkpoint by training return, or the newest.
        seed: of sampled actions.

    Raises:
        CheckpointError: there is no usable checkpoint.
    """
    files = load_policy_files(path, behavior, which)
    policy = Policy(files.spec, files.network, files.distribution)
    policy.set_weights(files.weights, files.version)
    return LoadedPolicy(files.spec, policy, files.agent_steps, seed)
