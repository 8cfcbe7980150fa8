"""Puts the transitions of many agents together from the messages of a world, and steps the same world without us."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envs.base import BatchedEnv
from envs.specs import Actions, DecisionSteps, TerminalSteps
from tests.envs.contract import POLL_S, random_actions


@dataclass
class AgentEpisode:
    """One agent's episode: T rewards, T + 1 observations (T while it runs)."""

    obs: list[dict[str, np.ndarray]] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    end: str = ""
    group_reward: list[float] = field(default_factory=list)
    env_step: list[int] = field(default_factory=list)
    world_episode: int = -1
    group_ended: bool = False


class AgentsAuditor:
    """Answers every message with random allowed actions and checks each against the protocol.

    Attributes:
        episodes: (behavior, slot) -> its episodes, in order.
        actions: env-space choices (first branch) given, in order: (behavior, slot, choice).
        group_returns: behavior -> returns of its groups, in the order of their end.
    """

    def __init__(self, env: BatchedEnv, seed: int = 0, act: Callable[[str, DecisionSteps], Actions] | None = None) -> None:
        self.env, self.rng = env, np.random.default_rng(seed)
        self.episodes: dict[tuple[str, int], list[AgentEpisode]] = {}
        self.waiting: set[tuple[str, int]] = set()
        self.actions: list[tuple[str, int, int]] = []
        self.group_returns: dict[str, list[float]] = {name: [] for name in env.behaviors}
        self.group_ids: dict[tuple[str, int], int] = {}
        self.env_steps = 0
        self._act = act or self._random
        env.reset()

    def run(self, env_steps: int) -> AgentsAuditor:
        """Until `env_steps` steps of the worlds have been made."""
        while self.env_steps < env_steps:
            message = self.env.poll(POLL_S)
            assert message, "nothing happens"
            for behavior, steps in message.items():
                self.env_steps += steps.env_steps
                self._lose(behavior, steps.lost)
                self._end(behavior, steps.terminal)
                self._decide(behavior, steps.decision)
            for behavior, steps in message.items():
                if len(steps.decision):
                    given = self._act(behavior, steps.decision)
                    self.env.act(behavior, steps.decision.agent_id, given)
                    for slot, choice in zip(steps.decision.agent_id.tolist(), given.discrete[:, 0].tolist(), strict=True):
                        self.waiting.remove((behavior, slot))
                        self.actions.append((behavior, slot, choice))
        return self

    def rewards(self, behavior: str, slot: int) -> list[list[float]]:
        """Of every episode of an agent."""
        return [episode.reward for episode in self.episodes[behavior, slot]]

    @property
    def total(self) -> float:
        """All rewards."""
        return sum(sum(e.reward) for episodes in self.episodes.values() for e in episodes)

    @property
    def agent_steps(self) -> int:
        """All transitions."""
        return sum(len(e.reward) for episodes in self.episodes.values() for e in episodes)

    def _random(self, behavior: str, decision: DecisionSteps) -> Actions:
        return random_actions(self.env.behaviors[behavior], len(decision), self.rng, decision.action_mask)

    def _lose(self, behavior: str, lost: np.ndarray | None) -> None:
        for slot in [] if lost is None else lost.tolist():
            assert (behavior, slot) not in self.waiting
            episode = self.episodes[behavior, slot][-1]
            assert not episode.end, "only a running episode is lost"
            episode.end = "lost"

    def _end(self, behavior: str, terminal: TerminalSteps) -> None:
        for row, slot in enumerate(terminal.agent_id.tolist()):
            episode = self.episodes[behavior, slot][-1]
            assert not episode.end, "an episode ends once"
            assert (behavior, slot) not in self.waiting
            assert terminal.terminated[row] != terminal.truncated[row]
            episode.end = "terminated" if terminal.terminated[row] else "truncated"
            episode.reward.append(float(terminal.reward[row]))
            episode.obs.append({name: values[row].copy() for name, values in terminal.obs.items()})
            if terminal.group_id is not None:
                self._note_group((behavior, slot), episode, terminal, row)
                episode.group_reward.append(float(terminal.group_reward[row]))
                episode.group_ended = bool(terminal.group_ended[row])
        if terminal.group_return is not None:
            self.group_returns[behavior] += terminal.group_return.tolist()

    def _note_group(self, key: tuple[str, int], episode: AgentEpisode, steps: DecisionSteps | TerminalSteps, row: int) -> None:
        assert self.group_ids.setdefault(key, int(steps.group_id[row])) == steps.group_id[row], "an agent stays in its group"
        if not episode.env_step:
            episode.world_episode = int(steps.world_episode[row])
        assert episode.world_episode == steps.world_episode[row]
        episode.env_step.append(int(steps.env_step[row]))

    def _decide(self, behavior: str, decision: DecisionSteps) -> None:
        for row, slot in enumerate(decision.agent_id.tolist()):
            episodes = self.episodes.setdefault((behavior, slot), [])
            assert 0 <= slot < self.env.num_slots[behavior]
            assert (behavior, slot) not in self.waiting, "a decision is asked for once"
            if decision.first[row]:
                assert not episodes or episodes[-1].end, "an episode begins after the one before has ended"
                assert decision.reward[row] == 0.0
                assert decision.group_reward is None or decision.group_reward[row] == 0.0
                episodes.append(AgentEpisode())
            else:
                episodes[-1].reward.append(float(decision.reward[row]))
                if decision.group_reward is not None:
                    episodes[-1].group_reward.append(float(decision.group_reward[row]))
            if decision.group_id is not None:
                self._note_group((behavior, slot), episodes[-1], decision, row)
            episodes[-1].obs.append({name: values[row].copy() for name, values in decision.obs.items()})
            self.waiting.add((behavior, slot))


