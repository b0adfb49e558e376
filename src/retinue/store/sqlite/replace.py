"""Replacement of database files by others, while no process uses them; the old files are kept beside."""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from retinue.core.errors import Refused
from retinue.store.sqlite.store import LockFile

_SHARED_FIRST: Final = 0x40000002
_SHARED_SIZE: Final = 510
"""The bytes that each connection of SQLite locks for as long as it is open (write-ahead log) or reads."""

_LOCK_SECONDS: Final = 2.0


class StoreInUse(Refused):
    """A process uses the store, so that its file is not replaced."""

    def __init__(self, path: Path, details: str = "") -> None:
        facts = f" ({details})" if details else ""
        super().__init__(
            f"a process uses {path}{facts}: end it and try again; retinue daemon stop ends a daemon, and "
            "retinue runs lists runs in progress"
        )
        self.path = path


@contextmanager
def unused(path: Path) -> Generator[None]:
    """Keep other processes out of a store while the block lasts; raises `StoreInUse` if one has it open.

    A process that opens the store meanwhile waits for its lock file. This process must not have the store open: the
    locks of SQLite do not exclude the process that holds them.
    """
    lock = LockFile(Path(f"{path}.lock"), timeout=_LOCK_SECONDS)
    try:
        with lock:
            check_unused(path)
            yield
    finally:
        lock.close()


def check_unused(path: Path) -> None:
    """Raise `StoreInUse` if another process has the database open."""
    if sys.platform == "win32" or not path.exists():
        return  # Windows itself refuses to replace an open file
    import fcntl

    file = os.open(path, os.O_RDWR)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _SHARED_SIZE, _SHARED_FIRST)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise StoreInUse(path) from error
        raise
    finally:
        os.close(file)


def kept_name(path: Path, why: str) -> Path:
    """A free name beside `path` for the file that is replaced, with the time: `retinue.db.damaged-20261116-051800`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    names = (Path(f"{path}.{why}-{stamp}{suffix}") for suffix in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(name for name in names if not os.path.lexists(name))


def replace_file(path: Path, new: Path, why: str, *, unchanged: bool = False) -> Path | None:
    """Put `new` in the place of the database `path`; returns where the old one is kept, None if there was none.

    The caller holds `unused(path)`. At every moment the old database is there under one of its names, or the new one
    under its own. The log of the old database is written into it; with `unchanged` both are kept as they are.
    """
    if not os.path.lexists(path) and not os.path.lexists(f"{path}-wal"):
        os.replace(new, path)
        sync_folder(path.parent)
        return None
    if not unchanged:
        merge_log(path)
    kept = kept_name(path, why)
    # A log that could not be merged belongs to the old database, and would damage the new one.
    for suffix in ("-wal", "-journal"):
        if os.path.lexists(f"{path}{suffix}"):
            os.rename(f"{path}{suffix}", f"{kept}{suffix}")
    with suppress(FileNotFoundError):
        os.unlink(f"{path}-shm")
    if os.path.lexists(path):
        try:
            os.link(path, kept)
        except OSError:  # a file system without links
            os.rename(path, kept)
    os.replace(new, path)
    sync_folder(path.parent)
    return kept


def merge_log(path: Path) -> bool:
    """Write the write-ahead log into the database, so that it is one file; whether that was possible."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    try:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0.0)) as connection:
            (mode,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
            return mode == "delete"
    except (sqlite3.Error, UnicodeDecodeError):
        return False


@contextmanager
def temporary_beside(path: Path) -> Generator[Path]:
    """The name of an empty private file beside `path`, which is deleted at the end unless it was moved away."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        yield temporary
    finally:
        for name in files_of(temporary):
            with suppress(FileNotFoundError):
                os.unlink(name)


def files_of(path: Path) -> Iterator[Path]:
    """The names that the files of a database can have."""
    return (Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm", "-journal", ".lock"))


def sync_file(path: Path) -> None:
    """Wait until a file is on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system can."""
    with suppress(OSError):
        sync_file(path)
