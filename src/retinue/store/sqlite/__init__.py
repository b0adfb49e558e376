"""The SQLite store, and its read-only variant for folders that cannot be written."""

from retinue.store.sqlite.readonly import ReadOnlySqliteStore, open_or_read_only
from retinue.store.sqlite.store import SqliteStore

__all__ = ["ReadOnlySqliteStore", "SqliteStore", "open_or_read_only"]
