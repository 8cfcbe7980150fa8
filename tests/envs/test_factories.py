"""From a configuration's words to environments: names, and an error that helps for every mistake."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from envs import own_code
from envs.base import EnvFault
from envs.factories import WRONG_BOUNDS, EnvFactory, EnvOptions, behavior_name
from tests.envs import worlds

MY_ENV = '''
import gymnasium as gym
import numpy as np

WHERE = {where!r}


class MyEnv(gym.Env):
    observation_space = gym.spaces.Box(0.0, 1.0, ({size},), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        import my_sibling  # found when the code runs, not only while the module is imported
        return np.full({size}, my_sibling.VALUE, np.float32), {{}}

    def step(self, action):
        raise ValueError("boom-42")  # line 17


def make_env(**kwargs):
    return MyEnv(**kwargs)


gym.register("Mine-v3", entry_point=MyEnv)
'''


@pytest.fixture
def clean_imports() -> Iterator[None]:
    """Modules and path as they were before."""
    modules, path, users = set(sys.modules), list(sys.path), set(own_code._user_modules)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = path
    own_code._user_modules.clear()
    own_code._user_modules.update(users)
    gym.registry.pop("Mine-v3", None)


def write_my_env(folder: Path, size: int = 2) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "my_env.py").write_text(MY_ENV.format(where=str(folder), size=size))
    (folder / "my_sibling.py").write_text("VALUE = 0.25\n")
    return folder


@pytest.mark.parametrize(("env", "name"), [
    ("CartPole-v1", "CartPole"), ("ALE/Pong-v5", "Pong"), ("envpool:Pong-v5", "Pong"), ("MountainCarContinuous-v0", "MountainCarContinuous"),
    ("CartPole", "CartPole"),
    ("my_env:make_env", "make_env"), ("pkg.my_env:MyEnv", "MyEnv"), ("my_env:Mine-v3", "Mine"), ("my_env:ns/Mine-v13", "Mine"),
])
def test_behavior_name(env: str, name: str) -> None:
    """C85: the name that the YAML file has to use."""
    assert behavior_name(env) == name


def test_module_in_the_folder_of_the_yaml(tmp_path: Path, clean_imports: None) -> None:
    """C92, C100: found in the given folder (with a space in its name), along with what it imports when it runs."""
    folder = write_my_env(tmp_path / "my project")
    env = EnvFactory("my_env:make_env", {}, (str(folder),)).make()
    assert env.reset()[0].tolist() == [0.25, 0.25]
    assert str(folder) not in sys.path[: sys.path.index(str(folder))]
    assert sys.path[-1] == str(folder), "it must not shadow anything later"


def test_module_that_registers_an_id(tmp_path: Path, clean_imports: None) -> None:
    folder = write_my_env(tmp_path)
    assert EnvFactory("my_env:Mine-v3", {}, (str(folder),)).make().unwrapped.spec.id == "Mine-v3"


def test_same_module_name_in_two_folders(tmp_path: Path, clean_imports: None) -> None:
    """A second run in one process, from another folder, gets its own file and not the first one's."""
    for size, name in ((2, "a"), (3, "b"), (2, "a")):
        folder = write_my_env(tmp_path / name, size)
        env = EnvFactory("my_env:make_env", {}, (str(folder),)).make()
        assert env.observation_space.shape == (size,)
        assert sys.modules["my_env"].WHERE == str(folder)


def test_module_is_imported_once(tmp_path: Path, clean_imports: None) -> None:
    factory = EnvFactory("my_env:MyEnv", {}, (str(write_my_env(tmp_path)),))
    assert type(factory.make()) is type(factory.make())


@pytest.mark.parametrize("name", ["json", "envs"])
def test_module_name_that_is_taken(tmp_path: Path, name: str, clean_imports: None) -> None:
    """A file called json.py does not replace the standard library's, silently or otherwise."""
    (tmp_path / f"{name}.py").write_text("def make(): pass\n")
    with pytest.raises(ValueError, match=f"module name '{name}' of {tmp_path}.* is already taken by .*rename your file"):
        EnvFactory(f"{name}:make", {}, (str(tmp_path),)).make()


def test_missing_module_names_module_and_search_path(tmp_path: Path, clean_imports: None) -> None:
    """C92: the module and where it was looked for."""
    with pytest.raises(ValueError, match=r"there is no module 'my_envv'\. Put it beside the YAML file.* Searched:") as error:
        EnvFactory("my_envv:make_env", {}, (str(tmp_path),)).make()
    lines = str(error.value).splitlines()
    assert lines[1].strip() == str(tmp_path)
    assert len(lines) > len(sys.path)
    assert str(tmp_path) in sys.path


def test_module_that_needs_a_missing_module(tmp_path: Path, clean_imports: None) -> None:
    """The user's own import error is theirs: their file and line, not a search path."""
    (tmp_path / "needs_more.py").write_text("import numpy\nimport not_there_at_all\n")
    with pytest.raises(EnvFault, match=r"(?s)ModuleNotFoundError: No module named 'not_there_at_all'\n  at .*needs_more.py:2"):
        EnvFactory("needs_more:make", {}, (str(tmp_path),)).make()


def test_module_with_a_syntax_error(tmp_path: Path, clean_imports: None) -> None:
    (tmp_path / "broken_env.py").write_text("x = 1\ndef make(:\n")
    with pytest.raises(EnvFault, match="SyntaxError") as error:
        EnvFactory("broken_env:make", {}, (str(tmp_path),)).make()
    assert "broken_env.py" in str(error.value)
    assert "line 2" in str(error.value)


