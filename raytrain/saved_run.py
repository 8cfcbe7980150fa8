"""A run that is looked at again: a checkpoint of it, its policies, and its environment as it was in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from envs.randomization import Samplers
from envs.specs import BehaviorSpec
from raytrain.checkpoint import CheckpointError, find_checkpoint
from raytrain.checks import probe
from raytrain.config import load_config
from raytrain.judge import current_parameters
from raytrain.plan import Plan
from raytrain.record import CONFIGURATION, check_fits, configuration_file
from raytrain.remote import RemoteError, RemoteFolder, is_uri, join
from raytrain.run import plans_of
from raytrain.settings import RunConfig
from raytrain.snapshot import load_policy_part, load_run_part
from trainers.settings import NetworkSettings
from trainers.trainer import Weights

CHOICES = ("best", "latest")


@dataclass(frozen=True)
class SavedBehavior:
    """What a checkpoint has of one behavior.

    Attributes:
        spec, network, trainer_type: what its policy was made for, and by which algorithm.
        weights, version: of its policy.
        agent_steps: that it had learnt from.
        training_return: mean of the 100 episodes before the checkpoint; None before as many, or where that is a rating (self-play).
    """

    spec: BehaviorSpec
    network: NetworkSettings
    trainer_type: str
    weights: Weights
    version: int
    agent_steps: int
    training_return: float | None


@dataclass(frozen=True)
class SavedRun:
    """A checkpoint, ready to act in the environment of its run.

    Attributes:
        checkpoint: its folder on this machine.
        name: what it is for people.
        plans: of all behaviors, named as the environment names them.
        behaviors: by the same names.
        parameters: how the environment's parameters are drawn, in the lessons that the checkpoint had reached.
        shown_parameters: the same for people.
        self_play: behaviors that learnt by self-play.
    """

    checkpoint: Path
    name: str
    config: RunConfig
    plans: list[Plan]
    behaviors: dict[str, SavedBehavior]
    parameters: Samplers
    shown_parameters: dict[str, str]

    @property
    def self_play(self) -> list[str]:
        return [plan.behavior for plan in self.plans if plan.teams]

    @property
    def weights(self) -> dict[str, Weights]:
        """Behavior -> its policy's weights."""
        return {name: one.weights for name, one in self.behaviors.items()}

    @property
    def versions(self) -> dict[str, int]:
        """Behavior -> its policy's version."""
        return {name: one.version for name, one in self.behaviors.items()}


def check_what_to_play(episodes: int, seed: int | None) -> None:
    """Raise if the command line asks for what cannot be played.

    Raises:
        ValueError: no episode, or a seed below 0.
    """
    if episodes < 1:
        raise ValueError(f"Expected --episodes of at least 1, received {episodes}.")
    if seed is not None and seed < 0:
        raise ValueError(f"Expected --seed of at least 0, received {seed}.")


def checkpoint_of(run: str, which: str = "best") -> Path:
    """The checkpoint that is meant.

    Args:
        run: a run folder, a checkpoint folder, or the URI of one.
        which: ``best``, ``latest`` or the number of a checkpoint of the run.

    Raises:
        ValueError: `which` is none of these; a CheckpointError where there is no such checkpoint.
    """
    if which in CHOICES:
        return find_checkpoint(run, which, policy_only=True)
    if not which.isdecimal():
        raise ValueError(f"Expected --checkpoint best, latest or a number such as 12, received {which!r}.")
    name = f"{int(which):06d}"
    if is_uri(run):
        return find_checkpoint(join(run, "checkpoints", name), policy_only=True)
    folder = Path(run).expanduser() / "checkpoints"
    if not (folder / name).is_dir():
        there = ", ".join(sorted(p.name for p in folder.iterdir() if p.name.isdecimal())) if folder.is_dir() else ""
        raise CheckpointError(f"Expected a checkpoint of {run} in --checkpoint, received {which}. There are: {there or 'none'}.")
    return find_checkpoint(folder / name, policy_only=True)


