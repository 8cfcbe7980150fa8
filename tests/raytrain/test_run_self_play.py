"""Runs with self-play and with lessons that move: roles, counts, ratings, what is saved, and what is refused."""

from __future__ import annotations

import csv
import json
from itertools import pairwise

import numpy as np
import pytest
import yaml

import raytrain
from raytrain.checkpoint import CheckpointError, CheckpointStore
from raytrain.cli import main
from raytrain.errors import ConfigError
from trainers.ppo import PPOTrainer

pytest.importorskip("pettingzoo", reason="the extra pettingzoo is not installed")


def behavior(**more) -> dict:
    hyper = {"buffer_size": 100, "batch_size": 50, "num_epoch": 2, "learning_rate": 1e-2, **more.pop("hyperparameters", {})}
    return {
        "hyperparameters": hyper, "network_settings": {"hidden_units": 8, "num_layers": 1}, "max_steps": 1000, "summary_freq": 100,
        "checkpoint_interval": 500, "time_horizon": 64, **more,
    }


def duel(self_play=None, p_win=1.0, **more) -> dict:
    settings = {"save_steps": 150, "team_change": 200, "swap_steps": 100, "elo_k": 16, **(self_play or {})}
    return {"env": "envs.toy_teams:RiggedDuel", "env_kwargs": {"p_win": p_win}, "behaviors": {"RiggedDuel": behavior(self_play=settings, **more)},
            "env_settings": {"num_envs": 3, "seed": 4}}


def chase(**more) -> dict:
    settings = {"save_steps": 150, "team_change": 200, "swaps_per_team_change": 2}
    return {"env": "envs.toy_teams:Chase", "behaviors": {
        "hunter": behavior(agents="hunter_*", self_play=settings, **more), "runner": behavior(agents="runner", self_play=settings)},
        "env_settings": {"num_envs": 2, "seed": 4}}


def train(tmp_path, data, run_id="run", **options):
    return raytrain.train(data, results_dir=tmp_path, run_id=run_id, local=True, **options)


def taught(monkeypatch) -> list:
    """Everything that trainers take in, in order."""
    seen, process = [], PPOTrainer.process

    def recorded(self, batch, source):
        seen.append(batch)
        return process(self, batch, source)

    monkeypatch.setattr(PPOTrainer, "process", recorded)
    return seen


def run_state(run) -> dict:
    return json.loads((max((run.path / "checkpoints").iterdir()) / "run.json").read_text())["run"]


def test_only_the_team_that_learns_is_learnt_from(tmp_path, monkeypatch):
    """C11: no trajectory has two roles, every row was acted by the policy that learns, and opponents are counted apart."""
    batches, summaries = taught(monkeypatch), []
    run = train(tmp_path, duel(), on_summary=summaries.append)
    learnt = [(agent % 2, episode) for b in batches for agent, episode in zip(b.agent_id.tolist(), b.episode_id.tolist(), strict=True)]
    teams = [team for team, _ in learnt]
    assert {0, 1} == set(teams)
    phases = [s.values["Self-play/Learning Team"] for s in summaries]
    assert sum(a != b for a, b in pairwise(phases)) == 4, "five phases of two summaries each"
    team_of = {}
    assert all(team_of.setdefault(episode, team) == team for team, episode in learnt)
    errors = [s.values["Policy/First Minibatch Ratio Error"] for s in summaries if "Policy/First Minibatch Ratio Error" in s.values]
    assert errors and max(errors) < 1e-5
    opponents = summaries[-1].values["Self-play/Opponent Steps"]
    ledger = run.results["ledger"]
    assert run.results["env_steps"] - 3 * 10 <= opponents <= run.results["env_steps"] + 3
    assert ledger["produced"] == ledger["consumed"] + sum(v for k, v in ledger.items() if k.startswith("dropped_"))


