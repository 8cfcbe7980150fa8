"""Whole games in a PettingZoo world, many at once, between whatever players there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from typing import NamedTuple, Self

import numpy as np

from envs.agent_behaviors import is_agent_world, possible_agents
from envs.agent_names import fits
from envs.agent_world import AgentDecision, AgentWorld, WorldOutcome
from envs.base import EnvFault
from envs.gymnasium_env import probe_env
from envs.opened import open_env
from envs.seeding import env_seeds
from envs.single_env import Reset
from envs.specs import Actions, BehaviorSpec, EnvAction, Observations, env_action_rows, to_env_actions
from raytrain.record import World

COPIES = 64
"""Games that are played at once, at most."""


@dataclass(frozen=True)
class Turn:
    """The same agent in n games, all of which wait for its action.

    Attributes:
        spec: what it observes and does.
        obs: name -> ``[n, *shape]``.
        action_mask: bool ``[n, W]``, True = allowed; None where the world has no masks.
        first: bool ``[n]``, its first decision of an episode.
        slot: int64 ``[n]``, for a player that remembers: never that of another agent or of another game that goes on now.
    """

    spec: BehaviorSpec
    obs: Observations
    action_mask: np.ndarray | None
    first: np.ndarray
    slot: np.ndarray


Player = Callable[[Turn, np.random.Generator], Actions]
"""Policy-space actions of n agents; what it draws, it draws from the generator."""


class Game(NamedTuple):
    """What a game brought its agents: agent -> reward. An agent that never acted is in neither.

    Attributes:
        last: what followed the agent's last decision of the game.
        total: sum of all.
    """

    last: dict[str, float]
    total: dict[str, float]


@dataclass
class _Table:
    """A world and the game that goes on in it."""

    world: AgentWorld
    index: int
    number: int = 0
    steps: int = 0
    waiting: list[AgentDecision] = field(default_factory=list)
    last: dict[str, float] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)

    def begin(self, number: int, root: np.random.SeedSequence) -> None:
        """A new game with seeds of its own, so that it does not depend on the table at which it is played."""
        self.number, self.steps, self.last, self.total = number, 0, {}, {}
        self.waiting = self._run(Reset(env_seeds(root, number, 0))).decisions

    def go_on(self, actions: dict[str, EnvAction]) -> Game | None:
        """Make a step; the game's result when it is over."""
        self.steps += 1
        outcome = self._run(actions)
        for end in outcome.ends:
            self._account(end.agent, end.reward + end.group_reward)
            self.last[end.agent] = end.reward + end.group_reward
        if outcome.first:
            return Game(self.last, self.total)
        for decision in outcome.decisions:
            self._account(decision.agent, decision.reward + decision.group_reward)
        self.waiting = outcome.decisions
        return None

    def _account(self, agent: str, reward: float) -> None:
        self.total[agent] = self.total.get(agent, 0.0) + reward

    def _run(self, command: Reset | dict[str, EnvAction]) -> WorldOutcome:
        outcome = self.world.run(command)
        if isinstance(outcome, EnvFault):
            raise outcome.located(self.index, self.number, self.steps, None if isinstance(command, Reset) else str(command))
        return outcome


