"""``trainer_type`` → algorithm. Imports an algorithm (and with it TensorFlow) only when a trainer is made."""

from __future__ import annotations

import numpy as np
from threadpoolctl import threadpool_limits

from envs.specs import BehaviorSpec
from trainers.architecture import architecture
from trainers.initial_weights import initial_actor, initial_normalizer, initial_weights
from trainers.networks import Distribution
from trainers.sac_networks import distribution_of, initial_sac_weights
from trainers.settings import BCSettings, BehaviorSettings, OwnTrainerSettings, PPOSettings, SACSettings
from trainers.trainer import Trainer, Weights


def policy_distribution(settings: BehaviorSettings | BCSettings) -> Distribution:
    """How the algorithm's policy draws continuous actions."""
    return distribution_of(settings) if isinstance(settings, SACSettings) else "gaussian"


def first_weights(spec: BehaviorSpec, settings: BehaviorSettings | BCSettings, rng: np.random.Generator) -> Weights:
    """The tensors the algorithm begins with, made in NumPy so that nobody waits for TensorFlow.

    Raises:
        ArchitectureError: the network settings do not suit the observations.
    """
    with threadpool_limits(1):  # on busy cores the threads of a large decomposition wait for each other: seconds become half a minute
        if isinstance(settings, SACSettings):
            return initial_sac_weights(spec, settings, rng)
        hyper, arch = settings.hyperparameters, architecture(spec, settings.network_settings)
        if isinstance(settings, BCSettings):  # a PPO's actor of the same seed, and no critic
            return {**initial_actor(arch, rng, "gaussian", float(np.log(hyper.initial_std))), **initial_normalizer(arch)}
        if isinstance(settings, OwnTrainerSettings):  # the same with a standard deviation of 1; critics are its own
            return {**initial_actor(arch, rng, "gaussian", 0.0), **initial_normalizer(arch)}
        return initial_weights(arch, rng, hyper.initial_std, list(settings.reward_signals.active()), hyper.shared_critic)


def make_trainer(
    spec: BehaviorSpec, settings: BehaviorSettings, seed: np.random.SeedSequence, max_rows: int, weights: Weights
) -> Trainer:
    """The trainer that ``settings.trainer_type`` names.

    Args:
        max_rows: most rows an on-policy update is expected to hold.
        weights: to begin with, as `first_weights` makes them.

    Raises:
        ArchitectureError: the network settings do not suit the observations.
        OwnCodeError: a class of the user's is not there, or lacks a method.
        ValueError: unknown ``trainer_type``.
    """
    if isinstance(settings, PPOSettings):
        from trainers.ppo import PPOTrainer

        return PPOTrainer(spec, settings, seed, max_rows, weights)
    if isinstance(settings, SACSettings):
        from trainers.sac import SACTrainer

        return SACTrainer(spec, settings, seed, weights)
    if isinstance(settings, OwnTrainerSettings):
        from trainers.own_trainer import OwnTrainer

        return OwnTrainer(spec, settings, seed, max_rows, weights)
    raise ValueError(f"Expected trainer_type to be ppo or sac, received {settings.trainer_type!r}.")
