"""From the words in a configuration, a Gymnasium id or ``module:factory``, to environments; every mistake is named."""

from __future__ import annotations

import difflib
import inspect
import re
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TransformObservation

from envs import atari
from envs.agent_behaviors import is_agent_world, is_parallel_world
from envs.envpool_env import EnvPoolVectorEnv, is_envpool, is_pool, load_envpool
from envs.faults import env_fault
from envs.own_code import attribute, import_module
from envs.wrappers import ActionRepeat, FrameStack

EXTRAS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco", "gymnasium.envs.classic_control": "classic-control",
          "gymnasium.envs.toy_text": "toy-text"}
"""Package of an entry point -> the extra of gymnasium that brings what it needs."""

NATIVE_IDS = ("CartPole-v0", "CartPole-v1")
"""Ids whose registered vector entry point is the same task as the single environment (tests/envs/test_native.py compares the
dynamics step by step). Others may differ, as ALE's does unless it is told (`envs.atari`)."""

NATIVE_KWARGS = frozenset({"sutton_barto_reward"})
"""Arguments that mean the same to the single environment and the vector entry point."""

WRONG_BOUNDS = ("BipedalWalker-v3", "BipedalWalkerHardcore-v3", "LunarLander-v3", "LunarLanderContinuous-v3")
"""Ids of Gymnasium whose observations leave the bounds of their own Box (tests/envs/test_factories.py shows how), which would end a run or an
evaluation: their bounds are taken for infinite."""

PETTINGZOO_FACTORIES = ("env", "parallel_env", "raw_env")


@dataclass(frozen=True)
class EnvOptions:
    """What ``env_settings`` says of an environment itself.

    Attributes:
        frame_stack: an observation is this many observations, the last ones; 1 leaves them as they are.
        action_repeat: every action is done this many times.
        atari_preprocessing: ids of ``ALE/`` mean the standard preprocessing (`envs.atari`), else the plain game.
    """

    frame_stack: int = 1
    action_repeat: int = 1
    atari_preprocessing: bool = True

    def __post_init__(self) -> None:
        for name in ("frame_stack", "action_repeat"):
            if getattr(self, name) < 1:
                raise ValueError(f"env_settings.{name}: expected at least 1, received {getattr(self, name)}.")

    @property
    def wraps(self) -> bool:
        """Whether the environment is wrapped."""
        return self.frame_stack > 1 or self.action_repeat > 1


DEFAULT_OPTIONS = EnvOptions()


