"""Going back to the newest checkpoint while the run goes on, after a trainer has died."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raytrain.checkpoint import CheckpointError, CheckpointStore
from raytrain.messages import CheckpointDue
from raytrain.plan import Plan, Start
from raytrain.referee import Referee
from raytrain.resume import starts_of
from raytrain.stop import RunStop
from raytrain.writers import Writers

_ORDERS_APART = 1_000_000  # orders that a referee cannot have given since its checkpoint


@dataclass(frozen=True, slots=True)
class WayBack:
    """Where trainers start again.

    Attributes:
        starts: behavior -> its state.
        referee: state of the referee; None without one.
        steps: behavior -> agent steps of the checkpoint.
        sentences: for the user.
    """

    starts: dict[str, Start]
    referee: dict[str, Any] | None
    steps: dict[str, int]
    sentences: list[str]


class Recovery:
    """Knows what to start lost trainers from, and takes back what was written of the steps that are lost.

    Where worlds play by a referee's orders, all trainers and the referee go back together: what they know of each other belongs to one
    moment.

    Args:
        stop: conditions, which forget what came after the checkpoint.
        begin: where the run begins, while it has no checkpoint.
    """

    def __init__(
        self, plans: Sequence[Plan], store: CheckpointStore, writers: Writers, stop: RunStop, begin: Callable[[], dict[str, Start]],
    ) -> None:
        self._plans, self._store, self._writers, self._stop, self._begin = list(plans), store, writers, stop, begin
        self._times = 0  # that it went back
        self._ledgers: dict[Path, dict[str, dict[str, Any]]] = {}

    def saved(self, path: Path, parts: Mapping[str, CheckpointDue]) -> None:
        """Note what the ledgers were at a checkpoint of this run."""
        self._ledgers[path] = {behavior: event.ledger for behavior, event in parts.items()}
        self._ledgers = {path: ledgers for path, ledgers in self._ledgers.items() if path.exists()}

    def affected(self, lost: Iterable[str]) -> list[str]:
        """The behaviors that go back when the trainers of `lost` have died."""
        return [plan.behavior for plan in self._plans] if Referee.is_needed(self._plans) else list(lost)

    def way_back(self, behaviors: Sequence[str], elapsed_s: float) -> WayBack:
        """Load the newest sound checkpoint, and take back what was written after it; the time that has passed is not taken back."""
        try:
            snapshot, path, problems = self._store.load_latest()
        except CheckpointError:
            starts, referee, sentences = self._begin(), None, ["there is no checkpoint yet, so they begin anew"]
            since_s = elapsed_s
            steps, ledgers, stop = dict.fromkeys(behaviors, 0), {}, {}
        else:
            starts, _ = starts_of(self._plans, snapshot, None)
            since_s = elapsed_s - snapshot.run["elapsed_s"]
            referee, ledgers, stop = snapshot.run.get("referee"), self._ledgers.get(path, {}), snapshot.run["stop"]
            steps = {behavior: snapshot.behaviors[behavior].agent_steps for behavior in behaviors}
            at = ", ".join(f"{behavior} at {steps[behavior]:,} agent steps" for behavior in behaviors)
            sentences = [*problems, f"going on from checkpoint {path.name}: {at}"]
        self._times += 1
        if referee is not None:  # env managers have seen later orders than it gave
            apart = self._times * _ORDERS_APART
            referee = {**referee, "number": referee["number"] + apart}
            starts = {b: replace(s, orders=replace(s.orders, number=s.orders.number + apart)) for b, s in starts.items()}
        for behavior in behaviors:
            self._writers.rewind(behavior, steps[behavior])
        self._stop.go_back({behavior: stop.get(behavior) for behavior in behaviors})
        return WayBack({b: replace(starts[b], elapsed_s=starts[b].elapsed_s + since_s, ledger=ledgers.get(b)) for b in behaviors}, referee, steps, sentences)
