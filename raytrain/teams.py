"""Which team each agent is on under self-play; every mistake is named before anything starts."""

from __future__ import annotations

from collections.abc import Mapping

from envs.agent_names import fits
from envs.specs import EnvProbe
from raytrain.checks import behavior_problem
from raytrain.errors import ConfigError
from raytrain.settings import RunConfig
from trainers.settings import BehaviorSettings


def teams_of(config: RunConfig, found: EnvProbe) -> dict[str, tuple[int, ...]]:
    """Behavior -> team of each of its agents in one world, in their order; behaviors with ``self_play`` only.

    Without the key ``team`` the agents of the only behavior of self-play are teams of their own, and of several behaviors each is one.

    Raises:
        ConfigError: fewer than two teams, an agent without one, a pattern that fits none, or ``team`` for some of the behaviors only.
    """
    settings = {behavior: config.behaviors[behavior] for behavior in found.behaviors}
    playing = {b: s for b, s in settings.items() if isinstance(s, BehaviorSettings) and s.self_play is not None}
    if not playing:
        return {}
    if config.evaluation is not None:
        message = (
            f"expected evaluation without self_play, since {', '.join(playing)} would be evaluated against itself, which says nothing of its "
            "strength; remove it: best/ then goes by the rating")
        raise ConfigError([config.document.problem(("evaluation",), config.evaluation.episodes, message)], config.document.name)
    given = [behavior for behavior, own in playing.items() if own.team is not None]
    without = [behavior for behavior in playing if behavior not in given]
    if given and without:
        raise _error(config, without[0], ("team",), None, (
            f"expected a team for every behavior with self_play, since {', '.join(given)} has one; received none for {', '.join(without)}"))
    if given:
        teams = {behavior: _teams(config, behavior, own.team, found.agents[behavior]) for behavior, own in playing.items()}
    elif len(playing) == 1:
        teams = {behavior: tuple(range(len(found.agents[behavior]))) for behavior in playing}
    else:
        teams = {behavior: (number,) * len(found.agents[behavior]) for number, behavior in enumerate(playing)}
    different = {team for own in teams.values() for team in own}
    if len(different) < 2:
        behavior = next(iter(playing))
        agents = [agent for own in playing for agent in found.agents[own]]
        if not agents:
            what = f"{config.env} has one agent alone; remove self_play"
        else:
            what = f"received one team of {', '.join(agents)}; {_example(list(playing), agents)}, or remove self_play"
        raise _error(config, behavior, ("self_play",), None, f"expected agents of at least two teams to play against one another: {what}")
    return teams


def _example(behaviors: list[str], agents: list[str]) -> str:
    if len(behaviors) > 1:
        return f"give {behaviors[1]} another one: behaviors.{behaviors[1]}.team: 1"
    return "give sides by team: {" + ", ".join(f"{agent}: {place % 2}" for place, agent in enumerate(agents[:2])) + "}"


def _teams(config: RunConfig, behavior: str, team: int | Mapping[str, int], agents: tuple[str, ...]) -> tuple[int, ...]:
    if isinstance(team, int):
        return (team,) * len(agents)
    unused = [pattern for pattern in team if not any(fits(agent, (pattern,)) for agent in agents)]
    if unused:
        raise _error(config, behavior, ("team", unused[0]), team[unused[0]], (
            f"expected a name or pattern of the agents of {behavior} ({', '.join(agents)}), received {unused[0]}"))
    found = []
    for agent in agents:
        numbers = {number for pattern, number in team.items() if fits(agent, (pattern,))}
        if len(numbers) != 1:
            received = f"{len(numbers)}: {', '.join(map(str, sorted(numbers)))}" if numbers else "none"
            raise _error(config, behavior, ("team",), dict(team), (
                f"expected one team for each of {', '.join(agents)}, received {received} for {agent}; let exactly one name or pattern fit it"))
        found.append(numbers.pop())
    return tuple(found)


def _error(config: RunConfig, behavior: str, keys: tuple[str, ...], value: object, message: str) -> ConfigError:
    return ConfigError([behavior_problem(config, behavior, keys, value, message)], config.document.name)
