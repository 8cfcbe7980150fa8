"""Atari games of ale-py with the standard preprocessing: ``env: ALE/Pong-v5``.

Frames are grey, 84×84, the pixel-wise maximum of the last two; an action lasts four frames; an observation is the last four of
them; an episode begins with up to 30 no-ops. Rewards are the game's own and an episode is a whole game. ``env_kwargs`` are the
arguments of ALE's own vector environment (``ale_py.vector_env.AtariVectorEnv``), with the defaults of the single environment's
registration where the two differ: actions repeat with probability 0.25, rewards are not clipped, nobody presses fire.

Two ways lead to the same observations, rewards and ends (tests/envs/test_atari.py compares them step by step):

- `make_vector`: ALE's vector environment, which emulates all games in C++ threads. Their number is ``env_kwargs: {num_threads: n}``; the
  default is one for each core, at most one for each environment.
- `make_copy`: one game behind ``gymnasium.wrappers.AtariPreprocessing``, for copies stepped inline, in threads or in processes.

They differ in how chance is drawn: seeds give other games, and the no-ops are 0 to 29 in the first and 1 to 30 in the second.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import AtariPreprocessing, ClipReward

from envs.wrappers import FrameStack

NAMESPACE = "ALE/"
INSTALL = 'pip install "ale-py>=0.12" opencv-python-headless'

REFUSED = {
    "game": "the id names it",
    "num_envs": "it is env_settings.num_envs",
    "batch_size": "all environments are stepped together",
    "autoreset_mode": "ends and resets are taken care of",
    "life_loss_info": "it reports an end while the game goes on; episodic_life ends the episode with a life",
}
"""Arguments of the vector environment that are not the user's to give -> why."""

DEFAULTS = {"reward_clipping": False, "use_fire_reset": False}
"""Where the vector environment's own defaults are another task than the single environment."""

_VECTOR_ONLY = {
    "num_threads": "copies are stepped as env_settings.stepping says",
    "thread_affinity_offset": "copies are stepped as env_settings.stepping says",
    "use_fire_reset": "gymnasium.wrappers.AtariPreprocessing does not press fire",
    "maxpool": "gymnasium.wrappers.AtariPreprocessing always takes the maximum of the last two frames",
}


def is_atari(env: str) -> bool:
    """Whether a configuration's ``env`` is an id of ale-py's current games; ``module:ALE/Pong-v5`` is one, too."""
    return env.rpartition(":")[2].startswith(NAMESPACE)


def is_ale_vector(env: VectorEnv) -> bool:
    """Whether `env` is ALE's vector environment, which takes seeds of its environments as an array."""
    return type(env).__module__ == "ale_py.vector_env"


def make_vector(env_id: str, num_envs: int, env_kwargs: dict[str, Any]) -> VectorEnv:
    """ALE's vector environment of `num_envs` games.

    Its autoreset mode is NEXT_STEP: SAME_STEP is no faster and allocates every observation twice. Every `step` returns new arrays.

    Raises:
        ValueError: `env_kwargs` are wrong.
    """
    kwargs = _checked(env_id, env_kwargs)
    declared = dict(VectorEnv.metadata)
    try:
        env = gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **{**DEFAULTS, **kwargs})
    except Exception as error:
        raise _wrong_value(env_id, error) from error
    # ALE writes its mode into the class attribute that all vector environments share, also those that declare nothing.
    env.metadata = dict(VectorEnv.metadata)
    VectorEnv.metadata.clear()
    VectorEnv.metadata.update(declared)
    return env


