"""Connections to a PostgreSQL server that are opened when they are needed, and again after they were lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg.types.string import StrDumper, TextBinaryLoader, TextLoader

from retinue.core.errors import StoreNotOpened, StoreUnavailable
from retinue.store.postgres.address import PostgresAddress
from retinue.store.postgres.errors import translated_error

Row: TypeAlias = tuple[Any, ...]
Connection: TypeAlias = psycopg.Connection[Row]
T = TypeVar("T")

RECONNECT_SECONDS: Final = 8.0
"""How long a call waits for a server that does not answer: a restart takes some seconds, the lease of a driver 10."""

_FIRST_NAP: Final = 0.05
_LONGEST_NAP: Final = 0.5

# A process that is stopped in the middle of a transaction would keep the lock of all commits. To compile a statement
# takes longer than any of these takes to run.
_SESSION: Final = """
    SELECT set_config('search_path', %s, false), set_config('idle_in_transaction_session_timeout', '5s', false),
           set_config('lock_timeout', '30s', false), set_config('jit', 'off', false)
"""

# PostgreSQL has no NUL in texts, but keys and labels that models choose may have one.
_ESCAPE: Final = "\ue000"


def escape_nul(text: str) -> str:
    """The text without NUL characters; `unescape_nul` gives the same text again.

    >>> unescape_nul(escape_nul("a\\0b\\ue000")) == "a\\0b\\ue000", escape_nul("plain")
    (True, 'plain')
    """
    if "\0" not in text and _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE, f"{_ESCAPE}1").replace("\0", f"{_ESCAPE}0")


def unescape_nul(text: str) -> str:
    """The text as it was before `escape_nul`."""
    if _ESCAPE not in text:
        return text
    return text.replace(f"{_ESCAPE}0", "\0").replace(f"{_ESCAPE}1", _ESCAPE)


class _Dumper(StrDumper):
    def dump(self, obj: str) -> Any:
        return super().dump(escape_nul(obj))


class _Loader(TextLoader):
    def load(self, data: Any) -> Any:
        loaded = super().load(data)
        return unescape_nul(loaded) if isinstance(loaded, str) else loaded


class _BinaryLoader(TextBinaryLoader):
    def load(self, data: Any) -> Any:
        loaded = super().load(data)
        return unescape_nul(loaded) if isinstance(loaded, str) else loaded


def connect(address: PostgresAddress) -> Connection:
    """A new connection in autocommit mode, with the schema as its search path."""
    connection: Connection = psycopg.connect(address.connection_string, autocommit=True)
    try:
        connection.adapters.register_dumper(str, _Dumper)
        connection.adapters.register_loader("text", _Loader)
        connection.adapters.register_loader("text", _BinaryLoader)
        connection.execute(_SESSION, (address.schema,))
    except BaseException:
        connection.close()
        raise
    return connection


def connect_before(address: PostgresAddress, give_up: float) -> Connection:
    """A new connection; tries again until the monotonic time `give_up`, because a restart takes some seconds."""
    nap = _FIRST_NAP
    while True:
        try:
            return connect(address)
        except psycopg.Error:
            if time.monotonic() + nap > give_up:
                raise
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)


class Database:
    """One connection, used by one thread at a time; `use` gives it to a function, and opens it again if it was lost."""

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._closed = False

    def open(self) -> None:
        """Connect now; raises `StoreNotOpened` at once if that is not possible."""
        with self._lock:
            try:
                self._connection = connect(self.address)
            except psycopg.Error as error:
                found = translated_error(self.address, error)
                raise StoreNotOpened(found.reason if isinstance(found, StoreUnavailable) else str(found)) from error

    def close(self) -> None:
        """Close the connection, after a call in progress."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def read(self, query: str, *values: object) -> list[Row]:
        """The rows of a query; repeated if the connection is lost."""
        encoded = query.encode()
        try:
            return self.use(lambda connection: connection.execute(encoded, values, binary=True).fetchall())
        except psycopg.Error as error:
            raise translated_error(self.address, error) from error

    def use(
        self, do: Callable[[Connection], T], *, lost: Callable[[], T | None] | None = None, again: bool = True
    ) -> T:
        """The result of `do` with the connection; called again with a new one if it was lost meanwhile.

        `lost` is called before that; its result, if any, is returned instead. With `again=False` the loss of the
        connection is an error at once.
        """
        with self._lock:
            give_up = time.monotonic() + RECONNECT_SECONDS
            while True:
                connection = self._connected(give_up)
                try:
                    return do(connection)
                except psycopg.Error as error:
                    if not is_lost(connection, error):
                        raise
                    self._drop()
                    if not again or time.monotonic() > give_up:
                        raise translated_error(self.address, error) from error
                    if lost is not None and (result := lost()) is not None:
                        return result

    def _connected(self, give_up: float) -> Connection:
        if self._closed:
            raise StoreUnavailable(f"{self.address} was closed")
        if self._connection is None or self._connection.closed:
            try:
                self._connection = connect_before(self.address, give_up)
            except psycopg.Error as error:
                raise translated_error(self.address, error) from error
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None


def is_lost(connection: Connection, error: psycopg.Error) -> bool:
    """Whether an error means that the connection, and a transaction in it, are gone."""
    state = error.sqlstate or ""
    return connection.closed or connection.broken or state.startswith(("57P", "08")) or state == "25P03"
