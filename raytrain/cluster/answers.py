"""What actors answer, and what they die of."""

from __future__ import annotations

import re
from typing import Any

import ray

from raytrain.actors import CALL_TIMEOUT_S
from raytrain.errors import RunFault

ANSWER_S = 2.0  # longest wait for an actor's answer to a question of the controller


def answer_of(name: str, reference: ray.ObjectRef) -> Any:
    """What the actor called `name` answered to a call that is done.

    Raises:
        RunFault: it has died, which a restart may mend, or it could not be made, which none does.
    """
    try:
        return ray.get(reference, timeout=CALL_TIMEOUT_S)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:  # it died, or its node with the answer
        if isinstance(error, ray.exceptions.RayActorError) and error.actor_init_failed:
            raise RunFault(f"{name} could not be made: {str(error).strip().splitlines()[-1]}", str(error), str(error)) from error
        raise dead(f"{name} died: its process ended without an error of its own ({_cause(error)})", str(error)) from error


def dead(message: str, details: str = "") -> RunFault:
    """A fault that a restart may mend."""
    fault = RunFault(message, "", details)
    fault.restartable = True
    return fault


def _cause(error: Exception) -> str:
    """What Ray knows of an actor's death, in a few words."""
    fields = dict(line.strip().split(": ", 1) for line in str(error).splitlines() if ": " in line)
    where = ", ".join(f"{key} {fields[key]}" for key in ("pid", "ip") if key in fields)
    told = re.search(r"because (.*?)[.\n]", str(error), re.DOTALL)
    return "; ".join(text for text in (where, told.group(1) if told else "") if text) or type(error).__name__


def keep_deaths_to_ourselves() -> None:
    """Ray's daemon prints a paragraph for each worker that dies; the run says so itself, with what it does about it."""
    printed = ray._private.worker.print_worker_logs
    if getattr(printed, "is_filtered", False):
        return

    def print_others(data: dict[str, Any], *arguments: Any) -> Any:
        deaths = ("A worker died", "Raylet is terminated")  # the second one with hundreds of lines of the daemon's own log
        is_death = data.get("pid") == "raylet" and any(line.startswith(deaths) for line in data.get("lines", []))
        return None if is_death else printed(data, *arguments)

    print_others.is_filtered = True
    ray._private.worker.print_worker_logs = print_others
