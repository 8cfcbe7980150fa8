"""A world of several agents is watched: every behavior acts with its policy, and the world draws itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envs.agent_episode import AgentDecision
from envs.agent_world import AgentWorld
from envs.factories import EnvFactory
from envs.faults import env_fault
from envs.opened import open_env
from envs.specs import env_action_rows, to_env_actions
from raytrain.checks import agent_patterns, group_patterns
from raytrain.saved_run import SavedRun
from raytrain.shown import Shown, saved_policy
from raytrain.summary_line import format_number

_NAMED = 8  # agents whose returns are told one by one
_FPS = 15  # of a world that does not say


@dataclass(frozen=True)
class WorldEpisode:
    """One that was shown.

    Attributes:
        returns: behavior -> agent -> return; an agent that did not act is not there.
        length: steps of the world; in one whose agents act in turn, each agent's is one.
    """

    returns: dict[str, dict[str, float]]
    length: int

    def __str__(self) -> str:
        each = {agent: total for own in self.returns.values() for agent, total in own.items()}
        if len(each) <= _NAMED:
            told = [f"{agent} {format_number(total)}" for agent, total in each.items()]
        else:
            told = [f"{name} {format_number(float(np.mean(list(own.values()))))} (mean of {len(own)} agents)" for name, own in self.returns.items() if own]
        return f"{self.length:,} steps; returns: {', '.join(told)}"


class WorldPlayer:
    """Lets policies act in one world that is shown.

    Args:
        made: the world.
    """

    def __init__(self, saved: SavedRun, made: Any, seed: int, deterministic: bool) -> None:
        run = saved.plans[0]
        self._plans = {plan.behavior: plan for plan in saved.plans}
        self._policies = {name: saved_policy(saved, plan) for name, plan in self._plans.items()}
        masked = [name for name, plan in self._plans.items() if plan.spec.action.masked]
        factory = EnvFactory(run.env, options=run.env_options, masked=masked, agents=agent_patterns(saved.config.behaviors),
                             groups=group_patterns(saved.config.behaviors))
        world = open_env(factory, made)
        assert isinstance(world, AgentWorld)
        self._shown, self._deterministic = Shown(world, saved, seed), deterministic
        self._place = {agent: (name, index) for name, agents in world.spec.agents.items() for index, agent in enumerate(agents)}

    def play(self) -> WorldEpisode:
        """One whole episode of the world.

        Raises:
            EnvFault: the world failed.
        """
        returns: dict[str, dict[str, float]] = {name: {} for name in self._plans}
        length, outcome = 0, self._shown.begin()
        while True:
            command = self._actions(outcome.decisions)
            for agent in command:
                name, _ = self._place[agent]
                returns[name].setdefault(agent, 0.0)
            outcome = self._shown.step(command, length + 1)
            length += outcome.steps
            # A first decision has no reward, and where the world has begun anew all others are of that.
            paid = [*outcome.ends, *([] if outcome.first else [decision for decision in outcome.decisions if not decision.first])]
            for one in paid:
                returns[self._place[one.agent][0]][one.agent] += one.reward
            if outcome.first:
                return WorldEpisode(returns, length)

    def _actions(self, decisions: Sequence[AgentDecision]) -> dict[str, Any]:
        """What each agent does, by its behavior's policy."""
        command = {}
        for name, plan in self._plans.items():
            own = [decision for decision in decisions if self._place[decision.agent][0] == name]
            if not own:
                continue
            spec = plan.spec.action
            batch = {o.name: np.stack([decision.obs[o.name] for decision in own]) for o in plan.spec.observations}
            mask = np.stack([decision.action_mask for decision in own]) if spec.masked else None
            output = self._policies[name].act(
                batch, self._shown.rng, self._deterministic, mask, with_entropy=False, agent_id=np.array([self._place[d.agent][1] for d in own]),
                first=np.array([decision.first for decision in own]))
            command |= zip([decision.agent for decision in own], env_action_rows(spec, to_env_actions(spec, output.actions)), strict=True)
        return command


class Film:
    """Takes a picture of a world after each reset and each step.

    Attributes:
        reels: the pictures of each episode that was begun.

    Raises:
        ValueError: it gives no pictures.
        EnvFault: its own code raised.
    """

    def __init__(self, world: Any, env: str) -> None:
        try:
            world.reset()
            frame = world.render()
        except Exception as error:
            raise env_fault(error, "in render()") from error
        if not (isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.shape[2] == 3):
            what = f"{frame.dtype} {list(frame.shape)}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise ValueError(f"{env}: expected a frame, uint8 [height, width, 3], of render() with render_mode='rgb_array', received {what}; return one there.")
        self._world = world
        self.reels: list[list[np.ndarray]] = []
        self._reset, self._step = world.reset, world.step
        world.reset, world.step = self._filmed_reset, self._filmed_step

    def _filmed_reset(self, *args: Any, **kwargs: Any) -> Any:
        given = self._reset(*args, **kwargs)
        self.reels.append([])
        self._take()
        return given

    def _filmed_step(self, *args: Any, **kwargs: Any) -> Any:
        given = self._step(*args, **kwargs)
        self._take()
        return given

    def _take(self) -> None:
        self.reels[-1].append(np.array(self._world.render(), np.uint8))

    def save(self, folder: Path, number: int) -> None:
        """Write the reel of an episode, counted from 0, as Gymnasium's `RecordVideo` names it."""
        from gymnasium.utils.save_video import save_video  # needs MoviePy, which not everybody has

        metadata = getattr(self._world, "metadata", None) or {}
        save_video(self.reels[number], str(folder), episode_trigger=lambda _: True, fps=metadata.get("render_fps") or _FPS, episode_index=number)
        self.reels[number] = []


def show_world(saved: SavedRun, made: Any, seed: int, deterministic: bool, episodes: int, tell: Callable[[str], None], folder: Path | None) -> None:
    """Play whole episodes of a world, which is closed at the end.

    Args:
        tell: given a line for each.
        folder: where the videos go; None where the world opens a window itself.

    Raises:
        ValueError: it gives no pictures.
        EnvFault: the world failed.
    """
    film, saved_reels = None, 0
    try:
        film = None if folder is None else Film(made, saved.config.env)
        player = WorldPlayer(saved, made, seed, deterministic)
        for number in range(1, episodes + 1):
            episode = player.play()
            tell(f"episode {number} of {episodes}: {episode}")
            if film is not None:
                film.save(folder, number - 1)
                saved_reels = number
    finally:
        if film is not None and saved_reels < len(film.reels) and saved_reels < episodes and film.reels[saved_reels]:
            film.save(folder, saved_reels)  # what was seen until Ctrl-C or a fault
        try:
            made.close()
        except Exception as error:
            raise env_fault(error, "in close()") from error
