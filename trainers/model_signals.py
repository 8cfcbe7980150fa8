"""The signals whose rewards come from networks: from settings to programs. Imports TensorFlow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from envs.demonstrations import Demonstrations, read_demonstrations
from trainers.architecture import Architecture
from trainers.curiosity import Curiosity
from trainers.gail import Gail
from trainers.inputs import network_inputs
from trainers.random_network_distillation import RandomNetworkDistillation
from trainers.signal_inputs import SignalInputs
from trainers.signal_program import Room, SignalProgram, first_signal_weights
from trainers.signal_settings import CuriositySettings, GAILSettings, ModelSignalSettings, RNDSettings
from trainers.signals import Transitions


def make_model_signal(
    name: str, settings: ModelSignalSettings, arch: Architecture, batch_size: int, max_rows: int, epochs: int, rng: np.random.Generator
) -> SignalProgram:
    """See `trainers.signal_set.make_signal`.

    Args:
        arch: of the signal's own networks.
    """
    rate, room = settings.learning_rate, Room(batch_size, max_rows, epochs)
    if isinstance(settings, CuriositySettings):
        largest = 1.0 / settings.strength if settings.strength else np.inf
        model = Curiosity(arch, rate, largest)
        return SignalProgram(name, model, room, SignalInputs(arch), first_signal_weights(model, rng), zero_at_first=True)
    if isinstance(settings, RNDSettings):
        # Its pixels come standardised.
        arch = replace(arch, images=tuple(replace(image, scale=False) for image in arch.images))
        model = RandomNetworkDistillation(arch, rate)
        return SignalProgram(name, model, room, SignalInputs(arch, standardize_images=True), first_signal_weights(model, rng))
    assert isinstance(settings, GAILSettings)
    model = Gail(arch, rate, settings.gamma, settings.use_actions, settings.use_vail, settings.end_aware)
    experts = expert_transitions(arch, read_demonstrations(settings.demo_path, arch.spec))
    inputs = SignalInputs(arch, fixed=True)
    inputs.observe(experts)
    return SignalProgram(
        name, model, room, inputs, first_signal_weights(model, rng), experts, ends_matter=settings.end_aware)


def expert_transitions(arch: Architecture, demonstrations: Demonstrations) -> Transitions:
    """Demonstrations as signals see them."""
    now, last = network_inputs(arch, demonstrations.obs), network_inputs(arch, demonstrations.next_obs)
    ends = np.cumsum(demonstrations.length) - 1
    following = np.minimum(np.arange(1, len(now) + 1), len(now) - 1)
    after = now.take(following)
    after.vector[ends] = last.vector
    for image, x in zip(after.images, last.images, strict=True):
        image[ends] = x
    terminated = np.zeros(len(now), bool)
    terminated[ends] = demonstrations.terminated
    return Transitions(now, after, np.clip(demonstrations.continuous, -1.0, 1.0), demonstrations.discrete, terminated)