@pytest.mark.slow
def test_who_always_wins_gets_the_points(tmp_path):
    """C76: team 0 wins every game, whoever learns; the rating of one side is taken from the other."""
    summaries = []
    run = train(tmp_path, duel({"play_against_latest_model_ratio": 0.0}), on_summary=summaries.append)
    scores = {s.values["Self-play/Learning Team"]: set() for s in summaries}
    for s in summaries[1:]:
        scores[s.values["Self-play/Learning Team"]].add(round(s.values.get("Self-play/Score", -1.0)))
    assert 1 in scores[0.0] and 0 in scores[1.0]
    side = run_state(run)["referee"]["sides"]["RiggedDuel"]
    assert side["now"]["0"] > 1220 and side["now"]["1"] < 1180
    assert all(s.values["Self-play/ELO"] == pytest.approx(1200, abs=60) for s in summaries)


@pytest.mark.slow
def test_everything_is_saved_and_goes_on(tmp_path):
    """C27: rating, learning team, counters and snapshots are those of the checkpoint; the first step back does not move them."""
    data = duel()
    run = train(tmp_path, data, overrides={"behaviors.RiggedDuel.max_steps": 700})
    before = run_state(run)["referee"]
    assert before["team"] == 1, "stopped in the middle of the second team's phase"
    summaries, again = [], []
    train(tmp_path, data, resume=True, on_summary=summaries.append, on_checkpoint=lambda *c: again.append(CheckpointStore.load(c[0])))
    assert again[0].run["referee"] == before
    frozen = again[0].behaviors["RiggedDuel"].self_play
    assert frozen.scalars["ids"] == before["sides"]["RiggedDuel"]["snapshots"] and len(frozen.scalars["ids"]) == 5
    assert summaries[0].step == 800 and summaries[0].values["Self-play/Learning Team"] in (0.0, 1.0)
    after = again[-1].run["referee"]["sides"]["RiggedDuel"]
    assert after["frozen"].keys() > before["sides"]["RiggedDuel"]["frozen"].keys()
    assert all(after["frozen"][n].keys() == {"0", "1"} for n in after["frozen"])


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run(tmp_path):
    first, second = (train(tmp_path, duel(p_win=0.5), run_id) for run_id in ("a", "b"))
    assert run_state(first)["referee"] == run_state(second)["referee"]


@pytest.mark.slow
def test_snapshots_can_be_acted_with(tmp_path):
    run = train(tmp_path, duel({"window": 3}))
    snapshots = raytrain.load_snapshots(run.path)
    assert [s.number for s in snapshots] == sorted(s.number for s in snapshots) and len(snapshots) == 3
    assert all(s.policy.act(np.zeros(1, np.float32)) in (0, 1) for s in snapshots)
    assert snapshots[-1].agent_steps > snapshots[0].agent_steps > 0 and all(abs(s.rating - 1200) < 100 for s in snapshots)
    plain = train(tmp_path, {**duel(), "behaviors": {"RiggedDuel": behavior(max_steps=200)}}, "plain")
    with pytest.raises(CheckpointError, match="Expected a behavior that learnt by self-play"):
        raytrain.load_snapshots(plain.path)


@pytest.mark.slow
def test_behaviors_take_turns(tmp_path):
    """Two trainers: while one learns the other waits, and both get to the end."""
    summaries = []
    run = train(tmp_path, chase(), on_summary=summaries.append)
    assert all(1000 <= one["agent_steps"] <= 1200 for one in run.results["behaviors"].values())
    order = [s.behavior for s in summaries]
    assert 4 <= sum(a != b for a, b in pairwise(order)) <= 10, "phases of two summaries each"
    state = run_state(run)["referee"]["sides"]
    assert state["hunter"]["opponent_steps"] > 500 and state["runner"]["opponent_steps"] > 500
    for one in run.results["behaviors"].values():
        ledger = one["ledger"]
        assert ledger["produced"] == ledger["consumed"] + sum(v for k, v in ledger.items() if k.startswith("dropped_"))


