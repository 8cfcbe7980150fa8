"""Whether an exported policy does what the policy does: 1,000 random observations through both.

Differences are counted in policy space. Of a continuous dimension it is the distance in [-1, 1]; of a memory that relative to its
size where that is above 1, and so it is of the logits of choices (in an ONNX file a tensor inside); of a choice, what the other
choice loses in its logit, so that two that are equally good to the last bit count as equal; of a wrong environment action, infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from envs.specs import Actions, BehaviorSpec, Observations, ObservationSpec, env_action_rows, to_env_actions
from raytrain.export_numpy import runtime_spec
from raytrain.export_runtime import ExportedPolicy
from trainers.architecture import Architecture
from trainers.onnx_policy import input_shape, logits_name, simple_actions
from trainers.policy import Policy
from trainers.trainer import Weights

OBSERVATIONS = 1_000
_CALLS = (1, 7) * 15 + (40,) * 22
"""Rows of each call, one after another; 1,000 together. With memory, rows of the same number are the steps of one agent."""
TOLERANCE = 1e-5


@dataclass
class Acted:
    """Deterministic actions of `n` rows in policy space.

    Attributes:
        continuous: float32 ``[n, C]`` in [-1, 1].
        discrete: int ``[n, B]`` from 0.
        logits: float32 ``[n, choices]`` of each branch, masks not in them.
        memory: float32 ``[n, M]`` after the step; None without.
        env_error: largest difference of the environment's actions from what `continuous` and `discrete` have to become.
    """

    continuous: np.ndarray
    discrete: np.ndarray
    logits: list[np.ndarray]
    memory: np.ndarray | None
    env_error: float = 0.0


class Exported(Protocol):
    """An exported file, loaded."""

    def run(self, obs: Observations, mask: np.ndarray | None, memory: np.ndarray | None) -> Acted:
        """Act on `n` rows; no mask allows everything."""


def largest_difference(exported: Exported, policy: Policy, weights: Weights, seed: int = 0) -> float:
    """Of `OBSERVATIONS` random observations, with random masks, memories and beginnings of episodes.

    Args:
        policy: without a model of the user's; what its agents remember is lost.
        weights: that it acts with.
    """
    spec, rng, worst = policy.spec, np.random.default_rng(seed), 0.0
    oracle = ExportedPolicy(runtime_spec(policy.architecture, policy.distribution), weights)
    remembered: dict[int, np.ndarray] = {}
    for call, n in enumerate(_CALLS):
        obs, mask = random_observations(spec, weights, rng, n), _random_mask(spec, rng, n, call)
        first = np.array([slot not in remembered for slot in range(n)]) | (rng.random(n) < 0.1)
        output = policy.act(obs, rng, True, mask, False, agent_id=np.arange(n), first=first)
        acted = exported.run(obs, mask, output.memory)
        worst = max(worst, acted.env_error, _distance(np.clip(output.actions.continuous, -1.0, 1.0), acted.continuous))
        logits = oracle.logits(oracle.features(obs, output.memory)[0])
        worst = max([worst, _lost(logits, mask, output.actions.discrete, acted.discrete), *map(_relative, logits, acted.logits)])
        if not spec.action.continuous_size:  # what the policy itself says of its logits
            size = np.maximum(1.0, np.max([np.abs(one).max(axis=1) for one in logits], axis=0))
            found = _log_prob(acted.logits, mask, output.actions.discrete)
            worst = max(worst, _distance(output.log_prob / size, found / size))
        if output.memory is not None:
            same = [slot for slot in range(n) if not first[slot]]
            expected, before = output.memory[same], np.array([remembered[slot] for slot in same])
            if len(same):
                worst = max(worst, _relative(expected, before))
            remembered.update(enumerate(acted.memory))
    return worst


def _distance(expected: np.ndarray, found: np.ndarray) -> float:
    if expected.shape != found.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(expected - found).max(initial=0.0))


def _relative(expected: np.ndarray, found: np.ndarray) -> float:
    """`_distance`, of numbers above 1 relative to the largest in the row."""
    size = np.maximum(np.abs(expected).max(axis=1, keepdims=True, initial=0.0), 1.0)
    return _distance(expected / size, found / size)


def _log_prob(logits: list[np.ndarray], mask: np.ndarray | None, choices: np.ndarray) -> np.ndarray:
    """Joint log-probability of choices that are allowed, float64 ``[n]``."""
    total, start = np.zeros(len(choices)), 0
    for b, one in enumerate(logits):
        allowed = True if mask is None else mask[:, start : start + one.shape[1]]
        shifted = one.astype(np.float64) - one.max(axis=1, keepdims=True)
        total += shifted[np.arange(len(one)), choices[:, b]] - np.log(np.exp(shifted).sum(axis=1, where=allowed))
        start += one.shape[1]
    return total


def _lost(logits: list[np.ndarray], mask: np.ndarray | None, expected: np.ndarray, found: np.ndarray) -> float:
    """The largest loss of logit by another choice; infinity for one that is masked or none at all."""
    if expected.shape != found.shape:
        return float("inf")
    worst, starts = 0.0, np.cumsum([0, *(one.shape[1] for one in logits)])
    for row, b in np.argwhere(expected != found):
        choice = found[row, b]
        if not 0 <= choice < logits[b].shape[1] or (mask is not None and not mask[row, starts[b] + choice]):
            return float("inf")
        size = max(1.0, float(np.abs(logits[b][row]).max()))
        worst = max(worst, abs(float(logits[b][row, expected[row, b]] - logits[b][row, choice])) / size)
    return worst


def random_observations(spec: BehaviorSpec, weights: Weights, rng: np.random.Generator, n: int) -> Observations:
    """Observations of every kind, name -> ``[n, *shape]``: those that are normalised around their mean, other numbers around 0."""
    return {o.name: _random_observation(o, weights, rng, n).astype(o.dtype) for o in spec.observations}


def _random_observation(o: ObservationSpec, weights: Weights, rng: np.random.Generator, n: int) -> np.ndarray:
    shape = (n, *o.shape)
    if o.kind == "categorical":
        return (rng.integers(0, o.choices, (n, o.size)) + o.starts).reshape(shape)
    if o.kind == "binary":
        return rng.integers(0, 2, shape)
    if o.is_uint8_image:
        return rng.integers(0, 256, shape)
    x = rng.standard_normal(shape)
    if f"normalizer/{o.name}/mean" in weights:
        x = x * weights[f"normalizer/{o.name}/std"] + weights[f"normalizer/{o.name}/mean"]
    dtype = np.dtype(o.dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.clip(np.rint(x if f"normalizer/{o.name}/mean" in weights else np.abs(x) * 3.0), limits.min, limits.max)
    return x


def _random_mask(spec: BehaviorSpec, rng: np.random.Generator, n: int, call: int) -> np.ndarray | None:
    if not spec.action.choices or (not spec.action.masked and call % 2):
        return None
    mask, start = rng.random((n, spec.action.choices)) < 0.5, 0
    for size in spec.action.discrete_branches:
        mask[np.arange(n), start + rng.integers(0, size, n)] = True
        start += size
    return mask


class OnnxFile:
    """An exported ONNX file in onnxruntime, as a user would run it; the logits inside come out besides."""

    def __init__(self, path: Path, arch: Architecture, env_space: bool) -> None:
        import onnx
        import onnxruntime

        model = onnx.load(path)
        branches = arch.spec.action.discrete_branches
        model.graph.output.extend(
            onnx.helper.make_tensor_value_info(logits_name(b), onnx.TensorProto.FLOAT, ["batch", size]) for b, size in enumerate(branches))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self._arch, self._env_space = arch, env_space
        self._images = {image.name: image for image in arch.images}

    def run(self, obs: Observations, mask: np.ndarray | None, memory: np.ndarray | None) -> Acted:
        n, action, feed = len(next(iter(obs.values()))), self._arch.spec.action, {}
        for i, o in enumerate(self._arch.spec.observations):
            x = obs[o.name]
            if o.name in self._images and not self._env_space:
                image = self._images[o.name]
                x = x.transpose([0, *(1 + axis for axis in image.to_channels_last)]).reshape(n, image.height, image.width, image.channels)
                x = x.transpose(0, 3, 1, 2)
            feed[f"obs_{i}"] = np.ascontiguousarray(x, np.float32).reshape(n, *input_shape(self._arch, i, self._env_space))
        if action.choices:
            feed["action_masks"] = np.ones((n, action.choices), np.float32) if mask is None else mask.astype(np.float32)
        if memory is not None:
            feed["recurrent_in"] = memory[:, None]
        out = dict(zip([o.name for o in self._session.get_outputs()], self._session.run(None, feed), strict=True))
        continuous = out.get("deterministic_continuous_actions", np.empty((n, 0), np.float32))
        discrete = out.get("deterministic_discrete_actions", np.empty((n, 0), np.int64))
        after = out["recurrent_out"][:, 0] if memory is not None else None
        logits = [out[logits_name(b)] for b in range(len(action.discrete_branches))]
        return Acted(continuous, discrete, logits, after, self._env_error(out, continuous, discrete) if self._env_space else 0.0)

    def _env_error(self, out: dict[str, np.ndarray], continuous: np.ndarray, discrete: np.ndarray) -> float:
        """In float32 a number that is rounded may fall to either side of a half: it has to be a whole one not more than a half away."""
        action, worst = self._arch.spec.action, 0.0
        if action.continuous_size:
            low, high = np.array(action.low), np.array(action.high)
            whole = np.concatenate([np.full(a.continuous_size, np.dtype(a.dtype).kind in "iu") for a in simple_actions(action) if a.continuous_size])
            env = out["env_deterministic_continuous_actions"].astype(np.float64)
            away = np.abs(env - (low + (continuous.astype(np.float64) + 1.0) * 0.5 * (high - low)))
            if (whole & (env != np.rint(env))).any():
                return float("inf")
            # A Box may lie far from 0: what float32 cannot tell apart there is not counted.
            away = np.maximum(away - 0.5 * whole - 2e-7 * np.maximum(np.abs(low), np.abs(high)), 0.0)
            worst = float((away / np.maximum((high - low) / 2.0, 1e-30)).max())
        if action.choices:
            starts = [start for a in simple_actions(action) for start in a.starts]
            worst = max(worst, 0.0 if (out["env_deterministic_discrete_actions"] == discrete + starts).all() else float("inf"))
        return worst


class NumpyFile:
    """An exported Python file, as a user would run it; its environment actions have to be the very ones."""

    def __init__(self, policy: Any, spec: BehaviorSpec) -> None:
        self._policy, self._spec = policy, spec

    def run(self, obs: Observations, mask: np.ndarray | None, memory: np.ndarray | None) -> Acted:
        continuous, discrete, after = self._policy.policy_actions(obs, mask, memory)
        given = np.ones((len(discrete), self._spec.action.choices), bool) if mask is None and self._spec.action.masked else mask
        result = self._policy.act(nested_observation(self._spec, obs), given, memory)
        found = result[0] if memory is not None else result
        expected = env_action_rows(self._spec.action, to_env_actions(self._spec.action, Actions(continuous, discrete.astype(np.int32))))
        rows = [_row(found, i) for i in range(len(discrete))]
        is_equal = all(_same(a, b) for a, b in zip(expected, rows, strict=True))
        logits = self._policy.logits(self._policy.features(obs, memory)[0])
        return Acted(continuous, discrete, logits, after, 0.0 if is_equal else float("inf"))


def _row(action: Any, i: int) -> Any:
    if isinstance(action, dict):
        return {key: _row(value, i) for key, value in action.items()}
    return tuple(_row(value, i) for value in action) if isinstance(action, tuple) else action[i]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(_same, a, b))
    return np.asarray(a).dtype == np.asarray(b).dtype and np.array_equal(a, b)


def nested_observation(spec: BehaviorSpec, obs: Observations) -> Any:
    """Observations by name as the environment nests them."""
    return _nested([(o.path, obs[o.name]) for o in spec.observations])


def _nested(parts: list[tuple[tuple[int | str, ...], Any]]) -> Any:
    if not parts[0][0]:
        return parts[0][1]
    inner: dict[int | str, list[tuple[tuple[int | str, ...], Any]]] = {}
    for path, value in parts:
        inner.setdefault(path[0], []).append((path[1:], value))
    # Text that was left out of a Tuple leaves a gap: a mapping by place serves as well.
    return {key: _nested(group) for key, group in inner.items()}
