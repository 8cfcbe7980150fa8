"""What an environment says of its agents: observation, action and behavior specs, and the arrays of one step.

Letters: ``n`` agents in a batch, ``C`` continuous action dimensions, ``B`` discrete branches, ``W`` choices of all branches together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np

Observations = dict[str, np.ndarray]
"""Observation name -> array ``[n, *shape]`` in the space's dtype."""

EnvAction = np.ndarray | np.integer | tuple[Any, ...] | dict[str, Any]
"""One action as the environment's space wants it: an array, a NumPy integer for Discrete, or a tuple or dict of actions."""


ObservationKind = Literal["vector", "categorical", "binary", "image"]
"""What the numbers of an observation are.

- ``"vector"``: quantities. A Box that is no image, flattened for the networks.
- ``"categorical"``: choices (Discrete, MultiDiscrete), which networks see one-hot.
- ``"binary"``: flags (MultiBinary), which networks see as 0 and 1.
- ``"image"``: pixels, for a visual encoder.
"""


@dataclass(frozen=True)
class ObservationSpec:
    """One named observation of an agent: a simple space, alone or inside a Dict or Tuple.

    Attributes:
        name: ``"obs"`` where the space is not a Dict or Tuple, else its keys and positions on the way, joined by ``/``.
        shape: shape of one agent's observation, without the batch dimension; ``(1,)`` for a single number.
        dtype: NumPy dtype name; arrays are stored in it, never widened.
        kind: what the numbers are.
        path: how to get there from the whole: a position (int) for every Tuple and a key (str) for every Dict on the way.
        choices: of a ``"categorical"`` one, the number of choices of each element, in C order.
        starts: its first values, one for each element.
        is_uint8_image: of an ``"image"``: dtype uint8 with the bounds 0 and 255, so that pixels are scaled to [0, 1] in the network.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    kind: ObservationKind = "vector"
    path: tuple[int | str, ...] = ()
    choices: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    is_uint8_image: bool = False

    @property
    def size(self) -> int:
        """Number of elements of one observation."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class ActionSpec:
    """The policy-space action of an agent, and how it maps to the environment's space.

    Policy space is [-1, 1] for each of ``C`` continuous dimensions and ``0 … n_b - 1`` for each discrete branch.

    Attributes:
        kind: ``"box"``, ``"discrete"``, ``"multi_discrete"``, ``"multi_binary"`` or ``"hybrid"`` (a Tuple or Dict): the
            environment's space.
        continuous_size: C.
        discrete_branches: number of choices of each branch.
        low, high: bounds of the Box, flattened to length C.
        starts: first value of each discrete branch (``start`` of the space).
        shape, dtype: shape and NumPy dtype name of one action as the environment wants it; () and ``""`` for ``"hybrid"``.
        parts: the simple spaces of a ``"hybrid"`` one, in its own order; the continuous dimensions and the branches above are
            theirs, one part after the other. Empty for every other kind.
        masked: the environment says which choices of the discrete branches are allowed.
    """

    kind: str
    continuous_size: int = 0
    discrete_branches: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    starts: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: str = "int64"
    parts: tuple[ActionPart, ...] = ()
    masked: bool = False

    @property
    def choices(self) -> int:
        """W, the width of an action mask."""
        return sum(self.discrete_branches)


@dataclass(frozen=True)
class ActionPart:
    """A simple space inside a Tuple or Dict.

    Attributes:
        path: how to get there from the whole: a position (int) for every Tuple and a key (str) for every Dict on the way.
        action: the space; its kind is never ``"hybrid"``.
    """

    path: tuple[int | str, ...]
    action: ActionSpec


def path_text(path: Iterable[int | str]) -> str:
    """The path of an `ActionPart` as one would write it behind the whole action or its space: ``[0]``, ``['arm'][1]``."""
    return "".join(f"[{key!r}]" for key in path)


def observation_part(observation: ObservationSpec, value: Any) -> Any:
    """The part of a whole observation, as the environment gives it, that `observation` names.

    Raises:
        KeyError, IndexError, TypeError: it is not there.
    """
    for key in observation.path:
        value = value[key]
    return value


