"""A resolved configuration as text: the YAML saved with a run, the table printed at its start, the schema for editors."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

import yaml

from raytrain.settings import RunConfig
from trainers.settings import BehaviorSettings


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
    # An empty section is refused, so editors must not offer null for it; leaving the key out is how to have none.
    defaults = schema["properties"]["default_settings"]
    defaults["$ref"] = defaults.pop("anyOf")[0]["$ref"]
    del defaults["default"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "raytrain configuration"}


def summary_rows(config: RunConfig) -> list[tuple[str, str]]:
    """What a run will do, as (name, text) rows of a short table; the arithmetic is for one agent of each behavior per environment."""
    env, spread, saved = config.env_settings, config.distributed, config.checkpoint_settings
    kwargs = ", ".join(f"{key}={value!r}" for key, value in config.env_kwargs.items())
    envs = spread.num_env_managers * env.num_envs
    placed = f"{_count(spread.num_env_managers, 'env manager')} × {_count(env.num_envs, 'env')} = {_count(envs, 'env')}"
    rows = [
        ("environment", f"{config.env}({kwargs})" if kwargs else config.env),
        ("env managers", f"{placed}, stepping {env.stepping}"),
    ]
    behaviors = config.behaviors or {"every behavior": config.default_settings}
    for name, settings in behaviors.items():
        if settings is not None:
            lines = [_learning(settings), _network(settings), _arithmetic(config, settings), _intervals(settings)]
            rows += zip([name, "", "", ""], lines, strict=True)
    mode = "lock-step (threaded: false)" if config.lock_step else "envs step while the trainer updates"
    rows.append(("policy lag", f"at most {_count(config.policy_lag, 'version')}, {mode}"))
    trainers = max(1, len(config.behaviors))
    cpus = spread.num_env_managers * spread.env_manager_cpus + trainers * spread.trainer_cpus
    gpus = f", {trainers * spread.trainer_gpus:g} GPUs" if spread.trainer_gpus else ""
    rows.append(("resources", f"{cpus:g} CPUs{gpus} on {spread.address or 'the local or running Ray'}"))
    rows.append(("seed", "drawn at the start" if env.seed == -1 else str(env.seed)))
    rows.append(("results", str(Path(saved.results_dir) / (saved.run_id or "<new run id>"))))
    if saved.initialize_from and not saved.resume:
        rows.append(("weights from", saved.initialize_from))
    if ends := _ends(config):
        rows.append(("ends early at", ends))
    return rows


def _learning(settings: BehaviorSettings) -> str:
    values = settings.hyperparameters
    gammas = ", ".join(f"{name} γ {signal['gamma']:g}" for name, signal in settings.reward_signals.model_dump().items())
    return (
        f"{settings.trainer_type}: learning rate {values.learning_rate:g} {values.learning_rate_schedule}, ε {values.epsilon:g}, "
        f"β {values.beta:g}, λ {values.lambd:g}, {gammas}"
    )


def _network(settings: BehaviorSettings) -> str:
    network, shared = settings.network_settings, settings.hyperparameters.shared_critic
    normalised = ", observations normalised" if network.normalize else ""
    body = "one body for actor and critic" if shared else "actor and critic apart"
    return f"network {network.num_layers} × {network.hidden_units} {network.activation}, {body}{normalised}"


def _arithmetic(config: RunConfig, settings: BehaviorSettings) -> str:
    """How the buffer is filled and used: env steps round up, so a buffer is never short."""
    values = settings.hyperparameters
    envs = config.distributed.num_env_managers * config.env_settings.num_envs
    steps = ceil(values.buffer_size / envs)
    minibatches = ceil(envs * steps / values.batch_size)
    return (
        f"an update each {values.buffer_size:,} agent steps: {_count(envs, 'env')} × {_count(steps, 'env step')} = {envs * steps:,}, in "
        f"trajectories of at most {settings.time_horizon:,}; {_count(values.num_epoch, 'epoch')} × "
        f"{_count(minibatches, 'minibatch', 'minibatches')} of {values.batch_size:,}"
    )


def _intervals(settings: BehaviorSettings) -> str:
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
