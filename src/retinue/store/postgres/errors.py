"""Translation of errors of the server and of the connection into `StoreUnavailable` and `StoreCorrupt`."""

from __future__ import annotations

from typing import Final

import psycopg

from retinue.core.errors import StoreCorrupt, StoreUnavailable
from retinue.store.postgres.address import PostgresAddress

_CHANGED_SCHEMA: Final = frozenset({"42P01", "42703", "42883", "3F000"})
"""A missing table, column, function or schema: all statements are constants for the tables of `migrations`."""

_UNAVAILABLE: Final = frozenset({"25006", "42501", "55P03", "57014", "40001", "40P01"})
"""A read-only server, missing privileges, a lock that was not free in time, a cancelled statement, a deadlock."""

_UNAVAILABLE_CLASSES: Final = ("08", "28", "3D", "53", "57", "58")
"""The connection, the login, the database, the resources, the operator, the system of the server."""


def translated_error(address: PostgresAddress, error: psycopg.Error) -> Exception:
    """The `StoreError` for an error; one that is caused neither by the server nor by its tables is unchanged."""
    state = error.sqlstate or ""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if state in _CHANGED_SCHEMA:
        return StoreCorrupt(f"the schema of {address} was changed ({text}): restore it from a copy")
    if state in _UNAVAILABLE or state.startswith(_UNAVAILABLE_CLASSES):
        return StoreUnavailable(f"{text} ({address})")
    if not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreUnavailable(f"{text} ({address})")
    return error
