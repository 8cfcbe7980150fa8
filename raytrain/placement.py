"""Which node which actor goes to, and whether a cluster can hold a run: numbers only, without Ray."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from raytrain.backends import trainer_name
from raytrain.plan import Plan
from raytrain.settings import DistributedSettings

_KEYS = {"trainer": ("distributed.trainer_cpus", "distributed.trainer_gpus", "distributed.trainer_resources"),
         "env manager": ("distributed.env_manager_cpus", "distributed.env_manager_resources", "distributed.env_manager_resources")}


@dataclass(frozen=True)
class Node:
    """A live node of the cluster.

    Attributes:
        id: Ray's, hexadecimal.
        address: IP.
        resources: name -> amount in all.
        free: name -> amount that nobody claims now.
    """

    id: str
    address: str
    resources: Mapping[str, float]
    free: Mapping[str, float] = field(default_factory=dict)
    is_head: bool = False

    @property
    def name(self) -> str:
        """For people: address, the beginning of the id (several nodes may be on one machine), and whether it is the head."""
        return f"{self.address} ({'head, ' if self.is_head else ''}node {self.id[:8]})"

    def holds(self, needs: Mapping[str, float], of: Mapping[str, float] | None = None) -> bool:
        """Whether it has all of `needs`, in all or within the amounts `of`."""
        have = self.resources if of is None else of
        return all(have.get(name, 0.0) + 1e-9 >= amount for name, amount in needs.items())

    def count(self, needs: Mapping[str, float]) -> float:
        """How many of `needs` it has room for; infinite where nothing is needed."""
        return min((math.floor(self.resources.get(name, 0.0) / amount + 1e-9) for name, amount in needs.items() if amount), default=math.inf)


@dataclass(frozen=True)
class Demand:
    """What one actor claims.

    Attributes:
        kind: ``trainer`` or ``env manager``.
        needs: resource -> amount, without zeros.
    """

    name: str
    kind: str
    needs: Mapping[str, float]


Claim = frozenset[tuple[str, float]]
"""Amounts of resources that can be counted and compared."""


def claim_of(needs: Mapping[str, float]) -> Claim:
    """What an actor claims, to four digits, as Ray has it."""
    return frozenset((name, round(amount, 4)) for name, amount in needs.items() if amount)


def without_a_place(pending: Sequence[Demand], queued: Mapping[Claim, int]) -> list[Demand]:
    """Those of `pending` that wait for a place. The others have one, and their processes are starting.

    Args:
        pending: in the order in which they asked; the first ones have been served.
        queued: claim -> requests that wait.
    """
    left, waiting = dict(queued), []
    for demand in reversed(pending):
        claim = claim_of(demand.needs)
        if left.get(claim, 0) > 0:
            left[claim] -= 1
            waiting.append(demand)
    return waiting[::-1]


def env_manager_needs(settings: DistributedSettings) -> dict[str, float]:
    """Resource -> amount that one env manager claims, without zeros."""
    return _without_zeros({"CPU": settings.env_manager_cpus, **settings.env_manager_resources})


def trainer_needs(settings: DistributedSettings) -> dict[str, float]:
    """Resource -> amount that one trainer claims, without zeros."""
    return _without_zeros({"CPU": settings.trainer_cpus, "GPU": settings.trainer_gpus, **settings.trainer_resources})


def _without_zeros(needs: Mapping[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in needs.items() if amount}


def demands_of(plans: Sequence[Plan], settings: DistributedSettings) -> list[Demand]:
    """What each trainer and env manager of a run claims; trainers first. Exchanges, the referee and the evaluator claim nothing."""
    trainers = [Demand(trainer_name(plan.behavior), "trainer", trainer_needs(settings)) for plan in plans]
    return trainers + [Demand(name, "env manager", env_manager_needs(settings)) for name in plans[0].managers]


def refusal(demands: Sequence[Demand], nodes: Sequence[Node], waits: bool, limits: Mapping[str, float] | None = None) -> str:
    """Why the cluster can never hold the run, with numbers and what to do; empty where it can, or may once it has grown.

    Args:
        nodes: all live ones.
        waits: nodes may still come, so that too little now is no reason.
        limits: resource -> most that the autoscaler would ever start; None where it does not say.
    """
    if waits:
        return _beyond(demands, nodes, limits) if limits is not None else ""
    return _total(demands, nodes) or _on_one_node(demands, nodes) or _room(demands, nodes)


def shortage(demands: Sequence[Demand], nodes: Sequence[Node]) -> str:
    """What a cluster that may still grow lacks now, for people; empty where it lacks nothing."""
    problem = _total(demands, nodes) or _on_one_node(demands, nodes) or _room(demands, nodes)
    return problem.split(". ")[0].removesuffix(".")


def _total(demands: Sequence[Demand], nodes: Sequence[Node]) -> str:
    """As a whole."""
    for name in dict.fromkeys(name for demand in demands for name in demand.needs):
        need, have = sum(d.needs.get(name, 0.0) for d in demands), sum(n.resources.get(name, 0.0) for n in nodes)
        if need <= have + 1e-9:
            continue
        parts = []
        for kind in ("env manager", "trainer"):
            own = [d.needs[name] for d in demands if d.kind == kind and name in d.needs]
            if own:
                parts.append(f"{len(own)} {kind}{'s' * (len(own) > 1)} × {own[0]:g}")
        return f"This run needs {_amount(name, need)} ({' + '.join(parts)}), and the Ray cluster has {have:g}. {_advice(name)}"
    return ""


def _advice(name: str) -> str:
    if name == "CPU":
        return ("Lower distributed.num_env_managers, distributed.env_manager_cpus or distributed.trainer_cpus (half a CPU is fine for simulators that "
                "mostly wait, and for trainers that learn in turn), or use a larger cluster; distributed.wait_for_resources: true waits for nodes.")
    if name == "GPU":
        return "Set distributed.trainer_gpus to 0 to train on CPUs, or use a cluster with GPUs."
    return f"""Start nodes with it (ray start --resources '{{"{name}": 1}}'), or take it out of distributed.trainer_resources and distributed.env_manager_resources."""


def _on_one_node(demands: Sequence[Demand], nodes: Sequence[Node]) -> str:
    """Each alone: no node has all that it needs."""
    for demand in {d.kind: d for d in demands}.values():
        if any(node.holds(demand.needs) for node in nodes):
            continue
        article = "An env manager" if demand.kind == "env manager" else "The trainer"
        for name, need in demand.needs.items():
            largest = max((node.resources.get(name, 0.0) for node in nodes), default=0.0)
            if largest + 1e-9 < need:
                return f"{article} needs {_amount(name, need)} on one node, and the largest node has {largest:g}. {_advice(name)}"
        wants = " and ".join(_amount(name, need) for name, need in demand.needs.items())
        has = "; ".join(f"{n.name}: {', '.join(_amount(name, n.resources.get(name, 0.0)) for name in demand.needs)}" for n in nodes)
        return f"{article} needs {wants} on one node, and no node has all of it ({has}). Lower one of {', '.join(dict.fromkeys(_KEYS[demand.kind]))}."
    return ""


def _room(demands: Sequence[Demand], nodes: Sequence[Node]) -> str:
    """Of one kind alone: pieces that no actor fits into do not add up."""
    for kind in ("trainer", "env manager"):
        own = [d for d in demands if d.kind == kind]
        room = sum(node.count(own[0].needs) for node in nodes) if own else math.inf
        if own and len(own) > room:
            needs = " and ".join(_amount(name, amount) for name, amount in own[0].needs.items())
            return (f"This run has {len(own)} {kind}s of {needs} each, and the nodes of the Ray cluster have room for {room:g}. Lower their number or "
                    "what each claims.")
    return ""


def _beyond(demands: Sequence[Demand], nodes: Sequence[Node], limits: Mapping[str, float]) -> str:
    """Of the largest that the cluster may grow to."""
    for name in dict.fromkeys(name for demand in demands for name in demand.needs):
        need = sum(d.needs.get(name, 0.0) for d in demands)
        most = max(limits.get(name, 0.0), sum(n.resources.get(name, 0.0) for n in nodes))
        if need > most + 1e-9:
            return f"This run needs {_amount(name, need)}, and the Ray cluster can grow to {most:g}. {_advice(name)}"
    return ""


def trainer_nodes(demands: Sequence[Demand], nodes: Sequence[Node]) -> dict[str, str]:
    """Trainer -> id of the node it goes to; a trainer that fits nowhere now is left out.

    Where it leaves the most room for env managers; of several such nodes the head, which no cloud takes away, then the one with most
    free. What is free now goes before what is there at all.
    """
    manager = next((d.needs for d in demands if d.kind == "env manager"), {})
    totals, free = ({node.id: dict(of(node)) for node in nodes} for of in (lambda n: n.resources, lambda n: n.free or n.resources))
    chosen: dict[str, str] = {}
    for demand in (d for d in demands if d.kind == "trainer"):
        fits = [n for n in nodes if n.holds(demand.needs, free[n.id])] or [n for n in nodes if n.holds(demand.needs, totals[n.id])]
        if not fits:
            continue

        def lost(node: Node, needs: Mapping[str, float] = demand.needs) -> float:
            """Env managers that have no room there any more."""
            left = {name: amount - needs.get(name, 0.0) for name, amount in totals[node.id].items()}
            before, after = Node("", "", totals[node.id]).count(manager), Node("", "", left).count(manager)
            return 0.0 if math.isinf(before) else before - after

        best = min(fits, key=lambda n: (lost(n), not n.is_head, -free[n.id].get("CPU", 0.0), n.id))
        chosen[demand.name] = best.id
        for left in (totals[best.id], free[best.id]):
            for name, amount in demand.needs.items():
                left[name] = left.get(name, 0.0) - amount
    return chosen


def evaluator_node(demands: Sequence[Demand], nodes: Sequence[Node], trainers: Collection[str]) -> str | None:
    """Id of the node for an evaluator, which claims nothing; None where no env manager could be, either.

    Of those that can hold env managers one without a trainer if there is one, then one without GPUs, unless environments need them.

    Args:
        trainers: ids of nodes that trainers go to.
    """
    needs = next((d.needs for d in demands if d.kind == "env manager"), {})
    fits = [node for node in nodes if node.holds(needs)]
    gpus = "GPU" not in needs
    best = min(fits, key=lambda n: (n.id in trainers, gpus and n.resources.get("GPU", 0.0) > 0.0, -n.resources.get("CPU", 0.0), n.id), default=None)
    return None if best is None else best.id


def missing(waiting: Iterable[Demand], nodes: Sequence[Node]) -> str:
    """What actors that Ray has not placed wait for: "env-manager-1 (needs 1 CPU, 0 of 2 free)"; empty without any."""
    groups: dict[tuple[tuple[str, float], ...], list[str]] = {}
    for demand in waiting:
        groups.setdefault(tuple(demand.needs.items()), []).append(demand.name)
    texts = []
    for needs, names in groups.items():
        who = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        parts = []
        for name, amount in needs:
            free, have = (sum(of(n).get(name, 0.0) for n in nodes) for of in (lambda n: n.free, lambda n: n.resources))
            parts.append(f"{_amount(name, amount)}, {free:g} of {have:g} free")
        each = "needs" if len(names) == 1 else "each needs"
        texts.append(f"{who} ({each} {'; '.join(parts) or 'nothing'})")
    return "; ".join(texts)


def plan_rows(places: Mapping[str, str], nodes: Sequence[Node]) -> list[tuple[str, str]]:
    """(node, actors on it) rows of the plan.

    Args:
        places: actor -> id of its node.
    """
    names = {node.id: node.name for node in nodes}
    rows: dict[str, list[str]] = {node.name: [] for node in nodes}
    for actor, node_id in places.items():
        rows.setdefault(names.get(node_id, f"node {node_id[:8]}"), []).append(actor)
    return [(name, ", ".join(actors) or "nothing of this run") for name, actors in rows.items()]


def _amount(name: str, amount: float) -> str:
    """"2 CPUs", "1 GPU", "0.5 of spot"."""
    return f"{amount:g} {name}{'s' * (amount != 1)}" if name in ("CPU", "GPU") else f"{amount:g} of {name}"
