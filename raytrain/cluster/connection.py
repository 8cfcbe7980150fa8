"""Which Ray a run uses."""

from __future__ import annotations

import json
import logging
import os
import platform
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray._private.services import canonicalize_bootstrap_address
from ray._private.utils import read_ray_address
from ray._raylet import AuthenticationTokenLoader, Config

from raytrain.cluster.nodes import amount, is_one_machine, nodes_text
from raytrain.errors import ClusterError
from raytrain.shipping import SHIPPED_FROM, Shipment, job_runtime_env

_PROBE_S = 2.0
_AUTH_MODE = "RAY_AUTH_MODE"
# Ray gives workers niceness 15, so they would lose to anything else on the machine; and OpenBLAS would start a thread per core in each.
_PRIVATE_ENVIRONMENT = {
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
_OPEN = (
    "this cluster asks for no token: whoever reaches its ports can run code on it. Make one before 'ray start' on every node "
    "('ray get-auth-token --generate', docs/cluster.md)"
)


@dataclass(frozen=True)
class Connection:
    """The Ray that is used.

    Attributes:
        description: for people.
        owned: started by this run, and ended with it.
        is_here: this machine alone, started for this process: its workers have what it has.
        shipped: the folder of the user's that went to the other nodes; None where none did.
        messages: what the user should know of it.
        warnings: what the user should do something about.
        auth_before: how this process used Ray's tokens before.
    """

    description: str
    owned: bool
    is_here: bool = False
    shipped: Path | None = None
    messages: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    auth_before: str | None = None


def connect(address: str | None, shipment: Shipment | None = None) -> Connection:
    """Use, in this order: a Ray that this process has already, `address`, ``RAY_ADDRESS``, a live cluster that ``ray start`` made on
    this machine and that runs the same Ray version, a private one of this run.

    Args:
        shipment: what other nodes need of this one's files; nothing but raytrain by default.

    Raises:
        ClusterError: the given address does not answer, or runs another Ray version, or the files are too many.
    """
    shipment = shipment or Shipment()
    if ray.is_initialized():
        shipped = os.environ.get(SHIPPED_FROM)
        return Connection(
            "the Ray this process is connected to (left running)", owned=False, is_here=is_one_machine(), shipped=Path(shipped) if shipped else None)
    given = address or os.environ.get("RAY_ADDRESS")
    if given:
        where = "--address" if address else "ray job submit" if job_runtime_env() is not None else "RAY_ADDRESS"
        joined = _join(given, where, shipment)
        return replace(joined, description=f"cluster {ray.get_runtime_context().gcs_address} ({where}){nodes_text()}")
    found = read_ray_address()
    note = ""
    if found:
        problem = _probe(found)
        if not problem:
            joined = _join(found, "the cluster that 'ray start' made on this machine", shipment)
            return replace(joined, description=f"cluster {found} on this machine{nodes_text()}")
        note = f"; cluster {found} in /tmp/ray/ray_current_cluster is ignored: {problem}"
    # A private Ray is guarded by a token of its own; that this is so needs no warning at each start.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    logging.getLogger("ray._private.worker").setLevel(logging.ERROR)  # nor that a thread other than the main one leaves signals alone
    chosen = {k: os.environ.get(k, v) for k, v in _PRIVATE_ENVIRONMENT.items()}  # the user's own settings win
    with _environment({**chosen, **_python_path()}):
        _start_private()
    cpus = amount(ray.cluster_resources().get("CPU", 0))
    return Connection(f"a private one on this machine, {cpus} CPUs{note}", owned=True, is_here=True)


def _start_private() -> None:
    """Start a Ray of this process's own, at the second try where the machine was too busy for the first: Ray gives its daemon 30 s.

    Raises:
        ClusterError: it did not start.
    """
    _set_auth_mode(os.environ.get(_AUTH_MODE))  # as the environment has it now, not as Ray read it for a cluster that was left
    for is_last in (False, True):
        try:
            ray.init(address="local", include_dashboard=False, log_to_driver=False, configure_logging=False, logging_level="ERROR")
        except Exception as error:  # Ray raises plain ones
            ray.shutdown()
            if not is_last and "timed out" in str(error):
                continue
            raise ClusterError(
                f"Ray could not start on this machine: {str(error).splitlines()[0] if str(error) else type(error).__name__} Try again when the machine is "
                "less busy; 'raytrain train' needs no Ray with --local."
            ) from error
        return


def disconnect(connection: Connection) -> None:
    """Leave the Ray that `connect` brought; a private one ends."""
    if connection.owned and ray.is_initialized():
        ray.shutdown()
        if not connection.is_here:
            _set_auth_mode(connection.auth_before)


def _join(address: str, where: str, shipment: Shipment) -> Connection:
    if address.startswith("ray://"):
        raise ClusterError(
            f"{where} names the Ray client address {address}, which would carry every trajectory through one proxy. Run on the cluster "
            "instead: 'ray submit' or 'ray job submit', or --address auto on one of its machines."
        )
    try:
        resolved = address if address == "local" else canonicalize_bootstrap_address(address) or address
    except ConnectionError as error:
        raise ClusterError(f"The Ray cluster {address} ({where}) cannot be joined: {error}") from error
    before = os.environ.get(_AUTH_MODE)
    if resolved not in ("auto", "local"):
        problem = _probe(resolved)
        if problem:
            raise ClusterError(f"The Ray cluster {address} ({where}) cannot be used: {problem}.")
    runtime_env: dict[str, Any] | None = {"env_vars": _python_path()}
    messages, shipped = [], None
    if job_runtime_env() is not None:
        runtime_env = None  # the job has its own, and Ray refuses two
    elif resolved not in ("auto", "local") and _may_have_other_nodes(resolved):
        runtime_env, shipped = shipment.runtime_env(), shipment.folder
        messages.append(f"shipping {shipment.text()} to the nodes of the cluster")
    try:
        ray.init(address=resolved, log_to_driver=False, configure_logging=False, logging_level="ERROR", runtime_env=runtime_env)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ClusterError(f"The Ray cluster {address} ({where}) cannot be joined: {error}") from error
    return Connection("", owned=True, shipped=shipped, messages=tuple(messages), warnings=() if _asks_for_token() else (_OPEN,), auth_before=before)


def _asks_for_token() -> bool:
    """Whether the cluster that was joined asks for a token: `_probe` found out."""
    return os.environ.get(_AUTH_MODE, "disabled").lower() == "token"


def _set_auth_mode(mode: str | None) -> None:
    """Whether this process gives Ray's token and asks for it; None takes the setting away. It must be as the cluster does: with a token
    on one side only, Ray drops actors as soon as they are made."""
    if mode is None:
        os.environ.pop(_AUTH_MODE, None)
    else:
        os.environ[_AUTH_MODE] = mode
    Config.initialize("")  # Ray keeps what it has read


def _metadata(address: str) -> bytes | None:
    """What the cluster says of itself. Ray's own line on a token that is missing is not shown: the caller tells it better."""
    with _silenced():
        return ray._raylet.GcsClient(address=address).internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=_PROBE_S)


