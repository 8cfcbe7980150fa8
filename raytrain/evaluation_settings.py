"""The ``evaluation:`` section."""

from __future__ import annotations

from trainers.setting_types import Flag, NonNegativeInt, PositiveInt, Settings


class EvaluationSettings(Settings):
    """Episodes that judge the policy, in environments apart from those it learns in."""

    interval: PositiveInt | None = None
    """Agent steps between evaluations, each with a checkpoint of its own; ``null``: one with every checkpoint."""
    episodes: PositiveInt = 10
    """Episodes of each evaluation; ``env_settings.num_envs`` of them are played side by side."""
    deterministic: Flag = True
    """Take the most likely action (mean or arg max); false draws actions as training does."""
    seed: NonNegativeInt | None = None
    """Root of the seeds of these episodes, to judge runs of different seeds by the same ones; ``null`` is the run's own."""
