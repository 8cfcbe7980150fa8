"""Where the actors of a run go, and went."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ray._private.state import state as ray_state
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raytrain.backends import trainer_name
from raytrain.cluster.nodes import claims_that_wait, live_nodes
from raytrain.evaluation import EVALUATOR
from raytrain.placement import (
    Demand,
    demands_of,
    env_manager_needs,
    evaluator_node,
    missing,
    plan_rows,
    trainer_needs,
    trainer_nodes,
    without_a_place,
)
from raytrain.plan import Plan
from raytrain.settings import DistributedSettings

_ASK_EVERY_S = 10.0  # how often Ray is asked what actors wait for


class Placement:
    """Where the actors of a run should go, as options of ``ray.remote``, and where they went.

    Trainers go to nodes chosen by `raytrain.placement.trainer_nodes`, each with its exchange beside it; env managers are spread. A node that
    is chosen is asked for, not insisted on: an actor that is started again after it has died goes elsewhere.
    """

    def __init__(self, plans: Sequence[Plan], settings: DistributedSettings) -> None:
        self._settings = settings
        self._demands = {demand.name: demand for demand in demands_of(plans, settings)}
        nodes = live_nodes()
        self._has_places = get_current_placement_group() is not None  # a trial of a sweep: all that it claims is there already
        self._is_spread = len(nodes) > 1 and not self._has_places
        self._chosen = trainer_nodes(list(self._demands.values()), nodes) if self._is_spread else {}
        self._evaluator = evaluator_node(list(self._demands.values()), nodes, self._chosen.values()) if self._is_spread else None
        self._has_gpus = any(node.resources.get("GPU") for node in nodes)
        self._asked_s, self._text = time.monotonic(), ""  # the first moments are no wait

    def exchange(self, behavior: str) -> dict[str, Any]:
        """Options of a behavior's exchange: on its trainer's node, since all that is collected passes through it to there."""
        return {"num_cpus": 0, **self._on(trainer_name(behavior))}

    def trainer(self, behavior: str) -> dict[str, Any]:
        """Options of a behavior's trainer."""
        return {**_claims(trainer_needs(self._settings)), **self._gpus(self._settings.trainer_gpus), **self._on(trainer_name(behavior))}

    def env_manager(self) -> dict[str, Any]:
        """Options of every env manager."""
        needs = env_manager_needs(self._settings)
        spread = {"scheduling_strategy": "SPREAD"} if self._is_spread else {}
        return {**_claims(needs), **self._gpus(needs.get("GPU", 0.0)), **spread}

    def evaluator(self) -> dict[str, Any]:
        """Options of an evaluator: its environments are those of an env manager, so it goes where these do and sees what they see."""
        return {"num_cpus": 0, **self._gpus(env_manager_needs(self._settings).get("GPU", 0.0)), **_at(self._evaluator)}

    def _on(self, trainer: str) -> dict[str, Any]:
        return _at(self._chosen.get(trainer))

    def _gpus(self, claimed: float) -> dict[str, Any]:
        """Ray leaves every GPU visible to an actor that claims none."""
        hides = self._has_gpus and not claimed
        return {"runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}} if hides else {}

    def rows(self, actors: Mapping[str, Any], evaluates: bool) -> list[tuple[str, str]]:
        """(node, actors on it) by where they are now; empty on a single node.

        Args:
            actors: name -> handle.
            evaluates: there will be an evaluator, too, which begins with the first evaluation.
        """
        nodes = live_nodes()
        if len(nodes) < 2:
            return []
        places = {name: _table(actor)["Address"]["NodeID"] for name, actor in actors.items()}
        if evaluates and self._evaluator is not None:
            places[EVALUATOR] = self._evaluator
        return plan_rows(places, nodes)

    def missing(self, actors: Mapping[str, Any]) -> str:
        """What those of `actors` that Ray has not placed wait for; looked up every few seconds only."""
        if not self._has_places and time.monotonic() - self._asked_s >= _ASK_EVERY_S:
            nodes = live_nodes()
            later = env_manager_needs(self._settings)  # of env managers that came by `scale`
            pending = [self._demands.get(name) or Demand(name, "env manager", later) for name, actor in actors.items() if is_pending(actor)]
            waiting = without_a_place(pending, claims_that_wait()) if pending else []
            self._text = missing(waiting, nodes) if waiting else ""
            self._asked_s = time.monotonic()
        return self._text


def _at(node: str | None) -> dict[str, Any]:
    """A node that is asked for, as options of ``ray.remote``; None is any."""
    return {} if node is None else {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True)}


def _claims(needs: Mapping[str, float]) -> dict[str, Any]:
    """A claim as options of ``ray.remote``."""
    others = {name: amount for name, amount in needs.items() if name not in ("CPU", "GPU")}
    return {"num_cpus": needs.get("CPU", 0.0), "num_gpus": needs.get("GPU", 0.0), **({"resources": others} if others else {})}


def _table(actor: Any) -> dict[str, Any]:
    return ray_state.actor_table(actor._actor_id.hex())


def is_pending(actor: Any) -> bool:
    """Whether it has no process yet."""
    return _table(actor).get("State") in ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING")
