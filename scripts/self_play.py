#!/usr/bin/env python
"""Judge the policies of finished runs in games: ``python scripts/self_play.py tictactoe RUN [RUN …] --json FILE``.

``tictactoe``     against random and perfect play, and in every game that the policy, not sampled, can come into
``connect-four``  against random play
``league``        all snapshots of self-play (without it: checkpoints) against one another, in the run's own world, with ratings;
                  ``--limit 2``: the newest against the first
``spread``        the mean return beside that of random agents, in the run's own world

RUN is a run folder or one of its checkpoints. Figures of several runs, games and days gather in the JSON file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):  # before NumPy is loaded
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import machine
import numpy as np
from games.league import INITIAL_RATING, Entrant, fit_elo, play_league
from games.play import COPIES, Arena, Player, assign_teams, results
from games.players import policy_player, random_player
from games.tictactoe import all_lines, perfect_player, policy_moves
from rich.console import Console
from rich.table import Table

from envs.agent_behaviors import assign_agents
from envs.base import EnvFault
from envs.specs import EnvProbe
from raytrain import LoadedPolicy, load_policy, load_snapshots
from raytrain.checkpoint import CheckpointStore, find_checkpoint
from raytrain.checks import agent_patterns
from raytrain.config import load_config
from raytrain.record import CONFIGURATION, World, configuration_file
from raytrain.settings import RunConfig
from raytrain.teams import teams_of

CLASSIC = {"tictactoe": "pettingzoo.classic.tictactoe_v3:env", "connect-four": "pettingzoo.classic.connect_four_v3:env"}
MODES = {"most likely": True, "sampled": False}
"""How a policy plays -> whether deterministic."""

console = Console()


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, games in (("tictactoe", 2000), ("connect-four", 1000), ("league", 200), ("spread", 200)):
        command = commands.add_parser(name)
        command.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder, or a checkpoint in it")
        command.add_argument("--games", type=int, default=games, help="of each comparison, both sides together (default: %(default)s)")
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--json", type=Path, metavar="FILE", help="add the figures to this file")
        command.add_argument("--behavior", help="whose policies (default: the only one; spread and league: all)")
        command.add_argument("--which", choices=("latest", "best"), default="latest", help="checkpoint of a run (default: %(default)s)")
        if name == "league":
            command.add_argument("--team", action="append", default=[], metavar="PATTERN", help="names of a team's agents; once for each team "
                                 "(default: those of the run)")
            command.add_argument("--limit", type=int, default=10, help="policies of a run, the first and the last among them (default: %(default)s)")
            command.add_argument("--most-likely", action="store_true", help="policies play their most likely actions (default: samples, as in "
                                 "training; without them games between the same two may all be the same)")
            command.add_argument("--anchor", choices=("mean", "first"), default="mean", help=f"whose rating is {INITIAL_RATING:g} (default: %(default)s)")
    options = parser.parse_args(words)
    judges = {"tictactoe": judge_classic, "connect-four": judge_classic, "league": judge_league, "spread": judge_returns}
    try:
        if options.games < 2:
            raise ValueError(f"Expected --games of at least 2, received {options.games}.")
        figures = judges[options.command](options)
    except EnvFault as fault:
        console.print(str(fault), style="red", markup=False)
        return 1
    except ValueError as error:  # CheckpointError and ConfigError are ValueErrors
        console.print(str(error), style="red", markup=False)
        return 2
    if options.json is not None:
        data = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
        made = {"date": machine.today(), "games": options.games, "seed": options.seed}
        data |= machine.describe(("numpy", "gymnasium", "pettingzoo"))
        data.setdefault(options.command, {}).update({name: made | found for name, found in figures.items()})
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


# -- tic-tac-toe and connect-four ------------------------------------------------------------------------------------------


def judge_classic(options: argparse.Namespace) -> dict[str, Any]:
    """Run -> its games against random and, in tic-tac-toe, perfect play; as a table and as plain data."""
    world = World(CLASSIC[options.command])
    opponents: dict[str, Player] = {"random": random_player}
    if options.command == "tictactoe":
        opponents["perfect"] = perfect_player
    table = Table("run", "plays", "against", "side", "won", "drawn", "lost", "games", title=options.command)
    figures = {}
    with Arena(world, min(COPIES, options.games // 2)) as arena:
        for run in options.runs:
            loaded = load_policy(run, options.behavior, options.which)
            rows = [row for mode, deterministic in MODES.items() for opponent, other in opponents.items()
                    for row in both_sides(arena, policy_player(loaded, world.env, deterministic), other, options.games, options.seed, mode, opponent)]
            figures[run_name(run)] = {"agent_steps": loaded.agent_steps, "results": rows}
            for row in rows:
                shares = (f"{row[key] / row['games']:.1%}" for key in ("won", "drawn", "lost"))
                table.add_row(run_name(run), row["plays"], row["against"], row["side"], *shares, f"{row['games']:,}")
            if options.command == "tictactoe":
                lines = {side: all_lines(policy_moves(loaded), side == "first")._asdict() for side in ("first", "second")}
                figures[run_name(run)]["all_lines"] = lines
                for side, line in lines.items():
                    table.add_row(run_name(run), "most likely", "every reply", side, *map(str, line.values()), f"{sum(line.values()):,}")
    console.print(table)
    return figures


def both_sides(arena: Arena, player: Player, other: Player, games: int, seed: int, mode: str, opponent: str) -> list[dict[str, Any]]:
    """How `player` does, half of the games each as the first and as the second of two agents."""
    first, second = arena.specs
    rows = []
    for side, own in (("first", first), ("second", second)):
        players = {first: other, second: other} | {own: player}
        result = results(arena.play(players, games // 2, seed), {own: (own,)})[own]
        won, drawn, lost = (int(np.count_nonzero(result == sign)) for sign in (1, 0, -1))
        rows.append({"plays": mode, "against": opponent, "side": side, "won": won, "drawn": drawn, "lost": lost, "games": len(result)})
    return rows


# -- any world ---------------------------------------------------------------------------------------------------------------


def judge_league(options: argparse.Namespace) -> dict[str, Any]:
    """One league of the policies of all runs: a table for people, and as plain data."""
    world, patterns, config = trained_in(options.runs[0])
    with Arena(world, min(COPIES, options.games), groups_of(config)) as arena:
        behavior_of = by_agent(arena, patterns)
        own = {} if options.team else sides(config, arena, behavior_of)
        teams = own or assign_teams(list(arena.specs), options.team)
        behaviors = [options.behavior] if options.behavior else list(dict.fromkeys(behavior_of.values()))
        entrants = [
            Entrant(f"{behavior} {name}" if len(behaviors) > 1 else name, behavior, policy_player(loaded, world.env, options.most_likely))
            for behavior in behaviors for run in options.runs for name, loaded in policies_of(run, behavior, options.limit)
        ]
        with console.status("") as status:
            league = play_league(arena, teams, behavior_of, entrants, options.games, options.seed,
                                 lambda done, pairs: status.update(f"{done} of {pairs} pairs have played"))
    ratings = fit_elo(league.points, league.games, anchor=0 if options.anchor == "first" else None)
    return {" ".join(map(run_name, options.runs)): print_league(world.env, [e.name for e in entrants], ratings, league.points, league.games)
            | {key: counts.astype(int).tolist() for key, counts in league._asdict().items()}}


def print_league(title: str, names: Sequence[str], ratings: np.ndarray, points: np.ndarray, games: np.ndarray) -> dict[str, Any]:
    """The table, in the order of the entrants, and the facts of it as plain data. What pairs did is left out where it does not fit."""
    pairs = len(names) if 30 + max(map(len, names)) + 7 * len(names) <= console.width else 0
    table = Table(title=title, caption="points of the row against the column" if pairs else None)
    for header in ("", "policy", "Elo", "points", *map(str, range(1, pairs + 1))):
        table.add_column(header, no_wrap=True)
    for i, name in enumerate(names):
        cells = [f"{points[i, j] / games[i, j]:.0%}" if games[i, j] else "–" for j in range(pairs)]
        total = f"{points[i].sum() / games[i].sum():.1%}" if games[i].any() else "–"
        table.add_row(str(i + 1), name, f"{ratings[i]:.0f}", total, *cells)
    console.print(table)
    return {"policies": list(names), "elo": [round(float(r), 1) for r in ratings], "points": points.tolist()}


def judge_returns(options: argparse.Namespace) -> dict[str, Any]:
    """Run -> returns of episodes, mean over the agents, beside those of random agents in the same world; as a table and as plain data."""
    table = Table("run", "plays", "mean return of an agent", "std", "episodes", title="returns")
    figures = {}
    for run in options.runs:
        world, patterns, config = trained_in(run)
        with Arena(world, min(COPIES, options.games), groups_of(config)) as arena:
            behavior_of = by_agent(arena, patterns)
            loaded = {behavior: load_policy(run, behavior, options.which) for behavior in set(behavior_of.values())}
            own = set(loaded) if options.behavior is None else {options.behavior}
            if not own <= set(loaded):
                raise ValueError(f"Expected --behavior to be one of {', '.join(sorted(loaded))}, received {options.behavior}.")
            figures[run_name(run)] = {"agent_steps": {behavior: loaded[behavior].agent_steps for behavior in sorted(own)}}
            ways = {"random": None, **MODES}
            for mode, deterministic in ways.items():
                # With --behavior the others play their trained policies, sampled, whoever is judged.
                players = {agent: random_player if deterministic is None and behavior in own else
                           policy_player(loaded[behavior], world.env, bool(deterministic) and behavior in own)
                           for agent, behavior in behavior_of.items()}
                games = arena.play(players, options.games, options.seed)
                judged = [agent for agent, behavior in behavior_of.items() if behavior in own]
                returns = [mean(game.total.get(agent, 0.0) for agent in judged) for game in games]
                figures[run_name(run)][mode] = {"mean": round(mean(returns), 3), "std": round(stdev(returns), 3)}
                table.add_row(run_name(run), mode, f"{mean(returns):.2f}", f"{stdev(returns):.2f}", f"{len(returns):,}")
    console.print(table)
    return figures


# -- runs ----------------------------------------------------------------------------------------------------------------------


def run_name(path: Path) -> str:
    """Short name of a run or checkpoint folder."""
    path = path.expanduser().absolute()
    return f"{path.parents[1].name}/{path.name}" if path.parent.name == "checkpoints" else path.name


def trained_in(path: Path) -> tuple[World, dict[str, Sequence[str]], RunConfig]:
    """The world of a run or checkpoint, behavior -> patterns of its agents (the only one: without any), and all of its configuration."""
    file = configuration_file(path)
    if file is None:
        raise ValueError(f"Expected {CONFIGURATION} in the run folder of {path}, found none.")
    config = load_config(file)
    return World.of_file(file), dict(agent_patterns(config.behaviors)) or dict.fromkeys(config.behaviors, ()), config


def groups_of(config: RunConfig) -> dict[str, list[str]]:
    """Group -> patterns of its agents, of all behaviors. Says so where games are played with other parameters than in training."""
    if config.environment_parameters:
        console.print(f"played with the world's own values of {', '.join(config.environment_parameters)}, not those of training", style="yellow")
    groups: dict[str, list[str]] = {}
    for settings in config.behaviors.values():
        for group, patterns in getattr(settings, "groups", {}).items():
            groups.setdefault(group, []).extend(patterns)
    return groups


def sides(config: RunConfig, arena: Arena, behavior_of: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Team of self-play -> its agents; empty where the run had none."""
    agents = {behavior: tuple(a for a, own in behavior_of.items() if own == behavior) for behavior in dict.fromkeys(behavior_of.values())}
    teams = teams_of(config, EnvProbe({behavior: arena.specs[own[0]] for behavior, own in agents.items()}, agents))
    numbers = {agent: team for behavior, own in teams.items() for agent, team in zip(agents[behavior], own, strict=True)}
    return {f"team {team}": tuple(a for a, number in numbers.items() if number == team) for team in sorted(set(numbers.values()))}


