"""Games between teams: their rules by hand, PettingZoo's own test of the interface, and what a bare loop sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pettingzoo", reason="needs the extra pettingzoo")

from pettingzoo.test import parallel_api_test, parallel_seed_test

from envs.gymnasium_env import make_batched_env, probe_spec
from envs.seeding import env_seeds
from envs.toy_teams import Chase, Duel, RiggedDuel, TwoTeams, scripted_duel, scripted_hunter
from tests.envs.agents_audit import AgentsAuditor, bare_parallel, check_same

STAY, UP, DOWN, LEFT, RIGHT = range(5)
GAMES: dict[str, dict[str, str]] = {
    "TwoTeams": {"ours": "a_*", "theirs": "b_*"}, "RiggedDuel": {}, "Duel": {}, "Chase": {"hunter": "hunter_*", "runner": "runner"},
}


@pytest.mark.parametrize("name", GAMES)
def test_is_a_world_of_pettingzoo(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make = getattr(import_module("envs.toy_teams"), name)
    parallel_api_test(make(), 200)
    parallel_seed_test(make, 50)
    assert "Passed" in capsys.readouterr().out


@pytest.mark.parametrize("name", GAMES)
def test_is_what_a_bare_loop_sees(name: str) -> None:
    env, seed = f"envs.toy_teams:{name}", np.random.SeedSequence(3)
    batched = make_batched_env(env, {}, 2, "inline", seed, wait_for_all=True, agents=GAMES[name])
    auditor = AgentsAuditor(batched).run(300)
    for copy in range(2):
        def agent(behavior: str, slot: int, copy: int = copy) -> str | None:
            own = batched.agents[behavior]
            return own[slot % len(own)] if slot // len(own) == copy else None

        actions = [(agent(b, s), np.int64(choice)) for b, s, choice in auditor.actions if agent(b, s) is not None]
        # A bare loop wants the actions of one step side by side, and ours come behavior by behavior: the same for these worlds.
        bare = bare_parallel(getattr(import_module("envs.toy_teams"), name)(), env_seeds(seed, copy, 0).reset, actions)
        for (behavior, slot), episodes in auditor.episodes.items():
            if agent(behavior, slot) is not None:
                check_same(episodes, bare[agent(behavior, slot)])
    batched.close()
    assert sum(e.end == "terminated" for own in auditor.episodes.values() for e in own) > 4


def play(world: Any, players: Mapping[str, Callable[[Any], Any]], seed: int | None) -> dict[str, list[float]]:
    """All rewards of a game."""
    observations, _ = world.reset(seed)
    rewards: dict[str, list[float]] = {agent: [] for agent in world.agents}
    while world.agents:
        observations, given, *_ = world.step({agent: players[agent](observations[agent]) for agent in world.agents})
        for agent, reward in given.items():
            rewards[agent].append(reward)
    return rewards


# -- TwoTeams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("continuous", [False, True])
def test_two_teams_pay_each_for_its_own_goal(continuous: bool) -> None:
    def right(obs: np.ndarray) -> Any:
        return obs if continuous else int(obs[0] > 0)

    def wrong(obs: np.ndarray) -> Any:
        return right(-obs)

    world = TwoTeams(continuous=continuous, step_size=0.1)
    for seed in range(5):
        rewards = play(world, {"a_0": right, "b_0": wrong}, seed)
        assert rewards["a_0"] == pytest.approx([-0.01] * 9 + [1.11])
        assert rewards["b_0"] == pytest.approx([-0.01] * 9 + [-1.11])


def test_two_teams_have_goals_of_their_own_in_every_element() -> None:
    world = TwoTeams(("x", "y", "z"), vector_size=3)
    world.reset(1)
    goals = [np.stack(list(world.reset()[0].values())) for _ in range(200)]
    assert all((seen == seen[:, :1]).all() for seen in goals)
    assert {tuple(seen[:, 0].tolist()) for seen in goals} == set(product((-1.0, 1.0), repeat=3))


def test_two_teams_end_one_by_one() -> None:
    world = TwoTeams(step_size=0.5)
    world.reset(0)
    world.step({"a_0": 1, "b_0": 0})
    *_, over, _, _ = world.step({"a_0": 1, "b_0": 1})
    assert (over, world.agents) == ({"a_0": True, "b_0": False}, ["b_0"])
    with pytest.raises(ValueError, match="an action of each of b_0, received some of a_0, b_0"):
        world.step({"a_0": 1, "b_0": 1})
    world.step({"b_0": 1})
    *_, over, _, _ = world.step({"b_0": 1})
    assert (over, world.agents) == ({"b_0": True}, [])


# -- RiggedDuel ---------------------------------------------------------------------------------------------------------


def results(world: RiggedDuel, games: int, seed: int | None = 0) -> list[tuple[float, ...]]:
    idle = dict.fromkeys(world.possible_agents, lambda obs: 0)
    return [tuple(r[-1] for r in play(world, idle, seed if game == 0 else None).values()) for game in range(games)]


def test_rigged_duel_is_won_as_often_as_said() -> None:
    assert set(results(RiggedDuel(p_win=1.0, length=2), 50)) == {(1.0, -1.0)}
    assert set(results(RiggedDuel(p_win=0.0, length=2), 50)) == {(-1.0, 1.0)}
    counts = Counter(results(RiggedDuel(p_win=0.2, length=1, p_draw=0.5), 3000))
    for result, part in {(1.0, -1.0): 0.2, (0.0, 0.0): 0.5, (-1.0, 1.0): 0.3}.items():
        assert abs(counts[result] / 3000 - part) < 5 * (part * (1 - part) / 3000) ** 0.5


def test_rigged_duel_of_three() -> None:
    rewards = play(RiggedDuel(p_win=1.0, length=4, teams=3), dict.fromkeys(("team_0", "team_1", "team_2"), lambda obs: 1), 1)
    assert rewards == {"team_0": [0, 0, 0, 1], "team_1": [0, 0, 0, -1], "team_2": [0, 0, 0, -1]}


def test_rigged_duel_comes_from_its_seed() -> None:
    first, again, other = (results(RiggedDuel(length=1), 40, seed) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(("kwargs", "said"), [
    ({"p_win": 0.7, "p_draw": 0.4}, "p_win=0.7 and p_draw=0.4"), ({"p_win": -0.1}, "p_win=-0.1"), ({"length": 0}, "length=0"),
    ({"teams": 1}, "teams=1"),
])
def test_rigged_duel_that_cannot_be(kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RiggedDuel(**kwargs)


# -- Duel ----------------------------------------------------------------------------------------------------------------


def straight(obs: np.ndarray) -> int:
    return int(scripted_duel(obs[None])[0])


def random_moves(seed: int) -> Callable[[Any], int]:
    rng = np.random.default_rng(seed)
    return lambda obs: int(rng.integers(5))


def test_duel_by_hand() -> None:
    world = Duel(size=3, points=1, max_steps=4)
    seed = next(s for s in range(100) if (world.reset(s)[0]["player_0"][:2] == (0.5, 0.5)).all())  # the flag is at (1, 2)
    observations, _ = world.reset(seed)
    np.testing.assert_array_equal(observations["player_0"], np.array([0.5, 0.5, 1, 0, 0.5, 0, 0, 1], np.float32))
    np.testing.assert_array_equal(observations["player_1"], np.array([-0.5, 0.5, -1, 0, -0.5, 0, 0, 1], np.float32))
    world.step({"player_0": DOWN, "player_1": UP})  # both in the middle
    observations, rewards, over, _, _ = world.step({"player_0": RIGHT, "player_1": RIGHT})  # both there: nobody's, and back
    assert (rewards, over) == ({"player_0": 0, "player_1": 0}, {"player_0": False, "player_1": False})
    np.testing.assert_array_equal(observations["player_0"][2:], np.array([1, 0, 0.5, 0, 0, 0.5], np.float32))
    world.reset(seed)
    observations, _, _, _, _ = world.step({"player_0": UP, "player_1": RIGHT})  # a wall stops
    assert observations["player_0"][2:4].tolist() == [1, 0.5]
    _, rewards, over, _, _ = world.step({"player_0": STAY, "player_1": UP})
    assert (rewards, over) == ({"player_0": -1, "player_1": 1}, {"player_0": True, "player_1": True})
    assert world.agents == []


def test_duel_goes_to_who_has_more_points_when_the_time_is_over() -> None:
    def stay(obs: np.ndarray) -> int:
        return STAY

    behind = play(Duel(points=9, max_steps=20), {"player_0": stay, "player_1": straight}, 1)
    assert (len(behind["player_0"]), behind["player_0"][-1], behind["player_1"][-1]) == (20, -1, 1)
    assert {v[-1] for v in play(Duel(max_steps=5), {"player_0": stay, "player_1": stay}, 1).values()} == {0}


def test_duel_rewards_skill_and_no_side() -> None:
    skilled = [play(Duel(), {"player_0": random_moves(s), "player_1": straight}, s)["player_1"][-1] for s in range(60)]
    assert np.mean(skilled) > 0.8
    equal = [play(Duel(), {"player_0": straight, "player_1": straight}, s)["player_0"][-1] for s in range(200)]
    assert abs(np.mean(equal)) < 0.3  # 4 standard deviations of 200 games


@pytest.mark.parametrize("size", [1, 4])
def test_grids_of_wrong_sizes(size: int) -> None:
    for game in (Duel, Chase):
        with pytest.raises(ValueError, match=f"size={size}"):
            game(size=size)


# -- Chase ---------------------------------------------------------------------------------------------------------------


def test_chase_has_spaces_by_team() -> None:
    specs = probe_spec("envs.toy_teams:Chase", {"quick": True}, agents=GAMES["Chase"])
    assert {name: (spec.observations[0].shape, spec.action.discrete_branches) for name, spec in specs.items()} == {
        "hunter": ((7,), (5,)), "runner": ((9,), (9,))}


def test_chase_by_hand() -> None:
    world = Chase(size=3, max_steps=3)
    seed = next(s for s in range(100) if (world.reset(s)[0]["hunter_0"][:2] == (0.5, 0.0)).all())  # the runner is at (1, 0)
    observations, _ = world.reset(seed)
    np.testing.assert_array_equal(observations["hunter_0"], np.array([0.5, 0, 0, 1, 0.5, 0.5, 1], np.float32))
    np.testing.assert_array_equal(observations["runner"], np.array([-0.5, 0, -0.5, 1, 0, 0.5, 1, 0.25, 0.75], np.float32))
    _, rewards, _, _, _ = world.step({"hunter_0": DOWN, "hunter_1": STAY, "runner": UP})  # they change places
    assert rewards == {"hunter_0": 0.5, "hunter_1": 0.5, "runner": -1.0}
    assert world.agents == []
    world.reset(seed)
    _, rewards, _, _, _ = world.step({"hunter_0": STAY, "hunter_1": LEFT, "runner": UP})  # it runs into one
    assert rewards["runner"] == -1.0
    world.reset(seed)
    idle = {"hunter_0": UP, "hunter_1": UP, "runner": STAY}
    assert [world.step(idle)[1] for _ in range(3)] == [dict.fromkeys(idle, 0.0)] * 2 + [{"hunter_0": -0.5, "hunter_1": -0.5, "runner": 1.0}]


def test_chase_rewards_skill_and_sums_to_zero() -> None:
    def hunt(obs: np.ndarray) -> int:
        return int(scripted_hunter(obs[None])[0])

    caught = {}
    for name, hunters in (("random", (random_moves(1), random_moves(2))), ("straight", (hunt, hunt))):
        games = [play(Chase(), dict(zip(("hunter_0", "hunter_1", "runner"), (*hunters, random_moves(3)), strict=True)), s) for s in range(60)]
        assert all(sum(parts) == 0.0 for game in games for parts in zip(*game.values(), strict=True))
        caught[name] = np.mean([game["runner"][-1] < 0 for game in games])
    assert caught["straight"] > 0.95
    assert caught["random"] < 0.7
