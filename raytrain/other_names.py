"""What ML-Agents and other libraries call things, and what to write here instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OTHER_NAMES = {
    # ML-Agents, older file formats
    "trainer": "trainer_type",
    "default": "default_settings",
    "save_freq": "checkpoint_interval",
    "init_path": "initialize_from",
    "pretraining": "behavioral_cloning",
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
    "total_timesteps": "max_steps",
    "clip_range": "epsilon",
    "clip_ratio": "epsilon",
    "vf_coef": "value_coef",
    "gae_lambda": "lambd",
    "lambda": "lambd",
    "discount": "gamma",
    "reward_scale": "strength",
    "buffer": "buffer_size",
    "replay_size": "buffer_size",
    "replay_buffer_size": "buffer_size",
    "learning_starts": "buffer_init_steps",
    "start_steps": "buffer_init_steps",
    "update_after": "buffer_init_steps",
    "sde_sample_freq": "sde_steps",
    "log_std_init": "sde_initial_log_std",
    # networks and observations of other libraries
    "net_arch": "layers",
    "fcnet_hiddens": "layers",
    "activation_fn": "activation",
    "fcnet_activation": "activation",
    "nonlinearity": "activation",
    "vf_share_layers": "shared_critic",
    "custom_model": "model",
    "custom_model_config": "model_kwargs",
    "max_seq_len": "sequence_length",
    "lstm_memory": "memory",
    "normalize_images": "scale",
    "n_stack": "frame_stack",
    "framestack": "frame_stack",
    "num_framestacks": "frame_stack",
    "env_framestack": "frame_stack",
    "frame_skip": "action_repeat",
    "frameskip": "action_repeat",
    "env_frameskip": "action_repeat",
}
"""What others call a key → its name here."""

OTHER_NAMES_UNDER = {
    "ppo": {"ent_coef": "beta", "entropy_coef": "beta", "n_steps": "time_horizon"},
    "sac": {"ent_coef": "init_entcoef", "entropy_coef": "init_entcoef", "alpha": "init_entcoef", "n_steps": "n_step"},
    "bc": {"val_split": "validation_share", "validation_split": "validation_share", "demonstrations": "demo_path"},
}
"""The same for names that mean another key under each ``trainer_type``."""

COUNTERPARTS = {
    "sac": {"beta": "init_entcoef", "num_epoch": "steps_per_update", "lambd": "n_step"},
    "ppo": {"init_entcoef": "beta", "steps_per_update": "num_epoch", "n_step": "lambd"},
    "bc": {"steps_per_update": "num_epoch"},
}
"""Key of the other algorithm → the key that has its place under this ``trainer_type``."""

_UNITY = "it configures Unity's engine; arguments of an environment go into env_kwargs"

NOT_AVAILABLE = {
    "framework": "networks run on TensorFlow here; remove it",
    "torch_settings": "networks run on TensorFlow here; remove it, and claim GPUs with distributed.trainer_gpus",
    "engine_settings": _UNITY,
    "no_graphics": _UNITY,
    "timeout_wait": "the start of an environment is waited for as long as it takes, and the wait is shown; remove it",
    "base_port": "environments here are Python objects without ports; remove it",
    "num_areas": "areas within one environment are Unity's; use env_settings.num_envs",
    "goal_conditioning_type": "goal signals are not available here yet; remove it",
    "even_checkpoints": "set checkpoint_interval to max_steps / keep_checkpoints",
    "inference": "load the policy of a run instead (raytrain.load_policy)",
    "train_model": "a run always trains; remove it",
    "poca": "poca is not available here yet; with ppo each agent learns from its own reward and its group's added up",
}
"""Keys and values of ML-Agents without a counterpart here → what to do instead."""

_FREE = "the dense layers are network_settings.layers, the encoder of images is network_settings.vis_encode_type"

NO_COUNTERPART = {
    "policy": "networks follow from the observations, those of a Dict too; " + _FREE,
    "policy_kwargs": _FREE,
    "model_config": _FREE,
    "features_extractor_class": "choose network_settings.vis_encode_type, or write a Keras model of your own: network_settings.model",
    "features_extractor_kwargs": "arguments of a Keras model of your own are network_settings.model_kwargs",
    "conv_filters": "choose network_settings.vis_encode_type, or write a Keras model of your own: network_settings.model",
    "encoder_conv_architecture": "choose network_settings.vis_encode_type",
    "n_lstm_layers": "there is one recurrent layer here; remove it",
    "enable_critic_lstm": "the critic has a memory where the policy has one; remove it",
    "grayscale": "env_settings.atari_preprocessing makes Atari's pixels grey; arguments of other environments go into env_kwargs",
}
"""Keys of other libraries without a counterpart of the same meaning → what to do instead."""

OTHER_VALUES = {
    ("target_entropy", "auto"): "write null, which is −(number of action dimensions)",
    ("init_entcoef", "auto"): "the coefficient is learnt; write what it starts from, such as 1.0",
    ("sde_steps", -1): "write null to draw the noise once per episode",
    ("vis_encode_type", "cnn"): "write nature_cnn or simple",
    ("vis_encode_type", "CnnPolicy"): "write nature_cnn",
    ("vis_encode_type", "NatureCNN"): "write nature_cnn",
    ("vis_encode_type", "convnet_atari"): "write nature_cnn",
    ("vis_encode_type", "convnet_impala"): "write resnet",
    ("vis_encode_type", "impala"): "write resnet",
    ("memory", True): "write {} to take every default of it",
    ("memory", False): "write null, or remove it",
    ("memory", "lstm"): "write {} to take every default of it",
}
"""(key, value that others give it) → what to write here."""

# Key whose unit is another one here → (its replacement, other key: steps between blocks, other key: updates per block).
_UPDATE_RATES = {
    "train_interval": ("steps_per_update", "train_interval", "num_update"),
    "num_update": ("steps_per_update", "train_interval", "num_update"),
    "reward_signal_num_update": ("reward_signal_steps_per_update", "train_interval", "reward_signal_num_update"),
    "train_freq": ("steps_per_update", "train_freq", "gradient_steps"),
    "gradient_steps": ("steps_per_update", "train_freq", "gradient_steps"),
}


def converted(key: str, value: Any, nearby: Mapping[str, Any]) -> tuple[str, str] | None:
    """How to express a key of SAC that counts in another unit elsewhere.

    Args:
        key: the key that is not known here.
        value: what it holds.
        nearby: the other keys of the same behavior, whose numbers a formula may need.

    Returns:
        The end of a sentence about the key, and the key that replaces it; ``None`` for a key that needs no conversion.
    """
    if key in _UPDATE_RATES:
        return _update_rate(*_UPDATE_RATES[key], {**nearby, key: value}), _UPDATE_RATES[key][0]
    if key == "utd_ratio":
        number = f": {1 / value:g}" if _positive(value) else ""
        return f"updates per agent step are turned round here; write steps_per_update = 1 / {key}{number}", "steps_per_update"
    if key == "polyak":
        number = f": {1 - value:g}" if _positive(value) and value < 1 else ""
        return f"the target critics move by tau = 1 − {key} at each update; write tau{number}", "tau"
    return None


_IS_RECURRENT = ("use_recurrent", "use_lstm", "use_rnn", "recurrent")
_CELL_SIZES = ("lstm_hidden_size", "lstm_cell_size", "rnn_size")
_PARTS_OF_MEMORY = ("sequence_length", "memory_size")


def recurrent(key: str, value: Any, nearby: Mapping[str, Any]) -> tuple[str, str] | None:
    """How to ask for a memory where others have a switch, or count the cells of a recurrent layer.

    Args:
        key, value, nearby: as in `converted`.

    Returns:
        The end of a sentence about the key, with ``{place}`` for the path of what replaces it; and the key that does (empty where
        nothing does). ``None`` for a key that has nothing to do with it.
    """
    if key in _IS_RECURRENT:
        if value is False:
            return "there is no memory without network_settings.memory; remove it", ""
        parts = {name: nearby[name] for name in _PARTS_OF_MEMORY if _positive(nearby.get(name))}
        cells = next((nearby[name] for name in _CELL_SIZES if _positive(nearby.get(name))), None)
        parts |= {} if cells is None else {"memory_size": 2 * cells}
        section = "{{" + ", ".join(f"{name}: {number}" for name, number in parts.items()) + "}}"
        return "a section stands in its place; write {place}: " + section, "memory"
    if key in _CELL_SIZES:
        number = f": {2 * value:g}" if _positive(value) else f" = 2 × {key}"
        return "output and cell state, both of this size, are counted together; write {place}" + number, "memory_size"
    return None


def _update_rate(here: str, interval_key: str, updates_key: str, values: Mapping[str, Any]) -> str:
    """Updates in blocks, one block each few steps of all environments, as agent steps per update."""
    # Both were 1 where a file did not say.
    interval, updates = (values.get(name, 1) for name in (interval_key, updates_key))
    meaning = f"{updates_key} updates every {interval_key} steps of all environments are counted in agent steps per update here"
    if updates == -1:
        return f"{meaning}; {updates_key}: -1, as many updates as agent steps, is {here}: 1"
    formula = f"{here} = <number of agents> × {interval_key} / {updates_key}"
    if not (_positive(interval) and _positive(updates)):
        return f"{meaning}; write {formula}"
    ratio = interval / updates
    product = "<number of agents>" if ratio == 1 else f"{ratio:g} × <number of agents>"
    return f"{meaning}; write {formula} = <number of agents> × {interval:g} / {updates:g} = {product}"


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
