"""Code of the user's own: what ``module:Name`` in a configuration stands for, or the name that an installed package gives it.

One loader and one style of error for environments, trainers, reward signals, networks, samplers and writers. A package gives names by entry
points, one group for each kind; ``[project.entry-points."raytrain.trainers"] my_trainer = "my_package:MyTrainer"`` makes
``trainer_type: my_trainer`` work as the name of a built-in trainer does.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.machinery
import importlib.metadata
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


class OwnCodeError(ValueError):
    """A reference that leads nowhere, or to something that lacks what is asked of it; says what to do."""


@dataclass(frozen=True)
class Kind:
    """A place where the user's own code may stand.

    Attributes:
        key: of the configuration.
        group: of entry points.
        protocol: what is asked for, for people.
        methods: that a class must have; empty where any function does.
        together: methods that it has all or none of.
        built_in: names that mean something else there already, which no package may give.
    """

    key: str
    group: str
    protocol: str
    methods: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    built_in: tuple[str, ...] = ()


TRAINER = Kind(
    "trainer_type", "raytrain.trainers",
    "a class with __init__(spec, settings, weights, rng), update(rows), policy_weights(), state() and load_state(arrays)",
    ("update", "policy_weights", "state", "load_state"), built_in=("ppo", "sac", "bc"))
SIGNAL = Kind(
    "signal", "raytrain.reward_signals",
    "a class with __init__(spec, **kwargs) and a method rewards(transitions); it may have learn(transitions), and both or neither of state() and "
    "load_state(arrays)",
    ("rewards",), ("state", "load_state"), ("extrinsic", "curiosity", "rnd", "gail", "own"))
NETWORK = Kind("model", "raytrain.networks", "a function that takes a dict of Keras inputs (and model_kwargs) and returns one output tensor")
SAMPLER = Kind("sampler", "raytrain.samplers", "a class with __init__(**kwargs) and a method sample(rng)", ("sample",),
               built_in=("constant", "uniform", "gaussian", "multirangeuniform"))

WRITER = Kind("writers", "raytrain.writers", "a subclass of raytrain.Writer", built_in=("tensorboard", "csv", "mlflow", "wandb", "prometheus"))

_folders: tuple[str, ...] = ()


def look_in(folders: Sequence[str]) -> None:
    """Search these folders first for modules of the user's, from now on in this process, where no others are named."""
    global _folders
    _folders = tuple(folders)
    # At the end, where they shadow nothing: for imports that the user's code does when it runs.
    sys.path += [folder for folder in _folders if folder not in sys.path]


def is_module_reference(reference: str) -> bool:
    """Whether it has the form ``module:Name``."""
    return re.fullmatch(r"\w+(\.\w+)*:\w+", reference) is not None


