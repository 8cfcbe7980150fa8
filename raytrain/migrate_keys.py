"""Keys of ML-Agents' files, era by era: where each has its place in the nested form, and why some have none here."""

from __future__ import annotations

TOP = ("default_settings", "behaviors", "env_settings", "engine_settings", "environment_parameters", "checkpoint_settings", "torch_settings",
       "debug", "curriculum", "parameter_randomization")
"""Sections of the files with ``behaviors:``, the last two of releases 1 to 3 only."""

PPO = ("batch_size", "buffer_size", "learning_rate", "learning_rate_schedule", "beta", "beta_schedule", "epsilon", "epsilon_schedule", "lambd",
       "num_epoch", "shared_critic")
SAC = ("batch_size", "buffer_size", "buffer_init_steps", "learning_rate", "learning_rate_schedule", "init_entcoef", "tau", "steps_per_update",
       "reward_signal_steps_per_update", "save_replay_buffer")
HYPERPARAMETERS = {"ppo": PPO, "sac": SAC}
"""``trainer_type`` → its ``hyperparameters``."""

NETWORK = ("normalize", "hidden_units", "num_layers", "vis_encode_type", "memory", "goal_conditioning_type", "deterministic")
MEMORY = ("sequence_length", "memory_size")
SIGNAL_NETWORK = ("hidden_units", "num_layers", "vis_encode_type")
"""Keys of a reward signal's networks that are here, too."""

BEHAVIOR = ("trainer_type", "hyperparameters", "network_settings", "reward_signals", "behavioral_cloning", "self_play", "max_steps", "time_horizon",
            "summary_freq", "keep_checkpoints", "checkpoint_interval", "even_checkpoints", "threaded", "init_path", "output_path", "framework")
"""Keys of a behavior in the nested form."""

FLAT_BEHAVIOR = ("reward_signals", "behavioral_cloning", "self_play", "max_steps", "time_horizon", "summary_freq", "keep_checkpoints",
                 "checkpoint_interval", "threaded", "init_path", "output_path")
"""Those that stood at the same place in the flat form."""

MARKS_OF_FLAT = frozenset({"trainer", "time_horizon", "hidden_units", "use_recurrent", "summary_freq", "lambd", "num_epoch", "init_entcoef",
                           "use_curiosity", "curiosity_strength", "curiosity_enc_size", "vis_encode_type", "memory_size", "buffer_init_steps"})
"""Keys that other libraries do not have; two of them side by side show a behavior in the flat form."""

IN_SECTIONS = frozenset({*PPO, *SAC, *NETWORK, *MEMORY, "trainer", "use_recurrent", "num_update", "train_interval"}) - {"memory"}
"""Keys that stand directly in a behavior in the flat form only."""

OLD_TRAINERS = {
    "offline_bc": "a trainer of before 0.13: write a file with trainer_type: bc and demo_path (docs/imitation.md)",
    "online_bc": "removed from ML-Agents in 0.13: record demonstrations and write trainer_type: bc (docs/imitation.md)",
    "imitation": "removed from ML-Agents in 0.5: record demonstrations and write trainer_type: bc (docs/imitation.md)",
}
"""Trainers of before 0.13 → what to do instead."""

_PATH = "ML-Agents put it there itself; a run has its folder in checkpoint_settings.results_dir"
_WEIGHTS = "weights of ML-Agents cannot be read here; begin with those of a run of raytrain by checkpoint_settings.initialize_from"

LEFT_OUT_FLAT = {
    "summary_path": _PATH,
    "model_path": _PATH,
    "burn_in_ratio": "ppo needs none; of sac it is network_settings.memory.burn_in, in steps",
    "target_update_steps": "the target critics move at each update, by tau",
    "batches_per_epoch": "it belonged to a trainer that is gone",
}
"""Keys in the flat form without a place here → why."""

LEFT_OUT = {
    "output_path": _PATH,
    "init_path": _WEIGHTS,
    "framework": "networks run on TensorFlow here",
    "even_checkpoints": "checkpoints are every checkpoint_interval agent steps here",
}
"""Keys of a behavior without a place here → why."""

LEFT_OUT_NETWORK = {
    "goal_conditioning_type": "goal signals are not available here yet; a goal is part of the observation like any other",
    "deterministic": "training always draws actions, so that it explores; evaluation takes the most likely one (evaluation.deterministic)",
}

LEFT_OUT_ENV = {
    "env_path": "environments are Python objects here: env names a Gymnasium id or module:factory",
    "env_args": "arguments of an environment are env_kwargs",
    "base_port": "environments have no ports here",
    "num_areas": "areas within one environment are Unity's; env_settings.num_envs is how many environments there are",
    "timeout_wait": "the start of an environment is waited for as long as it takes, and the wait is shown",
}

LEFT_OUT_CHECKPOINT = {
    "initialize_from": _WEIGHTS,
    "load_model": "an order for one start; it is --resume here",
    "resume": "an order for one start, and runs of ML-Agents cannot be resumed here",
    "force": "an order for one start; it is --force here, which moves the former run aside",
    "train_model": "a run always trains",
    "inference": "a run always trains; act with raytrain.load_policy",
}

LEFT_OUT_TOP = {
    "engine_settings": "it configures Unity's engine; arguments of an environment are env_kwargs",
    "torch_settings": "networks run on TensorFlow here; GPUs are claimed with distributed.trainer_gpus",
}

WHOLE = frozenset({"batch_size", "buffer_size", "buffer_init_steps", "num_epoch", "hidden_units", "num_layers", "sequence_length", "memory_size",
                   "max_steps", "time_horizon", "summary_freq", "keep_checkpoints", "checkpoint_interval", "save_steps", "team_change", "swap_steps",
                   "window", "steps", "samples_per_update", "num_envs", "seed", "min_lesson_length"})
"""Keys that hold whole numbers, which many files write as 5.0e5."""
