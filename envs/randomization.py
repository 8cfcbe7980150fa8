"""Parameters of environments that are drawn anew for each episode: how they are drawn, and how an environment is given them.

Value number ``k`` of parameter ``p`` in environment ``i`` (counted over the whole run) is a pure function of the run's seed and
``(i, p, k)``, where ``k`` is the number of the episode. So environments differ, another parameter changes nothing, and a resumed
environment goes on with its stream.
"""

from __future__ import annotations

import inspect
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from envs.base import EnvFault
from envs.faults import env_fault
from envs.own_code import SAMPLER, OwnCodeError, load

SETTER = "set_parameters"
"""Method of an environment that is given its parameters before each reset."""


class ParameterError(ValueError):
    """Parameters that cannot be drawn, or not be given to this environment; says what to do."""


class Sampler(Protocol):
    """How a parameter is drawn. It keeps no state: what it returns depends on `rng` alone."""

    def sample(self, rng: np.random.Generator) -> float:
        """One value."""


@dataclass(frozen=True)
class Constant:
    """Always `value`."""

    value: float

    def sample(self, rng: np.random.Generator) -> float:
        """See `Sampler.sample`."""
        return self.value

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True)
class Uniform:
    """Uniform in ``[min_value, max_value)``."""

    min_value: float
    max_value: float

    def sample(self, rng: np.random.Generator) -> float:
        """See `Sampler.sample`."""
        return rng.uniform(self.min_value, self.max_value)

    def __str__(self) -> str:
        return f"uniform in [{self.min_value:g}, {self.max_value:g}]"


@dataclass(frozen=True)
class Gaussian:
    """Normal, with this mean and standard deviation."""

    mean: float
    st_dev: float

    def sample(self, rng: np.random.Generator) -> float:
        """See `Sampler.sample`."""
        return rng.normal(self.mean, self.st_dev)

    def __str__(self) -> str:
        return f"normal with mean {self.mean:g}, standard deviation {self.st_dev:g}"


@dataclass(frozen=True)
class MultiRangeUniform:
    """Uniform over a union of intervals: one is chosen with a probability proportional to its width, as ML-Agents does.

    Intervals without any width are chosen equally often when all of them are such.
    """

    intervals: tuple[tuple[float, float], ...]

    def sample(self, rng: np.random.Generator) -> float:
        """See `Sampler.sample`."""
        widths = np.array([high - low for low, high in self.intervals])
        total = widths.sum()
        low, high = self.intervals[rng.choice(len(widths), p=widths / total if total else None)]
        return rng.uniform(low, high)

    def __str__(self) -> str:
        return "uniform over " + ", ".join(f"[{low:g}, {high:g}]" for low, high in self.intervals)


@dataclass(frozen=True)
class OwnSampler:
    """A user's class with a method ``sample(rng) -> float``; made when it is first used, with `kwargs`.

    Attributes:
        sampler: the class, as ``module:Class`` or by an installed name.
        import_dirs: folders that are searched for the module before ``sys.path``.
    """

    sampler: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    import_dirs: tuple[str, ...] = ()

    def sample(self, rng: np.random.Generator) -> float:
        """See `Sampler.sample`."""
        return self._made().sample(rng)

    def __str__(self) -> str:
        return f"drawn by {self.sampler}"

    def __getstate__(self) -> dict[str, Any]:
        # The object of a user's class stays in its process.
        return {key: value for key, value in self.__dict__.items() if key != "_object"}

    def _made(self) -> Any:
        if "_object" in self.__dict__:
            return self.__dict__["_object"]
        try:
            own = load(SAMPLER, self.sampler, self.import_dirs)
        except OwnCodeError as error:
            raise ParameterError(str(error)) from error
        try:
            made = own(**self.kwargs)
        except Exception as error:
            raise env_fault(error, f"while making {self.sampler}", restartable=False) from error
        self.__dict__["_object"] = made  # past the frozen dataclass: it is no part of the value
        return made


Samplers = Mapping[str, Sampler]
"""Name of a parameter -> how it is drawn."""