def installed_names(kind: Kind) -> list[str]:
    """Names that installed packages give (searching them takes some hundredths of a second)."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=kind.group)})


def check_reference(kind: Kind, reference: str) -> None:
    """Refuse what is neither ``module:Name`` nor an installed name, without importing anything.

    Raises:
        OwnCodeError: it is neither, or the name is a built-in one or given by several packages.
    """
    if not is_module_reference(reference):
        _entry_point(kind, reference)


def check_name(kind: Kind, name: str) -> None:
    """Refuse a built-in name that an installed package gives to something else.

    Raises:
        OwnCodeError: one does.
    """
    for entry in importlib.metadata.entry_points(group=kind.group, name=name):
        raise OwnCodeError(f"{kind.key}: {name!r}: expected a name that is not built in from {_package(entry)}, whose entry point {name} = "
                           f'"{entry.value}" in the group {kind.group} has one that is; rename it there, or uninstall the package')


def load(kind: Kind, reference: str, import_dirs: Sequence[str] | None = None) -> Any:
    """The class or function that `reference` names, with every method that is asked of it.

    Args:
        reference: ``module:Name``, or the name of an entry point.
        import_dirs: folders that are searched for the module before ``sys.path``; None: those of `look_in`.

    Raises:
        OwnCodeError: it is not there, or not what is asked for.
        EnvFault: the module's own code raised.
    """
    if is_module_reference(reference):
        module_name, _, name = reference.partition(":")
    else:
        entry = _entry_point(kind, reference)
        module_name, name = entry.module, entry.attr
    module = import_module(module_name, _folders if import_dirs is None else import_dirs, reference, kind.key)
    found = attribute(module, name, reference, kind.key, "class" if kind.methods else "function or class")
    if kind.methods:
        _check_class(kind, found, reference)
    return found


def _entry_point(kind: Kind, name: str) -> importlib.metadata.EntryPoint:
    if name in kind.built_in:
        raise OwnCodeError(f"{kind.key}: {name!r}: expected {kind.protocol}, as module:Name or by the name that an installed package gives it, received "
                           "the name of a built-in one, which has a key of its own")
    entries = list(importlib.metadata.entry_points(group=kind.group, name=name))
    if len({entry.value for entry in entries}) > 1:
        raise OwnCodeError(f"{kind.key}: {name!r}: expected one installed package that gives this name, found {', '.join(map(_package, entries))}; "
                           "write module:Name, or uninstall all but one")
    if entries:
        return entries[0]
    names = installed_names(kind)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"installed packages give {', '.join(names) or 'no name'} (entry points of the group {kind.group})"
    raise OwnCodeError(f"{kind.key}: {name!r}: expected module:Name, or a name that an installed package gives; {hint}")


def _package(entry: importlib.metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module


def _check_class(kind: Kind, found: Any, reference: str) -> None:
    what = f"{kind.key}: {reference!r}: expected {kind.protocol}; "
    if not inspect.isclass(found):
        raise OwnCodeError(f"{what}received a {type(found).__name__}")
    missing = [method for method in kind.methods if not callable(getattr(found, method, None))]
    if missing:
        raise OwnCodeError(f"{what}{found.__qualname__} has no method {' and no method '.join(missing)}")
    has = [method for method in kind.together if callable(getattr(found, method, None))]
    if has and len(has) < len(kind.together):
        lacks = [method for method in kind.together if method not in has]
        raise OwnCodeError(f"{what}received {found.__qualname__} with {' and '.join(has)} and without {' and '.join(lacks)}")


def attribute(module: ModuleType, name: str, reference: str, key: str, what: str = "function or class") -> Any:
    """What is called `name` (with dots) in `module`, if it can be called.

    Raises:
        OwnCodeError: nothing is; names what is near.
    """
    try:
        found = functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        found = None
    if callable(found):
        return found
    names = [n for n in dir(module) if not n.startswith("_") and callable(getattr(module, n))]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:5]
    raise OwnCodeError(f"{key}: {reference!r}: {module.__file__} has no {what} {name!r}; it has: {', '.join(near) or 'none'}.")


def import_module(name: str, import_dirs: Sequence[str], reference: str, key: str = "env") -> ModuleType:
    """Import a user's module, from `import_dirs` before ``sys.path``.

    The folders stand first on ``sys.path`` only while the module is imported, so that they shadow nothing later; after that
    they stay at its end, for imports that the user's code does when it runs. A module of the same name that came from
    another folder (an earlier run in this process) is forgotten first.

    Args:
        reference, key: what was asked for and where, for messages.

    Raises:
        OwnCodeError: the module does not exist, or its name is taken by another module.
        EnvFault: the module's own code raised.
    """
    from envs.faults import env_fault  # not at the top: settings are checked without NumPy

    folders = [str(Path(folder).resolve()) for folder in import_dirs]
    _forget_namesake(name.partition(".")[0], folders, key)
    path_before = list(sys.path)
    sys.path[:0] = folders
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise env_fault(error, f"while importing {name}", restartable=False) from error
        near = difflib.get_close_matches(error.name, set(_modules_in(folders)), n=3, cutoff=0.6)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        searched = "\n  ".join(folders + [p or "." for p in path_before])
        raise OwnCodeError(
            f"{key}: {reference!r}: there is no module {error.name!r}. Put it beside the YAML file, or install the package that has it (pip install "
            f"{error.name.partition('.')[0]}, if it is called like its module).{hint} Searched:\n  {searched}"
        ) from None
    except Exception as error:
        raise env_fault(error, f"while importing {name}", restartable=False) from error
    finally:
        sys.path[:] = path_before + [folder for folder in folders if folder not in path_before]


def _modules_in(folders: Sequence[str]) -> Iterator[str]:
    for folder in map(Path, folders):
        if folder.is_dir():
            yield from (path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file())


_user_modules: set[str] = set()
"""Top-level modules that were imported from a folder of a configuration, and so may be replaced by another folder's."""


def _forget_namesake(root: str, folders: list[str], key: str) -> None:
    wanted = importlib.machinery.PathFinder.find_spec(root, folders) if folders else None
    if wanted is None or wanted.origin is None:
        return
    loaded = sys.modules.get(root)
    origin = getattr(loaded, "__file__", None)
    if loaded is not None and origin != wanted.origin:
        if root not in _user_modules:
            raise OwnCodeError(f"{key}: the module name {root!r} of {wanted.origin} is already taken by {origin or 'a built-in module'}; "
                               "rename your file.")
        for module in [m for m in sys.modules if m == root or m.startswith(f"{root}.")]:
            del sys.modules[module]
    _user_modules.add(root)
