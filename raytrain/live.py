"""A run beside you: started from a notebook or a program, looked at while it goes on, stopped when you like."""

from __future__ import annotations

import atexit
import csv
import html
import io
import json
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytrain.compare import draw_curves
from raytrain.curve_files import CSV_NAME
from raytrain.curves import read_curves
from raytrain.errors import RunFolderError
from raytrain.files import portable_name
from raytrain.stats import CUMULATIVE_REWARD

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from raytrain.predict import LoadedPolicy

_STOP_S = 60.0
_lock = threading.Lock()
_going: list[LiveRun] = []


def start(config: str | Path | Mapping[str, Any], *, local: bool = False, beside: bool = False, **arguments: Any) -> LiveRun:
    """Start a run in the background; returns once it has its folder, or raises what is wrong with it.

    A notebook cell may be run again: what was started before with this function is stopped first (it saves), so that nothing is left over.

    Args:
        config, local: as for `raytrain.train`, and so are further arguments.
        beside: let what was started before go on.

    Raises:
        ConfigError, RunFolderError, ClusterError: the input is not usable; nothing was started or written.
    """
    if not beside:
        for run in _still_going():
            run.stop()
    run = LiveRun(config, local, arguments)
    with _lock:
        _going.append(run)
    run._wait_for_folder()
    return run


