"""A store in one SQLite file, shared by all processes of a machine.

Readers never wait for the writer (write-ahead log, WAL). Writers hold a lock file around each transaction and each
checkpoint: SQLite before 3.51.3 can damage the WAL when two connections write or checkpoint at the same time. For the
same reason automatic checkpoints are off, and this module makes them. `ReadOnlySqliteStore` reads a store whose folder
is read-only or whose disk is full.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NoReturn, TypeVar
from urllib.parse import quote

from retinue.core.commands import Write, WriteResult
from retinue.core.errors import Fenced, StoreNotOpened, StoreUnavailable
from retinue.core.ids import DriverId
from retinue.core.ports import PruneRequest
from retinue.local.private_folder import create_private
from retinue.store import rules
from retinue.store.codec import Codec
from retinue.store.sqlite.commands import SqliteCommands
from retinue.store.sqlite.errors import damaged_file, open_error, translated_error
from retinue.store.sqlite.migrations import check_version, is_older, migrate
from retinue.store.sqlite.queries import SqliteQueries

if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: int) -> None:
        os.lseek(file, 0, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

    def _unlock(file: int) -> None:
        os.lseek(file, 0, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _try_lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)


_MAX_NAP = 0.002


class LockFile:
    """`with lock:` holds the lock; raises `StoreUnavailable` if it is not free within `timeout` seconds.

    The lock is held no longer than a commit takes, so a long wait means that a process was stopped in the middle of
    one. Waiting polls, because a blocking system call has no timeout.
    """

    __slots__ = ("_file", "_path", "_timeout")

    def __init__(self, path: Path, *, timeout: float = 30.0) -> None:
        self._path = path
        self._timeout = timeout
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def __enter__(self) -> None:
        if not self.try_acquire():
            self._acquire()

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.release()

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free; returns whether it was acquired."""
        try:
            _try_lock(self._file)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise StoreUnavailable(f"{self._path} cannot be locked ({error})") from error
        return True

    def release(self) -> None:
        _unlock(self._file)

    def is_marked(self) -> bool:
        """Whether a store was opened with this lock file before; see `mark`."""
        return os.fstat(self._file).st_size > 0

    def mark(self) -> None:
        """Note in the lock file that a store exists, so that an emptied database is not taken for a new one."""
        with suppress(OSError):  # a full disk: the next process makes the note
            if not self.is_marked():
                os.write(self._file, b"1")

    def _acquire(self) -> None:
        give_up = time.monotonic() + self._timeout
        nap = 0.00005
        while True:
            time.sleep(nap)
            try:
                return _try_lock(self._file)
            except (BlockingIOError, PermissionError) as held:
                if time.monotonic() > give_up:
                    reason = f"another process has held {self._path} for {self._timeout:g} s; is it stopped?"
                    raise StoreUnavailable(reason) from held
            nap = min(nap * 2, _MAX_NAP)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


Durability = Literal["process", "power"]
"""What an acknowledged commit survives: the death of the process, or a power cut as well."""

CHECKPOINT_SIZE: Final = 4 * 1024 * 1024
"""WAL size in bytes from which a checkpoint is made."""

TRUNCATE_SIZE: Final = 4 * CHECKPOINT_SIZE
"""WAL size in bytes from which a checkpoint also truncates the WAL file."""

OPEN_CHECK_SIZE: Final = 1024 * 1024
"""Size in bytes up to which the whole database is checked when it is opened: some milliseconds at most."""

_BUSY_SECONDS: Final = 5.0
_INCREMENTAL: Final = 2
T = TypeVar("T")


