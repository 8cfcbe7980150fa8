"""The script that compares the speed of worlds: that all of its ways make the steps they say, and the same ones where they should."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pettingzoo", reason="needs the extra pettingzoo")
pytest.importorskip("mpe2", reason="needs the extra pettingzoo")
sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "scripts")]

import worlds

from envs.factories import EnvFactory
from envs.gymnasium_env import make_batched_env


@pytest.mark.parametrize("case", list(worlds.CASES))
def test_bare_and_stepped_do_the_same(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The actions that reach the worlds, seen from inside; the repetition begins with a reset in both."""
    env, kwargs = worlds.CASES[case]
    made = [EnvFactory(env, kwargs).make() for _ in range(2)]
    script = worlds.draw(made, 12)
    batched = make_batched_env(env, kwargs, 2, "inline", np.random.SeedSequence(1))
    name, given = next(iter(batched.behaviors)), {"bare": [], "stepped": []}
    for way, own in (("bare", made), ("stepped", [one.world for one in batched._workers._envs])):
        for number, world in enumerate(own):
            step, into = world.step, given[way]
            monkeypatch.setattr(world, "step", lambda action, step=step, into=into, number=number: (into.append((number, plain(action))), step(action))[1])
    bare = worlds.bare_turns(made, script) if "turns" in case else worlds.bare_parallel(made, script)
    assert bare(12) == worlds.stepped(batched, name, script)(12) == 24
    assert sorted(given["bare"], key=lambda one: one[0]) == sorted(given["stepped"], key=lambda one: one[0])
    assert len({str(one) for one in given["bare"]}) > 5


def plain(action: object) -> object:
    return {agent: int(own) for agent, own in action.items()} if isinstance(action, dict) else None if action is None else int(action)


def test_the_file_of_figures(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert worlds.main(["--cases", "CountingAgents, 3 agents", "--worlds", "2", "--rounds", "30", "--repetitions", "2", "--json", str(file)]) == 0
    data = json.loads(file.read_text())
    assert set(data["cases"]["CountingAgents, 3 agents"]) == set(worlds.WAYS) and data["worlds"] == 2
    assert data["cases"]["CountingAgents, 3 agents"]["bare"]["share"] == 1.0
