"""Code of the user's own: by ``module:Name`` and by the names that installed packages give; what is refused, and in which words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from envs import own_code
from envs.base import EnvFault
from envs.own_code import (
    NETWORK,
    SAMPLER,
    SIGNAL,
    TRAINER,
    OwnCodeError,
    check_name,
    check_reference,
    installed_names,
    load,
    look_in,
)


def install(folder: Path, package: str, group: str, **names: str) -> None:
    """What pip leaves of a package: the names that it gives."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in names.items()))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on Python's path; all that is imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(own_code, "_folders", ())
    monkeypatch.setattr(own_code, "_user_modules", set())
    modules, path = set(sys.modules), list(sys.path)
    (tmp_path / "own_things.py").write_text(
        "class Sampler:\n    def sample(self, rng): ...\n"
        "class Signal:\n    def rewards(self, transitions): ...\n    def state(self): ...\n"
        "def network(inputs): ...\n"
        "NUMBER = 3\n")
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_module_and_name(folder):
    assert load(SAMPLER, "own_things:Sampler").__name__ == "Sampler"
    assert load(NETWORK, "own_things:network").__name__ == "network"


def test_an_installed_name_stands_for_what_its_package_says(folder):
    install(folder, "things", SAMPLER.group, powers="own_things:Sampler")
    assert installed_names(SAMPLER) == ["powers"] and installed_names(TRAINER) == []
    check_reference(SAMPLER, "powers")
    assert load(SAMPLER, "powers") is load(SAMPLER, "own_things:Sampler")


def test_folders_to_look_in_come_before_the_path(folder, tmp_path_factory):
    """A second run in one process has another folder, with a module of the same name."""
    for name in ("first", "second"):
        other = tmp_path_factory.mktemp(name)
        (other / "own_other.py").write_text(f"class Sampler:\n    name = {name!r}\n    def sample(self, rng): ...\n")
        look_in([str(other)])
        assert load(SAMPLER, "own_other:Sampler").name == name
    assert load(SAMPLER, "own_other:Sampler").name == "second"


@pytest.mark.parametrize(("kind", "reference", "words"), [
    (SAMPLER, "own_thing:Sampler", r"sampler: 'own_thing:Sampler': there is no module 'own_thing'.* Did you mean 'own_things'\? Searched:\n  .*{folder}"),
    (SAMPLER, "own_things:Samplr", r"{folder}/own_things.py has no class 'Samplr'; it has: Sampler"),
    (NETWORK, "own_things:NUMBER", "has no function or class 'NUMBER'; it has: "),
    (SAMPLER, "own_things:network", r"expected a class with __init__\(\*\*kwargs\) and a method sample\(rng\); received a function"),
    (SAMPLER, "own_things:Signal", r"a method sample\(rng\); Signal has no method sample"),
    (SIGNAL, "own_things:Signal", r"received Signal with state and without load_state"),
    (TRAINER, "own_things:Signal", r"update\(rows\).*; Signal has no method update and no method policy_weights and no method load_state"),
    (SAMPLER, "power", r"'power': expected module:Name, or a name that an installed package gives; did you mean powers\?"),
    (NETWORK, "power", r"installed packages give no name \(entry points of the group raytrain.networks\)"),
    (SAMPLER, "uniform", "received the name of a built-in one"),
    (SAMPLER, "a/b.py:Sampler", "expected module:Name"),
])
def test_what_cannot_be_used_is_refused_with_what_to_do(folder, kind, reference, words):
    install(folder, "things", SAMPLER.group, powers="own_things:Sampler")
    with pytest.raises(OwnCodeError, match="(?s)" + words.replace("{folder}", str(folder))):
        load(kind, reference, [str(folder)])


def test_a_name_that_is_built_in_is_refused_with_the_package_that_gives_it(folder):
    check_name(TRAINER, "ppo")
    install(folder, "thieves", TRAINER.group, ppo="own_things:Signal")
    with pytest.raises(OwnCodeError, match=r"'ppo': expected a name that is not built in from thieves, whose entry point ppo = \"own_things:Signal\""):
        check_name(TRAINER, "ppo")


def test_a_name_that_two_packages_give_is_refused(folder):
    install(folder, "one", SAMPLER.group, powers="own_things:Sampler")
    install(folder, "two", SAMPLER.group, powers="elsewhere:Sampler")
    with pytest.raises(OwnCodeError, match=r"expected one installed package that gives this name, found (one, two|two, one)"):
        check_reference(SAMPLER, "powers")


def test_what_the_users_module_raises_has_their_line(folder):
    (folder / "own_broken.py").write_text("x = 1\ny = x / 0\n")
    with pytest.raises(EnvFault, match=r"(?s)division by zero.*own_broken.py:2"):
        load(SAMPLER, "own_broken:Sampler")
