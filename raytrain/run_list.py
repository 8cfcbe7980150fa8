"""``raytrain list``: the runs of a results folder and how each is doing. A folder that is broken is a line, too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from raytrain.console import Console
from raytrain.errors import RunFolderError
from raytrain.remote import RemoteError, RemoteFolder, is_uri, join
from raytrain.run_files import CONFIGURATION, RunFiles, files_of, unreachable
from raytrain.run_folder import list_runs
from raytrain.stop import GOAL_REACHED
from raytrain.summary_line import format_number, format_seconds
from raytrain.sweep_record import SweepRecord, list_sweeps, read_record

_ENDED = ("finished", "interrupted", "failed")
_STATUS = "status.json"
_AT_ONCE = 8  # runs at a URI that are asked for side by side: each answer takes a while


@dataclass(frozen=True)
class RunState:
    """One line of the list; JSON-able.

    Attributes:
        run: its id.
        state: ``running`` (somebody who lives holds its lock), ``finished``, ``interrupted``, ``failed``, ``dead`` (it was running, and
            nobody is there any more) or ``broken`` (what it left cannot be read). Of a trial also what its sweep knows better:
            ``stopped early`` or ``waiting``.
        behaviors: their names.
        agent_steps, max_steps: of all behaviors; None where it has not said so yet.
        mean_return: of the last episodes (where ``stop.reward`` ended the run, of those that reached it); None with several behaviors,
            and before enough have ended.
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


def states_of(results_dir: str | Path) -> list[RunState]:
    """Every run in a folder or at a URI, the one that changed last first. In the folder of a sweep, its trials.

    Raises:
        RunFolderError: the place does not answer.
    """
    if is_uri(results_dir):
        from raytrain.staging import list_remote_runs

        try:
            names = list_remote_runs(RemoteFolder(str(results_dir)))
        except RemoteError as error:
            raise unreachable(error) from error
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = list(pool.map(lambda name: state_of(join(str(results_dir), name)), names))
    else:
        found = [state_of(Path(results_dir) / name) for name in list_runs(Path(results_dir))]
        if (sweep := read_record(Path(results_dir))) is not None:
            found = _with_sweep(found, sweep)
    return sorted(found, key=lambda state: state.changed, reverse=True)


def state_of(run: str | Path) -> RunState:
    """How one run is doing, by its folder or URI; never raises because of what is in it."""
    files, changed = files_of(run), ""
    try:
        changed = _changed(files, run)
        holder = files.holder()
        is_live = holder is not None and not holder.is_dead()
        data = files.read(_STATUS)
        if data is None:
            said = "it has not said anything yet" if is_live else "it ended before it said anything"
            return RunState(files.name, "running" if is_live else "dead", changed=changed, reason=said)
        status = json.loads(data)
        state = "running" if is_live else status["state"] if status["state"] in _ENDED else "dead"
        reason = "" if is_live else str(status["reason"])
        if state == "dead":
            reason = "its process is gone" + (f": {holder.who}" if holder is not None else "") + "; raytrain resume goes on with it"
        return RunState(
            files.name, state, tuple(status.get("behaviors") or [status["behavior"]]), int(status["agent_steps"]), int(status["max_steps"]), _number(status["mean_return"]),
            _best(status), _number(status["elapsed_s"]), changed, reason)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return RunState(files.name, "broken", changed=changed, reason=f"{_STATUS} cannot be read ({type(error).__name__}: {error})")


def _with_sweep(runs: Sequence[RunState], sweep: SweepRecord) -> list[RunState]:
    """The runs of trials, with what only the sweep knows: that it stopped one early, why one failed, which have not begun."""
    by_name = {state.run: state for state in runs}
    for trial in sweep.trials:
        known = by_name.get(trial.name)
        if known is None:
            by_name[trial.name] = RunState(trial.name, trial.state if trial.state in ("failed", "waiting") else "waiting", reason=trial.reason)
        elif known.state in ("interrupted", "dead") and (trial.state in ("stopped early", "finished", "failed") or (sweep.is_live and trial.state == "running")):
            by_name[trial.name] = replace(known, state=trial.state, reason=trial.reason)
    return list(by_name.values())


def _best(status: dict[str, Any]) -> float | None:
    evaluation = (status.get("evaluation") or {}).get("best")
    return _number(evaluation["reward"] if evaluation else status.get("best_reward"))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _changed(files: RunFiles, run: str | Path) -> str:
    """ISO 8601, of files that a run writes itself; copying a folder changes the folder. Empty where the place does not know."""
    times = [when for name in (_STATUS, CONFIGURATION) if (when := files.changed_s(name)) is not None]
    if not times and not is_uri(run):
        times = [files.changed_s("") or 0.0]
    return datetime.fromtimestamp(max(times)).astimezone().isoformat(timespec="seconds") if times else ""


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
        results_dir: folder of all runs, or its URI.
    """
    console = Console(quiet=as_json)
    place = results_dir if is_uri(results_dir) else Path(results_dir).expanduser()
    try:
        if isinstance(place, Path) and not place.is_dir():
            raise RunFolderError(f"Expected a folder of runs, found none at {place}; name it: raytrain list DIR.")
        if is_uri(place):
            console.message(f"reading the runs of {place} …")
        states = states_of(place)
    except RunFolderError as error:
        console.error(str(error))
        return 2
    if as_json:
        print(json.dumps([asdict(state) for state in states], indent=2, ensure_ascii=False))
        return 0
    if states:
        console.columns(COLUMNS, rows_of(states), NUMBERS)
    else:
        console.message(f"no runs in {place.absolute() if isinstance(place, Path) else place}")
    for text in _remarks(states, place):
        console.message(text)
    return 0


def _remarks(states: Sequence[RunState], place: str | Path) -> list[str]:
    """Sentences below the table."""
    found = []
    for state in states:
        if state.state in ("failed", "dead", "broken"):
            found.append(f"{state.run} is {state.state}: {state.reason}" if state.state != "failed" else f"{state.run} failed: {state.reason}")
    if any(GOAL_REACHED in state.reason and None not in (state.mean_return, state.best) and state.mean_return != state.best for state in states):
        found.append("Where stop.reward ended a run, its mean return is of the episodes that reached it; best is of the 100 before the checkpoint in best/ (or of its evaluation), "
                     "which evaluate and play take.")
    if isinstance(place, Path):
        if (sweep := read_record(place)) is not None and (hint := sweep.hint()):
            found.append(hint)
        found += [f"{name} is a sweep; its trials: raytrain list {place / name}" for name in list_sweeps(place)]
    return found
