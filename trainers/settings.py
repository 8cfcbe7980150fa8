"""Settings of trainers and networks: frozen models, each default written once.

They stand apart from the algorithms so that a configuration can be checked without loading TensorFlow (3 s).
Keys are ML-Agents' where it has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Strict, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError

from envs.own_code import NETWORK, TRAINER, installed_names, is_module_reference
from trainers.bc_settings import BCHyperparameters
from trainers.own_settings import OwnHyperparameters
from trainers.self_play_settings import SelfPlaySettings
from trainers.setting_types import (
    AgentGroups,
    AgentNames,
    Encoder,
    Flag,
    NonNegativeFloat,
    NonNegativeInt,
    Number,
    PositiveFloat,
    PositiveInt,
    Schedule,
    Settings,
    Team,
    Text,
    Whole,
    contradiction,
    refuse_unknown,
)
from trainers.signal_settings import BehavioralCloningSettings, RewardSignals


class ObservationSettings(Settings):
    """How the networks take one observation in; what is ``null`` follows the rules of docs/spaces.md and the other network settings."""

    kind: Literal["image", "vector"] | None = None
    """Encode it as an image, or flatten it into the vector; ``null`` goes by the space."""
    encoder: Encoder | None = None
    """Encoder of an image; ``null`` is ``vis_encode_type``."""
    channels: Literal["first", "last"] | None = None
    """Axis of an image's channels, the first or the last of three; ``null`` takes the shorter one."""
    scale: Flag | None = None
    """Divide the pixels of an image by 255, once, inside the network; ``null`` does so for uint8 from 0 to 255."""
    normalize: Flag | None = None
    """Normalise a vector by its running statistics; ``null`` is ``normalize`` of the network settings."""


class MemorySettings(Settings):
    """A recurrent layer (LSTM) between the dense layers and the heads."""

    sequence_length: Annotated[int, Strict(), Field(ge=2), Whole] = 64
    """Agent steps through which gradients flow."""
    memory_size: Annotated[int, Strict(), Field(ge=2, multiple_of=2), Whole] = 128
    """Numbers that an agent remembers, half of them output and half cell state; even."""
    burn_in: NonNegativeInt | None = None
    """Of ``sac``: steps before those that are learnt from, which only warm the critics' memory up; ``null`` is a quarter of ``sequence_length``."""


class NetworkSettings(Settings):
    """The body that actor and critic networks share in shape (each has its own weights unless ``shared_critic``)."""

    hidden_units: PositiveInt = 128
    """Width of each dense layer (units), also of the one that ends the encoder of an image."""
    num_layers: NonNegativeInt = 2
    """Dense layers between observation (or encoders) and heads; 0 for none."""
    layers: tuple[PositiveInt, ...] | None = None
    """Widths of the dense layers, one by one (units), in place of ``num_layers`` of ``hidden_units``; ``null`` has those."""
    activation: Literal["swish", "tanh", "relu", "elu"] = "swish"
    """Activation after each dense layer."""
    normalize: Flag = False
    """Normalise vector observations by their running mean and standard deviation, clipped to ±5."""
    vis_encode_type: Encoder = "simple"
    """Encoder of images, which ends in a dense layer of ``hidden_units``; see docs/spaces.md#encoders."""
    memory: MemorySettings | None = None
    """Give policy and critics a memory; ``memory: {}`` takes every default of it, ``null`` has none."""
    observations: dict[str, ObservationSettings] = {}
    """Observation name → section of how it is taken in, where that differs from the rest."""
    model: str | None = None
    """A Keras model of your own in place of encoders and dense layers, as ``module:factory`` or by an installed name; see docs/spaces.md#a-keras-model-of-your-own."""
    model_kwargs: dict[str, Any] = {}
    """Arguments of that factory besides the inputs, passed on unchanged."""

    @field_validator("model")
    @classmethod
    def _module_and_factory(cls, model: str | None) -> str | None:
        if model is not None:
            refuse_unknown(NETWORK, model)
        return model

    @field_validator("model_kwargs")
    @classmethod
    def _can_be_saved(cls, model_kwargs: dict[str, Any]) -> dict[str, Any]:
        for key, value in model_kwargs.items():
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError):
                raise PydanticCustomError(
                    "not_plain",
                    "expected finite numbers, text, lists and mappings, which can be saved with the policy, received {kind} in {key}; build it "
                    "in the factory",
                    {"kind": type(value).__name__, "key": key},
                ) from None
        return model_kwargs

    @model_validator(mode="after")
    def _one_way_to_list_layers(self) -> NetworkSettings:
        # A saved configuration has every default, so the default of num_layers must go with layers.
        if self.layers is not None and self.num_layers != NetworkSettings.model_fields["num_layers"].default:
            raise contradiction(
                "num_layers",
                "layers",
                f"expected num_layers or layers, received num_layers={self.num_layers} and layers={list(self.layers)}; layers has the width of "
                "each dense layer, so their number is known: remove num_layers, or layers to have all of them hidden_units wide",
            )
        return self


