"""Real worlds of PettingZoo against a bare loop over the same world with the same seed and actions."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from envs.factories import behavior_name
from envs.gymnasium_env import make_batched_env, probe_spec
from envs.seeding import env_seeds
from tests.envs.agents_audit import AgentsAuditor, bare_aec, bare_parallel, check_same

pytest.importorskip("pettingzoo", reason="needs the extra pettingzoo")
TAG = {"chasers": ["adversary_*"], "prey": ["agent_*"]}


@pytest.mark.parametrize(("module", "factory", "agents", "masked"), [
    ("mpe2.simple_spread_v3", "parallel_env", None, False),
    ("mpe2.simple_tag_v3", "parallel_env", TAG, False),
    ("mpe2.simple_tag_v3", "env", TAG, False),
    ("pettingzoo.classic.tictactoe_v3", "env", None, True),
    ("pettingzoo.classic.connect_four_v3", "env", None, True),
])
def test_is_what_a_bare_loop_sees(module: str, factory: str, agents: Any, masked: bool) -> None:
    try:
        world = getattr(importlib.import_module(module), factory)()
    except ImportError as error:
        pytest.skip(f"{module}: {error}")
    env, seed = f"{module}:{factory}", np.random.SeedSequence(3)
    assert all(spec.action.masked == masked for spec in probe_spec(env, {}, agents=agents).values())
    batched = make_batched_env(env, {}, 2, "inline", seed, wait_for_all=True, agents=agents)
    auditor = AgentsAuditor(batched).run(400)
    bare_loop = bare_parallel if factory == "parallel_env" else bare_aec
    for copy in range(2):
        def name(behavior: str, slot: int, copy: int = copy) -> str | None:
            own = batched.agents[behavior]
            return own[slot % len(own)] if slot // len(own) == copy else None

        actions = [(name(b, s), np.int64(choice)) for b, s, choice in auditor.actions if name(b, s) is not None]
        bare = bare_loop(world, env_seeds(seed, copy, 0).reset, actions)
        for (behavior, slot), episodes in auditor.episodes.items():
            if name(behavior, slot) is not None:
                check_same(episodes, bare[name(behavior, slot)])
    batched.close()
    world.close()
    assert sum(len(e.reward) > 3 and e.end != "" for own in auditor.episodes.values() for e in own) > 4


@pytest.mark.parametrize(("env", "name"), [
    ("mpe2.simple_spread_v3:parallel_env", "simple_spread"), ("pettingzoo.classic.tictactoe_v3:env", "tictactoe"),
    ("pettingzoo.sisl.pursuit_v4:raw_env", "pursuit"), ("my_duel:make_duel", "make_duel"), ("my_duel:env", "my_duel"),
])
def test_names(env: str, name: str) -> None:
    assert behavior_name(env) == name
