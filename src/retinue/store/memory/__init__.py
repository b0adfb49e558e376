"""The in-memory store."""

from retinue.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
