"""Gymnasium environments, single and vector, as one `BatchedEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from envs.base import BatchedEnv
from envs.copies import CopiesEnv
from envs.factories import EnvFactory, behavior_name
from envs.native import NativeVectorEnv
from envs.single_env import SingleEnv
from envs.spaces import behavior_spec
from envs.specs import BehaviorSpec
from envs.stepping import make_workers, measure

__all__ = ["NATIVE_IDS", "STEPPING", "behavior_name", "make_batched_env", "probe_spec"]

STEPPING = ("auto", "inline", "threads", "processes")

NATIVE_IDS = ("CartPole-v0", "CartPole-v1")
"""Ids whose registered vector entry point is the same task as the single environment (tests/envs/test_native.py compares the
dynamics step by step). Others may differ: ALE's vector environments clip rewards, press fire and repeat actions by default."""

NATIVE_KWARGS = frozenset({"sutton_barto_reward"})
"""Arguments that mean the same to the single environment and the vector entry point."""


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
) -> BatchedEnv:
    """`num_envs` environments behind the batched protocol.

    Args:
        env: Gymnasium id or ``module:factory``. A factory may return a `gymnasium.Env`, or a `gymnasium.vector.VectorEnv` of
            `num_envs` environments; it is given ``num_envs`` when it has a parameter of that name.
        env_kwargs: arguments of the environment or factory.
        stepping: ``"inline"``, ``"threads"``, ``"processes"`` or ``"auto"``.
        seed: root of the environments' seed streams, the same for all env managers of a run.
        first_env_index: index of the first environment among all environments of the run.
        import_dirs: folders searched for a module before ``sys.path``.
        wait_for_all: `poll` returns only when all busy environments are ready, in order, so that results do not depend on timing.
        step_timeout_s: longest time that one step (with the reset that follows an end) may take; enforced with threads and
            processes. Inline and native stepping run in the caller's thread, where nothing can interrupt a step.

    Raises:
        ValueError: the configuration or a space is not usable.
        EnvFault: the environment's own code raised.
    """
    if stepping not in STEPPING:
        raise ValueError(f"env_settings.stepping: expected one of {', '.join(STEPPING)}, received {stepping!r}.")
    if num_envs < 1:
        raise ValueError(f"env_settings.num_envs: expected at least 1, received {num_envs}.")
    factory = EnvFactory(env, dict(env_kwargs), tuple(str(folder) for folder in import_dirs))
    if stepping == "auto":
        chosen = _choose(factory, num_envs, seed)
        if isinstance(chosen, VectorEnv):
            return NativeVectorEnv(chosen, behavior_name(env, chosen), seed, first_env_index)
        stepping = chosen
    workers = make_workers(factory, num_envs, stepping, first_env_index)
    return CopiesEnv(workers, num_envs, seed, first_env_index, wait_for_all, step_timeout_s)


def _choose(factory: EnvFactory, num_envs: int, seed: np.random.SeedSequence) -> VectorEnv | str:
    """A vector environment that does the same task, or else how copies of the environment are best stepped."""
    if factory.env in NATIVE_IDS and NATIVE_KWARGS.issuperset(factory.kwargs):
        return gym.make_vec(factory.env, num_envs=num_envs, vectorization_mode="vector_entry_point", **factory.kwargs)
    made = factory.make(num_envs)
    if not isinstance(made, VectorEnv):
        copy = SingleEnv(factory, made)
        try:
            return measure(copy, seed).best_stepping() if num_envs > 1 else "inline"
        finally:
            copy.close()
    if made.num_envs != num_envs:
        made.close()
        raise ValueError(f"{factory.env}: expected a vector environment of env_settings.num_envs = {num_envs} environments, received "
                         f"one of {made.num_envs}. A factory with a parameter num_envs is given the number.")
    return made


def probe_spec(env: str, env_kwargs: dict[str, Any], import_dirs: Sequence[str] = ()) -> dict[str, BehaviorSpec]:
    """Behavior name -> spec of an environment that is made for this question and closed.

    Raises:
        ValueError: the configuration or a space is not usable.
        EnvFault: the environment's own code raised.
    """
    made = EnvFactory(env, dict(env_kwargs), tuple(str(folder) for folder in import_dirs)).make()
    try:
        name = behavior_name(env, made)
        if isinstance(made, VectorEnv):
            return {name: behavior_spec(made.single_observation_space, made.single_action_space, name)}
        return {name: behavior_spec(getattr(made, "observation_space", None), getattr(made, "action_space", None), name)}
    finally:
        made.close()