@dataclass(frozen=True)
class EnvFactory:
    """How to make one environment; plain data, so that it travels to threads and processes.

    Attributes:
        env: Gymnasium id, ``module:Id-v0`` (the module registers the id), ``module:factory`` or ``envpool:Id-v0``.
        kwargs: arguments of the environment's constructor or of the factory.
        import_dirs: folders that are searched for the module before ``sys.path``.
        options: how it is wrapped.
        masked: its first reset gave an action mask in ``info``, as `envs.gymnasium_env.probe_spec` found; of a world of many agents
            the behaviors for which it did.
        agents: behavior -> patterns of the names of its agents, for worlds of many agents; without any, all are one behavior.
        groups: behavior -> group -> patterns of the names of its agents (see `envs.agent_groups`).
    """

    env: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    import_dirs: tuple[str, ...] = ()
    options: EnvOptions = DEFAULT_OPTIONS
    masked: bool | Collection[str] = False
    agents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    groups: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)

    @property
    def is_gymnasium_id(self) -> bool:
        """Whether Gymnasium's registry makes the environment (else a factory or EnvPool does)."""
        return not is_envpool(self.env) and (":" not in self.env or not self.env.rsplit(":", 1)[1].isidentifier())

    @property
    def is_preprocessed_atari(self) -> bool:
        """Whether it is a game with the standard preprocessing."""
        return self.options.atari_preprocessing and atari.is_atari(self.env)

    def make(self, num_envs: int = 1) -> gym.Env | VectorEnv:
        """One new environment, wrapped as `options` say (a world of many agents is not), or the vector environment of `num_envs` that EnvPool or the factory makes.

        A factory with a parameter called ``num_envs`` is given `num_envs`.

        Raises:
            ValueError: the configuration is wrong: unknown id, module, factory or argument, or a package is missing.
            EnvFault: the user's own code raised.
        """
        if is_envpool(self.env):
            self._refuse_options(f"{self.env} is stepped as a whole; give env_kwargs what EnvPool has for it")
            return EnvPoolVectorEnv(self.env, num_envs, self.kwargs)
        if self.is_preprocessed_atari:
            return atari.make_copy(self._atari_id(), self.kwargs)
        return self._wrapped(self._make(num_envs))

    def make_vector(self, num_envs: int) -> VectorEnv | None:
        """The vector environment that does the same task as `num_envs` of `make`, None where there is none (but what `make` returns).

        Raises:
            ValueError: as `make`.
        """
        if self.is_preprocessed_atari:
            return atari.make_vector(self._atari_id(), num_envs, self.kwargs)
        if self.env in NATIVE_IDS and NATIVE_KWARGS.issuperset(self.kwargs) and not self.options.wraps:
            return gym.make_vec(self.env, num_envs=num_envs, vectorization_mode="vector_entry_point", **self.kwargs)
        return None

    def load(self) -> None:
        """Import what makes the environment, without making one: so that another machine can be asked whether it could.

        Raises:
            ValueError, EnvFault: as `make`.
        """
        if is_envpool(self.env):
            load_envpool(self.env)
            return
        if not self.is_gymnasium_id:
            self._factory()
            return
        entry = gym.spec(self._registered_id()).entry_point
        try:
            if isinstance(entry, str):
                load_env_creator(entry)
        except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
            raise ValueError(f"{self.env}: {error}{self._install_hint()}") from error
        except Exception as error:
            raise env_fault(error, f"while importing {self.env}") from error

    def check_single(self) -> None:
        """Refuse patterns of agents for an environment that has only one.

        Raises:
            ValueError: there are some.
        """
        for key, given in (("agents", self.agents), ("groups", self.groups)):
            if given:
                raise ValueError(f"behaviors.{next(iter(given))}.{key}: expected no patterns of agents for {self.env}, which has one "
                                 "agent; they are for worlds of PettingZoo. Take the key out.")

    def _atari_id(self) -> str:
        self._refuse_options("the Atari preprocessing does that itself; give env_kwargs stack_num or frameskip")
        return self._registered_id()

    def _wrapped(self, made: gym.Env | VectorEnv) -> gym.Env | VectorEnv:
        if isinstance(made, VectorEnv):
            self._refuse_options(f"{self.env} makes a vector environment, and only single ones are wrapped; let it do that itself, or "
                                 "return one gymnasium.Env")
            return made
        if is_agent_world(made):
            if self.options.action_repeat > 1 and not is_parallel_world(made):
                raise ValueError(
                    f"env_settings.action_repeat: expected 1, received {self.options.action_repeat}: the agents of {self.env} act in turn, and "
                    "nobody can repeat an action before the others have acted. Take the key out, or name a ParallelEnv of the world.")
            return made  # its agents are told apart by `envs.opened`, which stacks and repeats for each
        if self.env in WRONG_BOUNDS:
            made = TransformObservation(made, _as_it_is, gym.spaces.Box(-np.inf, np.inf, made.observation_space.shape, made.observation_space.dtype))
        if self.options.action_repeat > 1:
            made = ActionRepeat(made, self.options.action_repeat)
        if self.options.frame_stack > 1 and getattr(made, "observation_space", None) is not None:
            made = FrameStack(made, self.options.frame_stack, name=behavior_name(self.env, made))
        return made

    def _refuse_options(self, reason: str) -> None:
        for name in ("frame_stack", "action_repeat"):
            if getattr(self.options, name) > 1:
                raise ValueError(f"env_settings.{name}: expected 1, received {getattr(self.options, name)}: {reason}.")

    def _make(self, num_envs: int) -> gym.Env | VectorEnv:
        creator, kwargs = self._gymnasium_creator() if self.is_gymnasium_id else self._factory()
        if not self.is_gymnasium_id and "num_envs" in _parameters(creator):
            kwargs = {"num_envs": num_envs, **kwargs}
        try:
            made = creator(**kwargs)
        except gym.error.DependencyNotInstalled as error:
            raise ValueError(f"{self.env}: {error}{self._install_hint()}") from error
        except Exception as error:
            self._raise_if_kwargs(error)
            raise env_fault(error, f"while making {self.env}", restartable=False) from error
        if not isinstance(made, (gym.Env, VectorEnv)) and not is_agent_world(made):
            raise ValueError(
                f"{self.env}: expected the factory to return a gymnasium.Env, gymnasium.vector.VectorEnv, or a ParallelEnv or "
                f"AECEnv of PettingZoo, received {type(made).__module__}.{type(made).__qualname__}.")
        if is_pool(made):
            raise ValueError(f"{self.env}: the factory returned a pool of EnvPool, whose seeds are fixed: every env manager would step "
                             "the same worlds. Name it as env: envpool:ID, with its arguments in env_kwargs.")
        return made

    def _registered_id(self) -> str:
        """The id in Gymnasium's registry, with the module that registers it imported."""
        module, _, env_id = self.env.rpartition(":")
        if module:
            import_module(module, self.import_dirs, self.env)
        _check_registered(env_id)
        return env_id

    def _gymnasium_creator(self) -> tuple[Callable[..., gym.Env], dict[str, Any]]:
        # Our own boundary checks are stricter and name the place; Gymnasium's passive checker only warns, at a cost per step.
        return gym.make, {"id": self._registered_id(), "disable_env_checker": True, **self.kwargs}

    def _factory(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        module_name, name = self.env.rsplit(":", 1)
        module = import_module(module_name, self.import_dirs, self.env)
        factory = attribute(module, name, self.env, "env")
        return factory, dict(self.kwargs)

    def _raise_if_kwargs(self, error: Exception) -> None:
        """ValueError that says ``env_kwargs`` when a key of it, or one that is missing in it, is what `error` is about."""
        if not isinstance(error, TypeError):
            return
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown and unknown[1] in self.kwargs:
            known = self._argument_names()
            near = difflib.get_close_matches(unknown[1], known, n=1, cutoff=0.4)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            takes = f" It takes: {', '.join(known)}." if known else ""
            raise ValueError(f"env_kwargs: {self.env} has no argument {unknown[1]!r}.{hint}{takes}") from error
        missing = re.search(r"missing \d+ required (?:positional|keyword-only) arguments?: (.+?)(?: was raised|$)", str(error))
        if missing and traceback.extract_tb(error.__traceback__)[-1].filename.startswith((__file__, str(Path(gym.__file__).parent))):
            raise ValueError(f"env_kwargs: {self.env} needs {missing[1]}, which env_kwargs does not give.") from error

    def _argument_names(self) -> list[str]:
        if self.is_gymnasium_id:
            entry = gym.spec(self.env.rpartition(":")[2]).entry_point
            return _parameters(load_env_creator(entry) if isinstance(entry, str) else entry)
        return [name for name in _parameters(self._factory()[0]) if name != "num_envs"]

    def _install_hint(self) -> str:
        entry = str(gym.spec(self.env.rpartition(":")[2]).entry_point) if self.is_gymnasium_id else ""
        extra = next((extra for package, extra in EXTRAS.items() if entry.startswith(package)), None)
        return f' Install it with: pip install "gymnasium[{extra}]"' if extra else ""


def _as_it_is(obs: np.ndarray) -> np.ndarray:
    return obs


def behavior_name(env: str, made: gym.Env | VectorEnv | None = None) -> str:
    """Name of the behavior of an environment whose agents are all alike: its id without namespace and version.

    ``"CartPole-v1"`` → ``"CartPole"``, ``"ALE/Pong-v5"`` and ``"envpool:Pong-v5"`` → ``"Pong"``, ``"my_env:make_env"`` → ``"make_env"``.
    Where the factory has one of the names that all of PettingZoo's have, its module gives the name:
    ``"mpe2.simple_spread_v3:parallel_env"`` → ``"simple_spread"``.

    Args:
        env: Gymnasium id or ``module:factory``.
        made: an environment that a factory returned; when it has a spec (from ``gymnasium.make``), its id gives the name.
    """
    spec = None if made is None or is_agent_world(made) else made.unwrapped.spec
    module, _, name = env.rpartition(":")
    if spec is None and module and name in PETTINGZOO_FACTORIES:
        return re.sub(r"_v\d+$", "", module.rpartition(".")[2])
    name = spec.id if spec is not None else name
    return re.sub(r"-v\d+$", "", name.rpartition("/")[2])


def _check_registered(env_id: str) -> None:
    if atari.is_atari(env_id):
        atari.import_ale(env_id)
    try:
        gym.spec(env_id)
    except gym.error.Error as error:
        near = difflib.get_close_matches(env_id, list(gym.registry), n=3, cutoff=0.5)
        hint = f" Nearest: {', '.join(near)}." if near else ""
        raise ValueError(f"env: Gymnasium has no environment {env_id!r}.{hint} {error} "
                         "(An environment of your own is named as module:factory.)") from None


def _parameters(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"]
