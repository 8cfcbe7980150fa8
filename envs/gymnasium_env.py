"""Environments of every kind, Gymnasium's single and vector ones and PettingZoo's worlds, as one `BatchedEnv`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from envs.agent_behaviors import WorldSpec, is_agent_world, masked_in_info, world_spec
from envs.agent_groups import NO_GROUPS, Groups
from envs.base import BatchedEnv
from envs.copies import CopiesEnv
from envs.envpool_env import EnvPoolVectorEnv, is_envpool
from envs.factories import DEFAULT_OPTIONS, EnvFactory, EnvOptions, behavior_name
from envs.faults import env_fault
from envs.masks import mask_in, mask_method
from envs.native import NativeVectorEnv
from envs.opened import open_env
from envs.pettingzoo_env import PettingZooEnv
from envs.randomization import Samplers, check_takes_parameters
from envs.restarts import RestartLimits
from envs.spaces import behavior_spec
from envs.specs import BehaviorSpec, EnvProbe
from envs.step_record import StepRecord
from envs.stepping import make_workers, measure
from envs.vector_masks import vector_mask_method

__all__ = ["STEPPING", "EnvOptions", "behavior_name", "make_batched_env", "probe_env", "probe_spec"]

STEPPING = ("auto", "inline", "threads", "processes")
NO_PARAMETERS: Mapping = MappingProxyType({})


def make_batched_env(
    env: str,
    env_kwargs: dict[str, Any],
    num_envs: int,
    stepping: str,
    seed: np.random.SeedSequence,
    first_env_index: int = 0,
    import_dirs: Sequence[str] = (),
    wait_for_all: bool = False,
    step_timeout_s: float | None = None,
    options: EnvOptions = DEFAULT_OPTIONS,
    masked: bool | Collection[str] = False,
    parameters: Samplers = NO_PARAMETERS,
    agents: Mapping[str, Sequence[str]] | None = None,
    groups: Groups = NO_GROUPS,
    own_generators: bool = False,
    lesson: int = 0,
    restart_limits: RestartLimits | None = None,
    record_path: Path | None = None,
) -> BatchedEnv:
    """`num_envs` environments behind the batched protocol.

    Args:
        env: Gymnasium id, ``module:factory`` or ``envpool:Id-v0``. A factory may return a `gymnasium.Env`, or a
            `gymnasium.vector.VectorEnv` of `num_envs` environments; it is given ``num_envs`` when it has a parameter of that name.
            It may also return a ``ParallelEnv`` or ``AECEnv`` of PettingZoo, a world of many agents (see `envs.pettingzoo_env`).
        env_kwargs: arguments of the environment or factory; of ALE's vector environment for ``ALE/…`` (see `envs.atari`).
        stepping: ``"inline"``, ``"threads"``, ``"processes"`` or ``"auto"``.
        seed: root of the environments' seed streams, the same for all env managers of a run.
        first_env_index: index of the first environment among all environments of the run.
        import_dirs: folders searched for a module before ``sys.path``.
        wait_for_all: `poll` returns only when all busy environments are ready, in order, so that results do not depend on timing.
        step_timeout_s: longest time that one step (with the reset that follows an end) may take; enforced with threads and
            processes. Inline and native stepping run in the caller's thread, where nothing can interrupt a step.
        options: frame stacking, action repeat, Atari preprocessing.
        masked: `probe_spec` found the behavior masked; in a world of many agents the names of the behaviors for which it did. Needed
            where masks are in ``info`` only; otherwise it is found out here.
        agents: behavior -> patterns of the names of its agents (`fnmatch`), for worlds of many agents. None or empty: all are one
            behavior, called `behavior_name(env)`.
        groups: behavior -> group -> patterns of the names of its agents (see `envs.agent_groups`).
        parameters: how each environment's parameters are drawn (name -> sampler); with any, single environments are stepped.
        lesson: tag of the episodes that begin with them.
        own_generators: no vector environment that draws from one generator for all, where there are single ones: what an environment
            draws then does not depend on when the others reset.
        restart_limits: of each environment with a process of its own, which is then started anew after a fault that is `restartable`.
            None: none is. With the other ways of stepping the fault is raised in any case.
        record_path: file that says what each environment is doing (see `envs.step_record`), where a crash of one takes this process with it
            or a hanging one blocks it: with every stepping but processes. None: no such file.

    Raises:
        ValueError: the configuration or a space is not usable.
        EnvFault: the environment's own code raised.
    """
    _check_stepping(env, stepping)
    if num_envs < 1:
        raise ValueError(f"env_settings.num_envs: expected at least 1, received {num_envs}.")
    factory = EnvFactory(env, dict(env_kwargs), tuple(str(folder) for folder in import_dirs), options, masked, _patterns(agents), _group_patterns(groups))
    if stepping == "auto":
        chosen = _choose(factory, num_envs, seed, tuple(parameters), own_generators and not factory.is_preprocessed_atari)
        if isinstance(chosen, VectorEnv):
            record = None if record_path is None else StepRecord(record_path, num_envs)
            return NativeVectorEnv(chosen, behavior_name(env, chosen), seed, first_env_index, masked, record)
        stepping = chosen
    workers = make_workers(factory, num_envs, stepping, first_env_index, record_path)
    kind = PettingZooEnv if isinstance(workers.spec, WorldSpec) else CopiesEnv
    copies = kind(workers, num_envs, seed, first_env_index, wait_for_all, step_timeout_s, restart_limits)
    if parameters:
        copies.set_parameters(parameters, lesson)
    return copies


def _check_stepping(env: str, stepping: str) -> None:
    if stepping not in STEPPING:
        raise ValueError(f"env_settings.stepping: expected one of {', '.join(STEPPING)}, received {stepping!r}.")
    if is_envpool(env) and stepping != "auto":
        raise ValueError(f"env_settings.stepping: expected auto for {env}, received {stepping!r}: EnvPool steps its worlds in threads of its "
                         "own and gives out no single one (env_kwargs: num_threads says how many threads).")


def _choose(
    factory: EnvFactory, num_envs: int, seed: np.random.SeedSequence, parameters: tuple[str, ...], single: bool,
) -> VectorEnv | str:
    """A vector environment that does the same task, or else how copies of the environment are best stepped.

    Args:
        single: copies, if there are any.
    """
    made = (None if parameters or single else factory.make_vector(num_envs)) or factory.make(num_envs)
    check_takes_parameters(made, factory.env, parameters)
    if not isinstance(made, VectorEnv):
        copy = open_env(factory, made)
        try:
            return measure(copy, seed).best_stepping() if num_envs > 1 else "inline"
        finally:
            copy.close()
    factory.check_single()
    if made.num_envs != num_envs:
        made.close()
        raise ValueError(f"{factory.env}: expected a vector environment of env_settings.num_envs = {num_envs} environments, received "
                         f"one of {made.num_envs}. A factory with a parameter num_envs is given the number.")
    return made


def probe_env(
    env: str, env_kwargs: dict[str, Any], import_dirs: Sequence[str] = (), options: EnvOptions = DEFAULT_OPTIONS, stepping: str = "auto",
    parameters: Sequence[str] = (), agents: Mapping[str, Sequence[str]] | None = None, groups: Groups = NO_GROUPS,
) -> EnvProbe:
    """What there is to know of an environment that is made for this question and closed.

    It is reset once where only that tells whether it masks actions: it has discrete branches and neither a method nor an observation
    for masks. Games of ALE and worlds of EnvPool are not: it is known of them.

    Args:
        parameters: names of the parameters that it has to take.
        agents, groups: see `make_batched_env`.

    Raises:
        ValueError: the configuration or a space is not usable, also by that way of stepping; a `ParameterError` where it takes none.
        EnvFault: the environment's own code raised.
    """
    _check_stepping(env, stepping)
    factory = EnvFactory(env, dict(env_kwargs), tuple(str(folder) for folder in import_dirs), options, agents=_patterns(agents),
                         groups=_group_patterns(groups))
    is_vector = factory.is_preprocessed_atari and stepping == "auto" and not parameters
    made = (factory.make_vector(1) if is_vector else None) or factory.make()
    try:
        check_takes_parameters(made, env, parameters)
        name = behavior_name(env, made)
        if is_agent_world(made):
            spec = world_spec(made, env, name, factory.agents)
            world = world_spec(made, env, name, factory.agents, masked_in_info(made, spec, env), factory.groups, options.frame_stack)
            return EnvProbe(world.behaviors, world.agents)
        factory.check_single()
        prefix = "single_" if isinstance(made, VectorEnv) else ""
        spaces = [getattr(made, f"{prefix}{which}_space", None) for which in ("observation", "action")]
        spec = behavior_spec(*spaces, name)
        if spec.action.discrete_branches and not spec.action.masked and not factory.is_preprocessed_atari and _gives_masks(made):
            spec = behavior_spec(*spaces, name, masked=True)
        return EnvProbe({name: spec}, {name: ()})
    finally:
        made.close()


def probe_spec(*args: Any, **kwargs: Any) -> dict[str, BehaviorSpec]:
    """Behavior name -> spec; arguments and errors are those of `probe_env`."""
    return probe_env(*args, **kwargs).behaviors


def _patterns(agents: Mapping[str, Sequence[str]] | None) -> dict[str, tuple[str, ...]]:
    """Plain data; one pattern may be given without a list."""
    return {behavior: (own,) if isinstance(own, str) else tuple(own) for behavior, own in (agents or {}).items()}


def _group_patterns(groups: Groups) -> dict[str, dict[str, tuple[str, ...]]]:
    return {behavior: _patterns(own) for behavior, own in groups.items() if own}


def _gives_masks(made: gym.Env | VectorEnv) -> bool:
    """Whether an environment has a method for masks, or gives one in the ``info`` of a reset."""
    if isinstance(made, EnvPoolVectorEnv):
        return made.gives_masks
    method = vector_mask_method(made) if isinstance(made, VectorEnv) else mask_method(made)
    if method is not None:
        return True
    try:
        result = made.reset()
    except (Exception, SystemExit) as error:
        raise env_fault(error, "in reset()", restartable=False) from error
    # Anything that is no result of a reset is refused when the run resets, with its place.
    return isinstance(result, tuple) and len(result) == 2 and mask_in(result[1]) is not None