@pytest.mark.slow
def test_turn_based_games_by_self_play(tmp_path):
    """Strictly on-policy: opponents answer at once, so no move is left out."""
    pytest.importorskip("pettingzoo.classic.tictactoe_v3", reason="pygame is not installed")
    data = {"env": "pettingzoo.classic.tictactoe_v3:env", "env_settings": {"num_envs": 4, "seed": 1},
            "behaviors": {"tictactoe": behavior(max_steps=600, self_play={"save_steps": 100, "team_change": 150, "swap_steps": 50})}}
    summaries = []
    run = train(tmp_path, data, on_summary=summaries.append)
    assert run.results["agent_steps"] >= 600
    assert all(s.values.get("Policy/Policy Lag Max", 0.0) == 0.0 for s in summaries)
    assert max(s.values.get("Policy/First Minibatch Ratio Error", 0.0) for s in summaries) < 1e-5


@pytest.mark.parametrize(("data", "words"), [
    ({"env": "CartPole-v1", "behaviors": {"CartPole": behavior(self_play={})}}, "CartPole-v1 has one agent alone; remove self_play"),
    (duel(team=0), r"received one team of team_0, team_1; give sides by team: \{team_0: 0, team_1: 1\}"),
    (duel(team={"team_0": 0}), "expected one team for each of team_0, team_1, received none for team_1"),
    (duel(team={"team_*": 0, "team_1": 1}), "received 2: 0, 1 for team_1"),
    (duel(team={"team_*": 0, "red": 1}), "received red"),
    (duel({"team_change": 2000}), "expected team_change to be at most max_steps, received self_play.team_change=2000 and max_steps=1000"),
    (duel(team="x"), "expected a whole number for all of the behavior's agents, or names or patterns of agents with a number each"),
    (duel(team={0: "team_0", 1: "team_1"}), r"received \{0: 'team_0', 1: 'team_1'\}"),
    ({**duel(), "behaviors": {"RiggedDuel": behavior(self_play=None)}, "environment_parameters": {"mass": {"curriculum": [
        {"name": "a", "value": 1, "completion_criteria": {"behavior": "RiggedDuel", "measure": "elo"}}, {"name": "b", "value": 2}]}}},
     "received elo, and RiggedDuel has no self_play"),
    (duel({"swaps_per_team_change": 3}), "remove one of them"),
    (duel({"window": 0}), "window"),
    ({**chase(), "behaviors": {**chase()["behaviors"], "runner": behavior(agents="runner", team=1)}}, "expected team together with self_play only"),
    ({**duel(), "evaluation": {"episodes": 3}}, "expected evaluation without self_play"),
    (chase(team=3), "expected a team for every behavior with self_play, since hunter has one; received none for runner"),
])
def test_mistakes_are_named_before_anything_is_written(tmp_path, data, words):
    with pytest.raises(ConfigError, match=words):
        train(tmp_path, data)
    assert not any(tmp_path.iterdir())


def test_a_mistake_ends_with_exit_code_2(tmp_path, capsys):
    file = tmp_path / "duel.yaml"
    file.write_text(yaml.safe_dump(duel(team=0)))
    assert main(["train", str(file), "--local", "--results-dir", str(tmp_path / "results")]) == 2
    assert "behaviors.RiggedDuel.self_play" in capsys.readouterr().err


# -- lessons ----------------------------------------------------------------------------------------------------------


def echo(require_reset=False, **more) -> dict:
    """A world whose reward is its parameter; three lessons of 20 episodes at least."""
    criteria = {"behavior": "ParamEcho", "threshold": 0.5, "min_lesson_length": 20, "require_reset": require_reset, "signal_smoothing": False}
    lessons = [{"name": f"lesson {i}", "value": float(i), "completion_criteria": criteria} for i in (1, 2)] + [{"name": "last", "value": 3.0}]
    return {"env": "envs.toy_parameters:ParamEcho", "env_kwargs": {"length": 3}, "behaviors": {"ParamEcho": behavior(
        max_steps=600, summary_freq=60, hyperparameters={"buffer_size": 48, "batch_size": 24}, **more)},
        "environment_parameters": {"mass": {"curriculum": lessons}}, "env_settings": {"num_envs": 8, "seed": 1}}


