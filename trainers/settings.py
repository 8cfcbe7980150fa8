"""Settings of trainers and networks: frozen models, each default written once.

They stand apart from the algorithms so that a configuration can be checked without loading TensorFlow (3 s).
Keys are ML-Agents' where it has them.
"""

from __future__ import annotations

from numbers import Integral
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, model_validator
from pydantic_core import PydanticCustomError


def _whole_number(value: Any) -> Any:
    """``5e5`` and a NumPy integer as ``int``; anything else unchanged, for the strict check that follows."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return value


# Strict, because pydantic otherwise reads true as 1, "3" as 3 and "yes" as true: a slip that should be named, not guessed at.
Flag = Annotated[bool, Strict()]
# The conversion stands last: bounds behind it would be checked but be missing in the JSON Schema.
Whole = BeforeValidator(_whole_number)
PositiveInt = Annotated[int, Strict(), Field(ge=1), Whole]
NonNegativeInt = Annotated[int, Strict(), Field(ge=0), Whole]
Number = Annotated[float, Strict()]
PositiveFloat = Annotated[Number, Field(gt=0.0)]
NonNegativeFloat = Annotated[Number, Field(ge=0.0)]
Schedule = Literal["linear", "constant"]


class Settings(BaseModel):
    """Base of every settings model: frozen, unknown keys refused, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def contradiction(field: str, other: str, message: str) -> PydanticCustomError:
    """Error of two fields of one model that do not fit together, to be raised in a model validator.

    Args:
        field: where it is reported.
        other: the field it clashes with.
        message: names both fields and both values, and says what to do.
    """
    return PydanticCustomError("contradiction", "{message}", {"message": message, "field": field, "other": other})


class NetworkSettings(Settings):
    """The body that actor and critic networks share in shape (each has its own weights unless ``shared_critic``)."""

    hidden_units: PositiveInt = 128
    """Width of each dense layer (units)."""
    num_layers: PositiveInt = 2
    """Dense layers between observation and heads."""
    activation: Literal["swish", "tanh", "relu", "elu"] = "swish"
    """Activation after each dense layer."""
    normalize: Flag = False
    """Normalise vector observations by their running mean and standard deviation, clipped to ±5."""


class ExtrinsicSettings(Settings):
    """The environment's own reward."""

    strength: NonNegativeFloat = 1.0
    """Multiplier on the reward."""
    gamma: Annotated[Number, Field(gt=0.0, le=1.0)] = 0.99
    """Discount per agent step."""


class RewardSignals(Settings):
    """Named reward streams, each with its own value head, discount and strength."""

    extrinsic: ExtrinsicSettings = ExtrinsicSettings()
    """Learn from what the environment pays."""


class PPOHyperparameters(Settings):
    """``hyperparameters`` of ``trainer_type: ppo`` (Schulman et al. 2017)."""

    batch_size: PositiveInt = 1024
    """Rows of one optimizer step (a minibatch)."""
    buffer_size: PositiveInt = 10240
    """Rows that start an update."""
    learning_rate: NonNegativeFloat = 3e-4
    """Initial step size of Adam."""
    learning_rate_schedule: Schedule = "linear"
    """How the learning rate moves over ``max_steps``; linear falls to 1e-10."""
    beta: NonNegativeFloat = 5e-3
    """Entropy bonus coefficient; linear falls to 1e-5."""
    beta_schedule: Schedule | None = None
    """Schedule of ``beta``; ``null`` follows ``learning_rate_schedule``."""
    epsilon: Annotated[Number, Field(gt=0.0, lt=1.0)] = 0.2
    """Clip range of the importance ratio; linear falls to 0.1."""
    epsilon_schedule: Schedule | None = None
    """Schedule of ``epsilon``; ``null`` follows ``learning_rate_schedule``."""
    schedule_steps: PositiveInt | None = None
    """Agent steps over which linear schedules run; ``null`` is ``max_steps``."""
    lambd: Annotated[Number, Field(ge=0.0, le=1.0)] = 0.95
    """λ of generalised advantage estimation."""
    num_epoch: PositiveInt = 3
    """Passes over the buffer per update."""
    shared_critic: Flag = False
    """One body for actor and critic."""
    value_coef: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    value_clip: Flag = True
    """Clip the change of the value estimate by ``epsilon`` around the old estimate."""
    max_grad_norm: PositiveFloat | None = 0.5
    """Global norm to which gradients are clipped; ``null`` does not clip."""
    adam_epsilon: PositiveFloat = 1e-5
    """ε of Adam."""
    target_kl: PositiveFloat | None = None
    """Stop the epochs of an update once the approximate KL divergence of a whole epoch exceeds this; ``null`` never stops."""
    normalize_advantages: Flag = True
    """Advantages to mean 0 and standard deviation 1 over the whole buffer."""
    entropy_reduction: Literal["sum", "mean"] = "sum"
    """Entropy of several dimensions or branches: their sum (the joint entropy) or their mean (ML-Agents)."""
    reward_scaling: Flag = False
    """Divide rewards by the running standard deviation of discounted returns."""
    initial_std: PositiveFloat = 1.0
    """Initial standard deviation of continuous actions, in policy space [-1, 1]."""

    @model_validator(mode="after")
    def _batch_fits_buffer(self) -> PPOHyperparameters:
        if self.batch_size > self.buffer_size:
            raise contradiction(
                "batch_size",
                "buffer_size",
                f"expected batch_size to be at most buffer_size, received batch_size={self.batch_size} and "
                f"buffer_size={self.buffer_size}; a minibatch is drawn from the buffer: lower batch_size or raise buffer_size",
            )
        return self


class BehaviorSettings(Settings):
    """How one behavior is trained."""

    trainer_type: Literal["ppo"] = "ppo"
    """The algorithm."""
    hyperparameters: PPOHyperparameters = PPOHyperparameters()
    """What the algorithm is tuned by."""
    network_settings: NetworkSettings = NetworkSettings()
    """Size and shape of the networks."""
    reward_signals: RewardSignals = RewardSignals()
    """The reward streams that are learnt from."""
    max_steps: PositiveInt = 500_000
    """Agent steps of the whole run; also the end of linear schedules."""
    time_horizon: PositiveInt = 64
    """Longest trajectory (agent steps) before it is cut and its end bootstrapped."""
    summary_freq: PositiveInt = 50_000
    """Agent steps between summaries."""
    keep_checkpoints: PositiveInt = 5
    """How many checkpoints are kept besides the best one."""
    checkpoint_interval: PositiveInt = 500_000
    """Agent steps between checkpoints."""
    threaded: Flag = True
    """Environments step while the trainer updates. ``false`` for any behavior makes the whole run lock-step."""
