"""Worlds of many agents that are started anew: all their agents are lost, of every behavior, and no account is mixed up (C17)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.gymnasium_env import make_batched_env
from envs.restarts import RestartLimits
from tests.envs.agents_audit import AgentsAuditor
from tests.envs.contract import POLL_S, random_actions

pytest.importorskip("pettingzoo", reason="needs the extra pettingzoo")
WORLDS = "tests.envs.agent_worlds:"
AGENTS = {"even": ["agent_0", "agent_2"], "odd": ["agent_1"]}


def make(folder: Path, world: str, num_envs: int, kwargs: dict[str, Any], **settings: Any):
    return make_batched_env(WORLDS + world, {"folder": str(folder), **kwargs}, num_envs, "processes", np.random.SeedSequence(1),
                            wait_for_all=True, restart_limits=RestartLimits(5, -1), **settings)


def ends(auditor: AgentsAuditor) -> dict[tuple[str, int], list[tuple[str, int]]]:
    """(behavior, slot) -> how each episode ended, and its transitions."""
    return {key: [(episode.end, len(episode.reward)) for episode in episodes] for key, episodes in auditor.episodes.items()}


def test_all_agents_of_the_world_are_lost(tmp_path: Path) -> None:
    """Those that run, of every behavior; not one that has ended before. What follows is what a world of its own gives."""
    env = make(tmp_path, "FragileAgents", 1, {"n": 6, "deaths": [2, 4, 4]}, agents=AGENTS)
    try:
        auditor = AgentsAuditor(env).run(12)
        faults = env.take_restarts()
        assert [(fault.env_index, fault.episode, fault.step) for fault in faults] == [(0, 1, 2)]
        assert set(faults[0].last_action) == {"agent_0", "agent_1", "agent_2"}
        done = "terminated"
        # The sixth step is the second of episode 1; the new world plays an episode, and three steps of the next.
        assert ends(auditor) == {
            ("even", 0): [(done, 2), ("lost", 1), (done, 2), (done, 2)], ("even", 1): [(done, 4), ("lost", 1), (done, 4), ("", 3)],
            ("odd", 0): [(done, 4), ("lost", 1), (done, 4), ("", 3)],
        }
        for episodes in auditor.episodes.values():
            for episode in episodes:
                assert [int(o["obs"][1]) for o in episode.obs] == list(range(len(episode.obs)))
                assert set(episode.reward) <= {1.0}
        assert env.episodes.tolist() == [env.state()["episodes_begun"]["0"] - 1]
    finally:
        env.close()


def test_an_agent_that_has_ended_is_not_lost(tmp_path: Path) -> None:
    """Agent 0 dies with step 2, the world with step 3."""
    env = make(tmp_path, "FragileAgents", 2, {"n": 3, "deaths": [2, 4, 4]}, agents=AGENTS)
    try:
        env.reset()
        rng, lost = np.random.default_rng(0), {}
        while not lost:
            message = env.poll(POLL_S)
            lost = {name: steps.lost.tolist() for name, steps in message.items() if steps.lost is not None}
            for behavior, steps in message.items() if not lost else ():
                if len(steps.decision):
                    env.act(behavior, steps.decision.agent_id, random_actions(env.behaviors[behavior], len(steps.decision), rng))
        assert lost == {"even": [1, 3], "odd": [0, 1]}
        for steps in message.values():
            assert steps.decision.first.all()
            assert len(steps.terminal) == 0
        assert env.in_flight == 0
    finally:
        env.close()


def test_groups(tmp_path: Path) -> None:
    """No return of a broken episode; team-mates of a new one are never taken for those of an old one."""
    groups = {"FragileAgents": {"all": ["agent_*"]}}
    env = make(tmp_path, "FragileAgents", 1, {"n": 6, "times": 2, "deaths": [2, 4], "each_step": 0.5}, groups=groups)
    try:
        auditor = AgentsAuditor(env).run(18)
        assert len(env.take_restarts()) == 2
        assert auditor.group_returns["FragileAgents"][:3] == [2.0, 2.0, 2.0]
        for slot in range(2):
            episodes = auditor.episodes["FragileAgents", slot]
            assert [episode.end for episode in episodes][:5] == ["terminated", "lost", "terminated", "lost", "terminated"]
            assert [episode.world_episode for episode in episodes] == list(range(len(episodes)))
        assert len(auditor.group_returns["FragileAgents"]) == sum(episode.group_ended for episode in auditor.episodes["FragileAgents", 1])
    finally:
        env.close()


def test_agents_in_turn(tmp_path: Path) -> None:
    """Also those that acted earlier and wait for their turn; one that has had no turn in the episode has nothing to lose."""
    env = make(tmp_path, "FragileTurns", 1, {"n": 2})
    try:
        auditor = AgentsAuditor(env).run(5)
        assert [(fault.episode, fault.step, fault.message.splitlines()[0]) for fault in env.take_restarts()] == [(0, 2, "RuntimeError: boom-42")]
        assert ends(auditor)["FragileTurns", 0][:1] == [("lost", 0)]
        assert ends(auditor)["FragileTurns", 1][:1] == [("lost", 0)]
        assert auditor.rewards("FragileTurns", 0)[1] == [2, 2]
        assert auditor.rewards("FragileTurns", 1)[1][:2] == [1 + 2, 1]
    finally:
        env.close()
    (tmp_path / "again").mkdir()
    env = make(tmp_path / "again", "FragileTurns", 1, {"n": 1})
    try:
        auditor = AgentsAuditor(env).run(2)
        assert ends(auditor)["FragileTurns", 0][:1] == [("lost", 0)]
        assert [end for end, _ in ends(auditor)["FragileTurns", 1]] == [""]
    finally:
        env.close()
