"""What SQLite's errors mean for whoever uses the store: it refuses for now, or the file cannot be trusted."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from retinue.core.errors import StoreCorrupt, StoreUnavailable

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
