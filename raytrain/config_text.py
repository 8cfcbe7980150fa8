"""A resolved configuration as text: the YAML saved with a run, the table printed at its start, the schema for editors."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from types import MappingProxyType
from typing import Any

import yaml

from envs.own_code import TRAINER, installed_names
from raytrain.evaluation_settings import EvaluationSettings
from raytrain.remote import run_address
from raytrain.settings import EnvSettings, RunConfig
from trainers.settings import (
    DEFAULT_TRAINER,
    SETTINGS_BY_TRAINER,
    AnyBehaviorSettings,
    BehaviorSettings,
    NetworkSettings,
    OwnTrainerSettings,
    SACHyperparameters,
    SACSettings,
)
from trainers.signal_settings import SignalSettings


def to_yaml(config: RunConfig, header: Mapping[str, Any] | None = None) -> str:
    """Every setting with its resolved value; `load_config` reads it back.

    ``resume`` and ``force`` are written as false: they were orders for one start, and a saved ``force`` would replace a run when the
    file is used again.

    Args:
        config: what to write.
        header: lines of a comment at the top, for example the versions of the libraries.
    """
    comment = "".join(f"# {key}: {value}\n" for key, value in (header or {}).items())
    data = config.model_dump(exclude={"default_settings"} if config.default_settings is None else None)
    data["checkpoint_settings"] |= {"resume": False, "force": False}
    return comment + yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a configuration file, with which editors complete and check it; ``yaml/schema.json`` holds it."""
    schema = RunConfig.model_json_schema()
    schema["$defs"] |= {_schema_name(trainer): _behavior_schema(trainer) for trainer in SETTINGS_BY_TRAINER}
    properties = schema["properties"]
    # An empty section is refused, so editors must not offer null for it; leaving the key out is how to have none.
    properties["default_settings"] = {"description": properties["default_settings"]["description"], **_behavior(DEFAULT_TRAINER)}
    # Only cloning does without an environment.
    cloned = {"properties": {"trainer_type": {"const": "bc"}}, "required": ["trainer_type"]}
    del schema["required"]
    properties["env"] = {"description": properties["env"]["description"], "minLength": 1, "type": "string"}
    schema["anyOf"] = [
        {"required": ["env"]},
        {"properties": {"behaviors": {"additionalProperties": cloned}}, "required": ["behaviors"]},
        {"properties": {"default_settings": cloned}, "required": ["default_settings", "behaviors"]},
    ]
    del properties["behaviors"]["additionalProperties"]
    behaviors = {name: {"properties": {"behaviors": {"additionalProperties": _behavior(name)}}} for name in SETTINGS_BY_TRAINER}
    # A behavior that does not name its algorithm has that of default_settings.
    schema |= _by_trainer_type(behaviors, DEFAULT_TRAINER, within="default_settings")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "raytrain configuration"}


def _behavior_schema(default_trainer: str) -> dict[str, Any]:
    """Schema of a behavior: that of the algorithm which ``trainer_type`` names, or of `default_trainer` where the key is left out.

    pydantic's ``oneOf`` would refuse a behavior without ``trainer_type``, which fits several, and editors would offer the keys of all.
    """
    description = BehaviorSettings.model_fields["trainer_type"].description
    choice = {"default": default_trainer, "description": description,
              "anyOf": [{"enum": [*SETTINGS_BY_TRAINER, *installed_names(TRAINER)]}, {"pattern": r"^\w+(\.\w+)*:\w+$", "type": "string"}]}
    branches = {name: {"$ref": f"#/$defs/{settings.__name__}"} for name, settings in SETTINGS_BY_TRAINER.items()}
    named = _by_trainer_type(branches, default_trainer)
    other = {"properties": {"trainer_type": {"not": {"enum": list(SETTINGS_BY_TRAINER)}}}, "required": ["trainer_type"]}
    named = {"if": other, "then": {"$ref": f"#/$defs/{OwnTrainerSettings.__name__}"}, "else": named}
    return {"description": "How one behavior is trained.", "type": "object", "properties": {"trainer_type": choice}, **named}


def _by_trainer_type(branches: Mapping[str, Any], default_trainer: str, within: str = "") -> dict[str, Any]:
    """The branch of the ``trainer_type`` that stands there (or in the section `within`), else that of `default_trainer`."""
    chosen = branches[default_trainer]
    for name, branch in branches.items():
        if name != default_trainer:
            named: dict[str, Any] = {"properties": {"trainer_type": {"const": name}}, "required": ["trainer_type"]}
            condition = {"properties": {within: named}, "required": [within]} if within else named
            chosen = {"if": condition, "then": branch, "else": chosen}
    return chosen


def _schema_name(default_trainer: str) -> str:
    return f"BehaviorSettings_{default_trainer}_by_default"


