"""Groups of agents that share a reward: who receives what, and when a group ends, against numbers worked out by hand (C74, C75)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from envs.base import EnvFault
from envs.gymnasium_env import make_batched_env, probe_spec
from tests.envs.agents_audit import AgentEpisode, AgentsAuditor

pytest.importorskip("pettingzoo", reason="needs the extra pettingzoo")
WORLDS = "tests.envs.agent_worlds:"
AGENTS, TEAMS, TURNS = (WORLDS + name for name in ("PayingAgents", "PayingTeams", "PayingTurns"))


def audit(env: str, env_steps: int, groups: Any, num_envs: int = 1, stepping: str = "inline", agents: Any = None, **kwargs: Any) -> AgentsAuditor:
    """`groups`: of the only behavior where there are no `agents`, else of each."""
    groups = groups if agents else {env.rpartition(":")[2]: groups}
    batched = make_batched_env(env, kwargs, num_envs, stepping, np.random.SeedSequence(1), wait_for_all=True, agents=agents, groups=groups)
    try:
        return AgentsAuditor(batched).run(env_steps)
    finally:
        batched.close()


def first_episodes(auditor: AgentsAuditor, behavior: str) -> list[AgentEpisode]:
    return [episodes[0] for (name, _), episodes in sorted(auditor.episodes.items()) if name == behavior]


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes"])
def test_a_dead_team_mate_takes_nothing_with_it(stepping: str) -> None:
    """C74: deaths at 25, 50, 75, 100; what is given later reaches who lives then, and counts once in the group's return."""
    pays = [(60, "agent_3", 5.0), (80, "agent_0", 7.0)]
    auditor = audit(AGENTS, 100, {"team": "agent_*"}, stepping=stepping, each_step=1.0, pays=pays)
    assert (auditor.env_steps, auditor.agent_steps) == (100, 250)
    episodes = first_episodes(auditor, "PayingAgents")
    expected = np.ones(100)
    expected[59], expected[79] = 5.0, 7.0
    for episode, death in zip(episodes, (25, 50, 75, 100), strict=True):
        assert episode.group_reward == expected[:death].tolist()
        assert episode.reward == [1.0] * death, "its own rewards are not touched"
        assert episode.env_step == list(range(death + 1)) == [int(o["obs"][1]) for o in episode.obs]
        assert episode.group_ended == (death == 100)
    assert auditor.group_returns == {"PayingAgents": [98 + 5 + 7]}


def test_groups_are_told_apart_in_every_world() -> None:
    """Ids of two worlds with two groups and an agent without one; a group ends with its last agent, not with the world."""
    groups = {"red": ["agent_0", "agent_1"], "blue": "agent_2"}
    pays = [(10, "agent_0", 2.0), (10, "agent_2", -1.0), (60, "agent_2", 4.0)]
    auditor = audit(AGENTS, 140, groups, num_envs=2, pays=pays)
    assert [auditor.group_ids["PayingAgents", slot] for slot in range(8)] == [0, 0, 1, -1, 2, 2, 3, -1]
    assert auditor.group_returns == {"PayingAgents": [2.0, 2.0]}, "after 70 steps of each"
    auditor.run(200)
    assert auditor.group_returns == {"PayingAgents": [2.0, 2.0, 3.0, 3.0]}
    episodes = first_episodes(auditor, "PayingAgents")
    assert [sum(episode.group_reward) for episode in episodes] == [2, 2, 3, 0] * 2
    assert [episode.group_ended for episode in episodes] == [False, True, True, False] * 2
    auditor.run(400)
    assert [episode.world_episode for episode in auditor.episodes["PayingAgents", 5]][:2] == [0, 1]


