"""Long work on database files: reports of its progress, and how it is stopped."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from retinue.core.errors import RetinueError

_INSTRUCTIONS = 100_000
"""Virtual machine instructions of SQLite between two looks at the clock: a few milliseconds."""


class WorkStopped(RetinueError):
    """Long work was stopped before its end, by its caller or at its time limit; it has changed nothing."""

    def __init__(self) -> None:
        super().__init__("stopped before the end; nothing was changed")


def _ignore(step: str, done: int, total: int) -> None:
    pass


class LongWork:
    """Long work: `report` gets the name of a step, what is done of it, and its size (0 if unknown).

    `stop` ends the work from any thread, and `seconds` after a time: it then raises `WorkStopped`.
    """

    def __init__(self, report: Callable[[str, int, int], None] = _ignore, *, seconds: float | None = None) -> None:
        self._report = report
        self._stopped = threading.Event()
        self._end = None if seconds is None else time.monotonic() + seconds

    def stop(self) -> None:
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set() or (self._end is not None and time.monotonic() > self._end)

    def report(self, step: str, done: int = 0, total: int = 0) -> None:
        """Report progress; raises `WorkStopped` if the work shall end."""
        if self.is_stopped:
            raise WorkStopped
        self._report(step, done, total)

    @contextmanager
    def watching(self, connection: sqlite3.Connection) -> Generator[None]:
        """Interrupt statements of a connection when the work is stopped."""
        connection.set_progress_handler(lambda: int(self.is_stopped), _INSTRUCTIONS)
        try:
            yield
        except sqlite3.OperationalError as error:
            if self.is_stopped:
                raise WorkStopped from error
            raise
        finally:
            connection.set_progress_handler(None, 0)
