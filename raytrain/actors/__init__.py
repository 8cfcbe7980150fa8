"""The plain classes as Ray actors: the exchange of a behavior, env managers, trainers, and the ends of their wires."""

from raytrain.actors.ends import (
    CALL_TIMEOUT_S,
    RemotePolicySink,
    RemotePolicySource,
    RemoteReferee,
    RemoteSink,
    RemoteSource,
)
from raytrain.actors.exchange import Exchange
from raytrain.actors.loops import EnvManagerActor, EvaluatorActor, Report, TrainerActor
from raytrain.actors.replay import OtherNodesReplay, RemoteReplayWriter, ReplayDiskActor, own_node, start_disk

__all__ = [
    "CALL_TIMEOUT_S", "EnvManagerActor", "EvaluatorActor", "Exchange", "OtherNodesReplay", "RemotePolicySink", "RemotePolicySource", "RemoteReferee",
    "RemoteReplayWriter", "RemoteSink", "RemoteSource", "ReplayDiskActor", "Report", "TrainerActor", "own_node",
    "start_disk",
]