def bare_parallel(world: Any, seed: int, actions: list[tuple[str, int]]) -> dict[str, list[AgentEpisode]]:
    """What a plain loop over a ParallelEnv sees with `actions` (agent, action), where all agents act until all end."""
    episodes: dict[str, list[AgentEpisode]] = {agent: [] for agent in world.possible_agents}
    queue, first_seed = list(actions), seed
    while queue:
        observations, _ = world.reset(seed=first_seed)
        first_seed = None
        for agent, obs in observations.items():
            episodes[agent].append(AgentEpisode([{"obs": obs}]))
        while world.agents and queue:
            given = dict(queue[: len(world.agents)])
            del queue[: len(world.agents)]
            observations, rewards, terminations, truncations, _ = world.step(given)
            for agent in given:
                episode = episodes[agent][-1]
                episode.obs.append({"obs": observations[agent]})
                episode.reward.append(float(np.float32(rewards[agent])))
                episode.end = "terminated" if terminations[agent] else "truncated" if truncations[agent] else ""
    return episodes


def bare_aec(world: Any, seed: int, actions: list[tuple[str, int]]) -> dict[str, list[AgentEpisode]]:
    """What a plain ``agent_iter`` loop over an AECEnv sees with `actions` (agent, action)."""
    episodes: dict[str, list[AgentEpisode]] = {agent: [] for agent in world.possible_agents}
    queue, first_seed = list(actions), seed
    while queue:
        world.reset(seed=first_seed)
        first_seed, fresh = None, set(world.possible_agents)
        for agent in world.agent_iter():
            obs, reward, terminated, truncated, _ = world.last()
            dead = terminated or truncated
            if not dead and not queue:
                return episodes
            if agent in fresh:
                fresh.remove(agent)
                episodes[agent].append(AgentEpisode())
            else:
                episodes[agent][-1].reward.append(float(reward))
            episodes[agent][-1].obs.append({"obs": obs} if not isinstance(obs, dict) else {"observation": obs["observation"]})
            if dead:
                episodes[agent][-1].end = "terminated" if terminated else "truncated"
                world.step(None)
            else:
                expected, action = queue.pop(0)
                assert expected == agent
                world.step(action)
    return episodes


def check_same(ours: list[AgentEpisode], bare: list[AgentEpisode]) -> None:
    """Observations, rewards and ends are equal, up to what the shorter of the two has seen of the last episode."""
    assert ours
    assert abs(len(ours) - len(bare)) <= 1
    for ours_now, bare_now in zip(ours, bare, strict=False):
        if ours_now.end and bare_now.end:
            assert (ours_now.end, len(ours_now.reward)) == (bare_now.end, len(bare_now.reward))
        for one, other in zip(ours_now.reward, bare_now.reward, strict=False):
            assert one == np.float32(other)
        for one, other in zip(ours_now.obs, bare_now.obs, strict=False):
            for name in one:
                np.testing.assert_array_equal(one[name], np.asarray(other[name]).astype(one[name].dtype))
