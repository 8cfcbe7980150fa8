"""The nearest valid key for one that is not known.

All of it is read from the settings models; only names that other systems use are listed here.
"""

from __future__ import annotations

import types
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from raytrain.settings import RunConfig
from raytrain.yaml_source import KeyPath

ANY_NAME = "*"
"""Stands for the name of any behavior in a path."""

OTHER_NAMES = {
    # ML-Agents, older file formats
    "trainer": "trainer_type",
    "default": "default_settings",
    "save_freq": "checkpoint_interval",
    "init_path": "initialize_from",
    "env_path": "env",
    "env_args": "env_kwargs",
    "load_model": "resume",
    # other libraries
    "env_id": "env",
    "env_name": "env",
    "env_config": "env_kwargs",
    "num_workers": "num_env_managers",
    "num_envs_per_worker": "num_envs",
    "n_envs": "num_envs",
    "lr": "learning_rate",
    "n_epochs": "num_epoch",
    "minibatch_size": "batch_size",
    "n_steps": "time_horizon",
    "total_timesteps": "max_steps",
    "clip_range": "epsilon",
    "clip_ratio": "epsilon",
    "ent_coef": "beta",
    "entropy_coef": "beta",
    "vf_coef": "value_coef",
    "gae_lambda": "lambd",
    "lambda": "lambd",
    "discount": "gamma",
}
"""What others call a key → its name here."""

_RECURRENT = "recurrent networks are not available here yet; remove it"
_SAC = "it belongs to SAC, which is not available here yet; remove it"
_UNITY = "it configures Unity's engine; arguments of an environment go into env_kwargs"
_RESTARTS = "limits of environment restarts are not available here yet; remove it"
_SIGNAL = "of the reward signals only extrinsic is available here yet; remove it"

NOT_AVAILABLE = {
    "framework": "networks run on TensorFlow here; remove it",
    "torch_settings": "networks run on TensorFlow here; remove it, and claim GPUs with distributed.trainer_gpus",
    "engine_settings": _UNITY,
    "no_graphics": _UNITY,
    "timeout_wait": "the start of an environment is waited for as long as it takes, and the wait is shown; remove it",
    "base_port": "environments here are Python objects without ports; remove it",
    "num_areas": "areas within one environment are Unity's; use env_settings.num_envs",
    "environment_parameters": "curricula and parameter randomisation are not available here yet; remove it",
    "curriculum": "curricula are not available here yet; remove it",
    "self_play": "self-play is not available here yet; remove it",
    "behavioral_cloning": "imitation is not available here yet; remove it",
    "pretraining": "imitation is not available here yet; remove it",
    "demo_path": "imitation is not available here yet; remove it",
    "curiosity": _SIGNAL,
    "gail": _SIGNAL,
    "rnd": _SIGNAL,
    "memory": _RECURRENT,
    "use_recurrent": _RECURRENT,
    "sequence_length": _RECURRENT,
    "memory_size": _RECURRENT,
    "vis_encode_type": "image encoders are not available here yet; remove it",
    "goal_conditioning_type": "goal signals are not available here yet; remove it",
    "deterministic": "training samples actions; ask for deterministic ones where a trained policy acts",
    "even_checkpoints": "set checkpoint_interval to max_steps / keep_checkpoints",
    "inference": "load the policy of a run instead (raytrain.load_policy)",
    "train_model": "a run always trains; remove it",
    "steps_per_update": _SAC,
    "reward_signal_steps_per_update": _SAC,
    "buffer_init_steps": _SAC,
    "init_entcoef": _SAC,
    "tau": _SAC,
    "save_replay_buffer": _SAC,
    "train_interval": _SAC,
    "num_update": _SAC,
    "max_lifetime_restarts": _RESTARTS,
    "restarts_rate_limit_n": _RESTARTS,
    "restarts_rate_limit_period_s": _RESTARTS,
    "sac": "of the trainers only ppo is available here yet",
    "poca": "of the trainers only ppo is available here yet",
}
"""Keys and values of ML-Agents without a counterpart here → what to do instead."""