def test_missing_factory_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="has no function or class 'CountObbs'; it has: CountObs"):
        EnvFactory("envs.toy:CountObbs").make()


def test_factory_that_returns_something_else() -> None:
    with pytest.raises(ValueError, match=r"expected the factory to return a gymnasium.Env, .* received builtins.str"):
        EnvFactory("tests.envs.worlds:makes_nothing").make()


@pytest.mark.parametrize(("env", "nearest"), [("CartPol-v1", "CartPole-v1"), ("LunarLander-v2", "LunarLander-v3"), ("Pendulum-v9", "Pendulum-v1")])
def test_unknown_id_names_the_nearest(env: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=rf"Gymnasium has no environment '{env}'. Nearest: .*{nearest}"):
        EnvFactory(env).make()


def test_ids_that_are_none() -> None:
    for env in ("", "What is this", "CartPole-v1-v2/x"):
        with pytest.raises(ValueError, match="Gymnasium has no environment"):
            EnvFactory(env).make()


@pytest.mark.parametrize(("env", "key", "near"), [
    ("Pendulum-v1", "gg", "g"), ("envs.toy:CountObs", "lenght", "length"), ("tests.envs.worlds:passes_on", "lenght", None),
    ("envs.toy:count_vector", "autoreset", "autoreset_mode"),
])
def test_wrong_env_kwargs(env: str, key: str, near: str | None) -> None:
    """C89: the message has env_kwargs, the wrong key and the environment, and the nearest right one where it can be known."""
    with pytest.raises(ValueError, match=f"env_kwargs: {env} has no argument '{key}'") as error:
        EnvFactory(env, {key: 1}).make()
    assert near is None or f"Did you mean '{near}'?" in str(error.value)


def test_right_env_kwargs_arrive() -> None:
    """C89: passed on unchanged."""
    assert EnvFactory("Pendulum-v1", {"g": 9.5}).make().unwrapped.g == 9.5
    assert EnvFactory("envs.toy:CountObs", {"length": 7}).make().length == 7
    assert EnvFactory("CartPole-v1", {"max_episode_steps": 5}).make().spec.max_episode_steps == 5


def test_missing_env_kwargs() -> None:
    """C89: a required argument that is not given."""
    with pytest.raises(ValueError, match="env_kwargs: tests.envs.worlds:needs_size needs 'size'"):
        EnvFactory("tests.envs.worlds:needs_size").make()


def test_num_envs_goes_to_factories_that_ask() -> None:
    assert EnvFactory("envs.toy:count_vector", {"autoreset_mode": "NextStep"}).make(num_envs=5).num_envs == 5
    assert EnvFactory("tests.envs.worlds:two_whatever_you_ask").make(num_envs=5).num_envs == 2


def test_missing_extra_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that an environment family needs: what to install."""
    def not_installed(**kwargs: object) -> None:
        raise gym.error.DependencyNotInstalled("Box2D is not installed")

    monkeypatch.setattr(gym, "make", not_installed)
    with pytest.raises(ValueError, match=r'LunarLander-v3: Box2D is not installed.* pip install "gymnasium\[box2d\]"'):
        EnvFactory("LunarLander-v3").make()


@pytest.mark.parametrize("options", [EnvOptions(), EnvOptions(atari_preprocessing=False)], ids=["preprocessed", "plain"])
def test_missing_ale_names_the_pip_command(options: EnvOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ValueError, match=r'env: .ALE/Pong-v5. needs ale_py, which is not installed: pip install "ale-py>=0.12"'):
        EnvFactory("ALE/Pong-v5", options=options).make()


def test_constructor_error_has_the_users_file_and_line() -> None:
    """C19: boom-42 first, then where."""
    with pytest.raises(EnvFault) as error:
        EnvFactory("tests.envs.worlds:BoomInConstructor").make()
    first, second = str(error.value).splitlines()[:2]
    assert first == "ValueError: boom-42"
    assert worlds.__file__ in second
    assert "envs/factories.py" not in error.value.user_traceback.split("worlds.py")[0]


@pytest.mark.parametrize("env", WRONG_BOUNDS)
def test_bounds_that_gymnasium_has_wrong_are_none(env: str) -> None:
    """The bare task leaves its Box, a lander under full thrust and a walker by pushes at random (else its id has no place in `WRONG_BOUNDS`); ours is the
    same task without bounds."""
    bare, ours = gym.make(env).unwrapped, EnvFactory(env).make()
    seen = [bare.reset(seed=0)[0]]
    assert np.array_equal(ours.reset(seed=0)[0], seen[0]) and not ours.observation_space.is_bounded()
    generator, thrust = np.random.default_rng(0), {"LunarLander-v3": 2, "LunarLanderContinuous-v3": np.array([1, 0], np.float32)}
    while bare.observation_space.contains(seen[-1]) and len(seen) < 2_000:
        action = thrust.get(env, np.sign(generator.uniform(-1, 1, 4)).astype(np.float32))
        seen.append(bare.step(action)[0])
        if len(seen) < 20:
            assert np.array_equal(ours.step(action)[0], seen[-1])
    assert not bare.observation_space.contains(seen[-1]) and ours.observation_space.contains(seen[-1])
    bare.close()
    ours.close()
