"""A Ray cluster of several nodes on this machine that no other program finds, and nodes of it that die and come back."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from chaos_runs.processes import TOKEN

_ENVIRONMENT = {
    "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3",
}


class Nodes:
    """A head node and `workers` others; use `started`.

    Attributes:
        address: for ``--address``.
        workers: nodes that may be killed.
    """

    def __init__(self, cluster: Any, cpus: float, workers: int) -> None:
        self._cluster, self._cpus = cluster, cpus
        self.address: str = cluster.gcs_address
        self.workers = [self._new() for _ in range(workers)]

    def _new(self) -> Any:
        return self._cluster.add_node(num_cpus=self._cpus, object_store_memory=200 * 2**20, include_dashboard=False)

    def kill(self, index: int) -> int:
        """SIGKILL to the raylet of a node: all its workers end with it. The process id."""
        from ray._private import ray_constants

        node = self.workers[index]
        (raylet,) = node.all_processes[ray_constants.PROCESS_TYPE_RAYLET]
        raylet.process.kill()
        return raylet.process.pid

    def replace(self, index: int) -> None:
        """Clear away what is left of a killed node and start another one in its place."""
        self._cluster.remove_node(self.workers[index], allow_graceful=False)
        self.workers[index] = self._new()


@contextmanager
def started(token: str, head_cpus: float, worker_cpus: float, workers: int) -> Iterator[Nodes]:
    """A cluster whose processes carry `token`, ended afterwards. Its address is not left in Ray's own place, where other programs on this
    machine would join it."""
    from ray.cluster_utils import Cluster

    folder = Path(tempfile.mkdtemp(prefix="rt-"))  # short: sockets lie in it
    os.environ.update({**{k: os.environ.get(k, v) for k, v in _ENVIRONMENT.items()}, TOKEN: token})
    head = {"num_cpus": head_cpus, "include_dashboard": False, "temp_dir": str(folder), "object_store_memory": 300 * 2**20}
    with patch("ray._private.utils.write_ray_address"):
        cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield Nodes(cluster, worker_cpus, workers)
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
