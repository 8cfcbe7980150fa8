"""RLlib, new API stack (options: algo=PPO|APPO, runners, envs = environments a runner, vec=sync|async, threads)."""

from __future__ import annotations

from typing import Any

import metered

# RLlib's tuned CartPole examples.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "PPO": {"lr": 3e-4, "num_epochs": 6, "vf_loss_coeff": 0.01, "use_kl_loss": True},
    "APPO": {"train_batch_size_per_learner": 1000, "minibatch_size": 250, "num_epochs": 2, "lr": 7.5e-4, "vf_loss_coeff": 0.05,
             "entropy_coeff": 0.01},
}
MODELS: dict[str, dict[str, Any]] = {
    "PPO": {"fcnet_hiddens": [32], "fcnet_activation": "linear", "vf_share_layers": True},
    "APPO": {"fcnet_hiddens": [32]},
}
CASE_ARGUMENTS: dict[str, dict[str, Any]] = {
    # As Stable-Baselines3's.
    "slow-envs": {"train_batch_size_per_learner": 512, "minibatch_size": 256, "num_epochs": 20},
    # Those of yaml/benchmarks/halfcheetah-ppo-throughput.yaml: the same arithmetic for all.
    "halfcheetah-ppo": {"train_batch_size_per_learner": 2048, "minibatch_size": 64, "num_epochs": 10, "lr": 3e-4, "vf_loss_coeff": 0.5,
                        "use_kl_loss": False},
}
CASE_MODELS: dict[str, dict[str, Any]] = {
    "halfcheetah-ppo": {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False},
}
ENVS = {"slow-envs": 16, "halfcheetah-ppo": 8}
"""Environments of all runners together; elsewhere 8 of each."""


def count_updates() -> None:
    """Count optimizer steps where the learner makes them (it is local: ``num_learners=0``)."""
    from ray.rllib.core.learner.torch.torch_learner import TorchLearner

    real = TorchLearner.apply_gradients

    def counted(self: Any, gradients: Any) -> Any:
        result = real(self, gradients)
        metered.updates.add()
        return result

    TorchLearner.apply_gradients = counted


def main() -> None:
    import ray
    import torch
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    options, case = metered.options(), metered.case()
    algo, runners, vec = options.pop("algo"), options.pop("runners"), options.pop("vec", "sync")
    torch.set_num_threads(options.pop("threads", 1))  # of the local learner; Ray already gives each runner one
    envs = options.pop("envs", ENVS[case] // max(runners, 1) if case in ENVS else 8)
    arguments = {**ARGUMENTS[algo], **(CASE_ARGUMENTS.get(case, {}) if algo == "PPO" else {}), **options}
    model = CASE_MODELS.get(case, MODELS[algo])
    count_updates()
    register_env("bench", lambda _: metered.make_env())
    ray.init(address="local", num_cpus=max(2, runners + 1), include_dashboard=False, log_to_driver=True)
    metered.info(lib=f"rllib {algo}", version=ray.__version__, runners=runners, envs_per_runner=envs, vec=vec,
                 arguments=arguments, model=model)
    config = (
        {"PPO": PPOConfig, "APPO": APPOConfig}[algo]()
        .framework("torch")
        .environment("bench")
        .env_runners(num_env_runners=runners, num_envs_per_env_runner=envs, gym_env_vectorize_mode=vec)
        .learners(num_learners=0)
        .training(**arguments)
        .rl_module(model_config=DefaultModelConfig(**model))
        .debugging(seed=metered.seed(), log_level="ERROR")
        .reporting(min_time_s_per_iteration=0, metrics_num_episodes_for_smoothing=100)
    )
    algorithm = config.build_algo()
    while True:
        algorithm.train()


if __name__ == "__main__":
    main()
