"""The referee: ratings, who learns, opponents and lessons, report by report; and the roles that worlds are given."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from envs.curriculum import Criteria, Lesson
from envs.randomization import Constant
from envs.specs import DecisionSteps, TerminalSteps
from raytrain.matches import Matches
from raytrain.messages import Game, Orders
from raytrain.referee import ItemReport, Referee
from trainers.self_play_settings import SelfPlaySettings


def plan(behavior="duel", teams=(0, 1), max_steps=1000, parameters=None, seed=1, **self_play):
    settings = SimpleNamespace(self_play=SelfPlaySettings(**self_play) if teams else None, max_steps=max_steps)
    return SimpleNamespace(
        behavior=behavior, teams=teams, settings=settings, parameters=parameters or {}, referee_seed=lambda: np.random.SeedSequence(seed))


def won(score=1.0, number=0, team=0, opponent=1, behavior="duel"):
    return Game(team, score, ((behavior, opponent, number),))


def report(referee, steps=1, behavior="duel", **more):
    return referee.report(ItemReport(behavior, steps, **more))


# -- ratings ----------------------------------------------------------------------------------------------------------


def test_games_move_ratings_and_their_sum_stays():
    """C76: win, win, draw with K 16; the snapshot of the other team loses what the learning team wins."""
    referee = Referee([plan(elo_k=16, team_change=1000)])
    report(referee, games=(won(), won(), won(0.5)))
    side = referee.state()["sides"]["duel"]
    assert side["now"] == {"0": pytest.approx(1214.914, abs=5e-4), "1": 1200.0}
    assert side["frozen"]["0"] == {"0": 1200.0, "1": pytest.approx(1185.086, abs=5e-4)}
    ratings = [*side["now"].values(), *side["frozen"]["0"].values()]
    assert sum(ratings) == pytest.approx(4800.0, abs=1e-6)


def test_a_game_against_the_policy_as_it_is_says_nothing_of_it():
    referee = Referee([plan(elo_k=16, team_change=1000)])
    values = report(referee, games=(won(number=-1), won(number=-1))).values
    assert values["Self-play/ELO"] == 1200.0
    assert referee.state()["sides"]["duel"]["now"]["0"] > 1210


def test_a_new_snapshot_is_as_good_as_the_policy_then():
    referee = Referee([plan(elo_k=16, team_change=1000)])
    report(referee, games=(won(), won()))
    report(referee, snapshots=(0, 1))
    report(referee, games=(won(0.0, number=1),))
    side = referee.state()["sides"]["duel"]
    assert side["frozen"]["1"]["0"] == pytest.approx(1215.632, abs=1e-3), "as the policy was when it was frozen"
    assert side["frozen"]["1"]["1"] > 1200 > side["frozen"]["0"]["1"], "the opponent's side has won against the learning one"


def test_three_teams_share_k():
    """The learner plays both of the others at once; each pairing moves half of K."""
    referee = Referee([plan(teams=(0, 1, 2), elo_k=16, team_change=1000)])
    report(referee, games=(Game(0, 1.0, (("duel", 1, 0), ("duel", 2, 0))),))
    side = referee.state()["sides"]["duel"]
    assert side["now"]["0"] == pytest.approx(1208.0, abs=0.1) and side["frozen"]["0"]["1"] == 1196.0
    assert sum(side["now"].values()) + sum(side["frozen"]["0"].values()) == pytest.approx(7200.0, abs=1e-9)


def test_behaviors_rate_each_other():
    referee = Referee([plan("red", (0,), elo_k=16), plan("blue", (1,), elo_k=16)])
    report(referee, behavior="red", games=(won(behavior="blue"),))
    sides = referee.state()["sides"]
    assert sides["red"]["now"] == {"0": 1208.0} and sides["blue"]["frozen"]["0"] == {"1": 1192.0} and sides["blue"]["now"] == {"1": 1200.0}


# -- who learns, and against whom -------------------------------------------------------------------------------------


def test_teams_take_turns():
    referee = Referee([plan(team_change=100)])
    teams = [report(referee, steps).orders.team for steps in (50, 99, 103, 150, 201, 202, 303)]
    assert teams == [0, 0, 1, 1, 0, 0, 1], "at multiples of team_change, however late they were noticed"


def test_what_is_finished_is_left_out():
    red, blue = plan("red", (0,), team_change=100), plan("blue", (1,), team_change=100)
    referee = Referee([red, blue])
    assert report(referee, 30, "red").orders.team == 0
    assert report(referee, 40, "red", finished=True).orders.team == 1, "at once"
    assert report(referee, 500, "blue").orders.team == 1, "nobody else has something to learn"


def test_opponents_are_drawn_when_they_have_played_enough():
    """C77: counted in the opponents' own steps; the draw is the policy as it is (a number below 0), or one of the snapshots."""
    referee = Referee([plan(swap_steps=10, team_change=900, play_against_latest_model_ratio=0.0)])
    report(referee, snapshots=(0, 1, 2, 3))
    drawn, numbers = set(), []
    for step in range(60):
        orders = report(referee, step, opponent_steps={"duel": 11}).orders
        drawn.add(orders.opponents["duel"][1])
        numbers.append(orders.number)
    assert drawn == {0, 1, 2, 3} and len(set(numbers)) == 60
    left = 10 - 60 * 11 % 10
    assert report(referee, 61, opponent_steps={"duel": left - 1}).orders.number == numbers[-1], "not at the next multiple yet"
    assert report(referee, 61, opponent_steps={"duel": 1}).orders.number == numbers[-1] + 1
    latest = Referee([plan(swap_steps=10, team_change=900, play_against_latest_model_ratio=1.0)])
    assert [report(latest, s, opponent_steps={"duel": 11}).orders.opponents["duel"][1] for s in range(3)] == [-1, -2, -3]


