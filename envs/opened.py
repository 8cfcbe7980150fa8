"""One environment of a run, opened behind the boundary that suits it: what every worker steps."""

from __future__ import annotations

from typing import Any

from envs.aec_world import AecWorld
from envs.agent_behaviors import is_agent_world, is_parallel_world
from envs.agent_world import AgentWorld
from envs.factories import EnvFactory
from envs.parallel_world import ParallelWorld
from envs.single_env import SingleEnv


def open_env(factory: EnvFactory, made: Any = None) -> SingleEnv | AgentWorld:
    """A new environment behind the checks of the boundary.

    Args:
        made: what `factory` returned, where it has been called already.

    Raises:
        ValueError: the configuration or a space is not usable.
        EnvFault: the environment's own code raised.
    """
    made = factory.make() if made is None else made
    if is_agent_world(made):
        return (ParallelWorld if is_parallel_world(made) else AecWorld)(factory, made)
    factory.check_single()
    return SingleEnv(factory, made)
