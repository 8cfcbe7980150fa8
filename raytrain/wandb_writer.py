"""Weights & Biases: configuration, metrics over agent steps and how the run ended. Imports wandb only when a run asks for it."""

from __future__ import annotations

import os
import secrets
from copy import deepcopy

from raytrain.tracked_run import TrackedRun
from raytrain.writers import RunInfo, Status

_AXIS = "agent_steps"
_MODES = ("online", "offline", "disabled")
_ONLINE = ("online", "run")  # as WANDB_MODE may say it, too


class WandbWriter(TrackedRun):
    """A run of W&B per run. Its key comes from ``WANDB_API_KEY`` or ``wandb login``; it is never an option, and written nowhere.

    Args:
        project: name.
        entity: user or team; None is the account's own.
        mode: online, offline or disabled; None is ``WANDB_MODE``, else online.
        name: of the run; None is the run's id.
        group, tags, notes: as in W&B.

    Raises:
        ValueError: W&B is not installed, or an option cannot be used.
    """

    def __init__(
        self, project: str = "raytrain", entity: str | None = None, mode: str | None = None, name: str | None = None, group: str | None = None,
        tags: list[str] | None = None, notes: str | None = None,
    ) -> None:
        super().__init__("wandb")
        if mode is not None and mode not in _MODES:
            raise ValueError(f"expected mode: {', '.join(_MODES)}, received {mode}")
        try:
            import wandb
        except ImportError as error:
            raise ValueError(f"wandb needs the package of that name ({error}); pip install \"raytrain[wandb]\"") from error
        self._mode = mode or os.environ.get("WANDB_MODE") or "online"
        if self._mode in _ONLINE and not wandb.login(prompt=False, verify=False):
            # Otherwise it would ask at the terminal, and store what it is told.
            raise ValueError("expected a key of W&B, received none; run 'wandb login', set WANDB_API_KEY, or write mode: offline")
        self._wandb, self._named = wandb, {"project": project, "entity": entity, "name": name, "group": group, "tags": tags, "notes": notes}

    def open(self, run: RunInfo) -> None:
        """See `Writer.open`."""
        wandb, found = self._wandb, self.begin(run)
        if found is None:
            self.keep(secrets.token_hex(4))
        named = {**self._named, "name": self._named["name"] or run.run_id}
        # Its console capture would take over the terminal from the progress bar.
        quiet = wandb.Settings(console="off", silent=True)
        self._run = wandb.init(
            **named, mode=self._mode, id=self.kept["id"], resume="allow", dir=str(run.folder), config=deepcopy(run.settings), allow_val_change=True, settings=quiet)
        for behavior in run.behaviors:
            prefix = self.prefix(behavior)
            self._run.define_metric(f"{prefix}{_AXIS}")
            self._run.define_metric(f"{prefix}*", step_metric=f"{prefix}{_AXIS}")
        self.place = (self._run.url if self._mode in _ONLINE else "") or f"{self._mode}, in {run.folder / 'wandb'}; bring it there with 'wandb sync'"

    def log(self, behavior: str, step: int, values: dict[str, float]) -> None:
        """See `TrackedRun.log`."""
        self._run.log({f"{self.prefix(behavior)}{_AXIS}": step, **values})

    def close(self, status: Status) -> None:
        """See `Writer.close`."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=1 if status == "failed" else 0)