class PPOHyperparameters(Settings):
    """``hyperparameters`` of ``trainer_type: ppo`` (Schulman et al. 2017)."""

    batch_size: PositiveInt = 1024
    """Agent steps of one minibatch, which is one optimizer step; at most ``buffer_size``."""
    buffer_size: PositiveInt = 10240
    """Agent steps that a policy update needs; it uses all there are."""
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
    """Passes over the buffer in a policy update."""
    shared_critic: Flag = False
    """One body for policy and critic instead of one each."""
    value_coef: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    value_clip: Flag = True
    """Clip the change of the value estimate by ``epsilon`` around the estimate of before the policy update."""
    max_grad_norm: PositiveFloat | None = 0.5
    """Global norm to which gradients are clipped; ``null`` does not clip."""
    adam_epsilon: PositiveFloat = 1e-5
    """ε of Adam."""
    target_kl: PositiveFloat | None = None
    """Stop the epochs of an update once the approximate KL divergence of a whole epoch exceeds this; ``null`` never stops."""
    normalize_advantages: Flag = True
    """Advantages to mean 0 and standard deviation 1 over the whole buffer."""
    entropy_reduction: Literal["sum", "mean"] = "sum"
    """Entropy of several dimensions or branches: ``sum`` (the joint entropy) or ``mean`` (see docs/migration.md#what-is-different)."""
    reward_scaling: Flag = False
    """Divide rewards by the running standard deviation of discounted returns."""
    initial_std: PositiveFloat = 1.0
    """Initial standard deviation of continuous actions, in policy space [-1, 1]."""

    @model_validator(mode="after")
    def _batch_fits_buffer(self) -> PPOHyperparameters:
        _check_batch_fits_buffer(self)
        return self