def make_copy(env_id: str, env_kwargs: dict[str, Any]) -> gym.Env:
    """One game with the preprocessing of the vector environment.

    Raises:
        ValueError: `env_kwargs` are wrong, or ask for what only the vector environment can do.
    """
    settings = {**_defaults(env_id), **DEFAULTS, **_checked(env_id, env_kwargs)}
    without_effect = {**_parameters(), **DEFAULTS}
    for name, reason in _VECTOR_ONLY.items():
        if settings[name] != without_effect[name]:
            raise ValueError(f"env_kwargs: {name}={settings[name]!r} needs ALE's vector environment: {reason}. "
                             "Leave it out, or set env_settings.stepping to auto.")
    if settings["continuous"] and settings["noop_max"]:
        raise ValueError("env_kwargs: continuous=True with no-ops needs ALE's vector environment, since "
                         "gymnasium.wrappers.AtariPreprocessing cannot do them. Give noop_max: 0, or set env_settings.stepping to auto.")
    game = {name: settings[name] for name in (
        "repeat_action_probability", "full_action_space", "continuous", "continuous_action_threshold", "max_num_frames_per_episode")}
    try:
        env = gym.make(env_id, disable_env_checker=True, frameskip=1, **game)
        env = AtariPreprocessing(
            env, noop_max=settings["noop_max"], frame_skip=settings["frameskip"], screen_size=(settings["img_width"], settings["img_height"]),
            terminal_on_life_loss=settings["episodic_life"], grayscale_obs=settings["grayscale"])
    except gym.error.DependencyNotInstalled as error:
        raise ValueError(f"{env_id}: {error} Install it with: {INSTALL}") from error
    except Exception as error:
        raise _wrong_value(env_id, error) from error
    if settings["reward_clipping"]:
        env = ClipReward(env, -1.0, 1.0)
    return FrameStack(env, settings["stack_num"], padding="zero", name=env_id)


def describe(env_id: str, env_kwargs: dict[str, Any]) -> str:
    """The preprocessing in words, for the table at the start.

    Raises:
        ValueError: `env_kwargs` are wrong.
    """
    s = {**_defaults(env_id), **DEFAULTS, **_checked(env_id, env_kwargs)}
    pooled = ", maximum of the last two" if s["maxpool"] and s["frameskip"] > 1 else ""
    parts = [
        f"{s['img_height']}×{s['img_width']} {'grey' if s['grayscale'] else 'RGB'}", f"{s['frameskip']} frames per action{pooled}",
        f"{s['stack_num']} stacked", f"up to {s['noop_max']} no-ops", f"actions repeat with probability {s['repeat_action_probability']:g}",
        f"at most {s['max_num_frames_per_episode']:,} frames",
    ]
    words = {"reward_clipping": "rewards clipped to [-1, 1]", "episodic_life": "every life is an episode",
             "use_fire_reset": "fire pressed at the start", "full_action_space": "all 18 actions", "continuous": "continuous actions"}
    return ", ".join(parts + [text for name, text in words.items() if s[name]])


def import_ale(env: str) -> None:
    """Import ale-py, which registers the ids.

    Raises:
        ValueError: it is not installed.
    """
    try:
        importlib.import_module("ale_py")
    except ModuleNotFoundError:
        raise ValueError(f"env: {env!r} needs ale_py, which is not installed: {INSTALL}") from None


def _defaults(env_id: str) -> dict[str, Any]:
    """What the vector environment does when nothing is asked of it: its own defaults under the registration's."""
    return {**_parameters(), **gym.spec(env_id).kwargs}


def _parameters() -> dict[str, Any]:
    """Arguments of ALE's vector environment with their defaults."""
    try:
        vector_env = importlib.import_module("ale_py.vector_env")
    except ModuleNotFoundError:
        raise ValueError(f"The Atari preprocessing needs a newer ale-py: {INSTALL}") from None
    parameters = inspect.signature(vector_env.AtariVectorEnv.__init__).parameters
    return {name: p.default for name, p in parameters.items() if name != "self"}


def _checked(env_id: str, env_kwargs: dict[str, Any]) -> dict[str, Any]:
    """`env_kwargs`, whose names are all arguments of the preprocessing."""
    known = [name for name in _parameters() if name not in REFUSED]
    for name in env_kwargs:
        if name in REFUSED:
            raise ValueError(f"env_kwargs: {env_id} is not given {name!r}: {REFUSED[name]}.")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            raise ValueError(
                f"env_kwargs: {env_id} has no argument {name!r}.{f' Did you mean {near[0]!r}?' if near else ''} With the Atari preprocessing "
                f"it takes: {', '.join(known)}. (env_settings.atari_preprocessing: false gives the plain game, which takes others.)")
    return env_kwargs


def _wrong_value(env_id: str, error: Exception) -> ValueError:
    return ValueError(f"env_kwargs: {env_id} cannot be made from them: {type(error).__name__}: {error}")

