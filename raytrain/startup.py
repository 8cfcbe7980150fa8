"""The table that says, before training, what one behavior sees and does and how."""

from __future__ import annotations

from envs.specs import ActionSpec
from raytrain.plan import Plan


def startup_rows(plan: Plan) -> list[tuple[str, str]]:
    """(name, text) rows: spaces, distribution, mapping, normalisation, network, stepping."""
    network = plan.settings.network_settings
    rows = [
        (f"observation {o.name}", f"shape {o.shape}, {o.dtype}" + (", normalised" if network.normalize else ", as it is"))
        for o in plan.spec.observations
    ]
    rows += [("action", _space(plan.spec.action)), ("distribution", _distribution(plan.spec.action)), ("mapping", _mapping(plan.spec.action))]
    body = f"{network.num_layers} × {network.hidden_units} {network.activation}"
    shared = getattr(plan.settings.hyperparameters, "shared_critic", False)
    rows.append(("network", f"{body}, {'one body for actor and critic' if shared else 'actor and critic apart'}, float32"))
    rows.append(("mask, memory", "none"))
    return rows


def _space(action: ActionSpec) -> str:
    names = {"box": "Box", "discrete": "Discrete", "multi_discrete": "MultiDiscrete"}
    size = f"{action.continuous_size} dimensions" if action.kind == "box" else f"branches of {', '.join(map(str, action.discrete_branches))}"
    return f"{names[action.kind]}, {size}, {action.dtype}"


def _distribution(action: ActionSpec) -> str:
    if action.kind == "box":
        return "Gaussian, standard deviation learnt, the same in every state; samples clipped to [-1, 1] for the environment only"
    return "categorical" if len(action.discrete_branches) == 1 else "categorical per branch, joint log-probability"


def _mapping(action: ActionSpec) -> str:
    if action.kind == "box":
        pairs = [f"[{low:g}, {high:g}]" for low, high in zip(action.low, action.high)]
        return f"[-1, 1] → {pairs[0] if len(set(pairs)) == 1 else ', '.join(pairs[:6]) + (' …' if len(pairs) > 6 else '')}"
    if any(action.starts):
        return f"index + start ({', '.join(map(str, action.starts))})"
    return "index as it is"
