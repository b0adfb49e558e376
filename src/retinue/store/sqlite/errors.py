"""Translation of SQLite and OS errors into `StoreUnavailable`, `StoreNotOpened` and `StoreCorrupt`."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from pathlib import Path

from retinue.core.errors import StoreCorrupt, StoreNotOpened, StoreUnavailable

MOVE_HINT = "choose another place with RETINUE_HOME"
LOW_DISK_SPACE = 1_000_000
"""Free bytes below which a disk counts as full: SQLite reports "disk I/O error" if it cannot grow the WAL index."""

_UNAVAILABLE = frozenset(
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

_SCHEMA_ERRORS = (
    "no such table",
    "no such column",
    "no such index",
    "duplicate column",
    "malformed",
    "unknown column",
    "table ",
    "near ",
    "error in ",
    "unsupported file format",
)
"""Beginnings of messages about a schema that is not the one of the migrations."""


def translated_error(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> Exception:
    """The `StoreError` for a SQLite error; an error that is caused neither by the file nor by the disk is unchanged.

    The `sqlite3` module raises `UnicodeDecodeError` if damaged bytes are in the message of SQLite.
    """
    if isinstance(error, UnicodeDecodeError):
        return damaged_file(path, "bytes of its schema are not UTF-8")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _UNAVAILABLE:
        return StoreUnavailable(f"{error} ({path})")
    if code == sqlite3.SQLITE_NOTADB:
        return StoreCorrupt(f"{path} is not a database: choose another place, or move that file away")
    if code == sqlite3.SQLITE_CORRUPT or _is_damage(error, code):
        return damaged_file(path, str(error))
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return StoreUnavailable(f"{path} was closed")
    return error


def damaged_file(path: Path, found: str) -> StoreCorrupt:
    """The error for a store whose file is damaged: what was found, and what to do."""
    return StoreCorrupt(f"{path} is damaged ({found})")


def _is_damage(error: sqlite3.Error, code: int) -> bool:
    """Whether an error that is no `SQLITE_CORRUPT` can only come from damaged bytes.

    All statements are constants for the tables of `migrations`: a missing table or column means that the stored schema
    was changed, and a violated UNIQUE that an index lacks a row, because every insert looks first.
    """
    if code == sqlite3.SQLITE_CONSTRAINT:
        return error.sqlite_errorcode in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
    text = str(error)
    if text.startswith("Could not decode to UTF-8"):
        return True
    return code == sqlite3.SQLITE_ERROR and text.startswith(_SCHEMA_ERRORS)


def open_error(path: Path, error: OSError | sqlite3.Error | UnicodeDecodeError) -> Exception:
    """The `StoreError` for an error while opening a store; its reason names the cause and what to do."""
    if isinstance(error, OSError):
        is_full, is_held = error.errno in (errno.ENOSPC, errno.EDQUOT), False
        details = error.strerror or str(error)
    else:
        translated = translated_error(path, error)
        if not isinstance(translated, StoreUnavailable):
            return translated
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        is_full = code == sqlite3.SQLITE_FULL or _is_disk_full(path)
        is_held = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        details = str(error)
    existing = next(each for each in (path, *path.parents) if os.path.lexists(each))
    folder = path.parent if existing == path else existing
    if is_held:
        reason = f"another program has locked {path}: wait for it, or end it"
    elif not os.path.isdir(folder):
        reason = f"{folder} is no folder: move it away, or {MOVE_HINT}"
    elif os.path.isdir(path):
        reason = f"{path} is a folder: move it away, or {MOVE_HINT}"
    elif is_full:
        reason = f"there is no room left on the disk of {folder}: make room, or {MOVE_HINT}"
    elif (unwritable := _unwritable(path, folder)) is not None:
        reason = f"{unwritable} cannot be written to: change that, or {MOVE_HINT}"
    else:
        reason = f"something is wrong with {path} or its disk: {MOVE_HINT}"
    return StoreNotOpened(f"{reason} ({details})")


def _is_disk_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free < LOW_DISK_SPACE
    except OSError:
        return False


def _unwritable(path: Path, folder: Path) -> Path | None:
    lock = Path(f"{path}.lock")
    if not os.access(folder, os.W_OK | os.X_OK):
        return folder
    return next((each for each in (path, lock) if os.path.lexists(each) and not os.access(each, os.W_OK)), None)
