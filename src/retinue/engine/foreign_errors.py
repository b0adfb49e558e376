"""What leaves the code of others: in which words, and whether it is its own doing or meant for the whole process."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Collection
from functools import partial
from types import TracebackType


def words_of(error: BaseException) -> str:
    """What an error says of itself; nothing, where it fails at that too."""
    try:
        return str.__str__(str(error))  # itself and no kind of text of somebody's own, which nothing can store
    except Exception:
        return ""


def kind_and_words_of(error: BaseException) -> str:
    """An error for whoever reads what became of something.

    >>> kind_and_words_of(ValueError("no such pool")), kind_and_words_of(TimeoutError())
    ('ValueError: no such pool', 'TimeoutError')
    """
    kind, words = type(error).__name__, words_of(error)
    return f"{kind}: {words}" if words else kind


def in_code(error: BaseException) -> str:
    """An error as code has it, for whoever has to find it; its kind, where it fails at that too."""
    try:
        return str.__str__(repr(error))
    except Exception:
        return type(error).__name__


def is_its_own_doing(error: BaseException, tasks: Collection[asyncio.Task[None]]) -> bool:
    """Whether code that one of these tasks ran has failed with this; else it has to travel on.

    What travels on is a cancel, the Ctrl-C of a person, and what a coroutine hears that is thrown away.
    """
    match error:
        case asyncio.CancelledError():
            return False
        case KeyboardInterrupt():
            return not _may_be_pressed(error)
        case GeneratorExit():
            return _is_at_work(tasks)
        case _:
            return True


def _is_at_work(tasks: Collection[asyncio.Task[None]]) -> bool:
    """Whether one of these tasks is running; a coroutine that is thrown away is run by somebody else, or nobody."""
    try:
        return asyncio.current_task() in tasks
    except RuntimeError:
        return False  # no loop is running


def _may_be_pressed(interrupt: KeyboardInterrupt) -> bool:
    """Whether somebody may have pressed Ctrl-C: the handler of that signal raised it, or it cannot be told."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        return True  # which leaves no trace of itself
    while isinstance(handler, partial):  # as asyncio's own is
        handler = handler.func
    code = getattr(handler, "__code__", None)
    return code is not None and code in _codes(interrupt.__traceback__)


def _codes(traceback: TracebackType | None) -> list[object]:
    found: list[object] = []
    while traceback is not None:
        found.append(traceback.tb_frame.f_code)
        traceback = traceback.tb_next
    return found