class SqliteStore(SqliteQueries):
    """A `Store` in a file. Missing folders are created; the files are readable by their owner only.

    With `durability="power"`, durable commits are synced to disk before they return. `threaded` says whether calls
    should be kept off the event loop; tests with virtual time turn it off.
    """

    shared = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "process",
        threaded: bool = True,
        codec: Codec | None = None,
    ) -> None:
        self._file = Path(path).absolute()
        self._wal = Path(f"{self._file}-wal")
        self.blocking = threaded
        self._durability = durability
        self._is_synchronous = False
        self._closed = False
        self._checkpoint_at = CHECKPOINT_SIZE
        self._write_lock = threading.Lock()
        codec = codec or Codec()
        try:
            create_private(self._file.parent)
            self._file_lock = LockFile(Path(f"{self._file}.lock"))
        except OSError as error:
            raise open_error(self._file, error) from error
        try:
            with self._file_lock, ExitStack() as opened:
                check_files(self._file, existed=self._file_lock.is_marked())
                self._writer = opened.enter_context(closing(_open_to_write(self._file)))
                self._file_lock.mark()
                reader = opened.enter_context(closing(_open_to_read(self._file)))
                check_small(reader, self._file)
                super().__init__(reader, self._file, codec)
                self._version = self._data_version()
                opened.pop_all()
        except BaseException as error:
            self._file_lock.close()
            if isinstance(error, sqlite3.Error | OSError | UnicodeDecodeError):
                raise open_error(self._file, error) from error
            if isinstance(error, StoreUnavailable):
                raise StoreNotOpened(error.reason) from error
            raise
        self._commands = SqliteCommands(self._writer, codec)

    def commit(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult]:
        with self._write_lock, self._open_lock():
            try:
                if self._durability == "power" and durable != self._is_synchronous:
                    self._writer.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                    self._is_synchronous = durable
                results = self._transact(driver_id, writes)
            except sqlite3.Error as error:
                raise translated_error(self._file, error) from error
            self._checkpoint_if_due()
            return results

    def commit_at_once(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult] | None:
        """Commit without waiting, or return None without committing.

        A commit that need not be synced only writes into the page cache. None if another process holds the lock, if
        the disk would have to be waited for, or if a checkpoint is due, which `commit` makes.
        """
        if self._is_synchronous or (durable and self._durability == "power") or self._wal_size() > self._checkpoint_at:
            return None
        if not self._write_lock.acquire(blocking=False):
            return None
        try:
            if not self._open_lock().try_acquire():
                return None
            try:
                return self._transact(driver_id, writes)
            except sqlite3.Error as error:
                raise translated_error(self._file, error) from error
            finally:
                self._file_lock.release()
        finally:
            self._write_lock.release()

    def changed(self) -> bool:
        with self._write_lock:
            try:
                # A connection's own commits do not change its data version, and this process has no other writer.
                before, self._version = self._version, self._data_version()
            except sqlite3.Error as error:
                raise translated_error(self._file, error) from error
            return self._version != before

    def prune_in_steps(self, request: PruneRequest) -> Generator[int]:
        """Prune in small transactions; each number is that of the runs a step removed. See `PruneInSteps`."""
        from retinue.store.sqlite.prune import prune_in_steps

        return prune_in_steps(self, request)

    def open_reader(self) -> sqlite3.Connection:
        """Another connection for long queries, which the caller closes."""
        return _open_to_read(self._file)

    def maintain(self, step: Callable[[sqlite3.Connection], T]) -> T:
        """Make one step of maintenance in a transaction of its own; blocks other writers no longer than the step."""
        with self._write_lock, self._open_lock():
            try:
                self._commands.rolled_back()  # the step may delete runs whose numbers are cached
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    result = step(self._writer)
                    self._writer.execute("COMMIT")
                except BaseException:
                    if self._writer.in_transaction:
                        self._writer.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise translated_error(self._file, error) from error
            self._checkpoint_if_due()
            return result

    def release_pages(self, pages: int) -> bool:
        """Give up to `pages` free pages back to the disk; whether there are more. False for a store of version 0.1,
        whose file `retinue store compact` has to rewrite first."""
        with self._write_lock, self._open_lock():
            try:
                # As a script: `execute` stops after the first page, because the pragma has no rows.
                self._writer.executescript(f"PRAGMA incremental_vacuum({pages:d})")
                (left,) = self._writer.execute("PRAGMA freelist_count").fetchone()
                (mode,) = self._writer.execute("PRAGMA auto_vacuum").fetchone()
            except sqlite3.Error as error:
                raise translated_error(self._file, error) from error
            self._checkpoint_if_due()
            return left > 0 and mode == _INCREMENTAL

    def truncate_wal(self) -> None:
        """Write the write-ahead log into the database and empty it, if no reader prevents it."""
        with self._write_lock, self._open_lock():
            self._checkpoint("TRUNCATE")

    def used_bytes(self) -> int:
        """The bytes of the database that hold data, without free pages."""
        ((pages,),) = self._fetch("PRAGMA page_count")
        ((free,),) = self._fetch("PRAGMA freelist_count")
        ((size,),) = self._fetch("PRAGMA page_size")
        return (pages - free) * size

    def close(self) -> None:
        with self._write_lock:
            if self._closed:
                return
            self._closed = True
            try:
                with self._file_lock:
                    super().close()
                    self._checkpoint("TRUNCATE")
                    self._writer.close()
            finally:
                # Reached without the lock if another process keeps it. Closing a closed connection does nothing.
                super().close()
                self._writer.close()
                self._file_lock.close()

    def _open_lock(self) -> LockFile:
        if self._closed:
            raise StoreUnavailable(f"{self._file} was closed")
        return self._file_lock

    def _transact(self, driver_id: DriverId | None, writes: Sequence[Write]) -> list[WriteResult]:
        commands = self._commands
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            if driver_id is not None and not commands.is_alive(driver_id) and not rules.registers(writes, driver_id):
                raise Fenced(driver_id)
            results = commands.write_all(driver_id, writes)
            self._writer.execute("COMMIT")
            return results
        except BaseException:
            commands.rolled_back()
            if self._writer.in_transaction:  # SQLite may have rolled back by itself, for example when the disk is full
                self._writer.execute("ROLLBACK")
            raise

    def _data_version(self) -> int:
        return self._writer.execute("PRAGMA data_version").fetchone()[0]

    def _checkpoint_if_due(self) -> None:
        """Make a checkpoint when the WAL has outgrown its threshold.

        After a complete checkpoint SQLite reuses the WAL from its beginning, which is cheaper than growing it again, so
        its file keeps its size and grows only when it holds more than ever before.
        """
        size = self._wal_size()
        if size > self._checkpoint_at:
            complete = self._checkpoint("PASSIVE" if size < TRUNCATE_SIZE else "TRUNCATE")
            # A reader in a transaction can prevent a complete checkpoint: then try again some megabytes later.
            self._checkpoint_at = max(CHECKPOINT_SIZE, self._wal_size()) if complete else size + CHECKPOINT_SIZE
        elif size < self._checkpoint_at:
            self._checkpoint_at = max(CHECKPOINT_SIZE, size)  # another process has shortened it

    def _checkpoint(self, mode: Literal["PASSIVE", "TRUNCATE"]) -> bool:
        """Checkpoint the WAL; returns whether it is complete. What is not copied stays in the WAL, which is as safe."""
        self._writer.execute("PRAGMA busy_timeout = 0")  # do not wait for others while holding the lock
        try:
            busy, length, done = self._writer.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            return not busy and length == done
        except sqlite3.Error:
            return False
        finally:
            self._writer.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000:.0f}")

    def _wal_size(self) -> int:
        try:
            return os.stat(self._wal).st_size
        except OSError:
            return 0


