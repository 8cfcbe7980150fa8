"""SAC's update where XLA does not compile the whole of it: with convolutions, or with a model of the user's. They take long to compile."""

from __future__ import annotations

import numpy as np
import pytest

from tests.trainers.rollouts import BOX, HYBRID, MASKED_HYBRID, network_of, policy_of, rollout, spec_of
from trainers import graph
from trainers.networks import policy_layout
from trainers.registry import first_weights
from trainers.sac import SACTrainer
from trainers.sac_networks import CRITIC, LOG_ALPHA, TARGET
from trainers.sac_update import STATISTICS, tf
from trainers.settings import SACSettings

BATCH, RATE = 16, 0.01
FACTORY = '''
import keras


def make(inputs, width=6):
    """Images through a convolution, then everything through one dense layer."""
    parts = [keras.layers.Flatten()(keras.layers.Conv2D(2, 3)(x)) if len(x.shape) == 4 else x for x in inputs.values()]
    joined = keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    return keras.layers.Dense(width, activation="tanh")(joined)
'''


@pytest.fixture
def own_model(tmp_path, monkeypatch) -> str:
    """``module:factory`` of a user's model."""
    (tmp_path / "own_sac_network.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_sac_network:make"


def trainer_of(action=HYBRID, observations: str = "dict", memory: bool = False, **network) -> SACTrainer:
    """A trainer with rows of its own policy in replay."""
    spec = spec_of(action, observations=observations)
    settings = SACSettings.model_validate({
        "hyperparameters": {"batch_size": BATCH, "buffer_size": 200}, "network_settings": network_of(memory, **network),
    })
    rng = np.random.default_rng(0)
    weights = first_weights(spec, settings, rng)
    trainer = SACTrainer(spec, settings, np.random.SeedSequence(0), weights)
    acting = {name: weights[name] for name in policy_layout(trainer._arch, "squashed_gaussian")}
    policy = policy_of(spec, settings.network_settings, acting, distribution="squashed_gaussian")
    trainer.process(rollout(policy, rng, (5, 1, 9, 13, 4), horizon=3), "manager")
    return trainer


def everything(trainer: SACTrainer) -> dict[str, np.ndarray]:
    return {**trainer._program.weights(), **trainer._program.targets()}


def slow_update(trainer: SACTrainer, rows, updates: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]:
    """One batch after the other, operation by operation: parameters, targets and statistics."""
    program = trainer._program
    ours, arrays = program._graph, program._arrays
    arrays.fill(rows, np.random.default_rng(9))
    theta = {k: w.astype(np.float64) for k, w in program.weights().items()}
    target = {k: w.astype(np.float64) for k, w in program.targets().items()}
    m, v, sums = {k: 0.0 for k in theta}, {k: 0.0 for k in theta}, np.zeros(len(STATISTICS) + 1)
    for t in range(1, updates + 1):
        named, fixed = ({k: tf.constant(w, tf.float32) for k, w in tensors.items()} for tensors in (theta, target))
        batch = ours.unpacked(tf.constant(arrays.packed[t - 1])) | {k: tf.constant(x[t - 1]) for k, x in arrays.blocks.items()}
        with tf.GradientTape() as tape:
            tape.watch(named)
            loss, (means, values) = ours.loss(named, fixed, batch, tf.constant(arrays.noise[t - 1]))
        g = {k: np.asarray(x, np.float64) for k, x in tape.gradient(loss, named).items()}
        norms = [np.sqrt(sum((x**2).sum() for k, x in g.items() if k.startswith(prefix))) for prefix in ("actor/", f"{CRITIC}/")]
        sums += [*(float(x) for x in means), *norms, *values.numpy()]
        for k, w in theta.items():
            m[k], v[k] = 0.9 * m[k] + 0.1 * g[k], 0.999 * v[k] + 0.001 * g[k] ** 2
            theta[k] = w - RATE * (m[k] / (1 - 0.9**t)) / (np.sqrt(v[k] / (1 - 0.999**t)) + 1e-8)
        for k, w in target.items():
            target[k] = 0.995 * w + 0.005 * theta[CRITIC + k.removeprefix(TARGET)]
    return theta, target, sums / updates


def check(trainer: SACTrainer) -> None:
    """Three updates agree with slow ones, every tensor moves, and equal trainers agree to the bit."""
    program = trainer._program
    assert not graph.compile_with_xla(trainer._arch)
    before = everything(trainer)
    program.compile()
    assert all(np.array_equal(w, before[name]) for name, w in everything(trainer).items())
    rows = trainer._sample(3 * program.draws)[0]
    theta, target, means = slow_update(trainer, rows, 3)
    stats = program.update(rows, RATE, np.random.default_rng(9))
    np.testing.assert_allclose(list(stats.values()), means, rtol=1e-4, atol=1e-4)
    for found, expected in ((program.weights(), theta), (program.targets(), target)):
        for name, w in found.items():
            # Adam's first steps are as large whatever the gradient: where that is nearly 0, its rounding shows.
            assert np.mean(np.abs(w - expected[name]) > 5e-4) < 0.02, name
            assert (w != before[name]).any() or name == LOG_ALPHA, name


@pytest.mark.slow
def test_convolutions():
    check(trainer_of(vis_encode_type="match3"))


@pytest.mark.slow
@pytest.mark.parametrize("memory", [False, True], ids=["feed-forward", "recurrent"])
def test_convolutions_with_masks_and_memory(memory):
    check(trainer_of(MASKED_HYBRID, memory=memory, vis_encode_type="match3"))


@pytest.mark.slow
def test_a_model_of_the_users(own_model):
    """Its variables are shared by the twins; its output joins the action in their dense layers."""
    trainer = trainer_of(model=own_model, model_kwargs={"width": 7})
    layout = trainer._program.layout
    models = [name for name in layout if "/model/" in name]
    assert {name.split("/")[0] for name in models} == {"actor", CRITIC}
    assert all(layout[name] == layout[name.replace(CRITIC, "actor")] for name in models)
    assert layout[f"{CRITIC}/dense_0/kernel"] == (2, 7 + 2, 8)
    check(trainer)


@pytest.mark.slow
def test_a_recurrent_model_of_the_users(own_model):
    """Straight into the recurrent layers, as in the actor."""
    trainer = trainer_of(BOX, observations="image", memory=True, model=own_model)
    layout = trainer._program.layout
    assert layout[f"{CRITIC}/lstm/kernel"] == (2, 6, 12)
    assert f"{CRITIC}/dense_0/kernel" not in layout
    check(trainer)


@pytest.mark.slow
def test_one_trace_for_any_number_of_updates():
    """C14."""
    trainer = trainer_of(BOX, observations="image", vis_encode_type="match3")
    program = trainer._program
    program.compile()
    before = program.traces
    for count in (1, 3, 2):
        program.update(trainer._sample(count * program.draws)[0], RATE / count, np.random.default_rng(0))
    assert program.traces == before
