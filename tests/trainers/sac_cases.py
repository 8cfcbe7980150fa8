"""SAC's losses once more, in NumPy float64: one row, one critic, one step, one joint action at a time."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from envs.specs import BehaviorSpec
from tests.trainers.rollouts import ACTIONS, network_of, random_masks, spec_of
from trainers.quiet_tensorflow import tf
from trainers.sac_graph import SACGraph
from trainers.sac_networks import CRITIC, LOG_ALPHA, TARGET, initial_sac_weights
from trainers.settings import MemorySettings, SACSettings

INPUTS, GAMMA = 3, 0.9
ROWS = 6
SEQUENCES, LENGTH, BURN_IN = 4, 4, 2
SIGNALS = ("extrinsic", "curiosity")
Tensors = dict[str, np.ndarray]


@dataclasses.dataclass
class Case:
    """A behavior with random networks and one random batch of transitions or sequences. Numbers are float64 with the values of float32.

    Attributes:
        lengths: rows of each sequence; of transitions None.
    """

    spec: BehaviorSpec
    graph: SACGraph
    weights: Tensors
    batch: Tensors
    noise: np.ndarray
    lengths: np.ndarray | None = None

    @property
    def rows(self) -> int:
        return self.noise.shape[1]

    def tensorflow(self) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor], dict[str, tf.Tensor], tf.Tensor]:
        """Arguments of `SACGraph.loss`."""
        tensors = {name: tf.constant(x, tf.float32) for name, x in self.weights.items()}
        named, target = ({name: tensors[name] for name in layout} for layout in (self.graph.layout, self.graph.target_layout))
        batch = {name: tf.constant(x, tf.float32 if x.dtype == np.float64 else x.dtype) for name, x in self.batch.items()}
        return named, target, batch, tf.constant(self.noise, tf.float32)


def case_of(
    kind: str, use_sde: bool = False, signals: tuple[str, ...] = SIGNALS, seed: int = 0, observations: str = "vector",
    memory: bool = False, masked: bool = False, network: dict | None = None, **hyper,
) -> Case:
    """Two layers of 5 units (one before a memory of 3 numbers); weights of the size that trained ones have, so that no term is
    nearly 0."""
    action = dataclasses.replace(ACTIONS[kind], masked=masked)
    spec, rng = spec_of(action, INPUTS, observations), np.random.default_rng(seed)
    small = {"hidden_units": 5, "num_layers": 1 if memory else 2, **(network or {})}
    remembered = MemorySettings(sequence_length=LENGTH, memory_size=6, burn_in=BURN_IN) if memory else None
    settings = SACSettings.model_validate({
        "hyperparameters": {"use_sde": use_sde, "sde_initial_log_std": -1.0, **hyper},
        "network_settings": network_of(**small).model_copy(update={"memory": remembered}),
    })
    graph = dataclasses.replace(SACGraph.of(spec, settings), signals=signals)
    first = initial_sac_weights(spec, settings, rng, signals)
    weights = {name: f32(x + 0.4 * rng.standard_normal(x.shape)) for name, x in first.items()}
    batch, lengths = _sequences(graph, rng) if memory else (_transitions(graph, rng), None)
    rows = SEQUENCES * (LENGTH + BURN_IN) if memory else ROWS
    return Case(spec, graph, weights, batch, f32(rng.standard_normal((2, rows, action.continuous_size))), lengths)


def f32(x: np.ndarray) -> np.ndarray:
    """float64 with values that float32 has."""
    return x.astype(np.float32).astype(np.float64)


def _transitions(graph: SACGraph, rng: np.random.Generator) -> Tensors:
    bootstrap = np.where(np.arange(ROWS) % 3 == 0, 0.0, GAMMA)[:, None] ** np.arange(1, len(graph.signals) + 1)[None]
    batch = {**_acted(graph, rng, (ROWS,)), "bootstrap": f32(bootstrap)}
    for prefix in ("", "next_"):
        batch |= {f"{prefix}{name}": x for name, x in _observed(graph, rng, (ROWS,)).items()}
    return batch


def _sequences(graph: SACGraph, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
    """Lengths 6, 5, 3 and 6, the last two in the middle of their episode; padding, and in the row after the last, of random numbers."""
    lengths, begins, each = np.array([6, 5, 3, 6]), np.array([True, True, False, False]), (SEQUENCES, LENGTH + BURN_IN + 1)
    t = np.arange(each[1])
    left = lengths[:, None] - t
    steps = np.where(left > 0, np.minimum(left, 1 + rng.integers(0, 3, each)), 1).astype(np.float64)
    ends = (t + steps == lengths[:, None]) & (np.arange(SEQUENCES) % 2 == 0)[:, None]
    gammas = GAMMA ** np.arange(1, len(graph.signals) + 1)
    counts = (left > 0) & (begins[:, None] | (t >= BURN_IN))
    memory = np.where(begins[:, None], 0.0, rng.standard_normal((SEQUENCES, 6)))
    return {
        **_observed(graph, rng, each), **_acted(graph, rng, each), "steps": steps[..., None], "memory": f32(memory), "begins": begins,
        "bootstrap": f32(np.where(ends[..., None], 0.0, gammas ** steps[..., None])), "weight": counts[..., None].astype(np.float64),
    }, lengths


def _observed(graph: SACGraph, rng: np.random.Generator, each: tuple[int, ...]) -> Tensors:
    arch, n = graph.arch, int(np.prod(each))
    seen = {"vector": f32(rng.standard_normal((*each, arch.vector_width)))}
    for i, image in enumerate(arch.images):
        seen[f"image/{i}"] = rng.integers(0, 256, (*each, *image.shape)).astype(np.uint8)
    masks = random_masks(arch.spec.action, rng, n)
    return seen if masks is None else {**seen, "action_mask": masks.reshape(*each, -1)}


def _acted(graph: SACGraph, rng: np.random.Generator, each: tuple[int, ...]) -> Tensors:
    action, signals = graph.arch.spec.action, len(graph.signals)
    branches = [rng.integers(0, n, each) for n in action.discrete_branches]
    return {
        "continuous": f32(np.tanh(rng.standard_normal((*each, action.continuous_size)))),
        "discrete": np.stack(branches, axis=-1).astype(np.float64) if branches else np.empty((*each, 0)),
        "reward": f32(rng.standard_normal((*each, signals))),
    }


# -- what is seen ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Row:
    """What networks make of one observation: the actor's features, each critic's, and what each branch allows."""

    z: np.ndarray
    critics: list[np.ndarray]
    allowed: list[np.ndarray]


def dense(w: Tensors, layer: str, x: np.ndarray, critic: int | None = None) -> np.ndarray:
    kernel, bias = w[f"{layer}/kernel"], w[f"{layer}/bias"]
    return x @ kernel + bias if critic is None else x @ kernel[critic] + bias[critic]


def encode(case: Case, w: Tensors, scope: str, vector: np.ndarray, images: list[np.ndarray]) -> np.ndarray:
    """One observation: the vector, and each image flattened, divided by 255, through a dense layer."""
    parts = [np.tanh(dense(w, f"{scope}/encoder_{i}/dense", x.ravel() / 255.0)) for i, x in enumerate(images)]
    return np.concatenate([vector, *parts])


def body(case: Case, w: Tensors, scope: str, x: np.ndarray, critic: int | None = None) -> np.ndarray:
    for i in range(len(case.graph.arch.layers)):
        x = np.tanh(dense(w, f"{scope}/dense_{i}", x, critic))
    return x


def remember(w: Tensors, scope: str, x: np.ndarray, memory: np.ndarray, critic: int | None = None) -> np.ndarray:
    """The memory after one more step."""
    kernel, recurrent, bias = (
        w[f"{scope}/lstm/{name}"] if critic is None else w[f"{scope}/lstm/{name}"][critic] for name in ("kernel", "recurrent_kernel", "bias")
    )
    h, c = np.split(memory, 2)
    i, f, g, o = np.split(x @ kernel + h @ recurrent + bias, 4)
    i, f, o = (1.0 / (1.0 + np.exp(-gate)) for gate in (i, f, o))
    c = f * c + i * np.tanh(g)
    return np.concatenate([o * np.tanh(c), c])


def allowed(case: Case, mask: np.ndarray | None) -> list[np.ndarray]:
    branches = case.spec.action.discrete_branches
    return [np.ones(n, bool) for n in branches] if mask is None else np.split(mask, np.cumsum(branches)[:-1])


def seen(case: Case, w: Tensors, warm: Tensors | None = None) -> tuple[list[Row], list[Row]]:
    """Rows with the critics, and what they bootstrap from with the targets.

    Args:
        warm: weights of the steps of a burn-in; those of all others where None. So differences of a loss by `w` leave out what
            comes through a burn-in.
    """
    return _transitions_seen(case, w) if case.lengths is None else _sequences_seen(case, w, w if warm is None else warm)


def _transitions_seen(case: Case, w: Tensors) -> tuple[list[Row], list[Row]]:
    found = []
    for prefix, scope in (("", CRITIC), ("next_", TARGET)):
        rows, masks = [], case.batch.get(f"{prefix}action_mask", [None] * ROWS)
        for row in range(ROWS):
            inputs = case.batch[f"{prefix}vector"][row], [case.batch[f"{prefix}image/{i}"][row] for i in range(len(case.graph.arch.images))]
            z = body(case, w, "actor", encode(case, w, "actor", *inputs))
            rows.append(Row(z, [encode(case, w, scope, *inputs)] * 2, allowed(case, masks[row])))
        found.append(rows)
    return found[0], found[1]


def _sequences_seen(case: Case, w: Tensors, warm: Tensors) -> tuple[list[Row], list[Row]]:
    now, after = [], []
    for q in range(SEQUENCES):
        actor, critics, targets = case.batch["memory"][q], [np.zeros(6)] * 2, [np.zeros(6)] * 2
        rows: list[tuple[Row, Row]] = []
        for t in range(LENGTH + BURN_IN + 1):
            use = w if case.batch["begins"][q] or t >= BURN_IN else warm
            inputs = case.batch["vector"][q, t], [case.batch[f"image/{i}"][q, t] for i in range(len(case.graph.arch.images))]
            actor = remember(use, "actor", body(case, use, "actor", encode(case, use, "actor", *inputs)), actor)
            for i in range(2):
                critics[i], targets[i] = (
                    remember(use, scope, body(case, use, scope, encode(case, use, scope, *inputs), i), memory, i)
                    for scope, memory in ((CRITIC, critics[i]), (TARGET, targets[i]))
                )
            mask = allowed(case, case.batch["action_mask"][q, t] if "action_mask" in case.batch else None)
            rows.append(tuple(Row(actor[:3], [m[:3] for m in memories], mask) for memories in (critics, targets)))
        now += [row for row, _ in rows[:-1]]
        after += [rows[t + int(case.batch["steps"][q, t, 0])][1] for t in range(LENGTH + BURN_IN)]
    return now, after


def of_rows(case: Case, name: str) -> np.ndarray:
    """A column, row by row ``[R, …]``."""
    x = case.batch[name]
    return x if case.lengths is None else x[:, :-1].reshape(case.rows, *x.shape[2:])


def mean(case: Case, x) -> np.ndarray:
    """Over the rows that count."""
    x = np.asarray(x)
    return x.mean(axis=0) if case.lengths is None else x[of_rows(case, "weight")[:, 0] > 0].mean(axis=0)


# -- policy and critics ------------------------------------------------------------------------------------------------


def policy(case: Case, w: Tensors, row: Row, noise: np.ndarray) -> tuple[np.ndarray, float, list[np.ndarray]]:
    """Of one row: the continuous action, its log-density, and the probabilities of each branch."""
    action, log_density = np.empty(0), 0.0
    if case.spec.action.continuous_size:
        mean = dense(w, "actor/mean", row.z)
        if case.graph.distribution == "gsde":
            std = np.sqrt((row.z**2) @ np.exp(w["actor/log_std"]) ** 2 + 1e-6)
        else:
            std = np.exp(np.clip(dense(w, "actor/log_std", row.z), -20.0, 2.0))
        u = mean + std * noise
        action = np.tanh(u)
        density = np.exp(-0.5 * ((u - mean) / std) ** 2) / (std * np.sqrt(2.0 * np.pi)) * np.cosh(u) ** 2  # 1 / (1 − tanh²)
        log_density = float(np.log(density).sum())
    probabilities = []
    for b, mask in enumerate(row.allowed):
        weight = np.where(mask, np.exp(dense(w, f"actor/branch_{b}", row.z)), 0.0)
        probabilities.append(weight / weight.sum() if mask.any() else weight)
    return action, log_density, probabilities


def joint_values(case: Case, w: Tensors, scope: str, critic: int, row: Row, action: np.ndarray) -> dict[tuple[int, ...], np.ndarray]:
    """Q of every joint choice of one row, ``[S]`` each: the mean over branches of Q_b(s, a_cont)[a_b]."""
    h = np.concatenate([row.critics[critic], action])
    if case.lengths is None:
        h = body(case, w, scope, h, critic)
    if f"{scope}/joint/kernel" in w:
        h = np.tanh(dense(w, f"{scope}/joint", h, critic))
    branches = case.spec.action.discrete_branches
    out = dense(w, f"{scope}/q", h, critic).reshape(len(case.graph.signals), sum(branches) or 1)
    if not branches:
        return {(): out[:, 0]}
    first = np.cumsum([0, *branches[:-1]])
    return {
        joint: np.mean([out[:, f + a] for f, a in zip(first, joint, strict=True)], axis=0)
        for joint in itertools.product(*map(range, branches))
    }


def soft_value(case: Case, w: Tensors, scope: str, row: Row, noise: np.ndarray) -> tuple[np.ndarray, float, list[float]]:
    """Of one row: the smaller twin's expected Q ``[S]``, the entropy term Σ −α log π in expectation, and each part's entropy."""
    action, log_density, probabilities = policy(case, w, row, noise)
    alpha = np.exp(w[LOG_ALPHA])
    has_continuous = case.spec.action.continuous_size > 0
    expected, bonus = np.zeros((2, len(case.graph.signals))), 0.0
    for critic in range(2):
        for joint, q in joint_values(case, w, scope, critic, row, action).items():
            expected[critic] += np.prod([p[a] for p, a in zip(probabilities, joint, strict=True)]) * q
    for joint in itertools.product(*(np.flatnonzero(p) for p in probabilities)):
        chosen = [p[a] for p, a in zip(probabilities, joint, strict=True)]
        bonus -= np.prod(chosen) * sum(a * np.log(p) for a, p in zip(alpha[has_continuous:], chosen, strict=True))
    parts = [-float((p[p > 0] * np.log(p[p > 0])).sum()) for p in probabilities]
    if has_continuous:
        bonus -= alpha[0] * log_density
        parts.insert(0, -log_density)
    return expected[int(expected[1].sum() < expected[0].sum())], bonus, parts


# -- losses ------------------------------------------------------------------------------------------------------------


def targets(case: Case, w: Tensors) -> np.ndarray:
    """y ``[R, S]``. A row's noise is that of its own bootstrap, of a sequence's that of the row before it."""
    found, after = [], seen(case, w)[1]
    steps = np.ones(case.rows, int) if case.lengths is None else of_rows(case, "steps")[:, 0].astype(int)
    for row, (reward, bootstrap) in enumerate(zip(of_rows(case, "reward"), of_rows(case, "bootstrap"), strict=True)):
        value, bonus, _ = soft_value(case, w, TARGET, after[row], case.noise[0, row + steps[row] - 1])
        value[0] += bonus
        found.append(reward + bootstrap * value)
    return np.array(found)


def critic_losses(case: Case, w: Tensors, y: np.ndarray, warm: Tensors | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The loss of each critic, and the value estimates ``[S]``."""
    losses, values = [], []
    columns = (seen(case, w, warm)[0], of_rows(case, "continuous"), of_rows(case, "discrete"), y)
    for row, continuous, discrete, y_row in zip(*columns, strict=True):
        q = [joint_values(case, w, CRITIC, i, row, continuous)[tuple(discrete.astype(int))] for i in range(2)]
        losses.append([0.5 * np.mean((q_i - y_row) ** 2) for q_i in q])
        values.append(np.mean(q, axis=0))
    return mean(case, losses), mean(case, values)


def policy_loss(case: Case, w: Tensors, warm: Tensors | None = None) -> tuple[float, np.ndarray]:
    """The policy's loss, and the mean entropy of each part."""
    losses, parts = [], []
    for row, noise in zip(seen(case, w, warm)[0], case.noise[1], strict=True):
        value, bonus, entropies = soft_value(case, w, CRITIC, row, noise)
        losses.append(-value.sum() - bonus)
        parts.append(entropies)
    return float(mean(case, losses)), mean(case, parts)


def wanted_entropies(case: Case, scale: float = 0.7) -> np.ndarray:
    """Of each part: −C, and scale · ln n for the n choices that each row allows."""
    continuous = [-float(case.spec.action.continuous_size)] * bool(case.spec.action.continuous_size)
    rows = [[*continuous, *(scale * np.log(max(mask.sum(), 1)) for mask in row.allowed)] for row in seen(case, case.weights)[0]]
    return mean(case, rows)


def alpha_loss(case: Case, w: Tensors, entropies: np.ndarray) -> float:
    return float((w[LOG_ALPHA] * (entropies - wanted_entropies(case))).sum())
