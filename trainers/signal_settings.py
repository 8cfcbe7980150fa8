"""Settings of reward signals: each with its own value head, discount and strength."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from envs.own_code import SIGNAL
from trainers.setting_types import (
    Encoder,
    Flag,
    NonNegativeFloat,
    NonNegativeInt,
    Number,
    PositiveFloat,
    PositiveInt,
    Settings,
    Text,
    contradiction,
    refuse_unknown,
)


class SignalNetwork(Settings):
    """Networks of a reward signal's model. Observations are taken in as ``network_settings`` of the behavior says."""

    hidden_units: PositiveInt = 64
    """Width of each dense layer."""
    num_layers: PositiveInt = 2
    """Number of dense layers."""
    vis_encode_type: Encoder = "simple"
    """Encoder of images."""
    activation: Literal["swish", "tanh", "relu", "elu"] = "swish"
    """Activation after each dense layer."""


class SignalSettings(Settings):
    """What every reward signal has."""

    strength: NonNegativeFloat = 1.0
    """Multiplier on the reward."""
    gamma: Annotated[Number, Field(gt=0.0, le=1.0)] = 0.99
    """Discount γ per agent step."""


class ExtrinsicSettings(SignalSettings):
    """The environment's own reward."""


class ModelSignalSettings(SignalSettings):
    """A signal whose reward comes from networks that learn."""

    network_settings: SignalNetwork = SignalNetwork()
    """Size and shape of its networks."""
    learning_rate: NonNegativeFloat = 3e-4
    """Step size of Adam."""
    num_epoch: PositiveInt | None = None
    """Of ``ppo``: passes of its models over the buffer of each update; ``null`` makes as many as the policy."""


class CuriositySettings(ModelSignalSettings):
    """Reward what a forward model did not foresee (Pathak et al. 2017, https://arxiv.org/abs/1705.05363)."""


class RNDSettings(ModelSignalSettings):
    """Reward observations that a network has not learnt to tell (Burda et al. 2019, https://arxiv.org/abs/1810.12894)."""

    learning_rate: NonNegativeFloat = 1e-4
    """Step size of Adam."""


class GAILSettings(ModelSignalSettings):
    """Reward what a discriminator takes for an expert's (Ho & Ermon 2016, https://arxiv.org/abs/1606.03476)."""

    demo_path: Text
    """Demonstrations of experts: a file, a folder of them, or ``minari:dataset-id`` (see docs/demonstrations.md)."""
    use_actions: Flag = False
    """The discriminator sees the action beside the observation."""
    use_vail: Flag = False
    """The discriminator sees observations through a variational bottleneck (Peng et al. 2019, https://arxiv.org/abs/1810.00821)."""
    end_aware: Flag = False
    """Ends of episodes are judged too, so that their length is imitated; needs ``gamma`` below 1. Without it longer episodes always
    pay."""

    @model_validator(mode="after")
    def _ends_need_a_discount(self) -> GAILSettings:
        if self.end_aware and self.gamma == 1.0:
            raise contradiction("gamma", "end_aware", (
                "expected gamma below 1 with end_aware: true, received gamma=1; what comes after the end is discounted for ever: lower gamma, "
                "or set end_aware: false"))
        return self


class OwnSignalSettings(SignalSettings):
    """A signal of your own (see docs/extending.md)."""

    signal: Text
    """The class, as ``module:Class`` or by the name that an installed package gives it."""
    kwargs: dict[str, Any] = {}
    """Its arguments besides the behavior's spec, passed on unchanged."""

    @field_validator("signal")
    @classmethod
    def _known(cls, signal: str) -> str:
        refuse_unknown(SIGNAL, signal)
        return signal


class RewardSignals(Settings):
    """Named reward streams, each with its own value head, discount and strength."""

    extrinsic: ExtrinsicSettings = ExtrinsicSettings()
    """Learn from what the environment pays."""
    curiosity: CuriositySettings | None = None
    """Reward what a forward model did not foresee."""
    rnd: RNDSettings | None = None
    """Reward observations that are new to a network."""
    gail: GAILSettings | None = None
    """Reward what looks like an expert's."""
    own: dict[str, OwnSignalSettings] = {}
    """Name → a signal of your own."""

    def active(self) -> dict[str, SignalSettings]:
        """Name → settings of every signal that is used, ``extrinsic`` first."""
        built_in = {name: getattr(self, name) for name in ("extrinsic", "curiosity", "rnd", "gail")}
        return {**{name: signal for name, signal in built_in.items() if signal is not None}, **self.own}


class BehavioralCloningSettings(Settings):
    """The actor learns to do what demonstrations do, beside its own algorithm."""

    demo_path: Text
    """Demonstrations: a file, a folder of them, or ``minari:dataset-id`` (see docs/demonstrations.md)."""
    strength: PositiveFloat = 1.0
    """Its learning rate in units of the trainer's."""
    steps: NonNegativeInt = 0
    """Agent steps over which that learning rate falls to 0; 0 keeps it for ever."""
    batch_size: PositiveInt | None = None
    """Rows of one optimizer step; ``null`` is that of the trainer."""
    num_epoch: PositiveInt = 3
    """Passes over the demonstrations in each update of ``ppo``; ``sac`` makes one optimizer step for each of its own."""
    samples_per_update: NonNegativeInt = 0
    """Rows of a pass at most, drawn anew for each; 0 takes all."""
