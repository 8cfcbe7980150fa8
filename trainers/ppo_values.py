"""PPO's value estimates of many rows, block after block in one program, as a pure function of tensors.

Letters: ``L`` rows of the longest sequence, ``I``, ``S`` as in `trainers.graph`.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainers import graph
from trainers.ppo_graph import PPOGraph, Tensors
from trainers.quiet_tensorflow import tf

ROWS = 512
"""Rows of one block: their activations stay in a core's cache."""
ROWS_OF_IMAGES = 64
"""The same where rows hold images."""
SEQUENCES = 64
"""Sequences of one block without images: a step of fewer takes hardly less time."""


@dataclass(frozen=True)
class ValueGraph:
    """The program that estimates values with the networks of `ppo`."""

    ppo: PPOGraph

    @property
    def sequences(self) -> int:
        """Sequences of one block, each with room for the observation after its last row; 0 without a memory."""
        if self.ppo.arch.memory is None:
            return 0
        return max(1, ROWS_OF_IMAGES // self.ppo.sequence_length) if self.ppo.arch.images else SEQUENCES

    @property
    def rows(self) -> int:
        """Rows of one block."""
        return self.sequences * (self.ppo.sequence_length + 1) or (ROWS_OF_IMAGES if self.ppo.arch.images else ROWS)

    @property
    def blocks_per_call(self) -> int:
        """Blocks of one call at most; few with images, of which each call takes a copy."""
        return 4 if self.ppo.arch.images or self.ppo.arch.memory else 16

    @property
    def inputs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name -> shape and dtype of what one block has: rows, and sequences with a memory."""
        rows, sequences = self.rows, self.sequences
        inputs = {"vector": ((rows, self.ppo.arch.vector_width), "float32")}
        inputs |= {name: ((rows, *shape), dtype) for name, (shape, dtype) in self.ppo.images.items()}
        if sequences:
            inputs |= {"memory": ((sequences, self.ppo.arch.memory_size), "float32"), "length": ((sequences,), "int32")}
        return inputs

    def values(self, parameters: tf.Tensor, blocks: Tensors, count: tf.Tensor) -> dict[str, tf.Tensor]:
        """Value estimates of the first `count` blocks, one after another.

        Args:
            blocks: `inputs`, ``[blocks_per_call, …]`` each. Of a sequence, its ``length`` rows come first, then the observation
                after them; its ``memory`` is the critic's (the actor's with a shared critic) before its first row.

        Returns:
            ``value``, float32 ``[blocks_per_call, rows, S]``; and with a memory ``memory``, the one after ``length`` rows,
            ``[blocks_per_call, sequences, size]``.
        """
        named, images, scope = self.ppo.named(self.ppo.tensors(parameters)), list(self.ppo.images), self.ppo.scopes[-1]
        shapes = {"value": (self.rows, len(self.ppo.signals))}
        if self.ppo.arch.memory:
            shapes["memory"] = (self.sequences, self.ppo.arch.memory_size)

        def one_more(i: tf.Tensor, *out: tf.TensorArray) -> tuple[tf.Tensor, ...]:
            x = {name: tf.gather(block, i) for name, block in blocks.items()}
            before = {scope: x["memory"]} if self.ppo.arch.memory else {}
            features, after = self.ppo.features_of(named, x["vector"], [x[name] for name in images], [scope], before)
            results = [graph.values(named, features[scope], self.ppo.arch, self.ppo.signals)]
            if before:
                results.append(tf.gather(after[scope], tf.maximum(x["length"] - 1, 0), axis=1, batch_dims=1))
            return i + 1, *(array.write(i, result) for array, result in zip(out, results, strict=True))

        out = [tf.TensorArray(tf.float32, size=self.blocks_per_call, element_shape=shape) for shape in shapes.values()]
        _, *out = tf.while_loop(lambda i, *_: i < count, one_more, (tf.constant(0), *out))
        return {name: array.stack() for name, array in zip(shapes, out, strict=True)}
