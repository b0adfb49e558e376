"""Run code without root's file capabilities, with which no folder is read-only and such tests prove nothing."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from retinue.sandbox import probe

T = TypeVar("T")

VERSION_3 = 0x20080522
ANY_FILE = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


def as_plain_user(work: Callable[[], T]) -> T:
    """The result of `work` in a thread that is bound by the permissions of files."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return work()
    done: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            _drop_file_capabilities()
            done.append(work())
        except BaseException as error:
            errors.append(error)

    found_before = probe._verdicts.copy()
    thread = threading.Thread(target=run)  # capabilities belong to a thread and the threads that it starts
    thread.start()
    thread.join()
    probe._verdicts[:] = found_before  # a sandbox that failed without the capabilities may work with them
    if errors:
        raise errors[0]
    return done[0]


def _drop_file_capabilities() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    header, rights = (ctypes.c_uint32 * 2)(VERSION_3, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, rights) == 0
    rights[0] &= ~ANY_FILE
    rights[1] &= ~ANY_FILE
    assert libc.capset(header, rights) == 0, os.strerror(ctypes.get_errno())
