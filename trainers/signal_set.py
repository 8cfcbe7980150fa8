"""The reward signals of one behavior besides the extrinsic one, as a trainer has them.

Letters: ``N`` rows, ``K`` trajectories.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trainers.architecture import Architecture, architecture
from trainers.inputs import network_inputs
from trainers.reward_scaling import RewardScaler, RunningReturns
from trainers.settings import BehaviorSettings, NetworkSettings
from trainers.signal_settings import ModelSignalSettings, OwnSignalSettings, SignalNetwork, SignalSettings
from trainers.signals import EXTRINSIC, Signal, Transitions
from trainers.trainer import TrainerState
from trainers.trajectory import TrajectoryBatch

_NAMES = {"rnd": "RND", "gail": "GAIL"}


def title(name: str) -> str:
    """A signal's name in statistics, as ML-Agents has it: ``Extrinsic``, ``Curiosity``, ``GAIL``, ``RND``."""
    return _NAMES.get(name, name[:1].upper() + name[1:])


def transitions_of(arch: Architecture, batch: TrajectoryBatch) -> Transitions:
    """What a batch holds, as signals see it: not normalised."""
    now, last = network_inputs(arch, batch.obs), network_inputs(arch, batch.next_obs)
    ends = batch.starts + batch.length - 1
    following = np.arange(1, batch.rows + 1)
    following[-1:] = 0  # an end anyhow
    after = now.take(following)
    after.vector[ends] = last.vector
    for image, x in zip(after.images, last.images, strict=True):
        image[ends] = x
    terminated = np.zeros(batch.rows, bool)
    terminated[ends] = batch.terminated
    return Transitions(now, after, np.clip(batch.continuous, -1.0, 1.0), batch.discrete, terminated)


def signal_architecture(arch: Architecture, network: NetworkSettings, own: SignalNetwork) -> Architecture:
    """The networks of a signal: observations as the behavior's networks take them in, layers of its own.

    Raises:
        ArchitectureError: an image too small for the encoder.
    """
    settings = network.model_copy(update={
        "hidden_units": own.hidden_units, "num_layers": own.num_layers, "layers": None, "activation": own.activation,
        "vis_encode_type": own.vis_encode_type, "memory": None, "model": None, "model_kwargs": {}, "normalize": False,
        "observations": {name: o.model_copy(update={"normalize": None}) for name, o in network.observations.items()},
    })
    # In the order in which the behavior's networks have the parts of the vector.
    return replace(architecture(arch.spec, settings), vectors=arch.as_given().vectors)


@dataclass
class _Used:
    """A signal in use, and what is known of the rewards it gave."""

    settings: SignalSettings
    signal: Signal
    scaler: RewardScaler | None
    sums: RunningReturns


