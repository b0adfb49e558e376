"""The size of a store's file, and rewriting it without its free pages."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from retinue.core.errors import StoreCorrupt
from retinue.store.sqlite.backup import copy_error
from retinue.store.sqlite.check import check_kind
from retinue.store.sqlite.replace import unused
from retinue.store.sqlite.work import LongWork


class Space(Struct, frozen=True):
    """Bytes of a database file: before and after it was rewritten."""

    before: int
    after: int


class FreeSpace(Struct, frozen=True):
    """Bytes of a database file that hold nothing, and whether `prune` gives them back by itself."""

    bytes: int
    released: bool


def free_space(path: Path) -> FreeSpace:
    """The free space inside a store's file; nothing if it cannot be read."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            values = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_size")]
            (mode,) = connection.execute("PRAGMA auto_vacuum").fetchone()
    except sqlite3.Error:
        return FreeSpace(0, released=True)
    free, size = values
    return FreeSpace(free * size, released=mode != 0)


def compact(path: Path, work: LongWork) -> Space:
    """Rewrite a store without free pages, so that `prune` can give space back in small steps from then on.

    Raises `StoreInUse` while another process has the store open, and `NotWritten` if there is no room for a copy.
    """
    if not path.exists():
        raise StoreCorrupt(f"there is no store {path}")
    before = path.stat().st_size
    try:
        with (
            unused(path),
            closing(sqlite3.connect(path, isolation_level=None)) as connection,
            work.watching(connection),
        ):
            check_kind(connection, path)
            work.report("rewrite")
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("VACUUM")
    except (sqlite3.Error, OSError) as error:
        raise copy_error(path, path, error) from error
    return Space(before, path.stat().st_size)
