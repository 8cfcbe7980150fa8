"""A run without a file: a complete configuration by what an environment observes and does.

The numbers are starting points that suit most environments, not the best for any: those of the ready-made files (``yaml/``), which say
why, with what has to fit the environment left open (the scale of observations and rewards, how far ahead to look).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

import gymnasium as gym
import yaml

from envs.specs import BehaviorSpec, EnvProbe
from raytrain.checks import probe
from raytrain.config import load_config
from raytrain.settings import RunConfig

TRAINERS = ("ppo", "sac")
_AGENTS = {"ppo": 32, "sac": 4}  # that act side by side
_IMAGE_AGENTS = {"ppo": 8, "sac": 4}
_WIDE = 32  # numbers observed, from which on networks are wider and steps smaller


def default_config(env: str, trainer: str = "ppo", overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """The configuration that trains `env`, which is made once to see what it observes and does.

    Args:
        env: as the key ``env``; a module of the user's own is looked for in the working folder.
        trainer: one of `TRAINERS`.
        overrides: as of `raytrain.config.load_config`.

    Raises:
        ConfigError: there is no such environment, it has a space that is not supported, or `overrides` are refused.
        RunFault: its own code raised.
    """
    overrides = overrides or {}
    of_env = {path: value for path, value in overrides.items() if path.split(".")[0] not in ("behaviors", "default_settings")}
    found = probe(load_config({"env": env, "default_settings": {}}, of_env), (str(Path.cwd()),))
    return load_config(default_settings(env, found, trainer), overrides)


def default_settings(env: str, found: EnvProbe, trainer: str = "ppo") -> dict[str, Any]:
    """What stands in the file of such a run.

    Args:
        found: what the environment says of itself.
    """
    make = {"ppo": _ppo, "sac": _sac}[trainer]
    agents = max(1, sum(len(found.agents.get(name) or "1") for name in found.behaviors))
    images = any(_has_image(spec) for spec in found.behaviors.values())
    num_envs = ceil((_IMAGE_AGENTS if images else _AGENTS)[trainer] / agents)
    data = {"env": env, "behaviors": {name: make(spec) for name, spec in found.behaviors.items()}, "env_settings": {"num_envs": num_envs}}
    goal = _goal(env)
    return data if goal is None else {**data, "stop": {"reward": goal}}


def as_file(config: RunConfig, env: str) -> str:
    """The settings of `config` that are no defaults, as the text of a file."""
    kept = {key: value for key, value in config.document.data.items() if key != "checkpoint_settings"}
    return f"# what raytrain train --env {env} trains with; every other setting is its default\n" + yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)


def _goal(env: str) -> float | None:
    """The mean return at which the environment's authors call it solved."""
    try:
        return gym.spec(env.rpartition(":")[2]).reward_threshold
    except gym.error.Error:
        return None


def _has_image(spec: BehaviorSpec) -> bool:
    return any(observation.kind == "image" for observation in spec.observations)


def _numbers(spec: BehaviorSpec) -> int:
    """Inputs of the networks, images apart."""
    return sum(sum(o.choices) or o.size for o in spec.observations if o.kind != "image")


def _network(spec: BehaviorSpec, units: int, activation: str) -> dict[str, Any]:
    normalize = any(observation.kind == "vector" for observation in spec.observations)
    if _has_image(spec):
        return {"normalize": normalize, "vis_encode_type": "nature_cnn", "hidden_units": 512, "num_layers": 1, "activation": "relu"}
    return {"normalize": normalize, "hidden_units": units, "num_layers": 2, "activation": activation}


def _ppo(spec: BehaviorSpec) -> dict[str, Any]:
    images, wide = _has_image(spec), _numbers(spec) > _WIDE
    is_continuous = spec.action.continuous_size > 0
    hyper: dict[str, Any] = {
        "buffer_size": 1024 if images else 4096, "batch_size": 256, "num_epoch": 4 if images else 10,
        "learning_rate": 2.5e-4 if images else 3e-4 if wide else 1e-3, "learning_rate_schedule": "linear",
        "lambd": 0.95, "epsilon": 0.1 if images else 0.2,
        "beta": 0.0 if is_continuous else 5e-3,  # a Gaussian explores by itself
        "value_clip": False, "reward_scaling": True,  # as nobody knows how large returns are
        "target_kl": 0.05,  # an update that goes too far ends early
    }
    if images:
        hyper["shared_critic"] = True  # one encoder, which is most of the arithmetic
    max_steps = 10_000_000 if images else 1_000_000
    return {
        "trainer_type": "ppo", "hyperparameters": hyper, "network_settings": _network(spec, 256 if wide else 64, "tanh"),
        "reward_signals": {"extrinsic": {"gamma": 0.99}}, "time_horizon": 128, "max_steps": max_steps,
        "summary_freq": 10_000, "checkpoint_interval": max_steps // 10}


def _sac(spec: BehaviorSpec) -> dict[str, Any]:
    images, wide = _has_image(spec), _numbers(spec) > _WIDE
    small = not (images or wide)
    hyper: dict[str, Any] = {
        "batch_size": 256, "buffer_size": 50_000 if images else 200_000, "buffer_init_steps": 1_000,
        "learning_rate": 1e-3 if small else 3e-4, "tau": 0.02 if small else 0.005}
    if spec.action.continuous_size:
        hyper["steps_per_update"] = 1
    else:
        # Its entropy is held up: a high one would never let it be sure of itself.
        hyper |= {"steps_per_update": 2, "init_entcoef": 0.2, "target_entropy_scale": 0.3}
    return {
        "trainer_type": "sac", "hyperparameters": hyper, "network_settings": _network(spec, 64 if small and not spec.action.continuous_size else 256, "relu"),
        "reward_signals": {"extrinsic": {"gamma": 0.99}}, "time_horizon": 64, "max_steps": 200_000,
        "summary_freq": 2_000, "checkpoint_interval": 20_000}
