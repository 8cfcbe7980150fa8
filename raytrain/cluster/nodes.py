"""The nodes of the Ray cluster: what they have, and whether a run fits them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import ray
from ray._private.state import available_resources_per_node
from ray._private.state import state as ray_state
from ray._private.worker import global_worker
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from envs.factories import EnvFactory
from raytrain.errors import ClusterError
from raytrain.node_check import compare_versions, import_problem, installed_versions, report
from raytrain.placement import (
    Claim,
    Node,
    claim_of,
    demands_of,
    env_manager_needs,
    refusal,
    shortage,
)
from raytrain.plan import Plan
from raytrain.settings import DistributedSettings
from raytrain.shipping import job_runtime_env

_REPORT_S = 25.0  # longest wait for nodes to say what they have: so that a wrong module is told within 30 s
_USAGE_S = 5.0


def check_resources(plans: Sequence[Plan], settings: DistributedSettings) -> list[str]:
    """Refuse a run that the cluster can never hold.

    Returns:
        Warnings: what a cluster that may still grow lacks now.

    Raises:
        ClusterError: names what is needed and what there is.
    """
    demands, nodes = demands_of(plans, settings), live_nodes()
    waits = settings.wait_for_resources or has_autoscaler()
    problem = refusal(demands, nodes, waits, ray_state.get_max_resources_from_cluster_config())
    if problem:
        raise ClusterError(problem)
    lack = shortage(demands, nodes) if waits else ""
    return [f"{lack}; the run waits for nodes"] if lack else []


def check_nodes(plans: Sequence[Plan], settings: DistributedSettings) -> list[str]:
    """Ask every node for its versions, and those that may hold env managers to import the environment and other code of the user's.

    Returns:
        Warnings: differences with which the run can go on, nodes that did not answer.

    Raises:
        ClusterError: a node cannot import the user's code, or has other versions with which nothing works.
    """
    plan, needs = plans[0], env_manager_needs(settings)
    factory = EnvFactory(plan.env, plan.env_kwargs, plan.import_dirs, plan.env_options)
    own_code = sorted({reference for one in plans for reference in one.own_code()}, key=lambda pair: pair[1])
    own, calls = ray.get_runtime_context().get_node_id(), {}
    for node in live_nodes():
        if node.id == own and not node.holds(needs):  # this process is there, with the versions that it compares with
            continue
        here = NodeAffinitySchedulingStrategy(node.id, soft=False)
        task = ray.remote(report).options(num_cpus=0, max_retries=0, scheduling_strategy=here)
        calls[node.name] = task.remote(factory if node.holds(needs) else None, own_code)
    done, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=_REPORT_S)
    reports, warnings = {}, []
    for name, call in calls.items():
        if call not in done:
            warnings.append(f"{name} did not answer within {_REPORT_S:.0f} s: whether it can import {plan.env} is not known")
            continue
        try:
            reports[name] = ray.get(call)
        except ray.exceptions.RayError as error:
            raise ClusterError(f"{name} cannot run raytrain: {_last_line(error)}\n{_shipping_hint()}") from error
    different, refused = compare_versions(installed_versions(), {name: found.versions for name, found in reports.items()})
    if refused:
        raise ClusterError("\n".join(refused))
    for name, found in reports.items():
        if found.problem:
            raise ClusterError(import_problem(found.what, name, found, _shipping_hint()))
    return warnings + different


def fitting(trainers: int, settings: DistributedSettings) -> int:
    """How many env managers the cluster has room for beside the trainers."""
    free = ray.cluster_resources().get("CPU", 0.0) - trainers * settings.trainer_cpus
    return int(free / settings.env_manager_cpus + 1e-9) if settings.env_manager_cpus else 1


def is_one_machine() -> bool:
    """Whether the Ray that is used is this machine alone."""
    return [n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]] == [ray.util.get_node_ip_address()]


def live_nodes() -> list[Node]:
    """The nodes of the cluster, the head first."""
    free = available_resources_per_node()
    nodes = [
        Node(n["NodeID"], n["NodeManagerAddress"], n["Resources"], free.get(n["NodeID"], {}), "node:__internal_head__" in n["Resources"])
        for n in ray.nodes() if n["Alive"]
    ]
    return sorted(nodes, key=lambda node: (not node.is_head, node.address, node.id))


def claims_that_wait() -> Counter[Claim]:
    """How often each claim is asked for and has no place yet, by everybody who uses the cluster. An actor whose process is only starting has its
    place: what it claims is no longer free, and it waits for nothing. Empty where Ray does not answer: nothing is said then."""
    counts: Counter[Claim] = Counter()
    try:
        usage = global_worker.gcs_client.get_all_resource_usage(timeout=_USAGE_S).resource_usage_data
    except ray.exceptions.RayError:
        return counts
    for one in usage.resource_load_by_shape.resource_demands:
        counts[claim_of(one.shape)] += one.num_ready_requests_queued + one.num_infeasible_requests_queued + one.backlog_size
    return counts


def has_autoscaler() -> bool:
    """Whether the cluster starts and ends nodes by itself: those that an autoscaler started carry the name of their type."""
    return any((node.get("Labels") or {}).get("ray.io/node-group") for node in ray.nodes() if node["Alive"])


def nodes_text() -> str:
    nodes = len(live_nodes())
    return f", {nodes} nodes" if nodes > 1 else ""


def _shipping_hint() -> str:
    if job_runtime_env() is not None:
        return "A job has what --working-dir names: submit it from the folder that holds the module, or install the package on every node."
    return "Keep the module in the folder of the configuration (import_from names another), which is shipped; or install its package on every node."


def _last_line(error: Exception) -> str:
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


def amount(number: float) -> str:
    return f"{number:g}"
