"""``raytrain list``: the runs of a results folder and how each is doing. A folder that is broken is a line, too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from raytrain.console import Console
from raytrain.errors import RunFolderError
from raytrain.run_folder import list_runs
from raytrain.run_lock import read_holder
from raytrain.summary_line import format_number, format_seconds

_ENDED = ("finished", "interrupted", "failed")
_STATUS, _LOCK, _CONFIGURATION = "status.json", "lock", "configuration.yaml"


@dataclass(frozen=True)
class RunState:
    """One line of the list; JSON-able.

    Attributes:
        run: its id.
        state: ``running`` (somebody who lives holds its lock), ``finished``, ``interrupted``, ``failed``, ``dead`` (it was running, and
            nobody is there any more) or ``broken`` (what it left cannot be read).
        behaviors: their names.
        agent_steps, max_steps: of all behaviors; None where it has not said so yet.
        mean_return: of the last episodes; None with several behaviors, and before enough have ended.
        best: highest mean return (of an evaluation, if the run has some) that a checkpoint was kept for.
        elapsed_s: trained for so long.
        changed: when it last wrote of itself, ISO 8601.
        reason: why it ended, or what is broken.
    """

    run: str
    state: str
    behaviors: tuple[str, ...] = ()
    agent_steps: int | None = None
    max_steps: int | None = None
    mean_return: float | None = None
    best: float | None = None
    elapsed_s: float | None = None
    changed: str = ""
    reason: str = ""


def states_of(results_dir: Path) -> list[RunState]:
    """Every run in a folder, the one that changed last first."""
    return sorted((state_of(results_dir / name) for name in list_runs(results_dir)), key=lambda state: state.changed, reverse=True)


def state_of(run: Path) -> RunState:
    """How one run is doing; never raises because of what is in its folder."""
    changed = datetime.fromtimestamp(_changed_s(run)).astimezone().isoformat(timespec="seconds")
    try:
        holder = read_holder(run / _LOCK)
        is_live = holder is not None and not holder.is_dead()
        status = _status(run)
        if status is None:
            said = "it has not said anything yet" if is_live else "it ended before it said anything"
            return RunState(run.name, "running" if is_live else "dead", changed=changed, reason=said)
        state = "running" if is_live else status["state"] if status["state"] in _ENDED else "dead"
        reason = "" if is_live else str(status["reason"])
        if state == "dead":
            reason = "its process is gone" + (f": {holder.who}" if holder is not None else "") + "; raytrain resume goes on with it"
        return RunState(
            run.name, state, tuple(status.get("behaviors") or [status["behavior"]]), int(status["agent_steps"]), int(status["max_steps"]), _number(status["mean_return"]),
            _best(status), _number(status["elapsed_s"]), changed, reason)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return RunState(run.name, "broken", changed=changed, reason=f"{_STATUS} cannot be read ({type(error).__name__}: {error})")


def _status(run: Path) -> dict[str, Any] | None:
    try:
        return json.loads((run / _STATUS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def _best(status: dict[str, Any]) -> float | None:
    evaluation = (status.get("evaluation") or {}).get("best")
    return _number(evaluation["reward"] if evaluation else status.get("best_reward"))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _changed_s(run: Path) -> float:
    """Of files that a run writes itself; copying a folder changes the folder."""
    times = []
    for path in (run / _STATUS, run / _CONFIGURATION, run):
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times[:-1], default=times[-1] if times else 0.0)


COLUMNS = ("run", "state", "behavior", "agent steps", "of", "mean return", "best", "time", "last news")
NUMBERS = ("agent steps", "of", "mean return", "best", "time")


def rows_of(states: Sequence[RunState]) -> list[tuple[str, ...]]:
    """The table for people, with `COLUMNS`."""

    def text(value: float | None, how: Any = format_number) -> str:
        return "" if value is None else how(value)

    rows = []
    for one in states:
        names = ", ".join(one.behaviors[:3]) + (f" and {len(one.behaviors) - 3} more" if len(one.behaviors) > 3 else "")
        share = "" if not one.max_steps or one.agent_steps is None else f"{one.agent_steps / one.max_steps:.0%}"
        when = one.changed[:16].replace("T", " ")
        rows.append((one.run, one.state, names, text(one.agent_steps, lambda n: f"{n:,}"), share, text(one.mean_return), text(one.best),
                     text(one.elapsed_s, format_seconds), when))
    return rows


def show_list(results_dir: str, as_json: bool) -> int:
    """The command; the exit code.

    Args:
        results_dir: folder of all runs.
    """
    console = Console()
    folder = Path(results_dir).expanduser()
    try:
        if "://" in results_dir:
            raise RunFolderError(f"Expected a folder on this machine, received {results_dir}; list it with the tools of that place.")
        if not folder.is_dir():
            raise RunFolderError(f"Expected a folder of runs, found none at {folder}; name it: raytrain list DIR.")
    except RunFolderError as error:
        console.error(str(error))
        return 2
    states = states_of(folder)
    if as_json:
        print(json.dumps([asdict(state) for state in states], indent=2, ensure_ascii=False))
        return 0
    if not states:
        console.message(f"no runs in {folder.absolute()}")
        return 0
    console.columns(COLUMNS, rows_of(states), NUMBERS)
    for state in states:
        if state.state in ("failed", "dead", "broken"):
            console.message(f"{state.run} is {state.state}: {state.reason}" if state.state != "failed" else f"{state.run} failed: {state.reason}")
    return 0
