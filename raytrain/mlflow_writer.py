"""MLflow: parameters, metrics by step and how the run ended. Imports MLflow only when a run asks for it."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from raytrain.tracked_run import TrackedRun
from raytrain.writers import RunInfo, Status, flat

_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_PARAMS_PER_CALL = 100
_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
_LONGEST = 6_000  # characters of a parameter


class MlflowWriter(TrackedRun):
    """A run of MLflow per run.

    Args:
        tracking_uri: None is MLflow's own way: ``MLFLOW_TRACKING_URI``, else a database in the working folder.
        experiment: name; made if missing.
        run_name: None is the run's id.
        tags: of the run, besides ``raytrain.run_id``.

    Raises:
        ValueError: MLflow is not installed, or an option cannot be used.
    """

    def __init__(self, tracking_uri: str | None = None, experiment: str = "raytrain", run_name: str | None = None, tags: Mapping[str, Any] | None = None) -> None:
        super().__init__("mlflow")
        try:
            self._tags = dict(tags or {})
        except (TypeError, ValueError):
            raise ValueError(f"expected tags as a mapping, received {tags!r:.80}") from None
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise ValueError(f"mlflow needs the package of that name ({error}); pip install \"raytrain[mlflow]\"") from error
        self._client_class = MlflowClient
        self._uri, self._experiment, self._run_name = tracking_uri, experiment, run_name

    def open(self, run: RunInfo) -> None:
        """See `Writer.open`."""
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells of each table that it makes
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self._client = self._client_class(tracking_uri=self._uri)
        with _fewer_retries():
            self._begin_or_go_on(run)
        self.place = f"run {self.kept['id']} of experiment {self._experiment} at {_without_user(self._client.tracking_uri)}"

    def _begin_or_go_on(self, run: RunInfo) -> None:
        client, found = self._client, self.begin(run)
        if found is None:
            named = client.get_experiment_by_name(self._experiment)
            experiment = named.experiment_id if named is not None else client.create_experiment(self._experiment)
            tags = {"raytrain.run_id": run.run_id, **{str(key): str(value) for key, value in self._tags.items()}}
            self.keep(client.create_run(experiment, run_name=self._run_name or run.run_id, tags=tags).info.run_id)
            before: dict[str, str] = {}
        else:
            client.set_terminated(found, "RUNNING")
            before = client.get_run(found).data.params
        self._log_settings(flat(run.settings), before)

    def _log_settings(self, settings: Mapping[str, Any], before: Mapping[str, str]) -> None:
        """As parameters, which MLflow never changes; what a resumed run has changed becomes tags."""
        from mlflow.entities import Param, RunTag

        now = {_name(key): str(value)[:_LONGEST] for key, value in settings.items()}
        new = [Param(key, value) for key, value in now.items() if key not in before]
        tags = [RunTag(f"raytrain.changed.{key}", value) for key, value in now.items() if before.get(key, value) != value]
        for at in range(0, len(new), _PARAMS_PER_CALL):
            self._client.log_batch(self.kept["id"], params=new[at : at + _PARAMS_PER_CALL])
        if tags:
            self._client.log_batch(self.kept["id"], tags=tags)

    def log(self, behavior: str, step: int, values: dict[str, float]) -> None:
        """See `TrackedRun.log`."""
        from mlflow.entities import Metric

        now = int(time.time() * 1_000)
        self._client.log_batch(self.kept["id"], metrics=[Metric(_name(tag), value, now, step) for tag, value in values.items()])

    def close(self, status: Status) -> None:
        """See `Writer.close`."""
        self._client.set_terminated(self.kept["id"], _STATUS[status])


@contextmanager
def _fewer_retries() -> Iterator[None]:
    """A server that does not answer refuses the run after about a quarter of a minute, not after MLflow's several ones; what is set counts."""
    if _RETRIES in os.environ:
        yield
        return
    os.environ[_RETRIES] = "3"
    try:
        yield
    finally:
        del os.environ[_RETRIES]


def _name(text: str) -> str:
    """A name that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", text, flags=re.ASCII)[:250]


def _without_user(uri: str) -> str:
    """For people: what an environment variable has of a password is not printed."""
    return re.sub(r"//[^/@]*@", "//", uri)
