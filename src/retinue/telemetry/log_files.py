"""Log files of background processes: private, of bounded size and number, and safe with several processes.

A process writes to its own file, as stdout and stderr. A file that has grown too large is copied to `NAME.1`, which
replaces an older one, and emptied: the descriptor stays, so that nothing has to be opened again. A process that is
running holds a shared lock on its file, and the file is then not deleted.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

VARIABLE = "RETINUE_OUTPUT_LIMIT"
"""Environment variable of a background process: the bytes of its log file, and the path after a colon."""

FOLDER = "logs"
"""The folder of the log files, below the state folder."""

OLDER = ".1"
"""The end of the name of the older part of a log file."""


def open_log_file(path: Path, *, max_bytes: int) -> int:
    """Open a log file to append, readable by its owner alone; a large one is moved to its older part first.

    The descriptor holds a shared lock, which processes that inherit it hold too.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = _open(path)
    if os.fstat(file).st_size > max_bytes and _lock(file, exclusive=True):
        os.replace(path, f"{path}{OLDER}")
        os.close(file)
        file = _open(path)
    _lock(file, exclusive=False)
    return file


def limit_in_environment(path: Path, max_bytes: int) -> dict[str, str]:
    """The environment of a process whose stdout and stderr are that file."""
    return {VARIABLE: f"{max_bytes}:{path}"}


class OutputLimit:
    """The limit of this process's stderr, if that is the log file which the environment names."""

    def __init__(self, path: Path, max_bytes: int, file: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file = file

    @classmethod
    def of_stderr(cls, environment: Mapping[str, str]) -> OutputLimit | None:
        """The limit that the environment sets; None if stderr is another file."""
        size, _, path = environment.get(VARIABLE, "").partition(":")
        if not size.isdecimal() or not path:
            return None
        try:
            file = sys.stderr.fileno()
            mine, named = os.fstat(file), os.stat(path, follow_symlinks=False)
        except (OSError, ValueError, AttributeError):
            return None
        is_same = (mine.st_dev, mine.st_ino) == (named.st_dev, named.st_ino) and stat.S_ISREG(mine.st_mode)
        return cls(Path(path), int(size), file) if is_same else None

    def apply(self) -> None:
        """Move the content to the older part if there is too much of it; on a full disk the content is dropped."""
        with suppress(OSError):
            if os.fstat(self._file).st_size <= self._max_bytes:
                return
            older = Path(f"{self._path}{OLDER}")
            new = older.with_name(f"{older.name}.{os.getpid()}")
            try:
                with open(self._path, "rb") as source, open(os.open(new, _CREATE, 0o600), "wb") as copy:
                    shutil.copyfileobj(source, copy)
                os.replace(new, older)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(new)
                os.ftruncate(self._file, 0)


def trim(folder: Path, count: int) -> int:
    """Delete the oldest log files of a folder beyond `count`, except those of running processes; how many were deleted.

    A file and its older part count as one.
    """
    try:
        files = [(entry.stat(follow_symlinks=False), Path(entry.path)) for entry in os.scandir(folder)]
    except OSError:
        return 0
    logs = [(found.st_mtime, path) for found, path in files if path.suffix == ".log" and stat.S_ISREG(found.st_mode)]
    deleted = 0
    for _, path in sorted(logs, reverse=True)[count:]:
        with suppress(OSError):
            file = os.open(path, os.O_RDWR | _NO_FOLLOW)
            try:
                if _lock(file, exclusive=True):
                    os.unlink(path)
                    deleted += 1
                    os.unlink(f"{path}{OLDER}")
            finally:
                os.close(file)
    return deleted


_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _NO_FOLLOW, 0o600)


def _lock(file: int, *, exclusive: bool) -> bool:
    """Lock a file without waiting; whether that was possible."""
    if sys.platform == "win32":
        return not exclusive
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
