"""What SQLite's errors mean for whoever uses the store: it refuses for now, or the file cannot be trusted."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from pathlib import Path

from retinue.core.errors import StoreCorrupt, StoreNotOpened, StoreUnavailable

ELSEWHERE = "choose another place with RETINUE_HOME"
SCARCE = 1_000_000
"""Bytes left on a disk that are called none: SQLite says "disk I/O error" when it cannot grow the index of its log."""

_REFUSES = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_NOLFS,
    }
)


def explained(path: Path, wrong: sqlite3.Error) -> Exception:
    """The error to raise from `wrong`; what is neither the file's nor the disk's fault stays as it is."""
    code = getattr(wrong, "sqlite_errorcode", 0) & 0xFF
    if code in _REFUSES:
        return StoreUnavailable(f"{wrong} ({path})")
    if code == sqlite3.SQLITE_NOTADB:
        return StoreCorrupt(f"{path} is not a database: choose another place, or move that file away")
    if code == sqlite3.SQLITE_CORRUPT:
        rescue = f"move it away and restore a copy, or rescue what can be read with: sqlite3 {path} .recover"
        return StoreCorrupt(f"{path} is damaged ({wrong}): {rescue}")
    if isinstance(wrong, sqlite3.ProgrammingError) and "closed" in str(wrong):
        return StoreUnavailable(f"{path} was closed")
    return wrong


def not_opened(path: Path, wrong: OSError | sqlite3.Error) -> Exception:
    """The error to raise from `wrong`, which kept a store from being opened: what is in the way, and what to do."""
    if isinstance(wrong, OSError):
        is_full, is_held = wrong.errno in (errno.ENOSPC, errno.EDQUOT), False
        said = wrong.strerror or str(wrong)
    else:
        meaning = explained(path, wrong)
        if not isinstance(meaning, StoreUnavailable):
            return meaning
        code = getattr(wrong, "sqlite_errorcode", 0) & 0xFF
        is_full = code == sqlite3.SQLITE_FULL or _has_no_room(path)
        is_held = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        said = str(wrong)
    there = next(each for each in (path, *path.parents) if os.path.lexists(each))
    folder = path.parent if there == path else there
    if is_held:
        reason = f"another program has locked {path}: wait for it, or end it"
    elif not os.path.isdir(folder):
        reason = f"{folder} is no folder: move it away, or {ELSEWHERE}"
    elif os.path.isdir(path):
        reason = f"{path} is a folder: move it away, or {ELSEWHERE}"
    elif is_full:
        reason = f"there is no room left on the disk of {folder}: make room, or {ELSEWHERE}"
    elif (closed := _closed(path, folder)) is not None:
        reason = f"{closed} cannot be written to: change that, or {ELSEWHERE}"
    else:
        reason = f"something is wrong with {path} or its disk: {ELSEWHERE}"
    return StoreNotOpened(f"{reason} ({said})")


def _has_no_room(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free < SCARCE
    except OSError:
        return False


def _closed(path: Path, folder: Path) -> Path | None:
    """The folder or file that this process may not write, if that is what is in the way."""
    lock = Path(f"{path}.lock")
    if not os.access(folder, os.W_OK | os.X_OK):
        return folder
    return next((each for each in (path, lock) if os.path.lexists(each) and not os.access(each, os.W_OK)), None)
