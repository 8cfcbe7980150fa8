"""The compiled update against a slow one; chunks, leftovers and earlier calls must not show in the result."""

from __future__ import annotations

import numpy as np
import pytest

from tests.trainers.rollouts import ACTIONS, BOX, DISCRETE, HYBRID, MASKED_HYBRID, network_of, spec_of
from trainers import sac_update
from trainers.architecture import architecture
from trainers.sac_batches import SACRows, SACSequences
from trainers.sac_graph import STATISTICS
from trainers.sac_networks import CRITIC, LOG_ALPHA, TARGET, initial_sac_weights
from trainers.sac_update import SACProgram, tf
from trainers.settings import SACSettings
from trainers.update_ratio import UPDATES_PER_CALL

BATCH, RATE = 16, 0.01


def program_of(action=BOX, tau: float = 0.005, observations: str = "vector", memory: bool = False, **hyper) -> SACProgram:
    """A program with small networks; equal settings share the compiled code with earlier ones, also of test_sac."""
    spec = spec_of(action, observations=observations)
    settings = SACSettings.model_validate({
        "hyperparameters": {"batch_size": BATCH, "tau": tau, **hyper}, "network_settings": network_of(memory),
    })
    return SACProgram(spec, settings, initial_sac_weights(spec, settings, np.random.default_rng(5)))


def rows_of(updates: int, action=BOX, seed: int = 0, observations: str = "vector") -> SACRows:
    rng, n = np.random.default_rng(seed), updates * BATCH
    arch = architecture(spec_of(action, observations=observations), network_of())
    (x, images, masks), after = (seen(arch, rng, n) for _ in range(2))
    return SACRows(x, after[0], *acted(action, rng, n), images, after[1], masks, after[2])


def seen(arch, rng: np.random.Generator, *each: int) -> tuple[np.ndarray, tuple[np.ndarray, ...], np.ndarray | None]:
    """Vector, images and masks of rows."""
    masks = rng.random((*each, arch.spec.action.choices)) < 0.7
    first = np.cumsum((0, *arch.spec.action.discrete_branches[:-1])) if arch.spec.action.discrete_branches else []
    masks[..., first] = True
    images = tuple(rng.integers(0, 256, (*each, *image.shape)).astype(np.uint8) for image in arch.images)
    return rng.standard_normal((*each, arch.vector_width)).astype(np.float32), images, masks if arch.spec.action.masked else None


def acted(action, rng: np.random.Generator, *each: int) -> tuple[np.ndarray, ...]:
    """Continuous and discrete actions, rewards and bootstraps of rows."""
    discrete = [rng.integers(0, choices, each) for choices in action.discrete_branches]
    return (
        np.tanh(rng.standard_normal((*each, action.continuous_size))).astype(np.float32),
        np.stack(discrete, axis=-1).astype(np.int32) if discrete else np.empty((*each, 0), np.int32),
        rng.standard_normal((*each, 1)).astype(np.float32), np.where(rng.random((*each, 1)) < 0.2, 0.0, 0.9).astype(np.float32),
    )


def sequences_of(updates: int, action=BOX, seed: int = 0, observations: str = "vector") -> SACSequences:
    """Four for each update, of 4 rows after a burn-in of 1; half of them in the middle of an episode, some ended early."""
    rng, n, length = np.random.default_rng(seed), 4 * updates, 5
    arch = architecture(spec_of(action, observations=observations), network_of(True))
    vector, images, masks = seen(arch, rng, n, length + 1)
    rows, begins, t = rng.integers(2, length + 1, n), np.arange(n) % 2 == 0, np.arange(length)
    weight = (t < rows[:, None]) & (begins[:, None] | (t >= 1))
    memory = np.where(begins[:, None], 0.0, rng.standard_normal((n, 6))).astype(np.float32)
    steps = np.clip(rows[:, None] - t, 1, 2).astype(np.int32)
    return SACSequences(vector, *acted(action, rng, n, length), steps, weight.astype(np.float32), memory, begins, images, masks)


def everything(program: SACProgram) -> dict[str, np.ndarray]:
    """Parameters, targets and Adam's state."""
    m, v, step = program.adam_state()
    return {
        **program.weights(), **program.targets(), **{f"m/{k}": x for k, x in m.items()}, **{f"v/{k}": x for k, x in v.items()},
        "step": np.array(step),
    }


def assert_same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    assert one.keys() == two.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name], err_msg=name)