def test_a_group_of_several_behaviors() -> None:
    """The same name in two behaviors is one group: one id, one reward, and the return is reported for both, also where one has no agent left."""
    agents = {"early": "agent_[01]", "late": "agent_[23]", "alone": "agent_4"}
    auditor = audit(AGENTS, 100, {"early": {"team": "*"}, "late": {"team": "*"}}, agents=agents, deaths=[25, 50, 60, 75, 100],
                    pays=[(30, "agent_1", 2.0), (70, "agent_3", 3.0)])
    assert set(auditor.group_ids.values()) == {0} and {name for name, _ in auditor.group_ids} == {"early", "late"}
    assert auditor.group_returns == {"early": [5.0], "late": [5.0], "alone": []}
    assert [sum(e.group_reward) for e in first_episodes(auditor, "early") + first_episodes(auditor, "late")] == [0, 2, 2, 5]
    assert [e.group_ended for e in first_episodes(auditor, "early")] == [False, False]


def test_agents_that_wait_die_and_return() -> None:
    """What comes while an agent waits is summed up; a group whose only agent comes back begins anew."""
    auditor = audit(TEAMS, 20, {"one": "a_2", "two": ["a_0", "a_1", "a_3"]}, each_step=1.0)
    both = auditor.episodes["PayingTeams", 2]
    assert [episode.group_reward for episode in both[:2]] == [[5, 2], [6, 3]], "paid from step 12 on, when it is in the world again"
    assert [episode.env_step for episode in both[:2]] == [[2, 5, 7], [14, 17, 20]]
    assert [episode.group_ended for episode in both[:2]] == [True, True]
    others = [auditor.episodes["PayingTeams", slot][0] for slot in (0, 1)]
    assert [episode.group_reward for episode in others] == [[3, 3, 3, 3, 3, 3, 2], [4, 3, 3, 3, 3, 3, 1]]
    assert [episode.group_ended for episode in others] == [True, True], "both with the last step"
    assert auditor.group_returns["PayingTeams"][:3] == [7.0, 20.0, 9.0]


def test_one_that_is_not_there_gets_nothing_later() -> None:
    """Neither what its group is given while it is dead nor what came before the world was reset."""
    auditor = audit(TEAMS, 20, {"pair": ["a_0", "a_2"], "rest": ["a_1", "a_3"]}, each_step=1.0)
    assert [episode.group_reward for episode in auditor.episodes["PayingTeams", 2][:2]] == [[5, 2], [6, 3]]
    assert auditor.group_returns["PayingTeams"] == [20.0, 20.0]
    env = make_batched_env(AGENTS, {"each_step": 1.0}, 1, "inline", np.random.SeedSequence(1), groups={"PayingAgents": {"team": "*"}})
    AgentsAuditor(env).run(30)
    again = AgentsAuditor(env).run(100)
    assert again.group_returns == {"PayingAgents": [100.0]}
    assert [sum(episode.group_reward) for episode in first_episodes(again, "PayingAgents")] == [25, 50, 75, 100]
    assert again.episodes["PayingAgents", 0][0].world_episode == 1


def test_agents_in_turn() -> None:
    """Given in the info of whoever; what comes before the first turn and after the last one reaches the agent, too."""
    auditor = audit(TURNS, 5, {"both": "*"}, each_step=1.0)
    episodes = first_episodes(auditor, "PayingTurns")
    assert [episode.group_reward for episode in episodes] == [[2, 2], [1 + 2, 1, 1]]
    assert [episode.env_step for episode in episodes] == [[0, 2, 4], [1, 3, 4, 5]]
    assert [episode.group_ended for episode in episodes] == [False, True]
    assert auditor.group_returns == {"PayingTurns": [5.0]}


def test_agents_in_turn_that_end_together() -> None:
    """They are taken out one after another, but the group ended for all of them at once."""
    auditor = audit(TURNS, 3, {"both": "*"}, together=True, pays=[(3, "agent_1", 4.0)])
    episodes = first_episodes(auditor, "PayingTurns")
    assert [episode.group_reward for episode in episodes] == [[0, 4], [4]]
    assert [episode.group_ended for episode in episodes] == [True, True]
    assert auditor.group_returns == {"PayingTurns": [4.0]}


