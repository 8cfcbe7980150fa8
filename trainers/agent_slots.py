"""Tables with a row for each agent's slot: which slots a call is about, and room for them."""

from __future__ import annotations

import numpy as np


def check_slots(agent_id: np.ndarray, first: np.ndarray | None, n: int) -> None:
    """Refuse slots of `n` agents that no table has, and flags that are not theirs.

    Args:
        agent_id: int64 ``[n]``, slots of different agents.
        first: bool ``[n]``, the agent's first decision of an episode; None: of no agent.

    Raises:
        ValueError: an array of another shape or dtype, or a negative slot.
    """
    if agent_id.shape != (n,) or agent_id.dtype.kind not in "iu":
        raise ValueError(f"Expected agent_id int64 [{n}], received {agent_id.dtype} {list(agent_id.shape)}.")
    if first is not None and (first.shape != (n,) or first.dtype != np.bool_):
        raise ValueError(f"Expected first bool [{n}], received {first.dtype} {list(first.shape)}.")
    if n and np.minimum.reduce(agent_id) < 0:
        raise ValueError(f"Expected agent slots of at least 0, received {int(agent_id.min())}.")


def with_room(table: np.ndarray, agent_id: np.ndarray) -> np.ndarray:
    """`table` ``[slots, …]``, or a larger copy of it (at least twice as large, new rows 0) where a slot lies beyond its end."""
    slots, have = int(np.maximum.reduce(agent_id, initial=-1)) + 1, len(table)
    if slots <= have:
        return table
    larger = np.zeros((max(slots, 2 * have), *table.shape[1:]), table.dtype)
    larger[:have] = table
    return larger
