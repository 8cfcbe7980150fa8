"""Worlds of many agents: transitions, rewards, seeds and masks against lists written by hand (C20, C71, C72, C74, C75)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from envs.base import EnvFault
from envs.gymnasium_env import make_batched_env, probe_env, probe_spec
from envs.specs import Actions
from tests.envs.agents_audit import AgentsAuditor

pytest.importorskip("pettingzoo", reason="needs the extra pettingzoo")
TOY = "envs.toy_agents:"
WORLDS = "tests.envs.agent_worlds:"


def make(env: str, num_envs: int = 1, stepping: str = "inline", agents: Any = None, seed: int = 1, masked: Any = False, **kwargs: Any):
    return make_batched_env(env, kwargs, num_envs, stepping, np.random.SeedSequence(seed), wait_for_all=True, agents=agents, masked=masked)


def audit(env: str, env_steps: int, **kwargs: Any) -> AgentsAuditor:
    batched = make(env, **kwargs)
    try:
        return AgentsAuditor(batched).run(env_steps)
    finally:
        batched.close()


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes"])
def test_agents_that_wait_die_return_and_are_born_dead(stepping: str) -> None:
    """C71, C72: agents in turns, paid while they wait; one dies at 7 and is back from 12; one is born and terminated in a step."""
    auditor = audit(TOY + "DyingTeams", 20, stepping=stepping)
    assert auditor.rewards("DyingTeams", 0)[:1] == [[3, 3, 3, 3, 3, 3, 2]]
    assert auditor.rewards("DyingTeams", 1)[:1] == [[2 + 6, 6, 6, 6, 6, 6, 2]]
    assert auditor.rewards("DyingTeams", 2) == [[8 + 11, 7], [8 + 11, 11]]
    assert ("DyingTeams", 3) not in auditor.episodes
    assert [auditor.episodes["DyingTeams", slot][-1 if slot == 2 else 0].end for slot in range(3)] == ["truncated"] * 3
    assert auditor.episodes["DyingTeams", 2][0].end == "terminated"
    times = [[int(o["obs"][1]) for o in episode.obs] for episode in auditor.episodes["DyingTeams", 2]]
    assert times == [[2, 5, 7], [14, 17, 20]]
    assert auditor.total == 20 * 1 + 20 * 2 + 26 + 30


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_team_mates_that_die_one_after_another(end: str) -> None:
    """C74, C75: deaths at 25, 50, 75, 100: 100 env steps, 250 agent steps, every trajectory as long as its agent lived."""
    auditor = audit(TOY + "CountingAgents", 100, end=end)
    assert auditor.env_steps == 100
    assert auditor.agent_steps == auditor.total == 250
    for slot, death in enumerate((25, 50, 75, 100)):
        (episode, *_) = auditor.episodes["CountingAgents", slot]
        assert (len(episode.reward), episode.end) == (death, end)
        assert [int(o["obs"][1]) for o in episode.obs] == list(range(death + 1))


def test_counts_of_two_worlds() -> None:
    """C75: 2 envs × 4 agents × 50 steps."""
    auditor = audit(TOY + "CountingAgents", 100, num_envs=2, deaths=(50, 50, 50, 50))
    assert (auditor.env_steps, auditor.agent_steps) == (100, 400)


def test_turns() -> None:
    """AEC: what is paid before the first turn and after the last one is in the first and the last transition."""
    auditor = audit(TOY + "TurnTeams", 5)
    assert auditor.rewards("TurnTeams", 0)[0] == [2, 2]
    assert auditor.rewards("TurnTeams", 1)[0] == [1 + 2, 1, 1]
    assert auditor.episodes["TurnTeams", 1][0].end == "terminated"


def test_agent_that_is_dead_before_its_first_turn() -> None:
    """C72 in turns."""
    auditor = audit(TOY + "TurnTeams", 6, turns=(0, 2))
    assert ("TurnTeams", 0) not in auditor.episodes
    assert auditor.rewards("TurnTeams", 1)[:3] == [[1, 1]] * 3


def test_terminated_agent_without_a_last_observation() -> None:
    auditor = audit(TOY + "CountingAgents", 100, last_observation=False)
    assert auditor.agent_steps == 250
    assert int(auditor.episodes["CountingAgents", 0][0].obs[-1]["obs"][1]) == 24, "the last one that it acted on"


def test_behaviors_and_slots() -> None:
    patterns = {"late": ["agent_[23]"], "early": ["agent_0", "agent_1"]}
    env = make(TOY + "CountingAgents", 2, agents=patterns, deaths=(1, 2, 3, 4))
    assert env.num_slots == {"late": 4, "early": 4}
    auditor = AgentsAuditor(env).run(16)
    number = {(b, s): {int(o["obs"][2]) for e in episodes for o in e.obs} for (b, s), episodes in auditor.episodes.items()}
    assert number == {(b, s): {s % 2 + (2 if b == "late" else 0)} for b in patterns for s in range(4)}
    assert auditor.env_steps == 16, "once for all behaviors"
    agents = probe_env(TOY + "CountingAgents", {}, agents=patterns).agents
    assert agents == {"late": ("agent_2", "agent_3"), "early": ("agent_0", "agent_1")}


def test_a_world_steps_when_all_behaviors_have_acted() -> None:
    env = make(TOY + "CountingAgents", agents={"a": "agent_0", "b": "agent_[123]"})
    env.reset()
    message = env.poll(60)
    assert {name: steps.decision.agent_id.tolist() for name, steps in message.items()} == {"a": [0], "b": [0, 1, 2]}

    def act(behavior: str, *slots: int) -> None:
        env.act(behavior, np.array(slots), Actions(np.empty((len(slots), 0), np.float32), np.zeros((len(slots), 1), np.int32)))

    act("b", 0, 2)
    act("a", 0)
    assert (env.poll(60), env.in_flight) == ({}, 0)
    with pytest.raises(ValueError, match="b once and only agents that wait"):
        act("b", 0)
    with pytest.raises(ValueError, match="b once and only agents that wait"):
        act("b", 1, 1)
    act("b", 1)
    assert env.in_flight == 4
    assert sum(steps.env_steps for steps in env.poll(60).values()) == 1
    act("a", 0)
    env.reset()
    assert env.in_flight == 0
    assert all(steps.decision.first.all() for steps in env.poll(60).values())
    act("a", 0)
    act("b", 0, 1, 2)
    assert env.in_flight == 4


def test_arrays_that_the_world_changes_in_place() -> None:
    """C20."""
    auditor = audit(WORLDS + "SameArrays", 10, deaths=(10, 10))
    for slot in range(2):
        assert [int(o["obs"][1]) for o in auditor.episodes["SameArrays", slot][0].obs] == list(range(11))


def test_masks_in_info() -> None:
    spec = probe_spec(TOY + "MaskedAgents", {})
    assert spec["MaskedAgents"].action.masked
    assert audit(TOY + "MaskedAgents", 200, masked=["MaskedAgents"]).agent_steps == 500
    with pytest.raises(EnvFault, match=r"agent 'agent_0': info\['action_mask'\] is given here"):
        audit(TOY + "MaskedAgents", 1)


def seeds_seen(env: Any, env_steps: int = 6) -> list[tuple[int, ...]]:
    auditor = AgentsAuditor(env).run(env_steps)
    env.close()
    return [tuple(float(o["obs"][0]) for e in auditor.episodes[key] for o in e.obs) for key in sorted(auditor.episodes)]


def test_seeds() -> None:
    """C81: other numbers in every copy, the same again with the same seed; a resumed run goes on with streams of its own."""
    first, again, other = (seeds_seen(make(WORLDS + "Noise", 2, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert first[0] != first[1]
    env = make(WORLDS + "Noise", 2)
    AgentsAuditor(env).run(6)
    state = json.loads(json.dumps(env.state()))
    assert state == {"episodes_begun": {"0": 2, "1": 2}}
    resumed = make(WORLDS + "Noise", 2)
    resumed.load_state(state)
    assert resumed.state() == state
    assert seeds_seen(resumed)[0][:2] not in (first[0][:2], first[0][2:4])


@pytest.mark.parametrize(("kind", "text"), [
    ("leaves", r"agent 'agent_0': it left the world's agents without terminated or truncated.*\nenv 0, episode 0, step 2, last action"),
    ("truncated_blind", r"agent 'agent_0': it was truncated without a last observation"),
    ("nan", r"agent 'agent_1': non-finite observation 'obs'\[0\] = nan"),
    ("nan_reward", r"agent 'agent_1': non-finite reward nan"),
    ("stranger", r"agent 'nobody' is not one of possible_agents: agent_0, agent_1"),
    ("raises", r"RuntimeError: boom\n.*agent_worlds.py:\d+ \(step\), in step\(\)"),
    ("four", r"step\(\): expected \(observations, rewards, .*received a tuple of 4"),
    ("empty", r"the world has no agents after reset\(\).*\nenv 0, episode 0, step 0"),
    ("idle", r"no agent needed an action in 10000 steps"),
    ("reset_raises", r"RuntimeError: no reset\n(.*\n)*env 0, episode 0, step 0"),
])
def test_faults(kind: str, text: str) -> None:
    with pytest.raises(EnvFault, match=text):
        audit(WORLDS + "Faulty", 5, kind=kind)


@pytest.mark.parametrize("stepping", ["threads", "processes"])
def test_faults_elsewhere(stepping: str) -> None:
    with pytest.raises(EnvFault, match=r"RuntimeError: boom\n(.*\n)*env 1, episode 0, step 2, last action \{'agent_0': [01], 'agent_1': [01]\}"):
        make_and_run(stepping)


def make_and_run(stepping: str) -> None:
    batched = make_batched_env(WORLDS + "Faulty", {"kind": "raises"}, 1, stepping, np.random.SeedSequence(1), first_env_index=1)
    try:
        AgentsAuditor(batched).run(5)
    finally:
        batched.close()


def test_agent_that_leaves_a_world_in_turns() -> None:
    with pytest.raises(EnvFault, match="agent 'agent_0': it left the world's agents"):
        audit(WORLDS + "LeavesInTurns", 5)


@pytest.mark.parametrize(("agents", "text"), [
    ({"a": ["agent_0"]}, r"no behavior has the agent 'agent_1'. The patterns of the key agents are: a: agent_0"),
    ({"a": ["agent_*", "Agent_*"]}, r"behaviors.a.agents: no agent is called 'Agent_\*'; the world has the agents agent_0, agent_1, "),
    ({"a": ["agent_*"], "b": ["agent_3"]}, r"expected one behavior for the agent 'agent_3', received 2: a, b"),
    ({"a": ["agent_*"], "b": []}, r"behaviors.b.agents: expected at least one pattern"),
])
def test_wrong_patterns(agents: dict[str, list[str]], text: str) -> None:
    for call in (probe_spec, probe_env):
        with pytest.raises(ValueError, match=text):
            call(TOY + "CountingAgents", {}, agents=agents)
    for stepping in ("auto", "inline"):
        with pytest.raises(ValueError, match=text):
            make(TOY + "CountingAgents", stepping=stepping, agents=agents)


def test_different_spaces_in_one_behavior() -> None:
    with pytest.raises(ValueError, match=r"all agents of the behavior TwoKinds, but the observation space of agent_0 is Box.*\(3,\).* and that of "
                                         r"agent_1 is Box.*\(2,\).*behaviors.NAME.agents: \"agent_1\""):
        probe_spec(WORLDS + "TwoKinds", {})
    spec = probe_spec(WORLDS + "TwoKinds", {}, agents={"a": ["agent_0"], "b": ["agent_1"]})
    assert [s.observations[0].shape for s in spec.values()] == [(3,), (2,)]


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="list every agent that may appear in possible_agents, received none"):
        probe_spec(WORLDS + "unnamed", {})
    for call in (probe_spec, probe_env):
        with pytest.raises(ValueError, match=r"behaviors.a.agents: expected no patterns of agents for CartPole-v1"):
            call("CartPole-v1", {}, agents={"a": ["*"]})
    with pytest.raises(ValueError, match=r"behaviors.a.agents: expected no patterns of agents for CartPole-v1"):
        make("CartPole-v1", agents={"a": ["*"]})
    assert probe_env("CartPole-v1", {}).agents == {"CartPole": ()}


def test_step_that_blocks() -> None:
    env = make_batched_env(WORLDS + "Blocking", {}, 1, "threads", np.random.SeedSequence(1), step_timeout_s=0.2)
    try:
        with pytest.raises(EnvFault, match="has been blocked for"):
            AgentsAuditor(env).run(3)
    finally:
        env.close()