def draw(samplers: Samplers, seed: np.random.SeedSequence, env_index: int, episode: int) -> dict[str, float]:
    """Every parameter of one episode, as plain floats.

    Args:
        seed: root of the environments' seed streams; nothing is spawned from it.
        env_index: index of the environment among all environments of the run.
        episode: number of its episode, counted from 0 and on through a resume.

    Raises:
        EnvFault: without a place; a user's sampler raised, or returned something else than a finite number.
        ParameterError: a user's sampler cannot be made.
    """
    return {name: _draw_one(name, sampler, seed, env_index, episode) for name, sampler in samplers.items()}


def _draw_one(name: str, sampler: Sampler, seed: np.random.SeedSequence, env_index: int, episode: int) -> float:
    if isinstance(sampler, Constant):
        return float(sampler.value)
    key = (*seed.spawn_key, env_index, zlib.crc32(name.encode()), episode)
    rng = np.random.default_rng(np.random.SeedSequence(seed.entropy, spawn_key=key))
    try:
        value = sampler.sample(rng)
    except (EnvFault, ParameterError):
        raise
    except Exception as error:
        raise env_fault(error, f"in the sampler of {name}", restartable=False) from error
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, (bool, np.complexfloating))
    if not is_number or not math.isfinite(value):
        raise EnvFault(f"sampler of {name} ({sampler}): expected a finite number, received {value!r:.100}")
    return float(value)


class Delivery:
    """Gives one environment its parameters: to its method ``set_parameters``, if it has one, and as ``options`` of its reset."""

    def __init__(self, env: gym.Env, name: str) -> None:
        """`name` is what messages call it.

        Raises:
            ParameterError: the environment takes parameters in neither way.
        """
        setter = getattr(env.unwrapped, SETTER, None)
        self._set = setter if callable(setter) else None
        without = _layer_without_options(env)
        self._by_options = without is None
        if self._set is None and without is not None:
            raise ParameterError(
                f"{name}: expected an environment that takes environment_parameters, received one whose reset has no argument options "
                f"({type(without).__module__}.{type(without).__qualname__}.reset) and that has no method {SETTER}(parameters): write "
                "reset(self, *, seed=None, options=None), or remove environment_parameters.")

    def give(self, parameters: Mapping[str, float]) -> dict[str, float] | None:
        """Call ``set_parameters``; returns the options of the reset that follows, None for none. Each gets a dict of its own."""
        if self._set is not None:
            try:
                self._set(dict(parameters))
            except (Exception, SystemExit) as error:
                raise env_fault(error, f"in {SETTER}()", restartable=False) from error
        return dict(parameters) if self._by_options else None


class EnvParameters:
    """The parameters of one environment, once there are any.

    Args:
        env: the environment, or a world of many agents.
        name: what messages call it.

    Attributes:
        values: of its next episodes; None without parameters.
        given: of the running one.
    """

    def __init__(self, env: Any, name: str) -> None:
        self._env, self._name = env, name
        self._delivery: Delivery | None = None
        self.values: dict[str, float] | None = None
        self.given: dict[str, float] | None = None

    def give(self) -> dict[str, Any]:
        """Give the environment its parameters; what its reset is called with besides the seed.

        Raises:
            EnvFault: it takes none, or its method raised.
        """
        if self.values is None:
            return {}
        if self._delivery is None:
            try:
                self._delivery = Delivery(self._env, self._name)
            except ParameterError as error:
                raise EnvFault(str(error)) from None
        self.given = self.values
        options = self._delivery.give(self.values)
        return {} if options is None else {"options": options}

    def state(self) -> dict[str, Any]:
        """What the next episodes and the running one have."""
        return {"values": self.values, "given": self.given}


def check_takes_parameters(made: gym.Env | VectorEnv, name: str, parameters: Sequence[str]) -> None:
    """Refuse an environment that cannot be given `parameters` (names); nothing is refused when there are none.

    Raises:
        ParameterError: says why, and what to do.
    """
    if not parameters:
        return
    if isinstance(made, VectorEnv):
        raise ParameterError(
            f"{name}: expected single environments, each with parameters of its own, received a vector environment, which is reset as a "
            "whole: let the factory return one gymnasium.Env, or remove environment_parameters.")
    Delivery(made, name)


def _layer_without_options(env: gym.Env) -> gym.Env | None:
    """The outermost environment or wrapper whose reset does not take ``options``."""
    layer: Any = env
    while layer is not None:
        taken = inspect.signature(layer.reset).parameters
        if "options" not in taken and not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
            return layer
        layer = layer.env if isinstance(layer, gym.Wrapper) else None
    return None
