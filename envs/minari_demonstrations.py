"""Minari data sets as demonstrations, by the same rules for spaces as everywhere. Nothing is ever downloaded."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.boundary import ObservationReader
from envs.demonstration_data import DemonstrationError, Demonstrations, joined
from envs.masks import MASK_KEY, OBSERVATION_SOURCE, MaskReader, has_mask_key
from envs.policy_actions import to_policy_actions
from envs.spaces import behavior_spec
from envs.specs import BehaviorSpec


def read_minari(dataset_id: str) -> Demonstrations:
    """All episodes of a data set that is on this machine.

    Args:
        dataset_id: as in ``minari.load_dataset``.

    Raises:
        DemonstrationError: Minari is not installed, there is no such data set, or its spaces or values cannot be used.
    """
    dataset = _load(dataset_id)
    where = f"minari:{dataset_id}"
    try:
        spec = behavior_spec(dataset.observation_space, dataset.action_space, where, has_mask_key(dataset.observation_space))
        episodes = [_episode(dataset, spec, episode) for episode in dataset.iterate_episodes() if len(episode.rewards)]
    except DemonstrationError:
        raise
    except ValueError as error:
        text = str(error).removeprefix(f"{where}: ").rstrip(".")
        raise DemonstrationError(f"{where}: {text}; use another data set.") from None
    if not episodes:
        raise DemonstrationError(f"{where}: expected at least one row, received none; use a data set with episodes in it.")
    return joined(episodes)


def _load(dataset_id: str) -> Any:
    where = f"minari:{dataset_id}"
    try:
        import h5py  # noqa: F401 - data sets are HDF5 files, and Minari itself would say so only when one is opened
        import minari

        return minari.load_dataset(dataset_id, download=False)
    except ImportError as error:
        raise DemonstrationError(f'{where}: expected Minari to be installed, received: {error}; pip install "raytrain[minari]".') from None
    except FileNotFoundError:
        there = ", ".join(list(minari.list_local_datasets())[:5]) or "none"
        raise DemonstrationError(f"{where}: expected a data set on this machine, found none of this id (there are: {there}); "
                                 f"get it with: minari download {dataset_id}") from None
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise DemonstrationError(f"{where}: expected the id of a data set that can be read, such as minari:D4RL/door/human-v2, received: "
                                 f"{error}; see minari list local.") from None


def _episode(dataset: Any, spec: BehaviorSpec, episode: Any) -> Demonstrations:
    """One episode; it has one observation more than actions."""
    rows = len(episode.rewards)
    reader = ObservationReader(dataset.observation_space, spec.observations)
    obs = reader.empty(rows + 1)
    reader.read(episode.observations, obs)
    problem = reader.problem(obs, check_bounds=False)
    if problem is not None:
        raise ValueError(f"episode {episode.id}, row {problem[0]}: {problem[1]}")
    mask = None
    if spec.action.masked:
        mask = np.empty((rows + 1, spec.action.choices), bool)
        MaskReader(dataset.action_space, spec.action, OBSERVATION_SOURCE).read_batch(episode.observations[MASK_KEY], mask)
        mask = mask[:-1]
    actions = to_policy_actions(spec.action, episode.actions, rows)
    return Demonstrations(
        spec=spec, obs={name: array[:-1] for name, array in obs.items()}, continuous=actions.continuous, discrete=actions.discrete,
        reward=np.asarray(episode.rewards, np.float32), length=np.array([rows], np.int32),
        terminated=np.array([bool(episode.terminations[-1])]), next_obs={name: array[-1:] for name, array in obs.items()}, action_mask=mask)
