"""A SQLite store that can be looked at and not written: where its folder is read-only, or its disk full."""

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
from retinue.store.sqlite.queries import Reading
from retinue.store.sqlite.store import SqliteStore


class LookingStore(Reading):
    """What was written by others, as far as SQLite can read it without writing a byte itself.

    `why` is what kept the store from being opened as usual; it is raised again by whoever wants to write, and here
    where not even looking is possible.
    """

    def __init__(self, path: str | os.PathLike[str], why: StoreNotOpened, *, codec: Codec | None = None) -> None:
        file = Path(path).absolute()
        self.why = why
        super().__init__(_open_to_look(file, why), file, codec or Codec())

    @property
    def shared(self) -> bool:
        """Always: others may be at work on it."""
        return True

    @property
    def blocking(self) -> bool:
        """Always: questions wait for the disk."""
        return True

    def commit(self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False) -> NoReturn:
        """Nothing can be written here."""
        raise self.why

    def changed(self) -> bool:
        """Perhaps: nobody counts here."""
        return True


def open_or_look(path: str | os.PathLike[str]) -> SqliteStore | LookingStore:
    """The store in that file, to be written where that is possible, else to be looked at."""
    try:
        return SqliteStore(path)
    except StoreNotOpened as why:
        return LookingStore(path, why)


def _open_to_look(file: Path, why: StoreNotOpened) -> sqlite3.Connection:
    """A connection that reads: with the log of whoever writes, and where there is none, the file alone."""
    if not os.access(file, os.R_OK) or not os.path.isfile(file):
        raise why
    try:
        return _connect(file, "mode=ro")
    except sqlite3.Error:
        pass  # it wants to make the index of a log, and cannot
    log = Path(f"{file}-wal")
    try:
        is_whole = not os.path.lexists(log) or log.stat().st_size == 0
    except OSError:
        is_whole = False
    if not is_whole:
        # Without its log the file is what it was some time ago, or worse: half of a checkpoint.
        raise StoreNotOpened(
            f"what was written last is in {log}, which SQLite cannot read where it cannot write: copy the folder "
            f"{file.parent} and look there, with RETINUE_HOME ({why.reason})"
        ) from why
    try:
        return _connect(file, "immutable=1")
    except sqlite3.Error as wrong:
        raise why from wrong


def _connect(file: Path, how: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(file))}?{how}", uri=True, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA query_only = ON")
        migrate(connection, file)  # takes no step here: a file of an older retinue is refused, as is a stranger's
        connection.execute("SELECT count(*) FROM runs WHERE ended = 0").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
