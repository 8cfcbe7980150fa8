"""What writers to trackers have in common: a run there that is gone on with, and points that cannot be taken back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from raytrain.files import replace_file, to_json
from raytrain.stats import Summary
from raytrain.writers import RunInfo, Writer

FOLDER = "writers"


class TrackedRun(Writer):
    """Keeps the id of the tracker's run in ``writers/<name>.json`` of the run's folder, and how far it has come.

    A tracker only appends. So that the steps of a curve rise and none comes twice, what a run that goes on from a checkpoint measures anew is left
    out until it is past the newest point that the tracker has.

    Args:
        name: of the file.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.kept: dict[str, Any] = {}
        self._has_several = False

    def log(self, behavior: str, step: int, values: dict[str, float]) -> None:
        """Send one point. The tags are as `tags` names them."""
        raise NotImplementedError

    def begin(self, run: RunInfo) -> str | None:
        """To be called from `open`: the id of the tracker's run to go on with; None to make one and tell `keep`."""
        self._path = run.folder / FOLDER / f"{self._name}.json"
        self._has_several = len(run.behaviors) > 1
        self.kept = {"id": None, "steps": {}}
        if run.resume_steps is not None and self._path.exists():
            try:
                found = json.loads(self._path.read_text(encoding="utf-8"))
                self.kept = {"id": str(found["id"]), "steps": {str(key): int(value) for key, value in found["steps"].items()}}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"Expected the id of the {self._name} run in {self._path}, received something else ({error}). Remove that file to begin a new one") from None
        return self.kept["id"]

    def keep(self, run_id: str) -> None:
        """Note the id of the tracker's run."""
        self.kept["id"] = run_id
        self._save()

    def _save(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        replace_file(self._path, to_json(self.kept, self._name), synced=False)

    def prefix(self, behavior: str) -> str:
        """What tags begin with: nothing where the run has one behavior, so that runs of different environments can be compared."""
        return f"{behavior}/" if self._has_several else ""

    def summary(self, summary: Summary) -> None:
        """See `Writer.summary`."""
        self._log_new(summary.behavior, "summary", summary.step, summary.values)

    def evaluation(self, behavior: str, step: int, values: Mapping[str, float]) -> None:
        """See `Writer.evaluation`."""
        self._log_new(behavior, "evaluation", step, values)

    def _log_new(self, behavior: str, kind: str, step: int, values: Mapping[str, float]) -> None:
        key = f"{behavior}/{kind}"
        if step <= self.kept["steps"].get(key, -1):
            return
        self.log(behavior, step, {f"{self.prefix(behavior)}{tag}": value for tag, value in values.items()})
        self.kept["steps"][key] = step
        self._save()
