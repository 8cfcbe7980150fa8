"""Action repeat and frame stacking for the agents of a world, against numbers worked out by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from envs.base import EnvFault
from envs.gymnasium_env import EnvOptions, make_batched_env, probe_spec
from envs.held_actions import HeldActions
from tests.envs.agents_audit import AgentsAuditor

pytest.importorskip("pettingzoo", reason="needs the extra pettingzoo")
TOY = "envs.toy_agents:"
WORLDS = "tests.envs.agent_worlds:"
TICTACTOE = "pettingzoo.classic.tictactoe_v3:env"
STACK_AND_REPEAT = EnvOptions(frame_stack=2, action_repeat=2)


def audit(env: str, env_steps: int, options: EnvOptions, stepping: str = "inline", groups: Any = None, masked: Any = False, **kwargs: Any) -> AgentsAuditor:
    batched = make_batched_env(env, kwargs, 1, stepping, np.random.SeedSequence(1), wait_for_all=True, options=options, groups=groups or {}, masked=masked)
    try:
        return AgentsAuditor(batched).run(env_steps)
    finally:
        batched.close()


def times(auditor: AgentsAuditor, behavior: str, slot: int) -> list[Any]:
    """Of every episode of an agent: when it saw what it was shown; lists of them with a stack."""
    return [[o["obs"][..., 1].astype(int).tolist() for o in episode.obs] for episode in auditor.episodes[behavior, slot]]


@pytest.mark.parametrize("stepping", ["inline", "processes"])
def test_every_action_is_done_twice_or_until_the_agent_ends(stepping: str) -> None:
    """Deaths at 5 and 4; `env_steps` are the world's."""
    auditor = audit(TOY + "CountingAgents", 5, EnvOptions(action_repeat=2), stepping, deaths=(5, 4))
    assert (auditor.env_steps, auditor.agent_steps) == (5, 5)
    assert auditor.rewards("CountingAgents", 0)[0] == [2, 2, 1]
    assert auditor.rewards("CountingAgents", 1)[0] == [2, 2]
    assert times(auditor, "CountingAgents", 0)[0] == [0, 2, 4, 5]
    assert times(auditor, "CountingAgents", 1)[0] == [0, 2, 4]


def test_a_world_that_is_over_in_the_middle_of_an_action_begins_with_decisions_of_its_own() -> None:
    auditor = audit(TOY + "CountingAgents", 9, EnvOptions(action_repeat=4), deaths=(3, 3), end="truncated")
    for slot in range(2):
        assert auditor.rewards("CountingAgents", slot)[:3] == [[3]] * 3
        assert times(auditor, "CountingAgents", slot)[:3] == [[0, 3]] * 3


def test_repeats_of_agents_that_pause_and_come_back() -> None:
    """Agents in turns: each repeats at its own turns. The third dies at 7 in the middle of an action, and decides anew when it is back."""
    auditor = audit(TOY + "DyingTeams", 20, EnvOptions(action_repeat=2))
    assert [times(auditor, "DyingTeams", slot)[0] for slot in (0, 1)] == [[0, 6, 12, 18, 20], [1, 7, 13, 19, 20]]
    assert times(auditor, "DyingTeams", 2) == [[2, 7], [14, 20]]
    assert auditor.rewards("DyingTeams", 0)[0] == [6, 6, 6, 2]
    assert auditor.rewards("DyingTeams", 1)[0] == [2 + 12, 12, 12, 2]
    assert auditor.rewards("DyingTeams", 2) == [[26], [30]]


def test_group_rewards_are_summed_too() -> None:
    groups = {"PayingAgents": {"team": "agent_*"}}
    auditor = audit(WORLDS + "PayingAgents", 5, EnvOptions(action_repeat=2), groups=groups, deaths=(5, 4), each_step=1.0, pays=[(3, "agent_0", 7.0)])
    assert [auditor.episodes["PayingAgents", slot][0].group_reward for slot in range(2)] == [[2, 8, 1], [2, 8]]
    assert auditor.episodes["PayingAgents", 0][0].env_step == [0, 2, 4, 5]
    assert auditor.group_returns == {"PayingAgents": [11.0]}


def test_it_is_the_same_action() -> None:
    """At time 1 the world wants another one than at time 0."""
    with pytest.raises(EnvFault, match="was not allowed at time 1"):
        audit(TOY + "MaskedAgents", 2, EnvOptions(action_repeat=2), masked=["MaskedAgents"])


