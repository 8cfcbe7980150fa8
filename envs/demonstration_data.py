"""Demonstrations as arrays: what they hold, what makes them usable, and whether they suit an environment.

Letters: ``N`` rows (decisions) of ``K`` episodes, ``C`` continuous dimensions, ``B`` discrete branches, ``W`` choices of all branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from envs.specs import ActionSpec, BehaviorSpec, Observations, ObservationSpec

_ANOTHER = "it is a demonstration of another environment, or of another version of this one; record one here (docs/demonstrations.md)"
_ROUNDING = 1e-5
"""Relative (absolute below 1) difference between bounds of a Box that counts as rounding."""


class DemonstrationError(ValueError):
    """Demonstrations that cannot be read, or do not suit the environment. The message is one sentence that names the file."""


@dataclass(frozen=True, eq=False)
class Demonstrations:
    """Episodes of an expert, one after another.

    Attributes:
        spec: what the expert observed and did; with a spec given to `envs.demonstrations.read_demonstrations`, that one.
        obs: name -> ``[N, *shape]`` in the dtype of the spec, what action ``t`` was chosen from.
        continuous: float32 ``[N, C]``, policy-space actions in [-1, 1].
        discrete: int32 ``[N, B]``, branch indices counted from 0.
        reward: float32 ``[N]``, received after action ``t``; 0 where the source knows none.
        length: int32 ``[K]``, rows of each episode, at least 1.
        terminated: bool ``[K]``, the task ended; False: cut by a time limit or by the end of the recording.
        next_obs: name -> ``[K, *shape]``, the observation after the last row of each episode.
        action_mask: bool ``[N, W]``, True = allowed, as in `envs.specs.DecisionSteps`; None where no masks were recorded. What the
            expert chose is allowed.
    """

    spec: BehaviorSpec
    obs: Observations
    continuous: np.ndarray
    discrete: np.ndarray
    reward: np.ndarray
    length: np.ndarray
    terminated: np.ndarray
    next_obs: Observations
    action_mask: np.ndarray | None = None

    @property
    def rows(self) -> int:
        """N."""
        return len(self.reward)

    @property
    def episodes(self) -> int:
        """K."""
        return len(self.length)

    @property
    def episode_return(self) -> np.ndarray:
        """float64 ``[K]``, sum of the rewards of each episode, not discounted."""
        starts = np.cumsum(self.length, dtype=np.int64) - self.length
        return np.add.reduceat(self.reward.astype(np.float64), starts)


def check_content(demonstrations: Demonstrations, where: str) -> None:
    """Refuse what nothing can be learnt from. Shapes and dtypes are checked against the demonstrations' own spec.

    Args:
        where: the file, for messages.

    Raises:
        DemonstrationError: no rows, arrays that do not fit each other, values that are not finite, or actions or choices out of range.
    """
    d, action = demonstrations, demonstrations.spec.action
    n, k = d.rows, d.episodes
    if n == 0:
        raise DemonstrationError(f"{where}: expected at least one row, received none; record at least one whole episode.")
    expected = {"action/continuous": (d.continuous, (n, action.continuous_size), "float32"),
                "action/discrete": (d.discrete, (n, len(action.discrete_branches)), "int32"),
                "reward": (d.reward, (n,), "float32"), "episode/length": (d.length, (k,), "int32"),
                "episode/terminated": (d.terminated, (k,), "bool")}
    for prefix, count, arrays in (("obs", n, d.obs), ("next_obs", k, d.next_obs)):
        expected |= {f"{prefix}/{o.name}": (arrays.get(o.name), (count, *o.shape), o.dtype) for o in d.spec.observations}
    if d.action_mask is not None:
        expected["action_mask"] = (d.action_mask, (n, action.choices), "bool")
    for name, (array, shape, dtype) in expected.items():
        received = "none" if array is None else f"{array.dtype} {list(array.shape)}"
        if array is None or array.shape != shape or array.dtype != dtype:
            raise DemonstrationError(f"{where}: expected {name} to be {dtype} {list(shape)}, received {received}; record it anew.")
    if (d.length < 1).any() or int(d.length.sum(dtype=np.int64)) != n:
        raise DemonstrationError(f"{where}: expected episodes of at least one row and {n} rows in all, received lengths that sum to "
                                 f"{int(d.length.sum(dtype=np.int64))}, the shortest {int(d.length.min(initial=0))}; record it anew.")
    for name, (array, _, _) in expected.items():
        if array.dtype.kind == "f":
            _check_finite(name, array, where)
    _check_ranges(d, where)


def _check_finite(name: str, array: np.ndarray, where: str) -> None:
    finite = np.isfinite(array)
    if not finite.all():
        row, *index = (int(i) for i in np.argwhere(~finite)[0])
        raise DemonstrationError(f"{where}: expected finite numbers in {name}, received {array[row, *index]} at {[row, *index]}; "
                                 "record it anew, or leave that episode out.")


def _check_ranges(d: Demonstrations, where: str) -> None:
    outside = np.abs(d.continuous) > 1.0
    if outside.any():
        row, dimension = (int(i) for i in np.argwhere(outside)[0])
        raise DemonstrationError(f"{where}: expected continuous actions from -1 to 1 (policy space), received "
                                 f"{d.continuous[row, dimension]} in dimension {dimension} of row {row}; map the bounds of the Box to them.")
    branches = np.asarray(d.spec.action.discrete_branches, np.int64)
    outside = (d.discrete < 0) | (d.discrete >= branches)
    if outside.any():
        row, branch = (int(i) for i in np.argwhere(outside)[0])
        raise DemonstrationError(f"{where}: expected choices from 0 to {branches[branch] - 1} in discrete branch {branch}, received "
                                 f"{d.discrete[row, branch]} in row {row}; count the choices from 0.")
    for o in d.spec.observations:
        if o.kind == "categorical":
            starts, choices = (np.asarray(v, np.int64).reshape(o.shape) for v in (o.starts, o.choices))
            for prefix, array in (("obs", d.obs[o.name]), ("next_obs", d.next_obs[o.name])):
                outside = (array < starts) | (array >= starts + choices)
                if outside.any():
                    row, *index = (int(i) for i in np.argwhere(outside)[0])
                    first = int(starts[*index])
                    raise DemonstrationError(f"{where}: expected {prefix}/{o.name} from {first} to {first + int(choices[*index]) - 1} at "
                                             f"{index}, received {array[row, *index]} in row {row}; record it anew.")


def with_choices_allowed(demonstrations: Demonstrations) -> Demonstrations:
    """Masks that allow what the expert did: some environments take forbidden choices from a person, which have no likelihood otherwise."""
    mask, first = demonstrations.action_mask, 0
    if mask is None:
        return demonstrations
    mask, rows = mask.copy(), np.arange(len(mask))
    for branch, choices in enumerate(demonstrations.spec.action.discrete_branches):
        mask[rows, first + demonstrations.discrete[:, branch]] = True
        first += choices
    return replace(demonstrations, action_mask=mask)


def fitted(demonstrations: Demonstrations, spec: BehaviorSpec, where: str, by_shape: bool = False) -> Demonstrations:
    """The demonstrations as rows of `spec`: its names and dtypes.

    Args:
        where: the file, for messages.
        by_shape: names say nothing (Unity's): the observations of `spec` take those of the same shape, in order.

    Raises:
        DemonstrationError: number, names, shapes or dtypes of the observations differ, or the actions do.
    """
    sources = _same_shapes(demonstrations.spec, spec, where) if by_shape else _same_names(demonstrations.spec, spec, where)
    for theirs, ours in sources:
        _check_observation(theirs, ours, where, by_shape)
    _check_action(demonstrations.spec.action, spec.action, where, by_shape)
    obs, next_obs = (
        {ours.name: _cast(arrays[theirs.name], ours, where) for theirs, ours in sources}
        for arrays in (demonstrations.obs, demonstrations.next_obs)
    )
    mask = demonstrations.action_mask if spec.action.masked else None
    return replace(demonstrations, spec=spec, obs=obs, next_obs=next_obs, action_mask=mask)


def _same_names(theirs: BehaviorSpec, ours: BehaviorSpec, where: str) -> list[tuple[ObservationSpec, ObservationSpec]]:
    by_name = {o.name: o for o in theirs.observations}
    _check_count(theirs, ours, where)
    names = [o.name for o in ours.observations]
    if by_name.keys() != set(names):
        raise DemonstrationError(f"{where}: expected the observations {names}, received {list(by_name)}; {_ANOTHER}.")
    return [(by_name[o.name], o) for o in ours.observations]


def _same_shapes(theirs: BehaviorSpec, ours: BehaviorSpec, where: str) -> list[tuple[ObservationSpec, ObservationSpec]]:
    _check_count(theirs, ours, where)
    left, pairs = list(theirs.observations), []
    for o in ours.observations:
        match = next((other for other in left if other.shape == o.shape), None)
        if match is None:
            raise DemonstrationError(f"{where}: expected an observation of shape {list(o.shape)} for {o.name!r}, received the shapes "
                                     f"{[list(other.shape) for other in theirs.observations]}; {_ANOTHER}.")
        left.remove(match)
        pairs.append((match, o))
    return pairs


def _check_count(theirs: BehaviorSpec, ours: BehaviorSpec, where: str) -> None:
    if len(theirs.observations) != len(ours.observations):
        expected, received = ([o.name for o in spec.observations] for spec in (ours, theirs))
        raise DemonstrationError(f"{where}: expected {len(expected)} observations, {expected}, received {len(received)}, {received}; "
                                 f"{_ANOTHER}.")


def _check_observation(theirs: ObservationSpec, ours: ObservationSpec, where: str, by_shape: bool) -> None:
    if theirs.shape != ours.shape:
        raise DemonstrationError(f"{where}: expected observation {ours.name!r} of shape {list(ours.shape)}, received {list(theirs.shape)}; "
                                 f"{_ANOTHER}.")
    if _group(theirs) != _group(ours):
        raise DemonstrationError(f"{where}: expected observation {ours.name!r} of dtype {ours.dtype}, received {theirs.dtype}; {_ANOTHER}.")
    same_kind = (theirs.kind, theirs.is_uint8_image) == (ours.kind, ours.is_uint8_image)
    if not by_shape and not same_kind:
        raise DemonstrationError(f"{where}: expected observation {ours.name!r} to be {ours.kind}, received {theirs.kind}; {_ANOTHER}.")
    if (theirs.choices, theirs.starts) != (ours.choices, ours.starts):
        raise DemonstrationError(f"{where}: expected observation {ours.name!r} with {list(ours.choices)} choices from {list(ours.starts)}, "
                                 f"received {list(theirs.choices)} from {list(theirs.starts)}; {_ANOTHER}.")


def _group(o: ObservationSpec) -> str:
    """What may be cast into each other: floats, integers of any sign and width, bools."""
    return np.dtype(o.dtype).kind.replace("u", "i")


def _check_action(theirs: ActionSpec, ours: ActionSpec, where: str, by_shape: bool) -> None:
    if theirs.continuous_size != ours.continuous_size:
        raise DemonstrationError(f"{where}: expected {ours.continuous_size} continuous action dimensions, received "
                                 f"{theirs.continuous_size}; {_ANOTHER}.")
    if theirs.discrete_branches != ours.discrete_branches:
        raise DemonstrationError(f"{where}: expected discrete branches with {list(ours.discrete_branches)} choices, received "
                                 f"{list(theirs.discrete_branches)}; {_ANOTHER}.")
    if by_shape:
        return
    if theirs.kind != ours.kind:
        raise DemonstrationError(f"{where}: expected actions of a {ours.kind} space, received those of a {theirs.kind} space; {_ANOTHER}.")
    # The same number in policy space means another action where the bounds differ.
    for side, expected, received in (("low", ours.low, theirs.low), ("high", ours.high, theirs.high)):
        if not np.allclose(received, expected, _ROUNDING, _ROUNDING):
            raise DemonstrationError(f"{where}: expected the {side} bounds {_short(expected)} of the actions, received {_short(received)}; "
                                     f"{_ANOTHER}.")


def _short(values: Sequence[float]) -> str:
    return f"[{', '.join(f'{v:g}' for v in values[:8])}{', …' if len(values) > 8 else ''}]"


def _cast(array: np.ndarray, o: ObservationSpec, where: str) -> np.ndarray:
    if array.dtype == o.dtype:
        return array
    with np.errstate(over="ignore"):
        cast = array.astype(o.dtype)
    fits = np.isfinite(cast).all() if cast.dtype.kind == "f" else np.array_equal(cast, array)
    if not fits:
        raise DemonstrationError(f"{where}: expected values of observation {o.name!r} that {o.dtype} can hold, received {array.dtype} values "
                                 f"from {array.min()} to {array.max()}; {_ANOTHER}.")
    return cast


def joined(parts: Sequence[Demonstrations]) -> Demonstrations:
    """All episodes of `parts`, which have one spec. Where only some have masks, the rows of the others allow everything."""
    if len(parts) == 1:
        return parts[0]
    spec, mask = parts[0].spec, None
    if any(part.action_mask is not None for part in parts):
        mask = np.concatenate([np.ones((part.rows, spec.action.choices), bool) if part.action_mask is None else part.action_mask
                               for part in parts])
    obs, next_obs = ({o.name: np.concatenate([getattr(part, which)[o.name] for part in parts]) for o in spec.observations}
                     for which in ("obs", "next_obs"))
    continuous, discrete, reward, length, terminated = (
        np.concatenate([getattr(part, which) for part in parts])
        for which in ("continuous", "discrete", "reward", "length", "terminated"))
    return Demonstrations(spec, obs, continuous, discrete, reward, length, terminated, next_obs, mask)
