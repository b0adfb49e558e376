"""A store in one SQLite file, shared by all processes of a machine.

Readers never wait for the writer (write-ahead log). Writers take turns by a lock file next to it, held around each
transaction and each checkpoint: SQLite before 3.51.3 can damage the log when two connections write or checkpoint at the
same instant. For the same reason SQLite's own checkpoints are off, and this module makes them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from retinue.core.commands import Write, WriteResult
from retinue.core.errors import Fenced, StoreNotOpened, StoreUnavailable
from retinue.core.ids import DriverId
from retinue.store import rules
from retinue.store.codec import Codec
from retinue.store.sqlite.commands import Writing
from retinue.store.sqlite.errors import explained, not_opened
from retinue.store.sqlite.lockfile import LockFile
from retinue.store.sqlite.migrations import migrate
from retinue.store.sqlite.queries import Reading

Durability = Literal["process", "power"]
"""What an acknowledged commit survives: the death of the process, or also a power cut."""

LONG_LOG: Final = 4 * 1024 * 1024
"""Bytes of write-ahead log from which a checkpoint is worth its time."""

LONGEST_LOG: Final = 4 * LONG_LOG
"""Bytes from which its file is cut short as well."""

_BUSY_SECONDS: Final = 5.0


class SqliteStore(Reading):
    """A `Store` in a file; folders are made as needed, and only its owner can read what it makes.

    With `durability="power"`, commits that ask to be durable reach the disk before they are answered. `threaded` says
    whether calls are to be kept off the event loop; a test that holds time turns it off.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "process",
        threaded: bool = True,
        codec: Codec | None = None,
    ) -> None:
        self._file = Path(path).absolute()
        self._log = Path(f"{self._file}-wal")
        self._threaded = threaded
        self._durability = durability
        self._syncs = False
        self._closed = False
        self._log_end = LONG_LOG
        self._one_writer = threading.Lock()
        codec = codec or Codec()
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._turns = LockFile(Path(f"{self._file}.lock"))
        except OSError as wrong:
            raise not_opened(self._file, wrong) from wrong
        try:
            with self._turns:
                self._writer = _open_to_write(self._file)
                super().__init__(_open_to_read(self._file), self._file, codec)
                self._version = self._data_version()
        except BaseException as wrong:
            self._turns.close()
            if isinstance(wrong, sqlite3.Error | OSError):
                raise not_opened(self._file, wrong) from wrong
            if isinstance(wrong, StoreUnavailable):
                raise StoreNotOpened(wrong.reason) from wrong
            raise
        self._writing = Writing(self._writer, codec)

    @property
    def shared(self) -> bool:
        """Always: every process of the machine can open the file."""
        return True

    @property
    def blocking(self) -> bool:
        """Whether calls take real time: a commit waits for the disk and for other processes."""
        return self._threaded

    def commit(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult]:
        """Make these writes happen, in order, as one."""
        with self._one_writer, self._my_turn():
            try:
                if self._durability == "power" and durable != self._syncs:
                    self._writer.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                    self._syncs = durable
                answers = self._transact(driver_id, writes)
            except sqlite3.Error as wrong:
                raise explained(self._file, wrong) from wrong
            self._checkpoint_when_long()
            return answers

    def commit_at_once(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult] | None:
        """The same, if it waits for nobody: a commit that need not reach the disk is a few writes into memory of the
        system. None when another process has its turn, when the disk has to be waited for, or when it is time for a
        checkpoint, which `commit` makes.
        """
        if self._syncs or (durable and self._durability == "power") or self._log_size() > self._log_end:
            return None
        if not self._one_writer.acquire(blocking=False):
            return None
        try:
            if not self._my_turn().take_if_free():
                return None
            try:
                return self._transact(driver_id, writes)
            except sqlite3.Error as wrong:
                raise explained(self._file, wrong) from wrong
            finally:
                self._turns.give_back()
        finally:
            self._one_writer.release()

    def changed(self) -> bool:
        """Whether another process may have written since this was last asked."""
        with self._one_writer:
            try:
                # The writer's own commits do not count for its connection, and nobody else here writes.
                before, self._version = self._version, self._data_version()
            except sqlite3.Error as wrong:
                raise explained(self._file, wrong) from wrong
            return self._version != before

    def close(self) -> None:
        """Let go of files and connections; nothing committed is lost."""
        with self._one_writer:
            if self._closed:
                return
            self._closed = True
            with self._turns:
                super().close()
                self._checkpoint("TRUNCATE")
                self._writer.close()
            self._turns.close()

    def _my_turn(self) -> LockFile:
        if self._closed:
            raise StoreUnavailable(f"{self._file} was closed")
        return self._turns

    def _transact(self, driver_id: DriverId | None, writes: Sequence[Write]) -> list[WriteResult]:
        writing = self._writing
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            if driver_id is not None and not writing.lives(driver_id) and not rules.enlists(writes, driver_id):
                raise Fenced(driver_id)
            answers = writing.write_all(driver_id, writes)
            self._writer.execute("COMMIT")
            return answers
        except BaseException:
            writing.forget()
            if self._writer.in_transaction:  # SQLite may have ended it by itself, for example when the disk is full
                self._writer.execute("ROLLBACK")
            raise

    def _data_version(self) -> int:
        return self._writer.execute("PRAGMA data_version").fetchone()[0]

    def _checkpoint_when_long(self) -> None:
        """Bring the log into the file when it has outgrown its length.

        A log that was brought home is written again from its beginning, which is cheaper than growing anew, so its file
        keeps its length and grows only when there is more in the log than ever.
        """
        size = self._log_size()
        if size > self._log_end:
            home = self._checkpoint("PASSIVE" if size < LONGEST_LOG else "TRUNCATE")
            # A reader in the middle of something can hold the log back: then try again some megabytes later.
            self._log_end = max(LONG_LOG, self._log_size()) if home else size + LONG_LOG
        elif size < self._log_end:
            self._log_end = max(LONG_LOG, size)  # another process has shortened it

    def _checkpoint(self, mode: Literal["PASSIVE", "TRUNCATE"]) -> bool:
        """Whether all of the log is in the file now; what is not stays in the log, where it is as safe."""
        self._writer.execute("PRAGMA busy_timeout = 0")  # others wait for this process now, so let it not wait for them
        try:
            busy, length, done = self._writer.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            return not busy and length == done
        except sqlite3.Error:
            return False
        finally:
            self._writer.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000:.0f}")

    def _log_size(self) -> int:
        try:
            return os.stat(self._log).st_size
        except OSError:
            return 0


def _open_to_write(path: Path) -> sqlite3.Connection:
    _make_private(path)
    connection = _connect(path)
    try:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreUnavailable(f"{path} lies where SQLite cannot keep a write-ahead log; use a local disk")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA fullfsync = ON")  # what syncing means on macOS; nothing elsewhere
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -8000")
        migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _open_to_read(path: Path) -> sqlite3.Connection:
    connection = _connect(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
    )


def _make_private(path: Path) -> None:
    """Make the file before SQLite does, so that only its owner can read it; the files next to it follow suit."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