def hybrid_action(parts: Iterable[ActionPart]) -> ActionSpec:
    """The spec of a Tuple or Dict with `parts`, given in the order of the space."""
    parts = tuple(parts)
    actions = [part.action for part in parts]
    return ActionSpec(
        kind="hybrid", continuous_size=sum(a.continuous_size for a in actions),
        discrete_branches=tuple(n for a in actions for n in a.discrete_branches), low=tuple(v for a in actions for v in a.low),
        high=tuple(v for a in actions for v in a.high), starts=tuple(s for a in actions for s in a.starts), dtype="", parts=parts,
    )


@dataclass(frozen=True)
class BehaviorSpec:
    """Observations and actions shared by all agents of one behavior.

    Attributes:
        left_out: names of the parts of a Dict or Tuple of observations that are text, which networks do not take in.
        grouped: some of its agents are in groups of team-mates who share a reward, so that steps and trajectories have the columns of
            groups. Specs that differ only in this are equal: what is seen and done is the same.
    """

    observations: tuple[ObservationSpec, ...]
    action: ActionSpec
    left_out: tuple[str, ...] = ()
    grouped: bool = field(default=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Plain dict for ``json.dump``; read back with `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BehaviorSpec:
        """The spec that `to_json` wrote (JSON turns tuples into lists; they are tuples again here)."""
        return cls(
            observations=tuple(ObservationSpec(**_with_tuples(o)) for o in data["observations"]),
            action=_action_from_json(data["action"]),
            left_out=tuple(data.get("left_out", ())),
            grouped=data.get("grouped", False),
        )


@dataclass(frozen=True)
class EnvProbe:
    """What an environment says of itself.

    Attributes:
        behaviors: name -> spec.
        agents: behavior -> names of its agents in one world, in the order of ``possible_agents``; none where the environment has one agent.
    """

    behaviors: dict[str, BehaviorSpec]
    agents: dict[str, tuple[str, ...]]


def _action_from_json(data: dict[str, Any]) -> ActionSpec:
    # Specs that were saved before there were hybrid actions have no parts.
    parts = tuple(ActionPart(tuple(part["path"]), _action_from_json(part["action"])) for part in data.get("parts", ()))
    return ActionSpec(**{**_with_tuples(data), "parts": parts})


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}


@dataclass(slots=True)
class Actions:
    """Policy-space actions of a batch of agents.

    Attributes:
        continuous: float32 ``[n, C]``; may lie outside [-1, 1] (the sample whose log-prob is stored).
        discrete: int32 ``[n, B]``, branch indices counted from 0.
    """

    continuous: np.ndarray
    discrete: np.ndarray


@dataclass(slots=True)
class DecisionSteps:
    """Agents that need an action now.

    Attributes:
        agent_id: int64 ``[n]``, slot of the agent in this env (stable from its first to its last step; a slot is used again by a later episode).
        obs: current observations, name -> ``[n, *shape]``. Valid until the next `poll` of the env.
        reward: float32 ``[n]``, received since the agent's previous decision; 0 at the first decision of an episode.
        first: bool ``[n]``, the agent's first decision of an episode.
        action_mask: bool ``[n, W]``, True = allowed, one branch after the other; given exactly where the action spec is ``masked``.
            At least one choice of each branch is allowed. Valid as long as `obs`.
        group_id: int64 ``[n]``, the agent's group; -1 for an agent without one. An id is that of one group of one world, unique within
            the env and the same in all behaviors. This and what follows are given exactly where the spec is ``grouped``.
        group_reward: float32 ``[n]``, what the group received since the agent's previous decision; 0 at its first one. Not in `reward`.
        env_step: int64 ``[n]``, steps of the agent's world in its present episode before this moment: decisions with the same
            `group_id`, `world_episode` and `env_step` are those of team-mates at the same moment.
        world_episode: int64 ``[n]``, episode of that world, counted from 0.
    """

    agent_id: np.ndarray
    obs: Observations
    reward: np.ndarray
    first: np.ndarray
    action_mask: np.ndarray | None = None
    group_id: np.ndarray | None = None
    group_reward: np.ndarray | None = None
    env_step: np.ndarray | None = None
    world_episode: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.agent_id)

    @property
    def total_reward(self) -> np.ndarray:
        """float32 ``[n]``: what an agent got for itself and with its group."""
        return self.reward if self.group_reward is None else self.reward + self.group_reward

    def where(self, which: np.ndarray) -> DecisionSteps:
        """Those of the agents ``which`` (bool ``[n]``); copies."""
        return _where(self, which)


@dataclass(slots=True)
class TerminalSteps:
    """Agents whose episode has just ended. The same slot may start a new episode in the same message.

    Attributes:
        agent_id: int64 ``[n]``.
        obs: the true last observations, name -> ``[n, *shape]`` (never the first of the next episode).
        reward: float32 ``[n]``, received since the agent's last decision.
        terminated: bool ``[n]``, the task ended: no bootstrap. Wins when both are set.
        truncated: bool ``[n]``, we stopped watching: bootstrap from ``obs``.
        action_mask: bool ``[n, W]`` at ``obs``, as in `DecisionSteps`; all True where the environment gave none at an end.
        group_id, group_reward, env_step, world_episode: as in `DecisionSteps`; the moment is that of `obs`.
        group_ended: bool ``[n]``, the agent's group ended with it: no team-mate was left in the world. False without a group.
        group_return: float64 ``[G]``, of the groups that ended with this message: each sum of all that its group received, counted once,
            whoever of it was there. May have entries where no agent has.
        group_return_id: int64 ``[G]``, the `group_id` of each.
    """

    agent_id: np.ndarray
    obs: Observations
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    action_mask: np.ndarray | None = None
    group_id: np.ndarray | None = None
    group_reward: np.ndarray | None = None
    env_step: np.ndarray | None = None
    world_episode: np.ndarray | None = None
    group_ended: np.ndarray | None = None
    group_return: np.ndarray | None = None
    group_return_id: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.agent_id)

    @property
    def total_reward(self) -> np.ndarray:
        """As of `DecisionSteps`."""
        return self.reward if self.group_reward is None else self.reward + self.group_reward

    def where(self, which: np.ndarray) -> TerminalSteps:
        """Those of the agents ``which`` (bool ``[n]``), and of the groups that ended with one of them; copies."""
        if self.group_return is None:
            return _where(self, which)
        groups = np.isin(self.group_return_id, self.group_id[which])
        return _where(self, which, group_return=self.group_return[groups], group_return_id=self.group_return_id[groups])


def _where(steps: Any, which: np.ndarray, **given: np.ndarray) -> Any:
    """Every array of `steps` at ``which``, but for those `given`; None stays None."""
    def part(value: Any) -> Any:
        return {k: v[which] for k, v in value.items()} if isinstance(value, dict) else None if value is None else value[which]

    return type(steps)(**{f.name: part(getattr(steps, f.name)) for f in fields(steps) if f.name not in given}, **given)


def no_terminal_steps(spec: BehaviorSpec) -> TerminalSteps:
    """Terminal steps of no agent, with the dtypes and shapes of `spec`; made once and used for every message without an end."""
    columns = {"group_id": np.int64, "group_reward": np.float32, "env_step": np.int64, "world_episode": np.int64, "group_ended": bool,
               "group_return": np.float64, "group_return_id": np.int64}
    return TerminalSteps(
        agent_id=np.empty(0, np.int64), obs={o.name: np.empty((0, *o.shape), o.dtype) for o in spec.observations},
        reward=np.empty(0, np.float32), terminated=np.empty(0, bool), truncated=np.empty(0, bool),
        action_mask=np.empty((0, spec.action.choices), bool) if spec.action.masked else None,
        **({name: np.empty(0, dtype) for name, dtype in columns.items()} if spec.grouped else {}),
    )


@dataclass(slots=True)
class Steps:
    """What one `poll` of an env brings for one behavior; terminal steps are processed before decision steps."""

    decision: DecisionSteps
    terminal: TerminalSteps
    env_steps: int = field(default=0)
    """Calls to ``step`` behind this message, summed over the envs (resets do not count)."""
    lost: np.ndarray | None = None
    """int64 ``[k]``: agents whose running episode was given up, because their environment is started anew; None for none. What they did
    last is never answered, and there is no terminal step. They come before all else: the first decision of an agent's next episode may be
    in the same message. A message may have nothing else."""


def to_env_actions(spec: ActionSpec, actions: Actions) -> np.ndarray | list[EnvAction]:
    """Policy-space actions as the environment wants them: the one mapping for training, evaluation and export.

    A Box dimension gets ``low + (clip(a, -1, 1) + 1) / 2 · (high - low)``, rounded to the nearest whole number where the
    Box holds integers; a discrete branch gets its index plus the branch's ``start``.

    Returns:
        A new array ``[n, *spec.shape]`` of ``spec.dtype``, each element inside the bounds of the space. For ``"hybrid"`` a list
        of n tuples or dicts, nested as the space is, whose values are like those of `env_action_rows`.

    Raises:
        ValueError: an action is NaN or infinite.
    """
    if spec.continuous_size:
        _check_finite(actions.continuous)
    if spec.kind != "hybrid":
        return _simple_actions(spec, actions.continuous, actions.discrete)
    rows, dimension, branch = [], 0, 0
    for part in spec.parts:
        end, last = dimension + part.action.continuous_size, branch + len(part.action.discrete_branches)
        array = _simple_actions(part.action, actions.continuous[:, dimension:end], actions.discrete[:, branch:last])
        rows.append((part.path, env_action_rows(part.action, array)))
        dimension, branch = end, last
    return _nested(rows)


def env_action_rows(spec: ActionSpec, env_actions: np.ndarray | list[EnvAction]) -> list[EnvAction]:
    """What `to_env_actions` returned as one action per agent, each as the space's ``contains`` wants it.

    A Discrete action is a NumPy integer; every other one is an array (a view), also where the space has rank 0.
    """
    if spec.kind in ("discrete", "hybrid") or spec.shape:
        return list(env_actions)
    # Iterating would turn elements of rank 0 into scalars; the ellipsis keeps them arrays.
    return [env_actions[row, ...] for row in range(len(env_actions))]


def _check_finite(continuous: np.ndarray) -> None:
    finite = np.isfinite(continuous)
    if not finite.all():
        row, dimension = (int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(f"Expected finite actions, received {continuous[row, dimension]} in dimension {dimension} of row "
                         f"{row}: the policy's weights or its observations are not finite.")


def _simple_actions(spec: ActionSpec, continuous: np.ndarray, discrete: np.ndarray) -> np.ndarray:
    """The new array of a simple space, from the dimensions or the branches that belong to it."""
    if spec.kind == "box":
        low, high = np.asarray(spec.low), np.asarray(spec.high)
        unit = np.clip(continuous, -1.0, 1.0).astype(np.float64)
        env = np.clip(low + (unit + 1.0) * 0.5 * (high - low), low, high)
        if np.issubdtype(np.dtype(spec.dtype), np.integer):
            env = np.rint(env)
        # Casting to float32 may round past a float64 bound; the space was cast the same way, so it still contains it.
        return env.astype(spec.dtype).reshape(len(env), *spec.shape)
    env = discrete.astype(spec.dtype)
    if any(spec.starts):
        env += np.asarray(spec.starts, dtype=spec.dtype)
    return env.reshape(len(env), *spec.shape)


def _nested(parts: Sequence[tuple[tuple[int | str, ...], list[Any]]]) -> list[Any]:
    """(path, n values) of each part -> n tuples or dicts that have every value at its path."""
    if not parts[0][0]:
        return parts[0][1]
    inner: dict[int | str, list[Any]] = {}
    for (key, *rest), values in parts:
        inner.setdefault(key, []).append((tuple(rest), values))
    columns = [_nested(group) for group in inner.values()]
    if isinstance(parts[0][0][0], int):
        return list(zip(*columns, strict=True))
    return [dict(zip(inner, row, strict=True)) for row in zip(*columns, strict=True)]
