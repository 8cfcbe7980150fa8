"""How many updates are owed for the agent steps taken in."""

from __future__ import annotations

from fractions import Fraction

UPDATES_PER_CALL = 32
"""Updates of one compiled call, between two of which nothing else can happen."""


class UpdateRatio:
    """Counts updates against agent steps, exactly: one update is owed for each ``steps_per_update`` agent steps past an origin.

    An update is owed while ``agent_steps − origin_steps > steps_per_update · (updates − origin_updates + 1)``. With 20 steps per
    update from 0: none at 15, one at 21, and at 26 still that one. (ML-Agents counts the same since its release 2; before, the
    first update came only after ``buffer_init_steps · steps_per_update`` steps.)

    The origin is where counting begins: steps in which no update was possible are not made up for later, in a burst.

    Args:
        steps_per_update: above 0; below 1 means several updates for a step. Taken as the decimal fraction it is written as.
        origin_steps, origin_updates: where counting begins.
    """

    def __init__(self, steps_per_update: float, origin_steps: int = 0, origin_updates: int = 0) -> None:
        if not steps_per_update > 0.0:
            raise ValueError(f"Expected steps_per_update above 0, received {steps_per_update}.")
        self.steps_per_update = Fraction(str(steps_per_update))
        self.origin_steps = origin_steps
        self.origin_updates = origin_updates

    def owed(self, agent_steps: int, updates: int) -> int:
        """Updates that are owed now."""
        due = (agent_steps - self.origin_steps) / self.steps_per_update
        # The largest whole number below `due`: an update is owed only once its steps are exceeded.
        return max(0, -(-due.numerator // due.denominator) - 1 - (updates - self.origin_updates))

    def steps_owed(self, agent_steps: int, updates: int) -> int:
        """Agent steps behind the updates that are owed, rounded up."""
        steps = self.owed(agent_steps, updates) * self.steps_per_update
        return -(-steps.numerator // steps.denominator)

    def rebase(self, agent_steps: int, updates: int) -> None:
        """Begin to count here: nothing is owed for what was before."""
        self.origin_steps, self.origin_updates = agent_steps, updates

    def measured(self, agent_steps: int, updates: int) -> float | None:
        """Agent steps per update since the origin, those of updates still owed left out; None before the first update."""
        done = updates - self.origin_updates
        learnt = agent_steps - self.origin_steps - self.owed(agent_steps, updates) * self.steps_per_update
        return float(learnt / done) if done > 0 else None