def test_without_groups_there_are_no_columns() -> None:
    env = make_batched_env("envs.toy_agents:CountingAgents", {}, 1, "inline", np.random.SeedSequence(1))
    env.reset()
    steps = env.poll(60)["CountingAgents"]
    assert not env.behaviors["CountingAgents"].grouped
    assert [steps.decision.group_id, steps.decision.group_reward, steps.decision.env_step, steps.decision.world_episode] == [None] * 4
    assert steps.terminal.group_id is None and steps.terminal.group_return is None


@pytest.mark.parametrize(("pays", "groups", "text"), [
    ([(2, "agent_1", float("nan"))], "*", r"agent 'agent_1': non-finite info\['group_reward'\] nan\nenv 0, episode 0, step 2"),
    ([(2, "agent_1", "much")], "*", r"agent 'agent_1': info\['group_reward'\]: reward: expected one number, received 'much'"),
    ([(2, "agent_0", 1.0), (2, "agent_1", 2.0)], "*",
     r"group 'team': expected one group_reward in a step, received 1.0 in the info of 'agent_0' and 2.0 in that of 'agent_1'"),
    ([(2, "agent_1", 1.0)], "agent_0", r"agent 'agent_1': info\['group_reward'\] is given, but it is in no group. Name its group: behaviors.NAME"),
    ([(25, "agent_0", 1.0)], "agent_1", r"agent 'agent_0': info\['group_reward'\] is given, but it is in no group"),
])
@pytest.mark.parametrize("env", [AGENTS, TURNS])
def test_faults(env: str, pays: list, groups: str, text: str) -> None:
    kwargs = {"turns": (30, 30)} if env == TURNS else {}
    with pytest.raises(EnvFault, match=text):
        audit(env, 60, {"team": groups}, pays=pays, **kwargs)


def test_a_group_reward_without_any_group() -> None:
    """It would be lost without a word."""
    with pytest.raises(EnvFault, match=r"agent 'agent_0': info\['group_reward'\] is given"):
        audit(AGENTS, 2, {}, each_step=1.0)


@pytest.mark.parametrize(("agents", "groups", "text"), [
    (None, {"PayingAgents": {"red": ["agent_0", "Agent_1"]}},
     r"behaviors.PayingAgents.groups.red: no agent of the behavior is called 'Agent_1'; it has the agents agent_0, agent_1, agent_2, agent_3"),
    (None, {"PayingAgents": {"red": []}}, r"groups.red: expected at least one pattern of agent names, received none"),
    (None, {"PayingAgents": {"red": "agent_*", "blue": "agent_3"}}, r"expected one group for the agent 'agent_3', received 2: red, blue"),
    (None, {"soccer": {"red": "agent_*"}}, r"behaviors.soccer.groups: expected groups of a behavior of this environment, which has PayingAgents"),
    ({"a": "agent_0", "b": "agent_[123]"}, {"a": {"red": "agent_1"}}, r"behaviors.a.groups.red: no agent of the behavior is called 'agent_1'"),
])
def test_wrong_groups(agents: Any, groups: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        probe_spec(AGENTS, {}, agents=agents, groups=groups)
    for stepping in ("auto", "inline"):
        with pytest.raises(ValueError, match=text):
            make_batched_env(AGENTS, {}, 1, stepping, np.random.SeedSequence(1), agents=agents, groups=groups)


def test_groups_of_an_environment_with_one_agent() -> None:
    with pytest.raises(ValueError, match=r"behaviors.CartPole.groups: expected no patterns of agents for CartPole-v1"):
        probe_spec("CartPole-v1", {}, groups={"CartPole": {"red": "*"}})
    assert probe_spec("CartPole-v1", {}, groups={"CartPole": {}})["CartPole"].grouped is False
