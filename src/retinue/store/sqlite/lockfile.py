"""An inter-process lock as a file that is never deleted.

The operating system releases it when its holder dies. It excludes processes only: threads that share one `LockFile`
need a lock of their own.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import TracebackType

from retinue.core.errors import StoreUnavailable

if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: int) -> None:
        os.lseek(file, 0, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

    def _unlock(file: int) -> None:
        os.lseek(file, 0, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _try_lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)


_MAX_NAP = 0.002


class LockFile:
    """`with lock:` holds the lock; raises `StoreUnavailable` if it is not free within `timeout` seconds.

    The lock is held no longer than a commit takes, so a long wait means that a process was stopped in the middle of
    one. Waiting polls, because a blocking system call has no timeout.
    """

    __slots__ = ("_file", "_path", "_timeout")

    def __init__(self, path: Path, *, timeout: float = 30.0) -> None:
        self._path = path
        self._timeout = timeout
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def __enter__(self) -> None:
        if not self.try_acquire():
            self._acquire()

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.release()

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free; returns whether it was acquired."""
        try:
            _try_lock(self._file)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise StoreUnavailable(f"{self._path} cannot be locked ({error})") from error
        return True

    def release(self) -> None:
        _unlock(self._file)

    def _acquire(self) -> None:
        give_up = time.monotonic() + self._timeout
        nap = 0.00005
        while True:
            time.sleep(nap)
            try:
                return _try_lock(self._file)
            except (BlockingIOError, PermissionError) as held:
                if time.monotonic() > give_up:
                    reason = f"another process has held {self._path} for {self._timeout:g} s; is it stopped?"
                    raise StoreUnavailable(reason) from held
            nap = min(nap * 2, _MAX_NAP)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