def slow_update(
    program: SACProgram, rows: SACRows | SACSequences, rng: np.random.Generator, max_norm: float | None, learn_alpha: bool = True
):
    """One batch after the other: eager gradients, Adam and targets in float64 NumPy."""
    graph, arrays = program._graph, program._arrays
    updates = arrays.fill(rows, rng)
    theta = {k: w.astype(np.float64) for k, w in program.weights().items()}
    target = {k: w.astype(np.float64) for k, w in program.targets().items()}
    m, v, sums = {k: 0.0 for k in theta}, {k: 0.0 for k in theta}, np.zeros(len(STATISTICS) + 1)
    for t in range(1, updates + 1):
        named, fixed = ({k: tf.constant(w, tf.float32) for k, w in tensors.items()} for tensors in (theta, target))
        with tf.GradientTape() as tape:
            tape.watch(named)
            batch = graph.unpacked(tf.constant(arrays.packed[t - 1])) | {k: tf.constant(x[t - 1]) for k, x in arrays.blocks.items()}
            loss, (means, values) = graph.loss(named, fixed, batch, tf.constant(arrays.noise[t - 1]))
        g = {k: np.asarray(x, np.float64) for k, x in tape.gradient(loss, named).items()}
        norms = []
        for prefix in ("actor/", f"{CRITIC}/"):
            mine = [k for k in g if k.startswith(prefix)]
            norms.append(np.sqrt(sum((g[k] ** 2).sum() for k in mine)))
            for k in mine:
                g[k] = g[k] * (1.0 if max_norm is None else min(1.0, max_norm / norms[-1]))
        sums += [*(float(x) for x in means), *norms, *values.numpy()]
        for k, w in theta.items():
            if k == LOG_ALPHA and not learn_alpha:
                continue
            m[k], v[k] = 0.9 * m[k] + 0.1 * g[k], 0.999 * v[k] + 0.001 * g[k] ** 2
            theta[k] = w - RATE * (m[k] / (1 - 0.9**t)) / (np.sqrt(v[k] / (1 - 0.999**t)) + 1e-8)
        for k, w in target.items():
            target[k] = 0.995 * w + 0.005 * theta[CRITIC + k.removeprefix(TARGET)]
    return theta, target, sums / updates


CLIPPED = {"max_grad_norm": 0.1, "learn_entcoef": False}
slow = pytest.mark.slow  # recurrent programs and those of images take long to compile


@pytest.mark.parametrize(("action", "how", "hyper"), [
    pytest.param(BOX, {}, {}, id="box"), pytest.param(HYBRID, {}, CLIPPED, id="hybrid with clipped gradients and fixed coefficients"),
    pytest.param(MASKED_HYBRID, {"observations": "dict"}, {}, id="dict and masks", marks=slow),
    pytest.param(BOX, {"memory": True}, {}, id="recurrent", marks=slow),
    pytest.param(MASKED_HYBRID, {"observations": "dict", "memory": True}, {}, id="recurrent, dict and masks", marks=slow),
])
def test_agrees_with_a_slow_update(action, how, hyper):
    """C49: Adam on all parameters at once, gradients clipped for actor and critics apart, targets after each step with the new critics."""
    rows = (sequences_of if how.get("memory") else rows_of)(3, action, observations=how.get("observations", "vector"))
    program = program_of(action, **how, **hyper)
    before = program.weights()
    theta, target, means = slow_update(
        program, rows, np.random.default_rng(9), hyper.get("max_grad_norm"), hyper.get("learn_entcoef", True)
    )
    stats = program.update(rows, RATE, np.random.default_rng(9))
    assert list(stats) == [*STATISTICS, "value/extrinsic"]
    np.testing.assert_allclose(list(stats.values()), means, rtol=1e-4, atol=1e-4)
    for found, expected in ((program.weights(), theta), (program.targets(), target)):
        for name, w in found.items():
            np.testing.assert_allclose(w, expected[name], atol=2e-4, err_msg=name)
    assert program.adam_state()[2] == 3
    moved = {name: np.abs(w - before[name]).max() for name, w in program.weights().items()}
    assert all(moved[name] > 1e-3 for name in moved if name != LOG_ALPHA), moved
    assert (moved[LOG_ALPHA] == 0.0) == ("learn_entcoef" in hyper)


# -- targets ----------------------------------------------------------------------------------------------------------


def test_targets_follow_by_tau():
    """C49: from θ' = 0 and θ = 1 with τ = 0.005: 0.005 after 1 update, 0.04889 after 10, 0.39423 after 100."""
    program = program_of()
    program.set_weights({name: np.ones_like(w) if name.startswith(f"{CRITIC}/") else w for name, w in program.weights().items()})
    program.set_targets({name: np.zeros_like(w) for name, w in program.targets().items()})
    done = 0
    for until, expected in ((1, 0.005), (10, 0.04889), (100, 0.39423)):
        while done < until:
            count = min(UPDATES_PER_CALL, until - done)
            program.update(rows_of(count), 0.0, np.random.default_rng(0))
            done += count
        for name, w in program.targets().items():
            np.testing.assert_allclose(w, expected, atol=6e-6, err_msg=name)


