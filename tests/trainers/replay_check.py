"""The replay check: stored trajectories run through the training graph give the stored log-probs and policy memories.

Whatever differs between acting and learning (inputs, masks, memories, the networks themselves) shows here as a number.
"""

from __future__ import annotations

import numpy as np

from trainers.architecture import Architecture
from trainers.inputs import network_inputs
from trainers.ppo_graph import tf
from trainers.ppo_memory import cut_into_sequences
from trainers.ppo_update import Coefficients, PPOProgram, PPORows
from trainers.settings import PPOHyperparameters
from trainers.trainer import Weights
from trainers.trajectory import TrajectoryBatch

TOLERANCE = 1e-5


def program_of(arch: Architecture, weights: Weights, rows: int, **hyper) -> PPOProgram:
    """PPO's program with room for `rows` in one minibatch."""
    length = arch.memory.sequence_length if arch.memory else 1
    settings = PPOHyperparameters(**{"batch_size": rows * length, "buffer_size": rows * length, "num_epoch": 1, **hyper})
    return PPOProgram(arch, settings, ["extrinsic"], rows, weights)


def rows_of(program: PPOProgram, arch: Architecture, batch: TrajectoryBatch) -> PPORows:
    """What an update would learn from a batch, with advantages, targets and values of 0 and critic memories of 0."""
    n, sequences, memory = batch.rows, None, {}
    zeros = np.zeros((n, 1), np.float32)
    if arch.memory:
        sequences = cut_into_sequences(batch.length, arch.memory.sequence_length)
        memory = {"actor": batch.memory[sequences.start], "critic": np.zeros((len(sequences), arch.memory_size), np.float32)}
    inputs = program.staged([network_inputs(arch, batch.obs)])
    return PPORows(
        inputs, batch.continuous, batch.discrete, batch.log_prob, zeros[:, 0], zeros, zeros, batch.action_mask, sequences, memory,
    )


def replayed(
    arch: Architecture, weights: Weights, batch: TrajectoryBatch, compiled: bool = False
) -> tuple[np.ndarray, np.ndarray | None]:
    """A batch in one minibatch of the training graph, at the weights it was acted with.

    Args:
        weights: of actor and critic.
        compiled: as an update runs it, instead of operation by operation.

    Returns:
        The log-prob of each row ``[N]``; and the policy's memory before it ``[N, M]``, None without.
    """
    program = program_of(arch, weights, batch.rows)
    ours = program._graph
    rows = rows_of(program, arch, batch)
    program._pack(rows)
    items = len(rows) if rows.sequences is None else len(rows.sequences)
    program._order[:, :items] = np.arange(items)
    minibatches = program._minibatches(items, Coefficients(0.0, 0.2, 0.0))

    def run(parameters, minibatches):
        minibatch = ours.minibatch(tf.constant(0), minibatches)
        named = ours.named(ours.tensors(parameters))
        features, memories = ours.features(named, minibatch)
        log_prob, _ = ours.log_prob_and_entropy(named, features["actor"], minibatch)
        return log_prob, memories.get("actor", ())

    if compiled:
        run = tf.function(run, jit_compile=ours.compile_with_xla, autograph=False)
    log_prob, memories = run(program._parameters, minibatches)
    if rows.sequences is None:
        return log_prob.numpy()[: batch.rows], None
    length = arch.memory.sequence_length
    place = np.concatenate([q * length + np.arange(n) for q, n in enumerate(rows.sequences.length)])
    before = np.concatenate([rows.memory["actor"][:, None], memories.numpy()[:items, :-1]], axis=1)
    return log_prob.numpy()[place], before.reshape(-1, arch.memory_size)[place]


def check_replay(arch: Architecture, weights: Weights, batch: TrajectoryBatch, compiled: bool = False) -> None:
    """Assert that the training graph agrees with what was stored when `batch` was acted."""
    log_prob, memory = replayed(arch, weights, batch, compiled)
    np.testing.assert_allclose(log_prob, batch.log_prob, atol=TOLERANCE, rtol=0.0)
    if arch.memory:
        np.testing.assert_allclose(memory, batch.memory, atol=TOLERANCE, rtol=0.0)