class SACHyperparameters(Settings):
    """``hyperparameters`` of ``trainer_type: sac`` (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905)."""

    batch_size: PositiveInt = 128
    """Rows of one update, drawn uniformly from the replay buffer; with a memory ``max(1, batch_size // sequence_length)`` sequences."""
    buffer_size: Annotated[int, Strict(), Field(ge=2), Whole] = 50_000
    """Frames that the replay buffer holds, one for each agent step; a new one takes the place of the oldest."""
    buffer_init_steps: NonNegativeInt = 0
    """Agent steps, acted by the untrained policy, that fill the replay buffer before updates are counted; at most ``buffer_size``."""
    learning_rate: NonNegativeFloat = 3e-4
    """Initial step size of Adam, for actor, critics and entropy coefficients alike."""
    learning_rate_schedule: Schedule = "constant"
    """How the learning rate moves over ``max_steps``; linear falls to 1e-10."""
    schedule_steps: PositiveInt | None = None
    """Agent steps over which a linear schedule runs; ``null`` is ``max_steps``."""
    init_entcoef: PositiveFloat = 1.0
    """Initial entropy coefficient α."""
    learn_entcoef: Flag = True
    """Learn α, one per discrete branch and one for the continuous actions; ``false`` keeps it at ``init_entcoef``."""
    tau: Annotated[Number, Field(gt=0.0, le=1.0)] = 0.005
    """τ of the target critics: θ' ← (1 − τ)·θ' + τ·θ at each update."""
    steps_per_update: PositiveFloat = 1.0
    """Agent steps per update on average; a fraction gives several updates per agent step (0.05 is 20)."""
    reward_signal_steps_per_update: PositiveFloat | None = None
    """Agent steps per update of the networks of reward signals; ``null`` is ``steps_per_update``. The extrinsic signal has none."""
    save_replay_buffer: Flag = False
    """Save the replay buffer with each checkpoint, so that a resumed run goes on with it; without it the buffer fills anew."""
    n_step: PositiveInt = 1
    """Rewards that a target sums before it bootstraps, fewer where the episode ends; may be more than ``time_horizon``."""
    target_entropy: Number | None = None
    """Entropy (nats) at which α holds the continuous actions, in policy space [-1, 1]; ``null`` is −(number of dimensions)."""
    target_entropy_scale: Annotated[Number, Field(gt=0.0, lt=1.0)] = 0.7
    """c of the entropy c·ln n at which α holds a discrete branch of n choices."""
    adam_epsilon: PositiveFloat = 1e-8
    """ε of Adam."""
    max_grad_norm: PositiveFloat | None = None
    """Global norm to which gradients are clipped; ``null`` does not clip."""
    use_sde: Flag = False
    """Explore with generalised state-dependent noise (Raffin et al. 2021, https://arxiv.org/abs/2005.05719), for continuous actions."""
    sde_steps: PositiveInt | None = None
    """Agent steps between two draws of that noise; ``null`` draws at the start of an episode only."""
    sde_initial_log_std: Number = -3.0
    """Initial log standard deviation of that noise."""

    @field_validator("target_entropy_scale", mode="before")
    @classmethod
    def _entropy_within_reach(cls, scale: Any) -> Any:
        if isinstance(scale, int | float) and not isinstance(scale, bool) and 1.0 <= scale < inf:
            message = (
                f"expected a number < 1, received {scale:g}; the entropy of n choices is at most ln n, so a target of c·ln n needs "
                "c < 1, or the entropy coefficient grows without end: write target_entropy_scale: 0.7, or remove it for the default"
            )
            raise PydanticCustomError("entropy_out_of_reach", "{message}", {"message": message})
        return scale

    @model_validator(mode="after")
    def _batch_fits_buffer(self) -> SACHyperparameters:
        _check_batch_fits_buffer(self)
        return self

    @model_validator(mode="after")
    def _warm_up_fits_buffer(self) -> SACHyperparameters:
        if self.buffer_init_steps > self.buffer_size:
            raise contradiction(
                "buffer_init_steps",
                "buffer_size",
                f"expected buffer_init_steps to be at most buffer_size, received buffer_init_steps={self.buffer_init_steps} and "
                f"buffer_size={self.buffer_size}; a longer warm-up overwrites its own first steps before anything is learnt from "
                "them: lower buffer_init_steps or raise buffer_size",
            )
        return self


def _check_batch_fits_buffer(values: PPOHyperparameters | SACHyperparameters) -> None:
    """A minibatch above the buffer is a contradiction."""
    if values.batch_size > values.buffer_size:
        raise contradiction(
            "batch_size",
            "buffer_size",
            f"expected batch_size to be at most buffer_size, received batch_size={values.batch_size} and "
            f"buffer_size={values.buffer_size}; a minibatch is drawn from the buffer: lower batch_size or raise buffer_size",
        )


