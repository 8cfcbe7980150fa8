"""From the words in a configuration, a Gymnasium id or ``module:factory``, to environments; every mistake is named."""

from __future__ import annotations

import difflib
import importlib
import importlib.machinery
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv

from envs.faults import env_fault

EXTRAS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco", "gymnasium.envs.classic_control": "classic-control",
          "gymnasium.envs.toy_text": "toy-text"}
"""Package of an entry point -> the extra of gymnasium that brings what it needs."""


@dataclass(frozen=True)
class EnvFactory:
    """How to make one environment; plain data, so that it travels to threads and processes.

    Attributes:
        env: Gymnasium id, ``module:Id-v0`` (the module registers the id) or ``module:factory``.
        kwargs: arguments of the environment's constructor or of the factory.
        import_dirs: folders that are searched for the module before ``sys.path``.
    """

    env: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    import_dirs: tuple[str, ...] = ()

    @property
    def is_gymnasium_id(self) -> bool:
        """Whether Gymnasium's registry makes the environment (else a factory does)."""
        return ":" not in self.env or not self.env.rsplit(":", 1)[1].isidentifier()

    def make(self, num_envs: int = 1) -> gym.Env | VectorEnv:
        """One new environment, or what the factory returns: it may be a vector environment of `num_envs`.

        A factory with a parameter called ``num_envs`` is given `num_envs`.

        Raises:
            ValueError: the configuration is wrong: unknown id, module, factory or argument, or a package is missing.
            EnvFault: the user's own code raised.
        """
        creator, kwargs = self._gymnasium_creator() if self.is_gymnasium_id else self._factory()
        if not self.is_gymnasium_id and "num_envs" in _parameters(creator):
            kwargs = {"num_envs": num_envs, **kwargs}
        try:
            made = creator(**kwargs)
        except gym.error.DependencyNotInstalled as error:
            raise ValueError(f"{self.env}: {error}{self._install_hint()}") from error
        except Exception as error:
            self._raise_if_kwargs(error)
            raise env_fault(error, f"while making {self.env}") from error
        if not isinstance(made, (gym.Env, VectorEnv)):
            raise ValueError(  # noqa: TRY004 - what a configuration asks for is wrong, and such errors are ValueErrors
                f"{self.env}: expected the factory to return a gymnasium.Env or gymnasium.vector.VectorEnv, "
                f"received {type(made).__module__}.{type(made).__qualname__}.")
        return made

    def _gymnasium_creator(self) -> tuple[Callable[..., gym.Env], dict[str, Any]]:
        module, _, env_id = self.env.rpartition(":")
        if module:
            import_module(module, self.import_dirs, self.env)
        _check_registered(env_id)
        # Our own boundary checks are stricter and name the place; Gymnasium's passive checker only warns, at a cost per step.
        return gym.make, {"id": env_id, "disable_env_checker": True, **self.kwargs}

    def _factory(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        module_name, name = self.env.rsplit(":", 1)
        module = import_module(module_name, self.import_dirs, self.env)
        factory = getattr(module, name, None)
        if not callable(factory):
            names = [n for n in dir(module) if not n.startswith("_") and callable(getattr(module, n))]
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:5]
            raise ValueError(  # noqa: TRY004 - as above
                f"env: {self.env!r}: {module.__file__} has no function or class {name!r}; it has: {', '.join(near) or 'none'}.")
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


def behavior_name(env: str, made: gym.Env | VectorEnv | None = None) -> str:
    """Name of the behavior of a single-agent environment: its id without namespace and version.

    ``"CartPole-v1"`` → ``"CartPole"``, ``"ALE/Pong-v5"`` → ``"Pong"``, ``"my_env:make_env"`` → ``"make_env"``.

    Args:
        env: Gymnasium id or ``module:factory``.
        made: an environment that a factory returned; when it has a spec (from ``gymnasium.make``), its id gives the name.
    """
    spec = made.unwrapped.spec if made is not None else None
    name = spec.id if spec is not None else env.rpartition(":")[2]
    return re.sub(r"-v\d+$", "", name.rpartition("/")[2])


def import_module(name: str, import_dirs: Sequence[str], env: str) -> ModuleType:
    """Import a user's module, from `import_dirs` before ``sys.path``.

    The folders stand first on ``sys.path`` only while the module is imported, so that they shadow nothing later; after that
    they stay at its end, for imports that the user's code does when it runs. A module of the same name that came from
    another folder (an earlier run in this process) is forgotten first.

    Raises:
        ValueError: the module does not exist, or its name is taken by another module.
        EnvFault: the module's own code raised.
    """
    folders = [str(Path(folder).resolve()) for folder in import_dirs]
    _forget_namesake(name.partition(".")[0], folders)
    path_before = list(sys.path)
    sys.path[:0] = folders
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise env_fault(error, f"while importing {name}") from error
        searched = "\n  ".join(folders + [p or "." for p in path_before])
        raise ValueError(f"env: {env!r}: there is no module {error.name!r}. Searched:\n  {searched}") from None
    except Exception as error:
        raise env_fault(error, f"while importing {name}") from error
    finally:
        sys.path[:] = path_before + [folder for folder in folders if folder not in path_before]


_user_modules: set[str] = set()
"""Top-level modules that were imported from a folder of a configuration, and so may be replaced by another folder's."""


def _forget_namesake(root: str, folders: list[str]) -> None:
    wanted = importlib.machinery.PathFinder.find_spec(root, folders) if folders else None
    if wanted is None or wanted.origin is None:
        return
    loaded = sys.modules.get(root)
    origin = getattr(loaded, "__file__", None)
    if loaded is not None and origin != wanted.origin:
        if root not in _user_modules:
            raise ValueError(f"env: the module name {root!r} of {wanted.origin} is already taken by {origin or 'a built-in module'}; "
                             "rename your file.")
        for module in [m for m in sys.modules if m == root or m.startswith(f"{root}.")]:
            del sys.modules[module]
    _user_modules.add(root)


def _check_registered(env_id: str) -> None:
    if env_id.startswith("ALE/"):
        try:
            importlib.import_module("ale_py")  # registers the ids
        except ModuleNotFoundError:
            raise ValueError(f'env: {env_id!r} needs ale_py, which is not installed: pip install "gymnasium[atari]"') from None
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
