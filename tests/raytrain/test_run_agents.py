"""Runs with worlds of many agents: behaviors by patterns, a trainer each, one checkpoint, agents in turn."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

import raytrain
from raytrain.checkpoint import CheckpointStore
from raytrain.cli import main
from raytrain.errors import ConfigError, RunFault

pytest.importorskip("pettingzoo", reason="the extra pettingzoo is not installed")

COUNTING = "envs.toy_agents:CountingAgents"


def behavior(agents=None, **more) -> dict:
    hyper = {"buffer_size": 100, "batch_size": 50, "num_epoch": 2, "learning_rate": 3e-3, **more.pop("hyperparameters", {})}
    return {
        "hyperparameters": hyper, "network_settings": {"hidden_units": 8, "num_layers": 1}, "max_steps": 1000, "summary_freq": 500,
        "checkpoint_interval": 500, "time_horizon": 32, **({"agents": agents} if agents else {}), **more,
    }


def two(first=None, second=None, **top) -> dict:
    """The first two agents of a world of four, and the others; by default none dies before step 50."""
    return {
        "env": COUNTING, "env_kwargs": {"deaths": [50, 50, 50, 50]},
        "behaviors": {"early": behavior(**{"agents": ["agent_0", "agent_1"], **(first or {})}), "late": behavior(**{"agents": "agent_[23]", **(second or {})})},
        "env_settings": {"num_envs": 2, "seed": 3}, **top,
    }


def train(tmp_path, data, run_id="run", **options):
    return raytrain.train(data, results_dir=tmp_path, run_id=run_id, local=True, **options)


def weights(run, name: str) -> dict[str, np.ndarray]:
    return load_file(max((run.path / "checkpoints").iterdir()) / name / "trainer.safetensors")


@pytest.mark.slow
def test_every_behavior_has_a_trainer_and_its_own_account(tmp_path):
    """C75: agent steps of each behavior, env steps once for all of them; statistics, checkpoints and results by behavior."""
    episodes, checkpoints = {"early": [], "late": []}, []
    run = train(tmp_path, two(), on_episode=lambda b, r, n, s: episodes[b].append((r, n)), on_checkpoint=lambda *c: checkpoints.append(c))
    results = run.results["behaviors"]
    assert list(results) == ["early", "late"] and all(1000 <= one["agent_steps"] <= 1200 for one in results.values())
    for one in results.values():
        ledger = one["ledger"]
        assert ledger["produced"] == ledger["consumed"] + sum(v for k, v in ledger.items() if k.startswith("dropped_"))
    assert run.results["agent_steps"] == sum(one["agent_steps"] for one in results.values())
    assert run.results["env_steps"] * 2 <= max(one["ledger"]["produced"] for one in results.values()) <= run.results["env_steps"] * 2 + 8
    assert all(found and set(found) == {(50.0, 50)} for found in episodes.values())
    for name in results:
        with open(run.path / name / "metrics.csv", encoding="utf-8") as file:
            assert [row["step"] for row in csv.DictReader(file)] == ["500", "1000"]
        policy = raytrain.load_policy(run.path, behavior=name)
        assert policy.act(np.zeros(3, np.float32)) in (0, 1)
    snapshot = CheckpointStore.load(checkpoints[-1][0])
    assert list(snapshot.behaviors) == ["early", "late"]
    assert snapshot.run["behaviors"] == {name: one["agent_steps"] for name, one in results.items()}
    status = json.loads((run.path / "status.json").read_text())
    assert status["behavior"] is None and list(status["behaviors"]) == ["early", "late"]
    assert (w := weights(run, "early")).keys() == weights(run, "late").keys()
    assert any(not np.array_equal(w[k], weights(run, "late")[k]) for k in w if k.startswith("actor/"))


@pytest.mark.slow
def test_a_checkpoint_is_one_moment_and_a_run_goes_on_from_it(tmp_path):
    """C21: whichever behavior was due, all parts are of the same moment; counters and versions go on from there."""
    data = two({"checkpoint_interval": 300}, {"checkpoint_interval": 10_000}, env_kwargs={"deaths": [25, 25, 25, 25]})
    saved = []
    train(tmp_path, data, "parts", overrides={f"behaviors.{name}.max_steps": 500 for name in ("early", "late")},
          on_checkpoint=lambda *c: saved.append(CheckpointStore.load(c[0])))
    steps = [tuple(snapshot.run["behaviors"].values()) for snapshot in saved]
    assert steps[0] == (0, 0) and (300, 300) in steps and all(early == late for early, late in steps), "both collect the same number here"
    versions = [one.policy_version for one in saved[-1].behaviors.values()]
    again = []
    parts = train(tmp_path, data, "parts", resume=True, on_checkpoint=lambda *c: again.append(CheckpointStore.load(c[0])))
    assert again[0].run["behaviors"] == saved[-1].run["behaviors"]
    assert [one.policy_version for one in again[0].behaviors.values()] == versions
    assert all(1000 <= one["agent_steps"] <= 1100 for one in parts.results["behaviors"].values())
    for name in ("early", "late"):
        with open(parts.path / name / "metrics.csv", encoding="utf-8") as file:
            assert [row["step"] for row in csv.DictReader(file)] == ["500", "1000"]


@pytest.mark.slow
def test_one_that_is_finished_goes_on_acting_for_the_others(tmp_path):
    """Its agents keep to their last policy; what they collect is counted and not learnt from."""
    run = train(tmp_path, two({"max_steps": 200}))
    early, late = run.results["behaviors"]["early"], run.results["behaviors"]["late"]
    assert 200 <= early["agent_steps"] <= 300 and late["agent_steps"] >= 1000
    ledger = early["ledger"]
    assert ledger["produced"] == ledger["consumed"] + sum(v for k, v in ledger.items() if k.startswith("dropped_"))
    assert ledger["produced"] - ledger["consumed"] > 500


@pytest.mark.slow
def test_a_run_ends_when_every_behavior_has_reached_its_goal(tmp_path):
    """stop.reward of one of them is not enough."""
    ends = train(tmp_path, two(stop={"reward": 49, "episodes": 2}, env_kwargs={"deaths": [50, 50, 50, 50]}), "both")
    goes_on = train(tmp_path, two(stop={"reward": 49, "episodes": 2}, env_kwargs={"deaths": [50, 50, 20, 20]}), "one")
    assert "reached stop.reward=49" in ends.results["reason"] and "max_steps" in goes_on.results["reason"]


@pytest.mark.slow
def test_agents_that_take_turns_do_not_stall(tmp_path):
    """Strictly on-policy, where the result of every move waits for another agent's."""
    pytest.importorskip("pettingzoo.classic.tictactoe_v3", reason="pygame is not installed")
    data = {"env": "pettingzoo.classic.tictactoe_v3:env", "behaviors": {"tictactoe": behavior(max_steps=600)}, "env_settings": {"num_envs": 4, "seed": 1}}
    summaries = []
    run = train(tmp_path, data, on_summary=summaries.append)
    assert run.results["agent_steps"] >= 600 and "max_steps" in run.results["reason"]
    assert all(s.values.get("Policy/Policy Lag Max", 0.0) == 0.0 for s in summaries)
    assert max(s.values["Policy/First Minibatch Ratio Error"] for s in summaries if "Policy/First Minibatch Ratio Error" in s.values) < 1e-5