def saved_config(run: str, checkpoint: Path) -> RunConfig | None:
    """The configuration that was saved with the run of a checkpoint; None where there is none.

    Raises:
        ConfigError: it is not one any more.
    """
    if not is_uri(run):
        file = configuration_file(checkpoint)
        return None if file is None else load_config(file)
    for place in (run, *(run.rstrip("/").rsplit("/", up)[0] for up in (1, 2))):  # of the run, its best/, a numbered checkpoint
        try:
            data = RemoteFolder(place).read(CONFIGURATION)
        except RemoteError as error:
            raise CheckpointError(f"Cannot read {error}. Check the URI, the credentials and the network.") from error
        if data is not None:
            return load_config(yaml.safe_load(data))
    return None


def load_saved_run(run: str, which: str = "best", env: str | None = None, import_dirs: Sequence[str] = ()) -> SavedRun:
    """A checkpoint with its environment, which is made once to see that it fits.

    Args:
        run, which: see `checkpoint_of`.
        env: another environment, without arguments and parameters; the run's wrappers are kept.
        import_dirs: folders that are searched for modules before those of the run.

    Raises:
        ValueError: no checkpoint, no environment, or one that the policies were not trained for.
        RunFault: the environment's own code raised.
    """
    checkpoint = checkpoint_of(run, which)
    names, state = load_run_part(checkpoint)
    saved = {name: _behavior(checkpoint, name) for name in names}
    config = _with_env(saved_config(run, checkpoint), env, saved, run)
    dirs = (*import_dirs, str(config.source_dir), str(Path.cwd()))
    found = probe(config, dirs)
    if found.behaviors.keys() != saved.keys():
        if len(saved) != 1 or len(found.behaviors) != 1:
            raise ValueError(f"{config.env}: expected an environment with the behaviors {', '.join(saved)}, received one with "
                             f"{', '.join(found.behaviors)}; name another with --env.")
        saved = dict(zip(found.behaviors, saved.values(), strict=True))
    for name, one in saved.items():
        check_fits(one.spec, found.behaviors[name], config.env)
    settings = list(config.behaviors.values())
    each = {name: config.behaviors.get(name) or (settings[0] if settings else config.default_settings) for name in found.behaviors}
    each = {name: own.model_copy(update={"network_settings": saved[name].network}) for name, own in each.items()}
    plans = plans_of(config.with_behaviors(each), found, dirs)
    curricula = (state.get("referee") or {}).get("curricula")
    samplers, shown = current_parameters(plans[0], curricula if plans[0].parameters else None)
    for plan in plans:
        if plan.teams:  # what is saved as its return is a rating
            saved[plan.behavior] = replace(saved[plan.behavior], training_return=None)
    return SavedRun(checkpoint, run if is_uri(run) else str(checkpoint), config, plans, saved, samplers, shown)


def _behavior(checkpoint: Path, name: str) -> SavedBehavior:
    fields, weights = load_policy_part(checkpoint, name)
    return SavedBehavior(fields["spec"], fields["network"], fields["trainer_type"], weights, fields["policy_version"],
                         fields["agent_steps"], fields["reward"])


def _with_env(config: RunConfig | None, env: str | None, saved: Mapping[str, SavedBehavior], run: str) -> RunConfig:
    """The configuration with the environment that is meant."""
    if config is None:
        if env is None:
            raise ValueError(f"Expected {CONFIGURATION} in the run folder of {run}, found none; name the environment with --env.")
        one = next(iter(saved.values()))
        trainer = one.trainer_type if one.trainer_type == "sac" else "ppo"  # others act as ppo's do, and ask for demonstrations or for their class
        settings: dict[str, Any] = {"trainer_type": trainer, "network_settings": one.network.model_dump(mode="json")}
        return load_config({"env": env, "default_settings": settings})
    if not (config.env or env):
        raise ValueError(f"Expected an environment in the configuration of {run}, found none, since the policy was cloned offline; name it with --env.")
    if env in (None, config.env):
        return config
    return config.model_copy(update={"env": env, "env_kwargs": {}, "environment_parameters": {}})
