"""Tianshou: PPO or SAC, as the case asks (options: vec=dummy|subproc, threads)."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import metered

ENDLESS = 10**8  # never reached
EPOCH = 100_000  # env steps between two of its reports
# The values of its own CartPole test (test/discrete/test_ppo_discrete.py); nothing is evaluated here.
PPO = {"envs": 20, "hidden": [64, 64], "lr": 3e-4, "gamma": 0.99, "gae_lambda": 0.95, "steps_a_collection": 2000, "repetitions": 10, "batch_size": 64}
# The values of its MuJoCo example (examples/mujoco/mujoco_sac.py), but for 100 random steps and a learnt entropy coefficient as all have here.
SAC = {"envs": 1, "hidden": [256, 256], "lr": 1e-3, "alpha_lr": 3e-4, "gamma": 0.99, "tau": 0.005, "buffer_size": 1_000_000, "batch_size": 256,
       "learning_starts": 100}


def counted(owner: Any, name: str) -> None:
    """Count the calls of a method of `owner`, each an optimizer step."""
    real = getattr(owner, name)

    def count(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        metered.updates.add()
        return result

    setattr(owner, name, count)


def ppo(space: Any, values: dict[str, Any]) -> Any:
    """The algorithm."""
    import torch
    from tianshou.algorithm import PPO as Algorithm
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import ActorCritic, Net
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    shared = Net(state_shape=space.observation_info.obs_shape, hidden_sizes=values["hidden"])
    actor = DiscreteActor(preprocess_net=shared, action_shape=space.action_info.action_shape)
    critic = DiscreteCritic(preprocess_net=shared)
    for module in ActorCritic(actor, critic).modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.orthogonal_(module.weight)
            torch.nn.init.zeros_(module.bias)
    policy = DiscreteActorPolicy(actor=actor, dist_fn=torch.distributions.Categorical, action_space=values["action_space"])
    algorithm = Algorithm(
        policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=values["lr"]), gamma=values["gamma"], max_grad_norm=0.5, vf_coef=0.5,
        ent_coef=0.0, gae_lambda=values["gae_lambda"], advantage_normalization=False,
    )
    counted(algorithm.optim, "step")
    return algorithm


def sac(space: Any, values: dict[str, Any]) -> Any:
    """The algorithm."""
    from tianshou.algorithm import SAC as Algorithm
    from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

    shapes = {"state_shape": space.observation_info.obs_shape, "hidden_sizes": values["hidden"]}
    action_shape, optim = space.action_info.action_shape, AdamOptimizerFactory(lr=values["lr"])
    actor = ContinuousActorProbabilistic(preprocess_net=Net(**shapes), action_shape=action_shape, unbounded=True, conditioned_sigma=True)
    critics = [ContinuousCritic(preprocess_net=Net(**shapes, action_shape=action_shape, concat=True)) for _ in range(2)]
    algorithm = Algorithm(
        policy=SACPolicy(actor=actor, action_space=values["action_space"]), policy_optim=optim, critic=critics[0], critic_optim=optim,
        critic2=critics[1], critic2_optim=optim, tau=values["tau"], gamma=values["gamma"],
        alpha=AutoAlpha(-float(space.action_info.action_dim), 0.0, AdamOptimizerFactory(lr=values["alpha_lr"])),
    )
    counted(algorithm, "_update_with_batch")
    return algorithm


def main() -> None:
    import numpy as np
    import torch
    from tianshou.data import Collector, ReplayBuffer, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv, SubprocVectorEnv
    from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
    from tianshou.utils.space_info import SpaceInfo

    options = metered.options()
    vec, threads = options.pop("vec"), options.pop("threads", 1)
    torch.set_num_threads(threads)
    off_policy = metered.case() in ("pendulum", "halfcheetah")
    values = {**(SAC if off_policy else PPO), **options}
    metered.info(lib="tianshou", version=metadata.version("tianshou"), algorithm="SAC" if off_policy else "PPO", vec=vec, threads=threads, arguments=values)
    np.random.seed(metered.seed())
    torch.manual_seed(metered.seed())
    one = metered.make_env()
    values["action_space"] = one.action_space
    envs = (SubprocVectorEnv if vec == "subproc" else DummyVectorEnv)([metered.make_env] * values["envs"])
    envs.seed(metered.seed())
    algorithm = (sac if off_policy else ppo)(SpaceInfo.from_env(one), values)
    endless = {"max_epochs": ENDLESS // EPOCH, "epoch_num_steps": EPOCH, "batch_size": values["batch_size"], "show_progress": False, "verbose": False}
    if off_policy:
        collector = Collector(algorithm, envs, ReplayBuffer(values["buffer_size"]), exploration_noise=True)
        collector.reset()
        collector.collect(n_step=values["learning_starts"], random=True)
        algorithm.run_training(OffPolicyTrainerParams(
            training_collector=collector, collection_step_num_env_steps=1, update_step_num_gradient_steps_per_sample=1.0, **endless))
    else:
        collector = Collector(algorithm, envs, VectorReplayBuffer(20_000, values["envs"]))
        collector.reset()
        algorithm.run_training(OnPolicyTrainerParams(
            training_collector=collector, collection_step_num_env_steps=values["steps_a_collection"],
            update_step_num_repetitions=values["repetitions"], **endless))


if __name__ == "__main__":
    main()
