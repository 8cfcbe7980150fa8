"""``trainer_type`` → algorithm. Imports an algorithm (and with it TensorFlow) only when one is made."""

from __future__ import annotations

import numpy as np

from envs.specs import BehaviorSpec
from trainers.settings import BehaviorSettings
from trainers.trainer import Trainer, Weights


def make_trainer(
    spec: BehaviorSpec, settings: BehaviorSettings, seed: np.random.SeedSequence, max_rows: int, weights: Weights
) -> Trainer:
    """The trainer that ``settings.trainer_type`` names, with `weights` to begin with.

    Raises:
        ValueError: unknown ``trainer_type``.
    """
    if settings.trainer_type == "ppo":
        from trainers.ppo import PPOTrainer

        return PPOTrainer(spec, settings, seed, max_rows, weights)
    raise ValueError(f"Expected trainer_type to be 'ppo', received {settings.trainer_type!r}.")