@pytest.mark.slow
@pytest.mark.parametrize("require_reset", [False, True])
def test_lessons_move_in_a_run(tmp_path, monkeypatch, require_reset):
    """C79, C80: a lesson ends with the twentieth episode that began in it; those of the lesson before do not count."""
    batches, episodes = taught(monkeypatch), []
    run = train(tmp_path, echo(require_reset), on_episode=lambda b, r, n, s: episodes.append(r))
    lesson_of = np.concatenate([b.episode_lesson for b in batches])
    assert [3.0 * (lesson + 1) for lesson in lesson_of] == episodes, "an episode is tagged with what it was given"
    assert np.all(np.diff(lesson_of) >= 0) and set(lesson_of.tolist()) == {0, 1, 2}
    assert 20 <= (lesson_of == 0).sum() <= 20 + 2 * 16, "at an update's end, and what had begun then"
    with open(run.path / "ParamEcho" / "metrics.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(r["Environment/Lesson Number/mass"]) for r in rows] == sorted(float(r["Environment/Lesson Number/mass"]) for r in rows)
    assert float(rows[-1]["Environment/Lesson Number/mass"]) == 2 and rows[0]["Curriculum/mass/Min Episodes"] == "20.0"
    ledger = run.results["ledger"]
    assert ledger["produced"] == ledger["consumed"] + sum(v for k, v in ledger.items() if k.startswith("dropped_"))


@pytest.mark.slow
def test_the_first_episode_after_a_resume_has_its_lesson(tmp_path, monkeypatch):
    """C28: the lesson that was reached, at every environment's first reset, with the episodes counted so far."""
    run = train(tmp_path, echo(), overrides={"behaviors.ParamEcho.max_steps": 140})
    saved = run_state(run)["referee"]["curricula"]["curricula"]["mass"]
    assert saved["lesson"] == 1 and saved["episodes"] > 0, "stopped within the second lesson"
    batches, again = taught(monkeypatch), []
    train(tmp_path, echo(), resume=True, on_checkpoint=lambda *c: again.append(CheckpointStore.load(c[0])))
    first = next(b for b in batches if b.rows)
    assert set(first.obs["obs"].ravel().tolist()) == {2.0}
    assert again[0].run["referee"]["curricula"]["curricula"]["mass"] == saved


@pytest.mark.slow
def test_a_lesson_begins_with_a_reset_where_it_has_to(tmp_path):
    """Long episodes: the new lesson is there with the next update, and what was given up is counted."""
    data = echo(require_reset=True)
    data["env_kwargs"] = {"length": 3}
    data["environment_parameters"]["mass"]["curriculum"][0]["completion_criteria"] |= {"measure": "progress", "threshold": 0.2, "min_lesson_length": 0}
    data["behaviors"]["ParamEcho"]["hyperparameters"]["buffer_size"] = 40  # not a whole number of episodes of three steps in eight worlds
    run = train(tmp_path, data)
    ledger = run.results["ledger"]
    assert ledger["produced"] == ledger["consumed"] + sum(v for k, v in ledger.items() if k.startswith("dropped_"))
    assert run_state(run)["referee"]["curricula"]["curricula"]["mass"]["lesson"] == 2


@pytest.mark.slow
def test_a_run_ends_in_the_last_lesson_only(tmp_path):
    """Returns of 3 in the first lesson are above the goal, and do not end the run."""
    run = train(tmp_path, {**echo(), "stop": {"reward": 2.0, "episodes": 5}})
    assert "reached stop.reward=2" in run.results["reason"] and run.results["mean_return"] == 9.0