def _open_to_write(path: Path) -> sqlite3.Connection:
    _make_private(path)
    connection = _connect(path)
    try:
        if os.path.getsize(path) == 0:
            # Before the first page is written: it lets `prune` give pages back in small steps.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        check_version(connection, path)  # before anything is written: it may belong to another program
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreUnavailable(f"SQLite cannot keep a write-ahead log next to {path}; use a local disk")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA fullfsync = ON")  # needed for a real sync on macOS; no effect elsewhere
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -8000")
        migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _open_to_read(path: Path) -> sqlite3.Connection:
    connection = _connect(path)
    try:
        connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
    )


def check_files(path: Path, *, existed: bool) -> None:
    """Raise `StoreCorrupt` if a store was emptied, or its database is gone and its write-ahead log is not.

    SQLite would create an empty database in both cases, and delete the log.
    """
    size = path.stat().st_size if path.exists() else 0
    if size > 0:
        return
    wal = Path(f"{path}-wal")
    if os.path.lexists(wal) and wal.stat().st_size > 0:
        raise damaged_file(path, f"it is empty or missing, but its write-ahead log {wal.name} is there")
    if existed and os.path.lexists(path):
        raise damaged_file(path, "it is empty, but was a store before: delete it to begin with a new one")


def check_small(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `StoreCorrupt` if a small database is not intact: one that is larger is checked by `retinue store check`.

    The rows of a larger one are compared with their checksums when they are read, but not its indexes.
    """
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    if pages * size <= OPEN_CHECK_SIZE:
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise damaged_file(path, found.partition("\n")[2] or found)


def _make_private(path: Path) -> None:
    """Create the file before SQLite does, readable by its owner only; SQLite creates the WAL files with its mode."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


class ReadOnlySqliteStore(SqliteQueries):
    """A SQLite store opened for reading, without writing a byte.

    `why` is the error that prevented opening it for writing; every commit raises it, and so does the constructor if
    not even reading is possible.
    """

    shared = True
    blocking = True

    def __init__(self, path: str | os.PathLike[str], why: StoreNotOpened, *, codec: Codec | None = None) -> None:
        file = Path(path).absolute()
        self.why = why
        super().__init__(_open_read_only(file, why), file, codec or Codec())

    def commit(self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False) -> NoReturn:
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
        return _connect_read_only(file, "mode=ro")
    except (sqlite3.Error, UnicodeDecodeError):
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
        return _connect_read_only(file, "immutable=1")
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise why from error


def _connect_read_only(file: Path, options: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(file))}?{options}", uri=True, isolation_level=None, check_same_thread=False
    )
    try:
        if is_older(connection):
            connection = _migrated_copy(connection, file)
        connection.execute("PRAGMA query_only = ON")
        migrate(connection, file)  # has nothing to do: rejects files of newer versions and of other programs
        connection.execute("SELECT count(*) FROM runs WHERE ended = 0").fetchone()
        check_small(connection, file)
    except BaseException:
        connection.close()
        raise
    return connection


def _migrated_copy(connection: sqlite3.Connection, file: Path) -> sqlite3.Connection:
    """A copy in memory of a store of an older version, which cannot be migrated in place; closes `connection`."""
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        with closing(connection):
            connection.backup(copy)
        migrate(copy, file)
    except BaseException:
        copy.close()
        raise
    return copy