def _behavior(default_trainer: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{_schema_name(default_trainer)}"}


def summary_rows(config: RunConfig, agents: Mapping[str, int] = MappingProxyType({})) -> list[tuple[str, str]]:
    """What a run will do, as (name, text) rows of a short table.

    Args:
        agents: behavior -> its agents in one environment, where they are not one.
    """
    if config.is_offline:
        return _offline_rows(config)
    env, spread = config.env_settings, config.distributed
    kwargs = ", ".join(f"{key}={value!r}" for key, value in config.env_kwargs.items())
    envs = spread.count * env.num_envs
    placed = f"{_count(spread.count, 'env manager')} × {_count(env.num_envs, 'env')} = {_count(envs, 'env')}"
    rows = [
        ("environment", f"{config.env}({kwargs})" if kwargs else config.env),
        ("env managers", f"{placed}, stepping {env.stepping}{_around(env)}"),
    ]
    behaviors = config.behaviors or {"every behavior": config.default_settings}
    for name, settings in behaviors.items():
        if settings is not None:
            lines = [_learning(settings), _network(settings), _arithmetic(config, settings, agents.get(name, 1)), _intervals(settings)]
            rows += zip([name, "", "", ""], lines, strict=True)
    mode = "lock-step (threaded: false)" if config.lock_step else "envs step while the trainer updates"
    off_policy = all(isinstance(settings, SACSettings) for settings in behaviors.values())
    limit = "any (sac is off-policy)" if off_policy else f"at most {_count(config.policy_lag, 'version')}"
    rows.append(("policy lag", f"{limit}, {mode}"))
    if config.evaluation is not None:
        rows.append(("evaluation", _evaluation(config.evaluation)))
    trainers = max(1, len(config.behaviors))
    cpus = spread.count * spread.env_manager_cpus + trainers * spread.trainer_cpus
    gpus = f", {trainers * spread.trainer_gpus:g} GPUs" if spread.trainer_gpus else ""
    rows.append(("resources", f"{cpus:g} CPUs{gpus} on {spread.address or 'the local or running Ray'}"))
    return [*rows, *_start_and_end(config)]


def _start_and_end(config: RunConfig) -> list[tuple[str, str]]:
    """Seed, run folder, what it starts from, and what ends it early."""
    saved, seed = config.checkpoint_settings, config.env_settings.seed
    rows = [
        ("seed", "drawn at the start" if seed == -1 else str(seed)),
        ("results", str(run_address(saved.results_dir, saved.run_id or "<new run id>"))),
    ]
    if saved.initialize_from and not saved.resume:
        rows.append(("weights from", saved.initialize_from))
    if ends := _ends(config):
        rows.append(("ends early at", ends))
    return rows


def _evaluation(settings: EvaluationSettings) -> str:
    """How checkpoints are judged."""
    mode = "deterministic" if settings.deterministic else "sampled"
    when = "of every checkpoint" if settings.interval is None else f"each {settings.interval:,} agent steps"
    seeds = "" if settings.seed is None else f", seeds of {settings.seed}"
    return f"{_count(settings.episodes, 'episode')} with {mode} actions {when}{seeds}; the best checkpoint is the best of them"


def _offline_rows(config: RunConfig) -> list[tuple[str, str]]:
    """`summary_rows` of a run that learns from demonstrations alone."""
    judged = "none: the policy is judged by episodes held out"
    rows = [("environment", config.env or judged)]
    for name, settings in (config.behaviors or {"every behavior": config.default_settings}).items():
        values, network = settings.hyperparameters, settings.network_settings
        length = _count(values.num_epoch, "pass", "passes") + (f", {settings.max_steps:,} rows at most" if settings.max_steps else "")
        every = "pass" if settings.checkpoint_interval is None else f"{settings.checkpoint_interval:,} rows"
        evaluated = f", {_count(settings.evaluation_episodes, 'episode')} acted before it" if config.env else ""
        rows += [
            (name, f"bc: learning rate {values.learning_rate:g} {values.learning_rate_schedule}, minibatches of {values.batch_size:,} rows, {length}"),
            ("", f"demonstrations {settings.demo_path}, {settings.validation_share:.0%} of the episodes held out"),
            ("", network_layers(network) + (", observations normalised by the demonstrations" if network.normalize else "")
             + (f", memory of {network.memory.memory_size}" if network.memory else "")),
            ("", f"a checkpoint each {every} (the last {settings.keep_checkpoints} kept){evaluated}"),
        ]
    return [*rows, *_start_and_end(config)]


def _around(env: EnvSettings) -> str:
    """What is put around each environment, where it is not what every environment has."""
    repeated = f", each action for {env.action_repeat} steps" if env.action_repeat > 1 else ""
    return repeated + (f", {env.frame_stack} observations stacked" if env.frame_stack > 1 else "")


def _learning(settings: AnyBehaviorSettings) -> str:
    values = settings.hyperparameters
    gammas = ", ".join(_signal(name, signal) for name, signal in settings.reward_signals.active().items())
    if isinstance(values, SACHyperparameters):
        fixed = "" if values.learn_entcoef else " (fixed)"
        tuned = f"init_entcoef {values.init_entcoef:g}{fixed}, tau {values.tau:g}, n_step {values.n_step}"
    elif isinstance(settings, OwnTrainerSettings):
        tuned = ", ".join(f"{key} {value}" for key, value in values.model_dump().items())
        return f"{settings.trainer_type}: {tuned}, {gammas}"
    else:
        tuned = f"ε {values.epsilon:g}, β {values.beta:g}, λ {values.lambd:g}"
    return f"{settings.trainer_type}: learning rate {values.learning_rate:g} {values.learning_rate_schedule}, {tuned}, {gammas}"


def _signal(name: str, signal: SignalSettings) -> str:
    times = f" × {signal.strength:g}" if signal.strength != 1.0 else ""
    return f"{name}{times} γ {signal.gamma:g}"


def _network(settings: AnyBehaviorSettings) -> str:
    network, values = settings.network_settings, settings.hyperparameters
    normalised = ", observations normalised" if network.normalize else ""
    if isinstance(values, SACHyperparameters):
        body = "an actor and two critics" + (", state-dependent exploration" if values.use_sde else "")
    elif isinstance(settings, OwnTrainerSettings):
        body = "an actor, and what the trainer has besides"
    else:
        body = "one body for actor and critic" if values.shared_critic else "actor and critic apart"
    memory = f", memory of {network.memory.memory_size}" if network.memory else ""
    return f"network {network_layers(network)}{memory}, {body}{normalised}"


def network_layers(network: NetworkSettings) -> str:
    """The dense layers, or what stands in their place: ``2 × 64 tanh``, ``64, 32 tanh``, ``Keras model my_model:make``."""
    if network.model is not None:
        return f"Keras model {network.model}"
    widths = (network.hidden_units,) * network.num_layers if network.layers is None else network.layers
    if not widths:
        return "without dense layers"
    same = len(set(widths)) == 1
    return f"{f'{len(widths)} × {widths[0]}' if same else ', '.join(map(str, widths))} {network.activation}"


def _arithmetic(config: RunConfig, settings: AnyBehaviorSettings, agents: int) -> str:
    """How the buffer is filled and used."""
    values = settings.hyperparameters
    if isinstance(values, SACHyperparameters):
        return _replay_arithmetic(values, settings.time_horizon)
    envs = config.distributed.count * config.env_settings.num_envs
    # Env steps round up, so a buffer is never short.
    steps = ceil(values.buffer_size / (envs * agents))
    rows = envs * agents * steps
    acting = f"{_count(steps, 'env step')}" if agents == 1 else f"{_count(agents, 'agent')} × {_count(steps, 'step')}"
    filled = (
        f"an update each {values.buffer_size:,} agent steps: {_count(envs, 'env')} × {acting} = {rows:,}, in "
        f"trajectories of at most {settings.time_horizon:,}"
    )
    if isinstance(settings, OwnTrainerSettings):
        return filled
    minibatches = ceil(rows / values.batch_size)
    return f"{filled}; {_count(values.num_epoch, 'epoch')} × {_count(minibatches, 'minibatch', 'minibatches')} of {values.batch_size:,}"


def _replay_arithmetic(values: SACHyperparameters, time_horizon: int) -> str:
    """How the replay buffer is filled and used, in the names of the keys."""
    return (
        f"an update each {values.steps_per_update:g} agent {'step' if values.steps_per_update == 1 else 'steps'} (steps_per_update), "
        f"batch_size {values.batch_size:,} of the newest {values.buffer_size:,} (buffer_size), after {values.buffer_init_steps:,} "
        f"(buffer_init_steps); trajectories of at most {time_horizon:,}"
    )


def _intervals(settings: AnyBehaviorSettings) -> str:
    return (
        f"{settings.max_steps:,} agent steps in all, a summary each {settings.summary_freq:,}, a checkpoint each "
        f"{settings.checkpoint_interval:,} (the last {settings.keep_checkpoints} kept)"
    )


def _ends(config: RunConfig) -> str:
    stop, ends = config.stop, []
    if stop.reward is not None:
        ends.append(f"a mean return of {stop.reward:g} over {_count(stop.episodes, 'episode')}")
    if stop.plateau_summaries is not None:
        ends.append(f"{_count(stop.plateau_summaries, 'summary', 'summaries')} without a gain of {stop.plateau_delta:g}")
    if stop.wall_time_s is not None:
        ends.append(f"{stop.wall_time_s:,.0f} s of wall time")
    return ", or ".join(ends)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