def test_what_has_one_agent_refuses_a_world_of_many(tmp_path, capsys):
    """Recording, and the episodes that judge a cloned policy."""
    data = {"env": COUNTING, "behaviors": {"CountingAgents": behavior(max_steps=200)}, "env_settings": {"seed": 1}}
    run = train(tmp_path, data)
    assert main(["record", str(run.path), "--out", str(tmp_path / "x.safetensors")]) == 2
    assert "expected an environment of one agent to record in, received a world of agent_0" in capsys.readouterr().err.replace("\n", " ")
    with pytest.raises(ConfigError, match="expected an environment of one agent, in which"):
        train(tmp_path, {"env": COUNTING, "behaviors": {"CountingAgents": {"trainer_type": "bc", "demo_path": "x"}}}, "other")


PAYING = {"env": "tests.envs.agent_worlds:PayingAgents", "env_kwargs": {"pays": [[25, "agent_0", 2.0]], "deaths": [10, 20, 25, 25]}}


@pytest.mark.slow
def test_groups_have_a_return_of_their_own(tmp_path):
    """C74: given once when two of four are dead; agents' returns have what reached them, the group's return all of it."""
    summaries = []
    data = {**PAYING, "behaviors": {"PayingAgents": behavior(groups={"team": "*"}, max_steps=800, summary_freq=400)}, "env_settings": {"num_envs": 2, "seed": 1}}
    episodes = []
    run = train(tmp_path, data, on_summary=summaries.append, on_episode=lambda b, r, n, s: episodes.append((n, r)))
    assert [summary.values["Environment/Group Cumulative Reward"] for summary in summaries] == [2.0, 2.0]
    assert set(episodes) == {(10, 10.0), (20, 20.0), (25, 27.0)}
    assert run.results["agent_steps"] >= 800
    with open(run.path / "PayingAgents" / "metrics.csv", encoding="utf-8") as file:
        assert [float(row["Environment/Group Cumulative Reward"]) for row in csv.DictReader(file)] == [2.0, 2.0]
    snapshot = CheckpointStore.load(max((run.path / "checkpoints").iterdir()))
    assert snapshot.behaviors["PayingAgents"].spec.grouped


@pytest.mark.slow
def test_groups_under_sac(tmp_path):
    """The same world with a replay buffer."""
    hyper = {"buffer_size": 2000, "batch_size": 32, "buffer_init_steps": 64, "steps_per_update": 20}
    one = {"trainer_type": "sac", "hyperparameters": hyper, "network_settings": {"hidden_units": 8, "num_layers": 1}, "groups": {"team": "*"}, "max_steps": 600,
           "summary_freq": 300}
    summaries = []
    run = train(tmp_path, {**PAYING, "behaviors": {"PayingAgents": one}, "env_settings": {"num_envs": 2, "seed": 1}}, on_summary=summaries.append)
    assert summaries and all(summary.values["Environment/Group Cumulative Reward"] == 2.0 for summary in summaries)
    assert run.results["behaviors"]["PayingAgents"]["updates"] > 0


