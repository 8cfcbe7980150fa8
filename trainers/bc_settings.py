"""``hyperparameters`` of ``trainer_type: bc``: cloning demonstrations without an environment."""

from __future__ import annotations

from trainers.setting_types import NonNegativeFloat, PositiveFloat, PositiveInt, Schedule, Settings


class BCHyperparameters(Settings):
    """``hyperparameters`` of ``trainer_type: bc`` (Pomerleau 1991, https://doi.org/10.1162/neco.1991.3.1.88)."""

    batch_size: PositiveInt = 256
    """Rows of one optimizer step; with a memory ``max(1, batch_size // sequence_length)`` sequences."""
    learning_rate: NonNegativeFloat = 1e-3
    """Initial step size of Adam."""
    learning_rate_schedule: Schedule = "constant"
    """How the learning rate moves from pass to pass; linear falls to 1e-10."""
    num_epoch: PositiveInt = 50
    """Passes over the demonstrations, after which the run ends."""
    initial_std: PositiveFloat = 0.2
    """Standard deviation of continuous actions, in policy space [-1, 1]; cloning moves the mean only."""
