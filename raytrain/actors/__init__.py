"""The plain classes as Ray actors: the exchange of a behavior, env managers, trainers, and the ends of their wires."""

from raytrain.actors.ends import (
    CALL_TIMEOUT_S,
    RemotePolicySink,
    RemotePolicySource,
    RemoteReferee,
    RemoteReplayWriter,
    RemoteSink,
    RemoteSource,
)
from raytrain.actors.exchange import Exchange
from raytrain.actors.loops import EnvManagerActor, EvaluatorActor, ReplayWriterActor, Report, TrainerActor

__all__ = [
    "CALL_TIMEOUT_S", "EnvManagerActor", "EvaluatorActor", "Exchange", "RemotePolicySink", "RemotePolicySource", "RemoteReferee", "RemoteReplayWriter",
    "RemoteSink", "RemoteSource", "ReplayWriterActor", "Report", "TrainerActor",
]
