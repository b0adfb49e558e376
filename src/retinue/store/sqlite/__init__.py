"""The SQLite store, and its read-only variant for folders that cannot be written."""

from retinue.store.sqlite.store import ReadOnlySqliteStore, SqliteStore, open_or_read_only

__all__ = [
    "ReadOnlySqliteStore",
    "SqliteStore",
    "backup",
    "check",
    "open_or_read_only",
    "repair",
    "replace",
    "space",
    "transfer",
    "work",
]
