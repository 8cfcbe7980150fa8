"""Which episodes of demonstrations are learnt from, which judge the policy, and how long that takes. No TensorFlow.

Letter: ``K`` episodes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from envs.demonstrations import Demonstrations
from trainers.settings import BCSettings


def held_out_episodes(episodes: int, share: float) -> int:
    """How many of `episodes` a `share` is: at least one, none where it is 0.

    Raises:
        ValueError: there are too few to leave one to learn from; one sentence.
    """
    if share == 0.0:
        return 0
    count = max(1, round(share * episodes))
    if count >= episodes:
        raise ValueError(
            f"expected episodes to learn from and, by validation_share={share:g}, at least one to be held out, received {episodes} "
            f"{'episode' if episodes == 1 else 'episodes'} in all, of which {count} would be held out; record more, or set validation_share: 0")
    return count


def hold_out(demonstrations: Demonstrations, share: float, rng: np.random.Generator) -> tuple[Demonstrations, Demonstrations | None]:
    """Whole episodes to learn from, and others, drawn by `rng`, to be judged by; None where `share` is 0.

    Raises:
        ValueError: as `held_out_episodes`.
    """
    count = held_out_episodes(demonstrations.episodes, share)
    if not count:
        return demonstrations, None
    held_out = np.isin(np.arange(demonstrations.episodes), rng.permutation(demonstrations.episodes)[:count])
    return episodes_of(demonstrations, ~held_out), episodes_of(demonstrations, held_out)


def episodes_of(d: Demonstrations, which: np.ndarray) -> Demonstrations:
    """Some of the episodes, copied; `which` is bool ``[K]``."""
    rows = np.repeat(which, d.length)
    return replace(
        d, obs={name: x[rows] for name, x in d.obs.items()}, continuous=d.continuous[rows], discrete=d.discrete[rows], reward=d.reward[rows],
        length=d.length[which], terminated=d.terminated[which], next_obs={name: x[which] for name, x in d.next_obs.items()},
        action_mask=None if d.action_mask is None else d.action_mask[rows])


def run_length(settings: BCSettings, rows: int) -> int:
    """Rows after which a run ends that learns from so many: ``num_epoch`` passes, or ``max_steps`` if that is less."""
    whole = settings.hyperparameters.num_epoch * rows
    return whole if settings.max_steps is None else min(whole, settings.max_steps)