def test_actions_that_the_world_changes() -> None:
    held = HeldActions(3)
    assert held.decides("a")
    for _ in range(2):
        held.next_step({"a": np.zeros(2)} if held.decides("a") else {})["a"] += 1
    assert not held.decides("a")
    np.testing.assert_array_equal(held.next_step({})["a"], [0, 0])
    assert held.decides("a")


def test_stacks_begin_with_the_first_observation_of_the_agents_episode() -> None:
    auditor = audit(TOY + "CountingAgents", 6, EnvOptions(frame_stack=3), deaths=(2, 3))
    assert times(auditor, "CountingAgents", 0)[:2] == [[[0, 0, 0], [0, 0, 1], [0, 1, 2]]] * 2
    assert times(auditor, "CountingAgents", 1)[:2] == [[[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]] * 2
    seen = auditor.episodes["CountingAgents", 1][1].obs[0]["obs"]
    np.testing.assert_array_equal(seen, np.float32([[1, 0, 1]] * 3), err_msg="nothing of the episode before, nothing of team-mates")
    (spec,) = probe_spec(TOY + "CountingAgents", {}, options=EnvOptions(frame_stack=3)).values()
    assert spec.observations[0].shape == (3, 3)


def test_stacks_of_agents_that_pause_and_come_back() -> None:
    """What an agent saw at its own turns; a second life begins with a stack of its own."""
    auditor = audit(TOY + "DyingTeams", 20, EnvOptions(frame_stack=2))
    assert times(auditor, "DyingTeams", 2) == [[[2, 2], [2, 5], [5, 7]], [[14, 14], [14, 17], [17, 20]]]
    assert auditor.rewards("DyingTeams", 2) == [[8 + 11, 7], [8 + 11, 11]], "as without"


def test_a_stack_is_of_what_is_seen_between_actions() -> None:
    auditor = audit(TOY + "CountingAgents", 5, STACK_AND_REPEAT, deaths=(5,))
    assert times(auditor, "CountingAgents", 0)[0] == [[0, 0], [0, 2], [2, 4], [4, 5]]


def test_a_terminated_agent_without_a_last_observation() -> None:
    auditor = audit(TOY + "CountingAgents", 2, EnvOptions(frame_stack=2), deaths=(2,), last_observation=False)
    assert times(auditor, "CountingAgents", 0)[0] == [[0, 0], [0, 1], [0, 1]]


def test_stacks_in_turns() -> None:
    auditor = audit(TOY + "TurnTeams", 5, EnvOptions(frame_stack=2))
    assert times(auditor, "TurnTeams", 0)[0] == [[0, 0], [0, 2], [2, 4]]
    assert auditor.rewards("TurnTeams", 0)[0] == [2, 2]


def test_stacks_beside_masks() -> None:
    """The board is stacked, the mask is not."""
    (spec,) = probe_spec(TICTACTOE, {}, options=EnvOptions(frame_stack=2)).values()
    assert spec.action.masked and [o.shape for o in spec.observations] == [(2, 3, 3, 2)]
    auditor = audit(TICTACTOE, 60, EnvOptions(frame_stack=2))
    for episodes in auditor.episodes.values():
        for episode in episodes:
            boards = [o["observation"] for o in episode.obs]
            np.testing.assert_array_equal(boards[0][0], boards[0][1])
            for before, after in pairwise(boards):
                np.testing.assert_array_equal(after[0], before[1])
                assert after[1].sum() > before[1].sum()


def test_arrays_that_the_world_changes_in_place() -> None:
    """C20 with a stack."""
    auditor = audit(WORLDS + "SameArrays", 4, EnvOptions(frame_stack=2), deaths=(4, 4))
    for slot in range(2):
        assert times(auditor, "SameArrays", slot)[0] == [[0, 0], [0, 1], [1, 2], [2, 3], [3, 4]]


def test_faults_are_named_as_without_a_stack() -> None:
    with pytest.raises(EnvFault, match=r"agent 'agent_1': non-finite observation 'obs'\[1, 0\] = nan"):
        audit(WORLDS + "Faulty", 5, EnvOptions(frame_stack=2), kind="nan")


def test_action_repeat_in_turns_is_refused() -> None:
    text = r"env_settings.action_repeat: expected 1, received 2: the agents of envs.toy_agents:TurnTeams act in turn, .*Take the key out"
    with pytest.raises(ValueError, match=text):
        probe_spec(TOY + "TurnTeams", {}, options=STACK_AND_REPEAT)
    for stepping in ("auto", "inline"):
        with pytest.raises(ValueError, match=text):
            make_batched_env(TOY + "TurnTeams", {}, 1, stepping, np.random.SeedSequence(1), options=STACK_AND_REPEAT)
