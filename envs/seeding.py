"""Seed streams of environments: one child stream per environment and start, never ``seed + i``.

Environment ``i`` (counted over the whole run) is given a seed once, at its first reset after it was made; later resets
continue its own random generator, as Gymnasium asks for. The child stream's key is ``(i, episodes begun)``. In a new run no
episode has begun; after a resume some have, so the environment continues with a stream that it never had before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class EnvSeeds(NamedTuple):
    """What one environment is seeded with: both in ``0 … 2³¹ - 1``, the range that every environment takes."""

    reset: int
    action_space: int


def env_seeds(seed: np.random.SeedSequence, env_index: int, episodes_begun: int) -> EnvSeeds:
    """Seeds of environment `env_index` of the run when it starts after `episodes_begun` episodes.

    Args:
        seed: root of the environments' seed streams; the same object gives the same seeds every time (nothing is spawned).
    """
    child = np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, env_index, episodes_begun))
    reset, action_space = (int(word) >> 1 for word in child.generate_state(2))
    return EnvSeeds(reset, action_space)
