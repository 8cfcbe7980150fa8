"""Tic-tac-toe: perfect play, and all games that a player may come into.

A position is two sets of squares as bits (square i is ``1 << i``): those of the player who moves, and the other's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from envs.specs import Actions
from games.play import Turn
from raytrain import LoadedPolicy

SQUARES = 9
ALL = (1 << SQUARES) - 1
LINES = tuple(
    sum(1 << square for square in line)
    for line in ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
)

Moves = Callable[[int, int], Sequence[int]]
"""(own squares, the other's) -> squares that a player may choose now."""


def has_won(own: int) -> bool:
    """Whether a side has a line."""
    return any(own & line == line for line in LINES)


def free_squares(own: int, other: int) -> tuple[int, ...]:
    """Where one may move."""
    return tuple(square for square in range(SQUARES) if not (own | other) >> square & 1)


@cache
def value(own: int, other: int) -> int:
    """1 where the player who moves can force a win, -1 where the other can, else 0; minimax."""
    if has_won(other):
        return -1
    if own | other == ALL:
        return 0
    return max(-value(other, own | 1 << square) for square in free_squares(own, other))


@cache
def best_moves(own: int, other: int) -> tuple[int, ...]:
    """All squares from which the value of a position, that is not over, is kept."""
    return tuple(square for square in free_squares(own, other) if -value(other, own | 1 << square) == value(own, other))


def perfect_player(turn: Turn, rng: np.random.Generator) -> Actions:
    """Plays every best move with the same probability, in ``pettingzoo.classic.tictactoe_v3``."""
    (boards,) = turn.obs.values()
    positions = boards.reshape(-1, SQUARES, 2).astype(bool).transpose(0, 2, 1) @ (1 << np.arange(SQUARES))
    choices = [rng.choice(best_moves(int(own), int(other))) for own, other in positions]
    return Actions(np.empty((len(boards), 0), np.float32), np.array(choices, np.int32)[:, None])


def policy_moves(loaded: LoadedPolicy) -> Moves:
    """The one square that a trained policy, not sampled, chooses."""
    def moves(own: int, other: int) -> Sequence[int]:
        bits = 1 << np.arange(SQUARES)
        board = np.stack([bits & own != 0, bits & other != 0], axis=1).reshape(1, 3, 3, 2).astype(np.int8)
        free = (bits & (own | other) == 0)[None]
        (name,) = (o.name for o in loaded.spec.observations)
        return (int(loaded.policy.act({name: board}, np.random.default_rng(0), True, free, with_entropy=False).actions.discrete[0, 0]),)

    return moves


class Lines(NamedTuple):
    """How the courses that games can take end, for one of the players."""

    won: int
    drawn: int
    lost: int


def all_lines(moves: Moves, begins: bool) -> Lines:
    """Every game of a player, who plays each of its `moves`, against every reply.

    Args:
        begins: it has the first move.
    """

    @cache
    def from_position(own: int, other: int, to_move: bool) -> Lines:
        if has_won(own):
            return Lines(1, 0, 0)
        if has_won(other):
            return Lines(0, 0, 1)
        if own | other == ALL:
            return Lines(0, 1, 0)
        if to_move:
            after = [from_position(own | 1 << square, other, False) for square in moves(own, other)]
        else:
            after = [from_position(own, other | 1 << square, True) for square in free_squares(own, other)]
        return Lines(*(sum(counts) for counts in zip(*after, strict=True)))

    return from_position(0, 0, begins)
