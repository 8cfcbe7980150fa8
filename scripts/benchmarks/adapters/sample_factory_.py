"""Sample Factory, APPO (options: async_rl, workers and any argument of its own)."""

from __future__ import annotations

import os
from typing import Any

import metered
from sample_factory.algo.learning.learner import Learner

_real = Learner._after_optimizer_step  # patched at import: the learner's (spawned) process imports this file too


def _counted(self: Any) -> None:
    _real(self)
    metered.updates.add()


Learner._after_optimizer_step = _counted


def make(full_env_name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Any:
    """A metered environment, whatever name Sample Factory asks for."""
    return metered.make_env()


def main() -> None:
    from importlib.metadata import version

    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import run_rl

    options, slow = metered.options(), metered.case() == "slow-envs"
    # Its documented CartPole command, with two workers for two cores; slow environments get a worker each.
    arguments: dict[str, Any] = {
        "algo": "APPO", "device": "cpu", "seed": metered.seed(), "num_workers": options.pop("workers", 16 if slow else 2),
        "num_envs_per_worker": 1 if slow else 20, "batch_size": 512, "reward_scale": 0.1, "policy_workers_per_policy": 1,
        "use_rnn": False, "recurrence": 1, "with_vtrace": False, "train_for_env_steps": 10**9, "train_for_seconds": 10**6,
        "save_every_sec": 10**5, "stats_avg": 100, "with_wandb": False,
    }
    if slow:
        arguments["worker_num_splits"] = 1
    if metered.case() == "pong":  # its Atari defaults, two workers of four
        arguments.update(
            num_envs_per_worker=4, worker_num_splits=2, encoder_conv_architecture="convnet_atari", obs_scale=255.0, gamma=0.99,
            exploration_loss_coeff=0.01, nonlinearity="relu", batch_size=256, rollout=128, max_grad_norm=0.5, num_epochs=4,
            num_batches_per_epoch=4, ppo_clip_ratio=0.1, value_loss_coeff=0.5, learning_rate=2.5e-4, gae_lambda=0.95,
            normalize_input=True, normalize_returns=True, adam_eps=1e-5, reward_scale=1.0,
        )
    if metered.case() == "halfcheetah-ppo":  # yaml/benchmarks/halfcheetah-ppo-throughput.yaml's; the network as its MuJoCo examples write it
        arguments.update(  # a minibatch is made of whole trajectories, so these are no longer than one
            num_envs_per_worker=4, worker_num_splits=2, rollout=64, batch_size=64, num_batches_per_epoch=32, num_epochs=10, learning_rate=3e-4,
            gamma=0.99, gae_lambda=0.95, reward_scale=1.0, encoder_mlp_layers=[64, 64], nonlinearity="tanh", adaptive_stddev=False,
            policy_initialization="torch_default", exploration_loss_coeff=0.0, value_loss_coeff=0.5, max_grad_norm=0.5, normalize_input=False,
        )
    arguments.update(options)
    metered.info(lib="sample-factory", version=version("sample-factory"), arguments=arguments)
    register_env("bench", make)
    arguments.update(env="bench", experiment="bench", train_dir=os.path.join(metered.DIR, "sf"))
    argv = []
    for name, value in arguments.items():
        argv += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
    parser, _ = parse_sf_args(argv=argv)
    run_rl(parse_full_cfg(parser, argv))


if __name__ == "__main__":
    main()
