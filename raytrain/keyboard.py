"""A person plays an environment with Gymnasium's ``play``, and what is played is recorded."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.boundary import ObservationReader, read_reward
from envs.episode_recorder import EpisodeRecorder
from envs.factories import EnvFactory, behavior_name
from envs.masks import EnvMasks, mask_in, mask_method
from envs.policy_actions import to_policy_actions
from envs.spaces import behavior_spec
from envs.specs import Actions, ActionSpec, BehaviorSpec, Observations, env_action_rows, to_env_actions

NOOP = "noop"
"""Key of ``--keys`` for the action while no key is pressed."""
_EXAMPLE = """--keys '{"a": 0, "d": 1, "noop": 0}'"""


class _Enough(Exception):
    """As many episodes as were asked for."""


class _Recording(gym.Wrapper):
    """Records what passes through.

    `play` calls back with the first observation still packed together with ``info``, and seeds every reset alike; in between, both are right.
    """

    def __init__(self, env: gym.Env, recorder: EpisodeRecorder, episodes: int | None) -> None:
        super().__init__(env)
        self._recorder, self._episodes = recorder, episodes
        self._reader = ObservationReader(env.observation_space, recorder.spec.observations)
        self._masks = EnvMasks(env, recorder.spec.action) if recorder.spec.action.masked else None
        self._obs: Observations = {}
        self._mask: np.ndarray | None = None
        self._has_stepped = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode; seeded as long as no step was done (`play` resets twice at its beginning)."""
        if self._episodes is not None and self._recorder.episodes >= self._episodes:
            raise _Enough
        self._recorder.discard()
        value, info = self.env.reset(seed=None if self._has_stepped else seed, options=options)
        self._see(value, info)
        return value, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step of the person."""
        self._has_stepped = True
        value, reward, terminated, truncated, info = self.env.step(action)
        self._recorder.decide(self._obs, _policy_action(self._recorder, action), self._mask)
        self._recorder.reward(read_reward(reward))
        if terminated or truncated:
            self._recorder.end(self._read(value), bool(terminated))
        else:
            self._see(value, info)
        return value, reward, terminated, truncated, info

    def _see(self, value: Any, info: dict[str, Any]) -> None:
        self._obs = self._read(value)
        self._mask = None if self._masks is None else self._masks.read(value, info)[None]

    def _read(self, value: Any) -> Observations:
        obs = self._reader.empty(None)
        self._reader.read(value, obs)
        problem = self._reader.problem(obs, check_bounds=False)
        if problem is not None:
            raise ValueError(problem[1])
        return {name: array[None] for name, array in obs.items()}


def _policy_action(recorder: EpisodeRecorder, action: Any) -> Actions:
    spec = recorder.spec.action
    return to_policy_actions(spec, _batch_of_one(action) if spec.kind == "hybrid" else np.asarray(action)[None], 1)


def _batch_of_one(action: Any) -> Any:
    if isinstance(action, dict):
        return {key: _batch_of_one(value) for key, value in action.items()}
    return tuple(_batch_of_one(value) for value in action) if isinstance(action, tuple) else np.asarray(action)[None]


class Session:
    """A game that is ready to be played.

    Attributes:
        recorder: gets the episodes.
    """

    def __init__(self, env: gym.Env, recorder: EpisodeRecorder, play: Callable[[], None]) -> None:
        self.recorder = recorder
        self._env, self._play = env, play

    def run(self) -> None:
        """Play until Esc, the closing of the window, or as many episodes as were asked for.

        Raises:
            ValueError: there is no screen, or `play` refuses the keys.
        """
        import pygame

        try:
            self._play()
        except _Enough:
            pass
        except pygame.error as error:
            raise ValueError(f"Expected a screen to play on, received from pygame: {error}; run it where there is a display.") from None
        except TypeError as error:  # what `play` raises for frame rates that are no whole numbers
            raise ValueError(f"{error}; give --fps N.") from None
        finally:
            self._env.close()
            pygame.quit()


def play(factory: EnvFactory, keys: dict[str, Any] | None, seed: int, episodes: int | None, fps: int | None) -> Session:
    """Get a game ready.

    Args:
        factory: of the environment. An id is made with ``render_mode="rgb_array"``; a factory of one's own has to see to that itself.
        keys: as `read_keys` returns them; None: those that the environment has itself.
        seed: of the first reset.
        episodes: ends after as many whole ones; None: with Esc or the window.
        fps: steps per second; None: as the environment is shown.

    Raises:
        ValueError: pygame is missing, the environment draws no pictures or has no keys, or keys or actions that are none.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of plots, which are not drawn here
            import gymnasium.utils.play as player
        import pygame
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise ValueError(f'Expected pygame for the keyboard, which is not installed ({error}); pip install "gymnasium[classic-control]".') from None
    kwargs = {"render_mode": "rgb_array", **factory.kwargs} if factory.is_gymnasium_id else factory.kwargs
    env = EnvFactory(factory.env, kwargs, factory.import_dirs, factory.options).make()
    try:
        _check_playable(env, factory.env, keys)
        recorder = EpisodeRecorder(_spec(env, behavior_name(factory.env, env)))
        mapping, noop = _mapping(env, recorder.spec.action, keys, pygame)
    except BaseException:
        env.close()
        raise
    wrapped = _Recording(env, recorder, episodes)
    return Session(wrapped, recorder, lambda: player.play(wrapped, fps=fps, keys_to_action=mapping, seed=seed, noop=noop))


