"""The table that says, before training, what one behavior sees and does and how."""

from __future__ import annotations

from envs.specs import ActionSpec, path_text
from raytrain.plan import Plan

_SPACES = {"box": "Box", "discrete": "Discrete", "multi_discrete": "MultiDiscrete", "multi_binary": "MultiBinary"}


def startup_rows(plan: Plan) -> list[tuple[str, str]]:
    """(name, text) rows: spaces, distribution, mapping, normalisation, network, stepping.

    The parts of a Tuple or Dict of actions have rows of their own, named by their place: ``mapping[0]``, ``mapping['arm'][1]``.
    """
    settings, action = plan.settings, plan.spec.action
    use_sde = getattr(settings.hyperparameters, "use_sde", False)
    rows = [
        (f"observation {o.name}", f"shape {o.shape}, {o.dtype}" + (", normalised" if settings.network_settings.normalize else ", as it is"))
        for o in plan.spec.observations
    ]
    parts = [(path_text(part.path), part.action) for part in action.parts]
    if parts:
        container = "Tuple" if isinstance(action.parts[0].path[0], int) else "Dict"
        rows.append(("action", f"{container}, parts {', '.join(place for place, _ in parts)}, joint log-probability"))
    for place, part in parts or [("", action)]:
        rows += [
            (f"action{place}", _space(part)), (f"distribution{place}", _distribution(part, settings.trainer_type, use_sde)),
            (f"mapping{place}", _mapping(part)),
        ]
    rows.append(("network", _network(plan)))
    if settings.trainer_type == "sac":
        rows.append(("replay buffer", _replay(plan)))
    rows.append(("mask, memory", "none"))
    return rows


def _network(plan: Plan) -> str:
    network = plan.settings.network_settings
    critics = "actor and critic apart"
    if plan.settings.trainer_type == "sac":
        critics = "actor apart from twin critics with target networks"
    elif plan.settings.hyperparameters.shared_critic:
        critics = "one body for actor and critic"
    return f"{network.num_layers} × {network.hidden_units} {network.activation}, {critics}, float32"


def _replay(plan: Plan) -> str:
    hyper, size = plan.settings.hyperparameters, plan.replay_bytes()
    amount = f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
    saved = "saved with each checkpoint" if hyper.save_replay_buffer else "not saved (save_replay_buffer)"
    return f"{hyper.buffer_size:,} frames, {amount} in the trainer, {saved}"


def _space(action: ActionSpec) -> str:
    size = f"{action.continuous_size} dimensions" if action.kind == "box" else f"branches of {', '.join(map(str, action.discrete_branches))}"
    return f"{_SPACES[action.kind]}, {size}, {action.dtype}"


def _distribution(action: ActionSpec, trainer_type: str, use_sde: bool) -> str:
    if action.kind != "box":
        return "categorical" if len(action.discrete_branches) == 1 else "categorical per branch, joint log-probability"
    if trainer_type == "ppo":
        return "Gaussian, standard deviation learnt, the same in every state; samples clipped to [-1, 1] for the environment only"
    if use_sde:
        return "tanh-squashed Gaussian, generalized state-dependent exploration"
    return "tanh-squashed Gaussian, standard deviation depends on the state"


def _mapping(action: ActionSpec) -> str:
    if action.kind == "box":
        pairs = [f"[{low:g}, {high:g}]" for low, high in zip(action.low, action.high)]
        return f"[-1, 1] → {pairs[0] if len(set(pairs)) == 1 else ', '.join(pairs[:6]) + (' …' if len(pairs) > 6 else '')}"
    if any(action.starts):
        return f"index + start ({', '.join(map(str, action.starts))})"
    return "index as it is"
