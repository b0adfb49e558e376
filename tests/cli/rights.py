"""Work without the superuser's rights: for root nothing is read-only, and tests of read-only folders prove nothing."""

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


def as_anybody(work: Callable[[], T]) -> T:
    """What `work` gives, done in a thread that files of others, and one's own rights on files, hold for."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return work()
    done: list[T] = []
    wrong: list[BaseException] = []

    def humbly() -> None:
        try:
            _forgo()
            done.append(work())
        except BaseException as error:
            wrong.append(error)

    found_before = probe._verdicts.copy()
    thread = threading.Thread(target=humbly)  # rights are a thread's own, and those of the threads that it starts
    thread.start()
    thread.join()
    probe._verdicts[:] = found_before  # a sandbox that failed for want of these rights may hold for everybody else
    if wrong:
        raise wrong[0]
    return done[0]


def _forgo() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    header, rights = (ctypes.c_uint32 * 2)(VERSION_3, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, rights) == 0
    rights[0] &= ~ANY_FILE
    rights[1] &= ~ANY_FILE
    assert libc.capset(header, rights) == 0, os.strerror(ctypes.get_errno())
