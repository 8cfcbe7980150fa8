"""``hyperparameters`` of a trainer of the user's own."""

from __future__ import annotations

from pydantic import ConfigDict

from trainers.setting_types import PositiveInt, Settings


class Hyperparameters(Settings):
    """What every trainer has. A class may derive its own from it and name it ``Hyperparameters``; keys that it lacks are refused then."""

    buffer_size: PositiveInt = 2048
    """Agent steps that an update waits for; it learns from every row held."""


class OwnHyperparameters(Hyperparameters):
    """``hyperparameters`` of a trainer of your own: ``buffer_size``, and whatever else its class declares."""

    model_config = ConfigDict(extra="allow")
