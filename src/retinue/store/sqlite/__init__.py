"""TODO door."""

from retinue.store.sqlite.readonly import LookingStore, open_or_look
from retinue.store.sqlite.store import SqliteStore

__all__ = ["LookingStore", "SqliteStore", "open_or_look"]
