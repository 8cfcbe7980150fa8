"""The judges of scripts/self_play.py: referee, players whose results are known, ratings, and the command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pettingzoo", reason="needs the extra pettingzoo")
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS)]

import self_play
from games.league import Entrant, fit_elo, play_league
from games.play import Arena, Game, Turn, assign_teams, play, results, team_rewards
from games.players import choosing_player, policy_player, random_player
from games.tictactoe import all_lines, best_moves, free_squares, perfect_player, policy_moves, value

from envs.base import EnvFault
from envs.specs import Actions, BehaviorSpec
from envs.toy_teams import scripted_duel, scripted_hunter
from raytrain import LoadedPolicy
from raytrain.checkpoint import BehaviorSnapshot, CheckpointStore, Snapshot
from raytrain.record import World
from tests.trainers.policies import policy_and_weights
from trainers.trainer import TrainerState

TICTACTOE = World("pettingzoo.classic.tictactoe_v3:env")
PLAYERS = ("player_1", "player_2")
TOY = "envs.toy_teams:"
STRAIGHT, HUNTER = choosing_player(scripted_duel), choosing_player(scripted_hunter)


@pytest.fixture(scope="module")
def arena():
    with Arena(TICTACTOE) as made:
        yield made


def untrained(spec: BehaviorSpec, **network: Any) -> LoadedPolicy:
    return LoadedPolicy(spec, policy_and_weights(spec, **network)[0], agent_steps=0)


# -- tic-tac-toe -------------------------------------------------------------------------------------------------------------


def test_all_games_of_tictactoe() -> None:
    """The known numbers of courses: 131,184 won by the first, 77,904 by the second, 46,080 drawn."""
    assert all_lines(free_squares, begins=True) == (131_184, 46_080, 77_904)
    assert all_lines(free_squares, begins=False) == (77_904, 46_080, 131_184)


def test_perfect_play_never_loses() -> None:
    for begins in (True, False):
        lines = all_lines(best_moves, begins)
        assert lines.lost == 0
        assert lines.won > 0
        assert lines.drawn > 0


def test_values_of_positions() -> None:
    assert value(0, 0) == 0
    assert len(best_moves(0, 0)) == 9
    assert best_moves(0, 1 << 0) == (4,), "a corner is answered in the middle"
    assert set(best_moves(0, 1 << 4)) == {0, 2, 6, 8}
    assert (value(0b011, 0b011000), best_moves(0b011, 0b011000)) == (1, (2,))
    assert value(1 << 4 | 1 << 6, 1 << 0 | 1 << 2 | 1 << 8) == -1, "two threats at once"


def test_perfect_against_perfect_draws(arena: Arena) -> None:
    games = arena.play(dict.fromkeys(PLAYERS, perfect_player), 100, seed=1)
    assert set(results(games, {"one": ["player_1"]})["one"]) == {0}


@pytest.mark.slow
def test_random_against_random_is_as_known(arena: Arena) -> None:
    """58.5 % for who begins, 28.8 % for the other, 12.7 % drawn."""
    won = results(arena.play(dict.fromkeys(PLAYERS, random_player), 1000, seed=2), {"one": ["player_1"]})["one"]
    for sign, part in ((1, 0.585), (-1, 0.288), (0, 0.127)):
        assert abs(np.mean(won == sign) - part) < 4 * (part * (1 - part) / 1000) ** 0.5


@pytest.mark.parametrize("side", [0, 1])
def test_perfect_play_beats_random(arena: Arena, side: int) -> None:
    players = dict(zip(PLAYERS, (perfect_player, random_player) if side == 0 else (random_player, perfect_player), strict=True))
    won = results(arena.play(players, 150, seed=3), {"perfect": [PLAYERS[side]]})["perfect"]
    assert won.min() == 0
    assert won.mean() > 0.7


def test_a_policy_is_asked_the_same_in_the_arena_and_in_every_line(arena: Arena) -> None:
    """Squares and sides of positions are those of the world."""
    loaded = untrained(arena.specs["player_1"])
    moves, policy, asked = policy_moves(loaded), policy_player(loaded, "here"), []

    def compared(turn: Turn, rng: np.random.Generator) -> Actions:
        actions = policy(turn, rng)
        for board, choice in zip(turn.obs["observation"], actions.discrete[:, 0], strict=True):
            own, other = (sum(1 << 3 * i + j for i, j in np.argwhere(board[:, :, side]).tolist()) for side in (0, 1))
            assert moves(own, other) == (choice,)
            asked.append(int(choice))
        return actions

    for players in ((compared, random_player), (random_player, compared)):
        arena.play(dict(zip(PLAYERS, players, strict=True)), 20, seed=0)
    assert len(set(asked)) > 5


# -- the referee ---------------------------------------------------------------------------------------------------------------


def test_games_do_not_depend_on_the_number_that_goes_on_at_once() -> None:
    """Short games are not preferred, and every game has its own seed."""
    found = []
    for copies in (1, 3, 16):
        with Arena(World(TOY + "Duel"), copies) as arena:
            found.append(arena.play({"player_0": STRAIGHT, "player_1": STRAIGHT}, 16, seed=4))
    assert found[0] == found[1] == found[2]
    assert len({tuple(game.last.values()) for game in found[0]}) == 2
    assert found[0] != play(World(TOY + "Duel"), {"player_0": STRAIGHT, "player_1": STRAIGHT}, 16, seed=5)


def test_rewards_of_agents_that_end_one_by_one() -> None:
    def act(turn: Turn, rng: np.random.Generator) -> Actions:
        return Actions(np.empty((len(turn.slot), 0), np.float32), (turn.obs["obs"] > 0).astype(np.int32))

    def hesitate(turn: Turn, rng: np.random.Generator) -> Actions:
        moves = act(turn, rng)
        return moves if not turn.first.all() else Actions(moves.continuous, 1 - moves.discrete)

    games = play(World(TOY + "TwoTeams", {"step_size": 0.5}), {"a_0": act, "b_0": hesitate}, 3, seed=0)
    for game in games:
        assert game.last == pytest.approx({"a_0": 1.03, "b_0": 1.03})
        assert game.total == pytest.approx({"a_0": 1.03 - 0.01, "b_0": 1.03 - 3 * 0.01})


def test_players_see_every_game_and_agent_under_a_slot_of_its_own() -> None:
    seen: list[tuple[str, int]] = []

    def noting(agent: str):
        def act(turn: Turn, rng: np.random.Generator) -> Actions:
            seen.extend((agent, slot) for slot in turn.slot.tolist())
            return random_player(turn, rng)
        return act

    with Arena(World(TOY + "RiggedDuel", {"length": 2}), copies=4) as arena:
        arena.play({agent: noting(agent) for agent in arena.specs}, 8, seed=0)
    assert len(seen) == 8 * 2 * 2
    assert len(set(seen)) == len({slot for _, slot in seen}) == 8


def test_a_policy_that_remembers_plays_several_agents() -> None:
    """Its memory is by game and agent: alone in a game it does the same as among others."""
    memory = {"memory": {"sequence_length": 4, "memory_size": 10}}
    world = World(TOY + "Duel", {"max_steps": 10})
    with Arena(world, 8) as many, Arena(world, 1) as one:
        loaded = untrained(many.specs["player_0"], **memory)
        players = dict.fromkeys(many.specs, policy_player(loaded, "here"))
        assert many.play(players, 8, seed=1) == one.play(players, 8, seed=1)


def test_random_player_draws_from_everything_that_is_allowed() -> None:
    with Arena(World("envs.toy_agents:MaskedAgents"), 2) as arena:
        games = arena.play(dict.fromkeys(arena.specs, random_player), 3, seed=0)
    assert [game.total for game in games] == [{"agent_0": 25, "agent_1": 50, "agent_2": 75, "agent_3": 100}] * 3
    games = play(World(TOY + "TwoTeams", {"continuous": True}), dict.fromkeys(("a_0", "b_0"), random_player), 40, seed=0)
    assert {np.sign(game.last["a_0"]) for game in games} == {-1, 1}


def test_a_fault_says_where() -> None:
    with pytest.raises(EnvFault, match=r"boom[\s\S]*env 0, episode 0, step 2"):
        play(World("tests.envs.agent_worlds:Faulty", {"kind": "raises"}), dict.fromkeys(("agent_0", "agent_1"), random_player), 2, seed=0)


def test_refused() -> None:
    with pytest.raises(ValueError, match="a player for each of player_0, player_1, received some for player_0"):
        play(World(TOY + "Duel"), {"player_0": random_player}, 1, seed=0)
    with pytest.raises(ValueError, match="CartPole-v1: expected a world of PettingZoo"):
        play(World("CartPole-v1"), {}, 1, seed=0)
    with Arena(World(TOY + "Duel"), 1) as duel, Arena(World(TOY + "RiggedDuel"), 1) as rigged, pytest.raises(ValueError, match=r"\[8\].*\[1\]"):
        duel.play(dict.fromkeys(duel.specs, policy_player(untrained(rigged.specs["team_0"]), "Duel")), 1, seed=0)


def test_results_are_signs_of_team_sums() -> None:
    games = [Game({"a": 0.1, "b": 0.2, "c": -0.3}, {}), Game({"a": 5.0, "c": -1.0}, {}), Game({"a": -0.5, "b": -0.5, "c": 1.0}, {})]
    found = results(games, {"ab": ["a", "b"], "abc": ["a", "b", "c"]})
    assert {team: values.tolist() for team, values in found.items()} == {"ab": [1, 1, -1], "abc": [0, 1, 0]}
    assert team_rewards(games, {"ab": ["a", "b"]})["ab"].tolist() == [0.3, 5.0, -1.0]


def test_teams() -> None:
    agents = ["hunter_0", "hunter_1", "runner"]
    assert assign_teams(agents, ["hunter_*", "runner"]) == {"hunter_*": ("hunter_0", "hunter_1"), "runner": ("runner",)}
    assert assign_teams(agents, []) == {agent: (agent,) for agent in agents}
    for patterns, said in ((["hunter_*"], "hunter_0, hunter_1"), (["*"], "hunter_0"), (["*", "runner"], "runner"), (["*", "x"], "x: nobody")):
        with pytest.raises(ValueError, match=f"two or more teams that share.*{said}"):
            assign_teams(agents, patterns)


# -- ratings ---------------------------------------------------------------------------------------------------------------------


def test_elo_of_two_is_what_their_score_says() -> None:
    ratings = fit_elo(np.array([[0, 3], [1, 0]]), np.array([[0, 4], [4, 0]]))
    assert ratings[0] - ratings[1] == pytest.approx(400 * np.log10(3.5 / 1.5)), "with one drawn game more"
    assert ratings.mean() == pytest.approx(1200.0)
    assert fit_elo(np.array([[0, 3], [1, 0]]), np.array([[0, 4], [4, 0]]), anchor=1)[1] == pytest.approx(1200.0)


def test_elo_recovers_the_ratings_that_made_a_table() -> None:
    true = np.array([900.0, 1150.0, 1200.0, 1550.0])
    games = 1e7 * (1 - np.eye(4))
    points = games / (1 + 10 ** ((true[None] - true[:, None]) / 400))
    np.testing.assert_allclose(fit_elo(points, games, at=1200.0), true, atol=0.1)


def test_elo_of_who_wins_everything_is_finite_and_in_order() -> None:
    points = np.triu(np.full((5, 5), 100.0), 1).T
    ratings = fit_elo(points, points + points.T)
    assert (np.diff(ratings) > 100).all()
    assert np.isfinite(ratings).all()


def test_elo_wants_a_table() -> None:
    with pytest.raises(ValueError, match=r"points \+ points.T = games"):
        fit_elo(np.ones((2, 2)), np.ones((2, 2)))


def test_league_on_both_sides() -> None:
    with Arena(World(TOY + "Duel", {"max_steps": 20}), 10) as arena:
        entrants = [Entrant("random", "duel", random_player), Entrant("straight", "duel", STRAIGHT), Entrant("again", "duel", STRAIGHT)]
        told: list[tuple[int, int]] = []
        league = play_league(arena, assign_teams(list(arena.specs), []), dict.fromkeys(arena.specs, "duel"), entrants, 20, 1,
                             lambda done, pairs: told.append((done, pairs)))
    np.testing.assert_array_equal(league.games, 20 * (1 - np.eye(3)))
    np.testing.assert_array_equal(league.won, league.lost.T)
    assert league.points[1, 0] > 17
    assert told == [(i, 6) for i in range(1, 7)]
    assert fit_elo(league.points, league.games).argmin() == 0


def test_league_of_different_sides() -> None:
    with Arena(World(TOY + "Chase"), 10) as arena:
        teams = assign_teams(list(arena.specs), ["hunter_*", "runner"])
        behaviors = {"hunter_0": "hunter", "hunter_1": "hunter", "runner": "runner"}
        entrants = [Entrant("random", "hunter", random_player), Entrant("straight", "hunter", HUNTER), Entrant("r", "runner", random_player)]
        league = play_league(arena, teams, behaviors, entrants, 10, 1)
        assert league.games.tolist() == [[0, 0, 10], [0, 0, 10], [10, 10, 0]]
        assert league.points[1, 2] == 10 > league.points[0, 2]
        with pytest.raises(ValueError, match="one behavior for all agents of the team hunter"):
            play_league(arena, teams, {**behaviors, "hunter_1": "other"}, entrants, 10, 1)
        with pytest.raises(ValueError, match="to play hunter against runner, received 2: random, straight"):
            play_league(arena, teams, behaviors, entrants[:2], 10, 1)
        with pytest.raises(ValueError, match="two teams for a league, received 3"):
            play_league(arena, assign_teams(list(arena.specs), []), behaviors, entrants, 10, 1)


# -- the command -----------------------------------------------------------------------------------------------------------------


def run_of(folder: Path, arena_specs: dict[str, BehaviorSpec], behaviors: dict[str, str], configuration: str, checkpoints: int = 1) -> Path:
    """A run whose policies have random weights; `behaviors` is behavior -> one of its agents."""
    store = CheckpointStore(folder, keep=99)
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "configuration.yaml").write_text(configuration)
    for step in range(checkpoints):
        snapshots = {}
        for name, agent in behaviors.items():
            policy, weights = policy_and_weights(arena_specs[agent], scale=0.3 * (step + 1))
            snapshots[name] = BehaviorSnapshot(TrainerState({}, {}), weights, 1, 100 * step, policy.spec, policy.network)
        store.save(Snapshot(snapshots))
    return folder


def test_tictactoe_and_what_gathers_in_the_file(arena: Arena, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    for name in ("one", "two"):
        run = run_of(tmp_path / name, arena.specs, {"tictactoe": "player_1"}, "")
        assert self_play.main(["tictactoe", str(run), "--games", "20", "--json", str(out)]) == 0
    data = json.loads(out.read_text())
    assert {"machine", "versions", "tictactoe"} == set(data)
    assert set(data["tictactoe"]) == {"one", "two"}
    rows = data["tictactoe"]["one"]["results"]
    assert len(rows) == 2 * 2 * 2
    assert all(row["won"] + row["drawn"] + row["lost"] == row["games"] == 10 for row in rows)
    assert all(row["won"] == 0 for row in rows if row["against"] == "perfect")
    assert sum(data["tictactoe"]["one"]["all_lines"]["first"].values()) > 100


def test_league_and_returns_of_a_run_with_two_behaviors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Arena(World(TOY + "Chase"), 1) as chase:
        specs = chase.specs
    configuration = f"env: {TOY}Chase\nbehaviors: {{hunter: {{agents: 'hunter_*'}}, runner: {{agents: runner}}}}\n"
    run, out = run_of(tmp_path / "chase", specs, {"hunter": "hunter_0", "runner": "runner"}, configuration, checkpoints=3), tmp_path / "f.json"
    words = ["--games", "4", "--json", str(out)]
    assert self_play.main(["league", str(run), "--team", "hunter_*", "--team", "runner", "--limit", "2", "--anchor", "first", *words]) == 0
    assert self_play.main(["spread", str(run), "--behavior", "runner", *words]) == 0
    data = json.loads(out.read_text())
    league = data["league"]["chase"]
    assert league["policies"] == ["hunter chase 0", "hunter chase 200", "runner chase 0", "runner chase 200"]
    assert league["elo"][0] == 1200.0
    assert np.sum(league["points"]) == 4 * 4
    assert set(data["spread"]["chase"]) >= {"random", "most likely", "sampled"}
    assert self_play.main(["league", str(run)]) == 2
    assert "Put agents together with --team" in " ".join(capsys.readouterr().out.split())
    assert self_play.main(["spread", str(run), "--behavior", "nobody"]) == 2


def test_runs_that_are_not_there_and_too_few_games(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert self_play.main(["connect-four", str(tmp_path / "none")]) == 2
    assert self_play.main(["league", str(tmp_path / "none"), "--games", "1"]) == 2
    assert "--games of at least 2" in capsys.readouterr().out


def test_the_first_and_the_last_are_among_the_chosen() -> None:
    assert self_play.evenly(range(10), 4) == [0, 3, 6, 9]
    assert self_play.evenly(range(3), 4) == [0, 1, 2]
    assert self_play.evenly(range(10), 1) == [9]
