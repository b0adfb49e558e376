"""Read-only access to a SQLite store whose folder is read-only or whose disk is full."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

from retinue.core.commands import Write
from retinue.core.errors import StoreNotOpened
from retinue.core.ids import DriverId
from retinue.store.codec import Codec
from retinue.store.sqlite.migrations import migrate
from retinue.store.sqlite.queries import SqliteQueries
from retinue.store.sqlite.store import SqliteStore


class ReadOnlySqliteStore(SqliteQueries):
    """A SQLite store opened for reading, without writing a byte.

    `why` is the error that prevented opening it for writing; every commit raises it, and so does the constructor if
    not even reading is possible.
    """

    def __init__(self, path: str | os.PathLike[str], why: StoreNotOpened, *, codec: Codec | None = None) -> None:
        file = Path(path).absolute()
        self.why = why
        super().__init__(_open_read_only(file, why), file, codec or Codec())

    @property
    def shared(self) -> bool:
        """True: other processes may write to the file."""
        return True

    @property
    def blocking(self) -> bool:
        """True: queries wait for the disk."""
        return True

    def commit(self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False) -> NoReturn:
        """Raise the error that prevented opening the store for writing."""
        raise self.why

    def changed(self) -> bool:
        """True: changes are not tracked."""
        return True


def open_or_read_only(path: str | os.PathLike[str]) -> SqliteStore | ReadOnlySqliteStore:
    """The store in that file, or a read-only one if it cannot be opened for writing."""
    try:
        return SqliteStore(path)
    except StoreNotOpened as why:
        return ReadOnlySqliteStore(path, why)


def _open_read_only(file: Path, why: StoreNotOpened) -> sqlite3.Connection:
    """A read-only connection: with the WAL if SQLite can read it, otherwise to the file alone if there is no WAL."""
    if not os.access(file, os.R_OK) or not os.path.isfile(file):
        raise why
    try:
        return _connect(file, "mode=ro")
    except sqlite3.Error:
        pass  # it has to create the WAL index, and cannot
    wal = Path(f"{file}-wal")
    try:
        is_complete = not os.path.lexists(wal) or wal.stat().st_size == 0
    except OSError:
        is_complete = False
    if not is_complete:
        # Without its WAL the file is outdated, or worse: in the middle of a checkpoint.
        raise StoreNotOpened(
            f"the newest data is in {wal}, which SQLite cannot read where it cannot write: copy the folder "
            f"{file.parent} and set RETINUE_HOME to the copy ({why.reason})"
        ) from why
    try:
        return _connect(file, "immutable=1")
    except sqlite3.Error as error:
        raise why from error


def _connect(file: Path, options: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(file))}?{options}", uri=True, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA query_only = ON")
        migrate(connection, file)  # cannot migrate here: rejects files of older versions and of other programs
        connection.execute("SELECT count(*) FROM runs WHERE ended = 0").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
