"""A trainer of the user's own: a class that learns from rows; what every trainer has to do besides is done here.

    class MyTrainer:
        Hyperparameters = MyHyperparameters                    # optional: a pydantic model with a buffer_size
        def __init__(self, spec, settings, weights, rng): ...  # rng: to draw from; it is saved
        def update(self, rows) -> dict[str, float]: ...        # learn from rows; statistics by name
        def policy_weights(self) -> dict[str, numpy.ndarray]: ...
        def state(self) -> dict[str, numpy.ndarray]: ...       # all that it needs to go on, besides rng
        def load_state(self, arrays): ...

It is on-policy: an update comes when ``buffer_size`` rows are there, and learns from every row held.

Letters: ``N`` rows, ``K`` trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel

from envs.own_code import TRAINER, OwnCodeError, load
from envs.specs import BehaviorSpec, Observations
from trainers.architecture import Architecture, architecture
from trainers.inputs import NetworkInputs, join_inputs, network_inputs
from trainers.networks import check_weights, policy_layout
from trainers.normalizer import NormalizerHistory, check_batch
from trainers.own_arrays import numeric_arrays
from trainers.settings import OwnTrainerSettings
from trainers.signal_set import SignalSet, transitions_of
from trainers.signals import EXTRINSIC
from trainers.trainer import TrainerState, Weights
from trainers.trajectory import TrajectoryBatch, concatenate

_MINIBATCH = 256  # transitions of a minibatch of models of reward signals, where the trainer has no batch_size


@dataclass(frozen=True, slots=True)
class Rows:
    """What an update learns from: trajectories one after another.

    Attributes:
        batch: as they were collected; `TrajectoryBatch` says what is in it. Its observations are not normalised.
        inputs: what the networks saw, N rows, normalised as the policy saw them.
        last: the same of the observations after each trajectory, K rows.
        rewards: of each reward signal, ``extrinsic`` first: float32 ``[N]``, times its strength.
        agent_steps: rows taken in so far, these among them.
    """

    batch: TrajectoryBatch
    inputs: NetworkInputs
    last: NetworkInputs
    rewards: dict[str, np.ndarray]
    agent_steps: int

    @property
    def reward(self) -> np.ndarray:
        """The sum of all signals, float32 ``[N]``."""
        return np.sum(list(self.rewards.values()), axis=0, dtype=np.float32)

    def rewards_to_go(self, gamma: float) -> np.ndarray:
        """The sum of what comes in the rest of each trajectory, discounted: float32 ``[N]``. Nothing is added where it was cut."""
        total, reward, end = np.empty(self.batch.rows, np.float32), self.reward, self.batch.rows
        for length in self.batch.length[::-1]:
            after = 0.0
            for row in range(end - 1, end - length - 1, -1):
                after = total[row] = reward[row] + gamma * after
            end -= length
        return total


class OwnTrainer:
    """The user's object as a `trainers.trainer.Trainer`.

    Args:
        max_rows: most rows an update is expected to hold.
        weights: of a policy, to begin with.

    Raises:
        OwnCodeError: the class is not there or lacks a method, or gives something else than it should. What its own code raises comes
            with a note that names class and method.
    """

    def __init__(
        self, spec: BehaviorSpec, settings: OwnTrainerSettings, seed: np.random.SeedSequence, max_rows: int, weights: Weights
    ) -> None:
        self._spec, self._settings = spec, settings
        self._arch: Architecture = architecture(spec, settings.network_settings)
        self._layout = {name: shape for name, shape in policy_layout(self._arch).items() if name.startswith("actor/")}
        of_signals, of_learning = seed.spawn(2)
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._signals_rng = np.random.Generator(np.random.PCG64(of_learning))
        self._class = load(TRAINER, settings.trainer_type)
        self._hyper = hyperparameters_of(self._class, settings)
        self._other_signals = SignalSet(
            self._arch, settings, getattr(self._hyper, "batch_size", None) or _MINIBATCH, max_rows, getattr(self._hyper, "num_epoch", None) or 1, of_signals)
        self._normalizer = NormalizerHistory(self._arch) if self._arch.normalized else None
        self._versions_kept = max_rows // settings.hyperparameters.buffer_size + 1
        self._begin(weights)
        self._held: list[tuple[TrajectoryBatch, dict[str, np.ndarray]]] = []
        self.notices: list[str] = []
        self.agent_steps = 0
        self.policy_updates = 0

    def _begin(self, weights: Weights) -> None:
        """A new object of the user's class that begins with `weights`."""
        settings = self._settings.model_copy(update={"hyperparameters": self._hyper})
        own = {name: weights[name].copy() for name in self._layout}
        self._own = self._called("__init__", lambda: self._class(self._spec, settings, own, self._rng))
        self._weights = self._own_weights()

    @property
    def updates(self) -> int:
        """Calls of ``update``; how many optimizer steps each makes is not known."""
        return self.policy_updates

    @property
    def rows_held(self) -> int:
        return sum(batch.rows for batch, _ in self._held)

    @property
    def rows_wanted(self) -> int:
        return 0

    def compile(self) -> None:
        self._other_signals.compile()

    def process(self, batch: TrajectoryBatch, manager: str = "") -> dict[str, float]:
        """See `trainers.trainer.Trainer.process`.

        Raises:
            ValueError: an observation or reward is not finite.
        """
        check_batch(batch, manager)
        if batch.rows:
            extrinsic = batch.total_reward * np.float32(self._settings.reward_signals.extrinsic.strength)
            self._held.append((batch, {EXTRINSIC: extrinsic, **self._other_signals.arrived(batch, manager)}))
            self.agent_steps += batch.rows
        return {}

    def is_ready(self) -> bool:
        return self.rows_held >= self._settings.hyperparameters.buffer_size

    def update(self, between_chunks: Callable[[], None] = lambda: None) -> dict[str, float]:
        """See `trainers.trainer.Trainer.update`. Statistics of the user's without a ``/`` are tagged ``Trainer/{name}``.

        Raises:
            OwnCodeError: statistics that are no numbers, or weights that do not fit the policy or are not finite.
        """
        batches = [batch for batch, _ in self._held]
        rewards = {name: np.concatenate([of[name] for _, of in self._held]) for name in self._held[0][1]}
        inputs = join_inputs([self._inputs(b.obs, b.version) for b in batches])
        last = join_inputs([self._inputs(b.next_obs, b.version[b.starts + b.length - 1]) for b in batches])
        batch = concatenate(batches)
        given = self._called("update", lambda: self._own.update(Rows(batch, inputs, last, rewards, self.agent_steps)))
        stats = self._statistics(given)
        self._weights = self._own_weights()
        self.policy_updates += 1
        if self._other_signals:
            epochs = getattr(self._hyper, "num_epoch", None) or 1
            stats |= self._other_signals.learn(transitions_of(self._arch, batch), epochs, self._signals_rng, own_epochs=True)
        if self._normalizer is not None:
            self._normalizer.update({o.name: batch.obs[o.name] for o in self._arch.normalized})
        self._held = []
        return stats

    def _inputs(self, obs: Observations, version: np.ndarray) -> NetworkInputs:
        return network_inputs(self._arch, obs) if self._normalizer is None else self._normalizer.normalize(obs, version)

    def _statistics(self, given: Any) -> dict[str, float]:
        try:
            return {key if "/" in key else f"Trainer/{key}": float(value) for key, value in (given or {}).items()}
        except (AttributeError, TypeError, ValueError):
            raise OwnCodeError(f"Expected numbers by name, or None, from {self._named('update')}, received {given!r:.100}.") from None

    # -- publishing and state ----------------------------------------------------------------------------------------

    def policy_weights(self) -> Weights:
        weights = {name: tensor.copy() for name, tensor in self._weights.items()}
        return weights if self._normalizer is None else {**weights, **self._normalizer.policy_weights()}

    def published(self, version: int) -> None:
        if self._normalizer is not None and version not in self._normalizer.versions:
            self._normalizer.publish(version)
            self._normalizer.forget_before(version + 1 - self._versions_kept)

    def _own_weights(self) -> Weights:
        given = self._called("policy_weights", self._own.policy_weights)
        expected = f"Expected the weights of a policy from {self._named('policy_weights')}"
        if not isinstance(given, Mapping) or not given:
            asked = ", ".join(f"{name} {list(shape)}" for name, shape in self._layout.items())
            received = "an empty dict" if given == {} else f"{given!r:.100}"
            raise OwnCodeError(f"{expected}, a dict of arrays by the names that __init__ was given in weights ({asked}), received {received}.")
        weights = {}
        for name, value in given.items():
            try:
                weights[name] = np.array(value, np.float32)
            except (TypeError, ValueError):
                raise OwnCodeError(f"{expected}, an array of numbers for {name}, received {value!r:.100}.") from None
        try:
            check_weights(weights, self._layout, f"what {self._named('policy_weights')} returned")
        except ValueError as error:
            raise OwnCodeError(f"{expected}: {error}") from None
        return weights

    def state(self) -> TrainerState:
        given = self._called("state", self._own.state)
        own = TrainerState(
            {**numeric_arrays(given, "own/", self._named("state")), **{name: tensor.copy() for name, tensor in self._weights.items()}},
            {"agent_steps": self.agent_steps, "policy_updates": self.policy_updates, "rng": self._rng.bit_generator.state,
             "signals_rng": self._signals_rng.bit_generator.state})
        return own.joined(self._other_signals.state(), *([] if self._normalizer is None else [self._normalizer.state()]))

    def load_state(self, state: TrainerState) -> None:
        """See `trainers.trainer.Trainer.load_state`; rows held are forgotten.

        Raises:
            ValueError: the state does not fit this trainer's settings.
        """
        state.expect("normalizer_statistics/count", self._normalizer, "network_settings.normalize")
        self._check_fit(state)
        self._other_signals.load_state(state)
        own = {name.removeprefix("own/"): tensor for name, tensor in state.tensors.items() if name.startswith("own/")}
        self._called("load_state", lambda: self._own.load_state(own))
        self._rng.bit_generator.state = state.scalars["rng"]
        self._signals_rng.bit_generator.state = state.scalars["signals_rng"]
        self.agent_steps, self.policy_updates = int(state.scalars["agent_steps"]), int(state.scalars["policy_updates"])
        if self._normalizer is not None:
            self._normalizer.load_state(state)
        self._weights, self._held = self._own_weights(), []

    def load_weights(self, state: TrainerState) -> None:
        """See `trainers.trainer.Trainer.load_weights`: a new object of the class begins with them."""
        state.expect("normalizer_statistics/count", self._normalizer, "network_settings.normalize")
        self._check_fit(state)
        self._begin(state.tensors)
        if self._normalizer is not None:
            source = NormalizerHistory(self._arch)
            source.load_state(state)
            self._normalizer.statistics.update(source.statistics)

    def _check_fit(self, state: TrainerState) -> None:
        actor = {name: tensor for name, tensor in state.tensors.items() if name.startswith("actor/")}
        check_weights(actor, self._layout, "the networks of this configuration")

    def _named(self, method: str) -> str:
        return f"trainer_type {self._settings.trainer_type}, {method}"

    def _called(self, method: str, call: Callable[[], Any]) -> Any:
        """What the user's method returns."""
        try:
            return call()
        except Exception as error:
            error.add_note(f"in {self._named(method)}")
            raise


def hyperparameters_of(own: type, settings: OwnTrainerSettings) -> BaseModel:
    """The hyperparameters as the class wants them: of its own model, if it has one.

    Raises:
        OwnCodeError: what it calls ``Hyperparameters`` is no pydantic model, or has no ``buffer_size``.
        pydantic.ValidationError: they do not fit its model.
    """
    model = getattr(own, "Hyperparameters", None)
    if model is None:
        return settings.hyperparameters
    if not (isinstance(model, type) and issubclass(model, BaseModel) and "buffer_size" in model.model_fields):
        raise OwnCodeError(f"{TRAINER.key}: {settings.trainer_type!r}: expected {own.__qualname__}.Hyperparameters to be a pydantic model with a field "
                           "buffer_size, such as a class derived from trainers.own_settings.Hyperparameters")
    return model.model_validate(settings.hyperparameters.model_dump(exclude_unset=True))
