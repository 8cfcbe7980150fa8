"""Errors that a caller or a supervisor must tell apart.

A fault inside an environment is `envs.base.EnvFault`; everything else is a plain ``ValueError`` or ``RuntimeError``.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a configuration.

    Attributes:
        path: dotted path of the key, empty for the file as a whole.
        line: line in the file, counted from 1; ``None`` where there is none.
        value: what was received.
        message: what was expected, what was received and what to do.
        suggestion: nearest valid key or value, empty where none is near.
        source: name of the file, ``"command line"``, or empty for a dict.
    """

    path: str
    line: int | None
    value: Any
    message: str
    suggestion: str = ""
    source: str = ""

    @property
    def place(self) -> str:
        """``"CartPole.yaml:12"``, ``"command line"``, or empty."""
        return self.source if self.line is None else f"{self.source or 'line'}:{self.line}"

    @property
    def text(self) -> str:
        """The message, with the suggestion unless the message already has it."""
        return f"{self.message}; did you mean {self.suggestion}?" if self.suggestion not in self.message else self.message


class ConfigError(ValueError):
    """A configuration that cannot be run, with every problem found in it.

    Attributes:
        problems: at least one, in the order of the file.
        source: the file as the user named it, or what stands in for it.
    """

    def __init__(self, problems: Sequence[Problem], source: str = "the configuration") -> None:
        super().__init__(problems, source)
        self.problems = list(problems)
        self.source = source

    def __str__(self) -> str:
        count = len(self.problems)
        lines = [f"{count} {'problem' if count == 1 else 'problems'} in {self.source}"]
        place_width = max(len(problem.place) for problem in self.problems)
        path_width = max(len(problem.path) for problem in self.problems)
        for problem in self.problems:
            columns = [problem.place.ljust(place_width), problem.path.ljust(path_width), problem.text]
            lines.append("  " + "  ".join(column for column in columns if column))
        return "\n".join(lines)


class RunFolderError(ValueError):
    """A run folder that cannot be used as asked: it exists, is missing, or another live run holds it."""


class RunFault(RuntimeError):
    """A run that was going and broke: an environment, a trainer or a process of it.

    Attributes:
        user_traceback: the traceback to show first; the user's own where their code raised. Empty where there is none.
        full_traceback: everything, for the log file.
        log_file: where that is, once written.
        restartable: the component may be well when it is started again: its process died, or what it talks to.
    """

    def __init__(self, message: str, user_traceback: str = "", full_traceback: str = "") -> None:
        super().__init__(message, user_traceback, full_traceback)
        self.message = message
        self.user_traceback = user_traceback
        self.full_traceback = full_traceback
        self.log_file: str | None = None
        self.restartable = False

    def __str__(self) -> str:
        return self.message

    @classmethod
    def of(cls, component: str, error: Exception) -> RunFault:
        """What `component` died of, as the user should see it: their own traceback where their code raised, none where the
        environment or other code of theirs was refused by one of our checks, and all of it for a defect of ours. Call it while `error` is handled.
        """
        from envs.base import EnvFault  # not at the top: a configuration is refused without loading NumPy
        from envs.own_code import OwnCodeError

        full = traceback.format_exc()
        # "'boom'" alone says nothing of a KeyError; our own errors are sentences.
        kind = f"{type(error).__name__}: " if type(error).__module__ == "builtins" and not isinstance(error, ValueError | RuntimeError) else ""
        where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        shown = error.user_traceback if isinstance(error, EnvFault) else "" if isinstance(error, OwnCodeError) else full
        fault = cls(f"{component}: {kind}{error}{where}", shown, full)
        fault.restartable = isinstance(error, EnvFault) and error.restartable
        return fault


class UploadError(OSError):
    """Results that could not be brought to the URI where they belong; they are whole on this machine."""

    def __str__(self) -> str:
        return self.args[0]


class ClusterError(ValueError):
    """A Ray cluster that cannot be used as asked: it does not answer, differs, or cannot hold the run."""


class WriterError(ValueError):
    """A writer of statistics that cannot be made or opened. The text says which and why.

    Attributes:
        user_traceback: the traceback from the writer's own code on.
    """

    def __init__(self, message: str, user_traceback: str = "") -> None:
        super().__init__(message, user_traceback)
        self.message = message
        self.user_traceback = user_traceback

    def __str__(self) -> str:
        return self.message

    @classmethod
    def of(cls, name: str, what: str, error: BaseException, user_traceback: str) -> WriterError:
        """The writer `name` "cannot be opened", or made, because of `error`."""
        return cls(
            f"The writer {name} {what}: {type(error).__name__}: {error}. Nothing was trained; mend it, or leave {name} out of writers.", user_traceback)
