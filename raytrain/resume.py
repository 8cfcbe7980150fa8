"""What a run starts from: nothing, its own checkpoint, or the weights of another run; and whether that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from raytrain.checkpoint import CheckpointError, CheckpointStore, find_checkpoint
from raytrain.config_text import to_yaml
from raytrain.plan import Plan, Start
from raytrain.referee import Referee
from raytrain.remote import is_uri, run_address
from raytrain.run_folder import RunFolder
from raytrain.settings import RunConfig
from raytrain.snapshot import BehaviorSnapshot, Snapshot
from raytrain.standing import why_not
from raytrain.writers import flat
from trainers.networks import body_layout
from trainers.registry import policy_distribution
from trainers.self_play import snapshots_in
from trainers.trainer import TrainerState


def initial_snapshot(config: RunConfig) -> Snapshot:
    """What ``initialize_from`` names: a run id in the results folder, a run folder or a checkpoint folder."""
    saved = config.checkpoint_settings
    named = Path(saved.initialize_from)
    if is_uri(saved.initialize_from):
        path = saved.initialize_from
    elif named.is_dir():
        path = named
    else:
        path = run_address(saved.results_dir, saved.initialize_from)
    return CheckpointStore.load(find_checkpoint(path))


def starts_of(plans: Sequence[Plan], snapshot: Snapshot | None, source: Snapshot | None) -> tuple[dict[str, Start], list[dict] | None]:
    """Where the trainer of each behavior starts, and the states of the env managers (`EnvManager.load_state`) where a checkpoint has them."""
    orders = None
    if snapshot is not None and snapshot.run.get("referee"):
        _only_what_is_there(snapshot, {plan.behavior: plan.settings.self_play.window for plan in plans if plan.teams})
    if Referee.is_needed(plans):
        orders = Referee(plans, snapshot.run.get("referee") if snapshot is not None else None).orders
    starts = {plan.behavior: replace(_start_of(plan, snapshot, source), orders=orders) for plan in plans}
    if snapshot is None:
        return starts, None
    before = snapshot.run["managers"]
    # Seed streams belong to env indices, so they go on whatever number of managers the envs are spread over now.
    begun = {k: v for state in before.values() for k, v in state["env"]["episodes_begun"].items()}
    running = {} if why_not(plans, snapshot) else snapshot.running
    return starts, [
        {"rng": before.get(name, {}).get("rng"), "env": {"episodes_begun": begun}, "running": running.get(name)} for name in plans[0].managers
    ]


def _only_what_is_there(snapshot: Snapshot, windows: Mapping[str, int]) -> None:
    """Let the referee's state name no snapshot that its behavior's part of the checkpoint does not have: over Ray the parts are not of
    one moment. The newest one there is takes its place."""
    referee = snapshot.run["referee"]
    for behavior, side in referee["sides"].items():
        frozen = snapshot.behaviors[behavior].self_play if behavior in snapshot.behaviors else None
        if frozen is None:
            continue
        ids, there = list(frozen.scalars["ids"])[-windows.get(behavior, 1) :], set(snapshots_in(frozen))
        side["snapshots"] = ids
        for number in ids:
            side["frozen"].setdefault(str(number), dict(side["now"]))
        given = referee["opponents"].get(behavior, {})
        referee["opponents"][behavior] = {team: number if number in there else ids[-1] for team, number in given.items()}


def _start_of(plan: Plan, snapshot: Snapshot | None, source: Snapshot | None) -> Start:
    if snapshot is not None:
        one = _behavior_of(snapshot, plan)
        loop = snapshot.run.get("loops", {}).get(plan.behavior) or None
        return Start(one.policy, one.policy_version, state=one.trainer, env_steps=snapshot.run["env_steps"], elapsed_s=loop["elapsed_s"] if loop else 0.0,
                     self_play=one.self_play, loop=loop, replay=one.replay)
    if source is not None:
        one = _behavior_of(source, plan, begins=True)
        tensors = one.trainer.tensors
        if one.trainer_type == "bc":  # it has no critic, so that of a new run stays
            tensors = {**plan.first_weights(), **tensors}
        return Start(one.policy, 0, weights=TrainerState(tensors, one.trainer.scalars))
    return Start(plan.first_policy())


def _behavior_of(snapshot: Snapshot, plan: Plan, begins: bool = False) -> BehaviorSnapshot:
    """The plan's behavior in a checkpoint.

    Args:
        begins: a new run begins with its weights, for which an actor that was cloned is as good as one of ppo, and the other way round.

    Raises:
        CheckpointError: it is not there, or has other observations, actions or networks; the message names both sides.
    """
    if plan.behavior not in snapshot.behaviors:
        raise CheckpointError(f"Expected a checkpoint with the behavior {plan.behavior}, received one with {', '.join(snapshot.behaviors)}.")
    one = snapshot.behaviors[plan.behavior]
    saved = {"trainer_type": one.trainer_type, "distribution": one.distribution, **flat(one.network.model_dump()), **flat(one.spec.to_json())}
    wanted = {
        "trainer_type": plan.settings.trainer_type, "distribution": policy_distribution(plan.settings),
        **flat(plan.settings.network_settings.model_dump()), **flat(plan.spec.to_json()),
    }
    if plan.settings.trainer_type == one.trainer_type != "bc":  # which has no reward signals
        saved["reward_signals besides extrinsic"] = one.trainer.scalars.get("signals", [])
        wanted["reward_signals besides extrinsic"] = [name for name in plan.settings.reward_signals.active() if name != "extrinsic"]
    if plan.settings.trainer_type == one.trainer_type == "ppo" and body_layout(plan.architecture, "critic"):
        saved["shared_critic"] = not any(name.startswith("critic/") and not name.startswith("critic/value_") for name in one.trainer.tensors)
        wanted["shared_critic"] = plan.settings.hyperparameters.shared_critic
    if begins and {plan.settings.trainer_type, one.trainer_type} == {"ppo", "bc"}:
        saved["trainer_type"] = wanted["trainer_type"]
    keys = {**wanted, **saved}  # a section such as memory may be on one side only
    differ = [f"{key}: {saved.get(key)} in the checkpoint, {wanted.get(key)} here" for key in keys if saved.get(key) != wanted.get(key)]
    if differ:
        raise CheckpointError(
            f"The checkpoint of {plan.behavior} does not fit this configuration: {'; '.join(differ)}. Go back to the saved values, or begin "
            "a new run without --resume and --initialize-from."
        )
    return one


def changed_settings(folder: RunFolder, config: RunConfig) -> list[str]:
    """A line for each setting that differs from the configuration the run had before, and one when schedules move by it."""
    path = folder.path / "configuration.yaml"
    try:
        before = flat(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, AttributeError):
        return [f"{path} cannot be read, so changed settings are not listed"]
    now = flat(yaml.safe_load(to_yaml(config)))
    differ = [key for key in now if before.get(key) != now[key] and not key.startswith(("checkpoint_settings.", "import_from"))]
    lines = [f"{key}: {before.get(key)} (before) → {now[key]} (now)" for key in differ]
    is_linear = any(key.endswith("_schedule") and value == "linear" for key, value in now.items())
    if is_linear and any(key.endswith((".max_steps", ".schedule_steps")) for key in differ):
        lines.append("linear schedules now run to another end, so the values they have reached move with it")
    return lines


