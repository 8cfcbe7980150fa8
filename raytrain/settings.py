"""Settings of a whole run: where it steps, where it learns, where it saves and when it stops."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, PrivateAttr, Strict, StringConstraints, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from raytrain.evaluation_settings import EvaluationSettings
from raytrain.parameter_settings import ParameterSettings
from raytrain.setting_warnings import behavior_warnings
from raytrain.writer_settings import WriterSettings
from raytrain.yaml_source import Document
from trainers.settings import (
    DEFAULT_TRAINER,
    AnyBehaviorSettings,
    BCSettings,
    Flag,
    NonNegativeFloat,
    NonNegativeInt,
    Number,
    PositiveFloat,
    PositiveInt,
    SACSettings,
    Settings,
    Text,
    Whole,
    contradiction,
    trainer_type_of,
)

RunId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$", max_length=120)]
Resources = dict[Text, PositiveFloat]
Restarts = Annotated[int, Strict(), Field(ge=-1), Whole]


class EnvSettings(Settings):
    """How environments are stepped."""

    num_envs: PositiveInt = 1
    """Environments per env manager."""
    stepping: Literal["inline", "threads", "processes", "auto"] = "auto"
    """``inline``: one after the other, for fast environments; ``threads``: for simulators that wait; ``processes``: for slow Python; ``auto``
    chooses. See docs/running.md#stepping-environments."""
    seed: Annotated[int, Strict(), Field(ge=-1), Whole] = -1
    """Root of every random stream of the run; -1 draws one (0 to 9999) at the start and saves it."""
    step_timeout_s: PositiveFloat | None = None
    """Seconds after which a step (with the reset that follows an end) counts as hung; the environment (with ``processes``) or its env manager is
    then started anew. ``null`` waits for ever."""
    max_lifetime_restarts: Restarts = 10
    """How often each part of a run (environment with a process of its own, env manager, trainer) is started anew after it died; -1 without limit,
    0 never. See docs/reliability.md."""
    restarts_rate_limit_n: Restarts = 1
    """How often within ``restarts_rate_limit_period_s``; -1 without limit."""
    restarts_rate_limit_period_s: PositiveFloat = 60.0
    """Seconds; an environment that raises an exception sooner than that after its start ends the run at once."""
    frame_stack: PositiveInt = 1
    """Newest observations that are shown together, on a new first axis (oldest first)."""
    action_repeat: PositiveInt = 1
    """Steps of the environment that each action is repeated for, their rewards summed up."""
    atari_preprocessing: Flag = True
    """Give Atari games (``ALE/…``) their standard preprocessing: 84 × 84 grey pixels, 4 frames per step, 4 stacked; see docs/spaces.md#atari."""