def _check_playable(env: Any, name: str, keys: dict[str, Any] | None) -> None:
    mode = getattr(env, "render_mode", None)
    if not isinstance(env, gym.Env) or mode not in ("rgb_array", "rgb_array_list"):
        raise ValueError(f"{name}: expected a single environment with render_mode='rgb_array', received {type(env).__name__} with {mode!r}; "
                         "let the factory make it so.")
    if keys is None and not env.has_wrapper_attr("get_keys_to_action"):
        raise ValueError(f"{name}: expected an environment with keys of its own, received one without; give them with {_EXAMPLE}, actions "
                         f"from {env.action_space}.")


def _mapping(env: gym.Env, spec: ActionSpec, keys: dict[str, Any] | None, pygame: Any) -> tuple[dict[tuple[int, ...], Any] | None, Any]:
    """Key codes and their actions (None: the environment's own), and the action while no key is pressed."""
    if keys is not None and NOOP in keys:
        noop = _action(env.action_space, keys[NOOP], NOOP)
    else:
        idle = Actions(np.zeros((1, spec.continuous_size), np.float32), np.zeros((1, len(spec.discrete_branches)), np.int32))
        noop = env_action_rows(spec, to_env_actions(spec, idle))[0]
    if keys is None:
        return None, noop
    return {_codes(combination, pygame): _action(env.action_space, value, combination) for combination, value in keys.items()
            if combination != NOOP}, noop


def _spec(env: gym.Env, name: str) -> BehaviorSpec:
    is_masked = mask_method(env) is not None
    spec = behavior_spec(env.observation_space, env.action_space, name, is_masked)
    if spec.action.discrete_branches and not spec.action.masked and mask_in(env.reset()[1]) is not None:
        return behavior_spec(env.observation_space, env.action_space, name, True)
    return spec


def read_keys(text: str) -> dict[str, Any]:
    """Keys and their actions: JSON, or a file with it. ``{"left": 0, "right": 1, "left+up": 2, "noop": 3}``.

    Raises:
        ValueError: neither, or not of that form.
    """
    source = text
    if not text.lstrip().startswith("{"):
        try:
            source = Path(text).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"Expected --keys with JSON or a file of it, received {text}: {error}; for example {_EXAMPLE}.") from None
    try:
        keys = json.loads(source)
    except json.JSONDecodeError as error:
        raise ValueError(f"Expected --keys with JSON, received {text}: {error}; for example {_EXAMPLE}.") from None
    if not isinstance(keys, dict) or not keys.keys() - {NOOP}:
        raise ValueError(f"Expected --keys with at least one key and its action, received {text}; for example {_EXAMPLE}.")
    return keys


def _codes(combination: str, pygame: Any) -> tuple[int, ...]:
    """Key codes of ``"a"``, ``"left"``, ``"space"`` or several, joined by ``+``."""
    names = [name.strip() for name in combination.split("+")]
    codes = [getattr(pygame, f"K_{name.lower() if len(name) == 1 else name.upper()}", None) for name in names]
    if None in codes:
        raise ValueError(f"Expected keys such as a, left or space, or several joined by +, received {combination!r} in --keys.")
    return tuple(codes)


def _action(space: spaces.Space, value: Any, combination: str) -> Any:
    """A JSON value as an action of `space`."""
    try:
        action = _as(space, value)
        fits = space.contains(action)
    except (TypeError, ValueError, KeyError, OverflowError):
        fits = False
    if not fits:
        raise ValueError(f"Expected an action of {space} for {combination!r} in --keys, received {value}.")
    return action


def _as(space: spaces.Space, value: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _as(inner, value[key]) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_as(inner, part) for inner, part in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Discrete):
        return value if isinstance(value, int) else None
    return np.asarray(value, space.dtype).reshape(space.shape)