def test_targets_begin_as_the_critics_and_follow_the_new_ones():
    """C49: max |θ' − θ| = 0 at first; after one update θ' = (1 − τ)θ'_old + τθ_new, which differs from the old θ by now."""
    program = program_of()
    old = program.targets()
    for name, w in program.weights().items():
        if name.startswith(f"{CRITIC}/"):
            np.testing.assert_array_equal(old[TARGET + name.removeprefix(CRITIC)], w)
    program.update(rows_of(1), RATE, np.random.default_rng(0))
    new = program.weights()
    for name, w in program.targets().items():
        online = new[CRITIC + name.removeprefix(TARGET)].astype(np.float64)
        np.testing.assert_allclose(w, 0.995 * old[name] + 0.005 * online, rtol=1e-6, atol=1e-9, err_msg=name)
        assert np.abs(w - old[name]).max() > 1e-5


# -- the entropy coefficient ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target_entropy", "calls", "limit"), [(-1_000.0, 625, -20.0), (10.0, 30, 20.0)], ids=["falls", "rises"])
@pytest.mark.slow
def test_alpha_stays_positive_and_finite(target_entropy, calls, limit):
    """C47: 10,000 updates at rate 0.1 from log α = 0, whose gradient always has one sign. −0.1 after one, and −1,000 would be α = 0
    in any float. The other way, with 10 nats in [-1, 1]², where 1.39 is the most, α and with it the losses would be infinite."""
    program, rng = program_of(target_entropy=target_entropy), np.random.default_rng(0)
    program.update(rows_of(1), 0.1, rng)
    assert float(program.alpha()[0]) == pytest.approx(np.exp(np.copysign(0.1, limit)), rel=1e-4)
    rows = rows_of(UPDATES_PER_CALL)
    for _ in range(calls):
        stats = program.update(rows, 0.1, rng)
    assert program.adam_state()[2] == 1 + calls * UPDATES_PER_CALL
    assert all(np.isfinite(value) for value in stats.values())
    assert program.alpha()[0] > 0.0
    assert program.alpha()[0] == pytest.approx(np.exp(limit), rel=1e-5)


def test_coefficients_that_are_not_learnt_stay():
    """Also after a run that did learn them, whose moments are not 0."""
    program = program_of(HYBRID, max_grad_norm=0.1, learn_entcoef=False)
    before = program.alpha()
    m, v, _ = program.adam_state()
    program.set_adam({**m, LOG_ALPHA: np.ones(3, np.float32)}, {**v, LOG_ALPHA: np.ones(3, np.float32)}, 5)
    program.update(rows_of(3, HYBRID), RATE, np.random.default_rng(0))
    np.testing.assert_array_equal(program.alpha(), before)


# -- what must not show -----------------------------------------------------------------------------------------------


def test_size_of_chunks_changes_nothing(monkeypatch):
    """Weights, targets, optimizer state and statistics are the same to the bit in one chunk, in four and in eleven.

    The second program's clock jumps 0.5 s per reading, so that a chunk has twice the updates of the one before; the third's 10 s.
    """
    outcomes = []
    for speed, tick in ((0.0, 1e-6), (0.1, 0.5), (0.1, 10.0)):
        program, calls, now = program_of(), [], [0.0]
        program._updates_per_s = speed
        monkeypatch.setattr(sac_update.time, "perf_counter", lambda now=now, tick=tick: now.__setitem__(0, now[0] + tick) or now[0])
        stats = program.update(rows_of(11), RATE, np.random.default_rng(1), lambda calls=calls: calls.append(1))
        outcomes.append((stats, everything(program), len(calls)))
    assert [calls for *_, calls in outcomes] == [0, 3, 10]
    for stats, state, _ in outcomes[1:]:
        assert stats == outcomes[0][0]
        assert_same(state, outcomes[0][1])


def test_calls_of_one_update_are_one_call_of_many():
    """Apart from the noise, which is drawn per call, nothing is carried over: discrete actions have none."""
    many, single = program_of(DISCRETE), program_of(DISCRETE)
    rows = rows_of(4, DISCRETE)
    many.update(rows, RATE, np.random.default_rng(0))
    for i in range(4):
        part = slice(i * BATCH, (i + 1) * BATCH)
        names = ("vector", "next_vector", "continuous", "discrete", "reward", "bootstrap")
        single.update(SACRows(*(getattr(rows, name)[part] for name in names)), RATE, np.random.default_rng(0))
    assert_same(everything(many), everything(single))


