"""``raytrain check-env``: what would go wrong in a run, found in seconds, on the user's own environment."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from envs.agent_behaviors import is_agent_world
from envs.agent_world import AgentWorld
from envs.base import EnvFault
from envs.factories import EnvFactory
from envs.gymnasium_env import probe_env
from envs.opened import open_env
from envs.seeding import env_seeds
from envs.single_env import Reset
from envs.specs import EnvProbe
from raytrain import env_check_single as single
from raytrain.console import Console
from raytrain.env_findings import Findings
from raytrain.env_speed import NUM_ENVS, Speed, add_speed, measure_speed
from trainers.architecture import ArchitectureError, architecture
from trainers.settings import NetworkSettings

STEPS = 1_000
_MARKS = {"ok": "ok", "note": "note", "warning": "warning", "error": "ERROR"}


@dataclass(frozen=True)
class Subject:
    """What is checked.

    Attributes:
        factory: makes it.
        num_envs: side by side, for the speed.
        networks: behavior -> its networks where a file says so.
    """

    factory: EnvFactory
    num_envs: int
    networks: dict[str, NetworkSettings]


def subject_of(text: str, kwargs: dict[str, Any], import_dirs: list[str]) -> Subject:
    """An id or ``module:factory``, or the environment of a configuration file.

    Raises:
        ValueError: the file is no configuration, or has no environment.
    """
    dirs = (*import_dirs, str(Path.cwd()))
    if not text.endswith((".yaml", ".yml")):
        return Subject(EnvFactory(text, kwargs, dirs), NUM_ENVS, {})
    from raytrain.checks import agent_patterns, env_options, group_patterns
    from raytrain.config import load_config

    config = load_config(text)
    if config.env is None:
        raise ValueError(f"Expected an environment in {text}, found none, since all is learnt from demonstrations.")
    factory = EnvFactory(config.env, {**config.env_kwargs, **kwargs}, (*import_dirs, str(config.source_dir)), env_options(config),
                         agents=agent_patterns(config.behaviors), groups=group_patterns(config.behaviors))
    networks = {name: settings.network_settings for name, settings in config.behaviors.items()}
    return Subject(factory, min(config.env_settings.num_envs, 64), networks)


def check(subject: Subject, steps: int = STEPS) -> tuple[Findings, Speed | None]:
    """Everything there is to find; the speed is None where the environment cannot be trained.

    Raises:
        ValueError: there is no such environment, or it takes no such arguments.
    """
    factory, findings = subject.factory, Findings()
    factory.load()
    try:
        made = factory.make()
    except EnvFault as fault:
        findings.add("making it", "error", str(fault), "correct that line")
        return findings, None
    except ValueError as error:
        if str(error).startswith("env_kwargs"):
            raise
        findings.add("making it", "error", str(error), "derive your class from gymnasium.Env")
        return findings, None
    try:
        if isinstance(made, gym.Env) and not single.check_signatures(factory, findings):
            return findings, None
        found = _probe(factory, findings)
        if found is None:
            return findings, None
        if isinstance(made, gym.Env):
            _check_single(factory, found, made, steps, findings)
        elif is_agent_world(made):
            _check_world(replace(factory, masked=[b for b, s in found.behaviors.items() if s.action.masked]), found, steps, findings)
        else:
            findings.add("kind", "ok", "a vector environment, stepped as a whole")
    finally:
        made.close()
    if findings.count("error"):
        return findings, None
    networks = {name: subject.networks.get(name) or NetworkSettings() for name in found.behaviors}
    networks = {name: one if one.model is None else NetworkSettings() for name, one in networks.items()}
    try:
        for name, spec in found.behaviors.items():
            architecture(spec, networks[name])
    except ArchitectureError as error:
        findings.add("networks", "error" if subject.networks else "warning", str(error), "set it in network_settings of the behavior")
        return findings, None
    speed = measure_speed(factory, found.behaviors, networks, subject.num_envs, findings)
    add_speed(speed, findings)
    return findings, speed


def _probe(factory: EnvFactory, findings: Findings) -> EnvProbe | None:
    try:
        return probe_env(factory.env, factory.kwargs, factory.import_dirs, factory.options, agents=factory.agents, groups=factory.groups)
    except (ValueError, EnvFault) as error:
        findings.add("spaces", "error", str(error), "" if isinstance(error, ValueError) else "correct that line")
        return None


def _check_single(factory: EnvFactory, found: EnvProbe, made: gym.Env, steps: int, findings: Findings) -> None:
    (spec,) = found.behaviors.values()
    findings.add("spaces", "ok", ", ".join(f"{o.name!r} {o.kind} {o.dtype} {list(o.shape)}" for o in spec.observations))
    if spec.left_out:
        findings.add("spaces", "note", f"text is left out: {', '.join(spec.left_out)}")
    single.check_actions(spec, made, findings)
    seen = single.check_steps(factory, spec, steps, findings)
    if not findings.count("error"):  # or there is too little to judge
        single.check_observations(seen, spec, made, findings)
        single.check_rewards(seen, findings)
        single.check_ends(seen, made, findings)
        single.check_seeds(factory, spec, findings)
    single.check_render(factory, made, findings)
    if not spec.action.masked:  # its actions are any
        single.check_by_gymnasium(factory, findings)


def _check_world(factory: EnvFactory, found: EnvProbe, steps: int, findings: Findings) -> None:
    for name, agents in found.agents.items():
        spec = found.behaviors[name]
        findings.add("behavior", "ok", f"{name}: {len(agents)} agents ({', '.join(agents[:4])}{', …' if len(agents) > 4 else ''}); "
                     f"{', '.join(f'{o.name} {list(o.shape)}' for o in spec.observations)}; {spec.action.kind}{' with masks' if spec.action.masked else ''}")
    one, again, other = (_world_steps(factory, seed, steps if seed else min(steps, 200)) for seed in (1, 1, 2))
    if isinstance(one, EnvFault):
        findings.add("steps", "error", str(one), "the first such value ends a training run; correct it in the world")
        return
    findings.add("steps", "ok", f"{len(one):,} steps with random actions: nothing that a run would refuse")
    if one != again:
        findings.add("seeds", "warning", "the same seed and actions gave other values, so no run can be repeated", "draw from a generator that reset(seed=…) makes anew")
    elif one == other:
        findings.add("seeds", "note", "two seeds gave the same episode")
    else:
        findings.add("seeds", "ok", "the same seed gives the same episode, another seed another one")


def _world_steps(factory: EnvFactory, seed: int, steps: int) -> list[tuple[Any, ...]] | EnvFault:
    """What `steps` of a world gave, comparable."""
    world = open_env(factory)
    assert isinstance(world, AgentWorld)
    try:
        outcome, given = world.run(Reset(env_seeds(np.random.SeedSequence(seed), 0, 0))), []
        for _ in range(steps):
            if isinstance(outcome, EnvFault):
                return outcome
            given.append(tuple((d.agent, d.reward, *(v.tobytes() for v in d.obs.values())) for d in outcome.decisions))
            outcome = world.run(world.random_command(outcome))
        return given if not isinstance(outcome, EnvFault) else outcome
    finally:
        world.close()


def run_command(options: argparse.Namespace) -> int:
    """The command with its parsed arguments; returns the exit code."""
    console = Console(quiet=options.json)
    try:
        if options.steps < 1:
            raise ValueError(f"Expected --steps of at least 1, received {options.steps}.")
        subject = subject_of(options.env, _arguments(options.env_kwargs), options.import_dir)
        with console.busy(f"stepping {subject.factory.env} with random actions, then measuring each way of stepping"):
            findings, speed = check(subject, options.steps)
    except EnvFault as fault:  # of importing the user's module
        console.error(str(fault), fault.user_traceback)
        return 1
    except ValueError as error:
        console.error(str(error))
        return 2
    if options.json:
        report = {"env": subject.factory.env, "findings": findings.to_json(), "speed": None if speed is None else asdict(speed)}
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _show(console, subject, findings)
    return 1 if findings.count("error") else 0


def _arguments(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"Expected --env-kwargs with JSON, such as '{{\"size\": 5}}', received {text}: {error}.") from None
    if not isinstance(found, dict):
        raise ValueError(f"Expected --env-kwargs with a JSON object, such as '{{\"size\": 5}}', received {text}.")  # noqa: TRY004 - bad input
    return found


def _show(console: Console, subject: Subject, findings: Findings) -> None:
    console.header(f"check of {subject.factory.env}", [(key, str(value)) for key, value in subject.factory.kwargs.items()])
    rows = [(_MARKS[one.level], one.check, f"{one.message.rstrip('.')}. To do: {one.fix}" if one.fix else one.message) for one in findings]
    console.columns(("", "check", "found"), rows)
    errors, warnings = findings.count("error"), findings.count("warning")
    if errors:
        console.message(f"{errors} {'error' if errors == 1 else 'errors'}: it cannot be trained as it is")
    elif warnings:
        console.message(f"it can be trained; {warnings} {'warning' if warnings == 1 else 'warnings'} to think about")
    else:
        console.message("it can be trained")
