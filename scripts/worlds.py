#!/usr/bin/env python
"""Compare the speed of 64 worlds of many agents with that of a bare loop over them: ``python scripts/worlds.py --json FILE``.

``bare``      a loop over the worlds in this thread, nothing but ``reset`` and ``step`` (in turns also ``last``, which shows an agent what it sees)
``stepped``   `envs.gymnasium_env.make_batched_env` with inline stepping, ``poll`` and ``act``, given the same actions
``collected`` an env manager with policy and collector, without a trainer (its games are other ones: the policy chooses)

The actions are drawn before. All three take turns in this process, so that they meet the same noise. Speeds are calls of the world's
``step`` by a second of the processor, which other processes disturb less than the clock; a share is the median of those of the repetitions.
``CountingAgents``, a world that does next to nothing, shows what each of its steps costs on top.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):  # before NumPy is loaded
    os.environ[_name] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import machine
import numpy as np
from rich.console import Console
from rich.table import Table

from envs.agent_behaviors import is_parallel_world, possible_agents
from envs.base import BatchedEnv
from envs.factories import EnvFactory
from envs.gymnasium_env import make_batched_env, probe_spec
from envs.specs import Actions
from raytrain.env_manager import EnvManager
from raytrain.messages import Credit, PolicyMessage
from raytrain.queues import LocalExchange
from trainers.initial_weights import initial_actor
from trainers.policy import Policy
from trainers.settings import NetworkSettings

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "simple_spread, 3 agents": ("mpe2.simple_spread_v3:parallel_env", {"N": 3}),
    "tictactoe, in turns": ("pettingzoo.classic.tictactoe_v3:env", {}),
    "CountingAgents, 3 agents": ("envs.toy_agents:CountingAgents", {"deaths": (25, 25, 25)}),
}
"""Worlds without chance in what is allowed, one Discrete action for each agent."""
WAYS = ("bare", "stepped", "collected")
TIME_HORIZON = 25
Step = Callable[[int], int]
"""Goes on for at least as many rounds as it is told; returns the calls of ``step``."""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--worlds", type=int, default=64, help="copies of each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=25, help="steps of every world in a repetition (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=21, help="of each way, in turn (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, too")
    options = parser.parse_args(words)
    figures = {case: compare(*CASES[case], options) for case in options.cases}
    facts = machine.describe(("numpy", "gymnasium", "pettingzoo", "mpe2"))
    table = Table("world", *(f"{way} (steps/s)" for way in WAYS), *(f"{way} ÷ bare" for way in WAYS[1:]), "ours (µs a step)",
                  title=f"{options.worlds} worlds, {options.repetitions} × {options.rounds} rounds")
    for case, found in figures.items():
        table.add_row(case, *(f"{found[way]['steps_per_cpu_s']:,.0f}" for way in WAYS), *(f"{found[way]['share']:.2f}" for way in WAYS[1:]),
                      f"{found['stepped']['added_us']:.0f}")
    console = Console()
    console.print(table)
    console.print(": ".join(machine.made(facts, [machine.today()])))
    if options.json is not None:
        data = facts | {"date": machine.today(), "worlds": options.worlds, "rounds": options.rounds, "repetitions": options.repetitions}
        options.json.write_text(json.dumps(data | {"cases": figures}, indent=1) + "\n", encoding="utf-8")
    return 0


def compare(env: str, kwargs: dict[str, Any], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Way -> its median speed, the share of the bare loop's, and what it adds to a step."""
    worlds = [EnvFactory(env, kwargs).make() for _ in range(options.worlds)]
    for index, world in enumerate(worlds):
        world.reset(seed=index)
    script = draw(worlds, options.rounds)
    (name, spec), *_ = probe_spec(env, kwargs).items()
    batched = [make_batched_env(env, kwargs, options.worlds, "inline", np.random.SeedSequence(1)) for _ in WAYS[1:]]
    steps: dict[str, Step] = {
        "bare": bare_parallel(worlds, script) if is_parallel_world(worlds[0]) else bare_turns(worlds, script),
        "stepped": stepped(batched[0], name, script), "collected": collected(batched[1], name, spec),
    }
    taken: dict[str, list[float]] = {way: [] for way in WAYS}  # seconds of the processor for each step of a world
    for repetition in range(options.repetitions + 1):
        for way, step in steps.items():
            started = time.process_time()
            number = step(options.rounds)
            if repetition:  # the first one fills caches
                taken[way].append((time.process_time() - started) / number)
    for one in (*worlds, *batched):
        one.close()
    shares = {way: [bare / own for bare, own in zip(taken["bare"], taken[way], strict=True)] for way in WAYS}
    added = {way: [own - bare for bare, own in zip(taken["bare"], taken[way], strict=True)] for way in WAYS}
    return {way: {"steps_per_cpu_s": 1 / median(taken[way]), "share": median(shares[way]), "added_us": 1e6 * median(added[way])} for way in WAYS}