class SignalSet:
    """All signals but the extrinsic one.

    Args:
        arch: of the behavior's networks.
        batch_size: transitions of a minibatch of the models.
        max_rows: transitions that `learn` is expected to get at most; more make the models' room grow, which compiles anew.
        epochs: how often it goes through them, usually.
        seed: of first weights.
    """

    def __init__(
        self, arch: Architecture, settings: BehaviorSettings, batch_size: int, max_rows: int, epochs: int, seed: np.random.SeedSequence
    ) -> None:
        self._arch, self._used, self._episodes = arch.as_given(), {}, {}
        rng = np.random.default_rng(seed)
        for name, signal in settings.reward_signals.active().items():
            if name != EXTRINSIC:
                made = make_signal(name, signal, arch, settings.network_settings, batch_size, max_rows, epochs, rng)
                scaler = RewardScaler(signal.gamma, True, f"signals/{name}/scale") if name == "rnd" else None
                self._used[name] = _Used(signal, made, scaler, RunningReturns(1.0))

    def __bool__(self) -> bool:
        return bool(self._used)

    def ends_matter(self, name: str) -> bool:
        """Whether the rewards of a signal end with an episode; those of intrinsic signals go on."""
        return name == EXTRINSIC or self._used[name].signal.ends_matter

    def compile(self) -> None:
        """Get ready, leaving the state bit for bit as it is."""
        for used in self._used.values():
            used.signal.compile()

    def arrived(self, batch: TrajectoryBatch, manager: str = "") -> dict[str, np.ndarray]:
        """Take new rows in, once and in the order of collection.

        Returns:
            Name -> reward of each row, times ``strength``, by the models as they are now: float32 ``[N]``.
        """
        if not self._used or not batch.rows:
            return {name: np.zeros(batch.rows, np.float32) for name in self._used}
        transitions, rewards = transitions_of(self._arch, batch), {}
        for name, used in self._used.items():
            used.signal.observe(transitions)
            reward = used.signal.rewards(transitions)
            if used.scaler is not None:
                reward = used.scaler.scale(batch, manager, reward)
            rewards[name] = reward * np.float32(used.settings.strength)
            _, ended = used.sums.follow(batch, rewards[name], manager)
            self._episodes.setdefault(name, []).extend(ended.tolist())
        return rewards

    def rewards(self, transitions: Transitions) -> dict[str, np.ndarray]:
        """Of transitions taken in before, by the models as they are now, times ``strength``: float32 ``[N]`` each."""
        rewards = {}
        for name, used in self._used.items():
            reward = used.signal.rewards(transitions)
            if used.scaler is not None:
                reward = used.scaler.scaled(reward)
            rewards[name] = reward * np.float32(used.settings.strength)
        return rewards

    def learn(self, transitions: Transitions, epochs: int, rng: np.random.Generator, own_epochs: bool = False) -> dict[str, float]:
        """Let all signals learn. Statistics by tag, the mean sum of the episodes that ended since the last call among them.

        Args:
            own_epochs: a signal that says its ``num_epoch`` makes so many passes in place of `epochs`.

        Raises:
            FloatingPointError: see `Signal.learn`.
        """
        stats: dict[str, float] = {}
        for used in self._used.values():
            own = getattr(used.settings, "num_epoch", None) if own_epochs else None
            stats |= used.signal.learn(transitions, own or epochs, rng)
        stats |= {f"Policy/{title(name)} Reward": float(np.mean(sums)) for name, sums in self._episodes.items() if sums}
        self._episodes = {}
        return stats

    def state(self) -> TrainerState:
        """Exact state, and the names of the signals as ``signals``."""
        parts = []
        for name, used in self._used.items():
            parts += [used.signal.state(), used.sums.state(f"signals/{name}/sums"), *([used.scaler.state()] if used.scaler else [])]
        episodes = {f"signals/{name}/episodes": sums for name, sums in self._episodes.items()}
        return TrainerState({}, {"signals": list(self._used), **episodes}).joined(*parts)

    def load_state(self, state: TrainerState) -> None:
        """Go on from `state`.

        Raises:
            ValueError: it lacks a signal, or has one with networks of another shape.
        """
        for name, used in self._used.items():
            used.signal.load_state(state)
            used.sums.load_state(state, f"signals/{name}/sums")
            if used.scaler is not None:
                used.scaler.load_state(state)
        self._episodes = {name: list(state.scalars.get(f"signals/{name}/episodes", [])) for name in self._used}


def make_signal(
    name: str, settings: SignalSettings, arch: Architecture, network: NetworkSettings, batch_size: int, max_rows: int, epochs: int,
    rng: np.random.Generator,
) -> Signal:
    """The signal that `settings` ask for.

    Raises:
        ArchitectureError: an image too small for its encoder.
        DemonstrationError: demonstrations that cannot be read or are of another environment.
    """
    if isinstance(settings, OwnSignalSettings):
        from trainers.own_signal import OwnSignal

        return OwnSignal(name, settings, arch.spec)
    from trainers.model_signals import make_model_signal

    assert isinstance(settings, ModelSignalSettings)
    own = signal_architecture(arch, network, settings.network_settings)
    return make_model_signal(name, settings, own, batch_size, max_rows, settings.num_epoch or epochs, rng)
