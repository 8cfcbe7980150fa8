"""Ctrl-C and SIGTERM while a run is going."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Interrupts:
    """SIGINT and SIGTERM as a request to save and end; a second SIGINT ends the process at once with code 130.

    Args:
        first: called at the first signal, from its handler.
        force_quit: called at a second SIGINT.
    """

    def __init__(self, first: Callable[[], None], force_quit: Callable[[], None]) -> None:
        self._first, self._force_quit = first, force_quit
        self.name = ""

    @contextmanager
    def handled(self) -> Iterator[Interrupts]:
        """Install the handlers for the block; nothing to do outside the main thread, where signals never arrive."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: Any) -> None:
        if self.name and number == signal.SIGINT:
            self._force_quit()
        self.name = signal.Signals(number).name
        self._first()


def quit_at_once() -> None:
    """End this process without any more ado."""
    sys.stderr.write("\nended at once; the newest checkpoint is the last one that was written\n")
    sys.stderr.flush()
    os._exit(130)  # Ray's own processes share this one's fate
