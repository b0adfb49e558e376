"""The address of the store: `sqlite:PATH`, `memory:` or `postgresql://...`, by flag, environment or settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from retinue.core.errors import BadInput
from retinue.core.ports import Store

if TYPE_CHECKING:
    from retinue.store.postgres import PostgresAddress
    from retinue.tools.dependencies import MemoryTables

VARIABLE = "RETINUE_STORE"
"""The variable with the address, for this process and those that it starts."""

IN_MEMORY = "memory:"
_SQLITE = "sqlite:"
_POSTGRES = ("postgresql:", "postgres:")
_EXPECTED = "expected sqlite:PATH, postgresql://... or memory:"


def chosen_url() -> str | None:
    """The address in the environment; None for the file in the state folder."""
    return os.environ.get(VARIABLE) or None


def choose_url(url: str) -> None:
    """Use this store in this process and in those that it starts; raises `BadInput` for an invalid address."""
    os.environ[VARIABLE] = checked_url(url)


def checked_url(url: str) -> str:
    """The address, with an absolute path; raises `BadInput`, which never shows a password.

    >>> checked_url("sqlite:/srv/retinue.db"), checked_url("memory:")
    ('sqlite:/srv/retinue.db', 'memory:')
    >>> checked_url("mysql://me:hidden@db/x")
    Traceback (most recent call last):
    retinue.core.errors.BadInput: unknown kind of store 'mysql': expected sqlite:PATH, postgresql://... or memory:
    """
    kind, colon, _ = url.partition(":")
    if url == IN_MEMORY:
        return url
    if url.startswith(_SQLITE):
        return f"{_SQLITE}{sqlite_path(url)}"
    if url.startswith(_POSTGRES):
        postgres_address(url)
        return url
    if not colon:
        raise BadInput(f"the address of a store names its kind: {_EXPECTED}")
    raise BadInput(f"unknown kind of store {kind!r}: {_EXPECTED}")


def sqlite_path(url: str) -> Path:
    """The file of a `sqlite:` address."""
    path = url.removeprefix(_SQLITE)
    if path.startswith("//"):  # as other programs write it: sqlite:///relative, sqlite:////absolute
        path = path.removeprefix("///") if path.startswith("///") else path.removeprefix("//")
    if not path:
        raise BadInput("the address sqlite: of a store has no path: write sqlite:PATH")
    return Path(path).expanduser().absolute()


def is_postgres(url: str | None) -> bool:
    return url is not None and url.startswith(_POSTGRES)


def is_sqlite(url: str | None) -> bool:
    return url is not None and url.startswith(_SQLITE)


def postgres_address(url: str) -> PostgresAddress:
    """The address of a PostgreSQL store; raises `BadInput` if the extra `postgres` is not installed."""
    try:
        from retinue.store.postgres import parse_address
    except ImportError as error:
        raise BadInput(f"a PostgreSQL store needs the package psycopg ({error}): install retinue[postgres]") from error
    return parse_address(url)


def open_url(url: str, *, durability: Literal["process", "power"] = "process") -> Store:
    """The store at an address."""
    url = checked_url(url)
    if url == IN_MEMORY:
        from retinue.store.memory import MemoryStore

        return MemoryStore()
    if is_sqlite(url):
        from retinue.store.sqlite import SqliteStore

        return SqliteStore(sqlite_path(url), durability=durability)
    address = postgres_address(url)
    from retinue.store.postgres import PostgresStore

    return PostgresStore(address)


def shown_url(url: str) -> str:
    """The address without secrets."""
    return str(postgres_address(url)) if is_postgres(url) else url


def memory_tables() -> MemoryTables | None:
    """The tables of memories, if the store of this process is a PostgreSQL database."""
    url = chosen_url()
    if url is None or not is_postgres(url):
        return None
    address = postgres_address(url)
    from retinue.store.postgres import PostgresMemoryTables

    return PostgresMemoryTables(address)