def test_without_groups_there_is_no_return_of_them(tmp_path):
    """Nor is a group reward lost without a word."""
    summaries = []
    train(tmp_path, two({"max_steps": 500}, {"max_steps": 500}), on_summary=summaries.append)
    assert summaries and not any("Environment/Group Cumulative Reward" in summary.values for summary in summaries)
    with pytest.raises(RunFault, match="agent 'agent_2': info.'group_reward'. is given, but it is in no group|agent 'agent_0': info"):
        train(tmp_path, {**PAYING, "env_kwargs": {"each_step": 1.0}, "behaviors": {"PayingAgents": behavior()}}, "other")


@pytest.mark.parametrize(("data", "words"), [
    ({**two(), "behaviors": {}, "default_settings": behavior(groups={"team": "*"})}, "default_settings.groups.*expected groups in a behavior"),
    (two({"groups": {"red": "agent_2"}}), "behaviors.early.groups.red  no agent of the behavior is called 'agent_2'; it has the agents agent_0, agent_1"),
    (two({"groups": {"red": "*", "blue": "agent_0"}}), "expected one group for the agent 'agent_0', received 2: red, blue"),
    (two({"groups": {"red": []}}), "groups.red  expected at least one pattern"),
    (two({"groups": "agent_*"}), "groups.*received text 'agent_\\*'"),
    (two({"agents": "agent_9"}), "early"),
    (two({"agents": ["agent_0"]}), "agent_1"),
    (two({"agents": "agent_*"}), "agent_2"),
    ({**two(), "behaviors": {"early": behavior("agent_*"), "late": behavior()}}, "expected agents for every behavior, since early has some; received none for late"),
    ({**two(), "behaviors": {"early": behavior()}}, "expected a behavior of envs.toy_agents:CountingAgents, received early"),
])
def test_mistakes_are_named_before_anything_is_written(tmp_path, data, words):
    with pytest.raises(ConfigError, match=words):
        train(tmp_path, data)
    assert not any(tmp_path.iterdir())


def test_the_start_says_what_every_behavior_is(tmp_path, capsys):
    """A table for each, and the arithmetic with all of its agents."""
    file = tmp_path / "two.yaml"
    file.write_text(yaml.safe_dump(two()))
    assert main(["train", str(file), "--local", "--results-dir", str(tmp_path), "--run-id", "run"]) == 0
    shown = capsys.readouterr().out
    assert "behavior early" in shown and "behavior late" in shown
    assert "2 envs × 2 agents × 25 steps = 100" in shown
    assert re.search(r"early +1,0\d\d agent steps, mean return|early +1,0\d\d agent steps", shown)


@pytest.mark.cluster
def test_over_ray_both_learn_at_once(tmp_path):
    """An exchange and a trainer of its own for each behavior; one checkpoint holds both."""
    checkpoints = []
    data = two(distributed={"env_manager_cpus": 0.5, "trainer_cpus": 0.5, "num_env_managers": 2})
    run = raytrain.train(data, results_dir=tmp_path, run_id="run", on_checkpoint=lambda *c: checkpoints.append(c))
    results = run.results["behaviors"]
    assert all(one["agent_steps"] >= 1000 and one["policy_updates"] > 3 for one in results.values())
    for one in results.values():
        ledger = one["ledger"]
        assert ledger["produced"] == ledger["consumed"] + sum(v for k, v in ledger.items() if k.startswith("dropped_"))
    snapshot = CheckpointStore.load(checkpoints[-1][0])
    assert snapshot.run["behaviors"] == {name: one["agent_steps"] for name, one in results.items()}


@pytest.mark.slow
def test_stacks_and_repeats_in_a_world_of_many(tmp_path):
    """`env_settings` hold for every agent: 50 steps of the world are 25 actions; the policy takes stacks."""
    seen = []
    run = train(tmp_path, two({"max_steps": 200}, {"max_steps": 200}, env_settings={"num_envs": 2, "seed": 3, "frame_stack": 3, "action_repeat": 2}),
                on_episode=lambda b, r, n, s: seen.append((r, n)))
    assert seen and set(seen) == {(50.0, 25)}
    assert run.results["behaviors"]["early"]["ledger"]["produced"] <= run.results["env_steps"] + 8
    assert raytrain.load_policy(run.path, behavior="late").act(np.zeros((3, 3), np.float32)) in (0, 1)


def test_action_repeat_in_turns_is_a_mistake_in_the_file(tmp_path, capsys):
    file = tmp_path / "turns.yaml"
    file.write_text(yaml.safe_dump({"env": "envs.toy_agents:TurnTeams", "behaviors": {"TurnTeams": behavior()}, "env_settings": {"action_repeat": 2}}))
    assert main(["train", str(file), "--local", "--results-dir", str(tmp_path), "--run-id", "run"]) == 2
    assert "env_settings.action_repeat: expected 1, received 2: the agents of" in capsys.readouterr().err.replace("\n", " ")