def draw(worlds: Sequence[Any], rounds: int) -> list[list[dict[Any, int]]]:
    """Round -> world -> agent -> a random action, from a reset on; allowed ones where the worlds have masks in their observations."""
    ids = list(possible_agents(worlds[0], "").values())
    for index, agent in enumerate(ids):
        worlds[0].action_space(agent).seed(index)
    if is_parallel_world(worlds[0]):
        return [[{agent: worlds[0].action_space(agent).sample() for agent in ids} for _ in worlds] for _ in range(rounds)]
    script: list[list[dict[Any, int]]] = [[] for _ in range(rounds)]
    for world in worlds:
        world.reset()
        for now in script:
            agent = next_turn(world)
            observation = world.observe(agent)
            mask = observation.get("action_mask") if isinstance(observation, dict) else None
            now.append({agent: worlds[0].action_space(agent).sample(mask)})
            world.step(now[-1][agent])
    return script


def next_turn(world: Any) -> Any:
    """The agent that acts next, after dead ones are taken out, and a reset where none is left."""
    while True:
        if not world.agents:
            world.reset()
        *_, terminated, truncated, _ = world.last()
        if not terminated and not truncated:
            return world.agent_selection
        world.step(None)


def bare_parallel(worlds: Sequence[Any], script: list[list[dict[Any, int]]]) -> Step:
    def step(rounds: int) -> int:
        for world in worlds:
            world.reset()
        for now in script[:rounds]:
            for world, actions in zip(worlds, now, strict=True):
                world.step(actions)
                if not world.agents:
                    world.reset()
        return rounds * len(worlds)

    return step


def bare_turns(worlds: Sequence[Any], script: list[list[dict[Any, int]]]) -> Step:
    def step(rounds: int) -> int:
        for world in worlds:
            world.reset()
            world.last()
        for now in script[:rounds]:
            for world, actions in zip(worlds, now, strict=True):
                (action,) = actions.values()
                world.step(action)
                next_turn(world)
        return rounds * len(worlds)

    return step


def stepped(env: BatchedEnv, name: str, script: list[list[dict[Any, int]]]) -> Step:
    ids = {str(agent): index for index, agent in enumerate(dict.fromkeys(agent for now in script for actions in now for agent in actions))}
    order = [ids[agent] for agent in env.agents[name]]  # a behavior's slots have its agents in the order of the world's possible_agents
    table = np.zeros((len(script), len(script[0]), len(ids), 1), np.int32)  # [round, world, agent, branch]
    for number, now in enumerate(script):
        for world, actions in enumerate(now):
            for agent, action in actions.items():
                table[number, world, order.index(ids[str(agent)])] = action
    table = table.reshape(len(script), -1, 1)

    def step(rounds: int) -> int:
        env.reset()
        steps, number = env.poll(60)[name], 0
        for now in table[:rounds]:
            agents = steps.decision.agent_id
            env.act(name, agents, Actions(np.empty((len(agents), 0), np.float32), now[agents]))
            steps = env.poll(60)[name]
            number += steps.env_steps
        return number

    return step


def collected(env: BatchedEnv, name: str, spec: Any) -> Step:
    policy, exchange = Policy(spec, NetworkSettings(hidden_units=64, num_layers=2)), LocalExchange(1000)
    manager = EnvManager("measured", env, {name: exchange}, {name: exchange}, {name: policy}, {name: TIME_HORIZON}, np.random.SeedSequence(2))
    weights = initial_actor(policy.architecture, np.random.default_rng(3), "gaussian")
    exchange.publish(PolicyMessage(0, 0, weights, {"measured": Credit(0, (sys.maxsize,))}))
    manager.start()

    def step(rounds: int) -> int:
        before = manager.status().env_steps
        for _ in range(rounds):
            manager.advance(0.0)
            while exchange.waiting():
                exchange.take()
        return manager.status().env_steps - before

    return step


if __name__ == "__main__":
    sys.exit(main())
