"""What agents remember between their decisions, and one step of the recurrent layer, in NumPy.

Letters: ``n`` agents of one call, ``U`` inputs of the layer, ``H`` its outputs, ``M`` size of the memory: h, then c, of H each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trainers.agent_slots import check_slots, with_room
from trainers.networks import Lstm
from trainers.trainer import Weights

_HALF = np.float32(0.5)


class AgentMemory:
    """The memory of each agent, by slot; zeros for an agent that was never seen. The table grows with the largest slot.

    Args:
        size: M.
    """

    def __init__(self, size: int) -> None:
        self._table = np.zeros((0, size), np.float32)

    def recall(self, agent_id: np.ndarray, first: np.ndarray | None, n: int) -> np.ndarray:
        """The memory of `n` agents before their next step.

        Args:
            agent_id: int64 ``[n]``, slots of different agents.
            first: bool ``[n]``, the agent's first decision of an episode: it remembers nothing; None: of no agent.

        Returns:
            float32 ``[n, M]``, a fresh array.

        Raises:
            ValueError: an array of another shape or dtype, or a negative slot.
        """
        check_slots(agent_id, first, n)
        self._table = with_room(self._table, agent_id)
        memory = self._table.take(agent_id, axis=0)
        if first is not None:
            memory[first] = 0.0
        return memory

    def store(self, agent_id: np.ndarray, memory: np.ndarray) -> None:
        """Keep the memory of agents after their step, float32 ``[n, M]``; `recall` was called for them before."""
        self._table[agent_id] = memory

    def state(self) -> dict[str, np.ndarray]:
        """A copy of the table."""
        return {"memory": self._table.copy()}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from `state`."""
        self._table = state["memory"].copy()


@dataclass(frozen=True, slots=True)
class LstmWeights:
    """The tensors of a recurrent layer as `LstmStep` uses them.

    Attributes:
        kernel: ``[U + H, 4 · H]``, of x and h; gates in the order i, f, o, g, the first three at half their size.
        bias: ``[4 · H]``, likewise.
    """

    kernel: np.ndarray
    bias: np.ndarray


class LstmStep:
    """One step of `trainers.networks.Lstm` for a batch, in buffers that are used again. Not for two threads at once."""

    def __init__(self, layer: Lstm) -> None:
        self._layer = layer
        self._rows = -1
        self._buffers = [np.empty((0, width), np.float32) for width in (layer.inputs + layer.units, 4 * layer.units, 2 * layer.units)]

    def prepare(self, weights: Weights) -> LstmWeights:
        """Copies of the layer's tensors. σ(x) = ½ + ½·tanh(x/2), so with halved gates one tanh does for all four."""
        units, layer = self._layer.units, self._layer
        kernel = np.concatenate([weights[layer.kernel], weights[layer.recurrent_kernel]])
        i, f, g, o = (slice(gate * units, (gate + 1) * units) for gate in range(4))
        kernel, bias = (np.concatenate([x[..., i], x[..., f], x[..., o], x[..., g]], axis=-1) for x in (kernel, weights[layer.bias]))
        kernel[:, : 3 * units] *= _HALF  # exact: a power of two
        bias[: 3 * units] *= _HALF
        return LstmWeights(kernel, bias)

    def step(self, weights: LstmWeights, x: np.ndarray, memory: np.ndarray) -> np.ndarray:
        """The memory after the step; its first H columns are the layer's outputs.

        Args:
            x: float32 ``[n, U]``.
            memory: float32 ``[n, M]``, before the step.

        Returns:
            float32 ``[n, M]``, valid until the next call.
        """
        if len(x) != self._rows:
            self._resize(len(x))
        units, width = self._layer.units, self._layer.inputs
        inputs, gates, after = self._inputs, self._gates, self._after
        inputs[:, :width] = x
        inputs[:, width:] = memory[:, :units]
        inputs.dot(weights.kernel, gates)
        gates += weights.bias
        np.tanh(gates, out=gates)
        sigmoids = gates[:, : 3 * units]
        sigmoids *= _HALF
        sigmoids += _HALF
        i, f, o, g = (gates[:, gate * units : (gate + 1) * units] for gate in range(4))
        h, c = after[:, :units], after[:, units:]
        np.multiply(f, memory[:, units:], out=c)
        i *= g
        c += i
        np.tanh(c, out=h)
        h *= o
        return after

    def _resize(self, n: int) -> None:
        """Buffers of `n` rows: views of the largest ones so far, or larger ones."""
        if n > len(self._buffers[0]):
            self._buffers = [np.empty((n, buffer.shape[1]), np.float32) for buffer in self._buffers]
        self._rows = n
        self._inputs, self._gates, self._after = (buffer[:n] for buffer in self._buffers)