@contextmanager
def _silenced() -> Iterator[None]:
    """Without what C++ code writes to standard error."""
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # no standard error
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _may_have_other_nodes(address: str) -> bool:
    """Whether the cluster at `address`, which answers, has other nodes than one, or may get some."""
    client = ray._raylet.GcsClient(address=address)
    try:
        alive = [node for node in client.get_all_node_info(timeout=_PROBE_S).values() if node.state == 0]
    except Exception:  # noqa: BLE001 - what cannot be asked is taken for large: shipping once too often costs a second
        return True
    return len(alive) != 1 or any(node.node_type_name for node in alive)


def _probe(address: str) -> str:
    """Why the cluster at `address` cannot be used; empty when it can, and then this process gives a token if the cluster asks for one."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_PROBE_S):
            pass
    except (OSError, ValueError) as error:
        return f"it does not answer within {_PROBE_S:.0f} s ({error})"
    before = os.environ.get(_AUTH_MODE)
    _set_auth_mode("disabled")
    try:
        try:
            raw = _metadata(address)
        except ray.exceptions.AuthenticationError:
            if not AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):  # with which Ray's C++ would end the process
                raise
            _set_auth_mode("token")
            raw = _metadata(address)
    except ray.exceptions.AuthenticationError:
        _set_auth_mode(before)
        return ("it asks for a token, and there is none here or another one; copy ~/.ray/auth_token of its head to the same place here, or name the "
                "file by RAY_AUTH_TOKEN_PATH")
    except Exception as error:  # noqa: BLE001 - whatever answers there, it is no Ray
        _set_auth_mode(before)
        return f"it does not answer like Ray ({type(error).__name__})"
    cluster = json.loads(raw) if raw else {}
    for name, theirs, mine in (("Ray", cluster.get("ray_version"), ray.__version__), ("Python", cluster.get("python_version"), platform.python_version())):
        if theirs != mine:
            _set_auth_mode(before)
            return f"it runs {name} {theirs}, this is {name} {mine}"
    return ""


def _python_path() -> dict[str, str]:
    """So that workers find this raytrain when it runs from a clone, without an installation."""
    here = str(Path(__file__).resolve().parents[2])
    return {"PYTHONPATH": os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH")) if p)}


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables that processes started within inherit; what was there before is there again afterwards."""
    before = {k: os.environ.get(k) for k in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
