"""``raytrain record``: a trained policy, or a person at the keyboard, acts in an environment, and whole episodes become a demonstration."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from envs.base import BatchedEnv, EnvFault
from envs.demonstrations import SUFFIX, write_demonstrations
from envs.episode_recorder import EpisodeRecorder
from envs.factories import DEFAULT_OPTIONS, EnvFactory, EnvOptions
from envs.gymnasium_env import make_batched_env, probe_env
from envs.specs import Actions, ActionSpec, BehaviorSpec
from raytrain.checkpoint import find_checkpoint
from raytrain.checks import env_options
from raytrain.config import load_config
from raytrain.console import Console
from raytrain.predict import LoadedPolicy, load_policy

CONFIGURATION = "configuration.yaml"
EPISODES = 10
"""Episodes of a policy, unless told otherwise."""


@dataclass(frozen=True)
class World:
    """An environment to record in.

    Attributes:
        env, kwargs, options, import_dirs: as in `envs.factories.EnvFactory`.
    """

    env: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    options: EnvOptions = DEFAULT_OPTIONS
    import_dirs: tuple[str, ...] = ()

    @classmethod
    def of_file(cls, path: Path, import_dirs: Sequence[str] = ()) -> World:
        """The environment of a configuration file.

        Raises:
            ConfigError: the file is not one.
        """
        config = load_config(path)
        return cls(config.env, dict(config.env_kwargs), env_options(config), (*import_dirs, str(Path.cwd()), str(config.source_dir)))

    def factory(self) -> EnvFactory:
        """What makes it."""
        return EnvFactory(self.env, self.kwargs, self.import_dirs, self.options)


def configuration_file(path: Path) -> Path | None:
    """The saved configuration of the run that `path` is, or lies in as a checkpoint; None where there is none."""
    checkpoint = find_checkpoint(path).resolve()
    return next((f for f in (folder / CONFIGURATION for folder in (checkpoint, *checkpoint.parents[:2])) if f.is_file()), None)


def world_of_run(path: Path, env: str | None = None, import_dirs: Sequence[str] = ()) -> World:
    """The environment that the policy of a run or checkpoint was trained in.

    Args:
        path: a run folder, or a checkpoint inside one.
        env: another environment, without arguments; the run's wrappers are kept.

    Raises:
        ValueError: there is no configuration beside the policy, and no `env`.
    """
    file = configuration_file(path)
    if file is None:
        if env is None:
            raise ValueError(f"Expected {CONFIGURATION} in the run folder of {path}, found none; name the environment with --env.")
        return World(env, import_dirs=(*import_dirs, str(Path.cwd())))
    world = World.of_file(file, import_dirs)
    if not (world.env or env):
        raise ValueError(f"Expected an environment in {file}, found none, since the policy was cloned offline; name it with --env.")
    return world if env in (None, world.env) else World(env, {}, world.options, world.import_dirs)


def record_policy(
    policy: LoadedPolicy, world: World, episodes: int, seed: int, deterministic: bool, recorder: EpisodeRecorder | None = None,
    after_episode: Callable[[EpisodeRecorder], None] = lambda recorder: None,
) -> EpisodeRecorder:
    """Let a policy act until `episodes` whole episodes are recorded.

    The environment is seeded at its first reset and goes on from there, as in training; actions are drawn from a stream of their own.

    Args:
        recorder: where episodes go, so that those before an exception (Ctrl-C, a fault) are not lost.
        after_episode: called after each.

    Raises:
        ValueError: the environment cannot be made, or is not one that the policy was trained for.
        EnvFault: its own code raised, or gave a value that must not be learnt from.
    """
    found = probe_env(world.env, world.kwargs, world.import_dirs, world.options)
    name, spec = next(iter(found.behaviors.items()))
    if found.agents[name]:
        raise ValueError(f"{world.env}: expected an environment of one agent to record in, received a world of {', '.join(found.agents[name])}.")
    check_fits(policy.spec, spec, world.env)
    recorder = EpisodeRecorder(spec) if recorder is None else recorder
    env_seed, action_seed = np.random.SeedSequence(seed).spawn(2)
    # Copies step one environment at a time; what only comes as a vector environment is found out by "auto".
    stepping = "inline" if world.factory().is_gymnasium_id else "auto"
    env = make_batched_env(world.env, world.kwargs, 1, stepping, env_seed, import_dirs=world.import_dirs, options=world.options,
                           masked=spec.action.masked)
    try:
        _run(policy, env, name, episodes, np.random.default_rng(action_seed), deterministic, recorder, after_episode)
    finally:
        env.close()
    return recorder


def _run(
    loaded: LoadedPolicy, env: BatchedEnv, name: str, episodes: int, rng: np.random.Generator, deterministic: bool,
    recorder: EpisodeRecorder, after_episode: Callable[[EpisodeRecorder], None],
) -> None:
    policy = loaded.policy
    recorder.discard()
    env.reset()
    while True:
        steps = env.poll(1.0).get(name)
        if steps is None:
            continue
        last, now = steps.terminal, steps.decision
        if len(last):
            recorder.reward(last.reward[0])
            recorder.end(last.obs, last.terminated[0])
            after_episode(recorder)
            if recorder.episodes >= episodes:
                return
        if not len(now):
            continue
        if not now.first[0]:
            recorder.reward(now.reward[0])
        output = policy.act(now.obs, rng, deterministic, now.action_mask, with_entropy=False, agent_id=now.agent_id, first=now.first)
        actions = Actions(np.clip(output.actions.continuous, -1.0, 1.0), output.actions.discrete)
        recorder.decide(now.obs, actions, now.action_mask)
        env.act(name, now.agent_id, actions)


def check_fits(policy: BehaviorSpec, env: BehaviorSpec, name: str) -> None:
    """Refuse an environment that has other observations or actions than the policy was trained with.

    Raises:
        ValueError: says what differs.
    """
    expected, received = ({o.name: (o.dtype, list(o.shape)) for o in spec.observations} for spec in (policy, env))
    if policy.observations != env.observations:
        differ = f"observations {expected}, received {received}" if expected != received else f"{policy.observations}, received {env.observations}"
    elif policy.action != env.action:
        expected, received = _action_text(policy.action), _action_text(env.action)
        differ = f"actions {expected}, received {received}" if expected != received else f"{policy.action}, received {env.action}"
    else:
        return
    raise ValueError(f"{name}: expected an environment with the {differ}, since the policy was trained with them; name another with --env.")


def _action_text(action: ActionSpec) -> str:
    masks = " with masks" if action.masked else ""
    return f"{action.kind} ({action.continuous_size} continuous, branches {list(action.discrete_branches)}){masks}"


def run_command(options: argparse.Namespace) -> int:
    """The command with its parsed arguments; returns the exit code."""
    console = Console()
    try:
        out = None if options.out is None else _checked(Path(options.out).expanduser())
        if options.episodes is not None and options.episodes < 1:
            raise ValueError(f"Expected --episodes of at least 1, received {options.episodes}.")
        seed = int(np.random.SeedSequence().generate_state(1)[0]) if options.seed is None else options.seed
        if seed < 0:
            raise ValueError(f"Expected --seed of at least 0, received {seed}.")
        return (_record_person if options.keyboard else _record_policy)(options, console, out, seed)
    except EnvFault as fault:
        console.error(str(fault))
        return 1
    except OSError as error:
        console.error(f"Cannot write the demonstration: {error}")
        return 1
    except ValueError as error:  # DemonstrationError, CheckpointError and ConfigError are ValueErrors
        console.error(str(error))
        return 2


def _checked(out: Path) -> Path:
    if out.suffix != SUFFIX:
        raise ValueError(f"Expected --out FILE with a name ending in {SUFFIX}, received {out}.")
    if out.exists():
        raise ValueError(f"Expected --out FILE that is not there yet, received {out}, which exists; give another name or delete it.")
    return out


def _record_policy(options: argparse.Namespace, console: Console, out: Path | None, seed: int) -> int:
    for name in ("keys", "fps"):
        if getattr(options, name) is not None:
            raise ValueError(f"Expected --{name} with --keyboard only, received it for the policy {options.source}.")
    source, dirs = Path(options.source).expanduser(), options.import_dir
    episodes = EPISODES if options.episodes is None else options.episodes
    world = world_of_run(source, options.env, dirs)
    policy = load_policy(source, import_dirs=world.import_dirs)
    recorder = EpisodeRecorder(policy.spec)

    def say(recorder: EpisodeRecorder) -> None:
        console.message(f"episode {recorder.episodes} of {episodes}: return {recorder.returns[-1]:g}")

    def act() -> None:
        record_policy(policy, world, episodes, seed, options.deterministic, recorder, say)

    how = "deterministic" if options.deterministic else "sampled"
    about = {"source": f"policy {source} version {policy.version}, {policy.agent_steps} agent steps, {how} actions"}
    return _finish(act, recorder, console, out, world, seed, about)


def _record_person(options: argparse.Namespace, console: Console, out: Path | None, seed: int) -> int:
    from raytrain.keyboard import play, read_keys

    if options.env is not None:
        raise ValueError(f"Expected the environment once, received {options.source} and --env {options.env}; leave --env out with --keyboard.")
    if options.source.endswith((".yaml", ".yml")):
        world = World.of_file(Path(options.source), options.import_dir)
    else:
        world = World(options.source, import_dirs=(*options.import_dir, str(Path.cwd())))
    session = play(world.factory(), None if options.keys is None else read_keys(options.keys), seed, options.episodes, options.fps)
    console.message("Esc or closing the window ends the recording; an episode that is not over by then is left out.")
    return _finish(session.run, session.recorder, console, out, world, seed, {"source": "a person at the keyboard"})


def _finish(
    act: Callable[[], None], recorder: EpisodeRecorder, console: Console, out: Path | None, world: World, seed: int, about: dict[str, str],
) -> int:
    """Record with `act`; whatever ends it, whole episodes are saved."""
    fault, interrupted = None, False
    try:
        act()
    except KeyboardInterrupt:
        interrupted = True
    except EnvFault as error:
        fault = error
    if not recorder.episodes:
        if fault is not None:
            raise fault
        console.error("No whole episode was recorded, so nothing is saved.")
        return 130 if interrupted else 2
    now = datetime.now().astimezone()
    name = world.env.rpartition(":")[2].rpartition("/")[2]
    out = Path("demos") / f"{name}-{now:%Y%m%d-%H%M%S}{SUFFIX}" if out is None else out
    found = recorder.demonstrations()
    metadata = {**about, "env": world.env, "date": now.isoformat(timespec="seconds"), "seed": str(seed)}
    write_demonstrations(out, found, metadata)
    returns = found.episode_return
    if interrupted:
        console.message("interrupted: the episodes that were whole by then are kept")
    count = f"{found.episodes} {'episode' if found.episodes == 1 else 'episodes'}, {found.rows} {'row' if found.rows == 1 else 'rows'}"
    console.message(f"{count}, return mean {np.mean(returns):.6g}, min {np.min(returns):.6g}, max {np.max(returns):.6g}, seed {seed}")
    console.message(f"saved in {out}")
    if fault is not None:
        raise fault
    return 0
