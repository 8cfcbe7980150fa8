"""A league: everyone against everyone, and ratings that fit the whole table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from games.play import Arena, Player, team_rewards

INITIAL_RATING = 1200.0
PRIOR_GAMES = 1.0
"""Drawn games added to every pair that played, so that one who wins all of them has a finite rating."""
_SCALE = np.log(10.0) / 400.0


@dataclass(frozen=True)
class Entrant:
    """One who plays in the league.

    Attributes:
        name: unique.
        behavior: of the agents that it can play.
        player: its moves.
    """

    name: str
    behavior: str
    player: Player


class League(NamedTuple):
    """The table, all float64 ``[n, n]``: what the one of the row had in games against the one of the column."""

    won: np.ndarray
    drawn: np.ndarray
    lost: np.ndarray

    @property
    def games(self) -> np.ndarray:
        """How many."""
        return self.won + self.drawn + self.lost

    @property
    def points(self) -> np.ndarray:
        """One for a game won, one half for a draw."""
        return self.won + 0.5 * self.drawn


def play_league(
    arena: Arena, teams: Mapping[str, Sequence[str]], behavior_of: Mapping[str, str], entrants: Sequence[Entrant], games: int, seed: int,
    after_pair: Callable[[int, int], None] = lambda done, pairs: None,
) -> League:
    """Every two entrants that can sit opposite each other, on both sides where they can. The team with the greater last rewards wins.

    Args:
        teams: team -> its agents; two of them.
        behavior_of: agent -> its behavior; all of a team have the same.
        games: of each pair, halved between the sides where they change them.
        after_pair: told how many of how many pairs are done.

    Raises:
        ValueError: another number of teams, a team of several behaviors, or no two entrants that could play each other.
    """
    if len(teams) != 2:
        raise ValueError(f"Expected two teams for a league, received {len(teams)}: {', '.join(teams)}. Put agents together with --team.")
    sides = []
    for team, own in teams.items():
        behaviors = {behavior_of[agent] for agent in own}
        if len(behaviors) > 1:
            raise ValueError(f"Expected one behavior for all agents of the team {team}, received {', '.join(sorted(behaviors))}.")
        sides.append(behaviors.pop())
    seats = [(i, j) for i, one in enumerate(entrants) for j, other in enumerate(entrants)
             if i != j and [one.behavior, other.behavior] == sides]
    if not seats:
        raise ValueError(f"Expected two policies or more to play {' against '.join(sides)}, received {len(entrants)}: "
                         f"{', '.join(e.name for e in entrants) or 'none'}.")
    table = League(*(np.zeros((len(entrants), len(entrants))) for _ in League._fields))
    first_agents, second_agents = teams.values()
    number = max(1, games // 2) if (seats[0][1], seats[0][0]) in seats else games
    for done, (i, j) in enumerate(seats):
        players = dict.fromkeys(first_agents, entrants[i].player) | dict.fromkeys(second_agents, entrants[j].player)
        # Every pair has seeds of its own.
        pair_seed = int(np.random.SeedSequence([seed, i, j]).generate_state(1)[0])
        one, other = team_rewards(arena.play(players, number, pair_seed), teams).values()
        result = np.sign(one - other)
        for counts, sign in zip(table, (1, 0, -1), strict=True):
            counts[i, j] += np.count_nonzero(result == sign)
            counts[j, i] += np.count_nonzero(result == -sign)
        after_pair(done + 1, len(seats))
    return table


def fit_elo(points: np.ndarray, games: np.ndarray, anchor: int | None = None, at: float = INITIAL_RATING) -> np.ndarray:
    """The ratings under which the results of a table are most likely.

        E[i beats j] = 1 / (1 + 10^((R_j − R_i) / 400))

    Most likely with `PRIOR_GAMES` drawn games more for each pair that played; the order of games plays no part.

    Source: Bradley and Terry 1952, with a draw as half a win; Hunter 2004, section 2, on the likelihood.

    Args:
        points: float64 ``[n, n]``, those that the row has from the column.
        games: float64 ``[n, n]``, symmetric.
        anchor: whose rating is `at`; None: the mean is.
        at: Elo.

    Returns:
        Elo, float64 ``[n]``.

    Raises:
        ValueError: the shapes differ, or points of a pair do not sum up to its games.
    """
    points, games = np.asarray(points, np.float64), np.asarray(games, np.float64)
    if points.shape != games.shape or points.ndim != 2 or not np.allclose(points + points.T, games):
        raise ValueError(f"Expected points and games [n, n] with points + points.T = games, received {list(points.shape)} and {list(games.shape)}.")
    met = games > 0
    points, games = points + PRIOR_GAMES / 2 * met, games + PRIOR_GAMES * met
    strength = np.zeros(len(points))  # R · ln 10 / 400
    for _ in range(100):
        expected = 1.0 / (1.0 + np.exp(strength[None, :] - strength[:, None]))
        gradient = (points - games * expected).sum(axis=1)
        weight = games * expected * (1.0 - expected)
        # Only differences count: the pseudo-inverse leaves the sum at 0.
        change = np.linalg.pinv(np.diag(weight.sum(axis=1)) - weight) @ gradient
        strength += np.clip(change, -1.0, 1.0)
        if np.abs(change).max(initial=0.0) < 1e-10:
            break
    ratings = strength / _SCALE
    return ratings - (ratings.mean() if anchor is None else ratings[anchor]) + at
