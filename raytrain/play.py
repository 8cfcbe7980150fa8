"""``raytrain play``: a trained policy is watched, in a window or in a video."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from envs.agent_behaviors import is_agent_world
from envs.base import EnvFault
from envs.factories import EnvFactory
from envs.single_env import Outcome, SingleEnv
from envs.specs import env_action_rows, to_env_actions
from raytrain.console import Console
from raytrain.errors import RunFault
from raytrain.evaluate_run import MODES, default_seed
from raytrain.play_world import show_world
from raytrain.saved_run import SavedRun, check_what_to_play, load_saved_run
from raytrain.shown import Shown, saved_policy
from raytrain.summary_line import format_number

SUFFIX = ".mp4"
WINDOW, FRAMES = "human", "rgb_array"


@dataclass(frozen=True)
class Episode:
    """One that was shown."""

    episode_return: float
    length: int
    how: str


class Player:
    """Lets the policy act in one environment that is shown.

    Args:
        saved: the policy, of one behavior and one agent.
        made: the environment, which draws itself.
    """

    def __init__(self, saved: SavedRun, made: gym.Env, seed: int, deterministic: bool) -> None:
        (plan,) = saved.plans
        self._policy, self._deterministic = saved_policy(saved, plan), deterministic
        self._action_spec = plan.spec.action
        # The masks of the policy's spec: those in info show at a reset only.
        self._shown = Shown(SingleEnv(EnvFactory(plan.env, options=plan.env_options, masked=plan.spec.action.masked), made), saved, seed)

    def play(self) -> Episode:
        """One whole episode.

        Raises:
            EnvFault: the environment failed.
        """
        total, length, outcome = 0.0, 0, self._shown.begin()
        while True:
            outcome = self._shown.step(self._action(outcome), length + 1)
            total, length = total + outcome.reward, length + 1
            if outcome.terminated or outcome.truncated:
                return Episode(total, length, "terminated" if outcome.terminated else "truncated")

    def _action(self, outcome: Outcome) -> Any:
        batch = {name: value[None] for name, value in outcome.obs.items()}
        mask = None if outcome.action_mask is None else outcome.action_mask[None]
        output = self._policy.act(batch, self._shown.rng, self._deterministic, mask, with_entropy=False, agent_id=np.zeros(1, np.int64),
                                  first=np.array([outcome.first]))
        return env_action_rows(self._action_spec, to_env_actions(self._action_spec, output.actions))[0]


def make_shown(saved: SavedRun, mode: str) -> Any:
    """The environment of a run, or its world of several agents, made so that it draws itself.

    Args:
        mode: Gymnasium's name of the render mode. A window is also made from frames, where the environment has only those.

    Raises:
        ValueError: it has no such mode, or is a vector environment.
        EnvFault: its own code raised.
    """
    run = saved.plans[0]
    made = _make(saved, mode)
    if not isinstance(made, gym.Env) and not is_agent_world(made):
        made.close()
        raise ValueError(f"{run.env}: expected one environment to watch, received a vector environment; raytrain evaluate plays it without a picture.")
    modes = list((getattr(made, "metadata", None) or {}).get("render_modes") or ())
    given = _mode_of(made)
    if given == mode and (isinstance(made, gym.Env) or not modes or mode in modes):  # Gymnasium has looked into the modes, PettingZoo has not
        return made
    made.close()
    if mode == WINDOW and FRAMES in modes and isinstance(made, gym.Env):
        shown = _make(saved, FRAMES)
        if shown.render_mode == FRAMES:
            return gym.wrappers.HumanRendering(shown)
        shown.close()
    if mode in modes:
        raise ValueError(f"{run.env}: expected render_mode={mode!r} after it was made with that, received {given!r}; set "
                         "self.render_mode = render_mode in its constructor.")
    there = f"it has {', '.join(map(repr, modes))} (metadata['render_modes'])" if modes else "its metadata['render_modes'] has none"
    other = " Or record it: --video FILE.mp4." if mode == WINDOW and FRAMES in modes else ""
    raise ValueError(f"{run.env}: expected an environment with render_mode={mode!r}, and {there}; let its render() draw that and name it there.{other}")


def _mode_of(made: Any) -> str | None:
    """Wrappers of PettingZoo need not hand it on."""
    return getattr(made, "render_mode", None) or getattr(getattr(made, "unwrapped", None), "render_mode", None)


def _make(saved: SavedRun, mode: str) -> Any:
    run = saved.plans[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's about the mode; ours is an error
            return EnvFactory(run.env, {**run.env_kwargs, "render_mode": mode}, run.import_dirs, run.env_options).make()
    except ValueError as error:
        if "no argument 'render_mode'" not in str(error):
            raise
        raise ValueError(f"{run.env}: expected a factory with the argument render_mode, received one without; give it one and pass it on to the "
                         "environment, whose render() then draws.") from None


def check_window() -> None:
    """Refuse a window where there is no screen.

    Raises:
        ValueError: none is named to this process.
    """
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in screens):
        raise ValueError("Expected a screen to play on, found none (DISPLAY and WAYLAND_DISPLAY are not set). Record it instead: --video FILE.mp4.")


def check_video(text: str) -> Path:
    """The file of ``--video``; what would be refused is refused before anything is played.

    Raises:
        ValueError: its name is no video's, its folder does not exist, or MoviePy is missing.
    """
    path = Path(text).expanduser()
    if path.suffix.lower() != SUFFIX:
        raise ValueError(f"Expected --video FILE with a name ending in {SUFFIX}, received {text}.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"Expected --video FILE in a folder that exists, received {text}; make {path.absolute().parent} first.")
    if importlib.util.find_spec("moviepy") is None:
        raise ValueError('Expected the package moviepy for videos, which is not installed; pip install "gymnasium[other]".')
    return path


def video_files(path: Path, episodes: int) -> list[Path]:
    """One file for each episode: `path`, or of several ``name-1.mp4``, ``name-2.mp4``, …"""
    return [path] if episodes == 1 else [path.with_name(f"{path.stem}-{i}{path.suffix}") for i in range(1, episodes + 1)]


def run_command(options: argparse.Namespace) -> int:
    """The command with its parsed arguments; returns the exit code."""
    console = Console()
    try:
        check_what_to_play(options.episodes, options.seed)
        video = None if options.video is None else check_video(options.video)
        if video is None:
            check_window()
        with console.busy(f"loading the policy of {options.run_folder} and making its environment once"):
            saved = load_saved_run(options.run_folder, options.checkpoint, options.env, options.import_dir)
        seed = default_seed(saved) if options.seed is None else options.seed
        return _play(console, saved, options.episodes, seed, options.deterministic, video)
    except (EnvFault, RunFault) as fault:
        console.error(str(fault), getattr(fault, "user_traceback", ""))
        return 1
    except OSError as error:
        console.error(f"Cannot write the video: {error}")
        return 1
    except (ValueError, gym.error.DependencyNotInstalled) as error:
        console.error(str(error))
        return 2


def _play(console: Console, saved: SavedRun, episodes: int, seed: int, deterministic: bool, video: Path | None) -> int:
    made = make_shown(saved, WINDOW if video is None else FRAMES)
    console.message(f"{saved.name} in {saved.config.env}, {MODES[deterministic]} actions, seed {seed}")
    for name, text in saved.shown_parameters.items():
        console.message(f"{name}: {text}")
    is_world = is_agent_world(made)
    if video is None:
        if is_world:
            show_world(saved, made, seed, deterministic, episodes, console.message, None)
        else:
            _show_all(console, Player(saved, made, seed, deterministic), made, episodes)
        return 0
    with tempfile.TemporaryDirectory(dir=video.absolute().parent, prefix=".video-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a folder that exists
        try:
            if is_world:
                show_world(saved, made, seed, deterministic, episodes, console.message, Path(folder))
            else:
                recorder = gym.wrappers.RecordVideo(made, folder, episode_trigger=lambda episode: episode < episodes, disable_logger=True)
                _show_all(console, Player(saved, recorder, seed, deterministic), recorder, episodes)
        finally:  # also what was seen until Ctrl-C or a fault
            for number, file in enumerate(video_files(video, episodes)):
                found = Path(folder) / f"rl-video-episode-{number}{SUFFIX}"
                if found.is_file():
                    os.replace(found, file)
                    console.message(f"saved in {file}")
    return 0


def _show_all(console: Console, player: Player, env: gym.Env, episodes: int) -> None:
    try:
        for number in range(1, episodes + 1):
            episode = player.play()
            console.message(f"episode {number} of {episodes}: return {format_number(episode.episode_return)}, {episode.length:,} steps, {episode.how}")
    finally:
        env.close()
