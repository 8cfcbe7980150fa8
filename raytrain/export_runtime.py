"""What runs an exported policy with NumPy alone. `raytrain.export_numpy` puts the text of this module, and weights, into the file it writes.

Nothing but NumPy and the standard library, and nothing newer than Python 3.9 and NumPy 1.20: the file is to run anywhere.

Letters: ``n`` rows of a batch, ``U`` features, ``M`` size of the memory, ``C`` continuous dimensions, ``B`` discrete branches, ``W``
choices of all of them.
"""

from __future__ import annotations

import base64
import io
import json

import numpy as np


class ExportedPolicy:
    """Observation -> the environment's action; keeps nothing between calls.

    Args:
        spec: what `raytrain.export_numpy.runtime_spec` describes.
        weights: name -> float32 array.

    Attributes:
        spec, weights: as given.
        memory_size: M; 0 for a policy that remembers nothing.
    """

    def __init__(self, spec, weights):
        self.spec, self.weights = spec, weights
        self.memory_size = spec["memory_size"]
        self._rng = np.random.default_rng()

    def act(self, obs, action_mask=None, memory=None, deterministic=True, rng=None):
        """The environment's action for one observation, or actions for a batch.

        Args:
            obs: one observation as the environment gives it, or a batch: every array has one dimension more. Tuples and dicts are nested
                as in the observation space.
            action_mask: which choices are allowed, bool or 0/1 ``[W]`` (``[n, W]`` for a batch), one branch after the other, or a list
                of one array for each branch. A policy that was trained with masks needs one, here or as the key ``action_mask`` of `obs`.
            memory: what the last call returned besides the action, float32 ``[M]`` or ``[n, M]``; None at the first step of an episode.
            deterministic: the most likely action; otherwise a sample from `rng`.
            rng: a ``numpy.random.Generator``; None takes one of this policy's own.

        Returns:
            What ``env.step`` takes: a NumPy integer for Discrete, an array, or a tuple or dict of such; for a batch arrays with a leading
            n. Of a policy that remembers, the pair (action, memory).

        Raises:
            ValueError: an observation, mask or memory that does not fit.
        """
        arrays, n = self.read(obs)
        rows = 1 if n is None else n
        if action_mask is None and isinstance(obs, dict) and self.spec["action"]["masked"]:
            action_mask = obs.get("action_mask")
        mask = self._read_mask(action_mask, rows)
        before = self._read_memory(memory, rows)
        continuous, discrete, after = self.policy_actions(arrays, mask, before, deterministic, rng)
        action = self.env_actions(continuous, discrete, n is None)
        if not self.memory_size:
            return action
        return action, after[0] if n is None else after

    # -- input -------------------------------------------------------------------------------------------------------

    def read(self, obs):
        """Observations by name with a leading n, and n; None instead of n for one observation (then it is 1)."""
        arrays, possible = {}, []
        for o in self.spec["observations"]:
            part = obs
            try:
                for key in o["path"]:
                    part = part[key]
                array = np.asarray(part, None if np.asarray(part).dtype.kind in "biu" else np.float32)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise ValueError(f"Expected the observation {o['name']!r} as numbers, received {type(obs).__name__} ({error}).") from None
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ValueError(f"Expected finite numbers in observation {o['name']!r}, received {array[~np.isfinite(array)][0]}.")
            shape, counts = tuple(o["shape"]), set()
            if array.shape == shape or (shape == (1,) and array.shape == ()):
                counts.add(None)
            if array.ndim and (array.shape[1:] == shape or (shape == (1,) and array.ndim == 1)):
                counts.add(len(array))
            if not counts:
                raise ValueError(f"Expected observation {o['name']!r} of shape {list(shape)}, or n of them, received {list(array.shape)}.")
            arrays[o["name"]] = array
            possible.append(counts)
        shared = set.intersection(*possible)
        if not shared:
            raise ValueError(f"Expected one observation, or as many rows of each, received { {k: a.shape for k, a in arrays.items()} }.")
        if len(shared) > 1:  # (1,) is a batch of one where environments give scalars
            shared = {1} if any(o["kind"] == "categorical" for o in self.spec["observations"]) else {None}
        n = shared.pop()
        return {o["name"]: arrays[o["name"]].reshape([1 if n is None else n] + o["shape"]) for o in self.spec["observations"]}, n

    def _read_mask(self, mask, n):
        action = self.spec["action"]
        sizes = action["discrete_branches"]
        if mask is None:
            if action["masked"]:
                raise ValueError("Expected action_mask, since this policy was trained with masks, received None.")
            return None
        if isinstance(mask, (list, tuple)) and len(mask) == len(sizes) > 0 and all(np.ndim(part) > 0 for part in mask):
            widths = [np.shape(part)[-1] for part in mask]
            if widths == list(sizes):
                mask = np.concatenate([np.asarray(part) for part in mask], axis=-1)
        mask = np.asarray(mask)
        if mask.size != n * sum(sizes) or mask.ndim not in (1, 2) or mask.shape[-1] != sum(sizes):
            raise ValueError(f"Expected action_mask [{n}, {sum(sizes)}], received {list(mask.shape)}.")
        mask = mask.reshape(n, -1) != 0
        start = 0
        for b, size in enumerate(sizes):
            if not mask[:, start : start + size].any(axis=1).all():
                raise ValueError(f"Expected at least one allowed choice in each row of action_mask, received none for branch {b}.")
            start += size
        return mask

    def _read_memory(self, memory, n):
        if not self.memory_size:
            return None
        if memory is None:
            return np.zeros((n, self.memory_size), np.float32)
        memory = np.asarray(memory, np.float32)
        if memory.size != n * self.memory_size or memory.shape[-1] != self.memory_size:
            raise ValueError(f"Expected memory [{n}, {self.memory_size}], received {list(memory.shape)}.")
        return memory.reshape(n, -1)

    # -- network -----------------------------------------------------------------------------------------------------

    def policy_actions(self, arrays, mask=None, memory=None, deterministic=True, rng=None):
        """Actions in policy space: continuous float32 ``[n, C]`` in [-1, 1], choices int64 ``[n, B]`` from 0, and the memory after the step."""
        rng = self._rng if rng is None else rng
        features, after = self.features(arrays, memory)
        continuous = self._continuous(features, deterministic, rng)
        discrete, start = np.empty((len(features), len(self.spec["action"]["discrete_branches"])), np.int64), 0
        for b, logits in enumerate(self.logits(features)):
            if mask is not None:
                logits = np.where(mask[:, start : start + logits.shape[1]], logits, -np.inf)
            start += logits.shape[1]
            discrete[:, b] = (logits if deterministic else logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        return continuous, discrete, after

    def features(self, arrays, memory=None):
        """What the heads stand on, float32 ``[n, U]``, and the memory after the step (None without)."""
        parts = [self._vector(part, arrays[part["name"]]) for part in self.spec["vectors"]]
        parts += [self._image(image, arrays[image["name"]]) for image in self.spec["images"]]
        x = np.concatenate(parts, axis=1)
        for layer in self.spec["layers"]:
            x = self._activate(self._dense(x, layer))
        if memory is None:
            return x, None
        units = self.memory_size // 2
        h, c = memory[:, :units], memory[:, units:]
        w = self.weights
        z = x @ w["actor/lstm/kernel"] + h @ w["actor/lstm/recurrent_kernel"] + w["actor/lstm/bias"]
        i, f, g, o = (z[:, gate * units : (gate + 1) * units] for gate in range(4))
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
        return h, np.concatenate([h, c], axis=1)

    def logits(self, features):
        """Of each branch, float32 ``[n, choices]``; masks are not in them."""
        return [self._dense(features, f"actor/branch_{b}") for b in range(len(self.spec["action"]["discrete_branches"]))]

    def _continuous(self, features, deterministic, rng):
        if not self.spec["action"]["continuous_size"]:
            return np.empty((len(features), 0), np.float32)
        x = self._dense(features, "actor/mean")
        if not deterministic:
            x = x + self._std(features) * rng.standard_normal(x.shape, dtype=np.float32)
        return np.clip(x, -1.0, 1.0) if self.spec["distribution"] == "gaussian" else np.tanh(x)

    def _std(self, features):
        if self.spec["distribution"] == "gaussian":
            return np.exp(self.weights["actor/log_std"])
        if self.spec["distribution"] == "gsde":
            return np.sqrt(np.square(features) @ np.exp(2.0 * self.weights["actor/log_std"]) + np.float32(self.spec["variance_floor"]))
        return np.exp(np.clip(self._dense(features, "actor/log_std"), *self.spec["log_std_range"]))

    def _vector(self, part, x):
        x = x.reshape(len(x), -1)
        if part["choices"]:
            index = x.astype(np.int64) - part["starts"]
            if ((index < 0) | (index >= part["choices"])).any():
                raise ValueError(f"Expected observation {part['name']!r} among its {part['choices']} choices from {part['starts']}.")
            return np.concatenate([np.eye(k, dtype=np.float32)[index[:, i]] for i, k in enumerate(part["choices"])], axis=1)
        x = x.astype(np.float32)
        if part["normalized"]:
            mean, std = (self.weights[f"normalizer/{part['name']}/{which}"].reshape(-1) for which in ("mean", "std"))
            x = np.clip((x - mean) / std, -self.spec["clip"], self.spec["clip"])
        return x

    def _image(self, image, x):
        return np.concatenate([self._encode(image, x[i : i + 16]) for i in range(0, len(x), 16)]) if len(x) > 16 else self._encode(image, x)

    def _encode(self, image, x):
        x = x.transpose([0] + [1 + axis for axis in image["to_channels_last"]]).astype(np.float32)
        x = x.reshape(len(x), image["height"], image["width"], image["channels"])
        if image["scale"]:
            x = x * np.float32(1.0 / 255.0)
        for layer in image["encoder"]:
            if layer["kind"] == "conv":
                x = self._conv(layer, x)
            elif layer["kind"] == "max_pool":
                windows = _windows(x, layer["size"], layer["stride"], True, -np.inf)
                places = [windows[..., i, j] for i in range(layer["size"]) for j in range(layer["size"])]
                x = np.maximum.reduce(places)
            elif layer["kind"] == "residual":
                x = x + self._conv(layer["second"], np.maximum(self._conv(layer["first"], np.maximum(x, 0.0)), 0.0))
            else:
                x = np.maximum(x, 0.0)
        return self._activate(self._dense(x.reshape(len(x), -1), image["dense"]))

    def _conv(self, layer, x):
        kernel = self.weights[layer["name"] + "/kernel"]  # [height, width, inputs, outputs]
        windows = _windows(x, layer["size"], layer["stride"], layer["same"], 0.0).transpose(0, 1, 2, 4, 5, 3)
        flat = kernel.reshape(-1, kernel.shape[3])
        x = windows.reshape(windows.shape[:3] + (len(flat),)) @ flat + self.weights[layer["name"] + "/bias"]
        return np.maximum(x, 0.0) if layer["relu"] else x

    def _dense(self, x, name):
        return x @ self.weights[name + "/kernel"] + self.weights[name + "/bias"]

    def _activate(self, x):
        name = self.spec["activation"]
        if name == "elu":
            return np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0)))
        return {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0.0), "swish": lambda x: x * _sigmoid(x)}[name](x)

    # -- output ------------------------------------------------------------------------------------------------------

    def env_actions(self, continuous, discrete, is_single=False):
        """Policy space -> the environment's: a Box from low to high, whole numbers where it has them; a choice counted from its start."""
        action, parts, dimension, branch = self.spec["action"], [], 0, 0
        for part in action["parts"] or [{"path": [], "action": action}]:
            simple = part["action"]
            end, last = dimension + simple["continuous_size"], branch + len(simple["discrete_branches"])
            values = _env_action(simple, continuous[:, dimension:end], discrete[:, branch:last])
            if is_single:
                values = values[0] if simple["kind"] == "discrete" else values[0, ...]
            parts.append((part["path"], values))
            dimension, branch = end, last
        return _nested(parts)


