"""Prometheus: gauges that Ray's own endpoints show, on every node where a driver has them. docs/trackers.md says how to scrape them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray.util.metrics import Gauge

from raytrain.stats import (
    CUMULATIVE_REWARD,
    EPISODE_LENGTH,
    EVALUATION_RETURN,
    POLICY_LAG_MAX,
    POLICY_LAG_MEAN,
    QUEUE_FILL,
    STEPS_PER_SECOND,
    UPDATES_PER_SECOND,
)
from raytrain.writers import RunInfo, Status, Writer

PREFIX = "ray_"
"""What Ray puts before every name."""

OF_RUN = {
    "raytrain_up": ("1 while the run goes on; 0 or absent once it has ended", ""),
    "raytrain_env_steps": ("env steps", "env_steps"),
    "raytrain_env_managers": ("env managers there are now", "env_managers"),
    "raytrain_restarts": ("env managers, environments and trainers that were started anew", "restarts"),
    "raytrain_elapsed_seconds": ("seconds of training", "elapsed_s"),
}
"""Metric of the run -> meaning, key of ``status.json``."""
OF_BEHAVIOR = {
    "raytrain_agent_steps": ("agent steps", "agent_steps"),
    "raytrain_max_steps": ("agent steps at which the run ends", "max_steps"),
    "raytrain_updates": ("optimizer steps", "updates"),
    "raytrain_policy_updates": ("learning calls, each of which publishes a policy", "policy_updates"),
    "raytrain_rolled_back_steps": ("agent steps consumed in vain by trainers that died", "rolled_back_steps"),
    "raytrain_dropped_steps": ("agent steps that were dropped, for whatever reason", "dropped_steps"),
    "raytrain_queued_items": ("items in the trajectory queue (room for 20)", "queued"),
    "raytrain_mean_return": ("mean return of the last episodes (stop.episodes)", "mean_return"),
    "raytrain_rating": ("rating in self-play", "rating"),
}
"""Metric of a behavior -> meaning, key of its part of ``status.json``."""
OF_SUMMARY = {
    "raytrain_return": ("mean return since the summary before", CUMULATIVE_REWARD),
    "raytrain_episode_length": ("mean length of episodes since the summary before (agent steps)", EPISODE_LENGTH),
    "raytrain_steps_per_second": ("agent steps per second", STEPS_PER_SECOND),
    "raytrain_updates_per_second": ("optimizer steps per second", UPDATES_PER_SECOND),
    "raytrain_policy_lag_mean": ("mean policy lag (versions)", POLICY_LAG_MEAN),
    "raytrain_policy_lag_max": ("largest policy lag (versions)", POLICY_LAG_MAX),
    "raytrain_queue_fill": ("mean items in the trajectory queue since the summary before", QUEUE_FILL),
    "raytrain_evaluation_return": ("mean return of the last evaluation", EVALUATION_RETURN),
}
"""Metric of a behavior -> meaning, tag of its summaries."""
STATISTIC = "raytrain_statistic"
"""Every other tag, under the label ``tag``."""
METRICS = (*OF_RUN, *OF_BEHAVIOR, *OF_SUMMARY, STATISTIC)


class PrometheusWriter(Writer):
    """Gauges with the labels ``run_id`` and ``behavior``; Ray adds its own.

    They are gauges also where a number only rises: a trainer that is started anew goes back to its checkpoint.
    """

    waits = False

    def open(self, run: RunInfo) -> None:
        """See `Writer.open`."""
        labels = ("run_id", "behavior")
        self._run_id = run.run_id
        self._gauges = {name: Gauge(name, meaning, ("run_id",)) for name, (meaning, _) in OF_RUN.items()}
        self._gauges |= {name: Gauge(name, meaning, labels) for name, (meaning, _) in (OF_BEHAVIOR | OF_SUMMARY).items()}
        self._gauges[STATISTIC] = Gauge(STATISTIC, "a tag of the summaries (docs/metrics.md)", (*labels, "tag"))
        self._names = {tag: name for name, (_, tag) in OF_SUMMARY.items()}
        self._set("raytrain_up", 1.0)
        self.place = f"metrics of this process at {endpoint()}"

    def write(self, behavior: str, step: int, values: Mapping[str, float]) -> None:
        """See `Writer.write`."""
        for tag, value in values.items():
            if tag in self._names:
                self._set(self._names[tag], value, behavior=behavior)
            else:
                self._set(STATISTIC, value, behavior=behavior, tag=tag)

    def status(self, status: Mapping[str, Any]) -> None:
        """See `Writer.status`."""
        for name, (_, key) in OF_RUN.items():
            if key:
                self._set(name, status[key])
        for behavior, own in status["behaviors"].items():
            for name, (_, key) in OF_BEHAVIOR.items():
                self._set(name, own[key], behavior=behavior)

    def close(self, status: Status) -> None:
        """See `Writer.close`."""
        self._set("raytrain_up", 0.0)

    def _set(self, name: str, value: float | None, **labels: str) -> None:
        if value is not None:
            self._gauges[name].set(float(value), {"run_id": self._run_id, **labels})


def endpoint() -> str:
    """Where Prometheus finds the metrics of the node that this process runs on."""
    here = ray.get_runtime_context().get_node_id()
    node = next(node for node in ray.nodes() if node["NodeID"] == here)
    address = node["NodeManagerAddress"]
    return f"http://{f'[{address}]' if ':' in address else address}:{node['MetricsExportPort']}/metrics"