class DistributedSettings(Settings):
    """How the run is spread over processes and machines."""

    num_env_managers: PositiveInt | Literal["auto"] = 1
    """Processes that step environments, each with ``num_envs`` of them; ``auto``: as many as the cluster has room for beside the trainers, also
    when it grows or shrinks while the run goes on."""
    max_env_managers: PositiveInt | None = None
    """Most of them that there may be later on, by ``auto`` or ``raytrain scale``; ``null``: ``num_env_managers``, and with ``auto`` twice what
    fits at the start."""
    max_policy_lag: NonNegativeInt = 1
    """Most policy versions by which collected steps may trail the policy update that uses them; 0 is strictly on-policy. Of ``ppo`` only."""
    env_manager_cpus: NonNegativeFloat = 1.0
    """CPUs that each env manager claims from Ray; a fraction suits simulators that mostly wait."""
    trainer_cpus: NonNegativeFloat = 1.0
    """CPUs that each trainer claims from Ray; TensorFlow gets as many threads, rounded down, at least one."""
    trainer_gpus: NonNegativeFloat = 0.0
    """GPUs that each trainer claims from Ray."""
    trainer_resources: Resources = Field(default={})
    """Other resources of nodes that each trainer claims, by name: ``{fast: 1}`` puts it on a node that ``ray start --resources`` gave some."""
    env_manager_resources: Resources = Field(default={})
    """Other resources that each env manager claims, by name. Env managers see a GPU only with ``GPU`` among them."""
    wait_for_resources: Flag = False
    """Wait for nodes that are still to come instead of refusing a run that the cluster cannot hold now; so it is with an autoscaler. See
    docs/cluster.md."""
    address: Text | None = None
    """Ray cluster to join, ``host:port`` or ``auto``; ``null``: see docs/running.md#which-ray-is-used. ``ray://`` is refused."""

    @model_validator(mode="after")
    def _room_for_all(self) -> DistributedSettings:
        if self.max_env_managers is not None and self.num_env_managers != "auto" and self.max_env_managers < self.num_env_managers:
            raise contradiction(
                "max_env_managers", "num_env_managers",
                f"expected max_env_managers of at least num_env_managers={self.num_env_managers}, received {self.max_env_managers}",
            )
        return self

    _fitting: int | None = PrivateAttr(default=None)

    def fitted(self, fitting: int) -> DistributedSettings:
        """The same for a cluster that has room for `fitting` env managers."""
        copy = self.model_copy()
        copy._fitting = max(1, fitting)
        return copy

    @property
    def count(self) -> int:
        """Env managers at the start; 1 with ``auto`` as long as no cluster was looked at."""
        if self.num_env_managers != "auto":
            return self.num_env_managers
        return min(self._fitting or 1, self.max_env_managers or self._fitting or 1)

    @property
    def follows_cluster(self) -> bool:
        """Whether there are to be as many env managers as there is room for."""
        return self.num_env_managers == "auto"

    @property
    def most(self) -> int:
        """Env managers that there may be later on."""
        return self.max_env_managers or (2 * self.count if self.follows_cluster and self._fitting else self.count)

    @field_validator("trainer_resources", "env_manager_resources")
    @classmethod
    def _resources_without_a_key(cls, resources: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        """Those that have a key of their own must not be given twice."""
        of = info.field_name.removesuffix("_resources")
        keys = {"CPU": f"{of}_cpus", **({"GPU": "trainer_gpus"} if of == "trainer" else {})}
        for name, key in keys.items():
            if name in resources:
                raise PydanticCustomError("has_key", "expected other resources than {name}, which {key} is for, received {name}: {value}",
                                          {"name": name, "key": key, "value": resources[name]})
        return resources

    @field_validator("address")
    @classmethod
    def _no_ray_client(cls, address: str | None) -> str | None:
        if address is not None and address.startswith("ray://"):
            raise PydanticCustomError(
                "ray_client",
                "expected host:port or auto, received a Ray Client address (ray://), over which weights and trajectories would "
                "pass through one proxy; start the run on a machine of the cluster with address: auto",
            )
        return address


class CheckpointSettings(Settings):
    """Where a run is saved and what it starts from."""

    run_id: RunId | None = None
    """Name of the run and of its folder: letters, digits, ``_``, ``-`` and ``.``; ``null`` makes one from the first behavior's name and the time."""
    results_dir: Text = "results"
    """Folder of all runs, relative to where the run is started; or a URI that fsspec understands (``s3://bucket/results``)."""
    resume: Flag = False
    """Continue the run of this id from its newest checkpoint."""
    force: Flag = False
    """Begin anew although a run of this id exists; its folder is moved to ``<results_dir>/.replaced``."""
    interval_s: PositiveFloat | None = None
    """Seconds between checkpoints, besides those of each behavior's ``checkpoint_interval``."""
    initialize_from: Text | None = None
    """Run id, run folder or checkpoint folder whose weights a new run starts from."""

    @model_validator(mode="after")
    def _resume_or_force(self) -> CheckpointSettings:
        if self.resume and self.force:
            raise contradiction(
                "force",
                "resume",
                "expected resume or force, received resume=true and force=true; resume continues the run, force replaces it",
            )
        return self


class StopSettings(Settings):
    """When a run ends before ``max_steps``; the first that comes true ends it."""

    reward: Number | None = None
    """Mean return of the last ``episodes`` episodes that is good enough."""
    episodes: PositiveInt = 100
    """Episodes over which the mean return is taken."""
    plateau_summaries: PositiveInt | None = None
    """End after this many summaries in a row without a better mean return."""
    plateau_delta: NonNegativeFloat = 0.0
    """By how much a mean return must be better to count."""
    wall_time_s: PositiveFloat | None = None
    """Seconds of wall time since this start of the run."""


class RunConfig(Settings):
    """One run: an environment, the behaviors in it and how they are trained."""

    env: Text | None
    """Gymnasium id, or ``module:factory`` for an environment of your own, see docs/configuration.md#the-environment. May be left out with
    ``trainer_type: bc``."""
    env_kwargs: dict[str, Any] = Field(default={})
    """Arguments of the environment or factory, passed on unchanged: any plain YAML."""
    import_from: Text | None = None
    """Folder that is searched for modules of your own and for demonstrations; ``null`` is that of the file. Saved with a run."""
    default_settings: AnyBehaviorSettings | None = None
    """What every behavior starts from; also the settings of behaviors that the file does not name."""
    behaviors: dict[str, AnyBehaviorSettings] = Field(default={}, validate_default=True)
    """Behavior name → how it is trained. An environment with a single agent has one behavior, named after its id: CartPole-v1 → CartPole."""
    environment_parameters: dict[str, ParameterSettings] = Field(default={})
    """Parameter of the environment → a number, how it is drawn for each episode, or its curriculum."""
    env_settings: EnvSettings = EnvSettings()
    """How environments are stepped."""
    distributed: DistributedSettings = DistributedSettings()
    """How the run is spread over processes and machines."""
    checkpoint_settings: CheckpointSettings = CheckpointSettings()
    """Where the run is saved and what it starts from."""
    stop: StopSettings = StopSettings()
    """When the run ends before ``max_steps``."""
    evaluation: EvaluationSettings | None = None
    """How policies are judged apart from training; ``null``: not at all, and the best checkpoint is that of the highest training return."""
    writers: tuple[WriterSettings, ...] = ()
    """Where statistics go besides TensorBoard's files and ``metrics.csv``: names of writers, or sections with their options (see docs/trackers.md)."""
    debug: Flag = False
    """Show the whole chain of causes of a fault, not only the part in your own code."""

    _source_dir: Path = PrivateAttr(default_factory=Path.cwd)
    _document: Document = PrivateAttr(default_factory=lambda: Document("the configuration", {}))

    @model_validator(mode="before")
    @classmethod
    def _only_cloning_needs_no_env(cls, data: Any) -> Any:
        """Without ``env`` it is null where every behavior is cloned from demonstrations, and missing otherwise."""
        if not isinstance(data, Mapping) or data.get("env") is not None:
            return data
        behaviors = data.get("behaviors")
        is_cloning = isinstance(behaviors, Mapping) and behaviors and all(trainer_type_of(b) == "bc" for b in behaviors.values())
        return {**{k: v for k, v in data.items() if k != "env"}, **({"env": None} if is_cloning else {})}

    @field_validator("env_kwargs")
    @classmethod
    def _can_be_saved(cls, env_kwargs: dict[str, Any]) -> dict[str, Any]:
        for key, value in env_kwargs.items():
            try:
                yaml.safe_dump(value)
            except yaml.YAMLError:
                raise PydanticCustomError(
                    "not_plain",
                    "expected numbers, text, lists and mappings, which can be saved with the run, received {kind} in {key}; "
                    "build it in a factory (env: module:factory)",
                    {"kind": type(value).__name__, "key": key},
                ) from None
        return env_kwargs

    @field_validator("default_settings", mode="before")
    @classmethod
    def _not_an_empty_section(cls, value: Any) -> Any:
        if value is None:
            raise PydanticCustomError("model_type", "Input should be a valid dictionary")
        return value

    @field_validator("behaviors")
    @classmethod
    def _some_behavior(cls, behaviors: dict[str, AnyBehaviorSettings], info: ValidationInfo) -> dict[str, AnyBehaviorSettings]:
        if not behaviors and "default_settings" in info.data and info.data["default_settings"] is None:
            raise PydanticCustomError(
                "no_behavior",
                "expected at least one behavior, or default_settings that stand for those of the environment, received neither; "
                "write behaviors: with the name of the environment's behavior below it (CartPole-v1 → CartPole)",
            )
        return behaviors

    @model_validator(mode="after")
    def _cloning_has_its_own(self) -> RunConfig:
        if self.evaluation is not None and self.is_offline:
            raise contradiction("evaluation", "behaviors", (
                "expected no evaluation with trainer_type: bc, which plays evaluation_episodes of its behavior before each checkpoint; write that instead"))
        return self

    @property
    def source_dir(self) -> Path:
        """Where a user's own modules are looked for: ``import_from``, or the folder of the file; the working folder for a dict."""
        return self._source_dir if self.import_from is None else self._source_dir / Path(self.import_from).expanduser()

    @property
    def document(self) -> Document:
        """The file it was read from, to place problems that show later."""
        return self._document

    @property
    def lock_step(self) -> bool:
        """Whether environments wait for every update: ``threaded: false`` for any behavior makes the whole run so."""
        settings = list(self.behaviors.values()) or [self.default_settings]
        return not all(behavior.threaded for behavior in settings if behavior is not None and not isinstance(behavior, BCSettings))

    @property
    def is_offline(self) -> bool:
        """Whether all is learnt from demonstrations, and nothing from an environment."""
        settings = list(self.behaviors.values()) or [self.default_settings]
        return all(isinstance(behavior, BCSettings) for behavior in settings)

    @property
    def policy_lag(self) -> int:
        """The lag limit that holds: ``max_policy_lag``, and 0 in lock-step."""
        return 0 if self.lock_step else self.distributed.max_policy_lag

    def placed(self) -> RunConfig:
        """The same run with the folder of the file in ``import_from``, so that it can be read from anywhere."""
        return self.model_copy(update={"import_from": str(self.source_dir)})

    def with_seed(self, seed: int) -> RunConfig:
        """The same run with `seed` as the root of its random streams."""
        env_settings = EnvSettings.model_validate({**self.env_settings.model_dump(), "seed": seed})
        return self.model_copy(update={"env_settings": env_settings})

    def with_behaviors(self, behaviors: Mapping[str, AnyBehaviorSettings]) -> RunConfig:
        """The same run with exactly these behaviors, once the environment has said which it has."""
        return self.model_copy(update={"behaviors": dict(behaviors)})

    def warnings(self) -> list[str]:
        """What can be run but is probably not meant, one sentence each."""
        behaviors = self.behaviors or {"default_settings": self.default_settings}
        found = [sentence for name, settings in behaviors.items() if settings for sentence in behavior_warnings(name, settings)]
        found += self._trainer_warnings([name for name, settings in behaviors.items() if isinstance(settings, SACSettings)])
        for name, parameter in self.environment_parameters.items():
            if parameter.curriculum and parameter.curriculum[-1].completion_criteria is not None:
                last = f"environment_parameters.{name}.curriculum.{len(parameter.curriculum) - 1}"
                found.append(f"{last}.completion_criteria are not used: the last lesson never ends.")
        longest = max(settings.max_steps or 0 for settings in behaviors.values() if settings is not None)
        every = self.evaluation.interval if self.evaluation else None
        if every is not None and every > longest:
            found.append(f"evaluation.interval={every:,} is larger than max_steps={longest:,}: only the last policy is evaluated.")
        if self.checkpoint_settings.resume and self.checkpoint_settings.initialize_from:
            unused = f"checkpoint_settings.initialize_from={self.checkpoint_settings.initialize_from}"
            found.append(f"{unused} is not used: resume continues from the run's own checkpoint.")
        if self.is_offline and self.env is None:
            unused = [key for key in ("reward", "plateau_summaries") if getattr(self.stop, key) is not None]
            found += [f"stop.{key}={getattr(self.stop, key):g} is not used: without env there are no returns." for key in unused]
        if self.stop.plateau_delta and self.stop.plateau_summaries is None:
            found.append(f"stop.plateau_delta={self.stop.plateau_delta} is not used: stop.plateau_summaries is not set.")
        return found

    def _trainer_warnings(self, by_sac: list[str]) -> list[str]:
        """What does not reach a behavior because of the algorithm that trains it; `by_sac` are the names of those trained by SAC."""
        found, spread = [], self.distributed
        if by_sac and spread.max_policy_lag != DistributedSettings().max_policy_lag:
            found.append(
                f"distributed.max_policy_lag={spread.max_policy_lag} has no effect on {', '.join(by_sac)}: sac learns from steps of "
                "every policy; hyperparameters.steps_per_update is what holds env managers and trainer together."
            )
        defaults = self.document.data.get("default_settings")
        unnamed = isinstance(defaults, dict) and "trainer_type" not in defaults and defaults.get("hyperparameters")
        if by_sac and unnamed and self.behaviors:
            found.append(
                f"default_settings.hyperparameters do not reach {', '.join(by_sac)}: without a trainer_type they are those of "
                f"{DEFAULT_TRAINER}; write trainer_type: sac in default_settings if they are meant for sac."
            )
        return found