class LiveRun:
    """A run that goes on in the background. Made by `start`.

    Attributes:
        path: its folder.
    """

    def __init__(self, config: str | Path | Mapping[str, Any], local: bool, arguments: Mapping[str, Any]) -> None:
        self.path = Path()
        self._text = io.StringIO()
        self._stopping, self._has_folder = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._results: dict[str, Any] | None = None
        self._thread = threading.Thread(target=self._run, args=(config, local, dict(arguments)), name="raytrain", daemon=True)
        self._thread.start()

    def _run(self, config: str | Path | Mapping[str, Any], local: bool, arguments: dict[str, Any]) -> None:
        from raytrain.callbacks import Callbacks
        from raytrain.console import Console
        from raytrain.run import train

        given = arguments.pop("callbacks", None)
        events = {name: arguments.pop(name) for name in ("on_episode", "on_summary", "on_checkpoint") if name in arguments}
        if given is not None:
            events = {name: getattr(given, name) for name in ("on_episode", "on_summary", "on_checkpoint")}
        callbacks = Callbacks(**events, on_start=self._note_folder, should_stop=self._stopping.is_set)
        try:
            run = train(config, local=local, callbacks=callbacks, console=Console(self._text, self._text), **arguments)
            self._results = run.results
        except BaseException as error:  # noqa: BLE001 - raised where the user waits
            self._error = error
        finally:
            self._has_folder.set()
            with _lock:
                if self in _going:
                    _going.remove(self)

    def _note_folder(self, path: Path) -> None:
        self.path = path
        self._has_folder.set()

    def _wait_for_folder(self) -> None:
        try:
            self._has_folder.wait()
        except KeyboardInterrupt:
            self.stop()
            raise
        if self.path == Path() and self._error is not None:
            raise self._error

    # -- looking ----------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether it still goes on."""
        return self._thread.is_alive()

    @property
    def log(self) -> str:
        """Everything it has printed."""
        return self._text.getvalue()

    @property
    def status(self) -> dict[str, Any]:
        """What ``status.json`` says: state, counters, mean return, restarts; empty before the first few seconds are over."""
        try:
            return json.loads((self.path / "status.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    @property
    def behaviors(self) -> list[str]:
        """Behaviors that have metrics by now."""
        return sorted(self.status.get("behaviors", {}))

    @property
    def metrics(self) -> Any:
        """Summaries so far of the only behavior, see `metrics_of`."""
        names = self.behaviors
        if len(names) > 1:
            raise ValueError(f"Expected one behavior, this run has {', '.join(names)}: call metrics_of(behavior).")
        return self.metrics_of(names[0]) if names else _frame({})

    def metrics_of(self, behavior: str) -> Any:
        """Summaries of a behavior so far: a pandas DataFrame where pandas is installed, else a dict of lists; ``step`` and a column per tag,
        numbers, None (NaN) where a summary had none."""
        try:
            text = (self.path / portable_name(behavior) / CSV_NAME).read_text(encoding="utf-8")
        except OSError:
            return _frame({})
        rows = list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1])))
        columns = {name: [float(row[name]) if row.get(name) else None for row in rows] for name in (rows[0] if rows else ())}
        return _frame({name: [int(x) for x in column] if name == "step" else column for name, column in columns.items()})

    def plot(self, tag: str = CUMULATIVE_REWARD, live: bool = False, every_s: float = 2.0) -> Figure:
        """The curve of a tag for each behavior.

        Args:
            live: in a notebook, draw again and again until the run ends; an interrupt ends the drawing, not the run.
            every_s: seconds between two drawings.

        Raises:
            ValueError: matplotlib is not installed.
        """
        figure = self._figure(tag)
        _let_notebooks_draw()
        if live:
            from IPython.display import clear_output, display

            try:
                while self.is_running:
                    clear_output(wait=True)
                    display(self)
                    display(figure)
                    time.sleep(every_s)
                    figure = self._figure(tag)
            except KeyboardInterrupt:
                pass
            clear_output(wait=True)
        return figure

    def _figure(self, tag: str) -> Figure:
        try:
            curves = read_curves(self.path, tag)
        except RunFolderError:  # nothing has been written yet
            curves = []
        return draw_curves(curves, tag)

    @property
    def policy(self) -> LoadedPolicy:
        """The newest saved policy; with several behaviors use ``raytrain.load_policy(run.path, behavior=…)``."""
        from raytrain.predict import load_policy

        return load_policy(self.path, which="latest")

    # -- ending -----------------------------------------------------------------------------------------------------

    @property
    def results(self) -> dict[str, Any] | None:
        """As of `raytrain.Run`; None while it goes on, and when it failed."""
        return self._results

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """End it as Ctrl-C does, with a last checkpoint, and wait for that.

        Raises:
            TimeoutError: it has not ended within `timeout_s`.
        """
        self._stopping.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"The run {self.path} has not ended within {timeout_s:.0f} s; it is in a long update or a step that hangs.")

    def wait(self) -> dict[str, Any]:
        """Wait for the end; an interrupt stops the run first (it saves) and is raised then.

        Returns:
            `results`.

        Raises:
            RunFault, …: what it died of, as for `raytrain.train`.
        """
        try:
            while self._thread.is_alive():
                self._thread.join(0.2)  # in slices, so that an interrupt is noticed on every system
        except KeyboardInterrupt:
            self.stop()
            raise
        if self._error is not None:
            raise self._error
        return self._results or {}

    def __repr__(self) -> str:
        return f"<raytrain run {self.path}: {', '.join(f'{name} {text}' for name, text in self._facts())}>"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>" for name, text in self._facts())
        return f"<b>{html.escape(self.path.name)}</b><table>{rows}<tr><td>folder</td><td>{html.escape(str(self.path))}</td></tr></table>"

    def _facts(self) -> list[tuple[str, str]]:
        status = self.status
        state = "running" if self.is_running else "failed" if self._error is not None else status.get("state", "ended")
        facts = [("state", state)]
        if self._error is not None:
            facts.append(("error", str(self._error).splitlines()[0] if str(self._error) else type(self._error).__name__))
        for behavior, one in status.get("behaviors", {}).items():
            mean = one.get("mean_return")
            facts.append((behavior, f"{one.get('agent_steps', 0):,} of {one.get('max_steps', 0):,} agent steps" + ("" if mean is None else f", mean return {mean:,.2f}")))
        if status.get("reason"):
            facts.append(("ended by", status["reason"]))
        return facts


def _let_notebooks_draw() -> None:
    """A notebook shows figures as pictures only once pyplot was imported or ``%matplotlib`` was typed, and as their names before."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        from IPython.core.pylabtools import select_figure_formats

        select_figure_formats(shell, {"png"})


def _frame(columns: dict[str, list[Any]]) -> Any:
    try:
        import pandas
    except ImportError:
        return columns
    return pandas.DataFrame(columns)


def _still_going() -> list[LiveRun]:
    with _lock:
        return list(_going)


@atexit.register
def _stop_everything() -> None:
    """Threads of this kind would be cut off where they are."""
    for run in _still_going():
        try:
            run.stop()
        except TimeoutError:
            continue