def by_agent(arena: Arena, patterns: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Agent -> its behavior."""
    own = {behavior: given for behavior, given in patterns.items() if given}
    assigned = assign_agents(list(arena.specs), own, next(iter(patterns)))
    return {agent: behavior for behavior, agents in assigned.items() for agent in agents}


def policies_of(path: Path, behavior: str, limit: int) -> list[tuple[str, LoadedPolicy]]:
    """(name, policy), oldest first, at most `limit` of them: the snapshots of self-play and the newest policy, or the checkpoints of a run."""
    if trained_in(path)[2].behaviors[behavior].self_play is not None:
        loaded = [(one.agent_steps, one.policy) for one in load_snapshots(path, behavior)]
        newest = load_policy(path, behavior, "latest")
        loaded += [(newest.agent_steps, newest)]
        return [(f"{run_name(path).partition('/')[0]} {steps:,}", policy) for steps, policy in evenly(loaded, limit)]
    folders = CheckpointStore(path.expanduser(), keep=1).paths() or [find_checkpoint(path)]
    loaded = [load_policy(folder, behavior) for folder in evenly(folders, limit)]
    return [(f"{run_name(path).partition('/')[0]} {policy.agent_steps:,}", policy) for policy in loaded]


def evenly(items: Sequence[Any], limit: int) -> list[Any]:
    """At most `limit` of `items`, the last one and (with two or more) the first one among them."""
    if len(items) <= limit:
        return list(items)
    return [items[round(i)] for i in np.linspace(len(items) - 1, 0, limit)[::-1]]


if __name__ == "__main__":
    raise SystemExit(main())