class BehaviorSettings(Settings):
    """How one behavior is trained, whatever the algorithm; `PPOSettings`, `SACSettings` and `OwnTrainerSettings` are what a
    behavior has."""

    trainer_type: str
    """The algorithm."""
    hyperparameters: PPOHyperparameters | SACHyperparameters | OwnHyperparameters
    """What the algorithm is tuned by."""
    network_settings: NetworkSettings = NetworkSettings()
    """Size and shape of the networks."""
    reward_signals: RewardSignals = RewardSignals()
    """The reward streams that are learnt from."""
    behavioral_cloning: BehavioralCloningSettings | None = None
    """Learn from demonstrations too; ``null`` does not."""
    max_steps: PositiveInt = 500_000
    """Agent steps of the whole run; also the end of linear schedules. The run may pass it by what one item of trajectories holds."""
    time_horizon: PositiveInt = 64
    """Longest trajectory (agent steps) before it is cut and its end bootstrapped. Trajectories are cut at the end of a credit round too."""
    summary_freq: PositiveInt = 50_000
    """Agent steps between summaries."""
    keep_checkpoints: PositiveInt = 5
    """How many checkpoints are kept besides the best one."""
    checkpoint_interval: PositiveInt = 500_000
    """Agent steps between checkpoints."""
    threaded: Flag = True
    """Environments step while the trainer updates. ``false`` for any behavior makes the whole run lock-step: policy lag 0, equal credit."""
    agents: AgentNames = ()
    """Agents of a PettingZoo world that have this behavior: names, or patterns such as ``adversary_*``; one text or a list. Empty where all agents
    have the same one."""
    groups: AgentGroups = Field(default={})
    """Team-mates that share a reward, which the world gives in ``info["group_reward"]``: name of a group → names or patterns of its agents in one
    world. A group of the same name in several behaviors is one group. See docs/multi-agent.md#groups."""
    team: Team = None
    """Side of its agents in self-play: a number, or a mapping of names or patterns to numbers. ``null``: each agent is a side of its own, or each
    behavior where several have ``self_play``."""
    self_play: SelfPlaySettings | None = None
    """Learn against frozen earlier policies, in worlds of several teams; ``null`` learns against whoever acts in the others."""

    @model_validator(mode="after")
    def _teams_take_turns(self) -> BehaviorSettings:
        if self.team is not None and self.self_play is None:
            raise contradiction("team", "self_play", "expected team together with self_play only, whose sides it names; remove it, or add self_play: {}")
        change = self.self_play.team_change if self.self_play is not None else None
        if change is not None and change > self.max_steps:
            raise contradiction("self_play.team_change", "max_steps", (
                f"expected team_change to be at most max_steps, received self_play.team_change={change} and max_steps={self.max_steps}; one team "
                "alone would ever learn: lower team_change (null is 5 × save_steps) or raise max_steps"))
        return self


class PPOSettings(BehaviorSettings):
    """A behavior trained by proximal policy optimisation."""

    trainer_type: Literal["ppo"] = "ppo"
    """The algorithm: ``ppo``, ``sac``, ``bc``, or a trainer of your own (see docs/extending.md#a-trainer). It decides which ``hyperparameters`` there are; ``bc`` has other keys."""
    hyperparameters: PPOHyperparameters = PPOHyperparameters()
    """What the algorithm is tuned by."""


class SACSettings(BehaviorSettings):
    """A behavior trained by soft actor-critic."""

    trainer_type: Literal["sac"] = "sac"
    """The algorithm."""
    hyperparameters: SACHyperparameters = SACHyperparameters()
    """What the algorithm is tuned by."""


