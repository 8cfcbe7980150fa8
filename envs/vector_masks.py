"""The action masks of a Gymnasium vector environment, whole batches at a time; the forms are those of `envs.masks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper

from envs.base import EnvFault
from envs.faults import env_fault
from envs.masks import INFO_SOURCE, MASK_KEY, METHOD_SOURCE, OBSERVATION_SOURCE, MaskReader, has_mask_key, mask_in, mask_method
from envs.specs import ActionSpec


def vector_mask_method(env: VectorEnv) -> Callable[[], Any] | None:
    """What gives the masks of all environments: the method ``action_masks`` of a vector environment, or that of its copies.

    None where there is neither.
    """
    copies = env
    while not callable(method := getattr(copies, "action_masks", None)) and isinstance(copies, VectorWrapper):
        copies = copies.env
    if callable(method):
        return method
    if isinstance(copies, SyncVectorEnv):
        has_method = mask_method(copies.envs[0]) is not None
    elif isinstance(copies, AsyncVectorEnv):
        # Its processes do not survive being asked for something that they do not have.
        copy = copies.env_fns[0]()
        has_method = mask_method(copy) is not None
        copy.close()
    else:
        return None
    return (lambda: list(copies.call("action_masks"))) if has_method else None


class VectorMasks:
    """The masks of a vector environment of n, from the first of the three sources that it has."""

    def __init__(self, env: VectorEnv, spec: ActionSpec, method: Callable[[], Any] | None) -> None:
        """`method` is what `vector_mask_method` found."""
        self._method, self._in_observation = method, has_mask_key(env.single_observation_space)
        source = METHOD_SOURCE if method is not None else OBSERVATION_SOURCE if self._in_observation else INFO_SOURCE
        self._reader = MaskReader(env.single_action_space, spec, source)

    def read(self, obs: Any, infos: Any, out: np.ndarray) -> None:
        """Copy the masks that belong to what the environment has just returned into ``out``, bool ``[n, W]``.

        Raises:
            EnvFault: the method raised, or a mask has a wrong form.
        """
        try:
            if self._method is not None:
                self._reader.read_batch(self._ask(), out)
            elif self._in_observation:
                self._reader.read_batch(mask_in(obs), out)
            else:
                self._read_infos(infos, out)
        except ValueError as error:
            raise EnvFault(str(error)) from None

    def read_last(self, obs: Any, infos: Any, slot: int, out: np.ndarray) -> None:
        """Copy the mask at the last observation `obs` of `slot`, whose next episode has begun, into ``out``, bool ``[W]``.

        A method can no longer be asked for it; ``infos`` has it where the vector environment keeps the last infos.
        """
        mask = None
        if self._method is None:
            mask = mask_in(obs) if self._in_observation else mask_in(_info_of(infos.get("final_info"), slot))
        try:
            self._reader.read(mask, out)
        except ValueError as error:
            raise EnvFault(str(error)) from None

    def problem(self, masks: np.ndarray) -> tuple[int, str] | None:
        """Row of the first mask of ``masks [n, W]`` that allows nothing in some branch, and a sentence; None where there is none."""
        return self._reader.problem(masks)

    def allow_all_where_none(self, masks: np.ndarray) -> None:
        """Masks at an end that allow nothing are taken as none given: everything is allowed."""
        while (problem := self._reader.problem(masks)) is not None:
            masks[problem[0]] = True

    def _ask(self) -> Any:
        try:
            return self._method()
        except (Exception, SystemExit) as error:
            raise env_fault(error, "in action_masks()") from error

    def _read_infos(self, infos: Any, out: np.ndarray) -> None:
        masks, given = mask_in(infos), infos.get(f"_{MASK_KEY}")
        if masks is None or isinstance(masks, (Mapping, tuple)):
            for slot, row in enumerate(out):
                is_given = masks is not None and (given is None or given[slot])
                self._reader.read(_info_of(masks, slot) if is_given else None, row)
            return
        self._reader.read_batch(masks, out)
        if given is not None:
            # Gymnasium fills the rows of environments that gave none with zeros.
            out[np.logical_not(given)] = True


def row_of(batch: Any, slot: int) -> Any:
    """The observation of environment `slot` out of a batch: an array, or the dicts and tuples of the space with arrays in them."""
    if isinstance(batch, Mapping):
        return {key: row_of(value, slot) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(row_of(value, slot) for value in batch)
    return batch[slot]


def _info_of(infos: Any, slot: int) -> Any:
    """What environment `slot` said, out of the infos of all as Gymnasium batches them: ``key`` says what, ``_key`` who said it."""
    if isinstance(infos, Mapping):
        said = {key: value for key, value in infos.items() if f"_{key}" not in infos or infos[f"_{key}"][slot]}
        return {key: _info_of(value, slot) for key, value in said.items() if not (key[:1] == "_" and key[1:] in infos)}
    return None if infos is None else row_of(infos, slot)
