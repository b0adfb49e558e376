"""Classify exceptions raised by user tools and providers: record them, or re-raise them (cancellation, Ctrl-C)."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Collection
from functools import partial
from pathlib import Path
from traceback import walk_tb

from retinue.core.text import clean_line

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_LIBRARY = os.path.dirname(os.__file__) + os.sep
"""Folders whose code is not the user's; packages of users are in `site-packages` below the second."""


def message_of(error: BaseException) -> str:
    """The message of an error; empty if the error's own `__str__` fails."""
    try:
        return str.__str__(str(error))  # a plain str: a subclass of str cannot be stored
    except Exception:
        return ""


def type_and_message_of(error: BaseException) -> str:
    """The type and message of an error, for a tool result or a log.

    >>> type_and_message_of(ValueError("no such pool")), type_and_message_of(TimeoutError())
    ('ValueError: no such pool', 'TimeoutError')
    """
    kind, message = type(error).__name__, message_of(error)
    return f"{kind}: {message}" if message else kind


def error_place(error: BaseException) -> str:
    """File and line in the user's code where an error was raised, as `file:line`; empty if there is none.

    It is the innermost place outside of this package and of Python's own library.
    """
    for frame, line in reversed([*walk_tb(error.__traceback__)]):
        file = frame.f_code.co_filename
        is_library = file.startswith(_LIBRARY) and "site-packages" not in file
        if not is_library and not file.startswith((_PACKAGE, "<")):
            return clean_line(f"{file}:{line}")
    return ""


def repr_of(error: BaseException) -> str:
    """The repr of an error, for bug reports; its type name if the error's own `__repr__` fails."""
    try:
        return str.__str__(repr(error))
    except Exception:
        return type(error).__name__


def is_recordable(error: BaseException, tasks: Collection[asyncio.Task[None]]) -> bool:
    """Whether `error` is a failure of the code that one of `tasks` ran; otherwise the caller has to re-raise it.

    To be re-raised: a cancellation, a Ctrl-C, and the GeneratorExit of a coroutine that is being discarded.
    """
    match error:
        case asyncio.CancelledError():
            return False
        case KeyboardInterrupt():
            return not _may_be_ctrl_c(error)
        case GeneratorExit():
            return _is_current(tasks)
        case _:
            return True


def _is_current(tasks: Collection[asyncio.Task[None]]) -> bool:
    """Whether one of these tasks is running now; a coroutine that is being discarded is not run by its task."""
    try:
        return asyncio.current_task() in tasks
    except RuntimeError:
        return False  # no loop is running


def _may_be_ctrl_c(interrupt: KeyboardInterrupt) -> bool:
    """Whether the SIGINT handler raised this, as far as that can be determined."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        return True  # implemented in C: leaves no frame in the traceback
    while isinstance(handler, partial):  # as asyncio's own handler is
        handler = handler.func
    code = getattr(handler, "__code__", None)
    frames = (frame for frame, _ in walk_tb(interrupt.__traceback__))
    return code is not None and any(frame.f_code is code for frame in frames)