def annotation_at(path: KeyPath) -> Any:
    """The declared type at `path` (without ``None``), or ``None`` where nothing is declared."""
    current: Any = RunConfig
    for key in path:
        if isinstance(current, type) and issubclass(current, BaseModel):
            known = current.model_fields.get(key)
            current = _without_none(known.annotation) if known else None
        elif get_origin(current) is dict:
            current = _without_none(get_args(current)[1])
        else:
            return None
    return current


def keys_at(path: KeyPath) -> list[str]:
    """The keys that are valid directly below `path`."""
    section = annotation_at(path)
    return list(section.model_fields) if isinstance(section, type) and issubclass(section, BaseModel) else []


def explain_unknown_key(path: KeyPath, value: Any, behaviors: list[str]) -> tuple[str, str]:
    """What to do about an unknown key.

    Args:
        path: where it was found.
        value: what it holds.
        behaviors: names of the behaviors in the file.

    Returns:
        The end of a sentence that begins with "unknown key", and the nearest valid key (empty if there is none).
    """
    *parent, key = path
    if not parent and isinstance(value, dict) and set(value) & set(keys_at(("behaviors", ANY_NAME))):
        return f"a behavior belongs at behaviors.{key}", f"behaviors.{key}"
    here = keys_at(tuple(parent))
    name = OTHER_NAMES.get(key, key)
    if name in here:
        return f"it is called {name} here", name
    elsewhere = [_concrete(other, path, behaviors) for other in _all_paths() if other[-1] == name]
    if elsewhere:
        return f"it belongs at {' or '.join(elsewhere[:2])}", elsewhere[0]
    if key in NOT_AVAILABLE:
        return f"known from ML-Agents: {NOT_AVAILABLE[key]}", ""
    if near := nearest(key, here):
        return f"did you mean {near}?", near
    if near := nearest(key, [other[-1] for other in _all_paths()], cutoff=0.8):
        place = next(_concrete(other, path, behaviors) for other in _all_paths() if other[-1] == near)
        return f"did you mean {place}?", place
    if near := nearest(key, here, cutoff=0.4):
        return f"did you mean {near}?", near
    return f"valid here: {', '.join(here)}", ""


def nearest(word: str, known: list[str], cutoff: float = 0.6) -> str:
    """The word of `known` that looks most like `word` in either case, or ``""``."""
    by_lower = {name.lower(): name for name in known}
    return next((by_lower[match] for match in get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)), "")


@cache
def _all_paths() -> tuple[KeyPath, ...]:
    """Every key of the settings, the ones of a behavior below `ANY_NAME`, shallow ones first."""
    found: list[KeyPath] = []
    level: list[KeyPath] = [()]
    while level:
        level = [(*path, key) for path in level for key in keys_at(path) if key != "default_settings"]
        found += level
        level = [(*path, ANY_NAME) if get_origin(annotation_at(path)) is dict else path for path in level]
    return tuple(found)


def _concrete(other: KeyPath, path: KeyPath, behaviors: list[str]) -> str:
    """`other` as text, with `ANY_NAME` replaced by the behavior that `path` is in, or the only one of the file."""
    if ANY_NAME not in other:
        return ".".join(other)
    if path[0] == "default_settings":
        return ".".join((path[0], *other[2:]))
    inside = path[1] if path[0] == "behaviors" and len(path) > 2 else None
    name = inside or (behaviors[0] if len(behaviors) == 1 else "<behavior>")
    return ".".join(name if key == ANY_NAME else key for key in other)


def _without_none(annotation: Any) -> Any:
    """The type of an optional field itself."""
    if get_origin(annotation) is Annotated:
        return _without_none(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return next(_without_none(member) for member in get_args(annotation) if member is not type(None))
    return annotation