class Arena:
    """Copies of a world to play in, made once.

    Args:
        world: a world of PettingZoo.
        copies: games that go on at once; the results do not depend on it, but for players that draw.
        groups: group -> patterns of the names of its agents, in worlds that pay groups; what a member gets with its group is its own, too.

    Attributes:
        specs: agent -> what it observes and does.

    Raises:
        ValueError: it is no world of many agents, or cannot be made.
        EnvFault: its own code raised.
    """

    def __init__(self, world: World, copies: int = COPIES, groups: Mapping[str, Sequence[str]] | None = None) -> None:
        factory = world.factory()
        made = factory.make()
        if not is_agent_world(made):
            raise ValueError(f"{world.env}: expected a world of PettingZoo, with several agents to play, received {type(made).__name__}.")
        names = list(possible_agents(made, world.env))
        made.close()
        own = {name: (escape(name),) for name in names}  # each agent is a behavior, so that agents may have different spaces
        self.name = world.env
        self.specs = probe_env(world.env, world.kwargs, world.import_dirs, world.options, agents=own).behaviors
        masked = tuple(name for name, spec in self.specs.items() if spec.action.masked)
        members = {name: {group: own[name] for group, patterns in (groups or {}).items() if fits(name, patterns)} for name in names}
        factory = replace(factory, agents=own, masked=masked, groups={name: given for name, given in members.items() if given})
        self._tables = [_Table(open_env(factory), index) for index in range(copies)]
        self._order = {name: index for index, name in enumerate(names)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for table in self._tables:
            table.world.close()

    def play(self, players: Mapping[str, Player], games: int, seed: int) -> list[Game]:
        """Let the players play, and return the games in their order.

        Args:
            players: agent -> who plays it.
            games: how many.
            seed: of the worlds and of what players draw: with the same one everything is the same.

        Raises:
            ValueError: an agent without a player.
            EnvFault: the world's own code raised.
        """
        if set(players) != set(self._order):
            raise ValueError(f"{self.name}: expected a player for each of {', '.join(self._order)}, received some for {', '.join(players) or 'none'}.")
        root, draws = np.random.SeedSequence(seed).spawn(2)
        rng, done, begun = np.random.default_rng(draws), {}, min(games, len(self._tables))
        busy = self._tables[:begun]
        for number, table in enumerate(busy):
            table.begin(number, root)
        while busy:
            actions = self._decide(busy, players, rng)
            still = []
            for table in busy:
                game = table.go_on(actions[table.index])
                if game is not None:
                    done[table.number] = game
                    if begun == games:
                        continue
                    table.begin(begun, root)
                    begun += 1
                still.append(table)
            busy = still
        return [done[number] for number in range(games)]

    def _decide(self, busy: Sequence[_Table], players: Mapping[str, Player], rng: np.random.Generator) -> dict[int, dict[str, EnvAction]]:
        """Table -> agent -> action, with one question to the player of each agent."""
        by_agent: dict[str, list[tuple[int, AgentDecision]]] = {}
        for table in busy:
            for decision in table.waiting:
                by_agent.setdefault(decision.agent, []).append((table.index, decision))
        actions: dict[int, dict[str, EnvAction]] = {table.index: {} for table in busy}
        for agent in sorted(by_agent, key=self._order.__getitem__):
            asked, spec = by_agent[agent], self.specs[agent]
            seen = [decision for _, decision in asked]
            slots = np.array([index for index, _ in asked], np.int64) * len(self._order) + self._order[agent]
            turn = Turn(spec, {o.name: np.stack([d.obs[o.name] for d in seen]) for o in spec.observations},
                        np.stack([d.action_mask for d in seen]) if spec.action.masked else None, np.array([d.first for d in seen]), slots)
            rows = env_action_rows(spec.action, to_env_actions(spec.action, players[agent](turn, rng)))
            for (index, _), action in zip(asked, rows, strict=True):
                actions[index][agent] = action
        return actions


def play(world: World, players: Mapping[str, Player], games: int, seed: int) -> list[Game]:
    """`Arena.play` in an arena of its own."""
    with Arena(world, min(games, COPIES)) as arena:
        return arena.play(players, games, seed)


def assign_teams(agents: Sequence[str], patterns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Team -> its agents.

    Args:
        patterns: of agent names, one for each team and also its name. Without any, each agent is a team.

    Raises:
        ValueError: an agent that is in no team or in several; a team without an agent; fewer than two teams.
    """
    teams = {pattern: tuple(agent for agent in agents if fits(agent, (pattern,))) for pattern in patterns}
    if not patterns:
        teams = {agent: (agent,) for agent in agents}
    members = sorted(agent for own in teams.values() for agent in own)
    if members != sorted(agents) or len(teams) < 2 or not all(teams.values()):
        shown = "; ".join(f"{team}: {', '.join(own) or 'nobody'}" for team, own in teams.items())
        raise ValueError(f"Expected two or more teams that share the agents {', '.join(agents)} out between them, received {shown}. Give a "
                         "pattern of agent names for each team, such as --team 'hunter_*' --team runner.")
    return teams


def team_rewards(games: Sequence[Game], teams: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """Team -> float64 ``[games]``: sum of the last rewards of its agents."""
    # Halves and thirds of a point may sum up to 0 but for rounding.
    return {team: np.round([sum(game.last.get(agent, 0.0) for agent in own) for game in games], 9) for team, own in teams.items()}


def results(games: Sequence[Game], teams: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """Team -> int64 ``[games]``: 1 for a game won, 0 drawn, -1 lost, by the sign of its `team_rewards`."""
    return {team: np.sign(rewards).astype(np.int64) for team, rewards in team_rewards(games, teams).items()}
