"""Where env managers stood when a checkpoint was made: what a run in lock-step that is resumed goes on from, in the middle of episodes.

In lock-step all agents stand still when a round is delivered: nothing is under way, and no row is left over. With several behaviors, whose
rounds end at different moments, the others are within theirs, and what they have collected is part of that place. An env manager notes it
(its newest ones; see `EnvManager.state`), and the checkpoint takes the one at which the rounds that are learnt from were delivered: of all
behaviors, so that there is one only where their parts of the checkpoint are of one moment. A round that has begun since is not in it; it is
collected once more, with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from raytrain.messages import CheckpointDue
from raytrain.plan import Plan
from raytrain.snapshot import Snapshot


def at_checkpoint(states: Mapping[str, dict[str, Any]], parts: Iterable[CheckpointDue]) -> tuple[dict[str, dict], dict[str, Any]]:
    """What a checkpoint has of env managers.

    Args:
        states: env manager -> `EnvManager.state`.
        parts: of all behaviors, in their order.

    Returns:
        Name -> streams of random numbers, JSON-able; name -> running episodes, none unless every manager's are known.
    """
    parts = list(parts)
    found = {}
    for name, state in states.items():
        rounds = tuple(part.rounds.get(name, -1) for part in parts)
        found[name] = next((stand for at, stand in state.get("stands", ()) if at == rounds), None)
    if not found or None in found.values():
        return {name: {key: state[key] for key in ("rng", "env")} for name, state in states.items()}, {}
    streams = {name: {key: stand[key] for key in ("rng", "env")} for name, stand in found.items()}
    return streams, {name: stand["running"] for name, stand in found.items()}


def why_not(plans: Sequence[Plan], snapshot: Snapshot) -> str:
    """Why a resumed run cannot go on in the middle of its episodes; empty when it can."""
    run = plans[0]
    if not run.lock_step:
        return "the run is not in lock-step"
    if not snapshot.running:
        return "the checkpoint has no running episodes"
    if list(snapshot.running) != list(run.managers):
        return f"the checkpoint is of {len(snapshot.running)} env managers, and there are {len(run.managers)} now"
    num_envs = {running["env"]["num_envs"] for running in snapshot.running.values()}
    if num_envs != {run.num_envs}:
        return f"the checkpoint is of {num_envs.pop()} environments in each env manager, and there are {run.num_envs} now"
    if any(set(running["lanes"]) != {plan.behavior for plan in plans} for running in snapshot.running.values()):
        return "the checkpoint is of other behaviors"
    return ""