class OwnTrainerSettings(BehaviorSettings):
    """A behavior trained by a class of your own (see docs/extending.md)."""

    trainer_type: Text
    """The algorithm: the class, as module:Class or by the name that an installed package gives it."""
    hyperparameters: OwnHyperparameters = OwnHyperparameters()
    """What the algorithm is tuned by."""

    @field_validator("trainer_type")
    @classmethod
    def _known(cls, trainer_type: str) -> str:
        refuse_unknown(TRAINER, trainer_type)
        return trainer_type

    @model_validator(mode="after")
    def _no_cloning(self) -> OwnTrainerSettings:
        if self.behavioral_cloning is not None:
            raise contradiction("behavioral_cloning", "trainer_type", (
                f"expected no behavioral_cloning with trainer_type: {self.trainer_type}, whose updates are its own; remove it, or write trainer_type: ppo"))
        return self


class BCSettings(Settings):
    """A behavior that is cloned from demonstrations alone. Steps are rows of demonstrations learnt from."""

    trainer_type: Literal["bc"] = "bc"
    """The algorithm."""
    demo_path: Text
    """Demonstrations: a file, a folder of them, or ``minari:dataset-id``, relative to the YAML file; see docs/demonstrations.md."""
    hyperparameters: BCHyperparameters = BCHyperparameters()
    """What the algorithm is tuned by."""
    network_settings: NetworkSettings = NetworkSettings()
    """Size and shape of the networks."""
    validation_share: Annotated[Number, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the episodes that is not learnt from and judges the policy, at least one; 0 holds none out."""
    evaluation_episodes: PositiveInt = 10
    """Episodes that the policy acts, most likely actions, in the environment before each checkpoint; none without ``env``."""
    max_steps: PositiveInt | None = None
    """Rows learnt from after which the run ends early; ``null`` leaves that to ``num_epoch``."""
    summary_freq: PositiveInt | None = None
    """Rows between summaries; ``null`` is a pass over the demonstrations."""
    checkpoint_interval: PositiveInt | None = None
    """Rows between checkpoints; ``null`` is a pass over the demonstrations."""
    keep_checkpoints: PositiveInt = 5
    """How many checkpoints are kept besides the best one."""


SETTINGS_BY_TRAINER: dict[str, type[BehaviorSettings | BCSettings]] = {"ppo": PPOSettings, "sac": SACSettings, "bc": BCSettings}
"""``trainer_type`` → the settings of a behavior trained by it."""
DEFAULT_TRAINER = "ppo"
_OWN = "own"  # the tag of every other trainer


def is_own_trainer(trainer_type: Any) -> bool:
    """Whether it names a class of the user's: as module:Class, or by the name that an installed package gives."""
    if not isinstance(trainer_type, str) or trainer_type in SETTINGS_BY_TRAINER:
        return False
    return is_module_reference(trainer_type) or trainer_type in installed_names(TRAINER)


def settings_by_trainer(trainer_type: str) -> type[BehaviorSettings | BCSettings]:
    """The settings of a behavior trained by `trainer_type`."""
    return SETTINGS_BY_TRAINER.get(trainer_type, OwnTrainerSettings)


def trainer_type_of(settings: Any) -> Any:
    """``trainer_type`` of a behavior's settings or of the mapping that stands for them, ``"ppo"`` where there is none."""
    if isinstance(settings, BehaviorSettings | BCSettings):
        return settings.trainer_type
    return settings.get("trainer_type", DEFAULT_TRAINER) if isinstance(settings, Mapping) else DEFAULT_TRAINER


def _tag(settings: Any) -> str:
    trainer_type = trainer_type_of(settings)
    return trainer_type if trainer_type in list(SETTINGS_BY_TRAINER) else _OWN


TAGS = (*SETTINGS_BY_TRAINER, _OWN)
"""What pydantic puts into the place of an error that is in the settings of a behavior."""

AnyBehaviorSettings = Annotated[
    Annotated[PPOSettings, Tag("ppo")] | Annotated[SACSettings, Tag("sac")] | Annotated[BCSettings, Tag("bc")] | Annotated[OwnTrainerSettings, Tag(_OWN)],
    Discriminator(_tag),
]
"""A field that holds the settings of the algorithm that its ``trainer_type`` names."""
