"""What a user's own code is told while a run is going on."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytrain.stats import Summary


class CallbackError(RuntimeError):
    """A user's callback raised. The text begins with the user's own traceback.

    Attributes:
        user_traceback: the traceback from the user's function on, as Python prints it.
    """

    def __init__(self, message: str, user_traceback: str) -> None:
        super().__init__(message, user_traceback)
        self.message = message
        self.user_traceback = user_traceback

    def __str__(self) -> str:
        return f"{self.user_traceback}\n{self.message}"


@dataclass(frozen=True)
class Callbacks:
    """Functions called in the driver, in the order of events; each may be left out. They hold up the driver while they run, not the envs.

    Attributes:
        on_episode: ``(behavior, return_, length, step)`` for each finished episode: undiscounted return, length in
            agent steps, agent steps of the behavior when it was consumed.
        on_summary: ``(summary)`` for each summary, also for those that the console leaves out.
        on_checkpoint: ``(path, step, reward)`` after a checkpoint is complete on disk; `reward` is the mean training
            return, None while too few episodes have finished.
        on_start: ``(path)`` once, when the run has its folder.
        should_stop: asked about five times a second; True ends the run with a last checkpoint.
    """

    on_episode: Callable[[str, float, int, int], None] | None = None
    on_summary: Callable[[Summary], None] | None = None
    on_checkpoint: Callable[[Path, int, float | None], None] | None = None
    on_start: Callable[[Path], None] | None = None
    should_stop: Callable[[], bool] | None = None

    def episodes(self, behavior: str, returns: Iterable[float], lengths: Iterable[int], step: int) -> None:
        """Tell of finished episodes, one call each.

        Raises:
            CallbackError: the user's function raised; the run ends with it. The same holds for the methods below.
        """
        if self.on_episode is not None:
            for return_, length in zip(returns, lengths, strict=True):
                _call("on_episode", self.on_episode, behavior, float(return_), int(length), step)

    def start(self, path: Path) -> None:
        """Tell of the run's folder."""
        if self.on_start is not None:
            _call("on_start", self.on_start, path)

    @property
    def want_an_end(self) -> bool:
        """Whether the user's code asks for the end of the run."""
        return self.should_stop is not None and bool(_call("should_stop", self.should_stop))

    def summary(self, summary: Summary) -> None:
        """Tell of a summary."""
        if self.on_summary is not None:
            _call("on_summary", self.on_summary, summary)

    def checkpoint(self, path: Path, step: int, reward: float | None) -> None:
        """Tell of a complete checkpoint."""
        if self.on_checkpoint is not None:
            _call("on_checkpoint", self.on_checkpoint, path, step, reward)


def _call(name: str, function: Callable[..., Any], *arguments: object) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        # Our own frame comes first and says nothing to the user; a call with wrong arguments has no other one.
        frames = error.__traceback__.tb_next or error.__traceback__
        user_traceback = "".join(traceback.format_exception(type(error), error, frames))
        raise CallbackError(
            f"The callback {name} raised {type(error).__name__} (above), so the run ends. Mend it, or catch what may fail inside it.",
            user_traceback,
        ) from error