def test_each_side_sees_as_many_swaps_as_asked_for():
    """C77: two hunters and a runner, four swaps in each learning phase."""
    hunters = plan("hunters", (0, 0), max_steps=100_000, team_change=2000, swaps_per_team_change=4, play_against_latest_model_ratio=1.0)
    runner = plan("runner", (1,), max_steps=100_000, team_change=2000, swaps_per_team_change=4, play_against_latest_model_ratio=1.0)
    referee, steps, swaps = Referee([hunters, runner]), {"hunters": 0, "runner": 0}, {0: [], 1: []}
    team, seen, before = 0, 0, None
    for _ in range(20_000):  # worlds' steps
        learner, agents = ("hunters", 2) if team == 0 else ("runner", 1)
        other, others = ("runner", 1) if team == 0 else ("hunters", 2)
        steps[learner] += agents
        orders = report(referee, steps[learner], learner, opponent_steps={other: others}).orders
        if orders.team != team:
            swaps[team].append(seen)
            team, seen = orders.team, 0
        elif before is not None and orders.opponents[other] != before:
            seen += 1
        before = orders.opponents["runner" if team == 0 else "hunters"]
    assert len(swaps[0]) > 3 and len(swaps[1]) > 3
    assert set(swaps[0] + swaps[1]) <= {3, 4, 5}, swaps