def _env_action(simple, continuous, discrete):
    shape = [len(continuous)] + simple["shape"]
    if simple["kind"] != "box":
        starts = np.asarray(simple["starts"] or 0)
        return (discrete + starts).astype(simple["dtype"]).reshape(shape)
    low, high = np.asarray(simple["low"]), np.asarray(simple["high"])
    x = np.clip(low + (continuous.astype(np.float64) + 1.0) * 0.5 * (high - low), low, high)
    if np.issubdtype(np.dtype(simple["dtype"]), np.integer):
        x = np.rint(x)
    return x.astype(simple["dtype"]).reshape(shape)


def _nested(parts):
    """(path, value) of each part -> the tuples and dicts that have every value at its path."""
    if not parts[0][0]:
        return parts[0][1]
    inner = {}
    for path, value in parts:
        inner.setdefault(path[0], []).append((path[1:], value))
    members = {key: _nested(group) for key, group in inner.items()}
    return tuple(members.values()) if isinstance(parts[0][0][0], int) else members


def _windows(x, size, stride, same, border):
    """``[n, H, W, C]`` -> ``[n, H', W', C, size, size]``; `same` pads so that H' = ceil(H / stride), the odd line at the end."""
    if same:
        missing = [max((-(-side // stride) - 1) * stride + size - side, 0) for side in x.shape[1:3]]
        x = np.pad(x, [(0, 0)] + [(m // 2, m - m // 2) for m in missing] + [(0, 0)], constant_values=border)
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))[:, ::stride, ::stride]


def _sigmoid(x):
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def _load(spec, weights):
    """The policy in the two texts at the end of an exported file."""
    arrays = np.load(io.BytesIO(base64.b64decode(weights)), allow_pickle=False)
    return ExportedPolicy(json.loads(spec), {name: arrays[name] for name in arrays.files})
