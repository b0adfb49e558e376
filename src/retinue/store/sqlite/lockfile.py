"""One lock that processes on a machine take in turn, as a file that is never deleted.

The operating system lets go of it when its holder dies. It is for processes: threads that share one have to take turns
by themselves.
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

    def _try_to_lock(file: int) -> None:
        os.lseek(file, 0, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

    def _unlock(file: int) -> None:
        os.lseek(file, 0, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _try_to_lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)


_LONGEST_NAP = 0.002


class LockFile:
    """`with lock:` holds it; after `patience` seconds of waiting it gives up with `StoreUnavailable`.

    Nobody holds the lock for longer than a commit takes, so a long wait means that a process was stopped in the middle
    of one. Waiting is done by asking again, because a wait inside the system could not be given up.
    """

    __slots__ = ("_file", "_path", "_patience")

    def __init__(self, path: Path, *, patience: float = 30.0) -> None:
        self._path = path
        self._patience = patience
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def __enter__(self) -> None:
        if not self.take_if_free():
            self._wait()

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.give_back()

    def take_if_free(self) -> bool:
        """Take the lock if nobody has it; then it has to be given back."""
        try:
            _try_to_lock(self._file)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as wrong:
            raise StoreUnavailable(f"{self._path} cannot be locked ({wrong})") from wrong
        return True

    def give_back(self) -> None:
        """Let others have the lock."""
        _unlock(self._file)

    def _wait(self) -> None:
        give_up = time.monotonic() + self._patience
        nap = 0.00005
        while True:
            time.sleep(nap)
            try:
                return _try_to_lock(self._file)
            except (BlockingIOError, PermissionError) as held:
                if time.monotonic() > give_up:
                    reason = f"another process has held {self._path} for {self._patience:g} s; is it stopped?"
                    raise StoreUnavailable(reason) from held
            nap = min(nap * 2, _LONGEST_NAP)

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
