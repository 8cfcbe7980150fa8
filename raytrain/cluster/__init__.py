"""A run on a Ray cluster. Together with `raytrain.actors` the only part of raytrain that imports Ray."""

from raytrain.cluster.backend import RayBackend
from raytrain.cluster.connection import Connection, connect, disconnect
from raytrain.cluster.evaluator import RemoteEvaluator
from raytrain.cluster.nodes import check_nodes, check_resources, fitting, is_one_machine, live_nodes

__all__ = [
    "Connection", "RayBackend", "RemoteEvaluator", "check_nodes", "check_resources", "connect", "disconnect", "fitting", "is_one_machine", "live_nodes",
]