def test_everything_goes_on_from_its_state():
    """C27: rating, learning team, counters, snapshots and what is drawn next."""
    def play(referee, begin, end):
        said = []
        for step in range(begin, end):
            orders = report(referee, 7 * step, snapshots=tuple(range(1 + step // 10)), opponent_steps={"duel": 5}, games=(won(step % 2),)).orders
            said.append((orders.number, orders.team, dict(orders.opponents["duel"])))
        return said

    make = {"elo_k": 16, "team_change": 100, "swap_steps": 30, "save_steps": 10}
    whole = Referee([plan(**make)])
    expected = play(whole, 0, 80)
    half = Referee([plan(**make)])
    play(half, 0, 37)
    again = Referee([plan(**make)], json.loads(json.dumps(half.state())))
    assert again.orders == half.orders and again.current("duel").values == half.current("duel").values
    assert play(again, 37, 80) == expected[37:] and again.state() == whole.state()
    assert len({team for _, team, _ in expected}) == 2


def test_a_new_team_is_played_by_the_oldest_snapshot_there_is():
    """The first one has left the window when the configuration is changed."""
    referee = Referee([plan(teams=(0, 0), team_change=900), plan("other", teams=(1,))])
    report(referee, snapshots=(3, 4))
    again = Referee([plan(teams=(0, 5), team_change=900)], json.loads(json.dumps(referee.state())))
    assert again.orders.opponents == {"duel": {0: 0, 5: 3}} and again.orders.team == 0


# -- lessons ----------------------------------------------------------------------------------------------------------


def lessons(require_reset=False, measure="reward", threshold=0.5):
    criteria = Criteria("duel", measure, threshold, min_lesson_length=2, signal_smoothing=False, require_reset=require_reset)
    return {"mass": (Lesson("light", Constant(1.0), criteria), Lesson("heavy", Constant(5.0)))}


def test_a_lesson_moves_and_says_so():
    referee = Referee([plan(teams=(), parameters=lessons(require_reset=True))])
    first = report(referee, returns=(1.0,), lessons=(0,))
    assert (first.orders.number, first.orders.lesson, first.notices) == (0, 0, ())
    assert first.values["Environment/Lesson Number/mass"] == 0 and first.values["Curriculum/mass/Episodes"] == 1
    second = report(referee, returns=(1.0, 1.0), lessons=(0, 0))
    assert second.orders == Orders(1, {"mass": Constant(5.0)}, lesson=1, is_last=True, resets=1)
    assert second.values["Environment/Lesson Number/mass"] == 1
    assert second.notices == ("lesson 2 of 2 of mass begins: heavy (1 is above 0.5 after 2 episodes)",)


def test_lessons_go_on_from_their_state():
    """C28: before anything is reset."""
    referee = Referee([plan(teams=(), parameters=lessons())])
    report(referee, returns=(1.0, 1.0), lessons=(0, 0))
    again = Referee([plan(teams=(), parameters=lessons())], json.loads(json.dumps(referee.state())))
    assert again.orders.parameters == {"mass": Constant(5.0)} and again.orders.lesson == 1


def test_a_lesson_may_wait_for_the_rating():
    referee = Referee([plan(elo_k=16, parameters=lessons(measure="elo", threshold=1210.0))])
    kept = report(referee, games=(won(), won()), returns=(1.0, 1.0), lessons=(0, 0))
    assert kept.orders.lesson == 0 and kept.values["Self-play/ELO"] == pytest.approx(1207.816, abs=1e-3)
    moved = report(referee, games=(won(), won()), returns=(1.0,), lessons=(0,))
    assert moved.orders.lesson == 1 and moved.values["Self-play/ELO"] > 1210


# -- roles in worlds --------------------------------------------------------------------------------------------------


def decisions(*slots):
    n = len(slots)
    return DecisionSteps(np.array(slots, np.int64), {"obs": np.arange(n, dtype=np.float32)[:, None]}, np.zeros(n, np.float32), np.ones(n, bool))


def ends(rewards):
    slots, values = np.array(list(rewards), np.int64), np.array(list(rewards.values()), np.float32)
    none = np.zeros(len(slots), bool)
    return TerminalSteps(slots, {"obs": values[:, None]}, values, ~none, none)


def test_roles_are_kept_for_an_episode():
    """C11: a swap takes hold in each world with its next episode, and a result counts for what was played."""
    matches = Matches({"duel": (0, 1)}, 2)
    matches.begin(np.array([0, 0]), Orders(0, team=0, opponents={"duel": {0: 0, 1: 0}}))
    learning, others = matches.split("duel", decisions(0, 1, 2, 3))
    assert learning.agent_id.tolist() == [0, 2] and [(n, d.agent_id.tolist()) for n, d in others] == [(0, [1, 3])]
    swapped = Orders(1, team=1, opponents={"duel": {0: 7, 1: 0}})
    assert matches.end("duel", ends({0: 1.0, 1: -1.0})).agent_id.tolist() == [0], "the end of the one that learns"
    matches.begin(np.array([1, 0]), swapped)
    learning, others = matches.split("duel", decisions(0, 1, 2, 3))
    assert learning.agent_id.tolist() == [1, 2] and [(n, d.agent_id.tolist()) for n, d in others] == [(0, [3]), (7, [0])]
    matches.end("duel", ends({2: 0.0, 3: 0.0}))
    matches.begin(np.array([1, 1]), swapped)
    games, steps = matches.take()
    assert games == (Game(0, 1.0, (("duel", 1, 0),)), Game(0, 0.5, (("duel", 1, 0),))) and steps == {"duel": 4}
    assert matches.take() == ((), {})


def test_a_team_wins_by_what_its_members_got_together():
    matches = Matches({"team": (0, 0, 1)}, 1)
    orders = Orders(0, team=0, opponents={"team": {0: 0, 1: 3}})
    matches.begin(np.array([0]), orders)
    matches.end("team", ends({0: -1.0}))
    matches.end("team", ends({1: 0.25, 2: 5.0}))
    matches.begin(np.array([1]), orders)
    assert matches.take()[0] == (Game(0, 0.0, (("team", 1, 3),)),)


def test_groups_count_in_a_result_and_those_of_opponents_are_left_out():
    matches = Matches({"team": (0, 1)}, 1)
    orders = Orders(0, team=0, opponents={"team": {0: 0, 1: 3}})
    matches.begin(np.array([0]), orders)
    both = ends({0: -0.5, 1: 0.5})
    both.group_id, both.group_reward = np.array([0, 1]), np.array([2.0, -2.0], np.float32)
    both.group_return, both.group_return_id = np.array([5.0, -5.0]), np.array([0, 1])
    left = matches.end("team", both)
    assert left.group_return.tolist() == [5.0] and left.group_return_id.tolist() == [0] and left.group_reward.tolist() == [2.0]
    matches.begin(np.array([1]), orders)
    assert matches.take()[0][0].score == 1.0


def test_a_reset_of_everything_is_no_game():
    """Worlds that have not begun again are numbered -1 meanwhile."""
    matches = Matches({"duel": (0, 1)}, 2)
    orders = Orders(0, team=0, opponents={"duel": {0: 0, 1: 0}})
    matches.begin(np.array([4, 7]), orders)
    matches.end("duel", ends({0: 1.0}))
    matches.forget()
    matches.begin(np.array([5, -1]), orders)
    matches.begin(np.array([5, 8]), orders)
    assert matches.take()[0] == ()


def test_behaviors_of_other_teams_are_opponents():
    matches = Matches({"red": (0,), "blue": (1, 2)}, 1)
    orders = Orders(0, team=2, opponents={"red": {0: 4}, "blue": {1: 5, 2: 6}})
    matches.begin(np.array([0]), orders)
    assert matches.split("red", decisions(0))[0].agent_id.tolist() == []
    learning, others = matches.split("blue", decisions(0, 1))
    assert learning.agent_id.tolist() == [1] and [number for number, _ in others] == [5]
    matches.end("blue", ends({0: 1.0}))
    matches.begin(np.array([1]), orders)
    assert matches.take()[0] == (), "nobody of the team that learns was there to the end"
    matches.end("blue", ends({1: 1.0}))
    matches.begin(np.array([2]), orders)
    assert matches.take()[0][0].opponents == (("red", 0, 4), ("blue", 1, 5))
    assert matches.played("blue") == {5}


def test_ratings_of_old_snapshots_are_forgotten():
    """A long run makes many."""
    referee = Referee([plan(team_change=900)])
    for number in range(700):
        report(referee, snapshots=tuple(range(max(0, number - 9), number + 1)))
    frozen = referee.state()["sides"]["duel"]["frozen"]
    assert len(frozen) == 500 and "699" in frozen and "0" not in frozen
