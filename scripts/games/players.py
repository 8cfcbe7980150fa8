"""Players of any game: a trained policy, and one that draws its moves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from envs.specs import Actions, BehaviorSpec
from games.play import Player, Turn
from raytrain import LoadedPolicy


def policy_player(loaded: LoadedPolicy, where: str, deterministic: bool = True) -> Player:
    """A trained policy.

    Args:
        loaded: the policy.
        where: what it plays in, for messages.
        deterministic: its most likely action; otherwise a sample.

    Raises (when it plays):
        ValueError: the agent it is to play has other observations or actions than those it was trained with.
    """
    fits: set[int] = set()

    def act(turn: Turn, rng: np.random.Generator) -> Actions:
        if id(turn.spec) not in fits:
            _check_fits(loaded.spec, turn.spec, where)
            fits.add(id(turn.spec))
        output = loaded.policy.act(turn.obs, rng, deterministic, turn.action_mask, with_entropy=False, agent_id=turn.slot, first=turn.first)
        return Actions(np.clip(output.actions.continuous, -1.0, 1.0), output.actions.discrete)

    return act


def _check_fits(policy: BehaviorSpec, agent: BehaviorSpec, where: str) -> None:
    expected, received = ([[o.dtype, list(o.shape)] for o in spec.observations] + [spec.action.kind] for spec in (agent, policy))
    if (policy.observations, policy.action) != (agent.observations, agent.action):
        same = " with other bounds or masks" if expected == received else ""
        raise ValueError(f"{where}: expected a policy that was trained with its observations and actions, {expected}, received one for "
                         f"{received}{same}. Name a run of this world, or with --behavior the policy that plays there.")


def random_player(turn: Turn, rng: np.random.Generator) -> Actions:
    """Every allowed choice, and every continuous action, with the same probability."""
    n, sizes = len(turn.slot), turn.spec.action.discrete_branches
    allowed = np.ones((n, sum(sizes)), bool) if turn.action_mask is None else turn.action_mask
    discrete = np.empty((n, len(sizes)), np.int32)
    for branch, mask in enumerate(np.split(allowed, np.cumsum(sizes)[:-1], axis=1) if sizes else ()):
        discrete[:, branch] = np.argmax(rng.random(mask.shape) * mask, axis=1)
    return Actions(rng.uniform(-1.0, 1.0, (n, turn.spec.action.continuous_size)).astype(np.float32), discrete)


def choosing_player(choose: Callable[[np.ndarray], np.ndarray]) -> Player:
    """A scripted player of a game with one observation and one choice: ``choose`` maps observations ``[n, *shape]`` to choices ``[n]``."""

    def act(turn: Turn, rng: np.random.Generator) -> Actions:
        (obs,) = turn.obs.values()
        return Actions(np.empty((len(obs), 0), np.float32), np.asarray(choose(obs), np.int32)[:, None])

    return act