def test_leftovers_of_earlier_calls_change_nothing():
    """C67: room for 16 updates, of which 2 are made: what lies beyond may be anything, NaN included."""
    clean, dirty = program_of(), program_of()
    dirty._arrays.packed[:] = np.nan
    dirty._arrays.noise[:] = np.nan
    stats = [program.update(rows_of(2), RATE, np.random.default_rng(3)) for program in (clean, dirty)]
    assert stats[0] == stats[1]
    assert_same(everything(clean), everything(dirty))


def test_one_trace_for_any_number_of_updates():
    """C14: numbers of updates, rates and step counts are run-time values."""
    program = program_of()
    program.compile()
    before, rng = program.traces, np.random.default_rng(0)
    assert before >= 1
    for i in range(UPDATES_PER_CALL):
        program.update(rows_of(i + 1, seed=i), RATE / (i + 1), rng)
    assert program.traces == before


@pytest.mark.parametrize("action", [BOX, DISCRETE], ids=["box", "discrete"])
def test_no_input_is_a_constant_of_the_compiled_program(action):
    """C14: XLA takes inputs of some operations for constants and compiles anew for each of their values, without a trace."""
    program = program_of(action)
    inputs = (program._start(), program._batches(RATE), tf.constant(3))
    text = program._learn.experimental_get_compiler_ir(*inputs)(stage="hlo")
    parameters = text[text.index("\nENTRY ") :].count(" parameter(")
    # Without continuous actions the noise has no elements, and nothing that could be a constant.
    assert parameters == sum(x.shape.num_elements() > 0 for x in tf.nest.flatten(inputs))


def test_compiling_touches_no_state():
    program = program_of()
    program.update(rows_of(2), RATE, np.random.default_rng(0))
    before = everything(program)
    program.compile()
    assert_same(everything(program), before)
    assert before["step"] == 2


def test_learning_rate_0_changes_no_weight():
    """C23. Targets equal the critics, so they have nowhere to go either."""
    program = program_of()
    before = {**program.weights(), **program.targets()}
    program.update(rows_of(3), 0.0, np.random.default_rng(0))
    assert_same({**program.weights(), **program.targets()}, before)


@pytest.mark.parametrize("kind", ACTIONS)
def test_every_tensor_of_every_action_space_moves(kind):
    """C56: no dimension, branch, bias or coefficient is left out of the losses."""
    program = program_of(ACTIONS[kind])
    before = program.weights()
    program.update(rows_of(4, ACTIONS[kind]), RATE, np.random.default_rng(0))
    for name, w in program.weights().items():
        assert (w != before[name]).all(), name


@slow
@pytest.mark.parametrize("memory", [False, True], ids=["feed-forward", "recurrent"])
@pytest.mark.parametrize("observations", ["image", "dict"])
def test_every_tensor_of_every_network_moves(observations, memory):
    program = program_of(MASKED_HYBRID, observations=observations, memory=memory)
    before = {**program.weights(), **program.targets()}
    rows = (sequences_of if memory else rows_of)(4, MASKED_HYBRID, observations=observations)
    program.update(rows, RATE, np.random.default_rng(0))
    for name, w in {**program.weights(), **program.targets()}.items():
        # A pixel that is black in all images has no gradient; there is none here.
        assert np.mean(w == before[name]) < 0.01, name


@pytest.mark.parametrize("broken", ["reward", "vector"])
def test_not_finite_update_is_refused_and_changes_nothing(broken):
    """C54: the message has what broke and the extremes of the rows."""
    program, rows = program_of(), rows_of(2)
    getattr(rows, broken)[3, 0] = np.nan if broken == "vector" else 1e30
    before = everything(program)
    extremes = r"reward -?\d.* … 1e\+30" if broken == "reward" else "vector nan … nan"
    with pytest.raises(FloatingPointError, match=rf"(?s)q1 loss.*{extremes}.*α 1"):
        program.update(rows, RATE, np.random.default_rng(0))
    assert_same(everything(program), before)
    program.update(rows_of(1), RATE, np.random.default_rng(0))


def test_targets_that_do_not_fit_leave_the_present_ones():
    program = program_of()
    before = program.targets()
    other = {name: w + 1.0 for name, w in before.items()}
    other.pop(f"{TARGET}/q/bias")
    with pytest.raises(ValueError, match="target critics.*target_critic/q/bias is missing"):
        program.set_targets(other)
    assert_same(program.targets(), before)
