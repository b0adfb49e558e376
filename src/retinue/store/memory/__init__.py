"""TODO door."""

from retinue.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
